//! Jobs that stay where they start: those that can't be migrated, and those about which too little is known.
//!
//! The slice of such a job is chosen for its whole run.
//!
//! - **Size** ([`sizes`]). The cost of a place is the job's own time there, and the time for which waiting
//!   jobs can't use that part of the cluster. The cheapest place is taken. So a lone job gets a fast slice,
//!   and one of many gets the slice on which it uses the least. Times are compared across GPU models.
//! - **Order** ([`order`]). Priority, then fair share, then short jobs, with a bound on every wait.
//! - **Backfill**. A job that finds no place gets a [`Reservation`]: a slot of one GPU, from when the
//!   jobs there are expected to end. Others start where they don't use that slot, or if they are expected to
//!   end by then. The first [`DEPTH`] waiting jobs have reservations, and so has each job of a planned batch.
//!   (EASY has one, and conservative backfill one for each job.) A free place that no reservation needs is
//!   never withheld.
//! - **Unknown lengths** ([`unknown_length`]). The fewer jobs there are, the larger are the slices that such a job prefers.
//!   Only the first that waits has a reservation, and the first that needs most of a GPU.
//! - **Waiting for a better place**. A job whose times are known may leave a free slice to others if it is
//!   expected to end sooner elsewhere. It then has a reservation.
//!
//! A job without a known end is not used for backfill: it waits where it would touch a reserved slot.

mod batch;
mod deadlines;
mod ends;
mod explaining;
mod horizon;
mod markets;
mod order;
mod plan;
mod reservations;
pub(super) mod sizes;
mod unknown_length;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tessera_model::mig::{ProfileId, Slot};
use tessera_model::spec::{GpuRequest, QueueRank};
use tessera_model::{Bytes, GpuId, JobId, Millis};

pub(super) use self::deadlines::DeadlinePressure;
use self::ends::Ends;
use self::explaining::{describe_size, renamed};
use self::horizon::{StayHorizon, Survey};
use self::markets::{SizeMarket, size_request};
use self::order::TimedJob;
use self::reservations::{HeldInstance, LaterSlots, Reservation};
use self::sizes::{GpuKind, SizeOption, SizedJob};
use super::NAME;
use super::horizon::{SURVEYED_MAX, survey_step};
use super::overdue::OverdueHolders;
use super::rounding::{float, float_count};
use crate::decision::{Decision, JobPlacement};
use crate::explain;
use crate::fair::Quotas;
use crate::offer::Offer;
use crate::policy::Pinned;
use crate::policy::scheme_b::MadeToMeasure;
use crate::power::{power_left, power_of};
use crate::predictor::Knowledge;
use crate::request::{NumberedRequest, RequestNumbers};
use crate::round::{Fate, fate, refuse};
use crate::view::{ClusterView, InstanceState, InstanceView, QueuedJob};
use crate::working_state::WorkingState;

/// The most jobs that a round orders again, apart from those that have waited too long; the others follow in the order
/// of the queue. Chosen to limit the duration of a round.
pub(super) const ORDERED_MAX: usize = 256;

/// The most reservations of one round. Chosen: Slurm's and LSF's manuals advise a handful, since later ones
/// change before they are used.
const DEPTH: usize = 8;

/// The most reservations of one round while jobs with a deadline need them: without one, jobs behind it may take the
/// last placement that is in time. Chosen to limit the duration of a round.
const DEADLINE_DEPTH: usize = 64;

/// How much cheaper a later place must be for a job to leave a free one to others. Chosen: predictions are off
/// by more than a few percent.
const WAIT_GAIN: f64 = 0.9;

/// How much more than its cheapest place a job may cost if it starts at once; beyond that, others choose
/// before it. Chosen.
const TOLERANCE: f64 = 1.1;

/// How much waiting jobs count for the size of a job about which nothing is known. It may turn out to be the
/// longest, which would run on alone on a small slice. Chosen on seeds 1 to 10, for batches of 5 to 20.
const UNKNOWN_OTHERS: f64 = 0.5;

/// The power with which scarce space counts for the same job. While it runs, more space becomes free. Chosen on seeds
/// 301 to 320.
const UNKNOWN_SCARCITY: f64 = 0.5;

