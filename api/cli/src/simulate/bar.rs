//! Progress bars of long operations.

use std::cell::Cell;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Operations that end sooner show no bar.
const QUIET: Duration = Duration::from_secs(1);

/// A progress bar that appears after [`QUIET`].
#[derive(Debug)]
pub struct SimulationProgress {
    bar: ProgressBar,
    quiet: Cell<bool>,
}

impl SimulationProgress {
    /// Counts to a known number.
    pub fn of(length: usize, message: String) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} jobs, {eta} left");
        Self::new(u64::try_from(length).ok(), style.ok(), message)
    }

    /// Counts experiments.
    pub fn experiments(length: usize) -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} experiments, {elapsed}");
        Self::new(u64::try_from(length).ok(), style.ok(), String::new())
    }

    /// Counts without a known end.
    pub fn counting(message: &str) -> Self {
        let style = ProgressStyle::with_template("{spinner} {pos} {msg}, {per_sec}");
        Self::new(None, style.ok(), message.to_owned())
    }

    fn new(length: Option<u64>, style: Option<ProgressStyle>, message: String) -> Self {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        bar.set_style(style.unwrap_or_else(ProgressStyle::default_bar));
        bar.set_message(message);
        Self { bar, quiet: Cell::new(true) }
    }

    /// Sets the position.
    pub fn set(&self, done: u64) {
        if self.quiet.get() && self.bar.elapsed() > QUIET {
            self.quiet.set(false);
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.quiet.get() {
            self.bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
