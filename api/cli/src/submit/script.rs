//! The text of a script, from a file or from standard input.

use std::io::{IsTerminal, Read};
use std::path::Path;

use tessera_model::spec::SCRIPT_BYTES_MAX;

use crate::failure::CommandFailure;

/// A script and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobScript {
    /// The file's name without its folder.
    pub name: String,
    pub text: String,
}

impl JobScript {
    /// Reads the script that was named, or standard input if none was.
    ///
    /// # Errors
    ///
    /// [`CommandFailure::Usage`] if nothing was given; [`CommandFailure::Refused`] if the script can't be
    /// read or isn't one.
    pub fn find(named: Option<&Path>) -> Result<Self, CommandFailure> {
        match named {
            None if std::io::stdin().is_terminal() => Err(CommandFailure::usage(
                "nothing to submit; give a script, --wrap \"command\", or -- program arguments",
            )),
            None => Self::from_stdin(),
            Some(path) if path.as_os_str() == "-" => Self::from_stdin(),
            Some(path) => Self::from_file(path),
        }
    }

    fn from_stdin() -> Result<Self, CommandFailure> {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|bad| {
            CommandFailure::refused(format!("standard input can't be read: {bad}"))
        })?;
        Self { name: "stdin".to_owned(), text }.checked()
    }

    fn from_file(path: &Path) -> Result<Self, CommandFailure> {
        let text = std::fs::read_to_string(path).map_err(|bad| {
            let shown = path.display();
            CommandFailure::refused(match bad.kind() {
                std::io::ErrorKind::NotFound => format!("there is no script {shown}"),
                std::io::ErrorKind::InvalidData => {
                    format!("{shown} is not a script but a program; write: submit -- {shown}")
                }
                _ => format!("the script {shown} can't be read: {bad}"),
            })
        })?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { name, text }.checked()
    }

    fn checked(self) -> Result<Self, CommandFailure> {
        let Self { name, text } = &self;
        let why = if text.trim().is_empty() {
            "it is empty".to_owned()
        } else if !text.starts_with("#!") {
            "its first line names no interpreter; begin with a line such as #!/bin/bash".to_owned()
        } else if text.contains("\r\n") {
            "its lines end as on Windows (CR LF), which no interpreter takes; convert it with: \
             sed -i 's/\\r$//'"
                .to_owned()
        } else if text.len() > SCRIPT_BYTES_MAX {
            format!(
                "it has {} bytes, at most {SCRIPT_BYTES_MAX} are allowed; put large parts into a \
                 file",
                text.len()
            )
        } else {
            return Ok(self);
        };
        Err(CommandFailure::refused(format!("{name} can't be submitted: {why}")))
    }
}
