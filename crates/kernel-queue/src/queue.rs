//! One slice's queue as a state machine: an event and a time in, actions out.
//!
//! The holders are all sessions of the highest priority present. Holders launch freely, and the queue orders
//! none of their launches (FIKIT §3.3, case C, orders them by arrival): that would need a grant for each. The device
//! decides between them. A gap begins when all of them are idle. All other sessions are fillers. A new session of higher priority becomes the holder at once. Kernels of
//! the previous holder in the device's queue run to their end, and its next kernel is withheld
//! (case A).

mod ageing;
mod ahead;
mod colocation;
mod delays;
mod equals;
mod gaps;
mod grants;
mod launches;
mod learning;
mod reports;
mod roles;
mod session;

use tessera_model::spec::Priority;

use crate::action::{QueueAction, QueueRefusal, Role};
use crate::counters::QueueCounters;
use crate::event::{Join, QueueEvent};
use crate::ids::{KernelId, SessionId, TaskKey};
use crate::lease::{GateState, LastLaunch};
use crate::limits::{ACTIONS_MAX, RUNNING_MAX, SESSIONS_MAX, TASKS_MAX};
use crate::loss::LossBudget;
use crate::profile::TaskProfile;
use crate::rules::QueueRules;
use crate::time::Nanos;
use crate::waiting::WaitingLaunches;
pub use reports::ReportNeed;

use ageing::AgeingState;
use launches::RunningKernel;
use session::{QueueSession, SliceOwner};

/// A task and its profile.
#[derive(Clone, Debug)]
struct QueueTask {
    key: TaskKey,
    profile: TaskProfile,
}

/// The queue of one slice.
#[derive(Clone, Debug)]
pub struct KernelQueue {
    rules: QueueRules,
    /// Never decreases, even if the caller's clock does.
    now: Nanos,
    /// When the event that is handled happened. Its report took some time, so this may be earlier than `now`.
    at: Nanos,
    sessions: Vec<QueueSession>,
    tasks: Vec<QueueTask>,
    waiting: WaitingLaunches,
    /// Filler kernels in flight; with co-location, also those of holders.
    running: Vec<RunningKernel>,
    /// When all launched kernels should have ended.
    tail: Nanos,
    /// Kernel time that holders launched, in which MMK measures waits.
    served: Nanos,
    /// The last state of the gate that the queue knows.
    gate: GateState,
    /// What the gate page showed last.
    seen: LastLaunch,
    grants: u64,
    ageing: AgeingState,
    /// The budget of holders' time for filling gaps.
    fills: LossBudget,
    /// The gate's launches that began the last gap whose grant was given ahead and used.
    entered_at: u64,
    /// How long after a gap's grant its first kernel is launched: a moving mean.
    entry_delay: Nanos,
    /// How long a holder waits for the switch back to it after a gap that was filled: a moving mean.
    switch_wait: Nanos,
    /// The session whose kernel ran last.
    context: Option<SessionId>,
    /// Who has the slice to itself, in exclusive mode.
    owner: Option<SliceOwner>,
    /// The holder among the sessions of the highest priority, if these alternate.
    chosen: Option<SessionId>,
    /// The highest priority of the attempts that were admitted and have no session yet.
    expected: Option<Priority>,
    /// No grant or session expires before this.
    next_expiry: Nanos,
    /// When to check a gap again into which no launch fitted.
    next_look: Nanos,
    counters: QueueCounters,
    actions: Vec<QueueAction>,
}

impl KernelQueue {
    /// Returns the queue of an empty slice.
    pub fn new(rules: QueueRules) -> Self {
        Self {
            rules,
            now: Nanos::ZERO,
            sessions: Vec::with_capacity(SESSIONS_MAX),
            tasks: Vec::with_capacity(TASKS_MAX),
            waiting: WaitingLaunches::default(),
            running: Vec::with_capacity(RUNNING_MAX),
            tail: Nanos::ZERO,
            served: Nanos::ZERO,
            gate: GateState::default(),
            seen: LastLaunch::default(),
            grants: 0,
            ageing: AgeingState::default(),
            fills: LossBudget::full(Self::fills_saved_max(&rules)),
            entered_at: 0,
            entry_delay: Nanos::ZERO,
            switch_wait: rules.switch,
            context: None,
            owner: None,
            chosen: None,
            expected: None,
            at: Nanos::ZERO,
            next_expiry: Nanos::MAX,
            next_look: Nanos::MAX,
            counters: QueueCounters::default(),
            actions: Vec::with_capacity(ACTIONS_MAX),
        }
    }

    /// Returns a queue that continues an earlier queue of the slice.
    ///
    /// `gate` is what the sessions see. Grants are numbered above `grants`, so that none is
    /// mistaken for a grant of the earlier queue.
    pub fn resume(rules: QueueRules, gate: GateState, grants: u64) -> Self {
        Self { gate, grants, ..Self::new(rules) }
    }

