//! Random layout plans with random kills of the agent in between, judged by the device
//! file alone.
//!
//! The agent's part that owns a GPU runs in its own process, with the real NVML worker over
//! the stand-in. It is killed at any time and started again. The oracle is the stand-in's own
//! state: no instance is incomplete or unplanned, none overlap, and everything that a client holds
//! is as it was.

mod points;
mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rand::prelude::*;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tessera_agent::gpus::file::GpuFile;
use tessera_agent::gpus::managed::{GpuTools, ManagedGpu};
use tessera_agent::messages::NodeInput;
use tessera_agent::messages::gpu::GpuEvent;
use tessera_agent::nvml::client::{NvmlClient, WorkerProgram};
use tessera_agent::sys::holders::DeviceFiles;
use tessera_agent_core::ownership::AdoptionPolicy;
use tessera_frames::cluster::{PlanEnd, PlanOrder};
use tessera_model::mig::compute::{self, ComputeSlot, Cut};
use tessera_model::mig::{Geometry, PlanStep, Slot, catalog};
use tessera_model::{BootId, PlanId};
use tessera_stand_in::client::DeviceClient;
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::node::SimulatedNode;
use tokio::sync::mpsc;

pub use self::points::{Change, kill_at_every_point};
use self::standing::{Standing, standing};
use crate::programs::programs;

/// The GPU that is partitioned.
const MODEL: &str = "a100-40gb";
/// Longest wait for one answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// From the storm to the part under test, one line each.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    layout_gen: u64,
    steps: Vec<PlanStep>,
}

/// Settings of a storm.
#[derive(Clone, Copy, Debug)]
pub struct StormPlan {
    /// Number of changes.
    pub transitions: u64,
    /// Number of changes per thousand during which the agent is killed.
    pub kills_per_thousand: u32,
    /// Seed of the random number generator.
    pub seed: u64,
}

/// What was measured while layouts changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StormResult {
    /// Changes that were ordered.
    pub transitions: u64,
    /// Steps of these.
    pub steps: u64,
    /// Kills of the agent's part.
    pub kills: u64,
    /// Kills after which the device was neither in the state before nor in that after the whole
    /// change.
    pub torn: u64,
    /// Orders to destroy an instance that a client held, all refused.
    pub attempts_on_busy: u64,
}

/// Runs the part under test: orders from standard input, ends to standard output.
///
/// # Errors
///
/// The data folder can't be used.
pub fn child(data: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(data))
}

async fn serve(data: &Path) -> anyhow::Result<()> {
    let node = SimulatedNode::open(&StandInConfig::from_env()?)?;
    let (to_node, mut inputs) = mpsc::channel(4096);
    let worker = WorkerProgram {
        program: programs().path("tessera-agent"),
        library: programs().nvml.clone().into(),
        launcher: None,
    };
    let tools = GpuTools {
        nvml: NvmlClient::start(worker),
        node: to_node,
        data: data.to_owned(),
        tries_max: 1,
        adopt: AdoptionPolicy::AtStart,
        boot: BootId::from_uuid(uuid::Uuid::nil()),
        files: DeviceFiles::default(),
    };
    let id: tessera_model::GpuId = node.read()?.gpu_uuid(0).parse()?;
    let file = GpuFile::load(data, &id)?;
    let mut gpu = ManagedGpu::new(id.clone(), tools, file, None, mpsc::channel(1).1);
    gpu.look().await;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let Order { layout_gen, steps } = serde_json::from_str(&line?)?;
        let plan = PlanId::from_uuid(uuid::Uuid::from_u128(layout_gen.into()));
        let gpu_id = id.clone();
        let order = PlanOrder { epoch: 1, plan, gpu: gpu_id, layout_gen, steps, traceparent: None };
        gpu.apply(order).await;
        while let Ok(input) = inputs.try_recv() {
            if let NodeInput::Gpu(GpuEvent::PlanEnded { end, .. }) = input {
                println!("{}", serde_json::to_string(&end)?);
            }
        }
    }
    Ok(())
}

