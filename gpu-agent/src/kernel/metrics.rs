//! The kernel queues' metrics for Prometheus.

use std::time::Duration;

use tessera_kernel_queue::QueueCounters;
use tessera_telemetry::exposition::{Exposition, MetricKind, count};
use tessera_telemetry::names::metric;

use super::{EndpointNumbers, SharedNumbers, SliceNumbers};
use tessera_agent_core::kernel::AttemptTally;

/// Writes all metrics of the kernel queues.
pub fn write(text: &mut Exposition, node: &str, shared: &SharedNumbers) {
    let numbers = shared.read();
    text.metric(metric::KERNEL_SESSIONS, MetricKind::Gauge, "Processes in a slice's kernel queue.");
    for (slice, held) in &numbers.slices {
        for (role, sessions) in ["measure", "free", "hold", "fill"].into_iter().zip(held.roles) {
            let labels = [("node", node), ("slice", slice.as_str()), ("role", role)];
            text.sample(&labels, count(sessions));
        }
    }
    type ReadGauge = fn(&SliceNumbers) -> Option<f64>;
    let gauges: [(&str, &str, ReadGauge); 2] = [
        (metric::KERNEL_WAITING, "Launches that are waiting for a grant.", |held| {
            Some(count(held.waiting))
        }),
        (
            metric::KERNEL_PROGRESS,
            "Least progress of a slice's fillers: run time as a share of run time and waits.",
            |held| Some(count(held.least_progress?) / 1000.0),
        ),
    ];
    for (name, help, read) in gauges {
        text.metric(name, MetricKind::Gauge, help);
        for (slice, held) in &numbers.slices {
            if let Some(value) = read(held) {
                text.sample(&[("node", node), ("slice", slice.as_str())], value);
            }
        }
    }
    let all: Vec<_> =
        numbers.slices.iter().map(|(slice, held)| (slice.as_str(), &held.counters)).collect();
    write_counts(text, node, &all);
    let help = "Connections that the kernel queue refused.";
    text.metric(metric::KERNEL_REFUSED, MetricKind::Counter, help);
    for (why, connections) in [("refused", numbers.refused), ("nonsense", numbers.nonsense)] {
        text.sample(&[("node", node), ("why", why)], count(connections));
    }
    write_attempts(text, node, &numbers);
    let help = "Kernel queues that were started again after a bug ended them.";
    text.metric(metric::KERNEL_RESTARTS, MetricKind::Counter, help);
    for (gpu, numbers) in shared.by_gpu() {
        text.sample(&[("node", node), ("gpu", gpu.as_str())], count(numbers.restarts));
    }
}

/// Writes how many attempts have a process in their queue, or had one. The others bypass the shim or have
/// launched nothing so far.
fn write_attempts(text: &mut Exposition, node: &str, numbers: &EndpointNumbers) {
    let help = "Attempts in kernel queues, by whether any process of theirs was intercepted.";
    text.metric(metric::KERNEL_ATTEMPTS, MetricKind::Gauge, help);
    let of = |intercepted: bool| {
        let is_it = |tally: &&AttemptTally| (tally.sessions > 0) == intercepted;
        numbers.attempts.values().filter(is_it).fold(0_u64, |sum, _| sum + 1)
    };
    for (intercepted, attempts) in [("yes", of(true)), ("no", of(false))] {
        text.sample(&[("node", node), ("intercepted", intercepted)], count(attempts));
    }
}

fn write_counts(text: &mut Exposition, node: &str, all: &[(&str, &QueueCounters)]) {
    let mut list = |name, help, label, rows: fn(&QueueCounters) -> Vec<(&'static str, f64)>| {
        text.metric(name, MetricKind::Counter, help);
        for (slice, counters) in all {
            for (what, value) in rows(counters) {
                text.sample(&[("node", node), ("slice", slice), (label, what)], value);
            }
        }
    };
    list(metric::KERNEL_LAUNCHES, "Launches of a slice's processes.", "how", |counters| {
        let reported = counters.launches.saturating_sub(counters.filled_kernels);
        vec![
            ("reported", count(reported)),
            ("gap", count(counters.filled_kernels)),
            ("aged", count(counters.aged)),
            ("colocated", count(counters.colocated)),
            ("late", count(counters.late)),
        ]
    });
    list(metric::KERNEL_GAPS, "Gaps of a slice's holders.", "what", |counters| {
        vec![
            ("seen", count(counters.gaps_seen)),
            ("filled", count(counters.gaps_filled)),
            ("filled_ahead", count(counters.grants_ahead_used)),
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
