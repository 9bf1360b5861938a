//! How long partition operations take.

use std::time::Duration;

/// Returns the time of creating an instance of `slices` compute slices, GPU instance and
/// compute instance together.
///
/// # Source
///
/// Co-execution study, table 6: 0.11, 0.12 and 0.13 s for 1, 2 and 4 slices. Three slices are
/// interpolated; above four the last slope (5 ms a slice) goes on: an extrapolation, 0.145 s
/// for seven.
pub fn create(slices: u8) -> Duration {
    Duration::from_millis(match slices {
        0 | 1 => 110,
        2 => 120,
        more => 110 + 5 * u64::from(more),
    })
}

/// Returns the time of destroying an instance, compute instance and GPU instance together.
///
/// # Source
///
/// Co-execution study, table 6: 0.10 s at every size measured.
pub const fn destroy() -> Duration {
    Duration::from_millis(100)
}

/// Returns the GPU instance's part of an operation's time.
///
/// The study timed both parts as one; three quarters for the part that moves memory is an
/// assumption, and the parts always add up to the study's figure.
pub fn gpu_instance_part(whole: Duration) -> Duration {
    whole - compute_instance_part(whole)
}

/// Returns the compute instance's part of an operation's time.
pub fn compute_instance_part(whole: Duration) -> Duration {
    whole / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parts_of_a_creation_add_up_to_the_study() {
        for (slices, millis) in [(1, 110), (2, 120), (3, 125), (4, 130), (7, 145), (8, 150)] {
            let whole = create(slices);
            assert_eq!(whole, Duration::from_millis(millis), "{slices} slices");
            assert_eq!(gpu_instance_part(whole) + compute_instance_part(whole), whole);
        }
    }
}
