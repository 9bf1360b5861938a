//! FAIR-SHARE: how far what users get is from what is due to them, over a half-life in which all have jobs waiting.

use std::collections::BTreeMap;

use tessera_model::Bytes;
use tessera_predict::random::SeededRng;

use super::{Finding, Proof};
use crate::cluster::engine::HALF_LIFE;
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::{JobClass, SimulatedJob};
use crate::cluster::metrics::RunOutcome;
use crate::cluster::number::float;
use crate::cluster::overheads::{Overheads, RunTimeKnowledge};
use crate::cluster::{SimulationSetup, policy, run};

/// The first of two seeds, on which nothing was chosen.
const FIRST_SEED: u64 = 901;

const SEEDS: u64 = 2;

/// The most that a user's part may differ from what is due, relative to it.
const DEVIATION_MAX: f64 = 0.10;

/// What is known of run times, whether jobs can be migrated, and both in words.
const CONDITIONS: [(RunTimeKnowledge, bool, &str); 3] = [
    (RunTimeKnowledge::Unknown, false, "nothing movable, times unknown"),
    (RunTimeKnowledge::Known, false, "nothing movable, times known"),
    (RunTimeKnowledge::Known, true, "all movable, times known"),
];

/// The time of a restore, where jobs can be migrated.
const RESTORE_MS: u64 = 5_000;

/// One user's jobs, all submitted at the start: their shares, the number of jobs, and the mean seconds of one.
struct Demand {
    user: &'static str,
    shares: u32,
    jobs: usize,
    lasts_s: u64,
}

/// The users of a case on a cluster.
struct Case {
    name: &'static str,
    cluster: &'static str,
    users: &'static [Demand],
}

/// Each user has more work than is due in a half-life. All jobs are of 1g, and as fast on any slice.
const CASES: [Case; 2] = [
    Case {
        name: "20,000 short jobs of one user, 60 long ones of another",
        cluster: "a100-40gb",
        users: &[
            Demand { user: "many", shares: 1, jobs: 20_000, lasts_s: 20 },
            Demand { user: "few", shares: 1, jobs: 60, lasts_s: 6_000 },
        ],
    },
    Case {
        name: "three users with 1, 2 and 4 shares",
        cluster: "2xa100-40gb",
        users: &[
            Demand { user: "one", shares: 1, jobs: 1_000, lasts_s: 300 },
            Demand { user: "two", shares: 2, jobs: 1_000, lasts_s: 450 },
            Demand { user: "four", shares: 4, jobs: 1_500, lasts_s: 600 },
        ],
    },
];

pub(super) fn fair_share() -> Vec<Finding> {
    from(FIRST_SEED)
}

/// The same on two seeds from `first` on.
pub(super) fn from(first: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for case in &CASES {
        for (times, movable, condition) in CONDITIONS {
            let each: Vec<Option<Parts>> =
                (first..first + SEEDS).map(|seed| parts(case, (times, movable), seed)).collect();
            let deviation =
                |parts: &Option<Parts>| parts.as_ref().map_or(f64::INFINITY, Parts::deviation);
            let deviations: Vec<f64> = each.iter().map(deviation).collect();
            let shown = each.iter().flatten().next().map_or_else(String::new, Parts::text);
            let what =
                format!("{}, {condition}: largest deviation from what is due{shown}", case.name);
            let worst = deviations.iter().copied().fold(0.0, f64::max);
            let row = Finding::at_most("FAIR-SHARE", what, Proof::Proxy, DEVIATION_MAX, worst);
            findings.push(row.over_seeds(&deviations));
        }
    }
    findings
}

/// What users got in the time in which all had jobs waiting.
struct Parts {
    /// By user: the part of the slices that were in use, and the part that was due.
    users: BTreeMap<&'static str, (f64, f64)>,
    hours: f64,
}

impl Parts {
    fn deviation(&self) -> f64 {
        self.users.values().map(|(got, due)| (got / due - 1.0).abs()).fold(0.0, f64::max)
    }

    fn text(&self) -> String {
        let users: Vec<String> = self
            .users
            .iter()
            .map(|(user, (got, due))| format!("{user} {:.1} of {:.1} %", 100.0 * got, 100.0 * due))
            .collect();
        format!(" (first seed, {:.1} h: {})", self.hours, users.join(", "))
    }
}

fn parts(case: &Case, (times, movable): (RunTimeKnowledge, bool), seed: u64) -> Option<Parts> {
    let jobs = jobs_of(case, movable, seed);
    let fleet = GpuFleet::parse(case.cluster).ok()?;
    let decides = policy("tessera").ok()?;
    let setup = SimulationSetup {
        jobs: &jobs,
        fleet: &fleet,
        policy: decides.as_ref(),
        overheads: Overheads { times, ..Overheads::default() },
        round_ms: 0,
        seed,
        plot: true,
    };
    let done = run(setup, &mut |_| {}).ok()?;
    Some(counted(case, &jobs, &done))
}

/// Counts memory slices over time, from the start until a half-life is over or a user has no job waiting.
fn counted(case: &Case, jobs: &[SimulatedJob], done: &RunOutcome) -> Parts {
    let last_start = |user: &str| {
        let own = jobs.iter().zip(&done.jobs).filter(|(job, _)| job.user == user);
        own.map(|(_, done)| done.start_ms).max().unwrap_or(0)
    };
    let until = case.users.iter().map(|demand| last_start(demand.user)).min().unwrap_or(0);
    let until = until.min(HALF_LIFE.get());
    let mut got: BTreeMap<&str, u64> = BTreeMap::new();
    for segment in &done.segments {
        let Some(job) =
            segment.job.checked_sub(1).and_then(|at| jobs.get(usize::try_from(at).ok()?))
        else {
            continue;
        };
        let lasted = segment.to_ms.min(until).saturating_sub(segment.from_ms);
        *got.entry(job.user.as_str()).or_default() += lasted * u64::from(segment.slices);
    }
    let all = float(got.values().sum::<u64>().max(1));
    let shares: u32 = case.users.iter().map(|demand| demand.shares).sum();
    let users = case.users.iter().map(|demand| {
        let part = float(got.get(demand.user).copied().unwrap_or(0)) / all;
        (demand.user, (part, f64::from(demand.shares) / f64::from(shares)))
    });
    Parts { users: users.collect(), hours: float(until) / 3_600_000.0 }
}

/// Returns the jobs of all users, submitted within the first seconds. Each lasts half to one and a half times the mean.
fn jobs_of(case: &Case, movable: bool, seed: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "fair share");
    let mut jobs = Vec::new();
    for demand in case.users {
        for _ in 0..demand.jobs {
            let lasts_ms = demand.lasts_s * (500 + rng.below(1_001));
            let memory = Bytes::from_mib(4_000);
            jobs.push(SimulatedJob {
                name: demand.user.to_owned(),
                user: demand.user.to_owned(),
                account: None,
                shares: demand.shares,
                submit_ms: rng.below(10_000),
                class: JobClass::Offline,
                priority: 5,
                deadline_ms: None,
                limit_ms: None,
                place: None,
                times: [("a100-40gb".to_owned(), [(1, lasts_ms)].into())].into(),
                requested: memory,
                memory_at_start: memory,
                memory_at_end: memory,
                demand: None,
                busy: None,
                transfer: 0,
                power_milliwatts: None,
                start_up_ms: 0,
                restore_ms: movable.then_some(RESTORE_MS),
                iterations: None,
                gang: None,
            });
        }
    }
    jobs.sort_by_key(|job| job.submit_ms);
    jobs
}
