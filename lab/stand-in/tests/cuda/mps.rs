//! Processes that are clients of an MPS server.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::shared::Machine;

/// A daemon on a machine, ended with the test.
struct Daemon<'m>(&'m Machine);

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.send_command("quit -t 0");
    }
}

impl<'m> Daemon<'m> {
    fn start(machine: &'m Machine) -> Self {
        let daemon = Self(machine);
        assert!(daemon.program().arg("-d").output().unwrap().status.success());
        daemon
    }

    fn program(&self) -> Command {
        let gpu = self.0.node.read().unwrap().gpu_uuid(0);
        let mut command = self.0.command(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
        command
            .env("CUDA_VISIBLE_DEVICES", gpu)
            .env("CUDA_MPS_LOG_DIRECTORY", self.0.folder.path().join("mps-logs"));
        command
    }

    fn send_command(&self, line: &str) -> std::io::Result<()> {
        let mut child = self.program().stdin(Stdio::piped()).spawn()?;
        writeln!(child.stdin.take().expect("piped"), "{line}")?;
        child.wait().map(drop)
    }
}

fn burst(words: &str) -> String {
    format!("player 1\nkernel k dur=5ms {words}\n{}", "run k\n".repeat(20))
}

/// Plays two recordings together; returns when the kernels of each ran, and for how long.
fn together(machine: &Machine, recordings: [&str; 2], percent: [&str; 2]) -> [Vec<(u64, u64)>; 2] {
    let mut programs = [0, 1].map(|number| {
        machine.player_with(recordings[number], |command| {
            command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent[number])
        })
    });
    programs.iter_mut().for_each(crate::shared::Program::go);
    programs.iter_mut().for_each(|program| {
        program.report();
    });
    programs.map(|program| program.spans())
}

fn overlap(all: &[Vec<(u64, u64)>; 2]) -> u64 {
    let pairs = all[0].iter().flat_map(|one| all[1].iter().map(move |other| (one, other)));
    pairs.map(|(one, other)| one.1.min(other.1).saturating_sub(one.0.max(other.0))).sum()
}

#[test]
fn clients_of_one_server_run_beside_each_other_within_their_percentages() {
    let machine = Machine::new();
    let _daemon = Daemon::start(&machine);
    let half = burst("sm=50");
    let both = together(&machine, [&half, &half], ["50", "50"]);
    assert!(overlap(&both) > 0, "{both:?}");
    let times = both.map(|spans| spans.iter().map(|(from, until)| until - from).sum::<u64>());
    assert_eq!(times, [100_000_000; 2], "as fast as alone");

    // Half of the SMs for a kernel that could use all: twice as long.
    let whole = burst("sm=100");
    let [capped, _] = together(&machine, [&whole, &half], ["50", "50"]);
    assert_eq!(capped.iter().map(|(from, until)| until - from).sum::<u64>(), 200_000_000);
}

#[test]
fn a_fault_of_one_client_reaches_the_others() {
    let machine = Machine::new();
    let _daemon = Daemon::start(&machine);
    let mut victim = machine.player(&burst("sm=10").replace("run k", "run k\ngap 20ms"));
    let mut culprit = machine.player("player 1\nkernel t op=trap dur=1ms\nrun t\n");
    victim.go();
    culprit.go();
    assert_eq!(culprit.line(), "", "it reports nothing");
    assert_eq!(victim.line(), "", "nor does its neighbour");
}

#[test]
fn a_pinned_memory_limit_is_out_of_memory_for_one_alone() {
    let machine = Machine::new();
    let _daemon = Daemon::start(&machine);
    let mut command = machine.command(env!("CARGO_BIN_EXE_tessera-sim-grow"));
    command
        .args(["--step", "1GiB", "--every-ms", "0"])
        .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3G")
        .stderr(Stdio::piped());
    let output = command.output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("out of memory"));
}
