//! What all verbs share: the client, and how to print.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use time::OffsetDateTime;
use time::macros::format_description;

use super::failure::Failure;
use crate::client::{Client, Patience};

/// One run of the command.
#[derive(Debug)]
pub struct Session {
    /// Asks the controller, with a short patience.
    pub client: Client,
    /// Whether to print the API's JSON.
    pub json: bool,
    /// How to print for people.
    pub screen: Screen,
}

/// What standard output can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Whether a person looks at it.
    pub terminal: bool,
    /// Whether to use colours.
    pub colour: bool,
}

impl Session {
    /// Prepares for the controller at `url`.
    pub fn open(url: &str, token: Option<&str>, json: bool) -> Result<Self, Failure> {
        let token = token.filter(|token| !token.is_empty());
        let client = Client::new(url, token, Patience::BRIEF)?;
        Ok(Self { client, json, screen: Screen::of_stdout() })
    }

    /// Prints what the API answered, or the text that `show` makes of it.
    pub fn print<T: Serialize>(
        &self,
        answer: &T,
        show: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        print(self.json, answer, show)
    }

    /// Says something to a person that isn't part of the answer.
    pub fn remark(&self, text: &str) {
        eprintln!("tessera: {text}");
    }
}

/// Prints a document as JSON, or the text that `show` makes of it.
///
/// # Errors
///
/// [`Failure::Output`].
pub fn print<T: Serialize>(
    json: bool,
    answer: &T,
    show: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string_pretty(answer).map_err(io::Error::from)?;
        write_out(&format!("{text}\n"))
    } else {
        write_out(&show(answer))
    }
}

impl Screen {
    /// Looks at standard output.
    pub fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        // https://no-color.org: any value that isn't empty.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { terminal, colour: terminal && !unwanted && !dumb }
    }

    /// Wraps text in an ANSI style such as `1` (bold) or `2` (dim), where colours are wanted.
    pub fn paint(self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes text to standard output.
///
/// # Errors
///
/// [`Failure::Output`], also where the reader has gone, which `println!` would panic about.
pub fn write_out(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Lays rows out in columns without lines, as batch schedulers do.
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

/// Lays names and values out below each other; absent values are left out.
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

/// Shows a moment to the second, in UTC.
pub fn moment(at: OffsetDateTime) -> String {
    at.format(format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z"))
        .unwrap_or_else(|_| at.unix_timestamp().to_string())
}

/// Shows `-` for what is absent.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
