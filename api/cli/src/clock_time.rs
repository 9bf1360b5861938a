//! Times of day and dates in the formats of batch schedulers, on the clock of this machine.

use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use time::OffsetDateTime;

const FORMS: &str = "write HH:MM, YYYY-MM-DD, YYYY-MM-DDTHH:MM, 2027-01-31T18:00:00Z, MMDD, MM/DD/YY, \
                     now+2hours, tomorrow, noon or midnight";

/// A time as `sbatch` accepts it. A time of day means its next occurrence; times are in the local
/// time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockTime {
    /// A number of seconds from now.
    In(i64),
    /// The next time at which clocks show this.
    TimeOfDay(Time),
    /// The start of the day that many days after this one.
    InDays(i32),
    /// A date without a year: the start of the next such day.
    DayOfYear { month: i8, day: i8 },
    /// A date and time in the local time zone.
    Local(DateTime),
    /// An absolute time.
    Absolute(Timestamp),
}

/// A text that is not a time, or a time that does not exist here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadClockTime {
    /// It has none of the accepted forms.
    #[error("{text:?} is not a time; {FORMS}")]
    Unreadable { text: String },
    /// It is out of range in this time zone.
    #[error("that time does not exist in the local time zone, or is out of range; {FORMS}")]
    OutOfRange,
}

impl FromStr for ClockTime {
    type Err = BadClockTime;

    fn from_str(text: &str) -> Result<Self, BadClockTime> {
        let unreadable = || BadClockTime::Unreadable { text: text.to_owned() };
        read(text.trim()).ok_or_else(unreadable)
    }
}

fn read(text: &str) -> Option<ClockTime> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "midnight" => return Some(ClockTime::TimeOfDay(Time::midnight())),
        "noon" => return Some(ClockTime::TimeOfDay(Time::constant(12, 0, 0, 0))),
        // As in sbatch(1).
        "elevenses" => return Some(ClockTime::TimeOfDay(Time::constant(11, 0, 0, 0))),
        "fika" => return Some(ClockTime::TimeOfDay(Time::constant(15, 0, 0, 0))),
        "today" => return Some(ClockTime::InDays(0)),
        "tomorrow" => return Some(ClockTime::InDays(1)),
        "teatime" => return Some(ClockTime::TimeOfDay(Time::constant(16, 0, 0, 0))),
        _ => {}
    }
    if let Some(rest) = lower.strip_prefix("now") {
        return relative(rest).map(ClockTime::In);
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(ClockTime::Absolute(at));
    }
    if let Some(at) = american(text) {
        return Some(at);
    }
    if text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let (month, day) = (text[..2].parse().ok()?, text[2..].parse().ok()?);
        // A leap year contains every possible date.
        Date::new(2_000, month, day).ok()?;
        return Some(ClockTime::DayOfYear { month, day });
    }
    if let Some(date) = text.split(['T', ' ']).next().filter(|date| date.contains('-')) {
        let date: Date = date.parse().ok()?;
        let rest = text.get(10..)?.trim_start_matches(['T', ' ']);
        let at = if rest.is_empty() { Time::midnight() } else { time_of_day(rest)? };
        return Some(ClockTime::Local(date.to_datetime(at)));
    }
    time_of_day(&lower).map(ClockTime::TimeOfDay)
}

