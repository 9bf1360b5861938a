//! Processes that share a device.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tessera_stand_in::library::{StandInLibrary, build_part};
use tessera_stand_in::node::SimulatedNode;

use crate::rig::{VARIABLES, open_node, read_trace};

/// Longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const SWITCH: u64 = 100_000;

/// A node, and a folder with the driver for programs that look for it by name.
pub struct Machine {
    pub folder: TempDir,
    pub node: SimulatedNode,
}

/// A program on the machine, killed when dropped.
pub struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    pub trace: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = open_node(folder.path());
        let library = folder.path().join("lib");
        fs::create_dir(&library).unwrap();
        fs::copy(build_part(StandInLibrary::Cuda).unwrap(), library.join("libcuda.so.1")).unwrap();
        Self { folder, node }
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Other tests set some of them meanwhile.
        for name in VARIABLES {
            command.env_remove(name);
        }
        command
            .env("LD_LIBRARY_PATH", self.folder.path().join("lib"))
            .env("TESSERA_SIM_NODE", self.folder.path().join("node"))
            .env("TESSERA_SIM_CUDA_TRACE", self.folder.path().join("trace"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder.path().join("mps"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Starts a player that waits for a command.
    pub fn player(&self, recording: &str) -> Program {
        self.player_with(recording, |command| command)
    }

    pub fn player_with(
        &self,
        recording: &str,
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Program {
        let file = tempfile::NamedTempFile::new_in(self.folder.path()).unwrap().keep().unwrap().1;
        fs::write(&file, recording).unwrap();
        let mut command = self.command(env!("CARGO_BIN_EXE_tessera-sim-player"));
        change(command.arg(&file).arg("--wait"));
        let mut program = self.start(command);
        assert_eq!(program.line(), "ready");
        program
    }

    pub fn start(&self, mut command: Command) -> Program {
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let trace = self.folder.path().join("trace").join(format!("cuda-{}.jsonl", child.id()));
        Program { child, output, trace }
    }
}

impl Program {
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn go(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended well, and returns its report.
    pub fn report(&mut self) -> serde_json::Value {
        let report = self.line();
        assert!(self.child.wait().unwrap().success());
        serde_json::from_str(&report).unwrap()
    }

    /// Returns when its kernels ran.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        spans(&self.trace)
    }
}

/// Waits until something is true.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let ends = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < ends, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn spans(trace: &Path) -> Vec<(u64, u64)> {
    let lines = read_trace(trace);
    let kernels = lines.iter().filter(|line| line["op"] == "kernel");
    let spans = kernels.flat_map(|line| line["spans"].as_array().unwrap().clone());
    spans.map(|span| (span[0].as_u64().unwrap(), span[1].as_u64().unwrap())).collect()
}

fn burst(kernels: usize, time: &str) -> String {
    let mut recording = format!("player 1\nkernel k dur={time}\n");
    recording.push_str(&"run k\n".repeat(kernels));
    recording
}

#[test]
fn two_processes_take_turns_on_one_device() {
    let machine = Machine::new();
    let mut programs = [machine.player(&burst(20, "5ms")), machine.player(&burst(20, "5ms"))];
    programs.iter_mut().for_each(Program::go);
    let reports: Vec<_> = programs.iter_mut().map(Program::report).collect();

    let mut all = Vec::new();
    for (number, program) in programs.iter().enumerate() {
        let spans = program.spans();
        assert_eq!(spans.iter().map(|(from, until)| until - from).sum::<u64>(), 100_000_000);
        all.extend(spans.into_iter().map(|(from, until)| (from, until, number)));
    }
    all.sort_unstable();
    let mut changes = 0;
    for pair in all.windows(2) {
        let ((_, end, one), (start, _, other)) = (pair[0], pair[1]);
        assert!(start >= end, "two at a time: {pair:?}");
        if one != other {
            changes += 1;
            assert!(start - end >= SWITCH, "{pair:?}");
        }
    }
    assert!(changes > 10, "they took {changes} turns: {reports:?}");
}

#[test]
fn a_killed_process_gives_device_and_memory_back() {
    let machine = Machine::new();
    let mut hog = machine.player(&format!("player 1\nmemory 1GiB\n{}", &burst(1, "600s")[9..]));
    hog.go();
    let held = |pid: u32| {
        let claims = machine.node.read().unwrap().claims;
        claims.iter().find(|claim| claim.process.pid == pid).map(|claim| claim.memory_bytes)
    };
    assert!(held(hog.pid()).unwrap() > 1 << 30);
    let mut other = machine.player(&burst(4, "5ms"));
    other.go();
    // It is under way before the other dies, and wouldn't end for ten minutes at half speed if
    // the dead one kept its turns.
    hog.kill();
    other.report();
    let spans = other.spans();
    assert_eq!(spans.iter().map(|(from, until)| until - from).sum::<u64>(), 20_000_000);
    assert_eq!(held(hog.pid()), None);
}

#[test]
fn the_node_sees_who_is_busy() {
    let machine = Machine::new();
    let mut player = machine.player(&format!("{}gap 600s\n", burst(400, "5ms")));
    player.go();
    let load = || {
        let state = machine.node.read().unwrap();
        state.claims.iter().find(|c| c.process.pid == player.pid()).map(|c| c.load_percent)
    };
    eventually("busy", || load().is_some_and(|percent| percent >= 90));
    eventually("idle again", || load() == Some(0));
}

#[test]
fn a_growing_program_ends_as_cuda_programs_do_when_memory_runs_out() {
    let machine = Machine::new();
    let mut command = machine.command(env!("CARGO_BIN_EXE_tessera-sim-grow"));
    command.args(["--step", "8GiB", "--every-ms", "0"]).stderr(Stdio::piped());
    let output = command.output().unwrap();

    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("CUDA error: out of memory"), "{told}");
    assert!(told.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{told}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), 2, "two steps of 8 GiB fit into 24 with a context: {lines}");

    let mut command = machine.command(env!("CARGO_BIN_EXE_tessera-sim-grow"));
    command.args(["--step", "1GiB", "--limit", "2GiB", "--every-ms", "0"]);
    assert!(command.output().unwrap().status.success(), "what was held is free again");
}

