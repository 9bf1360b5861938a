//! Speeds under kernel-level sharing on one slice: a model with a few constants.
//!
//! A job is described by the part of its time alone in which one of its kernels is on the device.
//! Kernels of the best priority run as if no other job were there. Those of the next priority fill
//! the gaps between them, those of the one after that fill the remaining gaps, and so on. Jobs of
//! equal priority share by time slices, which is the driver's default.
//!
//! It is calibrated on FIKIT's ten pairs, which this project's kernel queue ran in real time (`docs/benchmarks.md`).
//! The pairs ran at their true times (`load-tests/results/kernel-pairs-true-times.json`, and `quiet` in
//! `against-1e2d7ef.json`) and ten times as slowly (`kernel-pairs.json`). In the first record of each, the job of high
//! priority took 1.005 to 1.072 of its time alone.
//!
//! What the job of low priority used of the idle time depends on the length of the gaps. Each filled gap costs
//! two context switches and the wake-up of a thread. The part was 0.002 to 0.25 at true times, and 0.55 to 0.72 in gaps ten
//! times as long (`filled`).
//! `lab/simulator/tests/kernel_sharing.rs` compares the model with those pairs and with the queue
//! itself in virtual time.
//!
//! A fill must fit the gap. A job fills nothing if at least half of its kernel time is in kernels that are longer
//! than every gap of a better priority. What remains to it is the time of launches by age. Such jobs are not
//! placed together ([`SharingGain::NeverFits`]). The lengths are those of the measured profiles, on whatever slices
//! they were measured. What kernels may do at the same time under MPS is not part of the model.
//!
//! A job in exclusive mode never runs next to another one. It is placed with offline jobs only, and nothing is
//! predicted for them.
//!
//! FIKIT (§4) reports the same for its own queue: high programs as fast as alone within 5 %, low
//! ones below 30 % of their speed under default sharing. A job of unknown demand counts as always
//! busy, so that no filler is expected to fit its gaps.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use tessera_model::Millis;
use tessera_model::spec::Priority;

/// The part of the otherwise idle device time that fillers use in gaps of unknown length, in thousandths: the
/// median of the ten pairs at true times is 167 (`kernel-pairs-true-times.json`). They are as long as those of networks.
const FILLED_UNKNOWN: u64 = 170;

/// The length of typical gaps up to which fillers use nothing, in microseconds. See [`filled`].
const UNUSED_GAP_US: u64 = 430;

/// The part that fillers would use of endless gaps, in thousandths. See [`filled`].
const FILLED_MOST: u64 = 780;

/// The length of typical gaps, beyond [`UNUSED_GAP_US`], in which that is halved, in microseconds.
const FILLED_HALF_US: u64 = 1_230;

/// How long a launch waits for bursts of better priorities, per unit of the time that these leave,
/// in thousandths. Fitted to the queue in virtual time.
const LATE: u64 = 600;

/// How much time a holder loses because its gaps may be filled, in thousandths of its time: the
/// least of the pairs' 11 to 55.
const WATCHED: u64 = 10;

/// How much more a holder loses while the fillers' kernels run all the time: pair F's 55 has both
/// losses.
const MET: u64 = 50;

/// The part of the time that the queue grants by age, to prevent starvation, if no gaps are left,
/// in thousandths.
///
/// Source: the queue's default rules (`Ageing::cost_thousandths`).
const VALVE: u64 = 20;

/// Slow-down by an always busy job of equal priority: for an always busy job, and for any job,
/// which may find the device in the other's time slice. Together they give the study's "slightly
/// below 2" for two jobs that share by time slices (Villarrubia et al., arXiv 2604.22430, §4).
const EQUAL_BUSY: u64 = 850;
const EQUAL_ANY: u64 = 100;

