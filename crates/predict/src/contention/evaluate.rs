//! How far predictions are off on tasks that a fit has not seen.

use std::collections::BTreeSet;

use super::fit::{CopiesRow, ErrorTable};
use crate::number::{count, whole};
use tessera_model::number::index;

/// What is left out of a fit together, and tested with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldOutGroup {
    /// A model with one batch.
    Task,
    /// A model with all of its batches.
    Model,
    /// All models of one family. `bert` is the only one of language models.
    Family,
}

/// Errors on all tasks, each predicted by a fit without its group.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOutSpeeds {
    /// How many speeds were predicted.
    pub rows: usize,
    /// The median error, relative to the measured speed.
    pub median: f64,
    /// The error that nine of ten do not exceed.
    pub p90: f64,
    /// The part of the measured speeds in their intervals.
    pub covered: f64,
}

impl HeldOutGroup {
    fn of(self, row: &CopiesRow<'_>) -> (String, Option<u32>) {
        match self {
            Self::Task => (row.model.to_owned(), Some(row.batch)),
            Self::Model => (row.model.to_owned(), None),
            Self::Family => (row.family.to_owned(), None),
        }
    }
}

/// Leaves out each group once, and returns the errors on all of them and on those that are named.
pub fn evaluate_held_out(
    table: &ErrorTable<'_, '_>,
    group: HeldOutGroup,
    only: Option<&str>,
) -> HeldOutSpeeds {
    let rows = table.rows();
    let groups: BTreeSet<_> = rows.iter().map(|row| group.of(row)).collect();
    let groups = groups.into_iter().filter(|(name, _)| only.is_none_or(|only| only == name));
    let (mut errors, mut covered) = (Vec::new(), 0);
    for left_out in groups {
        let is_left_out = |row: &CopiesRow<'_>| group.of(row) == left_out;
        let tested: Vec<&CopiesRow<'_>> = rows.iter().filter(|row| is_left_out(row)).collect();
        let names: BTreeSet<(&str, u32)> =
            tested.iter().map(|row| (row.model, row.batch)).collect();
        let fitted = table.fit(&|model, batch| !names.contains(&(model, batch)));
        for row in tested {
            let Some((residual, regime)) = row.residual(&fitted) else { continue };
            errors.push((1.0 - (-residual).exp()).abs());
            let margin = f64::from(fitted.margins[regime]) / 1_000.0;
            covered += usize::from(residual.abs() <= margin);
        }
    }
    errors.sort_by(f64::total_cmp);
    let quantile = |part: f64| {
        let at = index(whole(part * count(errors.len().saturating_sub(1))));
        errors.get(at).copied().unwrap_or(0.0)
    };
    HeldOutSpeeds {
        rows: errors.len(),
        median: quantile(0.5),
        p90: quantile(0.9),
        covered: count(covered) / count(errors.len().max(1)),
    }
}