/// The part under test, while it lives.
pub struct Part {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Part {
    /// Starts it, and waits until it has repaired what its predecessor left.
    ///
    /// # Errors
    ///
    /// It doesn't start.
    pub fn start(program: &Path, folder: &Path, latency: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .arg("child")
            .arg(folder.join("data"))
            .env("TESSERA_SIM_NODE", folder.join("sim"))
            .env("TESSERA_SIM_LATENCY", latency)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().context("it was given a pipe")?;
        let output = child.stdout.take().context("it was given a pipe")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let part = Self { child, orders, lines };
        let line = part.lines.recv_timeout(PATIENCE).context("it never became ready")?;
        ensure!(line == "ready", "it said {line}");
        Ok(part)
    }

    fn order(&mut self, layout_gen: u64, steps: &[PlanStep]) -> anyhow::Result<()> {
        let order = Order { layout_gen, steps: steps.to_vec() };
        writeln!(self.orders, "{}", serde_json::to_string(&order)?)?;
        Ok(())
    }

    /// Orders a change and waits for its end.
    ///
    /// # Errors
    ///
    /// It is silent.
    pub fn apply(&mut self, layout_gen: u64, steps: &[PlanStep]) -> anyhow::Result<PlanEnd> {
        self.order(layout_gen, steps)?;
        let line = self.lines.recv_timeout(PATIENCE).context("no end of a plan")?;
        Ok(serde_json::from_str(&line)?)
    }