/// The part of the time to its deadline that a job may take on a place that is chosen by its cost: the rest
/// covers a late start. Chosen.
const SAFE: f64 = 0.5;

/// The compute slices that a GPU without MIG counts as, the same as in quotas.
const WHOLE_GPU: u32 = 7;

/// The numbers of requests for a profile of a kind of GPU. They differ from the numbers of whole requests.
const SIZE_NUMBERS: usize = 1 << 20;

/// What a round decides from.
#[derive(Clone, Copy)]
pub(super) struct StayInput<'c> {
    pub(super) cluster: &'c ClusterView,
    pub(super) knowledge: Knowledge<'c>,
    /// What users and accounts may still take, if there is any quota.
    pub(super) quotas: Option<&'c Quotas<'c>>,
    /// How much energy counts ([`super::Tessera::thrift`]).
    pub(super) thrift: f64,
    /// The wait after which a job is served before all others ([`super::Tessera::patience`]).
    pub(super) patience: Millis,
    pub(super) now: Millis,
    /// Whether earliest deadline first on whole GPUs decides about jobs with deadlines even if there is slack.
    pub(super) plans_deadlines: bool,
}

/// What a round decided about jobs that stay where they start.
#[derive(Debug, Default)]
pub(super) struct Stays {
    pub(super) decisions: Vec<Decision>,
    /// GPUs with reservations: no other decision may change them.
    pub(super) reserved: BTreeSet<usize>,
    /// The first job in the order of service that waits for a place.
    pub(super) first_waiting: Option<JobId>,
    /// Sizes that suit jobs for their whole run and that they did not get: those of the first waiting job,
    /// and of the jobs that got another size.
    pub(super) missed: Vec<MissedSizes>,
}

/// The sizes that suit a job for its whole run, where none of them was free.
#[derive(Clone, Debug)]
pub(super) struct MissedSizes {
    pub(super) job: JobId,
    /// Each with the job's time there.
    pub(super) sizes: Vec<MissedSize>,
}

/// A size on GPUs of one kind.
#[derive(Clone, Debug)]
pub(super) struct MissedSize {
    pub(super) model: String,
    pub(super) gpu_memory: Bytes,
    pub(super) profile: ProfileId,
    pub(super) ms: f64,
}

/// Decides about jobs that stay where they start.
pub(super) fn decide(input: StayInput<'_>, queue: &[&QueuedJob], starts_max: usize) -> Stays {
    let mut round = StayRound::new(input);
    round.run(queue, starts_max);
    Stays {
        reserved: round.reservations.iter().map(|kept| kept.gpu).collect(),
        decisions: round.decisions,
        first_waiting: round.first_waiting,
        missed: round.missed,
    }
}

/// Returns whether earliest deadline first on whole GPUs meets the deadlines of the waiting jobs.
pub(super) fn deadline_pressure(input: StayInput<'_>, queue: &[&QueuedJob]) -> DeadlinePressure {
    match due_round(input, queue) {
        Some((mut round, timed)) => round.pressure_on(&timed),
        None => DeadlinePressure::Unplanned,
    }
}

/// Returns the GPUs that a running job has to itself that has little slack before its deadline. In a cluster of more than
/// [`SURVEYED_MAX`] GPUs there are none, to limit the duration of a round: another whole GPU is more likely to be free.
pub(super) fn pressed_gpus(input: StayInput<'_>) -> BTreeSet<GpuId> {
    let has_deadline = |job: JobId| input.knowledge.jobs.facts(job).deadline.is_some();
    let gpus = &input.cluster.gpus;
    let mut alone = gpus.iter().flat_map(|gpu| &gpu.instances);
    let is_due = |instance: &InstanceView| match instance.state {
        InstanceState::Taken { job } => has_deadline(job),
        _ => false,
    };
    if gpus.len() > SURVEYED_MAX || !alone.any(is_due) {
        return BTreeSet::new();
    }
    StayRound::new(input).pressed_gpus()
}

