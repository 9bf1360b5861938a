//! Predicts how fast a job is with co-runners on one slice.
//!
//! Source: MMK, §III-A: random forest. Inputs are the job's class, its MPS percentage, its own use
//! of multiprocessors, memory bandwidth and L2, and the *contention features*. Those are the
//! co-runners' use of these three. An additional input is the partition's part of the GPU, since
//! the paper trains one forest for each partition size. Two more columns save a tree from building
//! them step by step: by how much a job's use exceeds its percentage, and the bandwidth that all
//! request.

use serde::{Deserialize, Serialize};
use tessera_predict::learn::{LearnerKind, RowError, TrainingTable};
use tessera_predict::{Prediction, TooFewRows, TrainedModel};

/// The busy part of a slice's resources, in thousandths; several jobs may request more than one
/// thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceUse {
    /// Streaming multiprocessors.
    pub sm: u32,
    /// Memory bandwidth.
    pub bandwidth: u32,
    /// L2 cache.
    pub l2: u32,
}

/// One job with its co-runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SharedJob {
    /// Whether it is an online job.
    pub online: bool,
    /// The slice's part of the GPU's compute, in thousandths.
    pub slice: u32,
    /// Its percentage of the slice's multiprocessors.
    pub sm_percent: u8,
    /// Its use alone.
    pub own: SliceUse,
    /// The sum of the co-runners' use.
    pub occupied: SliceUse,
    /// The number of co-runners.
    pub others: u8,
}

/// Columns of a row.
pub const COLUMNS: usize = 12;

impl SharedJob {
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

/// One measurement: a job with its co-runners, and its speed relative to that alone on the slice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSharing {
    /// The task; rows of one task are held out together.
    pub task: u64,
    /// Its co-runners.
    pub shared: SharedJob,
    /// Its speed, in thousandths of its speed alone on the slice.
    pub speed_per_mille: u32,
}

/// Predicts speeds under sharing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharingPredictor {
    /// The model with its version and error.
    pub trained: TrainedModel,
}

/// Puts measurements into a table.
///
/// # Errors
///
/// [`RowError`] never happens: every row has the same columns of finite numbers.
pub fn table(rows: &[MeasuredSharing]) -> Result<TrainingTable, RowError> {
    let mut table = TrainingTable::new(COLUMNS);
    for row in rows {
        table.push(row.task, &row.shared.row(), f64::from(row.speed_per_mille) / 1_000.0)?;
    }
    Ok(table)
}

impl SharingPredictor {
    /// Learns from measurements, with a random forest.
    ///
    /// # Errors
    ///
    /// [`TooFewRows`] rows.
    pub fn learn(rows: &[MeasuredSharing], seed: u64) -> Result<Self, TooFewRows> {
        let few = TooFewRows { rows: rows.len() };
        let table = table(rows).map_err(|_| few)?;
        Ok(Self { trained: TrainedModel::learn(LearnerKind::Forest, &table, seed)? })
    }

    /// Predicts a job's speed, in thousandths of its speed alone on the slice.
    pub fn predict(&self, shared: &SharedJob) -> Prediction {
        self.trained.predict_speed(&shared.row())
    }
}

#[cfg(test)]
mod tests {
    use tessera_predict::random::SeededRng;

    use super::*;

    #[test]
    fn co_runners_that_use_more_slow_more() {
        let mut rng = SeededRng::new(5);
        let mut draw = |below: u32| u32::try_from(rng.index_below(1_000)).unwrap() * below / 1_000;
        let rows: Vec<MeasuredSharing> = (0..1_400)
            .map(|task| {
                let own = SliceUse { sm: draw(900), bandwidth: draw(500), l2: draw(500) };
                let occupied = SliceUse { sm: draw(900), bandwidth: draw(500), l2: draw(500) };
                let shared = SharedJob {
                    online: false,
                    slice: 1_000,
                    sm_percent: 50,
                    own,
                    occupied,
                    others: 1,
                };
                let contended = own.bandwidth * occupied.bandwidth / 250;
                MeasuredSharing { task, shared, speed_per_mille: 1_000 - contended.min(600) }
            })
            .collect();
        let sharing = SharingPredictor::learn(&rows, 1).unwrap();
        assert!(sharing.trained.held_out.relative < 0.04, "{:?}", sharing.trained.held_out);
        let next_to = |bandwidth| {
            let own = SliceUse { sm: 400, bandwidth: 400, l2: 200 };
            let occupied = SliceUse { sm: 400, bandwidth, l2: 200 };
            SharedJob { online: false, slice: 1_000, sm_percent: 50, own, occupied, others: 1 }
        };
        let (quiet, loud) = (sharing.predict(&next_to(50)), sharing.predict(&next_to(450)));
        assert!(quiet.value > loud.value + 200, "{quiet:?} {loud:?}");
        assert!(quiet.low <= quiet.value && quiet.value <= quiet.high);
    }
}
