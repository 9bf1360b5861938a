//! One attempt from its start to its end, as a shepherd sees it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tessera_agent_core::shepherd::verdict::{Evidence, Signalled, exit_of, verdict};
use tessera_agent_core::shepherd::{HeldAttempt, never_ran_at};
use tessera_frames::cluster::{AttemptStatus, ExitRecord, StopCause};
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::share::CheckpointSignal;
use tessera_model::{Bytes, Millis};

use super::error_output::ErrorOutput;
use super::group::{Group, sweep};
use super::prepare::{self, Prepared};
use super::protocol::SpawnOrder;
use crate::sys::clock;
use crate::sys::spawn::{self, ProgramImage, ReapedChild, SpawnedChild};

/// Returns when a limit is over. One more: the clock was rounded down, and a limit is never cut short.
const fn limit_ends(started: Millis, limit: Millis) -> Millis {
    started.plus(limit).plus(Millis::new(1))
}

/// How long what comes before the kill may take: the five seconds that MPS has for ending a
/// client (M3), and one more.
const BEFORE_KILL_WITHIN: Millis = Millis::from_secs(6);

/// A running attempt.
#[derive(Debug)]
pub struct RunningAttempt {
    order: SpawnOrder,
    child: SpawnedChild,
    started_unix: Millis,
    /// On the boot clock.
    started: Millis,
    time_limit_ends: Option<Millis>,
    grace_ends: Option<Millis>,
    signalled: Option<Signalled>,
    memory_kills_before: u64,
    error_output: ErrorOutput,
}

impl RunningAttempt {
    /// Starts an attempt.
    ///
    /// # Errors
    ///
    /// The exit record of an attempt that never ran.
    pub fn start(
        data: &Path,
        order: SpawnOrder,
        script: Option<&str>,
        null: &File,
        group: Option<&Group>,
    ) -> Result<Self, Box<ExitRecord>> {
        let prepared = prepare::prepare(data, &order, script)
            .map_err(|refused| Box::new(never_ran(refused.outcome, refused.detail)))?;
        let memory_kills_before = group.map_or(0, Group::out_of_memory_kills);
        let error_output = ErrorOutput::of(data, order.attempt);
        let child = start_program(&prepared, null, group).map_err(|error| {
            let refused = prepare::explain(&error, &prepared.program);
            Box::new(never_ran(refused.outcome, refused.detail))
        })?;
        let now = clock::boot_now();
        Ok(Self {
            time_limit_ends: order.run.time_limit.map(|limit| limit_ends(now, limit)),
            started: now,
            order,
            child,
            started_unix: clock::unix_now(),
            grace_ends: None,
            signalled: None,
            memory_kills_before,
            error_output,
        })
    }

    /// Returns what it was started from.
    pub fn order(&self) -> &SpawnOrder {
        &self.order
    }

    /// Returns the program's pid.
    pub fn pid(&self) -> u32 {
        self.child.pid.cast_unsigned()
    }

    /// Returns when it was started, on the wall clock.
    pub fn started_unix(&self) -> Millis {
        self.started_unix
    }

    /// Returns what `poll` takes: readable once the program has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }

    /// Returns how it stands, for an agent.
    pub fn held(&self) -> HeldAttempt {
        HeldAttempt {
            attempt: self.order.attempt,
            job: self.order.job,
            generation: self.order.generation,
            gpu: self.order.gpu.clone(),
            slot: self.order.slot,
            status: AttemptStatus::Running { pid: self.pid(), started_unix: self.started_unix },
        }
    }

