//! What a program needs, as its calls of the driver show it before its kernels run ("just in time", MIGM §2.2).
//!
//! These are lower bounds. A program may allocate more later, and launch larger kernels.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Maximum number of warps that a multiprocessor of a GPU with MIG runs at once: 64 on compute
/// capability 8.0, 9.0 and 10.0, fewer on others. The largest number gives a lower bound for all.
///
/// Source: CUDA C++ programming guide, technical specifications per compute capability.
pub const RESIDENT_WARPS_MAX: u64 = 64;

/// What the processes of an attempt showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchNeeds {
    /// What they had allocated when they launched their first kernels, added up; 0 if none was launched.
    pub held: Bytes,
    /// The warps of the largest of these kernels; 0 if none was launched.
    pub warps: u64,
    /// What a process would have had with the last request that was refused and not survived; 0 if there is none.
    pub refused: Bytes,
}

impl LaunchNeeds {
    /// Returns the multiprocessors that the first kernels need for as few steps as a GPU with `available` of them
    /// allows; `None` if no kernel or no such number is known.
    pub fn multiprocessors(&self, available: u16) -> Option<u16> {
        fold_warps(self.warps.div_ceil(RESIDENT_WARPS_MAX), available)
    }
}

/// Folds a kernel that fills `needed` multiprocessors at once onto a GPU with `available` of them. It takes
/// `t = ⌈needed / available⌉` steps there, and `⌈needed / t⌉` multiprocessors take as many (MIGM §2.2).
///
/// Returns `None` if either number is 0.
pub fn fold_warps(needed: u64, available: u16) -> Option<u16> {
    if needed == 0 || available == 0 {
        return None;
    }
    let steps = needed.div_ceil(u64::from(available));
    // At most `available`, since it takes `steps` steps there.
    u16::try_from(needed.div_ceil(steps)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_paper_needs_half_of_the_multiprocessors() {
        assert_eq!(fold_warps(120, 100), Some(60));
        assert_eq!(fold_warps(40, 100), Some(40));
        assert_eq!((fold_warps(0, 100), fold_warps(7, 0)), (None, None));
    }

    #[test]
    fn a_kernel_of_many_blocks_needs_the_multiprocessors_that_hold_its_warps() {
        // 960 blocks of 8 warps fill 120 multiprocessors.
        let needs = LaunchNeeds { warps: 960 * 8, ..LaunchNeeds::default() };

        assert_eq!(needs.multiprocessors(100), Some(60));
        assert_eq!(LaunchNeeds::default().multiprocessors(100), None);
    }

    proptest! {
        #[test]
        fn the_folded_kernel_takes_as_many_steps_and_no_fewer_multiprocessors_would_do(
            needed in 1_u64..1_000_000,
            available in 1_u16..200,
        ) {
            let folded = fold_warps(needed, available).unwrap();

            prop_assert!(folded >= 1 && folded <= available && u64::from(folded) <= needed);
            let steps = |on: u16| needed.div_ceil(u64::from(on));
            prop_assert_eq!(steps(folded), steps(available));
            prop_assert!(folded == 1 || steps(folded - 1) > steps(available));
        }
    }
}
