//! From what PostgreSQL can say to what a column means.

use std::fmt::Display;

use crate::store::StoreError;

/// Returns the error for a row that breaks a rule, for use with `map_err`.
pub(super) fn corrupt<E: Display>(
    table: &'static str,
    row: impl Display,
) -> impl FnOnce(E) -> StoreError {
    move |problem| StoreError::Corrupt { table, row: row.to_string(), problem: problem.to_string() }
}

/// Reads a whole number that can't be negative.
pub(super) fn count<N>(table: &'static str, row: impl Display, number: i64) -> Result<N, StoreError>
where
    N: TryFrom<i64, Error: Display>,
{
    N::try_from(number).map_err(corrupt(table, row))
}

/// Reads a whole number that can't be negative, or is not there.
pub(super) fn maybe_count<N>(
    table: &'static str,
    row: impl Display,
    number: Option<i64>,
) -> Result<Option<N>, StoreError>
where
    N: TryFrom<i64, Error: Display>,
{
    number.map(|number| count(table, row, number)).transpose()
}
