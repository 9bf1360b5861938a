//! The socket of one process: it inherits one end, and the step keeps the other.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::steps::environment::StepFacts;

/// Largest piece of a process's messages.
const CHUNK: usize = 16 * 1024;

/// Both ends, before the process has its own.
#[derive(Debug)]
pub struct RankSocket {
    ours: UnixStream,
    theirs: StdUnixStream,
}

impl RankSocket {
    /// Makes a socket that the program of this command inherits, and sets the variables that name it. Between this and
    /// [`RankSocket::keep`] no other program may be started.
    ///
    /// # Errors
    ///
    /// There are no more descriptors.
    pub fn give(command: &mut Command, rank: usize, facts: &StepFacts) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
        for (name, value) in [
            ("PMI_FD", theirs.as_raw_fd().to_string()),
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", facts.layout.tasks().to_string()),
            ("PMI_JOBID", facts.space_name()),
        ] {
            command.env(name, value);
        }
        Ok(Self { ours: UnixStream::from_std(ours)?, theirs })
    }

    /// Keeps the step's end, once the program is started.
    pub fn keep(self) -> UnixStream {
        drop(self.theirs);
        self.ours
    }
}

/// Passes on what a process sends, as events, until it closes its end. What is sent to the returned channel comes to the
/// process.
pub fn relay<E: Send + 'static>(
    socket: UnixStream,
    events: mpsc::Sender<E>,
    event: impl Fn(Vec<u8>) -> E + Send + 'static,
) -> mpsc::UnboundedSender<Vec<u8>> {
    let (answers, mut waiting) = mpsc::unbounded_channel::<Vec<u8>>();
    let (mut from, mut to) = socket.into_split();
    tokio::spawn(async move {
        while let Some(answer) = waiting.recv().await {
            // A process that is gone needs no answer.
            if to.write_all(&answer).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut bytes = vec![0; CHUNK];
        while let Ok(read @ 1..) = from.read(&mut bytes).await {
            if events.send(event(bytes[..read].to_vec())).await.is_err() {
                return;
            }
        }
    });
    answers
}
