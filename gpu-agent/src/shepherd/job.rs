//! One attempt from its start to its end, as a shepherd sees it.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::process::Signal;
use tessera_agent_core::companion::{CompanionMemory, CompanionReadings};
use tessera_agent_core::container::{NOT_STARTED_CODE, REFUSAL};
use tessera_agent_core::out_of_memory::text::TextEvidence;
use tessera_agent_core::out_of_memory::{EvidenceStrength, MemoryEvidence, recognise};
use tessera_agent_core::shepherd::verdict::{Evidence, Signalled, exit_of, verdict};
use tessera_agent_core::shepherd::{HeldAttempt, never_ran_at};
use tessera_frames::cluster::{
    AttemptStatus, ExitRecord, HOST_MEMORY_DETAIL, LogStream, REFUSED_DETAIL, StopCause,
};
use tessera_launch::order::{Order, Output, Program, ReadableOutput, Request};
use tessera_launch::paths::identity_of;
use tessera_launch::prepare::PrepareError;
use tessera_launch::socket::Socket;
use tessera_model::batch::WarningSignal;
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::needs::LaunchNeeds;
use tessera_model::number::clamped;
use tessera_model::readings::MemoryReading;
use tessera_model::share::CheckpointSignal;
use tessera_model::spec::RunSpec;
use tessera_model::{BootId, Bytes, Millis};

use super::files::{self, NamedOutput};
use super::group::Group;
use super::limits::{Controllers, LimitGroups, Limits};
use super::memory_pipe::{MemoryPipe, SparePipe};
use super::observers::observers_of;
use super::prepare::{Prepared, prepare};
use super::program_output::{OutputStream, ProgramOutput};
use super::protocol::SpawnOrder;
use super::sessions::Channel;
use crate::lease_page::LeasePage;
use crate::sys::clock;

/// A variable of attempts whose program only holds its node's part of the job's steps.
pub const STEP_HOST: &str = "TESSERA_STEP_HOST";

/// Returns when a limit is over. One more: the clock was rounded down, and a limit is never cut short.
const fn limit_ends(started: Millis, limit: Millis) -> Millis {
    started.plus(limit).plus(Millis::new(1))
}

/// How long what comes before the kill may take: the five seconds that MPS has for ending a
/// client (M3), and one more.
const BEFORE_KILL_WITHIN: Millis = Millis::from_secs(6);

/// The launcher's report of an end.
#[derive(Clone, Copy, Debug)]
pub struct ReportedEnd {
    /// The wait status.
    pub status: i32,
    /// Processor time in user mode, of all its processes.
    pub user_time: Millis,
    /// Processor time in the kernel, of all its processes.
    pub system_time: Millis,
    /// Largest resident set.
    pub max_rss: Bytes,
    /// Whether the launcher killed what was left in the group.
    pub group_killed: bool,
    /// Whether nothing of the attempt is left.
    pub clean: bool,
}

/// The parts of its shepherd that an attempt uses.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The agent's data folder.
    pub data: &'a Path,
    /// This boot.
    pub boot: BootId,
    /// The node's lease.
    pub page: &'a LeasePage,
    /// The control group, if there is one.
    pub group: Option<&'a Group>,
    /// What limits attempts here.
    pub controllers: &'a Controllers,
    /// The shepherd's name, for groups of its attempts.
    pub name: &'a str,
    /// The connection to the launcher.
    pub launcher: &'a Socket,
}

/// A running attempt, or one whose files are being opened.
#[derive(Debug)]
pub struct RunningAttempt {
    order: SpawnOrder,
    /// The program's pid and its start on the wall clock, once it runs.
    program: Option<(u32, Millis)>,
    /// On the boot clock: when it was ordered.
    started: Millis,
    time_limit_ends: Option<Millis>,
    /// When its signal before the time limit is due.
    early_signal_at: Option<Millis>,
    grace_ends: Option<Millis>,
    signalled: Option<Signalled>,
    /// Whether its program is signalled once no session runs.
    ends_after_sessions: bool,
    killed: bool,
    ran_before_kill: bool,
    memory_kills_before: u64,
    limits: LimitGroups,
    /// What its program is started from, without the text of a script.
    launch_order: Order,
    /// The program's streams, if it is interactive, and the file that keeps its output; until they are taken.
    interaction: Option<(Channel, Option<File>)>,
    program_output: ProgramOutput,
    memory_pipe: Option<MemoryPipe>,
    memory_reported: CompanionMemory,
    needs_reported: LaunchNeeds,
    preallocation_reported: bool,
}

