//! How long one partition operation takes.

use crate::units::Millis;

/// Returns the time of creating an instance of `slices` compute slices, GPU instance and
/// compute instance together.
///
/// # Source
///
/// Co-execution study, table 6: 0.11, 0.12 and 0.13 s for 1, 2 and 4 slices. Three slices are
/// interpolated; above four the last slope (5 ms a slice) goes on: an extrapolation, 0.145 s
/// for seven.
pub const fn creation(slices: u8) -> Millis {
    Millis::new(match slices {
        0 | 1 => 110,
        2 => 120,
        3 => 125,
        4 => 130,
        5 => 135,
        6 => 140,
        7 => 145,
        _ => 150,
    })
}

/// Returns the time of destroying an instance, compute instance and GPU instance together.
///
/// # Source
///
/// Co-execution study, table 6: 0.10 s at every size measured.
pub const fn destruction() -> Millis {
    Millis::new(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creations_take_the_studys_times() {
        for (slices, millis) in [(1, 110), (2, 120), (3, 125), (4, 130), (7, 145), (8, 150)] {
            assert_eq!(creation(slices), Millis::new(millis), "{slices} slices");
        }
    }
}
