//! Sessions with correct clients, a queue, and messages that are delivered at random times.
//! Every law is an assertion where it could be violated.

use std::collections::VecDeque;

use proptest::prelude::*;
use tessera_kernel_queue::limits::ACTIONS_MAX;
use tessera_kernel_queue::waiting::LaunchRequest;
use tessera_kernel_queue::{
    Dims, GapPredictor, GateState, Grant, GrantBudget, GrantKind, GrantSize, Join, KernelId,
    KernelIndex, KernelQueue, LastLaunch, LaunchDecision, Nanos, QueueAction, QueueEvent,
    QueueRules, ReportNeed, Role, SessionId, TaskKey, TaskProfile,
};
use tessera_model::spec::{Class, Priority};

/// Kernel times in microseconds, and the gap after each. The last is unknown.
const KERNELS: [(u64, u64); 6] = [(20, 0), (50, 400), (90, 2_000), (90, 150), (1_500, 90), (0, 0)];

/// What a program that repeats itself launches.
const TASK: [u16; 7] = [0, 1, 0, 2, 3, 0, 4];

/// One action of a session, after a pause.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    what: u8,
    who: usize,
    kernel: u16,
    pause: Nanos,
}

impl Op {
    pub fn any() -> impl Strategy<Value = Self> {
        let pause = prop_oneof![4 => 0_u64..300, 1 => 0_u64..30_000];
        (0_u8..20, 0_usize..8, 0_u16..6, pause).prop_map(|(what, who, kernel, pause)| Self {
            what,
            who,
            kernel,
            pause: Nanos::from_micros(pause),
        })
    }
}

/// A kernel in flight.
#[derive(Clone, Copy)]
struct LaunchedKernel {
    at: Nanos,
    /// Whether the queue took it for a filler's. A grant may be spent while its end is still on the way, and meet a
    /// session that holds the slice by then. If that session becomes a filler again, the kernel stays a holder's.
    is_filler: bool,
}

struct Client {
    id: SessionId,
    priority: Priority,
    role: Role,
    budget: GrantBudget,
    inbox: VecDeque<QueueAction>,
    /// The launch that its thread is blocked in.
    blocked: Option<(u64, u16)>,
    requested: bool,
    /// The kernels whose end it has not observed.
    in_flight: VecDeque<LaunchedKernel>,
    launches: u64,
    /// Launches as a holder that it has not reported, with their times.
    unreported: VecDeque<(QueueEvent, Nanos)>,
    /// Whether it stopped silently and takes no more actions.
    dead: bool,
}

pub struct Harness {
    queue: KernelQueue,
    rules: QueueRules,
    now: Nanos,
    gate: GateState,
    /// What the page shows of the last launch of a holder.
    last: LastLaunch,
    /// Whether each holder repeats one task.
    repeats: bool,
    clients: Vec<Client>,
    next: u64,
    profile: TaskProfile,
    /// The session that launched last: the device has its context.
    context: Option<SessionId>,
    /// The number of holders' launches so far, and for each valid grant their number when it was
    /// given.
    returns: u64,
    given: Vec<(u64, u64)>,
}

impl Harness {
    pub fn new(rules: QueueRules) -> Self {
        let mut profile = TaskProfile::default();
        for (number, (took, gap)) in KERNELS.into_iter().enumerate() {
            let id = KernelId::new(format!("k{number}"), Dims([1; 3]), Dims([1; 3])).unwrap();
            let index = profile.intern(&id).unwrap();
            for _ in 0..20 {
                let kernel = profile.kernel_mut(index).unwrap();
                if took > 0 {
                    kernel.took.add(Nanos::from_micros(took));
                    kernel.gap.add(Nanos::from_micros(gap));
                    profile.pairs.add(None, index, Nanos::from_micros(gap));
                }
            }
        }
        profile.close_measuring();
        Self {
            queue: KernelQueue::new(rules),
            rules,
            now: Nanos::ZERO,
            gate: GateState::default(),
            last: LastLaunch::default(),
            repeats: false,
            clients: Vec::new(),
            next: 1,
            profile,
            context: None,
            returns: 0,
            given: Vec::new(),
        }
    }

    /// Returns a slice whose holders repeat one task. One has done so for a while, and a filler waits.
    pub fn repeating(rules: QueueRules) -> Self {
        let mut harness = Self { repeats: true, ..Self::new(rules) };
        harness.join(0);
        harness.join(1);
        (0..2).for_each(|at| {
            while !harness.clients[at].inbox.is_empty() {
                harness.deliver(at);
            }
        });
        for _ in 0..20 * TASK.len() {
            let at = harness.clients[0].launches;
            harness.launch(0, 0);
            let (took, gap) = KERNELS[usize::from(TASK[usize::try_from(at).unwrap() % TASK.len()])];
            harness.now = harness.now.plus(Nanos::from_micros(took + gap));
        }
        harness
    }

