//! Live figures of GPUs, for Prometheus: the figures of a node are as old as its last report.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{GaugeVec, IntGaugeVec, Opts};
use tessera_model::GpuId;
use tessera_telemetry::names::metric;

use super::metrics::{gauge_value, registry};
use crate::figures::GpuSnapshot;

static FIGURES: LazyLock<Figures> = LazyLock::new(Figures::new);

const WELL_FORMED: &str = "names and labels are well-formed and used once";

struct Figures {
    memory: IntGaugeVec,
    power: GaugeVec,
    activity: GaugeVec,
    energy: CountedElsewhere,
    slice_memory: IntGaugeVec,
    slice_activity: GaugeVec,
}

impl Figures {
    fn new() -> Self {
        let gpu_labels = ["node", "gpu"];
        let slice = ["node", "gpu", "start"];
        let whole = |name, help, labels: &[&str]| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels).expect(WELL_FORMED);
            registry().register(Box::new(gauge.clone())).expect(WELL_FORMED);
            gauge
        };
        let broken = |name, help, labels: &[&str]| {
            let gauge = GaugeVec::new(Opts::new(name, help), labels).expect(WELL_FORMED);
            registry().register(Box::new(gauge.clone())).expect(WELL_FORMED);
            gauge
        };
        Self {
            memory: whole(metric::GPU_MEMORY_USED, "GPU memory in use.", &gpu_labels),
            power: broken(metric::GPU_POWER, "Power of the whole GPU, in watts.", &gpu_labels),
            activity: broken(
                metric::GPU_ACTIVITY,
                "Share of time that the GPU is busy.",
                &gpu_labels,
            ),
            energy: CountedElsewhere::register(
                metric::GPU_ENERGY,
                "Energy by bearer; the parts add up to the GPU's energy counter.",
                &["node", "gpu", "bearer"],
            ),
            slice_memory: whole(
                metric::SLICE_MEMORY_USED,
                "GPU memory in use on an instance.",
                &slice,
            ),
            slice_activity: broken(
                metric::SLICE_ACTIVITY,
                "Share of the whole GPU's time in which the attempts of an instance are busy.",
                &slice,
            ),
        }
    }

    fn reset(&self) {
        self.memory.reset();
        self.power.reset();
        self.activity.reset();
        self.slice_memory.reset();
        self.slice_activity.reset();
    }
}

/// Exports the nodes' last reports; GPUs without a recent report leave the metrics.
pub(super) fn export_figures(newest: &BTreeMap<GpuId, GpuSnapshot>) {
    FIGURES.reset();
    let mut energy = Vec::with_capacity(3 * newest.len());
    for (gpu, shown) in newest {
        let (node, gpu, figures) = (shown.node.as_str(), gpu.as_str(), &shown.figures);
        let gpu_labels = [node, gpu];
        if let Some(used) = figures.memory_used {
            FIGURES.memory.with_label_values(&gpu_labels).set(gauge_value(used.get()));
        }
        if let Some(milliwatts) = figures.power_mw {
            FIGURES.power.with_label_values(&gpu_labels).set(thousandths(milliwatts));
        }
        if let Some(activity) = figures.activity {
            FIGURES.activity.with_label_values(&gpu_labels).set(thousandths(activity.into()));
        }
        let parts =
            [("jobs", figures.attempts_mj), ("other", figures.other_mj), ("idle", figures.idle_mj)];
        for (bearer, millijoules) in parts {
            energy.push((vec![node, gpu, bearer], thousandths(millijoules)));
        }
        for slice in &figures.slices {
            let start = slice.slot.start.to_string();
            let labels = [node, gpu, start.as_str()];
            if let Some(used) = slice.memory_used {
                FIGURES.slice_memory.with_label_values(&labels).set(gauge_value(used.get()));
            }
            if let Some(activity) = slice.activity {
                FIGURES.slice_activity.with_label_values(&labels).set(thousandths(activity.into()));
            }
        }
    }
    FIGURES.energy.show(energy);
}

/// A counter that nodes count: the controller shows the numbers that it received.
#[derive(Clone)]
struct CountedElsewhere {
    about: Desc,
    samples: Arc<Mutex<Vec<Metric>>>,
}

impl CountedElsewhere {
    fn register(name: &str, help: &str, labels: &[&str]) -> Self {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let about =
            Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new()).expect(WELL_FORMED);
        let counter = Self { about, samples: Arc::default() };
        registry().register(Box::new(counter.clone())).expect(WELL_FORMED);
        counter
    }

    /// Replaces all samples at once, so that no scrape sees a part of them.
    fn show(&self, samples: Vec<(Vec<&str>, f64)>) {
        let shown = samples.into_iter().map(|(values, number)| {
            let pairs = self.about.variable_labels.iter().zip(values);
            let mut labels: Vec<_> = pairs
                .map(|(name, value)| {
                    let mut label = LabelPair::default();
                    label.set_name(name.clone());
                    label.set_value(value.to_owned());
                    label
                })
                .collect();
            labels.sort();
            let mut counter = Counter::default();
            counter.set_value(number);
            let mut metric = Metric::from_label(labels);
            metric.set_counter(counter);
            metric
        });
        *self.samples.lock().unwrap_or_else(PoisonError::into_inner) = shown.collect();
    }
}

impl Collector for CountedElsewhere {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.about]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if samples.is_empty() {
            return Vec::new();
        }
        let mut family = MetricFamily::default();
        family.set_name(self.about.fq_name.clone());
        family.set_help(self.about.help.clone());
        family.set_field_type(MetricType::COUNTER);
        family.set_metric(samples);
        vec![family]
    }
}

fn thousandths(number: u64) -> f64 {
    std::time::Duration::from_millis(number).as_secs_f64()
}
