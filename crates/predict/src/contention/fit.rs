//! Fits the model to measurements of equal processes: the speeds of each task next to one to four copies of itself.
//!
//! Both parameters are whole numbers on a grid, and that with the least mean error of the speeds' logarithms is taken.
//! So a fit gives the same model on every machine.

use std::collections::BTreeMap;

use super::public::MpsRow;
use super::{ContentionModel, load_of_speeds, regime, slow_down};
use crate::number::{float, whole};
use crate::trained::conformal_quantile;
use tessera_model::number::clamped;

/// The part of unseen outcomes that an interval should hold.
pub const COVERED: f64 = 0.9;

const EXPONENTS: std::ops::RangeInclusive<u16> = 6..=24;
const EXPONENT_STEP: u16 = 25;
const UNSEEN_LOADS: std::ops::RangeInclusive<u16> = 30..=90;
const UNSEEN_LOAD_STEP: u16 = 10;

/// A measured speed next to copies of the same task.
#[derive(Clone, Debug, PartialEq)]
pub struct CopiesRow<'d> {
    /// Name of the inference model that was measured.
    pub model: &'d str,
    /// Name of the family of such models.
    pub family: &'d str,
    /// Requests in one batch. A task is a model with a batch.
    pub batch: u32,
    /// The instance's compute slices.
    pub slices: u8,
    /// How many processes share the instance.
    pub processes: u8,
    /// The speed of each, relative to that alone on the instance.
    pub speed: f64,
    /// The task's speeds alone on each measured instance, in rising order of their sizes.
    alone: Vec<(u8, f64)>,
}

/// Returns the speeds next to copies of each task whose speed alone was measured on two sizes of instances or more.
pub fn rows_of_copies<'d>(rows: &[MpsRow<'d>]) -> Vec<CopiesRow<'d>> {
    let mut alone: BTreeMap<(&str, u32), BTreeMap<u8, f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.processes == 1) {
        alone.entry((row.model, row.batch)).or_default().insert(row.slices, row.rate);
    }
    let of = |row: &MpsRow<'d>| {
        let alone = alone.get(&(row.model, row.batch)).filter(|sizes| sizes.len() > 1)?;
        let here = alone.get(&row.slices)?;
        Some(CopiesRow {
            model: row.model,
            family: row.family(),
            batch: row.batch,
            slices: row.slices,
            processes: row.processes,
            speed: row.rate / here,
            alone: alone.iter().map(|(slices, rate)| (*slices, *rate)).collect(),
        })
    };
    rows.iter().filter(|row| row.processes > 1).filter_map(of).collect()
}

impl CopiesRow<'_> {
    /// Returns the task's load on this instance.
    pub fn load(&self, model: &ContentionModel) -> Option<u16> {
        load_of_speeds(model, &self.alone, self.slices)
    }

    /// Returns the logarithm of the measured speed over the predicted one, and the regime of the task's load.
    pub(super) fn residual(&self, model: &ContentionModel) -> Option<(f64, usize)> {
        let load = self.load(model)?;
        let mine = float(u64::from(load)) / 1_000.0;
        let exponent = float(u64::from(model.exponent)) / 100.0;
        let slowed = slow_down(exponent, mine, mine * f64::from(self.processes));
        Some(((self.speed * slowed).ln(), regime(load)))
    }
}

/// The errors of every model on the grid, by the model that was measured, so that fits without some of them are sums.
#[derive(Clone, Debug)]
pub struct ErrorTable<'r, 'd> {
    rows: &'r [CopiesRow<'d>],
    /// The models on the grid, each with the sum of its errors over each task.
    grid: Vec<(ContentionModel, TaskErrors<'d>)>,
}

/// Sums of errors by the measured model and its batch size.
type TaskErrors<'d> = BTreeMap<(&'d str, u32), f64>;

impl<'r, 'd> ErrorTable<'r, 'd> {
    /// Computes the errors on these rows.
    pub fn new(rows: &'r [CopiesRow<'d>]) -> Self {
        let models = UNSEEN_LOADS.flat_map(|load| {
            EXPONENTS.map(move |exponent| ContentionModel {
                exponent: exponent * EXPONENT_STEP,
                unseen_load: load * UNSEEN_LOAD_STEP,
                margins: [0; 3],
            })
        });
        let errors = |model: ContentionModel| {
            let mut sums = BTreeMap::new();
            for row in rows {
                let error = row.residual(&model).map_or(0.0, |(residual, _)| residual.abs());
                *sums.entry((row.model, row.batch)).or_insert(0.0) += error;
            }
            (model, sums)
        };
        Self { rows, grid: models.map(errors).collect() }
    }

    /// Returns the rows.
    pub const fn rows(&self) -> &'r [CopiesRow<'d>] {
        self.rows
    }

    /// Returns the model with the least error on the tasks that are kept, without margins.
    fn best(&self, keeps: &dyn Fn(&str, u32) -> bool) -> ContentionModel {
        let error = |sums: &BTreeMap<(&str, u32), f64>| {
            let kept = sums.iter().filter(|((model, batch), _)| keeps(model, *batch));
            kept.map(|(_, error)| error).sum::<f64>()
        };
        let errors = self.grid.iter().map(|(model, sums)| (model, error(sums)));
        // Of equal errors the first one is taken.
        let best = errors.reduce(|best, next| if next.1 < best.1 { next } else { best });
        best.map_or(ContentionModel::A100, |(model, _)| *model)
    }

    /// Fits the model to the tasks that are kept. Its margins hold the errors on tasks that a fit has not seen: each
    /// measured model is left out once.
    pub fn fit(&self, keeps: &dyn Fn(&str, u32) -> bool) -> ContentionModel {
        let fitted = self.best(keeps);
        let mut models: Vec<&str> = self.rows.iter().map(|row| row.model).collect();
        models.sort_unstable();
        models.dedup();
        let mut off: [Vec<f64>; 3] = [const { Vec::new() }; 3];
        for left_out in models {
            let without = self.best(&|model, batch| model != left_out && keeps(model, batch));
            let tested = self.rows.iter().filter(|row| row.model == left_out);
            for row in tested.filter(|row| keeps(row.model, row.batch)) {
                let Some((residual, regime)) = row.residual(&without) else { continue };
                off[regime].push(residual.abs());
            }
        }
        let margins = off.map(|figures| {
            clamped(whole(conformal_quantile(figures.into_iter(), COVERED) * 1_000.0))
        });
        ContentionModel { margins, ..fitted }
    }
}

/// Fits the model to all rows.
pub fn fit(rows: &[CopiesRow<'_>]) -> ContentionModel {
    ErrorTable::new(rows).fit(&|_, _| true)
}
