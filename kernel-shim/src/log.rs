//! Lines in a file of the user's choice: never on the program's own outputs.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;

use tessera_wire::kernel::variables;

/// Adds a line to the file that the variable names, if it names one. For what is rare.
pub fn note(what: fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os(variables::LOG) else { return };
    let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) else { return };
    let at = crate::clock::now().get();
    // One write, so that lines of several processes stay whole.
    let line = format!("{at} {}: {what}\n", std::process::id());
    let _ = file.write_all(line.as_bytes());
}
