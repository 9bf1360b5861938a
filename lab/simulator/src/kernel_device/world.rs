//! The run itself: two processes, a device, the queue, and the messages between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tessera_kernel_queue::{
    GateState, Join, KernelIndex, KernelQueue, LastLaunch, Nanos, QueueAction, QueueEvent,
    QueueRules, Role, SessionId, TaskProfile,
};
use tessera_model::spec::{Class, Priority};

use super::client::{LaunchAttempt, SimulatedClient};
use super::device::{DeviceOrder, SimulatedDevice};
use super::measuring::task;
use super::outcome::{CompletedTasks, SharingOutcome};
use super::program::{
    AfterLaunch, KernelLaunch, ProgramCourse, SimulatedProgram, TaskArrivals, TimeNoise,
};

/// How the two programs share the device.
#[derive(Clone, Copy, Debug)]
pub enum SharingPolicy {
    /// The high one is alone.
    Alone,
    /// As drivers share by default: time slices.
    Slices(Nanos),
    /// As within one context: in the order of launches.
    Launched,
    /// Through the queue, on a device that runs kernels in the order of launches.
    Queue(QueueRules),
    /// Through the queue, on a device that shares by these time slices what is launched at the same time.
    QueueOverSlices(QueueRules, Nanos),
}

impl SharingPolicy {
    /// Returns the queue's rules, if there is a queue.
    const fn rules(&self) -> Option<QueueRules> {
        match self {
            Self::Queue(rules) | Self::QueueOverSlices(rules, _) => Some(*rules),
            Self::Alone | Self::Slices(_) | Self::Launched => None,
        }
    }
}

/// How long messages take.
#[derive(Clone, Copy, Debug)]
pub struct PathLatencies {
    /// From a client to the queue.
    pub send: Nanos,
    /// From the queue to a client.
    pub grant: Nanos,
    /// From a launch to the device.
    pub start: Nanos,
    /// From a kernel's end until its host knows, and from a launch until a filler observes it that looks at the page.
    pub notice: Nanos,
    /// Whether holders close the gap through the shared page: at once.
    pub page: bool,
}

impl Default for PathLatencies {
    /// Unix sockets on one machine and an idle driver, rounded up.
    fn default() -> Self {
        Self {
            send: Nanos::from_micros(10),
            grant: Nanos::from_micros(10),
            start: Nanos::from_micros(3),
            notice: Nanos::from_micros(2),
            page: true,
        }
    }
}

/// A run to make.
#[derive(Clone, Debug)]
pub struct SharingRun {
    /// High and low priority.
    pub programs: [SimulatedProgram; 2],
    /// The queues of the two programs, 0 to 9.
    pub priorities: [u8; 2],
    /// When their tasks begin.
    pub arrivals: [TaskArrivals; 2],
    /// The run ends when this program has completed this many tasks.
    pub until: (usize, usize),
    /// The latest end of the run: a program that is never served completes no task.
    pub limit: Nanos,
    /// Of the high one's and the low one's times.
    pub noise: [TimeNoise; 2],
    /// How they share.
    pub policy: SharingPolicy,
    /// How long messages take.
    pub latencies: PathLatencies,
    /// The time of a context switch of the device.
    pub switch: Nanos,
    /// What is known about them beforehand.
    pub profiles: [TaskProfile; 2],
    /// The seed of the random numbers.
    pub seed: u64,
    /// Whether to keep what ran when.
    pub keep_spans: bool,
}

/// Something that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DueEvent {
    /// A host reaches its next launch.
    Come(usize),
    /// A launch reaches the device.
    Reach(usize, Nanos),
    /// A host notices the end of its oldest kernel.
    Notice(usize),
    /// A host looks at its grant again.
    Look(usize),
    /// A holder brings the device back to its context, if it has made no more than so many launches.
    Recall(usize, u64),
    /// A message reaches the queue, stamped.
    EventArrives(QueueEvent, Nanos),
    /// A message reaches a client.
    ActionArrives(usize, QueueAction),
    /// A client sends its heartbeat.
    Alive(usize),
}

/// The state of a run.
struct SharingWorld<'run> {
    run: &'run SharingRun,
    now: Nanos,
    due: BinaryHeap<Reverse<(Nanos, u64)>>,
    what: Vec<Option<DueEvent>>,
    free: Vec<usize>,
    clients: [SimulatedClient; 2],
    device: SimulatedDevice,
    queue: Option<KernelQueue>,
    gate: GateState,
    /// What the shared page shows of the holder's last launch.
    last: LastLaunch,
    /// The queue's deadline.
    tick: Nanos,
    done: [CompletedTasks; 2],
    order: u64,
}

