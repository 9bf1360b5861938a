//! Durations as text.

use tessera_model::Millis;

/// Returns a duration as text: `1 h 5 min`, `42 s`.
pub(crate) fn duration_text(time: Millis) -> String {
    let secs = time.get().div_ceil(1_000);
    match (secs / 3_600, secs % 3_600 / 60, secs % 60) {
        (0, 0, secs) => format!("{secs} s"),
        (0, minutes, secs) => format!("{minutes} min {secs} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}
