//! What is foretold of jobs: how long each takes, where, and how much of it is done.
//!
//! Runs are learned as they end; a reload learns the newest ones again from the store.

use serde::{Deserialize, Serialize};
use tessera_model::life::Outcome;
use tessera_model::mig::{Profile, Slot};
use tessera_model::share::Share;
use tessera_model::spec::{Class, JobSpec};
use tessera_model::task::task_key;
use tessera_model::{Bytes, GpuId, JobId, Millis};
use tessera_placement::{
    Basis, Demand, Forecast, GpuView, MigView, Prediction, SliceKind, could_hold,
};
use tessera_wire::frames::ExitRecord;

use super::{Cluster, Live, Waiting};
use std::sync::Arc;

/// How far a job that overruns its prediction is believed to be: never done before its end.
const DONE_MAX: u32 = 990_000;

/// What placement weighs of a job besides its ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What its runs share with those of other jobs; empty, if that is not known.
    pub task: String,
    /// Longest run time of one attempt, as its user says.
    pub limit: Option<Millis>,
    /// Whether it can put its work aside and go on elsewhere: it says how, and has its slice to
    /// itself.
    pub movable: bool,
    /// Whether somebody waits for its answers.
    pub online: bool,
    /// How long it may take to put its work aside.
    pub grace: Millis,
}

impl Facts {
    /// Takes from a specification what is weighed.
    pub fn of(spec: &JobSpec) -> Self {
        Self {
            task: task_key(&spec.user, spec.task_key.as_deref(), &spec.program),
            limit: spec.time_limit,
            movable: spec.checkpoint_signal.is_some() && spec.share == Share::Exclusive,
            online: spec.class == Class::Online,
            grace: spec.grace,
        }
    }
}

/// What was foretold of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foretold {
    /// The task.
    pub task: String,
    /// On what it runs.
    pub on: SliceKind,
    /// Whether the attempt has the whole job before it.
    pub whole: bool,
    /// What of it; `None` where nothing was known.
    pub prediction: Option<Prediction>,
}

/// A run that is learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// The task.
    pub task: String,
    /// On what it ran.
    pub on: SliceKind,
    /// How long.
    pub ran: Millis,
    /// The most GPU memory that it was seen to have.
    pub peak: Option<Bytes>,
}

impl Cluster {
    /// Learns from runs of the past, the oldest first.
    pub(super) fn learn(&mut self, lessons: &[Lesson]) {
        self.estimator.clear();
        for lesson in lessons {
            self.estimator.learn(&lesson.task, &lesson.on, lesson.ran);
            if let Some(peak) = lesson.peak {
                self.estimator.learn_memory(&lesson.task, peak);
            }
        }
    }

    /// Returns what kind of slice a place is.
    pub(super) fn kind_of(&self, gpu: &GpuId, slot: Option<Slot>) -> Option<SliceKind> {
        let gpu = self.gpus.get(gpu)?;
        match (slot, gpu.mig.as_deref()) {
            (None, _) => Some(SliceKind::whole(&gpu.report.model)),
            (Some(slot), Some(mig)) => {
                kind(&gpu.report.model, mig, mig.geometry.profile(slot.profile)?)
            }
            (Some(_), None) => None,
        }
    }

    /// Predicts a whole run of a job on such a slice.
    pub(super) fn predict(&self, facts: &Facts, on: &SliceKind) -> Option<Prediction> {
        let known = match facts.task.is_empty() {
            false => self.estimator.predict(&facts.task, on),
            true => None,
        };
        known.map(|known| known.within(facts.limit)).or(facts.limit.map(Prediction::by_limit))
    }

    /// Foretells an attempt that has its slice to itself.
    pub(super) fn foretell(
        &self,
        facts: &Facts,
        done: u32,
        gpu: &GpuId,
        slot: Option<Slot>,
    ) -> Option<Foretold> {
        let on = self.kind_of(gpu, slot)?;
        let prediction = self.predict(facts, &on).map(|whole| whole.left(done));
        Some(Foretold { task: facts.task.clone(), on, whole: done == 0, prediction })
    }

    /// Learns from an end, and returns what came of the prediction.
    pub(super) fn learn_end(&mut self, live: &Live, record: &ExitRecord) -> Option<Millis> {
        let ran = ran(record).filter(|_| record.outcome == Outcome::Succeeded)?;
        let foretold = live.foretold.as_ref()?;
        if foretold.whole && !foretold.task.is_empty() {
            self.estimator.learn(&foretold.task, &foretold.on, ran);
        }
        Some(ran)
    }

    /// Returns how much of its job an attempt that ended has put aside, in millionths.
    pub(super) fn put_aside(&self, live: &Live, record: &ExitRecord) -> u32 {
        let aside = record.outcome == Outcome::Preempted && live.facts.movable;
        match (aside, ran(record)) {
            (true, Some(ran)) => self.progress(live, ran),
            _ => live.done,
        }
    }