/// Returns the part of the idle time that fillers use, in thousandths, if a typical gap is this long in microseconds.
///
/// It is a hyperbola, since what a filled gap costs hardly depends on its length. It was fitted by hand to the pairs
/// whose fillers are busy for at least 800 thousandths of their time. The gaps are those of the high program in the
/// record at true times (`gaps`), as the mean over the idle time. In the other record they are ten times as long. What
/// was filled is `low_part_of_idle`, at true times in both records:
///
/// | pair | gap | filled | this | tenfold: filled | this |
/// |---|---|---|---|---|---|
/// | F | 456 us | 2 to 10 | 16 | 551 | 600 |
/// | J | 527 us | 24 to 82 | 57 | 644 | 621 |
/// | C, D | 695 us | 128 to 202 | 138 | 684 to 701 | 655 |
/// | G, I | 760 us | 159 to 207 | 165 | 612 to 709 | 665 |
/// | A, B, E | 843 us | 154 to 248 | 196 | 620 to 717 | 676 |
fn filled(typical_gap_us: u32) -> u64 {
    if typical_gap_us == u32::MAX {
        return FILLED_UNKNOWN;
    }
    let used = u64::from(typical_gap_us).saturating_sub(UNUSED_GAP_US);
    FILLED_MOST * used / (used + FILLED_HALF_US)
}

/// How long a task's kernels and gaps are, from its measured profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelLengths {
    /// At least half of the time of its kernels is in kernels that need a gap of this length, in microseconds. Zero
    /// if unknown.
    pub half_us: u32,
    /// Its longest gap, in microseconds. `u32::MAX` if unknown.
    pub gap_us: u32,
    /// How long the gap around a moment of its idle time is on average, in microseconds. `u32::MAX` if unknown.
    #[serde(default = "unknown_gap", skip_serializing_if = "is_unknown_gap")]
    pub typical_gap_us: u32,
}

const fn unknown_gap() -> u32 {
    u32::MAX
}

const fn is_unknown_gap(gap_us: &u32) -> bool {
    *gap_us == u32::MAX
}

impl KernelLengths {
    /// Nothing is known: every kernel fits.
    pub const UNKNOWN: Self = Self { half_us: 0, gap_us: u32::MAX, typical_gap_us: u32::MAX };

    /// Returns rounded lengths, so that a round has few kinds of jobs. Kernels and typical gaps are rounded down and the
    /// longest gap up, by a quarter at most.
    #[must_use]
    pub fn rounded(self) -> Self {
        let step = |length: u32| 1_u32 << (length.max(1).ilog2().saturating_sub(2));
        let down = |length: u32| length - length % step(length);
        Self {
            half_us: down(self.half_us),
            gap_us: down(self.gap_us).saturating_add(step(self.gap_us)),
            typical_gap_us: match self.typical_gap_us {
                u32::MAX => u32::MAX,
                known => down(known),
            },
        }
    }

    /// Returns whether most of its kernel time fits into no gap of a holder.
    const fn exceed(&self, holder: &Self) -> bool {
        self.half_us > holder.gap_us
    }
}

/// What a task's measured profile shows about its time on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLoad {
    /// The part of its time alone in which one of its kernels runs, in thousandths.
    pub busy: u16,
    /// How long its kernels and gaps are.
    pub lengths: KernelLengths,
}

/// A job under kernel-level sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelSharer {
    /// Its priority in the slice's kernel queue: 0 (first) to 9.
    pub priority: Priority,
    /// Whether it serves requests.
    pub online: bool,
    /// The part of its time alone on the slice in which one of its kernels runs, in thousandths;
    /// `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u16>,
    /// How long its kernels and gaps are, as far as that is known.
    #[serde(default = "unknown_lengths", skip_serializing_if = "are_unknown")]
    pub lengths: KernelLengths,
    /// Whether it never runs next to another job of the slice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
}

const fn unknown_lengths() -> KernelLengths {
    KernelLengths::UNKNOWN
}

fn are_unknown(lengths: &KernelLengths) -> bool {
    *lengths == KernelLengths::UNKNOWN
}

impl KernelSharer {
    /// Returns a job that is not in exclusive mode, and of whose kernels no lengths are known.
    pub const fn new(priority: Priority, online: bool, busy: Option<u16>) -> Self {
        Self { priority, online, busy, lengths: KernelLengths::UNKNOWN, exclusive: false }
    }

