//! What a machine finds when it looks at itself.

use serde::{Deserialize, Serialize};

/// Maximum number of findings in one report: a few for the machine, and a few for each of its GPUs.
pub const FINDINGS_MAX: usize = 512;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at: a stable word such as `mig_mode`.
    pub check: String,
    /// How it stands.
    pub level: FindingLevel,
    /// Index of the GPU that it is about, if it is about one.
    pub gpu: Option<u32>,
    /// What was found, in a sentence.
    pub text: String,
    /// The command, or the deed, that fixes it.
    pub remedy: Option<String>,
}

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FindingLevel {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warn,
    /// Jobs can't run, or GPUs can't be cut, until it is fixed.
    Blocks,
}

impl FindingLevel {
    /// Returns the level as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Blocks => "blocks",
        }
    }
}
