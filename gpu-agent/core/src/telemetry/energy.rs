//! Attribution of energy: splits the increase of a GPU's counter among the attempts that had the
//! GPU.
//!
//! The rule has two parts, after the way in which the co-execution study measures power (`e =
//! P_rel · T_rel`, the GPU's idle power included, 32 W of it on an A30):
//!
//! - The idle power is charged to the attempts that **hold** the GPU. Each is charged in proportion
//!   to the multiprocessors that it holds and to the time. The share that no attempt holds stays
//!   with the GPU. An attempt with the whole GPU is thus charged exactly what the counter reports,
//!   like the study's figures for single programs.
//! - Energy beyond that is charged to the **active** attempts, in proportion to their activity.
//!
//! Amounts are whole millijoules, and the parts add up exactly to the counter's increase, whatever
//! the shares are.
//!
//! # Source
//!
//! Co-execution study, table 6 (idle power) and section on energy (`e = P_rel · T_rel`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tessera_model::{AttemptId, BootId, Millis};

/// Idle power is learned from spans at least this long: counters move in steps of up to 100 ms.
const IDLE_SPAN_MIN: Millis = Millis::new(500);

/// One reading of a GPU's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnergyReading {
    /// The boot in which it was read: counters restart with each boot.
    pub boot: BootId,
    /// When, in milliseconds since 1970.
    pub at: Millis,
    /// The counter, in millijoules, where the GPU has one.
    pub counter_mj: Option<u64>,
    /// The power, in milliwatts, which is used if there is no counter.
    pub power_mw: Option<u64>,
}

/// One attempt's use of a GPU between two readings. Only weights of the same kind are compared with
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnergyShare {
    /// The attempt's id.
    pub attempt: AttemptId,
    /// How much of the GPU it held, times how long.
    pub held: u128,
    /// How active it was, times how long.
    pub active: u128,
}

/// The use of a GPU between two readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnergyShares {
    /// The use by each attempt.
    pub attempts: Vec<EnergyShare>,
    /// The part that no attempt held.
    pub free: u128,
    /// The activity of processes outside of attempts.
    pub other: u128,
}

/// One GPU's accounts, in millijoules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyLedger {
    last: Option<EnergyMark>,
    /// The least observed power while no attempt had the GPU.
    idle_power_mw: Option<u64>,
    /// Energy that is charged to no attempt.
    idle_mj: u64,
    /// Energy of processes outside of attempts.
    other_mj: u64,
    /// Energy of attempts that ended and were reported.
    settled_mj: u64,
    attempts: BTreeMap<AttemptId, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnergyMark {
    boot: BootId,
    at: Millis,
    counter_mj: Option<u64>,
}

impl EnergyLedger {
    /// Returns the span that the next reading at `at` covers; `None` before the first one.
    pub fn span(&self, at: Millis) -> Option<(Millis, Millis)> {
        self.last.map(|last| (last.at, at))
    }

    /// Records a reading and charges the increase since the last one to the attempts that had the
    /// GPU; returns the increase. The first reading only starts the account.
    pub fn advance(&mut self, reading: EnergyReading, shares: &EnergyShares) -> u64 {
        let mark =
            EnergyMark { boot: reading.boot, at: reading.at, counter_mj: reading.counter_mj };
        let Some(last) = self.last.replace(mark) else { return 0 };
        let span = reading.at.minus(last.at);
        let gained = gained(last, reading, span);
        if shares.attempts.is_empty() && shares.other == 0 && span >= IDLE_SPAN_MIN {
            self.learn_idle(gained, span);
        }
        let resting = self.idle_power_mw.map_or(0, |mw| {
            // At most the whole increase is charged.
            millijoules(mw, span).map_or(gained, |resting| resting.min(gained))
        });
        let held: Vec<_> = shares.attempts.iter().map(|share| share.held).collect();
        let active: Vec<_> = shares.attempts.iter().map(|share| share.active).collect();
        self.give(resting, &held, shares.free, Remainder::Idle, shares);
        let moving = gained - resting;
        if active.iter().any(|weight| *weight > 0) || shares.other > 0 {
            self.give(moving, &active, shares.other, Remainder::Other, shares);
        } else {
            // The GPU was active although no process was observed, so the energy is charged to the
            // attempts that held it.
            let free = if held.iter().any(|weight| *weight > 0) { 0 } else { 1 };
            self.give(moving, &held, free, Remainder::Idle, shares);
        }
        gained
    }

