//! Runs the policy on the queue, and turns its decisions into reservations and reasons.

use crate::forecast::ClusterForecast;
use crate::gate::{Gate, explain_gate};
use crate::input::InputReach;
use crate::memory_requests::with_memory_estimate;
use crate::reservations::PlacedMember;
use crate::round::{Round, STARTS_MAX};
use crate::rows::transitions::WaitReasonRow;
use crate::state::ClusterState;
use crate::state::planner::Planner;
use crate::state::predictions::Predictions;
use crate::state::queue::{JobQueue, WaitingJob};
use std::collections::BTreeMap;
use std::time::Duration;
use tessera_model::{JobId, Millis};
use tessera_placement::fair::parts_of_lines;
pub(crate) use tessera_placement::policy::session::LOOK_AT_MAX;
use tessera_placement::record::{PendingRecord, RoundInput};
use tessera_placement::{
    ClusterView, Decision, Explanation, GpuView, MigView, QueuedJob, WaitReason, decide_round,
};
use uuid::Uuid;

/// Up to so many equal jobs are all considered: a policy may plan all of them together.
const BATCH_MAX: usize = 100;

/// How many equal jobs are considered at least in addition to those that can start. Chosen: more than a round reserves
/// places for.
const WAITING_MIN: usize = 16;

/// Maximum number of waiting jobs that get reasons while no job can start.
const LOOK_AT_WITHOUT_GPUS: usize = 64;

impl ClusterState {
    /// Returns whether the policy need not run, after inputs with this reach. Either only jobs arrived since its last
    /// run, and an equal request of each was refused a moment ago. Or attempts started and ended, and nothing that is
    /// free could hold a waiting job. The policy gets all of them a second later at most.
    pub(crate) fn is_settled(
        &mut self,
        reach: InputReach,
        arrived: &[JobId],
        round: &Round,
        now: Millis,
    ) -> bool {
        if reach == InputReach::Queue && round.is_empty() {
            return self.are_refused(arrived, now);
        }
        if !round.only_moves_attempts() {
            self.planner.settled.unsettle();
            return false;
        }
        if !self.planner.settled.is_searched(now) || !self.can_start_nothing(now) {
            self.planner.settled.forget_refusals();
            return false;
        }
        // What was refused is still impossible, and its reason is known.
        arrived.is_empty() || self.are_refused(arrived, now)
    }

    /// Returns whether requests equal to those of new jobs were refused a moment ago.
    fn are_refused(&self, arrived: &[JobId], now: Millis) -> bool {
        let refused = |job: &JobId| {
            // A job that a user cancelled in the meantime is absent.
            self.queue.queued(*job).is_none_or(|waiting| {
                waiting.facts.rules.is_open()
                    && !self.may_preempt(*job, now)
                    && !self.predictions.knows_runs_of(&waiting.facts)
                    && self.planner.settled.refuses(now, &waiting.job, &waiting.facts)
            })
        };
        self.planner.settled.lasts(now) && arrived.iter().all(refused)
    }

    /// Runs the policy, and turns its decisions into reservations. Returns a record of inputs and
    /// decisions if the policy was run.
    pub(crate) fn place_waiting_jobs(
        &mut self,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) -> Option<PendingRecord> {
        if self.queue.waiting.is_empty() {
            if self.attempts.live.is_empty() || !self.planner.is_review_due(now) {
                return None;
            }
            self.planner.reviewed_at = Some(now);
        }
        if now < self.guards.hold_until {
            let why = self.explain_hold(now);
            record_hold_waits(&mut self.queue, &why, new_id, &mut round.jobs.waits);
            return None;
        }
        let began = self.planner.stopwatch.read();
        let view = self.view(now);
        let barred = self.barred_jobs(now);
        let (decisions, record) = self.run_policy(&view, &barred, now);
        let took = self.planner.stopwatch.read().saturating_sub(began);
        settle(&mut self.planner, &self.queue, &self.predictions, &decisions, (now, took));
        let (mut reshapes, mut preemptions) = (Vec::new(), Vec::new());
        let mut gangs: BTreeMap<JobId, Vec<PlacedMember>> = BTreeMap::new();
        let (mut changes, limits) = self.placement_changes(round);
        for decision in decisions {
            match decision {
                Decision::Start { job, place, why } => {
                    let why = with_memory_estimate(changes.queue, job, why);
                    match changes.queue.gang_of(job) {
                        Some(member) => {
                            gangs.entry(member.gang).or_default().push((job, place, why));
                        }
                        None => changes.reserve_place(job, place, why, &view, new_id),
                    }
                }
                Decision::Wait { job, reason, why } => {
                    let why = with_memory_estimate(changes.queue, job, why);
                    let waits = &mut changes.jobs.waits;
                    changes.queue.record_wait(job, reason, why, new_id, waits);
                }
                Decision::Reshape { reshape, why } => reshapes.push((reshape, why)),
                Decision::Preempt { preemption, why } => preemptions.push((*preemption, why)),
            }
        }
        for members in gangs.into_values() {
            changes.reserve_gang(members, &view, new_id);
        }
        if !reshapes.is_empty() {
            changes.begin_reshapes(reshapes, &view, limits, now, new_id);
        }
        for (preemption, why) in preemptions {
            changes.begin_preemption(&preemption, why, now, new_id);
        }
        for (job, reason) in barred.into_iter().take(LOOK_AT_MAX) {
            let Some(waiting) = self.queue.queued(job) else { continue };
            // The store answers at the end of this round, and the job may start in the next one.
            if reason == WaitReason::Dependency && !self.queue.dependencies.is_known(job) {
                continue;
            }
            let why = explain_gate(self.planner.policy.name(), waiting, reason);
            self.queue.record_wait(job, reason, why, new_id, &mut round.jobs.waits);
        }
        for (job, why) in self.explain_kept_placements(now) {
            let (reason, waits) = (WaitReason::AwaitingRepartition, &mut round.jobs.waits);
            self.queue.record_wait(job, reason, why, new_id, waits);
        }
        Some(record)
    }