    pub fn apply(&mut self, op: Op) {
        let until = self.now.plus(op.pause);
        while self.queue.deadline() < until {
            self.now = self.now.max(self.queue.deadline());
            self.step(QueueEvent::Tick);
            assert!(self.queue.deadline() > self.now, "a tick settles everything that was due");
        }
        self.now = until;
        let living: Vec<usize> =
            (0..self.clients.len()).filter(|at| !self.clients[*at].dead).collect();
        if living.is_empty() || (op.what == 0 && self.clients.len() < 8) {
            self.join(op.kernel);
            return;
        }
        let at = living[op.who % living.len()];
        let session = self.clients[at].id;
        match op.what {
            0 => self.step(QueueEvent::Alive { session }),
            1 => self.leave(at),
            2 => self.clients[at].dead = true,
            3..=6 => self.deliver(at),
            7 | 8 => self.done(at),
            9 => self.sync(at),
            10 => self.report(at),
            _ => self.launch(at, op.kernel),
        }
    }

    fn join(&mut self, number: u16) {
        let id = SessionId::new(self.next);
        self.next += 1;
        let priority = Priority::try_from(u8::try_from(number % 4).unwrap()).unwrap();
        let task = TaskKey::new(format!("task {}", id.get())).unwrap();
        self.queue.add_profile(&task, self.profile.clone());
        self.clients.push(Client {
            id,
            priority,
            role: Role::Fill,
            budget: GrantBudget::default(),
            inbox: VecDeque::new(),
            blocked: None,
            requested: false,
            in_flight: VecDeque::new(),
            launches: 0,
            unreported: VecDeque::new(),
            dead: false,
        });
        let class = Class::Offline;
        let join =
            Join { session: id, task, priority, class, share_thousandths: 500, exclusive: None };
        self.step(QueueEvent::Join(join));
        self.queue.note_gate_reader(id);
    }

    fn leave(&mut self, at: usize) {
        let session = self.clients.remove(at).id;
        self.step(QueueEvent::Leave { session });
    }

    fn deliver(&mut self, at: usize) {
        match self.clients[at].inbox.pop_front() {
            Some(QueueAction::Grant { grant, .. }) => self.clients[at].budget.receive(grant),
            Some(QueueAction::GrantAhead { grant, opening, .. }) => {
                self.clients[at].budget.receive_ahead(grant, opening);
            }
            Some(QueueAction::Role { role, .. }) => self.clients[at].role = role,
            Some(QueueAction::Revoke { grant, .. }) => {
                let client = &mut self.clients[at];
                if client.budget.grant().is_some_and(|held| held.number == grant) {
                    client.budget.clear();
                }
            }
            Some(QueueAction::Recall { session, launches, .. })
                if self.gate.launches == launches =>
            {
                self.context = Some(session);
                self.step(QueueEvent::Recalled { session });
            }
            _ => {}
        }
        if let Some((_, kernel)) = self.clients[at].blocked {
            self.launch(at, kernel);
        }
    }

    fn done(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let session = client.id;
        if client.in_flight.pop_front().is_some() {
            self.step(QueueEvent::Done { session });
        }
    }

    fn sync(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.blocked.is_some() {
            return;
        }
        client.in_flight.clear();
        self.report(at);
        let Some(client) = self.clients.get_mut(at) else { return };
        let session = client.id;
        let returns = client.budget.grant().filter(|grant| grant.yields).map(|grant| grant.number);
        if returns.is_some() {
            client.budget.clear();
        }
        self.step(QueueEvent::Sync { session, returns });
    }

