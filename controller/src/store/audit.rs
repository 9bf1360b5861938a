//! The log of what callers changed, and of what was refused to them.

use std::fmt::Write as _;

use serde::Serialize;
use sqlx::PgConnection;

use super::StoreError;
use crate::principal::AuditRecord;
use crate::requests::NewSubmission;
use tessera_model::JobId;
use tessera_model::number::clamped;

/// Longest list of jobs in one entry, in bytes.
const JOBS_MAX: usize = 240;

/// An entry for what one caller submitted in one transaction: thousands of submits a second are few entries.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(super) struct SubmitEntry<'a> {
    principal: &'a str,
    role: &'static str,
    origin: &'a str,
    /// Such as `/v1/jobs/17-24,30`.
    object: String,
    #[serde(skip)]
    last: u64,
    #[serde(skip)]
    range_from: usize,
}

impl<'a> SubmitEntry<'a> {
    fn begin(submission: &'a NewSubmission, first: u64, last: u64) -> Self {
        let mut entry = Self {
            principal: &submission.principal,
            role: submission.role.word(),
            origin: &submission.origin,
            object: "/v1/jobs/".to_owned(),
            last,
            range_from: 0,
        };
        entry.add_range(first, last);
        entry
    }

    fn is_of(&self, submission: &NewSubmission) -> bool {
        *self.principal == *submission.principal
            && self.role == submission.role.word()
            && self.origin == submission.origin
    }

    fn add(&mut self, first: u64, last: u64) {
        if first == self.last + 1 {
            // Continues the last range.
            let begin = self.object[self.range_from..].split('-').next().unwrap_or_default().len();
            self.object.truncate(self.range_from + begin);
            let _ = write!(self.object, "-{last}");
        } else {
            self.object.push(',');
            self.add_range(first, last);
        }
        self.last = last;
    }

    fn add_range(&mut self, first: u64, last: u64) {
        self.range_from = self.object.len();
        let _ = match first == last {
            true => write!(self.object, "{first}"),
            false => write!(self.object, "{first}-{last}"),
        };
    }
}

/// Returns the entries for accepted submissions, each with its first job.
pub(super) fn submit_entries<'a>(
    accepted: impl Iterator<Item = (&'a NewSubmission, JobId)>,
) -> Vec<SubmitEntry<'a>> {
    let mut entries: Vec<SubmitEntry<'a>> = Vec::new();
    for (submission, job) in accepted {
        let first = job.number();
        let last = first + u64::from(submission.tasks.saturating_sub(1));
        // The newest: an older one of this caller is full.
        match entries.iter_mut().rev().find(|entry| entry.is_of(submission)) {
            Some(entry) if entry.object.len() < JOBS_MAX => entry.add(first, last),
            _ => entries.push(SubmitEntry::begin(submission, first, last)),
        }
    }
    entries
}

/// Adds entries, in their order.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn insert(at: &mut PgConnection, records: &[AuditRecord]) -> Result<(), StoreError> {
    let column = |of: fn(&AuditRecord) -> &str| -> Vec<String> {
        records.iter().map(|record| of(record).to_owned()).collect()
    };
    let principals: Vec<_> =
        records.iter().map(|record| record.principal.as_deref().map(str::to_owned)).collect();
    let roles: Vec<_> =
        records.iter().map(|record| record.role.map(|role| role.word().to_owned())).collect();
    let statuses: Vec<i16> = records.iter().map(|record| clamped(record.status)).collect();
    sqlx::query!(
        r#"
        INSERT INTO audit_log (principal, role, origin, action, object, status)
        SELECT u.principal, u.role, u.origin, u.action, u.object, u.status
          FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[])
               WITH ORDINALITY AS u (principal, role, origin, action, object, status, place)
         ORDER BY u.place
        "#,
        &principals as &[Option<String>],
        &roles as &[Option<String>],
        &column(|record| &record.origin),
        &column(|record| &record.action),
        &column(|record| &record.object),
        &statuses,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to("record what callers did"))
    .map(drop)
}

/// Removes those of the oldest entries that are older than `keep_secs`; returns how many are gone. Numbers
/// rise with time, so that only the lowest are looked at.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn remove_old(at: &mut PgConnection, keep_secs: f64) -> Result<u64, StoreError> {
    sqlx::query!(
        r#"
        DELETE FROM audit_log
         WHERE entry IN (SELECT o.entry
                           FROM (SELECT entry, at FROM audit_log ORDER BY entry LIMIT 5000) AS o
                          WHERE o.at < now() - make_interval(secs => $1))
        "#,
        keep_secs,
    )
    .execute(at)
    .await
    .map_err(StoreError::while_trying_to("remove old entries of the audit log"))
    .map(|done| done.rows_affected())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tessera_model::spec::{JobSpec, RawJobSpec};

    use super::*;
    use crate::principal::Role;

    fn submission(principal: &str, origin: &str, tasks: u32) -> NewSubmission {
        let spec = JobSpec::parse(RawJobSpec {
            name: Some("train".to_owned()),
            user: Some("ada".to_owned()),
            command: Some(vec!["true".to_owned()]),
            ..RawJobSpec::default()
        });
        NewSubmission {
            spec: Arc::new(spec.unwrap()),
            tasks,
            array_first: None,
            hold: false,
            idempotency: None,
            traceparent: None,
            principal: principal.into(),
            role: Role::User,
            origin: origin.to_owned(),
        }
    }

    fn objects(of: &[(&str, &str, u32, u64)]) -> Vec<(String, String, String)> {
        let submissions: Vec<_> = of
            .iter()
            .map(|(name, origin, tasks, first)| {
                (submission(name, origin, *tasks), JobId::from_number(*first))
            })
            .collect();
        let entries = submit_entries(submissions.iter().map(|(one, first)| (one, *first)));
        let shown = |entry: &SubmitEntry<'_>| {
            (entry.principal.to_owned(), entry.origin.to_owned(), entry.object.clone())
        };
        entries.iter().map(shown).collect()
    }

    #[test]
    fn what_one_caller_submits_together_is_one_entry_with_all_its_jobs() {
        let found = objects(&[
            ("ada", "a", 1, 7),
            ("ada", "a", 1, 8),
            ("bob", "a", 1, 9),
            ("ada", "a", 3, 10),
            ("ada", "a", 1, 13),
            ("ada", "other", 1, 14),
            ("ada", "a", 1, 20),
        ]);

        let entry = |name: &str, origin: &str, object: &str| {
            (name.to_owned(), origin.to_owned(), object.to_owned())
        };
        assert_eq!(
            found,
            [
                entry("ada", "a", "/v1/jobs/7-8,10-13,20"),
                entry("bob", "a", "/v1/jobs/9"),
                entry("ada", "other", "/v1/jobs/14"),
            ]
        );
    }

    #[test]
    fn no_job_is_missing_in_long_lists() {
        let numbers: Vec<u64> = (0..300).map(|number| 10_000_000 + number * 2).collect();
        let of: Vec<_> = numbers.iter().map(|number| ("ada", "a", 1, *number)).collect();

        let found = objects(&of);

        let listed: Vec<u64> = found
            .iter()
            .flat_map(|(.., object)| object.strip_prefix("/v1/jobs/").unwrap().split(','))
            .map(|number| number.parse().unwrap())
            .collect();
        assert_eq!(listed, numbers);
        assert!(found.iter().all(|(.., object)| object.len() <= 256));
        assert!(found.len() < 15, "{}", found.len());
    }
}
