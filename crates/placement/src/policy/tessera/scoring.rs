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

/// How long partitioning a GPU may delay a job in addition to its own move, in milliseconds. It is
/// the time to destroy seven instances and create seven, one after the other (co-execution study,
/// table 6), with a small margin.
pub(super) const CUT_MS: f64 = 2_000.0;

/// The factor by which the placement of a job without slack before its deadline counts more.
/// Chosen: such a job may displace any other.
const URGE: f64 = 4.0;

/// A job is placed before others if its slack before the deadline is below so many times its
/// remaining time. Chosen.
const PRESSED: f64 = 0.5;

/// A preference between slices on which a job is about equally fast. It changes only scores:
/// whether a job meets its deadline is decided by the times themselves.
pub(super) trait SlicePreference {
    /// Returns the factor by which a job's time on an instance counts as longer.
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

/// The inputs from which the scores of one round are computed.
#[derive(Clone, Copy)]
pub(super) struct Scoring<'c> {
    pub(super) settings: &'c Tessera,
    pub(super) cluster: &'c ClusterView,
    pub(super) knowledge: Knowledge<'c>,
    pub(super) now: Millis,
    pub(super) horizon: Horizon,
    /// `None` means that equal times score equally.
    pub(super) preference: Option<&'c dyn SlicePreference>,
}

/// A job's remaining and finished work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) left: RemainingWork,
    /// The time that its finished part takes on a whole GPU, in milliseconds.
    pub(super) done_ms: f64,
}

/// What is known of one job in this round.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredJob {
    pub(super) weight: f64,
    done: Option<f64>,
    /// Its total time on the whole GPU on which it is fastest.
    whole_time: Option<WeighedTime>,
    /// Its remaining time there, in milliseconds.
    left_ms: Option<f64>,
    /// Whether it runs, or has run and kept its finished work.
    begun: bool,
    /// The time that a migration costs; `None` if it can't be migrated.
    migration_price: Option<Millis>,
    deadline: Option<Millis>,
}

impl ScoredJob {
    /// Returns the remaining part of its work, as a fraction of one.
    pub(super) fn left(&self) -> f64 {
        1.0 - self.done.unwrap_or(0.0)
    }
}

/// The scores of jobs, computed once a round.
#[derive(Default)]
pub(super) struct ScoreRows {
    facts: BTreeMap<JobId, ScoredJob>,
    /// The scores on the job's own GPU, by GPU, and on other GPUs, by model.
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

    /// Returns the urgency of a waiting job before ageing: shorter jobs, and jobs that need a
    /// smaller part of a GPU, come first. It is the geometric mean of both. With the part of a GPU
    /// alone, mean times were as good, and the slowest twentieth of the jobs was slower.
    pub(super) fn eagerness(&self, kinds: &[usize], job: JobId) -> JobWeight {
        let left = self.ahead(kinds, job).map(|ahead| ahead.left);
        let cost = left.map(|left| (float_sum(left.whole_ms) * float_sum(left.work_ms)).sqrt());
        let weight = short(cost).powf(self.settings.eagerness);
        let deadline = self.knowledge.jobs.facts(job).deadline;
        JobWeight { weight, left: left.unwrap_or_default(), deadline }
    }

    /// Returns the remaining and the finished part of a job; nothing if that is unknown.
    pub(super) fn ahead(&self, kinds: &[usize], job: JobId) -> Option<Ahead> {
        let (all, done) = self.on_whole(kinds, job, &self.knowledge.jobs.facts(job))?;
        let work = self.work_ms(kinds, job).unwrap_or(all);
        let left = |all: f64| u128::from(whole_ms(all * (1.0 - done)));
        let left = RemainingWork { whole_ms: left(all), work_ms: left(work) };
        Some(Ahead { left, done_ms: all * done })
    }

    /// Returns the remaining time of a job on a whole GPU, in milliseconds.
    fn left_ms(&self, kinds: &[usize], job: JobId, known: &JobFacts) -> Option<f64> {
        let (all, done) = self.on_whole(kinds, job, known)?;
        Some(all * (1.0 - done))
    }

    /// Returns the total time of a job on a whole GPU, in milliseconds, and its finished part.
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

    /// Returns the least GPU time of a job over all instances, in milliseconds of a whole GPU: the
    /// time on an instance multiplied by the instance's part of the GPU.
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

    /// Returns whether a job's remaining time on a whole GPU is longer than its migration takes.
    pub(super) fn outlasts_move(&self, kinds: &[usize], job: JobId) -> bool {
        let known = self.knowledge.jobs.facts(job);
        let price = known.migration_price.map(float);
        price.zip(self.left_ms(kinds, job, &known)).is_some_and(|(price, left)| price < left)
    }

    /// Returns the factor by which the placement of a job with a deadline counts more; it grows as
    /// the slack shrinks. A job that is late in any case counts like other jobs.
    fn urge(&self, left_ms: Option<f64>, deadline: Option<Millis>) -> f64 {
        let Some((left, deadline)) = left_ms.zip(deadline) else { return 1.0 };
        let spare = float(deadline) - float(self.now) - left;
        if spare < 0.0 { 1.0 } else { 1.0 + URGE / (1.0 + (spare / left.max(1.0)).powi(2)) }
    }

    /// Returns whether a job has to begin soon to meet its deadline.
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
            // A running job has to be launched again in any other placement, whether it has
            // finished work or not.
            begun: done.is_some_and(|done| done > 0.0) || known.since.is_some(),
            migration_price: known.migration_price,
            deadline: known.deadline,
        }
    }

    /// Returns the score of a job on an instance, less the cost of moving there. `None` if it can't
    /// run there, or would miss its deadline only there.
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

    /// Returns the same for a job whose time on this instance, alone or with co-runners, is `here`.
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
        // Of two slices on which it is about equally fast, the smaller one uses less energy.
        let all = self.mig(at)?.largest()?.compute_slices;
        let part = f64::from(on.compute_slices) / f64::from(all.max(1));
        let spared = 1.0 - self.settings.thrift * part;
        // Speeds are millionths; weights of long jobs are small, so that a finer unit is kept.
        Some(whole_score(float_of(speed) * facts.weight * kept * spared * preferred))
    }
}

/// Where a job runs now, relative to the instance in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CurrentPlace {
    /// On that very instance.
    There,
    /// On another one of the same GPU.
    OnSameGpu,
    /// It does not run on the GPU.
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

    /// Returns the score of a job in its current placement, on an instance that is in no full
    /// layout of plain profiles.
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

/// Returns the finished part of a job's work.
fn done_of(known: &JobFacts) -> Option<f64> {
    Some(f64::from(known.done?) / 1_000_000.0)
}

/// Returns how many such jobs a whole GPU finishes in an hour.
fn short(left_ms: Option<f64>) -> f64 {
    3_600_000.0 / left_ms.unwrap_or(3_600_000.0).max(1_000.0)
}
