//! The queues of one GPU's slices, with their admissions, sessions and gate pages.
//!
//! No method waits, so that the actor around them handles one message after the other.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use tessera_frames::gate::{HEARTBEAT_EVERY, IDLE_HEARTBEAT_EVERY, ReportPace};
use tessera_frames::kernel::{
    Farewell, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, SessionEnd, ShimHello, ShimRecord,
    ShimWelcome, ToShim,
};
use tessera_kernel_queue::{Epoch, GateState, Nanos, ReportNeed, SessionId};
use tessera_model::{AttemptId, GpuId, SliceId};
use tokio::sync::{mpsc, oneshot};

use super::files;
use super::gate::{self, MappedGate};
use super::timer::Timer;
use super::unsent::EventOutbox;
use super::{
    EndpointNumbers, KernelEvent, KernelOrder, KernelSettings, SharedNumbers, SliceNumbers, Token,
};
use crate::sys::clock::monotonic_now;
use tessera_agent_core::kernel::faults::QueueFaults;
use tessera_agent_core::kernel::slice::{SliceEffect, SliceQueue, SliceRemains};
use tessera_agent_core::kernel::{Admission, PageOwner};

/// A count of launches that is unchanged for so long was reported, or never will be. Reports take up to 4 ms.
const COUNT_STABLE_AFTER: Nanos = Nanos::from_millis(15);
/// Longest interval between pings to shims with waiting launches.
const PING_EVERY: Nanos = Nanos::from_millis(10);
/// Interval between updates of the shared numbers.
const NUMBERS_EVERY: Nanos = Nanos::from_millis(1_000);
/// Free capacity for events that is required before a slice's tasks are sent.
const EVENTS_FREE_MIN: usize = 2 * tessera_kernel_queue::limits::TASKS_MAX;

/// Takes the frames of one session.
pub trait FrameSink: Send {
    /// Takes a frame. Returns whether there was space for it.
    fn push(&self, frame: ToShim) -> bool;
}

/// The way to one shim.
pub struct ShimPort {
    /// Takes its frames.
    pub frames: Box<dyn FrameSink>,
    /// Learns why its session ended. If a bug ended the queue, it is dropped.
    pub end: oneshot::Sender<SessionEnd>,
}

impl ShimPort {
    fn close(self, why: SessionEnd) {
        // Fails only if the connection is gone.
        let _ = self.end.send(why);
    }
}

/// A session that has begun.
pub struct OpenedSession {
    pub session: SessionId,
    /// The answer to its process.
    pub welcome: ShimWelcome,
    /// The account of its attempt; `None` for the agent's own.
    pub owner: Option<PageOwner>,
}

struct OpenSlice {
    queue: SliceQueue,
    gate: Option<MappedGate>,
    /// Whose processes get the page.
    owner: Option<PageOwner>,
    epoch: Epoch,
    heartbeat_at: Nanos,
    pinged_at: Nanos,
    /// The page's count of launches, and when it last changed.
    counted: (u64, Nanos),
    /// When holders report, as the page shows it.
    report_need: ReportNeed,
}

struct OpenSession {
    slice: SliceId,
    attempt: AttemptId,
    process: u64,
    port: ShimPort,
}

/// What the queues of one GPU work with.
#[derive(Clone)]
pub struct QueueContext {
    pub gpu: GpuId,
    /// The endpoint's settings.
    pub settings: KernelSettings,
    /// Takes events for the node.
    pub events: mpsc::Sender<KernelEvent>,
    /// Where the numbers are published.
    pub numbers: SharedNumbers,
    /// Set to the time at which [`GpuQueues::tick`] is due.
    pub timer: Rc<Timer>,
}

/// The queues of one GPU's slices.
pub struct GpuQueues {
    context: QueueContext,
    admissions: BTreeMap<AttemptId, (Admission, Token)>,
    slices: BTreeMap<SliceId, OpenSlice>,
    sessions_by_id: BTreeMap<SessionId, OpenSession>,
    next_session: u64,
    numbers: EndpointNumbers,
    numbers_at: Nanos,
    effects: Vec<SliceEffect>,
    events: EventOutbox,
    /// What is left of queues that ended by a bug, until they start again.
    remains: BTreeMap<SliceId, SliceRemains>,
    faults: QueueFaults,
}