/// Reads `MMDDYY`, `MM/DD`, `MM/DD/YY` or `MM.DD.YY`; the latter three may be followed by `-HH:MM`.
fn american(text: &str) -> Option<ClockTime> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let year = |text: &str| Some(2_000 + text.parse::<i16>().ok().filter(|_| text.len() == 2)?);
    if text.len() == 6 && digits(text) {
        let date =
            Date::new(year(&text[4..])?, text[..2].parse().ok()?, text[2..4].parse().ok()?).ok()?;
        return Some(ClockTime::Local(date.to_datetime(Time::midnight())));
    }
    let (date, at) = text.split_once('-').map_or((text, None), |(date, at)| (date, Some(at)));
    let separator = ['/', '.'].into_iter().find(|letter| date.contains(*letter))?;
    let parts: Vec<&str> = date.split(separator).collect();
    let at = at.map_or(Some(Time::midnight()), time_of_day)?;
    match parts.as_slice() {
        [month, day] if at == Time::midnight() => {
            let (month, day) = (month.parse().ok()?, day.parse().ok()?);
            Date::new(2_000, month, day).ok()?;
            Some(ClockTime::DayOfYear { month, day })
        }
        [month, day, years] => {
            let date = Date::new(year(years)?, month.parse().ok()?, day.parse().ok()?).ok()?;
            Some(ClockTime::Local(date.to_datetime(at)))
        }
        _ => None,
    }
}

/// Reads `HH:MM` or `HH:MM:SS`, also with `AM` or `PM`.
fn time_of_day(text: &str) -> Option<Time> {
    let lower = text.to_ascii_lowercase();
    let half = [("am", 0), ("pm", 12)]
        .into_iter()
        .find_map(|(word, first)| Some((lower.strip_suffix(word)?.trim_end(), first)));
    if let Some((rest, first)) = half {
        let at = time_of_day(rest).filter(|at| (1..=12).contains(&at.hour()))?;
        return Time::new(at.hour() % 12 + first, at.minute(), at.second(), 0).ok();
    }
    let parts: Vec<&str> = text.split(':').collect();
    let number = |text: &str| {
        let digits = matches!(text.len(), 1 | 2) && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits { text.parse::<i8>().ok() } else { None }
    };
    match parts.as_slice() {
        [hours, minutes] => Time::new(number(hours)?, number(minutes)?, 0, 0).ok(),
        [hours, minutes, secs] => {
            Time::new(number(hours)?, number(minutes)?, number(secs)?, 0).ok()
        }
        _ => None,
    }
}

/// Reads what follows `now`: nothing, or `+COUNT` with a unit, which is seconds by default.
fn relative(text: &str) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let text = text.trim_start().strip_prefix('+')?.trim_start();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let count: i64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim_start() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        _ => return None,
    };
    count.checked_mul(unit)
}

impl ClockTime {
    /// Returns the time, relative to the current time of this machine's clock.
    ///
    /// # Errors
    ///
    /// [`BadClockTime::OutOfRange`].
    pub fn after_now(self) -> Result<OffsetDateTime, BadClockTime> {
        self.after(&Zoned::now())
    }

    /// Returns the time; a time of day means today, and a date without a year is in this year.
    ///
    /// # Errors
    ///
    /// [`BadClockTime::OutOfRange`].
    pub fn in_the_past(self) -> Result<OffsetDateTime, BadClockTime> {
        let now = Zoned::now();
        let local = match self {
            Self::TimeOfDay(at) => Self::Local(now.date().to_datetime(at)),
            Self::DayOfYear { month, day } => {
                let date =
                    Date::new(now.year(), month, day).map_err(|_| BadClockTime::OutOfRange)?;
                Self::Local(date.to_datetime(Time::midnight()))
            }
            other => other,
        };
        local.after(&now)
    }

    fn after(self, now: &Zoned) -> Result<OffsetDateTime, BadClockTime> {
        let at = self.resolve(now).map_err(|_| BadClockTime::OutOfRange)?;
        OffsetDateTime::from_unix_timestamp_nanos(at.as_nanosecond())
            .map_err(|_| BadClockTime::OutOfRange)
    }

