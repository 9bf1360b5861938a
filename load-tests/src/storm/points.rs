//! A kill of the agent at every call that one plan makes to the driver.
//!
//! Between two calls the agent does nothing but write its file, and a file is either the old or
//! the new one, whole. A kill at a call that only reads is the moment before the next write. A kill
//! at a call that changes something is the moment after it. Together they are all states in which a
//! crash can leave driver and file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tessera_frames::cluster::PlanEnd;
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{PlanStep, Slot};
use tessera_stand_in::client::DeviceClient;
use tessera_stand_in::node::SimulatedNode;

use super::{PATIENCE, Part, geometry, stage, standing};

/// An upper limit of the calls that a plan of two steps makes.
const POINTS_MAX: u32 = 400;
/// Interval of the checks whether the call hangs.
const GLANCE: Duration = Duration::from_millis(1);

/// Plans during which the agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One instance replaces another.
    Replace,
    /// An existing instance is divided into several compute instances.
    Cut,
    /// An instance with several compute instances replaces another.
    ReplaceByCut,
}

/// Kills the agent's part at the first call of a plan, at the second, and so on until the plan
/// completes; returns how many there were. Each time the next one must leave no incomplete instance
/// and none that was not requested. What a client holds must be unchanged, and the same plan must
/// complete.
///
/// # Errors
///
/// What was found wrong, or why the test could not run.
pub fn kill_at_every_point(program: &Path, folder: &Path, change: Change) -> anyhow::Result<u32> {
    let node = stage(folder)?;
    let geometry = geometry();
    let slot = |name: &str, start| -> anyhow::Result<Slot> {
        let profile = geometry.by_name(&name.parse()?).context("every A100 has it")?.id;
        Ok(Slot { start, profile })
    };
    let (busy, old, new) = (slot("1g.5gb", 6)?, slot("1g.5gb", 0)?, slot("2g.10gb", 0)?);
    let (thirds, unequal) = (cut(&[(0, 1), (1, 1), (2, 1)])?, cut(&[(0, 2), (2, 1)])?);
    let halves = cut(&[(0, 1), (1, 1)])?;
    let (old, new, there, back) = match change {
        Change::Replace => (
            old,
            new,
            vec![PlanStep::Destroy(old), PlanStep::Create(new)],
            vec![PlanStep::Destroy(new), PlanStep::Create(old)],
        ),
        Change::ReplaceByCut => (
            old,
            new,
            vec![PlanStep::Destroy(old), PlanStep::Cut(new, halves)],
            vec![PlanStep::Destroy(new), PlanStep::Create(old)],
        ),
        Change::Cut => {
            let three = slot("3g.20gb", 0)?;
            (three, three, vec![PlanStep::Cut(three, thirds)], vec![PlanStep::Cut(three, unequal)])
        }
    };
    let mut part = Part::start(program, folder, "0")?;
    let mut layout_gen = 1;
    done(&part.apply(layout_gen, &[PlanStep::Create(busy), PlanStep::Create(old)])?)?;
    if change == Change::Cut {
        layout_gen += 1;
        done(&part.apply(layout_gen, &back)?)?;
    }
    let held = standing(&node)?.remove(&busy).context("it was made")?;
    let device = held.devices.first().context("it was made")?;
    let _client = DeviceClient::open(&node, device)?;
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
            ensure!(found.keys().all(known), "some of {found:?} were not requested");
            let cuts = [Some(thirds), Some(unequal)];
            for (slot, found) in found.iter().filter(|(slot, _)| **slot != busy) {
                let whole = geometry.profile(slot.profile).map(|p| p.compute_slices);
                let known = match change {
                    Change::Cut => cuts.contains(&Some(found.cut)),
                    Change::Replace | Change::ReplaceByCut => {
                        whole.and_then(|n| Cut::whole(n).ok()) == Some(found.cut)
                            || (change == Change::ReplaceByCut && found.cut == halves)
                    }
                };
                ensure!(known, "{slot:?} is cut into {}", found.cut);
            }
            geometry.check(found.keys()).context("an overlap")
        };
        judged().with_context(|| format!("killed at call {point}"))?;
        for (layout_gen, steps, expected_slot) in
            [(layout_gen, &there, new), (layout_gen + 1, &back, old)]
        {
            done(&part.apply(layout_gen, steps)?).with_context(|| format!("after call {point}"))?;
            let found = standing(&node)?;
            let slots: BTreeSet<Slot> = found.keys().copied().collect();
            ensure!(
                slots == BTreeSet::from([busy, expected_slot]),
                "after call {point}: {found:?}"
            );
            for step in steps {
                let cut = matches!(step, PlanStep::Cut(slot, cut) if found[slot].cut != *cut);
                ensure!(!cut, "after call {point}: {step:?} ended, and {found:?} exists");
            }
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
    node: &SimulatedNode,
    line: &str,
    point: u32,
) -> anyhow::Result<Option<PlanEnd>> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match part.lines.try_recv() {
            Ok(report) => return Ok(Some(serde_json::from_str(&report)?)),
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

/// Returns how many calls matched a line of the fault list, by the stand-in's own count.
fn calls_met(node: &SimulatedNode, line: &str) -> u32 {
    let counts = std::fs::read(node.folder().join("fault-counts.json")).unwrap_or_default();
    let counts: BTreeMap<String, u32> = serde_json::from_slice(&counts).unwrap_or_default();
    counts.get(line).copied().unwrap_or(0)
}

fn cut(parts: &[(u8, u8)]) -> anyhow::Result<Cut> {
    let slot = |(start, slices): &(u8, u8)| ComputeSlot { start: *start, slices: *slices };
    Ok(parts.iter().map(slot).collect::<Vec<_>>().try_into()?)
}
