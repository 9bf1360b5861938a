//! The processes of a step: started together, signalled together, and waited for.

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::environment::{StepFacts, exported, variables};
use super::output::{FilePlace, copy_labelled, expand, open_file};
use super::watch::StepWatch;
use super::{Allocation, StepPlan};
use crate::failure::CommandFailure;
use tessera_model::number::clamped;

/// Time between SIGTERM and SIGKILL when a step is ended.
pub const KILL_AFTER: Duration = Duration::from_secs(30);

/// What `srun` returns if a program can't be started.
pub const NOT_STARTED: u8 = 2;

/// A step that is about to be started.
pub struct StepTasks<'s> {
    /// Its command.
    pub plan: &'s StepPlan,
    /// The job's resources on this node.
    pub allocation: &'s Allocation,
    /// Settings that its processes share.
    pub facts: StepFacts,
    /// Its GPUs; `None` if it sees all of its job.
    pub devices: Option<&'s [String]>,
}

/// Events that wait.
const EVENTS: usize = 64;

enum StepEvent {
    Ended(usize, ExitStatus),
    Signalled(Signal),
    WaitOver,
    KillNow,
}

impl StepTasks<'_> {
    /// Starts the processes and waits until all have ended.
    pub async fn run(self) -> Result<u8, CommandFailure> {
        let (events, mut received) = mpsc::channel(EVENTS);
        let mut signals = listen(&events, StepEvent::Signalled)?;
        let mut watch = StepWatch::start()?;
        let mut groups: Vec<Option<Pid>> = Vec::new();
        let mut copies = Vec::new();
        let mut inputs = Vec::new();
        for rank in 0..self.plan.programs.len() {
            let mut command = self.command(rank)?;
            // Its own group: what is sent to this process is passed on once.
            command.process_group(0).kill_on_drop(false);
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let program = self.plan.programs[rank].first().map_or("", String::as_str);
                    end_groups(&groups, Signal::KILL);
                    return Ok(report_not_started(&self.allocation.node, program, &error));
                }
            };
            let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
            group.iter().for_each(|group| watch.add(*group));
            groups.push(group);
            inputs.extend(child.stdin.take());
            if self.plan.label {
                let (out, err) = (child.stdout.take(), child.stderr.take());
                copies.extend(out.map(|out| tokio::spawn(copy_labelled(out, rank, false))));
                copies.extend(err.map(|err| tokio::spawn(copy_labelled(err, rank, true))));
            }
            tokio::spawn(await_end(child, rank, events.clone()));
        }
        if !inputs.is_empty() {
            tokio::spawn(copy_input(inputs));
        }
        let code = self.wait_for_all((&mut groups, &mut watch), &events, &mut received).await;
        signals.abort_all();
        for copy in copies {
            let _ = copy.await;
        }
        Ok(code)
    }

    /// Becomes the first process; returns only if that fails, with the exit code.
    pub fn become_first(self) -> Result<u8, CommandFailure> {
        let mut command = self.command(0)?;
        let program = self.plan.programs[0].first().cloned().unwrap_or_default();
        // It stays in the group of this process, which is the terminal's own.
        let error = command.as_std_mut().exec();
        Ok(report_not_started(&self.allocation.node, &program, &error))
    }

    async fn wait_for_all(
        &self,
        (groups, watch): (&mut [Option<Pid>], &mut StepWatch),
        events: &mpsc::Sender<StepEvent>,
        received: &mut mpsc::Receiver<StepEvent>,
    ) -> u8 {
        let (mut code, mut left, mut is_ending, mut is_timed) = (0, groups.len(), false, false);
        while left > 0 {
            match received.recv().await {
                None => return code,
                Some(StepEvent::Signalled(number)) => end_groups(groups, number),
                Some(StepEvent::KillNow) => end_groups(groups, Signal::KILL),
                Some(StepEvent::WaitOver) => {
                    eprintln!("srun: First task exited {}s ago", self.plan.wait_secs.unwrap_or(0));
                    end_groups(groups, Signal::KILL);
                }
                Some(StepEvent::Ended(rank, status)) => {
                    left -= 1;
                    groups[rank].take().iter().for_each(|group| watch.remove(*group));
                    code = code.max(report_end(&self.allocation.node, rank, status, is_ending));
                    if !status.success() && self.plan.kill_on_bad_exit && !is_ending && left > 0 {
                        is_ending = true;
                        let step = format!("{}.{}", self.facts.job, self.facts.number);
                        eprintln!("srun: launch/slurm: _step_signal: Terminating StepId={step}");
                        end_groups(groups, Signal::TERM);
                        after(KILL_AFTER, StepEvent::KillNow, events);
                    }
                    if let Some(secs) = self.plan.wait_secs.filter(|_| left > 0 && !is_timed) {
                        is_timed = true;
                        after(Duration::from_secs(secs), StepEvent::WaitOver, events);
                    }
                }
            }
        }
        code
    }

    fn command(&self, rank: usize) -> Result<Command, CommandFailure> {
        let words = &self.plan.programs[rank];
        let mut command = Command::new(words.first().map_or("", String::as_str));
        command.args(words.iter().skip(1));
        if let Some(folder) = &self.plan.folder {
            command.current_dir(folder);
        }
        command.env_clear().envs(self.environment(rank));
        let tasks = self.plan.programs.len();
        command.stdin(if tasks == 1 { Stdio::inherit() } else { Stdio::piped() });
        let output = self.plan.output.as_ref();
        let error = self.plan.error.as_ref().or(output);
        command.stdout(self.place(output, rank)?);
        command.stderr(self.place(error, rank)?);
        Ok(command)
    }

    fn place(&self, pattern: Option<&String>, rank: usize) -> Result<Stdio, CommandFailure> {
        match pattern {
            Some(pattern) if pattern == "none" => Ok(Stdio::null()),
            Some(pattern) => {
                let place = FilePlace { rank, node: 0, name: &self.allocation.node };
                let name = expand(pattern, self.allocation, self.facts.number, place);
                Ok(open_file(&name)?.into())
            }
            None if self.plan.label => Ok(Stdio::piped()),
            None => Ok(Stdio::inherit()),
        }
    }

    /// Returns the variables of one process.
    fn environment(&self, rank: usize) -> BTreeMap<String, String> {
        let base = exported(self.plan.export.as_deref(), self.allocation);
        let place = self.facts.layout.place(rank).unwrap_or_default();
        variables(&self.facts, place, self.allocation, (base, self.devices))
    }
}