    /// A thread launches, or repeats its attempt.
    fn launch(&mut self, at: usize, kernel: u16) {
        let client = &mut self.clients[at];
        let launches = &mut client.launches;
        let (launch, kernel) = *client.blocked.get_or_insert_with(|| {
            *launches += 1;
            (*launches, kernel)
        });
        let session = client.id;
        let index = KernelIndex::new(kernel);
        if client.role.is_holder() {
            let repeated = TASK[usize::try_from(launch - 1).unwrap() % TASK.len()];
            let index = if self.repeats { KernelIndex::new(repeated) } else { index };
            client.blocked = None;
            client.requested = false;
            self.gate.launches += 1;
            self.returns += 1;
            let count = self.gate.launches;
            self.last = LastLaunch { count, kernel: index, at: self.now };
            let event = QueueEvent::Launch { session, launch, kernel: index, count };
            client.unreported.push_back((event, self.now));
            let may_wait = match self.queue.report_need() {
                ReportNeed::Prompt | ReportNeed::Soon => false,
                ReportNeed::At(named) => named.is_none_or(|named| count < named),
            };
            if !(self.repeats && may_wait) {
                self.report(at);
            }
            return;
        }
        let predicted = self.profile.took(index);
        client.budget.look(self.last);
        let held = client.budget.grant().copied();
        let in_flight = u16::try_from(client.in_flight.len()).unwrap();
        match client.budget.spend(predicted, self.gate, in_flight, self.now) {
            LaunchDecision::Launch => {
                client.blocked = None;
                client.requested = false;
                let is_filler = self.queue.role(session) == Some(Role::Fill);
                client.in_flight.push_back(LaunchedKernel { at: self.now, is_filler });
                let grant = held.expect("nothing is spent without a grant");
                self.check_spent(&grant);
                self.step(QueueEvent::Started {
                    session,
                    launch,
                    kernel: index,
                    grant: grant.number,
                });
            }
            LaunchDecision::Wait => {}
            LaunchDecision::Request => {
                let beyond = client.budget.grant().map(|grant| grant.number);
                client.budget.clear();
                if !client.requested || beyond.is_some() {
                    client.requested = true;
                    self.step(QueueEvent::Request { session, launch, kernel: index, beyond });
                }
            }
        }
    }

    /// A holder reports what it has launched.
    fn report(&mut self, at: usize) {
        let Some(client) = self.clients.get_mut(at) else { return };
        let unreported = std::mem::take(&mut client.unreported);
        for (event, launched_at) in unreported {
            self.step_at(event, launched_at);
        }
    }

    /// Early stop, expiry and the window hold at the moment of a launch.
    fn check_spent(&self, grant: &Grant) {
        assert!(self.now >= grant.from && self.now < grant.until, "within its time: {grant:?}");
        let given = self.given.iter().find(|(number, _)| *number == grant.number).unwrap().1;
        if grant.kind.ends_with_gap() {
            assert_eq!(given, self.returns, "no holder launched since the grant: {grant:?}");
        }
        // A kernel in flight for longer than any report takes counts as ended.
        let recent = self.now.minus(Nanos::from_millis(300));
        let fillers = self.clients.iter().filter(|c| self.queue.role(c.id) == Some(Role::Fill));
        let in_flight = fillers.flat_map(|client| &client.in_flight);
        let in_flight = in_flight.filter(|kernel| kernel.is_filler && kernel.at >= recent).count();
        let most = self.rules.in_flight.max(self.rules.in_flight_short);
        assert!(in_flight <= usize::from(most), "{in_flight} are in flight");
    }

    fn step(&mut self, event: QueueEvent) {
        self.step_at(event, self.now);
    }

    /// Handles an event that happened at `at`, with what the page shows now.
    fn step_at(&mut self, event: QueueEvent, at: Nanos) {
        self.queue.observe(self.last);
        let before: Vec<LaunchRequest> =
            self.queue.waiting().iter().map(|(_, request)| *request).collect();
        let request_event = match &event {
            QueueEvent::Request { session, launch, .. } => Some((*session, *launch)),
            _ => None,
        };
        if let QueueEvent::Launch { session, .. } | QueueEvent::Started { session, .. } = &event {
            self.context = Some(*session);
        }
        let mut actions = self.queue.note(event, at, self.now).to_vec();
        actions.extend_from_slice(self.queue.decide());
        assert!(actions.len() <= ACTIONS_MAX, "actions are bounded");
        for action in &actions {
            self.take(*action, &before, request_event);
        }
        self.check_roles();
    }

