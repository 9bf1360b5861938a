//! Public traces as stress tests: what they fill, how long jobs wait, how far from the bound.

use super::{Finding, Proof, Trial, runs};
use crate::cluster::workload::built_in;

/// Workload, cluster and the least part of the bound's throughput that is to come out.
const CASES: [(&str, &str); 4] = [
    ("alibaba:jobs=1500,faster=200", "32xa100-40gb"),
    ("helios:jobs=1000,gap=60", "16xa100-40gb"),
    ("philly:jobs=1000,gap=200", "16xa100-40gb"),
    ("acme:jobs=1000,gap=40", "16xa100-40gb"),
];

/// Every job of a trace ends, no bound is beaten; how well stands beside it.
pub(super) fn stress() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, cluster) in CASES {
        let jobs = built_in(name, 1).map(|workload| workload.jobs).unwrap_or_default();
        for policy in ["scheme-b", "miso", "tessera"] {
            let Some(done) = runs(&Trial::new(&jobs, cluster, policy)) else {
                let what = format!("{name} under {policy}: comes to its end");
                findings.push(Finding::at_least("TRACES", what, Proof::Proxy, 1.0, 0.0));
                continue;
            };
            let what = format!(
                "{name} under {policy}: JCT over its bound (wait p50 {:.0} s, p99 {:.0} s, STP {:.2})",
                done.wait_p50_s, done.wait_p99_s, done.system_throughput
            );
            let over = done.jct_over_bound;
            findings.push(Finding::at_least("TRACES", what, Proof::Proxy, 1.0, over).ratio(over));
        }
    }
    findings
}
