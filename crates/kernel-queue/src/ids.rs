//! Identifiers of sessions, tasks and kernels.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::{KERNEL_NAME_BYTES_MAX, TASK_KEY_BYTES_MAX};

/// The number of a process that is connected to the queue. The caller never uses one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(u64);

impl SessionId {
    /// Returns the id with the caller's number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Fences grants: it rises whenever earlier grants must not be used any more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// Returns the epoch with a received number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The text is not a valid name of a task or a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a {kind} has {bytes} bytes: it must have 1 to {bytes_max}")]
pub struct BadName {
    /// What the name is for: a task or a kernel.
    pub kind: &'static str,
    /// Length of the text in bytes.
    pub bytes: usize,
    /// Maximum length in bytes.
    pub bytes_max: usize,
}

/// The key of a profile. Runs with the same key share it: process name and start parameters
/// (FIKIT §3.1), or the name that the user gives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TaskKey(String);

impl TaskKey {
    /// Checks a key from outside.
    ///
    /// # Errors
    ///
    /// [`BadName`] if it is empty or too long.
    pub fn new(text: impl Into<String>) -> Result<Self, BadName> {
        named(text.into(), "task", TASK_KEY_BYTES_MAX).map(Self)
    }

    /// Returns the key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<TaskKey> for String {
    fn from(key: TaskKey) -> Self {
        key.0
    }
}

impl TryFrom<String> for TaskKey {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::new(text)
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Width, height and depth of a grid or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dims(pub [u32; 3]);

impl Dims {
    /// Returns the number of blocks in the grid, or of threads in the block.
    pub fn count(self) -> u64 {
        self.0.iter().fold(1, |product, side| product.saturating_mul(u64::from(*side)))
    }

    /// Returns a grid of as many blocks, rounded up to a power of two.
    #[must_use]
    fn class(self) -> Self {
        let power = self.count().max(1).checked_next_power_of_two().map_or(63, u64::trailing_zeros);
        let width = power.min(31);
        Self([1 << width, 1 << (power - width).min(31), 1 << (power - width).saturating_sub(31)])
    }
}

/// Identifies a kernel: function name, grid and block (FIKIT §3.1).
///
/// Inputs are not part of it, so one identity may have several durations. It is unique only within
/// one [`TaskKey`]: compilers give the same name to different code in different programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "StoredKernelId")]
pub struct KernelId {
    name: String,
    /// The grid's sides.
    pub grid: Dims,
    /// The block's sides.
    pub block: Dims,
}

impl KernelId {
    /// Returns the identity of a kernel. `name` is the mangled name from the driver.
    ///
    /// # Errors
    ///
    /// [`BadName`] if the name is empty or too long.
    pub fn new(name: impl Into<String>, grid: Dims, block: Dims) -> Result<Self, BadName> {
        let name = named(name.into(), "kernel", KERNEL_NAME_BYTES_MAX)?;
        Ok(Self { name, grid, block })
    }

    /// Returns the function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the class of this kernel: the same function and block, with the number of blocks rounded up to a power of two.
    ///
    /// It stands for all kernels of the class where there is no place for each. Its work and its need are at least
    /// theirs.
    #[must_use]
    pub fn class(&self) -> Self {
        Self { name: self.name.clone(), grid: self.grid.class(), block: self.block }
    }

    /// Returns whether this kernel is its own class.
    pub fn is_class(&self) -> bool {
        self.grid == self.grid.class()
    }
}

/// The unchecked serialised form of a [`KernelId`].
#[derive(Deserialize)]
#[serde(rename = "KernelId", deny_unknown_fields)]
struct StoredKernelId {
    name: String,
    grid: Dims,
    block: Dims,
}

impl TryFrom<StoredKernelId> for KernelId {
    type Error = BadName;

    fn try_from(written: StoredKernelId) -> Result<Self, BadName> {
        Self::new(written.name, written.grid, written.block)
    }
}

/// A kernel's index in the profile of its task. Messages carry it instead of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelIndex(u16);

impl KernelIndex {
    /// The index of a kernel that has no index yet, or gets none: it has no profile.
    pub const UNKNOWN: Self = Self(u16::MAX);

    /// Returns the index with a received number. An index that the profile lacks stands for an
    /// unknown kernel.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

fn named(text: String, kind: &'static str, bytes_max: usize) -> Result<String, BadName> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(BadName { kind, bytes: text.len(), bytes_max });
    }
    Ok(text)
}
