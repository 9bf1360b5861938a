//! How a session that has to ask launches: under grants, one decision a launch, never waiting
//! longer than its bound, and not at all for a queue that is dead.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tessera_kernel_queue::{Grant, Nanos, Purse, Spend};
use tessera_wire::gate::QUEUE_DEAD_AFTER;

use crate::counters::{self, count};
use crate::events::{Event, Pool, Seen};
use crate::ring::{self, Entry, Kind};
use crate::slack::{Exact, Lateness};
use crate::{abi, clock, gate, kernels, session};

/// Most kernels whose end is waited for: far more than a queue lets be in flight.
const IN_FLIGHT_MAX: usize = 128;

/// Launches of this process that the queue refused and whose threads have not seen it yet.
const REFUSED_MAX: usize = 64;

/// How long after its predicted end a kernel is looked at without sleeping. How long before it is
/// learned: as timers are late.
const NEAR_MAX: Nanos = Nanos::from_micros(150);
/// How long to sleep between looks at a kernel that takes longer than predicted.
const LATE: Nanos = Nanos::from_micros(100);
/// How long to sleep at most while waiting for a grant, so that a dead queue is noticed in time.
const SLICE: Nanos = Nanos::from_millis(4);

static ENDS: Pool = Pool::new(abi::EVENT_DISABLE_TIMING, IN_FLIGHT_MAX);

struct Filler {
    purse: Purse,
    in_flight: VecDeque<InFlight>,
    /// Launches that paid and have not said yet what to wait for.
    leaving: u16,
    refused: VecDeque<u64>,
    lateness: Lateness,
}

/// A kernel that was launched and is not known to be done.
#[derive(Clone, Copy)]
struct InFlight {
    launch: u64,
    /// What tells its end; without one it ends when it is predicted to.
    event: Option<Event>,
    predicted_end: Nanos,
}

impl Filler {
    /// Returns how long to sleep for something that lies so far ahead; nothing if timers are too
    /// coarse for what is left.
    fn until_near(&self, ahead: Nanos) -> Option<Nanos> {
        let near = self.lateness.get();
        (ahead > near).then(|| ahead.minus(near))
    }
}

static FILLER: Mutex<Filler> = Mutex::new(Filler {
    purse: Purse::new(),
    in_flight: VecDeque::new(),
    leaving: 0,
    refused: VecDeque::new(),
    lateness: Lateness::new(),
});
static NEWS: Condvar = Condvar::new();

/// Set when a wait ended because nothing was heard of the queue: then no launch waits.
static QUEUE_IS_DEAD: AtomicBool = AtomicBool::new(false);
/// When the queue was taken for dead.
static DEAD_SINCE: AtomicU64 = AtomicU64::new(0);
/// When a frame arrived last.
static HEARD: AtomicU64 = AtomicU64::new(0);

fn filler() -> MutexGuard<'static, Filler> {
    FILLER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the memory that waits will ever need, so that launches take none.
pub fn prepare() {
    ENDS.prepare();
    let mut filler = filler();
    filler.in_flight.reserve_exact(IN_FLIGHT_MAX + 1);
    filler.refused.reserve_exact(REFUSED_MAX + 1);
}

/// How a launch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Under the grant of this number.
    Granted(u64),
    /// Without one: it waited long enough, or must not wait.
    Unasked,
    /// As a launch of a session that need not ask any more.
    Free,
}

/// Waits until a launch of `kernel` may go.
pub fn acquire(kernel: u32, launch: u64) -> Pass {
    let begun = clock::now();
    let pass = wait(kernel, launch, begun);
    let waited = clock::now().minus(begun).get();
    counters::WAITED_MAX.fetch_max(waited, Ordering::Relaxed);
    pass
}

