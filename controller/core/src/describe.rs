//! The description of nodes and GPUs in the API.

use crate::rows::overrides::{OverrideKind, OverrideTarget};
use crate::state::ClusterState;
use crate::state::inventory::{GpuState, NodeSession, NodeState};
use std::collections::BTreeMap;
use tessera_api_types as api;
use tessera_frames::cluster::{
    ComputeInstanceReport, FaultAction, FaultCause, GpuFault, GpuHealth, InstanceReport,
    InstanceTrouble, MigReport,
};
use tessera_model::mig::compute::{self, ComputeName};
use tessera_model::mig::{self, Geometry, Profile};
use tessera_model::share::{SliceShare, SmPercent};
use tessera_model::{GpuId, JobId, Millis};
use tessera_placement::{GpuView, InstanceState, InstanceView};
use time::OffsetDateTime;

/// Returns the problem of an instance, as text.
pub(crate) fn trouble_text(trouble: &InstanceTrouble) -> String {
    match trouble {
        InstanceTrouble::Stuck { reason } => reason.clone(),
        InstanceTrouble::Foreign { pids } if pids.is_empty() => {
            "another program created it, and no process uses it now".to_owned()
        }
        InstanceTrouble::Foreign { pids } => {
            let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
            format!("processes outside of jobs use it: pid {}", pids.join(", "))
        }
    }
}

pub(crate) fn describe_fault(fault: &GpuFault) -> api::FaultView {
    let cause = match &fault.cause {
        FaultCause::Xid(number) => format!("xid {number}"),
        FaultCause::Nvml { call, code } => format!("nvml {call} code {code}"),
        FaultCause::Silence => "silence".to_owned(),
    };
    let action = match fault.action {
        FaultAction::Record => "record",
        FaultAction::RestartApp => "restart_app",
        FaultAction::Drain => "drain",
        FaultAction::ResetGpu => "reset_gpu",
        FaultAction::RestartNode => "restart_node",
    };
    api::FaultView {
        at: timestamp(fault.at_unix).unwrap_or(OffsetDateTime::UNIX_EPOCH),
        cause,
        start: fault.slot.map(|slot| slot.start),
        attempts: fault.attempts.iter().map(ToString::to_string).collect(),
        action: action.to_owned(),
        times: fault.times,
        text: fault.message.clone(),
    }
}

/// Returns the node's own quarantine of its GPU, or why the GPU can't be planned.
fn node_quarantine(gpu: &GpuState) -> Option<api::AdminOverrideView> {
    if let Some(why) = gpu.explain_unplannable() {
        let by = "the planner".to_owned();
        return Some(api::AdminOverrideView {
            by,
            reason: Some(why),
            at: OffsetDateTime::UNIX_EPOCH,
        });
    }
    let quarantine = gpu.report.quarantine.as_ref()?;
    Some(api::AdminOverrideView {
        by: "its node".to_owned(),
        reason: Some(quarantine.reason.clone()),
        at: timestamp(quarantine.since_unix).unwrap_or(OffsetDateTime::UNIX_EPOCH),
    })
}

fn node_state(node: &NodeState) -> &'static str {
    match &node.session {
        _ if node.lost => "lost",
        Some(session) if session.ready => "available",
        Some(_) => "connecting",
        None => "silent",
    }
}

fn isolation_gaps(session: &NodeSession) -> Vec<String> {
    session.isolation_gaps.iter().map(|gap| gap.word().to_owned()).collect()
}

fn count_full_layouts(gpu: &GpuState) -> Option<u32> {
    let mig = gpu.mig.as_ref()?;
    let layout = gpu.report.instances.iter().map(|i| i.slot).collect();
    let reach = mig.full_layouts(mig.all().state(&layout)?)?;
    u32::try_from(reach).ok()
}

pub(crate) fn timestamp(unix: Millis) -> Option<OffsetDateTime> {
    if unix == Millis::ZERO {
        return None;
    }
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix.get()) * 1_000_000).ok()
}

