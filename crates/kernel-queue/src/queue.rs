//! One slice's queue as a state machine: an event and a time in, actions out.
//!
//! Who holds: every session of the highest priority that is there. Holders launch freely, so
//! sessions of equal priority interleave in the order of their launches (FIKIT §3.3, case C). All
//! others ask. A newcomer of higher priority takes over at once: what its predecessor has in the
//! device's queue runs on, its next kernel is withheld (case A).

mod ageing;
mod beside;
mod gaps;
mod grants;
mod launches;
mod roles;
mod session;

use crate::action::{Action, Refusal, Role};
use crate::admission::{Need, Occupancy};
use crate::counters::Counters;
use crate::event::{Event, Join};
use crate::ids::{KernelId, SessionId, TaskKey};
use crate::lease::Gate;
use crate::limits::{ACTIONS_MAX, RUNNING_MAX, SESSIONS_MAX, TASKS_MAX};
use crate::measure::{Recorded, Sample};
use crate::profile::TaskProfile;
use crate::rules::{Rules, Sharing};
use crate::time::Nanos;
use crate::waiting::Waiting;
use ageing::Valve;
use launches::Running;
use session::Session;

/// A task and what is known of it.
#[derive(Clone, Debug)]
struct Task {
    key: TaskKey,
    profile: TaskProfile,
}

/// The queue of one slice.
#[derive(Clone, Debug)]
pub struct Queue {
    rules: Rules,
    /// Never goes back, even if the caller's clock does.
    now: Nanos,
    sessions: Vec<Session>,
    tasks: Vec<Task>,
    waiting: Waiting,
    /// Kernels of fillers in flight; beside each other, of holders too.
    running: Vec<Running>,
    occupancy: Occupancy,
    /// When everything that was launched should have ended.
    tail: Nanos,
    /// Kernel time that holders launched: the clock by which MMK ages.
    served: Nanos,
    /// The gate as far as the queue knows.
    gate: Gate,
    grants: u64,
    valve: Valve,
    /// Who has the slice for itself in the exclusive mode.
    owner: Option<SessionId>,
    /// Before this nothing can have run out.
    next_expiry: Nanos,
    /// When a gap that nothing fitted should be looked at again.
    next_look: Nanos,
    counters: Counters,
    actions: Vec<Action>,
}

impl Queue {
    /// Begins with an empty slice.
    pub fn new(rules: Rules) -> Self {
        let capacity = match rules.sharing {
            Sharing::Beside { capacity } => capacity,
            Sharing::Exclusive | Sharing::Turns => Need::default(),
        };
        Self {
            rules,
            now: Nanos::ZERO,
            sessions: Vec::with_capacity(SESSIONS_MAX),
            tasks: Vec::with_capacity(TASKS_MAX),
            waiting: Waiting::default(),
            running: Vec::with_capacity(RUNNING_MAX),
            occupancy: Occupancy::new(capacity),
            tail: Nanos::ZERO,
            served: Nanos::ZERO,
            gate: Gate::default(),
            grants: 0,
            valve: Valve::default(),
            owner: None,
            next_expiry: Nanos::MAX,
            next_look: Nanos::MAX,
            counters: Counters::default(),
            actions: Vec::with_capacity(ACTIONS_MAX),
        }
    }

    /// Goes on where an earlier queue of the slice ended: with the gate that its sessions see, and
    /// numbers of grants above `grants`, so that none is taken for one of the earlier queue's.
    pub fn resume(rules: Rules, gate: Gate, grants: u64) -> Self {
        Self { gate, grants, ..Self::new(rules) }
    }

    /// Takes the page's count of launches for the truth: a holder that died between its count and
    /// its message would pass every later grant else. Call it when the count stood still for longer
    /// than a message takes.
    pub const fn count_launches(&mut self, launches: u64) {
        self.gate.launches = launches;
    }

