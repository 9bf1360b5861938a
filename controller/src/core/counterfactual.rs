//! What would start a job that waits, and when it is expected to start: the same policy, asked
//! about clusters that are a little different.

use std::collections::BTreeSet;

use tessera_model::mig::Profile;
use tessera_model::spec::{GpuAsk, Priority};
use tessera_model::{Bytes, GangShape, JobId, Member, Millis};
use tessera_placement::{
    ClusterView, Decision, GpuView, InstanceState, Place, QueuedJob, WaitReason, ask,
};

use super::Cluster;
use super::foresight::Foresight;
use super::inquiry::Line;
use super::moving::spoken;

/// Most smaller asks that are tried.
const SMALLER_MAX: usize = 3;
/// Most running jobs whose end alone is tried: each costs a round of the policy.
const ENDS_MAX: usize = 12;
/// Most GPUs with shared slices that are tried: each costs a round of the policy.
const SHARED_MAX: usize = 8;
/// Most answers of a kind that are told.
const TOLD_MAX: usize = 3;
/// Most jobs before it in the queue that are placed first when its start is foretold.
pub(super) const AHEAD_MAX: usize = 256;

/// Something that would start a job now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// What would have to be different, after "if".
    pub change: String,
    /// What would follow, after "it".
    pub effect: String,
}

/// When a job is expected to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedStart {
    /// From now on.
    pub after: Option<Millis>,
    /// What that rests on.
    pub words: String,
}

/// A job that waits in its line, and the cluster as it is.
struct Question<'q> {
    cluster: &'q Cluster,
    line: &'q Line,
    job: &'q QueuedJob,
    view: ClusterView,
    now: Millis,
}

impl Question<'_> {
    /// Whether a gang of fewer processes would start at once.
    fn fewer(&self) -> Option<Alternative> {
        let member = self.job.gang?;
        let (nodes, gpus) = (member.shape.nodes(), member.shape.per_node());
        let shapes = [(nodes, gpus / 2), (nodes / 2, gpus), (1, gpus / 2), (1, 1)];
        let smaller =
            shapes.into_iter().filter_map(|(nodes, gpus)| GangShape::new(nodes, gpus).ok());
        let mut smaller = smaller.filter(|shape| shape.members() < member.shape.members());
        smaller.find_map(|shape| {
            let one = |rank: u32| {
                let id = JobId::from_number(member.gang.number() + u64::from(rank));
                let gang = Some(Member { shape, rank, ..member });
                QueuedJob { id, gang, ..self.job.clone() }
            };
            let gang: Vec<QueuedJob> = (0..shape.members()).map(one).collect();
            let ahead = self.cluster.ahead(self.line);
            let place = self.starts_behind(ahead, &gang, member.gang)?;
            let each = if shape.per_node() == 1 { "GPU" } else { "GPUs" };
            let change = match shape.nodes() {
                1 => format!("it asked for {} {each} of one node", shape.per_node()),
                nodes => {
                    format!("it asked for {nodes} nodes with {} {each} each", shape.per_node())
                }
            };
            let effect =
                format!("would start now, its first process on {}", self.cluster.named(&place));
            Some(Alternative { change, effect })
        })
    }

    /// Whether a smaller ask would start at once.
    fn smaller(&self) -> Option<Alternative> {
        let asked = match &self.job.gpu {
            GpuAsk::Memory(bytes) if self.job.share.is_none() => *bytes,
            GpuAsk::Whole => Bytes::new(u64::MAX),
            GpuAsk::Memory(_) | GpuAsk::Unknown | GpuAsk::Profile(_) | GpuAsk::Compute(_) => {
                return None;
            }
        };
        let profiles = self.view.gpus.iter().filter_map(|gpu| gpu.mig.as_deref());
        let sizes: BTreeSet<Bytes> = profiles
            .flat_map(|mig| mig.plain().map(|profile: &Profile| profile.memory))
            .filter(|memory| *memory < asked)
            .collect();
        let one = |memory: &Bytes| {
            let gpu = GpuAsk::Memory(*memory);
            let smaller = QueuedJob { gpu, ..self.job.clone() };
            let place = self.cluster.starts_in_turn(self.line, &smaller, &self.view, self.now)?;
            let effect = format!("would start now on {}", self.cluster.named(&place));
            Some(Alternative { change: format!("it asked for {memory} of GPU memory"), effect })
        };
        // The largest that would do is the one that is told.
        sizes.iter().rev().take(SMALLER_MAX).find_map(one)
    }

    /// Whether it would start in another place of the queue.
    fn sooner(&self) -> Option<Alternative> {
        let first = Priority::try_from(0).ok().filter(|first| *first < self.job.priority)?;
        let ahead = || self.cluster.ahead(self.line);
        let passed = ahead().find(|ahead| ahead.priority > first)?.id;
        let own = self.cluster.with_gang(&QueuedJob { priority: first, ..self.job.clone() });
        let stay = ahead().filter(|ahead| ahead.priority == first);
        let place = self.starts_behind(stay, &own, self.job.id)?;
        let effect = format!("would start now on {}", self.cluster.named(&place));
        let change = format!("it had priority 0 and so stood before job {passed}");
        Some(Alternative { change, effect })
    }

    /// Which running jobs' end alone would start it.
    fn after_one_end(&self) -> Vec<Alternative> {
        let one = |(ends, running): &(Option<Millis>, JobId)| {
            let changed = without(&self.view, &BTreeSet::from([*running]));
            // Cheap beside the whole line, and most ends help nobody.
            self.cluster.starts(self.job, &changed, self.now)?;
            let place = self.cluster.starts_in_turn(self.line, self.job, &changed, self.now)?;
            let change = match ends {
                Some(left) => format!("job {running} ended (expected in {})", spoken(*left)),
                None => format!("job {running} ended (nothing says when)"),
            };
            let effect = format!("would start on {}", self.cluster.named(&place));
            Some(Alternative { change, effect })
        };
        let ends = self.cluster.ends(self.now);
        ends.iter().take(ENDS_MAX).filter_map(one).take(TOLD_MAX).collect()
    }

    fn starts_behind<'q>(
        &self,
        others: impl Iterator<Item = &'q QueuedJob>,
        own: &'q [QueuedJob],
        job: JobId,
    ) -> Option<Place> {
        self.cluster.starts_behind(others, own, job, &self.view, self.now)
    }
}

