//! Public traces as stress tests: what they fill, how long jobs wait, how far from the bound.

use super::{ExperimentTrial, Finding, Proof, runs};
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

/// Every job of a trace ends, and no bound is broken; the results are listed as well.
pub(super) fn stress() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, cluster, seeds) in CASES {
        for policy in ["scheme-b", "miso", "tessera"] {
            let one = |seed| {
                let jobs = built_in(name, seed).map(|workload| workload.jobs).unwrap_or_default();
                runs(&ExperimentTrial { seed, ..ExperimentTrial::new(&jobs, cluster, policy) })
            };
            let Some(done) = (1..=seeds).map(one).collect::<Option<Vec<Summary>>>() else {
                let what = format!("{name} under {policy}: comes to its end");
                findings.push(Finding::at_least("TRACES", what, Proof::Proxy, 1.0, 0.0));
                continue;
            };
            let each = |of: &dyn Fn(&Summary) -> f64| done.iter().map(of).collect::<Vec<_>>();
            let what = format!(
                "{name} under {policy}: JCT over its bound (wait p50 {:.0} s, p99 {:.0} s, STP {:.2})",
                mean(&each(&|s| s.wait_p50_s)),
                mean(&each(&|s| s.wait_p99_s)),
                mean(&each(&|s| s.system_throughput))
            );
            let over = mean(&each(&|s| s.jct_mean_s)) / mean(&each(&|s| s.bound_jct_mean_s));
            findings.push(
                Finding::at_least("TRACES", what, Proof::Proxy, 1.0, over)
                    .over_seeds(&each(&|s| s.jct_over_bound))
                    .ratio(over),
            );
        }
    }
    findings
}
