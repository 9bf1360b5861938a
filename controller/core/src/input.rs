//! Handles the inputs of a round, one at a time.

use crate::attempt_changes::AttemptChanges;
use crate::commands::operator::OperatorCommand;
use crate::commands::{CommandResult, JobCommand, JobStateChange};
use crate::duplicates::{note_closed_connection, refuse_duplicate, take_due_successors};
use crate::idle::IdleReport;
use crate::memory_requests::measure_largest_slice;
use crate::mig_mode::{answer_mig_mode, send_mig_mode};
use crate::overrides::{clear_override, resolve_target, set_override};
use crate::reports::{REFUSAL_PAUSE, finish_inventory, record_gpu_report, tombstone_record};
use crate::round::{Round, RoundEffect};
use crate::rows::overrides::{AdminOverrideRow, OverrideKind, OverrideTarget};
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions;
use crate::rows::transitions::WaitingJobChange;
use crate::sessions::{bind_session, is_admitted, is_rebooted};
use crate::settle::was_commanded;
use crate::state::ClusterState;
use crate::state::inventory::ConnectedAgent;
use crate::state::layouts::PendingMigMode;
use tessera_frames::cluster::{AttemptReport, AttemptStatus, ToController};
use tessera_model::dependency::{DependencyFacts, DependencyQuestion};
use tessera_model::life::{JobState, Outcome};
use tessera_model::{AttemptId, JobId, Millis, NodeId};

/// How long a user's command is remembered for a job that may not have been announced yet.
/// Announcements take far less.
const MOVED_KEPT_FOR: Millis = Millis::from_secs(600);

/// An event that a round reacts to.
#[derive(Debug)]
pub enum Input {
    /// Jobs were accepted.
    Submitted(Vec<SubmittedJob>),
    /// A user commands jobs.
    Command {
        /// Identifies the call that gets the result.
        token: u64,
        /// What to do with each of the jobs.
        command: JobCommand,
        /// The jobs that the user named.
        jobs: Vec<JobId>,
    },
    /// The store answers queries about jobs that others depend on.
    Dependencies(Vec<(DependencyQuestion, DependencyFacts)>),
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
        /// The node that sent it.
        node: NodeId,
        /// The number of the connection.
        session: u64,
        /// What it sent.
        frame: Box<ToController>,
    },
    /// A connection ended.
    Closed {
        /// The node that was connected.
        node: NodeId,
        /// The number of the connection.
        session: u64,
    },
    /// An administrator's command.
    Operate {
        /// Identifies the call that gets the result.
        token: u64,
        /// What the operator requests.
        command: OperatorCommand,
        /// The wall clock, milliseconds since 1970.
        now_unix: Millis,
    },
    /// How long attempts have done nothing, of those that are to be watched.
    Idle(Vec<IdleReport>),
    /// Time passed.
    Tick,
}

/// What an input may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InputReach {
    /// The waiting jobs. Or only time passes.
    Queue,
    /// Attempts, which start and end.
    Attempts,
    /// Anything else.
    Cluster,
}

impl Input {
    /// Returns what it may change.
    pub(crate) fn reach(&self) -> InputReach {
        match self {
            Self::Submitted(_) | Self::Idle(_) | Self::Tick => InputReach::Queue,
            Self::Frame { frame, .. } => match **frame {
                // It leads to a row, so the round can't be skipped.
                ToController::Memory(_) => InputReach::Queue,
                ToController::Attempt(_) | ToController::Usage(_) => InputReach::Attempts,
                _ => InputReach::Cluster,
            },
            _ => InputReach::Cluster,
        }
    }

