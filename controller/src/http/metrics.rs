//! The metrics that Prometheus reads.

use std::sync::LazyLock;
use std::time::Duration;
use tessera_model::number::clamped;

use prometheus::{
    Counter, Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use tessera_api_types::{JobCounts, NodeDetails, PowerReport};
use tessera_model::mig::MigState;
use tessera_telemetry::names::metric;

use crate::ports::ClusterShape;
use crate::process_metrics;

/// From the fastest read to the longest wait that a request may specify.
const REQUEST_SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// Every state that a node can have: a state without nodes is shown as 0.
const NODE_STATES: [&str; 4] = ["available", "connecting", "silent", "lost"];

/// Returns the registry behind `/metrics`, for other parts of the controller to add to.
pub fn registry() -> &'static Registry {
    &METRICS.registry
}

struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    admission: Counter,
    submits: IntCounter,
    jobs_submitted: IntCounter,
    jobs: IntGaugeVec,
    agent_up: IntGaugeVec,
    nodes: IntGaugeVec,
    changing: IntGaugeVec,
    instances: IntGaugeVec,
    reachability: GaugeVec,
    drained: IntGaugeVec,
    closed: IntGaugeVec,
    faults: IntGaugeVec,
    power: IntGaugeVec,
    operator: IntCounterVec,
}

/// What is wrong if a metric can't be made: found by any test that counts anything.
const WELL_FORMED: &str = "names and labels are constants, each name is used once";

impl Metrics {
    fn new() -> Self {
        let gauges = |name, help, labels| {
            IntGaugeVec::new(Opts::new(name, help), labels).expect(WELL_FORMED)
        };
        let request_labels: &[&str] = &["route", "method", "status"];
        let seconds = HistogramOpts::new(metric::HTTP_REQUEST, "Time to answer HTTP requests.")
            .buckets(REQUEST_SECONDS.to_vec());
        let metrics = Self {
            registry: Registry::new(),
            requests: IntCounterVec::new(
                Opts::new(metric::HTTP_REQUESTS, "HTTP requests answered."),
                request_labels,
            )
            .expect(WELL_FORMED),
            seconds: HistogramVec::new(seconds, request_labels).expect(WELL_FORMED),
            admission: Counter::new(
                metric::HTTP_ADMISSION,
                "Time in which the callers of HTTP requests were established.",
            )
            .expect(WELL_FORMED),
            submits: IntCounter::new(metric::SUBMITS, "Submits accepted; an array counts once.")
                .expect(WELL_FORMED),
            jobs_submitted: IntCounter::new(metric::JOBS_SUBMITTED, "Jobs accepted.")
                .expect(WELL_FORMED),
            jobs: gauges(metric::JOBS, "Jobs by state.", &["state"]),
            agent_up: gauges(metric::AGENT_UP, "Whether the node's agent is connected.", &["node"]),
            nodes: gauges(metric::NODES, "Nodes by state.", &["state"]),
            changing: gauges(
                metric::GPU_CHANGING,
                "Whether a layout plan of the GPU is under way.",
                &["gpu"],
            ),
            instances: gauges(
                metric::MIG_INSTANCES,
                "MIG instances that exist.",
                &["gpu", "profile", "state"],
            ),
            reachability: GaugeVec::new(
                Opts::new(
                    metric::GPU_REACHABILITY,
                    "Share of an empty GPU's full layouts that are still reachable.",
                ),
                &["gpu"],
            )
            .expect(WELL_FORMED),
            drained: gauges(
                metric::NODE_DRAINED,
                "Whether an administrator drained the node.",
                &["node"],
            ),
            closed: gauges(
                metric::GPU_CLOSED,
                "Whether an administrative override of this kind is set on the GPU.",
                &["gpu", "how"],
            ),
            faults: gauges(
                metric::GPU_FAULTS,
                "Faults of the GPU that were not cleared.",
                &["gpu", "cause"],
            ),
            power: gauges(
                metric::POWER,
                "Bounds on the power of all GPUs together, and the cap on it.",
                &["what"],
            ),
            operator: IntCounterVec::new(
                Opts::new(metric::OPERATOR_ACTIONS, "Changes by administrators."),
                &["what", "how"],
            )
            .expect(WELL_FORMED),
        };
        metrics.register();
        metrics
    }

    fn register(&self) {
        let build = IntGaugeVec::new(
            Opts::new(metric::BUILD_INFO, "Always 1; its labels identify the build."),
            &["version"],
        )
        .expect(WELL_FORMED);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let all: [Box<dyn prometheus::core::Collector>; 17] = [
            Box::new(build),
            Box::new(self.requests.clone()),
            Box::new(self.seconds.clone()),
            Box::new(self.admission.clone()),
            Box::new(self.submits.clone()),
            Box::new(self.jobs_submitted.clone()),
            Box::new(self.jobs.clone()),
            Box::new(self.agent_up.clone()),
            Box::new(self.nodes.clone()),
            Box::new(self.changing.clone()),
            Box::new(self.instances.clone()),
            Box::new(self.reachability.clone()),
            Box::new(self.drained.clone()),
            Box::new(self.closed.clone()),
            Box::new(self.faults.clone()),
            Box::new(self.power.clone()),
            Box::new(self.operator.clone()),
        ];
        for collector in all.into_iter().chain(process_metrics::collectors()) {
            self.registry.register(collector).expect(WELL_FORMED);
        }
    }
}

