//! Steps over several nodes: processes that `srun` in a batch script starts on the other nodes of
//! its job.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::programs::programs;
use tessera_load_tests::terminal::Terminal;
use tessera_load_tests::wait;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    /// Two nodes with two GPUs each.
    fn new() -> Self {
        Self::of(
            Plan::new()
                .whole_gpu_node("n1", "a30-24gb,a30-24gb")
                .whole_gpu_node("n2", "a30-24gb,a30-24gb"),
        )
    }

    fn of(plan: Plan) -> Self {
        let rig = Self { cluster: plan.start() };
        let made = Command::new(programs().path("tessera"))
            .args(["slurm-links", &rig.links().display().to_string()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        rig
    }

    fn links(&self) -> PathBuf {
        self.cluster.scratch().join("links")
    }

    /// One of Slurm's commands. Jobs get neither its token nor the controller's address.
    fn slurm(&self, command: &str, words: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut called = Command::new(self.links().join(command));
        called
            .args(words)
            .current_dir(self.cluster.scratch())
            .env("PATH", format!("{}:{path}", self.links().display()))
            .env("TESSERA_URL", self.cluster.url())
            .env("TESSERA_TOKEN", self.cluster.token());
        called
    }

    /// Submits a line as a job on both nodes with one GPU on each, and returns its number. Its output is in `out.txt`.
    fn submit(&self, options: &[&str], line: &str) -> u64 {
        let usual = ["--parsable", "-o", "out.txt", "-N2", "--gpus-per-node=1"];
        let words = [&usual, options, &["--wrap", line]].concat();
        let submitted = self.slurm("sbatch", &words).output().unwrap();
        let number = text(&submitted.stdout).trim().parse();
        number.unwrap_or_else(|_| panic!("{submitted:?}"))
    }

    /// Runs a line as such a job, and returns its exit code and its output.
    fn batch(&self, options: &[&str], line: &str) -> (i32, String) {
        let job = self.submit(options, line);
        self.cluster.wait_end(job, Duration::from_secs(120));
        let code = self.cluster.job(job).job.exit_code.unwrap_or_default();
        let code = code.split(':').next().and_then(|code| code.parse().ok());
        (code.unwrap_or(-1), self.output())
    }

    fn output(&self) -> String {
        fs::read_to_string(self.cluster.scratch().join("out.txt")).unwrap_or_default()
    }

    /// Waits until processes of a job have written their numbers into these files, and returns them.
    fn pids(&self, names: &[&str]) -> Vec<Pid> {
        let path = |name: &str| self.cluster.scratch().join(name);
        let read = |name: &&str| {
            let number = fs::read_to_string(path(name)).ok()?;
            Pid::from_raw(number.strip_suffix('\n')?.parse().ok()?)
        };
        let what = format!("{names:?}: {}", self.output());
        wait::until(SOON, &what, || names.iter().map(read).collect::<Option<Vec<_>>>())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn is_alive(pid: Pid) -> bool {
    let is_there = test_kill_process(pid).is_ok();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()));
    is_there && !status.unwrap_or_default().contains("State:\tZ")
}

#[test]
fn a_step_starts_its_ranks_on_all_nodes_of_its_job_with_their_variables_and_devices() {
    let rig = Rig::new();
    let line = "srun -l sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS local $SLURM_LOCALID node $SLURM_NODEID \
                of $SLURM_NNODES $SLURMD_NODENAME in $SLURM_STEP_NODELIST $SLURM_STEP_NUM_NODES \
                $SLURM_STEP_NUM_TASKS $SLURM_TASKS_PER_NODE $SLURM_GTIDS $SLURM_STEP_ID $SLURM_JOB_ID \
                $SLURM_LAUNCH_NODE_IPADDR $(echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l)'";

    let (code, text) = rig.batch(&["--ntasks-per-node=2", "--gpus-per-node=2"], line);

    let job = rig.cluster.all_jobs().iter().map(|job| job.id).min().unwrap();
    let expected: Vec<String> = [(0, 0, "n1", "0,1"), (1, 0, "n1", "0,1"), (2, 1, "n2", "2,3"), (3, 1, "n2", "2,3")]
        .into_iter()
        .map(|(rank, node, name, gtids)| {
            format!(
                "{rank}: {rank} of 4 local {} node {node} of 2 {name} in n[1-2] 2 4 2(x2) {gtids} 0 {job} 127.0.0.1 2",
                rank % 2
            )
        })
        .collect();
    assert_eq!((code, lines(&text)), (0, expected), "{text}");
}

#[test]
fn the_idiom_for_the_head_node_and_steps_on_named_nodes_work() {
    let rig = Rig::new();
    let line = "for node in $(scontrol show hostnames $SLURM_JOB_NODELIST); do \
                srun -N1 -n1 -w $node sh -c 'echo $SLURMD_NODENAME rank $SLURM_PROCID of $SLURM_NTASKS in \
                $SLURM_STEP_NODELIST'; done; \
                srun -r1 sh -c 'echo relative $SLURMD_NODENAME'; \
                srun -n1 sh -c 'echo one $SLURMD_NODENAME'; \
                srun -x n1 sh -c 'echo other $SLURMD_NODENAME'";

    let (code, text) = rig.batch(&["--ntasks-per-node=1"], line);

    let expected =
        ["n1 rank 0 of 1 in n1", "n2 rank 0 of 1 in n2", "relative n2", "one n1", "other n2"];
    assert_eq!((code, text.lines().collect::<Vec<_>>()), (0, expected.to_vec()), "{text}");
}

#[test]
fn a_process_on_another_node_of_an_allocation_has_the_callers_terminal_variables_and_folder() {
    let rig = Rig::new();
    let words = ["-N2", "--gpus-per-node=1", "sh"];
    let mut terminal = Terminal::start(&mut rig.slurm("salloc", &words));
    terminal.wait_for("are ready for job", SOON);
    terminal.type_in("srun -N1 -n1 --pty sh\r");
    terminal.type_in("mkdir there; cd there; export WORD=kept; echo in $SLURMD_NODENAME\r");
    terminal.wait_for("in n1\r\n", SOON);

    terminal.type_in(
        "srun -N1 -n1 -w n2 --pty sh -c 'stty size; echo waits on $SLURMD_NODENAME; read line; \
         echo $line $WORD rank $SLURM_PROCID of $SLURM_STEP_NODELIST in ${PWD##*/}; exit 7'; echo gave $?\r",
    );
    terminal.wait_for("24 80\r\n", SOON);
    terminal.wait_for("waits on n2\r\n", SOON);
    terminal.type_in("typed\r");

    terminal.wait_for("typed kept rank 0 of n2 in there\r\n", SOON);
    terminal.wait_for("gave 7\r\n", SOON);
    // Ctrl-C reaches the program there, and no process here.
    terminal.type_in(
        "srun -N1 -n1 -w n2 --pty sh -c 'trap \"exit 9\" INT; echo sleeps; while :; do sleep 0.1; done'; \
         echo gave $?\r",
    );
    terminal.wait_for("sleeps\r\n", SOON);
    terminal.type_in("\x03");
    terminal.wait_for("gave 9\r\n", SOON);
    terminal.type_in("srun -N1 -n1 -w n2 --pty no-such-program; echo gave $?\r");
    terminal.wait_for("execve(): no-such-program: No such file or directory", SOON);
    // Until it has ended, typed input goes to that program.
    terminal.wait_for("gave 2\r\n", SOON);
    terminal.type_in("exit\r");
    wait::until(SOON, "the shell here", || (!terminal.is_raw()).then_some(()));
    terminal.type_in("exit\r");
    terminal.wait(SOON);
}

#[test]
fn steps_that_name_gpus_have_them_on_every_node_and_wait_for_each_other() {
    let rig = Rig::new();
    let count = "$(echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l) $SLURM_GPUS_ON_NODE";
    let line = format!(
        "srun -l --gpus-per-task=1 sh -c 'echo each {count}'; \
         srun -n2 --gpus-per-node=2 sh -c 'echo first; sleep 1' & \
         sleep 0.5; srun -n2 --gpus-per-node=1 sh -c 'echo second'; wait"
    );

    let (code, text) = rig.batch(&["--ntasks-per-node=2", "--gpus-per-node=2"], &line);

    assert_eq!(code, 0, "{text}");
    for rank in 0..4 {
        assert!(text.contains(&format!("{rank}: each 1 2\n")), "{text}");
    }
    assert_eq!(text.matches("step creation temporarily disabled").count(), 1, "{text}");
    assert!(text.rfind("first").unwrap() < text.find("second").unwrap(), "{text}");
}

#[test]
fn input_goes_to_all_ranks_and_output_into_files_by_rank() {
    let rig = Rig::new();
    let line = "head -c 300000 /dev/zero | srun -o count-%t-%N wc -c; echo hello | srun cat; \
                mkdir -p there; cd there; srun pwd; FOO=bar srun sh -c 'echo $FOO'";

    let (code, text) = rig.batch(&["--ntasks-per-node=1"], line);

    let scratch = rig.cluster.scratch();
    for name in ["count-0-n1", "count-1-n2"] {
        assert_eq!(fs::read_to_string(scratch.join(name)).unwrap().trim(), "300000", "{text}");
    }
    let there = scratch.join("there").display().to_string();
    let expected = ["hello", "hello", &there, &there, "bar", "bar"];
    assert_eq!((code, text.lines().collect::<Vec<_>>()), (0, expected.to_vec()), "{text}");
}

#[test]
fn the_largest_code_of_any_node_counts_and_a_failure_ends_other_nodes_only_with_k() {
    let rig = Rig::new();
    let fails = "[ $SLURM_NODEID = 0 ] || exit 3; sleep 1; echo whole";
    let (code, text) = rig.batch(&[], &format!("srun sh -c '{fails}'"));
    assert_eq!((code, text.contains("whole")), (3, true), "{text}");
    assert!(text.contains("srun: error: n2: task 1: Exited with exit code 3"), "{text}");

    let (code, text) =
        rig.batch(&[], "srun -K sh -c '[ $SLURM_NODEID = 0 ] && exec sleep 600; exit 3'");
    assert_eq!(code, 143, "{text}");
    assert!(text.contains("srun: error: n1: task 0: Terminated"), "{text}");

    let (code, text) = rig.batch(&[], "srun -W1 sh -c '[ $SLURM_NODEID = 1 ] && exec sleep 600'");
    assert_eq!(code, 137, "{text}");
    let (code, text) = rig.batch(&[], "srun /no/such/program");
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("slurmstepd-n2: error: execve(): /no/such/program: No such"), "{text}");
}

