//! What would start a waiting job, and when it is expected to start. The same policy decides for
//! slightly different clusters.

use crate::answers::{Alternative, ExpectedStart};
use crate::cluster_part::{ClusterPart, without_jobs};
use crate::duration::duration_text;
use crate::forecast::ClusterForecast;
use crate::memory_requests::memory_needed;
use crate::state::ClusterState;
use crate::state::queue::QueuePosition;
use std::borrow::Cow;
use std::collections::BTreeSet;
use tessera_model::mig::Profile;
use tessera_model::spec::{GpuRequest, Priority, QueueRank};
use tessera_model::{Bytes, GangMember, GangShape, JobId, Millis};
use tessera_placement::{
    ClusterView, Decision, GpuView, InstanceState, JobPlacement, QueuedJob, WaitReason,
    decide_round,
};

/// Maximum number of smaller requests that are tried.
const SMALLER_MAX: usize = 3;

/// Maximum number of running jobs whose single end is tried: each trial is a round of the policy.
const ENDS_MAX: usize = 12;

/// In a large cluster: how many ends are tried first, since fewer GPUs take part then. Chosen.
const TRIED_ENDS: [usize; 6] = [1, 4, 16, 64, 256, 1_024];

/// Maximum number of GPUs with shared slices that are tried: each trial is a round of the policy.
const SHARED_MAX: usize = 8;

/// Maximum number of answers of a kind that are returned.
const ANSWERS_MAX: usize = 3;

/// A waiting job with its queue position and the current cluster.
pub(crate) struct StartQuestion<'q> {
    cluster: &'q ClusterState,
    line: &'q QueuePosition,
    job: &'q QueuedJob,
    pub(crate) view: ClusterView,
    pub(crate) forecast: ClusterForecast<'q>,
    /// The running jobs by their expected end, the soonest first; jobs without one are last.
    ends: Vec<(Option<Millis>, JobId)>,
    pub(crate) part: ClusterPart,
}

/// When and where a waiting job starts, as far as that can be predicted.
#[derive(Debug)]
pub(crate) enum StartForecast {
    /// A placement is free for it.
    Now {
        /// The placement it would get.
        place: JobPlacement,
    },
    /// Running jobs have to end first.
    After {
        /// How many jobs have to end.
        ends: usize,
        /// The last of them.
        last: JobId,
        /// The expected time until then.
        after: Millis,
        /// Its placement then.
        place: JobPlacement,
    },
    /// Its start can't be predicted.
    Unknown {
        /// The reason, for people.
        text: String,
    },
}

/// Returns the text for a job that waits behind others, which take the capacity that becomes free.
fn behind_others_text(jobs_ahead: u64) -> String {
    match jobs_ahead {
        1 => "not before the job ahead of it has run: that job takes the capacity that running \
              jobs free"
            .to_owned(),
        jobs => format!(
            "not before some of the {jobs} jobs ahead of it have run: those take the capacity that \
             running jobs free"
        ),
    }
}

/// Returns the text for running jobs whose ends are not known.
fn unknown_ends_text(jobs: usize) -> String {
    match jobs {
        1 => {
            "not known: one running job has no time limit, and it has run longer than any earlier \
              run of its task"
                .to_owned()
        }
        jobs => format!(
            "not known: {jobs} running jobs have no time limits, and they have run longer than any \
             earlier runs of their tasks"
        ),
    }
}

/// Returns the placement if a decision starts the job.
pub(crate) fn start_placement(decision: Decision, job: JobId) -> Option<JobPlacement> {
    match decision {
        Decision::Start { job: of, place, .. } => (of == job).then_some(place),
        Decision::Reshape { reshape, .. } => {
            let placed = reshape.placements.iter().find(|seat| seat.job == job)?;
            Some(JobPlacement {
                gpu: reshape.gpu,
                slot: placed.slot,
                steps: Vec::new(),
                part: None,
                share: None,
            })
        }
        Decision::Preempt { preemption, .. } => (preemption.job == job).then_some(preemption.place),
        Decision::Wait { .. } => None,
    }
}

impl<'q> StartQuestion<'q> {
    pub(crate) fn new(
        cluster: &'q ClusterState,
        line: &'q QueuePosition,
        job: &'q QueuedJob,
        now: Millis,
    ) -> Self {
        let view = cluster.view(now);
        let ends = cluster.expected_ends(now);
        let part = ClusterPart::of(&view, &ends, job);
        let forecast = ClusterForecast::new(cluster, now);
        Self { cluster, line, job, view, forecast, ends, part }
    }

