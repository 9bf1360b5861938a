//! The cluster view for policies, built from agents' reports and later decisions.

use crate::answers::WaitReasonRun;
use crate::overrides::overrides_of;
use crate::state::ClusterState;
use crate::state::attempts::{AttemptTable, LiveAttempt};
use crate::state::inventory::{GpuState, NodeInventory};
use crate::state::layouts::LayoutRequests;
use crate::state::migrations::Migrations;
use crate::state::overrides::{OverrideTable, closed_compute_instances, closed_to_others};
use std::collections::BTreeMap;
use tessera_api_types::PowerReport;
use tessera_frames::cluster::{InstanceReport, InstanceTrouble, MigReport};
use tessera_model::mig::Slot;
use tessera_model::mig::compute::Cut;
use tessera_model::{Bytes, GpuId, JobId, Millis};
use tessera_placement::power::{PowerUse, power_use};
use tessera_placement::{
    ClusterView, ComputeInstancesView, GpuView, InstanceState, InstanceView, Tenancy,
};

/// Returns whether the attempts on a GPU were placed for its current MIG mode. Until those of the
/// other mode have ended, what they hold is not known.
fn matches_mig_mode(gpu: &GpuState, holders: &[&LiveAttempt]) -> bool {
    let partitioned = matches!(gpu.report.mig, MigReport::On { .. });
    holders.iter().all(|held| held.slot.is_some() == partitioned)
}

pub(crate) fn instance_views(gpu: &GpuState, holders: &[&LiveAttempt]) -> Vec<InstanceView> {
    let MigReport::On { geometry } = &gpu.report.mig else {
        let state = held_by(holders, None).unwrap_or(InstanceState::Idle);
        return vec![InstanceView { slot: None, memory: gpu.report.memory, state }];
    };
    let mut views: Vec<_> = gpu
        .report
        .instances
        .iter()
        .map(|i| InstanceView {
            slot: Some(i.slot),
            memory: i.memory,
            state: match &gpu.layout_in_progress {
                Some(layout) if layout.takes(i.slot) => InstanceState::Leaving,
                _ => state_of(
                    i,
                    held_by(holders, Some(i.slot)),
                    job_to_give_way(gpu, geometry, i, holders),
                ),
            },
        })
        .collect();
    for held in holders {
        let Some(slot) = held.slot else { continue };
        // Several sharing jobs may wait for one instance.
        if views.iter().all(|view| view.slot != Some(slot)) {
            let memory = geometry.profile(slot.profile).map_or(Bytes::ZERO, |p| p.memory);
            let state = held_by(holders, Some(slot)).unwrap_or(InstanceState::Idle);
            views.push(InstanceView { slot: Some(slot), memory, state });
        }
    }
    views.sort_by_key(|view| view.slot);
    views
}

/// The job for whose placement an instance is about to be destroyed.
fn job_to_give_way(
    gpu: &GpuState,
    geometry: &tessera_model::mig::Geometry,
    instance: &InstanceReport,
    holders: &[&LiveAttempt],
) -> Option<JobId> {
    let mask = geometry.mask(instance.slot).ok()?;
    holders.iter().find_map(|held| {
        let slot = held.slot?;
        let promised = gpu.report.instances.iter().all(|i| i.slot != slot);
        (promised && geometry.mask(slot).is_ok_and(|m| m & mask != 0)).then_some(held.job)
    })
}

/// Returns the state of a slot that its attempts determine; `None` if there are none.
fn held_by(holders: &[&LiveAttempt], slot: Option<Slot>) -> Option<InstanceState> {
    let mut there = holders.iter().filter(|held| held.slot == slot);
    let first = there.next()?;
    let Some(sharer) = &first.share else { return Some(InstanceState::Taken { job: first.job }) };
    let mut tenancy = Tenancy::begun(first.job, sharer);
    let others = there.filter_map(|held| Some((held.job, held.share.as_ref()?)));
    others.for_each(|(job, sharer)| tenancy.add(job, sharer));
    Some(InstanceState::Shared(tenancy))
}

/// Returns the state of a GPU instance with several compute instances.
fn cut_state_of(instance: &InstanceReport, held: Option<InstanceState>) -> InstanceState {
    let tenancy = match held {
        Some(InstanceState::Shared(tenancy)) => Some(tenancy),
        // It was divided while its job runs, or it is reserved for a layout plan.
        Some(state) => return state,
        None => None,
    };
    match (&instance.trouble, tenancy) {
        (Some(_), Some(tenancy)) => closed_compute_instances(tenancy),
        (Some(InstanceTrouble::Foreign { .. }), None) => InstanceState::Foreign,
        (Some(InstanceTrouble::Stuck { .. }), None) => InstanceState::Stuck,
        (None, tenancy) => {
            // Without its device no program can run on a compute instance.
            let mut cut = Cut::default();
            for part in instance.parts.iter().filter(|part| part.slice.is_some()) {
                cut.insert(part.slot);
            }
            InstanceState::Cut(ComputeInstancesView { cut, tenancy })
        }
    }
}

