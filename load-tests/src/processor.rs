//! How long a thread had a processor: other work of the machine affects the wall clock, but not
//! this.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Time that an action took, by the wall clock and on the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Wall-clock time.
    pub clock: Duration,
    /// Processor time of this thread.
    pub processor: Duration,
}

/// Runs an action, and returns the time that it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Took) {
    let (began, had) = (Instant::now(), so_far());
    let done = work();
    let took = Took { processor: so_far().saturating_sub(had), clock: began.elapsed() };
    (done, took)
}

fn so_far() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).expect("a thread has used no negative time")
}

/// Returns median, nine tenths and the longest by the clock, and the median of the processor, in
/// milliseconds; nothing of no times.
pub fn summed(times: &[Took]) -> Value {
    let mut clock: Vec<Duration> = times.iter().map(|took| took.clock).collect();
    let mut processor: Vec<Duration> = times.iter().map(|took| took.processor).collect();
    clock.sort_unstable();
    processor.sort_unstable();
    let ms = |of: Option<&Duration>| of.map(|time| (time.as_secs_f64() * 1e6).round() / 1e3);
    json!({
        "median_ms": ms(clock.get(clock.len() / 2)),
        "p90_ms": ms(clock.get(clock.len() * 9 / 10)),
        "max_ms": ms(clock.last()),
        "processor_median_ms": ms(processor.get(processor.len() / 2)),
    })
}
