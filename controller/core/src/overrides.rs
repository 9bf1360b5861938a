//! Administrative overrides: they stay in force until they are cleared.

use crate::commands::operator::{
    InstanceName, OperatorOutcome, OperatorRefusal, OverrideKind, OverrideScope, RefusalKind,
};
use crate::round::{OverrideWrites, RoundEffect};
use crate::rows::overrides::{AdminOverrideRow, OverrideChange, OverrideTarget};
use crate::state::inventory::{GpuState, NodeInventory};
use crate::state::overrides::{OverrideTable, refused};
use tessera_frames::cluster::ToAgent;
use tessera_model::Millis;
use tessera_model::mig::Slot;
use tessera_placement::{AdminOverride, ClosureKind, GpuClosure};

/// Clears the overrides of a kind on a target. For a GPU, those on its slices are cleared, too.
pub(crate) fn clear_override(
    overrides: &mut OverrideTable,
    inventory: &mut NodeInventory,
    epoch: u64,
    (kind, on, by): (OverrideKind, &OverrideScope, &str),
    writes: &mut OverrideWrites,
    effects: &mut Vec<RoundEffect>,
) -> Result<OperatorOutcome, OperatorRefusal> {
    let target = resolve_target(overrides, inventory, on)?;
    if kind == OverrideKind::Drained
        && let Some(word) = find_node_drain(overrides, inventory, &target)
    {
        let name = inventory.name_of(&target);
        let node = inventory.name_of(&word.target);
        return Err(OperatorRefusal {
            expected: Some("undrain the whole node".to_owned()),
            ..refused(
                RefusalKind::InTheWay,
                format!("{name} is not drained itself: {node} is {word}"),
            )
        });
    }
    let mut cleared = Vec::new();
    for (found, at) in overrides.in_force.keys() {
        // Clearing a GPU also clears its slices.
        let within = matches!((at, &target), (OverrideTarget::Slice(of, _), OverrideTarget::Gpu(gpu)) if of == gpu);
        if *found == kind && (*at == target || within) {
            cleared.push((*found, at.clone()));
        }
    }
    if kind == OverrideKind::Quarantined {
        clear_node_quarantine(inventory, epoch, &target, effects);
    }
    let word = match kind {
        OverrideKind::Drained => "undrained",
        OverrideKind::Quarantined => "cleared",
        OverrideKind::Pinned => "unpinned",
    };
    let changed = !cleared.is_empty();
    for key in cleared {
        overrides.in_force.remove(&key);
        let text = format!("{} is {word} (by {by})", inventory.name_of(&key.1));
        writes.events.push(inventory.operator_event(word, &key.1, by, text));
        writes.changes.push(OverrideChange::Clear(key.0, key.1));
    }
    Ok(OperatorOutcome::OverrideApplied { changed })
}

/// Sets an override. Setting it again without a reason changes nothing.
pub(crate) fn set_override(
    overrides: &mut OverrideTable,
    inventory: &NodeInventory,
    row: AdminOverrideRow,
    writes: &mut OverrideWrites,
) -> OperatorOutcome {
    let key = (row.kind, row.target.clone());
    let known = overrides.in_force.get(&key);
    if known.is_some_and(|known| row.reason.is_none() || known.reason == row.reason) {
        return OperatorOutcome::OverrideApplied { changed: false };
    }
    let since_unix = known.map_or(row.since_unix, |known| known.since_unix);
    let row = AdminOverrideRow { since_unix, ..row };
    let text = format!("{} is {row}", inventory.name_of(&row.target));
    let event = inventory.operator_event(row.kind.word(), &row.target, &row.by, text);
    writes.events.push(event);
    writes.changes.push(OverrideChange::Set(row.clone()));
    overrides.in_force.insert(key, row);
    OperatorOutcome::OverrideApplied { changed: true }
}

/// Clears the node's own quarantine of a GPU or a slice, and ends its pause.
fn clear_node_quarantine(
    inventory: &mut NodeInventory,
    epoch: u64,
    target: &OverrideTarget,
    effects: &mut Vec<RoundEffect>,
) {
    let (gpu, slot) = match target {
        OverrideTarget::Gpu(gpu) => (gpu, None),
        OverrideTarget::Slice(gpu, slot) => (gpu, Some(*slot)),
        OverrideTarget::Node(_) => return,
    };
    let Some(known) = inventory.gpus.get_mut(gpu) else { return };
    known.paused_until = Millis::ZERO;
    known.failures = 0;
    let frame = ToAgent::Clear { epoch, gpu: gpu.clone(), slot };
    effects.push(RoundEffect::Send { node: known.node, frame: Box::new(frame) });
}

/// Returns the override of a GPU's node if only the node is drained, and not the GPU itself.
fn find_node_drain<'o>(
    overrides: &'o OverrideTable,
    inventory: &NodeInventory,
    target: &OverrideTarget,
) -> Option<&'o AdminOverrideRow> {
    let OverrideTarget::Gpu(gpu) = target else { return None };
    let node = OverrideTarget::Node(inventory.gpus.get(gpu)?.node);
    let own = overrides.in_force.contains_key(&(OverrideKind::Drained, target.clone()));
    if own { None } else { overrides.in_force.get(&(OverrideKind::Drained, node)) }
}

