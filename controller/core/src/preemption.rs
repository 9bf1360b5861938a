//! Pre-emption by class: a policy's [`Preemption`] carried out.
//!
//! The place is kept for the job of the higher class, as for a migration. The jobs on it are requested to write a
//! checkpoint and to end, or just to end. They go back to the queue with their age and their place in it. This
//! costs no retry. Neither the time that they lose nor their restart counts in any account's usage.
//!
//! The requests are in the store, with the kept place. A new leader repeats them, so a crash at any point loses
//! neither job.

use crate::attempt_changes::AttemptChanges;
use crate::migration::MOVE_SLACK;
use crate::round::JobWrites;
use crate::rows::preemptions::{
    OpenPreemption, PreemptionOutcome, PreemptionRow, RequestedPreemption, SentBackJob,
};
use crate::state::ClusterState;
use crate::state::attempts::{AttemptTable, LiveAttempt};
use crate::state::migrations::{KeptPlacements, MigrationRequest, Migrations};
use crate::state::preemptions::{PreemptionRequest, SentBack};
use crate::state::queue::JobQueue;
use std::collections::BTreeMap;
use tessera_frames::cluster::{ExitRecord, StopCause};
use tessera_model::life::{JobState, OnLost, Outcome, ProgramExit};
use tessera_model::{AttemptId, DecisionId, JobId, Millis};
use tessera_placement::Explanation;
use tessera_placement::preemption::{Preemption, PreemptionPrice, Protection, RunningJob};
use uuid::Uuid;

/// The signal with which a program is killed that did not end within its grace.
const KILL: u8 = 9;

impl AttemptChanges<'_> {
    /// Begins a pre-emption that a round decided. It is dropped as a whole if an earlier decision of the round
    /// makes it impossible.
    pub(crate) fn begin_preemption(
        &mut self,
        preemption: &Preemption,
        why: Explanation,
        now: Millis,
        new_id: &mut dyn FnMut() -> Uuid,
    ) {
        let Preemption { job: by, place, sent_back, .. } = preemption;
        let waits = self.queue.ranks.contains_key(by) && !self.migrations.has_kept_placement(*by);
        if !waits || self.migrations.kept.contains_key(&place.gpu) {
            return;
        }
        let attempts: Option<Vec<AttemptId>> = sent_back
            .iter()
            .map(|job| {
                let attempt = *self.attempts.by_job.get(job)?;
                let live = self.attempts.live.get(&attempt)?;
                is_stoppable(live, self.migrations, attempt).then_some(attempt)
            })
            .collect();
        let Some(attempts) = attempts.filter(|attempts| !attempts.is_empty()) else { return };
        for attempt in &attempts {
            let Some(live) = self.attempts.live.get(attempt) else { continue };
            let (job, saves) = (live.job, saves_work(live));
            let row = RequestedPreemption {
                job,
                attempt: *attempt,
                by: *by,
                saves,
                place: place.clone(),
                decision: DecisionId::from_uuid(new_id()),
                why: explain_to_sent_back(live, self.migrations, preemption, &why),
            };
            self.jobs.preemptions.push(PreemptionRow::Requested(Box::new(row)));
        }
        let request = |saves| PreemptionRequest { by: *by, saves, since: now };
        let until = request_ends(self.attempts, self.migrations, &attempts, now, request);
        let slots = vec![(*by, place.slot)];
        self.migrations.kept.insert(place.gpu.clone(), KeptPlacements { slots, until, why });
    }

    /// Records the end of an attempt that may have been requested to end for another job. Its job's new state is
    /// `to`.
    pub(crate) fn end_preemption(
        &mut self,
        attempt: AttemptId,
        live: &LiveAttempt,
        record: &mut ExitRecord,
        to: JobState,
    ) {
        let request = self.migrations.preemptions.requests.remove(&attempt);
        if to.is_final() {
            self.migrations.preemptions.sent_back.remove(&live.job);
        }
        let Some(PreemptionRequest { by, saves, since }) = request else { return };
        let is_sent_back = to == JobState::Queued
            && (live.requeue || record.outcome == Outcome::Preempted)
            && record.outcome != Outcome::Lost;
        if !is_sent_back {
            let outcome = PreemptionOutcome::Ended;
            let row = PreemptionRow::Ended { attempt, outcome, uncharged: Millis::ZERO };
            self.jobs.preemptions.push(row);
            return;
        }
        // A program that was killed has not finished its checkpoint.
        let is_saved = saves && record.exit != Some(ProgramExit::Signal(KILL));
        let from = if is_saved { since.max(live.placed) } else { live.placed };
        let now = self.round_at;
        self.accounting.forgive(live, from, now);
        self.migrations.preemptions.record_sent_back(live.job, by, now);
        record.detail = match is_saved {
            true => format!("sent back to the queue for job {by} (online), with its checkpoint"),
            false => format!("sent back to the queue for job {by} (online), without its work"),
        };
        let (outcome, uncharged) = (PreemptionOutcome::SentBack, now.minus(from));
        self.jobs.preemptions.push(PreemptionRow::Ended { attempt, outcome, uncharged });
    }

    /// Records that a job runs. The restart of one that was sent back is not charged.
    pub(crate) fn resume_sent_back(&mut self, attempt: AttemptId, now: Millis) {
        let Some(live) = self.attempts.live.get(&attempt) else { return };
        if self.migrations.preemptions.record_start(live.job) {
            self.accounting.forgive(live, live.placed, now);
            let uncharged = now.minus(live.placed);
            self.jobs.preemptions.push(PreemptionRow::Resumed { attempt, uncharged });
        }
    }
}

