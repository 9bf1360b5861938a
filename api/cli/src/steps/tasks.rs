//! The processes of a step: started together, signalled together, and waited for.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::output::{copy_labelled, expand};
use super::{Allocation, StepPlan};
use crate::failure::CommandFailure;
use tessera_model::number::clamped;

/// Time between SIGTERM and SIGKILL when a step is ended.
const KILL_AFTER: Duration = Duration::from_secs(30);

/// What `srun` returns if a program can't be started.
const NOT_STARTED: u8 = 2;

/// A step that is about to be started.
pub struct StepTasks<'s> {
    /// What it runs.
    pub plan: &'s StepPlan,
    /// The job's resources on this node.
    pub allocation: &'s Allocation,
    /// Its number.
    pub number: u64,
    /// Its GPUs; `None` if it sees all of its job.
    pub devices: Option<&'s [String]>,
}

/// What happens to a step.
enum StepEvent {
    Ended(usize, ExitStatus),
    Signalled(Signal),
    WaitOver,
    KillNow,
}

impl StepTasks<'_> {
    /// Starts the processes and waits until all have ended.
    pub async fn run(self) -> Result<u8, CommandFailure> {
        let (events, mut received) = mpsc::unbounded_channel();
        let mut signals = listen(&events)?;
        let mut groups: Vec<Option<Pid>> = Vec::new();
        let mut copies = Vec::new();
        let mut inputs = Vec::new();
        for rank in 0..self.plan.programs.len() {
            let mut command = self.command(rank)?;
            // A group of its own: what is sent to this process is passed on once.
            command.process_group(0).kill_on_drop(false);
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let program = self.plan.programs[rank].first().map_or("", String::as_str);
                    let node = &self.allocation.node;
                    eprintln!("slurmstepd-{node}: error: execve(): {program}: {}", plain(&error));
                    end_groups(&groups, Signal::KILL);
                    return Ok(NOT_STARTED);
                }
            };
            groups.push(child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)));
            inputs.extend(child.stdin.take());
            if self.plan.label {
                let (out, err) = (child.stdout.take(), child.stderr.take());
                copies.extend(out.map(|out| tokio::spawn(copy_labelled(out, rank, false))));
                copies.extend(err.map(|err| tokio::spawn(copy_labelled(err, rank, true))));
            }
            tokio::spawn(report_end(child, rank, events.clone()));
        }
        if !inputs.is_empty() {
            tokio::spawn(copy_input(inputs));
        }
        let code = self.wait_for_all(&mut groups, &events, &mut received).await;
        signals.abort_all();
        for copy in copies {
            let _ = copy.await;
        }
        Ok(code)
    }

    /// Becomes the first process; returns only what went wrong.
    pub fn become_first(self) -> Result<Infallible, CommandFailure> {
        let mut command = self.command(0)?;
        let program = self.plan.programs[0].first().cloned().unwrap_or_default();
        // It stays in the group of this process, which is the terminal's own.
        let error = command.as_std_mut().exec();
        Err(CommandFailure::refused(format!("{program}: {}", plain(&error))))
    }

    async fn wait_for_all(
        &self,
        groups: &mut [Option<Pid>],
        events: &mpsc::UnboundedSender<StepEvent>,
        received: &mut mpsc::UnboundedReceiver<StepEvent>,
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
                    groups[rank] = None;
                    code = code.max(self.report(rank, status, is_ending));
                    if !status.success() && self.plan.kill_on_bad_exit && !is_ending && left > 0 {
                        is_ending = true;
                        let step = format!("{}.{}", self.allocation.job, self.number);
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

    /// Reports how a process ended, if not well, and returns the code that follows.
    fn report(&self, rank: usize, status: ExitStatus, is_ending: bool) -> u8 {
        let node = &self.allocation.node;
        let of = |number: i32| clamped::<u8>(number);
        match (status.code(), status.signal()) {
            (Some(0), _) => 0,
            (Some(code), _) => {
                eprintln!("srun: error: {node}: task {rank}: Exited with exit code {code}");
                of(code)
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
                of(128 + number)
            }
            (None, None) => u8::MAX,
        }
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
                let name = expand(pattern, self.allocation, self.number, rank);
                // Processes with one file share it, so that none empties what another wrote.
                let mut options = OpenOptions::new();
                let file = options.append(true).create(true).open(&name).map_err(|error| {
                    CommandFailure::refused(format!(
                        "the output file {name} can't be written: {error}"
                    ))
                })?;
                Ok(file.into())
            }
            None if self.plan.label => Ok(Stdio::piped()),
            None => Ok(Stdio::inherit()),
        }
    }

    /// Returns the variables of one process.
    pub fn environment(&self, rank: usize) -> Vec<(String, String)> {
        let mut all = exported(self.plan.export.as_deref(), self.allocation);
        let tasks = self.plan.programs.len();
        let (number, node) = (self.number.to_string(), self.allocation.node.clone());
        let mut set = |name: &str, value: String| {
            all.retain(|(known, _)| known != name);
            all.push((name.to_owned(), value));
        };
        for (name, value) in [
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_NODEID", "0".to_owned()),
            ("SLURM_NTASKS", tasks.to_string()),
            ("SLURM_NPROCS", tasks.to_string()),
            ("SLURM_NNODES", "1".to_owned()),
            ("SLURM_JOB_ID", self.allocation.job.clone()),
            ("SLURM_JOBID", self.allocation.job.clone()),
            ("SLURM_STEP_ID", number.clone()),
            ("SLURM_STEPID", number),
            ("SLURM_STEP_NODELIST", node.clone()),
            ("SLURM_STEP_NUM_NODES", "1".to_owned()),
            ("SLURM_STEP_NUM_TASKS", tasks.to_string()),
            ("SLURM_STEP_TASKS_PER_NODE", tasks.to_string()),
            ("SLURM_TASKS_PER_NODE", tasks.to_string()),
            ("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1".to_owned()),
            ("SLURM_SRUN_COMM_HOST", "127.0.0.1".to_owned()),
            ("SLURM_DISTRIBUTION", "cyclic".to_owned()),
            ("SLURMD_NODENAME", node),
            // What steps of this one may use.
            ("TESSERA_DEVICES", self.allocation.devices.join(",")),
        ] {
            set(name, value);
        }
        if let Some(devices) = self.devices {
            let own = match self.plan.gpus_per_task.and_then(|each| usize::try_from(each).ok()) {
                Some(each) => devices.iter().skip(rank * each).take(each).cloned().collect(),
                None => devices.to_vec(),
            };
            set("CUDA_VISIBLE_DEVICES", own.join(","));
            set("SLURM_GPUS_ON_NODE", devices.len().to_string());
            let held = &self.allocation.devices;
            let index = |device: &String| held.iter().position(|one| one == device);
            let indexes = devices.iter().filter_map(index).map(|index| index.to_string());
            set("SLURM_STEP_GPUS", indexes.collect::<Vec<_>>().join(","));
        } else if !self.allocation.devices.is_empty() {
            set("CUDA_VISIBLE_DEVICES", self.allocation.devices.join(","));
        }
        all
    }
}

