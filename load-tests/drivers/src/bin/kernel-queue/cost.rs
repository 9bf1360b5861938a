//! Measures what one decision costs on this machine, and that it allocates no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tessera_kernel_queue::limits::{LEVELS, WAITING_MAX};
use tessera_kernel_queue::waiting::{WaitStart, WaitingLaunches};
use tessera_kernel_queue::{
    Dims, Join, KernelId, KernelIndex, KernelQueue, Nanos, QueueEvent, QueueRules, SessionId,
    TaskKey, TaskProfile,
};
use tessera_load_tests::machine::Spread;
use tessera_model::spec::{Class, Priority};
use tessera_predict::random::SeededRng;

/// Counts the program's allocations.
struct Counting;

static TAKEN: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KERNEL: KernelIndex = KernelIndex::new(0);

/// Times every case and returns a line for each.
pub fn measure(decisions: usize) -> Value {
    json!({
        "reading_the_clock": case(decisions, |_| {}),
        "best_fit_640_waiting_first_queue_fits": best_fit(decisions, 0),
        "best_fit_640_waiting_only_the_last_queue_fits": best_fit(decisions, 9),
        "best_fit_640_waiting_nothing_fits": best_fit(decisions, 10),
        "step_launch_nobody_waits": launch(decisions, 0),
        "step_launch_that_ends_a_gap_and_grants_the_next_54_wait": launch(decisions, 1),
        "step_launch_that_ends_a_gap_and_grants_the_next_540_wait": launch(decisions, 10),
    })
}

/// Times one action the given number of times, each by itself.
fn case(decisions: usize, mut decide: impl FnMut(usize)) -> Value {
    let mut times = Vec::with_capacity(decisions);
    let mut taken = 0;
    for round in 0..decisions {
        let before = TAKEN.load(Ordering::Relaxed);
        let begun = Instant::now();
        decide(round);
        let took = begun.elapsed();
        taken += TAKEN.load(Ordering::Relaxed) - before;
        times.push(took.as_secs_f64() * 1e9);
    }
    let spread = Spread::of(times);
    json!({
        "median_ns": spread.at(500).round(),
        "p99_ns": spread.at(990).round(),
        "allocations": taken,
    })
}

/// Returns the priority of one of the ten levels.
fn priority_of(level: u64) -> Priority {
    let level = u8::try_from(level).expect("there are ten levels");
    Priority::try_from(level).expect("there are ten levels")
}

/// Ten full queues; launches of queues above `fits` are too long for the gap.
fn best_fit(decisions: usize, fits: usize) -> Value {
    let mut rng = SeededRng::new(1);
    let mut waiting = WaitingLaunches::default();
    for level in 0..LEVELS {
        let priority = priority_of(level as u64);
        for slot in 0..WAITING_MAX {
            let long = if level < fits { 10_000 } else { 0 };
            let time = Nanos::from_micros(20 + long + rng.below(900));
            let launch = slot as u64;
            let session = SessionId::new(level as u64);
            waiting
                .push(priority, (session, launch), KERNEL, Some(time), WaitStart::default())
                .expect("the queue is not full");
        }
    }
    let mut found = 0_usize;
    let result = case(decisions, |_| {
        let idle = Nanos::from_micros(500 + rng.below(1_000));
        if let Some(request) = waiting.best_fit(idle) {
            found += 1;
            let priority = priority_of(request.session.get());
            waiting.put_back(priority, request).expect("the queue is not full");
        }
    });
    assert_eq!(
        found,
        if fits < LEVELS { decisions } else { 0 },
        "the case is what its name states"
    );
    result
}

/// A holder whose every launch ends a filled gap; six fillers at each lower priority, with so
/// many launches waiting each.
fn launch(decisions: usize, waiting_each: u64) -> Value {
    let mut queue = KernelQueue::new(QueueRules { ageing: None, ..QueueRules::default() });
    join(&mut queue, 0, priority_of(0), Nanos::from_micros(50), Nanos::from_millis(2));
    for filler in 1..=54 {
        let priority = priority_of(1 + (filler - 1) / 6);
        join(&mut queue, filler, priority, Nanos::from_micros(30 + 17 * filler), Nanos::ZERO);
        for launch in 0..waiting_each {
            let session = SessionId::new(filler);
            let request = QueueEvent::Request { session, launch, kernel: KERNEL, beyond: None };
            queue.step(request, Nanos::ZERO);
        }
    }
    let holder = SessionId::new(0);
    let mut now = Nanos::ZERO;
    let result = case(decisions, |round| {
        now = now.plus(Nanos::from_micros(900));
        let count = round as u64;
        queue.step(
            QueueEvent::Launch { session: holder, launch: count, kernel: KERNEL, count },
            now,
        );
        // No lease may expire while this is measured.
        if round % 1_000 == 0 {
            for filler in 1..=54 {
                queue.step(QueueEvent::Alive { session: SessionId::new(filler) }, now);
            }
        }
    });
    let granted = queue.counters().grants >= decisions as u64;
    assert_eq!(granted, waiting_each > 0, "the case is what its name states");
    result
}

fn join(queue: &mut KernelQueue, session: u64, priority: Priority, took: Nanos, gap: Nanos) {
    let task = TaskKey::new(format!("task {session}")).expect("the name is short");
    let mut profile = TaskProfile::default();
    let id = KernelId::new("kernel", Dims([1; 3]), Dims([1; 3])).expect("the name is short");
    let index = profile.intern(&id).expect("it is the first");
    for _ in 0..20 {
        if let Some(kernel) = profile.kernel_mut(index) {
            kernel.took.add(took);
            kernel.gap.add(gap);
        }
        profile.pairs.add(None, index, gap);
    }
    profile.close_measuring();
    queue.add_profile(&task, profile);
    let session = SessionId::new(session);
    let (class, share_thousandths) = (Class::Offline, 1_000);
    let join = Join { session, task, priority, class, share_thousandths, exclusive: None };
    queue.step(QueueEvent::Join(join), Nanos::ZERO);
}
