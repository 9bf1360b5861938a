//! Previews of requested layouts: their steps, or the reason of a refusal.

use crate::commands::operator::{OperatorRefusal, PlanPreview, RefusalKind};
use crate::layouts::availability::{free_space_text, jobs_of};
use crate::plans::{find_placing_job, step_text};
use crate::rows::nodes::RequestedLayout;
use crate::state::ClusterState;
use crate::state::inventory::GpuState;
use crate::state::inventory::NodeInventory;
use crate::state::layouts::cut_of;
use crate::state::overrides::refused;
use std::collections::BTreeMap;
use tessera_frames::cluster::{GpuHealth, InstanceReport, MigReport};
use tessera_model::GpuId;
use tessera_model::mig::compute::{Cut, StandingCut};
use tessera_model::mig::{
    self, ArrangementError, Cuts, DesiredLayout, Geometry, InstanceOccupant, Layout, PlanStep, Slot,
};
use tessera_placement::{InstanceState, InstanceView};

/// A requested layout with the steps that make it.
pub(crate) struct PlannedLayout {
    pub(crate) layout: Layout,
    pub(crate) cuts: Cuts,
    pub(crate) standing: BTreeMap<Slot, StandingCut>,
    pub(crate) steps: Vec<PlanStep>,
}

fn standing_cuts(
    gpu: &GpuState,
    geometry: &Geometry,
    occupants: &[InstanceOccupant],
) -> BTreeMap<Slot, StandingCut> {
    let busy = |slot: Slot| occupants.iter().any(|o| o.slot == slot && o.busy);
    let standing = |instance: &InstanceReport| {
        let cut = cut_of(instance, geometry);
        let busy = if busy(instance.slot) { cut } else { Cut::default() };
        (instance.slot, StandingCut { cut, busy })
    };
    gpu.report.instances.iter().map(standing).collect()
}

pub(crate) fn requester_text(requested: &RequestedLayout) -> String {
    match &requested.reason {
        Some(reason) => format!("{reason}, by {}", requested.by),
        None => format!("by {}", requested.by),
    }
}

fn occupied_slots(views: &[InstanceView]) -> Vec<InstanceOccupant> {
    let busy = |state: &InstanceState| match state {
        // Operators divided them, and may do so again while no job runs there.
        InstanceState::Cut(compute) => compute.tenancy.is_some(),
        state => state.busy(),
    };
    let occupant =
        |view: &InstanceView| Some(InstanceOccupant { slot: view.slot?, busy: busy(&view.state) });
    views.iter().filter_map(occupant).collect()
}

/// Returns why an instance has to stay, as text.
fn instance_text(gpu: &GpuState, views: &[InstanceView], slot: Slot) -> String {
    let name = gpu.slot_name(slot);
    let state = views.iter().find(|view| view.slot == Some(slot)).map(|view| &view.state);
    match state {
        Some(InstanceState::Foreign) => format!("{name} is in use by processes outside of jobs"),
        Some(InstanceState::Stuck) => format!("{name} is stuck"),
        Some(InstanceState::Quarantined) => format!("{name} is quarantined"),
        Some(InstanceState::Leaving) => format!("{name} is being destroyed"),
        Some(state) => {
            let jobs: Vec<_> = jobs_of(state).iter().map(ToString::to_string).collect();
            format!("{name} is in use by job {}", jobs.join(", "))
        }
        None => name,
    }
}

impl ClusterState {
    /// Returns a preview of the plan that makes a layout; nothing is changed.
    ///
    /// # Errors
    ///
    /// The obstacle, and what would be possible.
    pub fn preview_layout(
        &self,
        gpu: &GpuId,
        desired: &DesiredLayout,
    ) -> Result<PlanPreview, OperatorRefusal> {
        let planned = self.plan_layout(gpu, desired)?;
        let known = self.inventory.find_gpu(gpu)?;
        let MigReport::On { geometry } = &known.report.mig else {
            return Err(refused(RefusalKind::InTheWay, "MIG is off"));
        };
        let makes = |slot: &Slot| {
            let made =
                |step: &PlanStep| !matches!(step, PlanStep::Destroy(_)) && step.slot() == *slot;
            planned.steps.iter().any(made)
        };
        let name = |slot: &Slot| planned.instance_name(known, *slot);
        Ok(PlanPreview {
            layout: planned.layout.iter().map(name).collect(),
            kept: planned.layout.iter().filter(|slot| !makes(slot)).map(name).collect(),
            steps: planned.steps.iter().map(|step| step_text(geometry, *step)).collect(),
            cost: mig::predicted_over(geometry, &planned.standing, &planned.steps),
            reachability_after: u32::try_from(known.count_full_layouts(&planned.layout)).ok(),
        })
    }

    pub(crate) fn plan_layout(
        &self,
        id: &GpuId,
        desired: &DesiredLayout,
    ) -> Result<PlannedLayout, OperatorRefusal> {
        let gpu = self.inventory.find_gpu(id)?;
        let geometry = self.changeable_geometry(gpu)?;
        let views = self.instances_of(gpu);
        let standing: Vec<_> = occupied_slots(&views);
        let layout = desired
            .arrange(geometry, &standing, |layout| gpu.count_full_layouts(layout))
            .map_err(|problem| self.inventory.refuse_arrangement(gpu, geometry, &views, problem))?;
        let steps = mig::plan(geometry, &standing, &layout).map_err(|problem| {
            refused(RefusalKind::InTheWay, format!("{}: {problem}", self.inventory.gpu_name(gpu)))
        })?;
        let standing = standing_cuts(gpu, geometry, &standing);
        let cuts = desired
            .cuts(geometry, &layout, &standing)
            .map_err(|problem| self.inventory.refuse_arrangement(gpu, geometry, &views, problem))?;
        let steps = mig::cut_steps(geometry, steps, &standing, &cuts);
        Ok(PlannedLayout { layout, cuts, standing, steps })
    }

