//! Frames about kernels: task profiles that nodes share through the controller, and the totals of
//! attempts in their slices' queues.

use serde::{Deserialize, Serialize};
use tessera_model::AttemptId;

/// Maximum number of bytes of one [`ProfilePiece`]: so small that the rest of the frame fits.
pub const PIECE_BYTES_MAX: usize = 32 * 1024;

/// Largest profile or report, in bytes: 5,120 kernels with names of a thousand characters, and all
/// their histograms.
pub const PIECES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum number of tallies in one frame, so that they fit.
pub const TALLIES_MAX: usize = 128;

/// A part of a task's profile or its change, as JSON, which may not fit into one frame. Pieces arrive
/// in order. A first piece discards an incomplete earlier transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfilePiece {
    /// The task's key.
    pub task: String,
    /// Its offset in bytes.
    pub offset: u64,
    /// Length of the whole in bytes; zero without a profile.
    pub whole: u64,
    /// The bytes of this piece: at most [`PIECE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// Splits bytes into pieces. Empty bytes result in one empty piece.
pub fn pieces<'a>(task: &'a str, whole: &'a [u8]) -> impl Iterator<Item = ProfilePiece> + 'a {
    let length = whole.len() as u64;
    let count = whole.len().div_ceil(PIECE_BYTES_MAX).max(1);
    (0..count).map(move |number| {
        let from = number * PIECE_BYTES_MAX;
        let to = whole.len().min(from + PIECE_BYTES_MAX);
        let offset = from as u64;
        ProfilePiece {
            task: task.to_owned(),
            offset,
            whole: length,
            bytes: whole[from..to].to_vec(),
        }
    })
}

/// Reassembles pieces.
#[derive(Debug, Default)]
pub struct PieceAssembly {
    task: String,
    bytes: Vec<u8>,
}

impl PieceAssembly {
    /// Adds a piece. Returns the task and the whole once it is complete. A piece that is out of order
    /// or too long discards the transfer.
    pub fn add(&mut self, piece: ProfilePiece) -> Option<(String, Vec<u8>)> {
        if piece.offset == 0 {
            self.task.clone_from(&piece.task);
            self.bytes.clear();
        }
        let length = self.bytes.len() as u64;
        let limit = PIECES_BYTES_MAX as u64;
        let follows = self.task == piece.task && length == piece.offset && piece.whole <= limit;
        if !follows || self.bytes.len() + piece.bytes.len() > PIECES_BYTES_MAX {
            self.bytes.clear();
            return None;
        }
        self.bytes.extend_from_slice(&piece.bytes);
        let length = self.bytes.len() as u64;
        (length == piece.whole).then(|| (piece.task, std::mem::take(&mut self.bytes)))
    }
}

/// The totals of an attempt in its slice's queue so far. They only grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTally {
    /// The attempt whose kernels are counted.
    pub attempt: AttemptId,
    /// Its totals.
    pub figures: KernelFigures,
}

/// The totals of one attempt's processes in their slice's queue. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelFigures {
    /// Processes that joined the queue: zero means that no launch was intercepted.
    pub sessions: u64,
    /// Kernels launched, as far as reported.
    pub launches: u64,
    /// Launches that passed without a report.
    pub passed: u64,
    /// Predicted gaps after its kernels that ended.
    pub gaps_seen: u64,
    /// Gaps of these in which fillers launched kernels.
    pub gaps_filled: u64,
    /// Gaps of these that ended early while a grant was valid.
    pub early_stops: u64,
    /// Its kernels that ran under grants.
    pub filled_kernels: u64,
    /// The predicted time of these kernels.
    pub filled_ns: u64,
    /// Its kernels that were in flight when the holder returned.
    pub overshoots: u64,
    /// How long these kernels ran on in total.
    pub overshoot_ns: u64,
    /// The longest time that one of them ran on.
    pub overshoot_max_ns: u64,
    /// Grants that it received.
    pub grants: u64,
    /// Its launches that were granted because of their wait.
    pub aged: u64,
    /// Its launches that went without a grant after the longest wait.
    pub ungranted: u64,
    /// Waits that ended.
    pub waits: u64,
    /// The total duration of these waits.
    pub waited_ns: u64,
    /// The longest of these waits.
    pub waited_max_ns: u64,
    /// Kernels that were measured again because their times changed.
    pub drifts: u64,
    /// Records that its shims dropped.
    pub lost: u64,
    /// Most device memory that one process allocated, in bytes, as far as observed.
    pub memory_peak_bytes: u64,
    /// Its kernels that were granted because they fitted next to running ones.
    pub colocated: u64,
    /// Processes whose session thread has raised priority; absent in figures that were stored before it was counted.
    pub raised: Option<u64>,
    /// Grants that it received before their gap began; absent in figures that were stored before it was counted.
    pub grants_ahead: Option<u64>,
    /// Those of these under which it launched a kernel.
    pub grants_ahead_used: Option<u64>,
}