fn wait(kernel: u32, launch: u64, begun: Nanos) -> Pass {
    let bound = session::wait_max();
    // What the queue calls the kernel, as it was asked: nothing yet.
    let mut asked = None;
    let mut exact = None;
    // Whether ends were left to be told: the next kernel of a grant goes first, since waking the
    // session's thread may cost this one its processor.
    let mut untold = Untold(false);
    loop {
        if !session::asks() {
            return Pass::Free;
        }
        if queue_is_dead() {
            return Pass::Unasked;
        }
        untold.0 |= look_and_leave();
        let now = clock::now();
        if now.minus(begun) >= bound {
            return Pass::Unasked;
        }
        if heard_nothing_since(begun) {
            QUEUE_IS_DEAD.store(true, Ordering::Relaxed);
            DEAD_SINCE.store(now.get(), Ordering::Relaxed);
            crate::log::note(format_args!("the queue is silent: launches pass until it is back"));
            return Pass::Unasked;
        }
        let mut filler = filler();
        if let Some(at) = filler.refused.iter().position(|refused| *refused == launch) {
            filler.refused.remove(at);
            return Pass::Unasked;
        }
        let in_flight = u16::try_from(filler.in_flight.len()).unwrap_or(u16::MAX);
        let in_flight = in_flight.saturating_add(filler.leaving);
        let held = filler.purse.grant().copied();
        let until = match filler.purse.spend(kernels::took(kernel), gate::gate(), in_flight, now) {
            Spend::Go => {
                filler.leaving += 1;
                // The launch that follows is announced itself.
                untold.0 = false;
                return held.map_or(Pass::Unasked, |grant| Pass::Granted(grant.number));
            }
            Spend::Wait => match held {
                Some(grant) if now < grant.from => filler.until_near(grant.from.minus(now)),
                _ => next_look(&filler, now),
            },
            Spend::Ask => {
                let beyond = held.map(|grant| grant.number);
                filler.purse.empty();
                // A kernel that is new to the queue has its index, and with it its time, only after
                // the first word of it: asking again says which it is.
                let index = Some(kernels::index(kernel));
                if asked != index || beyond.is_some() {
                    asked = index;
                    let extra = beyond.map_or(0, |number| number.saturating_add(1));
                    ring::leave(Entry { kind: Kind::Want, kernel, launch, at: now.get(), extra });
                    untold.0 = true;
                }
                // The queue gives nothing before it knows that what is in flight has ended.
                if filler.in_flight.is_empty() { Some(SLICE) } else { next_look(&filler, now) }
            }
        };
        untold.tell();
        let Some(until) = until else {
            drop(filler);
            std::thread::yield_now();
            continue;
        };
        exact.get_or_insert_with(Exact::timers);
        let left = bound.minus(now.minus(begun));
        let sleep = until.min(left).min(SLICE).max(Nanos::new(1));
        let slept = NEWS.wait_timeout(filler, Duration::from_nanos(sleep.get()));
        let (mut filler, result) = slept.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            filler.lateness.learn(clock::now().minus(now).minus(sleep));
        }
    }
}

/// Records that were left without waking the session's thread; it is woken at the latest when this
/// is dropped.
struct Untold(bool);

