//! Administrative overrides: they stay in force until they are cleared.

use crate::commands::operator::{
    InstanceName, OperatorCommand, OperatorOutcome, OperatorRefusal, OverrideKind, OverrideScope,
    RefusalKind,
};
use crate::round::{Round, RoundEffect};
use crate::rows::overrides::{AdminOverrideRow, OverrideChange, OverrideTarget};
use crate::state::ClusterState;
use crate::state::inventory::GpuState;
use crate::state::overrides::refused;
use tessera_frames::cluster::ToAgent;
use tessera_model::Millis;
use tessera_model::mig::Slot;
use tessera_placement::{AdminOverride, ClosureKind, GpuClosure};

impl ClusterState {
    /// Carries out an administrator's command. A requested layout may wait until its GPU is free
    /// for it.
    pub(crate) fn handle_operator_command(
        &mut self,
        token: u64,
        order: OperatorCommand,
        now: Millis,
        round: &mut Round,
    ) {
        let answer = match order {
            OperatorCommand::Say { kind, on, by, reason } => {
                self.resolve_target(&on).map(|target| {
                    self.set_override(
                        AdminOverrideRow { kind, target, by, reason, said_unix: self.clock.unix },
                        round,
                    )
                })
            }
            OperatorCommand::Lift { kind, on, by } => self.clear_override(kind, &on, &by, round),
            OperatorCommand::Apply(wish) => {
                self.layouts.request_layout(token, wish, now);
                return;
            }
        };
        round.operated.push((token, answer));
    }

    /// Sets an override. Setting it again without a reason changes nothing.
    pub(crate) fn set_override(
        &mut self,
        word: AdminOverrideRow,
        round: &mut Round,
    ) -> OperatorOutcome {
        let key = (word.kind, word.target.clone());
        let known = self.overrides.in_force.get(&key);
        if known.is_some_and(|known| word.reason.is_none() || known.reason == word.reason) {
            return OperatorOutcome::Said { changed: false };
        }
        let said_unix = known.map_or(word.said_unix, |known| known.said_unix);
        let word = AdminOverrideRow { said_unix, ..word };
        let text = format!("{} is {word}", self.inventory.name_of(&word.target));
        round.events.push(self.inventory.event(word.kind.word(), &word.target, &word.by, text));
        round.words.push(OverrideChange::Say(word.clone()));
        round.shape_changed = true;
        self.overrides.in_force.insert(key, word);
        OperatorOutcome::Said { changed: true }
    }

    fn clear_override(
        &mut self,
        kind: OverrideKind,
        on: &OverrideScope,
        by: &str,
        round: &mut Round,
    ) -> Result<OperatorOutcome, OperatorRefusal> {
        let target = self.resolve_target(on)?;
        if kind == OverrideKind::Drained
            && let Some(word) = self.only_the_node_is_drained(&target)
        {
            let name = self.inventory.name_of(&target);
            let node = self.inventory.name_of(&word.target);
            return Err(OperatorRefusal {
                expected: Some("undrain the whole node".to_owned()),
                ..refused(
                    RefusalKind::InTheWay,
                    format!("{name} is not drained by itself: {node} is {word}"),
                )
            });
        }
        let mut lifted = Vec::new();
        for (found, at) in self.overrides.in_force.keys() {
            // A GPU that is cleared is cleared with its slices.
            let within = matches!((at, &target), (OverrideTarget::Slice(of, _), OverrideTarget::Gpu(gpu)) if of == gpu);
            if *found == kind && (*at == target || within) {
                lifted.push((*found, at.clone()));
            }
        }
        if kind == OverrideKind::Quarantined {
            self.clear_node_quarantine(&target, round);
        }
        let word = match kind {
            OverrideKind::Drained => "undrained",
            OverrideKind::Quarantined => "cleared",
            OverrideKind::Pinned => "unpinned",
        };
        let changed = !lifted.is_empty();
        for key in lifted {
            self.overrides.in_force.remove(&key);
            let text = format!("{} is {word} (by {by})", self.inventory.name_of(&key.1));
            round.events.push(self.inventory.event(word, &key.1, by, text));
            round.words.push(OverrideChange::Lift(key.0, key.1));
            round.shape_changed = true;
        }
        Ok(OperatorOutcome::Said { changed })
    }

    /// Clears the node's own quarantine of a GPU or a slice, and ends its pause.
    pub(crate) fn clear_node_quarantine(&mut self, target: &OverrideTarget, round: &mut Round) {
        let (gpu, slot) = match target {
            OverrideTarget::Gpu(gpu) => (gpu, None),
            OverrideTarget::Slice(gpu, slot) => (gpu, Some(*slot)),
            OverrideTarget::Node(_) => return,
        };
        let Some(known) = self.inventory.gpus.get_mut(gpu) else { return };
        known.paused_until = Millis::ZERO;
        known.failures = 0;
        let frame = ToAgent::Clear { epoch: self.guards.epoch, gpu: gpu.clone(), slot };
        round.effects.push(RoundEffect::Send { node: known.node, frame: Box::new(frame) });
    }

