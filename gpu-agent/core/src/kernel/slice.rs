//! The queue of one slice with its sessions: it handles records and returns frames.

mod records;
mod reported;

use std::collections::BTreeMap;

use tessera_frames::kernel::{PROTOCOL_WITH_GRANTS_AHEAD, SessionEnd, ShimWelcome, ToShim};
use tessera_kernel_queue::event::Join;
use tessera_kernel_queue::{
    Epoch, GateState, KernelQueue, LastLaunch, Nanos, ProfileDelta, QueueAction, QueueCounters,
    QueueEvent, QueueRefusal, QueueRules, ReportNeed, Role, SessionId, TaskKey, TaskProfile,
};
use tessera_model::AttemptId;
use tessera_model::spec::Priority;

use super::{Admission, AttemptTally};
use reported::ReportedFacts;

/// Sampling interval in launches during the sharing stage. Three outliers reveal a drift, so it is
/// detected within a few hundred launches of a kernel.
const SAMPLE_EVERY: u32 = 64;
/// Longest wait of one launch if the rules have no ageing.
const WAIT_MAX: Nanos = Nanos::from_millis(100);

/// Maximum number of base profiles from the controller: four times as many as there are tasks at
/// once. Further profiles are ignored, and their tasks are measured here.
const BASES_MAX: usize = 4 * tessera_kernel_queue::limits::TASKS_MAX;

/// An effect for the caller to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceEffect {
    /// Send a frame to a session.
    Send(SessionId, ToShim),
    /// Write the gate's epoch, before any later frame is sent.
    Gate(Epoch),
    /// End a session's connection.
    Close(SessionId, SessionEnd),
}

/// The state of a session in addition to the queue's own.
#[derive(Debug)]
struct SliceSession {
    attempt: AttemptId,
    task: TaskKey,
    /// The latest time that it reported.
    last_reported_at: Nanos,
    reported: ReportedFacts,
    tally: AttemptTally,
}

/// What outlives a bug in the queue of a slice: totals never fall, and profiles are not measured again.
#[derive(Debug, Default)]
pub struct SliceRemains {
    counters: QueueCounters,
    tallies: BTreeMap<AttemptId, AttemptTally>,
    bases: BTreeMap<TaskKey, TaskProfile>,
}

/// The queue of one slice.
#[derive(Debug)]
pub struct SliceQueue {
    queue: KernelQueue,
    /// The counters of earlier queues of the slice.
    earlier: QueueCounters,
    sessions: BTreeMap<SessionId, SliceSession>,
    /// The priorities of the attempts that were admitted and had no session yet.
    expected: BTreeMap<AttemptId, Priority>,
    /// The profiles that tasks started with: differences to them are reported.
    bases: BTreeMap<TaskKey, TaskProfile>,
    /// Tasks whose profiles may have changed.
    changed: BTreeMap<TaskKey, ()>,
    /// Totals of ended sessions, by attempt.
    past: BTreeMap<AttemptId, AttemptTally>,
    out: Vec<SliceEffect>,
    /// Reused, so that no step allocates it.
    actions: Vec<QueueAction>,
}