    /// Returns the jobs that it adds.
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
        if input.reach() == InputReach::Cluster {
            self.planner.settled.unsettle();
        }
        match input {
            Input::Submitted(jobs) => {
                for job in jobs {
                    if !was_commanded(&self.queue, job.job, &round.jobs) {
                        let submitted = now.minus(job.waited);
                        self.attempt_changes(round).enqueue(job, submitted);
                    }
                }
            }
            Input::Requeued(jobs) => {
                for job in jobs {
                    let submitted = now.minus(job.waited);
                    self.attempt_changes(round).enqueue(job, submitted);
                }
            }
            Input::Idle(reports) => self.attempt_changes(round).record_idle(&reports, now),
            Input::Dependencies(known) => self.queue.dependencies.learn(known),
            Input::Command { token, command, jobs } => {
                let mut changes = self.attempt_changes(round);
                let of = |job| (job, changes.command_job(job, &command, now));
                let results = jobs.into_iter().map(of).collect();
                round.answers.users.push((token, results));
            }
            Input::Hello { peer, session, hello } => {
                self.handle_hello(&ConnectedAgent { peer, session, hello: *hello }, now, round);
            }
            Input::Frame { node, session, frame } => {
                if self.inventory.is_session(node, session) {
                    self.handle_frame(node, *frame, now, round);
                }
            }
            Input::Closed { node, session } => {
                self.inventory.close_session(node, session);
                if let Some(agent) = note_closed_connection(&mut self.inventory, node, session) {
                    self.welcome(&agent, now, round);
                }
            }
            Input::Operate { token, command, now_unix } => {
                self.clock.unix = now_unix;
                self.operate(token, command, now, round);
            }
            Input::Tick => {
                self.queue.recently_commanded.retain(|_, since| now < since.plus(MOVED_KEPT_FOR));
            }
        }
    }

    /// Accepts a node's connection, or refuses it with a reason.
    fn handle_hello(&mut self, agent: &ConnectedAgent, now: Millis, round: &mut Round) {
        let (rollback, mut liars) = (&mut round.rollback, Vec::new());
        let found = (&mut liars, &mut round.effects);
        if is_admitted(&self.guards, &mut self.inventory, agent, now, rollback, found) {
            self.welcome(agent, now, round);
        }
        for (node, claim) in liars {
            // Only a node that has registered has a row to update.
            if self.inventory.nodes.contains_key(&node) {
                let row = AdminOverrideRow {
                    kind: OverrideKind::Quarantined,
                    target: OverrideTarget::Node(node),
                    by: "the controller".to_owned(),
                    reason: Some(claim),
                    since_unix: self.clock.unix,
                };
                set_override(&mut self.overrides, &self.inventory, row, &mut round.overrides);
            }
        }
    }

    /// Makes a connection its node's session. After a reboot the attempts of earlier boots end, and the
    /// generation rises, so that their launches can't arrive late.
    fn welcome(&mut self, agent: &ConnectedAgent, now: Millis, round: &mut Round) {
        let node = agent.peer.id;
        if is_rebooted(&self.inventory, node, &agent.hello) {
            let dead = self.attempts.on_node(node);
            if let Some(known) = self.inventory.nodes.get_mut(&node).filter(|_| !dead.is_empty()) {
                known.generation += 1;
            }
            let detail = "its node was rebooted";
            // A reboot removes all instances, so the rest of a plan would not result in its layout.
            self.gpu_changes(round).give_up_layouts(node, detail);
            let mut changes = self.attempt_changes(round);
            for attempt in dead {
                changes.end_without_exit(attempt, Outcome::Lost, detail);
            }
        }
        let (nodes, effects) = (&mut round.nodes, &mut round.effects);
        bind_session(&self.guards, &mut self.inventory, agent, now, nodes, effects);
    }

    /// Accepts second agents whose predecessors did not answer.
    pub(crate) fn welcome_successors(&mut self, now: Millis, round: &mut Round) {
        for agent in take_due_successors(&mut self.inventory, now) {
            self.welcome(&agent, now, round);
        }
    }

    fn handle_frame(&mut self, node: NodeId, frame: ToController, now: Millis, round: &mut Round) {
        match frame {
            ToController::Gpu(report) => {
                let nodes = &mut round.nodes;
                if record_gpu_report(&mut self.inventory, node, report, nodes) {
                    let (inventory, queue) = (&mut self.inventory, &mut self.queue);
                    measure_largest_slice(inventory, queue, &self.predictions);
                }
            }
            ToController::Attempt(report) => self.record_attempt_report(node, report, now, round),
            ToController::InventoryDone => {
                let (inventory, attempts) = (&mut self.inventory, &mut self.attempts);
                if finish_inventory(inventory, attempts, node) {
                    round.nodes.shape_changed = true;
                    self.gpu_changes(round).resume_plans(node);
                }
            }
            ToController::Tombstoned { attempt } => {
                if let Some(record) = tombstone_record(&self.attempts, node, attempt) {
                    self.attempt_changes(round).end_attempt(attempt, record);
                }
            }
            ToController::PlanEnded { plan, gpu, end } => {
                if self.inventory.is_open_plan(node, &gpu, plan)
                    && let Some(reason) = self.gpu_changes(round).record_plan_end(&gpu, end, now)
                {
                    self.attempt_changes(round).end_unmade_attempts(&gpu, &reason);
                }
            }
            // The GPU's report, which arrived before, lists the existing instances.
            ToController::MigModeEnded { gpu, problem } => {
                if self.inventory.gpus.get(&gpu).is_some_and(|known| known.node == node) {
                    let answers = &mut round.answers;
                    answer_mig_mode(&mut self.layouts, &gpu, problem.as_deref(), answers);
                }
            }
            ToController::Present { token } => {
                refuse_duplicate(&mut self.inventory, node, token, &mut round.effects);
            }
            ToController::Usage(usage) => self.attempt_changes(round).record_usage(node, usage),
            ToController::Memory(reports) => {
                self.attempt_changes(round).record_memory(node, &reports, now);
            }
            ToController::Needs(needs) => {
                self.attempt_changes(round).record_needs(node, &needs, now);
            }
            // Handled before rounds: a second hello breaks the protocol, renewals and answers to
            // questions don't wait here, and neither figures nor kernels decide anything.
            ToController::Hello(_)
            | ToController::Renew { .. }
            | ToController::Figures(_)
            | ToController::KernelReport { .. }
            | ToController::KernelWanted { .. }
            | ToController::KernelTallies(_)
            | ToController::Examined { .. } => {}
        }
    }

    fn record_attempt_report(
        &mut self,
        node: NodeId,
        report: AttemptReport,
        now: Millis,
        round: &mut Round,
    ) {
        let attempt = report.attempt;
        self.inventory.note_reported(node, attempt);
        let Some(live) = self.attempts.acknowledge(node, attempt) else {
            let frame = Box::new(self.guards.answer_unknown_attempt(&report));
            round.effects.push(RoundEffect::Send { node, frame });
            return;
        };
        if live.end.is_some() {
            return;
        }
        let gpu = self.inventory.gpus.get_mut(&live.gpu);
        match report.status {
            AttemptStatus::Journalled => {}
            AttemptStatus::Running { started_unix, .. } => {
                if let Some(gpu) = gpu.filter(|_| live.state == JobState::Starting) {
                    gpu.failures = 0;
                }
                self.attempt_changes(round).record_start(attempt, started_unix, now);
            }
            AttemptStatus::Ended(record) => {
                // A launch that was revoked for its user is not a fault of the GPU.
                if record.outcome == Outcome::NotStarted
                    && live.state != JobState::Stopping
                    && let Some(gpu) = gpu
                {
                    gpu.pause_attempts(REFUSAL_PAUSE, now);
                }
                self.attempt_changes(round).record_reported_end(node, attempt, record);
            }
        }
    }

    /// Carries out an administrator's command. A requested layout may wait until its GPU is free
    /// for it.
    fn operate(&mut self, token: u64, command: OperatorCommand, now: Millis, round: &mut Round) {
        let (overrides, inventory) = (&mut self.overrides, &mut self.inventory);
        let answer = match command {
            OperatorCommand::SetOverride { kind, on, by, reason } => {
                resolve_target(overrides, inventory, &on).map(|target| {
                    let since_unix = self.clock.unix;
                    let row = AdminOverrideRow { kind, target, by, reason, since_unix };
                    set_override(overrides, inventory, row, &mut round.overrides)
                })
            }
            OperatorCommand::ClearOverride { kind, on, by } => {
                let (epoch, cleared) = (self.guards.epoch, (kind, &on, &*by));
                let (writes, effects) = (&mut round.overrides, &mut round.effects);
                clear_override(overrides, inventory, epoch, cleared, writes, effects)
            }
            OperatorCommand::ApplyLayout(command) => {
                self.layouts.request_layout(token, command, now);
                return;
            }
            OperatorCommand::SetMigMode { gpu, on } => {
                let pending = PendingMigMode::new(token, gpu, on, now);
                let (epoch, effects) = (self.guards.epoch, &mut round.effects);
                match send_mig_mode(inventory, &mut self.layouts, epoch, pending, effects) {
                    Ok(()) => return,
                    Err(refused) => Err(refused),
                }
            }
        };
        round.answers.operators.push((token, answer));
    }
}