#[test]
fn a_growing_program_frees_tries_again_saves_its_state_and_goes_on() {
    let machine = Machine::new();
    let run = |arguments: &[&str]| {
        let mut command = machine.command(env!("CARGO_BIN_EXE_tessera-sim-grow"));
        let output = command.args(["--every-ms", "0"]).args(arguments).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), lines.lines().map(str::to_owned).collect::<Vec<_>>())
    };

    let (done, lines) =
        run(&["--step", "1GiB", "--limit", "3GiB", "--free", "1GiB", "--free-at", "2GiB"]);
    assert!(done && lines.len() == 4, "a step is taken twice: {lines:?}");
    let (done, lines) =
        run(&["--step", "1GiB", "--limit", "2GiB", "--rest-at", "1GiB", "--rest-steps", "3"]);
    assert!(done && lines.len() == 5, "{lines:?}");
    let (done, lines) = run(&["--step", "8GiB", "--retries", "2"]);
    assert!(!done && lines.len() == 4, "two more tries: {lines:?}");

    let folder = tempfile::tempdir().unwrap();
    let (state, stop) = (folder.path().join("state"), folder.path().join("stop"));
    let [state, stop] = [&state, &stop].map(|path| path.to_str().unwrap());
    std::fs::write(stop, "").unwrap();
    let kept = ["--step", "1GiB", "--limit", "3GiB", "--state", state, "--stop-when", stop];
    let (done, lines) = run(&kept);
    assert!(done && lines.len() == 1, "{lines:?}");
    std::fs::remove_file(stop).unwrap();
    let (done, lines) = run(&kept);
    assert!(done && lines[0].contains("resumed_bytes") && lines.len() == 3, "{lines:?}");
}
