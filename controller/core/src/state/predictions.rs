//! The learned behaviour of tasks: run times, memory, co-location, checkpoints.

use crate::colocation::TrustedColocation;
use crate::colocation::known;
use crate::kernel_sharing::{service_order, set_mps_client, set_service_order};
use crate::memory::AwaitedMemory;
use crate::predictions::AttemptPrediction;
use crate::predictions::trained::RunEstimator;
use crate::predictions::{AttemptRunTimes, OutcomeCounts, RunSample, TaskFacts};
use crate::state::attempts::LiveAttempt;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_frames::cluster::ExitRecord;
use tessera_model::life::Outcome;
use tessera_model::mig::Profile;
use tessera_model::number::clamped;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};
use tessera_placement::{
    Basis, Estimator as _, GpuView, KernelSharer, MpsClient, Prediction, SharingRequest, SliceKind,
    SpeedBasis, SpeedRange, TaskLoad,
};
use tessera_predict::colocation::SharingClient;
use tessera_predict::contention;

/// The learned behaviour of tasks, and the checkpointed work of unfinished jobs.
#[derive(Debug, Default)]
pub(crate) struct Predictions {
    /// How long tasks take, and what memory they need.
    pub(crate) estimator: RunEstimator,
    /// The tasks of ended attempts whose memory use is not known yet.
    pub(crate) awaiting_memory: AwaitedMemory,
    /// Outcomes of predicted memory that are not reported yet.
    pub(crate) memory_outcomes: OutcomeCounts,
    /// What is measured about tasks' time on the device.
    pub(crate) loads: Arc<BTreeMap<String, TaskLoad>>,
    /// How fast co-located jobs are under MPS.
    pub(crate) colocation: TrustedColocation,
    /// How long unfinished jobs ran before they checkpointed, by kind of slice.
    pub(crate) checkpoints: BTreeMap<JobId, Vec<(SliceKind, Millis)>>,
}

const MILLION: u64 = 1_000_000;

/// Maximum number of kinds of slices for which one job's checkpoints are remembered; each one needs
/// a migration.
const CHECKPOINTS_MAX: usize = 16;

pub(crate) fn part_of(time: Millis, by: u64, over: u64) -> Millis {
    let part = u128::from(time.get()) * u128::from(by) / u128::from(over.max(1));
    Millis::new(clamped(part))
}

pub(crate) fn ran(record: &ExitRecord) -> Option<Millis> {
    let both = record.started_unix > Millis::ZERO && record.ended_unix >= record.started_unix;
    both.then(|| record.ended_unix.minus(record.started_unix))
}

/// The assumed cost of a migration if none of the task was measured: write the checkpoint, change
/// the layout, read the checkpoint. MISO's controllers were measured at 30 s.
pub(crate) const MIGRATION_COST: Millis = Millis::from_secs(30);

/// Returns the key under which a task's migrations are learned. No task has such a key, since each
/// begins with a user.
fn move_of(task: &str) -> String {
    format!("\u{0}move of {task}")
}

/// Returns the key under which a task's checkpoints are learned.
fn checkpoint_of(task: &str) -> String {
    format!("\u{0}checkpoint of {task}")
}

/// Returns the kind of slice under which migrations are learned: their cost does not depend on it.
fn any_place() -> SliceKind {
    SliceKind::whole("")
}

/// Returns the kind of a slice; no profile is a whole GPU with MIG off.
fn slice_kind(gpu: &GpuView, profile: Option<&Profile>) -> Option<SliceKind> {
    match (profile, gpu.mig.as_deref()) {
        (Some(profile), Some(mig)) => crate::state::inventory::kind(&gpu.model, mig, profile),
        (Some(_), None) => None,
        (None, _) => Some(SliceKind::whole(&gpu.model)),
    }
}

fn speed_range(prediction: tessera_predict::Prediction) -> SpeedRange {
    let [low, expected, high] =
        [prediction.low, prediction.value, prediction.high].map(clamped::<u32>);
    SpeedRange { low: low.min(expected), expected, high: high.max(expected) }
}