    /// Returns the cluster as it would be without some jobs. Of a large cluster it is the part in which the job
    /// might start then.
    fn without(&self, gone: &BTreeSet<JobId>) -> Cow<'_, ClusterView> {
        match self.part.select(&self.view, gone) {
            None if gone.is_empty() => Cow::Borrowed(&self.view),
            None => Cow::Owned(without_jobs(&self.view, gone)),
            Some(part) => Cow::Owned(without_jobs(&part, gone)),
        }
    }

    /// Tries whether a gang of fewer processes would start at once.
    fn try_smaller_gang(&self) -> Option<Alternative> {
        let member = self.job.gang?;
        let (nodes, gpus) = (member.shape.nodes(), member.shape.per_node());
        let shapes = [(nodes, gpus / 2), (nodes / 2, gpus), (1, gpus / 2), (1, 1)];
        let smaller =
            shapes.into_iter().filter_map(|(nodes, gpus)| GangShape::new(nodes, gpus).ok());
        let mut smaller = smaller.filter(|shape| shape.members() < member.shape.members());
        smaller.find_map(|shape| {
            let one = |rank: u32| {
                let id = JobId::from_number(member.gang.number() + u64::from(rank));
                let gang = Some(GangMember { shape, rank, ..member });
                QueuedJob { id, gang, ..self.job.clone() }
            };
            let gang: Vec<QueuedJob> = (0..shape.members()).map(one).collect();
            let ahead = self.cluster.queue.ahead(self.line);
            let place = self.place_behind(ahead, &gang, member.gang)?;
            let each = if shape.per_node() == 1 { "GPU" } else { "GPUs" };
            let change = match shape.nodes() {
                1 => format!("it requested {} {each} of one node", shape.per_node()),
                nodes => {
                    format!("it requested {nodes} nodes with {} {each} each", shape.per_node())
                }
            };
            let effect = format!(
                "would start now, its first process on {}",
                self.cluster.placement_text(&place)
            );
            Some(Alternative { change, effect })
        })
    }

    /// Tries whether a smaller request would start at once.
    fn try_smaller_request(&self) -> Option<Alternative> {
        let requested = match &self.job.gpu {
            GpuRequest::Memory(bytes) if self.job.share.is_none() => *bytes,
            GpuRequest::Whole => Bytes::new(u64::MAX),
            GpuRequest::Memory(_)
            | GpuRequest::Unknown
            | GpuRequest::Unpartitioned
            | GpuRequest::Profile(_)
            | GpuRequest::Compute(_) => {
                return None;
            }
        };
        let profiles = self.view.gpus.iter().filter_map(|gpu| gpu.mig.as_deref());
        let sizes: BTreeSet<Bytes> = profiles
            .flat_map(|mig| mig.plain().map(|profile: &Profile| profile.memory))
            .filter(|memory| *memory < requested && *memory >= self.known_need())
            .collect();
        let one = |memory: &Bytes| {
            let gpu = GpuRequest::Memory(*memory);
            let smaller = QueuedJob { gpu, ..self.job.clone() };
            let place = self.place_in_order(&smaller, &self.without(&BTreeSet::new()))?;
            let effect = format!("would start now on {}", self.cluster.placement_text(&place));
            Some(Alternative { change: format!("it requested {memory} of GPU memory"), effect })
        };
        // Only the largest sufficient size is returned.
        sizes.iter().rev().take(SMALLER_MAX).find_map(one)
    }

    /// Returns the memory below which a slice is known to be too small: the job ran out of such slices, or
    /// runs of its task needed more.
    fn known_need(&self) -> Bytes {
        let Some(waiting) = self.cluster.queue.queued(self.job.id) else { return Bytes::ZERO };
        let (predictions, inventory) = (&self.cluster.predictions, &self.cluster.inventory);
        let of_task = memory_needed(predictions, inventory, &waiting.facts);
        waiting.own.at_least.max(waiting.own.held).max(of_task).unwrap_or(Bytes::ZERO)
    }

    /// Tries whether the job would start at another position in the queue.
    fn try_first_priority(&self) -> Option<Alternative> {
        let first = QueueRank::from(Priority::HIGHEST);
        if first >= self.job.queue_rank {
            return None;
        }
        let ahead = || self.cluster.queue.ahead(self.line);
        let passed = ahead().find(|ahead| ahead.queue_rank > first)?.id;
        let own =
            self.cluster.queue.with_gang(&QueuedJob { queue_rank: first, ..self.job.clone() });
        let stay = ahead().filter(|ahead| ahead.queue_rank == first);
        let place = self.place_behind(stay, &own, self.job.id)?;
        let effect = format!("would start now on {}", self.cluster.placement_text(&place));
        let change = format!("it had priority 0, and was therefore ahead of job {passed}");
        Some(Alternative { change, effect })
    }

    /// Finds the running jobs of which a single end would start it.
    fn try_single_ends(&self) -> Vec<Alternative> {
        let one = |(ends, running): &(Option<Millis>, JobId)| {
            let changed = self.without(&BTreeSet::from([*running]));
            // This is cheap compared with the whole queue, and most ends don't help the job.
            self.place_alone(&changed)?;
            let place = self.place_in_order(self.job, &changed)?;
            let change = match ends {
                Some(left) => format!("job {running} ended (expected in {})", duration_text(*left)),
                None => format!("job {running} ended (its end is not known)"),
            };
            let effect = format!("would start on {}", self.cluster.placement_text(&place));
            Some(Alternative { change, effect })
        };
        self.ends.iter().take(ENDS_MAX).filter_map(one).take(ANSWERS_MAX).collect()
    }

    fn place_behind<'o>(
        &self,
        others: impl Iterator<Item = &'o QueuedJob>,
        own: &'o [QueuedJob],
        job: JobId,
    ) -> Option<JobPlacement> {
        let view = self.without(&BTreeSet::new());
        self.cluster.place_behind(others, own, job, &view, &self.forecast)
    }

    /// Returns where the job would start if it were alone in the queue.
    fn place_alone(&self, view: &ClusterView) -> Option<JobPlacement> {
        self.cluster.place_alone(self.job, view, &self.forecast)
    }

    /// Returns where the job, or a variant of it, would start after all jobs ahead of it.
    fn place_in_order(&self, job: &QueuedJob, view: &ClusterView) -> Option<JobPlacement> {
        let own = self.cluster.queue.with_gang(job);
        let ahead = self.cluster.queue.ahead(self.line);
        self.cluster.place_behind(ahead, &own, job.id, view, &self.forecast)
    }

    /// Returns the changes that would start the job now, with the jobs ahead of it served first.
    pub(crate) fn find_alternatives(&self) -> Vec<Alternative> {
        let alone =
            [self.try_smaller_request(), self.try_first_priority(), self.try_smaller_gang()];
        alone.into_iter().flatten().chain(self.try_single_ends()).collect()
    }

    /// Predicts when and where the job starts: after the jobs ahead of it, as running jobs end.
    pub(crate) fn find_start(&self) -> StartForecast {
        let known: Vec<(Millis, JobId)> =
            self.ends.iter().filter_map(|(ends, job)| Some(((*ends)?, *job))).collect();
        let place_after = |many: usize| {
            let gone: BTreeSet<JobId> = known.iter().take(many).map(|(_, job)| *job).collect();
            self.place_in_order(self.job, &self.without(&gone))
        };
        if let Some(place) = place_after(0) {
            return StartForecast::Now { place };
        }
        // If the job starts after some ends, it also starts after more ends. In a large cluster it is cheap to try
        // few of them.
        let tried = if self.part.is_all() { &[][..] } else { &TRIED_ENDS };
        let tried = tried.iter().copied().filter(|many| *many < known.len());
        let mut few = 0;
        let mut found = None;
        for many in tried.chain([known.len()]) {
            found = place_after(many).map(|place| (many, place));
            if found.is_some() {
                break;
            }
            few = many;
        }
        let Some((mut enough, mut place)) = found else {
            return StartForecast::Unknown { text: self.why_unknown(known.len()) };
        };
        while enough - few > self.part.precision(enough) {
            let middle = few.midpoint(enough);
            match place_after(middle) {
                Some(sooner) => (enough, place) = (middle, sooner),
                None => few = middle,
            }
        }
        let (after, last) = known[enough - 1];
        StartForecast::After { ends: enough, last, after, place }
    }

    /// Returns why the job doesn't start after the ends that are known.
    fn why_unknown(&self, known: usize) -> String {
        let unknown = unknown_ends_text(self.ends.len() - known);
        // If a part of the cluster has capacity for it, so has all of it.
        if let Some(emptied) = self.part.emptied(&self.view)
            && self.place_in_order(self.job, &emptied).is_some()
        {
            return unknown;
        }
        let empty = without_jobs(&self.view, &self.ends.iter().map(|(_, job)| *job).collect());
        if self.place_alone(&empty).is_none() {
            "not even when every job that runs now has ended".to_owned()
        } else if self.place_in_order(self.job, &empty).is_none() {
            behind_others_text(self.line.jobs_ahead)
        } else {
            unknown
        }
    }
}

