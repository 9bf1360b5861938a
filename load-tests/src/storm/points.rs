//! A kill of the agent at every call that one plan makes to the driver.
//!
//! Between two calls the agent does nothing but write its file, and a file is either the old or
//! the new one, whole. A kill at a call that only asks is the moment before the next write, a kill
//! at a call that changes something is the moment after it: together they are all states in which
//! a crash can leave driver and file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tessera_model::mig::{Slot, Step};
use tessera_sim::client::Client;
use tessera_sim::node::Node;
use tessera_wire::frames::PlanEnd;

use super::{PATIENCE, Part, geometry, stage};

/// More calls than a plan of two steps makes.
const POINTS_MAX: u32 = 400;
/// How often it is looked whether the call hangs.
const GLANCE: Duration = Duration::from_millis(1);

/// Kills the agent's part at the first call of a plan, at the second, and so on until the plan
/// comes through; returns how many there were. Each time the next one must find order: nothing
/// half made, nothing that nobody asked for, what a client holds as it was, and the same plan
/// carried to its end.
///
/// # Errors
///
/// What was found out of order, or what didn't work at all.
pub fn kill_at_every_point(program: &Path, folder: &Path) -> anyhow::Result<u32> {
    let node = stage(folder)?;
    let geometry = geometry();
    let slot = |name: &str, start| -> anyhow::Result<Slot> {
        let profile = geometry.by_name(&name.parse()?).context("every A100 has it")?.id;
        Ok(Slot { start, profile })
    };
    let (busy, old, new) = (slot("1g.5gb", 6)?, slot("1g.5gb", 0)?, slot("2g.10gb", 0)?);
    let there = [Step::Destroy(old), Step::Create(new)];
    let back = [Step::Destroy(new), Step::Create(old)];
    let mut part = Part::start(program, folder, "0")?;
    let mut layout_gen = 1;
    done(&part.apply(layout_gen, &[Step::Create(busy), Step::Create(old)])?)?;
    let held = standing(&node)?.remove(&busy).context("it was made")?;
    let _client = Client::open(&node, &held)?;
    for point in 1..=POINTS_MAX {
        layout_gen += 1;
        let line = format!("nth={point} hang");
        node.set_faults(&line)?;
        part.order(layout_gen, &there)?;
        if let Some(end) = hung_or_ended(&part, &node, &line, point)? {
            done(&end)?;
            return Ok(point - 1);
        }
        part.kill();
        node.set_faults("")?;
        part = Part::start(program, folder, "0")?;
        let judged = || -> anyhow::Result<()> {
            let found = standing(&node)?;
            ensure!(found.get(&busy) == Some(&held), "what a client holds was touched");
            let known = |slot: &Slot| [busy, old, new].contains(slot);
            ensure!(found.keys().all(known), "nobody asked for some of {found:?}");
            geometry.check(found.keys()).context("an overlap")
        };
        judged().with_context(|| format!("killed at call {point}"))?;
        for (layout_gen, steps, wanted) in [(layout_gen, &there, new), (layout_gen + 1, &back, old)]
        {
            done(&part.apply(layout_gen, steps)?).with_context(|| format!("after call {point}"))?;
            let found: BTreeSet<Slot> = standing(&node)?.into_keys().collect();
            ensure!(found == BTreeSet::from([busy, wanted]), "after call {point}: {found:?}");
        }
        layout_gen += 1;
    }
    bail!("a plan of two steps makes more than {POINTS_MAX} calls")
}

fn done(end: &PlanEnd) -> anyhow::Result<()> {
    ensure!(*end == PlanEnd::Done, "a plan ended as {end:?}");
    Ok(())
}

/// Waits until the call that a line is about hangs, or the plan is over.
fn hung_or_ended(
    part: &Part,
    node: &Node,
    line: &str,
    point: u32,
) -> anyhow::Result<Option<PlanEnd>> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match part.lines.try_recv() {
            Ok(said) => return Ok(Some(serde_json::from_str(&said)?)),
            Err(TryRecvError::Disconnected) => bail!("the agent's part died by itself"),
            Err(TryRecvError::Empty) => {}
        }
        if calls_met(node, line) >= point {
            return Ok(None);
        }
        thread::sleep(GLANCE);
    }
    bail!("no call hangs and no plan ends")
}

/// How many calls met a line of the fault list, by the stand-in's own count.
fn calls_met(node: &Node, line: &str) -> u32 {
    let counts = std::fs::read(node.folder().join("fault-counts.json")).unwrap_or_default();
    let counts: BTreeMap<String, u32> = serde_json::from_slice(&counts).unwrap_or_default();
    counts.get(line).copied().unwrap_or(0)
}

/// The MIG devices that stand, by slot.
fn standing(node: &Node) -> anyhow::Result<BTreeMap<Slot, String>> {
    let state = node.read()?;
    let mut found = BTreeMap::new();
    for instance in &state.gpus[0].instances {
        let [compute] = &instance.compute[..] else {
            bail!("a leak: half an instance at {}", instance.slot.start)
        };
        found.insert(instance.slot, compute.mig_uuid());
    }
    Ok(found)
}