    /// Returns how much of a job is done after its attempt has run so long.
    pub(super) fn progress(&self, live: &Live, ran: Millis) -> u32 {
        let on = live.foretold.as_ref().map(|foretold| &foretold.on);
        let known = on.and_then(|on| self.predict(&live.facts, on));
        let Some(whole) = known.filter(|known| known.basis != Basis::TimeLimit) else {
            return live.done;
        };
        let more = u128::from(ran.get()) * 1_000_000 / u128::from(whole.expected.get().max(1));
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        live.done.saturating_add(more).min(DONE_MAX.max(live.done))
    }

    /// Predicts what is left of a job that waits, on the tightest slice that suits it.
    pub(super) fn predict_waiting(&self, waiting: &Waiting) -> Option<Prediction> {
        if waiting.asked.share.is_some() {
            return None;
        }
        let tightest = self.gpus.values().filter_map(|gpu| {
            let Some(mig) = gpu.mig.as_deref() else {
                return Some((gpu.report.memory, SliceKind::whole(&gpu.report.model)));
            };
            let suits = |profile: &&Profile| could_hold(&waiting.asked.gpu, mig, profile);
            let profile = mig.plain().find(suits)?;
            Some((profile.memory, kind(&gpu.report.model, mig, profile)?))
        });
        let (_, on) = tightest.min()?;
        self.predict(&waiting.facts, &on).map(|whole| whole.left(waiting.done))
    }
}

fn ran(record: &ExitRecord) -> Option<Millis> {
    let both = record.started_unix > Millis::ZERO && record.ended_unix >= record.started_unix;
    both.then(|| record.ended_unix.minus(record.started_unix))
}

/// Returns the kind of an instance of the profile.
fn kind(model: &str, mig: &MigView, profile: &Profile) -> Option<SliceKind> {
    let whole = u16::from(mig.geometry.largest()?.compute_slices.max(1));
    Some(SliceKind {
        model: model.to_owned(),
        profile: profile.name.to_string(),
        part: u16::from(profile.compute_slices) * 1_000 / whole,
    })
}

/// What policies are told of jobs.
#[derive(Debug)]
pub(super) struct Foresight<'c> {
    cluster: &'c Cluster,
    now: Millis,
}

/// A job, wherever it stands.
struct Known<'c> {
    facts: &'c Facts,
    live: Option<&'c Live>,
    done: u32,
    ask: &'c tessera_model::spec::GpuAsk,
}

impl<'c> Foresight<'c> {
    pub(super) const fn new(cluster: &'c Cluster, now: Millis) -> Self {
        Self { cluster, now }
    }

    fn known(&self, job: JobId) -> Option<Known<'c>> {
        if let Some(attempt) = self.cluster.attempts.get(&job) {
            let live = self.cluster.live.get(attempt)?;
            let (facts, ask) = (&*live.facts, &live.asked);
            return Some(Known { facts, live: Some(live), done: live.done, ask });
        }
        let rank = self.cluster.ranks.get(&job)?;
        let waiting = self.cluster.queue.get(&(*rank, job))?;
        let (facts, ask) = (&*waiting.facts, &waiting.asked.gpu);
        Some(Known { facts, live: None, done: waiting.done, ask })
    }
}

impl Forecast for Foresight<'_> {
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        let known = self.known(job)?;
        let mig = gpu.mig.as_deref()?;
        let enough = self.cluster.estimator.memory(&known.facts.task);
        if !could_hold(known.ask, mig, profile) || enough.is_some_and(|peak| peak > profile.memory)
        {
            return None;
        }
        let whole = self.cluster.predict(known.facts, &kind(&gpu.model, mig, profile)?)?;
        // A limit says when a job ends at the latest, and nothing of slices.
        (whole.basis != Basis::TimeLimit).then(|| whole.expected.max(Millis::new(1)))
    }

    fn done(&self, job: JobId) -> Option<u32> {
        let known = self.known(job)?;
        if known.facts.task.is_empty() {
            return None;
        }
        match known.live.map(|live| (live, live.began)) {
            Some((live, Some(began))) => Some(self.cluster.progress(live, self.now.minus(began))),
            Some((_, None)) | None => Some(known.done),
        }
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.known(job)?.live?.began
    }

    fn move_price(&self, job: JobId) -> Option<Millis> {
        let known = self.known(job)?;
        let Some(live) = known.live else {
            // What was put aside has been paid for.
            return known.facts.movable.then_some(Millis::ZERO);
        };
        let attempt = *self.cluster.attempts.get(&job)?;
        let rest = self.cluster.move_rest;
        let rested = live.began.is_some_and(|began| self.now >= began.plus(rest));
        (rested && self.cluster.may_move(attempt, self.now)).then(|| self.cluster.move_cost(live))
    }

    fn deadline(&self, _: JobId) -> Option<Millis> {
        None
    }

    fn online(&self, job: JobId) -> bool {
        self.known(job).is_some_and(|known| known.facts.online)
    }

    fn demand(&self, _: JobId) -> Option<Demand> {
        None
    }
}

/// Returns facts of which nothing is known.
pub(super) fn unknown() -> Arc<Facts> {
    Arc::default()
}
