//! The kernel queues' figures as Prometheus reads them.

use std::time::Duration;

use tessera_kernel_queue::Counters;
use tessera_telemetry::exposition::{Exposition, Kind};
use tessera_telemetry::names::metric;

use super::{Board, SliceNumbers};

/// Writes every metric of the kernel queues.
pub fn write(text: &mut Exposition, node: &str, board: &Board) {
    let numbers = board.read();
    text.metric(metric::KERNEL_SESSIONS, Kind::Gauge, "Processes in a slice's kernel queue.");
    for (slice, held) in &numbers.slices {
        for (role, count) in ["measure", "free", "hold", "ask"].into_iter().zip(held.roles) {
            let labels = [("node", node), ("slice", slice.as_str()), ("role", role)];
            text.sample(metric::KERNEL_SESSIONS, &labels, count);
        }
    }
    type Read = fn(&SliceNumbers) -> Option<String>;
    let gauges: [(&str, &str, Read); 2] = [
        (metric::KERNEL_WAITING, "Launches that wait for a grant.", |held| {
            Some(held.waiting.to_string())
        }),
        (metric::KERNEL_PROGRESS, "The least progress of a slice's fillers.", |held| {
            Some(Duration::from_millis(held.least_progress?).as_secs_f64().to_string())
        }),
    ];
    for (name, help, read) in gauges {
        text.metric(name, Kind::Gauge, help);
        for (slice, held) in &numbers.slices {
            if let Some(value) = read(held) {
                text.sample(name, &[("node", node), ("slice", slice.as_str())], value);
            }
        }
    }
    let all: Vec<_> =
        numbers.slices.iter().map(|(slice, held)| (slice.as_str(), &held.counters)).collect();
    counts(text, node, &all);
    let help = "Connections that the kernel queue refused.";
    text.metric(metric::KERNEL_REFUSED, Kind::Counter, help);
    for (why, count) in [("refused", numbers.refused), ("nonsense", numbers.nonsense)] {
        text.sample(metric::KERNEL_REFUSED, &[("node", node), ("why", why)], count);
    }
}

fn counts(text: &mut Exposition, node: &str, all: &[(&str, &Counters)]) {
    let mut list = |name, help, label, rows: fn(&Counters) -> Vec<(&'static str, f64)>| {
        text.metric(name, Kind::Counter, help);
        for (slice, counters) in all {
            for (what, value) in rows(counters) {
                text.sample(name, &[("node", node), ("slice", slice), (label, what)], value);
            }
        }
    };
    list(metric::KERNEL_LAUNCHES, "Launches of a slice's processes.", "how", |counters| {
        let told = counters.launches.saturating_sub(counters.filled_kernels);
        vec![
            ("told", count(told)),
            ("gap", count(counters.filled_kernels)),
            ("aged", count(counters.aged)),
            ("beside", count(counters.beside)),
            ("late", count(counters.late)),
        ]
    });
    list(metric::KERNEL_GAPS, "Gaps of a slice's holders.", "what", |counters| {
        vec![
            ("seen", count(counters.gaps_seen)),
            ("filled", count(counters.gaps_filled)),
            ("stopped_early", count(counters.early_stops)),
        ]
    });
    list(metric::KERNEL_TIME, "Time of a slice's kernels.", "what", |counters| {
        let secs =
            |time: tessera_kernel_queue::Nanos| Duration::from_nanos(time.get()).as_secs_f64();
        vec![
            ("filled", secs(counters.filled_time)),
            ("overshoot", secs(counters.overshoot_time)),
            ("waited", secs(counters.waited_time)),
        ]
    });
}

/// Whole numbers as the exposition's floating-point ones, without a cast: counts of launches stay
/// far below what those hold exactly.
fn count(number: u64) -> f64 {
    Duration::from_secs(number).as_secs_f64()
}
