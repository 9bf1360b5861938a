//! The papers' mixes, as far as their data are printed; the rest is marked as a proxy.

use std::collections::BTreeMap;

use serde::Deserialize;
use tessera_model::Bytes;
use tessera_placement::Demand;

use super::demands::{self, MeasuredPairs};
use crate::cluster::job::{JobClass, SimulatedJob, SliceTimes};
use crate::cluster::number::whole;
use tessera_predict::random::SeededRng;

const DYNA_P_50: &str = include_str!("../../../data/dyna-p-50.csv");
const MMK_60: &str = include_str!("../../../data/mmk-60.csv");
const MMK_1200: &str = include_str!("../../../data/mmk-1200.csv");

/// A job of MIGM's mixes on a whole GPU: the papers print ratios only, so any length does.
const UNIT_MS: u64 = 10_000;

/// Memory of MIGM's size classes that fits their slices, in MiB: chosen within its 5, 20 and 40 GB.
const SMALL_MIB: u64 = 4_000;
const HALF_MIB: u64 = 16_000;
const FULL_MIB: u64 = 30_000;

/// Returns the jobs of a mix; `None` if there is no mix with that name.
pub fn jobs(name: &str, seed: u64) -> Option<Vec<SimulatedJob>> {
    Some(match name {
        "dyna-p-50" => reordered(dyna_p_50(), seed),
        "dyna-p-fig7" => fig7(),
        "mmk-60" => reordered(mmk(MMK_60), seed),
        "mmk-1200" => reordered(mmk(MMK_1200), seed),
        "coexec-trio" => trio(),
        "coexec-pair" => asymmetric_pair(),
        // The cost of slices in MIGM's mixes is derived from its figures. Hm3 follows from the stages of its
        // table 3 (4.487 s over 3.617). Ml2 and Ml3 follow from its gains (A: 7/4.43 is 1.58; 18/(9 t3) is
        // 1.24, B: 1/t3 + 1/t4 is 1.43). It has no slow-down for Hm1: that of Hm2 is used.
        "migm-hm1" | "migm-hm2" => even(50, SMALL_MIB, &[(1, ON_A_SEVENTH), (7, UNIT_MS)]),
        "migm-hm3" => even(100, SMALL_MIB, &[(1, 12_408), (7, UNIT_MS)]),
        "migm-hm4" => even(50, HALF_MIB, &[(3, ON_A_HALF), (7, UNIT_MS)]),
        "migm-ml1" => shuffled(ml1(), seed),
        "migm-ml2" => even(21, SMALL_MIB, &ML_SMALL),
        "migm-ml3" => even(18, HALF_MIB, &ML_LARGE),
        "migm-ht1" => shuffled(ht1(), seed),
        "migm-ht2" => shuffled(by_class(6, 6, 6, 803), seed),
        "migm-ht3" => shuffled(by_class(24, 6, 6, 699), seed),
        _ => return None,
    })
}

/// Returns a job of the given times in milliseconds, submitted at once.
pub fn plain(name: &str, memory_mib: u64, times: &[(u8, u64)]) -> SimulatedJob {
    let memory = Bytes::from_mib(memory_mib);
    SimulatedJob {
        name: name.to_owned(),
        user: "paper".to_owned(),
        account: None,
        shares: 1,
        submit_ms: 0,
        class: JobClass::Offline,
        priority: 5,
        deadline_ms: None,
        limit_ms: None,
        place: None,
        times: BTreeMap::from([("*".to_owned(), times.iter().copied().collect::<SliceTimes>())]),
        requested: memory,
        memory_at_start: memory,
        memory_at_end: memory,
        demand: None,
        busy: None,
        transfer: 0,
        power_milliwatts: None,
        start_up_ms: 0,
        restore_ms: None,
        iterations: None,
        gang: None,
    }
}

fn even(count: usize, memory_mib: u64, times: &[(u8, u64)]) -> Vec<SimulatedJob> {
    vec![plain("even", memory_mib, times); count]
}