    /// Sets the number of launches to the count on the gate page.
    ///
    /// Otherwise a holder that died between its count and its message would end every later grant.
    /// Call this when the count has not changed for longer than a message takes.
    pub fn set_launch_count(&mut self, launches: u64) {
        self.gate.launches = launches;
        if self.seen.count > launches {
            self.seen = LastLaunch::default();
        }
        // A new page counts from zero: its launches are not before a gap of the old one.
        if self.entered_at > launches {
            self.entered_at = launches;
        }
    }

    /// Notes that the process of a session shows its launches on the gate page, and waits there for those of others. Between
    /// such sessions grants are given before a gap begins.
    pub fn note_gate_reader(&mut self, session: SessionId) {
        if let Ok(at) = self.index_of(session) {
            self.sessions[at].reads_gate = true;
        }
    }

    /// Returns the gate state that new grants carry.
    pub const fn gate(&self) -> GateState {
        self.gate
    }

    /// Merges a profile of a task into the one that this queue has learned.
    ///
    /// The profile's kernels keep their indexes only if no session of the task has defined kernels
    /// yet. Afterwards the profile is merged into the existing kernels.
    pub fn add_profile(&mut self, key: &TaskKey, profile: TaskProfile) {
        match self.tasks.iter_mut().find(|task| task.key == *key) {
            Some(task) => task.profile.merge(&profile),
            None => {
                self.free_place_for_task();
                if self.tasks.len() < TASKS_MAX {
                    self.tasks.push(QueueTask { key: key.clone(), profile });
                }
            }
        }
    }

    /// Returns the profile of a task.
    pub fn profile(&self, key: &TaskKey) -> Option<&TaskProfile> {
        self.tasks.iter().find(|task| task.key == *key).map(|task| &task.profile)
    }

    /// Handles one event at `now` and returns the actions to carry out, in order.
    ///
    /// If the clock went back, the latest earlier time is used.
    pub fn step(&mut self, event: QueueEvent, now: Nanos) -> &[QueueAction] {
        self.note(event, now, now);
        self.grant_what_fits();
        &self.actions
    }

    /// Handles an event that happened at `at` and is known since `now`, without giving grants. Returns the actions to
    /// carry out, in order. After the last of several events, [`Self::decide`] must follow.
    pub fn note(&mut self, event: QueueEvent, at: Nanos, now: Nanos) -> &[QueueAction] {
        self.actions.clear();
        self.now = self.now.max(now);
        self.at = at.min(self.now);
        self.credit_ageing();
        self.credit_fills();
        if self.now >= self.next_expiry {
            self.end_overdue();
        }
        if let Err((session, why)) = self.handle_event(event) {
            self.actions.push(QueueAction::Refuse { session, why });
        }
        &self.actions
    }

    /// Gives all grants that can be given now, and returns the actions to carry out, in order.
    pub fn decide(&mut self) -> &[QueueAction] {
        self.actions.clear();
        self.grant_what_fits();
        &self.actions
    }

    /// Assigns roles again after [`Self::add_profile`]: a measured task needs no measuring stage.
    pub fn reassign(&mut self, now: Nanos) -> &[QueueAction] {
        self.actions.clear();
        self.now = self.now.max(now);
        self.assign_roles();
        self.grant_what_fits();
        &self.actions
    }

    /// Sets the highest priority of the attempts that were admitted and have no session yet.
    ///
    /// Sessions below it are fillers already. So a program that is alone has only
    /// [`QueueRules::in_flight_while_expected`] kernels in the device's queue when the expected
    /// program begins. Without this, all kernels that it launched ahead would be in that queue (the
    /// window of XSched §4).
    pub fn set_expected(&mut self, expected: Option<Priority>, now: Nanos) -> &[QueueAction] {
        self.actions.clear();
        self.now = self.now.max(now);
        if std::mem::replace(&mut self.expected, expected) != expected {
            self.assign_roles();
            self.grant_what_fits();
        }
        &self.actions
    }

    /// Returns when to send [`QueueEvent::Tick`], if no other event comes first.
    pub fn deadline(&self) -> Nanos {
        self.next_expiry.min(self.next_look)
    }

    /// Returns the rules.
    pub const fn rules(&self) -> &QueueRules {
        &self.rules
    }

    /// Returns the slice's counters.
    pub const fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Returns a session's counters.
    pub fn session_counters(&self, session: SessionId) -> Option<&QueueCounters> {
        Some(&self.sessions[self.index_of(session).ok()?].counters)
    }

    /// Returns a session's role.
    pub fn role(&self, session: SessionId) -> Option<Role> {
        Some(self.sessions[self.index_of(session).ok()?].role)
    }

