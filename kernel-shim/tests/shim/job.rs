//! A program under the shim that follows the test's commands.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use crate::built::{driver, in_job, program, shim};
use crate::queue::TestFolders;

/// States of the shim, in its counters.
pub const PASSIVE: u64 = 2;
pub const DETACHED: u64 = 3;
pub const ACTIVE: u64 = 4;
pub const DEAD: u64 = 5;

/// How long the program may wait for a state, in milliseconds.
const PATIENCE_MS: u64 = 20_000;

pub struct Job {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What the shim counts in the process.
#[derive(Debug)]
pub struct Counters {
    pub state: u64,
    pub reported: u64,
    pub granted: u64,
    pub ungranted: u64,
    pub waited_max_ns: u64,
    pub sessions: u64,
    pub samples: u64,
    pub lost: u64,
    pub memory_used: u64,
    pub memory_peak: u64,
    pub in_flight: u64,
    pub launches: u64,
}

/// What arrived at the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub launches: u64,
    pub in_flight_max: u64,
    pub captured: u64,
    /// Calls that are not allowed during a capture.
    pub illegal: u64,
    /// What the kernels have computed, in the order of their launches.
    pub order: u64,
}

impl Job {
    pub fn start(folders: &TestFolders, gate: Option<&Path>) -> Self {
        Self::with(folders, gate, true)
    }

    pub fn without_shim(folders: &TestFolders) -> Self {
        Self::with(folders, None, false)
    }

    fn with(folders: &TestFolders, gate: Option<&Path>, preload: bool) -> Self {
        let driver = driver(12_040);
        let launcher = program("launcher", &["launcher.c"], &[]);
        let mut command = in_job(&launcher);
        command
            .env("FAKE", &driver)
            .env("LD_LIBRARY_PATH", driver.parent().unwrap())
            .env("TESSERA_KERNEL_CUDA", &driver)
            .env("TESSERA_KERNEL_ENDPOINT", folders.address.to_string())
            .env("TESSERA_KERNEL_CERT", folders.digest());
        if preload {
            command.env("LD_PRELOAD", shim());
        }
        if let Some(gate) = gate {
            command.env("TESSERA_KERNEL_GATE", gate);
        }
        Self::of(command)
    }

    /// A program without a queue, that is watched.
    pub fn watched(pipe: &Path, more: &[(&str, &str)]) -> Self {
        let driver = driver(12_040);
        let mut command = Command::new(program("launcher", &["launcher.c"], &[]));
        command
            .env("FAKE", &driver)
            .env("LD_LIBRARY_PATH", driver.parent().unwrap())
            .env("TESSERA_KERNEL_CUDA", &driver)
            .env("LD_PRELOAD", shim())
            .env("TESSERA_WATCH", "on")
            .env("TESSERA_MEMORY_PIPE", pipe)
            .envs(more.iter().copied());
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Sends a command and returns the answer.
    pub fn send(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.answer()
    }

    /// Sends a command whose answer is read later.
    pub fn begin(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    pub fn numbers(&mut self, line: &str) -> Vec<u64> {
        let answer = self.send(line);
        answer
            .split(' ')
            .map(|word| word.parse().unwrap_or_else(|_| panic!("{line}: {answer}")))
            .collect()
    }

    /// Waits for a state of the shim.
    pub fn reach(&mut self, state: u64) {
        let reached = self.send(&format!("state {state} {PATIENCE_MS}"));
        assert_eq!(reached, state.to_string());
    }

    /// Waits for a role, by its number in the counters.
    pub fn take_role(&mut self, role: u64) {
        assert_eq!(self.send(&format!("role {role} {PATIENCE_MS}")), role.to_string());
    }

    /// Begins: initialises, makes the first launch, and waits for the session.
    pub fn join(folders: &TestFolders, gate: Option<&Path>) -> Self {
        let mut job = Self::start(folders, gate);
        assert_eq!(job.send("init"), "0");
        job.launch("k0", 1);
        job.reach(ACTIVE);
        job
    }

    /// Makes launches; returns the time of the longest one and of all of them, in nanoseconds.
    pub fn launch(&mut self, kernel: &str, count: u64) -> (u64, u64) {
        let numbers = self.numbers(&format!("launch {kernel} {count}"));
        assert_eq!(numbers[0], 0, "the driver took them");
        (numbers[1], numbers[2])
    }

    pub fn counters(&mut self) -> Counters {
        let n = self.numbers("counters");
        Counters {
            state: n[0],
            reported: n[2],
            granted: n[4],
            ungranted: n[5],
            waited_max_ns: n[6],
            sessions: n[7],
            samples: n[8],
            lost: n[9],
            memory_used: n[11],
            memory_peak: n[12],
            in_flight: n[13],
            launches: n[14],
        }
    }

    pub fn arrived(&mut self) -> Arrived {
        let n = self.numbers("device");
        Arrived { launches: n[0], in_flight_max: n[1], captured: n[2], illegal: n[3], order: n[4] }
    }

    pub fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().unwrap()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
