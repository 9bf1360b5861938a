//! How a filler launches: under grants, with one decision for each launch.
//!
//! A launch waits until the queue grants it, and none waits for a dead queue. There is no other
//! way, since kernels without a grant cost the holder time.
//!
//! The waiting threads of a process form a queue ([`line`]), so a process with many threads gets as
//! much as one with a single thread.

mod in_flight;
mod line;
mod liveness;
mod signal;
mod state;

use std::sync::atomic::Ordering;
use std::time::Duration;

use tessera_kernel_queue::{
    GapOpening, Grant, GrantBudget, GrantKind, KernelIndex, LaunchDecision, Nanos,
};

use crate::counters::{self, count};
use crate::ring::{self, RecordKind, RingRecord};
use crate::slack::ExactTimers;
use crate::{clock, gate, kernel_catalog, terms};

pub use in_flight::{add_kernel, look, on_context_end, on_refused_launch, on_sync};
pub use liveness::note_frame;
use state::FillerState;

/// Refused launches of this process whose threads have not noticed it yet.
const REFUSED_MAX: usize = 64;

/// Pause before a launch for which the queue had no space is requested again.
const REFUSED_PAUSE: Nanos = Nanos::from_millis(10);

/// How long a thread looks at the gate without sleeping before a gap that was granted ahead. The queue has it woken
/// 100 µs before the gap, or by one launch.
const LOOKS_MAX: Nanos = Nanos::from_micros(500);

/// Longest sleep while a thread waits for a grant, so that a dead queue is noticed in time.
const SLEEP_MAX: Nanos = Nanos::from_millis(4);

/// Allocates all memory that waits will need, so that launches allocate nothing.
pub fn prepare() {
    in_flight::prepare();
    let mut filler = state::lock();
    filler.refused.reserve_exact(REFUSED_MAX + 1);
    filler.line.prepare();
}

/// How a launch may proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchPermit {
    /// Under the grant of this number. `is_aged`: it was given because of a wait, or for an unknown kernel.
    Granted { number: u64, is_aged: bool },
    /// Without a grant: the queue is dead, or it must not wait.
    Ungranted,
    /// As a launch of a session that is no filler any more.
    Free,
}

/// Waits until a launch of `kernel` may proceed.
pub fn acquire(kernel: u32, launch: u64) -> LaunchPermit {
    let begun = clock::now();
    let permit = WaitingLaunch::new(kernel, launch, begun).wait();
    let waited = clock::now().minus(begun).get();
    counters::WAITED_MAX.fetch_max(waited, Ordering::Relaxed);
    permit
}

/// A launch that waits for its permit.
struct WaitingLaunch {
    kernel: u32,
    launch: u64,
    begun: Nanos,
    /// The time after which it is requested again without a grant, in case the request was lost.
    bound: Nanos,
    /// When it was last requested, or may be requested again.
    requested_at: Nanos,
    /// The kernel's index in the last request; `None` before the first request.
    requested: Option<KernelIndex>,
    /// The number of recorded ends that are not announced yet. The next kernel of a grant goes first, since
    /// waking the session's thread may take the processor from this thread.
    unannounced: Unannounced,
    exact_timers: Option<ExactTimers>,
    /// Since when it looks at the gate for the begin of a gap, and the launch from which it does.
    looks: Option<(Nanos, u64)>,
}

/// The next action of a waiting launch.
enum NextStep {
    Launch(LaunchPermit),
    Sleep(Nanos),
    /// Until a holder made so many launches.
    AwaitLaunch(u64),
    Yield,
}

impl WaitingLaunch {
    fn new(kernel: u32, launch: u64, begun: Nanos) -> Self {
        Self {
            kernel,
            launch,
            begun,
            bound: terms::wait_max(),
            requested_at: begun,
            requested: None,
            unannounced: Unannounced(false),
            exact_timers: None,
            looks: None,
        }
    }

    fn wait(mut self) -> LaunchPermit {
        state::lock().line.join(self.launch, self.begun);
        let permit = self.wait_in_line();
        state::lock().line.leave(self.launch, clock::now());
        permit
    }

