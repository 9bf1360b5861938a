//! What compute instances are called.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::mig::ProfileName;

/// A kind of compute instance, as NVIDIA writes it: `1c.3g.20gb` has one compute slice of a GPU
/// instance `3g.20gb`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ComputeName {
    /// Compute slices.
    pub slices: u8,
    /// Of what GPU instance.
    pub profile: ProfileName,
}

impl fmt::Display for ComputeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}c.{}", self.slices, self.profile))
    }
}

impl FromStr for ComputeName {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            kind: "ComputeName",
            text: text.to_owned(),
            expected: "a compute instance such as 1c.3g.20gb",
        };
        let name = text.strip_prefix("MIG ").unwrap_or(text);
        let (slices, profile) = name.split_once("c.").ok_or_else(bad)?;
        let digits = slices.len() == 1 && slices.chars().all(|c| c.is_ascii_digit());
        let slices = slices.parse().ok().filter(|n| digits && *n > 0).ok_or_else(bad)?;
        Ok(Self { slices, profile: profile.parse().map_err(|_| bad())? })
    }
}

impl From<ComputeName> for String {
    fn from(name: ComputeName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for ComputeName {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}
