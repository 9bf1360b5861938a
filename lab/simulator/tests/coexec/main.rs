//! The co-execution study (Villarrubia et al., arXiv 2604.22430) comes out of the models: its eight
//! rules, sentence by sentence, and what it prints, within 0.1.

mod printed;
mod rules;

use tessera_simulator::cluster::calibration::CalibrationRow;
use tessera_simulator::cluster::contention::{power_under_mps, under_mig};

/// Slow-down of a job on so many of an A30's four slices.
fn on_slices(row: CalibrationRow, slices: u8) -> f64 {
    ratio(under_mig(row.demand(), slices, 4))
}

fn ratio(thousandths: u64) -> f64 {
    f64::from(u32::try_from(thousandths).unwrap()) / 1_000.0
}

/// Power of jobs that share a GPU under MPS over that of the same one after another.
fn power(rows: &[CalibrationRow]) -> f64 {
    let sharers: Vec<_> = rows.iter().map(|row| row.sharer(100)).collect();
    ratio(power_under_mps(&sharers))
}

fn number(copies: usize) -> f64 {
    f64::from(u32::try_from(copies).unwrap())
}
