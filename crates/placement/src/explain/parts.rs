//! Why a job got a compute instance, or waits for one.

use tessera_model::mig::compute::{ComputeName, ComputeSlot, memory_share};
use tessera_model::{Bytes, JobId};

use super::rows::{away, count, row};
use super::words::{Asked, GpuOfNode, Instance, gpus, listed};
use crate::decision::{CANDIDATES_MAX, Candidate, Explanation, WaitReason};
use crate::parts::{Bench, is_of};
use crate::view::{ClusterView, GpuView, QueuedJob};

/// Who decides about compute instances, whatever the policy.
pub(crate) const POLICY: &str = "compute instances";

/// Explains a start on `part` of the GPU instance `chosen`.
pub(crate) fn start(
    job: &QueuedJob,
    name: &ComputeName,
    benches: &[Bench<'_>],
    chosen: usize,
    part: ComputeSlot,
) -> Explanation {
    let bench = &benches[chosen];
    let (gpu, slot) = (bench.gpu, bench.slot);
    let (whole, share) = memory(bench, name);
    let beside: Vec<_> = bench.taken.iter().map(|(job, _)| job.to_string()).collect();
    let beside = match beside.len() {
        0 => "nobody is beside it yet".to_owned(),
        1 => format!("job {} of {} is beside it", beside[0], job.user),
        _ => format!("jobs {} of {} are beside it", listed(&beside, "and"), job.user),
    };
    let summary = format!(
        "{}: {part} of {} of {} is its own; of the {whole} of memory, which it holds together with \
         whoever is beside it and nothing divides, {share} are counted for it; {beside}",
        Asked(job),
        Instance { gpu, slot },
        GpuOfNode(gpu),
    );
    let others = benches.iter().enumerate().filter(|(index, other)| {
        *index != chosen && other.gpu.available && is_of(other, name) && other.has(name.slices)
    });
    let others = others.map(|(_, other)| candidate(other, name, "later_in_order"));
    let all = std::iter::once(candidate(bench, name, "chosen")).chain(others);
    explanation(summary, None, all.collect())
}

/// Explains a wait.
pub(crate) fn wait(
    job: &QueuedJob,
    name: &ComputeName,
    cluster: &ClusterView,
    benches: &[Bench<'_>],
    reason: WaitReason,
) -> Explanation {
    let cut: Vec<_> =
        benches.iter().filter(|bench| is_of(bench, name) && bench.has(name.slices)).collect();
    let holders = || cluster.gpus.iter().filter(|gpu| gpu.cuttable(name).is_some());
    let (summary, would_start_if) = match reason {
        WaitReason::Resources => taken(job, name, &cut),
        WaitReason::MigFragmentation => uncut(name, holders().find(|gpu| gpu.available)),
        WaitReason::BadConstraints => (
            format!("no GPU that was ever seen can be cut into {name}"),
            Some(format!("a node with a GPU that offers {} joins", name.profile)),
        ),
        _ => unavailable(name, holders(), &cut),
    };
    let candidates = cut.iter().map(|bench| {
        let other = bench.user.as_ref().is_some_and(|user| *user != job.user);
        let verdict = match (bench.gpu.available, other) {
            (false, _) => away(bench.gpu),
            (true, true) => "other_user",
            (true, false) => "busy",
        };
        candidate(bench, name, verdict)
    });
    explanation(format!("{}: {summary}", Asked(job)), would_start_if, candidates.collect())
}

/// Everything of the kind is in use, or beside jobs of others.
fn taken(job: &QueuedJob, name: &ComputeName, cut: &[&Bench<'_>]) -> (String, Option<String>) {
    let there = || cut.iter().filter(|bench| bench.gpu.available);
    let own = |bench: &&&Bench<'_>| bench.user.as_ref().is_none_or(|user| *user == job.user);
    let of_others = there().filter(|bench| !own(bench)).count();
    let mut summary = format!("no compute instance {name} is free for {}", job.user);
    if of_others > 0 {
        summary.push_str(&format!(
            "; {of_others} of {} GPU instances that have some belong to other users for now, since \
             a fault of one job there may hit all",
            there().count(),
        ));
    }
    let seats = there().filter(own).flat_map(|bench| &bench.taken);
    let mut one: Vec<JobId> =
        seats.filter(|(_, part)| part.slices == name.slices).map(|(job, _)| *job).collect();
    one.sort_unstable();
    let all = there().filter(|bench| !own(bench)).min_by_key(|bench| bench.taken.len());
    let numbers = |jobs: &[JobId], last| {
        listed(&jobs.iter().map(ToString::to_string).collect::<Vec<_>>(), last)
    };
    let until = match (one.is_empty(), all) {
        (false, _) => Some(format!("job {} ends", numbers(&one, "or"))),
        (true, Some(bench)) => {
            let jobs: Vec<_> = bench.taken.iter().map(|(job, _)| *job).collect();
            let plural = if jobs.len() == 1 { ("job", "ends") } else { ("jobs", "end") };
            Some(format!("{} {} {}", plural.0, numbers(&jobs, "and"), plural.1))
        }
        (true, None) => Some(format!("a job that was before it and waits for {name} starts")),
    };
    (summary, until)
}

/// No GPU instance is cut so.
fn uncut(name: &ComputeName, gpu: Option<&GpuView>) -> (String, Option<String>) {
    let summary = format!(
        "no {} is cut into compute instances {name}, and only an operator's layout does that",
        name.profile
    );
    let until = gpu.map(|gpu| {
        format!(
            "an operator cuts one, such as: tessera gpus layout apply {} {name}",
            gpu.id.as_str()
        )
    });
    (summary, until)
}

/// What there is is away or closed.
fn unavailable<'c>(
    name: &ComputeName,
    holders: impl Iterator<Item = &'c GpuView>,
    cut: &[&Bench<'c>],
) -> (String, Option<String>) {
    let mut views: Vec<_> = match cut {
        [] => holders.collect(),
        cut => cut.iter().map(|bench| bench.gpu).collect(),
    };
    views.dedup_by_key(|gpu| gpu.id.clone());
    if views.is_empty() {
        return ("no GPU was ever seen".to_owned(), Some("a node with a GPU joins".to_owned()));
    }
    let closed = views.iter().find_map(|gpu| gpu.operator.closed.as_ref());
    let said = closed.map(|closed| format!(": {}", closed.words)).unwrap_or_default();
    let until = closed.map_or_else(
        || format!("{} becomes available", gpus(views.iter().copied(), "or")),
        |closed| closed.until.clone(),
    );
    let where_ = gpus(views.iter().copied(), "and");
    (format!("only {where_} could give it {name}, and none of these is open{said}"), Some(until))
}

/// Returns the memory of a GPU instance, and what of it is counted for a compute instance.
fn memory(bench: &Bench<'_>, name: &ComputeName) -> (Bytes, Bytes) {
    let Some(profile) = bench.gpu.cuttable(name) else { return (Bytes::ZERO, Bytes::ZERO) };
    (profile.memory, memory_share(profile.memory, profile.compute_slices, name.slices))
}

fn candidate(bench: &Bench<'_>, name: &ComputeName, verdict: &'static str) -> Candidate {
    let (_, share) = memory(bench, name);
    let row = row(bench.gpu, Some(bench.slot), share, verdict, None);
    Candidate { profile: name.to_string(), ..row }
}

fn explanation(
    summary: String,
    would_start_if: Option<String>,
    mut candidates: Vec<Candidate>,
) -> Explanation {
    let left_out = candidates.len().saturating_sub(CANDIDATES_MAX);
    candidates.truncate(CANDIDATES_MAX);
    Explanation {
        policy: POLICY.to_owned(),
        summary,
        would_start_if,
        candidates,
        candidates_left_out: count(left_out),
    }
}