/// Maximum number of launches that a host is ahead of the device: beyond, the launch call blocks.
const AHEAD_MAX: u16 = 64;

/// The same where nothing holds launches back but the driver's own queue of them, which is that deep.
const DRIVER_AHEAD_MAX: u16 = 1_024;

/// How often an idle client sends a heartbeat: thrice within a session's lease.
const ALIVE_EVERY: Nanos = Nanos::from_millis(300);

impl SharingRun {
    /// Creates the run.
    pub fn go(&self) -> SharingOutcome {
        let order = match self.policy {
            SharingPolicy::Alone | SharingPolicy::Launched | SharingPolicy::Queue(_) => {
                DeviceOrder::Launched
            }
            SharingPolicy::Slices(slice) | SharingPolicy::QueueOverSlices(_, slice) => {
                DeviceOrder::Slices { slice }
            }
        };
        let client = |at: usize| {
            let course = ProgramCourse::new(self.programs[at].clone(), self.seed, self.noise[at]);
            SimulatedClient::new(SessionId::new(session(at)), course, self.arrivals[at])
        };
        let mut world = SharingWorld {
            run: self,
            now: Nanos::ZERO,
            due: BinaryHeap::new(),
            what: Vec::new(),
            free: Vec::new(),
            clients: [client(0), client(1)],
            device: SimulatedDevice::new(order, self.switch, self.keep_spans),
            queue: None,
            gate: GateState::default(),
            last: LastLaunch::default(),
            tick: Nanos::MAX,
            done: [CompletedTasks::default(), CompletedTasks::default()],
            order: 0,
        };
        world.begin();
        world.go();
        world.outcome()
    }
}

const fn session(at: usize) -> u64 {
    if at == 0 { 1 } else { 2 }
}

