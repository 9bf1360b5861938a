//! Reads the instances that exist from the stand-in's own state.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use tessera_model::mig::Slot;
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_stand_in::node::SimulatedNode;

/// One GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its compute instances.
    pub cut: Cut,
    /// The MIG devices over them.
    pub devices: BTreeSet<String>,
}

/// Returns the instances of the first GPU of a node.
///
/// # Errors
///
/// An instance is incomplete, or its compute instances overlap.
pub fn standing(node: &SimulatedNode) -> anyhow::Result<BTreeMap<Slot, Standing>> {
    let state = node.read()?;
    let gpu = &state.gpus[0];
    let mut all = BTreeMap::new();
    for instance in &gpu.instances {
        let start = instance.slot.start;
        ensure!(!instance.compute.is_empty(), "a leak: an incomplete instance at {start}");
        let mut cut = Cut::default();
        for compute in &instance.compute {
            let profile = instance.compute_profile(gpu, compute.profile).context("it was made")?;
            let slot = ComputeSlot { start: compute.start, slices: profile.compute_slices };
            ensure!(cut.insert(slot), "two compute instances at {start}");
        }
        let devices = instance.compute.iter().map(|compute| compute.mig_uuid()).collect();
        all.insert(instance.slot, Standing { cut, devices });
    }
    Ok(all)
}