/// Returns whether earliest deadline first on whole GPUs still meets them after decisions, if it did before.
pub(super) fn keeps_deadlines(
    input: StayInput<'_>,
    queue: &[&QueuedJob],
    decided: &[Decision],
) -> bool {
    due_round(input, queue).is_none_or(|(mut round, timed)| round.keeps_plan(&timed, decided))
}

/// Returns a round with the waiting jobs of the best priority that have a deadline; `None` if there are none.
fn due_round<'c, 'q>(
    input: StayInput<'c>,
    queue: &[&'q QueuedJob],
) -> Option<(StayRound<'c>, Vec<TimedJob<'q>>)> {
    let (ordered, _) = order::split(queue, input.knowledge.jobs, (input.now, input.patience));
    let has_deadline = |job: &&&'q QueuedJob| input.knowledge.jobs.facts(job.id).deadline.is_some();
    if !ordered.iter().any(|job| has_deadline(&job)) {
        return None;
    }
    let round = StayRound::new(input);
    let timed = ordered.iter().filter(has_deadline).map(|job| round.timed(job, queue.len()));
    let mut timed: Vec<TimedJob<'q>> =
        timed.filter(|timed| timed.deadline.is_some() && !round.is_overdue(timed.job)).collect();
    let best = timed.iter().map(|timed| timed.job.queue_rank).min()?;
    timed.retain(|timed| timed.job.queue_rank == best);
    Some((round, timed))
}

struct StayRound<'c> {
    rule: Pinned<MadeToMeasure>,
    state: WorkingState<'c>,
    knowledge: Knowledge<'c>,
    quotas: Option<Quotas<'c>>,
    thrift: f64,
    patience: Millis,
    now: Millis,
    plans_deadlines: bool,
    /// How many watts are left below the power cap, if there is one.
    power_left: Option<u64>,
    kinds: Vec<GpuKind<'c>>,
    kind_of: Vec<usize>,
    requests: RequestNumbers,
    fates: BTreeMap<usize, Fate>,
    /// By request: the first job with it that waits.
    waiting: BTreeMap<usize, JobId>,
    markets: BTreeMap<(usize, Option<ProfileId>), SizeMarket>,
    /// Of requests for parts of slices.
    shared: BTreeMap<usize, SizeMarket>,
    changed: Vec<usize>,
    /// By GPU: its instances with the ends of their jobs, as far as they were requested.
    held: Vec<Option<Rc<[HeldInstance]>>>,
    /// By kind of GPU and profile.
    later: BTreeMap<(usize, Option<ProfileId>), LaterSlots>,
    reservations: Vec<Reservation>,
    ends: Ends<'c>,
    horizon: StayHorizon,
    started: usize,
    first_waiting: Option<JobId>,
    /// The waiting jobs that need most of a GPU.
    wide: BTreeSet<JobId>,
    /// The overdue jobs that are served before those of a better priority.
    out_of_turn: BTreeSet<JobId>,
    missed: Vec<MissedSizes>,
    decisions: Vec<Decision>,
}

/// Whether a job has been decided about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Decided,
    /// It is looked at again once others have chosen.
    Deferred,
}

/// The jobs about which plans for deadlines decided.
#[derive(Default)]
struct DuePlans {
    /// The priority of the last plan.
    rank: Option<QueueRank>,
    decided: BTreeSet<JobId>,
}

impl DuePlans {
    /// Plans the jobs with deadlines of a priority, once the first of them is served.
    fn serve<'c>(
        &mut self,
        round: &mut StayRound<'c>,
        next: &TimedJob<'_>,
        rest: &[TimedJob<'_>],
        (starts_max, waiting): (usize, usize),
    ) {
        let rank = next.job.queue_rank;
        if self.rank == Some(rank) || next.deadline.is_none() || round.is_overdue(next.job) {
            return;
        }
        self.rank = Some(rank);
        let equal: Vec<TimedJob<'_>> =
            rest.iter().copied().filter(|timed| timed.job.queue_rank == rank).collect();
        self.decided.extend(round.serve_deadlines(&equal, starts_max, waiting));
    }
}

