//! Public traces as stress tests: how full the cluster is, how long jobs wait, and how far results
//! are from the bound.

use super::{ExperimentTrial, Finding, Proof, over, runs};
use crate::cluster::calibration::mean;
use crate::cluster::metrics::Summary;
use crate::cluster::workload::built_in;

/// Seeds of what is drawn from curves; Alibaba's tasks arrive as recorded.
const SEEDS: u64 = 3;

/// Workload, cluster, and how many seeds.
const CASES: [(&str, &str, u64); 4] = [
    ("alibaba:jobs=1500,faster=200", "32xa100-40gb", 1),
    ("helios:jobs=1000,gap=60", "16xa100-40gb", SEEDS),
    ("philly:jobs=1000,gap=200", "16xa100-40gb", SEEDS),
    ("acme:jobs=1000,gap=40", "16xa100-40gb", SEEDS),
];

/// Policies that are compared; the last one is to be no worse than any other.
const POLICIES: [&str; 3] = ["scheme-b", "miso", "tessera"];

/// Every job of a trace ends, and `tessera` is no slower than the best other policy. A mean over
/// its bound is not a row: it can't be below one unless the bound is wrong, which the bounds' own
/// tests check.
pub(super) fn stress() -> Vec<Finding> {
    CASES.iter().map(|(name, cluster, seeds)| stressed(name, cluster, *seeds)).collect()
}

fn stressed(name: &str, cluster: &str, seeds: u64) -> Finding {
    let mut means = Vec::new();
    let mut own = Vec::new();
    for policy in POLICIES {
        let one = |seed| {
            let jobs = built_in(name, seed).map(|workload| workload.jobs).unwrap_or_default();
            runs(&ExperimentTrial { seed, ..ExperimentTrial::new(&jobs, cluster, policy) })
        };
        let Some(done) = (1..=seeds).map(one).collect::<Option<Vec<Summary>>>() else {
            let what = format!("{name} under {policy}: comes to its end");
            return Finding::at_least("TRACES", what, Proof::Proxy, 1.0, 0.0);
        };
        means.push(done.iter().map(|summary| summary.jct_mean_s).collect::<Vec<_>>());
        own = done;
    }
    let each = |of: &dyn Fn(&Summary) -> f64| own.iter().map(of).collect::<Vec<_>>();
    let what = format!(
        "{name}: JCT of tessera over the best of two others (wait p50 {:.0} s, p99 {:.0} s, STP {:.2})",
        mean(&each(&|s| s.wait_p50_s)),
        mean(&each(&|s| s.wait_p99_s)),
        mean(&each(&|s| s.system_throughput))
    );
    let tessera = means.pop().unwrap_or_default();
    let best = means.into_iter().min_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap_or_default();
    let bound = mean(&tessera) / mean(&each(&|s| s.bound_jct_mean_s));
    Finding::at_most("TRACES", what, Proof::Proxy, 1.0, mean(&tessera) / mean(&best))
        .over_seeds(&over(&tessera, &best))
        .ratio(bound)
}
