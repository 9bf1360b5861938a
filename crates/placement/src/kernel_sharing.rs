//! Speeds under kernel-level sharing on one slice: a model with a few constants.
//!
//! A job is described by how much of its time alone a kernel of it is on the device. Kernels of the
//! best priority go as if no other job was there. Those of the next fill the gaps between them, those
//! of the one after that what is left, and so on. Equals share time slices, as the driver has it by default.
//!
//! Calibrated on FIKIT's ten pairs as this project's kernel queue runs them in real time
//! (`load-tests/results/kernel-pairs.json`, `docs/benchmarks.md`). The one of high priority took 1.011
//! to 1.033 of its time alone, and 1.055 in the pair of programs of a millisecond or two (F). The one of
//! low priority used 0.55 to 0.72 of the time in which the device was idle. That is 81 to 91 % of what
//! an omniscient filler would use. `lab/simulator/tests/kernel_sharing.rs` holds the model against those pairs and
//! against the queue itself in virtual time.
//!
//! FIKIT (§4) prints the same of its own queue: high programs as fast as alone within 5 %, low ones
//! below 30 % of their speed under default sharing. Of *how busy* a job is it assumes nothing that was
//! not stated: an unknown job counts as always busy, so that no filler is expected to fit its gaps.

use serde::{Deserialize, Serialize};
use tessera_model::Millis;
use tessera_model::spec::Priority;

/// What fillers use of the time in which the device is idle otherwise, in thousandths: of the pairs' 550 to
/// 720, as most of them have it.
const FILLED: u64 = 700;

/// What a launch waits for bursts of those before it, for each part of time that these leave, in
/// thousandths: fitted to the queue in virtual time.
const LATE: u64 = 600;

/// What it costs that somebody may fill one's gaps, in thousandths of one's time: the least of the pairs'
/// 11 to 55.
const WATCHED: u64 = 10;

/// What more it costs where the fillers' kernels run all the time: pair F's 55 has both.
const MET: u64 = 50;

/// What the queue's valve against starvation lets through where no gap is left, in thousandths.
///
/// Source: the queue's default rules (`Ageing::cost_thousandths`).
const VALVE: u64 = 20;

/// Slow-down by an equal that is always busy: of somebody who is always busy too, and of everybody,
/// who finds the device in the other's time slice. Together they are the study's "slightly below 2"
/// of two that share in time slices (Villarrubia et al., arXiv 2604.22430, §4).
const EQUAL_BUSY: u64 = 850;
const EQUAL_ANY: u64 = 100;

/// A job under kernel-level sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelSharer {
    /// Where its kernels stand in the slice's queue: 0 (first) to 9.
    pub priority: Priority,
    /// Whether it serves requests.
    pub online: bool,
    /// The part of its time alone on the slice in which a kernel of it runs, in thousandths; `None`
    /// where that isn't known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u16>,
}

impl KernelSharer {
    fn part(&self) -> u64 {
        self.busy.map_or(1_000, |busy| u64::from(busy.min(1_000)))
    }
}

/// Returns how busy a job is on a slice, from how busy it is on a whole GPU and its times alone on
/// both. Between kernels it works on the host, which takes as long wherever the kernels run.
pub fn on_slice(busy: u16, whole: Millis, here: Millis) -> u16 {
    let host = whole.get().saturating_mul(1_000_u64.saturating_sub(u64::from(busy)));
    let idle = host.checked_div(here.get()).unwrap_or(0).min(1_000);
    #[expect(clippy::cast_possible_truncation, reason = "at most 1,000")]
    let busy = (1_000 - idle) as u16;
    busy
}

