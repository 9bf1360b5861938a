//! Whole GPUs that are given to jobs for rounds of six minutes: what `gavel` and `hadar` have in common.
//!
//! - At the multiples of [`ROUND`] all GPUs are given out again, those of running jobs too. A job that keeps its GPU
//!   model keeps its GPU. The others are stopped, and continue on another GPU or return to the queue.
//! - Between rounds, an idle GPU is given to a waiting job at once, and no job is stopped. The papers let it idle until
//!   the round ends; this choice favours them where jobs are short.
//! - A job that can't be moved keeps its GPU to its end.
//! - Speeds on GPU models follow from predicted run times. If nothing is known about a job, its speed on a model is
//!   taken as proportional to the multiprocessors, where its memory fits.

use std::collections::BTreeSet;

use tessera_model::mig::Profile;
use tessera_model::spec::GpuRequest;
use tessera_model::{Bytes, JobId, Millis};
use tessera_predict::number::float;

use tessera_placement::decision::{Decision, PlacedJob, WaitReason};
use tessera_placement::policy::planned_gpu::{PlannedGpu, because};
use tessera_placement::predictor::Knowledge;
use tessera_placement::view::{ClusterView, GpuView, QueuedJob};

/// The length of a round. Source: Gavel, §5.
pub const ROUND: Millis = Millis::from_secs(360);

/// Jobs that a round considers in addition to those that run. Chosen: several times as many as a workload of the laboratory
/// has waiting, and few enough for a linear program in each round.
const WAITING_MAX: usize = 400;

/// A job that competes for GPUs.
#[derive(Clone, Debug)]
pub(crate) struct RoundJob {
    pub(crate) id: JobId,
    /// Work per second on each GPU model, in any unit that is the same for all models of this job; `None` where it
    /// doesn't run.
    pub(crate) speeds: Vec<Option<f64>>,
    /// Seconds for which it would run from now on, on each model, where its run time is known.
    pub(crate) rests: Vec<Option<f64>>,
    /// Seconds for which it has had GPUs of each model.
    pub(crate) received: Vec<f64>,
    /// Seconds since its submit; at least one millisecond.
    pub(crate) age: f64,
    /// Whether it keeps its GPU in this round.
    pub(crate) is_held: bool,
    /// The GPU that it has, by its index among the GPUs of the round.
    gpu: Option<usize>,
}

/// The input of one round's choice.
#[derive(Debug)]
pub(crate) struct RoundInput {
    /// All jobs, running ones first, then the waiting ones in the order of the queue.
    pub(crate) jobs: Vec<RoundJob>,
    /// GPUs of each model, those of held jobs among them.
    pub(crate) gpus: Vec<usize>,
    /// GPUs of each model that can be given out now.
    pub(crate) free: Vec<usize>,
}

impl RoundInput {
    /// Gives out free GPUs in the order of a list of (job, model): each job gets one GPU at most.
    pub(crate) fn give_out(
        &self,
        order: impl IntoIterator<Item = (usize, usize)>,
        chosen: &mut Vec<(usize, usize)>,
    ) {
        let mut free = self.free.clone();
        for (_, model) in chosen.iter() {
            free[*model] -= 1;
        }
        let mut placed: BTreeSet<usize> = chosen.iter().map(|(job, _)| *job).collect();
        for (job, model) in order {
            let runs = self.jobs[job].speeds[model].is_some() && !self.jobs[job].is_held;
            if runs && free[model] > 0 && placed.insert(job) {
                free[model] -= 1;
                chosen.push((job, model));
            }
        }
    }

    /// Returns every pair of a job that is not held and a model on which it runs, by the index of the job.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| !job.is_held);
        jobs.flat_map(|(at, job)| {
            let runs = job.speeds.iter().enumerate().filter(|(_, speed)| speed.is_some());
            runs.map(move |(model, _)| (at, model))
        })
    }
}