impl Cluster {
    /// Tells what would start a waiting job now, those before it in the queue served first.
    pub(super) fn alternatives(
        &self,
        line: &Line,
        job: &QueuedJob,
        now: Millis,
    ) -> Vec<Alternative> {
        let asked = Question { cluster: self, line, job, view: self.view(now), now };
        let alone = [asked.smaller(), asked.sooner(), asked.fewer()];
        alone.into_iter().flatten().chain(asked.after_one_end()).collect()
    }

    /// Says which jobs share a slice where a job could be if they were moved, if there are such, and why
    /// they are not.
    pub(super) fn sharers_in_the_way(
        &self,
        job: &QueuedJob,
        reason: WaitReason,
        view: &ClusterView,
        now: Millis,
    ) -> String {
        let room = matches!(reason, WaitReason::Resources | WaitReason::MigFragmentation);
        if !room || !self.policy.moves() {
            return String::new();
        }
        let shared = view.gpus.iter().filter(|gpu| gpu.available).filter_map(|gpu| {
            let sharers = gpu.instances.iter().flat_map(|instance| match &instance.state {
                InstanceState::Shared(tenancy) => tenancy.sharers.as_slice(),
                _ => &[],
            });
            let jobs: BTreeSet<JobId> = sharers.map(|(job, _)| *job).collect();
            (!jobs.is_empty()).then_some((gpu, jobs))
        });
        let helps = |(_, jobs): &(&GpuView, BTreeSet<JobId>)| {
            self.starts(job, &without(view, jobs), now).is_some()
        };
        let Some((gpu, jobs)) = shared.take(SHARED_MAX).find(helps) else { return String::new() };
        let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        format!(
            "; there would be room on GPU {} of node {} but for jobs that share slices there ({}), \
             and those are never moved: what a move would gain them is not known, and a sharer's \
             part can't change while it runs, so that they have to end",
            gpu.index,
            gpu.node,
            jobs.join(", ")
        )
    }

