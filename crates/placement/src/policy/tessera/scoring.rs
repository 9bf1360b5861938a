//! The score of a job in each place, at one moment.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::mig::{Profile, Slot};
use tessera_model::{JobId, Millis};

use super::Tessera;
use super::horizon::Horizon;
use super::rounding::{float, float_of, float_sum, whole_ms, whole_score};
use super::waiting::{JobWeight, RemainingWork};
use crate::decision::PlacedJob;
use crate::facts::JobFacts;
use crate::placement_search::{self, NO_PLACEMENT};
use crate::predictor::{Knowledge, RunTime};
use crate::view::{ClusterView, GpuView, MigView};

/// What cutting a GPU may keep a job waiting in addition to its own move, in milliseconds. It is seven instances
/// destroyed and seven created, one after the other (co-execution study, table 6), and a little.
pub(super) const CUT_MS: f64 = 2_000.0;

/// How much more the placement of a job counts that has no time to spare. Chosen: such a job may take the
/// place of any other.
const URGE: f64 = 4.0;

/// How much time a job has to spare that is placed before others, in multiples of what is left of it. Chosen.
const PRESSED: f64 = 0.5;

/// Which of two slices is better on which a job is about as fast. It changes scores alone: what ends in time is
/// decided by the times themselves.
pub(super) trait SlicePreference {
    /// Returns how many times as long a job's time on an instance counts, as the predictor knows it.
    fn stretch(&self, job: JobId, run: RunTime, gpu: &GpuView, on: &Profile) -> f64;

    /// Returns the same for a time next to co-runners.
    fn stretch_shared(&self, on: &Profile) -> f64;
}

/// A job's time on an instance, and by how much longer it counts in scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeighedTime {
    pub(super) time: Millis,
    pub(super) stretch: f64,
}

/// What the score of jobs in a round is worked out from.
#[derive(Clone, Copy)]
pub(super) struct Scoring<'c> {
    pub(super) settings: &'c Tessera,
    pub(super) cluster: &'c ClusterView,
    pub(super) knowledge: Knowledge<'c>,
    pub(super) now: Millis,
    pub(super) horizon: Horizon,
    /// Without it equal times are equally good.
    pub(super) preference: Option<&'c dyn SlicePreference>,
}

/// What lies ahead of a job, and behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) left: RemainingWork,
    /// What a whole GPU would take for what it has done, in milliseconds.
    pub(super) done_ms: f64,
}

/// What is known of one job in this round.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredJob {
    pub(super) weight: f64,
    done: Option<f64>,
    /// What all of it takes on the whole GPU on which it is fastest.
    whole_time: Option<WeighedTime>,
    /// What is left of it there, in milliseconds.
    left_ms: Option<f64>,
    /// Whether it runs, or has run and kept what it did.
    begun: bool,
    /// What a move of it costs, if it can be moved.
    migration_price: Option<Millis>,
    /// When it has to be done.
    deadline: Option<Millis>,
}

impl ScoredJob {
    /// Returns what is left of it, in parts of one.
    pub(super) fn left(&self) -> f64 {
        1.0 - self.done.unwrap_or(0.0)
    }
}

/// The scores of jobs, computed once a round.
#[derive(Default)]
pub(super) struct ScoreRows {
    facts: BTreeMap<JobId, ScoredJob>,
    /// Where a job sits, by GPU; elsewhere, by model.
    at_home: BTreeMap<(JobId, usize), Rc<[i64]>>,
    elsewhere: BTreeMap<(JobId, usize), Rc<[i64]>>,
}

