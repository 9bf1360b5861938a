//! What an operator must know about the node in addition to its GPUs: its certificate, its disk,
//! and MPS.

use std::path::PathBuf;

use tessera_telemetry::exposition::{Exposition, MetricKind, count};
use tessera_telemetry::names::metric;

use crate::certificate::NodeCertificate;
use crate::mps;
use tessera_model::number::clamped;

/// Where the figures come from.
#[derive(Clone, Debug)]
pub struct NodeHealth {
    /// The data folder.
    pub data: PathBuf,
    /// The node's certificate.
    pub certificate: NodeCertificate,
}

impl NodeHealth {
    /// Adds the node's health to its metrics; a disk that can't be read is left out.
    pub fn write(&self, metrics: &mut Exposition, node: &str) {
        let help = "When a certificate expires, in seconds since 1970.";
        metrics.metric(metric::CERTIFICATE_EXPIRY, MetricKind::Gauge, help);
        // It was read before, or the agent would not run.
        let expiry = self.certificate.expiry().ok();
        let expiry = expiry.map(|at| [("own", at.own), ("authority", at.authority)]);
        for (certificate, at) in expiry.into_iter().flatten() {
            let labels = [("node", node), ("certificate", certificate)];
            metrics.sample(&labels, count(clamped(at)));
        }
        if let Ok(disk) = rustix::fs::statvfs(&self.data) {
            let rows = [
                (metric::DATA_FREE, "Free space of the data folder's disk.", disk.f_bavail),
                (metric::DATA_SIZE, "Size of the data folder's disk.", disk.f_blocks),
            ];
            for (name, help, blocks) in rows {
                metrics.metric(name, MetricKind::Gauge, help);
                metrics.sample(&[("node", node)], count(blocks.saturating_mul(disk.f_frsize)));
            }
        }
        let help = "MPS faults that ended the sharing jobs of a slice.";
        metrics.metric(metric::MPS_FAULTS, MetricKind::Counter, help);
        metrics.sample(&[("node", node)], count(mps::counts::faults()));
    }
}