impl SharingWorld<'_> {
    fn begin(&mut self) {
        if let Some(rules) = self.run.policy.rules() {
            let mut queue = KernelQueue::new(rules);
            for at in [0, 1] {
                self.connect(&mut queue, at);
                self.plan(ALIVE_EVERY, DueEvent::Alive(at));
            }
            self.queue = Some(queue);
        }
        self.plan(Nanos::ZERO, DueEvent::Come(0));
        if !matches!(self.run.policy, SharingPolicy::Alone) {
            self.plan(Nanos::ZERO, DueEvent::Come(1));
        }
    }

    /// Lets a client join with its known profile.
    fn connect(&mut self, queue: &mut KernelQueue, at: usize) {
        let program = &self.run.programs[at];
        let task = task(program, at);
        queue.add_profile(&task, self.run.profiles[at].clone());
        let priority = Priority::try_from(self.run.priorities[at]).unwrap_or(Priority::DEFAULT);
        let session = self.clients[at].session;
        let join = Join {
            session,
            task,
            priority,
            class: Class::Offline,
            share_thousandths: 1_000,
            exclusive: None,
        };
        for action in queue.step(QueueEvent::Join(join), Nanos::ZERO) {
            if let QueueAction::Role { session, role } = action {
                let client_index = usize::from(*session == self.clients[1].session);
                self.clients[client_index].role = Some(*role);
            }
        }
        for kernel in 0..program.kernels() {
            let kernel = Box::new(program.kernel_id(kernel));
            queue.step(QueueEvent::Define { session, kernel }, Nanos::ZERO);
        }
        if self.run.latencies.page {
            queue.note_gate_reader(session);
        }
        let profile = &self.run.profiles[at];
        self.clients[at].predicted =
            (0..program.kernels()).map(|kernel| profile.cost(KernelIndex::new(kernel))).collect();
    }

    fn go(&mut self) {
        let (program, tasks) = self.run.until;
        while self.done[program].tasks.len() < tasks && self.now < self.run.limit {
            let next = self.due.peek().map_or(Nanos::MAX, |Reverse((at, _))| *at);
            let change = self.device.next_change();
            let first = next.min(change).min(self.tick);
            assert!(next.min(change) < Nanos::MAX, "the run has come to a standstill");
            if self.tick < change.min(next) {
                self.now = first;
                self.device.advance(first);
                self.handle_event(QueueEvent::Tick, first);
                continue;
            }
            if change <= next {
                self.now = change;
                if let Some(ended) = self.device.advance(change).filter(|ended| !ended.recalls) {
                    self.plan(
                        change.plus(self.run.latencies.notice),
                        DueEvent::Notice(ended.program),
                    );
                }
                continue;
            }
            let Some(Reverse((at, key))) = self.due.pop() else { continue };
            self.now = at;
            self.device.advance(at);
            let slot = (key & 0xFFFF_FFFF) as usize;
            self.free.push(slot);
            if let Some(due) = self.what[slot].take() {
                self.happen(due);
            }
        }
    }

    fn happen(&mut self, due: DueEvent) {
        match due {
            DueEvent::Come(at) => {
                self.clients[at].come();
                self.attempt(at);
            }
            DueEvent::Reach(at, took) => self.device.push(at, took, self.now),
            DueEvent::Notice(at) => self.notice(at),
            DueEvent::Look(at) => self.attempt(at),
            DueEvent::Recall(at, launches) => self.recall(at, launches),
            DueEvent::EventArrives(event, stamp) => self.handle_event(event, stamp),
            DueEvent::ActionArrives(at, action) => self.handle_action(at, action),
            DueEvent::Alive(at) => {
                self.send(QueueEvent::Alive { session: self.clients[at].session });
                self.plan(self.now.plus(ALIVE_EVERY), DueEvent::Alive(at));
            }
        }
    }

    fn attempt(&mut self, at: usize) {
        let ahead_max = match self.run.policy {
            SharingPolicy::Launched => DRIVER_AHEAD_MAX,
            SharingPolicy::Alone
            | SharingPolicy::Slices(_)
            | SharingPolicy::Queue(_)
            | SharingPolicy::QueueOverSlices(..) => AHEAD_MAX,
        };
        if self.clients[at].in_flight >= ahead_max {
            return;
        }
        let now = self.now;
        let session = self.clients[at].session;
        match self.clients[at].attempt((self.gate, self.last), now) {
            LaunchAttempt::Blocked | LaunchAttempt::Later(None) => {}
            LaunchAttempt::Later(Some(from)) => self.plan(from, DueEvent::Look(at)),
            LaunchAttempt::Request(KernelLaunch { number: launch, kernel, .. }, beyond) => {
                let kernel = KernelIndex::new(kernel);
                self.send(QueueEvent::Request { session, launch, kernel, beyond });
            }
            LaunchAttempt::Launched(launch, grant) => self.launched(at, launch, grant),
        }
    }

    fn launched(&mut self, at: usize, launch: KernelLaunch, grant: Option<u64>) {
        let session = self.clients[at].session;
        let kernel = KernelIndex::new(launch.kernel);
        if let Some(grant) = grant {
            self.send(QueueEvent::Started { session, launch: launch.number, kernel, grant });
        } else if self.clients[at].role.is_some_and(Role::is_holder) {
            let page = self.run.latencies.page && self.early_stop();
            self.gate.launches += u64::from(page);
            let count = if page { self.gate.launches } else { 0 };
            self.last = LastLaunch { count, kernel, at: self.now };
            if page && self.clients[1 - at].awaits(count) {
                self.plan(self.now.plus(self.run.latencies.notice), DueEvent::Look(1 - at));
            }
            self.send(QueueEvent::Launch { session, launch: launch.number, kernel, count });
        }
        self.plan(self.now.plus(self.run.latencies.start), DueEvent::Reach(at, launch.took));
        if let AfterLaunch::After(work) = launch.next {
            self.plan(self.now.plus(work), DueEvent::Come(at));
        }
    }

    fn early_stop(&self) -> bool {
        self.run.policy.rules().is_some_and(|rules| rules.early_stop)
    }

    /// Brings the device back to a holder's context, unless it has launched or a later order replaced this one.
    fn recall(&mut self, at: usize, launches: u64) {
        let client = &self.clients[at];
        let is_last = client.recall_at <= self.now;
        let holds = client.role.is_some_and(Role::is_holder);
        if is_last && holds && self.gate.launches == launches {
            let session = client.session;
            self.device.recall(at, self.now);
            self.send(QueueEvent::Recalled { session });
        }
    }

    /// A host notices that its oldest kernel ended.
    fn notice(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let session = client.session;
        client.in_flight -= 1;
        let is_filler = client.role == Some(Role::Fill);
        let then = if client.in_flight == 0 { client.then.take() } else { None };
        let returns = if then.is_some() && is_filler { client.give_back() } else { None };
        let Some(then) = then else {
            if is_filler {
                self.send(QueueEvent::Done { session });
            }
            self.attempt(at);
            return;
        };
        self.send(QueueEvent::Sync { session, returns });
        let mut next = self.now.plus(then.gap);
        if then.is_last {
            let ended = self.now.minus(self.clients[at].begun);
            self.done[at].tasks.push(ended);
            if let TaskArrivals::Every(period) = self.clients[at].arrivals {
                let task = self.done[at].tasks.len() as u64;
                next = next.max(period.times(task));
                // A task that had to wait for the one before began to wait at its own time.
                self.clients[at].begun = period.times(task);
            } else {
                self.clients[at].begun = next;
            }
        }
        self.plan(next, DueEvent::Come(at));
    }

    fn handle_event(&mut self, event: QueueEvent, stamp: Nanos) {
        let Some(queue) = &mut self.queue else { return };
        let actions = queue.step(event, stamp).to_vec();
        for action in actions {
            let session = match action {
                QueueAction::Gate { epoch } => {
                    if self.run.latencies.page {
                        self.gate.epoch = epoch;
                    }
                    continue;
                }
                QueueAction::Role { session, .. }
                | QueueAction::Grant { session, .. }
                | QueueAction::GrantAhead { session, .. }
                | QueueAction::Revoke { session, .. }
                | QueueAction::Recall { session, .. }
                | QueueAction::Refuse { session, .. }
                | QueueAction::Defined { session, .. }
                | QueueAction::Predicted { session, .. }
                | QueueAction::Measured { session }
                | QueueAction::Remeasure { session, .. }
                | QueueAction::Dropped { session } => session,
            };
            let client_index = usize::from(session == self.clients[1].session);
            self.plan(
                self.now.plus(self.run.latencies.grant),
                DueEvent::ActionArrives(client_index, action),
            );
        }
        let deadline = self.queue.as_ref().map_or(Nanos::MAX, KernelQueue::deadline);
        // Never at once again: the queue was just called.
        self.tick = deadline.max(self.now.plus(Nanos::new(1)));
    }

    fn handle_action(&mut self, at: usize, action: QueueAction) {
        match action {
            QueueAction::Role { role, .. } => self.clients[at].role = Some(role),
            QueueAction::Grant { grant, .. } => self.clients[at].receive(grant),
            QueueAction::GrantAhead { grant, opening, .. } => {
                self.clients[at].receive_ahead(grant, opening);
            }
            QueueAction::Revoke { grant, .. } => self.clients[at].revoke(grant),
            QueueAction::Refuse { why, .. } => unreachable!("two well-behaved clients: {why}"),
            QueueAction::Recall { at: due, launches, .. } => {
                self.clients[at].recall_at = due;
                self.plan(self.now.max(due), DueEvent::Recall(at, launches));
            }
            QueueAction::Gate { .. }
            | QueueAction::Defined { .. }
            | QueueAction::Predicted { .. }
            | QueueAction::Measured { .. }
            | QueueAction::Remeasure { .. }
            | QueueAction::Dropped { .. } => {}
        }
        self.attempt(at);
    }

    fn send(&mut self, event: QueueEvent) {
        if self.queue.is_some() {
            let stamp = self.now;
            self.plan(self.now.plus(self.run.latencies.send), DueEvent::EventArrives(event, stamp));
        }
    }

    /// Schedules an event; events that are due at the same time happen in the order in which they
    /// were scheduled.
    fn plan(&mut self, at: Nanos, due: DueEvent) {
        if at == Nanos::MAX {
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.what.push(None);
            self.what.len() - 1
        });
        self.what[slot] = Some(due);
        self.order += 1;
        let slot = slot as u64;
        self.due.push(Reverse((at, (self.order << 32) | slot)));
    }

    fn outcome(mut self) -> SharingOutcome {
        let (busy, behind) = (self.device.busy(), self.device.behind());
        let counters = self.queue.as_ref().map(|queue| *queue.counters()).unwrap_or_default();
        for at in [0, 1] {
            self.done[at].busy = busy[at];
            self.done[at].behind = behind[at];
            let queue = self.queue.as_ref();
            let counted = queue.and_then(|q| q.session_counters(self.clients[at].session));
            self.done[at].counters = counted.copied().unwrap_or_default();
        }
        let switches = self.device.switches();
        let spans = self.device.into_spans();
        SharingOutcome { programs: self.done, end: self.now, spans, switches, counters }
    }
}