/// Requests attempts to end, those of a gang together. Returns until when that should have happened.
fn request_ends(
    attempts: &mut AttemptTable,
    migrations: &mut Migrations,
    of: &[AttemptId],
    now: Millis,
    request: impl Fn(bool) -> PreemptionRequest,
) -> Millis {
    let grace = of.iter().filter_map(|attempt| Some(attempts.live.get(attempt)?.facts.grace)).max();
    let until = now.plus(grace.unwrap_or_default()).plus(MOVE_SLACK);
    for attempt in of {
        let Some(live) = attempts.live.get_mut(attempt) else { continue };
        let saves = saves_work(live);
        live.sent = None;
        if saves {
            let cause = if live.share.is_some() { StopCause::Reshare } else { StopCause::Move };
            migrations.requests.insert(*attempt, MigrationRequest { since: now, until, cause });
        } else {
            live.requeue = true;
        }
        migrations.preemptions.requests.insert(*attempt, request(saves));
    }
    until
}

/// Returns whether an attempt writes a checkpoint when it is stopped. The work of a gang's members is not
/// checkpointed together.
fn saves_work(live: &LiveAttempt) -> bool {
    let spec = live.launch_spec.as_ref().map(|known| &known.spec);
    live.gang.is_none() && spec.is_some_and(|spec| spec.run.checkpoint_signal.is_some())
}

/// Returns whether an attempt runs, and is not being stopped already.
fn is_stoppable(live: &LiveAttempt, migrations: &Migrations, attempt: AttemptId) -> bool {
    live.state == JobState::Running
        && live.acknowledged
        && !live.requeue
        && live.end.is_none()
        && !migrations.is_migrating(attempt)
        && !migrations.preemptions.requests.contains_key(&attempt)
}

/// Explains to a job's user why it is sent back, and what prevents that.
fn explain_to_sent_back(
    live: &LiveAttempt,
    migrations: &Migrations,
    preemption: &Preemption,
    why: &Explanation,
) -> Explanation {
    let rules = migrations.preemptions.rules;
    let (times, most) = (migrations.preemptions.times(live.job) + 1, rules.most_per_job);
    let work = match saves_work(live) {
        true => "a checkpoint is requested, from which it continues",
        false => "it begins again from its start",
    };
    let protected = match times >= most {
        true => ", and from now on it is protected".to_owned(),
        false => format!(" of {most} times at most"),
    };
    let summary = format!(
        "sent back to the queue for job {} of the class online: {work}; time {times}{protected}. It keeps its age, \
         and neither its lost time nor its restart is charged. --no-requeue prevents this",
        preemption.job
    );
    Explanation {
        would_start_if: Some("a suitable slice is free".to_owned()),
        candidates: Vec::new(),
        summary,
        ..why.clone()
    }
}

/// Continues the pre-emptions that an earlier leader requested.
pub(crate) fn resume_preemptions(
    attempts: &mut AttemptTable,
    migrations: &mut Migrations,
    queue: &JobQueue,
    open: Vec<OpenPreemption>,
    sent_back: &[SentBackJob],
    now: Millis,
) {
    for entry in sent_back {
        let SentBackJob { job, times, by, waits_since } = *entry;
        let waits_since = waits_since.map(|ago| now.minus(ago));
        migrations.preemptions.sent_back.insert(job, SentBack { times, by, waits_since });
    }
    for OpenPreemption { attempt, by, saves, place, ago } in open {
        let Some(live) = attempts.live.get(&attempt) else { continue };
        let since = now.minus(ago);
        let request = |_| PreemptionRequest { by, saves, since };
        if live.state != JobState::Running {
            // Its user cancelled it meanwhile. Only its end is awaited.
            migrations.preemptions.requests.insert(attempt, request(saves));
            continue;
        }
        let until = request_ends(attempts, migrations, &[attempt], now, request);
        if !queue.ranks.contains_key(&by) || migrations.has_kept_placement(by) {
            continue;
        }
        let why = Explanation {
            summary: "offline jobs are sent back to the queue for this online job".to_owned(),
            ..Explanation::default()
        };
        let slots = vec![(by, place.slot)];
        migrations.kept.entry(place.gpu).or_insert(KeptPlacements { slots, until, why });
    }
}