impl ClusterState {
    /// Returns the sharing jobs whose slice the job could get if they were moved, and why they are
    /// not moved.
    pub(crate) fn blocking_sharers(
        &self,
        job: &QueuedJob,
        reason: WaitReason,
        view: &ClusterView,
        now: Millis,
    ) -> String {
        let lacks_capacity = matches!(reason, WaitReason::Resources | WaitReason::MigFragmentation);
        if !lacks_capacity || !self.planner.policy.moves() {
            return String::new();
        }
        let forecast = ClusterForecast::new(self, now);
        let shared = view.gpus.iter().filter(|gpu| gpu.available).filter_map(|gpu| {
            let sharers = gpu.instances.iter().flat_map(|instance| match &instance.state {
                InstanceState::Shared(tenancy) => tenancy.sharers.as_slice(),
                _ => &[],
            });
            let jobs: BTreeSet<JobId> = sharers.map(|(job, _)| *job).collect();
            (!jobs.is_empty()).then_some((gpu, jobs))
        });
        let helps = |(_, jobs): &(&GpuView, BTreeSet<JobId>)| {
            self.place_alone(job, &without_jobs(view, jobs), &forecast).is_some()
        };
        let Some((gpu, jobs)) = shared.take(SHARED_MAX).find(helps) else { return String::new() };
        let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        format!(
            "; GPU {} of node {} would have capacity for it without the jobs that share slices \
             there ({}). These jobs are never moved, and have to end: the benefit of a move is not \
             known, and a job's share can't change while it runs",
            gpu.index,
            gpu.node,
            jobs.join(", ")
        )
    }