#[test]
fn ranks_on_all_nodes_end_with_a_killed_caller_and_the_job_continues() {
    let rig = Rig::new();
    let line = "srun sh -c 'echo $$ > pid-$SLURM_PROCID; exec sleep 600' & echo $! > caller; \
                until [ -e go ]; do sleep 0.1; done; echo on";
    let job = rig.submit(&["--ntasks-per-node=1"], line);
    let ranks = rig.pids(&["pid-0", "pid-1"]);
    let [caller] = rig.pids(&["caller"])[..] else { panic!("one caller") };

    kill_process(caller, Signal::KILL).unwrap();

    wait::until(SOON, "the ranks' end", || (!ranks.iter().any(|pid| is_alive(*pid))).then_some(()));
    assert_eq!(rig.cluster.job(job).job.state, "running");
    fs::write(rig.cluster.scratch().join("go"), "").unwrap();
    rig.cluster.wait_job(job, SOON, "succeeded");
}

#[test]
fn ranks_of_a_step_on_one_node_end_with_a_killed_caller_too() {
    let rig = Rig::new();
    let line = "srun -N1 sh -c 'echo $$ > pid; trap \"\" TERM; while :; do sleep 0.1; done' & \
                echo $! > caller; until [ -e go ]; do sleep 0.1; done";
    let job = rig.submit(&[], line);
    let [rank, caller] = rig.pids(&["pid", "caller"])[..] else { panic!("two processes") };

    kill_process(caller, Signal::KILL).unwrap();

    wait::until(SOON, "the rank's end", || (!is_alive(rank)).then_some(()));
    assert_eq!(rig.cluster.job(job).job.state, "running");
}