    /// Returns the sessions with their roles, in the order of joining.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, Role)> {
        self.sessions.iter().map(|session| (session.id, session.role))
    }

    /// Returns the remaining budget of the current gap grants.
    pub fn granted_gap_time(&self) -> Nanos {
        self.sessions
            .iter()
            .filter_map(|session| session.lease)
            .filter(|lease| lease.grant.kind.ends_with_gap())
            .fold(Nanos::ZERO, |sum, lease| sum.plus(lease.left()))
    }

    /// Returns the waiting launches, highest priority first.
    pub const fn waiting(&self) -> &WaitingLaunches {
        &self.waiting
    }

    /// Returns the sessions in which a thread may be blocked: it waits for a grant, for the start
    /// of its grant, or for a kernel in flight.
    pub fn blocked_sessions(&self) -> impl Iterator<Item = SessionId> {
        let waits = |id: SessionId| self.waiting.iter().any(|(_, request)| request.session == id);
        let held = self
            .sessions
            .iter()
            .filter(move |session| session.lease.is_some() || waits(session.id));
        held.map(|session| session.id)
    }

    fn handle_event(&mut self, event: QueueEvent) -> Result<(), (SessionId, QueueRefusal)> {
        let join = match event {
            QueueEvent::Tick => return Ok(()),
            QueueEvent::Join(join) => join,
            event => return self.handle_session_event(event),
        };
        let session = join.session;
        self.add_session(join).map_err(|why| (session, why))
    }

    fn handle_session_event(&mut self, event: QueueEvent) -> Result<(), (SessionId, QueueRefusal)> {
        let Some(session) = event.session() else { return Ok(()) };
        let at = self.index_of(session).map_err(|why| (session, why))?;
        self.sessions[at].alive_until = self.now.plus(self.rules.session_lease);
        match event {
            QueueEvent::Leave { .. } => self.remove_session(at),
            QueueEvent::Define { kernel, .. } => {
                self.define_kernel(at, &kernel).map_err(|why| (session, why))?;
            }
            QueueEvent::Need { kernel, need, .. } => self.on_need(at, kernel, need),
            QueueEvent::Streams { streams, .. } => self.sessions[at].streams = streams,
            QueueEvent::Launch { launch, kernel, count, .. } => {
                self.on_launch(at, kernel, (launch, count));
            }
            QueueEvent::Request { launch, kernel, beyond, .. } => {
                self.on_request(at, kernel, (launch, beyond)).map_err(|why| (session, why))?;
            }
            QueueEvent::Started { launch, kernel, grant, .. } => {
                self.on_filler_launch(at, kernel, (launch, Some(grant)));
            }
            QueueEvent::Done { .. } => self.on_kernel_end(at),
            QueueEvent::Sync { returns, .. } => self.on_sync(at, returns),
            QueueEvent::Recalled { .. } => self.on_recalled(at),
            QueueEvent::Sample { sample, .. } => self.on_sample(at, sample),
            QueueEvent::Alive { .. } | QueueEvent::Join(_) | QueueEvent::Tick => {}
        }
        Ok(())
    }

    fn add_session(&mut self, join: Join) -> Result<(), QueueRefusal> {
        if self.index_of(join.session).is_ok() {
            return Err(QueueRefusal::SessionTwice);
        }
        if self.sessions.len() == SESSIONS_MAX {
            return Err(QueueRefusal::SessionsFull);
        }
        self.add_profile(&join.task, TaskProfile::default());
        let task = self.tasks.iter().position(|task| task.key == join.task);
        let task = task.ok_or(QueueRefusal::SessionsFull)?;
        let alive_until = self.now.plus(self.rules.session_lease);
        self.sessions.push(QueueSession::new(&join, task, self.now, alive_until));
        self.next_expiry = self.next_expiry.min(alive_until);
        self.assign_roles();
        Ok(())
    }

    /// Removes a task without sessions if the table of tasks is full.
    fn free_place_for_task(&mut self) {
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

    fn define_kernel(&mut self, at: usize, kernel: &KernelId) -> Result<(), QueueRefusal> {
        let task = self.sessions[at].task;
        let index =
            self.tasks[task].profile.admit(kernel).map_err(|_| QueueRefusal::KernelsFull)?;
        self.actions.push(QueueAction::Defined { session: self.sessions[at].id, kernel: index });
        Ok(())
    }

    fn remove_session(&mut self, at: usize) {
        if self.sessions[at].lease.is_some_and(|lease| lease.grant.kind.ends_with_gap()) {
            // The process may outlive its connection: the gate ends its grant.
            self.end_gap_leases();
        }
        self.end_lease(at, false);
        let session = self.sessions.remove(at);
        self.waiting.remove_session(session.id);
        // Its kernels in flight still run, but their ends are not reported: `tail` covers them.
        while let Some(index) = self.running.iter().position(|run| run.session == session.id) {
            self.remove_running(index);
        }
        let owner = self.owner;
        self.owner = owner.filter(|owner| self.sessions.iter().any(|other| owner.is(other)));
        self.assign_roles();
    }

    fn index_of(&self, session: SessionId) -> Result<usize, QueueRefusal> {
        self.sessions.iter().position(|held| held.id == session).ok_or(QueueRefusal::UnknownSession)
    }
}
