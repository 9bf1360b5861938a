//! What one slice learned of a task since it was told what others know, so that knowledge is
//! added up elsewhere without counting anything twice.

use serde::{Deserialize, Serialize};

use crate::ids::KernelIndex;
use crate::pairs::Place;
use crate::profile::TaskProfile;
use crate::stats::Mean;

/// Takes the gaps after one kernel over.
fn take_gaps(side: &mut TaskProfile, now: &TaskProfile, kernel: KernelIndex) {
    let mut renamed = |index| now.kernel(index).and_then(|kernel| side.intern(&kernel.id).ok());
    let places: Vec<_> = now
        .pairs
        .places()
        .filter(|place| place.kernel == kernel)
        .filter_map(|place| {
            let before = match place.before {
                None => None,
                Some(before) => Some(renamed(before)?),
            };
            Some((place, Place { before, kernel: renamed(kernel)? }))
        })
        .collect();
    for (theirs, mine) in places {
        side.pairs.merge_place(&now.pairs, theirs, mine);
    }
}

/// What is new in a profile, against what it began with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// Samples to add, kernel by kernel; a kernel without any was not measured here.
    pub added: TaskProfile,
    /// Kernels that were measured anew: what was known of them before counts no more. They carry
    /// all that is known now.
    pub replaced: TaskProfile,
}

impl Learned {
    /// Compares a profile with what it began with.
    ///
    /// Gaps by pairs of kernels go with kernels that were measured here from nothing or anew: the
    /// others' are fitted to the slice they are on, and stay there.
    pub fn between(base: &TaskProfile, now: &TaskProfile) -> Self {
        let mut learned = Self::default();
        for (index, kernel) in (0..).zip(now.kernels()) {
            let old = base.index(&kernel.id).and_then(|index| base.kernel(index));
            let (old_took, old_gap) =
                old.map_or((Mean::EMPTY, Mean::EMPTY), |old| (old.took, old.gap));
            let took = kernel.took.since(&old_took);
            let gap = kernel.gap.since(&old_gap);
            let (side, took, gap) = match (took, gap) {
                (Some(took), Some(gap)) => (&mut learned.added, took, gap),
                _ => (&mut learned.replaced, kernel.took, kernel.gap),
            };
            if took == Mean::EMPTY && gap == Mean::EMPTY {
                continue;
            }
            let Ok(mine) = side.intern(&kernel.id) else { continue };
            if let Some(entry) = side.kernel_mut(mine) {
                entry.took = took;
                entry.gap = gap;
                entry.need = kernel.need;
            }
            let is_own = old_took == Mean::EMPTY || took == kernel.took;
            if is_own {
                take_gaps(side, now, KernelIndex::new(index));
            }
        }
        if now.is_measured() && !base.is_measured() {
            learned.added.close_measuring();
        }
        learned
    }

    /// Tells whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.added.kernels().is_empty()
            && self.replaced.kernels().is_empty()
            && !self.added.is_measured()
    }

    /// Adds this to what is known elsewhere.
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
                [Learned::between(&known, &one), Learned::between(&known, &other)];

            let mut sum = known.clone();
            reports.iter().for_each(|report| report.add_to(&mut sum));

            let mut expected = TaskProfile::default();
            note(&mut expected, &[base, here, there].concat());
            prop_assert_eq!(means(&sum), means(&expected));
        }
    }

    #[test]
    fn a_kernel_that_was_measured_anew_replaces_what_was_known() {
        let mut base = TaskProfile::default();
        note(&mut base, &[(1, 1_000), (1, 1_000), (2, 50)]);
        let mut now = base.clone();
        now.forget(KernelIndex::new(0));
        note(&mut now, &[(1, 9_000)]);

        let learned = Learned::between(&base, &now);
        let mut known = base.clone();
        learned.add_to(&mut known);

        assert_eq!(learned.replaced.kernels().len(), 1);
        assert_eq!(means(&known), means(&now));
    }

    #[test]
    fn nothing_new_is_nothing_to_tell_and_the_end_of_measuring_is_something() {
        let mut base = TaskProfile::default();
        note(&mut base, &[(1, 1_000)]);
        assert!(Learned::between(&base, &base).is_empty());

        let mut now = base.clone();
        now.close_measuring();
        let learned = Learned::between(&base, &now);
        learned.add_to(&mut base);

        assert!(!learned.is_empty() && base.is_measured());
    }
}
