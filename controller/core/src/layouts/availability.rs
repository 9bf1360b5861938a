//! The availability of a GPU: what can still be created on it.

use crate::commands::operator::{GpuAvailability, OperatorRefusal, RefusalKind};
use crate::state::ClusterState;
use crate::state::overrides::refused;
use std::collections::BTreeMap;
use tessera_frames::cluster::MigReport;
use tessera_model::mig::{self, Geometry, InstanceUse, OccupiedInstance, Slot};
use tessera_model::{GpuId, JobId, Millis};
use tessera_placement::{ComputeInstancesView, InstanceState};

pub(crate) fn jobs_of(state: &InstanceState) -> Vec<JobId> {
    match state {
        InstanceState::Taken { job } => vec![*job],
        InstanceState::Shared(tenancy) => tenancy.sharers.iter().map(|(job, _)| *job).collect(),
        InstanceState::Cut(compute) => compute.taken().map(|(job, _)| job).collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn instance_use(state: &InstanceState, ends: &BTreeMap<JobId, Millis>) -> InstanceUse {
    match state {
        InstanceState::Idle => InstanceUse::Idle,
        InstanceState::Taken { job } => InstanceUse::Busy { until: ends.get(job).copied() },
        InstanceState::Cut(ComputeInstancesView { tenancy: None, .. }) => InstanceUse::Idle,
        InstanceState::Shared(tenancy)
        | InstanceState::Cut(ComputeInstancesView { tenancy: Some(tenancy), .. }) => {
            // The slot is free when the last of them has ended; that is unknown if one has no
            // limit.
            let all = tenancy.sharers.iter().map(|(job, _)| ends.get(job).copied());
            let until: Option<Vec<_>> = all.collect();
            InstanceUse::Busy { until: until.and_then(|ends| ends.into_iter().max()) }
        }
        InstanceState::Foreign | InstanceState::Leaving => InstanceUse::Busy { until: None },
        InstanceState::Stuck | InstanceState::Quarantined => InstanceUse::Stuck,
    }
}

/// Returns how many instances of each profile fit next to others, as text.
pub(crate) fn free_space_text(geometry: &Geometry, standing: &[Slot]) -> String {
    let occupied: Vec<_> = standing
        .iter()
        .map(|slot| OccupiedInstance { slot: *slot, hold: InstanceUse::Stuck })
        .collect();
    let plain = geometry.plain();
    let fits: Vec<_> = mig::list_availability(geometry, &occupied)
        .unwrap_or_default()
        .into_iter()
        .filter(|availability| availability.now > 0 && plain.contains(&availability.profile))
        .filter_map(|availability| {
            let name = &geometry.profile(availability.profile)?.name;
            Some(format!("{}x {name}", availability.now))
        })
        .collect();
    if fits.is_empty() { "nothing more".to_owned() } else { fits.join(" or ") }
}

impl ClusterState {
    /// Returns what can still be created on a GPU; `ends` has the expected ends of jobs.
    ///
    /// # Errors
    ///
    /// If there is no such GPU, or if it can't be partitioned.
    pub fn gpu_availability(
        &self,
        gpu: &GpuId,
        ends: &BTreeMap<JobId, Millis>,
    ) -> Result<GpuAvailability, OperatorRefusal> {
        let gpu = self.inventory.find_gpu(gpu)?;
        let MigReport::On { geometry } = &gpu.report.mig else {
            let name = self.inventory.gpu_name(gpu);
            return Err(refused(RefusalKind::InTheWay, format!("{name} is not partitioned")));
        };
        let views = self.instances_of(gpu);
        let occupied: Vec<_> = views
            .iter()
            .filter_map(|view| {
                Some(OccupiedInstance { slot: view.slot?, hold: instance_use(&view.state, ends) })
            })
            .collect();
        let profiles = mig::list_availability(geometry, &occupied)
            .map_err(|problem| refused(RefusalKind::InTheWay, problem.to_string()))?;
        let name = |id| geometry.profile(id).map_or_else(String::new, |p| p.name.to_string());
        let plain = geometry.plain();
        Ok(GpuAvailability {
            profiles: profiles
                .into_iter()
                .filter(|availability| plain.contains(&availability.profile))
                .map(|availability| (name(availability.profile), availability))
                .collect(),
            names: views
                .iter()
                .filter_map(|view| Some((view.slot?, view)))
                .map(|(slot, view)| (slot, (gpu.slot_name(slot), jobs_of(&view.state))))
                .collect(),
        })
    }
}