impl RunningAttempt {
    /// Orders the launcher to start an attempt.
    ///
    /// # Errors
    ///
    /// The exit record of an attempt that never ran.
    pub fn start(
        around: Surroundings<'_>,
        mut order: SpawnOrder,
        script: Option<String>,
        spare: Option<SparePipe>,
    ) -> Result<Self, Box<ExitRecord>> {
        let memory_pipe = observers_of(around.data, &mut order, spare);
        let mut prepared = prepare(around.data, around.boot, &order, script)
            .map_err(|refused| refuse(&refused))?;
        let memory_kills_before = around.group.map_or(0, Group::out_of_memory_kills);
        let limits = Limits {
            memory: order.run.host_memory,
            cpus: order.run.cpus,
            tasks: order.confinement.tasks_max,
        };
        let limits = around
            .controllers
            .limit(around.group.map(Group::path), around.name, limits)
            .map_err(|error| {
            let detail = format!("the node could not limit the attempt: {error}");
            Box::new(never_ran(Outcome::NotStarted, detail))
        })?;
        let mut descriptors = vec![around.page.descriptor()];
        if let Some(group) = around.group {
            prepared.order.has_group = true;
            descriptors.push(group.descriptor());
        }
        let v1_groups = limits.descriptors();
        prepared.order.v1_groups = clamped(v1_groups.len());
        descriptors.extend(v1_groups);
        let interaction = interact(&order, &mut prepared).map_err(|error| {
            let detail = format!("the node could not open the program's streams: {error}");
            Box::new(never_ran(Outcome::NotStarted, detail))
        })?;
        descriptors.extend(prepared.descriptors());
        let request = Request::Start(Box::new(prepared.order.clone()));
        around.launcher.request(&request, &descriptors).map_err(|error| {
            let detail = format!("the node's launcher takes no orders: {error}");
            Box::new(never_ran(Outcome::NotStarted, detail))
        })?;
        drop(descriptors);
        // Not the program's ends: a terminal that its program has left must be seen to be.
        prepared.outputs.clear();
        prepared.order.program = Program::Command(Vec::new());
        // The time limit counts from the order: files that can't be opened don't stop it.
        let now = clock::boot_now();
        Ok(Self {
            time_limit_ends: order.run.time_limit.map(|limit| limit_ends(now, limit)),
            early_signal_at: early_signal_at(&order.run, now),
            started: now,
            order,
            program: None,
            grace_ends: None,
            signalled: None,
            ends_after_sessions: false,
            killed: false,
            ran_before_kill: false,
            memory_kills_before,
            limits,
            launch_order: prepared.order,
            interaction,
            program_output: prepared.program_output,
            memory_pipe,
            needs_reported: LaunchNeeds::default(),
            memory_reported: CompanionMemory::default(),
            preallocation_reported: false,
        })
    }