/// Decides a round: `choose` returns which job gets a GPU of which model, by their indices in the input.
pub(crate) fn decide(
    name: &'static str,
    cluster: &ClusterView,
    knowledge: Knowledge<'_>,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    (now, starts_max): (Millis, usize),
    choose: &dyn Fn(&RoundInput) -> Vec<(usize, usize)>,
) -> Vec<Decision> {
    let is_boundary = now.get().is_multiple_of(ROUND.get());
    let mut round = Round::read(cluster, knowledge, now, is_boundary);
    let running = round.jobs.len();
    let waiting: Vec<&QueuedJob> = queue.take(WAITING_MAX).collect();
    for job in &waiting {
        let needs = request_of(&job.gpu);
        round.add(knowledge, job.id, needs, None);
    }
    let input = round.input();
    if input.jobs.is_empty() || input.free.iter().all(|free| *free == 0) {
        return waits(name, &waiting, &BTreeSet::new());
    }
    let mut chosen = choose(&input);
    let mut starts = 0;
    chosen.retain(|(job, _)| {
        starts += usize::from(*job >= running);
        *job < running || starts <= starts_max
    });
    let placed: BTreeSet<JobId> = chosen.iter().map(|(job, _)| input.jobs[*job].id).collect();
    let mut decisions = round.reshape(name, &input, &chosen);
    decisions.extend(waits(name, &waiting, &placed));
    decisions
}

fn waits(name: &str, waiting: &[&QueuedJob], placed: &BTreeSet<JobId>) -> Vec<Decision> {
    let waiting = waiting.iter().filter(|job| !placed.contains(&job.id));
    let wait = |job: &&QueuedJob| Decision::Wait {
        job: job.id,
        reason: WaitReason::Resources,
        why: because(name, "other jobs have the GPUs in this round"),
    };
    waiting.map(wait).collect()
}

fn largest(view: &GpuView) -> Option<&Profile> {
    view.mig.as_deref()?.largest()
}

fn request_of(gpu: &GpuRequest) -> Bytes {
    match gpu {
        GpuRequest::Memory(bytes) => *bytes,
        GpuRequest::Unknown
        | GpuRequest::Profile(_)
        | GpuRequest::Whole
        | GpuRequest::Unpartitioned
        | GpuRequest::Compute(_) => Bytes::ZERO,
    }
}

/// The GPUs and jobs of a round.
struct Round<'c> {
    gpus: Vec<PlannedGpu<'c>>,
    /// One GPU of each model.
    models: Vec<&'c GpuView>,
    model_of: Vec<usize>,
    jobs: Vec<RoundJob>,
    now: Millis,
}

impl<'c> Round<'c> {
    fn read(
        cluster: &'c ClusterView,
        knowledge: Knowledge<'_>,
        now: Millis,
        is_boundary: bool,
    ) -> Self {
        let gpus = PlannedGpu::all(cluster);
        let mut models: Vec<&GpuView> = Vec::new();
        let mut model_of = Vec::new();
        for gpu in &gpus {
            let known = models.iter().position(|model| model.model == gpu.view.model);
            model_of.push(known.unwrap_or_else(|| {
                models.push(gpu.view);
                models.len() - 1
            }));
        }
        let mut round = Self { gpus, models, model_of, jobs: Vec::new(), now };
        for at in 0..round.gpus.len() {
            let jobs = round.gpus[at].jobs();
            let may_stop = is_boundary && round.gpus[at].open;
            for job in jobs {
                let facts = knowledge.jobs.facts(job);
                round.add(knowledge, job, facts.memory.unwrap_or(Bytes::ZERO), Some(at));
                let is_held = !may_stop || facts.migration_price.is_none();
                if let Some(job) = round.jobs.last_mut() {
                    job.is_held = is_held;
                }
            }
        }
        round
    }