impl GpuQueues {
    pub fn new(context: QueueContext) -> Self {
        Self {
            events: EventOutbox::new(context.events.clone()),
            context,
            admissions: BTreeMap::new(),
            slices: BTreeMap::new(),
            sessions_by_id: BTreeMap::new(),
            // Numbers of an earlier agent's sessions must not be used again.
            next_session: monotonic_now().get(),
            numbers: EndpointNumbers::default(),
            numbers_at: Nanos::ZERO,
            effects: Vec::new(),
            remains: BTreeMap::new(),
            faults: QueueFaults::default(),
        }
    }

    /// Starts again after a bug outside of a slice's queue, with the admissions that are on disk. The sessions end,
    /// and come back because shims connect again.
    pub fn start_again(&mut self) {
        let gpu = &self.context.gpu;
        tracing::error!(%gpu, "a bug ended the kernel queues of a GPU: they start again");
        for (name, slice) in std::mem::take(&mut self.slices) {
            self.keep_remains(name, slice);
        }
        self.sessions_by_id.clear();
        self.admissions.clear();
        self.effects.clear();
        self.numbers.restarts += 1;
        for (admission, token) in files::read_live_admissions(&self.context.settings.data, |_| true)
        {
            if admission.gpu == self.context.gpu {
                self.handle_order(KernelOrder::Admit { admission, token });
            }
        }
        self.remains.clear();
        self.set_timer();
    }

    /// Runs code of one slice's queue. If a bug ends it, this queue starts again and its sessions come back.
    /// Other slices don't notice.
    fn guarded<T>(&mut self, name: &SliceId, work: impl FnOnce(&mut OpenSlice) -> T) -> Option<T> {
        let slice = self.slices.get_mut(name)?;
        let done = catch_unwind(AssertUnwindSafe(|| work(slice))).ok();
        if done.is_none() {
            self.restart_slice(name);
        }
        done
    }

    /// The same for code that handles what a process of an attempt sent. If that ends the queue again and again, the
    /// attempt is refused.
    fn guarded_for<T>(
        &mut self,
        (name, attempt): (&SliceId, AttemptId),
        work: impl FnOnce(&mut OpenSlice) -> T,
    ) -> Option<T> {
        let is_open = self.slices.contains_key(name);
        let done = self.guarded(name, work);
        if is_open && done.is_none() && self.faults.note(attempt, monotonic_now()) {
            tracing::error!(%attempt, slice = %name, "what an attempt sends ends the queue of its slice again and again: its processes run without the queue from now on");
        }
        done
    }

    /// Closes the page of a queue that ended by a bug, and keeps its totals and profiles.
    fn keep_remains(&mut self, name: SliceId, slice: OpenSlice) {
        let OpenSlice { queue, gate, epoch, .. } = slice;
        if let Some(gate) = gate {
            // No grant of it is valid, and a holder that comes back counts on the next page.
            gate.page().set_epoch(epoch.next());
            gate.page().close();
        }
        // Its state may be broken as well.
        if let Ok(remains) = catch_unwind(AssertUnwindSafe(|| queue.into_remains())) {
            self.remains.insert(name, remains);
        }
    }

    fn restart_slice(&mut self, name: &SliceId) {
        self.numbers.restarts += 1;
        tracing::error!(slice = %name, "a bug ended the queue of a slice: it starts again");
        if let Some(slice) = self.slices.remove(name) {
            self.keep_remains(name.clone(), slice);
        }
        self.effects.clear();
        // Their connections notice that no reason is given.
        self.sessions_by_id.retain(|_, session| session.slice != *name);
        let of_slice = |(admission, _): &&(Admission, Token)| admission.slice == *name;
        let used: Vec<_> = self.admissions.values().filter(of_slice).cloned().collect();
        for (admission, _) in used {
            let slice = self.open_slice(name, admission.owner);
            slice.queue.admit(&admission, monotonic_now());
        }
        self.remains.remove(name);
    }