    fn part(&self) -> u64 {
        self.busy.map_or(1_000, |busy| u64::from(busy.min(1_000)))
    }
}

/// Returns how busy a job is on a slice, from how busy it is on a whole GPU and from its times
/// alone on both. Between kernels it works on the host, which takes equally long on any slice.
pub fn on_slice(busy: u16, whole: Millis, here: Millis) -> u16 {
    let host = whole.get().saturating_mul(1_000_u64.saturating_sub(u64::from(busy)));
    let idle = host.checked_div(here.get()).unwrap_or(0).min(1_000);
    #[expect(clippy::cast_possible_truncation, reason = "at most 1,000")]
    let busy = (1_000 - idle) as u16;
    busy
}

/// Returns how much longer each job takes than alone on the same slice, in thousandths, if a queue
/// orders kernels by priority.
pub fn by_priority(sharers: &[KernelSharer]) -> Vec<u64> {
    let mut levels: Vec<Priority> = sharers.iter().map(|sharer| sharer.priority).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut slowed = vec![1_000; sharers.len()];
    let mut used = vec![0; sharers.len()];
    let mut left = 1_000_u64;
    for (depth, level) in levels.iter().enumerate() {
        let better = sharers.iter().filter(|other| other.priority < *level);
        // The gaps that all of them leave are no longer than those of any.
        let gap = better.map(|holder| holder.lengths.typical_gap_us).min().unwrap_or(u32::MAX);
        let in_gaps = if depth == 0 { left } else { (left * filled(gap) / 1_000).max(VALVE) };
        for (at, sharer) in
            sharers.iter().enumerate().filter(|(_, sharer)| sharer.priority == *level)
        {
            let mut holders = sharers.iter().filter(|other| other.priority < *level);
            let fits = !holders.any(|holder| sharer.lengths.exceed(&holder.lengths));
            let capacity = if fits { in_gaps } else { VALVE };
            let equals = sharers.iter().enumerate();
            let met = equals.filter(|(other, equal)| *other != at && equal.priority == *level);
            let met: u64 = met.map(|(_, equal)| meets(sharer.part(), equal.part())).sum();
            let host = 1_000 - sharer.part();
            // A launch during a burst waits for the end of the burst. The more time a job spends on
            // its host, the fewer of its launches wait behind each other.
            let burst = LATE * (1_000 - left) / left.max(VALVE);
            let waits = host * host / 1_000 * burst / 1_000;
            slowed[at] = host + waits + (sharer.part() + met) * 1_000 / capacity;
            used[at] = sharer.part() * 1_000 / slowed[at].max(1);
        }
        let taken = sharers.iter().zip(&used).filter(|(sharer, _)| sharer.priority == *level);
        left = left.saturating_sub(taken.map(|(_, used)| used).sum());
    }
    for (at, sharer) in sharers.iter().enumerate() {
        let below = sharers.iter().zip(&used).filter(|(other, _)| other.priority > sharer.priority);
        let (mut any, mut filled) = (false, 0);
        for (_, used) in below {
            (any, filled) = (true, filled + used);
        }
        if any {
            slowed[at] += slowed[at] * (WATCHED + MET * filled.min(1_000) / 1_000) / 1_000;
        }
    }
    slowed
}

/// The same without a queue: the driver shares the device by time slices without priorities.
pub fn sliced(sharers: &[KernelSharer]) -> Vec<u64> {
    let alike = Priority::DEFAULT;
    let sharers: Vec<KernelSharer> =
        sharers.iter().map(|sharer| KernelSharer { priority: alike, ..*sharer }).collect();
    by_priority(&sharers)
}

/// Returns how much time a job loses to another one of equal priority, from how busy both are.
const fn meets(mine: u64, other: u64) -> u64 {
    other * (EQUAL_BUSY * mine / 1_000 + EQUAL_ANY) / 1_000
}

/// How much longer than alone an online job may take under co-location, in thousandths: the kernel
/// queue's own target (FIKIT's overhead is 0.09 to 4.93 %).
const COURTESY: u64 = 1_050;

