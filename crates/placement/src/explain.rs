//! Explanations of decisions, with the numbers that decided.

pub(crate) mod candidates;
pub(crate) mod phrases;

use std::fmt::Write;

use tessera_model::JobId;
use tessera_model::mig::PlanStep;

use self::phrases::{GpuOfNode, InstanceText, PlaceText, RequestText, gpus, listed, tight_fit};
use crate::decision::{Explanation, PlacementCandidate, WaitReason};
use crate::feasibility;
use crate::numbers::saturating_u32;
use crate::offer::{FutureFit, Offer, Rule, Way};
use crate::request::{NumberedRequest, SliceRequest};
use crate::sharing;
use crate::view::{GpuView, QueuedJob};
use crate::working_state::{WorkingGpu, WorkingState};

/// Explains a start. `ranked` yields the GPUs that had an offer, best first: the first one is
/// taken.
pub(crate) fn start<'o>(
    policy: &str,
    state: &WorkingState<'_>,
    job: &QueuedJob,
    size: &NumberedRequest,
    ranked: impl ExactSizeIterator<Item = (usize, Option<&'o Offer>)>,
) -> Explanation {
    let gpus = ranked.len();
    let mut ranked = ranked.filter_map(|(gpu, offer)| Some((&state.gpus[gpu], offer?)));
    let (gpu, offer) = ranked.next().expect("a start is explained by the offer that it took");
    let others = gpus - 1 + offer.others.len();
    let mut colocation = phrases::describe_colocation(gpu, size, offer);
    if offer.rank.way != Way::Join
        && let Some(declined) = sharing::declined(state.gpus.iter(), size)
    {
        colocation.push_str("; ");
        colocation.push_str(&declined);
    }
    let candidates = candidates::of_start(gpu, offer, ranked);
    Explanation {
        policy: policy.to_owned(),
        summary: start_summary(job, size, gpu.view, offer, others) + &colocation,
        would_start_if: None,
        candidates_left_out: saturating_u32(1 + others - candidates.len()),
        candidates,
    }
}

fn start_summary(
    job: &QueuedJob,
    size: &NumberedRequest,
    gpu: &GpuView,
    offer: &Offer,
    others: usize,
) -> String {
    let mut text = format!(
        "{}: {} ({})",
        RequestText(job),
        PlaceText { gpu, slot: offer.slot },
        offer.rank.memory
    );
    match offer.rank.way {
        Way::Join => text.push_str(" is shared and has free capacity"),
        Way::Idle if offer.rank.memory > tight_fit(gpu, size).1 => {
            text.push_str(" is the smallest idle slice that fits");
        }
        Way::Idle => text.push_str(" is idle"),
        Way::Create => text.push_str(" is created in free space"),
        Way::Rearrange => {
            let destroyed = offer.steps.iter().filter_map(|step| match step {
                PlanStep::Destroy(slot) => Some(InstanceText { gpu, slot: *slot }.to_string()),
                PlanStep::Create(_) | PlanStep::Cut(..) => None,
            });
            let destroyed: Vec<_> = destroyed.collect();
            text.push_str(" is created in place of idle ");
            text.push_str(&listed(&destroyed, "and"));
        }
    }
    let futures = offer.futures.map_or(Ok(()), |futures| {
        write!(text, "; it keeps {} of {} full layouts reachable", futures.after, futures.before)
    });
    let rest = match others {
        // Of a GPU's shared slices, only the best one is considered.
        0 if offer.rank.way == Way::Join => write!(text, "; no other GPU has free capacity"),
        0 => write!(text, "; no other place is free"),
        1 => write!(text, "; 1 other place was considered"),
        _ => write!(text, "; {others} other places were considered"),
    };
    futures.and(rest).expect("writing to a string can't fail");
    text
}

