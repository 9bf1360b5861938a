//! Readings of a running attempt's memory, as its node reports them and its controller predicts from them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::life::words;
use crate::units::{Bytes, Millis};

/// Most readings of one attempt in one report: what ten a second make in the six seconds between two.
pub const READINGS_MAX: usize = 64;

words! {
    /// What the positions of readings count.
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
    /// What the program used.
    pub used: Bytes,
}

/// Readings of one attempt since the last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReadings {
    /// What the positions count.
    pub unit: ReadingUnit,
    /// Memory that the readings leave out: the context of CUDA, and what libraries take once.
    pub left_out: Bytes,
    /// Whether a framework takes memory in advance. Then the readings do not show a need.
    pub preallocated: bool,
    /// The readings, the oldest first; at most [`READINGS_MAX`].
    pub readings: Vec<MemoryReading>,
}