impl<'c> Scoring<'c> {
    pub(super) fn view(&self, at: usize) -> &'c GpuView {
        &self.cluster.gpus[at]
    }

    pub(super) fn mig(&self, at: usize) -> Option<&'c MigView> {
        self.view(at).mig.as_deref()
    }

    /// Returns what orders jobs that wait, before it ages: the shortest first, of equals those that
    /// keep the least of a GPU from others. (The mean of the two, as they multiply: by its part of
    /// a GPU alone, the order is as good for the mean and worse for the slowest twentieth.)
    pub(super) fn eagerness(&self, kinds: &[usize], job: JobId) -> JobWeight {
        let left = self.ahead(kinds, job).map(|ahead| ahead.left);
        let cost = left.map(|left| (float_sum(left.whole_ms) * float_sum(left.work_ms)).sqrt());
        let weight = short(cost).powf(self.settings.eagerness);
        let deadline = self.knowledge.jobs.facts(job).deadline;
        JobWeight { weight, left: left.unwrap_or_default(), deadline }
    }

    /// Returns what is left of a job and what is done of it; nothing if that is unknown.
    pub(super) fn ahead(&self, kinds: &[usize], job: JobId) -> Option<Ahead> {
        let (all, done) = self.on_whole(kinds, job, &self.knowledge.jobs.facts(job))?;
        let work = self.work_ms(kinds, job).unwrap_or(all);
        let left = |all: f64| u128::from(whole_ms(all * (1.0 - done)));
        let left = RemainingWork { whole_ms: left(all), work_ms: left(work) };
        Some(Ahead { left, done_ms: all * done })
    }

    /// Returns what is left of a job on a whole GPU, in milliseconds.
    fn left_ms(&self, kinds: &[usize], job: JobId, known: &JobFacts) -> Option<f64> {
        let (all, done) = self.on_whole(kinds, job, known)?;
        Some(all * (1.0 - done))
    }

    /// Returns what all of a job takes on a whole GPU, in milliseconds, and what part is done.
    fn on_whole(&self, kinds: &[usize], job: JobId, known: &JobFacts) -> Option<(f64, f64)> {
        Some((float(self.whole_time(kinds, job)?.time), done_of(known)?))
    }

    /// Returns how long a job takes on the whole GPU on which it is fastest.
    fn whole_time(&self, kinds: &[usize], job: JobId) -> Option<WeighedTime> {
        let times = kinds.iter().filter_map(|at| {
            let largest = self.mig(*at)?.largest()?;
            self.time_on(*at, job, largest)
        });
        times.min_by_key(|weighed| weighed.time)
    }

    /// Returns how long a job takes alone on an instance.
    fn time_on(&self, at: usize, job: JobId, on: &Profile) -> Option<WeighedTime> {
        let run = self.knowledge.predictor.predict_run(job, self.view(at), on)?;
        let stretch = |known: &dyn SlicePreference| known.stretch(job, run, self.view(at), on);
        Some(WeighedTime { time: run.time, stretch: self.preference.map_or(1.0, stretch) })
    }

    /// Returns a time on an instance next to co-runners.
    pub(super) fn shared_time(&self, time: Millis, on: &Profile) -> WeighedTime {
        let stretch = self.preference.map_or(1.0, |known| known.stretch_shared(on));
        WeighedTime { time, stretch }
    }

    /// Returns what all of a job takes on the instance where that is least, as the time that a whole
    /// GPU has for as much of itself, in milliseconds.
    fn work_ms(&self, kinds: &[usize], job: JobId) -> Option<f64> {
        let least = kinds.iter().filter_map(|at| {
            let mig = self.mig(*at)?;
            let largest = mig.largest()?;
            let cost = |id| {
                let profile = mig.geometry.profile(id)?;
                let time = self.knowledge.predictor.time_alone(job, self.view(*at), profile)?;
                let part = |own: u8, all: u8| f64::from(own) / f64::from(all.max(1));
                let compute = part(profile.compute_slices, largest.compute_slices);
                let memory = part(profile.memory_slices, largest.memory_slices);
                Some(float(time) * compute.max(memory))
            };
            mig.layout_index().profiles().iter().filter_map(|id| cost(*id)).reduce(f64::min)
        });
        least.reduce(f64::min)
    }

    /// Returns whether a job has more left, on a whole GPU, than a move of it costs.
    pub(super) fn outlasts_move(&self, kinds: &[usize], job: JobId) -> bool {
        let known = self.knowledge.jobs.facts(job);
        let price = known.migration_price.map(float);
        price.zip(self.left_ms(kinds, job, &known)).is_some_and(|(price, left)| price < left)
    }

    /// Returns by how much more a job's placement counts that has to be done soon: the less time it has to
    /// spare, the more. What is late anyway counts no more than other jobs.
    fn urge(&self, left_ms: Option<f64>, deadline: Option<Millis>) -> f64 {
        let Some((left, deadline)) = left_ms.zip(deadline) else { return 1.0 };
        let spare = float(deadline) - float(self.now) - left;
        if spare < 0.0 { 1.0 } else { 1.0 + URGE / (1.0 + (spare / left.max(1.0)).powi(2)) }
    }

    /// Whether a job has to begin soon to be done by its deadline.
    pub(super) fn is_pressed(&self, kinds: &[usize], job: JobId) -> bool {
        let known = self.knowledge.jobs.facts(job);
        let left = self.left_ms(kinds, job, &known).zip(known.deadline);
        left.is_some_and(|(left, deadline)| {
            let spare = float(deadline) - float(self.now) - left;
            (0.0..=PRESSED * left).contains(&spare)
        })
    }

    fn facts(&self, kinds: &[usize], job: JobId) -> ScoredJob {
        let known = self.knowledge.jobs.facts(job);
        let whole_time = self.whole_time(kinds, job);
        let done = done_of(&known);
        let left_ms = whole_time.zip(done).map(|(all, done)| float(all.time) * (1.0 - done));
        let weight = short(left_ms).powf(self.settings.shortness);
        let driven = self.horizon.drive(self.settings, left_ms, known.online);
        let driven = driven * self.urge(left_ms, known.deadline);
        ScoredJob {
            weight: weight * driven,
            done,
            whole_time,
            left_ms,
            // Who runs has to be launched again wherever it goes, with work done or without.
            begun: done.is_some_and(|done| done > 0.0) || known.since.is_some(),
            migration_price: known.migration_price,
            deadline: known.deadline,
        }
    }

    /// Returns the score of a job on an instance, less what moving there costs; `None` if it
    /// can't be there, or would be late there and nowhere else.
    fn score(
        &self,
        at: usize,
        job: JobId,
        facts: &ScoredJob,
        current: CurrentPlace,
        on: &Profile,
    ) -> Option<i64> {
        let here = self.time_on(at, job, on)?;
        self.score_of(at, facts, here, current, on)
    }

    /// Returns the same for a job that takes so long `here`, alone or next to others.
    pub(super) fn score_of(
        &self,
        at: usize,
        facts: &ScoredJob,
        here: WeighedTime,
        current: CurrentPlace,
        on: &Profile,
    ) -> Option<i64> {
        let whole = facts.whole_time?;
        let speed = placement_search::speed_of(here.time, whole.time)?;
        let preferred = whole.stretch / here.stretch;
        let done = facts.done?;
        let left = float(here.time) * (1.0 - done);
        let price = match (current == CurrentPlace::There, facts.begun) {
            (true, _) | (false, false) => 0.0,
            (false, true) => float(facts.migration_price?),
        };
        let kept = left / (left + price).max(1.0);
        if current != CurrentPlace::There {
            let late = |left: f64| {
                let ends = float(self.now) + left;
                facts.deadline.is_some_and(|deadline| ends > float(deadline))
            };
            let cut = if facts.begun { CUT_MS } else { 0.0 };
            if late(left + price + cut) && !late(left.min(facts.left_ms?)) {
                return None;
            }
        }
        // Of two slices on which it is about as fast the smaller one draws less.
        let all = self.mig(at)?.largest()?.compute_slices;
        let part = f64::from(on.compute_slices) / f64::from(all.max(1));
        let spared = 1.0 - self.settings.thrift * part;
        // Speeds are millionths; weights of long jobs are small, so that a finer unit is kept.
        Some(whole_score(float_of(speed) * facts.weight * kept * spared * preferred))
    }
}

