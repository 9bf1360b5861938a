//! A run: events in the order of time, and a policy that decides after events.

mod act;
mod alone;
mod auto_share;
mod cooldown;
mod cut;
mod ending;
mod forecast;
mod gangs;
mod gpu_state;
mod kernel_sharing;
mod limit;
mod look;
mod placing;
mod preemption;
mod refused;
mod speed;
mod task;
mod usage;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use tessera_model::spec::{GpuRequest, Priority};
use tessera_model::{JobId, Millis};
use tessera_placement::power::keep_below_cap;
use tessera_placement::{
    ClusterView, Decision, Empirical, Policy, QueueKey, QueuedJob, Session, WaitReason, session,
};

use self::alone::SoloTimes;
use self::gpu_state::GpuState;
pub use self::refused::SimulationError;
use self::task::{SimulatedTask, TaskPhase, TaskPlacement, kinds};
pub use self::usage::HALF_LIFE;
use super::fleet::GpuFleet;
use super::job::{JobClass, SimulatedJob};
use super::metrics::{ClusterSample, JobSegment, RunOutcome, RunRecord};
use super::overheads::{Overheads, SimulatedSharing};

/// Maximum number of events of one run. Chosen: far more than any workload needs, so that a policy
/// that moves jobs endlessly is detected.
const EVENTS_PER_JOB_MAX: u64 = 20_000;

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct SimulationSetup<'s> {
    /// The jobs, in the order of their arrival.
    pub jobs: &'s [SimulatedJob],
    /// The GPUs.
    pub fleet: &'s GpuFleet,
    /// The policy that decides.
    pub policy: &'s dyn Policy,
    /// The costs of migrations and partitioning.
    pub overheads: Overheads,
    /// Time between rounds; zero means a round after each event.
    pub round_ms: u64,
    /// The seed for the error of predictions.
    pub seed: u64,
    /// Whether segments and samples are kept for plots.
    pub plot: bool,
}

/// The state of a run.
#[derive(Debug)]
pub struct SimulationRun<'s> {
    setup: SimulationSetup<'s>,
    now: u64,
    /// Future arrivals with their times, the first one last. They are not in the heap, since those
    /// of large workloads would slow down all other events.
    arrivals: Vec<(u64, usize)>,
    events: BinaryHeap<Reverse<(u64, u64, SimulationEvent)>>,
    sequence: u64,
    view: ClusterView,
    gpu_states: Vec<GpuState>,
    by_gpu: BTreeMap<tessera_model::GpuId, usize>,
    tasks: Vec<SimulatedTask>,
    /// The user of each job.
    users: Vec<Arc<str>>,
    /// The migration cooldown; `None` for policies that no controller runs.
    cooldown: Option<Millis>,
    alone: SoloTimes<'s>,
    /// The policy's session; it is taken out while it decides.
    session: Option<Box<dyn Session + 's>>,
    /// The waiting jobs, in the order of service.
    queue: BTreeSet<QueueKey>,
    /// GPUs whose jobs' speeds have to be computed again.
    stale: BTreeSet<usize>,
    /// Jobs that this round stopped and has not placed again yet.
    preempted: BTreeSet<usize>,
    round_at: Option<u64>,
    last_wait: BTreeMap<JobId, WaitReason>,
    ended: usize,
    running: usize,
    usage: usage::AccountUsage,
    /// What was learned from ended jobs, if policies have no other knowledge.
    learned: Empirical,
    /// Whether the workload has gangs, or jobs that are restricted to some GPUs: then each round reads the whole
    /// cluster, as in a controller.
    gangs: bool,
    record: RunRecord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    /// A running job reaches its next point: loaded, out of memory, or finished.
    Wakes {
        job: usize,
        stamp: u32,
    },
    /// The partitioning of a GPU is finished.
    Cut {
        gpu: usize,
        stamp: u32,
    },
    /// A trial under MPS has ended.
    Tried {
        gpu: usize,
        stamp: u32,
    },
    /// The time limit of a job that began then is over.
    Limit {
        job: usize,
        began: u64,
    },
    /// The migration cooldown of a job that began then has ended.
    Rested {
        job: usize,
        began: u64,
    },
    Round,
    /// A policy that decides at fixed intervals decides now.
    Interval,
}

/// Runs a workload to its end; `progress` gets the number of jobs that have ended.
///
/// # Errors
///
/// [`SimulationError`] states why the run can't be completed.
pub fn run(
    setup: SimulationSetup<'_>,
    progress: &mut dyn FnMut(usize),
) -> Result<RunOutcome, SimulationError> {
    let mut run = SimulationRun::new(setup)?;
    let events_max = EVENTS_PER_JOB_MAX * (setup.jobs.len() as u64).max(10);
    let mut events = 0_u64;
    while run.ended < setup.jobs.len() {
        if !run.step()? {
            return Err(run.stuck());
        }
        progress(run.ended);
        events += 1;
        if events > events_max {
            let policy = setup.policy.name().to_owned();
            return Err(SimulationError::Endless { policy, events, at_ms: run.now });
        }
    }
    Ok(run.outcome())
}

