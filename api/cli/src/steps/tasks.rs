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
use super::own_number::{command_of, report_not_started};
use super::pmi::{RankAction, RankExchange, RankSocket, relay};
use super::watch::StepWatch;
use super::{Allocation, StepPlan};
use crate::failure::CommandFailure;
use tessera_model::life::ProgramExit;
use tessera_model::number::clamped;

/// Time between SIGTERM and SIGKILL when a step is ended.
pub const KILL_AFTER: Duration = Duration::from_secs(30);

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
    /// A request of a process's MPI library.
    Request(usize, Vec<u8>),
    WaitOver,
    KillNow,
}

impl StepTasks<'_> {
    /// Starts the processes and waits until all have ended.
    pub async fn run(self) -> Result<StepEnd, CommandFailure> {
        let (events, mut received) = mpsc::channel(EVENTS);
        let mut signals = listen(&events, StepEvent::Signalled)?;
        let exchange = || RankExchange::new(&self.facts.space_name(), &self.facts.layout);
        let mut running = RunningTasks {
            tasks: &self,
            groups: Vec::new(),
            watch: StepWatch::start()?,
            exchange: self.plan.pmi.then(exchange),
            answers: Vec::new(),
            events: events.clone(),
            end: StepEnd::default(),
            is_ending: false,
            is_timed: false,
        };
        let mut copies = Vec::new();
        let mut inputs = Vec::new();
        for rank in 0..self.plan.programs.len() {
            let mut command = self.command(rank)?;
            // Its own group: what is sent to this process is passed on once.
            command.process_group(0).kill_on_drop(false);
            let socket = self.plan.pmi.then(|| RankSocket::give(&mut command, rank, &self.facts));
            let socket = socket.transpose()?;
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let program = self.plan.programs[rank].first().map_or("", String::as_str);
                    running.signal(Signal::KILL);
                    let code = report_not_started(&self.allocation.node, program, &error);
                    return Ok(StepEnd::exited(code));
                }
            };
            running.record_start(rank, &child, socket);
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
        let code = running.wait_for_all(&mut received).await;
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

    fn command(&self, rank: usize) -> Result<Command, CommandFailure> {
        let words = &self.plan.programs[rank];
        let mut command = command_of(words);
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

/// The processes of a step while they run.
struct RunningTasks<'s> {
    tasks: &'s StepTasks<'s>,
    /// The group of each process that has not ended.
    groups: Vec<Option<Pid>>,
    watch: StepWatch,
    /// How the processes find each other; `None` if they don't.
    exchange: Option<RankExchange>,
    /// Where answers to the MPI libraries of processes go.
    answers: Vec<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    events: mpsc::Sender<StepEvent>,
    end: StepEnd,
    is_ending: bool,
    is_timed: bool,
}

