//! The terminal that a command was called in.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tessera_api_types::TerminalView;

/// Variables that describe the terminal, and not the machine that it belongs to.
const DESCRIBING: [&str; 3] = ["TERM", "COLORTERM", "TERM_PROGRAM"];
/// The size of a terminal that reports none.
const USUAL_SIZE: TerminalView = TerminalView { rows: 24, columns: 80 };

/// A terminal whose keys go to a program elsewhere, until this is dropped.
pub struct LocalTerminal {
    terminal: OwnedFd,
    before: Termios,
}

impl LocalTerminal {
    /// Makes the terminal of standard input raw; `None` if standard input is not a terminal.
    pub fn make_raw() -> Option<Self> {
        let terminal = rustix::io::dup(rustix::stdio::stdin()).ok()?;
        let before = tcgetattr(&terminal).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for LocalTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Returns whether standard input is a terminal.
pub fn is_terminal() -> bool {
    isatty(rustix::stdio::stdin())
}

/// Returns the size of this command's terminal, by the first standard stream that is one.
pub fn local_size() -> TerminalView {
    let streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let sizes = streams.into_iter().filter_map(|stream| tcgetwinsize(stream).ok());
    let known = sizes.map(|size| TerminalView { rows: size.ws_row, columns: size.ws_col });
    known.into_iter().find(|size| size.size().is_ok()).unwrap_or(USUAL_SIZE)
}

/// Returns the variables that describe the terminal.
pub fn exported() -> BTreeMap<String, String> {
    let named = DESCRIBING.iter().filter_map(|name| {
        Some(((*name).to_owned(), std::env::var(name).ok().filter(|value| !value.is_empty())?))
    });
    named.collect()
}

/// Writes all of it, also to a terminal that accepts nothing for a short time.
pub fn write_all(mut to: impl io::Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
