//! Metrics of the controller itself: whether it leads, how fast the database is, its certificate
//! and its disk.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntGauge, IntGaugeVec, Opts};
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
            ready: gauge(metric::READY, "Whether the controller leads and serves requests."),
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
            free: gauge(metric::DATA_FREE, "Free space of the data folder's disk."),
            size: gauge(metric::DATA_SIZE, "Size of the data folder's disk."),
        }
    }
}

/// Returns everything that `/metrics` has to show.
pub(crate) fn collectors() -> [Box<dyn prometheus::core::Collector>; 6] {
    [
        Box::new(METRICS.ready.clone()),
        Box::new(METRICS.renewals.clone()),
        Box::new(METRICS.waits.clone()),
        Box::new(METRICS.expiry.clone()),
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
