//! Interactive sessions: `exec`, `run`, `attach` and `forward`, with real terminals and processes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command, script};
use tessera_load_tests::programs::programs;
use tessera_load_tests::terminal::Terminal;
use tessera_load_tests::wait;

fn cluster() -> Cluster {
    Plan::new().node("n1", "a30-24gb").start()
}

/// The command as root, who submits the jobs of these tests, or as another user.
fn tessera_as(cluster: &Cluster, user: &str, role: &str, words: &[&str]) -> Command {
    let mut called = Command::new(programs().path("tessera"));
    called
        .args(words)
        .current_dir(cluster.scratch())
        .env("TESSERA_URL", format!("http://{}", cluster.http()))
        .env("TESSERA_TOKEN", cluster.token_for(user, role))
        .env("TERM", "xterm-256color");
    called
}

fn tessera(cluster: &Cluster, words: &[&str]) -> Command {
    tessera_as(cluster, "root", "admin", words)
}

/// Starts a job that does nothing for long; returns its number.
fn sleeper(cluster: &Cluster) -> String {
    let job = cluster.submit(&command(["sleep", "600"])).job_id;
    cluster.wait_job(job, SOON, "running");
    job.to_string()
}

fn run_with(mut called: Command, input: &[u8]) -> Output {
    let mut child =
        called.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until no process has this word on its command line.
#[track_caller]
fn gone(word: &str, within: Duration) {
    wait::until(within, &format!("the end of {word}"), || running(word).is_empty().then_some(()));
}

fn running(word: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_client = words.windows(8).any(|part| part == b"/tessera");
        !is_client && words.split(|byte| *byte == 0).any(|found| found == word.as_bytes())
    };
    pids.filter(named).collect()
}

#[test]
fn a_program_in_a_job_has_the_jobs_environment_streams_and_exit_code() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let line = "echo $TESSERA_JOB_ID; echo $CUDA_VISIBLE_DEVICES >&2; wc -c; exit 7";

    let ran = run_with(tessera(&cluster, &["exec", &job, "--", "sh", "-c", line]), b"12345");

    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    assert_eq!(text(&ran.stdout), format!("{job}\n5\n"), "{ran:?}");
    assert!(text(&ran.stderr).contains("MIG-"), "{ran:?}");
    // The job itself continues.
    assert_eq!(cluster.job(job.parse().unwrap()).job.state, "running");
}

#[test]
fn bytes_are_not_changed_in_either_direction_however_many() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let all: Vec<u8> =
        (0..3_000_000_u32).map(|n| (n % 251 * 7 + n / 65_536).to_le_bytes()[0]).collect();

    let ran = run_with(tessera(&cluster, &["exec", &job, "--", "cat"]), &all);

    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert!(ran.stdout == all, "{} of {} bytes came back", ran.stdout.len(), all.len());
}

#[test]
fn an_impossible_session_is_refused_with_the_reason() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let waiting = {
        let held = tessera_api_types::SubmitRequest { hold: true, ..command(["true"]) };
        cluster.submit(&held).job_id.to_string()
    };
    let exec =
        |job: &str, program: &str| run_with(tessera(&cluster, &["exec", job, "--", program]), b"");

    let missing = exec(&job, "nosuchprogram");
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    assert!(text(&missing.stderr).contains("no such program: nosuchprogram"), "{missing:?}");
    let early = exec(&waiting, "true");
    assert_eq!(early.status.code(), Some(1), "{early:?}");
    assert!(text(&early.stderr).contains("has not run yet"), "{early:?}");
    let nobody = exec("4711", "true");
    assert!(text(&nobody.stderr).contains("there is no job 4711"), "{nobody:?}");
}

#[test]
fn other_users_have_no_sessions_in_a_job_and_sessions_are_audited() {
    let cluster = cluster();
    let job = sleeper(&cluster);

    let words = ["exec", job.as_str(), "--", "true"];
    let other = run_with(tessera_as(&cluster, "bob", "user", &words), b"");
    let own = run_with(tessera(&cluster, &words), b"");

    assert_eq!(other.status.code(), Some(1), "{other:?}");
    assert!(text(&other.stderr).contains(&format!("there is no job {job}")), "{other:?}");
    assert_eq!(own.status.code(), Some(0), "{own:?}");
    // Entries are written after the answer.
    wait::until(SOON, "the audit's entry", || {
        let page = cluster.call("GET", "/v1/audit", None).text();
        page.contains("GET /v1/jobs/{job}/sessions/{session}").then_some(())
    });
}