    pub fn handle_order(&mut self, order: KernelOrder) {
        match order {
            KernelOrder::Admit { admission, token } => {
                tracing::debug!(attempt = %admission.attempt, slice = %admission.slice, task = %admission.task, "admitted to the kernel queue");
                let (slice, now) = (admission.slice.clone(), monotonic_now());
                let settings = self.context.settings.clone();
                let opened = self.open_slice(&slice, admission.owner);
                opened.change_owner(&settings, &slice, admission.owner, now);
                opened.queue.admit(&admission, now);
                self.carry_out(&slice, now);
                self.admissions.insert(admission.attempt, (admission, token));
            }
            KernelOrder::Ended(attempt) => self.end_attempt(attempt),
            KernelOrder::Learn { task, profile } => {
                let now = monotonic_now();
                for slice in self.slices.values_mut() {
                    slice.queue.add_profile(&task, (*profile).clone(), now);
                }
                self.carry_out_all();
            }
            // Unwinds as a panic does, without its message.
            KernelOrder::Fail(slice) => {
                self.guarded(&slice, |_| resume_unwind(Box::new("ordered")));
            }
            #[cfg(test)]
            KernelOrder::Inject(slice, injected) => match slice {
                Some(slice) => drop(self.guarded(&slice, |_| injected.run())),
                None => injected.run(),
            },
        }
    }