    /// Returns the gate as grants are given with it.
    pub const fn gate(&self) -> Gate {
        self.gate
    }

    /// Brings in what is known of a task; what was learned here meanwhile is added to it.
    ///
    /// The profile's kernels keep their order, so bring it in before a session of the task
    /// defines kernels; afterwards it only adds to those that are there.
    pub fn learn(&mut self, key: &TaskKey, profile: TaskProfile) {
        match self.tasks.iter_mut().find(|task| task.key == *key) {
            Some(task) => task.profile.merge(&profile),
            None => {
                self.make_room_for_task();
                if self.tasks.len() < TASKS_MAX {
                    self.tasks.push(Task { key: key.clone(), profile });
                }
            }
        }
    }

    /// Returns what is known of a task.
    pub fn profile(&self, key: &TaskKey) -> Option<&TaskProfile> {
        self.tasks.iter().find(|task| task.key == *key).map(|task| &task.profile)
    }

    /// Takes one event at `now` and returns what to do, in order.
    ///
    /// If the clock went back, the latest time that was given counts.
    pub fn step(&mut self, event: Event, now: Nanos) -> &[Action] {
        self.actions.clear();
        self.now = self.now.max(now);
        if self.now >= self.next_expiry {
            self.expire();
        }
        if let Err((session, why)) = self.take(event) {
            self.actions.push(Action::Refuse { session, why });
        }
        self.give();
        &self.actions
    }

    /// Gives roles anew after [`Self::learn`]: a task that is known needs no measuring.
    pub fn reassign(&mut self, now: Nanos) -> &[Action] {
        self.actions.clear();
        self.now = self.now.max(now);
        self.assign_roles();
        self.give();
        &self.actions
    }

    /// Returns when to send [`Event::Tick`], if nothing else happens before.
    pub fn deadline(&self) -> Nanos {
        self.next_expiry.min(self.next_look)
    }

    /// Returns the settings.
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the slice's counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns a session's counters.
    pub fn session_counters(&self, session: SessionId) -> Option<&Counters> {
        Some(&self.sessions[self.find(session).ok()?].counters)
    }

    /// Returns a session's role.
    pub fn role(&self, session: SessionId) -> Option<Role> {
        Some(self.sessions[self.find(session).ok()?].role)
    }

