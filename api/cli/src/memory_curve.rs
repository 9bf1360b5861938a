//! The GPU memory of an attempt as text: its curve, the predicted band, and the sizes of slices.

use std::fmt::Write as _;

use tessera_api_types::{AttemptMemoryView, GrowthView, JobMemory};
use tessera_model::Bytes;

use super::span::Elapsed;

/// Lines of a drawing.
const ROWS: u64 = 10;
/// Columns of a curve with its band.
const COLUMNS: usize = 64;

/// One column of a drawing: the range of memory that it shows, and how it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column {
    low: u64,
    high: u64,
    sign: char,
}

/// Draws all attempts of a job.
pub fn draw(memory: &JobMemory) -> String {
    if memory.attempts.is_empty() {
        return "its GPU memory over time is not known\n".to_owned();
    }
    memory.attempts.iter().map(|attempt| draw_attempt(attempt, &memory.sizes_bytes)).collect()
}

/// Draws the newest attempt, if it was observed for a while.
pub fn newest(memory: &JobMemory) -> String {
    let newest = memory.attempts.last().filter(|attempt| attempt.points.len() > 1);
    newest.map(|attempt| draw_attempt(attempt, &memory.sizes_bytes)).unwrap_or_default()
}

fn draw_attempt(attempt: &AttemptMemoryView, sizes: &[u64]) -> String {
    let columns = columns(attempt);
    let most = columns.iter().map(|column| column.high).max().unwrap_or(0);
    let top = most.max(attempt.capacity_bytes).max(1);
    let by = observer(&attempt.unit);
    let mut text =
        format!("\nattempt {}: GPU memory over {}, by {by}\n", attempt.number, attempt.unit);
    for row in (0..ROWS).rev() {
        let (bottom, ceiling) = (level(top, row), level(top, row + 1));
        let drawn: String = columns.iter().map(|column| sign(*column, bottom, ceiling)).collect();
        let of_row = |bytes: &u64| bottom < *bytes && *bytes <= ceiling;
        let label = match sizes.iter().chain([&attempt.capacity_bytes]).rfind(|size| of_row(size)) {
            Some(size) => size_label(*size, attempt.capacity_bytes),
            None => String::new(),
        };
        let rule = if label.is_empty() { ' ' } else { '-' };
        let drawn = drawn.replace(' ', &rule.to_string());
        let line = format!("{drawn:<COLUMNS$} {label}");
        let _ = writeln!(text, "|{}", line.trim_end());
    }
    let first = attempt.points.first().map_or(0, |point| point.position);
    let last = attempt.band.last().map(|point| point.position);
    let last = last.or(attempt.points.last().map(|point| point.position)).unwrap_or(0);
    let _ = writeln!(text, "+{} {first} to {last} {}", "-".repeat(columns.len()), attempt.unit);
    for line in notes(attempt) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Names what observed the memory: only the companion counts iterations.
fn observer(unit: &str) -> &'static str {
    match unit {
        "iterations" => "the companion",
        _ => "the driver (NVML)",
    }
}

/// Returns the lower bound of a row of the drawing.
fn level(top: u64, row: u64) -> u64 {
    tessera_model::number::clamped(u128::from(top) * u128::from(row) / u128::from(ROWS))
}

fn sign(column: Column, bottom: u64, ceiling: u64) -> char {
    let is_within = column.high > bottom && column.low < ceiling;
    if is_within { column.sign } else { ' ' }
}

fn size_label(size: u64, capacity: u64) -> String {
    match size == capacity {
        true => format!("{} (its slice)", Bytes::new(size)),
        false => Bytes::new(size).to_string(),
    }
}

/// Returns the columns: the curve is filled from below, and the band between its bounds.
fn columns(attempt: &AttemptMemoryView) -> Vec<Column> {
    let curve = attempt.points.iter().map(|p| Column { low: 0, high: p.used_bytes, sign: '#' });
    let band = attempt.band.iter();
    let band = band.map(|p| Column { low: p.low_bytes, high: p.high_bytes, sign: ':' });
    let mut columns: Vec<Column> = curve.collect();
    // Points stand for equal numbers of readings, which is enough for a chart.
    while columns.len() + attempt.band.len() > COLUMNS && columns.len() > 1 {
        let pairs = columns.chunks(2);
        let larger = pairs.filter_map(|pair| pair.iter().copied().max_by_key(|c| c.high));
        columns = larger.collect();
    }
    columns.extend(band);
    columns
}

