//! Reading a trace: every fault names its line and column.

use std::time::Duration;

use csv::{ReaderBuilder, StringRecord, Trim};
use tessera_model::GangShape;

/// One recorded job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the trace calls it.
    pub job_id: String,
    /// When it came, counted from the trace's own beginning.
    pub submit: Duration,
    /// How long it ran.
    pub duration: Duration,
    /// The share of a GPU's memory that it had, in millionths; absent where nothing is said.
    pub gpu_millionths: Option<u32>,
    /// `online` or `offline`.
    pub class: &'static str,
    /// Nodes, and GPUs of each, of a job over several.
    pub gang: Option<GangShape>,
}

/// A trace that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrace {
    /// A needed column is missing: add it.
    #[error("{file}: there is no column {column}; found {found}")]
    NoColumn {
        /// The file.
        file: String,
        /// The column.
        column: &'static str,
        /// Those that are there.
        found: String,
    },
    /// A line can't be split into columns: mend it.
    #[error("{file}:{line}: {why}")]
    BadLine {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// A value makes no sense: mend it.
    #[error("{file}:{line}: {column} is {value:?}; expected {expected}")]
    BadValue {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Nothing to replay.
    #[error("{file}: the trace has no jobs")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Longest time that makes sense in a trace, a hundred years: more is a unit mistaken.
const SECS_MAX: f64 = 3.2e9;
/// Longest name of a job that leaves room for the trace's own in a job's name.
const JOB_ID_MAX: usize = 64;
const SECS: &str = "seconds such as 90 or 1.5, not negative";
const COUNT: &str = "a whole number such as 2, or nothing for 1";
const GPUS: &str = "1 to 256 GPUs in all, nodes times gpus_per_node";
const FRACTION: &str = "a number above 0 and at most 1, with at most 6 decimals";

/// Reads a trace, in the order of arrival.
///
/// # Errors
///
/// [`BadTrace`] names the first fault with its line and column.
pub fn read(file: &str, text: &str) -> Result<Vec<Row>, BadTrace> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let bad_line = |bad: csv::Error| BadTrace::BadLine {
        file: file.to_owned(),
        line: bad.position().map_or(1, csv::Position::line),
        why: told(&bad),
    };
    let columns = Columns::find(file, reader.headers().map_err(bad_line)?)?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad_line)?;
        rows.push(columns.row(file, &record)?);
    }
    if rows.is_empty() {
        return Err(BadTrace::Empty { file: file.to_owned() });
    }
    // Stable: jobs that came in the same second stay in the trace's order.
    rows.sort_by_key(|row| row.submit);
    Ok(rows)
}

fn told(bad: &csv::Error) -> String {
    match bad.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} columns, but the headings are {expected_len}")
        }
        _ => bad.to_string(),
    }
}

/// Where the columns are.
struct Columns {
    job_id: usize,
    submit: usize,
    duration: usize,
    fraction: Option<usize>,
    class: Option<usize>,
    nodes: Option<usize>,
    gpus_per_node: Option<usize>,
}

impl Columns {
    fn find(file: &str, headings: &StringRecord) -> Result<Self, BadTrace> {
        let place = |name: &str| headings.iter().position(|heading| heading == name);
        let needed = |column: &'static str| {
            place(column).ok_or_else(|| BadTrace::NoColumn {
                file: file.to_owned(),
                column,
                found: headings.iter().collect::<Vec<_>>().join(", "),
            })
        };
        Ok(Self {
            job_id: needed("job_id")?,
            submit: needed("submit_s")?,
            duration: needed("duration_s")?,
            fraction: place("gpu_fraction"),
            class: place("class"),
            nodes: place("nodes"),
            gpus_per_node: place("gpus_per_node"),
        })
    }

    fn row(&self, file: &str, record: &StringRecord) -> Result<Row, BadTrace> {
        let text = |index: usize| record.get(index).unwrap_or_default();
        let bad = |column, index, expected| BadTrace::BadValue {
            file: file.to_owned(),
            line: record.position().map_or(1, csv::Position::line),
            column,
            value: text(index).to_owned(),
            expected,
        };
        let secs = |column, index| span(text(index)).ok_or_else(|| bad(column, index, SECS));
        let job_id = Some(text(self.job_id)).filter(|id| is_name(id));
        let job_id = job_id.ok_or_else(|| {
            bad("job_id", self.job_id, "1 to 64 characters without control characters")
        })?;
        let gpu_millionths = match self.fraction.filter(|index| !text(*index).is_empty()) {
            None => None,
            Some(index) => {
                Some(millionths(text(index)).ok_or_else(|| bad("gpu_fraction", index, FRACTION))?)
            }
        };
        let class = match self.class.map(|index| (index, text(index))) {
            Some((_, "online")) => "online",
            None | Some((_, "" | "offline" | "burstable")) => "offline",
            Some((index, _)) => {
                return Err(bad("class", index, "online, offline or burstable"));
            }
        };
        let number = |column, index: Option<usize>| {
            let Some(index) = index.filter(|index| !text(*index).is_empty()) else { return Ok(1) };
            text(index).parse::<u32>().map_err(|_| bad(column, index, COUNT))
        };
        let nodes = number("nodes", self.nodes)?;
        let per_node = number("gpus_per_node", self.gpus_per_node)?;
        let gang = match (nodes, per_node) {
            (1, 1) => None,
            _ => Some(GangShape::new(nodes, per_node).map_err(|_| {
                let column = if per_node == 1 { "nodes" } else { "gpus_per_node" };
                let index = if per_node == 1 { self.nodes } else { self.gpus_per_node };
                bad(column, index.unwrap_or_default(), GPUS)
            })?),
        };
        Ok(Row {
            gang,
            job_id: job_id.to_owned(),
            submit: secs("submit_s", self.submit)?,
            duration: secs("duration_s", self.duration)?,
            gpu_millionths,
            class,
        })
    }
}