/// By how much one more job has to raise the joint throughput on a slice, in thousandths of a job
/// alone. It is the value of `tessera` for two jobs (1.3 times the throughput of one).
const ADDS: u64 = 300;

/// The predicted effect of one more job on a shared slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingGain {
    /// How busy some job keeps the slice is unknown.
    Unknown,
    /// The joint throughput rises by this many thousandths of a job alone.
    Adds(u64),
    /// The joint throughput would rise too little or fall: the difference, in thousandths of a job
    /// alone.
    Little(u64),
    /// The kernels of the first job, the filler, are longer than every gap of the second one, the holder. The indexes
    /// are those of the jobs that are there, and `None` is the new job. Of the filler's kernel time, at least half is
    /// in kernels that need this length; the other length is that of the holder's longest gap. Both are in microseconds.
    NeverFits([(Option<usize>, u32); 2]),
    /// One of the jobs is in exclusive mode, so they run one after another.
    OneAtATime,
    /// The same with an online job, which would wait for the end of the other. The index is that of the job that is
    /// there.
    StopsService(usize),
    /// An online job, either the new job or the co-runner with this index, would take this many
    /// thousandths of its time alone.
    Slows(Option<usize>, u64),
}

/// Returns the predicted effect of one more co-runner.
pub fn prospect(there: &[KernelSharer], more: KernelSharer) -> SharingGain {
    let all: Vec<KernelSharer> = there.iter().copied().chain([more]).collect();
    if let Some(at) = there.iter().position(|other| stops_service(*other, more)) {
        return SharingGain::StopsService(at);
    }
    if let Some(misfit) = find_misfit(there, &more) {
        return misfit;
    }
    if all.iter().any(|sharer| sharer.exclusive) {
        return SharingGain::OneAtATime;
    }
    if all.iter().any(|sharer| sharer.busy.is_none()) {
        return SharingGain::Unknown;
    }
    weigh(&by_priority(there), &by_priority(&all), |at| all[at].online)
}

/// Returns whether one of the two waits for the end of the other, and one of them serves requests.
const fn stops_service(one: KernelSharer, other: KernelSharer) -> bool {
    (one.exclusive || other.exclusive) && (one.online || other.online)
}

/// Returns the first pair with the new job in which the kernels of one never fit into the gaps of the other.
fn find_misfit(there: &[KernelSharer], more: &KernelSharer) -> Option<SharingGain> {
    there.iter().enumerate().find_map(|(at, other)| {
        let ((filler, filled), (holder, held)) = match other.priority.cmp(&more.priority) {
            Ordering::Less => ((more, None), (other, Some(at))),
            Ordering::Greater => ((other, Some(at)), (more, None)),
            Ordering::Equal => return None,
        };
        let sizes = [(filled, filler.lengths.half_us), (held, holder.lengths.gap_us)];
        filler.lengths.exceed(&holder.lengths).then_some(SharingGain::NeverFits(sizes))
    })
}