impl<'s> SimulationRun<'s> {
    fn new(setup: SimulationSetup<'s>) -> Result<Self, SimulationError> {
        let mut view = setup.fleet.view.clone();
        // If users name no way of sharing, nodes offer both.
        let is_auto = setup.overheads.sharing == SimulatedSharing::Auto;
        view.gpus.iter_mut().for_each(|gpu| gpu.kernel |= is_auto);
        let gpu_states = setup.fleet.keys.iter().map(|key| GpuState::new(key)).collect();
        let by_gpu = view.gpus.iter().enumerate().map(|(i, gpu)| (gpu.id.clone(), i)).collect();
        let kinds = kinds(setup.fleet);
        let mut run = Self {
            setup,
            now: 0,
            arrivals: arrivals(setup.jobs),
            events: BinaryHeap::new(),
            sequence: 0,
            view,
            gpu_states,
            by_gpu,
            tasks: setup.jobs.iter().map(|job| SimulatedTask::new(job, &kinds)).collect(),
            users: setup.jobs.iter().map(|job| job.user.as_str().into()).collect(),
            cooldown: cooldown::cooldown_of(&setup),
            alone: SoloTimes::of(setup.jobs, setup.fleet),
            session: Some(session(setup.policy)),
            queue: BTreeSet::new(),
            stale: BTreeSet::new(),
            preempted: BTreeSet::new(),
            round_at: None,
            last_wait: BTreeMap::new(),
            ended: 0,
            running: 0,
            usage: usage::AccountUsage::of(setup.jobs),
            learned: Empirical::default(),
            gangs: setup.jobs.iter().any(|job| job.gang.is_some() || job.place.is_some()),
            record: RunRecord::default(),
        };
        for (index, job) in setup.jobs.iter().enumerate() {
            run.check(&kinds, index, job)?;
            run.check_gang(index, job)?;
        }
        run.schedule_interval();
        Ok(run)
    }

    fn schedule(&mut self, at: u64, event: SimulationEvent) {
        self.sequence += 1;
        self.events.push(Reverse((at.max(self.now), self.sequence, event)));
    }

    /// Schedules the next round of a policy that decides at fixed intervals.
    fn schedule_interval(&mut self) {
        let Some(interval) = self.setup.policy.round_interval() else { return };
        let interval = interval.get().max(1);
        self.schedule((self.now / interval + 1) * interval, SimulationEvent::Interval);
    }

    /// Handles all events of the next time; `false` if there are none.
    fn step(&mut self) -> Result<bool, SimulationError> {
        let arrives = self.arrivals.last().map(|(at, _)| *at);
        let happens = self.events.peek().map(|Reverse((at, _, _))| *at);
        let Some(at) = arrives.into_iter().chain(happens).min() else { return Ok(false) };
        self.now = at;
        let mut is_round_needed = false;
        while let Some((_, job)) = self.arrivals.pop_if(|(when, _)| *when == at) {
            self.enqueue(job);
            is_round_needed = true;
        }
        while let Some(Reverse((when, _, event))) = self.events.peek().copied() {
            if when != at {
                break;
            }
            self.events.pop();
            is_round_needed |= self.take(event)?;
        }
        self.rerate();
        if is_round_needed && self.due() {
            self.round()?;
            self.rerate();
        }
        self.sample();
        Ok(true)
    }

    /// Returns whether the policy decides now; if not, a round is scheduled.
    fn due(&mut self) -> bool {
        let period = self.setup.round_ms;
        if period == 0 || self.now.is_multiple_of(period) {
            self.round_at = Some(self.now);
            return true;
        }
        let next = (self.now / period + 1) * period;
        if self.round_at != Some(next) {
            self.round_at = Some(next);
            self.schedule(next, SimulationEvent::Round);
        }
        false
    }

    /// Handles one event; `true` if the policy should decide.
    fn take(&mut self, event: SimulationEvent) -> Result<bool, SimulationError> {
        match event {
            SimulationEvent::Wakes { job, stamp } if self.tasks[job].stamp == stamp => {
                Ok(self.wake(job))
            }
            SimulationEvent::Cut { gpu, stamp } if self.gpu_states[gpu].stamp == stamp => {
                self.cut_done(gpu);
                Ok(true)
            }
            SimulationEvent::Tried { gpu, stamp } if self.gpu_states[gpu].stamp == stamp => {
                self.tried(gpu)?;
                Ok(true)
            }
            SimulationEvent::Limit { job, began } => Ok(self.end_at_limit(job, began)),
            SimulationEvent::Rested { job, began } => Ok(self.rested(job, began)),
            SimulationEvent::Round => Ok(true),
            SimulationEvent::Interval => {
                self.schedule_interval();
                Ok(self.running > 0 || !self.queue.is_empty())
            }
            SimulationEvent::Wakes { .. }
            | SimulationEvent::Cut { .. }
            | SimulationEvent::Tried { .. } => Ok(false),
        }
    }

    fn enqueue(&mut self, index: usize) {
        let queued = self.queued(index);
        self.queue.insert(queued.key());
        if let Some(session) = &mut self.session {
            session.enqueue(queued);
        }
    }