    fn add(&mut self, knowledge: Knowledge<'_>, job: JobId, needs: Bytes, gpu: Option<usize>) {
        let facts = knowledge.jobs.facts(job);
        let whole: Vec<Option<f64>> = self
            .models
            .iter()
            .map(|view| {
                let time = knowledge.predictor.time_alone(job, view, largest(view)?)?;
                Some(time.duration().as_secs_f64().max(0.001))
            })
            .collect();
        let is_known = whole.iter().any(Option::is_some);
        let fits = |profile: &&Profile| profile.memory >= needs;
        let guess = |view: &&GpuView| {
            largest(view).filter(fits)?;
            Some(view.sms.map_or(1.0, f64::from))
        };
        let speeds = match is_known {
            true => whole.iter().map(|time| Some(1.0 / (*time)?)).collect(),
            false => self.models.iter().map(guess).collect(),
        };
        let left = 1.0 - f64::from(facts.done.unwrap_or(0).min(1_000_000)) / 1_000_000.0;
        let secs = |time: Millis| time.duration().as_secs_f64();
        let received =
            self.models.iter().map(|view| secs(knowledge.jobs.received(job, &view.model)));
        let age = facts.submitted.map_or(Millis::ZERO, |submitted| self.now.minus(submitted));
        self.jobs.push(RoundJob {
            id: job,
            speeds,
            rests: whole.iter().map(|time| Some((*time)? * left)).collect(),
            received: received.collect(),
            age: secs(age).max(0.001),
            is_held: false,
            gpu,
        });
    }

    fn input(&mut self) -> RoundInput {
        let jobs = std::mem::take(&mut self.jobs);
        let mut gpus = vec![0; self.models.len()];
        let mut free = vec![0; self.models.len()];
        for (at, gpu) in self.gpus.iter().enumerate() {
            let model = self.model_of[at];
            gpus[model] += usize::from(gpu.view.available);
            let is_held = jobs.iter().any(|job| job.gpu == Some(at) && job.is_held);
            free[model] += usize::from(gpu.open && !is_held);
        }
        RoundInput { jobs, gpus, free }
    }

    /// Gives the chosen jobs their GPUs.
    fn reshape(
        &mut self,
        name: &str,
        input: &RoundInput,
        chosen: &[(usize, usize)],
    ) -> Vec<Decision> {
        let mut jobs_of: Vec<Option<usize>> = vec![None; self.gpus.len()];
        let held = input.jobs.iter().filter(|job| job.is_held).filter_map(|job| job.gpu);
        let held: BTreeSet<usize> = held.collect();
        let mut others = Vec::new();
        for (job, model) in chosen {
            match input.jobs[*job].gpu.filter(|gpu| self.model_of[*gpu] == *model) {
                Some(gpu) if jobs_of[gpu].is_none() => jobs_of[gpu] = Some(*job),
                _ => others.push((*job, *model)),
            }
        }
        for (job, model) in others {
            let free = |at: &usize| {
                self.gpus[*at].open
                    && !held.contains(at)
                    && jobs_of[*at].is_none()
                    && self.model_of[*at] == model
            };
            // A GPU without a job is taken before one whose job is stopped.
            let idle_first = |at: &usize| (!self.gpus[*at].placements.is_empty(), *at);
            let gpu = (0..self.gpus.len()).filter(free).min_by_key(idle_first);
            if let Some(gpu) = gpu {
                jobs_of[gpu] = Some(job);
            }
        }
        let mut decisions = Vec::new();
        for (at, job) in jobs_of.into_iter().enumerate() {
            let gpu = &mut self.gpus[at];
            let Some(whole) = gpu.whole().filter(|_| gpu.open && !held.contains(&at)) else {
                continue;
            };
            let placements: Vec<PlacedJob> =
                job.iter().map(|job| PlacedJob::alone(input.jobs[*job].id, whole)).collect();
            if placements == gpu.placements {
                continue;
            }
            let why = because(name, "its share of the GPUs is largest in this round");
            let reshape = gpu.take([whole].into(), placements);
            decisions.push(Decision::Reshape { reshape, why });
        }
        decisions
    }
}

/// Returns a count of GPUs as a real number.
pub(crate) fn real(count: usize) -> f64 {
    float(count as u64)
}