/// What a running job has.
#[derive(Clone, Copy, Debug)]
struct HeldPart {
    job: JobId,
    gpu: usize,
    slot: Option<Slot>,
    /// The part of the GPU that others can't use.
    part: f64,
}

/// A place that a job may take now.
#[derive(Clone)]
struct PlaceNow<'c> {
    option: SizeOption<'c>,
    gpu: usize,
    offer: Rc<Offer>,
}

impl<'c> StayRound<'c> {
    fn new(input: StayInput<'c>) -> Self {
        let StayInput { cluster, knowledge, quotas, thrift, patience, now, plans_deadlines } =
            input;
        let (kinds, kind_of) = sizes::kinds(cluster);
        Self {
            rule: Pinned(MadeToMeasure::default()),
            state: WorkingState::new(cluster, knowledge.predictor),
            knowledge,
            quotas: quotas.cloned(),
            thrift,
            patience,
            now,
            plans_deadlines,
            power_left: power_left(cluster),
            kinds,
            kind_of,
            requests: RequestNumbers::new(cluster),
            fates: BTreeMap::new(),
            waiting: BTreeMap::new(),
            markets: BTreeMap::new(),
            shared: BTreeMap::new(),
            changed: Vec::new(),
            held: Vec::new(),
            later: BTreeMap::new(),
            reservations: Vec::new(),
            ends: Ends::new(knowledge, now),
            horizon: StayHorizon::default(),
            started: 0,
            first_waiting: None,
            wide: BTreeSet::new(),
            out_of_turn: BTreeSet::new(),
            missed: Vec::new(),
            decisions: Vec::new(),
        }
    }

    fn run(&mut self, queue: &[&QueuedJob], starts_max: usize) {
        let (ordered, rest) = order::split(queue, self.knowledge.jobs, (self.now, self.patience));
        let unlisted = self.knowledge.jobs.unlisted();
        let waiting = queue.len() + unlisted;
        let mut timed: Vec<TimedJob<'_>> =
            ordered.iter().map(|job| self.timed(job, waiting)).collect();
        order::expect_usual_length(&mut timed);
        self.horizon = self.look_ahead(&timed, rest.len() + unlisted);
        self.wide =
            timed.iter().filter(|timed| timed.is_wide()).map(|timed| timed.job.id).collect();
        self.out_of_turn = self.find_out_of_turn(&timed);
        // Jobs that the round does not list can't be planned.
        if rest.is_empty() && unlisted == 0 && self.run_planned(&timed, starts_max) {
            return;
        }
        let order = order::serve_in_order(
            timed,
            &self.out_of_turn,
            self.knowledge.jobs,
            self.horizon,
            (self.now, self.patience),
        );
        let mut deferred: Vec<&QueuedJob> = Vec::new();
        let mut planned = DuePlans::default();
        let all = order.iter().map(|timed| timed.job).chain(rest.iter().copied());
        for (place, job) in all.enumerate() {
            if let Some(timed) = order.get(place) {
                planned.serve(self, timed, &order[place..], (starts_max, waiting));
            }
            if self.started >= starts_max {
                return;
            }
            if planned.decided.contains(&job.id) {
                continue;
            }
            // The jobs behind it are not used for backfill and get no reservations: after a refusal, equal
            // requests wait, too.
            if place >= order.len() && self.is_refused(job) {
                continue;
            }
            if self.serve(job, waiting - self.started - 1, TOLERANCE) == Served::Deferred {
                deferred.push(job);
            }
        }
        for job in deferred {
            if self.started >= starts_max {
                return;
            }
            self.serve(job, waiting - self.started - 1, f64::INFINITY);
        }
    }