    fn dequeue(&mut self, index: usize) {
        let queued = self.queued(index);
        self.queue.remove(&queued.key());
        if let Some(session) = &mut self.session {
            session.dequeue(&queued);
        }
    }

    fn queued(&self, index: usize) -> QueuedJob {
        let job = &self.setup.jobs[index];
        QueuedJob {
            id: id(index),
            gpu: GpuRequest::Memory(self.tasks[index].requested),
            user: Arc::clone(&self.users[index]),
            share: None,
            auto: self.auto(index),
            queue_rank: Priority::try_from(job.priority).unwrap_or_default().into(),
            online: job.class == JobClass::Online,
            submitted: Millis::new(job.submit_ms),
            gang: gangs::member(job, index),
            place: job.place.clone(),
        }
    }

    /// Informs the policy that a GPU changed.
    fn touch(&mut self, gpu: usize) {
        if let Some(session) = &mut self.session {
            session.gpu_changed(gpu);
        }
    }

    /// Runs the policy and carries out its decisions.
    fn round(&mut self) -> Result<(), SimulationError> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        let decisions = match self.gangs {
            true => self.decide_with_gangs(),
            false => {
                let forecast = forecast::RunPredictions::new(self);
                let (knowledge, now) = (forecast.knowledge(), Millis::new(self.now));
                let mut decided = session.round(&self.view, knowledge, now, usize::MAX);
                self.share_slices(&mut decided);
                let mut decided = self.keep_below_power_cap(decided);
                self.preempt(&mut decided);
                decided
            }
        };
        self.session = Some(session);
        self.part(&decisions);
        for decision in decisions {
            match decision {
                Decision::Start { job, place, .. } => self.start(job, &place)?,
                Decision::Reshape { reshape, .. } => self.reshape(reshape)?,
                Decision::Preempt { preemption, .. } => self.send_back(&preemption)?,
                Decision::Wait { job, reason, .. } => {
                    self.last_wait.insert(job, reason);
                }
            }
        }
        self.count_preempted();
        if self.gangs { self.check_whole() } else { Ok(()) }
    }

    /// Lets jobs wait that would exceed the power cap, by the controller's rule.
    fn keep_below_power_cap(&self, decided: Vec<Decision>) -> Vec<Decision> {
        if self.view.power_cap.is_none() {
            return decided;
        }
        let waiting: Vec<QueuedJob> =
            self.queue.iter().map(|(_, job)| self.queued(index(*job))).collect();
        keep_below_cap(&self.view, &waiting.iter().collect::<Vec<_>>(), decided)
    }

    /// Counts the jobs that were sent back to the queue and are still in it.
    fn count_preempted(&mut self) {
        for task in std::mem::take(&mut self.preempted) {
            if self.tasks[task].spot.is_none() {
                self.tasks[task].preempted += 1;
                self.record.preemptions += 1;
            }
        }
    }

    fn stuck(&self) -> SimulationError {
        let first = self.queue.first().map(|(_, job)| *job);
        let why = first.and_then(|job| self.last_wait.get(&job)).map_or("nothing", |r| r.word());
        SimulationError::Stuck {
            policy: self.setup.policy.name().to_owned(),
            jobs: self.setup.jobs.len() - self.ended,
            first: first.map_or(0, JobId::number),
            why: why.to_owned(),
        }
    }

    fn impossible(&self, what: impl Into<String>) -> SimulationError {
        SimulationError::Impossible {
            policy: self.setup.policy.name().to_owned(),
            what: what.into(),
        }
    }

    fn sample(&mut self) {
        if self.setup.plot {
            let sample = ClusterSample { at_ms: self.now, ..self.look() };
            self.record.samples.push(sample);
            self.note_slices();
        }
    }

    fn segment(&mut self, job: usize, spot: &TaskPlacement) {
        if !self.setup.plot {
            return;
        }
        let geometry = self.view.gpus[spot.gpu].mig.as_ref().map(|mig| &mig.geometry);
        let size =
            spot.slot.and_then(|slot| geometry?.profile(slot.profile)).map(|p| p.memory_slices);
        self.record.segments.push(JobSegment {
            job: number(job),
            gpu: spot.gpu,
            start: spot.slot.map_or(0, |slot| slot.start),
            slices: size.unwrap_or(8),
            from_ms: spot.since,
            to_ms: self.now,
        });
    }
}

/// Returns the arrivals, the first one last; jobs that arrive at the same time keep their order.
fn arrivals(jobs: &[SimulatedJob]) -> Vec<(u64, usize)> {
    let mut order: Vec<(u64, usize)> =
        jobs.iter().enumerate().map(|(index, job)| (job.submit_ms, index)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    order
}

/// Jobs are numbered from 1, in the order of the workload.
fn id(index: usize) -> JobId {
    JobId::from_number(number(index))
}

fn number(index: usize) -> u64 {
    index as u64 + 1
}

fn index(job: JobId) -> usize {
    tessera_model::number::index(job.number().saturating_sub(1))
}
