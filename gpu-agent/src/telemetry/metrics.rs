//! The node's figures as Prometheus reads them. No ids of jobs or processes in labels: the
//! number of series has a bound.

use tessera_frames::cluster::GpuFigures;
use tessera_telemetry::exposition::{Exposition, MetricKind, count};
use tessera_telemetry::names::metric;

use super::state::TelemetryState;
use crate::kernel::{self, SharedNumbers};
use tessera_agent_core::telemetry::meter::Meter;

/// Collects every metric of the node.
pub fn collect(node: &str, state: &TelemetryState, kernels: Option<&SharedNumbers>) -> Exposition {
    let mut metrics = Exposition::default();
    metrics.metric(
        metric::BUILD_INFO,
        MetricKind::Gauge,
        "Always 1; its labels identify the build.",
    );
    metrics.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let help = "Attempts that have a GPU of this node now.";
    metrics.metric(metric::AGENT_ATTEMPTS, MetricKind::Gauge, help);
    let running = state.meters().values().flat_map(Meter::tenancies).fold(0, |all, _| all + 1);
    metrics.sample(&[("node", node), ("state", "running")], count(running));
    let help = "Samples of a GPU by result: a failed one is a gap in its figures.";
    metrics.metric(metric::GPU_SAMPLES, MetricKind::Counter, help);
    for (gpu, (good, failed)) in state.counts() {
        let gpu = gpu.as_str();
        metrics.sample(&[("node", node), ("gpu", gpu), ("result", "ok")], count(*good));
        let labels = [("node", node), ("gpu", gpu), ("result", "failed")];
        metrics.sample(&labels, count(*failed));
    }
    let help = "Calls to the driver, by result: ok, no_answer, or its code.";
    metrics.metric(metric::NVML_CALLS, MetricKind::Counter, help);
    for ((call, result), times) in state.calls().all() {
        let labels = [("node", node), ("call", call), ("result", result.as_str())];
        metrics.sample(&labels, count(times));
    }
    let figures: Vec<_> = state.meters().keys().filter_map(|gpu| state.figures(gpu)).collect();
    write_gauges(&mut metrics, node, &figures);
    write_energy(&mut metrics, node, &figures);
    write_slices(&mut metrics, node, &figures);
    write_processes(&mut metrics, node, state);
    if let Some(board) = kernels {
        kernel::metrics::write(&mut metrics, node, board);
    }
    metrics
}

fn write_gauges(metrics: &mut Exposition, node: &str, all: &[GpuFigures]) {
    type Read = fn(&GpuFigures) -> Option<f64>;
    let rows: [(&str, &str, Read); 3] = [
        (metric::GPU_MEMORY_USED, "GPU memory in use.", |f| Some(count(f.memory_used?.get()))),
        (metric::GPU_POWER, "Power of the whole GPU.", |f| Some(thousandths(f.power_mw?))),
        (metric::GPU_ACTIVITY, "The busy share of the GPU.", |f| {
            Some(thousandths(f.activity?.into()))
        }),
    ];
    for (name, help, read) in rows {
        metrics.metric(name, MetricKind::Gauge, help);
        for figures in all {
            if let Some(value) = read(figures) {
                metrics.sample(&[("node", node), ("gpu", figures.gpu.as_str())], value);
            }
        }
    }
}

fn write_energy(metrics: &mut Exposition, node: &str, all: &[GpuFigures]) {
    let help = "Energy by what it is attributed to; the parts add up to the gain of the GPU's \
                counter.";
    metrics.metric(metric::GPU_ENERGY, MetricKind::Counter, help);
    for figures in all {
        let parts =
            [("jobs", figures.attempts_mj), ("other", figures.other_mj), ("idle", figures.idle_mj)];
        for (bearer, millijoules) in parts {
            let labels = [("node", node), ("gpu", figures.gpu.as_str()), ("bearer", bearer)];
            metrics.sample(&labels, thousandths(millijoules));
        }
    }
}

fn write_slices(metrics: &mut Exposition, node: &str, all: &[GpuFigures]) {
    metrics.metric(
        metric::SLICE_MEMORY_USED,
        MetricKind::Gauge,
        "GPU memory in use on an instance.",
    );
    for figures in all {
        for slice in &figures.slices {
            let Some(used) = slice.memory_used else { continue };
            let start = slice.slot.start.to_string();
            let labels = [("node", node), ("gpu", figures.gpu.as_str()), ("start", &start)];
            metrics.sample(&labels, count(used.get()));
        }
    }
    let help = "The busy share of the whole GPU that an instance's attempts have.";
    metrics.metric(metric::SLICE_ACTIVITY, MetricKind::Gauge, help);
    for figures in all {
        for slice in &figures.slices {
            let Some(activity) = slice.activity else { continue };
            let start = slice.slot.start.to_string();
            let labels = [("node", node), ("gpu", figures.gpu.as_str()), ("start", &start)];
            metrics.sample(&labels, thousandths(activity.into()));
        }
    }
}

/// Maximum number of processes of one GPU that are shown, the largest: a bound on the number of
/// series.
const PROCESSES_SHOWN: usize = 32;

fn write_processes(metrics: &mut Exposition, node: &str, state: &TelemetryState) {
    let help = "GPU memory of a process, the largest of each GPU.";
    metrics.metric(metric::PROCESS_MEMORY_USED, MetricKind::Gauge, help);
    for (gpu, meter) in state.meters() {
        let Some(latest) = &meter.latest else { continue };
        let start = |place: Option<u32>| {
            let place = latest.sample.places.iter().find(|known| Some(known.number) == place);
            place.map(|place| place.slot.start.to_string()).unwrap_or_default()
        };
        let reported = latest.sample.processes.iter();
        let mut all: Vec<_> =
            reported.filter_map(|p| Some((p.memory?.get(), p.pid, start(p.place)))).collect();
        all.sort_by(|a, b| b.cmp(a));
        for (bytes, pid, start) in all.into_iter().take(PROCESSES_SHOWN) {
            let pid = pid.to_string();
            let labels = [("node", node), ("gpu", gpu.as_str()), ("start", &start), ("pid", &pid)];
            metrics.sample(&labels, count(bytes));
        }
    }
}

fn thousandths(number: u64) -> f64 {
    count(number) / 1000.0
}