    /// Records that the program runs, with the files that its user named and may read.
    pub fn launched(
        &mut self,
        data: &Path,
        pid: u32,
        readable: &[ReadableOutput],
        files: Vec<OwnedFd>,
    ) -> (u32, Millis) {
        let started_unix = clock::unix_now();
        self.program = Some((pid, started_unix));
        let output = &self.order.run.output;
        let is_same = output.stdout.is_some()
            && output.stderr.as_ref().is_none_or(|err| Some(err) == output.stdout.as_ref());
        for (readable, file) in readable.iter().zip(files) {
            let file = File::from(file);
            let mut streams = Vec::new();
            if readable.stream == 1 {
                streams.push(LogStream::Stdout);
            }
            if readable.stream == 2 || is_same {
                streams.push(LogStream::Stderr);
            }
            let Ok(found) = file.metadata() else { continue };
            let confinement = &self.order.confinement;
            let (device, inode, born) = identity_of(&found);
            let named = NamedOutput {
                account: confinement.account.clone(),
                uid_min: confinement.uid_min,
                root_allowed: confinement.root_allowed,
                device,
                inode,
                born,
            };
            for stream in &streams {
                // Without it the output can't be read through Tessera; the file itself is whole.
                let _ = named.write(&files::output(data, self.order.attempt, *stream));
            }
            let from = readable.length;
            // One file for both is read once.
            match streams.contains(&LogStream::Stderr) {
                true => self.program_output.stderr = Some(OutputStream::new(file, from)),
                false => self.program_output.stdout = Some(OutputStream::new(file, from)),
            }
        }
        (pid, started_unix)
    }

    /// Takes the streams of an interactive program, and the file that keeps its output.
    pub fn take_interaction(&mut self) -> Option<(Channel, Option<File>)> {
        self.interaction.take()
    }

    /// Returns what sessions are started from, while the program runs: its order, and groups to join.
    pub fn session_parts(&self) -> Option<(&Order, Vec<BorrowedFd<'_>>)> {
        let runs = self.program.is_some() && !self.killed;
        runs.then(|| (&self.launch_order, self.limits.descriptors()))
    }

    /// Returns what it was started from.
    pub fn order(&self) -> &SpawnOrder {
        &self.order
    }

    /// Returns its state, for an agent.
    pub fn held(&self) -> HeldAttempt {
        HeldAttempt {
            attempt: self.order.attempt,
            job: self.order.job,
            generation: self.order.generation,
            gpu: self.order.gpu.clone(),
            slot: self.order.slot,
            status: match self.program {
                Some((pid, started_unix)) => AttemptStatus::Running { pid, started_unix },
                None => AttemptStatus::Journalled,
            },
        }
    }

    /// Takes the pipe of an attempt that has ended. One that left processes behind keeps it: they may still report.
    pub fn take_pipe(&mut self) -> Option<SparePipe> {
        self.memory_pipe.take().map(MemoryPipe::into_spare)
    }