/// Describes the prediction and its outcome.
fn notes(attempt: &AttemptMemoryView) -> Vec<String> {
    let mut notes = Vec::new();
    if attempt.preallocated {
        notes.push("a framework reserves memory in advance: nothing is predicted".to_owned());
    }
    if let Some(forecast) = &attempt.forecast {
        notes.push(forecast_text(attempt, forecast));
    }
    if attempt.moved {
        notes.push("moved to a larger slice because of this prediction".to_owned());
    }
    let outcome = attempt.outcome.as_deref().map(|outcome| match outcome {
        "true" => "the prediction was right: it needed more",
        "false" => "the prediction was wrong: it did not need more",
        "missed" => "it ran out of memory without a prediction",
        _ => "it ran out of memory before it could be moved",
    });
    notes.extend(outcome.map(str::to_owned));
    notes
}

fn forecast_text(attempt: &AttemptMemoryView, forecast: &GrowthView) -> String {
    let capacity = Bytes::new(attempt.capacity_bytes);
    let unit = &attempt.unit;
    let seconds = std::time::Duration::try_from_secs_f64(forecast.after_secs).unwrap_or_default();
    let after = Elapsed(seconds.as_secs());
    let peak = forecast.peak.map(|peak| {
        let [low, value, high] =
            [peak.low_bytes, peak.value_bytes, peak.high_bytes].map(Bytes::new);
        format!("; at its end it needs {value} ({low} to {high} with 99 %)")
    });
    format!(
        "predicted to exceed {capacity} after {} {unit} (at the earliest {}), {after} after {} {unit}{}",
        forecast.crossing,
        forecast.earliest,
        forecast.position,
        peak.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use tessera_api_types::{MemoryBandView, MemoryPointView};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn growing() -> JobMemory {
        let point = |position: u64| MemoryPointView { position, used_bytes: position * GIB / 10 };
        let band = |position: u64| MemoryBandView {
            position,
            low_bytes: position * GIB / 10 - GIB / 5,
            value_bytes: position * GIB / 10,
            high_bytes: position * GIB / 10 + GIB / 5,
        };
        JobMemory {
            job_id: 7,
            sizes_bytes: vec![5 * GIB, 10 * GIB, 20 * GIB],
            attempts: vec![AttemptMemoryView {
                number: 1,
                id: "att_1".to_owned(),
                capacity_bytes: 5 * GIB,
                unit: "iterations".to_owned(),
                memory_prediction: Some("act".to_owned()),
                preallocated: false,
                moved: true,
                points: (1..=30).map(point).collect(),
                forecast: Some(GrowthView {
                    position: 30,
                    used_bytes: 3 * GIB,
                    crossing: 50,
                    earliest: 48,
                    after_secs: 40.0,
                    peak: None,
                }),
                band: (31..=38).map(|at| band(at * 50 / 38)).collect(),
                outcome: Some("true".to_owned()),
            }],
        }
    }

    #[test]
    fn a_curve_is_drawn_with_its_band_and_the_sizes_of_slices() {
        let text = newest(&growing());

        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("attempt 1: GPU memory over iterations"), "{text}");
        assert!(lines[2].contains("::") && !lines[2].contains('#'), "{text}");
        assert!(lines[11].starts_with("|##"), "{text}");
        assert!(lines[12].ends_with("1 to 50 iterations"), "{text}");
        assert!(text.contains("5 GiB (its slice)") && !text.contains(" 10 GiB"), "{text}");
        assert!(
            text.contains("predicted to exceed 5 GiB after 50 iterations (at the earliest 48)"),
            "{text}"
        );
        assert!(text.contains("moved to a larger slice") && text.contains("was right"), "{text}");
    }

    #[test]
    fn an_attempt_without_a_curve_is_no_picture() {
        let mut memory = growing();
        memory.attempts[0].points.clear();

        assert_eq!(newest(&memory), "");
        memory.attempts.clear();
        assert!(
            draw(&memory).starts_with("its GPU memory over time is not known"),
            "{}",
            draw(&memory)
        );
    }
}