/// Returns the variables that a step exports: all, or those that its user names and what Tessera sets.
fn exported(export: Option<&str>, allocation: &Allocation) -> Vec<(String, String)> {
    let words: Vec<&str> =
        export.unwrap_or("ALL").split(',').filter(|word| !word.is_empty()).collect();
    let all = words.iter().any(|word| word.eq_ignore_ascii_case("ALL"));
    let is_ours = |name: &str| {
        ["SLURM_", "TESSERA_", "CUDA_"].iter().any(|prefix| name.starts_with(prefix))
            || ["PATH", "HOME", "USER", "SHELL", "TMPDIR"].contains(&name)
    };
    let mut variables: Vec<(String, String)> = allocation
        .environment
        .iter()
        .filter(|(name, _)| all || is_ours(name) || words.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    for (name, value) in words.iter().filter_map(|word| word.split_once('=')) {
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_owned(), value.to_owned()));
    }
    variables
}

async fn report_end(mut child: Child, rank: usize, events: mpsc::UnboundedSender<StepEvent>) {
    let status = child.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0xff00));
    let _ = events.send(StepEvent::Ended(rank, status));
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

/// Passes the signals that this process gets on to the step.
fn listen(
    events: &mpsc::UnboundedSender<StepEvent>,
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
                let _ = events.send(StepEvent::Signalled(number));
            }
        });
    }
    Ok(tasks)
}

fn after(time: Duration, event: StepEvent, events: &mpsc::UnboundedSender<StepEvent>) {
    let events = events.clone();
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        let _ = events.send(event);
    });
}

fn end_groups(groups: &[Option<Pid>], number: Signal) {
    for group in groups.iter().flatten() {
        // Who is gone needs no signal.
        let _ = kill_process_group(*group, number);
    }
}

/// Returns an error of the system in the words of the C library.
fn plain(error: &std::io::Error) -> String {
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