impl AttemptChanges<'_> {
    /// Carries out a user's command on one job. Returns `None` if only the store knows the result.
    fn command_job(
        &mut self,
        job: JobId,
        command: &JobCommand,
        now: Millis,
    ) -> Option<CommandResult> {
        if let Some(attempt) = self.attempts.by_job.get(&job).copied() {
            // A reload may have read and placed it before its announcement arrives.
            self.queue.recently_commanded.insert(job, now);
            return Some(self.command_live_job(attempt, command));
        }
        let change = match command {
            JobCommand::Cancel => WaitingJobChange::To(JobState::Cancelled),
            JobCommand::Hold => WaitingJobChange::To(JobState::Held),
            JobCommand::Release => WaitingJobChange::To(JobState::Queued),
            JobCommand::Reshare(sm) => WaitingJobChange::Share(*sm),
            JobCommand::Update(update) => WaitingJobChange::Update(update.clone()),
            // One that waits refuses it in the store.
            JobCommand::Requeue => WaitingJobChange::RunAgain,
        };
        if *command == JobCommand::Cancel {
            self.predictions.checkpoints.remove(&job);
        }
        if !matches!(command, JobCommand::Release | JobCommand::Requeue) {
            // It is queued again with the other share after the commit.
            self.queue.dequeue(job);
        }
        self.jobs.commands.push(transitions::WaitingJobCommand { job, change });
        None
    }

    fn command_live_job(&mut self, attempt: AttemptId, command: &JobCommand) -> CommandResult {
        let Some(live) = self.attempts.live.get_mut(&attempt) else {
            return CommandResult::NotFound;
        };
        if let JobCommand::Reshare(sm) = command {
            return live.reshare(attempt, *sm, &mut self.jobs.reshared);
        }
        if let JobCommand::Update(update) = command {
            return live.update(attempt, update, &mut self.jobs.updated);
        }
        if *command == JobCommand::Requeue {
            return self.requeue_live_job(attempt);
        }
        if *command != JobCommand::Cancel {
            return CommandResult::Refused { state: live.state.word().to_owned() };
        }
        for attempt in self.attempts.gang_attempts(attempt) {
            self.cancel_attempt(attempt);
        }
        CommandResult::Done
    }

    /// Stops a job's attempt, or those of its gang; its job returns to the queue if they fail. A
    /// job that has not started yet gets its signal after its start.
    fn requeue_live_job(&mut self, attempt: AttemptId) -> CommandResult {
        self.requeue_attempts(&self.attempts.gang_attempts(attempt))
    }

    /// Stops attempts, whose jobs wait again if they fail.
    pub(crate) fn requeue_attempts(&mut self, attempts: &[AttemptId]) -> CommandResult {
        for attempt in attempts {
            let Some(live) = self.attempts.live.get_mut(attempt) else { continue };
            if live.state == JobState::Stopping {
                return CommandResult::Refused { state: live.state.word().to_owned() };
            }
            live.requeue = true;
            live.sent = None;
        }
        CommandResult::Done
    }

    /// Ends attempts, as their user's cancel would.
    pub(crate) fn end_idle(&mut self, attempts: &[AttemptId]) {
        for attempt in attempts {
            self.cancel_attempt(*attempt);
        }
    }

    fn cancel_attempt(&mut self, attempt: AttemptId) {
        let Some(live) = self.attempts.live.get_mut(&attempt) else { return };
        let was = live.state;
        if was == JobState::Stopping {
            return;
        }
        live.state = JobState::Stopping;
        live.sent = None;
        self.jobs.stopping.push(transitions::StoppingAttempt { job: live.job, attempt });
        self.effects.push(RoundEffect::Moved(JobStateChange {
            job: live.job,
            attempt: Some(attempt),
            state: JobState::Stopping,
        }));
        if was == JobState::Placing {
            // No launch was ever sent, so there is no end to wait for.
            self.end_without_exit(attempt, Outcome::Cancelled, "cancelled before it started");
        }
    }
}
