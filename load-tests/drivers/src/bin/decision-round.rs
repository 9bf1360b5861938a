//! How long one decision round takes: prints one JSON object per scenario and scale.
//!
//! ```text
//! cargo run --release -p tessera-load-drivers --bin decision-round -- --rounds 50
//! ```
//!
//! Scale 1 is the cluster of Dyna-P's scale study: 20 nodes × 8 A100-40GB, at most 1,120 jobs at
//! once, 5,000 jobs in the queue. GPUs and queue grow together. The promise is 10 ms at scale 1.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tessera_lab_policies::find_policy;
use tessera_model::mig::{MigState, Profile, Slot, catalog};
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::policy::NAMES;
use tessera_placement::record::{RoundInput, RoundRecorder};
use tessera_placement::{
    Account, AdminOverride, ClusterView, Decision, GpuView, InstanceState, InstanceView, JobFacts,
    JobTable, Knowledge, MigView, Policy, Predictor, QueuedJob, RunTime, decide_round,
};

const MODEL: &str = "a100-40gb";
const NODES: u32 = 20;
const GPUS_PER_NODE: u32 = 8;
const QUEUE: u64 = 5_000;
/// More starts than any round can make: the limit of a live controller would hide the worst case.
const STARTS_MAX: usize = 1_000_000;

#[derive(Debug, Parser)]
struct Options {
    /// Rounds per scenario.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Multiples of the cluster and of the queue.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    scales: Vec<u32>,
    /// Policies to run; all by default.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Also record each round, as a controller does, and measure that.
    #[arg(long)]
    recorded: bool,
    /// Seed of the fragmented layouts and of the mixed queue.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Instances on the GPUs when the round begins.
#[derive(Clone, Copy, Debug)]
enum Layouts {
    /// Nothing: every start needs a layout step.
    Empty,
    /// Seven idle 1g instances.
    Idle,
    /// Seven busy 1g instances.
    Busy,
    /// As empty, but every node is away: each job gets that reason.
    Away,
    /// A random walk of instances; half of them busy, a few out of reach, some GPUs changing.
    Fragmented,
}

impl Layouts {
    const ALL: [Self; 5] = [Self::Empty, Self::Idle, Self::Busy, Self::Away, Self::Fragmented];

    const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Idle => "all idle",
            Self::Busy => "all busy",
            Self::Away => "all away",
            Self::Fragmented => "fragmented",
        }
    }
}

/// What the jobs request.
#[derive(Clone, Copy, Debug)]
enum RequestMix {
    /// The smallest slice, all of them: the most starts in one round.
    Small,
    /// All sizes.
    Mixed,
}

impl RequestMix {
    const ALL: [Self; 2] = [Self::Small, Self::Mixed];

    const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Mixed => "mixed",
        }
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let names: Vec<&str> = if options.policies.is_empty() {
        NAMES.iter().copied().chain(["tessera"]).collect()
    } else {
        options.policies.iter().map(String::as_str).collect()
    };
    let model = catalog::models().get(MODEL).context("the catalogue has this model")?;
    let mig = Arc::new(MigView::new(model.geometry())?);
    for scale in &options.scales {
        for layouts in Layouts::ALL {
            for mix in RequestMix::ALL {
                let mut random = StdRng::seed_from_u64(options.seed);
                let cluster = cluster(*scale, layouts, &mig, &mut random)?;
                let queue = queue(*scale, mix, &mut random)?;
                for name in &names {
                    let policy = find_policy(name).with_context(|| format!("no policy {name}"))?;
                    let measured = measure(policy.as_ref(), &cluster, &queue, options.rounds);
                    let recorded = match options.recorded {
                        true => Some(record(policy.as_ref(), &cluster, &queue, options.rounds)?),
                        false => None,
                    };
                    println!(
                        "{}",
                        serde_json::json!({
                            "policy": name,
                            "scale": scale,
                            "gpus": cluster.gpus.len(),
                            "queue": queue.len(),
                            "layouts": layouts.name(),
                            "asks": mix.name(),
                            "rounds": options.rounds,
                            "starts": measured.starts,
                            "decisions": measured.decisions,
                            "median_ms": milliseconds(measured.median),
                            "max_ms": milliseconds(measured.max),
                            "recorded": recorded,
                        })
                    );
                }
            }
        }
    }
    Ok(())
}