#[test]
fn a_terminal_has_the_users_size_and_keys_and_a_changed_size_reaches_the_program() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let mut called = tessera(&cluster, &["exec", "--pty", &job, "--", "sh"]);
    let mut terminal = Terminal::start(&mut called);

    terminal.type_in("stty size; tty; echo $TERM\r");
    terminal.wait_for("24 80\r\n", SOON);
    terminal.wait_for("/dev/pts/", SOON);
    terminal.wait_for("xterm-256color", SOON);
    assert!(terminal.is_raw());
    terminal.resize(40, 132);
    wait::until(SOON, "the other size", || {
        terminal.clear();
        terminal.type_in("stty size\r");
        wait::within_time(Duration::from_millis(500), || {
            text(&terminal.shown()).contains("40 132\r\n").then_some(())
        })
    });
    // Ctrl-C ends the program in the foreground, and not the session.
    terminal.type_in("echo ready; sleep 611\r");
    terminal.wait_for("ready\r\n", SOON);
    wait::until(SOON, "the sleeper", || (!running("611").is_empty()).then_some(()));
    terminal.type_in("\x03");
    gone("611", SOON);
    terminal.type_in("exit 9\r");

    assert_eq!(terminal.wait(SOON).code(), Some(9));
    assert!(!terminal.is_raw(), "the terminal is as it was");
}

#[test]
fn a_raw_program_gets_every_byte_as_it_is() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let line =
        "stty raw -echo; echo ready; dd bs=1 count=256 2>/dev/null | od -An -tx1 -v; stty sane";
    let mut called = tessera(&cluster, &["exec", "--pty", &job, "--", "sh", "-c", line]);
    let mut terminal = Terminal::start(&mut called);
    terminal.wait_for("ready", SOON);
    terminal.clear();

    let all: Vec<u8> = (0..=255).collect();
    terminal.type_in(&all);

    terminal.wait_for("f8 f9 fa fb fc fd fe ff", SOON);
    let shown = text(&terminal.shown());
    let back: Vec<u8> =
        shown.split_whitespace().filter_map(|hex| u8::from_str_radix(hex, 16).ok()).collect();
    assert_eq!(back, all, "{shown}");
    assert_eq!(terminal.wait(SOON).code(), Some(0));
}

#[test]
fn signals_of_the_client_reach_the_program() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let line = "trap 'echo got it; exit 5' INT; echo ready; while :; do sleep 0.1; done";
    let mut child = tessera(&cluster, &["exec", &job, "--", "sh", "-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0; 6];
    out.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"ready\n");

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();

    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((child.wait().unwrap().code(), rest.as_str()), (Some(5), "got it\n"));
}

#[test]
fn a_session_continues_at_the_same_byte_after_agent_and_controller_were_killed() {
    let mut cluster = cluster();
    let job = sleeper(&cluster);
    let mut called = tessera(&cluster, &["exec", "--pty", &job, "--", "sh"]);
    let mut terminal = Terminal::start(&mut called);
    terminal.type_in("marker=kept; echo $((6*7))\r");
    terminal.wait_for("42\r\n", SOON);

    cluster.agents[0].kill();
    // Written while no agent or controller runs that could forward it.
    terminal.type_in("echo $marker $((6*8))\r");
    cluster.agents[0].start();
    terminal.wait_for("kept 48\r\n", Duration::from_secs(40));

    cluster.controller.kill();
    terminal.type_in("echo $marker $((6*9))\r");
    cluster.controller.start();
    terminal.wait_for("kept 54\r\n", Duration::from_secs(50));
    terminal.type_in("exit 3\r");

    assert_eq!(terminal.wait(SOON).code(), Some(3));
    let shown = text(&terminal.shown());
    assert_eq!(shown.matches("kept 48").count(), 1, "nothing twice: {shown}");
}