    /// Returns the geometry of a GPU that can be changed now.
    fn changeable_geometry<'g>(&self, gpu: &'g GpuState) -> Result<&'g Geometry, OperatorRefusal> {
        let name = self.inventory.gpu_name(gpu);
        let no = |why: String| refused(RefusalKind::InTheWay, format!("{name} {why}"));
        let MigReport::On { geometry } = &gpu.report.mig else {
            let expected = match gpu.report.mig {
                MigReport::Off => Some(format!(
                    "MIG mode to be on: tessera mig-mode {} on, while nothing runs there",
                    gpu.report.gpu
                )),
                MigReport::On { .. } | MigReport::Unsupported => None,
            };
            let why = match expected {
                Some(_) => "has MIG mode off: it can't be partitioned",
                None => "has no MIG: it can't be partitioned",
            };
            return Err(OperatorRefusal { expected, ..no(why.to_owned()) });
        };
        if let Some(why) = gpu.explain_unplannable() {
            let off = format!("MIG mode to be off: tessera mig-mode {} off", gpu.report.gpu);
            let refused = no(format!("can't be changed: {why}"));
            return Err(OperatorRefusal { expected: Some(off), ..refused });
        }
        let node = self.inventory.nodes.get(&gpu.node);
        let there = node.is_some_and(|node| !node.lost && node.is_ready());
        if !there || !gpu.fresh {
            return Err(no("can't be changed: its node is not connected".to_owned()));
        }
        match &gpu.report.health {
            GpuHealth::Healthy => {}
            GpuHealth::Unresponsive => {
                return Err(no("can't be changed: its driver doesn't answer".to_owned()));
            }
            GpuHealth::Faulty { reason } => {
                return Err(no(format!("can't be changed: it is faulty ({reason})")));
            }
        }
        if gpu.open_plan.is_some() || self.has_pending_instance(gpu) {
            let for_job = match find_placing_job(&self.attempts, &self.migrations, &gpu.report.gpu)
            {
                Some(job) => format!(" for job {job}"),
                None => String::new(),
            };
            return Err(OperatorRefusal {
                expected: Some("another try when that has ended".to_owned()),
                ..refused(RefusalKind::Changing, format!("{name} is being changed{for_job}"))
            });
        }
        Ok(geometry)
    }
}

impl NodeInventory {
    fn refuse_arrangement(
        &self,
        gpu: &GpuState,
        geometry: &Geometry,
        views: &[InstanceView],
        problem: ArrangementError,
    ) -> OperatorRefusal {
        let name = self.gpu_name(gpu);
        match problem {
            ArrangementError::UnknownProfile { profile } => {
                let offered: Vec<_> =
                    geometry.profiles.iter().map(|p| p.name.to_string()).collect();
                OperatorRefusal {
                    expected: Some(offered.join(", ")),
                    ..refused(RefusalKind::Impossible, format!("{name} offers no {profile}"))
                }
            }
            ArrangementError::IllegalCut { .. } => OperatorRefusal {
                expected: Some(
                    "compute instances such as 1c+2c.3g.20gb, which fit together".into(),
                ),
                ..refused(RefusalKind::Impossible, format!("{name}: {problem}"))
            },
            ArrangementError::Illegal(problem) => {
                refused(RefusalKind::Impossible, format!("{name}: {problem}"))
            }
            ArrangementError::DoNotFit => OperatorRefusal {
                expected: Some(format!(
                    "what the empty GPU can hold: {}",
                    free_space_text(geometry, &[])
                )),
                ..refused(
                    RefusalKind::Impossible,
                    format!("{name}: {}", ArrangementError::DoNotFit),
                )
            },
            ArrangementError::TooMany => {
                refused(RefusalKind::Impossible, format!("{name}: {}", ArrangementError::TooMany))
            }
            ArrangementError::InTheWay { busy } => {
                let blockers: Vec<_> =
                    busy.iter().map(|slot| instance_text(gpu, views, *slot)).collect();
                let stay: Vec<_> = views.iter().filter(|view| view.state.busy()).collect();
                let kept: Vec<_> =
                    stay.iter().filter_map(|view| view.slot).map(|s| gpu.slot_name(s)).collect();
                let kept_slots: Vec<_> = stay.iter().filter_map(|view| view.slot).collect();
                OperatorRefusal {
                    expected: Some(format!(
                        "a layout that keeps {}; {} could be created next to it",
                        kept.join(" and "),
                        free_space_text(geometry, &kept_slots),
                    )),
                    ..refused(
                        RefusalKind::InTheWay,
                        format!(
                            "the layout has no place for what must stay on {name}: {}",
                            blockers.join("; ")
                        ),
                    )
                }
            }
        }
    }
}

impl PlannedLayout {
    pub(crate) fn instance_name(&self, gpu: &GpuState, slot: Slot) -> String {
        gpu.cut_name(slot, self.cuts.get(&slot).copied().unwrap_or_default())
    }

    pub(crate) fn layout_name(&self, gpu: &GpuState) -> String {
        let names: Vec<_> = self.layout.iter().map(|slot| self.instance_name(gpu, *slot)).collect();
        if names.is_empty() { "empty".to_owned() } else { names.join(",") }
    }
}
