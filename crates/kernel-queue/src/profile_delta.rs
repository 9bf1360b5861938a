//! The difference between a slice's profile of a task and the profile that it started with.
//!
//! Such differences are added up elsewhere without counting any sample twice.

use serde::{Deserialize, Serialize};

use crate::histograms::KernelPair;
use crate::ids::KernelIndex;
use crate::mean::Mean;
use crate::profile::TaskProfile;

/// Copies the gaps after one kernel.
fn take_gaps(side: &mut TaskProfile, now: &TaskProfile, kernel: KernelIndex) {
    let mut renamed = |index| now.kernel(index).and_then(|kernel| side.intern(&kernel.id).ok());
    let pairs: Vec<_> = now
        .pairs
        .pairs()
        .filter(|pair| pair.kernel == kernel)
        .filter_map(|pair| {
            let before = match pair.before {
                None => None,
                Some(before) => Some(renamed(before)?),
            };
            Some((pair, KernelPair { before, kernel: renamed(kernel)? }))
        })
        .collect();
    for (theirs, mine) in pairs {
        side.pairs.merge_pair(&now.pairs, theirs, mine);
    }
}

/// The change of a profile against its base.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileDelta {
    /// Samples to add, for each kernel. A kernel without samples was not measured here.
    pub added: TaskProfile,
    /// Kernels that were measured again: their samples replace all earlier ones.
    pub replaced: TaskProfile,
}

impl ProfileDelta {
    /// Compares a profile with its base.
    ///
    /// Gaps by pairs are included only for kernels without samples in the base or measured again.
    /// The gaps of other kernels are specific to the slice and stay there.
    pub fn between(base: &TaskProfile, now: &TaskProfile) -> Self {
        let mut delta = Self::default();
        for (index, kernel) in (0..).zip(now.kernels()) {
            let old = base.index(&kernel.id).and_then(|index| base.kernel(index));
            let (old_took, old_gap) =
                old.map_or((Mean::EMPTY, Mean::EMPTY), |old| (old.took, old.gap));
            let took = kernel.took.since(&old_took);
            let gap = kernel.gap.since(&old_gap);
            let (side, took, gap) = match (took, gap) {
                (Some(took), Some(gap)) => (&mut delta.added, took, gap),
                _ => (&mut delta.replaced, kernel.took, kernel.gap),
            };
            if took == Mean::EMPTY && gap == Mean::EMPTY {
                continue;
            }
            let Ok(mine) = side.intern(&kernel.id) else { continue };
            if let Some(entry) = side.kernel_mut(mine) {
                entry.took = took;
                entry.gap = gap;
            }
            let is_own = old_took == Mean::EMPTY || took == kernel.took;
            if is_own {
                take_gaps(side, now, KernelIndex::new(index));
            }
        }
        if now.is_measured() && !base.is_measured() {
            delta.added.close_measuring();
        }
        delta
    }

    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.added.kernels().is_empty()
            && self.replaced.kernels().is_empty()
            && !self.added.is_measured()
    }

    /// Adds the change to a profile kept elsewhere.
    pub fn add_to(&self, known: &mut TaskProfile) {
        for kernel in self.replaced.kernels() {
            if let Some(index) = known.index(&kernel.id) {
                known.forget(index);
            }
        }
        known.merge(&self.replaced);
        known.merge(&self.added);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Dims, KernelId, Nanos};

    fn kernel(number: u8) -> KernelId {
        KernelId::new(format!("k{number}"), Dims([1; 3]), Dims([1; 3])).unwrap()
    }

    fn note(profile: &mut TaskProfile, samples: &[(u8, u64)]) {
        for (number, took) in samples {
            let index = profile.intern(&kernel(*number)).unwrap();
            let entry = profile.kernel_mut(index).unwrap();
            entry.took.add(Nanos::new(*took));
            entry.gap.add(Nanos::new(took / 2));
        }
    }

    fn means(profile: &TaskProfile) -> Vec<(KernelId, Mean, Mean)> {
        let mut all: Vec<_> =
            profile.kernels().iter().map(|k| (k.id.clone(), k.took, k.gap)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    proptest! {
        #[test]
        fn two_slices_that_learn_from_one_base_add_up_exactly(
            base in prop::collection::vec((0_u8..6, 1_u64..1 << 30), 0..60),
            here in prop::collection::vec((0_u8..6, 1_u64..1 << 30), 0..60),
            there in prop::collection::vec((0_u8..6, 1_u64..1 << 30), 0..60),
        ) {
            let mut known = TaskProfile::default();
            note(&mut known, &base);
            let (mut one, mut other) = (known.clone(), known.clone());
            note(&mut one, &here);
            note(&mut other, &there);
            let reports =
                [ProfileDelta::between(&known, &one), ProfileDelta::between(&known, &other)];

            let mut sum = known.clone();
            reports.iter().for_each(|report| report.add_to(&mut sum));

            let mut expected = TaskProfile::default();
            note(&mut expected, &[base, here, there].concat());
            prop_assert_eq!(means(&sum), means(&expected));
        }
    }

    #[test]
    fn a_kernel_that_was_measured_again_replaces_its_earlier_samples() {
        let mut base = TaskProfile::default();
        note(&mut base, &[(1, 1_000), (1, 1_000), (2, 50)]);
        let mut now = base.clone();
        now.forget(KernelIndex::new(0));
        note(&mut now, &[(1, 9_000)]);

        let delta = ProfileDelta::between(&base, &now);
        let mut known = base.clone();
        delta.add_to(&mut known);

        assert_eq!(delta.replaced.kernels().len(), 1);
        assert_eq!(means(&known), means(&now));
    }

    #[test]
    fn no_new_sample_is_an_empty_delta_and_the_end_of_measuring_is_not() {
        let mut base = TaskProfile::default();
        note(&mut base, &[(1, 1_000)]);
        assert!(ProfileDelta::between(&base, &base).is_empty());

        let mut now = base.clone();
        now.close_measuring();
        let delta = ProfileDelta::between(&base, &now);
        delta.add_to(&mut base);

        assert!(!delta.is_empty() && base.is_measured());
    }
}
