//! Live attempts: those that hold a placement, from the reservation to the end.

use crate::LaunchSpec;
use crate::commands::CommandResult;
use crate::predictions::{AttemptPrediction, TaskFacts};
use crate::rows::transitions::{ResharedJob, record_without_exit};
use crate::rows::updates::UpdatedJob;
use crate::state::inventory::GpuState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tessera_frames::cluster::ExitRecord;
use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::Slot;
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::share::{MpsShare, SharingMode, SmPercent};
use tessera_model::spec::{GpuRequest, JobUpdate};
use tessera_model::{
    AttemptId, Bytes, DecisionId, GangMember, GpuId, JobId, Millis, NodeId, SliceId,
};
use tessera_placement::SharingRequest;
use tessera_predict::memory::MemoryEstimate;

/// The live attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptTable {
    /// An ordered map, so that equal inputs lead to equal rounds.
    pub(crate) live: BTreeMap<AttemptId, LiveAttempt>,
    pub(crate) by_job: HashMap<JobId, AttemptId>,
    /// The live attempts of each node, and of each GPU. A large cluster has tens of thousands of attempts.
    by_node: HashMap<NodeId, BTreeSet<AttemptId>>,
    by_gpu: HashMap<GpuId, BTreeSet<AttemptId>>,
    /// Gangs with a member that ended without success: the other members are being stopped.
    pub(crate) broken_gangs: BTreeSet<JobId>,
}

/// What an attempt's node knows about its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeLimitNotice {
    /// The limit of the launch order holds.
    AsLaunched,
    /// The limit changed, and the node has not been notified in this session.
    Due,
    /// The limit changed, and the node was notified in this session.
    Sent,
}

#[derive(Clone, Debug)]
pub(crate) struct LiveAttempt {
    pub(crate) job: JobId,
    pub(crate) state: JobState,
    pub(crate) number: u32,
    pub(crate) node: NodeId,
    pub(crate) generation: u64,
    pub(crate) gpu: GpuId,
    pub(crate) slot: Option<Slot>,
    /// Its share of the slice; `None` if it has the slice to itself.
    pub(crate) share: Option<SharingRequest>,
    pub(crate) slice: Option<SliceId>,
    pub(crate) decision: DecisionId,
    /// Its launch specification; absent only between its reservation and that round's commit.
    pub(crate) launch_spec: Option<LaunchSpec>,
    /// The trace that its launch continues.
    pub(crate) traceparent: Option<String>,
    /// When a command about it was last sent to its node.
    pub(crate) sent: Option<Millis>,
    /// Whether its node has reported it.
    pub(crate) acknowledged: bool,
    /// Whether its node still has to be notified of its time limit.
    pub(crate) limit: TimeLimitNotice,
    /// The job's user.
    pub(crate) user: Arc<str>,
    /// Its weight in its user's usage, in compute slices.
    pub(crate) weight: f64,
    /// Its job's request, from any source.
    pub(crate) request: GpuRequest,
    pub(crate) facts: Arc<TaskFacts>,
    /// When its job was accepted.
    pub(crate) submitted: Millis,
    /// When its placement was reserved, or its program began if an earlier leader reserved it.
    pub(crate) placed: Millis,
    /// When its program began, if known.
    pub(crate) began: Option<Millis>,
    /// How much of its job was finished before it, in millionths.
    pub(crate) done: u32,
    /// The prediction of its run time; `None` if it shares its slice.
    pub(crate) run_prediction: Option<AttemptPrediction>,
    /// The prediction of its memory, if its job's request comes from earlier runs of its task.
    pub(crate) memory: Option<MemoryEstimate>,
    /// The GPU memory that it may use.
    pub(crate) gpu_memory: Bytes,
    /// Its peak GPU memory, if its node reported that before its end.
    pub(crate) peak: Option<Bytes>,
    /// What a process of it would have had with the last request that the driver refused and that it did not survive;
    /// 0 if there is none.
    pub(crate) refused: Bytes,
    /// Whether its job goes back to the queue if it ends without success, at its user's request.
    pub(crate) requeue: bool,
    /// Its membership in a gang, if it has one.
    pub(crate) gang: Option<GangMember>,
    /// Its outcome, while other members of its gang still run.
    pub(crate) end: Option<MemberEnded>,
}

