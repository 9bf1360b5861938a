//! Compute instances: a GPU instance's compute slices, cut further. Its memory stays shared.
//!
//! Tessera's own plans make one compute instance over the whole of each GPU instance; these are
//! the laws for those who cut finer.
//!
//! Source: NVIDIA MIG user guide (compute instances), nvml.h (compute-instance placements).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::catalog::ComputeProfile;
use super::cost;
use crate::units::Millis;

/// One compute instance, by the compute slices of its GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeSlot {
    /// First compute slice.
    pub start: u8,
    /// Compute slices.
    pub slices: u8,
}

/// The compute instances of one GPU instance.
pub type Cut = BTreeSet<ComputeSlot>;

/// Why compute instances can't stand together in a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalCut {
    /// The GPU instance offers no such size.
    #[error("no compute instance here has {slices} compute slices; there are {offered:?}")]
    NoSuchSize {
        /// The size that was asked for.
        slices: u8,
        /// The sizes that exist.
        offered: Vec<u8>,
    },
    /// It may not start there, or would reach past the GPU instance.
    #[error("{slices} compute slices can't start on {start}: they may start on {starts:?}")]
    NotAStart {
        /// The size.
        slices: u8,
        /// The start that was asked for.
        start: u8,
        /// The starts that exist.
        starts: Vec<u8>,
    },
    /// Two compute instances claim one compute slice.
    #[error("compute slice {slice} is claimed twice")]
    Overlap {
        /// The first slice that is claimed twice.
        slice: u8,
    },
    /// More compute instances of one size than the GPU instance may hold.
    #[error("{count} compute instances of {slices} slices: at most {max} fit")]
    TooMany {
        /// The size.
        slices: u8,
        /// How many there are.
        count: usize,
        /// How many may be.
        max: u8,
    },
}

/// Checks that the compute instances of `cut` can stand together in a GPU instance of
/// `compute_slices` that offers `profiles`.
///
/// # Errors
///
/// [`IllegalCut`] names the first law that is broken.
pub fn check_cut(
    compute_slices: u8,
    profiles: &[ComputeProfile],
    cut: &Cut,
) -> Result<(), IllegalCut> {
    let mut taken = BTreeSet::new();
    for part in cut {
        let slices = part.slices;
        let profile = profiles.iter().find(|p| p.compute_slices == slices && slices > 0);
        let profile = profile.ok_or_else(|| IllegalCut::NoSuchSize {
            slices,
            offered: profiles.iter().map(|p| p.compute_slices).collect(),
        })?;
        let fits = |start: &u8| start.checked_add(slices).is_some_and(|end| end <= compute_slices);
        let starts: Vec<u8> = profile.starts.iter().copied().filter(fits).collect();
        if !starts.contains(&part.start) {
            return Err(IllegalCut::NotAStart { slices, start: part.start, starts });
        }
        for slice in part.start..part.start + slices {
            if !taken.insert(slice) {
                return Err(IllegalCut::Overlap { slice });
            }
        }
        let count = cut.iter().filter(|other| other.slices == slices).count();
        if count > usize::from(profile.max_instances) {
            return Err(IllegalCut::TooMany { slices, count, max: profile.max_instances });
        }
    }
    Ok(())
}

/// One driver operation on a compute instance of a GPU instance that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComputeStep {
    /// Destroys the compute instance.
    Destroy(ComputeSlot),
    /// Creates a compute instance.
    Create(ComputeSlot),
}

/// A compute instance that stands, and whether anything runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeOccupant {
    /// Where and how large.
    pub slot: ComputeSlot,
    /// Whether something runs there.
    pub busy: bool,
}

/// Why a GPU instance can't be cut that way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecutRefused {
    /// The wanted compute instances can't stand together.
    #[error("the wanted compute instances are not legal")]
    Illegal(#[from] IllegalCut),
    /// Compute instances that are in use have no place among them.
    #[error("busy compute instances have no place in the wanted cut: {}", named(slots))]
    Busy {
        /// All of them: each has to end first.
        slots: Vec<ComputeSlot>,
    },
}

