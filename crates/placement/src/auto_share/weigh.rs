//! Decides whether two jobs on one slice certainly have a higher throughput than one of them alone.
//!
//! Speeds are thousandths of a job's speed alone on all of the slice. Each has an interval, and the rules take its
//! lower end:
//!
//! - **Under MPS** from a trained model, whose intervals hold nine of ten outcomes.
//! - **Kernel by kernel** from [`kernel_sharing::by_priority`]. A filler takes at most 1.6 times as long as predicted
//!   (`docs/policies.md`, *Kernel-level sharing in the model*). A holder loses at most 5 %: the queue's budgets for context
//!   switches (3 %) and for launches by age (2 %) bound that (`docs/kernel-plane.md`).

use tessera_model::number::clamped;
use tessera_model::share::{SliceShare, SmPercent};
use tessera_model::{Bytes, JobId, Millis};

use super::hosts::{Host, HostState};
use super::{ConsideredWay, SharingWay};
use crate::kernel_sharing::{self, KernelSharer};
use crate::predictor::{Knowledge, SpeedBasis, SpeedRange};
use crate::view::MpsClient;

/// The expected joint throughput must exceed the host's own by this factor. It is the 1.3 of
/// `tessera`'s pairs.
const GAIN: u32 = 300;

/// The same factor for the lower ends of both speeds. Chosen: the usual error of predicted run
/// times.
const GAIN_FOR_CERTAIN: u32 = 100;

/// An online job keeps at least this part of its speed: the kernel queue's own target (FIKIT's
/// overhead is up to 4.93 %).
const ONLINE_LEAST: u32 = 950;

/// An offline host keeps at least this part of its speed without a co-runner. Chosen: the co-runner
/// may at most double its time.
const HOST_LEAST: u32 = 500;

/// The lowest speed of the joining job; a lower one does not count as a benefit (the same as for `--share
/// mps` and `kernel`).
const JOINER_LEAST: u32 = 300;

/// A job whose kernels run for at least this part of its time may be bound by bandwidth. Bandwidth
/// itself is not measured; the part of the time in which kernels run is its upper bound. While
/// kernels of both run, two jobs slow each other by 2.6 at most (study). Where one of them is busy
/// for less than half of its time, both together do more than one alone.
const MAY_BE_BANDWIDTH_BOUND: u16 = 500;

/// The host's percentages that are tried for a pair: those of `tessera`'s pairs.
const PARTS: [u8; 3] = [50, 70, 30];

/// The least percentage of the multiprocessors that a host must leave for a joining job. Chosen.
const PART_LEAST: u8 = 10;

/// Speed alone, in thousandths.
const ALONE: u32 = 1_000;

/// A host and the job that may join it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'p, 'c> {
    pub(super) host: &'p Host<'c>,
    pub(super) job: JobId,
    pub(super) memory: Bytes,
    pub(super) sharer: KernelSharer,
}

/// The predicted speeds of a host and of the job that joins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairFigures {
    pub(super) host: SpeedRange,
    pub(super) joiner: SpeedRange,
}

/// The rule that forbids a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharingRefusal {
    /// The memory of both exceeds that of the slice.
    Memory,
    /// The node can't share slices in this way.
    NotOffered,
    /// How busy the task keeps the GPU was never measured.
    NotMeasured(Member),
    /// Rule 1: both may be bound by bandwidth.
    Bandwidth,
    /// No model predicts the speeds.
    NotPredicted,
    /// The run time of the task is not known.
    NoRunTime(Member),
    /// The time limit might not be kept.
    TimeLimit(Member),
    /// It has a deadline.
    Deadline(Member),
    /// The host leaves too few multiprocessors.
    NoPartLeft,
    /// It might become too slow: its predicted least speed, and the required one.
    TooSlow(Member, u32, u32),
    /// The lower bound of the joint throughput is too low.
    Little(u32),
    /// Together they might end later than one after the other.
    Later,
}

/// One job of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// The job that has the slice.
    Host,
    /// The job that joins it.
    Joiner,
}