    fn resolve(self, now: &Zoned) -> Result<Timestamp, jiff::Error> {
        let zone: &TimeZone = now.time_zone();
        let local = |at: DateTime| Ok(zone.to_zoned(at)?.timestamp());
        match self {
            Self::In(secs) => now.timestamp().checked_add(SignedDuration::from_secs(secs)),
            Self::TimeOfDay(at) => {
                let today = now.date();
                let day = if at > now.time() { today } else { today.tomorrow()? };
                local(day.to_datetime(at))
            }
            Self::InDays(days) => {
                let day = now.date().checked_add(jiff::Span::new().try_days(days)?)?;
                local(day.to_datetime(Time::midnight()))
            }
            Self::DayOfYear { month, day } => {
                let begins =
                    |year: i16| Ok(Date::new(year, month, day)?.to_datetime(Time::midnight()));
                match begins(now.year()) {
                    Ok(at) if at > now.datetime() => local(at),
                    Ok(_) | Err(_) => begins(now.year() + 1).and_then(local),
                }
            }
            Self::Local(at) => local(at),
            Self::Absolute(at) => Ok(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::format_description::well_known::Rfc3339;

    use super::*;

    /// Monday afternoon in Berlin, an hour ahead of UTC.
    fn now() -> Zoned {
        "2026-11-23T15:30:00+01:00[+01:00]".parse().unwrap()
    }

    fn resolved(text: &str) -> String {
        let at: ClockTime = text.parse().unwrap();
        at.after(&now()).unwrap().format(&Rfc3339).unwrap()
    }

    #[test]
    fn times_read_as_slurm_reads_them() {
        for (text, expected) in [
            ("18:00", "2026-11-23T17:00:00Z"),
            ("15:30", "2026-11-24T14:30:00Z"),
            ("8:05:09", "2026-11-24T07:05:09Z"),
            ("midnight", "2026-11-23T23:00:00Z"),
            ("today", "2026-11-22T23:00:00Z"),
            ("tomorrow", "2026-11-23T23:00:00Z"),
            ("fika", "2026-11-24T14:00:00Z"),
            ("elevenses", "2026-11-24T10:00:00Z"),
            ("3:30 PM", "2026-11-24T14:30:00Z"),
            ("4:00pm", "2026-11-23T15:00:00Z"),
            ("12:15AM", "2026-11-23T23:15:00Z"),
            ("012230", "2030-01-21T23:00:00Z"),
            ("01/31/30", "2030-01-30T23:00:00Z"),
            ("01/31/30-18:00", "2030-01-31T17:00:00Z"),
            ("12/24", "2026-12-23T23:00:00Z"),
            ("noon", "2026-11-24T11:00:00Z"),
            ("1224", "2026-12-23T23:00:00Z"),
            ("0101", "2026-12-31T23:00:00Z"),
            ("2027-01-31", "2027-01-30T23:00:00Z"),
            ("2027-01-31T18:00", "2027-01-31T17:00:00Z"),
            ("2027-01-31 18:00:30", "2027-01-31T17:00:30Z"),
            ("2027-01-31T18:00:00Z", "2027-01-31T18:00:00Z"),
            ("now", "2026-11-23T14:30:00Z"),
            ("now+90", "2026-11-23T14:31:30Z"),
            ("now+2hours", "2026-11-23T16:30:00Z"),
            ("now + 1 week", "2026-11-30T14:30:00Z"),
        ] {
            assert_eq!(resolved(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_the_forms() {
        for text in
            ["", "soon", "25:00", "18", "18:60", "1331", "now-1h", "now+2years", "2027-02-30"]
        {
            let refused = text.parse::<ClockTime>().unwrap_err().to_string();
            assert!(refused.contains("now+2hours"), "{text:?}: {refused}");
        }
    }

    #[test]
    fn the_29th_of_february_is_refused_where_neither_year_has_one() {
        let at: ClockTime = "0229".parse().unwrap();

        assert_eq!(at.after(&now()), Err(BadClockTime::OutOfRange));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,24}") {
            if let Ok(at) = text.parse::<ClockTime>() {
                let _ = at.after(&now());
            }
        }

        #[test]
        fn a_time_of_day_is_within_the_next_day(hours in 0_i8..24, minutes in 0_i8..60) {
            let at: ClockTime = format!("{hours:02}:{minutes:02}").parse().unwrap();
            let wait = at.after(&now()).unwrap().unix_timestamp() - now().timestamp().as_second();
            prop_assert!(wait > 0 && wait <= 86_400);
        }
    }
}