impl Predictions {
    /// Copies the parts that explain queries need, without those that only rounds need.
    pub(crate) fn excerpt(&self) -> Self {
        Self {
            estimator: self.estimator.clone(),
            awaiting_memory: AwaitedMemory::default(),
            memory_outcomes: OutcomeCounts::default(),
            loads: Arc::clone(&self.loads),
            colocation: self.colocation.clone(),
            checkpoints: self.checkpoints.clone(),
        }
    }

    /// Learns from earlier runs, the oldest first.
    pub(crate) fn learn_runs(&mut self, samples: &[RunSample]) {
        self.estimator.clear();
        for sample in samples {
            self.estimator.learn(&sample.task, &sample.on, sample.ran);
        }
    }

    /// Returns whether runs of a job's task are known, on any slices.
    pub(crate) fn knows_runs_of(&self, facts: &TaskFacts) -> bool {
        !facts.task.is_empty() && self.estimator.knows(&facts.task)
    }

    /// Predicts a whole run of a job on such a slice.
    pub(crate) fn predict(&self, facts: &TaskFacts, on: &SliceKind) -> Option<Prediction> {
        let known = match facts.task.is_empty() {
            false => self.estimator.predict(&facts.task, on),
            true => None,
        };
        known.map(|known| known.within(facts.limit)).or(facts.limit.map(Prediction::by_limit))
    }

    /// Predicts the remaining time of a job that doesn't run, on such a slice.
    pub(crate) fn predict_rest(
        &self,
        job: JobId,
        facts: &TaskFacts,
        done: u32,
        on: &SliceKind,
    ) -> Option<Prediction> {
        let whole = self.predict(facts, on)?;
        // A limit applies to each attempt separately.
        let lasted = match whole.basis {
            Basis::TimeLimit => Millis::ZERO,
            _ => self.elapsed(job, facts, done, on),
        };
        Some(whole.after(lasted).within(facts.limit))
    }

    /// Predicts an attempt that has such a slice to itself.
    pub(crate) fn predict_attempt(
        &self,
        job: JobId,
        facts: &TaskFacts,
        done: u32,
        on: SliceKind,
    ) -> AttemptPrediction {
        let prediction = self.predict_rest(job, facts, done, &on);
        let whole = done == 0 && !self.checkpoints.contains_key(&job);
        let learned = prediction.is_some_and(|known| known.basis == Basis::Learned);
        let model = self.estimator.model().filter(|_| learned);
        let model = model.map(|(model, _)| model.fingerprint());
        AttemptPrediction { task: facts.task.clone(), on, whole, prediction, model }
    }

    /// Returns how long a job's work before its current attempt would have taken on such a slice.
    fn elapsed(&self, job: JobId, facts: &TaskFacts, done: u32, on: &SliceKind) -> Millis {
        let expected = |kind: &SliceKind| self.predict(facts, kind).map(|whole| whole.expected);
        let here = expected(on);
        let Some(checkpoints) = self.checkpoints.get(&job) else {
            // Its checkpoint was recorded without a run time.
            return here.map_or(Millis::ZERO, |here| part_of(here, u64::from(done), MILLION));
        };
        checkpoints.iter().fold(Millis::ZERO, |sum, (kind, ran)| {
            let both = here.zip(expected(kind)).filter(|_| kind != on);
            // Without predictions for both slices they count as equal.
            let as_here = both.map_or(*ran, |(here, there)| part_of(*ran, here.get(), there.get()));
            sum.plus(as_here)
        })
    }

    /// Learns the run time of an attempt that ended.
    pub(crate) fn learn_end(&mut self, live: &LiveAttempt, record: &ExitRecord) -> AttemptRunTimes {
        let Some(ran) = ran(record) else { return AttemptRunTimes::default() };
        let Some(predicted) = &live.run_prediction else { return AttemptRunTimes::default() };
        if record.outcome == Outcome::Preempted && live.facts.movable {
            return AttemptRunTimes { checkpointed: Some(ran), ..AttemptRunTimes::default() };
        }
        if record.outcome != Outcome::Succeeded {
            return AttemptRunTimes::default();
        }
        if let Some(known) = &predicted.prediction {
            self.estimator.record_outcome(known, ran);
        }
        let useful = self.useful(live, predicted, ran).filter(|_| !predicted.task.is_empty());
        if let Some(useful) = useful {
            self.estimator.learn(&predicted.task, &predicted.on, useful);
        }
        AttemptRunTimes {
            ran: Some(ran),
            checkpointed: None,
            useful: useful.filter(|_| !predicted.whole),
        }
    }

