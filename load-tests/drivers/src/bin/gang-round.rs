//! How long one decision round with gangs in the queue takes: prints one JSON object a scale.
//!
//! ```text
//! cargo run --release -p tessera-load-drivers --bin gang-round -- --scales 1,4,16,50
//! ```
//!
//! Scale 1 is 20 nodes × 8 A100-40GB and 2,000 jobs (`--jobs`): at scale 50 these are 8,000 GPUs and 100,000.
//! `--gangs` percent of submits are gangs of 2 to 16 processes on whole GPUs. Half of the GPUs are taken, so
//! that the first gang that finds no placements has GPUs kept for it. `--shown` is how many jobs a round is
//! shown; a controller shows no more than 5,000.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tessera_load_tests::processor::{Took, summed, timed};
use tessera_model::mig::{Slot, catalog};
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{Bytes, GangMember, GangShape, JobId, Millis};
use tessera_placement::{
    AdminOverride, ClusterView, Decision, GpuView, InstanceState, InstanceView, Knowledge, MigView,
    QueuedJob, by_name, decide_round,
};

const MODEL: &str = "a100-40gb";
const NODES: u32 = 20;
const GPUS_PER_NODE: u32 = 8;
/// Maximum number of starts in a controller's round.
const STARTS_MAX: usize = 256;
/// Time of the rounds: jobs have waited for up to an hour.
const NOW: Millis = Millis::from_secs(3_600);
/// Nodes and GPUs of each.
const SHAPES: [(u32, u32); 6] = [(1, 2), (1, 4), (2, 2), (1, 8), (2, 4), (2, 8)];

#[derive(Debug, Parser)]
struct Options {
    /// Rounds a scale.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Multiples of the cluster and of the queue.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,50")]
    scales: Vec<u32>,
    /// Jobs at scale 1.
    #[arg(long, default_value_t = 2_000)]
    jobs: u64,
    /// Percentage of submits that are gangs.
    #[arg(long, default_value_t = 10)]
    gangs: u32,
    /// Maximum number of jobs that a round considers.
    #[arg(long, default_value_t = 5_000)]
    shown: usize,
    #[arg(long, default_value = "tessera")]
    policy: String,
    /// Seed of the queue and of the GPUs in use.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let policy = by_name(&options.policy).context("no such policy in a controller")?;
    let model = catalog::models().get(MODEL).context("the catalogue has this model")?;
    let mig = Arc::new(MigView::new(model.geometry())?);
    for scale in &options.scales {
        let mut random = StdRng::seed_from_u64(options.seed);
        let cluster = cluster(*scale, &mig, &mut random)?;
        let queue = queue(options.jobs * u64::from(*scale), options.gangs, &mut random)?;
        let mut times: Vec<Took> = Vec::new();
        let mut decisions_made = Vec::new();
        for _ in 0..options.rounds.max(1) {
            let mut shown = queue.iter().take(options.shown);
            let (decided, took) = timed(|| {
                decide_round(&*policy, &cluster, Knowledge::NONE, &mut shown, NOW, STARTS_MAX)
            });
            decisions_made = decided;
            times.push(took);
        }
        let started = |decision: &&Decision| matches!(decision, Decision::Start { .. });
        let mut result = summed(&times);
        result["policy"] = options.policy.as_str().into();
        result["scale"] = (*scale).into();
        result["gpus"] = cluster.gpus.len().into();
        result["queue"] = queue.len().into();
        result["shown"] = options.shown.min(queue.len()).into();
        result["gang_members"] = queue.iter().filter(|job| job.gang.is_some()).count().into();
        result["rounds"] = times.len().into();
        result["starts"] = decisions_made.iter().filter(started).count().into();
        result["decisions"] = decisions_made.len().into();
        println!("{result}");
    }
    Ok(())
}

fn cluster(scale: u32, mig: &Arc<MigView>, random: &mut StdRng) -> Result<ClusterView> {
    let whole = mig.geometry.largest().context("a largest profile")?;
    let mut gpus = Vec::new();
    for node in 0..NODES * scale {
        for index in 0..GPUS_PER_NODE {
            let number = u64::from(node * GPUS_PER_NODE + index);
            let taken = random.random_bool(0.5);
            let instance = InstanceView {
                slot: Some(Slot { start: whole.starts[0], profile: whole.id }),
                memory: whole.memory,
                state: InstanceState::Taken { job: JobId::from_number(10_000_000 + number) },
            };
            gpus.push(GpuView {
                id: format!("GPU-{number:06}").parse()?,
                node: format!("n{node:05}").parse()?,
                index,
                model: MODEL.to_owned(),
                memory: Bytes::from_mib(40_960),
                sms: None,
                mig: Some(Arc::clone(mig)),
                mps: false,
                kernel: false,
                available: true,
                changing: false,
                instances: if taken { vec![instance] } else { Vec::new() },
                operator: AdminOverride::default(),
                part: 0,
            });
        }
    }
    Ok(gpus.into())
}

fn queue(jobs: u64, gangs: u32, random: &mut StdRng) -> Result<Vec<QueuedJob>> {
    let mut queue = Vec::new();
    let mut number = 1;
    while number <= jobs {
        let shape = match random.random_range(0..100) < gangs {
            true => Some(SHAPES[random.random_range(0..SHAPES.len())]),
            false => None,
        };
        let shape = shape.map(|(nodes, gpus)| GangShape::new(nodes, gpus)).transpose()?;
        let gpu = match shape {
            Some(_) => GpuRequest::Whole,
            None => GpuRequest::Memory(Bytes::from_mib(random.random_range(100..39_000))),
        };
        let first = JobId::from_number(number);
        for rank in 0..shape.map_or(1, GangShape::members) {
            queue.push(QueuedJob {
                id: JobId::from_number(number),
                gpu: gpu.clone(),
                user: "ada".into(),
                share: None,
                auto: None,
                online: false,
                queue_rank: QueueRank::default(),
                submitted: Millis::new(first.number()),
                gang: shape.map(|shape| GangMember { gang: first, shape, rank }),
                place: None,
            });
            number += 1;
        }
    }
    Ok(queue)
}