#[test]
fn a_killed_client_leaves_no_processes() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let mut called =
        tessera(&cluster, &["exec", "--pty", &job, "--", "sh", "-c", "trap '' HUP; sleep 612"]);
    let mut terminal = Terminal::start(&mut called);
    wait::until(SOON, "the program", || (!running("612").is_empty()).then_some(()));
    let mut piped = tessera(&cluster, &["exec", &job, "--", "sleep", "613"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait::until(SOON, "the other program", || (!running("613").is_empty()).then_some(()));

    terminal.kill();
    piped.kill().unwrap();
    piped.wait().unwrap();

    gone("612", SOON);
    gone("613", SOON);
    assert_eq!(cluster.job(job.parse().unwrap()).job.state, "running");
}

#[test]
fn the_end_of_a_job_ends_its_sessions() {
    let cluster = cluster();
    let job = sleeper(&cluster);
    let mut called =
        tessera(&cluster, &["exec", "--pty", &job, "--", "sh", "-c", "echo ready; sleep 614"]);
    let mut terminal = Terminal::start(&mut called);
    terminal.wait_for("ready", SOON);

    cluster.act(&job, "cancel");

    terminal.wait(SOON);
    gone("614", SOON);
    cluster.wait_job(job.parse().unwrap(), SOON, "cancelled");
}

#[test]
fn run_talks_with_a_job_and_returns_its_code() {
    let cluster = cluster();
    let line = "read name; echo hello $name; echo oops >&2; exit 4";

    let ran = run_with(tessera(&cluster, &["run", "-J", "talk", "sh", "-c", line]), b"ada\n");

    assert_eq!(ran.status.code(), Some(4), "{ran:?}");
    assert_eq!(text(&ran.stdout), "hello ada\n");
    assert!(text(&ran.stderr).contains("oops\n"), "{ran:?}");
    let job = cluster.all_jobs().into_iter().find(|job| job.name == "talk").unwrap();
    assert_eq!((job.state.as_str(), job.exit_code.as_deref()), ("failed", Some("4:0")));
    // Its log has what it wrote.
    let logs = run_with(tessera(&cluster, &["logs", &job.id.to_string()]), b"");
    assert!(text(&logs.stdout).contains("hello ada"), "{logs:?}");
}

#[test]
fn run_with_a_terminal_is_a_job_with_a_terminal() {
    let mut cluster = cluster();
    let mut called = tessera(&cluster, &["run", "--pty", "-J", "shell", "sh"]);
    let mut terminal = Terminal::start(&mut called);
    terminal.type_in("echo $TESSERA_JOB_ID of $((3*4)); stty size\r");
    terminal.wait_for("of 12\r\n", SOON);
    terminal.wait_for("24 80\r\n", SOON);
    let job = cluster.all_jobs().into_iter().find(|job| job.name == "shell").unwrap();

    cluster.agents[0].kill();
    cluster.agents[0].start();
    terminal.type_in("echo still $((3*5))\r");
    terminal.wait_for("still 15\r\n", Duration::from_secs(40));

    // Another client takes the session over, shows the earlier output, and continues.
    let mut called = tessera(&cluster, &["attach", &job.id.to_string()]);
    let mut other = Terminal::start(&mut called);
    other.wait_for("still 15\r\n", SOON);
    assert_eq!(terminal.wait(SOON).code(), Some(1));
    terminal.wait_for("another client has taken the session over", SOON);
    other.type_in("exit 6\r");

    assert_eq!(other.wait(SOON).code(), Some(6));
    assert_eq!(cluster.wait_job(job.id, SOON, "failed").job.exit_code.as_deref(), Some("6:0"));
}

#[test]
fn a_job_whose_terminal_is_closed_ends() {
    let cluster = cluster();
    let mut called = tessera(
        &cluster,
        &["run", "--pty", "-J", "left", "sh", "-c", "trap '' HUP; echo ready; sleep 615"],
    );
    let mut terminal = Terminal::start(&mut called);
    terminal.wait_for("ready", SOON);
    let job = cluster.all_jobs().into_iter().find(|job| job.name == "left").unwrap();

    terminal.kill();

    cluster.wait_job(job.id, SOON, "failed");
    gone("615", SOON);
}

#[test]
fn an_interrupt_while_the_job_waits_cancels_it() {
    let cluster = cluster();
    let words = ["run", "-J", "waits", "--hold", "true"];
    let mut child = tessera(&cluster, &words).stderr(Stdio::piped()).spawn().unwrap();
    let job = wait::until(SOON, "the job", || {
        cluster.all_jobs().into_iter().find(|job| job.name == "waits")
    });
    let mut err = child.stderr.take().unwrap();
    let mut note = [0; 8];
    // Its message shows that it has begun to wait.
    err.read_exact(&mut note).unwrap();

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(130));
    cluster.wait_job(job.id, SOON, "cancelled");
}

