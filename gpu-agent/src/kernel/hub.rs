//! Everything that lives on the endpoint's thread: slices, admissions, sessions.
//!
//! Each method runs to its end without waiting, so that nothing else on the thread sees it half
//! done.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_kernel_queue::{Epoch, Gate as GateView, Nanos, SessionId};
use tessera_model::{AttemptId, SliceId};
use tessera_wire::gate::{BEAT_EVERY, IDLE_BEAT_EVERY};
use tessera_wire::kernel::{
    Ended, Farewell, Hello, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, Record, ToShim, Welcome,
};
use tokio::sync::mpsc;

use super::gate::{self, Gate};
use super::outbox::Outbox;
use super::timer::Timer;
use super::{Board, KernelEvent, KernelOrder, KernelSettings, Numbers, SliceNumbers, Token};
use crate::core::kernel::Admission;
use crate::core::kernel::slice::{Effect, SliceQueue};
use crate::sys::clock::monotonic_now;

/// A count of launches that stands still for so long was told of, or never will be.
const COUNT_STANDS: Nanos = Nanos::from_millis(5);
/// Shims whose launches wait hear from the queue at least so often.
const PING_EVERY: Nanos = Nanos::from_millis(10);
/// How often the numbers for others are brought up to date.
const NUMBERS_EVERY: Nanos = Nanos::from_millis(1_000);
/// Room among the events that must be left before anything is told: a slice's tasks at once.
const EVENTS_ROOM: usize = 2 * tessera_kernel_queue::limits::TASKS_MAX;

struct Slice {
    queue: SliceQueue,
    gate: Option<Gate>,
    beat: Nanos,
    pinged: Nanos,
    /// The page's count of launches, and since when it is that.
    counted: (u64, Nanos),
}

struct Seat {
    slice: SliceId,
    attempt: AttemptId,
    process: u64,
    outbox: Rc<Outbox>,
}

/// The state of the endpoint.
pub struct Hub {
    settings: KernelSettings,
    events: mpsc::Sender<KernelEvent>,
    board: Board,
    timer: Rc<Timer>,
    admissions: BTreeMap<AttemptId, (Admission, Token)>,
    slices: BTreeMap<SliceId, Slice>,
    seats: BTreeMap<SessionId, Seat>,
    next_session: u64,
    numbers: Numbers,
    numbers_at: Nanos,
    effects: Vec<Effect>,
}

impl Hub {
    pub fn new(
        settings: KernelSettings,
        events: mpsc::Sender<KernelEvent>,
        board: Board,
        timer: Rc<Timer>,
    ) -> Self {
        Self {
            settings,
            events,
            board,
            timer,
            admissions: BTreeMap::new(),
            slices: BTreeMap::new(),
            seats: BTreeMap::new(),
            // Sessions of an earlier agent must never be taken for one of these.
            next_session: monotonic_now().get(),
            numbers: Numbers::default(),
            numbers_at: Nanos::ZERO,
            effects: Vec::new(),
        }
    }

    pub fn obey(&mut self, order: KernelOrder) {
        match order {
            KernelOrder::Admit { admission, token } => {
                tracing::debug!(attempt = %admission.attempt, slice = %admission.slice, task = %admission.task, "admitted to the kernel queue");
                self.slice(&admission.slice.clone());
                self.admissions.insert(admission.attempt, (admission, token));
            }
            KernelOrder::Ended(attempt) => self.end(attempt),
            KernelOrder::Learn { task, profile } => {
                let now = monotonic_now();
                for slice in self.slices.values_mut() {
                    slice.queue.learn(&task, (*profile).clone(), now);
                }
                self.settle();
            }
        }
    }

