//! Frames about kernels: what nodes learn of tasks and hand each other through the controller, and
//! what attempts do in their slices' queues.

use serde::{Deserialize, Serialize};
use tessera_model::AttemptId;

/// Most bytes of one [`Piece`]: small enough to leave room in a frame.
pub const PIECE_BYTES_MAX: usize = 32 * 1024;

/// Largest profile or report, in bytes: 4,096 kernels with names of a thousand characters, and all
/// their histograms.
pub const PIECES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most tallies in one frame: as many as leave room in it.
pub const TALLIES_MAX: usize = 128;

/// A part of something that doesn't fit into a frame: what is known or was learned of a task, as
/// JSON. Pieces come in order; a first one begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The task's key.
    pub task: String,
    /// Where it begins.
    pub offset: u64,
    /// How long the whole is; zero if there is nothing.
    pub whole: u64,
    /// At most [`PIECE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// Cuts something into pieces; one empty piece, if it is empty.
pub fn pieces<'a>(task: &'a str, whole: &'a [u8]) -> impl Iterator<Item = Piece> + 'a {
    let length = u64::try_from(whole.len()).unwrap_or(u64::MAX);
    let count = whole.len().div_ceil(PIECE_BYTES_MAX).max(1);
    (0..count).map(move |number| {
        let from = number * PIECE_BYTES_MAX;
        let to = whole.len().min(from + PIECE_BYTES_MAX);
        let offset = u64::try_from(from).unwrap_or(u64::MAX);
        Piece { task: task.to_owned(), offset, whole: length, bytes: whole[from..to].to_vec() }
    })
}

/// Puts pieces together again.
#[derive(Debug, Default)]
pub struct Assembly {
    task: String,
    bytes: Vec<u8>,
}

impl Assembly {
    /// Adds a piece; returns the task and the whole once it is complete. What doesn't follow what
    /// came before, or would be too long, is dropped with it.
    pub fn add(&mut self, piece: Piece) -> Option<(String, Vec<u8>)> {
        if piece.offset == 0 {
            self.task.clone_from(&piece.task);
            self.bytes.clear();
        }
        let length = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        let limit = u64::try_from(PIECES_BYTES_MAX).unwrap_or(u64::MAX);
        let follows = self.task == piece.task && length == piece.offset && piece.whole <= limit;
        if !follows || self.bytes.len() + piece.bytes.len() > PIECES_BYTES_MAX {
            self.bytes.clear();
            return None;
        }
        self.bytes.extend_from_slice(&piece.bytes);
        let length = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        (length == piece.whole).then(|| (piece.task, std::mem::take(&mut self.bytes)))
    }
}

/// What an attempt's processes did in their slice's queue so far. Numbers only grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTally {
    /// Which attempt.
    pub attempt: AttemptId,
    /// What it did.
    pub figures: KernelFigures,
}

/// What the processes of one attempt did in their slice's queue. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelFigures {
    /// Processes that joined the queue: none means that nothing was intercepted.
    pub sessions: u64,
    /// Kernels launched, as far as they were told.
    pub launches: u64,
    /// Launches that passed without being told.
    pub passed: u64,
    /// Gaps after its kernels that were predicted and came to their end.
    pub gaps_seen: u64,
    /// Those in which others launched something.
    pub gaps_filled: u64,
    /// Those that ended early while a grant stood.
    pub early_stops: u64,
    /// Its kernels that ran in others' gaps.
    pub filled_kernels: u64,
    /// Their predicted time.
    pub filled_ns: u64,
    /// Times that the holder came back while a kernel of it was in flight.
    pub overshoots: u64,
    /// How long those went on, all together.
    pub overshoot_ns: u64,
    /// How long the longest of them went on.
    pub overshoot_max_ns: u64,
    /// Grants that it was given.
    pub grants: u64,
    /// Its launches that were let go because they had waited long enough.
    pub aged: u64,
    /// Its launches that waited for too long and went unasked.
    pub unasked: u64,
    /// Waits that came to an end.
    pub waits: u64,
    /// How long they lasted, all together.
    pub waited_ns: u64,
    /// How long the longest of them lasted.
    pub waited_max_ns: u64,
    /// Kernels whose times changed, so that they were measured again.
    pub drifts: u64,
    /// Records that its shims lost.
    pub lost: u64,
    /// Most device memory that one process was seen to allocate, in bytes.
    pub memory_peak_bytes: u64,
}