/// The outcome of a member, kept until all members have ended.
#[derive(Clone, Debug)]
pub(crate) struct MemberEnded {
    pub(crate) record: ExitRecord,
    /// Whether it was stopped, or never started, because another member had ended before.
    pub(crate) follows: bool,
}

impl AttemptTable {
    /// Adds a live attempt.
    pub(crate) fn insert(&mut self, attempt: AttemptId, live: LiveAttempt) {
        self.by_job.insert(live.job, attempt);
        self.by_node.entry(live.node).or_default().insert(attempt);
        self.by_gpu.entry(live.gpu.clone()).or_default().insert(attempt);
        self.live.insert(attempt, live);
    }

    /// Removes an ended attempt.
    pub(crate) fn remove(&mut self, attempt: AttemptId) -> Option<LiveAttempt> {
        let live = self.live.remove(&attempt)?;
        self.by_job.remove(&live.job);
        remove_from(&mut self.by_node, &live.node, attempt);
        remove_from(&mut self.by_gpu, &live.gpu, attempt);
        Some(live)
    }

    /// Removes every attempt, since the state is read again from the store.
    pub(crate) fn clear(&mut self) {
        self.live.clear();
        self.by_job.clear();
        self.by_node.clear();
        self.by_gpu.clear();
        self.broken_gangs.clear();
    }

    /// Copies what questions outside of rounds need.
    pub(crate) fn excerpt(&self) -> Self {
        Self { broken_gangs: BTreeSet::new(), ..self.clone() }
    }

    /// Records that a node has reported an attempt. Returns the attempt if it is live there.
    pub(crate) fn acknowledge(&mut self, node: NodeId, attempt: AttemptId) -> Option<&LiveAttempt> {
        let live = self.live.get_mut(&attempt).filter(|live| live.node == node)?;
        live.acknowledged = true;
        Some(live)
    }

    /// Returns a job's live attempt.
    pub(crate) fn of_job(&self, job: JobId) -> Option<&LiveAttempt> {
        self.live.get(self.by_job.get(&job)?)
    }

    /// Returns the attempts on a node.
    pub(crate) fn on_node(&self, node: NodeId) -> Vec<AttemptId> {
        self.by_node.get(&node).into_iter().flatten().copied().collect()
    }

    /// Returns whether a live attempt has the slot of the GPU.
    pub(crate) fn holds(&self, gpu: &GpuId, slot: Slot) -> bool {
        self.on_gpu(gpu).any(|live| live.slot == Some(slot))
    }

    pub(crate) fn holders(&self, gpu: &GpuState) -> Vec<&LiveAttempt> {
        self.on_gpu(&gpu.report.gpu).collect()
    }

    /// Returns the live attempts on a GPU.
    pub(crate) fn on_gpu(&self, gpu: &GpuId) -> impl Iterator<Item = &LiveAttempt> {
        let attempts = self.by_gpu.get(gpu).into_iter().flatten();
        attempts.filter_map(|attempt| self.live.get(attempt))
    }

    /// Returns the live attempts of a gang, by rank.
    pub(crate) fn members(
        &self,
        member: GangMember,
    ) -> impl Iterator<Item = (AttemptId, &LiveAttempt)> {
        member.all().filter_map(|job| {
            let attempt = *self.by_job.get(&job)?;
            Some((attempt, self.live.get(&attempt)?))
        })
    }

    /// Returns the attempts that end with an attempt: those of its gang, or itself.
    pub(crate) fn gang_attempts(&self, attempt: AttemptId) -> Vec<AttemptId> {
        match self.live.get(&attempt).and_then(|live| live.gang) {
            Some(member) => self.members(member).map(|(attempt, _)| attempt).collect(),
            None => vec![attempt],
        }
    }