/// The speeds of both, alone and together, in thousandths of their speeds on all of the slice.
#[derive(Clone, Copy, Debug)]
struct PairSpeeds {
    together: PairFigures,
    /// The host's speed without a co-runner, with its present share.
    host_now: u32,
    /// The lower ends of each one's speed after the other has ended.
    after: [u32; 2],
}

/// Weighs the ways in which a job could join a host. Of each kind it returns the best one that is
/// allowed.
pub(super) fn weigh_ways(pair: &Pair<'_, '_>, knowledge: Knowledge<'_>) -> Vec<ConsideredWay> {
    let mut ways = Vec::new();
    if !matches!(pair.host.state, HostState::Shares(SliceShare::Kernel(_) | SliceShare::Compute(_)))
    {
        ways.push(weigh_mps(pair, knowledge));
    }
    if !matches!(pair.host.state, HostState::Shares(SliceShare::Mps(_) | SliceShare::Compute(_))) {
        ways.push(weigh_kernel(pair, knowledge));
    }
    ways
}

/// Checks the rules that hold for every way of sharing.
fn check_both(pair: &Pair<'_, '_>, knowledge: Knowledge<'_>) -> Result<[u16; 2], SharingRefusal> {
    let (host, joiner) = (pair.host, pair.sharer);
    if host.needs.get().saturating_add(pair.memory.get()) > host.memory.get() {
        return Err(SharingRefusal::Memory);
    }
    for (member, job) in [(Member::Host, host.job), (Member::Joiner, pair.job)] {
        if knowledge.jobs.facts(job).deadline.is_some() {
            return Err(SharingRefusal::Deadline(member));
        }
    }
    let first = host.sharer.busy.ok_or(SharingRefusal::NotMeasured(Member::Host))?;
    let second = joiner.busy.ok_or(SharingRefusal::NotMeasured(Member::Joiner))?;
    Ok([first, second])
}

fn weigh_mps(pair: &Pair<'_, '_>, knowledge: Knowledge<'_>) -> ConsideredWay {
    let half = [SmPercent::DEFAULT, SmPercent::DEFAULT];
    let refused = |refusal| ConsideredWay {
        way: SharingWay::Mps(half),
        figures: None,
        verdict: Err(refusal),
    };
    if !pair.host.gpu.mps {
        return refused(SharingRefusal::NotOffered);
    }
    match check_both(pair, knowledge) {
        Err(refusal) => return refused(refusal),
        Ok([first, second]) if first.min(second) >= MAY_BE_BANDWIDTH_BOUND => {
            return refused(SharingRefusal::Bandwidth);
        }
        Ok(_) => {}
    }
    let offered = offered_parts(pair.host.state);
    let ways = offered.into_iter().map(|parts| weigh_parts(pair, parts, knowledge));
    let better = |best: ConsideredWay, way: ConsideredWay| match (best.verdict, way.verdict) {
        (Ok(most), Ok(least)) if least > most => way,
        (Err(_), Ok(_)) => way,
        _ => best,
    };
    ways.reduce(better).unwrap_or_else(|| refused(SharingRefusal::NoPartLeft))
}

/// Returns the percentages that a pair may get: a running host keeps its own.
fn offered_parts(host: HostState) -> Vec<[SmPercent; 2]> {
    let part = |percent: u8| SmPercent::try_from(percent).ok();
    match host {
        HostState::Starts => {
            let both = |first: u8| Some([part(first)?, part(100_u8.checked_sub(first)?)?]);
            PARTS.into_iter().filter_map(both).collect()
        }
        HostState::Shares(share) => {
            let left = share.sm().and_then(|sm| Some((sm, part(100_u8.checked_sub(sm.get())?)?)));
            let enough = left.filter(|(_, left)| left.get() >= PART_LEAST);
            enough.into_iter().map(|(sm, left)| [sm, left]).collect()
        }
    }
}

