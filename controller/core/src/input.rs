//! One input at a time.

use crate::commands::operator::OperatorCommand;
use crate::commands::{CommandResult, JobCommand, JobStateChange};
use crate::round::{Round, RoundEffect};
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions;
use crate::rows::transitions::{WaitingJobChange, record_without_exit};
use crate::settle::was_commanded;
use crate::state::ClusterState;
use crate::state::inventory::NodeInventory;
use tessera_frames::cluster::{ToAgent, ToController};
use tessera_model::life::{JobState, Outcome};
use tessera_model::{AttemptId, GpuId, JobId, Millis, NodeId};

/// How long a user's command to a job is remembered that may not have been announced yet.
/// Announcements take far less.
const MOVED_KEPT_FOR: Millis = Millis::from_secs(600);

/// An event that a round reacts to.
#[derive(Debug)]
pub enum Input {
    /// Jobs were accepted.
    Submitted(Vec<SubmittedJob>),
    /// A user commands jobs.
    Command {
        /// Leads the result back to its call.
        token: u64,
        /// The command.
        command: JobCommand,
        /// The jobs.
        jobs: Vec<JobId>,
    },
    /// Released jobs are queued again, as read from the store.
    Requeued(Vec<SubmittedJob>),
    /// An agent sends its hello on a new connection.
    Hello {
        /// The node, by its certificate.
        peer: tessera_model::NodeIdentity,
        /// The number of the connection.
        session: u64,
        /// The agent's first frame.
        hello: Box<tessera_frames::cluster::Hello>,
    },
    /// An agent sends a frame.
    Frame {
        /// The node.
        node: NodeId,
        /// The number of the connection.
        session: u64,
        /// The frame.
        frame: Box<ToController>,
    },
    /// A connection ended.
    Closed {
        /// The node.
        node: NodeId,
        /// The number of the connection.
        session: u64,
    },
    /// An administrator switches a GPU's MIG mode.
    SetMigMode {
        /// The GPU.
        gpu: GpuId,
        /// Whether MIG is switched on.
        on: bool,
    },
    /// An administrator's command.
    Operate {
        /// Leads the result back to its call.
        token: u64,
        /// The command.
        command: OperatorCommand,
        /// The wall clock, milliseconds since 1970.
        now_unix: Millis,
    },
    /// Time passed.
    Tick,
}

impl Input {
    /// Whether it changes nothing but that more jobs wait, or time passes.
    pub(crate) const fn only_adds_jobs(&self) -> bool {
        matches!(self, Self::Submitted(_) | Self::Tick)
    }

    /// Returns the jobs that come with it.
    pub(crate) fn new_jobs(&self) -> impl Iterator<Item = JobId> {
        let jobs = match self {
            Self::Submitted(jobs) => jobs.as_slice(),
            _ => &[],
        };
        jobs.iter().map(|job| job.job)
    }
}

impl ClusterState {
    pub(crate) fn handle_input(&mut self, input: Input, now: Millis, round: &mut Round) {
        if !input.only_adds_jobs() {
            self.planner.settled.unsettle();
        }
        match input {
            Input::Submitted(jobs) => {
                for job in jobs {
                    if !was_commanded(&self.queue, job.job, &round.jobs) {
                        let submitted = now.minus(job.waited);
                        self.enqueue(job, submitted);
                    }
                }
            }
            Input::Requeued(jobs) => {
                for job in jobs {
                    let submitted = now.minus(job.waited);
                    self.enqueue(job, submitted);
                }
            }
            Input::Command { token, command, jobs } => {
                let results = jobs
                    .into_iter()
                    .map(|job| (job, self.command_job(job, command, now, round)))
                    .collect();
                round.answers.users.push((token, results));
            }
            Input::Hello { peer, session, hello } => {
                self.handle_hello(peer, session, *hello, now, round);
            }
            Input::Frame { node, session, frame } => {
                if self.inventory.is_session(node, session) {
                    self.handle_frame(node, *frame, now, round);
                }
            }
            Input::Closed { node, session } => {
                self.inventory.close_session(node, session);
                self.note_closed_connection(node, session, now, round);
            }
            Input::SetMigMode { gpu, on } => {
                set_mig_mode(&self.inventory, self.guards.epoch, gpu, on, &mut round.effects);
            }
            Input::Operate { token, command, now_unix } => {
                self.clock.unix = now_unix;
                self.handle_operator_command(token, command, now, round);
            }
            Input::Tick => {
                self.queue.recently_commanded.retain(|_, since| now < since.plus(MOVED_KEPT_FOR));
            }
        }
    }

