//! The registry of the endpoint's thread: slices, admissions and sessions.
//!
//! No method waits, so that other tasks on the thread never see a partial change.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use tessera_frames::gate::{HEARTBEAT_EVERY, IDLE_HEARTBEAT_EVERY};
use tessera_frames::kernel::{
    Farewell, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, SessionEnd, ShimHello, ShimRecord,
    ShimWelcome, ToShim,
};
use tessera_kernel_queue::{Epoch, GateState, Nanos, SessionId};
use tessera_model::{AttemptId, SliceId};
use tokio::sync::mpsc;

use super::files;
use super::gate::{self, MappedGate};
use super::outbox::FrameOutbox;
use super::timer::Timer;
use super::{
    EndpointNumbers, KernelEvent, KernelOrder, KernelSettings, SharedNumbers, SliceNumbers, Token,
};
use crate::sys::clock::monotonic_now;
use tessera_agent_core::kernel::slice::{SliceEffect, SliceQueue};
use tessera_agent_core::kernel::{Admission, PageOwner};

/// A count of launches that is unchanged for so long was reported, or never will be.
const COUNT_STABLE_AFTER: Nanos = Nanos::from_millis(5);
/// Longest interval between pings to shims with waiting launches.
const PING_EVERY: Nanos = Nanos::from_millis(10);
/// Interval between updates of the shared numbers.
const NUMBERS_EVERY: Nanos = Nanos::from_millis(1_000);
/// Free capacity for events that is required before a slice's tasks are sent.
const EVENTS_FREE_MIN: usize = 2 * tessera_kernel_queue::limits::TASKS_MAX;

struct RegisteredSlice {
    queue: SliceQueue,
    gate: Option<MappedGate>,
    heartbeat_at: Nanos,
    pinged_at: Nanos,
    /// The page's count of launches, and when it last changed.
    counted: (u64, Nanos),
}

struct RegisteredSession {
    slice: SliceId,
    attempt: AttemptId,
    process: u64,
    outbox: Rc<FrameOutbox>,
}

/// The registry of slices, admissions and sessions.
pub struct QueueRegistry {
    settings: KernelSettings,
    events: mpsc::Sender<KernelEvent>,
    shared_numbers: SharedNumbers,
    timer: Rc<Timer>,
    admissions: BTreeMap<AttemptId, (Admission, Token)>,
    slices: BTreeMap<SliceId, RegisteredSlice>,
    sessions_by_id: BTreeMap<SessionId, RegisteredSession>,
    next_session: u64,
    numbers: EndpointNumbers,
    numbers_at: Nanos,
    effects: Vec<SliceEffect>,
}

impl QueueRegistry {
    pub fn new(
        settings: KernelSettings,
        events: mpsc::Sender<KernelEvent>,
        shared_numbers: SharedNumbers,
        timer: Rc<Timer>,
    ) -> Self {
        Self {
            settings,
            events,
            shared_numbers,
            timer,
            admissions: BTreeMap::new(),
            slices: BTreeMap::new(),
            sessions_by_id: BTreeMap::new(),
            // Numbers of an earlier agent's sessions must not be used again.
            next_session: monotonic_now().get(),
            numbers: EndpointNumbers::default(),
            numbers_at: Nanos::ZERO,
            effects: Vec::new(),
        }
    }

    /// Admits all attempts again after a bug ended the endpoint.
    pub fn resume(&mut self, restarts: u64) {
        self.numbers.restarts = restarts;
        for (admission, token) in files::read_live_admissions(&self.settings.data, |_| true) {
            self.handle_order(KernelOrder::Admit { admission, token });
        }
    }

    /// Runs code of one slice's queue. If a bug ends it, this queue starts again and its sessions come back.
    /// Other slices don't notice.
    fn guarded<T>(
        &mut self,
        name: &SliceId,
        work: impl FnOnce(&mut RegisteredSlice) -> T,
    ) -> Option<T> {
        let slice = self.slices.get_mut(name)?;
        let done = catch_unwind(AssertUnwindSafe(|| work(slice))).ok();
        if done.is_none() {
            self.restart_slice(name);
        }
        done
    }

    fn restart_slice(&mut self, name: &SliceId) {
        self.numbers.restarts += 1;
        tracing::error!(slice = %name, "a bug ended the queue of a slice: it starts again");
        self.slices.remove(name);
        self.effects.clear();
        self.sessions_by_id.retain(|_, registered| {
            let is_other = registered.slice != *name;
            if !is_other {
                registered.outbox.close(SessionEnd::Stopping);
            }
            is_other
        });
        let of_slice = |(admission, _): &&(Admission, Token)| admission.slice == *name;
        let used: Vec<_> = self.admissions.values().filter(of_slice).cloned().collect();
        for (admission, _) in used {
            let slice = self.open_slice(name, admission.owner);
            slice.queue.admit(&admission, monotonic_now());
        }
    }