    fn wait_in_line(&mut self) -> LaunchPermit {
        loop {
            if !terms::is_filler() {
                return LaunchPermit::Free;
            }
            if liveness::is_queue_dead() {
                return LaunchPermit::Ungranted;
            }
            let now = clock::now();
            if liveness::detect_dead_queue(self.begun, now) {
                return LaunchPermit::Ungranted;
            }
            let filler = state::lock();
            if !terms::is_filler() {
                // Looked at with the lock: a change from now on wakes this thread.
                return LaunchPermit::Free;
            }
            if let Some(span) = filler.line.wait_for_turn(self.launch, now) {
                self.unannounced.announce();
                line::sleep(filler, self.launch, span);
                continue;
            }
            drop(filler);
            self.unannounced.0 |= in_flight::record_ends();
            let now = clock::now();
            let mut filler = state::lock();
            let step = self.next_step(&mut filler, now);
            if let NextStep::Launch(permit) = step {
                return permit;
            }
            self.unannounced.announce();
            match step {
                NextStep::Sleep(span) => self.sleep(filler, span, now),
                NextStep::AwaitLaunch(launches) => {
                    drop(filler);
                    self.sleep_until_launch(launches);
                }
                NextStep::Launch(_) | NextStep::Yield => {
                    drop(filler);
                    std::thread::yield_now();
                }
            }
        }
    }

    fn next_step(&mut self, filler: &mut FillerState, now: Nanos) -> NextStep {
        if !terms::is_filler() {
            return NextStep::Launch(LaunchPermit::Free);
        }
        if let Some(at) = filler.refused.iter().position(|refused| *refused == self.launch) {
            filler.refused.remove(at);
            // The queue has no place for it now.
            self.requested_at = now.plus(REFUSED_PAUSE).minus(self.bound);
        }
        let predicted = kernel_catalog::predicted_time(self.kernel);
        let held = filler.budget.grant().copied();
        filler.budget.look(gate::last_launch());
        let grant = filler.budget.grant().copied();
        let decision = filler.budget.spend(predicted, gate::state(), filler.committed(), now);
        let span = match decision {
            LaunchDecision::Launch => {
                filler.departing += 1;
                // The launch itself is announced next.
                self.unannounced.0 = false;
                let permit = grant.map_or(LaunchPermit::Ungranted, |grant| {
                    let is_aged = grant.kind == GrantKind::Aged;
                    LaunchPermit::Granted { number: grant.number, is_aged }
                });
                return NextStep::Launch(permit);
            }
            LaunchDecision::Wait => match grant {
                Some(_) if filler.budget.opening().is_some() && filler.in_flight.is_empty() => {
                    return self.await_gap(filler.budget.opening().copied(), now);
                }
                Some(grant) if now < grant.from => filler.sleep_before(grant.from.minus(now)),
                _ => in_flight::next_look(filler, now),
            },
            LaunchDecision::Request => {
                // The grant stays while only the kernel's time is missing: the queue sends it within a
                // round trip, and the previous kernel runs meanwhile.
                let lacks_time = filler.budget.grant().is_some()
                    && predicted.is_none()
                    && !kernel_catalog::is_defined(self.kernel);
                if lacks_time {
                    self.request(None, now);
                } else {
                    filler.budget.clear();
                    self.request(held, now);
                }
                // The queue grants nothing before it knows the ends of the kernels in flight.
                if filler.in_flight.is_empty() {
                    Some(SLEEP_MAX)
                } else {
                    in_flight::next_look(filler, now)
                }
            }
        };
        span.map_or(NextStep::Yield, NextStep::Sleep)
    }

    /// Requests a grant, and returns `grant`, which does not cover the kernel.
    ///
    /// A new kernel has its index and its predicted time only after the first request. Then the
    /// request is repeated with the index, unless the present grant covers it.
    fn request(&mut self, grant: Option<Grant>, now: Nanos) {
        let index = Some(kernel_catalog::index(self.kernel));
        let is_lost = now.minus(self.requested_at) >= self.bound && self.requested.is_some();
        if self.requested == index && grant.is_none() && !is_lost {
            return;
        }
        self.requested = index;
        self.requested_at = now;
        ring::leave(RingRecord {
            kind: RecordKind::Request,
            kernel: self.kernel,
            launch: self.launch,
            at: now.get(),
            extra: grant.map_or(0, |grant| grant.number.saturating_add(1)),
        });
        self.unannounced.0 = true;
    }