    fn give(
        &mut self,
        total: u64,
        weights: &[u128],
        rest: u128,
        to: Remainder,
        shares: &EnergyShares,
    ) {
        let all: Vec<u128> = weights.iter().copied().chain([rest]).collect();
        let Some(parts) = split(total, &all) else {
            self.idle_mj = self.idle_mj.saturating_add(total);
            return;
        };
        for (share, part) in shares.attempts.iter().zip(&parts) {
            *self.attempts.entry(share.attempt).or_default() += part;
        }
        let rest = parts.last().copied().unwrap_or(0);
        match to {
            Remainder::Idle => self.idle_mj = self.idle_mj.saturating_add(rest),
            Remainder::Other => self.other_mj = self.other_mj.saturating_add(rest),
        }
    }

    fn learn_idle(&mut self, gained_mj: u64, span: Millis) {
        let mw = u128::from(gained_mj) * 1_000 / u128::from(span.get().max(1));
        // No GPU has so much power: the counter is wrong, and the reading is not used.
        let Ok(mw) = u64::try_from(mw) else { return };
        // Zero power means a reset in between, since a GPU always uses some power.
        if mw > 0 {
            self.idle_power_mw = Some(self.idle_power_mw.map_or(mw, |known| known.min(mw)));
        }
    }

    /// Returns what an attempt has used so far; `None` if no reading ever counted for it.
    pub fn of(&self, attempt: AttemptId) -> Option<u64> {
        self.attempts.get(&attempt).copied()
    }

    /// Closes the account of an attempt whose end is reported.
    pub fn settle(&mut self, attempt: AttemptId) {
        if let Some(used) = self.attempts.remove(&attempt) {
            self.settled_mj = self.settled_mj.saturating_add(used);
        }
    }

    /// Returns the GPU's energy since the account began.
    pub fn total_mj(&self) -> u64 {
        self.idle_mj + self.other_mj + self.attempts_mj()
    }

    /// Returns the energy of all attempts, including ended ones.
    pub fn attempts_mj(&self) -> u64 {
        self.settled_mj + self.attempts.values().sum::<u64>()
    }

    /// Returns the energy that was charged to no attempt.
    pub const fn idle_mj(&self) -> u64 {
        self.idle_mj
    }

    /// Returns the energy of processes outside of attempts.
    pub const fn other_mj(&self) -> u64 {
        self.other_mj
    }
}

#[derive(Clone, Copy)]
enum Remainder {
    Idle,
    Other,
}

/// Returns a GPU's energy between two readings. A counter that decreased, or was read in another
/// boot, restarted: its value is the energy since then.
fn gained(last: EnergyMark, now: EnergyReading, span: Millis) -> u64 {
    match (last.counter_mj, now.counter_mj) {
        (Some(before), Some(after)) if last.boot == now.boot && after >= before => after - before,
        (Some(_), Some(after)) => after,
        // If a counter appears or fails once, the next pair of readings covers the span.
        (None, Some(_)) => 0,
        (_, None) if last.boot == now.boot => {
            now.power_mw.and_then(|mw| millijoules(mw, span)).unwrap_or(0)
        }
        (_, None) => 0,
    }
}

/// Returns `None` for a product that no GPU can have used.
fn millijoules(milliwatts: u64, span: Millis) -> Option<u64> {
    u64::try_from(u128::from(milliwatts) * u128::from(span.get()) / 1_000).ok()
}

/// Splits `total` by `weights` into parts that add up to it exactly; each is within one of its
/// due. `None` if no weight is above zero.
pub fn split(total: u64, weights: &[u128]) -> Option<Vec<u64>> {
    let sum = weights.iter().try_fold(0_u128, |sum, weight| sum.checked_add(*weight));
    // Only the proportions count: weights that are too large for the product lose low bits.
    let spare = sum.map_or(72, |sum| 128_u32.saturating_sub(sum.leading_zeros() + 64));
    let weights: Vec<u128> = weights.iter().map(|weight| weight >> spare).collect();
    let sum: u128 = weights.iter().sum();
    if sum == 0 {
        return None;
    }
    let (mut upto, mut given) = (0_u128, 0_u64);
    let parts = weights.iter().map(|weight| {
        upto += weight;
        let due = u128::from(total) * upto / sum;
        #[expect(clippy::cast_possible_truncation, reason = "`upto` is at most `sum`")]
        let due = due as u64;
        let part = due - given;
        given = due;
        part
    });
    Some(parts.collect())
}

#[cfg(test)]
mod tests;
