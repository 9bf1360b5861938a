//! Learners of one number from a row of numbers.

mod boost;
mod forest;
mod linear;
mod perceptron;
mod svr;
mod table;
mod tree;

use serde::{Deserialize, Serialize};

pub use boost::Boosted;
pub use forest::Forest;
pub use linear::Linear;
pub use perceptron::Perceptron;
pub use svr::Svr;
pub use table::{BadTable, ROWS_MAX, Table};

/// What can be learned with: those that MMK's Table IV compares, and Dyna-P's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Gradient-boosted regression trees (Dyna-P, eq. 5).
    Boosted,
    /// Random forest (MMK, §III-A).
    Forest,
    /// Multi-layer perceptron.
    Perceptron,
    /// Linear regression.
    Linear,
    /// Support vector regression.
    Svr,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Boosted, Self::Forest, Self::Perceptron, Self::Linear, Self::Svr];

    /// Returns its name as people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boosted => "gradient-boosted trees",
            Self::Forest => "random forest",
            Self::Perceptron => "multi-layer perceptron",
            Self::Linear => "linear regression",
            Self::Svr => "support vector regression",
        }
    }
}

/// A learned function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// Gradient-boosted regression trees.
    Boosted(Boosted),
    /// Random forest.
    Forest(Forest),
    /// Multi-layer perceptron.
    Perceptron(Perceptron),
    /// Linear regression.
    Linear(Linear),
    /// Support vector regression.
    Svr(Svr),
}

impl Model {
    /// Learns from a table; whatever is drawn comes from `seed`.
    pub fn learn(kind: Kind, table: &Table, seed: u64) -> Self {
        match kind {
            Kind::Boosted => Self::Boosted(Boosted::learn(table, seed)),
            Kind::Forest => Self::Forest(Forest::learn(table, seed)),
            Kind::Perceptron => Self::Perceptron(Perceptron::learn(table, seed)),
            Kind::Linear => Self::Linear(Linear::learn(table)),
            Kind::Svr => Self::Svr(Svr::learn(table)),
        }
    }

    /// Returns what it expects of a row with the columns that it learned from.
    pub fn predict(&self, row: &[f64]) -> f64 {
        match self {
            Self::Boosted(model) => model.predict(row),
            Self::Forest(model) => model.predict(row),
            Self::Perceptron(model) => model.predict(row),
            Self::Linear(model) => model.predict(row),
            Self::Svr(model) => model.predict(row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A curve with a corner and a product in it: what trees and networks can do, and lines can't.
    fn curve(rows: usize) -> Table {
        let mut chance = crate::number::Chance::new(7);
        let mut table = Table::new(3);
        for row in 0..rows {
            let x: Vec<f64> = (0..3).map(|_| chance.part()).collect();
            let y = 2.0 * x[0].max(0.5) + x[1] * x[2];
            let group = u64::try_from(row).unwrap();
            table.push(group, &x, y).unwrap();
        }
        table
    }

    fn error(kind: Kind) -> f64 {
        let table = curve(800);
        let (train, held_out) = table.split(200);
        let model = Model::learn(kind, &train, 1);
        let off = held_out.rows().map(|(x, y)| (model.predict(x) - y).abs());
        off.sum::<f64>() / crate::number::count(held_out.len())
    }

    #[test]
    fn every_learner_beats_the_mean_and_the_bent_ones_the_line() {
        // The mean alone is off by 0.27.
        let line = error(Kind::Linear);
        assert!(line < 0.15, "{line}");
        for kind in [Kind::Boosted, Kind::Forest, Kind::Perceptron, Kind::Svr] {
            let bent = error(kind);
            assert!(bent < line * 0.7, "{}: {bent}, the line {line}", kind.name());
        }
    }

    #[test]
    fn learning_twice_gives_the_same_model_and_it_survives_being_stored() {
        let table = curve(200);
        for kind in Kind::ALL {
            let model = Model::learn(kind, &table, 3);
            assert_eq!(model, Model::learn(kind, &table, 3), "{}", kind.name());
            let text = serde_json::to_string(&model).unwrap();
            let back: Model = serde_json::from_str(&text).unwrap();
            let row = [0.3, 0.6, 0.9];
            let off = (back.predict(&row) - model.predict(&row)).abs();
            assert!(off < 1e-9, "{}: {off}", kind.name());
        }
    }

    #[test]
    fn a_table_without_rows_teaches_zero_and_nothing_breaks() {
        for kind in Kind::ALL {
            let model = Model::learn(kind, &Table::new(3), 1);
            assert!(model.predict(&[1.0, 2.0, 3.0]).abs() < 1e-9, "{}", kind.name());
        }
    }
}