    /// Returns when [`Self::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Millis> {
        [self.time_limit_ends, self.early_signal_at, self.grace_ends].into_iter().flatten().min()
    }

    /// Ends the attempt if its time or its grace has passed.
    pub fn tick(&mut self, now: Millis, group: Option<&Group>, launcher: &Socket) {
        if self.grace_ends.is_some_and(|ends| ends <= now) {
            self.grace_ends = None;
            match self.run_before_kill() {
                true => self.grace_ends = Some(now.plus(BEFORE_KILL_WITHIN)),
                false => self.kill_all(group, launcher),
            }
        }
        if self.early_signal_at.is_some_and(|at| at <= now) {
            self.early_signal_at = None;
            self.send_early_signal(launcher);
        }
        if let Some(limit) = self.order.run.time_limit
            && self.time_limit_ends.is_some_and(|ends| ends <= now)
        {
            self.time_limit_ends = None;
            self.request_end(now, Signalled::TimeLimit(limit), (launcher, false));
        }
    }

    /// Gives the attempt another time limit; one that is over already ends it at the next tick.
    pub fn limit(&mut self, limit: Option<Millis>) {
        if self.order.run.time_limit == limit {
            return;
        }
        self.order.run.time_limit = limit;
        // A signal that was sent is not sent again, unless the job got more time.
        let now = clock::boot_now();
        self.early_signal_at =
            early_signal_at(&self.order.run, self.started).filter(|at| *at > now);
        self.time_limit_ends = limit.map(|limit| limit_ends(self.started, limit));
    }

    /// Sends the signal that the user requested before the time limit.
    fn send_early_signal(&self, launcher: &Socket) {
        let Some(early) = self.order.run.batch.signal else { return };
        let number = match early.signal {
            WarningSignal::Hup => Signal::HUP,
            WarningSignal::Int => Signal::INT,
            WarningSignal::Quit => Signal::QUIT,
            WarningSignal::Usr1 => Signal::USR1,
            WarningSignal::Usr2 => Signal::USR2,
            WarningSignal::Term => Signal::TERM,
            WarningSignal::Cont => Signal::CONT,
        };
        let part = Request::SignalPart { number: number.as_raw(), first_only: early.script_only };
        // A launcher that is gone takes its program with it.
        let _ = launcher.request(&part, &[]);
    }

    /// Starts what has to be done before the kill, once; returns whether there was anything. Its
    /// end is the attempt's, or the next deadline.
    fn run_before_kill(&mut self) -> bool {
        let command = std::mem::take(&mut self.order.before_kill);
        let Some((program, arguments)) = command.split_first() else { return false };
        let null = std::process::Stdio::null;
        let mut command = std::process::Command::new(program);
        command.args(arguments).stdin(null()).stdout(null()).stderr(null());
        // Reaped at the attempt's end.
        self.ran_before_kill = command.spawn().is_ok();
        self.ran_before_kill
    }

    /// Signals the program to end. The first cause counts; a repetition changes nothing.
    ///
    /// A program that only holds its node's part of steps ends after them, within the grace: `has_sessions` states that
    /// some run. They are signalled by the step's caller, as all processes of the step are.
    pub fn request_end(
        &mut self,
        now: Millis,
        cause: Signalled,
        (launcher, has_sessions): (&Socket, bool),
    ) {
        if self.signalled.is_some() {
            return;
        }
        self.signalled = Some(cause);
        self.grace_ends = Some(now.plus(self.order.run.grace));
        if has_sessions && self.order.run.env.contains_key(STEP_HOST) {
            self.ends_after_sessions = true;
            return;
        }
        signal(
            launcher,
            match (cause, self.order.run.checkpoint_signal) {
                (
                    Signalled::Stopped(StopCause::Reshare | StopCause::Move | StopCause::Grow),
                    Some(signal),
                ) => number_of(signal),
                _ => Signal::TERM,
            },
        );
        // A stopped program couldn't handle the signal.
        signal(launcher, Signal::CONT);
    }

    /// Signals a program that was to end after the sessions, now that none runs.
    pub fn end_after_sessions(&mut self, has_sessions: bool, launcher: &Socket) {
        if self.ends_after_sessions && !has_sessions {
            self.ends_after_sessions = false;
            signal(launcher, Signal::TERM);
        }
    }

    /// Ends everything of the attempt at once.
    pub fn kill(&mut self, cause: Signalled, group: Option<&Group>, launcher: &Socket) {
        self.signalled = self.signalled.or(Some(cause));
        self.grace_ends = None;
        self.kill_all(group, launcher);
    }

    /// Returns whether it was killed, and so has to end at once.
    pub const fn is_killed(&self) -> bool {
        self.killed
    }

    /// Returns whether the shepherd itself started something for it.
    pub const fn has_own_processes(&self) -> bool {
        self.ran_before_kill
    }

    /// Signals the program and its process group, for a session.
    pub fn signal(&self, number: i32, launcher: &Socket) {
        // A launcher that is gone takes its program with it.
        let _ = launcher.request(&Request::Signal(number), &[]);
    }

    fn kill_all(&mut self, group: Option<&Group>, launcher: &Socket) {
        self.killed = true;
        if let Some(group) = group {
            group.kill();
        }
        // A launcher that is gone takes its program with it.
        let _ = launcher.request(&Request::Kill, &[]);
    }

    /// Kills the attempt again, if it was killed and has not ended.
    pub fn kill_again(&mut self, group: Option<&Group>, launcher: &Socket) {
        if self.killed {
            self.kill_all(group, launcher);
        }
    }

    /// Returns the record of an attempt that could not be started.
    pub fn failed(&self, refused: &PrepareError) -> ExitRecord {
        *refuse(refused)
    }

    /// Returns the record of an attempt whose launcher died, and kills what is left of it.
    pub fn abandoned(&self, group: Option<&Group>) -> ExitRecord {
        if let Some(group) = group
            && !group.is_empty()
        {
            group.kill();
        }
        let detail = "its launcher died".to_owned();
        let outcome = if self.program.is_some() { Outcome::Lost } else { Outcome::NotStarted };
        never_ran(outcome, detail)
    }

    /// Takes in what observers in its processes reported until `now`.
    pub fn read_observers(&mut self, now: Millis) {
        if let Some(pipe) = &mut self.memory_pipe {
            pipe.drain(now);
        }
    }

    /// Returns what observers in its processes reported, if that changed since the last time. Call
    /// [`Self::read_observers`] first.
    pub fn new_memory(&mut self) -> Option<CompanionMemory> {
        let readings = self.memory_pipe.as_ref()?.readings();
        let reserved_peak = readings.peak()?;
        let memory = CompanionMemory { reserved_peak, ..readings.memory().unwrap_or_default() };
        let is_new = memory != self.memory_reported;
        self.memory_reported = memory;
        is_new.then_some(memory)
    }

    /// Returns what it needs at least, if that changed since the last time. Call [`Self::read_observers`] first.
    pub fn new_needs(&mut self) -> Option<LaunchNeeds> {
        let needs = self.memory_pipe.as_ref()?.readings().needs();
        let is_new = needs != self.needs_reported;
        self.needs_reported = needs;
        is_new.then_some(needs)
    }

    /// Takes the iterations that companions reported, and whether a framework takes memory in advance. Call
    /// [`Self::read_observers`] first.
    pub fn take_trail(&mut self) -> (Vec<MemoryReading>, bool) {
        let Some(pipe) = &mut self.memory_pipe else { return (Vec::new(), false) };
        let is_new = pipe.is_preallocated() && !self.preallocation_reported;
        self.preallocation_reported |= is_new;
        (pipe.take_trail(clock::unix_now()), is_new)
    }

    /// Returns how the attempt ended. The launcher has killed what it left behind.
    pub fn finish(&mut self, end: ReportedEnd, group: Option<&Group>) -> ExitRecord {
        if let Some(group) = group.filter(|_| end.group_killed) {
            group.note_killed();
        }
        let exit = exit_of(end.status);
        let gave_up = exit != ProgramExit::Code(0) && self.signalled.is_none();
        let (text, strength) = match gave_up {
            true => self.recognise_out_of_memory(exit),
            false => (None, None),
        };
        let evidence = Evidence {
            exit,
            signalled: self.signalled,
            out_of_memory: self.limits.out_of_memory_kills() > 0
                || group
                    .is_some_and(|group| group.out_of_memory_kills() > self.memory_kills_before),
            out_of_gpu_memory: strength.is_some(),
            machine_stops: machine_stops(),
        };
        let (outcome, mut detail) = match self.refused_container(exit) {
            Some(reason) => (Outcome::LaunchFailed, reason),
            None => verdict(evidence),
        };
        if let Some(limit) = self.order.run.host_memory
            && detail.starts_with(HOST_MEMORY_DETAIL)
        {
            detail.push_str(&format!(": it used more than its {limit} (--mem)"));
        }
        if outcome == Outcome::OutOfMemory && evidence.out_of_gpu_memory {
            if strength == Some(EvidenceStrength::Refused) {
                detail.push_str(REFUSED_DETAIL);
            }
            if let Some(text) = text {
                detail.push_str(&format!(": {}", text.line));
            }
        }
        if !end.clean {
            self.memory_pipe = None;
            detail.push_str("; a process that it left behind can't be killed");
        }
        self.record(outcome, evidence.exit, detail, end)
    }

    /// Returns why the attempt's container did not start, if it has one and the program in front of it reports that.
    /// A program inside that ends with this code by itself counts as one, too: podman can't distinguish them either.
    fn refused_container(&self, exit: ProgramExit) -> Option<String> {
        let reports = exit == ProgramExit::Code(NOT_STARTED_CODE) && self.signalled.is_none();
        self.order.container.as_ref().filter(|_| reports)?;
        let reason = self.program_output.last_line_after(REFUSAL);
        Some(
            reason
                .unwrap_or_else(|| "its container could not be started: see its output".to_owned()),
        )
    }

    /// Decides whether the program ran out of GPU memory, by its output and by its companions.
    fn recognise_out_of_memory(
        &mut self,
        exit: ProgramExit,
    ) -> (Option<TextEvidence>, Option<EvidenceStrength>) {
        let text = self.program_output.out_of_gpu_memory();
        let now = clock::boot_now();
        let readings = self.memory_pipe.as_mut().map(|pipe| pipe.drain(now));
        let strength = recognise(&MemoryEvidence {
            exit,
            text: text.as_ref(),
            refused: readings.and_then(|readings| readings.refused(now)),
            peak: readings.and_then(CompanionReadings::peak),
            slice: slice_memory(&self.order),
        });
        (text, strength)
    }

    fn record(
        &self,
        outcome: Outcome,
        exit: ProgramExit,
        detail: String,
        used: ReportedEnd,
    ) -> ExitRecord {
        ExitRecord {
            outcome,
            exit: Some(exit),
            detail,
            started_unix: self.program.map_or(Millis::ZERO, |(_, started)| started),
            ended_unix: clock::unix_now(),
            user_time: used.user_time,
            system_time: used.system_time,
            max_rss: used.max_rss,
        }
    }
}

