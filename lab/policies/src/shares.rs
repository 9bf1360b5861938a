//! Percentages of a slice's multiprocessors for the jobs that share it, by predicted speeds.

use tessera_model::mig::Slot;
use tessera_model::share::SmPercent;
use tessera_model::{Bytes, JobId};

use tessera_placement::decision::PlacedJob;
use tessera_placement::policy::planned_gpu::PlannedGpu;
use tessera_placement::predictor::{Knowledge, SharedPart};

/// The step in which percentages are assigned. Source: MMK's `ML`.
const STEP: u8 = 10;

/// Maximum number of jobs on one slice. As many were measured together, so that no predictor gets
/// more co-runners than in its training samples (co-execution study: four copies; MMK: three).
pub(crate) const SHARERS_MAX: usize = 4;

/// The speed that a fixed job keeps on its slice, in thousandths: other jobs use the rest of the
/// slice. Chosen: MMK leaves online jobs their percentages and doesn't print how large these are.
const KEEPS: i64 = 900;

/// The jobs of one slice, and their speeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareConfig {
    pub(crate) placements: Vec<PlacedJob>,
    /// The sum of speeds, in millionths of each one's on the whole GPU.
    pub(crate) throughput: i64,
}

/// Returns a job's speed on a slice with its percentage and co-runners, in millionths of its speed
/// on the whole GPU.
pub(crate) fn speed(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    slot: Slot,
    job: (JobId, SmPercent),
    others: &[(JobId, SmPercent)],
) -> Option<i64> {
    if others.is_empty() && job.1 == SmPercent::WHOLE {
        return planned.speed(knowledge.predictor, job.0, slot);
    }
    let (job, sm) = job;
    let part = SharedPart::Mps { sm, co_runners: others };
    let here =
        knowledge.predictor.predict_shared_run(job, part, planned.view, planned.profile(slot)?)?;
    let whole = knowledge.predictor.time_alone(job, planned.view, planned.mig.largest()?)?.get();
    i64::try_from(u128::from(whole) * 1_000_000 / u128::from(here.get().max(1))).ok()
}

/// Returns the least part with which a fixed job keeps nine tenths of its speed on the slice.
pub(crate) fn online(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    slot: Slot,
    job: JobId,
) -> Option<SmPercent> {
    let alone = planned.speed(knowledge.predictor, job, slot)?;
    let enough = |sm: &SmPercent| {
        speed(planned, knowledge, slot, (job, *sm), &[]).is_some_and(|s| s * 1_000 >= alone * KEEPS)
    };
    Some(steps().find(enough).unwrap_or(SmPercent::WHOLE))
}

/// Returns whether the memory of all jobs fits on the slice.
pub(crate) fn fits(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    slot: Slot,
    jobs: &[JobId],
) -> bool {
    let Some(profile) = planned.profile(slot) else { return false };
    let mut left = profile.memory;
    jobs.iter().all(|job| {
        // A job without known memory has its slice alone.
        let co_runner = knowledge.jobs.facts(*job).co_runner;
        let needs = co_runner.as_ref().map_or(Bytes::ZERO, |own| own.memory);
        let alone = co_runner.is_none() && jobs.len() > 1;
        let rest = left.get().checked_sub(needs.get());
        left = Bytes::new(rest.unwrap_or(0));
        !alone && rest.is_some()
    })
}

/// Returns whether a job's percentage never changes: it is an online job, or a stop would lose its
/// work.
pub(crate) fn fixed(knowledge: Knowledge<'_>, job: JobId) -> bool {
    let facts = knowledge.jobs.facts(job);
    facts.online || facts.migration_price.is_none()
}

/// Divides a slice's multiprocessors: fixed jobs keep their part, and each further step is given to
/// the job that it speeds up most. `None` if their memory doesn't fit or a job gets no part.
///
/// Source: MMK's `MPSConfig` with `getRemainSM`. The paper orders jobs by predicted throughput
/// over SM utilisation and hands SMs out in that order. One order for whole parts would starve
/// the last, against its observation that equal thirds do better than 50-30-20. So each step is
/// given to the job that gains most by it.
pub(crate) fn config(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    slot: Slot,
    jobs: &[JobId],
) -> Option<ShareConfig> {
    if jobs.len() > SHARERS_MAX || !fits(planned, knowledge, slot, jobs) {
        return None;
    }
    let kept = |job: JobId| {
        let known =
            planned.placements.iter().find(|placed| placed.job == job && placed.slot == Some(slot));
        known.and_then(|placed| placed.sm)
    };
    let lone = |job: JobId| !fixed(knowledge, job) && jobs.len() == 1;
    let mut parts: Vec<(JobId, u8)> = Vec::new();
    for job in jobs {
        let part = match fixed(knowledge, *job) {
            true => kept(*job).or_else(|| online(planned, knowledge, slot, *job))?.get(),
            false if lone(*job) => 100,
            false => STEP,
        };
        parts.push((*job, part));
    }
    let given = |parts: &[(JobId, u8)]| parts.iter().map(|(_, sm)| u32::from(*sm)).sum::<u32>();
    if given(&parts) > 100 {
        return None;
    }
    while given(&parts) + u32::from(STEP) <= 100 {
        let gains =
            (0..parts.len()).filter(|at| !fixed(knowledge, parts[*at].0)).filter_map(|at| {
                let now = speed_of(planned, knowledge, slot, &parts, at)?;
                let mut more = parts.clone();
                more[at].1 += STEP;
                Some((speed_of(planned, knowledge, slot, &more, at)? - now, at))
            });
        // Among equal gains it goes to the job with the smallest part, so that equal jobs get equal
        // parts.
        let best = gains.max_by_key(|(gain, at)| (*gain, 100 - parts[*at].1));
        let Some((_, at)) = best else { break };
        parts[at].1 += STEP;
    }
    let speeds: Option<Vec<i64>> =
        (0..parts.len()).map(|at| speed_of(planned, knowledge, slot, &parts, at)).collect();
    let placements = parts.iter().map(|(job, sm)| {
        let sm = SmPercent::try_from(*sm).ok().filter(|_| !lone(*job));
        PlacedJob { sm, ..PlacedJob::alone(*job, slot) }
    });
    Some(ShareConfig { placements: placements.collect(), throughput: speeds?.into_iter().sum() })
}

fn speed_of(
    planned: &PlannedGpu<'_>,
    knowledge: Knowledge<'_>,
    slot: Slot,
    parts: &[(JobId, u8)],
    at: usize,
) -> Option<i64> {
    let percent = |part: &(JobId, u8)| Some((part.0, SmPercent::try_from(part.1).ok()?));
    let others: Option<Vec<_>> = parts
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != at)
        .map(|(_, p)| percent(p))
        .collect();
    speed(planned, knowledge, slot, percent(&parts[at])?, &others?)
}

/// The possible percentages, the smallest first.
fn steps() -> impl Iterator<Item = SmPercent> {
    (1..=100 / STEP).filter_map(|step| SmPercent::try_from(step * STEP).ok())
}