    /// Stops the other members; they end at once if no launch was sent.
    pub(crate) fn stop_other_members(&mut self, member: GangMember) {
        for job in member.all() {
            let Some(attempt) = self.by_job.get(&job) else { continue };
            let Some(live) = self.live.get_mut(attempt).filter(|live| live.end.is_none()) else {
                continue;
            };
            live.sent = None;
            if live.state == JobState::Placing {
                let record = record_without_exit(Outcome::NotStarted, String::new());
                live.end = Some(MemberEnded { record, follows: true });
            }
        }
    }

    pub(crate) fn job_name(&self, job: JobId) -> Option<String> {
        Some(self.of_job(job)?.launch_spec.as_ref()?.spec.name.clone())
    }
}

impl LiveAttempt {
    /// Returns whether it ended without success.
    pub(crate) fn failed(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.record.outcome != Outcome::Succeeded)
    }

    /// Returns how long its program has run.
    pub(crate) fn ran(&self, now: Millis) -> Millis {
        self.began.map_or(Millis::ZERO, |began| now.minus(began))
    }

    /// Returns its compute instance, if its GPU instance is divided into several.
    pub(crate) fn part(&self) -> Option<ComputeSlot> {
        self.share.as_ref()?.share.compute()
    }

    /// Gives the job another share of its slice. Its attempt ends by its checkpoint signal, and the
    /// next one has the new share. A job without a checkpoint signal is refused.
    pub(crate) fn reshare(
        &mut self,
        attempt: AttemptId,
        sm: SmPercent,
        reshared: &mut Vec<ResharedJob>,
    ) -> CommandResult {
        let refused = CommandResult::Refused { state: self.state.word().to_owned() };
        let Some(launch_spec) = self.launch_spec.as_mut() else { return refused };
        let SharingMode::Mps(share) = launch_spec.spec.share else { return refused };
        if self.state == JobState::Stopping {
            return refused;
        }
        if share.sm == sm {
            return CommandResult::Done;
        }
        if launch_spec.spec.run.checkpoint_signal.is_none() {
            return CommandResult::NoCheckpoint;
        }
        Arc::make_mut(&mut launch_spec.spec).share = SharingMode::Mps(MpsShare { sm, ..share });
        if self.state == JobState::Running {
            self.sent = None;
        }
        reshared.push(ResharedJob { job: self.job, attempt, sm });
        CommandResult::Done
    }

    /// Updates the job: its time limit and its deadline apply at once, its priority when it waits
    /// again. It waits for no other job and for no time any more, so these can't change.
    pub(crate) fn update(
        &mut self,
        attempt: AttemptId,
        update: &JobUpdate,
        updated: &mut Vec<UpdatedJob>,
    ) -> CommandResult {
        let refused = CommandResult::Refused { state: self.state.word().to_owned() };
        let Some(launch_spec) = self.launch_spec.as_mut() else { return refused };
        let is_for_waiting = update.dependency.is_some() || update.begin.is_some();
        if self.state == JobState::Stopping || is_for_waiting {
            return refused;
        }
        update.apply_to(Arc::make_mut(&mut launch_spec.spec));
        let before = self.facts.limit;
        self.facts = Arc::new(self.facts.updated(update));
        if self.facts.limit != before {
            self.limit = TimeLimitNotice::Due;
        }
        updated.push(UpdatedJob { job: self.job, attempt, update: update.clone() });
        CommandResult::Done
    }

    /// Returns whether its job has another share than the attempt was started with.
    pub(crate) fn has_other_share(&self) -> bool {
        let job =
            self.launch_spec.as_ref().and_then(|launch_spec| launch_spec.spec.share.part()?.sm());
        let own = self.share.as_ref().and_then(|sharer| sharer.share.sm());
        job.zip(own).is_some_and(|(job, own)| job != own)
    }
}

/// Removes an attempt from an index.
fn remove_from<K: std::hash::Hash + Eq>(
    index: &mut HashMap<K, BTreeSet<AttemptId>>,
    key: &K,
    attempt: AttemptId,
) {
    let Some(of_key) = index.get_mut(key) else { return };
    of_key.remove(&attempt);
    if of_key.is_empty() {
        index.remove(key);
    }
}
