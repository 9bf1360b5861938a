//! `tessera report`: what accounts and users used in a period.

use std::fmt::Write as _;

use clap::Args;
use tessera_api_types::{AccountingReport, ReportFigures, ReportLine, ReportQuery};
use time::OffsetDateTime;

use super::clock_time::ClockTime;
use super::failure::CommandFailure;
use super::session::{CommandSession, moment, table, write_out};

/// Milliseconds of an hour.
const HOUR_MS: i64 = 3_600_000;

/// Adds up what accounts and users used in a period: GPU-hours, slice-hours, energy, waiting time,
/// and requested against used resources.
#[derive(Args)]
pub struct Report {
    /// Start of the period, such as 2027-01-01; by default the start of the month
    #[arg(long, visible_alias = "start", value_name = "TIME")]
    since: Option<ClockTime>,
    /// End of the period; by default now
    #[arg(long, visible_alias = "end", value_name = "TIME")]
    until: Option<ClockTime>,
    /// Grouping of the lines: one or more of account, user, month, node and profile
    #[arg(long, value_name = "KEYS", default_value = "account,user")]
    by: String,
    /// Only the jobs of these users
    #[arg(short, long, value_name = "USERS")]
    user: Option<String>,
    /// Print comma-separated values, with all figures
    #[arg(long)]
    csv: bool,
}

impl Report {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let time = |time: Option<ClockTime>| -> Result<Option<OffsetDateTime>, CommandFailure> {
            time.map(|time| time.in_the_past().map_err(CommandFailure::usage)).transpose()
        };
        let query = ReportQuery {
            since: time(self.since)?,
            until: time(self.until)?,
            by: Some(self.by),
            user: self.user,
        };
        let report = session.client.report(&query).await?;
        if self.csv && !session.json {
            write_out(&csv(&report)?)?;
            return Ok(0);
        }
        session.print(&report, draw)?;
        Ok(0)
    }
}

fn key<'l>(line: &'l ReportLine, name: &str) -> &'l str {
    let value = match name {
        "account" => &line.account,
        "user" => &line.user,
        "month" => &line.month,
        "node" => &line.node,
        _ => &line.profile,
    };
    value.as_deref().unwrap_or_default()
}

/// Shows milliseconds as hours with two digits.
fn hours(ms: i64) -> String {
    let hundredths = ms.saturating_mul(100) / HOUR_MS;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn percent(part: i64, whole: i64) -> String {
    match part.saturating_mul(100).checked_div(whole) {
        Some(percent) => format!("{percent} %"),
        None => "-".to_owned(),
    }
}

fn cells(figures: &ReportFigures) -> Vec<String> {
    vec![
        figures.attempts.to_string(),
        figures.failed.to_string(),
        hours(figures.gpu_ms),
        hours(figures.slice_ms),
        hours(figures.run_ms),
        hours(figures.waiting_ms),
        format!("{}.{:02}", figures.energy_mj / 1_000_000, figures.energy_mj / 10_000 % 100),
        percent(figures.used_of_requested_ms, figures.requested_ms),
        percent(figures.memory_used_mib_s, figures.memory_held_mib_s),
        percent(figures.wasted_slice_ms, figures.slice_ms),
    ]
}

fn draw(report: &AccountingReport) -> String {
    let keys: Vec<String> = report.by.iter().map(|key| key.to_uppercase()).collect();
    let figures = [
        "RUNS",
        "FAILED",
        "GPU-H",
        "SLICE-H",
        "RUN-H",
        "WAIT-H",
        "KJ",
        "TIME USED",
        "MEM USED",
        "LOST",
    ];
    let header: Vec<&str> = keys.iter().map(String::as_str).chain(figures).collect();
    let row = |line: &ReportLine| {
        let keys = report.by.iter().map(|name| key(line, name).to_owned());
        keys.chain(cells(&line.figures)).collect::<Vec<_>>()
    };
    let mut sum: Vec<String> = report.by.iter().map(|_| String::new()).collect();
    if let Some(first) = sum.first_mut() {
        "total".clone_into(first);
    }
    sum.extend(cells(&report.total));
    let rows = report.lines.iter().map(row).chain([sum]);
    format!(
        "from {} to {}\n\n{}",
        moment(report.since),
        moment(report.until),
        table(Some(&header), rows)
    )
}

/// Writes every figure; a value with a comma, a quote or a line break is quoted (RFC 4180).
fn csv(report: &AccountingReport) -> Result<String, CommandFailure> {
    let figures = |figures: &ReportFigures| {
        let value = serde_json::to_value(figures).map_err(std::io::Error::from)?;
        let fields = value.as_object().cloned().unwrap_or_default();
        Ok::<_, CommandFailure>(fields)
    };
    let names: Vec<String> = figures(&report.total)?.keys().cloned().collect();
    let quoted = |text: &str| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let mut text = String::new();
    let header: Vec<&str> = report.by.iter().chain(&names).map(String::as_str).collect();
    let _ = writeln!(text, "{}", header.join(","));
    for line in &report.lines {
        let values = figures(&line.figures)?;
        let keys = report.by.iter().map(|name| quoted(key(line, name)));
        let numbers =
            names.iter().map(|name| values.get(name).map(ToString::to_string).unwrap_or_default());
        let _ = writeln!(text, "{}", keys.chain(numbers).collect::<Vec<_>>().join(","));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> AccountingReport {
        let figures =
            ReportFigures { attempts: 2, slice_ms: 5_400_000, ..ReportFigures::default() };
        let line = |account: &str| ReportLine {
            account: Some(account.to_owned()),
            figures,
            ..ReportLine::default()
        };
        AccountingReport {
            since: OffsetDateTime::UNIX_EPOCH,
            until: OffsetDateTime::UNIX_EPOCH,
            by: vec!["account".to_owned()],
            lines: vec![line("lab"), line("x, \"y\"")],
            total: figures.plus(figures),
        }
    }

    #[test]
    fn a_table_ends_in_the_sum() {
        let text = draw(&report());

        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("total"), "{text}");
        assert!(last.contains("3.00"), "{text}");
    }

    #[test]
    fn values_with_commas_are_quoted_in_csv() {
        let text = csv(&report()).unwrap();

        assert!(text.starts_with("account,"), "{text}");
        assert!(text.contains("\n\"x, \"\"y\"\"\","), "{text}");
        let columns = |line: &str| line.matches(',').count();
        assert_eq!(text.lines().next().map(columns), text.lines().nth(1).map(columns));
    }
}
