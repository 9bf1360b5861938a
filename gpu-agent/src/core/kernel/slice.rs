//! One slice's queue with its sessions: records in, frames out.

mod records;
mod told;

use std::collections::BTreeMap;

use tessera_kernel_queue::event::Join;
use tessera_kernel_queue::{
    Action, Epoch, Event, Gate, Learned, Nanos, Queue, Refusal, Role, Rules, SessionId, TaskKey,
    TaskProfile,
};
use tessera_model::AttemptId;
use tessera_wire::kernel::{Ended, ToShim, Welcome};

use super::{Admission, Tally};
use told::Told;

/// One launch in so many is sampled while nothing is measured (a drift is seen after three samples
/// that are off, so within some hundred launches of a kernel).
const SAMPLE_EVERY: u32 = 64;
/// Longest wait of one launch where the rules have no ageing.
const WAIT_MAX: Nanos = Nanos::from_millis(100);

/// Tasks of which is kept what others know: four times as many as there can be at once. Beyond,
/// what comes from elsewhere is left, and tasks are measured here.
const BASES_MAX: usize = 4 * tessera_kernel_queue::limits::TASKS_MAX;

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a frame.
    Send(SessionId, ToShim),
    /// Write the gate's epoch: before any frame that comes after it here.
    Gate(Epoch),
    /// End a session's connection.
    Close(SessionId, Ended),
}

/// A session's facts beside the queue's own.
#[derive(Debug)]
struct Member {
    attempt: AttemptId,
    task: TaskKey,
    /// The latest moment that it told of.
    heard: Nanos,
    told: Told,
    tally: Tally,
}

/// The queue of one slice.
#[derive(Debug)]
pub struct SliceQueue {
    queue: Queue,
    members: BTreeMap<SessionId, Member>,
    /// What is known elsewhere of tasks that were here.
    bases: BTreeMap<TaskKey, TaskProfile>,
    /// Tasks of which this slice may know something new.
    changed: BTreeMap<TaskKey, ()>,
    /// What sessions that ended did, by attempt.
    past: BTreeMap<AttemptId, Tally>,
    out: Vec<Effect>,
    /// Kept for its memory.
    actions: Vec<Action>,
}