    /// Returns how long a job that ended would have taken on the slice of its last attempt alone.
    /// Returns `None` if most of that would be a guess.
    fn useful(
        &self,
        live: &LiveAttempt,
        predicted: &AttemptPrediction,
        ran: Millis,
    ) -> Option<Millis> {
        if predicted.whole {
            return Some(ran);
        }
        let checkpoints = self.checkpoints.get(&live.job)?;
        let measured = |kind: &SliceKind| {
            let known = self.estimator.predict(&predicted.task, kind);
            known.is_some_and(|known| known.basis == Basis::SameSlice)
        };
        let before = self.elapsed(live.job, &live.facts, live.done, &predicted.on);
        let sure = checkpoints
            .iter()
            .all(|(kind, _)| *kind == predicted.on || (measured(kind) && measured(&predicted.on)));
        (sure || before <= ran).then(|| before.plus(ran))
    }

    /// Records an attempt's checkpoint, and returns how much of its job is finished, in millionths.
    pub(crate) fn record_checkpoint(
        &mut self,
        live: &LiveAttempt,
        run_times: AttemptRunTimes,
    ) -> u32 {
        let (Some(ran), Some(predicted)) = (run_times.checkpointed, &live.run_prediction) else {
            return live.done;
        };
        let done = self.progress(live, ran);
        self.add_checkpoint(live.job, predicted.on.clone(), ran);
        done
    }

    pub(crate) fn add_checkpoint(&mut self, job: JobId, on: SliceKind, ran: Millis) {
        let known = self.checkpoints.entry(job).or_default();
        if let Some((_, sum)) = known.iter_mut().find(|(kind, _)| *kind == on) {
            *sum = sum.plus(ran);
        } else if known.len() < CHECKPOINTS_MAX {
            known.push((on, ran));
        }
    }

    /// Returns the prediction of a whole run on an attempt's slice, and the part of it that its job
    /// has finished after its attempt has run for `ran`.
    pub(crate) fn course(&self, live: &LiveAttempt, ran: Millis) -> Option<(Prediction, Millis)> {
        let on = &live.run_prediction.as_ref()?.on;
        let whole = self.predict(&live.facts, on)?;
        // A limit applies to each attempt separately.
        let before = match whole.basis {
            Basis::TimeLimit => Millis::ZERO,
            _ => self.elapsed(live.job, &live.facts, live.done, on),
        };
        Some((whole, before.plus(ran)))
    }

    /// Returns how long a running attempt is expected to continue; `None` if nothing is known. If
    /// it has run beyond its 90 % quantile, only the time limit is known.
    pub(crate) fn ends_in(&self, live: &LiveAttempt, now: Millis) -> Option<Millis> {
        let ran = live.ran(now);
        let (whole, lasted) = self.course(live, ran)?;
        let limit = live.facts.limit.map(|limit| limit.minus(ran));
        if whole.basis != Basis::TimeLimit && lasted >= whole.high {
            return limit;
        }
        Some(whole.after(lasted).within(limit).expected)
    }

    /// Returns the remaining time of a running attempt on another kind of slice.
    pub(crate) fn left_on(
        &self,
        live: &LiveAttempt,
        on: &SliceKind,
        now: Millis,
    ) -> Option<Millis> {
        let (here, lasted) = self.course(live, live.ran(now))?;
        let there = self.predict(&live.facts, on)?;
        let left = here.after(lasted).expected;
        Some(part_of(left, there.expected.get(), here.expected.get()))
    }