impl ClusterState {
    /// Returns whether a waiting job may send others back now.
    pub(crate) fn may_preempt(&self, job: JobId, now: Millis) -> bool {
        self.queue.queued(job).is_some_and(|waiting| {
            let waited = now.minus(waiting.job.submitted);
            self.migrations.preemptions.rules.may_preempt(waiting.job.online, waited)
        })
    }

    /// Returns what sending a running attempt back costs, or why it must not be sent back.
    pub(crate) fn preemption_price(
        &self,
        attempt: AttemptId,
        live: &LiveAttempt,
        now: Millis,
    ) -> Result<PreemptionPrice, Protection> {
        let migrations = &self.migrations;
        if !is_stoppable(live, migrations, attempt) || migrations.kept.contains_key(&live.gpu) {
            return Err(Protection::Starting);
        }
        if migrations.reluctant.get(&live.job).is_some_and(|until| now < *until) {
            return Err(Protection::RunsAgain);
        }
        let Some(launch_spec) = &live.launch_spec else { return Err(Protection::Starting) };
        let saves = saves_work(live);
        let job = RunningJob {
            online: live.facts.online,
            saves,
            requeueable: launch_spec.spec.retry.on_lost == OnLost::Requeue,
            has_deadline: live.facts.deadline.is_some(),
            gang: live.gang,
            began: live.began,
            preempted: migrations.preemptions.times(live.job),
            stop: Millis::ZERO,
            restore: Millis::ZERO,
            ends_in: None,
        };
        // Predictions take longer than the rules, which protect most jobs.
        let rules = migrations.preemptions.rules;
        rules.price(&job, now)?;
        let stop = if saves { self.predictions.checkpoint_time(live) } else { live.facts.grace };
        let restore = self.predictions.migration_cost(live).minus(stop);
        let ends_in = self.predictions.ends_in(live, now);
        rules.price(&RunningJob { stop, restore, ends_in, ..job }, now)
    }

    /// Returns what a user reads about pre-emption in the explanation of a waiting job, if anything.
    pub(crate) fn preemption_note(&self, job: JobId, lacks_slices: bool, now: Millis) -> String {
        let preemptions = &self.migrations.preemptions;
        if let Some(SentBack { times, by, waits_since: Some(since) }) =
            preemptions.sent_back.get(&job)
        {
            let ago = now.minus(*since).get() / 1_000;
            let most = preemptions.rules.most_per_job;
            return format!(
                "; it was sent back to the queue {ago} s ago for job {by} of the class online ({times} of {most} \
                 times at most; --no-requeue prevents this)"
            );
        }
        let is_concerned = lacks_slices && self.may_preempt(job, now);
        if !is_concerned || self.migrations.has_kept_placement(job) {
            return String::new();
        }
        let mut protections: BTreeMap<Protection, u32> = BTreeMap::new();
        for (attempt, live) in &self.attempts.live {
            if let Err(protection) = self.preemption_price(*attempt, live, now) {
                *protections.entry(protection).or_default() += 1;
            }
        }
        let texts: Vec<String> = protections
            .into_iter()
            .map(|(protection, jobs)| format!("{jobs} × {}", protection.text()))
            .collect();
        match texts.as_slice() {
            [] => String::new(),
            texts => format!("; running jobs that are not sent back for it: {}", texts.join(", ")),
        }
    }
}

impl JobWrites {
    /// Returns the pre-emptions that the round requests.
    pub fn requested_preemptions(&self) -> impl Iterator<Item = &RequestedPreemption> {
        self.preemptions.iter().filter_map(|row| match row {
            PreemptionRow::Requested(requested) => Some(requested.as_ref()),
            PreemptionRow::Ended { .. } | PreemptionRow::Resumed { .. } => None,
        })
    }
}

/// Returns a running job's price for a policy.
pub(crate) fn price_of(cluster: &ClusterState, job: JobId, now: Millis) -> Option<PreemptionPrice> {
    let attempt = cluster.attempts.by_job.get(&job)?;
    let live = cluster.attempts.live.get(attempt)?;
    cluster.preemption_price(*attempt, live, now).ok()
}
