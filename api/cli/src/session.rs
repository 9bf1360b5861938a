//! The state that all verbs share: the client, and how to print.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use time::OffsetDateTime;
use time::macros::format_description;

use super::connection::Connection;
use super::failure::CommandFailure;
use tessera_client::{Access, ApiClient, RetryPatience};

/// One run of the command.
#[derive(Debug)]
pub struct CommandSession {
    /// The connection to the controller, with a short timeout.
    pub client: ApiClient,
    /// Whether to print the API's JSON.
    pub json: bool,
    /// How to print for people.
    pub screen: OutputScreen,
}

/// The capabilities of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputScreen {
    /// Whether it is a terminal.
    pub terminal: bool,
    /// Whether to use colours.
    pub colour: bool,
}

impl CommandSession {
    /// Prepares for a controller.
    pub fn open(to: &Connection, json: bool) -> Result<Self, CommandFailure> {
        let access = Access {
            token: to.token.as_deref(),
            authority: to.authority.as_deref().map(str::as_bytes),
        };
        let client = ApiClient::new(&to.url, &access, RetryPatience::BRIEF)?;
        Ok(Self { client, json, screen: OutputScreen::of_stdout() })
    }

    /// Prints the API's response as JSON, or as the text that `show` returns.
    pub fn print<T: Serialize>(
        &self,
        answer: &T,
        show: impl FnOnce(&T) -> String,
    ) -> Result<(), CommandFailure> {
        print(self.json, answer, show)
    }

    /// Prints a remark to standard error; it isn't part of the response.
    pub fn remark(&self, text: &str) {
        eprintln!("tessera: {text}");
    }
}

/// Prints a document as JSON, or as the text that `show` returns.
///
/// # Errors
///
/// [`CommandFailure::Output`].
pub fn print<T: Serialize>(
    json: bool,
    answer: &T,
    show: impl FnOnce(&T) -> String,
) -> Result<(), CommandFailure> {
    if json {
        let text = serde_json::to_string_pretty(answer).map_err(io::Error::from)?;
        write_out(&format!("{text}\n"))
    } else {
        write_out(&show(answer))
    }
}

impl OutputScreen {
    /// Looks at standard output.
    pub fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        // https://no-color.org: any value except an empty one.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { terminal, colour: terminal && !unwanted && !dumb }
    }

    /// Wraps text in an ANSI style such as `1` (bold) or `2` (dim), where colours are enabled.
    pub fn paint(self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes text to standard output.
///
/// # Errors
///
/// [`CommandFailure::Output`], also if the reader is gone, which makes `println!` panic.
pub fn write_out(text: &str) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Formats rows in columns without lines, as batch schedulers do.
pub fn table(header: Option<&[&str]>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(header) = header {
        table.set_header(header.iter().copied());
    }
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Formats names and values, one pair a line; absent values are omitted.
pub fn fields(rows: Vec<(&str, Option<String>)>) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:>width$}  {value}");
        }
    }
    text
}

/// Formats a time to the second, in UTC.
pub fn moment(at: OffsetDateTime) -> String {
    at.format(format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z"))
        .unwrap_or_else(|_| at.unix_timestamp().to_string())
}

/// Shows `-` for what is absent.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