/// Returns the predicted effect of the last job, from the slow-downs of all jobs before and after
/// it joined, in thousandths of their times alone.
pub(crate) fn weigh(before: &[u64], after: &[u64], online: impl Fn(usize) -> bool) -> SharingGain {
    let slowed = after.iter().enumerate().find(|(at, slowed)| {
        // An online job that was slowed before is no reason to refuse, as long as it isn't slowed
        // further.
        online(*at) && **slowed > before.get(*at).copied().unwrap_or(0).max(COURTESY)
    });
    if let Some((at, slowed)) = slowed {
        return SharingGain::Slows((at < before.len()).then_some(at), *slowed);
    }
    let speeds = |slowed: &[u64]| slowed.iter().map(|slowed| 1_000_000 / slowed).sum::<u64>();
    match speeds(after).saturating_sub(speeds(before)) {
        gain @ ADDS.. => SharingGain::Adds(gain),
        gain => SharingGain::Little(gain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job with gaps that are long enough to be filled for the most part.
    fn sharer(priority: u8, busy: impl Into<Option<u16>>) -> KernelSharer {
        let priority = Priority::try_from(priority).unwrap();
        let lengths = KernelLengths { typical_gap_us: 12_000, ..KernelLengths::UNKNOWN };
        KernelSharer { lengths, ..KernelSharer::new(priority, false, busy.into()) }
    }

    #[test]
    fn fillers_use_most_of_long_gaps_little_of_those_of_networks_and_nothing_of_the_shortest() {
        let gaps = [0, 430, 527, 845, 8_450, 1_000_000];
        assert_eq!(gaps.map(filled), [0, 0, 57, 196, 676, 779]);
        assert_eq!(filled(u32::MAX), FILLED_UNKNOWN);
        let next_to = |typical_gap_us| {
            let lengths = KernelLengths { typical_gap_us, ..KernelLengths::UNKNOWN };
            prospect(&[KernelSharer { lengths, ..sharer(0, 300) }], sharer(5, 900))
        };
        assert!(matches!(next_to(12_000), SharingGain::Adds(_)));
        assert!(matches!(next_to(845), SharingGain::Little(_)));
        assert!(matches!(next_to(u32::MAX), SharingGain::Little(_)));
        // Two holders leave no longer gaps than the one with the shorter ones.
        let short = KernelLengths { typical_gap_us: 400, ..KernelLengths::UNKNOWN };
        let three = [sharer(0, 100), KernelSharer { lengths: short, ..sharer(1, 100) }];
        let slowed = by_priority(&[three[0], three[1], sharer(5, 900)]);
        assert!(slowed[1] < 2_000 && slowed[2] > 40_000, "{slowed:?}");
    }

    #[test]
    fn a_job_without_co_runners_is_not_slowed() {
        assert_eq!(by_priority(&[sharer(0, 400)]), [1_000]);
        assert_eq!(sliced(&[sharer(9, None)]), [1_000]);
        assert!(by_priority(&[]).is_empty());
    }

    #[test]
    fn the_best_priority_runs_as_if_alone_and_the_others_share_its_gaps() {
        for busy in (0..=1_000).step_by(50) {
            for other in (0..=1_000).step_by(50) {
                let slowed = by_priority(&[sharer(5, other), sharer(0, busy)]);
                assert!((1_000..=1_050).contains(&slowed[1]), "{busy}, {other}: {slowed:?}");
                // The device's time is used only once, except for launches that are granted by age.
                let used =
                    u64::from(busy) * 1_000 / slowed[1] + u64::from(other) * 1_000 / slowed[0];
                assert!(used <= 1_000 + VALVE, "{busy}, {other}: {slowed:?} use {used}");
            }
        }
        let three = by_priority(&[sharer(0, 200), sharer(4, 300), sharer(9, 300)]);
        assert!(three[0] < three[1] && three[1] < three[2], "{three:?}");
    }

    #[test]
    fn no_job_fills_the_gaps_of_an_unknown_one() {
        let slowed = by_priority(&[sharer(0, None), sharer(5, 500)]);
        assert!(slowed[1] > 20_000, "only launches by age are granted: {slowed:?}");
    }

    #[test]
    fn two_always_busy_jobs_lose_slightly_less_than_half_by_time_slices() {
        assert_eq!(sliced(&[sharer(0, None), sharer(5, None)]), [1_950, 1_950]);
        assert_eq!(sliced(&[sharer(0, 0), sharer(5, 0)]), [1_000, 1_000]);
    }

    #[test]
    fn a_job_that_a_small_slice_slows_has_smaller_gaps_there() {
        let secs = Millis::from_secs;
        assert_eq!(on_slice(400, secs(100), secs(100)), 400);
        // 40 s of kernels became 140 s, and the 60 s of gaps remained.
        assert_eq!(on_slice(400, secs(100), secs(200)), 700);
        assert_eq!(on_slice(1_000, secs(100), secs(200)), 1_000);
        assert_eq!(on_slice(0, secs(100), secs(50)), 0);
    }

    #[test]
    fn a_filler_may_join_and_a_second_service_only_if_it_slows_no_other() {
        let serves = |priority, busy| KernelSharer { online: true, ..sharer(priority, busy) };
        assert!(matches!(prospect(&[serves(0, 300)], sharer(5, 900)), SharingGain::Adds(400..)));
        // Jobs of equal priority share by time slices, which slows the service more than is
        // allowed.
        assert!(matches!(
            prospect(&[serves(5, 300)], sharer(5, 900)),
            SharingGain::Slows(Some(0), 1_100..)
        ));
        assert!(matches!(
            prospect(&[serves(3, 300)], serves(3, 300)),
            SharingGain::Slows(Some(0), _)
        ));
        assert!(matches!(prospect(&[sharer(0, 600)], serves(3, 300)), SharingGain::Slows(None, _)));
        // There are no gaps to fill.
        assert!(matches!(prospect(&[sharer(0, 950)], sharer(5, 900)), SharingGain::Little(..100)));
        assert_eq!(prospect(&[sharer(0, None)], sharer(5, 900)), SharingGain::Unknown);
        assert_eq!(prospect(&[], sharer(5, 900)), SharingGain::Adds(1_000));
    }

    #[test]
    fn kernels_that_fit_into_no_gap_of_the_holder_get_the_time_of_launches_by_age_only() {
        let holder = KernelSharer {
            lengths: KernelLengths { half_us: 900, gap_us: 8_000, typical_gap_us: 8_000 },
            ..sharer(0, 300)
        };
        let filler = |half_us| KernelSharer {
            lengths: KernelLengths { half_us, gap_us: 50, ..KernelLengths::UNKNOWN },
            ..sharer(5, 900)
        };
        assert!(matches!(prospect(&[holder], filler(8_000)), SharingGain::Adds(_)));
        let sizes = [(None, 8_001), (Some(0), 8_000)];
        assert_eq!(prospect(&[holder], filler(8_001)), SharingGain::NeverFits(sizes));
        // The same if the holder comes last, and even if no load is known.
        let sizes = [(Some(1), 8_001), (None, 8_000)];
        let there = [sharer(0, 100), KernelSharer { busy: None, ..filler(8_001) }];
        assert_eq!(prospect(&there, holder), SharingGain::NeverFits(sizes));
        // Equals interleave launch by launch.
        let equal = KernelSharer { priority: holder.priority, ..filler(8_001) };
        assert!(!matches!(prospect(&[holder], equal), SharingGain::NeverFits(_)));
        let slowed = by_priority(&[holder, filler(8_001)]);
        assert!(slowed[1] > 40_000, "{slowed:?}");
    }

    #[test]
    fn lengths_are_rounded_so_that_no_kernel_that_fits_is_refused() {
        for length in [0, 1, 2, 3, 7, 8, 9, 1_000, 8_191, 8_192, u32::MAX] {
            let exact = KernelLengths { half_us: length, gap_us: length, typical_gap_us: length };
            let rounded = exact.rounded();
            assert!(rounded.half_us <= length && rounded.gap_us >= length, "{rounded:?}");
            assert!(rounded.half_us >= length / 4 * 3, "{rounded:?}");
            assert!((length / 4 * 3..=length).contains(&rounded.typical_gap_us), "{rounded:?}");
            assert!(
                rounded.gap_us <= length.max(4).saturating_add(length.max(4) / 4),
                "{rounded:?}"
            );
        }
    }

    #[test]
    fn a_job_in_exclusive_mode_is_never_with_a_service_and_with_others_by_request() {
        let alone = KernelSharer { exclusive: true, ..sharer(5, 900) };
        let service = KernelSharer { online: true, ..sharer(0, 100) };
        assert_eq!(prospect(&[sharer(0, 10), service], alone), SharingGain::StopsService(1));
        assert_eq!(prospect(&[alone], service), SharingGain::StopsService(0));
        assert_eq!(prospect(&[alone], sharer(9, 900)), SharingGain::OneAtATime);
    }
}