/// Returns the node, GPU or slice that an administrator names.
pub(crate) fn resolve_target(
    overrides: &OverrideTable,
    inventory: &NodeInventory,
    on: &OverrideScope,
) -> Result<OverrideTarget, OperatorRefusal> {
    match on {
        OverrideScope::Node(name) => {
            let found = inventory.nodes.iter().find(|(_, node)| node.name == *name);
            let missing = || refused(RefusalKind::NotFound, format!("there is no node {name}"));
            found.map(|(id, _)| OverrideTarget::Node(*id)).ok_or_else(missing)
        }
        OverrideScope::Gpu(gpu) => {
            inventory.find_gpu(gpu).map(|_| OverrideTarget::Gpu(gpu.clone()))
        }
        OverrideScope::Slice(gpu, slice) => {
            let slot = resolve_slot(overrides, inventory, inventory.find_gpu(gpu)?, slice)?;
            Ok(OverrideTarget::Slice(gpu.clone(), slot))
        }
    }
}

/// Returns the slot of an instance, or of a quarantined slot without one.
fn resolve_slot(
    overrides: &OverrideTable,
    inventory: &NodeInventory,
    gpu: &GpuState,
    slice: &InstanceName,
) -> Result<Slot, OperatorRefusal> {
    let standing = gpu.report.instances.iter().flat_map(|i| {
        let parts = i.parts.iter().filter_map(|part| part.slice.as_ref());
        let whole = std::iter::once((i.slot, i.slice.as_ref()));
        whole.chain(parts.map(|slice| (i.slot, Some(slice))))
    });
    let noted = overrides.quarantined(&gpu.report.gpu).map(|slot| (slot, None));
    let name = |slot: Slot| gpu.slot_name(slot);
    let all: Vec<_> = standing.chain(noted).collect();
    let found = all.iter().find(|(slot, id)| match slice {
        InstanceName::At(start) => slot.start == *start,
        InstanceName::Named(profile, start) => {
            slot.start == *start && name(*slot) == format!("{profile}@{start}")
        }
        InstanceName::Id(slice) => *id == Some(slice),
    });
    found.map(|(slot, _)| *slot).ok_or_else(|| {
        let stand: Vec<_> = all.iter().map(|(slot, _)| name(*slot)).collect();
        let there = match stand.is_empty() {
            true => "another GPU: this one has no instances".to_owned(),
            false => format!("one of {}", stand.join(", ")),
        };
        let gpu = inventory.gpu_name(gpu);
        OperatorRefusal {
            expected: Some(there),
            ..refused(RefusalKind::NotFound, format!("{gpu} has no such instance"))
        }
    })
}

/// Returns the overrides of a GPU, and its node's own quarantine, as policies see them.
pub(crate) fn overrides_of(
    overrides: &OverrideTable,
    inventory: &NodeInventory,
    gpu: &GpuState,
) -> AdminOverride {
    let id = &gpu.report.gpu;
    let name = inventory.gpu_name(gpu);
    let at = |kind| overrides.find_override(kind, OverrideTarget::Gpu(id.clone()));
    let closed = |how, word: &AdminOverrideRow| {
        let name = inventory.name_of(&word.target);
        let undone = match how {
            ClosureKind::Drained => "undrained",
            ClosureKind::Quarantined => "cleared",
            // Reservations come from policies, not from operators.
            ClosureKind::Kept => "free",
        };
        GpuClosure { how, words: format!("{name} is {word}"), until: format!("{name} is {undone}") }
    };
    let of_node =
        overrides.find_override(OverrideKind::Quarantined, OverrideTarget::Node(gpu.node));
    let quarantined = at(OverrideKind::Quarantined)
        .or(of_node)
        .map(|word| closed(ClosureKind::Quarantined, word));
    let by_itself = || {
        let quarantine = gpu.report.quarantine.as_ref()?;
        Some(GpuClosure {
            how: ClosureKind::Quarantined,
            words: format!("{name} is quarantined by its node ({})", quarantine.reason),
            until: format!("{name} is cleared"),
        })
    };
    let unplannable = || {
        let why = gpu.explain_unplannable()?;
        Some(GpuClosure {
            how: ClosureKind::Quarantined,
            words: format!("{name} can't be planned for ({why})"),
            until: format!("MIG mode of {name} is switched off"),
        })
    };
    let drained = || {
        let of_node =
            || overrides.find_override(OverrideKind::Drained, OverrideTarget::Node(gpu.node));
        at(OverrideKind::Drained).or_else(of_node).map(|word| closed(ClosureKind::Drained, word))
    };
    AdminOverride {
        closed: quarantined.or_else(by_itself).or_else(unplannable).or_else(drained),
        pinned: at(OverrideKind::Pinned).map(|word| format!("the layout of {name} is {word}")),
    }
}