#[test]
fn attach_shows_the_output_of_a_job_that_is_not_interactive() {
    let cluster = cluster();
    let job = cluster.submit(&script("echo begun; sleep 0.5; echo done")).job_id.to_string();

    let ran = run_with(tessera(&cluster, &["attach", &job]), b"");

    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(text(&ran.stdout), "begun\ndone\n");
    assert!(text(&ran.stderr).contains("not interactive"), "{ran:?}");
}

/// A server in a job that returns each line in capitals, one connection after the other.
const SERVER: &str = "import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
with socketserver.ThreadingTCPServer(('127.0.0.1', 0), Echo) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
";

#[test]
fn a_port_of_a_job_is_reachable_only_for_its_user_and_by_many_connections() {
    let cluster = cluster();
    let job = cluster.submit(&command(["python3", "-c", SERVER])).job_id;
    cluster.wait_job(job, SOON, "running");
    let job = job.to_string();
    let port = wait::until(SOON, "the server's port", || {
        let logs = run_with(tessera(&cluster, &["logs", &job]), b"");
        text(&logs.stdout).trim().parse::<u16>().ok()
    });
    let forward = |user: &str, port: u16| {
        let ports = format!("{port}:0");
        let mut child = tessera_as(&cluster, user, "admin", &["forward", &job, &ports])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        let mut byte = [0];
        let out = child.stdout.as_mut().unwrap();
        while !said.ends_with(b"\n") {
            assert_eq!(out.read(&mut byte).unwrap(), 1, "it ended early");
            said.push(byte[0]);
        }
        let local = text(&said).split_whitespace().nth(1).unwrap().to_owned();
        (child, local)
    };
    let (mut own, local) = forward("root", port);

    let mut connections: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(&local).unwrap()).collect();
    for (number, stream) in connections.iter_mut().enumerate() {
        stream.set_read_timeout(Some(SOON)).unwrap();
        writeln!(stream, "hello {number}").unwrap();
    }
    for (number, stream) in connections.iter_mut().enumerate() {
        let expected = format!("HELLO {number}\n");
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(text(&answer), expected);
    }
    // An end of input is passed on, and so is the answer to it.
    let mut last = connections.pop().unwrap();
    last.write_all(b"bye").unwrap();
    last.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    last.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "BYE");
    kill_process(Pid::from_child(&own), Signal::INT).unwrap();
    assert_eq!(own.wait().unwrap().code(), Some(130));

    // An administrator may not use it, either.
    let (mut other, local) = forward("ada", port);
    let mut refused = TcpStream::connect(&local).unwrap();
    refused.set_read_timeout(Some(SOON)).unwrap();
    let _ = refused.write_all(b"hello\n");
    let mut nothing = Vec::new();
    let _ = refused.read_to_end(&mut nothing);
    assert_eq!(nothing, b"");
    kill_process(Pid::from_child(&other), Signal::INT).unwrap();
    other.wait().unwrap();
    let mut said = String::new();
    other.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("only the job's own user"), "{said}");
}

#[test]
fn ended_sessions_do_not_count_towards_the_limit() {
    let cluster = cluster();
    let job = sleeper(&cluster);

    // More sessions than a job may have at once.
    for number in 0..140 {
        let ran = run_with(tessera(&cluster, &["exec", &job, "--", "true"]), b"");
        assert_eq!(ran.status.code(), Some(0), "{number}: {ran:?}");
    }
}