    fn only_the_node_is_drained(&self, target: &OverrideTarget) -> Option<&AdminOverrideRow> {
        let OverrideTarget::Gpu(gpu) = target else { return None };
        let node = OverrideTarget::Node(self.inventory.gpus.get(gpu)?.node);
        let own = self.overrides.in_force.contains_key(&(OverrideKind::Drained, target.clone()));
        if own { None } else { self.overrides.in_force.get(&(OverrideKind::Drained, node)) }
    }

    fn resolve_target(&self, on: &OverrideScope) -> Result<OverrideTarget, OperatorRefusal> {
        match on {
            OverrideScope::Node(name) => {
                let found = self.inventory.nodes.iter().find(|(_, node)| node.name == *name);
                let missing = || refused(RefusalKind::NotFound, format!("there is no node {name}"));
                found.map(|(id, _)| OverrideTarget::Node(*id)).ok_or_else(missing)
            }
            OverrideScope::Gpu(gpu) => {
                self.inventory.find_gpu(gpu).map(|_| OverrideTarget::Gpu(gpu.clone()))
            }
            OverrideScope::Slice(gpu, slice) => {
                let slot = self.resolve_slot(self.inventory.find_gpu(gpu)?, slice)?;
                Ok(OverrideTarget::Slice(gpu.clone(), slot))
            }
        }
    }

    /// Returns the slot of an instance, or of a quarantined slot without one.
    fn resolve_slot(&self, gpu: &GpuState, slice: &InstanceName) -> Result<Slot, OperatorRefusal> {
        let standing = gpu.report.instances.iter().flat_map(|i| {
            let parts = i.parts.iter().filter_map(|part| part.slice.as_ref());
            let whole = std::iter::once((i.slot, i.slice.as_ref()));
            whole.chain(parts.map(|slice| (i.slot, Some(slice))))
        });
        let noted = self.overrides.quarantined(&gpu.report.gpu).map(|slot| (slot, None));
        let name = |slot: Slot| gpu.slot_name(slot);
        let all: Vec<_> = standing.chain(noted).collect();
        let found = all.iter().find(|(slot, id)| match slice {
            InstanceName::At(start) => slot.start == *start,
            InstanceName::Named(profile, start) => {
                slot.start == *start && name(*slot) == format!("{profile}@{start}")
            }
            InstanceName::Id(wanted) => *id == Some(wanted),
        });
        found.map(|(slot, _)| *slot).ok_or_else(|| {
            let stand: Vec<_> = all.iter().map(|(slot, _)| name(*slot)).collect();
            let there = match stand.is_empty() {
                true => "another GPU: no instance stands on this one".to_owned(),
                false => format!("one of {}", stand.join(", ")),
            };
            let gpu = self.inventory.gpu_name(gpu);
            OperatorRefusal {
                expected: Some(there),
                ..refused(RefusalKind::NotFound, format!("{gpu} has no such instance"))
            }
        })
    }

    /// Returns the overrides of a GPU, and its node's own quarantine, as policies see them.
    pub(crate) fn overrides_of(&self, gpu: &GpuState) -> AdminOverride {
        let id = &gpu.report.gpu;
        let name = self.inventory.gpu_name(gpu);
        let at = |kind| self.overrides.find_override(kind, OverrideTarget::Gpu(id.clone()));
        let closed = |how, word: &AdminOverrideRow| {
            let name = self.inventory.name_of(&word.target);
            let undone = match how {
                ClosureKind::Drained => "undrained",
                ClosureKind::Quarantined => "cleared",
                // Policies keep, operators do not.
                ClosureKind::Kept => "free",
            };
            GpuClosure {
                how,
                words: format!("{name} is {word}"),
                until: format!("{name} is {undone}"),
            }
        };
        let quarantined =
            at(OverrideKind::Quarantined).map(|word| closed(ClosureKind::Quarantined, word));
        let by_itself = || {
            let aside = gpu.report.quarantine.as_ref()?;
            Some(GpuClosure {
                how: ClosureKind::Quarantined,
                words: format!("{name} is quarantined by its node ({})", aside.reason),
                until: format!("{name} is cleared"),
            })
        };
        let unplannable = || {
            let why = gpu.unplannable()?;
            Some(GpuClosure {
                how: ClosureKind::Quarantined,
                words: format!("{name} can't be planned for ({why})"),
                until: format!("MIG mode of {name} is switched off"),
            })
        };
        let drained = || {
            let of_node = || {
                self.overrides.find_override(OverrideKind::Drained, OverrideTarget::Node(gpu.node))
            };
            at(OverrideKind::Drained)
                .or_else(of_node)
                .map(|word| closed(ClosureKind::Drained, word))
        };
        AdminOverride {
            closed: quarantined.or_else(by_itself).or_else(unplannable).or_else(drained),
            pinned: at(OverrideKind::Pinned).map(|word| format!("the layout of {name} is {word}")),
        }
    }
}
