//! Standard input, read by its own thread: a read of a terminal can't be cancelled, and a runtime would wait for it.

use std::io::Read as _;

use tokio::sync::mpsc;

/// How much is read at once.
const CHUNK: usize = 16 * 1024;
/// Pieces that may wait for the network.
const WAITING: usize = 2;

/// Pieces of input.
pub struct LocalInput(mpsc::Receiver<Vec<u8>>);

impl LocalInput {
    /// Largest piece of input.
    pub const PIECE_MAX: usize = CHUNK;

    /// Begins to read standard input.
    pub fn of_stdin() -> Self {
        let (pieces, receiver) = mpsc::channel(WAITING);
        // It ends with the process, wherever it waits.
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            loop {
                let mut piece = vec![0; CHUNK];
                match input.read(&mut piece) {
                    Ok(read) if read > 0 => piece.truncate(read),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Ok(_) | Err(_) => return,
                }
                if pieces.blocking_send(piece).is_err() {
                    return;
                }
            }
        });
        Self(receiver)
    }

    /// Returns an input whose pieces come from elsewhere.
    pub const fn of(pieces: mpsc::Receiver<Vec<u8>>) -> Self {
        Self(pieces)
    }

    /// Returns an input that has already ended.
    pub fn none() -> Self {
        Self(mpsc::channel(1).1)
    }

    /// Returns the next piece; `None` at the end.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().await
    }
}