impl RunningTasks<'_> {
    fn record_start(&mut self, rank: usize, child: &Child, socket: Option<RankSocket>) {
        let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        group.iter().for_each(|group| self.watch.add(*group));
        self.groups.push(group);
        let event = move |bytes| StepEvent::Request(rank, bytes);
        self.answers.push(socket.map(|socket| relay(socket.keep(), self.events.clone(), event)));
    }

    async fn wait_for_all(mut self, received: &mut mpsc::Receiver<StepEvent>) -> StepEnd {
        let mut left = self.groups.len();
        while left > 0 {
            match received.recv().await {
                None => break,
                Some(StepEvent::Signalled(number)) => self.signal(number),
                Some(StepEvent::KillNow) => self.signal(Signal::KILL),
                Some(StepEvent::WaitOver) => {
                    let secs = self.tasks.plan.wait_secs.unwrap_or(0);
                    eprintln!("srun: First task exited {secs}s ago");
                    self.signal(Signal::KILL);
                }
                Some(StepEvent::Request(rank, bytes)) => self.take_request(rank, &bytes),
                Some(StepEvent::Ended(rank, status)) => {
                    left -= 1;
                    self.record_end((rank, status), left);
                }
            }
        }
        self.end
    }

    fn take_request(&mut self, rank: usize, bytes: &[u8]) {
        let actions = self.exchange.iter_mut().flat_map(|exchange| exchange.take(rank, bytes));
        for action in actions.collect::<Vec<_>>() {
            match action {
                RankAction::Answer { rank, bytes } => {
                    // A process that is gone needs no answer.
                    let _ = self.answers[rank].as_ref().map(|answers| answers.send(bytes));
                }
                RankAction::Abort { rank, reason } => {
                    eprintln!("{}", aborted(rank, &reason));
                    self.end_all();
                }
            }
        }
    }

    fn record_end(&mut self, (rank, status): (usize, ExitStatus), left: usize) {
        let plan = self.tasks.plan;
        self.groups[rank].take().iter().for_each(|group| self.watch.remove(*group));
        self.answers[rank] = None;
        let node = &self.tasks.allocation.node;
        self.end = self.end.max(report_end(node, rank, status, self.is_ending));
        // With MPI the others would wait for it forever.
        let is_missed = self.exchange.as_ref().is_some_and(|exchange| exchange.is_missed(rank));
        let ends_all = plan.kill_on_bad_exit || is_missed;
        if !status.success() && ends_all && !self.is_ending && left > 0 {
            let step = format!("{}.{}", self.tasks.facts.job, self.tasks.facts.number);
            eprintln!("srun: launch/slurm: _step_signal: Terminating StepId={step}");
            self.end_all();
        }
        if let Some(secs) = plan.wait_secs.filter(|_| left > 0 && !self.is_timed) {
            self.is_timed = true;
            after(Duration::from_secs(secs), StepEvent::WaitOver, &self.events);
        }
    }

    /// Ends all processes: with time to clean up.
    fn end_all(&mut self) {
        if !self.is_ending {
            self.is_ending = true;
            self.signal(Signal::TERM);
            after(KILL_AFTER, StepEvent::KillNow, &self.events);
        }
    }

    fn signal(&self, number: Signal) {
        for group in self.groups.iter().flatten() {
            // A process that has ended needs no signal.
            let _ = kill_process_group(*group, number);
        }
    }
}

/// Returns the line which reports that a process ends the step.
pub fn aborted(rank: usize, reason: &str) -> String {
    format!("srun: error: task {rank} ends the step (MPI_Abort): {reason}")
}

/// How a step ended: as that of its processes with the largest exit code, where a signal counts as 128 plus its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepEnd {
    /// The exit code of `srun`.
    pub code: u8,
    /// The signal that ended the process, if one did.
    pub signal: Option<u8>,
}

impl StepEnd {
    /// Returns the end of a process that exited by itself.
    pub const fn exited(code: u8) -> Self {
        Self { code, signal: None }
    }

    /// Returns `code:signal`, as accounting shows it.
    pub fn accounted(self) -> String {
        match self.signal {
            Some(signal) => ProgramExit::Signal(signal),
            None => ProgramExit::Code(self.code),
        }
        .to_string()
    }
}

/// Reports a process's failure, and returns how it ended.
pub fn report_end(node: &str, rank: usize, status: ExitStatus, is_ending: bool) -> StepEnd {
    match (status.code(), status.signal()) {
        (Some(0), _) => StepEnd::default(),
        (Some(code), _) => {
            eprintln!("srun: error: {node}: task {rank}: Exited with exit code {code}");
            StepEnd::exited(clamped(code))
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
            StepEnd { code: clamped(128 + number), signal: Some(clamped(number)) }
        }
        (None, None) => StepEnd::exited(u8::MAX),
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

/// Numbers of signals on Linux.
mod libc_signals {
    pub(super) const ABRT: i32 = 6;
    pub(super) const KILL: i32 = 9;
    pub(super) const SEGV: i32 = 11;
    pub(super) const TERM: i32 = 15;
}
