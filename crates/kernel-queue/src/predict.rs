//! How long the device will be idle after a kernel of the holder.
//!
//! Two ways behind one enum. The paper's: the mean gap of the kernel (FIKIT §3.2, `SG`). Ours:
//! the gap that all but a chosen share of the gaps after this *pair* of kernels reach, given how
//! long this one has lasted, corrected online. The pair tells apart what a kernel's name can't:
//! the same kernel in the middle of a burst and at its end. The low quantile knows that a gap
//! that ends too early costs the holder, and one that lasts longer costs nobody.

use serde::{Deserialize, Serialize};

use crate::ids::KernelIndex;
use crate::profile::TaskProfile;
use crate::time::Nanos;

/// How gaps are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GapPredictor {
    /// The mean gap of the kernel, as in the paper.
    Mean,
    /// A low quantile for the pair of kernels, given the time elapsed, corrected online.
    Pairs {
        /// Of 1,000 gaps that lasted so long, so many may end before what is predicted.
        risk_thousandths: u64,
    },
}

/// How much longer the device will be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Too little was seen to tell.
    Unknown,
    /// At least so long, from now on.
    Idle(Nanos),
    /// It has been idle for longer than predicted at all: than the mean, or than it ever was.
    Beyond,
}

/// Where in its life a gap is.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// The kernel before the one that it follows.
    pub before: Option<KernelIndex>,
    /// The kernel that it follows.
    pub kernel: KernelIndex,
    /// How long it has lasted.
    pub elapsed: Nanos,
}

impl GapPredictor {
    /// Predicts how much longer a gap lasts.
    pub fn outlook(self, profile: &TaskProfile, correction: Correction, gap: Gap) -> Outlook {
        match self {
            Self::Mean => match profile.gap(gap.kernel) {
                None => Outlook::Unknown,
                Some(mean) if gap.elapsed > mean => Outlook::Beyond,
                Some(mean) => Outlook::Idle(mean.minus(gap.elapsed)),
            },
            Self::Pairs { risk_thousandths } => {
                let Some(sketch) = profile.pairs.believed(gap.before, gap.kernel) else {
                    return Outlook::Unknown;
                };
                match sketch.reached(gap.elapsed, risk_thousandths) {
                    None => Outlook::Beyond,
                    Some(reached) => Outlook::Idle(correction.apply(reached).minus(gap.elapsed)),
                }
            }
        }
    }
}

/// A factor on a session's predicted gaps that learns from each that ended.
///
/// A gap that ends too early lowers it, one that does not raises it, in the proportion in which
/// the two may happen: where it settles, the share of early ends is the risk (the rule of
/// adaptive conformal inference, Gibbs and Candès, NeurIPS 2021). It never promises more than
/// was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Millionths.
    factor: u64,
}

const ONE: u64 = 1_000_000;
/// What one gap that ends too early takes off, before its share is taken.
const STEP: u64 = 20_000;
/// A quarter: a program whose gaps shrank further is re-measured by its histograms meanwhile.
const LOWEST: u64 = ONE / 4;

impl Default for Correction {
    fn default() -> Self {
        Self { factor: ONE }
    }
}

impl Correction {
    /// Applies it to a length.
    pub fn apply(self, length: Nanos) -> Nanos {
        length.thousandths(self.factor / 1_000)
    }

    /// Learns from a gap that was predicted with the risk and ended.
    pub const fn learn(&mut self, ended_early: bool, risk_thousandths: u64) {
        let risk = if risk_thousandths > 1_000 { 1_000 } else { risk_thousandths };
        self.factor = if ended_early {
            self.factor.saturating_sub(STEP * (1_000 - risk) / 1_000)
        } else {
            self.factor.saturating_add(STEP * risk / 1_000)
        };
        if self.factor > ONE {
            self.factor = ONE;
        }
        if self.factor < LOWEST {
            self.factor = LOWEST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Dims, KernelId};

    fn profile() -> (TaskProfile, [KernelIndex; 3]) {
        let mut profile = TaskProfile::default();
        let one = Dims([1, 1, 1]);
        let names = ["a", "b", "c"].map(|name| KernelId::new(name, one, one).unwrap());
        let indices = names.map(|id| profile.intern(&id).unwrap());
        (profile, indices)
    }

    fn note(profile: &mut TaskProfile, before: KernelIndex, kernel: KernelIndex, micros: u64) {
        let gap = Nanos::from_micros(micros);
        profile.kernel_mut(kernel).unwrap().gap.add(gap);
        profile.pairs.add(Some(before), kernel, gap);
    }

    #[test]
    fn the_pair_tells_apart_what_the_mean_mixes() {
        let (mut profile, [a, b, c]) = profile();
        for _ in 0..50 {
            note(&mut profile, a, c, 1_000);
            note(&mut profile, b, c, 3_000);
        }
        let at = |before| Gap { before: Some(before), kernel: c, elapsed: Nanos::ZERO };
        let pairs = GapPredictor::Pairs { risk_thousandths: 100 };
        let told =
            |by: GapPredictor, before| by.outlook(&profile, Correction::default(), at(before));

        assert_eq!(told(GapPredictor::Mean, a), Outlook::Idle(Nanos::from_micros(2_000)));
        assert_eq!(told(pairs, a), Outlook::Idle(Nanos::from_micros(1_000)));
        assert_eq!(told(pairs, b), Outlook::Idle(Nanos::from_micros(3_000)));
    }

    #[test]
    fn a_gap_that_outlasts_what_was_seen_is_beyond_prediction() {
        let (mut profile, [a, _, c]) = profile();
        for _ in 0..20 {
            note(&mut profile, a, c, 1_000);
        }
        let late = Gap { before: Some(a), kernel: c, elapsed: Nanos::from_micros(1_500) };
        let told = |by: GapPredictor| by.outlook(&profile, Correction::default(), late);

        assert_eq!(told(GapPredictor::Mean), Outlook::Beyond);
        assert_eq!(told(GapPredictor::Pairs { risk_thousandths: 100 }), Outlook::Beyond);
    }

    #[test]
    fn a_kernel_that_was_hardly_seen_has_no_outlook() {
        let (profile, [a, _, c]) = profile();
        let gap = Gap { before: Some(a), kernel: c, elapsed: Nanos::ZERO };
        for by in [GapPredictor::Mean, GapPredictor::Pairs { risk_thousandths: 100 }] {
            assert_eq!(by.outlook(&profile, Correction::default(), gap), Outlook::Unknown);
        }
    }

    #[test]
    fn the_correction_settles_where_the_risk_is_met() {
        // Gaps are evenly spread below what is predicted: a factor f ends f of them early.
        let mut correction = Correction::default();
        let mut early = 0;
        for i in 0..20_000_u64 {
            let gap = Nanos::new((i * 7_919) % 10_000);
            let told = correction.apply(Nanos::new(10_000));
            early += u32::from(gap < told && i >= 10_000);
            correction.learn(gap < told, 300);
        }

        assert!((2_700..3_300).contains(&early), "{early} of 10,000 ended early");
    }
}
