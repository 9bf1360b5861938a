//! Questions about waiting jobs, answered beside the rounds: an answer asks the policy many times, and
//! takes longer than a round may.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::record::Recorder;
use tessera_placement::{Decision, Explanation, QueuedJob, WaitReason, ask, fair};

use super::counterfactual::AHEAD_MAX;
use super::foresight::Foresight;
use super::{Cluster, Waiting};
use crate::ports::WaitingView;

/// Why a job waits, to be found out: what the answer needs of the picture, apart from it.
#[derive(Debug)]
pub struct Inquiry {
    line: Line,
    cluster: Cluster,
}

/// A waiting job's place in the order of service.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) job: JobId,
    /// The first of those before it, at most [`AHEAD_MAX`].
    pub(super) ahead: Vec<JobId>,
    pub(super) jobs_ahead: u64,
}

impl Inquiry {
    /// Tells why the job waits, computed as if it were its turn.
    ///
    /// `now` is the time of the rounds. `None` only for a job that did not wait when it was asked
    /// about.
    pub fn answer(&self, now: Millis) -> Option<WaitingView> {
        self.cluster.explained(&self.line, now)
    }
}

impl Cluster {
    /// Takes from the picture what it takes to tell why a job waits; `None` if it doesn't wait.
    pub fn inquiry(&self, job: JobId) -> Option<Inquiry> {
        let line = self.line(job)?;
        let cluster = self.excerpt(self.seen_with(&line));
        Some(Inquiry { line, cluster })
    }

    /// Returns where a waiting job stands in the order in which the policy serves.
    pub(super) fn line(&self, job: JobId) -> Option<Line> {
        let key = (*self.ranks.get(&job)?, job);
        let gang = self.gang_of(job).map(|member| member.gang);
        let apart = |asked: &QueuedJob| match gang {
            Some(gang) => asked.gang.is_none_or(|member| member.gang != gang),
            None => asked.id != job,
        };
        if !self.serves_fairly() {
            let before = self.queue.range(..key).map(|(_, waiting)| &waiting.asked);
            let before: Vec<JobId> = before.filter(|asked| apart(asked)).map(|a| a.id).collect();
            return Some(Line::of(job, &before));
        }
        let mut shown = self.shown(super::placing::LOOK_AT_MAX);
        if shown.iter().all(|asked| asked.id != job) {
            shown.push(&self.queue.get(&key)?.asked);
        }
        let forecast = Foresight::new(self, self.stepped);
        let order = fair::in_order(self.policy.as_ref(), &mut shown.into_iter(), &forecast);
        let before = order.into_iter().take_while(|asked| apart(asked)).map(|asked| asked.id);
        Some(Line::of(job, &before.collect::<Vec<_>>()))
    }

    /// Tells why a job waits; `None` if it doesn't wait.
    pub fn waiting(&self, job: JobId, now: Millis) -> Option<WaitingView> {
        self.inquiry(job)?.answer(now)
    }

    /// Returns the part of the queue that a job's answer looks at: those first in line before it, and
    /// its gang.
    fn seen_with(&self, line: &Line) -> BTreeMap<(Priority, JobId), Waiting> {
        let mut seen = line.ahead.clone();
        seen.push(line.job);
        seen.extend(self.gang_of(line.job).into_iter().flat_map(|member| member.all()));
        let one = |id: JobId| {
            let waiting = self.queued(id)?;
            Some(((waiting.asked.priority, id), waiting.clone()))
        };
        seen.into_iter().filter_map(one).collect()
    }

    /// Copies the picture, with so much of the queue, and without what only rounds need.
    fn excerpt(&self, queue: BTreeMap<(Priority, JobId), Waiting>) -> Self {
        let ranks: HashMap<JobId, Priority> =
            queue.keys().map(|(rank, job)| (*job, *rank)).collect();
        Self {
            epoch: self.epoch,
            controller: self.controller,
            terms: self.terms,
            policy: Arc::clone(&self.policy),
            nodes: self.nodes.clone(),
            gpus: self.gpus.clone(),
            queue,
            ranks,
            rivals: BTreeMap::new(),
            live: self.live.clone(),
            attempts: self.attempts.clone(),
            mig_views: self.mig_views.clone(),
            moved: BTreeMap::new(),
            hold_until: self.hold_until,
            granted_until: self.granted_until,
            generation_floor: self.generation_floor,
            unsent_plans: Vec::new(),
            words: self.words.clone(),
            wishes: self.wishes.clone(),
            now_unix: self.now_unix,
            moving: self.moving.clone(),
            move_rest: self.move_rest,
            stopwatch: Arc::clone(&self.stopwatch),
            improve_for: self.improve_for,
            reviewed: self.reviewed,
            estimator: self.estimator.clone(),
            ended: super::floors::Ended::default(),
            memory_came: super::foresight::Outcomes::default(),
            largest: self.largest,
            busy: Arc::clone(&self.busy),
            forest: self.forest.clone(),
            asides: self.asides.clone(),
            accounts: self.accounts.clone(),
            book: self.book.clone(),
            lines: BTreeMap::new(),
            stepped: self.stepped,
            recorder: Recorder::default(),
            broken: BTreeSet::new(),
        }
    }

