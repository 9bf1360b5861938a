//! How far something is that takes long, if somebody looks.

use std::cell::Cell;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What is done sooner shows nothing.
const QUIET: Duration = Duration::from_secs(1);

/// A bar that appears after [`QUIET`].
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    quiet: Cell<bool>,
}

impl Bar {
    /// Counts to a number that is known.
    pub fn of(length: usize, message: String) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} jobs, {eta} left");
        Self::new(u64::try_from(length).ok(), style.ok(), message)
    }

    /// Counts experiments.
    pub fn experiments(length: usize) -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} experiments, {elapsed}");
        Self::new(u64::try_from(length).ok(), style.ok(), String::new())
    }

    /// Counts to an end that nobody knows.
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

    /// So many are done.
    pub fn set(&self, done: u64) {
        if self.quiet.get() && self.bar.elapsed() > QUIET {
            self.quiet.set(false);
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.quiet.get() {
            self.bar.set_position(done);
        }
    }

    /// All is done: it vanishes.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
