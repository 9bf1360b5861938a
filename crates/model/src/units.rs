//! Units as types, so that no bare number has to be guessed at.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount of memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// A text that is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an amount of memory: write a whole or decimal number with K, M, G or T, such as 10G (powers of 1024)"
)]
pub struct BadBytes {
    /// What was given.
    pub text: String,
}

impl Bytes {
    /// No memory.
    pub const ZERO: Self = Self(0);

    /// Takes a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Takes a number of mebibytes, as NVML reports the memory of a profile.
    ///
    /// Saturates at the largest amount that can be held.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(MIB))
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of whole mebibytes, rounded down.
    pub const fn mib(self) -> u64 {
        self.0 / MIB
    }
}

impl fmt::Display for Bytes {
    /// Shows the largest unit that leaves at least one, with at most two decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            TIB.. => (TIB, "TiB"),
            GIB.. => (GIB, "GiB"),
            MIB.. => (MIB, "MiB"),
            KIB.. => (KIB, "KiB"),
            bytes => return f.pad(&format!("{bytes} B")),
        };
        let whole = self.0 / unit;
        let hundredths = (self.0 % unit) * 100 / unit;
        let text = match hundredths {
            0 => format!("{whole} {name}"),
            tens if tens % 10 == 0 => format!("{whole}.{} {name}", tens / 10),
            _ => format!("{whole}.{hundredths:02} {name}"),
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = BadBytes;

    /// Reads `10G`, `9.5GiB`, `512M` or a bare number of bytes; the units are powers of 1024.
    fn from_str(text: &str) -> Result<Self, BadBytes> {
        let bad = || BadBytes { text: text.to_owned() };
        let trimmed = text.trim();
        let digits =
            trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, suffix) = trimmed.split_at(digits);
        let unit = match suffix.trim().to_ascii_uppercase().as_str() {
            "" | "B" => 1,
            "K" | "KB" | "KIB" => KIB,
            "M" | "MB" | "MIB" => MIB,
            "G" | "GB" | "GIB" => GIB,
            "T" | "TB" | "TIB" => TIB,
            _ => return Err(bad()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        // Six digits are more than anyone writes and keep the product within 64 bits.
        if fraction.is_empty() || fraction.len() > 6 {
            return Err(bad());
        }
        let scale = 10_u64.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
        let fraction: u64 = fraction.parse().map_err(|_| bad())?;
        let part = u64::try_from(u128::from(fraction) * u128::from(unit) / u128::from(scale))
            .map_err(|_| bad())?;
        whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(part)).map(Self).ok_or_else(bad)
    }
}

/// A duration, or a point in time on a clock that the context names, in whole milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(u64);

impl Millis {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// Takes a number of milliseconds.
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// Takes a number of seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Returns the number of milliseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether it is no time.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Returns the sum, at most the largest span that can be held.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or zero where `other` is larger.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the same span for the standard library.
    pub const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_as_people_write_it() {
        for (text, bytes) in [
            ("10G", 10 * GIB),
            ("9.5GiB", 9 * GIB + GIB / 2),
            ("512m", 512 * MIB),
            ("4096", 4096),
            (" 1 T ", TIB),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text:?}");
        }
    }

    #[test]
    fn memory_that_is_no_amount_is_refused() {
        for text in ["", "G", "-1G", "1.G", "1..5G", "10X", "1e9", "99999999999T"] {
            assert!(text.parse::<Bytes>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn memory_shows_in_the_largest_fitting_unit() {
        assert_eq!(Bytes::from_mib(4864).to_string(), "4.75 GiB");
        assert_eq!(Bytes::from_mib(10240).to_string(), "10 GiB");
        assert_eq!(Bytes::new(12).to_string(), "12 B");
    }
}
