//! Times as Slurm prints and reads them: on the clock of this machine.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use time::OffsetDateTime;

use super::SlurmFailure;
use crate::clock_time::ClockTime;
use tessera_model::number::clamped;

/// Shows a time as `2027-01-31T18:00:00`.
pub fn local(at: Option<OffsetDateTime>, absent: &str) -> String {
    let stamp = at.and_then(|at| Timestamp::from_second(at.unix_timestamp()).ok());
    stamp.map_or_else(
        || absent.to_owned(),
        |stamp| stamp.to_zoned(TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S").to_string(),
    )
}

/// Reads a time as `sacct -S` does; times of day are those of today.
pub fn read(text: &str) -> Result<OffsetDateTime, SlurmFailure> {
    let invalid =
        || SlurmFailure::Message(format!("sacct: error: Invalid time specification {text}"));
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "today" | "midnight" => at("00:00").ok_or_else(invalid),
        // `now-7days` is read as `now+7days` and counted back.
        _ if lower.starts_with("now-") => before_now(&lower).ok_or_else(invalid),
        _ => at(text).ok_or_else(invalid),
    }
}

fn at(text: &str) -> Option<OffsetDateTime> {
    text.parse::<ClockTime>().ok()?.in_the_past().ok()
}

fn before_now(text: &str) -> Option<OffsetDateTime> {
    let now = at("now")?;
    now.checked_sub(at(&text.replacen('-', "+", 1))? - now)
}

/// Returns the beginning of today.
pub fn midnight() -> Option<OffsetDateTime> {
    read("midnight").ok()
}

/// Returns the time now.
#[expect(clippy::disallowed_methods, reason = "running times are shown until now")]
pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Shows a duration as `squeue` does: `M:SS`, `H:MM:SS` or `D-HH:MM:SS`.
pub fn short_span(secs: u64) -> String {
    crate::span::Elapsed(secs).to_string()
}

/// Shows a duration as `sacct` does: `HH:MM:SS` or `D-HH:MM:SS`.
pub fn long_span(secs: u64) -> String {
    let (days, hours) = (secs / 86_400, secs % 86_400 / 3_600);
    let (minutes, secs) = (secs % 3_600 / 60, secs % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{secs:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{secs:02}"),
    }
}

/// Returns the seconds between two times; 0 if the clocks disagree.
pub fn secs_between(from: OffsetDateTime, to: OffsetDateTime) -> u64 {
    clamped((to - from).whole_seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_forms_of_squeue_and_of_sacct() {
        assert_eq!([short_span(61), short_span(3_600)], ["1:01", "1:00:00"]);
        assert_eq!([long_span(61), long_span(90_061)], ["00:01:01", "1-01:01:01"]);
    }

    #[test]
    fn times_before_now_are_read() {
        let week = read("now").unwrap() - read("now-7days").unwrap();

        assert!((week.whole_hours() - 7 * 24).abs() <= 1, "{week}");
        assert!(read("2026-11-20T17:00").is_ok());
        assert!(read("yesterdays").is_err());
    }
}
