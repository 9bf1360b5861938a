//! The output of `tessera queue -o`: Slurm's `%` codes, or a list of column names.

use std::fmt::Write as _;
use std::str::FromStr;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{elapsed, node_or_reason, rank};
use tessera_api_types::JobView;

/// One column: its Slurm code if it has one, its name, its heading, and its cells.
struct QueueColumn {
    code: Option<char>,
    name: &'static str,
    heading: &'static str,
    cell: fn(&JobView, OffsetDateTime) -> String,
}

const fn column(
    code: Option<char>,
    name: &'static str,
    heading: &'static str,
    cell: fn(&JobView, OffsetDateTime) -> String,
) -> QueueColumn {
    QueueColumn { code, name, heading, cell }
}

static COLUMNS: [QueueColumn; 21] = [
    column(Some('i'), "jobid", "JOBID", |job, _| job.name_id.clone()),
    column(Some('A'), "id", "JOBID", |job, _| job.id.to_string()),
    column(Some('F'), "array", "ARRAY_JOB_ID", |job, _| job.array_id.unwrap_or(job.id).to_string()),
    column(Some('K'), "index", "ARRAY_TASK_ID", |job, _| or_not(job.array_index)),
    column(Some('j'), "name", "NAME", |job, _| job.name.clone()),
    column(Some('u'), "user", "USER", |job, _| job.user.clone()),
    column(Some('t'), "st", "ST", |job, _| job.state_short.clone()),
    column(Some('T'), "state", "STATE", |job, _| job.state.to_uppercase()),
    column(Some('M'), "time", "TIME", elapsed),
    column(Some('V'), "submitted", "SUBMIT_TIME", |job, _| moment(Some(job.submitted_at))),
    column(Some('S'), "started", "START_TIME", |job, _| moment(job.started_at)),
    column(Some('e'), "ended", "END_TIME", |job, _| moment(job.ended_at)),
    column(Some('Q'), "priority", "PRIORITY", |job, _| job.priority.to_string()),
    column(Some('b'), "request", "REQUEST", |job, _| job.gpu_request.clone()),
    column(Some('N'), "node", "NODELIST", |job, _| match rank(job) {
        0 | 1 => job.node.clone().unwrap_or_default(),
        _ => String::new(),
    }),
    column(Some('R'), "nodereason", "NODELIST(REASON)", |job, _| node_or_reason(job)),
    column(Some('r'), "reason", "REASON", |job, _| {
        job.reason.as_deref().map_or_else(|| "None".to_owned(), super::in_camel_case)
    }),
    column(None, "why", "WHY", |job, _| job.reason_text.clone().unwrap_or_default()),
    column(None, "class", "CLASS", |job, _| job.class.clone()),
    column(None, "gpu", "GPU", |job, _| super::placement(job)),
    column(None, "attempts", "ATTEMPTS", |job, _| job.attempts.to_string()),
];

fn or_not(value: Option<u32>) -> String {
    value.map_or_else(|| "N/A".to_owned(), |value| value.to_string())
}

fn moment(at: Option<OffsetDateTime>) -> String {
    let text = at.and_then(|at| at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok());
    text.unwrap_or_else(|| "N/A".to_owned())
}

/// A part of a line.
#[derive(Clone, Copy)]
enum ColumnWidth {
    /// As wide as its text.
    Free,
    /// Padded and cut to this many characters.
    Exactly { letters: usize, right: bool },
}

#[derive(Clone)]
enum FormatPart {
    Text(String),
    Column { place: usize, width: ColumnWidth },
}

/// A line's layout.
#[derive(Clone)]
pub struct QueueFormat {
    parts: Vec<FormatPart>,
}

/// Widest column: more is a mistake.
const WIDTH_MAX: usize = 1_000;

/// A format that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQueueFormat {
    /// Nothing follows a `%`.
    #[error("{text:?} ends within a code")]
    EndsInCode {
        /// The whole format.
        text: String,
    },
    /// No column has this code.
    #[error("%{code} is not a known code; choose from {}", list_codes())]
    UnknownCode {
        /// The letter behind the `%`.
        code: char,
    },
    /// No column has this name.
    #[error(
        "{name:?} is not a column; choose from {}, or write codes such as %i %j %t; codes are {}",
        list_names(),
        list_codes()
    )]
    UnknownColumn {
        /// The given value.
        name: String,
    },
    /// A width that no terminal shows.
    #[error("{width} is too wide; at most {WIDTH_MAX}")]
    TooWide {
        /// The given value.
        width: String,
    },
}