/// Reports a process's failure, and returns the resulting exit code.
pub fn report_end(node: &str, rank: usize, status: ExitStatus, is_ending: bool) -> u8 {
    match (status.code(), status.signal()) {
        (Some(0), _) => 0,
        (Some(code), _) => {
            eprintln!("srun: error: {node}: task {rank}: Exited with exit code {code}");
            clamped(code)
        }
        (None, Some(number)) => {
            let word = match number {
                libc_signals::KILL => "Killed",
                libc_signals::TERM => "Terminated",
                libc_signals::SEGV => "Segmentation fault",
                libc_signals::ABRT => "Aborted",
                _ => "Ended by a signal",
            };
            if !is_ending || number != libc_signals::KILL {
                eprintln!("srun: error: {node}: task {rank}: {word}");
            }
            clamped(128 + number)
        }
        (None, None) => u8::MAX,
    }
}

async fn await_end(mut child: Child, rank: usize, events: mpsc::Sender<StepEvent>) {
    let status = child.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0xff00));
    let _ = events.send(StepEvent::Ended(rank, status)).await;
}

/// Copies standard input to all processes.
async fn copy_input(mut inputs: Vec<ChildStdin>) {
    let mut bytes = vec![0; 64 << 10];
    let mut from = tokio::io::stdin();
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        for input in &mut inputs {
            // One that has closed its input gets no more of it.
            let _ = input.write_all(&bytes[..read]).await;
        }
    }
}

/// Passes the signals that this process gets on to the step, as its events.
pub fn listen<E: Send + 'static>(
    events: &mpsc::Sender<E>,
    event: fn(Signal) -> E,
) -> Result<tokio::task::JoinSet<()>, CommandFailure> {
    let mut tasks = tokio::task::JoinSet::new();
    for (kind, number) in [
        (SignalKind::terminate(), Signal::TERM),
        (SignalKind::interrupt(), Signal::INT),
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
    ] {
        let mut received = signal(kind)?;
        let events = events.clone();
        tasks.spawn(async move {
            while received.recv().await.is_some() {
                let _ = events.send(event(number)).await;
            }
        });
    }
    Ok(tasks)
}

/// Sends an event later.
pub fn after<E: Send + 'static>(time: Duration, event: E, events: &mpsc::Sender<E>) {
    let events = events.clone();
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        let _ = events.send(event).await;
    });
}

fn end_groups(groups: &[Option<Pid>], number: Signal) {
    for group in groups.iter().flatten() {
        // A process that has ended needs no signal.
        let _ = kill_process_group(*group, number);
    }
}

/// Prints that a process's program can't be executed, as Slurm does, and returns the step's exit code.
pub fn report_not_started(node: &str, program: &str, error: &std::io::Error) -> u8 {
    eprintln!("slurmstepd-{node}: error: execve(): {program}: {}", plain(error));
    NOT_STARTED
}

/// Returns an error of the system in the words of the C library.
pub fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Numbers of signals on Linux.
mod libc_signals {
    pub(super) const ABRT: i32 = 6;
    pub(super) const KILL: i32 = 9;
    pub(super) const SEGV: i32 = 11;
    pub(super) const TERM: i32 = 15;
}