/// Opens the streams of an interactive program, and puts their other ends in the place of its output files.
fn interact(
    order: &SpawnOrder,
    prepared: &mut Prepared,
) -> io::Result<Option<(Channel, Option<File>)>> {
    let Some(interaction) = order.run.batch.interaction else { return Ok(None) };
    let (channel, end) = Channel::open(interaction.terminal)?;
    prepared.order.stdin = end.kind;
    prepared.order.stdout = Output::Given;
    prepared.order.stderr = end.stderr_output();
    let program_ends = [Some(end.input), Some(end.stdout), end.stderr].into_iter().flatten();
    let files = program_ends.map(File::from).collect();
    let log = std::mem::replace(&mut prepared.outputs, files).into_iter().next();
    Ok(Some((channel, log)))
}

/// Returns the memory of an attempt's slice, as its program may read it.
fn slice_memory(order: &SpawnOrder) -> Option<Bytes> {
    let text = order.run.env.get("TESSERA_GPU_MEMORY_BYTES")?;
    text.parse().ok().map(Bytes::new)
}

/// Returns when the signal before the time limit is due; at once, if it is due before the start.
fn early_signal_at(run: &RunSpec, started: Millis) -> Option<Millis> {
    let (limit, early) = (run.time_limit?, run.batch.signal?);
    Some(started.plus(limit.minus(early.before_limit)))
}

