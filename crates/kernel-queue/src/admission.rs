//! MMK's admission: decides whether a kernel may run next to the running ones (MMK §III-C,
//! Listing 1).
//!
//! Each kernel needs SMs, shared memory and bandwidth. It is admitted if all three are free. Where
//! the paper is open:
//!
//! * *Units.* SMs and bandwidth are thousandths of the slice, shared memory is bytes of all its SMs
//!   together. These are whole numbers that add up.
//! * *An online kernel that does not fit.* The listing lets it wait and sets `schedule = false`.
//!   Here it is never held back, since it would only wait in the device's queue instead. `schedule`
//!   is false while the running kernels need more than the slice has, which is the same condition.
//! * *An unknown kernel* needs the whole slice.
//! * *The listing's comparisons* are partly reversed. Here its text is followed.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Resources that a kernel occupies while it runs, or that a slice has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceNeed {
    /// Thousandths of the slice's SMs.
    pub sm_thousandths: u32,
    /// Bytes of shared memory on all SMs together.
    pub shared_bytes: u64,
    /// Thousandths of the slice's memory bandwidth.
    pub bandwidth_thousandths: u32,
}

impl ResourceNeed {
    /// Returns all resources of a slice with this much shared memory.
    pub const fn whole(shared_bytes: u64) -> Self {
        Self { sm_thousandths: 1_000, shared_bytes, bandwidth_thousandths: 1_000 }
    }

    /// Returns the larger of two measurements for each resource.
    pub fn larger(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(Self {
                sm_thousandths: one.sm_thousandths.max(other.sm_thousandths),
                shared_bytes: one.shared_bytes.max(other.shared_bytes),
                bandwidth_thousandths: one.bandwidth_thousandths.max(other.bandwidth_thousandths),
            }),
            (one, other) => one.or(other),
        }
    }

    /// Returns whether all three fit into what is free (the listing's `check`).
    pub const fn fits(&self, left: &Self) -> bool {
        self.sm_thousandths <= left.sm_thousandths
            && self.shared_bytes <= left.shared_bytes
            && self.bandwidth_thousandths <= left.bandwidth_thousandths
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            sm_thousandths: self.sm_thousandths.saturating_add(other.sm_thousandths),
            shared_bytes: self.shared_bytes.saturating_add(other.shared_bytes),
            bandwidth_thousandths: self
                .bandwidth_thousandths
                .saturating_add(other.bandwidth_thousandths),
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            sm_thousandths: self.sm_thousandths.saturating_sub(other.sm_thousandths),
            shared_bytes: self.shared_bytes.saturating_sub(other.shared_bytes),
            bandwidth_thousandths: self
                .bandwidth_thousandths
                .saturating_sub(other.bandwidth_thousandths),
        }
    }
}

/// Returns the wait after which an offline kernel is launched although it does not fit.
///
/// It is the listing's `Thres = DURATION / MPS_limit`: the smaller the share, the longer the wait.
///
/// The paper gives `DURATION` no value: [`crate::rules::Ageing::duration`] is ours.
pub fn waiting_threshold(duration: Nanos, share_thousandths: u32) -> Nanos {
    let share = u64::from(share_thousandths.clamp(1, 1_000));
    Nanos::new(duration.get().saturating_mul(1_000) / share)
}

/// Listing 1's decision about an offline kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// The kernel fits, and no online kernel lacks resources.
    Launch,
    /// The kernel waited beyond its threshold: launch it and reset its wait.
    LaunchAged,
    /// The kernel waits: its wait grows by the run time of the online kernels.
    Wait,
}

/// Decides about one offline kernel (Listing 1, second half).
pub fn decide_offline_launch(
    schedule: bool,
    need: Option<ResourceNeed>,
    left: &ResourceNeed,
    waited: Nanos,
    threshold: Nanos,
) -> AdmissionVerdict {
    if schedule && need.is_some_and(|need| need.fits(left)) {
        AdmissionVerdict::Launch
    } else if waited > threshold {
        AdmissionVerdict::LaunchAged
    } else {
        AdmissionVerdict::Wait
    }
}

/// The resources of a slice that running kernels occupy.
#[derive(Clone, Debug)]
pub struct Occupancy {
    capacity: ResourceNeed,
    taken: ResourceNeed,
}

impl Occupancy {
    /// Returns the occupancy of an empty slice.
    pub const fn new(capacity: ResourceNeed) -> Self {
        Self {
            capacity,
            taken: ResourceNeed { sm_thousandths: 0, shared_bytes: 0, bandwidth_thousandths: 0 },
        }
    }