/// MIGM's Ht1: three groups of equal total time; a slice slows a job 1.216x (fitted on scheme A).
fn ht1() -> Vec<SimulatedJob> {
    let total_ms = 110_000;
    let mut jobs = Vec::new();
    let mut add = |name: &str, count: u64, memory: u64, slice: Option<u8>| {
        let whole_ms = total_ms / count;
        let mut times = vec![(7, whole_ms)];
        times.extend(slice.map(|slices| (slices, whole_ms * 1_216 / 1_000)));
        (0..count).for_each(|_| jobs.push(plain(name, memory, &times)));
    };
    add("small", 11, SMALL_MIB, Some(1));
    add("medium", 2, HALF_MIB, Some(3));
    add("full", 2, FULL_MIB, None);
    jobs
}

/// MIGM's Ml1: as many small jobs as large ones, with the times of Ml2 and Ml3.
fn ml1() -> Vec<SimulatedJob> {
    let mut jobs = even(7, SMALL_MIB, &ML_SMALL);
    jobs.extend(even(7, HALF_MIB, &ML_LARGE));
    jobs
}

/// Times of small and large jobs of the mixes for machine learning.
const ML_SMALL: [(u8, u64); 2] = [(1, 44_300), (7, UNIT_MS)];
const ML_LARGE: [(u8, u64); 3] = [(3, 16_130), (4, 12_350), (7, UNIT_MS)];

/// What a slice costs a small job (as in Hm2) and one that needs half of the memory (as in Hm4),
/// in ten-thousandths of its time on the whole GPU. It follows from MIGM's gains there: 6.20 of 50 jobs in
/// 8 rounds (50/8t) and 1.7 of 25 jobs on each half (50/25t).
const ON_A_SEVENTH: u64 = 10_081;
const ON_A_HALF: u64 = 11_765;

/// MIGM's Ht2 and Ht3: this part of the sequential time is in jobs that need the whole GPU (fitted
/// to scheme A). The rest is divided evenly among the other jobs (proxy: the paper prints no
/// times). On their slices these are slowed as in the mixes of one kind.
fn by_class(small: u64, half: u64, full: u64, full_per_mille: u64) -> Vec<SimulatedJob> {
    let total_ms = 1_800_000;
    let rest_ms = total_ms * (1_000 - full_per_mille) / 1_000;
    let mut jobs = Vec::new();
    let mut add = |name: &str, count: u64, memory: u64, whole_ms: u64, slice: Option<(u8, u64)>| {
        let mut times = vec![(7, whole_ms)];
        times.extend(slice.map(|(slices, costs)| (slices, whole_ms * costs / 10_000)));
        (0..count).for_each(|_| jobs.push(plain(name, memory, &times)));
    };
    let each_ms = rest_ms / (small + half);
    add("small", small, SMALL_MIB, each_ms, Some((1, ON_A_SEVENTH)));
    add("large", half, HALF_MIB, each_ms, Some((3, ON_A_HALF)));
    add("full", full, FULL_MIB, total_ms * full_per_mille / 1_000 / full, None);
    jobs
}

/// Returns another instance of the same kind: the same jobs and the same gaps between arrivals, both in
/// a drawn order. Seed 1 is the original instance.
fn reordered(jobs: Vec<SimulatedJob>, seed: u64) -> Vec<SimulatedJob> {
    if seed == 1 {
        return jobs;
    }
    let mut rng = SeededRng::named(seed, "reordered");
    let arrivals: Vec<u64> = jobs.iter().map(|job| job.submit_ms).collect();
    let mut gaps: Vec<u64> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    mix(&mut gaps, &mut rng);
    let mut jobs = jobs;
    mix(&mut jobs, &mut rng);
    let mut now_ms = arrivals.first().copied().unwrap_or(0);
    let mut gaps = gaps.into_iter();
    for job in &mut jobs {
        job.deadline_ms = job.deadline_ms.map(|ms| ms.saturating_sub(job.submit_ms) + now_ms);
        job.submit_ms = now_ms;
        now_ms += gaps.next().unwrap_or(0);
    }
    jobs
}

fn shuffled(mut jobs: Vec<SimulatedJob>, seed: u64) -> Vec<SimulatedJob> {
    mix(&mut jobs, &mut SeededRng::named(seed, "migm"));
    jobs
}