fn state_of(
    instance: &InstanceReport,
    held: Option<InstanceState>,
    gives_way_to: Option<JobId>,
) -> InstanceState {
    if !instance.parts.is_empty() {
        return cut_state_of(instance, held);
    }
    match (held, gives_way_to) {
        // No job joins a shared instance with a problem.
        (Some(InstanceState::Shared(tenancy)), _) if instance.trouble.is_some() => {
            return closed_to_others(&tenancy);
        }
        (Some(state), _) => return state,
        (None, Some(job)) => return InstanceState::Taken { job },
        (None, None) => {}
    }
    match &instance.trouble {
        Some(InstanceTrouble::Foreign { .. }) => InstanceState::Foreign,
        Some(InstanceTrouble::Stuck { .. }) => InstanceState::Stuck,
        // Without its one compute instance no program can run on it, and its owner is not known.
        None if instance.slice.is_none() => InstanceState::Foreign,
        None => InstanceState::Idle,
    }
}

/// Returns the cluster view for policies.
pub(crate) fn cluster_view(
    inventory: &NodeInventory,
    attempts: &AttemptTable,
    overrides: &OverrideTable,
    layouts: &LayoutRequests,
    migrations: &Migrations,
    now: Millis,
) -> ClusterView {
    let mut taken: BTreeMap<&GpuId, Vec<&LiveAttempt>> = BTreeMap::new();
    for live in attempts.live.values() {
        taken.entry(&live.gpu).or_default().push(live);
    }
    let mut gpus: Vec<_> = inventory
        .gpus
        .values()
        .filter_map(|gpu| {
            let node = inventory.nodes.get(&gpu.node)?;
            let holders = taken.get(&gpu.report.gpu).map_or(&[][..], Vec::as_slice);
            let operator = overrides_of(overrides, inventory, gpu);
            Some(GpuView {
                id: gpu.report.gpu.clone(),
                node: node.name.clone(),
                index: gpu.report.index,
                model: gpu.report.model.clone(),
                memory: gpu.report.memory,
                sms: gpu.report.sms,
                mig: gpu.mig.clone(),
                mps: node.mps,
                kernel: node.kernel,
                available: inventory.is_available(gpu, now)
                    && operator.closed.is_none()
                    && !layouts.is_layout_requested(&gpu.report.gpu)
                    && matches_mig_mode(gpu, holders),
                changing: gpu.open_plan.is_some()
                    || has_missing_instance(gpu, holders)
                    || migrations.first_job_on(&gpu.report.gpu).is_some(),
                instances: {
                    let mut views = overrides.with_quarantines(gpu, instance_views(gpu, holders));
                    migrations.hide_idle_instances(&gpu.report.gpu, &mut views);
                    views
                },
                operator,
                part: 0,
            })
        })
        .collect();
    gpus.sort_by(|a, b| (&a.node, a.index).cmp(&(&b.node, b.index)));
    gpus.into()
}

/// Returns whether an attempt waits for an instance that no plan creates yet.
fn has_missing_instance(gpu: &GpuState, holders: &[&LiveAttempt]) -> bool {
    let stands = |slot: Slot| gpu.report.instances.iter().any(|i| i.slot == slot);
    holders.iter().any(|held| held.slot.is_some_and(|slot| !stands(slot)))
}

impl ClusterState {
    /// Returns the cluster view for policies.
    pub fn view(&self, now: Millis) -> ClusterView {
        let Self { inventory, attempts, overrides, layouts, migrations, .. } = self;
        let view = cluster_view(inventory, attempts, overrides, layouts, migrations, now);
        ClusterView::new(view.gpus, self.planner.power_cap)
    }

    /// Returns why the jobs wait for which this is known, by number.
    pub fn wait_reasons(&self) -> Vec<WaitReasonRun> {
        self.queue.wait_reasons()
    }

    /// Returns the power cap, and the expected power of the GPUs.
    pub fn power_report(&self, now: Millis) -> PowerReport {
        let PowerUse { idle, expected, full, unknown } = power_use(&self.view(now));
        PowerReport {
            cap_watts: self.planner.power_cap.map(|cap| cap.watts),
            expected_watts: expected,
            idle_watts: idle,
            full_watts: full,
            unknown_models: unknown.into_iter().collect(),
        }
    }

    /// Returns the existing and planned instances of one GPU.
    pub(crate) fn instances_of(&self, gpu: &GpuState) -> Vec<InstanceView> {
        self.overrides.with_quarantines(gpu, instance_views(gpu, &self.attempts.holders(gpu)))
    }

    /// Returns whether an attempt waits for an instance of the GPU that doesn't exist yet.
    pub(crate) fn has_pending_instance(&self, gpu: &GpuState) -> bool {
        has_missing_instance(gpu, &self.attempts.holders(gpu))
            || self.migrations.first_job_on(&gpu.report.gpu).is_some()
    }
}
