//! How fast a job is beside others on one slice.
//!
//! Source: MMK, §III-A: random forest; inputs are the job's class, its MPS percentage, its own use
//! of multiprocessors, memory bandwidth and L2, and the *contention features*: what of the three
//! the others of its partition use. The part of the GPU that the partition is comes on top: the
//! paper trains one forest a partition size. So do two columns that a tree would have to build
//! from the others step by step: how far a job's use exceeds its percentage, and the bandwidth
//! that all ask for.

pub mod seen;

use serde::{Deserialize, Serialize};

use crate::learn::{BadTable, Kind, Table};
use crate::number::whole;
use crate::outcome::{Prediction, Quantity, Source};
use crate::trained::{TooFew, Trained};

/// What is kept busy of a slice, in thousandths; several jobs may ask for more than one thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Use {
    /// Streaming multiprocessors.
    pub sm: u32,
    /// Memory bandwidth.
    pub bandwidth: u32,
    /// L2 cache.
    pub l2: u32,
}

/// One job beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Beside {
    /// Whether somebody waits for its answers.
    pub online: bool,
    /// The slice's part of the GPU's compute, in thousandths.
    pub slice: u32,
    /// Its percentage of the slice's multiprocessors.
    pub sm_percent: u8,
    /// What it uses alone.
    pub own: Use,
    /// What the others use, added up.
    pub occupied: Use,
    /// How many the others are.
    pub others: u8,
}

/// Columns of a row.
pub const COLUMNS: usize = 12;

impl Beside {
    /// Returns the row that is learned from.
    pub fn row(&self) -> [f64; COLUMNS] {
        [
            f64::from(u8::from(self.online)),
            f64::from(self.slice),
            f64::from(self.sm_percent),
            f64::from(self.own.sm),
            f64::from(self.own.bandwidth),
            f64::from(self.own.l2),
            f64::from(self.occupied.sm),
            f64::from(self.occupied.bandwidth),
            f64::from(self.occupied.l2),
            f64::from(self.others),
            (f64::from(self.own.sm) / (f64::from(self.sm_percent.max(1)) * 10.0)).max(1.0).ln(),
            f64::from(self.own.bandwidth.saturating_add(self.occupied.bandwidth)),
        ]
    }
}

/// What was measured: a job beside others, and its speed over that alone on the slice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which task: rows of one are held out together.
    pub task: u64,
    /// Beside whom.
    pub beside: Beside,
    /// Its speed, in thousandths of that alone on the slice.
    pub speed_per_mille: u32,
}

/// Predicts speeds under sharing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// The model with its version and error.
    pub trained: Trained,
}

/// Puts measurements into a table.
///
/// # Errors
///
/// [`BadTable`] never happens: every row has the same columns of finite numbers.
pub fn table(rows: &[Measured]) -> Result<Table, BadTable> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        table.push(row.task, &row.beside.row(), f64::from(row.speed_per_mille) / 1_000.0)?;
    }
    Ok(table)
}

impl Sharing {
    /// Learns from measurements, with a random forest.
    ///
    /// # Errors
    ///
    /// [`TooFew`] rows.
    pub fn learn(rows: &[Measured], seed: u64) -> Result<Self, TooFew> {
        let few = TooFew { rows: rows.len() };
        let table = table(rows).map_err(|_| few)?;
        Ok(Self { trained: Trained::learn(Kind::Forest, &table, seed)? })
    }

    /// Predicts a job's speed, in thousandths of that alone on the slice.
    pub fn predict(&self, beside: &Beside) -> Prediction {
        speed(&self.trained, &beside.row())
    }
}

/// Predicts a speed in thousandths by a model of parts of one: nobody stands still for company, and
/// nobody is quicker for it.
fn speed(trained: &Trained, row: &[f64]) -> Prediction {
    let [low, value, high] = trained.predict(row).map(|end| whole(end.clamp(0.001, 1.0) * 1_000.0));
    Prediction {
        quantity: Quantity::SpeedPerMille,
        value,
        low,
        high,
        source: Source::Learned,
        model: trained.version.fingerprint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Chance;

    #[test]
    fn company_that_uses_more_slows_more() {
        let mut chance = Chance::new(5);
        let mut draw = |below: u32| u32::try_from(chance.below(1_000)).unwrap() * below / 1_000;
        let rows: Vec<Measured> = (0..1_400)
            .map(|task| {
                let own = Use { sm: draw(900), bandwidth: draw(500), l2: draw(500) };
                let occupied = Use { sm: draw(900), bandwidth: draw(500), l2: draw(500) };
                let beside = Beside {
                    online: false,
                    slice: 1_000,
                    sm_percent: 50,
                    own,
                    occupied,
                    others: 1,
                };
                let contended = own.bandwidth * occupied.bandwidth / 250;
                Measured { task, beside, speed_per_mille: 1_000 - contended.min(600) }
            })
            .collect();
        let sharing = Sharing::learn(&rows, 1).unwrap();
        assert!(sharing.trained.held_out.relative < 0.04, "{:?}", sharing.trained.held_out);
        let beside = |bandwidth| {
            let own = Use { sm: 400, bandwidth: 400, l2: 200 };
            let occupied = Use { sm: 400, bandwidth, l2: 200 };
            Beside { online: false, slice: 1_000, sm_percent: 50, own, occupied, others: 1 }
        };
        let (quiet, loud) = (sharing.predict(&beside(50)), sharing.predict(&beside(450)));
        assert!(quiet.value > loud.value + 200, "{quiet:?} {loud:?}");
        assert!(quiet.low <= quiet.value && quiet.value <= quiet.high);
    }
}