    /// Waits for the begin of a gap that was granted ahead: first for a launch that is near, then without sleeping.
    fn await_gap(&mut self, opening: Option<GapOpening>, now: Nanos) -> NextStep {
        let Some(opening) = opening else { return NextStep::Yield };
        let launches = gate::state().launches;
        if launches < opening.wake {
            return NextStep::AwaitLaunch(opening.wake);
        }
        let (since, wake) = *self.looks.get_or_insert((now, opening.wake));
        if wake != opening.wake {
            self.looks = Some((now, opening.wake));
        } else if now.minus(since) >= LOOKS_MAX {
            return NextStep::AwaitLaunch(opening.launches);
        }
        NextStep::Yield
    }

    fn sleep_until_launch(&mut self, launches: u64) {
        self.exact_timers.get_or_insert_with(ExactTimers::request);
        let number = state::lock().budget.grant().map(|grant| grant.number);
        // Read again: a change before this thread counted as sleeping did not wake it.
        let must_wait = || {
            let filler = state::lock();
            let has_same = filler.budget.grant().map(|grant| grant.number) == number;
            has_same && terms::is_filler() && !liveness::is_queue_dead()
        };
        gate::sleep_until(launches, Duration::from_nanos(SLEEP_MAX.get()), must_wait);
    }

    fn sleep(&mut self, filler: state::FillerGuard, span: Nanos, now: Nanos) {
        self.exact_timers.get_or_insert_with(ExactTimers::request);
        let sleep = span.min(SLEEP_MAX).max(Nanos::new(1));
        let (mut filler, is_over) = state::sleep(filler, Duration::from_nanos(sleep.get()));
        if is_over {
            filler.lateness.observe(clock::now().minus(now).minus(sleep));
        }
    }
}

/// Whether records were left without waking the session's thread. Dropping this wakes it.
struct Unannounced(bool);

impl Unannounced {
    fn announce(&mut self) {
        if std::mem::take(&mut self.0) {
            ring::announce();
        }
    }
}

impl Drop for Unannounced {
    fn drop(&mut self) {
        self.announce();
    }
}

/// Records a launch without a grant: it will be in flight as well.
pub fn depart_ungranted() {
    let mut filler = state::lock();
    filler.departing = filler.departing.saturating_add(1);
}

/// Accepts a grant.
pub fn receive(grant: Grant) {
    state::lock().budget.receive(grant);
    state::wake();
}

/// Accepts a grant of a gap that has not begun.
pub fn receive_ahead(grant: Grant, opening: GapOpening) {
    state::lock().budget.receive_ahead(grant, opening);
    state::wake();
}

/// Ends a grant.
pub fn revoke(number: u64) {
    let mut filler = state::lock();
    let is_held = filler.budget.grant().is_some_and(|grant| grant.number == number);
    if is_held {
        filler.budget.clear();
    }
    drop(filler);
    if is_held {
        // Its thread possibly sleeps on the gate page, and has to request another one.
        gate::wake_sleepers();
    }
}

/// Records a launch that the queue refused: it is requested again after a pause.
pub fn refuse(launch: u64) {
    let mut filler = state::lock();
    if filler.refused.len() >= REFUSED_MAX {
        filler.refused.pop_front();
    }
    filler.refused.push_back(launch);
    drop(filler);
    state::wake();
}

/// Wakes waiting threads after the role changed or the session ended.
pub fn wake() {
    state::wake();
    line::wake_all();
}

/// Begins a session: grants of an earlier session are void.
pub fn begin_session() {
    let mut filler = state::lock();
    filler.budget = GrantBudget::new();
    filler.refused.clear();
    drop(filler);
    liveness::begin_session();
}

/// Counts the outcome of a launch.
pub fn count_permit(permit: LaunchPermit) {
    match permit {
        LaunchPermit::Granted { .. } => count(&counters::GRANTED),
        LaunchPermit::Ungranted => count(&counters::UNGRANTED),
        LaunchPermit::Free => {}
    }
}