    /// Estimates how long all known work takes, and how much work is still to arrive. The `unseen` jobs are
    /// assumed to be like those that are read. In a large cluster a sample of the GPUs is read.
    fn look_ahead(&mut self, timed: &[TimedJob<'_>], unseen: usize) -> StayHorizon {
        let now = float(self.now);
        let scale = float_count(survey_step(self.state.gpus.len()));
        let mut survey = Survey::default();
        for timed in timed {
            survey.came(float(timed.job.submitted));
            survey.longest = survey.longest.max(timed.least_ms);
        }
        let held: Vec<HeldPart> = self.surveyed().collect();
        let running = scale * float_count(held.len());
        for HeldPart { job, gpu, slot, part } in held {
            let end = self.ends.of(job, self.state.gpus[gpu].view, slot);
            if end.known {
                survey.running_work += part * (end.at - now).max(0.0);
                survey.longest = survey.longest.max(end.at - now);
            }
            survey.began(end.submitted);
        }
        let mut work: f64 = timed.iter().map(|timed| timed.work_ms).sum();
        work += work / float_count(timed.len().max(1)) * float_count(unseen);
        let all_gpus = self.available_gpus().max(1.0);
        let all = ((work + survey.running_work * scale) / all_gpus).max(survey.longest);
        StayHorizon::of(&survey, all, now, running)
    }

    /// Returns a job with its time on the place that costs least, if so many jobs wait.
    fn timed<'q>(&self, job: &'q QueuedJob, waiting: usize) -> TimedJob<'q> {
        if job.share.is_some() {
            let work_ms = sizes::UNKNOWN_MS / 7.0;
            let ms = sizes::UNKNOWN_MS;
            let least_part = 0.0;
            return TimedJob {
                job,
                ms,
                least_ms: ms,
                work_ms,
                least_part,
                known: false,
                assumed: true,
                deadline: None,
            };
        }
        let sized =
            sizes::sized(&self.kinds, self.knowledge, job, float_count(waiting), self.thrift);
        let Some(first) = sized.options.first() else {
            let ms = sizes::UNKNOWN_MS;
            let (least_ms, work_ms, least_part) = (0.0, 0.0, 0.0);
            return TimedJob {
                job,
                ms,
                least_ms,
                work_ms,
                least_part,
                known: false,
                assumed: true,
                deadline: None,
            };
        };
        let work_ms = first.ms * self.kinds[first.kind].part(first.profile);
        let least_ms = sized.least_ms;
        let deadline = self.deadline_of(job, &sized);
        let parts = sized.options.iter().map(|option| self.kinds[option.kind].part(option.profile));
        let least_part = parts.fold(1.0, f64::min);
        TimedJob {
            job,
            ms: first.ms,
            least_ms,
            work_ms,
            least_part,
            known: sized.known,
            assumed: !sized.known && !sized.is_vague,
            deadline,
        }
    }

    /// Returns whether a job with the same request found no place in this round.
    fn is_refused(&mut self, job: &QueuedJob) -> bool {
        let number = self.requests.number(job);
        self.waiting.contains_key(&number) && self.fates.get(&number).is_some_and(Fate::is_possible)
    }

    /// Decides about the next job in the order of service. It is deferred if each free place costs more than
    /// `tolerance` times the cheapest one in the cluster: that place may suit other jobs better.
    fn serve(&mut self, job: &QueuedJob, others: usize, tolerance: f64) -> Served {
        let size = self.requests.size(job);
        let (rule, state) = (&self.rule, &self.state);
        let fate = self.fates.entry(size.number).or_insert_with(|| fate(rule, state, &size));
        if !fate.is_possible() {
            let first = self.waiting.contains_key(&size.number);
            let decision = refuse::<Pinned<MadeToMeasure>>(fate, job, first);
            self.decisions.extend(decision.map(renamed));
            self.waiting.entry(size.number).or_insert(job.id);
            return Served::Decided;
        }
        if job.share.is_some() {
            self.serve_sharer(job, &size, others);
            return Served::Decided;
        }
        // No job with the same request found a place, and none of them is used for backfill.
        let again = self.waiting.contains_key(&size.number);
        let full = self.reservations.len() >= DEPTH;
        if again && full && !self.fills(job) && !self.has_deadline(job) {
            self.wait_behind(job, &size);
            return Served::Decided;
        }
        let Some((sized, deadline)) = self.suitable_sizes(job, others) else {
            return Served::Decided;
        };
        let place = self.find_place(job, &sized);
        let is_reservable = self.reservations.len() < DEADLINE_DEPTH;
        let place = match deadline.filter(|_| is_reservable) {
            Some(deadline) => match self.serve_by(deadline, (job, &size), &sized, place, others) {
                None => return Served::Decided,
                Some(place) => place,
            },
            None => place,
        };
        if let Some(place) = place {
            let cheapest = sized.options.first().map_or(0.0, |option| option.cost);
            // A job that has waited too long lets no other go before it.
            if place.option.cost > tolerance * cheapest && !self.is_overdue(job) {
                return Served::Deferred;
            }
            if place.option.cost > TOLERANCE * cheapest {
                self.miss(job, &sized);
            }
            match self.better_later(job, &sized, &place) {
                Some(later) if !full => {
                    self.reserve(later);
                    self.wait_for_better(job, &sized, &place, later);
                }
                _ => self.start(job, &sized, place, others),
            }
            return Served::Decided;
        }
        if !full
            && (sized.known
                || self.reservations.is_empty()
                || self.is_out_of_turn(job)
                || self.is_first_wide(job))
            && let Some((later, _)) = self.find_later(job, &sized)
        {
            self.reserve(later);
        }
        if self.first_waiting.is_none() {
            self.first_waiting = Some(job.id);
            self.miss(job, &sized);
        }
        if again {
            self.wait_behind(job, &size);
        } else {
            self.waiting.insert(size.number, job.id);
            self.wait(job, &size);
        }
        Served::Decided
    }

    /// Records that none of the sizes that suit a job was free.
    pub(super) fn miss(&mut self, job: &QueuedJob, sized: &SizedJob<'c>) {
        let cheapest = sized.options.first().map_or(0.0, |option| option.cost);
        let suits = sized.options.iter().take_while(|option| option.cost <= TOLERANCE * cheapest);
        let sizes = suits.filter_map(|option| {
            let view = self.kinds[option.kind].view;
            let (model, gpu_memory) = (view.model.clone(), view.memory);
            Some(MissedSize { model, gpu_memory, profile: option.profile?.id, ms: option.ms })
        });
        self.missed.push(MissedSizes { job: job.id, sizes: sizes.collect() });
    }

    /// Returns the sizes that a job may have, in the order of preference, and when it has to be done. If its
    /// account's quota leaves none, it returns the explanation.
    fn suitable_sizes(
        &mut self,
        job: &QueuedJob,
        others: usize,
    ) -> Option<(SizedJob<'c>, Option<f64>)> {
        let mut sized = self.sized(job, others);
        if let Some(quotas) = &self.quotas
            && let Some(left) = quotas.left_for(job)
        {
            let slices = |option: &SizeOption<'_>| {
                option.profile.map_or(WHOLE_GPU, |profile| u32::from(profile.compute_slices))
            };
            sized.options.retain(|option| slices(option) <= left);
            if sized.options.is_empty() {
                self.decisions.push(quotas.wait(NAME, job, 1, None));
                return None;
            }
        }
        self.keep_below_cap(&mut sized);
        self.hasten(&mut sized);
        let deadline = self.deadline_of(job, &sized);
        if let Some(deadline) = deadline {
            self.keep_deadline(&mut sized, deadline);
        }
        Some((sized, deadline))
    }

    /// Keeps the sizes for which enough power is left, or those that need least, for a job of unknown length. How long it
    /// would have to wait for more power is not known either.
    fn keep_below_cap(&self, sized: &mut SizedJob<'c>) {
        let Some(left) = self.power_left.filter(|_| !sized.known) else { return };
        let needs = |one: &SizeOption<'_>| power_of(self.kinds[one.kind].view, one.profile);
        let least = sized.options.iter().map(needs).min().unwrap_or(0);
        let fits = |one: &SizeOption<'_>| needs(one) <= left.max(least);
        if !sized.options.iter().all(fits) {
            sized.options.retain(fits);
            sized.watts = Some(left);
        }
    }

    /// Serves a job with a deadline: it starts where it meets the deadline, or waits for such a place. If
    /// neither is possible, the place is returned.
    fn serve_by(
        &mut self,
        deadline: f64,
        (job, size): (&QueuedJob, &NumberedRequest),
        sized: &SizedJob<'c>,
        place: Option<PlaceNow<'c>>,
        others: usize,
    ) -> Option<Option<PlaceNow<'c>>> {
        let now = float(self.now);
        if let Some(place) = place.as_ref().filter(|place| now + place.option.ms <= deadline) {
            self.start(job, sized, place.clone(), others);
            return None;
        }
        let later = self.find_later_by(deadline, job, sized);
        let Some((later, _)) = later else { return Some(place) };
        self.reserve(later);
        self.first_waiting.get_or_insert(job.id);
        self.waiting.entry(size.number).or_insert(job.id);
        self.wait(job, size);
        None
    }

    /// Returns the sizes of a job, for so many other jobs and those that are expected to arrive while it
    /// runs. The latter are about as many as run now (Little's law, with runs of equal length).
    fn sized(&self, job: &QueuedJob, others: usize) -> SizedJob<'c> {
        let others = float_count(others);
        let sized = sizes::sized(
            &self.kinds,
            self.knowledge,
            job,
            others + self.horizon.arrivals,
            self.thrift,
        );
        if sized.known {
            return sized;
        }
        // A reserved slot does not become free for others.
        let power = if self.reservations.is_empty() { UNKNOWN_SCARCITY } else { 1.0 };
        let space = self.scarcity().powf(power);
        let states_memory = !matches!(job.gpu, GpuRequest::Unknown);
        let arrivals = self.horizon.arrivals_for(states_memory, self.available_gpus());
        let all = UNKNOWN_OTHERS * others * space + arrivals;
        let mut sized = sizes::sized(&self.kinds, self.knowledge, job, all, self.thrift);
        self.prefer_lasting(job, &mut sized, others);
        sized
    }

    /// Returns when a job has to be done, if that is still possible and its times are known.
    fn deadline_of(&self, job: &QueuedJob, sized: &SizedJob<'c>) -> Option<f64> {
        let deadline = float(self.knowledge.jobs.facts(job.id).deadline.filter(|_| sized.known)?);
        (float(self.now) + sized.least_ms <= deadline).then_some(deadline)
    }

    /// Prefers the places on which a job ends well before its deadline: within half of the remaining time.
    /// Among these the cheapest comes first, among the others the fastest.
    fn keep_deadline(&self, sized: &mut SizedJob<'c>, deadline: f64) {
        let left = deadline - float(self.now);
        let late = |option: &SizeOption<'_>| {
            if option.ms <= left * SAFE { 0.0 } else { option.ms }
        };
        sized.options.sort_by(|a, b| late(a).total_cmp(&late(b)));
    }

    /// Prefers the places on which a job ends before everything else does, if no more jobs seem to arrive:
    /// otherwise it would run on alone.
    fn hasten(&self, sized: &mut SizedJob<'c>) {
        if !sized.known || self.horizon.is_open() {
            return;
        }
        let in_time = |option: &SizeOption<'_>| option.ms <= self.horizon.ms;
        let late = |option: &SizeOption<'_>| if in_time(option) { 0.0 } else { option.ms };
        sized.options.sort_by(|a, b| late(a).total_cmp(&late(b)));
    }

    /// Returns whether a job has waited too long, so that it is served before others of its priority.
    fn is_overdue(&self, job: &QueuedJob) -> bool {
        self.now.minus(job.submitted) >= self.patience
    }

    /// Returns whether a job is overdue, and served before those of a better priority, too.
    fn is_out_of_turn(&self, job: &QueuedJob) -> bool {
        self.out_of_turn.contains(&job.id)
    }

    /// Finds the jobs that are served before those of a better priority.
    fn find_out_of_turn(&self, timed: &[TimedJob<'_>]) -> BTreeSet<JobId> {
        let overdue = timed.iter().filter(|timed| self.is_overdue(timed.job));
        let overdue: Vec<TimedJob<'_>> = overdue.copied().collect();
        let best = timed.iter().map(|timed| timed.job.queue_rank).min();
        let Some(best) = best.filter(|_| !overdue.is_empty()) else { return BTreeSet::new() };
        let jobs = self.knowledge.jobs;
        let scale = float_count(survey_step(self.state.gpus.len()));
        let running = self.surveyed().map(|held| (held.job, held.part * scale));
        let holders = OverdueHolders::of(self.available_gpus(), running, jobs, self.patience);
        order::out_of_turn(overdue, best, jobs, holders)
    }

    /// Returns the jobs that run; in a large cluster those on some GPUs, evenly spread.
    fn surveyed(&self) -> impl Iterator<Item = HeldPart> + '_ {
        let gpus = (0..self.state.gpus.len()).step_by(survey_step(self.state.gpus.len()));
        gpus.filter(|gpu| self.state.gpus[*gpu].view.available).flat_map(move |gpu| {
            let now = &self.state.gpus[gpu];
            let kind = &self.kinds[self.kind_of[gpu]];
            now.instances.iter().flat_map(move |instance| {
                let slot = instance.slot;
                let profile = slot.and_then(|slot| kind.mig()?.geometry.profile(slot.profile));
                let part = kind.part(profile);
                now.holders(slot).into_iter().map(move |job| HeldPart { job, gpu, slot, part })
            })
        })
    }

    /// Returns whether a job has a deadline, and may have a reservation for it.
    fn has_deadline(&self, job: &QueuedJob) -> bool {
        self.reservations.len() < DEADLINE_DEPTH
            && self.knowledge.jobs.facts(job.id).deadline.is_some()
    }

    /// Returns whether a job needs most of a GPU, and no such job has a reservation yet. Without one it would wait until
    /// all of a GPU's jobs happen to end while nobody else waits.
    fn is_first_wide(&self, job: &QueuedJob) -> bool {
        let is_wide = |job: JobId| self.wide.contains(&job);
        is_wide(job.id) && !self.reservations.iter().any(|kept| is_wide(kept.job))
    }

    /// Returns whether a job is known to end, so that it may use a slot before the job that it is
    /// reserved for.
    fn fills(&self, job: &QueuedJob) -> bool {
        !self.reservations.is_empty() && self.knowledge.jobs.facts(job.id).limit.is_some()
    }

    fn start(&mut self, job: &QueuedJob, sized: &SizedJob<'c>, place: PlaceNow<'c>, others: usize) {
        let PlaceNow { option, gpu, offer } = place;
        let key = (option.kind, option.profile.map(|profile| profile.id));
        let ranked: Vec<(usize, Option<Rc<Offer>>)> = {
            let rest = self.markets.get(&key).into_iter().flat_map(|market| &market.order);
            let rest = rest.filter(|(_, at)| *at != gpu).map(|(_, at)| *at);
            let of = |at: usize| self.markets.get(&key)?.offers.get(&at).map(Rc::clone);
            std::iter::once((gpu, Some(Rc::clone(&offer))))
                .chain(rest.map(|at| (at, of(at))))
                .collect()
        };
        let ranked = ranked.iter().map(|(at, offer)| (*at, offer.as_deref()));
        let size = size_request(&option);
        let mut why = explain::start(NAME, &self.state, job, &size, ranked);
        let expected = self.horizon.arrivals > 0.0;
        describe_size(&mut why.summary, &self.kinds, sized, &option, (others, expected));
        let now = &mut self.state.gpus[gpu];
        now.take(job.id, None, offer.slot, &offer.steps);
        let id = now.view.id.clone();
        let limit = self.knowledge.jobs.facts(job.id).limit.map(float);
        let takes = if sized.known { option.ms } else { limit.unwrap_or(f64::INFINITY) };
        self.ends.begin(job.id, takes, sized.known || limit.is_some());
        self.note_start(gpu);
        self.started += 1;
        if let Some(left) = &mut self.power_left {
            *left = left.saturating_sub(power_of(self.kinds[option.kind].view, option.profile));
        }
        let place = JobPlacement {
            gpu: id,
            slot: offer.slot,
            steps: offer.steps.clone(),
            part: None,
            share: None,
        };
        let decision = Decision::Start { job: job.id, place, why };
        if let Some(quotas) = &mut self.quotas {
            quotas.count(&decision);
        }
        self.decisions.push(decision);
    }
}