#[test]
fn a_step_continues_while_agents_are_replaced() {
    let mut rig = Rig::new();
    let line = "srun -l sh -c 'echo $$ > pid-$SLURM_PROCID; until [ -e go ]; do sleep 0.1; done; echo done; \
                exit $SLURM_PROCID'";
    let job = rig.submit(&["--ntasks-per-node=1"], line);
    rig.pids(&["pid-0", "pid-1"]);

    for agent in [1, 0] {
        rig.cluster.agents[agent].kill();
        rig.cluster.agents[agent].start();
        rig.cluster.wait_ready();
    }
    fs::write(rig.cluster.scratch().join("go"), "").unwrap();

    rig.cluster.wait_end(job, Duration::from_secs(90));
    let ended = rig.cluster.job(job).job;
    assert_eq!(ended.exit_code.as_deref(), Some("1:0"), "{}", rig.output());
    assert!(rig.output().contains("0: done") && rig.output().contains("1: done"));
}

#[test]
fn signals_to_the_steps_of_a_job_reach_its_ranks_on_all_nodes() {
    let rig = Rig::new();
    let line = "srun sh -c 'trap \"echo got $SLURM_PROCID; exit 0\" USR1; echo $$ > pid-$SLURM_PROCID; \
                while :; do sleep 0.1; done'";
    let job = rig.submit(&["--ntasks-per-node=1", "--time=1", "--signal=USR1@50"], line);
    rig.pids(&["pid-0", "pid-1"]);

    rig.cluster.wait_end(job, Duration::from_secs(90));
    let mut lines = lines(&rig.output());
    lines.retain(|line| line.starts_with("got"));
    assert_eq!(lines, ["got 0", "got 1"], "{}", rig.output());
}

