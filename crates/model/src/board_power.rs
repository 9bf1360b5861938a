//! The power of GPU boards: their limits, and what they draw while idle.

use crate::mig::catalog;

/// Power limits in watts, and readings of idle boards, by the driver's name.
///
/// Source of the limits: NVIDIA's published specifications (maximum thermal design power). The H20 is listed with the
/// limit that its driver enforces, which is higher.
///
/// Source of the reading of the A30: co-execution study, table 6. All others are outputs of `nvidia-smi` in the
/// documentation and the issues of public repositories, collected on 2026-11-27. The boards had no process, at most
/// 3 MiB of memory in use, and a load of 0 %. They were in performance state P0, the RTX PRO 6000 also in P8. Equal
/// outputs count once. Many machines printed them, and nobody controlled the conditions.
const BOARDS: [(&str, u32, &[u32]); 24] = [
    ("NVIDIA A30", 165, &[32]),
    ("NVIDIA A100-SXM4-40GB", 400, &[43, 43, 43, 50, 50, 50, 50, 51, 51, 52, 53, 55, 60]),
    ("NVIDIA A100-PCIE-40GB", 250, &[34, 36, 36, 40, 41, 44]),
    ("NVIDIA A100-SXM4-80GB", 400, &[56, 60, 62, 62, 62, 63, 64, 64, 68, 68]),
    ("NVIDIA A100 80GB PCIe", 300, &[43, 45, 45, 47, 49, 54, 62, 65]),
    ("NVIDIA A800-SXM4-40GB", 400, &[]),
    ("NVIDIA A800-SXM4-80GB", 400, &[59]),
    ("NVIDIA A800 80GB PCIe", 300, &[]),
    ("NVIDIA H100 80GB HBM3", 700, &[66, 67, 69, 70, 70, 70, 70, 71, 71, 123]),
    ("NVIDIA H100 SXM5 94GB", 700, &[68]),
    ("NVIDIA H100 PCIe", 350, &[44, 46, 49, 50, 50, 51]),
    ("NVIDIA H100 NVL", 400, &[61, 63, 64]),
    ("NVIDIA H800", 700, &[89]),
    ("NVIDIA H800 NVL", 400, &[]),
    ("NVIDIA H200", 700, &[73, 74, 74, 74, 76, 78, 78, 120, 120, 123]),
    ("NVIDIA H200 NVL", 600, &[69, 73]),
    ("NVIDIA H20", 500, &[72, 72, 74]),
    ("NVIDIA B200", 1_000, &[136, 141, 145, 195]),
    ("NVIDIA GB200", 1_200, &[156, 162, 166, 181]),
    ("NVIDIA B300 SXM6", 1_100, &[135, 139, 181]),
    ("NVIDIA GB300", 1_400, &[172, 234]),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 600, &[28, 33, 34, 35, 81]),
    ("NVIDIA RTX PRO 5000 Blackwell", 300, &[]),
    ("NVIDIA RTX PRO 4500 Blackwell", 200, &[]),
];

/// What a board without readings draws while idle, in thousandths of its limit: the median of the listed boards.
const IDLE_THOUSANDTHS: u32 = 140;

/// The same at most: the greatest part of any reading.
const IDLE_MAX_THOUSANDTHS: u32 = 217;

/// The limit of a board that is not listed: as high as the highest listed one.
const UNLISTED_LIMIT_WATTS: u32 = 1_400;

/// What a job about which nothing is known adds on all of a GPU, as a part of the watts between idle and the limit.
/// ResNet50 alone on an A30 adds 69 W to 32 W, and is counted with 17 W on each of four slices.
///
/// Source: co-execution study, table 2.
const BUSY_PART: (u64, u64) = (68, 133);

/// The power of one board, in watts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardPower {
    /// What the board draws at most; it enforces that itself.
    pub limit_watts: u32,
    /// What an idle board draws: the median of its readings.
    pub idle_watts: u32,
    /// The highest of its readings.
    pub idle_watts_max: u32,
}

impl BoardPower {
    /// A board that is not listed.
    pub const UNLISTED: Self = Self::from_limit(UNLISTED_LIMIT_WATTS);

