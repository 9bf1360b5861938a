//! Metrics of the controller itself: whether it leads, how fast the database is, its certificate
//! and its disk.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};
use tessera_model::Millis;
use tessera_telemetry::names::metric;
use tessera_wire::tls::{Identity, TlsError};

/// From a database on the same machine to one that is hardly usable.
const RENEWAL_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0];
/// From an idle cluster to a week's queue.
const WAIT_SECONDS: [f64; 12] =
    [0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0, 604_800.0];

const WELL_FORMED: &str = "names and labels are constants, each name is used once";

static METRICS: LazyLock<ProcessMetrics> = LazyLock::new(ProcessMetrics::new);
static DATA: OnceLock<PathBuf> = OnceLock::new();

struct ProcessMetrics {
    ready: IntGauge,
    renewals: HistogramVec,
    waits: Histogram,
    expiry: IntGaugeVec,
    node_expiry: IntGaugeVec,
    certificates: IntCounterVec,
    connections_refused: IntCounterVec,
    free: IntGauge,
    size: IntGauge,
}

impl ProcessMetrics {
    fn new() -> Self {
        let gauge = |name, help| IntGauge::new(name, help).expect(WELL_FORMED);
        let renewals = HistogramOpts::new(
            metric::LEADER_RENEWAL,
            "Time to renew the leader's lease in the database.",
        );
        let waits = HistogramOpts::new(
            metric::JOB_WAIT,
            "Time from the submit of a job to its first placement.",
        );
        Self {
            ready: gauge(metric::READY, "Whether the controller leads and its database answers."),
            renewals: HistogramVec::new(renewals.buckets(RENEWAL_SECONDS.to_vec()), &["result"])
                .expect(WELL_FORMED),
            waits: Histogram::with_opts(waits.buckets(WAIT_SECONDS.to_vec())).expect(WELL_FORMED),
            expiry: IntGaugeVec::new(
                Opts::new(
                    metric::CERTIFICATE_EXPIRY,
                    "When a certificate expires, in seconds since 1970.",
                ),
                &["certificate"],
            )
            .expect(WELL_FORMED),
            node_expiry: IntGaugeVec::new(
                Opts::new(
                    metric::NODE_CERTIFICATE_EXPIRY,
                    "When the certificate of a connected node expires, in seconds since 1970.",
                ),
                &["node"],
            )
            .expect(WELL_FORMED),
            certificates: IntCounterVec::new(
                Opts::new(metric::NODE_CERTIFICATES, "Nodes' requests for certificates."),
                &["outcome"],
            )
            .expect(WELL_FORMED),
            connections_refused: IntCounterVec::new(
                Opts::new(metric::CONNECTIONS_REFUSED, "Connections closed unserved."),
                &["listener"],
            )
            .expect(WELL_FORMED),
            free: gauge(metric::DATA_FREE, "Free space of the data folder's disk."),
            size: gauge(metric::DATA_SIZE, "Size of the data folder's disk."),
        }
    }
}

/// Returns everything that `/metrics` has to show.
pub(crate) fn collectors() -> [Box<dyn prometheus::core::Collector>; 9] {
    [
        Box::new(METRICS.ready.clone()),
        Box::new(METRICS.renewals.clone()),
        Box::new(METRICS.waits.clone()),
        Box::new(METRICS.expiry.clone()),
        Box::new(METRICS.node_expiry.clone()),
        Box::new(METRICS.certificates.clone()),
        Box::new(METRICS.connections_refused.clone()),
        Box::new(METRICS.free.clone()),
        Box::new(METRICS.size.clone()),
    ]
}

/// Remembers what is looked at for each scrape, and exports when the certificates expire.
///
/// # Errors
///
/// If a certificate can't be read.
pub fn start(data: &Path, identity: &Identity) -> Result<(), TlsError> {
    // A second controller in one process would be a test's; the first folder is shown then.
    let _ = DATA.set(data.to_owned());
    let expiry = identity.expiry()?;
    METRICS.expiry.with_label_values(&["own"]).set(expiry.own);
    METRICS.expiry.with_label_values(&["authority"]).set(expiry.authority);
    Ok(())
}

/// Exports when the authority expires.
pub(crate) fn show_authority(expires: i64) {
    METRICS.expiry.with_label_values(&["authority"]).set(expires);
}

/// Exports when the controller's own certificate expires.
pub(crate) fn show_own(expires: i64) {
    METRICS.expiry.with_label_values(&["own"]).set(expires);
}

/// Counts a request for a node's certificate.
pub(crate) fn count_certificate(issued: bool) {
    METRICS.certificates.with_label_values(&[if issued { "issued" } else { "refused" }]).inc();
}

/// Counts a connection that was closed unserved.
pub(crate) fn count_refused_connection(listener: Listener) {
    let word = match listener {
        Listener::Api => "api",
        Listener::Agents => "agents",
    };
    METRICS.connections_refused.with_label_values(&[word]).inc();
}

/// Who connects there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listener {
    /// Users and their programs.
    Api,
    /// Agents, and machines that join.
    Agents,
}

/// Exports when a connected node's certificate expires, until it is dropped.
#[derive(Debug)]
pub(crate) struct NodeExpiry(String);

impl NodeExpiry {
    pub(crate) fn show(node: &str, expires: i64) -> Self {
        Self::update(node, expires);
        Self(node.to_owned())
    }

    pub(crate) fn update(node: &str, expires: i64) {
        METRICS.node_expiry.with_label_values(&[node]).set(expires);
    }
}

impl Drop for NodeExpiry {
    fn drop(&mut self) {
        // Fails only if it is gone already: two connections of one node overlap for a moment.
        let _ = METRICS.node_expiry.remove_label_values(&[&self.0]);
    }
}

/// Counts one renewal of the leader's lease.
pub(crate) fn count_renewal(renewed: bool, took: Millis) {
    let result = if renewed { "ok" } else { "failed" };
    METRICS.renewals.with_label_values(&[result]).observe(took.duration().as_secs_f64());
}

/// Counts one job's first placement.
pub(crate) fn count_wait(waited: Millis) {
    METRICS.waits.observe(waited.duration().as_secs_f64());
}

/// Exports what is looked at for each scrape.
pub(crate) fn export(ready: bool) {
    METRICS.ready.set(ready.into());
    // A disk that can't be read keeps its last figures; the agent and the log report it.
    if let Some(disk) = DATA.get().and_then(|data| rustix::fs::statvfs(data).ok()) {
        METRICS.free.set(gauge(disk.f_bavail.saturating_mul(disk.f_frsize)));
        METRICS.size.set(gauge(disk.f_blocks.saturating_mul(disk.f_frsize)));
    }
}

/// The largest number that a gauge can show stands for all above it.
fn gauge(value: u64) -> i64 {
    tessera_model::number::clamped(value)
}
