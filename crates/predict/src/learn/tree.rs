//! One regression tree, grown over binned columns.

use serde::{Deserialize, Serialize};
use tessera_model::number::clamped;

use super::TrainingTable;
use crate::number::count;
use crate::random::SeededRng;

/// Maximum number of bins of a column: as many as a byte can number.
const BINS_MAX: usize = 255;

/// How a tree grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrowthRule {
    /// Maximum number of splits from root to leaf; 14 keeps the nodes below 2^15.
    pub(super) depth_max: u32,
    /// The fewest rows of a leaf.
    pub(super) leaf_min: usize,
    /// How many columns are considered for each split.
    pub(super) columns: usize,
    /// The regularisation of a leaf's value towards zero, in rows (XGBoost's lambda).
    pub(super) shrink: f64,
}

/// Binned columns of a table: one byte for each cell, so that a split is found in one pass over the
/// rows.
#[derive(Debug)]
pub(super) struct BinnedColumns {
    /// For each column, the values between its bins, ascending.
    cuts: Vec<Vec<f64>>,
    /// For each column, the bin of each row.
    codes: Vec<Vec<u8>>,
}

impl BinnedColumns {
    pub(super) fn new(table: &TrainingTable) -> Self {
        let cuts: Vec<Vec<f64>> = (0..table.width()).map(|column| cuts(table, column)).collect();
        let codes = cuts.iter().enumerate().map(|(column, cuts)| {
            let bin = |row| {
                let cell = table.cell(row, column);
                clamped::<u8>(cuts.partition_point(|cut| *cut < cell))
            };
            (0..table.len()).map(bin).collect()
        });
        let codes = codes.collect();
        Self { cuts, codes }
    }
}

/// Finds values that divide a column into bins of about equal size.
fn cuts(table: &TrainingTable, column: usize) -> Vec<f64> {
    let mut values: Vec<f64> = (0..table.len()).map(|row| table.cell(row, column)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let between: Vec<f64> =
        values.windows(2).map(|pair| pair[0] + (pair[1] - pair[0]) / 2.0).collect();
    if between.len() < BINS_MAX {
        return between;
    }
    (1..BINS_MAX).map(|bin| between[bin * between.len() / BINS_MAX]).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum TreeNode {
    Leaf { value: f64 },
    Split { column: u16, at: f64, below: u16, above: u16 },
}

/// A tree; the first node is its root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RegressionTree {
    nodes: Vec<TreeNode>,
}

impl RegressionTree {
    pub(super) fn predict(&self, row: &[f64]) -> f64 {
        let mut at = 0;
        loop {
            match self.nodes.get(at) {
                Some(TreeNode::Leaf { value }) => return *value,
                Some(TreeNode::Split { column, at: cut, below, above }) => {
                    let cell = row.get(usize::from(*column)).copied().unwrap_or(0.0);
                    at = usize::from(if cell <= *cut { *below } else { *above });
                }
                None => return 0.0,
            }
        }
    }

    /// Grows a tree on the rows, which may contain a row several times.
    pub(super) fn grow(
        binned: &BinnedColumns,
        targets: &[f64],
        rows: Vec<usize>,
        rule: GrowthRule,
        rng: &mut SeededRng,
    ) -> Self {
        let mut nodes = vec![TreeNode::Leaf { value: 0.0 }];
        let mut open = vec![(0_usize, rows, 0_u32)];
        while let Some((node, rows, depth)) = open.pop() {
            let found = match depth < rule.depth_max && rows.len() >= 2 * rule.leaf_min {
                true => split(binned, targets, &rows, rule, rng),
                false => None,
            };
            let children = u16::try_from(nodes.len() + 1).ok();
            let (Some((column, bin)), Some(above)) = (found, children) else {
                let sum: f64 = rows.iter().map(|row| targets[*row]).sum();
                nodes[node] =
                    TreeNode::Leaf { value: sum / (count(rows.len()) + rule.shrink).max(1e-9) };
                continue;
            };
            let codes = &binned.codes[column];
            let (low, high): (Vec<_>, Vec<_>) =
                rows.into_iter().partition(|row| codes[*row] <= bin);
            let at = binned.cuts[column][usize::from(bin)];
            let column = clamped(column);
            nodes[node] = TreeNode::Split { column, at, below: above - 1, above };
            open.push((usize::from(above) - 1, low, depth + 1));
            open.push((usize::from(above), high, depth + 1));
            nodes.extend([TreeNode::Leaf { value: 0.0 }; 2]);
        }
        Self { nodes }
    }
}

/// Finds the column and the last bin below the split that reduce the squared error most.
fn split(
    binned: &BinnedColumns,
    targets: &[f64],
    rows: &[usize],
    rule: GrowthRule,
    rng: &mut SeededRng,
) -> Option<(usize, u8)> {
    let sum: f64 = rows.iter().map(|row| targets[*row]).sum();
    let gain_of = |sum: f64, rows: usize| sum * sum / (count(rows) + rule.shrink).max(1e-9);
    let whole = gain_of(sum, rows.len());
    let mut best: Option<(f64, usize, u8)> = None;
    for column in drawn(binned.cuts.len(), rule.columns, rng) {
        let bins = binned.cuts[column].len() + 1;
        let mut held = vec![(0.0, 0_usize); bins];
        let codes = &binned.codes[column];
        for row in rows {
            let bin = &mut held[usize::from(codes[*row])];
            bin.0 += targets[*row];
            bin.1 += 1;
        }
        let (mut below, mut seen) = (0.0, 0);
        for (bin, (part, count)) in held.iter().enumerate().take(bins - 1) {
            below += part;
            seen += count;
            if *count == 0 || seen < rule.leaf_min || rows.len() - seen < rule.leaf_min {
                continue;
            }
            let gain = gain_of(below, seen) + gain_of(sum - below, rows.len() - seen) - whole;
            let bin = clamped(bin);
            if gain > 1e-12 && best.is_none_or(|(known, ..)| gain > known) {
                best = Some((gain, column, bin));
            }
        }
    }
    best.map(|(_, column, bin)| (column, bin))
}

/// Chooses this many of the columns at random, without repetition.
fn drawn(all: usize, count_drawn: usize, rng: &mut SeededRng) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..all).collect();
    if count_drawn >= all {
        return columns;
    }
    for at in 0..count_drawn {
        let other = at + rng.index_below(all - at);
        columns.swap(at, other);
    }
    columns.truncate(count_drawn);
    columns
}