impl FromStr for QueueFormat {
    type Err = BadQueueFormat;

    /// Reads `%.18i %j`, or `jobid,name,reason`.
    fn from_str(text: &str) -> Result<Self, BadQueueFormat> {
        let parts = if text.contains('%') { parse_codes(text)? } else { parse_names(text)? };
        Ok(Self { parts })
    }
}

fn parse_codes(text: &str) -> Result<Vec<FormatPart>, BadQueueFormat> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        parts.push(FormatPart::Text(before.to_owned()));
        let (right, after) = after.strip_prefix('.').map_or((false, after), |rest| (true, rest));
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        let ends_in_code = || BadQueueFormat::EndsInCode { text: text.to_owned() };
        let code = after.chars().next().ok_or_else(ends_in_code)?;
        rest = &after[code.len_utf8()..];
        if code == '%' && number.is_empty() {
            parts.push(FormatPart::Text("%".to_owned()));
            continue;
        }
        let place = COLUMNS.iter().position(|column| column.code == Some(code));
        let place = place.ok_or(BadQueueFormat::UnknownCode { code })?;
        let width = match number {
            "" => ColumnWidth::Free,
            number => match number.parse() {
                Ok(letters) if letters <= WIDTH_MAX => ColumnWidth::Exactly { letters, right },
                _ => return Err(BadQueueFormat::TooWide { width: number.to_owned() }),
            },
        };
        parts.push(FormatPart::Column { place, width });
    }
    parts.push(FormatPart::Text(rest.to_owned()));
    Ok(parts)
}

fn parse_names(text: &str) -> Result<Vec<FormatPart>, BadQueueFormat> {
    let mut parts = Vec::new();
    for (number, name) in text.split(',').map(str::trim).enumerate() {
        let lower = name.to_ascii_lowercase();
        let place = COLUMNS.iter().position(|column| column.name == lower);
        let place = place.ok_or_else(|| BadQueueFormat::UnknownColumn { name: name.to_owned() })?;
        if number > 0 {
            parts.push(FormatPart::Text("  ".to_owned()));
        }
        parts.push(FormatPart::Column { place, width: ColumnWidth::Free });
    }
    Ok(parts)
}

fn list_names() -> String {
    COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(",")
}

fn list_codes() -> String {
    let codes = COLUMNS.iter().filter_map(|c| Some(format!("%{} ({})", c.code?, c.name)));
    codes.collect::<Vec<_>>().join(", ")
}

impl QueueFormat {
    /// Draws jobs, one per line. Columns without a width are as wide as their widest cell, except
    /// the last one of a line, which gets no trailing blanks.
    pub fn draw(&self, jobs: &[&JobView], header: bool, now: OffsetDateTime) -> String {
        let mut lines: Vec<Vec<String>> = Vec::new();
        if header {
            lines.push(self.cells(|column| column.heading.to_owned()));
        }
        lines.extend(jobs.iter().map(|job| self.cells(|column| (column.cell)(job, now))));
        let mut text = String::new();
        for line in &lines {
            let mut drawn = String::new();
            for (place, (part, cell)) in self.parts.iter().zip(line).enumerate() {
                match part {
                    FormatPart::Column { width: ColumnWidth::Free, .. } if header => {
                        let widest = lines.iter().map(|l| l[place].chars().count()).max();
                        let widest = widest.unwrap_or(0);
                        let _ = write!(drawn, "{cell:widest$}");
                    }
                    FormatPart::Column { .. } | FormatPart::Text(_) => drawn.push_str(cell),
                }
            }
            let _ = writeln!(text, "{}", drawn.trim_end());
        }
        text
    }

    fn cells(&self, cell: impl Fn(&QueueColumn) -> String) -> Vec<String> {
        let fill = |part: &FormatPart| match part {
            FormatPart::Text(text) => text.clone(),
            FormatPart::Column { place, width } => fitted(cell(&COLUMNS[*place]), *width),
        };
        self.parts.iter().map(fill).collect()
    }
}

fn fitted(text: String, width: ColumnWidth) -> String {
    match width {
        ColumnWidth::Free => text,
        ColumnWidth::Exactly { letters, right } => {
            let cut: String = text.chars().take(letters).collect();
            if right { format!("{cut:>letters$}") } else { format!("{cut:letters$}") }
        }
    }
}