    /// Returns who is there and how each may launch, in the order of joining.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, Role)> {
        self.sessions.iter().map(|session| (session.id, session.role))
    }

    /// Returns the predicted kernel time that standing grants of gaps may still spend.
    pub fn promised(&self) -> Nanos {
        self.sessions
            .iter()
            .filter_map(|session| session.lease)
            .filter(|lease| lease.grant.kind.ends_with_the_gap())
            .fold(Nanos::ZERO, |sum, lease| sum.plus(lease.left()))
    }

    /// Returns the launches that wait, highest priority first.
    pub const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Returns the sessions that a launch may wait in: for a grant, or, under one, for its
    /// beginning or for what is in flight.
    pub fn held_back(&self) -> impl Iterator<Item = SessionId> {
        let waits = |id: SessionId| self.waiting.iter().any(|(_, request)| request.session == id);
        let held = self
            .sessions
            .iter()
            .filter(move |session| session.lease.is_some() || waits(session.id));
        held.map(|session| session.id)
    }

    fn take(&mut self, event: Event) -> Result<(), (SessionId, Refusal)> {
        let join = match event {
            Event::Tick => return Ok(()),
            Event::Join(join) => join,
            event => return self.take_known(event),
        };
        let session = join.session;
        self.join(join).map_err(|why| (session, why))
    }

    fn take_known(&mut self, event: Event) -> Result<(), (SessionId, Refusal)> {
        let Some(session) = event.session() else { return Ok(()) };
        let at = self.find(session).map_err(|why| (session, why))?;
        self.sessions[at].alive_until = self.now.plus(self.rules.session_lease);
        match event {
            Event::Leave { .. } => self.leave(at),
            Event::Define { kernel, .. } => {
                self.define(at, &kernel).map_err(|why| (session, why))?;
            }
            Event::Launch { launch, kernel, count, .. } => {
                self.launched(at, kernel, (launch, count));
            }
            Event::Want { launch, kernel, beyond, .. } => {
                self.want(at, kernel, (launch, beyond)).map_err(|why| (session, why))?;
            }
            Event::Started { launch, kernel, grant, .. } => {
                self.started(at, kernel, (launch, Some(grant)));
            }
            Event::Done { .. } => self.done(at),
            Event::Sync { returns, .. } => self.synced(at, returns),
            Event::Sample { sample, .. } => self.sampled(at, sample),
            Event::Alive { .. } | Event::Join(_) | Event::Tick => {}
        }
        Ok(())
    }

    fn join(&mut self, join: Join) -> Result<(), Refusal> {
        if self.find(join.session).is_ok() {
            return Err(Refusal::SessionTwice);
        }
        if self.sessions.len() == SESSIONS_MAX {
            return Err(Refusal::SessionsFull);
        }
        self.learn(&join.task, TaskProfile::default());
        let task = self.tasks.iter().position(|task| task.key == join.task);
        let task = task.ok_or(Refusal::SessionsFull)?;
        let alive_until = self.now.plus(self.rules.session_lease);
        self.sessions.push(Session::new(&join, task, self.now, alive_until));
        self.next_expiry = self.next_expiry.min(alive_until);
        self.assign_roles();
        Ok(())
    }

    /// Frees a place for a task, if one has no session any more.
    fn make_room_for_task(&mut self) {
        if self.tasks.len() < TASKS_MAX {
            return;
        }
        let unused = (0..self.tasks.len())
            .find(|at| self.sessions.iter().all(|session| session.task != *at));
        if let Some(unused) = unused {
            self.tasks.remove(unused);
            for session in self.sessions.iter_mut().filter(|session| session.task > unused) {
                session.task -= 1;
            }
        }
    }

    fn define(&mut self, at: usize, kernel: &KernelId) -> Result<(), Refusal> {
        let task = self.sessions[at].task;
        let index = self.tasks[task].profile.intern(kernel).map_err(|_| Refusal::KernelsFull)?;
        self.actions.push(Action::Defined { session: self.sessions[at].id, kernel: index });
        Ok(())
    }

    fn sampled(&mut self, at: usize, sample: Sample) {
        let session = &mut self.sessions[at];
        let id = session.id;
        let profile = &mut self.tasks[session.task].profile;
        let recorded = session.recorder.note(profile, sample, session.role.holds());
        match recorded {
            Recorded::Noted => {}
            Recorded::Measured => {
                self.actions.push(Action::Measured { session: id });
                self.assign_roles();
            }
            Recorded::Drifted(kernel) => {
                session.counters.drifts += 1;
                self.counters.drifts += 1;
                self.actions.push(Action::Remeasure { session: id, kernel });
                self.assign_roles();
            }
        }
    }

    fn leave(&mut self, at: usize) {
        if self.sessions[at].lease.is_some_and(|lease| lease.grant.kind.ends_with_the_gap()) {
            // Its connection may be gone and its process not: the gate tells that one.
            self.end_gap_leases();
        }
        self.end_lease(at, false);
        let session = self.sessions.remove(at);
        self.waiting.forget(session.id);
        // What it has in flight still runs: `tail` knows, and nobody reports its end any more.
        while let Some(index) = self.running.iter().position(|run| run.session == session.id) {
            let run = self.running.remove(index);
            self.occupancy.give_back(run.need);
        }
        if self.owner == Some(session.id) {
            self.owner = None;
        }
        self.assign_roles();
    }

    fn find(&self, session: SessionId) -> Result<usize, Refusal> {
        self.sessions.iter().position(|held| held.id == session).ok_or(Refusal::UnknownSession)
    }
}
