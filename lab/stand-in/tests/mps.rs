//! The stand-in for MPS as programs meet it: real processes, by NVIDIA's rules.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::mps::CLIENTS_MAX;
use tessera_stand_in::node::SimulatedNode;

/// Longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One daemon's folders on a node whose GPU has MIG off.
struct Rig {
    folder: TempDir,
    gpu: String,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.control("quit -t 0");
    }
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = StandInConfig {
            mig: false,
            ..StandInConfig::new(folder.path().join("n"), &["a30-24gb"])
        };
        let gpu = SimulatedNode::open(&config).unwrap().read().unwrap().gpu_uuid(0);
        Self { folder, gpu }
    }

    fn started() -> Self {
        let rig = Self::new();
        rig.start();
        rig
    }

    fn start(&self) {
        let started = self.program("nvidia-cuda-mps-control").arg("-d").output().unwrap();
        assert!(started.status.success(), "{started:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn faults(&self, list: &str) {
        std::fs::write(self.path("n").join("mps-faults"), list).unwrap();
    }

    fn program(&self, name: &str) -> Command {
        let path = match name {
            "nvidia-cuda-mps-control" => env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"),
            _ => env!("CARGO_BIN_EXE_tessera-sim-client"),
        };
        let mut command = Command::new(path);
        command
            .env("TESSERA_SIM_NODE", self.path("n"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("p"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.path("l"))
            .env("CUDA_VISIBLE_DEVICES", &self.gpu)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn control(&self, line: &str) -> Output {
        let mut child = self.program("nvidia-cuda-mps-control").spawn().unwrap();
        let _ = writeln!(child.stdin.take().unwrap(), "{line}");
        child.wait_with_output().unwrap()
    }

    /// The answer to a command that succeeds.
    fn answer_to(&self, line: &str) -> String {
        let output = self.control(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn client(&self, arguments: &[&str]) -> Child {
        self.program("client").arg("--mps").args(arguments).spawn().unwrap()
    }

    /// A client that is known to the server and runs kernels.
    ///
    /// Being listed isn't enough: it then still enters itself at the node, under a lock that all
    /// others would wait for if it were stopped or killed meanwhile.
    fn connected(&self, arguments: &[&str]) -> Child {
        let mut child = self.client(arguments);
        let mut reported = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut reported).unwrap();
        assert!(reported.starts_with("shares "), "{reported:?}: {:?}", end(child));
        child
    }

    fn server(&self) -> String {
        self.answer_to("get_server_list")
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path("l").join(name)).unwrap()
    }

    fn flag(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let ends = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < ends, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn raise(path: &Path) {
    std::fs::write(path, "").unwrap();
}

/// Returns how a client ended, and what it printed.
fn end(child: Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_client_gets_a_server_that_both_logs_and_lists_name() {
    let rig = Rig::started();
    let until = rig.flag("done");

    let client = rig.connected(&["--until", &until]);

    let server = rig.server();
    assert_eq!(rig.answer_to(&format!("get_server_status {server}")), "ACTIVE");
    let table = rig.answer_to("ps");
    let head: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["PID", "ID", "SERVER", "STATUS", "DEVICE", "NAMESPACE", "COMMAND"]);
    assert!(table.contains(&client.id().to_string()), "{table}");
    assert!(rig.answer_to("get_device_client_list").starts_with(&rig.gpu));
    for name in ["control.log", "server.log"] {
        assert!(rig.log(name).lines().next().unwrap().contains("stand-in"), "{name}");
    }
    assert!(rig.log("control.log").contains(&format!("NEW SERVER {server}: Ready")));
    raise(Path::new(&until));
    assert_eq!(end(client), (true, String::new()));
    // The GPU sees the server: its context keeps the slice.
    assert_eq!(rig.answer_to("quit"), "");
    assert!(!rig.control("get_server_list").status.success());
}

#[test]
fn one_clients_fault_reaches_all_and_the_server_takes_nobody_until_they_are_gone() {
    let rig = Rig::started();
    let (fault, never) = (rig.flag("fault"), rig.flag("never"));
    let victim = rig.connected(&["--until", &never]);
    let culprit = rig.connected(&["--fault-when", &fault]);
    let mut stopped = rig.connected(&["--until", &never]);
    signal(stopped.id(), "-STOP");
    let pid = culprit.id();

    raise(Path::new(&fault));

    assert!(end(culprit).1.contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert!(end(victim).1.contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
    let server = rig.server();
    assert_eq!(rig.answer_to(&format!("get_server_status {server}")), "FAULT");
    assert!(end(rig.client(&["--canary"])).1.contains("CUDA_ERROR_MPS_SERVER_NOT_READY"));
    assert!(rig.log("server.log").contains(&format!("{pid} caused a memory fault")));
    signal(stopped.id(), "-KILL");
    stopped.wait().unwrap();
    until("the server recovered", || {
        rig.answer_to(&format!("get_server_status {server}")) == "ACTIVE"
    });
    assert!(end(rig.client(&["--canary"])).0);
}

#[test]
fn a_bare_kill_may_break_every_context_while_the_status_says_active() {
    let rig = Rig::started();
    rig.faults("poison_percent=100\n");
    let never = rig.flag("never");
    let neighbour = rig.connected(&["--until", &never]);
    let mut killed = rig.connected(&["--until", &never]);

    signal(killed.id(), "-KILL");
    killed.wait().unwrap();

    assert!(end(neighbour).1.contains("CUDA_ERROR_MPS_RPC_FAILURE"));
    let server = rig.server();
    assert_eq!(rig.answer_to(&format!("get_server_status {server}")), "ACTIVE");
    assert!(!end(rig.client(&["--canary"])).0);
}

#[test]
fn a_client_that_was_terminated_first_breaks_nothing_when_it_is_killed() {
    let rig = Rig::started();
    rig.faults("poison_percent=100\n");
    let (never, done) = (rig.flag("never"), rig.flag("done"));
    let neighbour = rig.connected(&["--until", &done]);
    let mut client = rig.connected(&["--until", &never]);
    let server = rig.server();

    signal(client.id(), "-STOP");
    assert_eq!(rig.answer_to(&format!("terminate_client {server} {}", client.id())), "0");
    signal(client.id(), "-KILL");
    client.wait().unwrap();

    assert!(end(rig.client(&["--canary"])).0);
    raise(Path::new(&done));
    assert_eq!(end(neighbour), (true, String::new()));
    let unknown = rig.answer_to(&format!("terminate_client {server} 1"));
    assert_eq!(unknown, "Invalid process 1!\n1");
}

#[test]
fn a_memory_limit_stops_only_the_one_who_goes_past_it() {
    let rig = Rig::started();
    rig.answer_to("set_default_device_pinned_mem_limit 0 8G");
    let done = rig.flag("done");
    let modest = rig.connected(&["--until", &done, "--memory-bytes", "1000000000"]);
    let mut greedy = rig.program("client");
    greedy.args(["--mps", "--canary", "--memory-bytes", "3000000000"]);
    greedy.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G");
    let past_the_server = rig.client(&["--canary", "--memory-bytes", "9000000000"]);

    assert!(end(greedy.spawn().unwrap()).1.contains("CUDA_ERROR_OUT_OF_MEMORY"));
    assert!(end(past_the_server).1.contains("CUDA_ERROR_OUT_OF_MEMORY"));
    raise(Path::new(&done));
    assert_eq!(end(modest), (true, String::new()));
}

#[test]
fn a_server_takes_no_more_clients_than_it_has_contexts() {
    let rig = Rig::started();
    let done = rig.flag("done");
    let clients: Vec<_> = (0..CLIENTS_MAX).map(|_| rig.client(&["--until", &done])).collect();
    let server = || rig.server();
    until("all are connected", || {
        let server = server();
        !server.is_empty()
            && rig.answer_to(&format!("get_client_list {server}")).lines().count() == CLIENTS_MAX
    });

    let one_more = end(rig.client(&["--canary"]));

    assert!(one_more.1.contains("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"), "{one_more:?}");
    raise(Path::new(&done));
    assert!(clients.into_iter().all(|client| end(client).0));
}

#[test]
fn a_daemon_that_may_not_start_says_so_and_leaves_nothing_behind() {
    let rig = Rig::new();
    rig.faults("refuse_start=1\n");

    let started = rig.program("nvidia-cuda-mps-control").arg("-d").output().unwrap();

    assert!(!started.status.success());
    assert!(!rig.control("get_server_list").status.success());
}

#[test]
fn percentages_are_those_that_were_set() {
    let rig = Rig::started();
    assert_eq!(rig.answer_to("set_default_active_thread_percentage 40"), "40.0");
    rig.answer_to(&format!("start_server -uid {}", uid()));
    until("a server is there", || !rig.server().is_empty());
    let server = rig.server();
    let status = || rig.answer_to(&format!("get_server_status {server}"));
    until("the server is ready", || status() == "ACTIVE");

    assert_eq!(rig.answer_to(&format!("get_active_thread_percentage {server}")), "40.0");
    assert_eq!(rig.answer_to(&format!("set_active_thread_percentage {server} 70")), "70.0");
    assert_eq!(rig.answer_to(&format!("get_active_thread_percentage {server}")), "70.0");
    assert_eq!(rig.answer_to("get_default_active_thread_percentage"), "40.0");
}

#[test]
fn a_server_that_starts_is_listed_before_it_serves_and_the_log_says_what_becomes_of_it() {
    let rig = Rig::new();
    rig.faults("server_delay_ms=400\n");
    rig.start();

    assert_eq!(rig.answer_to(&format!("start_server -uid {}", uid())), "");

    let server = rig.server();
    assert_eq!(rig.answer_to(&format!("get_server_status {server}")), "INITIALIZING");
    until("ready", || rig.log("control.log").contains(&format!("NEW SERVER {server}: Ready")));
    rig.faults("server_fails=1\n");
    signal(server.parse().unwrap(), "-KILL");
    until("the server is gone", || rig.server().is_empty());
    assert!(rig.log("control.log").contains(&format!("Server {server} exited with status 9")));
    rig.answer_to(&format!("start_server -uid {}", uid()));
    until("it ended", || rig.log("control.log").contains("exited with status 1"));
    assert!(end(rig.client(&["--canary"])).1.contains("CUDA_ERROR_MPS_CONNECTION_FAILED"));
}

fn uid() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").unwrap().uid()
}

fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap();
    assert!(sent.success());
}
