//! Compute instances: a GPU instance's compute slices, cut further. Its memory stays shared.
//!
//! Tessera's own plans make one compute instance over the whole of each GPU instance, unless an
//! operator's layout requests several (`1c+2c.3g.20gb`): then each holds one job.
//!
//! Source: NVIDIA MIG user guide (compute instances), nvml.h (compute-instance placements).

mod cut;
mod name;
mod rules;

use crate::number::clamped;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::cut::{COMPUTE_SLICES_MAX, ComputeSlot, Cut, NoCut};
pub use self::name::ComputeName;
pub use self::rules::{ComputeSize, arrange, offered};
use super::operation_times;
use crate::units::{Bytes, Millis};

/// Why compute instances cannot coexist in a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalCut {
    /// The GPU instance offers no such size.
    #[error("no compute instance here has {slices} compute slices; there are {offered:?}")]
    NoSuchSize {
        /// The size that was requested.
        slices: u8,
        /// The sizes that exist.
        offered: Vec<u8>,
    },
    /// It may not start there, or would reach past the GPU instance.
    #[error("{slices} compute slices can't start on {start}: they may start on {starts:?}")]
    NotAStart {
        /// The size.
        slices: u8,
        /// The start that was requested.
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
    /// They are too many or too large together.
    #[error("compute instances of {sizes:?} slices don't fit into {compute_slices} together")]
    DoNotFit {
        /// The sizes that were requested.
        sizes: Vec<u8>,
        /// What the GPU instance has.
        compute_slices: u8,
    },
    /// Nothing is known about GPU instances of this size.
    #[error(
        "{compute_slices} compute slices cannot be divided into compute instances: no known GPU has so many"
    )]
    Unknown {
        /// What the GPU instance has.
        compute_slices: u8,
    },
}

/// Checks that the compute instances of `cut` can coexist in a GPU instance of
/// `compute_slices`.
///
/// # Errors
///
/// [`IllegalCut`] names the first law that is broken.
pub fn check_cut(compute_slices: u8, cut: &Cut) -> Result<(), IllegalCut> {
    let mut taken = BTreeSet::new();
    for part in cut.iter() {
        let slices = part.slices;
        check_sizes(compute_slices, &[slices])?;
        let size = offered(compute_slices).iter().find(|size| size.slices == slices);
        let starts = size.map_or(&[][..], |size| size.starts);
        if !starts.contains(&part.start) {
            return Err(IllegalCut::NotAStart {
                slices,
                start: part.start,
                starts: starts.to_vec(),
            });
        }
        for slice in part.start..part.start + slices {
            if !taken.insert(slice) {
                return Err(IllegalCut::Overlap { slice });
            }
        }
    }
    Ok(())
}

/// Checks that a GPU instance of `compute_slices` offers compute instances of all these sizes.
fn check_sizes(compute_slices: u8, sizes: &[u8]) -> Result<(), IllegalCut> {
    let known = offered(compute_slices);
    if known.is_empty() {
        return Err(IllegalCut::Unknown { compute_slices });
    }
    match sizes.iter().find(|slices| known.iter().all(|size| size.slices != **slices)) {
        None => Ok(()),
        Some(slices) => Err(IllegalCut::NoSuchSize {
            slices: *slices,
            offered: known.iter().map(|size| size.slices).collect(),
        }),
    }
}

/// Returns the part of a GPU instance's memory that is counted for a compute instance: as much of
/// it as it has of the compute slices. The driver enforces none of it.
pub fn memory_share(memory: Bytes, compute_slices: u8, slices: u8) -> Bytes {
    let whole = u128::from(compute_slices.max(1));
    let part = u128::from(memory.get()) * u128::from(slices) / whole;
    Bytes::new(clamped(part))
}

/// One driver operation on a compute instance of an existing GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComputeStep {
    /// Destroys the compute instance.
    Destroy(ComputeSlot),
    /// Creates a compute instance.
    Create(ComputeSlot),
}

/// An existing compute instance, and whether anything runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeOccupant {
    /// Where and how large.
    pub slot: ComputeSlot,
    /// Whether something runs there.
    pub busy: bool,
}

