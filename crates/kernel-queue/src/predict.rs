//! How long the device will be idle after a kernel of the holder.
//!
//! There are two predictors. The paper's predictor returns the kernel's mean gap (FIKIT §3.2,
//! `SG`). Ours returns a low quantile of the gaps after this *pair* of kernels. It takes the age of
//! the gap into account and is corrected online. The pair distinguishes the same kernel in the
//! middle of a burst and at its end. The quantile is low because an early end costs the holder
//! time, while a longer gap has no cost.

use serde::{Deserialize, Serialize};

use crate::ids::KernelIndex;
use crate::profile::TaskProfile;
use crate::sketch::Sketch;
use crate::time::Nanos;

/// How gaps are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GapPredictor {
    /// The mean gap of the kernel, as in the paper.
    Mean,
    /// A low quantile for the pair of kernels, given the time elapsed, corrected online.
    Pairs {
        /// How many of 1,000 gaps of this age may end before their predicted end.
        risk_thousandths: u64,
    },
}

/// How much longer the device will be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapPrediction {
    /// Too few gaps were observed.
    Unknown,
    /// At least this long from now on.
    Idle(Nanos),
    /// It has already been idle for longer than the mean, or than all observed gaps.
    Beyond,
}

/// A gap in progress.
#[derive(Clone, Copy, Debug)]
pub struct CurrentGap {
    /// The kernel before the one that it follows.
    pub before: Option<KernelIndex>,
    /// The kernel that it follows.
    pub kernel: KernelIndex,
    /// How long it has lasted.
    pub elapsed: Nanos,
}

impl GapPredictor {
    /// Predicts how much longer a gap lasts.
    pub fn predict(
        self,
        profile: &TaskProfile,
        correction: GapCorrection,
        gap: CurrentGap,
    ) -> GapPrediction {
        match self {
            Self::Mean => match profile.gap(gap.kernel) {
                None => GapPrediction::Unknown,
                Some(mean) if gap.elapsed > mean => GapPrediction::Beyond,
                Some(mean) => GapPrediction::Idle(mean.minus(gap.elapsed)),
            },
            Self::Pairs { risk_thousandths } => {
                let Some(sketch) = profile.gaps(gap.before, gap.kernel) else {
                    return GapPrediction::Unknown;
                };
                match sketch.reached(gap.elapsed, risk_thousandths) {
                    None => GapPrediction::Beyond,
                    Some(reached) => {
                        // No gap is expected to last longer than all that were observed.
                        let corrected = correction.apply(reached).min(sketch.longest());
                        GapPrediction::Idle(corrected.minus(gap.elapsed))
                    }
                }
            }
        }
    }

    /// Returns whether a prediction may be longer than `more`, by the longest gap that was observed.
    pub fn may_reach(self, profile: &TaskProfile, gap: CurrentGap, more: Nanos) -> bool {
        let longest = match self {
            Self::Mean => profile.gap(gap.kernel),
            Self::Pairs { .. } => profile.gaps(gap.before, gap.kernel).map(Sketch::longest),
        };
        longest.is_some_and(|longest| longest > gap.elapsed.plus(more))
    }
}

/// A factor on a session's predicted gaps that adapts to each gap that ended.
///
/// A gap that ends early lowers the factor, any other raises it. The steps are chosen so that the
/// share of early ends settles at the risk (adaptive conformal inference, Gibbs and Candès,
/// NeurIPS 2021). It exceeds one if gaps have become longer: on busy processors a holder is woken later while its gaps are
/// filled, and the histogram still has gaps from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapCorrection {
    /// In millionths.
    factor: u64,
}

const ONE: u64 = 1_000_000;
/// The reduction for one early end, before it is scaled by the risk.
const STEP: u64 = 20_000;
/// A quarter. If gaps shrink further, the histograms adapt in the meantime.
const LOWEST: u64 = ONE / 4;

/// A tenth more than the histogram has. If gaps grow further, it adapts in the meantime.
const HIGHEST: u64 = ONE * 11 / 10;

impl Default for GapCorrection {
    fn default() -> Self {
        Self { factor: ONE }
    }
}

impl GapCorrection {
    /// Applies the factor to a predicted length.
    pub fn apply(self, length: Nanos) -> Nanos {
        length.thousandths(self.factor / 1_000)
    }

