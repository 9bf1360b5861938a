//! How fast kernels run at the same time.
//!
//! SMs are assigned in the order in which kernels began. A later kernel gets what the earlier ones
//! leave, up to what it needs and what its client's active thread percentage allows. It waits if
//! they leave nothing. A kernel that fills the device therefore starves its partner unless both are
//! capped (co-execution study, rule 3).
//!
//! Each of them is also slowed by the bandwidth that the others use. The form is ours. Its one
//! constant is set so that two of the study's memory-bound jobs (a quarter of the bandwidth each)
//! slow each other 2.5 times. That is the most that the study saw (rule 1), while a job that
//! computes costs them little (rule 2).

use super::{DeviceClientState, DeviceWork};

/// All SMs, or all bandwidth, in thousandths.
pub const WHOLE: u32 = 1_000;

/// The cost of contention: thousandths of slow-down for each product of two bandwidths in
/// thousandths.
const CONTENTION_PER_MILLION: u64 = 26_000;

/// The maximum slow-down of a kernel by contention, in thousandths of its time.
const SLOWEST: u64 = 2_500;

/// What a job needs to run at full speed, in thousandths of the place on which it runs. More
/// than all is what a kernel of a whole GPU needs on a slice: it runs slower there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandRates {
    /// How many multiprocessors the work can use.
    pub sms: u32,
    /// Of the memory's bandwidth.
    pub bandwidth: u32,
}

impl DemandRates {
    /// All SMs and hardly any bandwidth.
    pub const SMS: Self = Self { sms: WHOLE, bandwidth: 0 };
}

/// Returns the rates in thousandths of those that run at the same time, in the order given,
/// which is the order in which they began.
pub(super) fn of_concurrent<'j>(running: &[(&'j DeviceClientState, &'j DeviceWork)]) -> Vec<u64> {
    let mut left = WHOLE;
    let given: Vec<_> = running
        .iter()
        .map(|(client, job)| {
            let share = job.order.need.sms.clamp(1, client.cap).min(left);
            left -= share;
            share
        })
        .collect();
    let draws = running.iter().zip(&given).filter(|(_, share)| **share > 0);
    let drawn: u64 = draws.map(|((_, job), _)| u64::from(job.order.need.bandwidth)).sum();
    running
        .iter()
        .zip(&given)
        .map(|((_, job), share)| rate(job.order.need, *share, drawn))
        .collect()
}

fn rate(need: DemandRates, share: u32, drawn: u64) -> u64 {
    if share == 0 {
        return 0;
    }
    let whole = u64::from(WHOLE);
    let own = u64::from(need.bandwidth);
    let by_sms = u64::from(share) * whole / u64::from(need.sms.max(1));
    // On a slice with less bandwidth than it needs it takes longer by as much.
    let by_bandwidth = if own > whole { by_sms * whole / own } else { by_sms };
    (by_bandwidth * whole / slowdown(own, drawn.saturating_sub(own))).max(1)
}

/// Returns how much longer a kernel takes with others that use this much, in thousandths.
pub fn slowdown(own: u64, others: u64) -> u64 {
    let more = own.saturating_mul(others).saturating_mul(CONTENTION_PER_MILLION) / 1_000_000;
    (u64::from(WHOLE) + more).min(SLOWEST)
}
