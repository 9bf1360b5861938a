//! How long one whole round of a leader takes: the snapshot, the predictions, the policy, and the
//! changes. Also how long it takes to explain what would start a job. Prints one JSON object per
//! scenario.
//!
//! ```text
//! cargo run --release -p tessera-load-drivers --bin live-round -- --rounds 50
//! ```
//!
//! Scale 1 is 20 nodes × 8 A100-40GB with 1,120 jobs that run and 5,000 that wait, of 50 tasks; half of
//! them can be moved. The promise is 20 ms for a round of policy `tessera`. No database takes part:
//! what a round writes is committed during the next one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tessera_control::predictions::RunSample;
use tessera_control::rows::snapshot::{GpuRow, LiveRow, NodeRow, StoreSnapshot};
use tessera_control::rows::submitted::SubmittedJob;
use tessera_control::rows::transitions::record_without_exit;
use tessera_control::{ClusterState, Input, LaunchSpec};
use tessera_controller::clock::Running;
use tessera_frames::cluster::{
    AttemptReport, AttemptStatus, GpuHealth, GpuReport, Hello, InstanceReport, MigReport,
    PROTOCOL_VERSION, ToController,
};
use tessera_load_tests::processor::{Took, summed, timed};
use tessera_model::lease::LeaseTerms;
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::{Geometry, Slot, catalog};
use tessera_model::spec::{Class, JobSpec, RawJobSpec};
use tessera_model::task::task_key;
use tessera_model::{
    AttemptId, BootId, Bytes, ControllerId, DecisionId, JobId, Millis, NodeId, NodeIdentity,
};
use tessera_placement::SliceKind;
use uuid::Uuid;

/// As the controller has it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const MODEL: &str = "a100-40gb";
const NODES: u32 = 20;
const GPUS_PER_NODE: u32 = 8;
const JOBS_PER_GPU: u8 = 7;
const QUEUE: u64 = 5_000;
const TASKS: u64 = 50;
/// In the scene with online jobs, one in so many waiting jobs is one.
const ONLINE_EVERY: u64 = 10;
const BUSY: &str = "all busy: nobody starts";
const ENDS: &str = "a GPU's jobs end: others start";
const EXPLAIN_IN_PLACER: &str = "explain the last of the queue: in the placer";
const EXPLAIN: &str = "explain the last of the queue: all of it";
const ONLINE: &str = "all busy, a tenth of the queue is online: offline jobs are sent back";
const START: Millis = Millis::from_secs(100_000);