    /// Returns when a job is expected to start, as text.
    pub(crate) fn expected_start(&self, start: &StartForecast) -> ExpectedStart {
        match start {
            StartForecast::Now { .. } => {
                let text = "a placement is free for it: it starts in one of the next \
                            rounds"
                    .to_owned();
                ExpectedStart { after: Some(Millis::ZERO), text }
            }
            StartForecast::Unknown { text } => ExpectedStart { after: None, text: text.clone() },
            StartForecast::After { ends, last, after, .. } => {
                let others = match ends {
                    0 | 1 => "ends".to_owned(),
                    2 => "and 1 other have ended".to_owned(),
                    many => format!("and {} others have ended", many - 1),
                };
                let text = format!("in about {}, when job {last} {others}", duration_text(*after));
                ExpectedStart { after: Some(*after), text }
            }
        }
    }

    /// Returns running jobs by their expected end, the soonest first; jobs without one are last.
    fn expected_ends(&self, now: Millis) -> Vec<(Option<Millis>, JobId)> {
        let ends =
            self.attempts.live.values().map(|live| (self.predictions.ends_in(live, now), live.job));
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(ends, job)| (ends.is_none(), *ends, *job));
        ends
    }

    /// Returns where a job would start if it were alone in the queue.
    fn place_alone(
        &self,
        job: &QueuedJob,
        view: &ClusterView,
        forecast: &ClusterForecast<'_>,
    ) -> Option<JobPlacement> {
        let own = self.queue.with_gang(job);
        self.place_behind(std::iter::empty(), &own, job.id, view, forecast)
    }

    /// Returns where one of several jobs would start behind others. Questions about one cluster
    /// share a forecast, since they read the same facts repeatedly.
    fn place_behind<'q>(
        &self,
        others: impl Iterator<Item = &'q QueuedJob>,
        own: &'q [QueuedJob],
        job: JobId,
        view: &ClusterView,
        forecast: &ClusterForecast<'_>,
    ) -> Option<JobPlacement> {
        forecast.begin_round();
        let mut queue = others.chain(own);
        let decided = decide_round(
            &*self.planner.policy,
            view,
            forecast.knowledge(),
            &mut queue,
            forecast.now,
            usize::MAX,
        );
        decided.into_iter().find_map(|decision| start_placement(decision, job))
    }

    fn placement_text(&self, place: &JobPlacement) -> String {
        self.inventory.placement_name(&place.gpu, place.slot)
    }
}
