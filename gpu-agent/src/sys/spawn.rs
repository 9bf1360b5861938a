//! Descriptors and signals of a shepherd.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

pub use tessera_launch::sys::{ReapedChild, ignore_signals, wait};

/// Moves the socket away from standard input and puts `null` in its place, so that no program of
/// an attempt inherits it.
///
/// # Errors
///
/// Standard input is closed, or no descriptor is left.
pub fn take_stdin(null: &std::fs::File) -> io::Result<OwnedFd> {
    use std::os::fd::AsFd as _;
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    // SAFETY: replaces descriptor 0, which only the standard library's stdin refers to, with
    // another open one.
    if unsafe { libc::dup2(null.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(taken)
}