#[derive(Debug, Parser)]
struct Options {
    /// Rounds per scenario.
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Multiples of the cluster and of the queue.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    scales: Vec<u32>,
    /// Policies to run.
    #[arg(long, value_delimiter = ',', default_value = "scheme-b,tessera")]
    policies: Vec<String>,
    /// Waiting jobs at scale 1.
    #[arg(long, default_value_t = QUEUE)]
    queue: u64,
    /// Only scenes whose name holds this text; others have no rounds.
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> Result<()> {
    let options = Options::parse();
    for scale in &options.scales {
        for policy in &options.policies {
            measure(&options, *scale, policy)?;
        }
    }
    Ok(())
}

/// Measures every scene of one policy on one cluster.
fn measure(options: &Options, scale: u32, policy: &str) -> Result<()> {
    let queue = options.queue * u64::from(scale);
    let rounds_of = |scene: &str| if scene.contains(&options.only) { options.rounds } else { 0 };
    let print = |scene: &str, times: Vec<Took>| {
        if !times.is_empty() {
            print_times(scale, queue, policy, scene, times);
        }
    };
    let mut rig = Rig::new(scale, queue, policy, 0)?;
    let mut second = 0;
    let mut next = || {
        second += 3;
        Millis::from_secs(second)
    };
    print(BUSY, (0..rounds_of(BUSY)).map(|_| rig.timed(vec![Input::Tick], next())).collect());
    let ends = (0..rounds_of(ENDS)).map(|round| rig.timed(rig.ended(round + 1), next()));
    print(ENDS, ends.collect());
    let in_placer = (0..rounds_of(EXPLAIN_IN_PLACER)).map(|_| rig.time_explain(queue));
    print(EXPLAIN_IN_PLACER, in_placer.collect());
    print(EXPLAIN, (0..rounds_of(EXPLAIN)).map(|_| rig.explained(queue)).collect());
    if rounds_of(ONLINE) == 0 {
        return Ok(());
    }
    rig = Rig::new(scale, queue, policy, ONLINE_EVERY)?;
    print(ONLINE, (0..rounds_of(ONLINE)).map(|_| rig.timed(vec![Input::Tick], next())).collect());
    Ok(())
}

fn print_times(scale: u32, queue: u64, policy: &str, what: &str, times: Vec<Took>) {
    let mut result = summed(&times);
    result["policy"] = policy.into();
    result["gpus"] = (NODES * GPUS_PER_NODE * scale).into();
    result["queue"] = queue.into();
    result["round"] = what.into();
    result["rounds"] = times.len().into();
    println!("{result}");
}

struct Rig {
    cluster: ClusterState,
    scale: u32,
}

impl Rig {
    /// A cluster on which everything is busy. Of the waiting jobs, one in `online_every` is online; with 0 none is.
    fn new(scale: u32, queue: u64, policy: &str, online_every: u64) -> Result<Self> {
        let geometry = catalog::models().get(MODEL).context("the catalogue has this model")?;
        let geometry = geometry.geometry();
        let mut snapshot = StoreSnapshot { runs: training_samples(), ..StoreSnapshot::default() };
        let mut inputs = Vec::new();
        for node in 0..NODES * scale {
            snapshot.nodes.push(node_row(node)?);
            inputs.push(hello(node)?);
            for index in 0..GPUS_PER_NODE {
                let report = report(node, index, &geometry)?;
                inputs.push(frame(node, ToController::Gpu(report.clone())));
                for instance in &report.instances {
                    let number = RUNNING
                        + u64::from((node * GPUS_PER_NODE + index) * 7)
                        + u64::from(instance.slot.start);
                    let row = live_row(number, node, &report, instance.slot);
                    snapshot.launch_specs.insert(row.job, launch_spec(number)?);
                    inputs.push(frame(node, running(number)));
                    snapshot.live.push(row);
                }
                snapshot.gpus.push(GpuRow { node: node_id(node), layout_gen: 0, report });
            }
            inputs.push(frame(node, ToController::InventoryDone));
        }
        for number in 1..=queue {
            let mut waiting = spec(number)?;
            if online_every > 0 && number.is_multiple_of(online_every) {
                waiting.class = Class::Online;
            }
            snapshot.waiting.push(SubmittedJob::new(JobId::from_number(number), &waiting, None, 0));
        }
        let policy = tessera_placement::by_name(policy).context("no such policy")?;
        let controller = ControllerId::from_uuid(Uuid::from_u128(9));
        let terms = LeaseTerms::default();
        let mut cluster = ClusterState::new(5, controller, terms, policy, snapshot, START);
        // The default of a controller.
        cluster.set_improve_budget(Duration::from_millis(10), Arc::new(Running::start()));
        let mut rig = Self { cluster, scale };
        rig.timed(inputs, Millis::ZERO);
        Ok(rig)
    }

    fn timed(&mut self, inputs: Vec<Input>, after: Millis) -> Took {
        for node in 0..NODES * self.scale {
            // Leases don't expire while the clock leaps.
            let now = START.plus(after);
            self.cluster.renew_lease(node_id(node), u64::from(node), now, 1, now, now);
        }
        let step = || self.cluster.step(inputs, START.plus(after), &mut Uuid::now_v7);
        let (round, took) = timed(step);
        let specs: HashMap<JobId, LaunchSpec> = round
            .jobs
            .reservations
            .iter()
            .filter_map(|r| Some((r.job, launch_spec(r.job.number()).ok()?)))
            .collect();
        self.cluster.set_launch_specs(specs, &HashMap::new());
        took
    }

    /// Returns the ends of all jobs that ran on one GPU, another one in each round.
    fn ended(&self, round: u64) -> Vec<Input> {
        let gpus = u64::from(NODES * GPUS_PER_NODE * self.scale);
        let gpu = u32::try_from(round % gpus).expect("the number of GPUs has 32 bits");
        let first = RUNNING + u64::from(gpu * 7);
        let of = |number: u64| {
            let mut record = record_without_exit(Outcome::Succeeded, String::new());
            record.started_unix = Millis::from_secs(1);
            record.ended_unix = Millis::from_secs(1_000);
            let report = AttemptReport {
                attempt: attempt(number),
                job: JobId::from_number(number),
                status: AttemptStatus::Ended(record),
            };
            frame(gpu / GPUS_PER_NODE, ToController::Attempt(report))
        };
        (first..first + u64::from(JOBS_PER_GPU)).map(of).collect()
    }

    fn time_explain(&self, job: u64) -> Took {
        timed(|| self.cluster.explain_query(JobId::from_number(job))).1
    }