/// How an existing GPU instance is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandingCut {
    /// Its compute instances.
    pub cut: Cut,
    /// Those that are in use, or may be.
    pub busy: Cut,
}

/// Why a GPU instance can't be cut that way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecutRefusal {
    /// The requested compute instances cannot coexist.
    #[error("the requested compute instances are not legal")]
    Illegal(#[from] IllegalCut),
    /// Compute instances that are in use have no place among them.
    #[error("busy compute instances have no place in the requested cut: {}", named(slots))]
    Busy {
        /// All of them: each has to end first.
        slots: Vec<ComputeSlot>,
    },
}

fn named(slots: &[ComputeSlot]) -> String {
    let one = |slot: &ComputeSlot| format!("{} slices from {}", slot.slices, slot.start);
    slots.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the shortest list of steps to the compute instances of `desired`. An instance that
/// both have is left alone, the rest is destroyed, and then what is missing is created.
///
/// # Errors
///
/// [`RecutRefusal`] states why there is none.
pub fn recut(
    compute_slices: u8,
    standing: &[ComputeOccupant],
    desired: &Cut,
) -> Result<Vec<ComputeStep>, RecutRefusal> {
    check_cut(compute_slices, desired)?;
    let leaving = || standing.iter().filter(|o| !desired.contains(o.slot));
    let slots: Vec<_> = leaving().filter(|o| o.busy).map(|o| o.slot).collect();
    if !slots.is_empty() {
        return Err(RecutRefusal::Busy { slots });
    }
    let present = |slot: &ComputeSlot| standing.iter().any(|o| o.slot == *slot);
    let destroyed = leaving().map(|o| ComputeStep::Destroy(o.slot));
    let created = desired.iter().filter(|slot| !present(slot)).map(ComputeStep::Create);
    Ok(destroyed.chain(created).collect())
}

/// Returns the predicted time of such steps, one after another: a quarter of what the whole
/// instance takes.
///
/// The co-execution study (table 6) timed GPU and compute instance as one; that the part which
/// moves no memory is a quarter of it is an assumption.
pub fn recut_time(steps: &[ComputeStep]) -> Millis {
    let whole = |step: &ComputeStep| match step {
        ComputeStep::Destroy(_) => operation_times::destruction(),
        ComputeStep::Create(slot) => operation_times::creation(slot.slices),
    };
    Millis::new(steps.iter().map(|step| whole(step).get()).sum::<u64>() / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mig::catalog;

    fn cut(parts: &[(u8, u8)]) -> Cut {
        let slot = |(start, slices): &(u8, u8)| ComputeSlot { start: *start, slices: *slices };
        parts.iter().map(slot).collect::<Vec<_>>().try_into().unwrap()
    }

    fn check(parts: &[(u8, u8)]) -> Result<(), IllegalCut> {
        check_cut(4, &cut(parts))
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
        assert!(!Cut::default().insert(ComputeSlot { start: 0, slices: 0 }));
        assert!(!Cut::default().insert(ComputeSlot { start: 7, slices: 2 }));
        assert_eq!(check_cut(5, &cut(&[(0, 1)])), Err(IllegalCut::Unknown { compute_slices: 5 }));
    }

    #[test]
    fn the_rules_are_those_of_every_known_gpu() {
        let mut seen = BTreeSet::new();
        for (key, model) in catalog::models() {
            for gpu in model.profiles.iter().filter(|gpu| !gpu.compute.is_empty()) {
                let slices = gpu.profile.compute_slices;
                let known: BTreeSet<_> =
                    gpu.compute.iter().map(|p| (p.compute_slices, p.starts.clone())).collect();
                let ours = offered(slices).iter().map(|s| (s.slices, s.starts.to_vec())).collect();
                assert_eq!(known, ours, "{key} {}", gpu.profile.name);
                assert!(gpu.compute.iter().all(|p| usize::from(p.max_instances) == p.starts.len()));
                seen.insert(slices);
            }
        }
        assert_eq!(seen, BTreeSet::from([1, 2, 3, 4, 7]));
    }

    #[test]
    fn starts_are_found_that_keep_what_stands_and_never_move_what_is_busy() {
        let none = Cut::default();
        let found = |sizes: &[u8], standing: &Cut, busy: &Cut| arrange(7, sizes, standing, busy);

        assert_eq!(found(&[1, 1, 2], &none, &none), Ok(Some(cut(&[(0, 2), (2, 1), (3, 1)]))));
        assert_eq!(found(&[2, 1], &cut(&[(5, 1)]), &none), Ok(Some(cut(&[(0, 2), (5, 1)]))));
        assert_eq!(found(&[3, 3], &none, &cut(&[(4, 3)])), Ok(Some(cut(&[(0, 3), (4, 3)]))));
        assert_eq!(found(&[7], &none, &cut(&[(4, 3)])), Ok(None));
        assert!(matches!(found(&[4, 4], &none, &none), Err(IllegalCut::DoNotFit { .. })));
        assert!(matches!(found(&[5], &none, &none), Err(IllegalCut::NoSuchSize { slices: 5, .. })));
        let seven = found(&[1; 7], &none, &none).unwrap().unwrap();
        assert_eq!((seven.len(), seven.to_string().as_str()), (7, "1c+1c+1c+1c+1c+1c+1c"));
    }

    #[test]
    fn the_parts_of_the_memory_add_up_to_no_more_than_there_is() {
        let memory = Bytes::from_mib(19_968);
        for whole in [1_u8, 2, 3, 4, 7] {
            let sum: u64 = (0..whole).map(|_| memory_share(memory, whole, 1).get()).sum();
            assert!(sum <= memory.get() && memory.get() - sum < 7);
        }
        assert_eq!(memory_share(memory, 3, 3), memory);
    }

    #[test]
    fn a_busy_compute_instance_is_not_taken_away() {
        let busy = ComputeOccupant { slot: ComputeSlot { start: 0, slices: 2 }, busy: true };

        let refused = recut(4, &[busy], &cut(&[(0, 1)]));
        let unchanged = recut(4, &[busy], &cut(&[(0, 2), (2, 2)])).unwrap();

        assert_eq!(refused, Err(RecutRefusal::Busy { slots: vec![busy.slot] }));
        assert_eq!(unchanged, [ComputeStep::Create(ComputeSlot { start: 2, slices: 2 })]);
        assert_eq!(recut_time(&unchanged), Millis::new(30));
    }

    proptest! {
        #[test]
        fn every_recut_is_lawful_shortest_and_over_nothing_busy(
            from in prop::collection::vec((0..4_u8, 1..=4_u8), 0..5),
            to in prop::collection::vec((0..4_u8, 1..=4_u8), 0..5),
            held in any::<u8>(),
        ) {
            let legal = |parts: Vec<(u8, u8)>| {
                parts.into_iter().fold(Cut::default(), |mut cut, (start, slices)| {
                    let slot = ComputeSlot { start, slices };
                    if cut.insert(slot) && check_cut(4, &cut).is_err() {
                        cut.remove(slot);
                    }
                    cut
                })
            };
            let (from, to) = (legal(from), legal(to));
            let standing: Vec<_> = from
                .iter()
                .enumerate()
                .map(|(i, slot)| ComputeOccupant { slot, busy: held & (1 << i) != 0 })
                .collect();
            let in_the_way = standing.iter().any(|o| o.busy && !to.contains(o.slot));

            let steps = recut(4, &standing, &to);

            prop_assert_eq!(steps.is_err(), in_the_way);
            let Ok(steps) = steps else { return Ok(()) };
            let apart = |a: &Cut, b: &Cut| a.iter().filter(|slot| !b.contains(*slot)).count();
            prop_assert_eq!(steps.len(), apart(&from, &to) + apart(&to, &from));
            let mut cut = from;
            for step in steps {
                match step {
                    ComputeStep::Destroy(slot) => {
                        prop_assert!(cut.remove(slot));
                        prop_assert!(standing.iter().all(|o| !o.busy || o.slot != slot));
                    }
                    ComputeStep::Create(slot) => prop_assert!(cut.insert(slot)),
                }
                prop_assert_eq!(check_cut(4, &cut), Ok(()));
            }
            prop_assert_eq!(cut, to);
        }
    }
}
