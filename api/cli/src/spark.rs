//! Figures over time in one line of text.

use tessera_api_types::SeriesPoint;
use tessera_model::number::clamped;
use tessera_simulator::cluster::number::float;

/// From the lowest to the highest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the newest `width` values, scaled from 0 to `top`. Missing values are blanks.
pub fn line(values: &[Option<f64>], top: f64, width: usize) -> String {
    let newest = values.len().saturating_sub(width);
    let drawn: String =
        values[newest..].iter().map(|value| value.map_or(' ', |v| level(v, top))).collect();
    format!("{drawn:>width$}")
}

/// Returns the bar character for a value.
fn level(value: f64, top: f64) -> char {
    let thresholds =
        LEVELS.iter().zip([0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, f64::INFINITY]);
    let share = if top > 0.0 { value / top } else { 0.0 };
    let found = thresholds.into_iter().find(|(_, below)| share < *below);
    found.map_or(LEVELS[0], |(sign, _)| *sign)
}

/// Reads one figure of all points, with a blank for each step without a report.
pub fn figure(
    points: &[SeriesPoint],
    step_secs: u64,
    read: impl Fn(&SeriesPoint) -> Option<f64>,
) -> Vec<Option<f64>> {
    // A step that no time can hold leaves no gap between two points.
    let step: i64 = clamped(step_secs.max(1));
    let mut values = Vec::new();
    let mut before: Option<i64> = None;
    for point in points {
        let at = point.at.unix_timestamp();
        let missing = before.map_or(0, |before| (at - before) / step - 1).clamp(0, GAP_MAX);
        values.extend((0..missing).map(|_| None));
        values.push(read(point));
        before = Some(at);
    }
    values
}

/// Longest gap that is drawn: wider than any terminal.
const GAP_MAX: i64 = 1_000;

/// Returns bytes as a number that can be drawn: whole mebibytes.
pub fn bytes(bytes: u64) -> f64 {
    float(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn a_line_rises_with_its_values_and_leaves_gaps_blank() {
        let values = [Some(0.0), Some(0.5), None, Some(1.0)];

        assert_eq!(line(&values, 1.0, 4), "▁▅ █");
        assert_eq!(line(&values, 1.0, 2), " █");
        assert_eq!(line(&values, 1.0, 6), "  ▁▅ █");
        assert_eq!(line(&[Some(3.0)], 0.0, 1), "▁");
    }

    #[test]
    fn steps_without_points_are_gaps() {
        let point = |secs: i64| SeriesPoint {
            at: OffsetDateTime::from_unix_timestamp(secs).unwrap(),
            memory_bytes: Some(1),
            memory_max_bytes: None,
            activity: None,
            activity_max: None,
            power_watts: None,
            energy_joules: None,
        };

        let values = figure(&[point(0), point(5), point(20)], 5, |p| p.memory_bytes.map(bytes));

        assert_eq!(
            values.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, true, false, false, true]
        );
    }

    proptest! {
        #[test]
        fn a_line_has_the_requested_width_whatever_is_drawn(
            values in prop::collection::vec(prop::option::of(any::<f64>()), 0..100),
            top in any::<f64>(), width in 0_usize..80,
        ) {
            prop_assert_eq!(line(&values, top, width).chars().count(), width);
        }
    }
}