    fn explained(&self, job: u64) -> Took {
        let now = START.plus(Millis::from_secs(1));
        timed(|| self.cluster.explain_waiting(JobId::from_number(job), now)).1
    }
}

/// Jobs with higher numbers run as it begins.
const RUNNING: u64 = 10_000_000;

fn spec(number: u64) -> Result<JobSpec> {
    let task = number % TASKS;
    let raw = RawJobSpec {
        user: Some(format!("user{}", number % 20)),
        command: Some(vec!["train".to_owned()]),
        task_key: Some(format!("task{task}")),
        gpu_memory_bytes: Some([4, 4, 4, 9, 18][usize::try_from(number % 5)?] << 30),
        checkpoint_signal: number.is_multiple_of(2).then(|| "USR1".to_owned()),
        ..RawJobSpec::default()
    };
    Ok(JobSpec::parse(raw)?)
}

fn launch_spec(number: u64) -> Result<LaunchSpec> {
    Ok(LaunchSpec {
        gang: None,
        spec: Arc::new(spec(number)?),
        array: None,
        traceparent: None,
        charged: 0,
        uncharged: 0,
        attempts: 1,
        relimited: false,
        restart_reason: None,
        waited: Millis::from_secs(1_000),
        done: 0,
        own: Default::default(),
    })
}

/// Every task of every user was measured on three slices, eight times each.
fn training_samples() -> Vec<RunSample> {
    let mut samples = Vec::new();
    for number in 0..TASKS * 20 {
        let Ok(spec) = spec(number) else { continue };
        let task = task_key(&spec.user, spec.task_key.as_deref(), &spec.run.program);
        for (profile, part, slower) in
            [("1g.5gb", 142, 4), ("2g.10gb", 285, 2), ("7g.40gb", 1_000, 1)]
        {
            for run in 0..8 {
                let secs = (600 + 60 * (number % TASKS)) * slower + run;
                samples.push(RunSample {
                    task: task.clone(),
                    on: SliceKind { model: MODEL.to_owned(), profile: profile.to_owned(), part },
                    ran: Millis::from_secs(secs),
                });
            }
        }
    }
    samples
}

fn node_id(node: u32) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(u128::from(node) + 1))
}

fn attempt(number: u64) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(u128::from(number)))
}

fn node_row(node: u32) -> Result<NodeRow> {
    Ok(NodeRow {
        node: node_id(node),
        name: format!("node{node:04}").parse()?,
        generation: 1,
        lost: false,
        boot: BootId::from_uuid(Uuid::from_u128(1)),
        software: String::new(),
        cores: 64,
        memory_bytes: 1 << 40,
        mps: false,
        kernel: false,
        last_seen_unix: Millis::ZERO,
    })
}

fn hello(node: u32) -> Result<Input> {
    Ok(Input::Hello {
        peer: NodeIdentity { id: node_id(node), name: format!("node{node:04}").parse()? },
        session: u64::from(node),
        hello: Box::new(Hello {
            address: String::new(),
            isolation_gaps: std::collections::BTreeSet::new(),
            protocol: PROTOCOL_VERSION,
            software: String::new(),
            boot: BootId::from_uuid(Uuid::from_u128(1)),
            process: 1,
            generation: 1,
            highest_epoch: 5,
            receipt: Vec::new(),
            controller: None,
            cores: 64,
            memory: Bytes::new(1 << 40),
            mps: false,
            kernel: false,
        }),
    })
}

fn frame(node: u32, frame: ToController) -> Input {
    Input::Frame { node: node_id(node), session: u64::from(node), frame: Box::new(frame) }
}

fn running(number: u64) -> ToController {
    let status = AttemptStatus::Running { pid: 1, started_unix: Millis::new(1) };
    let (attempt, job) = (attempt(number), JobId::from_number(number));
    ToController::Attempt(AttemptReport { attempt, job, status })
}

fn report(node: u32, index: u32, geometry: &Geometry) -> Result<GpuReport> {
    let small = geometry.by_name(&"1g.5gb".parse()?).context("the model has the profile")?;
    let id = u128::from(node * GPUS_PER_NODE + index) << 8;
    let instances = small.starts.iter().map(|start| {
        Ok(InstanceReport {
            slot: Slot { start: *start, profile: small.id },
            slice: Some(format!("MIG-{}", Uuid::from_u128(id + u128::from(*start))).parse()?),
            memory: small.memory,
            sms: small.sms,
            trouble: None,
            parts: Vec::new(),
        })
    });
    Ok(GpuReport {
        gpu: format!("GPU-{node:04}-{index}").parse()?,
        index,
        model: MODEL.to_owned(),
        memory: Bytes::from_mib(40_960),
        sms: None,
        instances: instances.collect::<Result<_>>()?,
        mig: MigReport::On { geometry: geometry.clone() },
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    })
}

fn live_row(number: u64, node: u32, report: &GpuReport, slot: Slot) -> LiveRow {
    LiveRow {
        attempt: attempt(number),
        job: JobId::from_number(number),
        state: JobState::Running,
        number: 1,
        node: node_id(node),
        generation: 1,
        gpu: report.gpu.clone(),
        slot: Some(slot),
        share: None,
        slice: None,
        decision: DecisionId::from_uuid(Uuid::from_u128(7)),
        waited: Millis::from_secs(2_000),
        ran: Some(Millis::from_secs(900)),
        done: 0,
        gpu_memory: None,
    }
}