/// Time of the rounds: jobs have waited for up to an hour.
const NOW: Millis = Millis::from_secs(3_600);

/// Knows the run time of every job: a minute to two hours, by its number.
struct Known;

impl JobTable for Known {
    fn facts(&self, job: JobId) -> JobFacts {
        JobFacts {
            done: Some(if job.number() > RUNNING { 500_000 } else { 0 }),
            since: Some(Millis::ZERO),
            migration_price: Some(Millis::from_secs(6)),
            ..JobFacts::default()
        }
    }

    fn account(&self, _: JobId) -> Option<Account> {
        None
    }
}

impl Predictor for Known {
    fn predict_run(&self, job: JobId, _: &GpuView, profile: &Profile) -> Option<RunTime> {
        let whole_s = 60 + job.number().wrapping_mul(0x9E37_79B9) % 7_200;
        // A slice slows a job by a smaller factor than its share of the GPU shrinks.
        let per_mille = match profile.compute_slices {
            1 => 3_200,
            2 => 2_100,
            3 => 1_650,
            4 => 1_400,
            _ => 1_000,
        };
        Some(RunTime::measured(Millis::new(whole_s * per_mille)))
    }
}

/// Jobs with higher numbers run.
const RUNNING: u64 = 10_000_000;

struct Measured {
    starts: usize,
    decisions: usize,
    median: Duration,
    max: Duration,
}

