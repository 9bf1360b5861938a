//! Questions about waiting jobs, answered beside the rounds: an answer asks the policy many times, and
//! takes longer than a round may.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::record::Recorder;
use tessera_placement::{Decision, Explanation, WaitReason, ask};

use super::counterfactual::AHEAD_MAX;
use super::foresight::Foresight;
use super::{Cluster, Waiting};
use crate::ports::WaitingView;

/// Why a job waits, to be found out: what the answer needs of the picture, apart from it.
#[derive(Debug)]
pub struct Inquiry {
    job: JobId,
    jobs_ahead: u64,
    cluster: Cluster,
}

impl Inquiry {
    /// Tells why the job waits, computed as if it were its turn.
    ///
    /// `now` is the time of the rounds. `None` only for a job that did not wait when it was asked
    /// about.
    pub fn answer(&self, now: Millis) -> Option<WaitingView> {
        self.cluster.explained(self.job, self.jobs_ahead, now)
    }
}

impl Cluster {
    /// Takes from the picture what it takes to tell why a job waits; `None` if it doesn't wait.
    pub fn inquiry(&self, job: JobId) -> Option<Inquiry> {
        let priority = *self.ranks.get(&job)?;
        let asked = &self.queue.get(&(priority, job))?.asked;
        let jobs_ahead = self.queue.range(..(priority, job)).count();
        Some(Inquiry {
            job,
            jobs_ahead: u64::try_from(jobs_ahead).unwrap_or(u64::MAX),
            cluster: self.excerpt(self.seen_with(asked.id, priority)),
        })
    }

    /// Tells why a job waits; `None` if it doesn't wait.
    pub fn waiting(&self, job: JobId, now: Millis) -> Option<WaitingView> {
        self.inquiry(job)?.answer(now)
    }

    /// Returns the part of the queue that a job's answer looks at: those first in line before it, and
    /// its gang.
    fn seen_with(&self, job: JobId, priority: Priority) -> BTreeMap<(Priority, JobId), Waiting> {
        let gang = self.gang_of(job);
        let mut own = vec![job];
        own.extend(gang.into_iter().flat_map(|member| member.all()));
        let ahead = self.queue.range(..(priority, job)).filter(|((_, id), _)| !own.contains(id));
        let ahead = ahead.take(AHEAD_MAX).map(|(key, waiting)| (*key, waiting.clone()));
        let own = own.iter().filter_map(|id| {
            let key = (*self.ranks.get(id)?, *id);
            Some((key, self.queue.get(&key)?.clone()))
        });
        ahead.chain(own).collect()
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
            reviewed: self.reviewed,
            estimator: self.estimator.clone(),
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
    pub(super) fn explained(
        &self,
        job: JobId,
        jobs_ahead: u64,
        now: Millis,
    ) -> Option<WaitingView> {
        let priority = *self.ranks.get(&job)?;
        let waiting = self.queue.get(&(priority, job))?;
        if now < self.hold_until {
            return Some(WaitingView {
                jobs_ahead,
                reason: WaitReason::PlacementHeld.word(),
                why: self.why_held(now),
                prediction: None,
                alternatives: Vec::new(),
                expected_start: None,
            });
        }
        if let Some(why) = self.why_promised(job, now) {
            return Some(WaitingView {
                jobs_ahead,
                reason: WaitReason::AwaitingRepartition.word(),
                why,
                prediction: self.predict_waiting(waiting),
                alternatives: Vec::new(),
                expected_start: None,
            });
        }
        let view = self.view(now);
        let forecast = Foresight::new(self, now);
        let asked = self.with_gang(&waiting.asked);
        let (mut queue, starts) = (asked.iter(), asked.len());
        let decided = ask(self.policy.as_ref(), &view, &forecast, &mut queue, now, starts);
        let decision = decided.into_iter().next_back();
        let (reason, why) = match decision {
            Some(Decision::Wait { reason, why, .. }) => (reason, why),
            Some(Decision::Start { why, .. } | Decision::Reshape { why, .. }) => {
                (WaitReason::Priority, why)
            }
            None => (WaitReason::Priority, Explanation::default()),
        };
        Some(WaitingView {
            jobs_ahead,
            reason: reason.word(),
            why,
            prediction: self.predict_waiting(waiting),
            alternatives: self.alternatives(&waiting.asked, now),
            expected_start: Some(self.expected_start(&waiting.asked, now)),
        })
    }
}
