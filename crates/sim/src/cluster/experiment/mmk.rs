//! MMK's 60 and 1,200 jobs: proxies, with ParvaGPU's and MISO's measured speeds.

use super::{Finding, Proof, Trial, near, runs};
use crate::cluster::job::Job;
use crate::cluster::metrics::Summary;
use crate::cluster::workload::built_in;

/// GPU counts among which the load is fitted, on what MPS gains over the default.
const GPUS: std::ops::RangeInclusive<u32> = 2..=12;

/// Why ratios are off.
const DEMANDS: &str = "the proxy's jobs come without what they keep busy, so that sharers cost 15 % \
                       each whoever they are, and nobody gains by choosing partners";

/// What MPS's mean is of the default's.
const FITTED: f64 = 0.75;

fn at(jobs: &[Job], gpus: u32, policy: &str) -> Option<Summary> {
    runs(&Trial::new(jobs, &format!("{gpus}xa100-80gb"), policy))
}

/// Returns the number of GPUs with which MPS's mean over the default's is nearest to the paper's.
fn fitted(jobs: &[Job], counts: impl Iterator<Item = u32>) -> Option<(u32, f64)> {
    let ratios = counts.filter_map(|gpus| {
        let whole = at(jobs, gpus, "exclusive")?.jct_mean_s;
        Some((gpus, at(jobs, gpus, "mps-only")?.jct_mean_s / whole))
    });
    ratios.min_by(|a, b| (a.1 - FITTED).abs().total_cmp(&(b.1 - FITTED).abs()))
}

/// 5a: 40 online and 20 offline jobs.
pub(super) fn sixty() -> Vec<Finding> {
    let jobs = built_in("mmk-60", 1).map(|workload| workload.jobs).unwrap_or_default();
    let Some((gpus, mps)) = fitted(&jobs, GPUS) else { return Vec::new() };
    let done = |policy: &str| at(&jobs, gpus, policy);
    let (Some(whole), Some(miso), Some(miger), Some(mmk)) =
        (done("exclusive"), done("miso"), done("miger"), done("mmk"))
    else {
        return Vec::new();
    };
    let proxy = |what: String, expected, found, tolerance| {
        near("MMK-A", what, Proof::Proxy, expected, found, tolerance).known(DEMANDS)
    };
    let jct = |one: &Summary| one.jct_mean_s / whole.jct_mean_s;
    vec![
        proxy(format!("JCT, MPS over default (fitted: {gpus} GPUs)"), FITTED, mps, 0.08),
        proxy("JCT, MISO over default".into(), 0.84, jct(&miso), 0.08).ratio(miso.jct_over_bound),
        proxy("JCT, MIGER over default".into(), 0.736, jct(&miger), 0.08),
        proxy("JCT, MMK over default".into(), 0.53, jct(&mmk), 0.08).ratio(mmk.jct_over_bound),
        proxy("makespan, MMK over MIGER".into(), 0.68, mmk.makespan_s / miger.makespan_s, 0.10)
            .ratio(mmk.makespan_over_bound),
        proxy(
            "STP, MMK over MIGER".into(),
            1.35,
            mmk.system_throughput / miger.system_throughput,
            0.10,
        ),
    ]
}

/// 5b: 800 online and 400 offline jobs.
pub(super) fn twelve_hundred() -> Vec<Finding> {
    let jobs = built_in("mmk-1200", 1).map(|workload| workload.jobs).unwrap_or_default();
    let Some((gpus, mps)) = fitted(&jobs, [2, 4, 8, 16, 24, 32].into_iter()) else {
        return Vec::new();
    };
    let (Some(miger), Some(mmk)) = (at(&jobs, gpus, "miger"), at(&jobs, gpus, "mmk")) else {
        return Vec::new();
    };
    let proxy = |what: String, expected, found, tolerance| {
        near("MMK-B", what, Proof::Proxy, expected, found, tolerance).known(DEMANDS)
    };
    let lost = |ours: f64, theirs: f64| 100.0 * (ours / theirs - 1.0);
    vec![
        proxy(format!("JCT, MPS over default (fitted: {gpus} GPUs)"), FITTED, mps, 0.08),
        proxy(
            "JCT, MMK against MIGER, %".into(),
            -41.18,
            lost(mmk.jct_mean_s, miger.jct_mean_s),
            5.0,
        )
        .ratio(mmk.jct_over_bound),
        proxy("makespan, %".into(), -36.36, lost(mmk.makespan_s, miger.makespan_s), 5.0)
            .ratio(mmk.makespan_over_bound),
        proxy("STP, %".into(), 31.11, lost(mmk.system_throughput, miger.system_throughput), 5.0),
    ]
}