impl SliceQueue {
    /// Returns the queue of a slice. `gate` is the state of its page. Grants are numbered from `now`,
    /// so that no number is used twice.
    pub fn new(rules: QueueRules, gate: GateState, now: Nanos) -> Self {
        Self {
            queue: KernelQueue::resume(rules, gate, now.get()),
            earlier: QueueCounters::default(),
            sessions: BTreeMap::new(),
            expected: BTreeMap::new(),
            bases: BTreeMap::new(),
            changed: BTreeMap::new(),
            past: BTreeMap::new(),
            out: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Returns the queue of a slice whose earlier queue ended by a bug.
    pub fn after(remains: SliceRemains, rules: QueueRules, gate: GateState, now: Nanos) -> Self {
        let SliceRemains { counters, tallies, bases } = remains;
        let mut next = Self { earlier: counters, past: tallies, ..Self::new(rules, gate, now) };
        for (task, profile) in bases {
            next.add_profile(&task, profile, now);
        }
        next
    }

    /// Returns what outlives this queue, which ended by a bug. Nothing is computed from its state but sums, so they are at
    /// most one event wrong. What was learned since the last report is lost.
    pub fn into_remains(self) -> SliceRemains {
        let attempts: Vec<_> = self.sessions.values().map(|held| held.attempt).collect();
        let mut tallies = self.past.clone();
        tallies.extend(attempts.into_iter().map(|attempt| (attempt, self.tally(attempt))));
        SliceRemains { counters: self.counters(), tallies, bases: self.bases }
    }

    /// Adds the controller's profile of a task, once for each task.
    pub fn add_profile(&mut self, task: &TaskKey, profile: TaskProfile, now: Nanos) {
        if !self.bases.contains_key(task) && self.bases.len() < BASES_MAX {
            self.queue.add_profile(task, profile.clone());
            self.bases.insert(task.clone(), profile);
            let actions = self.queue.reassign(now).to_vec();
            self.add_effects(&actions, None, None);
            let reported: Vec<_> = self.sessions_of_task(task).collect();
            for session in reported {
                self.report_all_facts(session);
            }
        }
    }

    /// Records an attempt whose processes may join. Sessions of lower priority become fillers, so
    /// that they have few kernels in the device's queue when it begins.
    pub fn admit(&mut self, admission: &Admission, now: Nanos) {
        self.expected.insert(admission.attempt, admission.priority);
        self.update_expected(now);
    }

    /// Reports the expected priority to the queue.
    fn update_expected(&mut self, now: Nanos) {
        let highest = self.expected.values().min().copied();
        let actions = self.queue.set_expected(highest, now).to_vec();
        self.add_effects(&actions, None, None);
    }

    /// Returns whether the controller's profile of a task was added.
    pub fn has_profile(&self, task: &TaskKey) -> bool {
        self.bases.contains_key(task)
    }

    /// Begins a session.
    ///
    /// # Errors
    ///
    /// [`QueueRefusal::SessionsFull`].
    pub fn add_session(
        &mut self,
        session: SessionId,
        admission: &Admission,
        protocol: u16,
        now: Nanos,
    ) -> Result<ShimWelcome, QueueRefusal> {
        let join = Join {
            session,
            task: admission.task.clone(),
            priority: admission.priority,
            class: admission.class,
            share_thousandths: admission.share_thousandths,
            exclusive: admission.exclusive.then_some(admission.attempt),
        };
        if self.queue.profile(&admission.task).is_none()
            && let Some(base) = self.bases.get(&admission.task)
        {
            // The queue dropped its profile to free a slot.
            self.queue.add_profile(&admission.task, base.clone());
        }
        self.step(QueueEvent::Join(join), now, None);
        if protocol >= PROTOCOL_WITH_GRANTS_AHEAD {
            self.queue.note_gate_reader(session);
        }
        let Some(role) = self.queue.role(session) else {
            self.out.retain(|effect| !effect.is_for(session));
            return Err(QueueRefusal::SessionsFull);
        };
        self.sessions.insert(
            session,
            SliceSession {
                attempt: admission.attempt,
                task: admission.task.clone(),
                last_reported_at: Nanos::ZERO,
                reported: ReportedFacts::default(),
                tally: AttemptTally { sessions: 1, ..AttemptTally::default() },
            },
        );
        self.expected.remove(&admission.attempt);
        self.update_expected(now);
        let role = self.queue.role(session).unwrap_or(role);
        // The welcome contains its role.
        self.out.retain(|effect| !effect.is_for(session));
        Ok(self.welcome(session, role, admission, protocol))
    }

    fn welcome(
        &self,
        session: SessionId,
        role: Role,
        who: &Admission,
        protocol: u16,
    ) -> ShimWelcome {
        let rules = self.queue.rules();
        ShimWelcome {
            protocol,
            session: session.get(),
            role,
            in_flight: rules.in_flight,
            wait_max: rules.ageing.map_or(WAIT_MAX, |ageing| ageing.wait_max),
            ages_after: rules.ageing.map_or(Nanos::MAX, |ageing| {
                tessera_kernel_queue::admission::waiting_threshold(
                    ageing.duration,
                    who.share_thousandths,
                )
            }),
            silence_max: rules.session_lease,
            sample_every: SAMPLE_EVERY,
        }
    }

    /// Records that the thread of a session has raised priority.
    pub fn note_raised(&mut self, session: SessionId) {
        if let Some(session_state) = self.sessions.get_mut(&session) {
            session_state.tally.raised = 1;
        }
    }

    /// Ends a session.
    pub fn remove_session(&mut self, session: SessionId, now: Nanos) {
        self.close_session(session);
        if self.queue.role(session).is_some() {
            self.step(QueueEvent::Leave { session }, now, None);
        }
        self.out.retain(|effect| !effect.is_for(session));
    }

    /// Handles the passage of time.
    pub fn tick(&mut self, now: Nanos) {
        self.step(QueueEvent::Tick, now, None);
    }

    /// Returns when to call [`Self::tick`], if no record comes first.
    pub fn deadline(&self) -> Nanos {
        self.queue.deadline()
    }

    /// Moves the effects to `into`, in order.
    pub fn take_effects(&mut self, into: &mut Vec<SliceEffect>) {
        into.append(&mut self.out);
    }

    /// Returns whether [`Self::take_learned`] may return anything.
    pub fn has_news(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the number of waiting launches.
    pub fn waiting(&self) -> usize {
        self.queue.waiting().iter().count()
    }

    /// Notes what the gate page shows now.
    pub fn observe(&mut self, last: LastLaunch) {
        self.queue.observe(last);
    }

    /// Returns when the next report of the holder is needed.
    pub fn report_need(&self) -> ReportNeed {
        self.queue.report_need()
    }

    /// Returns the sessions of holders.
    pub fn holders(&self) -> impl Iterator<Item = SessionId> {
        let holders = self.queue.sessions().filter(|(_, role)| role.is_holder());
        holders.map(|(session, _)| session)
    }

    /// Returns the sessions in which a launch may be waiting. They need heartbeats from the queue.
    pub fn blocked_sessions(&self) -> impl Iterator<Item = SessionId> {
        self.queue.blocked_sessions()
    }

    /// Returns whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Returns the sessions of an attempt.
    pub fn sessions_of(&self, attempt: AttemptId) -> Vec<SessionId> {
        let mine =
            self.sessions.iter().filter(|(_, session_state)| session_state.attempt == attempt);
        mine.map(|(session, _)| *session).collect()
    }

    /// Adopts the page's count of launches, which has not changed for longer than a message takes.
    pub fn set_launch_count(&mut self, launches: u64) {
        if self.queue.gate().launches != launches {
            self.queue.set_launch_count(launches);
        }
    }

    /// Returns the slice's counters.
    pub fn counters(&self) -> QueueCounters {
        let mut all = self.earlier;
        all.add(self.queue.counters());
        all
    }

    /// Returns the least progress of the fillers, in thousandths: see
    /// [`tessera_kernel_queue::QueueCounters::progress_thousandths`].
    pub fn least_progress(&self) -> Option<u64> {
        let fillers = self.queue.sessions().filter(|(_, role)| *role == Role::Fill);
        fillers
            .filter_map(|(session, _)| self.queue.session_counters(session)?.progress_thousandths())
            .min()
    }

    /// Returns the number of sessions by role: measure, free, hold, fill.
    pub fn roles(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for (_, role) in self.queue.sessions() {
            let at = match role {
                Role::Measure => 0,
                Role::Free => 1,
                Role::Hold => 2,
                Role::Fill => 3,
            };
            counts[at] += 1;
        }
        counts
    }

    /// Returns the totals of an attempt so far.
    pub fn tally(&self, attempt: AttemptId) -> AttemptTally {
        let mut sum = self.past.get(&attempt).copied().unwrap_or_default();
        for (session, session_state) in self.sessions.iter().filter(|(_, m)| m.attempt == attempt) {
            sum.add(&self.tally_of(*session, session_state));
        }
        sum
    }

    /// Removes an ended attempt, and returns its totals.
    pub fn remove_attempt(&mut self, attempt: AttemptId, now: Nanos) -> AttemptTally {
        let tally = self.tally(attempt);
        self.past.remove(&attempt);
        self.expected.remove(&attempt);
        self.update_expected(now);
        tally
    }

    /// Returns the changes of the task profiles since the last call.
    ///
    /// A task's profile is reported after its measuring stage, after a new measurement of a kernel,
    /// and when a session ends.
    pub fn take_learned(&mut self) -> Vec<(TaskKey, ProfileDelta)> {
        let mut reported = Vec::new();
        for (task, ()) in std::mem::take(&mut self.changed) {
            let Some(now) = self.queue.profile(&task) else { continue };
            let base = self.bases.entry(task.clone()).or_default();
            let learned = ProfileDelta::between(base, now);
            if !learned.is_empty() {
                base.clone_from(now);
                reported.push((task, learned));
            }
        }
        reported
    }

    fn sessions_of_task(&self, task: &TaskKey) -> impl Iterator<Item = SessionId> {
        let mine =
            self.sessions.iter().filter(move |(_, session_state)| session_state.task == *task);
        mine.map(|(session, _)| *session)
    }

    fn tally_of(&self, session: SessionId, session_state: &SliceSession) -> AttemptTally {
        let counters = self.queue.session_counters(session).copied().unwrap_or_default();
        AttemptTally { counters, ..session_state.tally }
    }

    /// Adds the totals of a session that ends to those of its attempt.
    fn close_session(&mut self, session: SessionId) {
        let Some(session_state) = self.sessions.get(&session) else { return };
        let (attempt, tally) = (session_state.attempt, self.tally_of(session, session_state));
        self.past.entry(attempt).or_default().add(&tally);
        self.changed.insert(session_state.task.clone(), ());
        self.sessions.remove(&session);
    }

    /// Passes an event to the queue and turns its actions into effects. A refusal concerns
    /// `launch`.
    fn step(&mut self, event: QueueEvent, now: Nanos, launch: Option<u64>) {
        self.note(event, (now, now), launch);
        self.decide();
    }

    /// The same without giving grants, for an event that happened at the first time and is known since the second.
    fn note(&mut self, event: QueueEvent, (at, now): (Nanos, Nanos), launch: Option<u64>) {
        let by = event.session();
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        actions.extend_from_slice(self.queue.note(event, at, now));
        self.add_effects(&actions, by, launch);
        self.actions = actions;
    }

    /// Gives what can be granted.
    fn decide(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        actions.extend_from_slice(self.queue.decide());
        self.add_effects(&actions, None, None);
        self.actions = actions;
    }

    /// Turns the queue's actions into effects.
    fn add_effects(&mut self, actions: &[QueueAction], by: Option<SessionId>, launch: Option<u64>) {
        let mut dropped = Vec::new();
        let mut measured = Vec::new();
        for action in actions {
            let effect = match *action {
                QueueAction::Role { session, role } => {
                    SliceEffect::Send(session, ToShim::Role(role))
                }
                QueueAction::Gate { epoch } => SliceEffect::Gate(epoch),
                QueueAction::Grant { session, grant } => {
                    SliceEffect::Send(session, ToShim::Grant(grant))
                }
                QueueAction::GrantAhead { session, grant, opening } => {
                    SliceEffect::Send(session, ToShim::GrantAhead { grant, opening })
                }
                QueueAction::Revoke { session, grant } => {
                    SliceEffect::Send(session, ToShim::Revoke { grant })
                }
                QueueAction::Recall { session, at, launches } => {
                    SliceEffect::Send(session, ToShim::Recall { at, launches })
                }
                QueueAction::Dropped { session } => {
                    dropped.push(session);
                    SliceEffect::Close(session, SessionEnd::Silent)
                }
                QueueAction::Refuse { session, why } => {
                    let launch = launch.filter(|_| by == Some(session));
                    SliceEffect::Send(session, ToShim::Refused { why, launch })
                }
                QueueAction::Predicted { session, kernel } => {
                    self.report_facts(session, kernel);
                    continue;
                }
                QueueAction::Measured { session } | QueueAction::Remeasure { session, .. } => {
                    measured.push(session);
                    continue;
                }
                // `define_kernel` answers the definition.
                QueueAction::Defined { .. } => continue,
            };
            self.out.push(effect);
        }
        for session in dropped {
            self.close_session(session);
        }
        for session in measured {
            if let Some(session_state) = self.sessions.get(&session) {
                self.changed.insert(session_state.task.clone(), ());
            }
        }
    }
}

impl SliceEffect {
    fn is_for(&self, session: SessionId) -> bool {
        match self {
            Self::Send(receiver, _) | Self::Close(receiver, _) => *receiver == session,
            Self::Gate(_) => false,
        }
    }
}
