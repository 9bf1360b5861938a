//! Which part of a controller's history is meant.

use std::str::FromStr;

use tessera_model::Keep;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::cli::failure::Failure;

/// A moment, as people write it: so long ago, or by the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So many seconds ago.
    Ago(i64),
    /// Then.
    At(OffsetDateTime),
}

/// A text that names no moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no moment: write how long ago (2h, 24h, 7d) or 2026-11-21T20:00:00Z")]
pub struct BadMoment {
    text: String,
}

impl FromStr for Moment {
    type Err = BadMoment;

    fn from_str(text: &str) -> Result<Self, BadMoment> {
        if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
            return Ok(Self::At(at));
        }
        let bad = || BadMoment { text: text.to_owned() };
        match text.parse() {
            Ok(Keep::For(span)) => i64::try_from(span.get() / 1_000).map(Self::Ago),
            Ok(Keep::Forever) | Err(_) => return Err(bad()),
        }
        .map_err(|_| bad())
    }
}

impl Moment {
    fn at(self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        match self {
            Self::Ago(secs) => now.checked_sub(Duration::seconds(secs)),
            Self::At(at) => Some(at),
        }
    }
}

/// From when to when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its beginning.
    pub since: OffsetDateTime,
    /// Its end.
    pub until: OffsetDateTime,
}

impl Period {
    /// Reads a period as it is meant at `now`; without an end it ends now.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] if it has no length.
    pub fn new(since: Moment, until: Option<Moment>, now: OffsetDateTime) -> Result<Self, Failure> {
        let out = || Failure::Usage("that is before all calendars: choose a later moment".into());
        let since = since.at(now).ok_or_else(out)?;
        let until = until.map_or(Some(now), |until| until.at(now)).ok_or_else(out)?;
        if since >= until {
            let (since, until) = (shown(since), shown(until));
            return Err(Failure::Usage(format!(
                "the period from {since} to {until} has no length: --since has to lie before {until}"
            )));
        }
        Ok(Self { since, until })
    }

    /// Whether a moment is part of it.
    pub fn has(&self, at: OffsetDateTime) -> bool {
        self.since <= at && at <= self.until
    }

    /// Says it in words.
    pub fn words(&self) -> String {
        format!("from {} to {}", shown(self.since), shown(self.until))
    }
}

/// Shows a moment to the second, UTC.
pub fn shown(at: OffsetDateTime) -> String {
    let whole = at.to_offset(time::UtcOffset::UTC).replace_nanosecond(0).unwrap_or(at);
    whole.format(&Rfc3339).unwrap_or_else(|_| whole.to_string())
}

/// Shows a moment in full, for the API.
pub fn exact(at: OffsetDateTime) -> String {
    let utc = at.to_offset(time::UtcOffset::UTC);
    utc.format(&Rfc3339).unwrap_or_else(|_| utc.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noon() -> OffsetDateTime {
        OffsetDateTime::parse("2026-11-21T12:00:00Z", &Rfc3339).unwrap()
    }

    #[test]
    fn a_period_begins_so_long_ago_or_at_a_moment_and_ends_now() {
        let period = Period::new("2h".parse().unwrap(), None, noon()).unwrap();
        assert_eq!(period.words(), "from 2026-11-21T10:00:00Z to 2026-11-21T12:00:00Z");

        let since = "2026-11-20T23:00:00+01:00".parse().unwrap();
        let period = Period::new(since, Some("1d".parse().unwrap()), noon());
        let refused = period.unwrap_err().to_string();
        assert!(refused.contains("2026-11-20T22:00:00Z to 2026-11-20T12:00:00Z"), "{refused}");
    }

    #[test]
    fn what_is_no_moment_is_refused_with_what_would_be_right() {
        for text in ["", "yesterday", "2", "forever", "2026-11-21"] {
            let refused = text.parse::<Moment>().unwrap_err().to_string();
            assert!(refused.contains("24h"), "{refused}");
        }
    }
}
