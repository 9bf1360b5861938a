//! The log: lines in a file that the user chooses, never on the program's own outputs.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;

use tessera_frames::kernel::variables;

/// Appends a line to the log file, if one is set. Only for rare events.
pub fn note(what: fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os(variables::LOG) else { return };
    let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) else { return };
    let at = crate::clock::now().get();
    // One write, so that lines of several processes stay whole.
    let line = format!("{at} {}: {what}\n", std::process::id());
    let _ = file.write_all(line.as_bytes());
}