impl SliceQueue {
    /// Begins a slice; `gate` is what its page shows, `now` numbers what must never come twice.
    pub fn new(rules: Rules, gate: Gate, now: Nanos) -> Self {
        Self {
            queue: Queue::resume(rules, gate, now.get()),
            members: BTreeMap::new(),
            bases: BTreeMap::new(),
            changed: BTreeMap::new(),
            past: BTreeMap::new(),
            out: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Brings in what is known of a task elsewhere, once for each task.
    pub fn learn(&mut self, task: &TaskKey, profile: TaskProfile, now: Nanos) {
        if !self.bases.contains_key(task) && self.bases.len() < BASES_MAX {
            self.queue.learn(task, profile.clone());
            self.bases.insert(task.clone(), profile);
            let actions = self.queue.reassign(now).to_vec();
            self.carry(&actions, None, None);
            let told: Vec<_> = self.members_of(task).collect();
            for session in told {
                self.tell_known(session);
            }
        }
    }

    /// Tells whether what is known elsewhere of a task was brought in.
    pub fn knows(&self, task: &TaskKey) -> bool {
        self.bases.contains_key(task)
    }

    /// Lets a process in.
    ///
    /// # Errors
    ///
    /// [`Refusal::SessionsFull`].
    pub fn join(
        &mut self,
        session: SessionId,
        admission: &Admission,
        protocol: u16,
        now: Nanos,
    ) -> Result<Welcome, Refusal> {
        let join = Join {
            session,
            task: admission.task.clone(),
            priority: admission.priority,
            class: admission.class,
            share_thousandths: admission.share_thousandths,
        };
        if self.queue.profile(&admission.task).is_none()
            && let Some(base) = self.bases.get(&admission.task)
        {
            // It was here before, and had to make room.
            self.queue.learn(&admission.task, base.clone());
        }
        self.step(Event::Join(join), now, None);
        let Some(role) = self.queue.role(session) else {
            self.out.retain(|effect| !effect.is_for(session));
            return Err(Refusal::SessionsFull);
        };
        self.members.insert(
            session,
            Member {
                attempt: admission.attempt,
                task: admission.task.clone(),
                heard: Nanos::ZERO,
                told: Told::default(),
                tally: Tally { sessions: 1, ..Tally::default() },
            },
        );
        // Its role stands in the welcome.
        self.out.retain(|effect| !effect.is_for(session));
        Ok(self.welcome(session, role, admission, protocol))
    }

    fn welcome(&self, session: SessionId, role: Role, who: &Admission, protocol: u16) -> Welcome {
        let rules = self.queue.rules();
        Welcome {
            protocol,
            session: session.get(),
            role,
            in_flight: rules.in_flight,
            wait_max: rules.ageing.map_or(WAIT_MAX, |ageing| ageing.wait_max),
            ages_after: rules.ageing.map_or(Nanos::MAX, |ageing| {
                tessera_kernel_queue::admission::threshold(ageing.duration, who.share_thousandths)
            }),
            silence_max: rules.session_lease,
            sample_every: SAMPLE_EVERY,
        }
    }

    /// Lets a process go.
    pub fn leave(&mut self, session: SessionId, now: Nanos) {
        self.remember(session);
        if self.queue.role(session).is_some() {
            self.step(Event::Leave { session }, now, None);
        }
        self.out.retain(|effect| !effect.is_for(session));
    }

    /// Time passed.
    pub fn tick(&mut self, now: Nanos) {
        self.step(Event::Tick, now, None);
    }

    /// Returns when to call [`Self::tick`], if nothing else happens before.
    pub fn deadline(&self) -> Nanos {
        self.queue.deadline()
    }

    /// Takes what is to be done outside, in order.
    pub fn take_effects(&mut self, into: &mut Vec<Effect>) {
        into.append(&mut self.out);
    }

    /// Tells whether there may be something for [`Self::take_learned`].
    pub fn has_news(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns how many launches wait.
    pub fn waiting(&self) -> usize {
        self.queue.waiting().iter().count()
    }

    /// Returns the sessions that a launch may wait in, for a grant or under one: they have to hear
    /// that the queue lives.
    pub fn held_back(&self) -> impl Iterator<Item = SessionId> {
        self.queue.held_back()
    }

    /// Tells whether nobody is there.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the sessions of an attempt.
    pub fn sessions_of(&self, attempt: AttemptId) -> Vec<SessionId> {
        let mine = self.members.iter().filter(|(_, member)| member.attempt == attempt);
        mine.map(|(session, _)| *session).collect()
    }

    /// Takes the page's count of launches, which stood still for longer than a message takes.
    pub fn count_launches(&mut self, launches: u64) {
        if self.queue.gate().launches != launches {
            self.queue.count_launches(launches);
        }
    }

    /// Returns the slice's counters.
    pub const fn counters(&self) -> &tessera_kernel_queue::Counters {
        self.queue.counters()
    }

    /// Returns the least progress of those that ask, in thousandths: see
    /// [`tessera_kernel_queue::Counters::progress_thousandths`].
    pub fn least_progress(&self) -> Option<u64> {
        let asks = self.queue.sessions().filter(|(_, role)| *role == Role::Ask);
        asks.filter_map(|(session, _)| self.queue.session_counters(session)?.progress_thousandths())
            .min()
    }

    /// Returns how many sessions have each role: measure, free, hold, ask.
    pub fn roles(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for (_, role) in self.queue.sessions() {
            let at = match role {
                Role::Measure => 0,
                Role::Free => 1,
                Role::Hold => 2,
                Role::Ask => 3,
            };
            counts[at] += 1;
        }
        counts
    }

    /// Returns what an attempt did so far.
    pub fn tally(&self, attempt: AttemptId) -> Tally {
        let mut sum = self.past.get(&attempt).copied().unwrap_or_default();
        for (session, member) in self.members.iter().filter(|(_, m)| m.attempt == attempt) {
            sum.add(&self.tally_of(*session, member));
        }
        sum
    }

    /// Forgets an attempt that is over; returns what it did.
    pub fn forget(&mut self, attempt: AttemptId) -> Tally {
        let tally = self.tally(attempt);
        self.past.remove(&attempt);
        tally
    }

    /// Returns what this slice learned of its tasks since the last call: each to be told once.
    ///
    /// A task is told of once its measuring is over, and when its last session leaves.
    pub fn take_learned(&mut self) -> Vec<(TaskKey, Learned)> {
        let mut told = Vec::new();
        for (task, ()) in std::mem::take(&mut self.changed) {
            let Some(now) = self.queue.profile(&task) else { continue };
            let base = self.bases.entry(task.clone()).or_default();
            let learned = Learned::between(base, now);
            if !learned.is_empty() {
                base.clone_from(now);
                told.push((task, learned));
            }
        }
        told
    }

    fn members_of(&self, task: &TaskKey) -> impl Iterator<Item = SessionId> {
        let mine = self.members.iter().filter(move |(_, member)| member.task == *task);
        mine.map(|(session, _)| *session)
    }

    fn tally_of(&self, session: SessionId, member: &Member) -> Tally {
        let counters = self.queue.session_counters(session).copied().unwrap_or_default();
        Tally { counters, ..member.tally }
    }

    /// Keeps what a session did beyond its end.
    fn remember(&mut self, session: SessionId) {
        let Some(member) = self.members.get(&session) else { return };
        let (attempt, tally) = (member.attempt, self.tally_of(session, member));
        self.past.entry(attempt).or_default().add(&tally);
        self.changed.insert(member.task.clone(), ());
        self.members.remove(&session);
    }

    /// Has the queue take an event, and turns what it wants done into effects. `launch` is what a
    /// refusal is about.
    fn step(&mut self, event: Event, now: Nanos, launch: Option<u64>) {
        let by = event.session();
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        actions.extend_from_slice(self.queue.step(event, now));
        self.carry(&actions, by, launch);
        self.actions = actions;
    }

    /// Turns what the queue wants done into effects.
    fn carry(&mut self, actions: &[Action], by: Option<SessionId>, launch: Option<u64>) {
        let mut dropped = Vec::new();
        let mut measured = Vec::new();
        for action in actions {
            let effect = match *action {
                Action::Role { session, role } => Effect::Send(session, ToShim::Role(role)),
                Action::Gate { epoch } => Effect::Gate(epoch),
                Action::Grant { session, grant } => Effect::Send(session, ToShim::Grant(grant)),
                Action::Revoke { session, grant } => {
                    Effect::Send(session, ToShim::Revoke { grant })
                }
                Action::Dropped { session } => {
                    dropped.push(session);
                    Effect::Close(session, Ended::Silent)
                }
                Action::Refuse { session, why } => {
                    let launch = launch.filter(|_| by == Some(session));
                    Effect::Send(session, ToShim::Refused { why, launch })
                }
                Action::Measured { session } | Action::Remeasure { session, .. } => {
                    measured.push(session);
                    continue;
                }
                // Answered where the definition came in.
                Action::Defined { .. } => continue,
            };
            self.out.push(effect);
        }
        for session in dropped {
            self.remember(session);
        }
        for session in measured {
            if let Some(member) = self.members.get(&session) {
                self.changed.insert(member.task.clone(), ());
            }
        }
    }
}

impl Effect {
    fn is_for(&self, session: SessionId) -> bool {
        match self {
            Self::Send(whom, _) | Self::Close(whom, _) => *whom == session,
            Self::Gate(_) => false,
        }
    }
}
