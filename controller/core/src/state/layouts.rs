//! Layouts that administrators request, and plans that are not sent yet.

use crate::commands::operator::LayoutCommand;
use crate::rows::nodes::{LayoutPlanRow, RequestedLayout};
use tessera_frames::cluster::InstanceReport;
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{Geometry, PlanStep, Slot};
use tessera_model::{GpuId, Millis};

/// How long a requested layout waits for a plan that is under way on its GPU. A plan takes less,
/// and clients wait longer.
pub(crate) const LAYOUT_REQUEST_WAITS: Millis = Millis::from_secs(15);

/// Requested layouts and unsent plans.
#[derive(Debug, Default)]
pub(crate) struct LayoutRequests {
    /// Plans that are committed or part of the current round, until they are sent.
    pub(crate) unsent_plans: Vec<LayoutPlanRow>,
    /// Requested layouts, until their GPUs are free for them.
    pub(crate) pending: Vec<PendingLayout>,
    /// Requested MIG modes, until their nodes have answered.
    pub(crate) mig_modes: Vec<PendingMigMode>,
}

/// A requested MIG mode that was sent to its node.
#[derive(Clone, Debug)]
pub(crate) struct PendingMigMode {
    pub(crate) token: u64,
    pub(crate) gpu: GpuId,
    pub(crate) on: bool,
    pub(crate) until: Millis,
}

/// A requested layout whose plan is under way.
#[derive(Clone, Debug)]
pub(crate) struct LayoutInProgress {
    pub(crate) requested: RequestedLayout,
    pub(crate) row: LayoutPlanRow,
}

/// A requested layout that waits until its GPU is not being changed.
#[derive(Clone, Debug)]
pub(crate) struct PendingLayout {
    pub(crate) token: u64,
    pub(crate) command: LayoutCommand,
    pub(crate) until: Millis,
}

pub(crate) fn whole(geometry: &Geometry, slot: Slot) -> Cut {
    let slices = geometry.profile(slot.profile).map_or(0, |profile| profile.compute_slices);
    Cut::whole(slices).unwrap_or_default()
}

/// Returns the compute instances of an instance; none if it is only partly created.
pub(crate) fn cut_of(instance: &InstanceReport, geometry: &Geometry) -> Cut {
    match instance.slice {
        Some(_) => whole(geometry, instance.slot),
        None => instance.cut(),
    }
}

impl LayoutInProgress {
    /// Resumes a layout that was under way when the store was read.
    pub(crate) fn resume(open: crate::rows::snapshot::OpenLayoutRequest) -> Self {
        Self { requested: open.requested, row: open.row }
    }

    /// Returns whether the plan destroys or divides the instance.
    pub(crate) fn takes(&self, slot: Slot) -> bool {
        self.row.steps.iter().any(|step| match step {
            PlanStep::Destroy(taken) | PlanStep::Cut(taken, _) => *taken == slot,
            PlanStep::Create(_) => false,
        })
    }

    /// Returns whether an instance is the same in this layout.
    pub(crate) fn is_met_by(&self, instance: &InstanceReport, geometry: &Geometry) -> bool {
        let cut = self.row.steps.iter().find_map(|step| match step {
            PlanStep::Cut(slot, cut) if *slot == instance.slot => Some(*cut),
            PlanStep::Cut(..) | PlanStep::Create(_) | PlanStep::Destroy(_) => None,
        });
        let stands = cut_of(instance, geometry);
        cut.map_or(!stands.is_empty(), |cut| cut == stands)
    }
}

impl LayoutRequests {
    /// Forgets every request and unsent plan, since the state is read again from the store.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn request_layout(&mut self, token: u64, command: LayoutCommand, now: Millis) {
        let until = now.plus(LAYOUT_REQUEST_WAITS);
        self.pending.push(PendingLayout { token, command, until });
    }

    /// Returns whether a requested layout of the GPU waits: then no attempt starts there.
    pub(crate) fn is_layout_requested(&self, gpu: &GpuId) -> bool {
        self.pending.iter().any(|pending| pending.command.gpu == *gpu)
    }
}