    /// Begins a session for a process.
    pub fn add_session(
        &mut self,
        hello: &ShimHello,
        port: ShimPort,
    ) -> Result<OpenedSession, Farewell> {
        let refuse = |why, again| Err(Farewell { why, again });
        if hello.protocol < PROTOCOL_VERSION_MIN {
            let (oldest, newest) = (PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
            return refuse(SessionEnd::Protocol { oldest, newest }, false);
        }
        // Every token is compared, so that the time does not reveal the position of the match.
        let found = self.admissions.values().fold(None, |found, (admission, token)| {
            if token.is(&hello.token) { Some(admission) } else { found }
        });
        let Some(admission) = found else {
            // An agent that has just started may not know the attempt yet.
            return refuse(SessionEnd::Unknown, true);
        };
        let admission = admission.clone();
        if self.faults.refuses(admission.attempt) {
            return refuse(SessionEnd::Nonsense, false);
        }
        // Drivers name whole devices in several ways, and MIG devices in one.
        if hello.device.starts_with("MIG-") && hello.device != admission.slice.as_str() {
            return refuse(SessionEnd::WrongDevice, false);
        }
        let key = (admission.attempt, hello.process);
        let twin =
            self.sessions_by_id.iter().find(|(_, opened)| (opened.attempt, opened.process) == key);
        if let Some(twin) = twin.map(|(session, _)| *session) {
            self.end_session(twin, SessionEnd::Replaced);
        }
        let now = monotonic_now();
        let session = SessionId::new(self.next_session);
        self.next_session += 1;
        let protocol = hello.protocol.min(PROTOCOL_VERSION);
        self.open_slice(&admission.slice, admission.owner);
        let join =
            |slice: &mut OpenSlice| slice.queue.add_session(session, &admission, protocol, now);
        let welcome = match self.guarded_for((&admission.slice, admission.attempt), join) {
            Some(Ok(welcome)) => welcome,
            Some(Err(_)) => return refuse(SessionEnd::Full, true),
            None => return refuse(SessionEnd::Stopping, true),
        };
        let opened = OpenSession {
            slice: admission.slice.clone(),
            attempt: admission.attempt,
            process: hello.process,
            port,
        };
        self.sessions_by_id.insert(session, opened);
        tracing::debug!(session = session.get(), attempt = %admission.attempt, pid = hello.pid, role = ?welcome.role, "a process joined the kernel queue");
        self.carry_out(&admission.slice, now);
        Ok(OpenedSession { session, welcome, owner: admission.owner })
    }

    /// Handles a session's records. Returns whether the session goes on.
    pub fn add_records(&mut self, session: SessionId, records: Vec<ShimRecord>) -> bool {
        let Some(opened) = self.sessions_by_id.get(&session) else { return false };
        let (name, attempt) = (opened.slice.clone(), opened.attempt);
        let now = monotonic_now();
        let work = |slice: &mut OpenSlice| {
            slice.observe();
            #[cfg(test)]
            assert!(!records.contains(&Injected::RECORD), "a bug that a test put there");
            slice.queue.add_records(session, records, now)
        };
        let Some(goes_on) = self.guarded_for((&name, attempt), work) else { return false };
        self.carry_out(&name, now);
        if !goes_on {
            self.end_session(session, SessionEnd::Gone);
        }
        goes_on && self.sessions_by_id.contains_key(&session)
    }

    /// Records that the thread of a session has raised priority.
    pub fn note_raised(&mut self, session: SessionId) {
        let Some(opened) = self.sessions_by_id.get(&session) else { return };
        let (name, attempt) = (opened.slice.clone(), opened.attempt);
        self.guarded_for((&name, attempt), |slice| slice.queue.note_raised(session));
    }

    pub fn end_session(&mut self, session: SessionId, why: SessionEnd) {
        let Some(OpenSession { slice, attempt, port, .. }) = self.sessions_by_id.remove(&session)
        else {
            return;
        };
        port.close(why);
        let now = monotonic_now();
        self.guarded_for((&slice, attempt), |slice| slice.queue.remove_session(session, now));
        self.carry_out(&slice, now);
    }

    /// Counts a connection that was refused or ended because of invalid frames.
    pub const fn note_refused(&mut self, nonsense: bool) {
        self.numbers.refused += 1;
        if nonsense {
            self.numbers.nonsense += 1;
        }
    }

    /// Handles the expiry of the timer.
    pub fn tick(&mut self) {
        let now = monotonic_now();
        self.events.flush();
        let names: Vec<_> = self.slices.keys().cloned().collect();
        for name in names {
            self.guarded(&name, |slice| {
                slice.observe();
                slice.queue.tick(now);
            });
            if let Some(slice) = self.slices.get_mut(&name) {
                slice.adopt_launch_count(now);
                if slice.pinged_at.plus(PING_EVERY) <= now {
                    slice.pinged_at = now;
                    for session in slice.queue.blocked_sessions() {
                        if let Some(opened) = self.sessions_by_id.get(&session) {
                            // A ping that finds no space is needed by nobody.
                            let _ = opened.port.frames.push(ToShim::Ping);
                        }
                    }
                }
            }
            self.carry_out(&name, now);
        }
        if self.numbers_at.plus(NUMBERS_EVERY) <= now {
            self.numbers_at = now;
            self.publish_numbers();
        }
        self.set_timer();
    }

    /// Ends all sessions, since the agent stops. Its jobs run on.
    pub fn stop(&mut self) {
        for (_, session) in std::mem::take(&mut self.sessions_by_id) {
            session.port.close(SessionEnd::Stopping);
        }
    }

    fn end_attempt(&mut self, attempt: AttemptId) {
        let Some((admission, _)) = self.admissions.remove(&attempt) else { return };
        self.faults.forget(attempt);
        let name = admission.slice;
        let sessions = self.slices.get(&name).map(|slice| slice.queue.sessions_of(attempt));
        for session in sessions.unwrap_or_default() {
            self.end_session(session, SessionEnd::Attempt);
        }
        if let Some(slice) = self.slices.get_mut(&name) {
            let tally = Box::new(slice.queue.remove_attempt(attempt, monotonic_now()));
            tracing::debug!(%attempt, launches = tally.counters.launches, "an attempt left the kernel queue");
            self.events.send(KernelEvent::Over { attempt, tally });
        }
        self.carry_out(&name, monotonic_now());
        let is_used = |name: &SliceId| {
            self.admissions.values().any(|(admission, _)| admission.slice == *name)
        };
        if !is_used(&name)
            && let Some(mut slice) = self.slices.remove(&name)
        {
            for (task, learned) in slice.queue.take_learned() {
                self.events.send(KernelEvent::Learned { task, learned: Box::new(learned) });
            }
            if let Some(gate) = slice.gate {
                gate.page().close();
                let _ = std::fs::remove_file(gate::path(&self.context.settings.gates, &name));
            }
        }
        self.set_timer();
    }

    /// Returns a slice, which is opened if necessary.
    fn open_slice(&mut self, name: &SliceId, owner: Option<PageOwner>) -> &mut OpenSlice {
        let (settings, now) = (&self.context.settings, monotonic_now());
        let remains = &mut self.remains;
        self.slices.entry(name.clone()).or_insert_with(|| {
            OpenSlice::open(settings, name, owner, (now, remains.remove(name).unwrap_or_default()))
        })
    }

    fn carry_out_all(&mut self) {
        let now = monotonic_now();
        let names: Vec<_> = self.slices.keys().cloned().collect();
        names.iter().for_each(|name| self.carry_out(name, now));
    }

    /// Carries out the effects of a slice's queue.
    fn carry_out(&mut self, name: &SliceId, now: Nanos) {
        let Some(slice) = self.slices.get_mut(name) else { return };
        slice.write_heartbeat(now);
        let mut effects = std::mem::take(&mut self.effects);
        slice.queue.take_effects(&mut effects);
        // Ended by the queue, and by this: their shims don't read.
        let (mut closed, mut overfull) = (Vec::new(), Vec::new());
        for effect in effects.drain(..) {
            match effect {
                SliceEffect::Send(session, frame) => {
                    if let Some(opened) = self.sessions_by_id.get(&session)
                        && !opened.port.frames.push(frame)
                    {
                        overfull.push(session);
                    }
                }
                SliceEffect::Gate(epoch) => slice.set_epoch(epoch),
                SliceEffect::Close(session, why) => closed.push((session, why)),
            }
        }
        self.effects = effects;
        if slice.write_report_need() {
            for session in slice.queue.holders() {
                if let Some(opened) = self.sessions_by_id.get(&session) {
                    // Without space there are frames enough to wake it.
                    let _ = opened.port.frames.push(ToShim::Ping);
                }
            }
        }
        for (session, why) in closed {
            if let Some(opened) = self.sessions_by_id.remove(&session) {
                opened.port.close(why);
            }
        }
        for session in overfull {
            self.end_session(session, SessionEnd::TooMuch);
        }
        self.events.flush();
        self.send_learned(name);
        self.set_timer();
    }

    fn send_learned(&mut self, name: &SliceId) {
        let Some(slice) = self.slices.get_mut(name) else { return };
        if !slice.queue.has_news() {
            return;
        }
        let Some(permits) = self.events.reserve(EVENTS_FREE_MIN) else { return };
        for ((task, learned), permit) in slice.queue.take_learned().into_iter().zip(permits) {
            permit.send(KernelEvent::Learned { task, learned: Box::new(learned) });
        }
    }

    fn set_timer(&self) {
        let slices = self.slices.values().map(OpenSlice::next_due).min();
        let numbers = self.numbers_at.plus(NUMBERS_EVERY);
        let events = self.events.next_due(monotonic_now());
        self.context.timer.set(slices.unwrap_or(numbers).min(numbers).min(events));
    }

    /// Publishes the shared numbers.
    fn publish_numbers(&mut self) {
        let slice = |slice: &OpenSlice| SliceNumbers {
            counters: slice.queue.counters(),
            roles: slice.queue.roles(),
            waiting: slice.queue.waiting() as u64,
            least_progress: slice.queue.least_progress(),
        };
        self.numbers.slices =
            self.slices.iter().map(|(name, held)| (name.clone(), slice(held))).collect();
        let tallies = self.admissions.values().filter_map(|(admission, _)| {
            let held = self.slices.get(&admission.slice)?;
            Some((admission.attempt, held.queue.tally(admission.attempt)))
        });
        self.numbers.attempts = tallies.collect();
        self.context.numbers.write(&self.context.gpu, self.numbers.clone());
    }
}

impl OpenSlice {
    fn open(
        settings: &KernelSettings,
        name: &SliceId,
        owner: Option<PageOwner>,
        (now, remains): (Nanos, SliceRemains),
    ) -> Self {
        // No earlier queue can have reached this epoch: each began at an earlier time, and epochs
        // rise by less than one in a nanosecond.
        let epoch = Epoch::new(now.get());
        let gate = open_page(settings, name, owner, (epoch, now));
        let gate_state = GateState { epoch, launches: 0 };
        let queue = SliceQueue::after(remains, settings.rules, gate_state, now);
        let (heartbeat_at, pinged_at, counted) = (now, now, (0, now));
        let report_need = ReportNeed::Prompt;
        Self { queue, gate, owner, epoch, heartbeat_at, pinged_at, counted, report_need }
    }