    fn kill(mut self) {
        // Fails only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with a node of one GPU and an empty data folder.
///
/// # Errors
///
/// The disk refuses.
pub fn stage(folder: &Path) -> anyhow::Result<SimulatedNode> {
    std::fs::create_dir_all(folder.join("data/gpus"))?;
    Ok(SimulatedNode::open(&StandInConfig::new(folder.join("sim"), &[MODEL]))?)
}

/// The geometry of the GPU that is partitioned.
pub fn geometry() -> Geometry {
    catalog::models()[MODEL].geometry()
}

struct Storm {
    program: PathBuf,
    folder: PathBuf,
    node: SimulatedNode,
    geometry: Geometry,
    random: StdRng,
    /// Devices that clients hold, each with the state of its instance at that time.
    held: BTreeMap<Slot, (Standing, DeviceClient)>,
    result: StormResult,
    layout_gen: u64,
}

/// Runs a storm; `program` is what runs [`child`] on a command.
///
/// # Errors
///
/// What the oracle found, or why the storm could not run.
pub fn run(program: &Path, folder: &Path, plan: StormPlan) -> anyhow::Result<StormResult> {
    let node = stage(folder)?;
    let mut storm = Storm {
        program: program.to_owned(),
        folder: folder.to_owned(),
        node,
        geometry: geometry(),
        random: StdRng::seed_from_u64(plan.seed),
        held: BTreeMap::new(),
        result: StormResult::default(),
        layout_gen: 0,
    };
    let mut part = storm.start()?;
    for turn in 0..plan.transitions {
        let killed = storm.random.random_range(0..1_000) < plan.kills_per_thousand;
        part = storm
            .turn(part, killed)
            .with_context(|| format!("change {turn}, seed {}", plan.seed))?;
    }
    Ok(storm.result)
}

impl Storm {
    fn start(&self) -> anyhow::Result<Part> {
        Part::start(&self.program, &self.folder, "0")
    }

    fn turn(&mut self, mut part: Part, killed: bool) -> anyhow::Result<Part> {
        self.shuffle_clients()?;
        let before = self.standing()?;
        let steps = self.steps(&before);
        let on_busy = steps.iter().any(|s| self.held.contains_key(&s.slot()));
        self.layout_gen += 1;
        self.result.transitions += 1;
        self.result.steps += u64::try_from(steps.len())?;
        if killed {
            part.order(self.layout_gen, &steps)?;
            let moment = self.random.random_range(0..25_000);
            thread::sleep(Duration::from_micros(moment));
            part.kill();
            self.result.kills += 1;
            part = self.start()?;
        } else {
            let end = part.apply(self.layout_gen, &steps)?;
            match end {
                PlanEnd::Done if !on_busy => {}
                PlanEnd::Failed { .. } if on_busy => self.result.attempts_on_busy += 1,
                other => bail!("{steps:?} on {before:?} ended as {other:?}"),
            }
        }
        self.judge(&before, &steps, killed, on_busy)?;
        Ok(part)
    }

    /// Checks the device file.
    fn judge(
        &mut self,
        before: &BTreeMap<Slot, Standing>,
        steps: &[PlanStep],
        killed: bool,
        on_busy: bool,
    ) -> anyhow::Result<()> {
        let after = self.standing()?;
        self.geometry.check(after.keys()).context("an overlap")?;
        for (slot, (held, _)) in &self.held {
            ensure!(after.get(slot) == Some(held), "what a client holds was touched: {slot:?}");
        }
        for (slot, found) in &after {
            self.judge_cut(*slot, found, before.get(slot), steps)?;
        }
        let mut whole: BTreeSet<Slot> = before.keys().copied().collect();
        let mut possible = whole.clone();
        for step in steps {
            match step {
                PlanStep::Destroy(slot) => drop(whole.remove(slot)),
                PlanStep::Create(slot) | PlanStep::Cut(slot, _) => {
                    whole.insert(*slot);
                    possible.insert(*slot);
                }
            }
        }
        let found: BTreeSet<Slot> = after.keys().copied().collect();
        ensure!(found.is_subset(&possible), "some of {found:?} were not requested");
        let kept = |slot: &Slot| steps.iter().all(|step| step.slot() != *slot);
        ensure!(
            before.keys().filter(|slot| kept(slot)).all(|slot| after.get(slot) == before.get(slot)),
            "an instance that no step names was touched: {before:?} {steps:?} {after:?}"
        );
        if !killed && !on_busy {
            ensure!(found == whole, "the end was reported, but not reached: {found:?}, {whole:?}");
            for step in steps {
                if let PlanStep::Cut(slot, cut) = step {
                    ensure!(
                        after[slot].cut == *cut,
                        "{slot:?} has other compute instances than \
                                                      {cut}"
                    );
                }
            }
        }
        let start: BTreeSet<Slot> = before.keys().copied().collect();
        if found != whole && found != start {
            self.result.torn += 1;
        }
        Ok(())
    }

    /// An instance has either its former or its planned compute instances, no matter when the agent
    /// was killed.
    fn judge_cut(
        &self,
        slot: Slot,
        found: &Standing,
        before: Option<&Standing>,
        steps: &[PlanStep],
    ) -> anyhow::Result<()> {
        let slices = self.geometry.profile(slot.profile).context("it stands")?.compute_slices;
        let is_requested = steps.iter().any(|step| match step {
            PlanStep::Create(made) => *made == slot && Cut::whole(slices) == Ok(found.cut),
            PlanStep::Cut(made, cut) => *made == slot && found.cut == *cut,
            PlanStep::Destroy(_) => false,
        });
        let kept = before.is_some_and(|before| before.cut == found.cut);
        ensure!(
            is_requested || kept,
            "a leak: {slot:?} is cut into {}, before {before:?}, steps {steps:?}",
            found.cut
        );
        Ok(())
    }

    fn standing(&self) -> anyhow::Result<BTreeMap<Slot, Standing>> {
        standing(&self.node)
    }

    /// Starts and ends clients: at most two at once, so that there is free space for changes.
    fn shuffle_clients(&mut self) -> anyhow::Result<()> {
        if self.random.random_ratio(1, 8)
            && let Some(slot) = self.held.keys().copied().choose(&mut self.random)
        {
            self.held.remove(&slot);
        }
        if self.held.len() < 2 && self.random.random_ratio(1, 4) {
            let free: Vec<_> = self
                .standing()?
                .into_iter()
                .filter(|(slot, _)| !self.held.contains_key(slot))
                .collect();
            if let Some((slot, found)) = free.choose(&mut self.random).cloned()
                && let Some(uuid) = found.devices.iter().choose(&mut self.random)
            {
                let client = DeviceClient::open(&self.node, uuid)?;
                self.held.insert(slot, (found, client));
            }
        }
        Ok(())
    }

    /// Returns a legal change of one to four steps, sometimes with an order to destroy an instance
    /// that a client holds.
    fn steps(&mut self, before: &BTreeMap<Slot, Standing>) -> Vec<PlanStep> {
        if self.random.random_ratio(1, 40)
            && let Some(slot) = self.held.keys().copied().choose(&mut self.random)
        {
            let other = self.other_cut(slot).filter(|cut| before[&slot].cut != *cut);
            return vec![other.map_or(PlanStep::Destroy(slot), |cut| PlanStep::Cut(slot, cut))];
        }
        let mut layout: BTreeSet<Slot> = before.keys().copied().collect();
        let mut steps = Vec::new();
        for _ in 0..self.random.random_range(1..=2) {
            let free: Vec<_> =
                layout.iter().filter(|s| !self.held.contains_key(s)).copied().collect();
            if let Some(slot) = free.choose(&mut self.random).copied()
                && self.random.random_ratio(1, 2)
                && before.contains_key(&slot)
            {
                layout.remove(&slot);
                steps.push(PlanStep::Destroy(slot));
            }
        }
        for _ in 0..self.random.random_range(1..=2) {
            if let Some(slot) = self.legal(&layout, steps.as_slice()) {
                layout.insert(slot);
                let cut = self.other_cut(slot);
                steps.push(cut.map_or(PlanStep::Create(slot), |cut| PlanStep::Cut(slot, cut)));
            }
        }
        let named = |slot: &Slot| steps.iter().any(|step| step.slot() == *slot);
        let stay: Vec<_> = layout
            .iter()
            .filter(|slot| !named(slot) && !self.held.contains_key(slot))
            .copied()
            .collect();
        if let Some(slot) = stay.choose(&mut self.random).copied()
            && let Some(cut) = self.other_cut(slot)
        {
            steps.push(PlanStep::Cut(slot, cut));
        }
        steps
    }

    /// Returns compute instances for an instance in some cases.
    fn other_cut(&mut self, slot: Slot) -> Option<Cut> {
        let slices = self.geometry.profile(slot.profile)?.compute_slices;
        if slices < 2 || self.random.random_ratio(1, 2) {
            return None;
        }
        let mut all: Vec<ComputeSlot> = compute::offered(slices)
            .iter()
            .flat_map(|size| {
                let slot = |start: &u8| ComputeSlot { start: *start, slices: size.slices };
                size.starts.iter().map(slot)
            })
            .collect();
        all.shuffle(&mut self.random);
        let parts_max = self.random.random_range(1..=3);
        let mut cut = Cut::default();
        for part in all {
            if cut.len() < parts_max && cut.iter().all(|other| !other.overlaps(part)) {
                cut.insert(part);
            }
        }
        Some(cut)
    }

    fn legal(&mut self, layout: &BTreeSet<Slot>, steps: &[PlanStep]) -> Option<Slot> {
        let all = self.geometry.profiles.iter().flat_map(|profile| {
            profile.starts.iter().map(|start| Slot { start: *start, profile: profile.id })
        });
        let fits: Vec<_> = all
            .filter(|slot| !layout.contains(slot) && !steps.contains(&PlanStep::Destroy(*slot)))
            .filter(|slot| self.geometry.check(layout.iter().chain([slot])).is_ok())
            .collect();
        fits.choose(&mut self.random).copied()
    }
}

/// Measures how much longer a step takes through the agent's part than the driver itself takes,
/// by the stand-in's settings; milliseconds, `(creates, destroys)`.
///
/// # Errors
///
/// The measurement can't be made.
pub fn overhead(
    program: &Path,
    folder: &Path,
    samples: u64,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    stage(folder)?;
    let geometry = geometry();
    let small = geometry.by_name(&"1g.5gb".parse()?).context("every A100 has it")?;
    let slot = Slot { start: 0, profile: small.id };
    let mut part = Part::start(program, folder, "1")?;
    let (mut creates, mut destroys) = (Vec::new(), Vec::new());
    let own = |took: Duration, driver: Duration| (took.as_secs_f64() - driver.as_secs_f64()) * 1e3;
    for sample in 0..samples {
        let began = Instant::now();
        let made = part.apply(2 * sample + 1, &[PlanStep::Create(slot)])?;
        creates.push(own(began.elapsed(), tessera_stand_in::latency::create(1)));
        let began = Instant::now();
        let gone = part.apply(2 * sample + 2, &[PlanStep::Destroy(slot)])?;
        destroys.push(own(began.elapsed(), tessera_stand_in::latency::destroy()));
        ensure!((&made, &gone) == (&PlanEnd::Done, &PlanEnd::Done), "{made:?} {gone:?}");
    }
    Ok((creates, destroys))
}