    /// Returns the jobs that have to wait for their begin time, for another task of their array, or
    /// for other jobs.
    fn barred_jobs(&self, now: Millis) -> BTreeMap<JobId, WaitReason> {
        let mut gate = Gate::new(&self.attempts, &self.queue.dependencies, &self.clock, now);
        let gated = self.queue.gated.iter().filter_map(|key| self.queue.waiting.get(key));
        gated.filter_map(|waiting| Some((waiting.job.id, gate.bars(waiting)?))).collect()
    }

    /// Runs the policy for the listed jobs, and records its inputs and decisions.
    fn run_policy(
        &self,
        view: &ClusterView,
        barred: &BTreeMap<JobId, WaitReason>,
        now: Millis,
    ) -> (Vec<Decision>, PendingRecord) {
        let look_at = match view.gpus.iter().any(|gpu| gpu.available) {
            true => LOOK_AT_MAX,
            false => LOOK_AT_WITHOUT_GPUS,
        };
        let Candidates { listed, unlisted } = self.list_distinct(look_at, places(view), barred);
        let forecast = ClusterForecast { unlisted, ..ClusterForecast::new(self, now) };
        let answers = self.planner.recorder.record_answers(forecast.knowledge(), view, now);
        let policy = self.planner.policy.as_ref();
        let mut candidates = listed.iter().copied();
        let decisions =
            decide_round(policy, view, answers.knowledge(), &mut candidates, now, STARTS_MAX);
        let input = RoundInput { cluster: view, queue: &listed, now, starts_max: STARTS_MAX };
        let record = self.planner.recorder.prepare_record(policy, input, answers, &decisions);
        (decisions, record)
    }

    /// Returns whether the accounts' recent usage counts in the service order.
    pub(crate) fn is_fair_share_on(&self) -> bool {
        self.accounting.accounts.fair()
            && self.planner.policy.shares_fairly()
            && self.queue.user_lines.len() > 1
    }

    /// Returns the jobs that a round considers, in service order. They are the head of the queue;
    /// with fair share, each user has at most a part of them, so that other users' jobs are
    /// considered too.
    pub(crate) fn list_candidates(
        &self,
        most: usize,
        barred: &BTreeMap<JobId, WaitReason>,
    ) -> Vec<&QueuedJob> {
        self.list_waiting(most, barred).into_iter().map(|waiting| &waiting.job).collect()
    }

