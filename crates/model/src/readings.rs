//! Readings of a running attempt's memory, which its node reports and from which its controller
//! predicts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::life::words;
use crate::units::{Bytes, Millis};

/// Maximum number of readings of one attempt in one report: ten a second in the six seconds between
/// two reports.
pub const READINGS_MAX: usize = 64;

words! {
    /// The unit of the positions of readings.
    ReadingUnit {
        /// Iterations of the program, as its companion observed them.
        Iterations = "iterations",
        /// Seconds, where only the driver observes the program.
        Seconds = "seconds",
    }
}

/// The memory of an attempt at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReading {
    /// When, in milliseconds since 1970 on the node's clock.
    pub at_unix: Millis,
    /// Iterations or seconds, by the [`ReadingUnit`] of its report; they rise.
    pub position: u64,
    /// The memory that the program used.
    pub used: Bytes,
}

/// Readings of one attempt since the last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReadings {
    /// The unit of the positions.
    pub unit: ReadingUnit,
    /// Memory that the readings don't include: the CUDA context, and one-time allocations of
    /// libraries.
    pub left_out: Bytes,
    /// Whether a framework allocates memory in advance. Then the readings do not show its need.
    pub preallocated: bool,
    /// The readings, the oldest first; at most [`READINGS_MAX`].
    pub readings: Vec<MemoryReading>,
}