    /// Returns a board by the driver's name, or by the key of a model of the catalogue, as simulations have it. A key
    /// means the board with the highest limit, and of several the one that the catalogue names first.
    pub fn find(model: &str) -> Option<Self> {
        Self::of_board(model).or_else(|| {
            let names = &catalog::models().get(model)?.names;
            // The last of equals is the first of the names.
            names.iter().rev().filter_map(|name| Self::of_board(name)).max_by_key(|b| b.limit_watts)
        })
    }

    fn of_board(name: &str) -> Option<Self> {
        let (_, limit_watts, readings) = BOARDS.iter().find(|(known, ..)| *known == name)?;
        Some(match (median(readings), readings.last()) {
            (Some(idle_watts), Some(highest)) => {
                Self { limit_watts: *limit_watts, idle_watts, idle_watts_max: *highest }
            }
            _ => Self::from_limit(*limit_watts),
        })
    }

    const fn from_limit(limit_watts: u32) -> Self {
        Self {
            limit_watts,
            idle_watts: (limit_watts * IDLE_THOUSANDTHS).div_ceil(1_000),
            idle_watts_max: (limit_watts * IDLE_MAX_THOUSANDTHS).div_ceil(1_000),
        }
    }

    /// Returns what an idle board draws, in milliwatts.
    pub fn idle_milliwatts(self) -> u64 {
        u64::from(self.idle_watts) * 1_000
    }

    /// Returns the range between idle and the limit, in milliwatts.
    pub fn range_milliwatts(self) -> u64 {
        u64::from(self.limit_watts.saturating_sub(self.idle_watts)) * 1_000
    }

    /// Returns what a busy compute slice adds, in milliwatts, where nothing is known about its job.
    pub fn slice_milliwatts(self, slices: u8) -> u64 {
        let (part, whole) = BUSY_PART;
        self.range_milliwatts() * part / whole / u64::from(slices.max(1))
    }
}

/// Returns the median of readings in ascending order; the lower whole number between two.
fn median(readings: &[u32]) -> Option<u32> {
    let middle = readings.len().checked_sub(1)? / 2;
    let (low, high) = (readings[middle], readings[readings.len() / 2]);
    Some(u32::midpoint(low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_study_s_board_has_its_figures() {
        let a30 = BoardPower::find("NVIDIA A30").unwrap();

        assert_eq!((a30.limit_watts, a30.idle_watts, a30.idle_watts_max), (165, 32, 32));
        assert_eq!(a30.slice_milliwatts(4), 17_000);
    }

    #[test]
    fn models_differ_in_idle_power() {
        let idle = |name: &str| BoardPower::find(name).map(|board| board.idle_watts);

        assert_eq!(idle("NVIDIA A100-SXM4-40GB"), Some(50));
        assert_eq!(idle("NVIDIA H100 80GB HBM3"), Some(70));
        assert_eq!(idle("NVIDIA H200"), Some(77), "between two readings");
        assert_eq!(idle("NVIDIA B200"), Some(143));
        assert_eq!(idle("NVIDIA A800 80GB PCIe"), Some(42), "the usual part of its limit");
        assert_eq!(idle("NVIDIA Z1"), None);
    }

    #[test]
    fn a_key_of_the_catalogue_means_its_first_board_with_the_highest_limit() {
        let board = |name: &str| BoardPower::find(name).unwrap();

        assert_eq!(board("a100-40gb"), board("NVIDIA A100-SXM4-40GB"));
        assert_eq!(board("h100-94gb"), board("NVIDIA H100 SXM5 94GB"));
        assert_eq!(board("a30-24gb"), board("NVIDIA A30"));
    }

    #[test]
    fn boards_without_readings_are_assumed_to_be_like_the_others() {
        let mut parts = Vec::new();
        for (name, limit, readings) in BOARDS {
            assert!(
                readings.is_sorted() && readings.iter().all(|reading| *reading < limit),
                "{name}"
            );
            parts.extend(median(readings).map(|idle| idle * 1_000 / limit));
        }
        parts.sort_unstable();
        assert_eq!(median(&parts), Some(IDLE_THOUSANDTHS));
        let most = |(_, limit, readings): &(&str, u32, &[u32])| {
            Some((readings.last()? * 1_000).div_ceil(*limit))
        };
        assert_eq!(BOARDS.iter().filter_map(most).max(), Some(IDLE_MAX_THOUSANDTHS));
        assert!(BOARDS.iter().all(|(_, limit, _)| *limit <= UNLISTED_LIMIT_WATTS));
    }
}