/// Returns how much longer each takes than alone on the same slice, in thousandths, where a queue
/// has kernels go by priority.
pub fn by_priority(sharers: &[KernelSharer]) -> Vec<u64> {
    let mut levels: Vec<Priority> = sharers.iter().map(|sharer| sharer.priority).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut slowed = vec![1_000; sharers.len()];
    let mut used = vec![0; sharers.len()];
    let mut left = 1_000_u64;
    for (depth, level) in levels.iter().enumerate() {
        let capacity = if depth == 0 { left } else { (left * FILLED / 1_000).max(VALVE) };
        for (at, sharer) in
            sharers.iter().enumerate().filter(|(_, sharer)| sharer.priority == *level)
        {
            let equals = sharers.iter().enumerate();
            let met = equals.filter(|(other, equal)| *other != at && equal.priority == *level);
            let met: u64 = met.map(|(_, equal)| meets(sharer.part(), equal.part())).sum();
            let host = 1_000 - sharer.part();
            // A launch that comes amid a burst waits for its end, whatever gap there is after it: the
            // more it has to do on its own host, the fewer of its launches queue up behind each other.
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

/// The same where the driver shares the device by default, in time slices that know no priority.
pub fn sliced(sharers: &[KernelSharer]) -> Vec<u64> {
    let alike = Priority::DEFAULT;
    let sharers: Vec<KernelSharer> =
        sharers.iter().map(|sharer| KernelSharer { priority: alike, ..*sharer }).collect();
    by_priority(&sharers)
}

/// Returns what a job that is so busy loses to an equal that is so busy.
const fn meets(mine: u64, other: u64) -> u64 {
    other * (EQUAL_BUSY * mine / 1_000 + EQUAL_ANY) / 1_000
}

/// How much longer than alone an online job may take under co-location, in
/// thousandths: the kernel queue's own aim (FIKIT's overhead is 0.09 to 4.93 %).
const COURTESY: u64 = 1_050;

/// What one more has to add to what those on a slice do together, in thousandths of a job alone. It is
/// that of `tessera` for two (1.3 times what one does).
const ADDS: u64 = 300;

/// What is to be expected of one more on a slice that others share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingGain {
    /// Of somebody it isn't known how busy it is.
    Unknown,
    /// All together do so much more, in thousandths of a job alone.
    Adds(u64),
    /// They would do hardly more, or less: so much, in thousandths of a job alone.
    Little(u64),
    /// One that serves answers, the newcomer itself or that one of the others, would take so many
    /// thousandths of its time alone.
    Slows(Option<usize>, u64),
}

/// Returns what is to be expected of one more co-runner.
pub fn prospect(there: &[KernelSharer], more: KernelSharer) -> SharingGain {
    let all: Vec<KernelSharer> = there.iter().copied().chain([more]).collect();
    if all.iter().any(|sharer| sharer.busy.is_none()) {
        return SharingGain::Unknown;
    }
    weigh(&by_priority(there), &by_priority(&all), |at| all[at].online)
}

/// Returns what is to be expected of one more, the last, by how much longer each takes than by itself
/// before and after it joined, in thousandths.
pub(crate) fn weigh(before: &[u64], after: &[u64], online: impl Fn(usize) -> bool) -> SharingGain {
    let slowed = after.iter().enumerate().find(|(at, slowed)| {
        // Who was slowed before is no reason as long as it loses nothing more.
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

    fn sharer(priority: u8, busy: impl Into<Option<u16>>) -> KernelSharer {
        let priority = Priority::try_from(priority).unwrap();
        KernelSharer { priority, online: false, busy: busy.into() }
    }

    #[test]
    fn who_is_alone_is_not_slowed() {
        assert_eq!(by_priority(&[sharer(0, 400)]), [1_000]);
        assert_eq!(sliced(&[sharer(9, None)]), [1_000]);
        assert!(by_priority(&[]).is_empty());
    }

    #[test]
    fn the_first_runs_as_if_alone_and_the_others_share_its_gaps() {
        for busy in (0..=1_000).step_by(50) {
            for other in (0..=1_000).step_by(50) {
                let slowed = by_priority(&[sharer(5, other), sharer(0, busy)]);
                assert!((1_000..=1_050).contains(&slowed[1]), "{busy}, {other}: {slowed:?}");
                // The device's time is not given away twice, but for what the valve lets through.
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
        assert!(slowed[1] > 20_000, "only the valve lets it through: {slowed:?}");
    }

    #[test]
    fn two_that_are_always_busy_lose_slightly_less_than_half_by_time_slices() {
        assert_eq!(sliced(&[sharer(0, None), sharer(5, None)]), [1_950, 1_950]);
        assert_eq!(sliced(&[sharer(0, 0), sharer(5, 0)]), [1_000, 1_000]);
    }

    #[test]
    fn a_job_that_a_small_slice_slows_has_smaller_gaps_there() {
        let secs = Millis::from_secs;
        assert_eq!(on_slice(400, secs(100), secs(100)), 400);
        // 40 s of kernels became 140 s, 60 s of gaps stayed.
        assert_eq!(on_slice(400, secs(100), secs(200)), 700);
        assert_eq!(on_slice(1_000, secs(100), secs(200)), 1_000);
        assert_eq!(on_slice(0, secs(100), secs(50)), 0);
    }

    #[test]
    fn a_filler_is_welcome_and_a_second_service_only_where_it_slows_nobody() {
        let serves = |priority, busy| KernelSharer { online: true, ..sharer(priority, busy) };
        assert!(matches!(prospect(&[serves(0, 300)], sharer(5, 900)), SharingGain::Adds(400..)));
        // Equals share time slices, which costs the service more than it may.
        assert!(matches!(
            prospect(&[serves(5, 300)], sharer(5, 900)),
            SharingGain::Slows(Some(0), 1_100..)
        ));
        assert!(matches!(
            prospect(&[serves(3, 300)], serves(3, 300)),
            SharingGain::Slows(Some(0), _)
        ));
        assert!(matches!(prospect(&[sharer(0, 600)], serves(3, 300)), SharingGain::Slows(None, _)));
        // No gaps, nothing to fill.
        assert!(matches!(prospect(&[sharer(0, 950)], sharer(5, 900)), SharingGain::Little(..100)));
        assert_eq!(prospect(&[sharer(0, None)], sharer(5, 900)), SharingGain::Unknown);
        assert_eq!(prospect(&[], sharer(5, 900)), SharingGain::Adds(1_000));
    }
}