    pub fn handle_order(&mut self, order: KernelOrder) {
        match order {
            KernelOrder::Admit { admission, token } => {
                tracing::debug!(attempt = %admission.attempt, slice = %admission.slice, task = %admission.task, "admitted to the kernel queue");
                let (slice, now) = (admission.slice.clone(), monotonic_now());
                self.open_slice(&slice, admission.owner).queue.admit(&admission, now);
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
        }
    }

    /// Begins a session for a process.
    pub fn add_session(
        &mut self,
        hello: &ShimHello,
    ) -> Result<(SessionId, ShimWelcome, Rc<FrameOutbox>), Farewell> {
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
        // Drivers name whole devices in several ways, and MIG devices in one.
        if hello.device.starts_with("MIG-") && hello.device != admission.slice.as_str() {
            return refuse(SessionEnd::WrongDevice, false);
        }
        let key = (admission.attempt, hello.process);
        let twin = self
            .sessions_by_id
            .iter()
            .find(|(_, registered)| (registered.attempt, registered.process) == key);
        if let Some(twin) = twin.map(|(session, _)| *session) {
            self.end_session(twin, SessionEnd::Replaced);
        }
        let now = monotonic_now();
        let session = SessionId::new(self.next_session);
        self.next_session += 1;
        let protocol = hello.protocol.min(PROTOCOL_VERSION);
        let slice = self.open_slice(&admission.slice, admission.owner);
        let Ok(welcome) = slice.queue.add_session(session, &admission, protocol, now) else {
            return refuse(SessionEnd::Full, true);
        };
        let outbox = Rc::new(FrameOutbox::default());
        let registered = RegisteredSession {
            slice: admission.slice.clone(),
            attempt: admission.attempt,
            process: hello.process,
            outbox: Rc::clone(&outbox),
        };
        self.sessions_by_id.insert(session, registered);
        tracing::debug!(session = session.get(), attempt = %admission.attempt, pid = hello.pid, role = ?welcome.role, "a process joined the kernel queue");
        self.carry_out(&admission.slice, now);
        Ok((session, welcome, outbox))
    }

    /// Handles a session's records.
    pub fn add_records(&mut self, session: SessionId, records: Vec<ShimRecord>) {
        let Some(registered) = self.sessions_by_id.get(&session) else { return };
        let name = registered.slice.clone();
        let now = monotonic_now();
        let work = |slice: &mut RegisteredSlice| slice.queue.add_records(session, records, now);
        let Some(goes_on) = self.guarded(&name, work) else { return };
        self.carry_out(&name, now);
        if !goes_on {
            self.end_session(session, SessionEnd::Gone);
        }
    }

    /// Ends a session.
    pub fn end_session(&mut self, session: SessionId, why: SessionEnd) {
        let Some(registered) = self.sessions_by_id.remove(&session) else { return };
        registered.outbox.close(why);
        let now = monotonic_now();
        self.guarded(&registered.slice, |slice| slice.queue.remove_session(session, now));
        self.carry_out(&registered.slice, now);
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
        let names: Vec<_> = self.slices.keys().cloned().collect();
        for name in names {
            self.guarded(&name, |slice| slice.queue.tick(now));
            if let Some(slice) = self.slices.get_mut(&name) {
                slice.adopt_launch_count(now);
                if slice.pinged_at.plus(PING_EVERY) <= now {
                    slice.pinged_at = now;
                    for session in slice.queue.blocked_sessions() {
                        if let Some(registered) = self.sessions_by_id.get(&session) {
                            registered.outbox.push(ToShim::Ping);
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
        self.sessions_by_id
            .values()
            .for_each(|registered| registered.outbox.close(SessionEnd::Stopping));
        self.sessions_by_id.clear();
    }

    fn end_attempt(&mut self, attempt: AttemptId) {
        let Some((admission, _)) = self.admissions.remove(&attempt) else { return };
        let name = admission.slice;
        let sessions = self.slices.get(&name).map(|slice| slice.queue.sessions_of(attempt));
        for session in sessions.unwrap_or_default() {
            self.end_session(session, SessionEnd::Attempt);
        }
        if let Some(slice) = self.slices.get_mut(&name) {
            let tally = Box::new(slice.queue.remove_attempt(attempt, monotonic_now()));
            tracing::debug!(%attempt, launches = tally.counters.launches, "an attempt left the kernel queue");
            let _ = self.events.try_send(KernelEvent::Over { attempt, tally });
        }
        self.carry_out(&name, monotonic_now());
        let is_used = |name: &SliceId| {
            self.admissions.values().any(|(admission, _)| admission.slice == *name)
        };
        if !is_used(&name) {
            self.send_learned(&name);
            if let Some(gate) = self.slices.remove(&name).and_then(|slice| slice.gate) {
                gate.page().close();
                let _ = std::fs::remove_file(gate::path(&self.settings.gates, &name));
            }
        }
        self.set_timer();
    }

    /// Returns a slice, which is opened if necessary.
    fn open_slice(&mut self, name: &SliceId, owner: Option<PageOwner>) -> &mut RegisteredSlice {
        let (settings, now) = (&self.settings, monotonic_now());
        self.slices
            .entry(name.clone())
            .or_insert_with(|| RegisteredSlice::open(settings, name, owner, now))
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
        let mut closed = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                SliceEffect::Send(session, frame) => {
                    if let Some(registered) = self.sessions_by_id.get(&session) {
                        registered.outbox.push(frame);
                    }
                }
                SliceEffect::Gate(epoch) => slice.set_epoch(epoch),
                SliceEffect::Close(session, why) => closed.push((session, why)),
            }
        }
        self.effects = effects;
        for (session, why) in closed {
            if let Some(registered) = self.sessions_by_id.remove(&session) {
                registered.outbox.close(why);
            }
        }
        self.send_learned(name);
        self.set_timer();
    }

    fn send_learned(&mut self, name: &SliceId) {
        let Some(slice) = self.slices.get_mut(name) else { return };
        if !slice.queue.has_news() || self.events.capacity() < EVENTS_FREE_MIN {
            return;
        }
        for (task, learned) in slice.queue.take_learned() {
            let _ = self.events.try_send(KernelEvent::Learned { task, learned: Box::new(learned) });
        }
    }

    fn set_timer(&self) {
        let next = self.slices.values().map(RegisteredSlice::next_due).min();
        let numbers = self.numbers_at.plus(NUMBERS_EVERY);
        self.timer.set(next.map_or(numbers, |next| next.min(numbers)));
    }

    /// Publishes the shared numbers.
    fn publish_numbers(&mut self) {
        let slice = |slice: &RegisteredSlice| SliceNumbers {
            counters: *slice.queue.counters(),
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
        self.shared_numbers.write(self.numbers.clone());
    }
}

impl RegisteredSlice {
    fn open(
        settings: &KernelSettings,
        name: &SliceId,
        owner: Option<PageOwner>,
        now: Nanos,
    ) -> Self {
        let gate = MappedGate::open(&settings.gates, name, owner)
            .inspect_err(|error| {
                tracing::warn!(%error, slice = %name, "the slice has no gate page: only messages end grants");
            })
            .ok();
        // No earlier queue can have reached this epoch: each began at an earlier time, and epochs
        // rise by less than one in a nanosecond. The page itself may hold any number.
        let epoch = Epoch::new(now.get());
        let launches = gate.as_ref().map_or(0, |gate| gate.page().gate().launches);
        if let Some(gate) = &gate {
            gate.page().set_epoch(epoch);
            gate.page().set_heartbeat(now);
            gate.page().open();
        }
        let queue = SliceQueue::new(settings.rules, GateState { epoch, launches }, now);
        Self { queue, gate, heartbeat_at: now, pinged_at: now, counted: (launches, now) }
    }

    fn set_epoch(&self, epoch: Epoch) {
        if let Some(gate) = &self.gate {
            gate.page().set_epoch(epoch);
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

#[cfg(test)]
mod tests {
    use tessera_kernel_queue::{QueueRules, TaskKey};
    use tessera_model::spec::{Class, Priority};

    use super::*;

    fn hello(token: u8, process: u64) -> ShimHello {
        ShimHello {
            protocol: PROTOCOL_VERSION,
            token: [token; 32],
            pid: std::process::id(),
            process,
            device: "GPU-0".to_owned(),
            driver: 12_040,
        }
    }

    #[tokio::test]
    async fn a_bug_in_one_slices_queue_ends_its_sessions_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let settings = KernelSettings {
            shim: folder.path().join("shim"),
            rules: QueueRules::default(),
            data: folder.path().join("data"),
            gates: folder.path().join("gates"),
        };
        let (events, _received) = mpsc::channel(1_024);
        let timer = Rc::new(Timer::new().unwrap());
        let mut registry = QueueRegistry::new(settings, events, SharedNumbers::default(), timer);
        let slices: [SliceId; 2] = ["GPU-1", "GPU-2"].map(|name| name.parse().unwrap());
        for (number, slice) in (1_u8..).zip(&slices) {
            let admission = Admission {
                attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(number.into())),
                slice: slice.clone(),
                task: TaskKey::new("task").unwrap(),
                priority: Priority::DEFAULT,
                class: Class::Offline,
                share_thousandths: 1_000,
                owner: None,
            };
            registry.handle_order(KernelOrder::Admit { admission, token: Token([number; 32]) });
        }
        let (_, _, first) = registry.add_session(&hello(1, 7)).unwrap();
        let (_, _, second) = registry.add_session(&hello(2, 8)).unwrap();

        let done = registry.guarded(&slices[0], |_| panic!("a bug"));

        assert_eq!(done, None::<()>);
        assert_eq!(first.end(), Some(SessionEnd::Stopping), "it connects again");
        assert_eq!(second.end(), None);
        assert_eq!(registry.numbers.restarts, 1);
        assert!(registry.add_session(&hello(1, 7)).is_ok(), "its queue is back");
        assert_eq!(registry.slices.len(), 2);
    }
}