fn measure(
    policy: &dyn Policy,
    cluster: &ClusterView,
    queue: &[QueuedJob],
    rounds: usize,
) -> Measured {
    let mut times = Vec::with_capacity(rounds);
    let mut last = Vec::new();
    for _ in 0..rounds.max(1) {
        drop(std::mem::take(&mut last));
        let begun = Instant::now();
        last =
            policy.decide_with(cluster, Knowledge::of(&Known), &mut queue.iter(), NOW, STARTS_MAX);
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Measured {
        starts: last.iter().filter(|d| matches!(d, Decision::Start { .. })).count(),
        decisions: last.len(),
        median: times[times.len() / 2],
        max: times[times.len() - 1],
    }
}

/// Decides rounds and records them; each round has one waiting job fewer than the one before.
fn record(
    policy: &dyn Policy,
    cluster: &ClusterView,
    queue: &[QueuedJob],
    rounds: usize,
) -> Result<serde_json::Value> {
    let mut recorder = RoundRecorder::default();
    let (mut deciding, mut writing, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds.max(2) {
        let queue: Vec<&QueuedJob> = queue.iter().skip(round).collect();
        let begun = Instant::now();
        let answers = recorder.record_answers(Knowledge::of(&Known), cluster, NOW);
        let mut shown = queue.iter().copied();
        let decisions =
            decide_round(policy, cluster, answers.knowledge(), &mut shown, NOW, STARTS_MAX);
        let deciding_took = begun.elapsed();
        let input = RoundInput { cluster, queue: &queue, now: NOW, starts_max: STARTS_MAX };
        let prepared = recorder.prepare_record(policy, input, answers, &decisions);
        let record = recorder.keep_record(prepared);
        writing.push(begun.elapsed() - deciding_took);
        deciding.push(deciding_took);
        sizes.push(serde_json::to_vec(&record)?.len());
    }
    let whole = (milliseconds(writing[0]), sizes[0]);
    let mut rest = writing.split_off(1);
    rest.sort_unstable();
    deciding.sort_unstable();
    Ok(serde_json::json!({
        "asking_median_ms": milliseconds(deciding[deciding.len() / 2]),
        "writing_median_ms": milliseconds(rest[rest.len() / 2]),
        "writing_whole_ms": whole.0,
        "text_bytes_mean": sizes[1..].iter().sum::<usize>() / (sizes.len() - 1),
        "text_bytes_whole": whole.1,
    }))
}

fn cluster(
    scale: u32,
    layouts: Layouts,
    mig: &Arc<MigView>,
    random: &mut StdRng,
) -> Result<ClusterView> {
    let mut gpus = Vec::new();
    for node in 0..NODES * scale {
        for index in 0..GPUS_PER_NODE {
            let changing = matches!(layouts, Layouts::Fragmented) && random.random_ratio(1, 10);
            gpus.push(GpuView {
                id: format!("GPU-{node:04}-{index}").parse()?,
                node: format!("node{node:04}").parse()?,
                index,
                model: "NVIDIA A100-SXM4-40GB".to_owned(),
                memory: Bytes::from_mib(40_960),
                sms: Some(108),
                mig: Some(Arc::clone(mig)),
                mps: false,
                kernel: false,
                available: !matches!(layouts, Layouts::Away),
                changing,
                instances: instances(
                    layouts,
                    mig,
                    RUNNING + 8 * u64::from(node * 8 + index),
                    random,
                )?,
                operator: AdminOverride::default(),
                part: 0,
            });
        }
    }
    Ok(gpus.into())
}

/// Returns the instances of a GPU; its jobs have numbers after `base`.
fn instances(
    layouts: Layouts,
    mig: &MigView,
    base: u64,
    random: &mut StdRng,
) -> Result<Vec<InstanceView>> {
    let smallest = mig.plain().next().context("the model has profiles")?;
    let small = |state: &dyn Fn(u64) -> InstanceState| {
        let slots =
            smallest.starts.iter().map(|start| Slot { start: *start, profile: smallest.id });
        slots
            .zip(1..)
            .map(|(slot, number)| InstanceView {
                slot: Some(slot),
                memory: smallest.memory,
                state: state(number),
            })
            .collect()
    };
    let taken = |number| InstanceState::Taken { job: JobId::from_number(base + number) };
    Ok(match layouts {
        Layouts::Empty | Layouts::Away => Vec::new(),
        Layouts::Idle => small(&|_| InstanceState::Idle),
        Layouts::Busy => small(&taken),
        Layouts::Fragmented => {
            let mut state = MigState::EMPTY;
            for _ in 0..random.random_range(0..6) {
                let ways = mig.all().successors(state);
                if ways.is_empty() {
                    break;
                }
                state = ways[random.random_range(0..ways.len())].1;
            }
            mig.all()
                .layout(state)
                .into_iter()
                .zip(1..)
                .map(|(slot, number)| InstanceView {
                    slot: Some(slot),
                    memory: mig.geometry.profile(slot.profile).map_or(Bytes::ZERO, |p| p.memory),
                    state: match random.random_range(0..20) {
                        0 => InstanceState::Foreign,
                        1 => InstanceState::Stuck,
                        2..=10 => taken(number),
                        _ => InstanceState::Idle,
                    },
                })
                .collect()
        }
    })
}

fn queue(scale: u32, mix: RequestMix, random: &mut StdRng) -> Result<Vec<QueuedJob>> {
    (1..=QUEUE * u64::from(scale))
        .map(|number| {
            let gpu = match mix {
                RequestMix::Small => GpuRequest::Unknown,
                RequestMix::Mixed => match random.random_range(0..100) {
                    0..50 => GpuRequest::Memory(Bytes::from_mib(random.random_range(100..4_800))),
                    50..70 => {
                        GpuRequest::Memory(Bytes::from_mib(random.random_range(5_000..9_800)))
                    }
                    70..85 => {
                        GpuRequest::Memory(Bytes::from_mib(random.random_range(10_000..19_900)))
                    }
                    85..90 => GpuRequest::Profile("1g.10gb".parse()?),
                    90..95 => GpuRequest::Unknown,
                    _ => GpuRequest::Whole,
                },
            };
            Ok(QueuedJob {
                id: JobId::from_number(number),
                gpu,
                user: "ada".into(),
                share: None,
                auto: None,
                online: false,
                queue_rank: QueueRank::default(),
                submitted: Millis::new(number),
                gang: None,
                place: None,
            })
        })
        .collect()
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
