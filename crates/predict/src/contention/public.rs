//! Public measurements of jobs under MPS, with a licence that permits their use.

use std::collections::BTreeSet;

/// Throughput of 11 inference models on instances of an A100-80GB, by batch and by number of processes under MPS, as
/// the ParvaGPU project measured them. Source and licence are in `data/README.md`.
pub const PARVAGPU: &str = include_str!("../../data/parvagpu.csv");

const HEADER: &str = "model,mig_slices,batch,mps_procs,throughput_req_s,latency_s";

/// Processes of one model and batch on one instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MpsRow<'d> {
    /// Name of the inference model that was measured.
    pub model: &'d str,
    /// The instance's compute slices.
    pub slices: u8,
    /// Requests in one batch.
    pub batch: u32,
    /// The number of processes.
    pub processes: u8,
    /// Requests per second of each of them.
    pub rate: f64,
}

/// Why measurements can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpsRowError {
    /// The first line names other columns.
    #[error("the first line is not `{HEADER}`")]
    Header,
    /// A line has too many or too few cells, or one is not a number in its range.
    #[error("line {line}: {cell} is missing or out of range")]
    Cell {
        /// The number of the line, from 1.
        line: usize,
        /// The column.
        cell: &'static str,
    },
    /// Two lines measure the same.
    #[error("line {line} repeats another line's model, instance, batch and processes")]
    Repeated {
        /// The number of the line, from 1.
        line: usize,
    },
}

/// Reads measurements.
///
/// # Errors
///
/// [`MpsRowError`] names the line.
pub fn read_mps_rows(text: &str) -> Result<Vec<MpsRow<'_>>, MpsRowError> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(MpsRowError::Header);
    }
    let mut seen = BTreeSet::new();
    let mut rows = Vec::new();
    for (line, text) in (2..).zip(lines) {
        let row = read_row(line, text)?;
        if !seen.insert((row.model, row.slices, row.batch, row.processes)) {
            return Err(MpsRowError::Repeated { line });
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Reads the line with this number; an error names the first cell that is wrong.
fn read_row(line: usize, text: &str) -> Result<MpsRow<'_>, MpsRowError> {
    let wrong = |cell| MpsRowError::Cell { line, cell };
    let mut cells = text.split(',');
    let mut next = |name| cells.next().filter(|cell| !cell.is_empty()).ok_or(wrong(name));
    let row = MpsRow {
        model: next("model")?,
        slices: next("mig_slices")?.parse().map_err(|_| wrong("mig_slices"))?,
        batch: next("batch")?.parse().map_err(|_| wrong("batch"))?,
        processes: next("mps_procs")?.parse().map_err(|_| wrong("mps_procs"))?,
        rate: next("throughput_req_s")?.parse().map_err(|_| wrong("throughput_req_s"))?,
    };
    next("latency_s")?.parse::<f64>().map_err(|_| wrong("latency_s"))?;
    match row {
        _ if next("").is_ok() => Err(wrong("the end of the line")),
        MpsRow { slices: 0 | 8.., .. } => Err(wrong("mig_slices")),
        MpsRow { batch: 0, .. } => Err(wrong("batch")),
        MpsRow { processes: 0, .. } => Err(wrong("mps_procs")),
        row if row.rate.is_finite() && row.rate > 0.0 => Ok(row),
        _ => Err(wrong("throughput_req_s")),
    }
}

impl<'d> MpsRow<'d> {
    /// Returns the model's family: its name without its size.
    pub fn family(&self) -> &'d str {
        self.model.trim_end_matches(|digit: char| digit.is_ascii_digit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_public_measurement_is_read() {
        let rows = read_mps_rows(PARVAGPU).unwrap();

        assert_eq!(rows.len(), 1_747);
        let first = MpsRow { model: "bert", slices: 1, batch: 1, processes: 1, rate: 74.408 };
        assert_eq!(rows[0], first);
        let names = |of: fn(&MpsRow<'static>) -> String| {
            rows.iter().map(of).collect::<BTreeSet<String>>().len()
        };
        assert_eq!(names(|row| row.model.to_owned()), 11);
        assert_eq!(names(|row| row.family().to_owned()), 6);
    }

    #[test]
    fn a_broken_line_is_refused_with_its_number_and_cell() {
        let read = |lines: &str| read_mps_rows(&format!("{HEADER}\n{lines}")).unwrap_err();
        assert_eq!(read_mps_rows("model,batch").unwrap_err(), MpsRowError::Header);
        for (bad, cell) in [
            ("bert,1,1,1,7.5", "latency_s"),
            ("bert,1,1,1,7.5,0.1,9", "the end of the line"),
            (",1,1,1,7.5,0.1", "model"),
            ("bert,8,1,1,7.5,0.1", "mig_slices"),
            ("bert,1,0,1,7.5,0.1", "batch"),
            ("bert,1,1,0,7.5,0.1", "mps_procs"),
            ("bert,1,1,1,0,0.1", "throughput_req_s"),
            ("bert,1,1,1,NaN,0.1", "throughput_req_s"),
            ("bert,1,1,1,7.5,soon", "latency_s"),
        ] {
            let good = "bert,1,1,2,5.5,0.2";
            let refused = read(&format!("{good}\n{bad}"));
            assert_eq!(refused, MpsRowError::Cell { line: 3, cell }, "{bad}");
        }
        let twice = "bert,1,1,1,7.5,0.1\nbert,1,1,1,7.4,0.1";
        assert_eq!(read(twice), MpsRowError::Repeated { line: 3 });
    }
}