/// Where a job sits already, seen from the instance in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CurrentPlace {
    /// On that very instance.
    There,
    /// On another one of the same GPU.
    OnSameGpu,
    /// On no instance of the GPU.
    Elsewhere,
}

impl ScoreRows {
    /// Returns a job's score in each slot of a GPU; `home` is its own slot there, if it has one.
    pub(super) fn row(
        &mut self,
        scoring: &Scoring<'_>,
        kinds: &[usize],
        at: usize,
        kind: usize,
        job: JobId,
        home: Option<Option<Slot>>,
    ) -> Rc<[i64]> {
        let (known, key) = match home {
            Some(_) => (&mut self.at_home, (job, at)),
            None => (&mut self.elsewhere, (job, kind)),
        };
        if let Some(row) = known.get(&key) {
            return Rc::clone(row);
        }
        let facts = *self.facts.entry(job).or_insert_with(|| scoring.facts(kinds, job));
        let row: Rc<[i64]> = made(scoring, at, job, &facts, home).into();
        known.insert(key, Rc::clone(&row));
        row
    }

    pub(super) fn facts(
        &mut self,
        scoring: &Scoring<'_>,
        kinds: &[usize],
        job: JobId,
    ) -> ScoredJob {
        *self.facts.entry(job).or_insert_with(|| scoring.facts(kinds, job))
    }

    /// Returns the score of a job where it sits, on an instance that is in no full layout of plain
    /// profiles.
    pub(super) fn odd(
        &mut self,
        scoring: &Scoring<'_>,
        kinds: &[usize],
        at: usize,
        placed: PlacedJob,
    ) -> i64 {
        let facts =
            *self.facts.entry(placed.job).or_insert_with(|| scoring.facts(kinds, placed.job));
        let score = || {
            let profile = scoring.mig(at)?.geometry.profile(placed.slot?.profile)?;
            scoring.score(at, placed.job, &facts, CurrentPlace::There, profile)
        };
        score().unwrap_or(0)
    }
}

fn made(
    scoring: &Scoring<'_>,
    at: usize,
    job: JobId,
    facts: &ScoredJob,
    home: Option<Option<Slot>>,
) -> Vec<i64> {
    let Some(mig) = scoring.mig(at) else { return Vec::new() };
    let current = if home.is_some() { CurrentPlace::OnSameGpu } else { CurrentPlace::Elsewhere };
    let of = |id, current| {
        let profile = mig.geometry.profile(id);
        let score = profile.and_then(|profile| scoring.score(at, job, facts, current, profile));
        score.unwrap_or(NO_PLACEMENT)
    };
    let layout_index = mig.layout_index();
    let by_profile: Vec<i64> = layout_index.profiles().iter().map(|id| of(*id, current)).collect();
    let mut row = layout_index.row(&by_profile);
    if let Some(slot) = home.flatten()
        && let Some(number) = layout_index.number(slot)
    {
        row[number] = of(slot.profile, CurrentPlace::There);
    }
    row
}

/// Returns what part of a job is done.
fn done_of(known: &JobFacts) -> Option<f64> {
    Some(f64::from(known.done?) / 1_000_000.0)
}

/// Returns how many such jobs an hour of a whole GPU finishes.
fn short(left_ms: Option<f64>) -> f64 {
    3_600_000.0 / left_ms.unwrap_or(3_600_000.0).max(1_000.0)
}
