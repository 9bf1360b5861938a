//! BACKFILL: `tessera` against backfill in the order of arrival (`easy`, `conservative`) and `scheme-b`, for jobs that
//! can't be moved.

use tessera_model::Bytes;
use tessera_predict::random::SeededRng;

use super::{ExperimentTrial, Finding, Proof, outcome};
use crate::cluster::calibration::mean;
use crate::cluster::fleet::GpuFleet;
use crate::cluster::job::{JobClass, SimulatedJob};
use crate::cluster::metrics::{JobOutcome, RunOutcome, quantile};
use crate::cluster::number::{float, seconds, whole};
use crate::cluster::overheads::{Overheads, RunTimeKnowledge};
use crate::cluster::policy;
use crate::cluster::workload::{built_in, limit_movable};

/// The first of five seeds, on which nothing was chosen.
const FIRST_SEED: u64 = 901;

const SEEDS: u64 = 5;

const CLUSTER: &str = "4xa100-40gb";

/// Jobs at 70 % of what whole GPUs can serve and at more than they can, and waves of small jobs between large ones.
const CASES: [&str; 3] =
    ["poisson:jobs=160,gap=460", "poisson:jobs=160,gap=240", "fragments:jobs=160,gap=50"];

const KNOWLEDGE: [(RunTimeKnowledge, &str); 2] =
    [(RunTimeKnowledge::Known, "known"), (RunTimeKnowledge::Unknown, "unknown")];

const REFERENCES: [&str; 3] = ["easy", "conservative", "scheme-b"];

/// What a large job's start may be later than under strict order, in seconds: the least slack of a reservation.
const SLACK_S: f64 = 60.0;

/// What a small job may wait longer than without the large one, in seconds: the time of cuts.
const CUTS_S: f64 = 5.0;

