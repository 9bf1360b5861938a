//! The worker as a daemon's user: one request, one reply, over standard input and output.
//!
//! The launcher starts it for an agent that isn't root. It decides nothing, and has no rights but its user's.

use std::io::{self, Read as _, Write as _};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::messages::DaemonRequest;
use super::work::carry_out;
use crate::shepherd::socket::{frame_bytes, take_frame};

/// Serves requests until the agent goes away. The daemon outlives it.
///
/// # Errors
///
/// Standard input or output broke: the agent is gone.
pub fn run() -> io::Result<()> {
    // Its launcher ends it with the agent, also while it waits for something.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut buffer = Vec::new();
    let mut chunk = [0; 4096];
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    loop {
        while let Some(request) = take_frame::<DaemonRequest>(&mut buffer)? {
            let reply = runtime.block_on(carry_out(request));
            output.write_all(&frame_bytes(&reply)?)?;
            output.flush()?;
        }
        match input.read(&mut chunk)? {
            0 => return Ok(()),
            bytes => buffer.extend_from_slice(&chunk[..bytes]),
        }
    }
}
