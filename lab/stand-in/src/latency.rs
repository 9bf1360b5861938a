//! How long partition operations take.

use std::time::Duration;

use tessera_model::mig::cost;

/// Returns the time of creating an instance of `slices` compute slices, GPU instance and
/// compute instance together.
pub const fn create(slices: u8) -> Duration {
    cost::creation(slices).duration()
}

/// Returns the time of destroying an instance, compute instance and GPU instance together.
pub const fn destroy() -> Duration {
    cost::destruction().duration()
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