    /// Gives a process a session.
    pub fn join(&mut self, hello: &Hello) -> Result<(SessionId, Welcome, Rc<Outbox>), Farewell> {
        let refuse = |why, again| Err(Farewell { why, again });
        if hello.protocol < PROTOCOL_VERSION_MIN {
            let (oldest, newest) = (PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
            return refuse(Ended::Protocol { oldest, newest }, false);
        }
        // Every token is looked at, so that the time says nothing about where the right one stands.
        let found = self.admissions.values().fold(None, |found, (admission, token)| {
            if token.is(&hello.token) { Some(admission) } else { found }
        });
        let Some(admission) = found else {
            // An agent that has just started may not have been told of it yet.
            return refuse(Ended::Unknown, true);
        };
        let admission = admission.clone();
        // Drivers name whole devices in several ways, and MIG devices in one.
        if hello.device.starts_with("MIG-") && hello.device != admission.slice.as_str() {
            return refuse(Ended::WrongDevice, false);
        }
        let key = (admission.attempt, hello.process);
        let twin = self.seats.iter().find(|(_, seat)| (seat.attempt, seat.process) == key);
        if let Some(twin) = twin.map(|(session, _)| *session) {
            self.leave(twin, Ended::Replaced);
        }
        let now = monotonic_now();
        let session = SessionId::new(self.next_session);
        self.next_session += 1;
        let protocol = hello.protocol.min(PROTOCOL_VERSION);
        let slice = self.slice(&admission.slice);
        let Ok(welcome) = slice.queue.join(session, &admission, protocol, now) else {
            return refuse(Ended::Full, true);
        };
        let outbox = Rc::new(Outbox::default());
        let seat = Seat {
            slice: admission.slice.clone(),
            attempt: admission.attempt,
            process: hello.process,
            outbox: Rc::clone(&outbox),
        };
        self.seats.insert(session, seat);
        tracing::debug!(session = session.get(), attempt = %admission.attempt, pid = hello.pid, role = ?welcome.role, "a process joined the kernel queue");
        self.flush(&admission.slice, now);
        Ok((session, welcome, outbox))
    }

    /// Takes a session's records in.
    pub fn records(&mut self, session: SessionId, records: Vec<Record>) {
        let Some(seat) = self.seats.get(&session) else { return };
        let name = seat.slice.clone();
        let Some(slice) = self.slices.get_mut(&name) else { return };
        let now = monotonic_now();
        let goes_on = slice.queue.records(session, records, now);
        self.flush(&name, now);
        if !goes_on {
            self.leave(session, Ended::Gone);
        }
    }

    /// Ends a session.
    pub fn leave(&mut self, session: SessionId, why: Ended) {
        let Some(seat) = self.seats.remove(&session) else { return };
        seat.outbox.close(why);
        if let Some(slice) = self.slices.get_mut(&seat.slice) {
            let now = monotonic_now();
            slice.queue.leave(session, now);
            self.flush(&seat.slice, now);
        }
    }

    /// Notes a connection that got no session, or lost it for what it sent.
    pub const fn note_refused(&mut self, nonsense: bool) {
        self.numbers.refused += 1;
        if nonsense {
            self.numbers.nonsense += 1;
        }
    }

    /// The timer went off.
    pub fn tick(&mut self) {
        let now = monotonic_now();
        let names: Vec<_> = self.slices.keys().cloned().collect();
        for name in names {
            if let Some(slice) = self.slices.get_mut(&name) {
                slice.queue.tick(now);
                slice.recount(now);
                if slice.pinged.plus(PING_EVERY) <= now {
                    slice.pinged = now;
                    for session in slice.queue.held_back() {
                        if let Some(seat) = self.seats.get(&session) {
                            seat.outbox.push(ToShim::Ping);
                        }
                    }
                }
            }
            self.flush(&name, now);
        }
        if self.numbers_at.plus(NUMBERS_EVERY) <= now {
            self.numbers_at = now;
            self.post();
        }
        self.set_timer();
    }

    /// Ends all sessions: the agent stops, and its jobs go on.
    pub fn stop(&mut self) {
        self.seats.values().for_each(|seat| seat.outbox.close(Ended::Stopping));
        self.seats.clear();
    }

    fn end(&mut self, attempt: AttemptId) {
        let Some((admission, _)) = self.admissions.remove(&attempt) else { return };
        let name = admission.slice;
        let sessions = self.slices.get(&name).map(|slice| slice.queue.sessions_of(attempt));
        for session in sessions.unwrap_or_default() {
            self.leave(session, Ended::Attempt);
        }
        if let Some(slice) = self.slices.get_mut(&name) {
            let tally = Box::new(slice.queue.forget(attempt));
            tracing::debug!(%attempt, launches = tally.counters.launches, "an attempt left the kernel queue");
            let _ = self.events.try_send(KernelEvent::Over { attempt, tally });
        }
        let is_used = |name: &SliceId| {
            self.admissions.values().any(|(admission, _)| admission.slice == *name)
        };
        if !is_used(&name) {
            self.tell_learned(&name);
            if let Some(gate) = self.slices.remove(&name).and_then(|slice| slice.gate) {
                gate.page().close();
                let _ = std::fs::remove_file(gate::path(&self.settings.gates, &name));
            }
        }
        self.set_timer();
    }

    /// Returns a slice's queue, begun if there is none.
    fn slice(&mut self, name: &SliceId) -> &mut Slice {
        let (settings, now) = (&self.settings, monotonic_now());
        self.slices.entry(name.clone()).or_insert_with(|| Slice::open(settings, name, now))
    }

    fn settle(&mut self) {
        let now = monotonic_now();
        let names: Vec<_> = self.slices.keys().cloned().collect();
        names.iter().for_each(|name| self.flush(name, now));
    }

    /// Carries out what a slice's queue wants done.
    fn flush(&mut self, name: &SliceId, now: Nanos) {
        let Some(slice) = self.slices.get_mut(name) else { return };
        slice.beat(now);
        let mut effects = std::mem::take(&mut self.effects);
        slice.queue.take_effects(&mut effects);
        let mut closed = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(session, frame) => {
                    if let Some(seat) = self.seats.get(&session) {
                        seat.outbox.push(frame);
                    }
                }
                Effect::Gate(epoch) => slice.set_epoch(epoch),
                Effect::Close(session, why) => closed.push((session, why)),
            }
        }
        self.effects = effects;
        for (session, why) in closed {
            if let Some(seat) = self.seats.remove(&session) {
                seat.outbox.close(why);
            }
        }
        self.tell_learned(name);
        self.set_timer();
    }

    fn tell_learned(&mut self, name: &SliceId) {
        let Some(slice) = self.slices.get_mut(name) else { return };
        if !slice.queue.has_news() || self.events.capacity() < EVENTS_ROOM {
            return;
        }
        for (task, learned) in slice.queue.take_learned() {
            let _ = self.events.try_send(KernelEvent::Learned { task, learned: Box::new(learned) });
        }
    }

    fn set_timer(&self) {
        let next = self.slices.values().map(Slice::next).min();
        let numbers = self.numbers_at.plus(NUMBERS_EVERY);
        self.timer.set(next.map_or(numbers, |next| next.min(numbers)));
    }

    /// Brings the numbers for others up to date.
    fn post(&mut self) {
        let slice = |slice: &Slice| SliceNumbers {
            counters: *slice.queue.counters(),
            roles: slice.queue.roles(),
            waiting: u64::try_from(slice.queue.waiting()).unwrap_or(u64::MAX),
            least_progress: slice.queue.least_progress(),
        };
        self.numbers.slices =
            self.slices.iter().map(|(name, held)| (name.clone(), slice(held))).collect();
        let tallies = self.admissions.values().filter_map(|(admission, _)| {
            let held = self.slices.get(&admission.slice)?;
            Some((admission.attempt, held.queue.tally(admission.attempt)))
        });
        self.numbers.attempts = tallies.collect();
        self.board.write(self.numbers.clone());
    }
}