/// Explains a wait behind a job that keeps its position in the queue.
pub(crate) fn behind(policy: &str, job: &QueuedJob, head: JobId) -> Explanation {
    let request = RequestText(job);
    Explanation {
        policy: policy.to_owned(),
        summary: format!("{request}: job {head} is ahead in the queue and still waits"),
        would_start_if: Some(format!("job {head} starts or leaves the queue")),
        ..Explanation::default()
    }
}

/// The end of the explanation of a wait behind a job with the same request.
const BEHIND_SAME: &str =
    "a job that requests the same is ahead in the order of service, and still waits";

/// Explains a wait behind a job with the same request. It does not name that job: another one is next after each start, and
/// the explanations of thousands of equal jobs would change with it in each round's record.
pub(crate) fn behind_same(policy: &str, job: &QueuedJob) -> Explanation {
    Explanation {
        policy: policy.to_owned(),
        summary: format!("{}: {BEHIND_SAME}", RequestText(job)),
        would_start_if: Some("that job starts or leaves the queue".to_owned()),
        ..Explanation::default()
    }
}

/// Names the `first` job with the same request in an explanation that states that there is one.
pub fn name_job_ahead(why: &mut Explanation, first: JobId) {
    if let Some(request) = why.summary.strip_suffix(BEHIND_SAME) {
        why.summary = format!(
            "{request}job {first} requests the same, is ahead in the order of service, and still waits"
        );
        why.would_start_if = Some(format!("job {first} starts or leaves the queue"));
    }
}

/// Why a request can't be met even when running jobs end. It is computed once a round for each
/// request, since thousands of jobs may wait for the same hardware.
#[derive(Debug)]
pub(crate) struct Hopeless {
    summary: String,
    would_start_if: String,
    candidates: Vec<PlacementCandidate>,
    candidates_left_out: u32,
}

impl Hopeless {
    /// Finds the reason.
    pub(crate) fn new(
        policy: &str,
        state: &WorkingState<'_>,
        size: &NumberedRequest,
        reason: WaitReason,
    ) -> Self {
        let holders: Vec<_> = state.gpus.iter().filter(|gpu| size.suits(gpu.view)).collect();
        let (summary, would_start_if) = if holders.is_empty() {
            never(state, size)
        } else if reason == WaitReason::MigFragmentation {
            let there = || holders.iter().map(|gpu| gpu.view).filter(|view| view.available);
            let pinned: Option<Vec<_>> = there().map(|v| v.operator.pinned.as_ref()).collect();
            let (why, changed) = match pinned {
                Some(pinned) => {
                    (listed(&once_each(pinned.into_iter()), "and"), "unpinned or changed")
                }
                None => (format!("policy {policy} changes no layout"), "changed"),
            };
            (
                format!("no existing instance fits, and {why}"),
                format!("the layout of {} is {changed}", gpus(there(), "or")),
            )
        } else {
            out_of_reach(&holders)
        };
        let rows = holders.iter().map(|gpu| {
            let verdict = if gpu.view.available {
                candidates::in_the_way(gpu)
            } else {
                candidates::away(gpu.view)
            };
            (*gpu, verdict)
        });
        let (candidates, candidates_left_out) = candidates::of_wait(rows, size);
        Self { summary, would_start_if, candidates, candidates_left_out }
    }

    /// Explains the wait of the first job with this request.
    pub(crate) fn explain_first(&self, policy: &str, job: &QueuedJob) -> Explanation {
        Explanation {
            candidates: self.candidates.clone(),
            candidates_left_out: self.candidates_left_out,
            ..self.explain_again(policy, job)
        }
    }

    /// Explains the wait of a later job with this request, without the candidates, which the first
    /// job's explanation lists.
    pub(crate) fn explain_again(&self, policy: &str, job: &QueuedJob) -> Explanation {
        Explanation {
            policy: policy.to_owned(),
            summary: format!("{}: {}", RequestText(job), self.summary),
            would_start_if: Some(self.would_start_if.clone()),
            candidates: Vec::new(),
            candidates_left_out: saturating_u32(self.candidates.len())
                .saturating_add(self.candidates_left_out),
        }
    }
}