/// Weighs a pair under MPS with its percentages.
fn weigh_parts(
    pair: &Pair<'_, '_>,
    parts: [SmPercent; 2],
    knowledge: Knowledge<'_>,
) -> ConsideredWay {
    let way = SharingWay::Mps(parts);
    let client =
        |sharer: KernelSharer, sm| MpsClient { online: sharer.online, sm, busy: sharer.busy };
    let (host, joiner) = (client(pair.host.sharer, parts[0]), client(pair.sharer, parts[1]));
    let speeds = |clients: &[MpsClient]| {
        let (gpu, profile) = (pair.host.gpu, pair.host.profile);
        knowledge.predictor.predict_speeds(clients, SpeedBasis::WholeInstance, gpu, profile)
    };
    let alone = |client: MpsClient| speeds(&[client])?.first().copied();
    let predicted = || {
        let both = speeds(&[host, joiner])?;
        let [first, second] = both.as_slice() else { return None };
        Some((PairFigures { host: *first, joiner: *second }, alone(host)?, alone(joiner)?))
    };
    let Some((figures, host_alone, joiner_alone)) = predicted() else {
        return ConsideredWay { way, figures: None, verdict: Err(SharingRefusal::NotPredicted) };
    };
    let host_now = match pair.host.state {
        HostState::Starts => ALONE,
        HostState::Shares(_) => host_alone.expected,
    };
    let after = [host_alone.low, joiner_alone.low];
    let speeds = PairSpeeds { together: figures, host_now, after };
    let is_timed = |time: Option<Millis>, member| time.ok_or(SharingRefusal::NoRunTime(member));
    let [host_ms, joiner_ms] = run_times(pair, knowledge);
    // A percentage holds until the end of a job, so the run time must be known.
    let timed = match pair.host.state {
        HostState::Starts => is_timed(host_ms, Member::Host).map(|_| ()),
        HostState::Shares(_) => Ok(()),
    };
    let timed = timed.and_then(|()| is_timed(joiner_ms, Member::Joiner).map(|_| ()));
    let verdict = timed.and_then(|()| judge(pair, speeds, [host_ms, joiner_ms], knowledge));
    ConsideredWay { way, figures: Some(figures), verdict }
}

fn weigh_kernel(pair: &Pair<'_, '_>, knowledge: Knowledge<'_>) -> ConsideredWay {
    let way = SharingWay::Kernel;
    let refused = |refusal| ConsideredWay { way, figures: None, verdict: Err(refusal) };
    if !pair.host.gpu.kernel {
        return refused(SharingRefusal::NotOffered);
    }
    if let Err(refusal) = check_both(pair, knowledge) {
        return refused(refusal);
    }
    let sharers = [pair.host.sharer, pair.sharer];
    let slowed = kernel_sharing::by_priority(&sharers);
    let [host, joiner] = slowed.as_slice() else { return refused(SharingRefusal::NotPredicted) };
    let (first, second) = (pair.host.sharer.priority, pair.sharer.priority);
    let figures = PairFigures {
        host: kernel_speed(*host, first < second),
        joiner: kernel_speed(*joiner, second < first),
    };
    let speeds = PairSpeeds { together: figures, host_now: ALONE, after: [ALONE, ALONE] };
    let verdict = judge(pair, speeds, run_times(pair, knowledge), knowledge);
    ConsideredWay { way, figures: Some(figures), verdict }
}

/// The least speed of a holder, in thousandths.
const HOLDER_LEAST: u32 = 950;

/// How much longer than predicted a job may take that does not hold the slice, in thousandths. The largest of the pairs
/// at true times is 1,490 (H), and 1,560 with the queue in virtual time. Where it is more, fillers are too slow to join
/// by any prediction (`lab/simulator/tests/kernel_sharing.rs`).
const FILLER_ERROR: u32 = 1_600;

/// Returns the interval of a speed under kernel-level sharing.
fn kernel_speed(slowed: u64, holds: bool) -> SpeedRange {
    let speed = 1_000_000 / slowed.max(1);
    let expected = clamped::<u32>(speed).min(ALONE);
    let low = match holds {
        true => expected.min(HOLDER_LEAST),
        false => expected * 1_000 / FILLER_ERROR,
    };
    let high = (expected * FILLER_ERROR / 1_000).min(ALONE);
    SpeedRange { low, expected, high }
}

