//! The co-execution study's measurements of single jobs, and the pairs computed from them.
//!
//! Source: Villarrubia et al., arXiv 2604.22430, tables 2 (medium) and 5 (small), on an A30.

use tessera_model::number::clamped;
use tessera_placement::Demand;

use super::contention::{ContentionSharer, under_mig, under_mps};
use super::number::{count, float, whole};

/// One job alone on an A30.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationRow {
    /// The job as the calibration's source calls it.
    pub name: &'static str,
    /// Its time.
    pub seconds: f64,
    /// The average busy part of the multiprocessors, in percent.
    pub sm: f64,
    /// The same for memory bandwidth.
    pub memory: f64,
    /// Its energy.
    pub joules: f64,
    /// Its power.
    pub watts: f64,
}

const fn row(name: &'static str, [seconds, sm, memory, joules, watts]: [f64; 5]) -> CalibrationRow {
    CalibrationRow { name, seconds, sm, memory, joules, watts }
}

/// The medium jobs (table 2).
pub const MEDIUM: [CalibrationRow; 10] = [
    row("Sort", [5.16, 36.62, 24.60, 321.62, 62.33]),
    row("GUPS", [4.81, 17.31, 17.72, 337.18, 70.10]),
    row("KMeans", [5.31, 36.92, 23.92, 304.52, 57.35]),
    row("SRAD", [6.04, 38.14, 24.08, 367.29, 60.81]),
    row("GeMM", [5.74, 78.42, 7.87, 543.18, 94.63]),
    row("LavaMD", [6.21, 34.41, 0.61, 531.51, 85.59]),
    row("ResNet50", [5.36, 65.42, 25.10, 540.11, 100.77]),
    row("BERT", [5.30, 45.74, 10.76, 526.95, 99.42]),
    row("Enformer", [5.98, 81.23, 44.70, 599.21, 100.20]),
    row("PosEGNN", [5.11, 34.98, 12.47, 333.42, 65.25]),
];

/// The small jobs (table 5).
pub const SMALL: [CalibrationRow; 8] = [
    row("Sort", [2.84, 12.20, 9.42, 140.36, 49.42]),
    row("GUPS", [1.11, 7.18, 12.11, 52.28, 47.10]),
    row("KMeans", [0.53, 6.07, 8.22, 24.00, 45.28]),
    row("SRAD", [2.12, 8.87, 6.44, 92.12, 43.45]),
    row("GeMM", [2.54, 35.24, 1.20, 187.88, 73.97]),
    row("LavaMD", [0.24, 5.09, 0.51, 10.20, 42.50]),
    row("ResNet18", [2.16, 10.11, 2.21, 124.21, 57.50]),
    row("DistilBERT", [1.82, 12.52, 3.39, 83.56, 45.91]),
];

/// The medium jobs that are bound by memory.
pub const MEMORY_BOUND: [&str; 4] = ["Sort", "GUPS", "KMeans", "SRAD"];

/// Finds a medium job.
pub fn medium(name: &str) -> Option<CalibrationRow> {
    MEDIUM.into_iter().find(|row| row.name == name)
}

impl CalibrationRow {
    /// Returns its demands for the model of contention.
    pub fn demand(&self) -> Demand {
        let thousandths = |percent: f64| clamped(whole(percent * 10.0));
        Demand { sm: thousandths(self.sm), memory: thousandths(self.memory) }
    }

    /// Returns how much longer it takes on half of the GPU.
    pub fn on_a_half(&self) -> f64 {
        float(under_mig(self.demand(), 2, 4)) / 1_000.0
    }

    /// Returns it as a co-runner on the GPU.
    pub fn sharer(&self, cap: u8) -> ContentionSharer {
        ContentionSharer { demand: Some(self.demand()), cap }
    }
}

/// Returns the slow-down of each job when all share the GPU under MPS with these caps.
pub fn shared(rows: &[CalibrationRow], caps: &[u8]) -> Vec<f64> {
    let sharers: Vec<ContentionSharer> =
        rows.iter().zip(caps).map(|(row, cap)| row.sharer(*cap)).collect();
    under_mps(&sharers, 4, 4).into_iter().map(|slowed| float(slowed) / 1_000.0).collect()
}

/// Returns the time of all jobs at once relative to one after another (the study's `T_rel`).
pub fn t_rel(rows: &[CalibrationRow], slowed: &[f64]) -> f64 {
    let together = rows.iter().zip(slowed).map(|(row, slowed)| row.seconds * slowed);
    let alone: f64 = rows.iter().map(|row| row.seconds).sum();
    together.fold(0.0, f64::max) / alone
}

/// Returns the mean of some figures.
pub fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / count(figures.len().max(1))
}

/// Returns the standard deviation of some figures.
pub fn deviation(figures: &[f64]) -> f64 {
    let middle = mean(figures);
    let squares: Vec<f64> = figures.iter().map(|figure| (figure - middle).powi(2)).collect();
    mean(&squares).sqrt()
}
