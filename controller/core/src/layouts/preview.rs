//! What a requested layout would take, and why it is refused.

use crate::commands::operator::{OperatorRefusal, PlanPreview, RefusalKind};
use crate::layouts::availability::{jobs_of, room};
use crate::plans::step_text;
use crate::rows::nodes::RequestedLayout;
use crate::state::ClusterState;
use crate::state::inventory::GpuState;
use crate::state::inventory::NodeInventory;
use crate::state::layouts::cut_of;
use crate::state::overrides::refused;
use std::collections::BTreeMap;
use tessera_model::GpuId;
use tessera_model::mig::compute::{Cut, StandingCut};
use tessera_model::mig::{
    self, ArrangementError, Cuts, DesiredLayout, Geometry, InstanceOccupant, Layout, PlanStep, Slot,
};
use tessera_placement::{InstanceState, InstanceView};
use tessera_wire::frames::{GpuHealth, InstanceReport, MigReport};

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

pub(crate) fn requester_text(asked: &RequestedLayout) -> String {
    match &asked.reason {
        Some(reason) => format!("{reason}, by {}", asked.by),
        None => format!("by {}", asked.by),
    }
}

fn occupants(views: &[InstanceView]) -> Vec<InstanceOccupant> {
    let busy = |state: &InstanceState| match state {
        // Operators cut them, and may do so again while nobody sits there.
        InstanceState::Cut(seats) => seats.tenancy.is_some(),
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
        Some(InstanceState::Foreign) => format!("{name} is in use by processes of others"),
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
    /// What stands in the way, and what would be possible.
    pub fn preview_layout(
        &self,
        gpu: &GpuId,
        wanted: &DesiredLayout,
    ) -> Result<PlanPreview, OperatorRefusal> {
        let draft = self.plan_layout(gpu, wanted)?;
        let known = self.inventory.find_gpu(gpu)?;
        let MigReport::On { geometry } = &known.report.mig else {
            return Err(refused(RefusalKind::InTheWay, "MIG is off"));
        };
        let makes = |slot: &Slot| {
            let made =
                |step: &PlanStep| !matches!(step, PlanStep::Destroy(_)) && step.slot() == *slot;
            draft.steps.iter().any(made)
        };
        let name = |slot: &Slot| draft.name(known, *slot);
        Ok(PlanPreview {
            layout: draft.layout.iter().map(name).collect(),
            kept: draft.layout.iter().filter(|slot| !makes(slot)).map(name).collect(),
            steps: draft.steps.iter().map(|step| step_text(geometry, *step)).collect(),
            cost: mig::predicted_over(geometry, &draft.standing, &draft.steps),
            reachability_after: u32::try_from(known.reach(&draft.layout)).ok(),
        })
    }

    pub(crate) fn plan_layout(
        &self,
        id: &GpuId,
        wanted: &DesiredLayout,
    ) -> Result<PlannedLayout, OperatorRefusal> {
        let gpu = self.inventory.find_gpu(id)?;
        let geometry = self.changeable(gpu)?;
        let views = self.instances_of(gpu);
        let standing: Vec<_> = occupants(&views);
        let layout = wanted
            .arrange(geometry, &standing, |layout| gpu.reach(layout))
            .map_err(|problem| self.inventory.refuse_arrangement(gpu, geometry, &views, problem))?;
        let steps = mig::plan(geometry, &standing, &layout).map_err(|problem| {
            refused(RefusalKind::InTheWay, format!("{}: {problem}", self.inventory.gpu_name(gpu)))
        })?;
        let standing = standing_cuts(gpu, geometry, &standing);
        let cuts = wanted
            .cuts(geometry, &layout, &standing)
            .map_err(|problem| self.inventory.refuse_arrangement(gpu, geometry, &views, problem))?;
        let steps = mig::cut_steps(geometry, steps, &standing, &cuts);
        Ok(PlannedLayout { layout, cuts, standing, steps })
    }

    /// Returns the geometry of a GPU that can be changed now.
    fn changeable<'g>(&self, gpu: &'g GpuState) -> Result<&'g Geometry, OperatorRefusal> {
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
                Some(_) => "has MIG mode off: it can't be cut",
                None => "has no MIG: it can't be cut",
            };
            return Err(OperatorRefusal { expected, ..no(why.to_owned()) });
        };
        if let Some(why) = gpu.unplannable() {
            let off = format!("MIG mode to be off: tessera mig-mode {} off", gpu.report.gpu);
            let refused = no(format!("can't be changed: {why}"));
            return Err(OperatorRefusal { expected: Some(off), ..refused });
        }
        let there = self.inventory.nodes.get(&gpu.node).is_some_and(|node| {
            !node.lost && node.session.as_ref().is_some_and(|session| session.ready)
        });
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
            let for_whom = match self.placing_on(&gpu.report.gpu) {
                Some(job) => format!(" for job {job}"),
                None => String::new(),
            };
            return Err(OperatorRefusal {
                expected: Some("another try when that has ended".to_owned()),
                ..refused(RefusalKind::Changing, format!("{name} is being changed{for_whom}"))
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
                expected: Some(format!("what the empty GPU can hold: {}", room(geometry, &[]))),
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
                let tenants: Vec<_> = stay.iter().filter_map(|view| view.slot).collect();
                OperatorRefusal {
                    expected: Some(format!(
                        "a layout that keeps {}; next to it could be made {}",
                        kept.join(" and "),
                        room(geometry, &tenants),
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
    pub(crate) fn name(&self, gpu: &GpuState, slot: Slot) -> String {
        gpu.cut_name(slot, self.cuts.get(&slot).copied().unwrap_or_default())
    }

    pub(crate) fn names(&self, gpu: &GpuState) -> String {
        let names: Vec<_> = self.layout.iter().map(|slot| self.name(gpu, *slot)).collect();
        if names.is_empty() { "empty".to_owned() } else { names.join(",") }
    }
}