fn mix<T>(of: &mut [T], rng: &mut SeededRng) {
    for last in (1..of.len()).rev() {
        of.swap(last, rng.index_below(last + 1));
    }
}

/// Name, arrival, deadline, and times by size, in seconds.
type Fig7 = (&'static str, u64, u64, &'static [(u8, u64)]);

/// Dyna-P's figure 7. A job that requests a size has a time there and on larger ones.
fn fig7() -> Vec<SimulatedJob> {
    let rows: [Fig7; 8] = [
        ("A", 0, 100, &[(1, 30)]),
        ("B", 0, 200, &[(2, 120)]),
        ("C", 5, 85, &[(2, 50)]),
        ("D", 60, 130, &[(1, 50)]),
        ("E", 60, 160, &[(1, 70)]),
        ("F", 120, 250, &[(1, 70)]),
        ("G", 120, 220, &[(2, 110), (4, 50)]),
        ("H", 120, 300, &[(2, 80)]),
    ];
    let job = |(name, arrival, deadline, times): &Fig7| {
        let times: Vec<_> = times.iter().map(|(slices, s)| (*slices, s * 1_000)).collect();
        // The memory of the smallest size that it requests (6 GB a slice of an A30).
        let memory = if times.iter().any(|(slices, _)| *slices == 1) { 4_000 } else { 10_000 };
        SimulatedJob {
            submit_ms: arrival * 1_000,
            deadline_ms: Some(deadline * 1_000),
            restore_ms: Some(0),
            gang: None,
            ..plain(name, memory, &times)
        }
    };
    rows.iter().map(job).collect()
}

/// The co-execution study's trio, in seconds on slices of an A100-40GB (table 3).
fn trio() -> Vec<SimulatedJob> {
    let job = |name, times: [u64; 5]| {
        let sizes = [1_u8, 2, 3, 4, 7];
        plain(name, SMALL_MIB, &sizes.into_iter().zip(times).collect::<Vec<_>>())
    };
    vec![
        job("KMeans", [16_270, 5_560, 4_580, 4_130, 3_680]),
        job("Sort", [8_700, 4_230, 4_020, 3_950, 3_750]),
        job("SRAD", [4_650, 2_460, 1_480, 1_290, 960]),
    ]
}

/// The co-execution study's asymmetric pair on an A30 (table 4). Of either only the sums are
/// printed: both take half of the sequential time, and on a half of the GPU what the slower one
/// does. How busy they are is fitted to the time under MPS.
fn asymmetric_pair() -> Vec<SimulatedJob> {
    let job = |name, half: u64, sm| SimulatedJob {
        demand: Some(Demand { sm, memory: 30 }),
        restore_ms: Some(0),
        gang: None,
        ..plain(name, SMALL_MIB, &[(2, half), (4, 43_840)])
    };
    vec![job("HotSpot", 43_840, 637), job("Raytracing", 92_240, 637)]
}

#[derive(Deserialize)]
struct DynaPRow {
    submit_s: f64,
    model: String,
    batch: u32,
    mem_gb: f64,
    t1_s: Option<f64>,
    t2_s: Option<f64>,
    t4_s: Option<f64>,
    deadline_s: f64,
}

/// Dyna-P's 50 jobs on A30s: a proxy, from roofline estimates of its models.
fn dyna_p_50() -> Vec<SimulatedJob> {
    let mut rows = csv::Reader::from_reader(DYNA_P_50.as_bytes());
    let job = |row: DynaPRow| {
        let times = [(1, row.t1_s), (2, row.t2_s), (4, row.t4_s)];
        let times: Vec<_> = times.iter().filter_map(|(s, t)| Some((*s, ms((*t)?)))).collect();
        let smallest = times.first().map_or(4, |(slices, _)| *slices);
        // The memory of the sizes that don't run it, in MiB; an A30's slices have 6 GB each.
        let least = match smallest {
            1 => 0,
            2 => 6_000,
            _ => 12_000,
        };
        let needs = whole(row.mem_gb * 1_024.0).max(least + 1);
        SimulatedJob {
            submit_ms: ms(row.submit_s),
            deadline_ms: Some(ms(row.deadline_s)),
            class: JobClass::Online,
            restore_ms: Some(1_000),
            gang: None,
            ..plain(&format!("{}.{}", row.model, row.batch), needs, &times)
        }
    };
    rows.deserialize().map(|row| job(row.expect("part of the build and tested"))).collect()
}