    /// Returns when [`Self::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Millis> {
        [self.time_limit_ends, self.grace_ends].into_iter().flatten().min()
    }

    /// Ends the attempt if its time or its grace is up.
    pub fn tick(&mut self, now: Millis, group: Option<&Group>) {
        if self.grace_ends.is_some_and(|ends| ends <= now) {
            self.grace_ends = None;
            match self.run_before_kill() {
                true => self.grace_ends = Some(now.plus(BEFORE_KILL_WITHIN)),
                false => self.kill_all(group),
            }
        }
        if let Some(limit) = self.order.run.time_limit
            && self.time_limit_ends.is_some_and(|ends| ends <= now)
        {
            self.time_limit_ends = None;
            self.request_end(now, Signalled::TimeLimit(limit));
        }
    }

    /// Gives the attempt another time limit; one that is over already ends it at the next tick.
    pub fn limit(&mut self, limit: Option<Millis>) {
        if self.order.run.time_limit == limit {
            return;
        }
        self.order.run.time_limit = limit;
        self.time_limit_ends = limit.map(|limit| limit_ends(self.started, limit));
    }

    /// Starts what has to be done before the kill, once; returns whether there was anything. Its
    /// end is the attempt's, or the next deadline.
    fn run_before_kill(&mut self) -> bool {
        let command = std::mem::take(&mut self.order.before_kill);
        let Some((program, arguments)) = command.split_first() else { return false };
        let null = std::process::Stdio::null;
        let mut command = std::process::Command::new(program);
        command.args(arguments).stdin(null()).stdout(null()).stderr(null());
        // Reaped with everything else that the shepherd adopted.
        command.spawn().is_ok()
    }

    /// Signals the program to end. The first cause counts; a repetition changes nothing.
    pub fn request_end(&mut self, now: Millis, cause: Signalled) {
        if self.signalled.is_some() {
            return;
        }
        self.signalled = Some(cause);
        self.grace_ends = Some(now.plus(self.order.run.grace));
        self.signal_session(match (cause, self.order.run.checkpoint_signal) {
            (Signalled::Stopped(StopCause::Reshare | StopCause::Move), Some(signal)) => {
                number_of(signal)
            }
            _ => Signal::TERM,
        });
        // A stopped program couldn't handle the signal.
        self.signal_session(Signal::CONT);
    }

    /// Ends everything of the attempt at once.
    pub fn kill(&mut self, cause: Signalled, group: Option<&Group>) {
        self.signalled = self.signalled.or(Some(cause));
        self.grace_ends = None;
        self.kill_all(group);
    }

    fn kill_all(&self, group: Option<&Group>) {
        if let Some(group) = group {
            group.kill();
        }
        self.signal_session(Signal::KILL);
    }

    /// Signals the program and its process group. Neither can be a stranger's: the program
    /// isn't reaped while `self` exists, so its pid is its own.
    fn signal_session(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.pid) {
            let _ = kill_process_group(pid, signal).or_else(|_| kill_process(pid, signal));
        }
    }

    /// Reaps the program, kills what it left behind, and returns how the attempt ended.
    ///
    /// `None` if the program still runs.
    pub fn finish(&mut self, group: Option<&Group>) -> Option<ExitRecord> {
        let reaped = spawn::wait(self.child.pid, false)?;
        let clean = clear(group);
        let exit = exit_of(reaped.status);
        let gave_up = exit != ProgramExit::Code(0) && self.signalled.is_none();
        let last_line = if gave_up { self.error_output.out_of_gpu_memory() } else { None };
        let evidence = Evidence {
            exit,
            signalled: self.signalled,
            out_of_memory: group
                .is_some_and(|group| group.out_of_memory_kills() > self.memory_kills_before),
            out_of_gpu_memory: last_line.is_some(),
        };
        let (outcome, mut detail) = verdict(evidence);
        if let Some(line) = last_line.filter(|_| outcome == Outcome::OutOfMemory) {
            detail.push_str(&format!(": {line}"));
        }
        if !clean {
            detail.push_str("; a process that it left behind can't be killed");
        }
        Some(self.record(outcome, evidence.exit, detail, &reaped))
    }

    fn record(
        &self,
        outcome: Outcome,
        exit: ProgramExit,
        detail: String,
        used: &ReapedChild,
    ) -> ExitRecord {
        ExitRecord {
            outcome,
            exit: Some(exit),
            detail,
            started_unix: self.started_unix,
            ended_unix: clock::unix_now(),
            user_time: Millis::new(used.user_ms),
            system_time: Millis::new(used.system_ms),
            max_rss: Bytes::new(used.max_rss_kib.saturating_mul(1024)),
        }
    }
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

/// Kills whatever an ended attempt left behind; returns whether nothing is left.
fn clear(group: Option<&Group>) -> bool {
    if let Some(group) = group
        && !group.is_empty()
    {
        group.kill();
    }
    sweep()
}

/// Returns the record of an attempt that never ran.
pub fn never_ran(outcome: Outcome, detail: String) -> ExitRecord {
    never_ran_at(clock::unix_now(), outcome, detail)
}

fn start_program(
    prepared: &Prepared,
    null: &File,
    group: Option<&Group>,
) -> Result<SpawnedChild, spawn::SpawnError> {
    spawn::spawn(&ProgramImage {
        program: &prepared.program,
        arguments: &prepared.arguments,
        environment: &prepared.environment,
        folder: &prepared.folder,
        streams: [null.as_fd(), prepared.stdout.as_fd(), prepared.stderr.as_fd()],
        group: group.map(Group::descriptor),
    })
}

/// Opens what attempts read their empty input from.
///
/// # Errors
///
/// The machine has no `/dev/null`.
pub fn open_null() -> io::Result<File> {
    File::open("/dev/null")
}
