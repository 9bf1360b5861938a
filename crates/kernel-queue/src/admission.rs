//! MMK's admission: decides whether a kernel may run next to the running ones (MMK §III-C,
//! Listing 1).
//!
//! Each kernel needs SMs, shared memory and bandwidth. It is admitted if all three are free. Where
//! the paper is open:
//!
//! * *Units.* All three are thousandths of the slice: whole numbers that add up.
//! * *Where needs come from.* The paper profiles each kernel. Here SMs and shared memory follow from
//!   the launch ([`crate::need`]). Nothing that runs all the time counts bandwidth, so it is zero
//!   unless a profile states it.
//! * *A kernel under an MPS percentage* occupies no more than its client's part of the slice.
//! * *Kernels of one process* run one after another unless it launched on several streams. So the
//!   largest of them counts, and with several streams their sum.
//! * *An online kernel that does not fit.* The listing lets it wait and sets `schedule = false`.
//!   Here it is never held back, since it would only wait in the device's queue instead. `schedule`
//!   is false while the running kernels need more than the slice has, which is the same condition.
//! * *An unknown kernel* needs the whole slice.
//! * *The listing's comparisons* are partly reversed. Here its text is followed.

use serde::{Deserialize, Serialize};
use tessera_model::number::clamped;

use crate::time::Nanos;

/// Resources that a kernel occupies while it runs, or that a slice has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceNeed {
    /// Thousandths of the slice's SMs.
    pub sm_thousandths: u32,
    /// Thousandths of the shared memory of all SMs together.
    pub shared_thousandths: u32,
    /// Thousandths of the slice's memory bandwidth.
    pub bandwidth_thousandths: u32,
}

impl ResourceNeed {
    /// All resources of a slice.
    pub const WHOLE: Self =
        Self { sm_thousandths: 1_000, shared_thousandths: 1_000, bandwidth_thousandths: 1_000 };
    /// No resources.
    pub const NONE: Self =
        Self { sm_thousandths: 0, shared_thousandths: 0, bandwidth_thousandths: 0 };

    /// Returns the larger of two measurements for each resource.
    pub fn larger(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.max_of_each(other)),
            (one, other) => one.or(other),
        }
    }

    /// Returns the larger amount of each resource.
    #[must_use]
    pub fn max_of_each(self, other: Self) -> Self {
        Self {
            sm_thousandths: self.sm_thousandths.max(other.sm_thousandths),
            shared_thousandths: self.shared_thousandths.max(other.shared_thousandths),
            bandwidth_thousandths: self.bandwidth_thousandths.max(other.bandwidth_thousandths),
        }
    }

    /// Returns the smaller amount of each resource.
    #[must_use]
    pub fn min_of_each(self, other: Self) -> Self {
        Self {
            sm_thousandths: self.sm_thousandths.min(other.sm_thousandths),
            shared_thousandths: self.shared_thousandths.min(other.shared_thousandths),
            bandwidth_thousandths: self.bandwidth_thousandths.min(other.bandwidth_thousandths),
        }
    }

    /// Turns a need of a client's part of the slice into one of the whole slice.
    ///
    /// The driver reports to a client under an MPS percentage only the SMs of its part, so the
    /// need was computed for these. Bandwidth is not divided.
    #[must_use]
    pub fn of_share(self, share_thousandths: u32) -> Self {
        let share = u64::from(share_thousandths.clamp(1, 1_000));
        let part = |thousandths: u32| clamped((u64::from(thousandths) * share).div_ceil(1_000));
        Self {
            sm_thousandths: part(self.sm_thousandths),
            shared_thousandths: part(self.shared_thousandths),
            ..self
        }
    }

    /// Returns whether all three fit into what is free (the listing's `check`).
    pub const fn fits(&self, left: &Self) -> bool {
        self.sm_thousandths <= left.sm_thousandths
            && self.shared_thousandths <= left.shared_thousandths
            && self.bandwidth_thousandths <= left.bandwidth_thousandths
    }

    /// Returns the sum of each resource.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sm_thousandths: self.sm_thousandths.saturating_add(other.sm_thousandths),
            shared_thousandths: self.shared_thousandths.saturating_add(other.shared_thousandths),
            bandwidth_thousandths: self
                .bandwidth_thousandths
                .saturating_add(other.bandwidth_thousandths),
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            sm_thousandths: self.sm_thousandths.saturating_sub(other.sm_thousandths),
            shared_thousandths: self.shared_thousandths.saturating_sub(other.shared_thousandths),
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
        Self { capacity, taken: ResourceNeed::NONE }
    }

    /// Takes the resources of a kernel.
    pub const fn take(&mut self, need: ResourceNeed) {
        self.taken = self.taken.plus(need);
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

    fn need(sm: u32, shared: u32, bandwidth: u32) -> ResourceNeed {
        ResourceNeed {
            sm_thousandths: sm,
            shared_thousandths: shared,
            bandwidth_thousandths: bandwidth,
        }
    }

    fn any_need(most: u32) -> impl Strategy<Value = ResourceNeed> {
        (0..=most, 0..=most, 0..=most)
            .prop_map(|(sm, shared, bandwidth)| need(sm, shared, bandwidth))
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
        let tiny = Some(need(0, 1, 0));
        let decide = |running: &[ResourceNeed], waited| {
            let mut slice = Occupancy::new(ResourceNeed::WHOLE);
            running.iter().for_each(|need| slice.take(*need));
            let schedule = slice.is_within_capacity();
            decide_offline_launch(schedule, tiny, &slice.left(), waited, Nanos::new(5))
        };
        let both = [need(600, 0, 0), need(700, 0, 0)];

        assert_eq!(decide(&both, Nanos::new(5)), AdmissionVerdict::Wait);
        assert_eq!(decide(&both, Nanos::new(6)), AdmissionVerdict::LaunchAged);
        assert_eq!(decide(&both[1..], Nanos::ZERO), AdmissionVerdict::Launch);
    }

    #[test]
    fn an_unknown_kernel_is_never_admitted() {
        let slice = Occupancy::new(ResourceNeed::WHOLE);

        let verdict = decide_offline_launch(true, None, &slice.left(), Nanos::ZERO, Nanos::new(1));

        assert_eq!(verdict, AdmissionVerdict::Wait);
    }

    proptest! {
        #[test]
        fn a_need_of_a_part_of_the_slice_never_exceeds_that_part(
            need in any_need(1_000),
            share in 1_u32..=1_000,
        ) {
            let of_slice = need.of_share(share);

            prop_assert!(of_slice.sm_thousandths <= share);
            prop_assert!(of_slice.shared_thousandths <= share);
            prop_assert!(of_slice.fits(&need), "a part is never more than the same of the whole");
        }

        #[test]
        fn admitted_kernels_never_exceed_the_capacity(
            needs in prop::collection::vec(any_need(400), 1..20),
        ) {
            let mut slice = Occupancy::new(ResourceNeed::WHOLE);
            for need in needs {
                let verdict = decide_offline_launch(
                    slice.is_within_capacity(),
                    Some(need),
                    &slice.left(),
                    Nanos::ZERO,
                    Nanos::ZERO,
                );
                if verdict == AdmissionVerdict::Launch {
                    slice.take(need);
                }
                prop_assert!(slice.is_within_capacity());
            }
        }
    }
}