#[derive(Deserialize)]
struct MmkRow {
    submit_s: f64,
    class: JobClass,
    model: String,
    batch: u32,
    speed_source: String,
    duration_7g_s: f64,
    sp1: Option<f64>,
    sp2: Option<f64>,
    sp3: Option<f64>,
    sp4: Option<f64>,
    sp7: Option<f64>,
}

/// MMK's jobs on A100s: a proxy, with ParvaGPU's and MISO's measured speeds. How busy they are is
/// derived from how ParvaGPU's processes slow each other in pairs, and MISO's on slices.
fn mmk(data: &str) -> Vec<SimulatedJob> {
    let mut rows = csv::Reader::from_reader(data.as_bytes());
    let pairs = MeasuredPairs::measured();
    let job = |row: MmkRow| {
        let speeds = [(1, row.sp1), (2, row.sp2), (3, row.sp3), (4, row.sp4), (7, row.sp7)];
        let speeds: Vec<_> = speeds.iter().filter_map(|(s, v)| Some((*s, (*v)?))).collect();
        let time = |speed: f64| ms(row.duration_7g_s / speed.max(0.01));
        let times: Vec<_> = speeds.iter().map(|(s, speed)| (*s, time(*speed))).collect();
        let pair = pairs.demand(&row.speed_source, row.batch);
        let demand = demands::least(pair, demands::of_slices(&speeds));
        let needs = match times.first().map_or(7, |(slices, _)| *slices) {
            1 => 4_000,
            2 => 9_000,
            3 | 4 => 18_000,
            _ => 30_000,
        };
        SimulatedJob {
            submit_ms: ms(row.submit_s),
            class: row.class,
            demand,
            start_up_ms: 10_000,
            restore_ms: Some(10_000),
            gang: None,
            ..plain(&format!("{}.{}", row.model, row.batch), needs, &times)
        }
    };
    rows.deserialize().map(|row| job(row.expect("part of the build and tested"))).collect()
}

fn ms(seconds: f64) -> u64 {
    whole(seconds * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_has_as_many_jobs_as_in_its_paper() {
        let counts = [
            ("dyna-p-50", 50),
            ("dyna-p-fig7", 8),
            ("mmk-60", 60),
            ("mmk-1200", 1_200),
            ("migm-ht1", 15),
            ("migm-ht2", 18),
            ("migm-ht3", 36),
            ("migm-ml1", 14),
            ("migm-ml3", 18),
        ];
        for (name, count) in counts {
            assert_eq!(jobs(name, 1).unwrap().len(), count, "{name}");
        }
        assert!(jobs("migm-hm5", 1).is_none());
    }

    #[test]
    fn other_seeds_have_the_same_jobs_and_gaps_in_another_order() {
        for name in ["mmk-60", "dyna-p-50"] {
            let (one, other) = (jobs(name, 1).unwrap(), jobs(name, 2).unwrap());
            assert_eq!(other, jobs(name, 2).unwrap());
            assert_ne!(one, other, "{name}");
            let names = |jobs: &[SimulatedJob]| {
                let mut names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
                names.sort_unstable();
                names
            };
            let slack = |jobs: &[SimulatedJob]| {
                jobs.iter().filter_map(|job| Some(job.deadline_ms? - job.submit_ms)).sum::<u64>()
            };
            let last = |jobs: &[SimulatedJob]| jobs.iter().map(|job| job.submit_ms).max();
            assert_eq!(names(&one), names(&other));
            assert_eq!(slack(&one), slack(&other));
            assert_eq!(last(&one), last(&other));
            assert!(other.is_sorted_by_key(|job| job.submit_ms));
        }
    }
}