    /// Reserves the resources of a kernel. An unknown kernel gets everything. Returns what to
    /// release at its end.
    pub fn reserve(&mut self, need: Option<ResourceNeed>) -> ResourceNeed {
        let need = need.unwrap_or(self.capacity);
        self.taken = self.taken.plus(need);
        need
    }

    /// Releases the resources of a kernel that ended.
    pub fn release(&mut self, need: ResourceNeed) {
        self.taken = self.taken.minus(need);
    }

    /// Returns the free resources.
    pub const fn left(&self) -> ResourceNeed {
        self.capacity.minus(self.taken)
    }

    /// Returns whether all running kernels have what they need (the listing's `schedule`).
    pub const fn is_within_capacity(&self) -> bool {
        self.taken.fits(&self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: ResourceNeed = ResourceNeed::whole(1_000);

    fn need(sm: u32, shared: u64, bandwidth: u32) -> ResourceNeed {
        ResourceNeed { sm_thousandths: sm, shared_bytes: shared, bandwidth_thousandths: bandwidth }
    }

    #[test]
    fn a_kernel_must_fit_in_all_three() {
        let left = need(500, 500, 500);

        assert!(need(500, 500, 500).fits(&left));
        assert!(!need(501, 0, 0).fits(&left));
        assert!(!need(0, 501, 0).fits(&left));
        assert!(!need(0, 0, 501).fits(&left));
    }

    #[test]
    fn the_threshold_grows_as_the_share_shrinks() {
        let duration = Nanos::from_millis(10);

        assert_eq!(waiting_threshold(duration, 1_000), Nanos::from_millis(10));
        assert_eq!(waiting_threshold(duration, 250), Nanos::from_millis(40));
        assert_eq!(waiting_threshold(duration, 0), waiting_threshold(duration, 1));
    }

    #[test]
    fn offline_kernels_wait_while_an_online_kernel_lacks_resources() {
        let mut slice = Occupancy::new(WHOLE);
        let first = slice.reserve(Some(need(600, 0, 0)));
        slice.reserve(Some(need(700, 0, 0)));
        let tiny = Some(need(0, 1, 0));

        assert!(!slice.is_within_capacity());
        let decide = |slice: &Occupancy, waited| {
            decide_offline_launch(
                slice.is_within_capacity(),
                tiny,
                &slice.left(),
                waited,
                Nanos::new(5),
            )
        };
        assert_eq!(decide(&slice, Nanos::new(5)), AdmissionVerdict::Wait);
        assert_eq!(decide(&slice, Nanos::new(6)), AdmissionVerdict::LaunchAged);

        slice.release(first);
        assert_eq!(decide(&slice, Nanos::ZERO), AdmissionVerdict::Launch);
    }

    #[test]
    fn an_unknown_kernel_is_never_admitted_and_blocks_admission() {
        let mut slice = Occupancy::new(WHOLE);
        let verdict = decide_offline_launch(
            slice.is_within_capacity(),
            None,
            &slice.left(),
            Nanos::ZERO,
            Nanos::new(1),
        );
        assert_eq!(verdict, AdmissionVerdict::Wait);

        slice.reserve(None);
        assert_eq!(slice.left(), need(0, 0, 0));
    }

    proptest! {
        #[test]
        fn released_resources_are_free_again(
            needs in prop::collection::vec((0_u32..400, 0_u64..400, 0_u32..400), 1..20),
        ) {
            let mut slice = Occupancy::new(WHOLE);
            let taken: Vec<ResourceNeed> =
                needs.into_iter().map(|(a, b, c)| slice.reserve(Some(need(a, b, c)))).collect();
            taken.into_iter().for_each(|need| slice.release(need));

            prop_assert_eq!(slice.left(), WHOLE);
        }

        #[test]
        fn admitted_kernels_never_exceed_the_capacity(
            needs in prop::collection::vec((0_u32..400, 0_u64..400, 0_u32..400), 1..20),
        ) {
            let mut slice = Occupancy::new(WHOLE);
            for (a, b, c) in needs {
                let one = Some(need(a, b, c));
                let verdict =
                    decide_offline_launch(slice.is_within_capacity(), one, &slice.left(), Nanos::ZERO, Nanos::ZERO);
                if verdict == AdmissionVerdict::Launch {
                    slice.reserve(one);
                }
                prop_assert!(slice.is_within_capacity());
            }
        }
    }
}