    /// Gives the processes of another account their own page. Attempts of the earlier account are over, but the
    /// queue may learn of their ends later than of the next attempt.
    fn change_owner(
        &mut self,
        settings: &KernelSettings,
        name: &SliceId,
        owner: Option<PageOwner>,
        now: Nanos,
    ) {
        if self.owner == owner {
            return;
        }
        if let Some(gate) = self.gate.take() {
            gate.page().close();
        }
        self.owner = owner;
        self.gate = open_page(settings, name, owner, (self.epoch, now));
        self.report_need = ReportNeed::Prompt;
        self.counted = (0, now);
        self.queue.set_launch_count(0);
    }

    fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        if let Some(gate) = &self.gate {
            gate.page().set_epoch(epoch);
        }
    }

    /// Passes on what the page shows.
    fn observe(&mut self) {
        if let Some(gate) = &self.gate {
            self.queue.observe(gate.page().last_launch());
        }
    }

    /// Writes when holders report to the page. Returns whether a holder that reports later now has to report at once.
    fn write_report_need(&mut self) -> bool {
        let need = self.queue.report_need();
        let before = std::mem::replace(&mut self.report_need, need);
        let Some(gate) = self.gate.as_ref().filter(|_| before != need) else { return false };
        let (pace, launches) = match need {
            ReportNeed::Prompt => (ReportPace::Prompt, 0),
            ReportNeed::Soon => (ReportPace::Soon, 0),
            ReportNeed::At(launches) => (ReportPace::Named, launches.unwrap_or(0)),
        };
        gate.page().set_reports(pace, launches);
        match (before, need) {
            // It may not look at the page for some milliseconds.
            (ReportNeed::At(_), ReportNeed::Prompt) => true,
            // That launch may have been made before it was named.
            (_, ReportNeed::At(Some(launches))) => gate.page().gate().launches >= launches,
            _ => false,
        }
    }