const fn number_of(signal: CheckpointSignal) -> Signal {
    match signal {
        CheckpointSignal::Usr1 => Signal::USR1,
        CheckpointSignal::Usr2 => Signal::USR2,
        CheckpointSignal::Hup => Signal::HUP,
        CheckpointSignal::Int => Signal::INT,
        CheckpointSignal::Term => Signal::TERM,
    }
}

/// Signals the program and its process group. A launcher that is gone takes its program with it.
fn signal(launcher: &Socket, signal: Signal) {
    let _ = launcher.request(&Request::Signal(signal.as_raw()), &[]);
}

/// Returns whether the machine ends all processes: systemd has put this program into the place of the first process.
fn machine_stops() -> bool {
    /// The name in the kernel: 15 characters.
    const SHUTDOWN: &str = "systemd-shutdow";
    std::fs::read_to_string("/proc/1/comm").is_ok_and(|name| name.trim_end() == SHUTDOWN)
}

fn refuse(refused: &PrepareError) -> Box<ExitRecord> {
    let outcome = if refused.by_job { Outcome::LaunchFailed } else { Outcome::NotStarted };
    Box::new(never_ran(outcome, refused.detail.clone()))
}

/// Returns the record of an attempt that never ran.
pub fn never_ran(outcome: Outcome, detail: String) -> ExitRecord {
    never_ran_at(clock::unix_now(), outcome, detail)
}