#[test]
fn a_cancelled_job_gives_its_ranks_on_all_nodes_time_to_save_their_work() {
    let rig = Rig::new();
    let line = "exec srun sh -c 'trap \"sleep 1; echo saved $SLURM_PROCID; exit 0\" TERM; \
                echo $$ > pid-$SLURM_PROCID; while :; do sleep 0.1; done'";
    let job = rig.submit(&["--ntasks-per-node=1"], line);
    rig.pids(&["pid-0", "pid-1"]);

    rig.cluster.act(job, "cancel");

    rig.cluster.wait_job(job, SOON, "cancelled");
    let mut lines = lines(&rig.output());
    lines.retain(|line| line.starts_with("saved"));
    assert_eq!(lines, ["saved 0", "saved 1"]);
}

#[test]
fn a_lost_node_ends_the_step_and_the_job_by_its_rules() {
    let plan = Plan::new()
        .whole_gpu_node("n1", "a30-24gb,a30-24gb")
        .whole_gpu_node("n2", "a30-24gb,a30-24gb")
        .lease_secs(6);
    let mut rig = Rig::of(plan);
    let line = "exec srun sh -c 'echo $$ > pid-$SLURM_PROCID; exec sleep 600'";
    let job = rig.submit(&["--ntasks-per-node=1", "--no-requeue"], line);
    let ranks = rig.pids(&["pid-0", "pid-1"]);

    rig.cluster.agents[1].kill();

    let ended = rig.cluster.wait_end(job, Duration::from_secs(60)).job;
    assert_eq!(ended.state, "failed", "{ended:?}");
    assert!(ended.reason_text.as_deref().unwrap_or_default().contains("lost"), "{ended:?}");
    wait::until(SOON, "the ranks' end", || (!ranks.iter().any(|pid| is_alive(*pid))).then_some(()));
}

#[test]
fn a_process_of_a_job_reaches_only_its_own_job_without_a_token() {
    let rig = Rig::new();
    let other = rig.slurm("sbatch", &["--parsable", "--wrap", "sleep 600"]).output().unwrap();
    let other = text(&other.stdout).trim().to_owned();
    let program = "import http.client, os, socket, sys\n\
        def call(path):\n\
        \u{20}   connection = http.client.HTTPConnection('localhost')\n\
        \u{20}   connection.sock = socket.socket(socket.AF_UNIX)\n\
        \u{20}   connection.sock.connect(os.environ['TESSERA_CALLS'])\n\
        \u{20}   connection.request('GET', path)\n\
        \u{20}   return connection.getresponse().status\n\
        session = 'sessions/00000000-0000-4000-8000-000000000000'\n\
        own = os.environ['SLURM_JOB_ID']\n\
        print(call('/v1/whoami'), call('/v1/jobs'), call(f'/v1/jobs/{own}'), call(f'/v1/jobs/{sys.argv[1]}/{session}'),\n\
        \u{20}   call(f'/v1/jobs/{own}/{session}'))\n";
    fs::write(rig.cluster.scratch().join("call.py"), program).unwrap();

    let (code, printed) =
        rig.batch(&[], &format!("env | grep -c TESSERA_TOKEN; python3 call.py {other}"));

    // A request that is not a WebSocket handshake is refused for that reason and no other.
    assert_eq!((code, printed.as_str()), (0, "0\n403 403 403 403 400\n"));
    // A process outside of all jobs is refused.
    let socket = rig.cluster.agent_data(0).join("calls.sock");
    let called = Command::new("python3")
        .arg(rig.cluster.scratch().join("call.py"))
        .arg(&other)
        .env("TESSERA_CALLS", socket)
        .env("SLURM_JOB_ID", &other)
        .output()
        .unwrap();
    assert!(!called.status.success(), "{called:?}");
    assert!(called.stdout.is_empty(), "{called:?}");
}

#[test]
fn ranks_of_mpich_find_each_other_over_two_nodes() {
    let rig = Rig::new();
    let folder = rig.cluster.scratch();
    let code = "#include <mpi.h>\n#include <stdio.h>\nint main(int argc, char **argv) {\n\
                int rank, size, sum; MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n\
                MPI_Comm_size(MPI_COMM_WORLD, &size);\n\
                MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n\
                printf(\"rank %d of %d, sum %d\\n\", rank, size, sum); MPI_Finalize(); return 0; }\n";
    fs::write(folder.join("sum.c"), code).unwrap();
    let program = folder.join("sum");
    let mut compiler = Command::new("mpicc.mpich");
    match compiler.arg(folder.join("sum.c")).arg("-o").arg(&program).output() {
        Ok(made) => assert!(made.status.success(), "{made:?}"),
        Err(_) => {
            eprintln!("SKIPPED: ranks of MPI need a library (apt-get install mpich libmpich-dev)");
            return;
        }
    }

    let line = format!("srun {}", program.display());
    let (code, text) = rig.batch(&["--ntasks-per-node=2"], &line);

    let expected: Vec<String> = (0..4).map(|rank| format!("rank {rank} of 4, sum 6")).collect();
    assert_eq!((code, lines(&text)), (0, expected), "{text}");
}