fn never(state: &WorkingState<'_>, size: &NumberedRequest) -> (String, String) {
    let allowed = || state.gpus.iter().map(|gpu| gpu.view).filter(|view| size.allows(view));
    let largest = allowed().filter_map(feasibility::largest_of).max();
    match (&size.request, largest) {
        (_, None) if let Some(place) = size.place.as_ref().filter(|_| !state.gpus.is_empty()) => (
            format!("no known GPU is among those that it may use: {}", place.text()),
            "such a node joins, or the job is submitted again without this restriction".to_owned(),
        ),
        (_, None) => {
            ("no GPU has been reported yet".to_owned(), "a node with a GPU joins".to_owned())
        }
        (SliceRequest::Named(name), Some(_)) => (
            "no known GPU offers that profile".to_owned(),
            format!("a node with a GPU that offers {name} joins"),
        ),
        (SliceRequest::Part(name), Some(_)) => (
            format!("no known GPU can be partitioned into {name}"),
            format!("a node with a GPU that offers {} joins", name.profile),
        ),
        (SliceRequest::Shared(sharer), Some(_))
            if sharer.share.is_kernel() && !allowed().any(|view| view.kernel) =>
        {
            (
                "no known node supports kernel-level sharing: no agent has the shim".to_owned(),
                "a node whose agent has kernel-shim/libcuda.so.1 next to it joins".to_owned(),
            )
        }
        (SliceRequest::Shared(sharer), Some(_))
            if !sharer.share.is_kernel() && !allowed().any(|view| view.mps) =>
        {
            (
                "no known node supports MPS: none has nvidia-cuda-mps-control".to_owned(),
                "a node with NVIDIA's MPS control program joins".to_owned(),
            )
        }
        (
            SliceRequest::AtLeast(_)
            | SliceRequest::Whole
            | SliceRequest::Unpartitioned
            | SliceRequest::Shared(_),
            Some(largest),
        ) => (
            format!("the largest slice that one job can get has {largest}"),
            "a node with a larger GPU joins".to_owned(),
        ),
    }
}

/// Explains a wait where suitable GPUs are unavailable, closed by operators, or blocked by
/// instances that Tessera must not touch.
fn out_of_reach(holders: &[&WorkingGpu<'_>]) -> (String, String) {
    let views = || holders.iter().map(|gpu| gpu.view);
    let closed: Vec<_> = views().filter_map(|view| view.operator.closed.as_ref()).collect();
    let there = gpus(views().filter(|view| view.available), "and");
    let lost = |view: &&GpuView| !view.available && view.operator.closed.is_none();
    let away = gpus(views().filter(lost), "and");
    let untouchable = "has an instance that Tessera must not touch";
    let (mut what, mut until) = (Vec::new(), Vec::new());
    if !closed.is_empty() {
        what.push(listed(&once_each(closed.iter().map(|closed| &closed.words)), "and"));
        until.push(listed(&once_each(closed.iter().map(|closed| &closed.until)), "or"));
    }
    if !away.is_empty() {
        let only = what.is_empty() && there.is_empty();
        what.push(match only {
            true => format!("the only suitable hardware, {away}, is unavailable"),
            false => format!("{away} is unavailable"),
        });
        until.push(format!("{away} becomes available"));
    }
    if !there.is_empty() {
        what.push(format!("{there} {untouchable}"));
        until.push(format!("{there} is cleared"));
    }
    (what.join(", and "), until.join(", or "))
}

fn once_each<'t>(texts: impl Iterator<Item = &'t String>) -> Vec<String> {
    let mut once = Vec::new();
    for text in texts {
        if !once.contains(text) {
            once.push(text.clone());
        }
    }
    once
}