    /// Foretells when a waiting job starts: after those before it, as running jobs end.
    pub(super) fn expected_start(
        &self,
        line: &Line,
        job: &QueuedJob,
        now: Millis,
    ) -> ExpectedStart {
        let view = self.view(now);
        let ends = self.ends(now);
        let known: Vec<_> = ends.iter().filter_map(|(ends, job)| Some(((*ends)?, *job))).collect();
        let starts_after = |many: usize| {
            let gone: BTreeSet<JobId> = known.iter().take(many).map(|(_, job)| *job).collect();
            self.starts_in_turn(line, job, &without(&view, &gone), now).is_some()
        };
        if starts_after(0) {
            let words = "a place is free for it: it starts in one of the next rounds".to_owned();
            return ExpectedStart { after: Some(Millis::ZERO), words };
        }
        if !starts_after(known.len()) {
            let empty = without(&view, &ends.iter().map(|(_, job)| *job).collect());
            let words = if self.starts(job, &empty, now).is_none() {
                "not even when every job that runs now has ended".to_owned()
            } else if self.starts_in_turn(line, job, &empty, now).is_none() {
                not_before(line.jobs_ahead)
            } else {
                never_known(ends.len() - known.len())
            };
            return ExpectedStart { after: None, words };
        }
        // The more jobs have ended, the sooner it starts.
        let (mut few, mut enough) = (0, known.len());
        while enough - few > 1 {
            let middle = few.midpoint(enough);
            if starts_after(middle) { enough = middle } else { few = middle }
        }
        let (after, last) = known[enough - 1];
        let words = match enough {
            1 => format!("in about {}, when job {last} ends", spoken(after)),
            2 => format!("in about {}, when job {last} and 1 other have ended", spoken(after)),
            many => format!(
                "in about {}, when job {last} and {} others have ended",
                spoken(after),
                many - 1
            ),
        };
        ExpectedStart { after: Some(after), words }
    }

    /// Running jobs by their expected end, the soonest first; those of which nothing says when last.
    fn ends(&self, now: Millis) -> Vec<(Option<Millis>, JobId)> {
        let ends = self.live.values().map(|live| (self.ends_in(live, now), live.job));
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(ends, job)| (ends.is_none(), *ends, *job));
        ends
    }

    /// Returns where a job would start if it were alone in the queue.
    fn starts(&self, job: &QueuedJob, view: &ClusterView, now: Millis) -> Option<Place> {
        let own = self.with_gang(job);
        self.starts_behind(std::iter::empty(), &own, job.id, view, now)
    }

    /// Returns where a job would start after all those that stand before it.
    fn starts_in_turn(
        &self,
        line: &Line,
        job: &QueuedJob,
        view: &ClusterView,
        now: Millis,
    ) -> Option<Place> {
        let own = self.with_gang(job);
        self.starts_behind(self.ahead(line), &own, job.id, view, now)
    }

    /// Returns where one of some jobs would start behind others.
    fn starts_behind<'q>(
        &self,
        others: impl Iterator<Item = &'q QueuedJob>,
        own: &'q [QueuedJob],
        job: JobId,
        view: &ClusterView,
        now: Millis,
    ) -> Option<Place> {
        let forecast = Foresight::new(self, now);
        let mut queue = others.chain(own);
        let decided = ask(&*self.policy, view, &forecast, &mut queue, now, usize::MAX);
        decided.into_iter().find_map(|decision| started(decision, job))
    }

    fn named(&self, place: &Place) -> String {
        self.place_words(&place.gpu, place.slot)
    }
}

/// Says that those before a job take what comes free.
fn not_before(jobs_ahead: u64) -> String {
    match jobs_ahead {
        1 => {
            "not before the job before it has run: that one takes what the jobs that run now leave"
                .to_owned()
        }
        jobs => format!(
            "not before some of the {jobs} jobs before it have run: those take what the jobs that run \
             now leave"
        ),
    }
}

/// Says that of so many running jobs nothing says when they end.
fn never_known(jobs: usize) -> String {
    match jobs {
        1 => "nothing says when: one running job has no time limit, and no earlier run as long as it \
              has lasted"
            .to_owned(),
        jobs => format!(
            "nothing says when: {jobs} running jobs have no time limits, and no earlier runs as long \
             as they have lasted"
        ),
    }
}

/// Returns where a decision starts the job, if it does.
fn started(decision: Decision, job: JobId) -> Option<Place> {
    match decision {
        Decision::Start { job: of, place, .. } => (of == job).then_some(place),
        Decision::Reshape { reshape, .. } => {
            let seat = reshape.seats.iter().find(|seat| seat.job == job)?;
            Some(Place { gpu: reshape.gpu, slot: seat.slot, steps: Vec::new(), part: None })
        }
        Decision::Wait { .. } => None,
    }
}

/// Returns the cluster as it would be without some jobs.
fn without(view: &ClusterView, gone: &BTreeSet<JobId>) -> ClusterView {
    let mut view = view.clone();
    for instance in view.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        let empty = match &mut instance.state {
            InstanceState::Taken { job } => gone.contains(job),
            InstanceState::Shared(tenancy) => {
                tenancy.sharers.retain(|(job, _)| !gone.contains(job));
                tenancy.sharers.is_empty()
            }
            _ => false,
        };
        if empty {
            instance.state = InstanceState::Idle;
        }
    }
    view
}
