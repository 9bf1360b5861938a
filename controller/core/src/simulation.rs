//! Simulation of the whole control plane: the real core over a store in memory, machines that
//! follow the agent's rules, and random faults. A run is determined by its seed.
//!
//! `TESSERA_SIM_SEEDS=from..to` or a number selects the seeds.

mod agent;
mod checks;
mod events;
mod leader;
mod machine;
mod preemptions;
mod random;
mod restless;
mod store;
mod world;

use std::collections::{BTreeMap, VecDeque};

use tessera_frames::cluster::{GpuHealth, GpuReport, MigReport};
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::catalog::{self, GpuModel};
use tessera_model::{BootId, Bytes, JobId, Millis, NodeId, NodeIdentity};
use uuid::Uuid;

use self::checks::Past;
use self::events::Lots;
use self::leader::{Commit, Controller};
use self::machine::{Disk, Machine};
use self::random::RandomNumbers;
use self::store::Store;
use self::world::World;
use super::Input;
use crate::commands::JobCommand;

/// Events of one run before the faults stop.
const EVENTS: usize = 1_500;
/// Steps of 400 ms after which every job must have ended once the faults stopped.
const STEPS_TO_THE_END: usize = 3_000;
/// The seeds without that setting, which take a second or two.
const SEEDS: u64 = 400;

/// Events that must occur in some run, or the simulation proves nothing.
const SOMETIMES: [&str; 36] = [
    "a commit failed",
    "a commit's answer was lost",
    "a connection broke",
    "a gang ended",
    "a gang lost a member",
    "a gang was placed",
    "a gang was requested to leave for an online job",
    "a gang was requeued together",
    "a GPU vanished",
    "a growing job was requested to move",
    "a held job was released",
    "a job moved",
    "a job that was sent back resumed",
    "a job was announced during a reload",
    "a job was requested to leave for an online one",
    "a job was requested to move",
    "a job was sent back for an online one",
    "a machine rebooted",
    "a node was declared lost",
    "a plan failed",
    "a plan continued",
    "a running job was declared lost",
    "a shepherd fenced",
    "a stranger used an instance",
    "a user spoke",
    "an administrator switched MIG",
    "an agent connected during a reload",
    "an agent crashed",
    "an attempt left the journal",
    "an instance was partly created",
    "an operator spoke",
    "an operator's layout was completed",
    "an old connection's end arrived after the new one",
    "the controller crashed",
    "the memory of a job grew",
    "an explain query was answered",
];

fn model(key: &str) -> &'static GpuModel {
    &catalog::models()[key]
}

fn new_gpu(number: u128, index: u32, mig: bool) -> GpuReport {
    let key = "a30-24gb";
    GpuReport {
        gpu: format!("GPU-{}", Uuid::from_u128(number)).parse().unwrap(),
        index,
        model: key.to_owned(),
        memory: Bytes::from_mib(24_576),
        sms: None,
        mig: match mig {
            true => MigReport::On { geometry: model(key).geometry() },
            false => MigReport::Off,
        },
        instances: Vec::new(),
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    }
}

fn machine(number: u128, random: &mut RandomNumbers) -> Machine {
    let gpus = 1 + u32::try_from(random.below(2)).unwrap();
    // The first GPU can take every request, so that no job waits forever.
    let mig = |index: u32| (number == 1 && index == 0) || index == 1;
    Machine {
        identity: NodeIdentity {
            id: NodeId::from_uuid(Uuid::from_u128(number)),
            name: format!("node-{number}").parse().unwrap(),
        },
        boot: BootId::from_uuid(Uuid::from_u128(number)),
        disk: Disk::default(),
        gpus: (0..gpus).map(|i| new_gpu(number * 100 + u128::from(i), i, mig(i))).collect(),
        processes: BTreeMap::new(),
        agent: None,
        rate: i64::try_from(random.below(100)).unwrap() - 50,
        next_slice: number * 1_000_000,
    }
}

fn world(seed: u64) -> World {
    let mut random = RandomNumbers::new(seed);
    let nodes = 1 + u128::from(random.below(4));
    let machines: Vec<_> = (1..=nodes).map(|number| machine(number, &mut random)).collect();
    let policies = ["scheme-b", "tessera", "restless", "restless", "exclusive"];
    let policy = random.pick(&policies).unwrap();
    let mut store = Store::default();
    store.epoch = 1;
    let now = Millis::from_secs(1_000);
    let both_gpus = machines[0].gpus.len() > 1;
    World {
        both_gpus,
        controller: Controller::new(policy, 1, store.snapshot(), now),
        random,
        now,
        store,
        machines,
        links: BTreeMap::new(),
        policy,
        replay: tessera_placement::record::RoundReplay::default(),
        ids: 10_000,
        tokens: BTreeMap::new(),
        counts: BTreeMap::new(),
        history: VecDeque::new(),
    }
}

/// Prints the events that led to a failure.
struct FailureReport(u64, World);

impl Drop for FailureReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in &self.1.history {
                eprintln!("{line}");
            }
            eprintln!("seed {}: run it alone with TESSERA_SIM_SEEDS={0}..{}", self.0, self.0 + 1);
        }
    }
}