    /// Tells why a job waits, from all that is here.
    pub(super) fn explained(&self, line: &Line, now: Millis) -> Option<WaitingView> {
        let waiting = self.queued(line.job)?;
        let brief = |reason: WaitReason, why: Explanation| WaitingView {
            jobs_ahead: line.jobs_ahead,
            reason: reason.word(),
            why,
            prediction: None,
            memory: waiting.floor.map(|asked| asked.floor),
            alternatives: Vec::new(),
            expected_start: None,
        };
        if now < self.hold_until {
            return Some(brief(WaitReason::PlacementHeld, self.why_held(now)));
        }
        let prediction = self.predict_waiting(waiting);
        if let Some(why) = self.why_promised(line.job, now) {
            let told = brief(WaitReason::AwaitingRepartition, why);
            return Some(WaitingView { prediction, ..told });
        }
        let (reason, why) = self.reason(line, &waiting.asked, now);
        let why = self.with_floor(line.job, why);
        Some(WaitingView {
            prediction,
            alternatives: self.alternatives(line, &waiting.asked, now),
            expected_start: Some(self.expected_start(line, &waiting.asked, now)),
            ..brief(reason, why)
        })
    }

    /// Returns the first of those that stand before a job.
    pub(super) fn ahead<'c>(&'c self, line: &'c Line) -> impl Iterator<Item = &'c QueuedJob> {
        line.ahead.iter().filter_map(|job| Some(&self.queued(*job)?.asked))
    }

    /// Asks the policy as a round would: about the job behind those that stand before it. One that it
    /// passes over then is told what it would be alone, and who has its turn first.
    fn reason(&self, line: &Line, asked: &QueuedJob, now: Millis) -> (WaitReason, Explanation) {
        let view = self.view(now);
        let own = self.with_gang(asked);
        let decide = |queue: &mut dyn Iterator<Item = &QueuedJob>| {
            let forecast = Foresight::new(self, now);
            ask(self.policy.as_ref(), &view, &forecast, queue, now, usize::MAX)
        };
        let inline = decide(&mut self.ahead(line).chain(&own));
        if let Some((reason, mut why)) = inline.iter().find_map(|d| waits(d, asked.id)) {
            why.summary.push_str(&self.sharers_in_the_way(asked, reason, &view, now));
            return (reason, why);
        }
        let starts = |decision: &Decision| names(decision, asked.id);
        if let Some(why) = inline.iter().find(|d| starts(d)).map(why_of) {
            return (WaitReason::Priority, soon(why));
        }
        let alone = decide(&mut own.iter());
        let has_its_turn = |decision: &Decision, job: JobId| {
            waits(decision, job).is_some_and(|(reason, _)| reason.goes_by_itself())
        };
        let mut ahead = line.ahead.iter().copied();
        let first = ahead.find(|job| inline.iter().any(|d| has_its_turn(d, *job)));
        match (alone.iter().find_map(|d| waits(d, asked.id)), first) {
            (Some((reason, mut why)), Some(first)) if reason.goes_by_itself() => {
                why.summary.push_str(&self.sharers_in_the_way(asked, reason, &view, now));
                (WaitReason::Priority, behind_as_well(why, line, first))
            }
            (Some((reason, mut why)), _) => {
                why.summary.push_str(&self.sharers_in_the_way(asked, reason, &view, now));
                (reason, why)
            }
            (None, first) => (WaitReason::Priority, behind(self.policy.name(), line, first)),
        }
    }
}

impl Line {
    fn of(job: JobId, before: &[JobId]) -> Self {
        Self {
            job,
            ahead: before.iter().copied().take(AHEAD_MAX).collect(),
            jobs_ahead: u64::try_from(before.len()).unwrap_or(u64::MAX),
        }
    }
}

fn waits(decision: &Decision, job: JobId) -> Option<(WaitReason, Explanation)> {
    match decision {
        Decision::Wait { job: of, reason, why } if *of == job => Some((*reason, why.clone())),
        Decision::Wait { .. } | Decision::Start { .. } | Decision::Reshape { .. } => None,
    }
}

/// Whether a decision gives a job a place.
fn names(decision: &Decision, job: JobId) -> bool {
    match decision {
        Decision::Start { job: of, .. } => *of == job,
        Decision::Reshape { reshape, .. } => reshape.seats.iter().any(|seat| seat.job == job),
        Decision::Wait { .. } => false,
    }
}

fn why_of(decision: &Decision) -> Explanation {
    match decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. } => why.clone(),
    }
}

fn soon(why: Explanation) -> Explanation {
    let summary = format!(
        "there is a place for it, and it starts in one of the next rounds ({})",
        why.summary
    );
    Explanation { summary, ..why }
}

fn stand(jobs: u64) -> String {
    match jobs {
        1 => "1 job stands".to_owned(),
        jobs => format!("{jobs} jobs stand"),
    }
}

/// Tells a job that has no room, and would not be the first to get it.
fn behind_as_well(alone: Explanation, line: &Line, first: JobId) -> Explanation {
    let many = stand(line.jobs_ahead);
    let summary =
        format!("{}; and {many} before it, of which job {first} waits first", alone.summary);
    let room = alone.would_start_if.map_or_else(String::new, |room| format!(", and then {room}"));
    let would_start_if = Some(format!("job {first} starts or leaves the queue{room}"));
    Explanation { summary, would_start_if, ..alone }
}

/// Tells a job that has room by itself, and not beside those before it.
fn behind(policy: &str, line: &Line, first: Option<JobId>) -> Explanation {
    let many = stand(line.jobs_ahead);
    let (who, until) = match first {
        Some(first) => (
            format!(", of which job {first} waits first"),
            format!("job {first} starts or leaves the queue, and room is left"),
        ),
        None => (String::new(), "those before it have their places, and room is left".to_owned()),
    };
    Explanation {
        policy: policy.to_owned(),
        summary: format!("alone it could start now, but {many} before it{who}"),
        would_start_if: Some(until),
        ..Explanation::default()
    }
}

#[cfg(test)]
mod tests;