/// A figure of a run, in seconds.
type Figure = (&'static str, fn(&RunOutcome) -> f64);

const FIGURES: [Figure; 3] = [
    ("mean time", |done| {
        mean(&done.jobs.iter().map(|job| seconds(job.jct_ms())).collect::<Vec<f64>>())
    }),
    ("p95", |done| {
        let mut times: Vec<u64> = done.jobs.iter().map(JobOutcome::jct_ms).collect();
        times.sort_unstable();
        seconds(quantile(&times, 950))
    }),
    ("worst wait", |done| seconds(done.jobs.iter().map(wait_ms).max().unwrap_or(0))),
];

const fn wait_ms(job: &JobOutcome) -> u64 {
    job.start_ms - job.submit_ms
}

pub(super) fn backfill() -> Vec<Finding> {
    from(FIRST_SEED)
}

/// The same on five seeds from `first` on.
pub(super) fn from(first: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (times, known) in KNOWLEDGE {
        let overheads = Overheads { times, ..Overheads::default() };
        for case in CASES {
            let jobs_of = |seed| {
                let mut jobs = built_in(case, seed).ok()?.jobs;
                limit_movable(&mut jobs, 0, seed);
                Some(jobs)
            };
            let runs = Runs::of(&jobs_of, overheads, first);
            for (name, figure) in FIGURES {
                findings.push(runs.row(&format!("{case}, times {known}: {name}"), figure));
            }
        }
        for (user, whose) in WIDE_USERS {
            let runs = Runs::of(&|seed| Some(wide_between_small(seed, user)), overheads, first);
            let what = format!(
                "70 % load of 1g jobs, times {known}: mean wait of jobs of {whose} that need a whole GPU"
            );
            findings.push(runs.row(&what, wide_wait_s));
        }
        findings.extend(head_of_queue(overheads, known, first));
    }
    findings
}

/// Runs of `tessera` and the references, one for each seed.
struct Runs {
    tessera: Vec<RunOutcome>,
    references: Vec<(&'static str, Vec<RunOutcome>)>,
}

impl Runs {
    fn of(
        jobs_of: &dyn Fn(u64) -> Option<Vec<SimulatedJob>>,
        overheads: Overheads,
        first: u64,
    ) -> Self {
        let all = |name: &str| {
            let one = |seed| runs(&jobs_of(seed)?, CLUSTER, name, overheads, seed);
            (first..first + SEEDS).map(one).collect::<Option<Vec<RunOutcome>>>().unwrap_or_default()
        };
        let references = REFERENCES.map(|name| (name, all(name)));
        Self { tessera: all("tessera"), references: references.into() }
    }

    /// Compares a figure with that of the best reference for it: means over the seeds.
    fn row(&self, what: &str, figure: fn(&RunOutcome) -> f64) -> Finding {
        let each = |runs: &[RunOutcome]| runs.iter().map(figure).collect::<Vec<f64>>();
        let own = each(&self.tessera);
        let theirs: Vec<(&str, f64)> =
            self.references.iter().map(|(name, runs)| (*name, mean(&each(runs)))).collect();
        let best = theirs.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        let values: Vec<String> =
            theirs.iter().map(|(name, value)| format!("{name} {value:.0} s")).collect();
        let what = format!(
            "{what} over that of the best of {} (tessera {:.0} s)",
            values.join(", "),
            mean(&own)
        );
        // A second is added to both, so that a reference without a wait can be compared with.
        let found = (mean(&own) + 1.0) / (best + 1.0);
        Finding::at_most("BACKFILL", what, Proof::Proxy, 1.0, found)
    }
}

fn runs(
    jobs: &[SimulatedJob],
    cluster: &str,
    name: &str,
    overheads: Overheads,
    seed: u64,
) -> Option<RunOutcome> {
    let trial = ExperimentTrial::new(jobs, cluster, name);
    let trial = ExperimentTrial { overheads, seed, ..trial };
    outcome(&trial, &GpuFleet::parse(cluster).ok()?, policy(name).ok()?.as_ref())
}

/// Name of jobs that need a whole GPU.
const WIDE: &str = "wide";

/// Users of the wide jobs. The first also has a fifth of the small ones. So that user has used more than the others, and
/// fair share serves it last; the references don't share fairly.
const WIDE_USERS: [(&str, &str); 2] =
    [("user0", "a user who also has small ones"), ("another", "another user")];

fn wide_wait_s(done: &RunOutcome) -> f64 {
    let wide = done.jobs.iter().filter(|job| job.name == WIDE);
    mean(&wide.map(|job| seconds(wait_ms(job))).collect::<Vec<f64>>())
}

/// A job that can't be moved. A small one has these seconds on a 1g and half of them on a whole GPU; `halves` need half
/// of a GPU.
fn job(name: &str, user: &str, submit_ms: u64, gib: u64, lasts_s: f64) -> SimulatedJob {
    let ms = |part: f64| whole(lasts_s * part * 1_000.0).max(1);
    let times = match name {
        WIDE => [(7, ms(1.0))].into(),
        "half" => [(3, ms(1.0)), (4, ms(1.0)), (7, ms(1.0))].into(),
        _ => [(1, ms(1.0)), (2, ms(0.75)), (3, ms(0.65)), (4, ms(0.6)), (7, ms(0.5))].into(),
    };
    let memory = Bytes::from_mib(gib * 1_024);
    SimulatedJob {
        name: name.to_owned(),
        user: user.to_owned(),
        account: None,
        shares: 1,
        submit_ms,
        class: JobClass::Offline,
        priority: 5,
        deadline_ms: None,
        limit_ms: None,
        place: None,
        times: [("a100-40gb".to_owned(), times)].into(),
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

/// Returns a number above 0 and at most 1.
fn even(rng: &mut SeededRng) -> f64 {
    (float(rng.below(1 << 52)) + 1.0) / float(1 << 52)
}

/// Small jobs at 70 % of the 28 slices of 1g, for five hours, and one job of a user each hour that needs a whole GPU. A small
/// job takes ten minutes on average, a wide one ten.
fn wide_between_small(seed: u64, user: &str) -> Vec<SimulatedJob> {
    const SMALL: u64 = 588;
    const MEAN_S: f64 = 600.0;
    const GAP_S: f64 = MEAN_S / (0.7 * 28.0);
    let mut rng = SeededRng::named(seed, "wide between small");
    let mut now_s = 0.0;
    let mut jobs: Vec<SimulatedJob> = (0..SMALL)
        .map(|number| {
            now_s -= even(&mut rng).ln() * GAP_S;
            let lasts_s = (-even(&mut rng).ln() * MEAN_S).max(1.0);
            job("small", &format!("user{}", number % 5), whole(now_s * 1_000.0), 4, lasts_s)
        })
        .collect();
    jobs.extend((1..=5).map(|hour| job(WIDE, user, hour * 3_600_000, 30, MEAN_S)));
    jobs.sort_by_key(|job| job.submit_ms);
    jobs
}

/// A small job that is as fast on any slice.
fn even_job(user: &str, submit_ms: u64, lasts_s: f64) -> SimulatedJob {
    let small = job("small", user, submit_ms, 4, lasts_s);
    let times = [(1, whole(lasts_s * 1_000.0).max(1))].into();
    SimulatedJob { times: [("a100-40gb".to_owned(), times)].into(), ..small }
}

/// Two GPUs: two long jobs have the halves of one, and seven small ones the slices of 1g of the other, four of which soon
/// end. Then four slices are free. A job of 30 GB comes, and after it 37 small jobs of five users, which could all end
/// before the halves are free.
fn blocked_head(seed: u64) -> Vec<SimulatedJob> {
    let mut rng = SeededRng::named(seed, "blocked head");
    let mut jobs: Vec<SimulatedJob> =
        (0..2).map(|_| job("half", "user0", 0, 18, 2_000.0)).collect();
    jobs.extend((0..7).map(|number| even_job("user1", 0, if number < 3 { 9_000.0 } else { 50.0 })));
    jobs.push(job(WIDE, "user2", 60_000, 30, 600.0));
    jobs.extend((0..37).map(|number| {
        let lasts_s = 100.0 + even(&mut rng) * 100.0;
        even_job(&format!("user{}", number % 5), 61_000, lasts_s)
    }));
    jobs
}

/// The head-of-queue case: what small jobs wait longer because a large one waits, and how much later it starts than
/// under strict order.
fn head_of_queue(overheads: Overheads, known: &str, first: u64) -> Vec<Finding> {
    const TWO_GPUS: &str = "2xa100-40gb";
    let mut rows = Vec::new();
    for name in ["tessera", "easy"] {
        let (mut longer, mut later, mut on_average) = (Vec::new(), Vec::new(), Vec::new());
        for seed in first..first + SEEDS {
            let jobs = blocked_head(seed);
            let mut without = jobs.clone();
            without.retain(|job| job.name != WIDE);
            let run =
                |jobs: &[SimulatedJob], name: &str| runs(jobs, TWO_GPUS, name, overheads, seed);
            let (Some(with), Some(alone), Some(strict)) =
                (run(&jobs, name), run(&without, name), run(&jobs, "scheme-b"))
            else {
                longer.push(f64::INFINITY);
                continue;
            };
            let small = with.jobs.iter().filter(|job| job.name != WIDE);
            let waits = small
                .zip(&alone.jobs)
                .map(|(with, alone)| seconds(wait_ms(with)) - seconds(wait_ms(alone)));
            let waits: Vec<f64> = waits.collect();
            on_average.push(mean(&waits));
            longer.push(waits.into_iter().fold(0.0, f64::max));
            let start = |done: &RunOutcome| {
                done.jobs
                    .iter()
                    .find(|job| job.name == WIDE)
                    .map_or(0.0, |job| seconds(job.start_ms))
            };
            later.push(start(&with) - start(&strict));
        }
        let worst = |each: &[f64]| each.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let what = format!(
            "head of the queue, times {known}, {name}: most that a small job waits longer than without the large one, s"
        );
        rows.push(
            Finding::at_most("BACKFILL", what, Proof::Proxy, CUTS_S, worst(&longer))
                .over_seeds(&longer),
        );
        let what = format!(
            "head of the queue, times {known}, {name}: what small jobs wait longer on average than without the large one, s"
        );
        rows.push(
            Finding::at_most("BACKFILL", what, Proof::Proxy, CUTS_S, worst(&on_average))
                .over_seeds(&on_average),
        );
        let what = format!(
            "head of the queue, times {known}, {name}: start of the large job after that under strict order, s"
        );
        rows.push(
            Finding::at_most("BACKFILL", what, Proof::Proxy, SLACK_S, worst(&later))
                .over_seeds(&later),
        );
    }
    rows
}