fn run(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut frames = FailureReport(seed, world(seed));
    let (world, mut past) = (&mut frames.1, Past::default());
    let gpus: Vec<_> = world.machines.iter().map(|m| m.gpus.clone()).collect();
    let lots = Lots::new(world);
    for _ in 0..EVENTS {
        let event = lots.draw(world);
        world.happen(event);
        past.check(world);
    }
    heal(world, gpus);
    for _ in 0..STEPS_TO_THE_END {
        if world.store.jobs.values().all(|job| job.state.is_final()) {
            return std::mem::take(&mut world.counts);
        }
        calm_step(world);
        past.check(world);
    }
    let left: Vec<_> = world.store.jobs.iter().filter(|(_, j)| !j.state.is_final()).collect();
    panic!("without faults these jobs did not end: {left:#?}\n{:#?}", world.controller);
}

/// The faults stop: needed machines get their GPUs back, and foreign processes end.
fn heal(world: &mut World, gpus: Vec<Vec<GpuReport>>) {
    let has_gang = world.store.jobs.values().any(|job| job.gang.is_some() && !job.state.is_final());
    for (node, gpus) in gpus.into_iter().enumerate() {
        let machine = &world.machines[node];
        // The first machine can take every job outside of gangs. A gang may have learned to need
        // the largest size on several machines, and waits for them. Otherwise lost GPUs of the
        // other machines stay lost.
        let same = (node > 0 && !has_gang)
            || machine.gpus.len() == gpus.len()
                && machine.gpus.iter().zip(&gpus).all(|(now, before)| now.mig == before.mig);
        if !same {
            world.reboot(node);
            let kept = std::mem::take(&mut world.machines[node].gpus);
            world.machines[node].gpus = gpus;
            for gpu_report in &mut world.machines[node].gpus {
                let known = kept.iter().find(|k| k.gpu == gpu_report.gpu);
                gpu_report.layout_gen = known.map_or(0, |k| k.layout_gen);
            }
        }
        let machine = &mut world.machines[node];
        let gpus: Vec<_> = machine.gpus.iter().map(|gpu_report| gpu_report.gpu.clone()).collect();
        for gpu_report in &mut machine.gpus {
            gpu_report.instances.retain(|instance| instance.slice.is_some());
            gpu_report.instances.iter_mut().for_each(|instance| instance.trouble = None);
        }
        for gpu in gpus {
            let frames = world.machines[node].gpu_report(&gpu);
            world.send_frames(node, frames);
        }
    }
    let broken: Vec<_> = world.links.iter().filter(|(_, l)| l.broken).map(|(s, _)| *s).collect();
    for session in broken {
        while world.links.get(&session).is_some_and(|link| !link.up.is_empty()) {
            world.deliver_up(session);
        }
        world.controller_notices(session);
        if world.links.contains_key(&session) {
            world.agent_notices(session);
        }
    }
}

/// All due events happen, and some time passes.
fn calm_step(world: &mut World) {
    world.pass(Millis::new(400));
    world.input(Input::Tick);
    world.end_reload();
    while !world.controller.submitted.is_empty() {
        world.announce_submitted();
    }
    for node in 0..world.machines.len() {
        world.start_agent(node);
        world.connect(node);
    }
    let held: Vec<JobId> = world
        .store
        .jobs
        .iter()
        .filter(|(_, job)| job.state == JobState::Held)
        .map(|(job, _)| *job)
        .collect();
    if !held.is_empty() && world.random.happens(5) {
        world.command(JobCommand::Release, held);
    }
    for session in world.links.keys().copied().collect::<Vec<_>>() {
        while world.links.get(&session).is_some_and(|link| !link.up.is_empty()) {
            world.deliver_up(session);
        }
    }
    // Jobs can end only if operators let them start.
    for (kind, target) in world.store.overrides.keys().cloned().collect::<Vec<_>>() {
        world.lift(kind, target);
    }
    world.end_round(Commit::Done);
    world.begin_round();
    world.end_round(Commit::Done);
    for session in world.links.keys().copied().collect::<Vec<_>>() {
        while world.links.get(&session).is_some_and(|l| l.agent_holds && !l.down.is_empty()) {
            world.deliver_down(session);
        }
        if world.links.get(&session).is_some_and(|link| link.broken) {
            world.controller_notices(session);
        }
    }
    for (node, attempt) in world.spawning() {
        world.spawn(node, attempt);
    }
    for (node, gpu) in world.plans() {
        world.step_plan(node, &gpu, false);
    }
    for (node, attempt) in world.running() {
        if world.random.happens(30) {
            world.exit(node, attempt, Outcome::Succeeded);
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("TESSERA_SIM_SEEDS").unwrap_or_else(|_| SEEDS.to_string());
    let number = |text: &str| text.parse::<u64>().expect("TESSERA_SIM_SEEDS is N or FROM..TO");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => 0..number(&text),
    }
}

#[test]
fn with_any_faults_no_job_runs_twice_none_is_lost_and_all_end() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let seeds = seeds();
    let many = seeds.end - seeds.start;
    for seed in seeds {
        for (what, count) in run(seed) {
            *counts.entry(what).or_default() += count;
        }
    }
    eprintln!("{counts:#?}");
    if many >= SEEDS {
        for what in SOMETIMES {
            assert!(counts.contains_key(what), "in {many} runs never {what}");
        }
    }
}