    /// Carries out a user's command on one job. Returns `None` if only the store knows the result.
    fn command_job(
        &mut self,
        job: JobId,
        command: JobCommand,
        now: Millis,
        round: &mut Round,
    ) -> Option<CommandResult> {
        if let Some(attempt) = self.attempts.by_job.get(&job).copied() {
            // A reload may have read and placed it before its announcement comes.
            self.queue.recently_commanded.insert(job, now);
            return Some(self.command_live_job(attempt, command, round));
        }
        let change = match command {
            JobCommand::Cancel => WaitingJobChange::To(JobState::Cancelled),
            JobCommand::Hold => WaitingJobChange::To(JobState::Held),
            JobCommand::Release => WaitingJobChange::To(JobState::Queued),
            JobCommand::Reshare(sm) => WaitingJobChange::Share(sm),
            JobCommand::Update(update) => WaitingJobChange::Update(update),
        };
        if command == JobCommand::Cancel {
            self.predictions.checkpoints.remove(&job);
        }
        if command != JobCommand::Release {
            // With another share it comes back, once that is committed.
            self.queue.dequeue(job);
        }
        round.jobs.commands.push(transitions::WaitingJobCommand { job, change });
        None
    }

    fn command_live_job(
        &mut self,
        attempt: AttemptId,
        command: JobCommand,
        round: &mut Round,
    ) -> CommandResult {
        let Some(live) = self.attempts.live.get_mut(&attempt) else {
            return CommandResult::NotFound;
        };
        if let JobCommand::Reshare(sm) = command {
            return live.reshare(attempt, sm, &mut round.jobs.reshared);
        }
        if let JobCommand::Update(update) = command {
            return live.update(attempt, update, &mut round.jobs.updated);
        }
        if command != JobCommand::Cancel {
            return CommandResult::Refused { state: live.state.word().to_owned() };
        }
        for attempt in self.attempts.gang_attempts(attempt) {
            self.cancel_attempt(attempt, round);
        }
        CommandResult::Done
    }

    fn cancel_attempt(&mut self, attempt: AttemptId, round: &mut Round) {
        let Some(live) = self.attempts.live.get_mut(&attempt) else { return };
        let was = live.state;
        if was == JobState::Stopping {
            return;
        }
        live.state = JobState::Stopping;
        live.sent = None;
        round.jobs.stopping.push(transitions::StoppingAttempt { job: live.job, attempt });
        round.effects.push(RoundEffect::Moved(JobStateChange {
            job: live.job,
            attempt: Some(attempt),
            state: JobState::Stopping,
        }));
        if was == JobState::Placing {
            // No launch was ever sent: there is nothing to wait for.
            let record =
                record_without_exit(Outcome::Cancelled, "cancelled before it started".to_owned());
            self.end_attempt(attempt, record, round);
        }
    }
}

fn set_mig_mode(
    inventory: &NodeInventory,
    epoch: u64,
    gpu: GpuId,
    on: bool,
    effects: &mut Vec<RoundEffect>,
) {
    if let Some(known) = inventory.gpus.get(&gpu) {
        let frame = ToAgent::SetMigMode { epoch, gpu, on };
        effects.push(RoundEffect::Send { node: known.node, frame: Box::new(frame) });
    }
}
