//! Rows to learn from.

use std::collections::BTreeMap;

use crate::number::{count, hash};

/// Maximum number of rows that are learned from: the newest are kept. Training a boosted model with
/// this many takes about a second.
pub const ROWS_MAX: usize = 20_000;

/// Why a row can't be learned from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Too many or too few numbers.
    #[error("a row of {found} columns: this table has {expected}")]
    Width {
        /// The columns of the table.
        expected: usize,
        /// The columns of the row.
        found: usize,
    },
    /// A number that is NaN or infinite.
    #[error("column {column} of a row is no finite number")]
    NotFinite {
        /// Its index; one past the last is the target.
        column: usize,
    },
}

/// Rows of equal width, each with a target and the group that it belongs to.
///
/// Rows of one group (one task) are never separated: a model is tested on tasks that it has not
/// seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingTable {
    width: usize,
    cells: Vec<f64>,
    targets: Vec<f64>,
    groups: Vec<u64>,
}

impl TrainingTable {
    /// Begins a table with this many columns.
    pub const fn new(width: usize) -> Self {
        Self { width, cells: Vec::new(), targets: Vec::new(), groups: Vec::new() }
    }

    /// Adds a row; the oldest is removed if there are [`ROWS_MAX`].
    ///
    /// # Errors
    ///
    /// [`RowError`]: leave the row out.
    pub fn push(&mut self, group: u64, row: &[f64], target: f64) -> Result<(), RowError> {
        if row.len() != self.width {
            return Err(RowError::Width { expected: self.width, found: row.len() });
        }
        let cells = row.iter().chain([&target]);
        if let Some(column) = cells.clone().position(|cell| !cell.is_finite()) {
            return Err(RowError::NotFinite { column });
        }
        if self.targets.len() >= 2 * ROWS_MAX {
            self.forget(ROWS_MAX);
        }
        self.cells.extend(row);
        self.targets.push(target);
        self.groups.push(group);
        Ok(())
    }

    fn forget(&mut self, oldest: usize) {
        self.cells.drain(..oldest * self.width);
        self.targets.drain(..oldest);
        self.groups.drain(..oldest);
    }

    /// Returns the number of rows.
    pub const fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the number of columns.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Returns the rows with their targets.
    pub fn rows(&self) -> impl Iterator<Item = (&[f64], f64)> {
        self.cells.chunks(self.width.max(1)).zip(self.targets.iter().copied())
    }

    /// Returns the targets, in the order of the rows.
    pub fn targets(&self) -> &[f64] {
        &self.targets
    }

    pub(super) fn row(&self, at: usize) -> &[f64] {
        &self.cells[at * self.width..(at + 1) * self.width]
    }

    pub(super) fn cell(&self, row: usize, column: usize) -> f64 {
        self.cells[row * self.width + column]
    }

    /// Returns the mean of the targets; zero without rows.
    pub fn mean(&self) -> f64 {
        self.targets.iter().sum::<f64>() / count(self.len().max(1))
    }

    /// Splits the table into rows for training and this many thousandths of its groups for testing.
    /// Whether a group is held out depends only on its number, so a new row never moves an old one.
    pub fn split(&self, held_out_per_mille: u64) -> (Self, Self) {
        let salted = |group: u64| hash(&[group.to_le_bytes(), [0; 8]].concat());
        self.divide(|group| salted(group) % 1_000 < held_out_per_mille)
    }

    /// Splits the table into the rows of all other groups, and those of this one.
    pub fn without(&self, group: u64) -> (Self, Self) {
        self.divide(|other| other == group)
    }

    /// Returns this many splits: each of them holds out another part of the groups, and each group is held out once.
    /// All parts have as many groups, or one more.
    pub(crate) fn folds(&self, parts: u64) -> impl Iterator<Item = (Self, Self)> {
        let mut groups: Vec<(u64, u64)> =
            self.groups.iter().map(|group| (hash(&group.to_le_bytes()), *group)).collect();
        groups.sort_unstable();
        groups.dedup();
        let part: BTreeMap<u64, u64> = (0..)
            .zip(groups)
            .map(|(at, (_, group)): (u64, _)| (group, at % parts.max(1)))
            .collect();
        (0..parts).map(move |held_out| self.divide(|group| part.get(&group) == Some(&held_out)))
    }

    fn divide(&self, is_held_out: impl Fn(u64) -> bool) -> (Self, Self) {
        let (mut train, mut test) = (Self::new(self.width), Self::new(self.width));
        for at in self.len().saturating_sub(ROWS_MAX)..self.len() {
            let group = self.groups[at];
            let part = if is_held_out(group) { &mut test } else { &mut train };
            part.cells.extend(self.row(at));
            part.targets.push(self.targets[at]);
            part.groups.push(group);
        }
        (train, test)
    }

    /// Returns mean and spread of each column; a column that never changes has spread one.
    pub fn scales(&self) -> Vec<(f64, f64)> {
        (0..self.width)
            .map(|column| {
                let cells = || (0..self.len()).map(move |row| self.cell(row, column));
                let mean = cells().sum::<f64>() / count(self.len().max(1));
                let square = cells().map(|cell| (cell - mean).powi(2)).sum::<f64>();
                let spread = (square / count(self.len().max(1))).sqrt();
                (mean, if spread > 1e-12 { spread } else { 1.0 })
            })
            .collect()
    }
}

/// Returns a row with every column at mean zero and spread one.
pub fn scaled(scales: &[(f64, f64)], row: &[f64]) -> Vec<f64> {
    row.iter().zip(scales).map(|(cell, (mean, spread))| (cell - mean) / spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_never_split_and_about_a_fifth_is_held_out() {
        let mut table = TrainingTable::new(1);
        for row in 0..3_000_u64 {
            table.push(row / 3, &[crate::number::float(row)], 1.0).unwrap();
        }
        let (train, test) = table.split(200);
        assert_eq!(train.len() + test.len(), 3_000);
        assert!((450..750).contains(&test.len()), "{}", test.len());
        assert!(test.groups.iter().all(|group| !train.groups.contains(group)));
    }

    #[test]
    fn every_group_is_held_out_once() {
        let mut table = TrainingTable::new(1);
        for row in 0..300_u64 {
            table.push(row / 3, &[crate::number::float(row)], 1.0).unwrap();
        }
        let mut held_out = Vec::new();
        for (train, test) in table.folds(5) {
            assert_eq!(train.len() + test.len(), 300);
            assert_eq!(test.len(), 60);
            assert!(test.groups.iter().all(|group| !train.groups.contains(group)));
            held_out.extend(test.groups);
        }
        held_out.sort_unstable();
        assert_eq!(held_out, (0..300).map(|row| row / 3).collect::<Vec<u64>>());
    }

    #[test]
    fn rows_of_another_width_or_without_a_number_are_refused() {
        let mut table = TrainingTable::new(2);
        assert_eq!(table.push(0, &[1.0], 1.0), Err(RowError::Width { expected: 2, found: 1 }));
        let refused = table.push(0, &[1.0, 2.0], f64::NAN);
        assert_eq!(refused, Err(RowError::NotFinite { column: 2 }));
        assert!(table.is_empty());
    }
}
