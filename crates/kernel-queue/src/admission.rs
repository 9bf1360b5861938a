//! MMK's admission: may this kernel run beside those that run already (MMK §III-C, Listing 1)?
//!
//! Each kernel needs SMs, shared memory and bandwidth; it is admitted if all three are left.
//! Where the paper is open:
//!
//! * *Units.* Thousandths of the slice for SMs and bandwidth, bytes of all its SMs together for
//!   shared memory: whole numbers that add up.
//! * *An online kernel that does not fit.* The listing has it wait and sets `schedule = false`.
//!   Here it is never held back (it would only wait in the device's queue instead), and
//!   `schedule` is false while what runs needs more than there is, which is the same moment.
//! * *A kernel of which nothing is known* needs the whole slice.
//! * *The listing's comparisons* are the wrong way round in places; its text is followed.

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// What a kernel takes of its slice while it runs, or what a slice has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// Thousandths of the slice's SMs.
    pub sm_thousandths: u32,
    /// Bytes of shared memory on all SMs together.
    pub shared_bytes: u64,
    /// Thousandths of the slice's memory bandwidth.
    pub bandwidth_thousandths: u32,
}

impl Need {
    /// A slice of which only the shared memory has to be told.
    pub const fn whole(shared_bytes: u64) -> Self {
        Self { sm_thousandths: 1_000, shared_bytes, bandwidth_thousandths: 1_000 }
    }

    /// Returns the larger of two measurements, in each part.
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

    /// The listing's `check`: whether all three fit into what is left.
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

/// How long an offline kernel waits before it is launched although it does not fit: the
/// listing's `Thres = DURATION / MPS_limit`. The smaller its share, the longer.
///
/// The paper gives `DURATION` no value; [`crate::rules::Ageing::duration`] is ours.
pub fn threshold(duration: Nanos, share_thousandths: u32) -> Nanos {
    let share = u64::from(share_thousandths.clamp(1, 1_000));
    Nanos::new(duration.get().saturating_mul(1_000) / share)
}

/// What Listing 1 does with an offline kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits, and no online kernel is short of anything.
    Launch,
    /// It waited beyond its threshold: launch it, and count its waiting from zero.
    LaunchAged,
    /// Its waiting grows by what the online kernels run.
    Wait,
}

/// Decides about one offline kernel (Listing 1, second half).
pub fn offline(
    schedule: bool,
    need: Option<Need>,
    left: &Need,
    waited: Nanos,
    threshold: Nanos,
) -> Verdict {
    if schedule && need.is_some_and(|need| need.fits(left)) {
        Verdict::Launch
    } else if waited > threshold {
        Verdict::LaunchAged
    } else {
        Verdict::Wait
    }
}

/// What runs on the slice, and so what is left of it.
#[derive(Clone, Debug)]
pub struct Occupancy {
    capacity: Need,
    taken: Need,
}

impl Occupancy {
    /// Begins with an empty slice.
    pub const fn new(capacity: Need) -> Self {
        Self {
            capacity,
            taken: Need { sm_thousandths: 0, shared_bytes: 0, bandwidth_thousandths: 0 },
        }
    }

    /// Notes a kernel that begins to run; one of which nothing is known takes everything.
    /// Returns what to give back at its end.
    pub fn take(&mut self, need: Option<Need>) -> Need {
        let need = need.unwrap_or(self.capacity);
        self.taken = self.taken.plus(need);
        need
    }

    /// Notes a kernel's end.
    pub fn give_back(&mut self, need: Need) {
        self.taken = self.taken.minus(need);
    }

    /// Returns what is left.
    pub const fn left(&self) -> Need {
        self.capacity.minus(self.taken)
    }

    /// The listing's `schedule`: whether everything that runs has what it needs.
    pub const fn schedule(&self) -> bool {
        self.taken.fits(&self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: Need = Need::whole(1_000);

    fn need(sm: u32, shared: u64, bandwidth: u32) -> Need {
        Need { sm_thousandths: sm, shared_bytes: shared, bandwidth_thousandths: bandwidth }
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

        assert_eq!(threshold(duration, 1_000), Nanos::from_millis(10));
        assert_eq!(threshold(duration, 250), Nanos::from_millis(40));
        assert_eq!(threshold(duration, 0), threshold(duration, 1));
    }

    #[test]
    fn offline_kernels_stop_competing_while_an_online_one_is_short() {
        let mut slice = Occupancy::new(WHOLE);
        let first = slice.take(Some(need(600, 0, 0)));
        slice.take(Some(need(700, 0, 0)));
        let tiny = Some(need(0, 1, 0));

        assert!(!slice.schedule());
        let decide = |slice: &Occupancy, waited| {
            offline(slice.schedule(), tiny, &slice.left(), waited, Nanos::new(5))
        };
        assert_eq!(decide(&slice, Nanos::new(5)), Verdict::Wait);
        assert_eq!(decide(&slice, Nanos::new(6)), Verdict::LaunchAged);

        slice.give_back(first);
        assert_eq!(decide(&slice, Nanos::ZERO), Verdict::Launch);
    }

    #[test]
    fn a_kernel_of_which_nothing_is_known_never_joins_and_lets_nothing_join() {
        let mut slice = Occupancy::new(WHOLE);
        let verdict = offline(slice.schedule(), None, &slice.left(), Nanos::ZERO, Nanos::new(1));
        assert_eq!(verdict, Verdict::Wait);

        slice.take(None);
        assert_eq!(slice.left(), need(0, 0, 0));
    }

    proptest! {
        #[test]
        fn what_is_given_back_is_there_again(
            needs in prop::collection::vec((0_u32..400, 0_u64..400, 0_u32..400), 1..20),
        ) {
            let mut slice = Occupancy::new(WHOLE);
            let taken: Vec<Need> =
                needs.into_iter().map(|(a, b, c)| slice.take(Some(need(a, b, c)))).collect();
            taken.into_iter().for_each(|need| slice.give_back(need));

            prop_assert_eq!(slice.left(), WHOLE);
        }

        #[test]
        fn whatever_is_admitted_leaves_enough_for_all(
            needs in prop::collection::vec((0_u32..400, 0_u64..400, 0_u32..400), 1..20),
        ) {
            let mut slice = Occupancy::new(WHOLE);
            for (a, b, c) in needs {
                let one = Some(need(a, b, c));
                let verdict =
                    offline(slice.schedule(), one, &slice.left(), Nanos::ZERO, Nanos::ZERO);
                if verdict == Verdict::Launch {
                    slice.take(one);
                }
                prop_assert!(slice.schedule());
            }
        }
    }
}