impl Slice {
    fn open(settings: &KernelSettings, name: &SliceId, now: Nanos) -> Self {
        let gate = Gate::open(&settings.gates, name)
            .inspect_err(|error| {
                tracing::warn!(%error, slice = %name, "the slice does without a gate page");
            })
            .ok();
        // An epoch that no queue before this one can have reached: they began at earlier moments,
        // and rise by less than one in a nanosecond. What stands on the page may be anything.
        let epoch = Epoch::new(now.get());
        let launches = gate.as_ref().map_or(0, |gate| gate.page().gate().launches);
        if let Some(gate) = &gate {
            gate.page().set_epoch(epoch);
            gate.page().set_beat(now);
            gate.page().open();
        }
        let queue = SliceQueue::new(settings.rules, GateView { epoch, launches }, now);
        Self { queue, gate, beat: now, pinged: now, counted: (launches, now) }
    }

    fn set_epoch(&self, epoch: Epoch) {
        if let Some(gate) = &self.gate {
            gate.page().set_epoch(epoch);
        }
    }

    fn beat(&mut self, now: Nanos) {
        self.beat = now;
        if let Some(gate) = &self.gate {
            gate.page().set_beat(now);
        }
    }

    /// Takes the page's count over once it stood still.
    fn recount(&mut self, now: Nanos) {
        let Some(gate) = &self.gate else { return };
        let count = gate.page().gate().launches;
        let (seen, since) = self.counted;
        if count != seen {
            self.counted = (count, now);
        } else if since.plus(COUNT_STANDS) <= now {
            self.queue.count_launches(count);
        }
    }

    /// Returns when the slice has something to do by itself.
    fn next(&self) -> Nanos {
        let is_waited_for = self.queue.held_back().next().is_some();
        let pause = if is_waited_for { BEAT_EVERY } else { IDLE_BEAT_EVERY };
        // Half of what is promised: a timer is never early.
        self.queue.deadline().min(self.beat.plus(Nanos::new(pause.get() / 2)))
    }
}