impl Untold {
    fn tell(&mut self) {
        if std::mem::take(&mut self.0) {
            ring::announce();
        }
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Returns how long to sleep until a kernel in flight should be looked at; nothing for at once.
fn next_look(filler: &Filler, now: Nanos) -> Option<Nanos> {
    let first = filler.in_flight.front()?;
    let ahead = first.predicted_end.minus(now);
    if ahead > Nanos::ZERO {
        return filler.until_near(ahead);
    }
    (now.minus(first.predicted_end) >= NEAR_MAX).then_some(LATE)
}

fn heard_nothing_since(begun: Nanos) -> bool {
    let heard = Nanos::new(HEARD.load(Ordering::Relaxed));
    let beat = gate::beat().unwrap_or(Nanos::ZERO);
    is_silent(begun.max(heard), beat, clock::now())
}

/// Tells whether a queue is silent that said something last at `heard` and whose page shows `beat`.
///
/// `now` must be read after the beat: one that came in between would be of the future.
fn is_silent(heard: Nanos, beat: Nanos, now: Nanos) -> bool {
    // A page may hold anything: a beat of the future says nothing.
    let beat = if beat > now { Nanos::ZERO } else { beat };
    now.minus(heard.max(beat)) >= QUEUE_DEAD_AFTER
}

fn queue_is_dead() -> bool {
    if !QUEUE_IS_DEAD.load(Ordering::Relaxed) {
        return false;
    }
    let since = Nanos::new(DEAD_SINCE.load(Ordering::Relaxed));
    let beats = gate::beat().is_some_and(|beat| beat > since && beat <= clock::now());
    let speaks = Nanos::new(HEARD.load(Ordering::Relaxed)) > since;
    if beats || speaks {
        QUEUE_IS_DEAD.store(false, Ordering::Relaxed);
    }
    !(beats || speaks)
}

/// A launch goes without having paid: it is in flight all the same.
pub fn leave_unasked() {
    let mut filler = filler();
    filler.leaving = filler.leaving.saturating_add(1);
}

/// A launch was made, under a grant or unasked: its end is waited for.
pub fn launched(launch: u64, kernel: u32, stream: abi::Handle, per_thread: bool) {
    // While a capture is under way anywhere, no event may be recorded here.
    let event = if session::captures() { None } else { ENDS.take() };
    let event = event.filter(|event| event.record(stream, per_thread));
    let now = clock::now();
    let mut filler = filler();
    filler.leaving = filler.leaving.saturating_sub(1);
    if filler.in_flight.len() >= IN_FLIGHT_MAX {
        return;
    }
    let begins = filler.in_flight.back().map_or(now, |last| now.max(last.predicted_end));
    let predicted_end = begins.plus(kernels::took(kernel).unwrap_or(Nanos::ZERO));
    filler.in_flight.push_back(InFlight { launch, event, predicted_end });
    note(&filler);
}

/// The driver refused a launch: it is not in flight.
pub fn failed() {
    let mut filler = filler();
    filler.leaving = filler.leaving.saturating_sub(1);
    note(&filler);
    drop(filler);
    NEWS.notify_all();
}

/// Looks which kernels have ended, oldest first, and tells.
pub fn look() {
    if look_and_leave() {
        ring::announce();
    }
}

/// As [`look`], but leaves what is told for [`ring::announce`]; returns whether there is anything.
fn look_and_leave() -> bool {
    let mut any = false;
    if session::captures() {
        return any;
    }
    loop {
        let Some(first) = filler().in_flight.pop_front() else { return any };
        // Taken out while the driver is asked: no lock is held then, and no other thread asks
        // about the same kernel.
        let seen = match first.event {
            Some(event) => event.look(),
            None if clock::now() >= first.predicted_end => Seen::Come,
            None => Seen::Ahead,
        };
        match seen {
            Seen::Ahead => {
                let mut filler = filler();
                filler.in_flight.push_front(first);
                note(&filler);
                return any;
            }
            Seen::Come | Seen::Lost => {
                if let (Some(event), Seen::Come) = (first.event, seen) {
                    ENDS.give(event);
                }
                note(&filler());
                let at = clock::now().get();
                let launch = first.launch;
                any |= ring::leave(Entry { kind: Kind::Done, kernel: 0, launch, at, extra: 0 });
                NEWS.notify_all();
            }
        }
    }
}

/// All launches up to `number` are done: the program waited for them. Returns the grant that is
/// given back, because the program turns to other work and others wait.
pub fn synced(number: u64) -> Option<u64> {
    let mut filler = filler();
    while let Some(first) = filler.in_flight.front().copied().filter(|first| first.launch <= number)
    {
        filler.in_flight.pop_front();
        if let Some(event) = first.event {
            ENDS.give(event);
        }
    }
    note(&filler);
    let returned = filler.purse.grant().filter(|grant| grant.yields).map(|grant| grant.number);
    if returned.is_some() {
        filler.purse.empty();
    }
    drop(filler);
    NEWS.notify_all();
    returned
}

fn note(filler: &Filler) {
    let count = filler.in_flight.len() + usize::from(filler.leaving);
    counters::IN_FLIGHT.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
}

/// The context is gone, and with it events and what was in flight.
pub fn forget() {
    ENDS.forget();
    let mut filler = filler();
    filler.in_flight.clear();
    note(&filler);
}

/// A frame arrived.
pub fn heard() {
    HEARD.store(clock::now().get(), Ordering::Relaxed);
}

/// A grant arrived.
pub fn receive(grant: Grant) {
    filler().purse.receive(grant);
    NEWS.notify_all();
}

/// A grant is over.
pub fn revoke(number: u64) {
    let mut filler = filler();
    if filler.purse.grant().is_some_and(|grant| grant.number == number) {
        filler.purse.empty();
    }
}

/// The queue refused a launch: it goes unasked.
pub fn refuse(launch: u64) {
    let mut filler = filler();
    if filler.refused.len() >= REFUSED_MAX {
        filler.refused.pop_front();
    }
    filler.refused.push_back(launch);
    drop(filler);
    NEWS.notify_all();
}

/// The role changed, or the session is over: who waits looks again.
pub fn wake() {
    NEWS.notify_all();
}

/// A session begins: what was granted in another one is void.
pub fn begin_session() {
    let mut filler = filler();
    filler.purse = Purse::new();
    filler.refused.clear();
    drop(filler);
    QUEUE_IS_DEAD.store(false, Ordering::Relaxed);
    heard();
}

/// Counts how a launch went.
pub fn tally(pass: Pass) {
    match pass {
        Pass::Granted(_) => count(&counters::GRANTED),
        Pass::Unasked => count(&counters::UNASKED),
        Pass::Free => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_silent_from_its_last_word_or_beat_and_not_by_a_beat_of_the_future() {
        let dead = QUEUE_DEAD_AFTER;
        let at = Nanos::from_millis(1_000);
        assert!(!is_silent(at, Nanos::ZERO, at.plus(dead).minus(Nanos::new(1))));
        assert!(is_silent(at, Nanos::ZERO, at.plus(dead)));
        assert!(!is_silent(at, at.plus(dead), at.plus(dead)));
        assert!(is_silent(at, Nanos::MAX, at.plus(dead)));
    }
}
