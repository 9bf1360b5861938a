//! The power cap as settings and records have it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most power that all GPUs may draw together. Its text has a unit: `800W`, `12.5kW` or `1MW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PowerCap {
    /// Watts, from 1 to [`CAP_WATTS_MAX`].
    pub watts: u64,
}

/// The largest cap: more than any cluster draws.
pub const CAP_WATTS_MAX: u64 = 1_000_000_000;

/// A text that is no power cap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no power: write watts with their unit, such as 800W, 12.5kW or 1MW")]
pub struct BadPower {
    given: String,
}

impl FromStr for PowerCap {
    type Err = BadPower;

    fn from_str(text: &str) -> Result<Self, BadPower> {
        let bad = || BadPower { given: text.to_owned() };
        let (number, thousands) = [("MW", 2), ("kW", 1), ("W", 0)]
            .into_iter()
            .find_map(|(unit, thousands)| {
                Some((text.trim().strip_suffix(unit)?.trim_end(), thousands))
            })
            .ok_or_else(bad)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = 3 * thousands;
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !are_digits(whole) || !are_digits(part) || part.len() > digits {
            return Err(bad());
        }
        // Both parts are decimal digits, so their text is a number of watts.
        let watts: u64 = format!("{whole}{part:0<digits$}").parse().map_err(|_| bad())?;
        let is_possible = (1..=CAP_WATTS_MAX).contains(&watts);
        if is_possible { Ok(Self { watts }) } else { Err(bad()) }
    }
}

impl TryFrom<String> for PowerCap {
    type Error = BadPower;

    fn try_from(text: String) -> Result<Self, BadPower> {
        text.parse()
    }
}

impl From<PowerCap> for String {
    fn from(cap: PowerCap) -> Self {
        cap.to_string()
    }
}

impl fmt::Display for PowerCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}W", self.watts)
    }
}