/// Finds the reason why a request can't be met now, and explains it.
pub(crate) fn wait<R: Rule>(
    rule: &mut R,
    state: &WorkingState<'_>,
    job: &QueuedJob,
    size: &NumberedRequest,
) -> (WaitReason, Explanation) {
    let holders: Vec<_> = state.gpus.iter().filter(|gpu| size.suits(gpu.view)).collect();
    let possible: Vec<_> = holders
        .iter()
        .copied()
        .filter(|gpu| gpu.view.available && rule.future_fit(gpu, size) == FutureFit::Possible)
        .collect();
    let (reason, mut summary, would_start_if) = obstacle(rule, &possible, size);
    if let Some(declined) = sharing::declined(possible.iter().copied(), size) {
        summary.push_str("; ");
        summary.push_str(&declined);
    }
    let rows: Vec<_> =
        holders.iter().map(|gpu| (*gpu, candidates::verdict(rule, gpu, size))).collect();
    let (candidates, candidates_left_out) = candidates::of_wait(rows.into_iter(), size);
    let why = Explanation {
        policy: R::NAME.to_owned(),
        summary: format!("{}: {summary}", RequestText(job)),
        would_start_if,
        candidates,
        candidates_left_out,
    };
    (reason, why)
}

/// Returns what keeps the request from the GPUs that could hold it: the obstacle that ends first.
fn obstacle<R: Rule>(
    rule: &mut R,
    possible: &[&WorkingGpu<'_>],
    size: &NumberedRequest,
) -> (WaitReason, String, Option<String>) {
    if let Some(gpu) = possible.iter().find(|gpu| candidates::offers_once_changed(rule, gpu, size))
    {
        let name = GpuOfNode(gpu.view);
        return (
            WaitReason::AwaitingRepartition,
            format!("{name} is suitable, but its layout is being changed"),
            Some(format!("the layout plan of {name} ends")),
        );
    }
    let who = list_blocking_jobs(rule, possible, size);
    let shaped_wrong =
        possible.iter().find_map(|gpu| Some((gpu.view, rule.fragmented(gpu, size)?)));
    if let Some((view, (free, needed))) = shaped_wrong {
        let (profile, _) = tight_fit(view, size);
        let name = GpuOfNode(view);
        return (
            WaitReason::MigFragmentation,
            format!(
                "{free} memory slices of {name} are free and {needed} are needed, but running jobs leave no valid position for {profile}"
            ),
            who,
        );
    }
    let summary = match possible {
        [only] => format!("the only suitable GPU, {}, is in use", GpuOfNode(only.view)),
        [_, _] => "both suitable GPUs are in use".to_owned(),
        more => format!("all {} suitable GPUs are in use", more.len()),
    };
    (WaitReason::Resources, summary, who)
}

/// Names the running jobs that must end: alternatives of one job each, or the smallest set.
fn list_blocking_jobs<R: Rule>(
    rule: &R,
    gpus: &[&WorkingGpu<'_>],
    size: &NumberedRequest,
) -> Option<String> {
    let mut fewest: Vec<(Vec<JobId>, &GpuView)> = Vec::new();
    for gpu in gpus {
        let mut ways = rule.blockers(gpu, size);
        if R::JOINS {
            ways.extend(sharing::blockers(gpu, size));
        }
        for jobs in ways.into_iter().filter(|jobs| !jobs.is_empty()) {
            let least = fewest.first().map_or(usize::MAX, |(jobs, _)| jobs.len());
            if jobs.len() < least {
                fewest.clear();
            }
            if jobs.len() <= least {
                fewest.push((jobs, gpu.view));
            }
        }
    }
    let (jobs, gpu) = fewest.first()?;
    if jobs.len() > 1 {
        return Some(format!("jobs {} on {} end", numbers(jobs, "and"), GpuOfNode(gpu)));
    }
    let mut singles: Vec<_> = fewest.iter().filter_map(|(jobs, _)| jobs.first().copied()).collect();
    singles.sort_unstable();
    singles.dedup();
    Some(format!("job {} ends", numbers(&singles, "or")))
}

fn numbers(jobs: &[JobId], last: &str) -> String {
    listed(&jobs.iter().map(ToString::to_string).collect::<Vec<_>>(), last)
}
