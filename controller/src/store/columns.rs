//! Conversions between the numbers of the model and those of PostgreSQL's columns.
//!
//! What is read must fit, or the row is reported as corrupt. What is written saturates: PostgreSQL
//! has no unsigned integers, and no counter, clock or memory comes near the limits of the signed ones.

use std::fmt::Display;

use serde::Serialize;
use tessera_model::number::clamped;
use tessera_model::{AttemptId, Bytes, JobId, Millis};
use time::OffsetDateTime;
use uuid::Uuid;

use super::StoreError;

/// A row that is being read, as errors name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRef<K> {
    table: &'static str,
    key: K,
}

impl<K: Display> RowRef<K> {
    /// Names a row by its table and its primary key.
    pub(super) const fn new(table: &'static str, key: K) -> Self {
        Self { table, key }
    }

    /// Returns the primary key.
    pub(super) fn key(&self) -> K
    where
        K: Copy,
    {
        self.key
    }

    /// Returns the error for a column that breaks a rule.
    pub(super) fn error(&self, column: &'static str, problem: impl Display) -> StoreError {
        StoreError::Corrupt {
            table: self.table,
            key: self.key.to_string(),
            column,
            problem: problem.to_string(),
        }
    }

    /// Returns what makes an error of a column's problem, for use with `map_err`.
    pub(super) fn corrupt<E: Display>(&self, column: &'static str) -> impl Fn(E) -> StoreError {
        move |problem| self.error(column, problem)
    }

    /// Reads a number in the type that its column means, such as one that can't be negative.
    pub(super) fn number<N>(
        &self,
        column: &'static str,
        value: impl TryInto<N, Error: Display> + Display + Copy,
    ) -> Result<N, StoreError> {
        value.try_into().map_err(|problem| self.error(column, format!("{value}: {problem}")))
    }

    /// Reads a number that may be missing.
    pub(super) fn optional_number<N>(
        &self,
        column: &'static str,
        value: Option<impl TryInto<N, Error: Display> + Display + Copy>,
    ) -> Result<Option<N>, StoreError> {
        value.map(|value| self.number(column, value)).transpose()
    }

    /// Reads a length of time, or a moment since 1970.
    pub(super) fn millis(&self, column: &'static str, value: i64) -> Result<Millis, StoreError> {
        self.number(column, value).map(Millis::new)
    }

    /// Reads a size of memory.
    pub(super) fn bytes(&self, column: &'static str, value: i64) -> Result<Bytes, StoreError> {
        self.number(column, value).map(Bytes::new)
    }

    /// Reads an amount of memory of an optional column.
    pub(super) fn optional_bytes(
        &self,
        column: &'static str,
        value: Option<i64>,
    ) -> Result<Option<Bytes>, StoreError> {
        value.map(|value| self.bytes(column, value)).transpose()
    }

    /// Reads a job's number.
    pub(super) fn job(&self, column: &'static str, value: i64) -> Result<JobId, StoreError> {
        self.number(column, value).map(JobId::from_number)
    }
}

/// Returns how many rows a statement counted. `COUNT` is never negative.
pub(super) fn row_count(count: i64) -> u64 {
    count.unsigned_abs()
}

/// Returns a time that passed on the database's clock; zero if that clock went backwards meanwhile.
pub(super) fn elapsed(millis: i64) -> Millis {
    Millis::new(clamped(millis))
}

/// Returns a number as a `bigint`; the largest one stands for all above it.
pub(super) fn bigint(value: u64) -> i64 {
    clamped(value)
}

/// Returns a number as an `integer`; the largest one stands for all above it.
pub(super) fn integer(value: u32) -> i32 {
    clamped(value)
}

/// Returns a number as a `smallint`; the largest one stands for all above it.
pub(super) fn smallint(value: u32) -> i16 {
    clamped(value)
}

/// Returns a collection's length as an `integer`; the largest one stands for all above it.
pub(super) fn integer_len(value: usize) -> i32 {
    clamped(value)
}

/// Returns a job's number as a `bigint`; job numbers are drawn from a sequence of these.
pub(super) fn job_number(job: JobId) -> i64 {
    bigint(job.number())
}

/// Returns the jobs and attempts of a batch as two columns.
pub(super) fn attempt_keys(
    keys: impl Iterator<Item = (JobId, AttemptId)>,
) -> (Vec<i64>, Vec<Uuid>) {
    keys.map(|(job, attempt)| (job_number(job), attempt.as_uuid())).unzip()
}

/// Returns a moment since 1970 as a `bigint` of milliseconds; nothing for one that was never set,
/// or that PostgreSQL can't hold.
pub(super) fn moment_ms(unix: Millis) -> Option<i64> {
    if unix == Millis::ZERO {
        return None;
    }
    let nanos = i128::from(unix.get()) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok().map(|_| bigint(unix.get()))
}

/// Returns plain data as JSON text: one value, or the rows of a whole batch, which statements take
/// apart by `json_to_recordset`.
pub(super) fn json_text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

/// Returns the number of rows of a batch, for `LIMIT`. It cuts nothing off: it states to PostgreSQL's planner how
/// many rows [`json_text`] has. For a function it expects 100, and would then read all of `jobs` for each batch.
pub(super) fn batch_size<T>(rows: &[T]) -> i64 {
    bigint(rows.len() as u64)
}
