//! Administrative overrides in force.

use crate::commands::operator::{OperatorRefusal, OverrideKind, RefusalKind};
use crate::rows::overrides::{AdminOverrideRow, OverrideTarget};
use crate::state::inventory::GpuState;
use std::collections::BTreeMap;
use tessera_frames::cluster::MigReport;
use tessera_model::GpuId;
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{Geometry, Slot};
use tessera_placement::{ComputeInstancesView, InstanceState, InstanceView, Tenancy};

/// The overrides that administrators set and that stay in force until they are cleared.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverrideTable {
    pub(crate) in_force: BTreeMap<(OverrideKind, OverrideTarget), AdminOverrideRow>,
}

/// Marks a shared instance as taken: its jobs continue to run, and no job joins them.
pub(crate) fn closed_to_others(tenancy: &Tenancy) -> InstanceState {
    let first = tenancy.sharers.first().map(|(job, _)| *job);
    first.map_or(InstanceState::Quarantined, |job| InstanceState::Taken { job })
}

/// Keeps only the compute instances that are in use, so that no job joins.
pub(crate) fn closed_compute_instances(tenancy: Tenancy) -> InstanceState {
    let cut = tenancy.sharers.iter().filter_map(|(_, part)| part.compute());
    let cut = cut.fold(Cut::default(), |mut cut, slot| {
        cut.insert(slot);
        cut
    });
    InstanceState::Cut(ComputeInstancesView { cut, tenancy: Some(tenancy) })
}

/// Returns the refusal of an administrator's command.
pub(crate) fn refused(kind: RefusalKind, problem: impl Into<String>) -> OperatorRefusal {
    OperatorRefusal { kind, problem: problem.into(), expected: None }
}

impl OverrideTable {
    /// Marks instances that cover quarantined slots: they are not used after their jobs have ended.
    /// No instance is created in an empty quarantined slot.
    pub(crate) fn with_quarantines(
        &self,
        gpu: &GpuState,
        mut views: Vec<InstanceView>,
    ) -> Vec<InstanceView> {
        let MigReport::On { geometry } = &gpu.report.mig else { return views };
        for place in self.quarantined(&gpu.report.gpu) {
            let covers =
                |view: &InstanceView| view.slot.is_some_and(|slot| geometry.overlap(slot, place));
            let mut covered = false;
            for view in views.iter_mut().filter(|view| covers(view)) {
                covered = true;
                view.state = match &view.state {
                    InstanceState::Taken { job } => InstanceState::Taken { job: *job },
                    InstanceState::Shared(tenancy) => closed_to_others(tenancy),
                    InstanceState::Cut(ComputeInstancesView { tenancy: Some(tenancy), .. }) => {
                        closed_compute_instances(tenancy.clone())
                    }
                    _ => InstanceState::Quarantined,
                };
            }
            if let (false, Some(profile)) = (covered, geometry.profile(place.profile)) {
                let state = InstanceState::Quarantined;
                views.push(InstanceView { slot: Some(place), memory: profile.memory, state });
            }
        }
        views.sort_by_key(|view| view.slot);
        views
    }

    /// Returns the individually quarantined slots of a GPU.
    pub(crate) fn quarantined(&self, gpu: &GpuId) -> impl Iterator<Item = Slot> {
        self.in_force.keys().filter_map(move |(kind, target)| match target {
            OverrideTarget::Slice(of, slot) if of == gpu && *kind == OverrideKind::Quarantined => {
                Some(*slot)
            }
            OverrideTarget::Slice(..) | OverrideTarget::Gpu(_) | OverrideTarget::Node(_) => None,
        })
    }

    /// Returns whether an instance in the slot would cover a quarantined one.
    pub(crate) fn is_quarantined(&self, gpu: &GpuId, geometry: &Geometry, slot: Slot) -> bool {
        self.quarantined(gpu).any(|place| geometry.overlap(place, slot))
    }

    /// Returns the override of a node, a GPU or a slice, if there is one.
    pub(crate) fn find_override(
        &self,
        kind: OverrideKind,
        target: OverrideTarget,
    ) -> Option<&AdminOverrideRow> {
        self.in_force.get(&(kind, target))
    }
}