    fn take(
        &mut self,
        action: QueueAction,
        before: &[LaunchRequest],
        request_event: Option<(SessionId, u64)>,
    ) {
        let session = match action {
            QueueAction::Gate { epoch } => {
                assert!(epoch > self.gate.epoch, "the gate only rises");
                self.gate.epoch = epoch;
                return;
            }
            QueueAction::Grant { session, grant } => {
                self.given.push((grant.number, self.returns));
                self.check_budget(&grant);
                self.check_choice((session, false), &grant, before, request_event);
                session
            }
            QueueAction::GrantAhead { session, grant, opening } => {
                // It is valid after so many more launches, and not before.
                let ahead = opening.launches - self.gate.launches;
                assert!(ahead > 0 && opening.launches == grant.gate.launches, "{opening:?}");
                assert!(opening.wake <= opening.launches && opening.length >= grant.budget);
                self.given.push((grant.number, self.returns + ahead));
                self.check_budget(&Grant { until: grant.from.plus(opening.length), ..grant });
                self.check_choice((session, true), &grant, before, request_event);
                session
            }
            QueueAction::Dropped { session } => {
                let at = self.clients.iter().position(|client| client.id == session);
                let at = at.expect("only connected sessions are dropped");
                assert!(self.clients[at].dead || self.now > Nanos::from_millis(900));
                self.clients.remove(at);
                return;
            }
            QueueAction::Role { session, .. }
            | QueueAction::Revoke { session, .. }
            | QueueAction::Recall { session, .. }
            | QueueAction::Defined { session, .. }
            | QueueAction::Predicted { session, .. }
            | QueueAction::Measured { session }
            | QueueAction::Remeasure { session, .. }
            | QueueAction::Refuse { session, .. } => session,
        };
        if let Some(client) = self.clients.iter_mut().find(|client| client.id == session) {
            client.inbox.push_back(action);
        }
    }

    /// The granted time of a gap fits into it, however many grants there are. With means, no gap is
    /// longer than the longest mean. What is learned online has no such bound.
    fn check_budget(&self, grant: &Grant) {
        let longest = Nanos::from_micros(KERNELS.iter().map(|(_, gap)| *gap).max().unwrap_or(0));
        if grant.kind == GrantKind::Gap {
            assert!(grant.from.plus(grant.budget) <= grant.until, "{grant:?}");
            if self.rules.predictor == GapPredictor::Mean {
                assert!(grant.until.minus(grant.from) <= longest, "{grant:?}");
                assert!(
                    self.queue.granted_gap_time() <= longest,
                    "{}",
                    self.queue.granted_gap_time()
                );
            }
        }
    }

    /// Best fit: no launch of higher priority fits, and no longer one of the same priority; among
    /// equals the oldest is granted. A launch fits with the context switch that it needs. With recalls it may also need
    /// the usual delay of a first kernel, which is one switch at most. Ahead of a gap the holder has the device until then.
    fn check_choice(
        &self,
        (session, is_ahead): (SessionId, bool),
        grant: &Grant,
        before: &[LaunchRequest],
        request_event: Option<(SessionId, u64)>,
    ) {
        let priority = self.priority(session).expect("only connected sessions get grants");
        let holders = self.clients.iter().map(|client| client.priority).min();
        assert!(Some(priority) > holders, "a holder needs no grant");
        if grant.kind != GrantKind::Gap || self.rules.grants != GrantSize::Gap {
            return;
        }
        let switch = |session| {
            if self.context == Some(session) && !is_ahead { Nanos::ZERO } else { self.rules.switch }
        };
        // The budget ends before the switch back to the holder's context.
        let idle = grant.budget.plus(switch(session));
        let delay_max = if self.rules.recall { self.rules.switch } else { Nanos::ZERO };
        for (contender_priority, contender) in self.queue.waiting().iter() {
            let needed = contender.predicted.map(|time| time.plus(switch(contender.session)));
            let fits = needed.is_some_and(|time| time.plus(delay_max) < idle);
            let has_lease = self.has_lease(contender.session);
            if !fits || has_lease || contender.session == session {
                continue;
            }
            assert!(contender_priority >= priority, "{contender:?} was passed over for {grant:?}");
            if contender_priority == priority {
                let mine = before.iter().find(|request| request.session == session);
                let (Some(mine), None) = (mine, request_event) else { continue };
                let longer = contender.predicted > mine.predicted;
                let older = contender.predicted == mine.predicted && contender.ticket < mine.ticket;
                assert!(
                    !longer && !older,
                    "{contender:?} should have been granted before \
                                            {mine:?}"
                );
            }
        }
    }

    fn has_lease(&self, session: SessionId) -> bool {
        let client = self.clients.iter().find(|client| client.id == session);
        client.is_some_and(|client| client.budget.grant().is_some() || !client.inbox.is_empty())
    }

    fn priority(&self, session: SessionId) -> Option<Priority> {
        self.clients.iter().find(|client| client.id == session).map(|client| client.priority)
    }

    /// Only the sessions of the highest priority are holders.
    fn check_roles(&self) {
        let top = self.clients.iter().map(|client| client.priority).min();
        for (session, role) in self.queue.sessions() {
            assert_eq!(role.is_holder(), self.priority(session) == top, "{session:?} is {role:?}");
        }
    }
}
