//! The node's figures as Prometheus reads them. No ids of jobs or processes in labels: the
//! number of series has a bound.

use tessera_telemetry::exposition::{Exposition, Kind};
use tessera_telemetry::names::metric;
use tessera_wire::frames::GpuFigures;

use super::state::State;
use crate::kernel::{self, Board};

/// Writes every metric.
pub fn exposition(node: &str, state: &State, kernels: Option<&Board>) -> String {
    let mut text = Exposition::default();
    text.metric(metric::BUILD_INFO, Kind::Gauge, "Always 1; its labels say what was built.");
    text.sample(metric::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let help = "Attempts that have a GPU of this node now.";
    text.metric(metric::AGENT_ATTEMPTS, Kind::Gauge, help);
    let running: usize = state.meters().values().map(|meter| meter.tenants().count()).sum();
    text.sample(metric::AGENT_ATTEMPTS, &[("node", node), ("state", "running")], running);
    let help = "Samples of a GPU by result: a failed one is a gap in its figures.";
    text.metric(metric::GPU_SAMPLES, Kind::Counter, help);
    for (gpu, (good, failed)) in state.counts() {
        let gpu = gpu.as_str();
        text.sample(metric::GPU_SAMPLES, &[("node", node), ("gpu", gpu), ("result", "ok")], good);
        let labels = [("node", node), ("gpu", gpu), ("result", "failed")];
        text.sample(metric::GPU_SAMPLES, &labels, failed);
    }
    let help = "What was asked of the driver, by how it ended: ok, no_answer, or its code.";
    text.metric(metric::NVML_CALLS, Kind::Counter, help);
    for ((call, result), times) in state.calls().all() {
        let labels = [("node", node), ("call", call), ("result", result.as_str())];
        text.sample(metric::NVML_CALLS, &labels, times);
    }
    let figures: Vec<_> = state.meters().keys().filter_map(|gpu| state.figures(gpu)).collect();
    gauges(&mut text, node, &figures);
    energy(&mut text, node, &figures);
    slices(&mut text, node, &figures);
    processes(&mut text, node, state);
    if let Some(board) = kernels {
        kernel::metrics::write(&mut text, node, board);
    }
    text.into_text()
}

fn gauges(text: &mut Exposition, node: &str, all: &[GpuFigures]) {
    type Read = fn(&GpuFigures) -> Option<String>;
    let rows: [(&str, &str, Read); 3] = [
        (metric::GPU_MEMORY_USED, "GPU memory in use.", |f| Some(f.memory_used?.get().to_string())),
        (metric::GPU_POWER, "Power of the whole card.", |f| {
            Some(thousandths(f.power_mw?).to_string())
        }),
        (metric::GPU_ACTIVITY, "The busy share of the card.", |f| {
            Some(thousandths(f.activity?.into()).to_string())
        }),
    ];
    for (name, help, read) in rows {
        text.metric(name, Kind::Gauge, help);
        for figures in all {
            if let Some(value) = read(figures) {
                text.sample(name, &[("node", node), ("gpu", figures.gpu.as_str())], value);
            }
        }
    }
}

fn energy(text: &mut Exposition, node: &str, all: &[GpuFigures]) {
    let help = "Energy by who bore it; the parts add up to what the card's counter gained.";
    text.metric(metric::GPU_ENERGY, Kind::Counter, help);
    for figures in all {
        let parts =
            [("jobs", figures.attempts_mj), ("other", figures.other_mj), ("idle", figures.idle_mj)];
        for (bearer, millijoules) in parts {
            let labels = [("node", node), ("gpu", figures.gpu.as_str()), ("bearer", bearer)];
            text.sample(metric::GPU_ENERGY, &labels, thousandths(millijoules));
        }
    }
}

fn slices(text: &mut Exposition, node: &str, all: &[GpuFigures]) {
    text.metric(metric::SLICE_MEMORY_USED, Kind::Gauge, "GPU memory in use on an instance.");
    for figures in all {
        for slice in &figures.slices {
            let Some(used) = slice.memory_used else { continue };
            let start = slice.slot.start.to_string();
            let labels = [("node", node), ("gpu", figures.gpu.as_str()), ("start", &start)];
            text.sample(metric::SLICE_MEMORY_USED, &labels, used.get());
        }
    }
    let help = "The busy share of the whole card that an instance's attempts have.";
    text.metric(metric::SLICE_ACTIVITY, Kind::Gauge, help);
    for figures in all {
        for slice in &figures.slices {
            let Some(activity) = slice.activity else { continue };
            let start = slice.slot.start.to_string();
            let labels = [("node", node), ("gpu", figures.gpu.as_str()), ("start", &start)];
            text.sample(metric::SLICE_ACTIVITY, &labels, thousandths(activity.into()));
        }
    }
}

/// Most processes of one card that are shown, the largest: a bound on the number of series.
const PROCESSES_SHOWN: usize = 32;

fn processes(text: &mut Exposition, node: &str, state: &State) {
    let help = "GPU memory of a process, the largest of each card.";
    text.metric(metric::PROCESS_MEMORY_USED, Kind::Gauge, help);
    for (gpu, meter) in state.meters() {
        let Some(latest) = &meter.latest else { continue };
        let start = |place: Option<u32>| {
            let place = latest.sample.places.iter().find(|known| Some(known.number) == place);
            place.map(|place| place.slot.start.to_string()).unwrap_or_default()
        };
        let told = latest.sample.processes.iter();
        let mut all: Vec<_> =
            told.filter_map(|p| Some((p.memory?.get(), p.pid, start(p.place)))).collect();
        all.sort_by(|a, b| b.cmp(a));
        for (bytes, pid, start) in all.into_iter().take(PROCESSES_SHOWN) {
            let pid = pid.to_string();
            let labels = [("node", node), ("gpu", gpu.as_str()), ("start", &start), ("pid", &pid)];
            text.sample(metric::PROCESS_MEMORY_USED, &labels, bytes);
        }
    }
}

fn thousandths(number: u64) -> f64 {
    std::time::Duration::from_millis(number).as_secs_f64()
}