/// Returns a number as a gauge's value; the largest one stands for all above it.
pub(crate) fn gauge_value(value: u64) -> i64 {
    clamped(value)
}

/// Counts one answered request.
pub(super) fn count_request(route: &str, method: &str, status: &str, took: Duration) {
    let labels = [route, method, status];
    METRICS.requests.with_label_values(&labels).inc();
    METRICS.seconds.with_label_values(&labels).observe(took.as_secs_f64());
}

/// Counts the time in which a caller was established.
pub(super) fn count_admission(took: Duration) {
    METRICS.admission.inc_by(took.as_secs_f64());
}

/// Counts one accepted submit.
pub(super) fn count_submit(tasks: u32) {
    METRICS.submits.inc();
    METRICS.jobs_submitted.inc_by(tasks.into());
}

/// Counts one change by an administrator.
pub(super) fn count_admin_change(what: &str, how: &str) {
    METRICS.operator.with_label_values(&[what, how]).inc();
}

/// Exports how many jobs are in each state.
pub(super) fn show_jobs(counts: &JobCounts) {
    for (state, jobs) in &counts.by_state {
        METRICS.jobs.with_label_values(&[state]).set(gauge_value(*jobs));
    }
}

/// Exports the bounds on the GPUs' power; without a cap there is none in the metrics.
pub(super) fn show_power(report: &PowerReport) {
    METRICS.power.reset();
    let bounds = [
        ("expected", Some(report.expected_watts)),
        ("idle", Some(report.idle_watts)),
        ("full", Some(report.full_watts)),
        ("cap", report.cap_watts),
    ];
    for (what, watts) in bounds {
        if let Some(watts) = watts {
            METRICS.power.with_label_values(&[what]).set(gauge_value(watts));
        }
    }
}

/// Exports the state of the nodes; what left the cluster leaves the metrics, too.
pub(super) fn show_nodes(nodes: &[NodeDetails], shape: &ClusterShape) {
    METRICS.agent_up.reset();
    METRICS.nodes.reset();
    METRICS.changing.reset();
    for state in NODE_STATES {
        METRICS.nodes.with_label_values(&[state]).set(0);
    }
    METRICS.instances.reset();
    METRICS.reachability.reset();
    METRICS.drained.reset();
    METRICS.closed.reset();
    METRICS.faults.reset();
    for node in nodes {
        let drained = i64::from(node.drained.is_some());
        METRICS.drained.with_label_values(&[node.name.as_str()]).set(drained);
        METRICS.nodes.with_label_values(&[&node.state]).inc();
        let up = i64::from(node.state == "available");
        METRICS.agent_up.with_label_values(&[node.name.as_str()]).set(up);
        for gpu in &node.gpus {
            for (how, word) in [
                ("drained", &gpu.drained),
                ("quarantined", &gpu.quarantined),
                ("pinned", &gpu.pinned),
            ] {
                let labels = [gpu.id.as_str(), how];
                METRICS.closed.with_label_values(&labels).set(i64::from(word.is_some()));
            }
            METRICS.changing.with_label_values(&[&gpu.id]).set(gpu.changing.into());
            for fault in &gpu.faults {
                let labels = [gpu.id.as_str(), &fault.cause];
                METRICS.faults.with_label_values(&labels).add(fault.times.into());
            }
            for instance in &gpu.instances {
                let labels = [gpu.id.as_str(), &instance.profile, &instance.state];
                METRICS.instances.with_label_values(&labels).inc();
            }
            if let Some(ratio) = reachability_ratio(gpu, shape) {
                METRICS.reachability.with_label_values(&[gpu.id.as_str()]).set(ratio);
            }
        }
    }
}

fn reachability_ratio(gpu: &tessera_api_types::GpuDetails, shape: &ClusterShape) -> Option<f64> {
    let now = gpu.reachability?;
    let view = shape.view.gpus.iter().find(|view| view.id.as_str() == gpu.id)?;
    let empty = view.mig.as_ref()?.full_layouts(MigState::EMPTY)?;
    let empty = u32::try_from(empty).ok().filter(|layouts| *layouts > 0)?;
    Some(f64::from(now) / f64::from(empty))
}

/// Writes every metric as Prometheus reads it.
pub(super) fn exposition() -> Result<Vec<u8>, prometheus::Error> {
    let mut text = Vec::with_capacity(16 * 1024);
    TextEncoder::new().encode(&registry().gather(), &mut text)?;
    Ok(text)
}