fn named(slots: &[ComputeSlot]) -> String {
    let one = |slot: &ComputeSlot| format!("{} slices from {}", slot.slices, slot.start);
    slots.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the shortest list of steps to the compute instances of `wanted`: what stands in both
/// is left alone, the rest is destroyed, then what is missing created.
///
/// # Errors
///
/// [`RecutRefused`] says why there is none.
pub fn recut(
    compute_slices: u8,
    profiles: &[ComputeProfile],
    standing: &[ComputeOccupant],
    wanted: &Cut,
) -> Result<Vec<ComputeStep>, RecutRefused> {
    check_cut(compute_slices, profiles, wanted)?;
    let leaving = || standing.iter().filter(|o| !wanted.contains(&o.slot));
    let slots: Vec<_> = leaving().filter(|o| o.busy).map(|o| o.slot).collect();
    if !slots.is_empty() {
        return Err(RecutRefused::Busy { slots });
    }
    let present = |slot: &ComputeSlot| standing.iter().any(|o| o.slot == *slot);
    let destroyed = leaving().map(|o| ComputeStep::Destroy(o.slot));
    let created = wanted.iter().filter(|slot| !present(slot)).copied().map(ComputeStep::Create);
    Ok(destroyed.chain(created).collect())
}

/// Returns the predicted time of such steps, one after the other: a quarter of what the whole
/// instance takes.
///
/// The co-execution study (table 6) timed GPU and compute instance as one; that the part which
/// moves no memory is a quarter of it is an assumption.
pub fn recut_time(steps: &[ComputeStep]) -> Millis {
    let whole = |step: &ComputeStep| match step {
        ComputeStep::Destroy(_) => cost::destruction(),
        ComputeStep::Create(slot) => cost::creation(slot.slices),
    };
    Millis::new(steps.iter().map(|step| whole(step).get()).sum::<u64>() / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mig::catalog::{self, CatalogProfile};

    fn half() -> &'static CatalogProfile {
        let profiles = &catalog::models()["a100-40gb"].profiles;
        profiles.iter().find(|p| p.profile.name.as_str() == "4g.20gb").unwrap()
    }

    fn cut(parts: &[(u8, u8)]) -> Cut {
        parts.iter().map(|(start, slices)| ComputeSlot { start: *start, slices: *slices }).collect()
    }

    fn check(parts: &[(u8, u8)]) -> Result<(), IllegalCut> {
        check_cut(half().profile.compute_slices, &half().compute, &cut(parts))
    }

    #[test]
    fn a_half_is_cut_into_quarters_or_eighths_but_never_beyond_itself() {
        assert_eq!(check(&[(0, 4)]), Ok(()));
        assert_eq!(check(&[(0, 2), (2, 2)]), Ok(()));
        assert_eq!(check(&[(0, 1), (1, 1), (2, 2)]), Ok(()));
        assert_eq!(check(&[(0, 2), (1, 1)]), Err(IllegalCut::Overlap { slice: 1 }));
        assert!(matches!(check(&[(1, 4)]), Err(IllegalCut::NotAStart { start: 1, .. })));
        assert!(matches!(check(&[(4, 1)]), Err(IllegalCut::NotAStart { start: 4, .. })));
        assert!(matches!(check(&[(0, 7)]), Err(IllegalCut::NoSuchSize { slices: 7, .. })));
        assert!(matches!(check(&[(0, 0)]), Err(IllegalCut::NoSuchSize { slices: 0, .. })));
    }

    #[test]
    fn every_compute_instance_of_every_known_gpu_is_legal_alone_where_it_may_start() {
        for (key, model) in catalog::models() {
            for gpu in &model.profiles {
                for (profile, start) in
                    gpu.compute.iter().flat_map(|p| p.starts.iter().map(move |s| (p, *s)))
                {
                    let one = cut(&[(start, profile.compute_slices)]);
                    let checked = check_cut(gpu.profile.compute_slices, &gpu.compute, &one);
                    assert_eq!(checked, Ok(()), "{key} {} at {start}", profile.name);
                }
            }
        }
    }

    #[test]
    fn a_busy_compute_instance_is_not_taken_away() {
        let busy = ComputeOccupant { slot: ComputeSlot { start: 0, slices: 2 }, busy: true };

        let refused = recut(4, &half().compute, &[busy], &cut(&[(0, 1)]));
        let beside = recut(4, &half().compute, &[busy], &cut(&[(0, 2), (2, 2)])).unwrap();

        assert_eq!(refused, Err(RecutRefused::Busy { slots: vec![busy.slot] }));
        assert_eq!(beside, [ComputeStep::Create(ComputeSlot { start: 2, slices: 2 })]);
        assert_eq!(recut_time(&beside), Millis::new(30));
    }

    proptest! {
        #[test]
        fn every_recut_is_lawful_shortest_and_over_nothing_busy(
            from in prop::collection::vec((0..4_u8, 1..=4_u8), 0..5),
            to in prop::collection::vec((0..4_u8, 1..=4_u8), 0..5),
            held in any::<u8>(),
        ) {
            let legal = |parts: Vec<(u8, u8)>| {
                parts.into_iter().fold(Cut::new(), |mut cut, (start, slices)| {
                    let slot = ComputeSlot { start, slices };
                    if cut.insert(slot) && check_cut(4, &half().compute, &cut).is_err() {
                        cut.remove(&slot);
                    }
                    cut
                })
            };
            let (from, to) = (legal(from), legal(to));
            let standing: Vec<_> = from
                .iter()
                .enumerate()
                .map(|(i, slot)| ComputeOccupant { slot: *slot, busy: held & (1 << i) != 0 })
                .collect();
            let in_the_way = standing.iter().any(|o| o.busy && !to.contains(&o.slot));

            let steps = recut(4, &half().compute, &standing, &to);

            prop_assert_eq!(steps.is_err(), in_the_way);
            let Ok(steps) = steps else { return Ok(()) };
            prop_assert_eq!(steps.len(), from.symmetric_difference(&to).count());
            let mut cut = from;
            for step in steps {
                match step {
                    ComputeStep::Destroy(slot) => {
                        prop_assert!(cut.remove(&slot));
                        prop_assert!(standing.iter().all(|o| !o.busy || o.slot != slot));
                    }
                    ComputeStep::Create(slot) => prop_assert!(cut.insert(slot)),
                }
                prop_assert_eq!(check_cut(4, &half().compute, &cut), Ok(()));
            }
            prop_assert_eq!(cut, to);
        }
    }
}