/// Returns the run time of each job alone on the slice, as far as it is known.
fn run_times(pair: &Pair<'_, '_>, knowledge: Knowledge<'_>) -> [Option<Millis>; 2] {
    let (gpu, profile) = (pair.host.gpu, pair.host.profile);
    let time = |job| knowledge.predictor.predict_rest_alone(job, gpu, profile);
    let host = match pair.host.state {
        HostState::Starts => time(pair.host.job),
        HostState::Shares(_) => None,
    };
    [host, time(pair.job)]
}

/// Returns the lower bound of the joint throughput, in thousandths of one job alone, or the rule
/// that forbids the pair.
fn judge(
    pair: &Pair<'_, '_>,
    speeds: PairSpeeds,
    times: [Option<Millis>; 2],
    knowledge: Knowledge<'_>,
) -> Result<u32, SharingRefusal> {
    let PairFigures { host, joiner } = speeds.together;
    let host_least = match pair.host.sharer.online {
        true => ONLINE_LEAST,
        false => HOST_LEAST * speeds.host_now / ALONE,
    };
    let joiner_least = if pair.sharer.online { ONLINE_LEAST } else { JOINER_LEAST };
    for (member, range, least) in
        [(Member::Host, host, host_least), (Member::Joiner, joiner, joiner_least)]
    {
        if range.low < least {
            return Err(SharingRefusal::TooSlow(member, range.low, least));
        }
    }
    let certain = host.low + joiner.low;
    let expected = host.expected + joiner.expected;
    if certain < speeds.host_now + GAIN_FOR_CERTAIN || expected < speeds.host_now + GAIN {
        return Err(SharingRefusal::Little(certain));
    }
    keep_limits(pair, speeds, times, knowledge)?;
    if let [Some(first), Some(second)] = times
        && ends_later(speeds, [first, second])
    {
        return Err(SharingRefusal::Later);
    }
    Ok(certain)
}

/// Checks that each ends within its time limit at its least speed.
fn keep_limits(
    pair: &Pair<'_, '_>,
    speeds: PairSpeeds,
    times: [Option<Millis>; 2],
    knowledge: Knowledge<'_>,
) -> Result<(), SharingRefusal> {
    let PairFigures { host, joiner } = speeds.together;
    let both = [
        (Member::Host, pair.host.job, host.low.min(speeds.after[0]), times[0]),
        (Member::Joiner, pair.job, joiner.low.min(speeds.after[1]), times[1]),
    ];
    for (member, job, least, time) in both {
        let Some(limit) = knowledge.jobs.facts(job).limit else { continue };
        let is_kept = time.is_some_and(|time| lasts(time.get(), least) <= limit.get());
        if !is_kept {
            return Err(SharingRefusal::TimeLimit(member));
        }
    }
    Ok(())
}

/// Returns how long an amount of work takes at a speed, in milliseconds.
fn lasts(work: u64, speed: u32) -> u64 {
    work.saturating_mul(u64::from(ALONE)) / u64::from(speed.max(1))
}

/// Returns whether both end later, at their least speeds, than one after the other. It compares the
/// last end and the mean of both. A job that remains alone under MPS keeps its percentage.
fn ends_later(speeds: PairSpeeds, [first, second]: [Millis; 2]) -> bool {
    let PairFigures { host, joiner } = speeds.together;
    let (first, second) = (first.get(), second.get());
    let (host_ends, joiner_ends) = (lasts(first, host.low), lasts(second, joiner.low));
    let rest = |work: u64, at: u32, elapsed: u64, after: u32| {
        let done = elapsed.saturating_mul(u64::from(at)) / u64::from(ALONE);
        elapsed.saturating_add(lasts(work.saturating_sub(done), after))
    };
    let [host_ends, joiner_ends] = match host_ends <= joiner_ends {
        true => [host_ends, rest(second, joiner.low, host_ends, speeds.after[1])],
        false => [rest(first, host.low, joiner_ends, speeds.after[0]), joiner_ends],
    };
    let one_after_the_other = first.saturating_add(second);
    host_ends.max(joiner_ends) > one_after_the_other
        || host_ends.saturating_add(joiner_ends) > first.saturating_add(one_after_the_other)
}