    fn write_heartbeat(&mut self, now: Nanos) {
        self.heartbeat_at = now;
        if let Some(gate) = &self.gate {
            gate.page().set_heartbeat(now);
        }
    }

    /// Adopts the page's count of launches once it has not changed for a while.
    fn adopt_launch_count(&mut self, now: Nanos) {
        let Some(gate) = &self.gate else { return };
        let count = gate.page().gate().launches;
        let (seen, since) = self.counted;
        if count != seen {
            self.counted = (count, now);
        } else if since.plus(COUNT_STABLE_AFTER) <= now {
            self.queue.set_launch_count(count);
        }
    }

    /// Returns when the slice must be handled without an event.
    fn next_due(&self) -> Nanos {
        let is_waited_for = self.queue.blocked_sessions().next().is_some();
        let pause = if is_waited_for { HEARTBEAT_EVERY } else { IDLE_HEARTBEAT_EVERY };
        // Half the promised interval, because a timer may be late.
        self.queue.deadline().min(self.heartbeat_at.plus(Nanos::new(pause.get() / 2)))
    }
}

/// Makes a slice's page, which shows an epoch and the heartbeat of now.
fn open_page(
    settings: &KernelSettings,
    name: &SliceId,
    owner: Option<PageOwner>,
    (epoch, now): (Epoch, Nanos),
) -> Option<MappedGate> {
    let gate = MappedGate::serve(&settings.gates, name, owner)
        .inspect_err(|error| {
            tracing::warn!(%error, slice = %name, "the slice has no gate page: only messages end grants");
        })
        .ok()?;
    gate.page().set_epoch(epoch);
    gate.page().set_heartbeat(now);
    gate.page().open();
    Some(gate)
}

/// Code that a test runs within a slice's queue.
#[cfg(test)]
pub struct Injected(pub Box<dyn FnOnce() + Send>);

#[cfg(test)]
impl Injected {
    /// A record in which each queue of this program has a bug.
    pub const RECORD: ShimRecord = ShimRecord::Failed { launch: u64::MAX };

    fn run(self) {
        (self.0)();
    }
}

#[cfg(test)]
impl std::fmt::Debug for Injected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Injected")
    }
}