fn is_name(text: &str) -> bool {
    (1..=JOB_ID_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn span(text: &str) -> Option<Duration> {
    let secs: f64 = text.parse().ok()?;
    (0.0..=SECS_MAX).contains(&secs).then(|| Duration::from_secs_f64(secs))
}

/// Reads a decimal above 0 and at most 1 exactly.
fn millionths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(decimals) || decimals.len() > 6 {
        return None;
    }
    let whole: u32 = whole.parse().ok()?;
    let decimals: u32 = format!("{decimals:0<6}").parse().ok()?;
    let sum = whole.checked_mul(1_000_000)?.checked_add(decimals)?;
    (1..=1_000_000).contains(&sum).then_some(sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_trace_is_read_in_the_order_of_arrival() {
        let text = "submit_s,job_id,duration_s,gpu_fraction,class,model\n\
                    20,b,5,0.46,online,X\n\
                    10.5,a,2,,burstable,Y\n";

        let rows = read("t.csv", text).unwrap();

        let [a, b] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((a.job_id.as_str(), a.class, a.gpu_millionths), ("a", "offline", None));
        assert_eq!(a.submit, Duration::from_millis(10_500));
        assert_eq!((b.job_id.as_str(), b.class, b.gpu_millionths), ("b", "online", Some(460_000)));
    }

    #[test]
    fn every_fault_names_its_line_and_column() {
        let head = "job_id,submit_s,duration_s,gpu_fraction,class\n1,0,1,1.0,online\n";
        for (line, expected) in [
            ("2,x,1,1.0,online", "t.csv:3: submit_s is \"x\"; expected seconds"),
            ("2,0,-1,1.0,online", "t.csv:3: duration_s is \"-1\""),
            ("2,0,1e300,1.0,online", "duration_s is \"1e300\""),
            ("2,0,NaN,1.0,online", "duration_s is \"NaN\""),
            ("2,0,1,1.5,online", "t.csv:3: gpu_fraction is \"1.5\"; expected a number above 0"),
            ("2,0,1,0,online", "gpu_fraction is \"0\""),
            ("2,0,1,1.0,batch", "t.csv:3: class is \"batch\"; expected online, offline"),
            (",0,1,1.0,online", "t.csv:3: job_id is \"\""),
            ("2,0,1", "t.csv:3: 3 columns, but the headings are 5"),
        ] {
            let refused = read("t.csv", &format!("{head}{line}\n")).unwrap_err().to_string();

            assert!(refused.contains(expected), "{line}: {refused}");
        }
    }

    #[test]
    fn a_job_over_several_gpus_is_a_gang_and_a_shape_that_is_none_is_told() {
        let head = "job_id,submit_s,duration_s,nodes,gpus_per_node\n";
        let rows = read("t.csv", &format!("{head}1,0,1,2,4\n2,0,1,,\n3,0,1,1,2\n")).unwrap();

        let shapes: Vec<_> = rows.iter().map(|row| row.gang).collect();
        assert_eq!(shapes, [GangShape::new(2, 4).ok(), None, GangShape::new(1, 2).ok()]);
        for (line, expected) in [
            ("1,0,1,two,1", "t.csv:2: nodes is \"two\"; expected a whole number"),
            ("1,0,1,0,2", "t.csv:2: gpus_per_node is \"2\"; expected 1 to"),
            ("1,0,1,9999,2", "expected 1 to"),
        ] {
            let refused = read("t.csv", &format!("{head}{line}\n")).unwrap_err().to_string();
            assert!(refused.contains(expected), "{line}: {refused}");
        }
    }

    #[test]
    fn a_missing_column_and_an_empty_trace_are_told() {
        let missing = read("t.csv", "job_id,duration_s\n1,2\n").unwrap_err().to_string();
        let empty = read("t.csv", "job_id,submit_s,duration_s\n").unwrap_err().to_string();

        assert_eq!(missing, "t.csv: there is no column submit_s; found job_id, duration_s");
        assert_eq!(empty, "t.csv: the trace has no jobs");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(job_id,submit_s,duration_s,gpu_fraction\n)?(.{0,30}\n){0,5}") {
            let _ = read("t.csv", &text);
        }

        #[test]
        fn fractions_are_exact(given in 1_u32..=1_000_000) {
            let text = format!("{}.{:06}", given / 1_000_000, given % 1_000_000);

            prop_assert_eq!(millionths(&text), Some(given));
        }
    }
}