impl ClusterState {
    /// Describes every node that ever registered, by name.
    pub fn describe(&self, now: Millis) -> Vec<api::NodeDetails> {
        let views: BTreeMap<GpuId, _> =
            self.view(now).gpus.into_iter().map(|gpu| (gpu.id.clone(), gpu)).collect();
        let mut nodes: Vec<_> = self
            .inventory
            .nodes
            .iter()
            .map(|(id, node)| {
                let mut gpus: Vec<_> = self
                    .inventory
                    .gpus
                    .values()
                    .filter(|gpu| gpu.node == *id)
                    .filter_map(|gpu| {
                        Some(self.describe_gpu(node, gpu, views.get(&gpu.report.gpu)?))
                    })
                    .collect();
                gpus.sort_by_key(|gpu| gpu.index);
                api::NodeDetails {
                    name: node.name.to_string(),
                    id: id.to_string(),
                    state: node_state(node).to_owned(),
                    agent_version: node.software.clone(),
                    cores: node.cores,
                    memory_bytes: node.memory_bytes,
                    mps: node.mps,
                    isolation_gaps: node.session.as_ref().map(isolation_gaps),
                    generation: node.generation,
                    last_seen_at: timestamp(node.last_seen_unix),
                    drained: self.override_view(OverrideKind::Drained, OverrideTarget::Node(*id)),
                    quarantined: self
                        .override_view(OverrideKind::Quarantined, OverrideTarget::Node(*id)),
                    gpus,
                }
            })
            .collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    fn describe_gpu(&self, node: &NodeState, gpu: &GpuState, view: &GpuView) -> api::GpuDetails {
        let (health, health_text) = match &gpu.report.health {
            GpuHealth::Healthy => ("healthy", None),
            GpuHealth::Unresponsive => ("unresponsive", None),
            GpuHealth::Faulty { reason } => ("faulty", Some(reason.clone())),
        };
        let (mig, geometry) = match &gpu.report.mig {
            MigReport::On { geometry } => ("on", Some(geometry)),
            MigReport::Off => ("off", None),
            MigReport::Unsupported => ("unsupported", None),
        };
        let override_of =
            |kind| self.override_view(kind, OverrideTarget::Gpu(gpu.report.gpu.clone()));
        api::GpuDetails {
            id: gpu.report.gpu.to_string(),
            node: node.name.to_string(),
            index: gpu.report.index,
            model: gpu.report.model.clone(),
            memory_bytes: gpu.report.memory.get(),
            health: health.to_owned(),
            health_text,
            mig: mig.to_owned(),
            memory_slices: geometry.map_or(0, |g| g.memory_slices),
            changing: view.changing,
            drained: override_of(OverrideKind::Drained),
            quarantined: override_of(OverrideKind::Quarantined).or_else(|| node_quarantine(gpu)),
            pinned: override_of(OverrideKind::Pinned),
            faults: gpu.report.faults.iter().map(describe_fault).collect(),
            reachability: count_full_layouts(gpu),
            instances: view
                .instances
                .iter()
                .map(|instance| self.describe_instance(gpu, geometry, instance))
                .collect(),
            profiles: geometry.map_or_else(Vec::new, |geometry| describe_profiles(gpu, geometry)),
        }
    }

    fn describe_instance(
        &self,
        gpu: &GpuState,
        geometry: Option<&Geometry>,
        instance: &InstanceView,
    ) -> api::InstanceDetails {
        let report = gpu.report.instances.iter().find(|i| Some(i.slot) == instance.slot);
        let profile = instance.slot.and_then(|slot| geometry?.profile(slot.profile));
        let job = match &instance.state {
            InstanceState::Taken { job } => Some(*job),
            _ => None,
        };
        api::InstanceDetails {
            profile: profile.map_or_else(|| "whole GPU".to_owned(), |p| p.name.to_string()),
            start: instance.slot.map_or(0, |slot| slot.start),
            size: profile.map_or(0, |p| p.memory_slices),
            slice: match instance.slot {
                Some(_) => report.and_then(|r| r.slice.as_ref()).map(ToString::to_string),
                None => Some(gpu.report.gpu.to_string()),
            },
            memory_bytes: instance.memory.get(),
            sms: profile.map(|p| p.sms).or(gpu.report.sms),
            state: instance_state(instance, report.is_some()).to_owned(),
            trouble: report.and_then(|report| report.trouble.as_ref()).map(trouble_text),
            quarantined: instance.slot.and_then(|slot| {
                let target = OverrideTarget::Slice(gpu.report.gpu.clone(), slot);
                self.override_view(OverrideKind::Quarantined, target)
            }),
            job_id: job.map(JobId::number),
            job_name: job.and_then(|job| self.attempts.job_name(job)),
            sharers: self.describe_sharers(&instance.state),
            parts: report
                .zip(profile)
                .map(|(report, profile)| self.describe_parts(report, profile, &instance.state))
                .unwrap_or_default(),
        }
    }

    fn describe_sharers(&self, state: &InstanceState) -> Vec<api::SharerView> {
        let InstanceState::Shared(tenancy) = state else { return Vec::new() };
        let view = |(job, share): &(JobId, SliceShare)| api::SharerView {
            job_id: job.number(),
            job_name: self.attempts.job_name(*job),
            user: tenancy.user.to_string(),
            sm_percent: share.sm().map(SmPercent::get),
            memory_bytes: share.memory().get(),
        };
        tenancy.sharers.iter().map(view).collect()
    }

    fn describe_parts(
        &self,
        report: &InstanceReport,
        profile: &Profile,
        state: &InstanceState,
    ) -> Vec<api::ComputeView> {
        let tenancy = match state {
            InstanceState::Cut(compute) => compute.tenancy.as_ref(),
            _ => None,
        };
        let sharers = || tenancy.iter().flat_map(|tenancy| &tenancy.sharers);
        let view = |part: &ComputeInstanceReport| {
            let slices = part.slot.slices;
            let job = sharers().find(|(_, share)| share.compute() == Some(part.slot));
            let job = job.map(|(job, _)| *job);
            let memory = compute::memory_share(profile.memory, profile.compute_slices, slices);
            api::ComputeView {
                name: ComputeName { slices, profile: profile.name.clone() }.to_string(),
                start: part.slot.start,
                slices,
                slice: part.slice.as_ref().map(ToString::to_string),
                sms: part.sms,
                memory_bytes: memory.get(),
                job_id: job.map(JobId::number),
                job_name: job.and_then(|job| self.attempts.job_name(job)),
                user: job.and_then(|_| tenancy.map(|tenancy| tenancy.user.to_string())),
            }
        };
        report.parts.iter().map(view).collect()
    }

    pub(crate) fn override_view(
        &self,
        kind: OverrideKind,
        target: OverrideTarget,
    ) -> Option<api::AdminOverrideView> {
        let row = self.overrides.find_override(kind, target)?;
        Some(api::AdminOverrideView {
            by: row.by.clone(),
            reason: row.reason.clone(),
            at: timestamp(row.since_unix).unwrap_or(OffsetDateTime::UNIX_EPOCH),
        })
    }
}

fn instance_state(instance: &InstanceView, stands: bool) -> &'static str {
    match instance.state {
        InstanceState::Idle => "idle",
        InstanceState::Taken { .. } if stands || instance.slot.is_none() => "taken",
        InstanceState::Taken { .. } => "unfinished",
        InstanceState::Shared(_) if stands || instance.slot.is_none() => "shared",
        InstanceState::Shared(_) => "unfinished",
        InstanceState::Cut(_) => "cut",
        InstanceState::Foreign => "foreign",
        InstanceState::Stuck => "stuck",
        InstanceState::Quarantined => "quarantined",
        InstanceState::Leaving => "leaving",
    }
}

fn describe_profiles(gpu: &GpuState, geometry: &Geometry) -> Vec<api::ProfileView> {
    let standing: Vec<_> = gpu.report.instances.iter().map(|i| i.slot).collect();
    let view = |profile: &Profile| api::ProfileView {
        name: profile.name.to_string(),
        memory_bytes: profile.memory.get(),
        compute_slices: profile.compute_slices,
        memory_slices: profile.memory_slices,
        starts: profile.starts.clone(),
        fits_now: mig::count_creatable(geometry, &standing, profile),
    };
    geometry.profiles.iter().map(view).collect()
}
