//! The samples since the last change point, with a line through all of them. They are kept in segments, so that a bend
//! or a step inside can be found and the samples before it dropped.

use super::line::FittedLine;
use crate::number::{count, float};

/// Segments of a regime. When all are full, neighbours are merged, so that they cover any length.
const SEGMENTS: usize = 16;

/// Samples on each side of a split: fewer have no spread.
const SIDE_MIN: u64 = 3;

/// How likely it may be that a split is found in a straight series, for one look at all splits.
const SPLIT_PROBABILITY: f64 = 1e-4;

/// A straight part of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Regime {
    line: FittedLine,
    segments: [FittedLine; SEGMENTS],
    used: usize,
    /// Samples of a full segment.
    size: u64,
}

impl Default for Regime {
    fn default() -> Self {
        Self {
            line: FittedLine::default(),
            segments: [FittedLine::default(); SEGMENTS],
            used: 0,
            size: 1,
        }
    }
}

impl Regime {
    /// Returns the line through all samples.
    pub(super) const fn line(&self) -> &FittedLine {
        &self.line
    }

    /// Returns the line through the newer half of the samples.
    pub(super) fn newer_half(&self) -> FittedLine {
        self.merged(self.used / 2)
    }

    fn merged(&self, from: usize) -> FittedLine {
        let mut line = FittedLine::default();
        self.segments[from..self.used].iter().for_each(|segment| line.merge(segment));
        line
    }

    /// Takes a sample; returns whether a bend was found, and the samples before it dropped.
    pub(super) fn take(&mut self, position: f64, value: f64, least: f64) -> bool {
        self.line.take(position, value);
        if self.used == 0 || self.segments[self.used - 1].points() >= self.size {
            if self.used == SEGMENTS {
                self.halve();
            }
            self.segments[self.used] = FittedLine::default();
            self.used += 1;
        }
        let newest = &mut self.segments[self.used - 1];
        newest.take(position, value);
        newest.points() == self.size && self.split(least)
    }

    fn halve(&mut self) {
        for pair in 0..SEGMENTS / 2 {
            let mut both = self.segments[2 * pair];
            both.merge(&self.segments[2 * pair + 1]);
            self.segments[pair] = both;
        }
        self.used = SEGMENTS / 2;
        self.size *= 2;
    }

    /// Finds the border between segments at which two lines explain the samples best. Drops the samples before it if a
    /// straight series would look so less often than [`SPLIT_PROBABILITY`].
    ///
    /// # Source
    ///
    /// Chow, Econometrica 28 (1960). With two parameters in the numerator, the distribution of F has the
    /// closed form `P(F > f) = (1 + 2 f / m)^(-m / 2)`.
    fn split(&mut self, least: f64) -> bool {
        let n = self.line.points();
        if n < 2 * SIDE_MIN + 1 {
            return false;
        }
        let freedom = float(n - 4);
        let noise = float(n) * least * least;
        let mut before = FittedLine::default();
        let mut best: Option<(f64, usize)> = None;
        for at in 1..self.used {
            before.merge(&self.segments[at - 1]);
            let after = self.merged(at);
            if before.points() < SIDE_MIN || after.points() < SIDE_MIN {
                continue;
            }
            let two = before.residual() + after.residual();
            if best.is_none_or(|(least, _)| two < least) {
                best = Some((two, at));
            }
        }
        let Some((two, at)) = best else { return false };
        let ratio = (self.line.residual() + noise) / (two + noise);
        let probability = ratio.powf(-freedom / 2.0) * count(self.used);
        if probability >= SPLIT_PROBABILITY {
            return false;
        }
        self.line = self.merged(at);
        self.segments.copy_within(at..self.used, 0);
        self.used -= at;
        true
    }
}
