//! Pages: how large, where they begin, and which jobs are on them.

use std::fmt;
use std::str::FromStr;

use tessera_api_types::JobFilter;
use tessera_model::life::JobState;
use tessera_model::spec::BadField;
use tessera_model::{JobId, PlanId};
use time::OffsetDateTime;

/// How many entries a page has without a limit in the request.
const PAGE_DEFAULT: u32 = 100;
/// Maximum number of entries of a page: an answer stays below a megabyte.
const PAGE_MAX: u32 = 1_000;
/// Longest name in a filter; the names that it is compared with are shorter.
const NAME_BYTES_MAX: usize = 256;

/// How many entries a page has: 1 to 1,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize(u32);

impl PageSize {
    /// Reads a size that came from outside.
    ///
    /// # Errors
    ///
    /// [`BadField`] outside of 1 to 1,000.
    pub fn parse(limit: Option<u32>) -> Result<Self, BadField> {
        match limit.unwrap_or(PAGE_DEFAULT) {
            size @ 1..=PAGE_MAX => Ok(Self(size)),
            size => Err(BadField::new(
                "limit",
                format!("{size} is out of range"),
                format!("1 to {PAGE_MAX}"),
            )),
        }
    }

    /// Returns how many rows to read: one more, which shows whether another page follows.
    pub(super) fn rows(self) -> i64 {
        i64::from(self.0) + 1
    }

    /// Cuts the surplus row off. Returns whether there was one.
    pub(super) fn cut<T>(self, rows: &mut Vec<T>) -> bool {
        let size = self.0 as usize;
        let more = rows.len() > size;
        rows.truncate(size);
        more
    }
}

/// Where a page of layout plans ended: a moment, and the plan that breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// When the last entry was ordered.
    pub(super) at: OffsetDateTime,
    /// Which plan it was.
    pub(super) plan: PlanId,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{:x}-{}", self.at.unix_timestamp_nanos(), self.plan.as_uuid().simple())
    }
}

impl FromStr for Cursor {
    type Err = BadField;

    fn from_str(text: &str) -> Result<Self, BadField> {
        let parse = || {
            let (at, plan) = text.strip_prefix('l')?.split_once('-')?;
            let at = i128::from_str_radix(at, 16).ok().filter(|at| *at >= 0)?;
            Some(Self {
                at: OffsetDateTime::from_unix_timestamp_nanos(at).ok()?,
                plan: PlanId::from_uuid(uuid::Uuid::try_parse(plan).ok()?),
            })
        };
        parse().ok_or_else(|| bad_cursor(text))
    }
}

fn bad_cursor(text: &str) -> BadField {
    BadField::new(
        "cursor",
        format!("{text:?} is not a cursor of this list"),
        "the next_cursor of the previous page",
    )
}

/// Which jobs to list, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobQuery {
    /// Words of the requested states; `None` for all.
    pub(super) states: Option<Vec<String>>,
    /// Whether no requested state is final.
    pub(super) unfinished: bool,
    pub(super) user: Option<String>,
    pub(super) name: Option<String>,
    pub(super) node: Option<String>,
    pub(super) array: Option<JobId>,
    /// Only jobs below this number.
    pub(super) before: i64,
    pub(super) size: PageSize,
}

impl JobQuery {
    /// Reads a filter.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first parameter that breaks a rule.
    pub fn parse(filter: JobFilter) -> Result<Self, BadField> {
        let states = filter.state.as_deref().map(parse_states).transpose()?;
        Ok(Self {
            unfinished: states
                .as_ref()
                .is_some_and(|states| states.iter().all(|state| !state.is_final())),
            states: states
                .map(|states| states.into_iter().map(|state| state.word().to_owned()).collect()),
            user: parse_name("user", filter.user)?,
            name: parse_name("name", filter.name)?,
            node: parse_name("node", filter.node)?,
            array: filter.array.map(parse_array).transpose()?,
            before: filter.cursor.as_deref().map_or(Ok(i64::MAX), parse_job_cursor)?,
            size: PageSize::parse(filter.limit)?,
        })
    }
}

/// Writes where a page of jobs ended.
pub(super) fn job_cursor(last: u64) -> String {
    format!("j{last:x}")
}

fn parse_job_cursor(text: &str) -> Result<i64, BadField> {
    text.strip_prefix('j')
        .and_then(|hex| i64::from_str_radix(hex, 16).ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| bad_cursor(text))
}

fn parse_states(text: &str) -> Result<Vec<JobState>, BadField> {
    let mut states = Vec::new();
    for word in text.split(',').map(str::trim) {
        match word {
            "active" => states.extend(JobState::ALL.iter().filter(|state| !state.is_final())),
            _ => states.push(word.parse().map_err(|_| unknown_state(word))?),
        }
    }
    Ok(states)
}

fn unknown_state(word: &str) -> BadField {
    let states: Vec<_> = JobState::ALL.iter().map(|state| state.word()).collect();
    BadField::new(
        "state",
        format!("{word:?} is not a state"),
        format!("active, or some of {}, separated by commas", states.join(", ")),
    )
}

pub(crate) fn parse_name(field: &str, text: Option<String>) -> Result<Option<String>, BadField> {
    match text {
        Some(text) if text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) => {
            Err(BadField::new(
                field,
                "it is too long, or holds control characters",
                format!("at most {NAME_BYTES_MAX} bytes of plain text"),
            ))
        }
        text => Ok(text),
    }
}

fn parse_array(number: u64) -> Result<JobId, BadField> {
    number
        .to_string()
        .parse()
        .map_err(|_| BadField::new("array", format!("{number} is not an array"), "a job's number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_stands_for_every_state_that_is_not_final() {
        let filter = JobFilter { state: Some("active".into()), ..JobFilter::default() };

        let query = JobQuery::parse(filter).unwrap();

        assert!(query.unfinished);
        assert_eq!(query.states.unwrap().len(), 6);
    }

    #[test]
    fn a_filter_that_breaks_a_rule_names_the_parameter() {
        type Break = fn(&mut JobFilter);
        let cases: [(&str, Break); 6] = [
            ("state", |f| f.state = Some("done".into())),
            ("user", |f| f.user = Some("a\0b".into())),
            ("array", |f| f.array = Some(0)),
            ("limit", |f| f.limit = Some(0)),
            ("limit", |f| f.limit = Some(1_001)),
            ("cursor", |f| f.cursor = Some("7".into())),
        ];
        for (field, break_it) in cases {
            let mut filter = JobFilter::default();
            break_it(&mut filter);

            assert_eq!(JobQuery::parse(filter).unwrap_err().field, field);
        }
    }

    #[test]
    fn cursors_read_back() {
        let cursor = Cursor {
            at: OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap(),
            plan: PlanId::from_uuid(uuid::Uuid::from_u128(7)),
        };

        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert_eq!(parse_job_cursor(&job_cursor(42)), Ok(42));
    }
}