    /// Returns how much of a job is finished after its attempt has run for `ran`: the time so far
    /// over the sum of that and the remaining time.
    pub(crate) fn progress(&self, live: &LiveAttempt, ran: Millis) -> u32 {
        let course = self.course(live, ran);
        let Some((whole, lasted)) = course.filter(|(known, _)| known.basis != Basis::TimeLimit)
        else {
            return live.done;
        };
        let all = lasted.plus(whole.after(lasted).expected);
        let done = part_of(Millis::new(MILLION), lasted.get(), all.get()).get();
        clamped(done)
    }

    /// Predicts the speed of each of several co-located jobs under MPS. Until a forest has learned from this cluster's
    /// runs, the model of public measurements predicts whether jobs may share; jobs whose users request sharing are
    /// not judged by it.
    pub(crate) fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        let slice = slice_kind(gpu, profile)?.part;
        let clients: Vec<SharingClient> = clients.iter().map(known).collect();
        if self.colocation.model.is_none() && basis == SpeedBasis::WholeInstance {
            let speeds = contention::speeds_by_busy(&gpu.model, slice, &clients);
            return Some(speeds.into_iter().map(speed_range).collect());
        }
        let model = self.colocation.trusted_model()?;
        Some(match basis {
            SpeedBasis::SamePercentage => {
                let speeds = model.together(slice, &clients).into_iter();
                speeds.map(clamped).map(SpeedRange::without_interval).collect()
            }
            SpeedBasis::WholeInstance => {
                model.next_to_each_other(slice, &clients).into_iter().map(speed_range).collect()
            }
        })
    }

    /// Returns the cost of migrating the job: the measured one of its task, or the assumed one.
    pub(crate) fn migration_cost(&self, live: &LiveAttempt) -> Millis {
        let known = self.estimator.predict(&move_of(&live.facts.task), &any_place());
        known.map_or(MIGRATION_COST, |known| known.high)
    }

    /// Learns how long a migration of the task took.
    pub(crate) fn learn_migration(&mut self, task: &str, took: Millis) {
        if !task.is_empty() {
            self.estimator.learn(&move_of(task), &any_place(), took);
        }
    }

    /// Returns how long the job takes from the signal until it has saved its work and ended. If
    /// only whole migrations of its task were measured, they are the bound.
    pub(crate) fn checkpoint_time(&self, live: &LiveAttempt) -> Millis {
        let known = self.estimator.predict(&checkpoint_of(&live.facts.task), &any_place());
        known.map_or_else(|| self.migration_cost(live), |known| known.high)
    }

    /// Learns how long a job took to save its work and to end. A restart without a checkpoint gives
    /// no information about that.
    pub(crate) fn learn_checkpoint(&mut self, facts: &TaskFacts, took: Millis) {
        if !facts.task.is_empty() && facts.movable {
            self.estimator.learn(&checkpoint_of(&facts.task), &any_place(), took);
        }
    }

    /// Returns what is known about a job as a sharing job.
    pub(crate) fn sharer_of(&self, facts: &TaskFacts, priority: Priority) -> KernelSharer {
        service_order(&self.loads, facts, priority)
    }

    /// Predicts the remaining time of a waiting job, alone on such a slice, from runs of its task.
    pub(crate) fn predict_rest_alone(
        &self,
        job: JobId,
        facts: &TaskFacts,
        done: u32,
        (gpu, profile): (&GpuView, Option<&Profile>),
    ) -> Option<Millis> {
        let rest = self.predict_rest(job, facts, done, &slice_kind(gpu, profile)?)?;
        (rest.basis != Basis::TimeLimit).then_some(rest.expected)
    }

    /// Adds what is known about a sharing job: its service order with kernel-level sharing, or its
    /// load under MPS.
    pub(crate) fn with_service_order(
        &self,
        mut share: Option<SharingRequest>,
        facts: &TaskFacts,
        priority: Priority,
    ) -> Option<SharingRequest> {
        set_service_order(share.as_mut(), service_order(&self.loads, facts, priority));
        set_mps_client(share.as_mut(), &self.loads, facts);
        share
    }
}