    /// Returns the same jobs, but of equal ones in succession only the first: an earlier one would start instead of any of
    /// the others. So a round's time depends on how many different jobs wait, and not on the length of an array.
    ///
    /// At most `places` jobs can start on separate slices.
    pub(crate) fn list_distinct(
        &self,
        most: usize,
        places: usize,
        barred: &BTreeMap<JobId, WaitReason>,
    ) -> Candidates<'_> {
        let mut candidates = Candidates::default();
        if self.is_head_listed(most, barred) {
            // The others of a run are counted, and not looked at.
            for run in self.queue.runs(most) {
                let listed = run.length.min(listed_max(run.first, run.length, places));
                match listed {
                    1 => candidates.listed.push(&run.first.job),
                    _ => candidates
                        .listed
                        .extend(self.queue.first_of(&run, listed).map(|waiting| &waiting.job)),
                }
                candidates.unlisted += run.length - listed;
            }
            return candidates;
        }
        let waiting = self.list_waiting(most, barred);
        for equal in waiting.chunk_by(|before, waiting| waiting.equals(before)) {
            let listed = equal.len().min(listed_max(equal[0], equal.len(), places));
            candidates.listed.extend(equal[..listed].iter().map(|waiting| &waiting.job));
            candidates.unlisted += equal.len() - listed;
        }
        candidates
    }

    /// Returns whether a round considers simply the head of the queue.
    fn is_head_listed(&self, most: usize, barred: &BTreeMap<JobId, WaitReason>) -> bool {
        (!self.is_fair_share_on() || self.queue.waiting.len() <= most)
            && barred.is_empty()
            && !self.migrations.has_kept_placements()
    }

    fn list_waiting(&self, most: usize, barred: &BTreeMap<JobId, WaitReason>) -> Vec<&WaitingJob> {
        let open = |waiting: &&WaitingJob| {
            !self.migrations.has_kept_placement(waiting.job.id)
                && !barred.contains_key(&waiting.job.id)
        };
        if !self.is_fair_share_on() || self.queue.waiting.len() <= most {
            let waiting = self.queue.waiting.values();
            // Without such jobs, which is the rule, no job is looked at.
            return match barred.is_empty() && !self.migrations.has_kept_placements() {
                true => waiting.take(most).collect(),
                false => waiting.filter(open).take(most).collect(),
            };
        }
        let lines = &self.queue.user_lines;
        let lengths: Vec<usize> = lines.values().map(|line| line.len()).collect();
        let mut keys = Vec::with_capacity(most);
        for (line, part) in lines.values().zip(parts_of_lines(&lengths, most)) {
            keys.extend(
                line.iter().filter(|(_, job)| !barred.contains_key(job)).take(part).copied(),
            );
        }
        keys.sort_unstable();
        keys.iter().filter_map(|key| self.queue.waiting.get(key)).filter(open).collect()
    }

    /// Returns the reasons of jobs that wait for kept placements.
    fn explain_kept_placements(&self, now: Millis) -> Vec<(JobId, Explanation)> {
        let jobs = self.migrations.jobs_with_kept_placements().into_iter();
        jobs.filter_map(|job| Some((job, self.explain_kept_placement(job, now)?))).collect()
    }

    /// Explains that placement is held, and for how long.
    pub(crate) fn explain_hold(&self, now: Millis) -> Explanation {
        let left = self.placement_held_for(now).get().div_ceil(1_000);
        Explanation {
            policy: self.planner.policy.name().to_owned(),
            summary:
                "the database was rolled back to an earlier state: it is not known what has run \
                 since, so nothing starts until every node must have stopped its jobs"
                    .to_owned(),
            would_start_if: Some(format!("{left} s pass")),
            ..Explanation::default()
        }
    }
}

/// Returns how many jobs can have separate slices: each takes at least one compute slice.
fn places(view: &ClusterView) -> usize {
    let slices = |gpu: &GpuView| {
        let whole = gpu.mig.as_deref().and_then(MigView::largest);
        whole.map_or(1, |whole| usize::from(whole.compute_slices))
    };
    view.gpus.iter().map(slices).sum()
}

/// Returns how many of equal jobs a round considers, where `places` can start.
fn listed_max(first: &WaitingJob, equal: usize, places: usize) -> usize {
    let shares = first.job.share.is_some() || first.job.auto.is_some();
    match equal <= BATCH_MAX || shares || first.facts.deadline.is_some() {
        // Several may start on one slice, and each may need its own reservation.
        true => STARTS_MAX,
        false => STARTS_MAX.min(places + WAITING_MIN),
    }
}

/// The waiting jobs that a round considers.
#[derive(Debug, Default)]
pub(crate) struct Candidates<'q> {
    /// In the order of service.
    pub(crate) listed: Vec<&'q QueuedJob>,
    /// How many others equal a listed one ahead of them.
    pub(crate) unlisted: usize,
}

/// Remembers the requests of jobs that the policy left in the queue. If it may have left some for
/// another round, for their quotas or for power, nothing is remembered: capacity may be free for another user.
fn settle(
    planner: &mut Planner,
    queue: &JobQueue,
    predictions: &Predictions,
    decisions: &[Decision],
    (now, took): (Millis, Duration),
) {
    // Equal jobs have equal requests, and members of gangs have no equals.
    let mut looked_at = queue.runs(LOOK_AT_MAX).map(|run| run.first);
    let waits_for_place = |decision: &Decision| matches!(decision, Decision::Wait { reason, .. } if !matches!(reason, WaitReason::Quota | WaitReason::PowerCap));
    if !decisions.iter().all(waits_for_place) || looked_at.any(|waiting| waiting.job.gang.is_some())
    {
        planner.settled.note_search(now);
        return;
    }
    let looked_at = queue.runs(LOOK_AT_MAX).map(|run| run.first);
    // A job with known run times may leave a free slice that would be enough for another job.
    let unknown = looked_at.filter(|waiting| !predictions.knows_runs_of(&waiting.facts));
    let left = unknown.map(|waiting| (&waiting.job, &*waiting.facts));
    planner.settled.settle(now, took, left);
}

/// Records for the head of the queue that placement is held.
fn record_hold_waits(
    queue: &mut JobQueue,
    why: &Explanation,
    new_id: &mut dyn FnMut() -> Uuid,
    waits: &mut Vec<WaitReasonRow>,
) {
    let jobs: Vec<_> =
        queue.waiting.keys().map(|(_, job)| *job).take(LOOK_AT_WITHOUT_GPUS).collect();
    for job in jobs {
        queue.record_wait(job, WaitReason::PlacementHeld, why.clone(), new_id, waits);
    }
}