    /// Adapts to a gap that ended and was predicted with this risk.
    pub const fn learn(&mut self, ended_early: bool, risk_thousandths: u64) {
        let risk = if risk_thousandths > 1_000 { 1_000 } else { risk_thousandths };
        self.factor = if ended_early {
            self.factor.saturating_sub(STEP * (1_000 - risk) / 1_000)
        } else {
            self.factor.saturating_add(STEP * risk / 1_000)
        };
        if self.factor > HIGHEST {
            self.factor = HIGHEST;
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
    fn the_pair_distinguishes_gaps_that_the_mean_mixes() {
        let (mut profile, [a, b, c]) = profile();
        for _ in 0..50 {
            note(&mut profile, a, c, 1_000);
            note(&mut profile, b, c, 3_000);
        }
        let at = |before| CurrentGap { before: Some(before), kernel: c, elapsed: Nanos::ZERO };
        let pairs = GapPredictor::Pairs { risk_thousandths: 100 };
        let predicted =
            |by: GapPredictor, before| by.predict(&profile, GapCorrection::default(), at(before));

        assert_eq!(
            predicted(GapPredictor::Mean, a),
            GapPrediction::Idle(Nanos::from_micros(2_000))
        );
        assert_eq!(predicted(pairs, a), GapPrediction::Idle(Nanos::from_micros(1_000)));
        assert_eq!(predicted(pairs, b), GapPrediction::Idle(Nanos::from_micros(3_000)));
    }

    #[test]
    fn a_gap_longer_than_all_observed_ones_is_not_predicted() {
        let (mut profile, [a, _, c]) = profile();
        for _ in 0..20 {
            note(&mut profile, a, c, 1_000);
        }
        let late = CurrentGap { before: Some(a), kernel: c, elapsed: Nanos::from_micros(1_500) };
        let predicted = |by: GapPredictor| by.predict(&profile, GapCorrection::default(), late);

        assert_eq!(predicted(GapPredictor::Mean), GapPrediction::Beyond);
        assert_eq!(predicted(GapPredictor::Pairs { risk_thousandths: 100 }), GapPrediction::Beyond);
    }

    #[test]
    fn a_kernel_with_few_observations_has_no_prediction() {
        let (profile, [a, _, c]) = profile();
        let gap = CurrentGap { before: Some(a), kernel: c, elapsed: Nanos::ZERO };
        for by in [GapPredictor::Mean, GapPredictor::Pairs { risk_thousandths: 100 }] {
            assert_eq!(by.predict(&profile, GapCorrection::default(), gap), GapPrediction::Unknown);
        }
    }

    #[test]
    fn gaps_that_became_longer_are_predicted_longer_but_never_beyond_the_longest() {
        let (mut profile, [a, _, c]) = profile();
        for _ in 0..50 {
            note(&mut profile, a, c, 1_000);
        }
        let mut correction = GapCorrection::default();
        let predicted = |profile: &TaskProfile, correction| {
            let at = CurrentGap { before: Some(a), kernel: c, elapsed: Nanos::ZERO };
            GapPredictor::Pairs { risk_thousandths: 400 }.predict(profile, correction, at)
        };
        (0..100).for_each(|_| correction.learn(false, 400));
        assert_eq!(
            predicted(&profile, correction),
            GapPrediction::Idle(Nanos::from_micros(1_000)),
            "no gap was longer"
        );

        note(&mut profile, a, c, 1_070);
        let GapPrediction::Idle(longer) = predicted(&profile, correction) else { panic!() };
        assert!(longer > Nanos::from_micros(1_050), "{longer}");
        assert!(longer <= Nanos::from_micros(1_070), "{longer}");
    }

    #[test]
    fn the_correction_settles_at_the_requested_risk() {
        // Gaps are evenly distributed below the prediction: with a factor f, the part f of them
        // ends early.
        let mut correction = GapCorrection::default();
        let mut early = 0;
        for i in 0..20_000_u64 {
            let gap = Nanos::new((i * 7_919) % 10_000);
            let predicted = correction.apply(Nanos::new(10_000));
            early += u32::from(gap < predicted && i >= 10_000);
            correction.learn(gap < predicted, 300);
        }

        assert!((2_700..3_300).contains(&early), "{early} of 10,000 ended early");
    }
}
