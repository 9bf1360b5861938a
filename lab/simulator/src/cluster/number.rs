//! Whole numbers to real ones and back, where results are shown or models are evaluated.

pub use tessera_predict::number::{count, float, whole};

/// Returns seconds of milliseconds.
pub fn seconds(ms: u64) -> f64 {
    float(ms) / 1_000.0
}

/// Rounds to three places, as results are printed.
pub fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_survive_the_way_there_and_back() {
        for number in [0, 1, 999, 1 << 20, (1 << 52) - 1] {
            assert_eq!(whole(float(number)), number);
        }
        assert_eq!(whole(1.5), 2);
        assert_eq!(whole(-1.0), 0);
    }
}
