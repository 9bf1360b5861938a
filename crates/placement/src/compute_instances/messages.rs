//! Explains why a job got a compute instance, or why it waits for one.

use tessera_model::mig::compute::{ComputeName, ComputeSlot, memory_share};
use tessera_model::{Bytes, JobId};

use super::{CutInstance, is_of};
use crate::decision::{CANDIDATES_MAX, Explanation, PlacementCandidate, WaitReason};
use crate::explain::candidates::{away, row};
use crate::explain::phrases::{GpuOfNode, InstanceText, RequestText, gpus, listed};
use crate::numbers::saturating_u32;
use crate::view::{ClusterView, GpuView, QueuedJob};

/// The policy name in decisions about compute instances, whatever the policy.
pub(crate) const POLICY: &str = "compute instances";

/// Explains a start on `part` of the GPU instance `chosen`.
pub(crate) fn start(
    job: &QueuedJob,
    name: &ComputeName,
    instances: &[CutInstance<'_>],
    chosen: usize,
    part: ComputeSlot,
) -> Explanation {
    let instance = &instances[chosen];
    let (gpu, slot) = (instance.gpu, instance.slot);
    let (whole, share) = memory(instance, name);
    let others: Vec<_> = instance.taken.iter().map(|(job, _)| job.to_string()).collect();
    let others = match others.len() {
        0 => "it has no co-runners yet".to_owned(),
        1 => format!("its co-runner is job {} of {}", others[0], job.user),
        _ => format!("its co-runners are jobs {} of {}", listed(&others, "and"), job.user),
    };
    let summary = format!(
        "{}: it gets {part} of {} of {}; {share} of the {whole} of memory are counted for it, but \
         co-runners can use all of it; {others}",
        RequestText(job),
        InstanceText { gpu, slot },
        GpuOfNode(gpu),
    );
    let others = instances.iter().enumerate().filter(|(index, other)| {
        let suits = is_of(other, name) && other.has(name.slices) && other.gpu.is_allowed(job);
        *index != chosen && other.gpu.available && suits
    });
    let others = others.map(|(_, other)| candidate(other, name, "later_in_order"));
    let all = std::iter::once(candidate(instance, name, "chosen")).chain(others);
    explanation(summary, None, all.collect())
}

/// Explains a wait.
pub(crate) fn wait(
    job: &QueuedJob,
    name: &ComputeName,
    cluster: &ClusterView,
    instances: &[CutInstance<'_>],
    reason: WaitReason,
) -> Explanation {
    let cut: Vec<_> = instances
        .iter()
        .filter(|instance| is_of(instance, name) && instance.has(name.slices))
        .collect();
    let holders = || cluster.gpus.iter().filter(|gpu| gpu.cuttable(name).is_some());
    let (summary, would_start_if) = match reason {
        WaitReason::Resources => taken(job, name, &cut),
        WaitReason::MigFragmentation => uncut(name, holders().find(|gpu| gpu.available)),
        WaitReason::BadConstraints => (
            format!("no known GPU can be partitioned into {name}"),
            Some(format!("a node with a GPU that offers {} joins", name.profile)),
        ),
        _ => unavailable(name, holders(), &cut),
    };
    let candidates = cut.iter().map(|instance| {
        let other = instance.user.as_ref().is_some_and(|user| *user != job.user);
        let verdict = match (instance.gpu.available, other) {
            (false, _) => away(instance.gpu),
            (true, true) => "other_user",
            (true, false) => "busy",
        };
        candidate(instance, name, verdict)
    });
    explanation(format!("{}: {summary}", RequestText(job)), would_start_if, candidates.collect())
}

/// All such compute instances are in use, or on GPU instances that other users have.
fn taken(
    job: &QueuedJob,
    name: &ComputeName,
    cut: &[&CutInstance<'_>],
) -> (String, Option<String>) {
    let there = || cut.iter().filter(|instance| instance.gpu.available);
    let own =
        |instance: &&&CutInstance<'_>| instance.user.as_ref().is_none_or(|user| *user == job.user);
    let of_others = there().filter(|instance| !own(instance)).count();
    let mut summary = format!("no compute instance {name} is free for {}", job.user);
    if of_others > 0 {
        summary.push_str(&format!(
            "; {of_others} of {} GPU instances with such parts are in use by other users, since a \
             fault of one job may stop all",
            there().count(),
        ));
    }
    let placements = there().filter(own).flat_map(|instance| &instance.taken);
    let mut one: Vec<JobId> =
        placements.filter(|(_, part)| part.slices == name.slices).map(|(job, _)| *job).collect();
    one.sort_unstable();
    let all = there().filter(|instance| !own(instance)).min_by_key(|instance| instance.taken.len());
    let numbers = |jobs: &[JobId], last| {
        listed(&jobs.iter().map(ToString::to_string).collect::<Vec<_>>(), last)
    };
    let until = match (one.is_empty(), all) {
        (false, _) => Some(format!("job {} ends", numbers(&one, "or"))),
        (true, Some(instance)) => {
            let jobs: Vec<_> = instance.taken.iter().map(|(job, _)| *job).collect();
            let plural = if jobs.len() == 1 { ("job", "ends") } else { ("jobs", "end") };
            Some(format!("{} {} {}", plural.0, numbers(&jobs, "and"), plural.1))
        }
        (true, None) => Some(format!("a job ahead of it that waits for {name} starts")),
    };
    (summary, until)
}

/// No GPU instance is divided like this.
fn uncut(name: &ComputeName, gpu: Option<&GpuView>) -> (String, Option<String>) {
    let summary = format!(
        "no {} is partitioned into compute instances {name}, which only an operator's layout does",
        name.profile
    );
    let until = gpu.map(|gpu| {
        format!(
            "an operator partitions one, for example: tessera gpus layout apply {} {name}",
            gpu.id.as_str()
        )
    });
    (summary, until)
}

/// The existing ones are on unavailable GPUs or closed by operators.
fn unavailable<'c>(
    name: &ComputeName,
    holders: impl Iterator<Item = &'c GpuView>,
    cut: &[&CutInstance<'c>],
) -> (String, Option<String>) {
    let mut views: Vec<_> = match cut {
        [] => holders.collect(),
        cut => cut.iter().map(|instance| instance.gpu).collect(),
    };
    views.dedup_by_key(|gpu| gpu.id.clone());
    if views.is_empty() {
        return (
            "no GPU has been reported yet".to_owned(),
            Some("a node with a GPU joins".to_owned()),
        );
    }
    let closed = views.iter().find_map(|gpu| gpu.operator.closed.as_ref());
    let because = closed.map(|closed| format!(": {}", closed.words)).unwrap_or_default();
    let until = closed.map_or_else(
        || format!("{} becomes available", gpus(views.iter().copied(), "or")),
        |closed| closed.until.clone(),
    );
    let where_ = gpus(views.iter().copied(), "and");
    (format!("only {where_} can provide {name}, and none is available{because}"), Some(until))
}

/// Returns the memory of a GPU instance, and the part that is charged to a compute instance.
fn memory(instance: &CutInstance<'_>, name: &ComputeName) -> (Bytes, Bytes) {
    let Some(profile) = instance.gpu.cuttable(name) else { return (Bytes::ZERO, Bytes::ZERO) };
    (profile.memory, memory_share(profile.memory, profile.compute_slices, name.slices))
}

fn candidate(
    instance: &CutInstance<'_>,
    name: &ComputeName,
    verdict: &'static str,
) -> PlacementCandidate {
    let (_, share) = memory(instance, name);
    let row = row(instance.gpu, Some(instance.slot), share, verdict, None);
    PlacementCandidate { profile: name.to_string(), ..row }
}

fn explanation(
    summary: String,
    would_start_if: Option<String>,
    mut candidates: Vec<PlacementCandidate>,
) -> Explanation {
    let left_out = candidates.len().saturating_sub(CANDIDATES_MAX);
    candidates.truncate(CANDIDATES_MAX);
    Explanation {
        policy: POLICY.to_owned(),
        summary,
        would_start_if,
        candidates,
        candidates_left_out: saturating_u32(left_out),
    }
}
