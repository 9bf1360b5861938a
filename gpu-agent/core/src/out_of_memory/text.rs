//! Finds statements about GPU memory at the end of a program's output.

use super::lines::{LineMeaning, meaning};

/// How much of the end of each stream is read, in bytes. The longest observed traces, of 64 ranks,
/// have some 300 KiB.
pub const WINDOW_BYTES: u64 = 1024 * 1024;

/// The longest part of a line that is read, in bytes: allocators print tables, and progress bars
/// never end their line.
const LINE_BYTES_MAX: usize = 2_000;

/// Maximum number of characters of a line that are reported.
const REPORTED_CHARS_MAX: usize = 200;

/// How many lines of progress after an error show that it was survived. Other ranks may still print
/// one or two.
const PROGRESS_MIN: usize = 3;

/// A line that names the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextEvidence {
    /// The line, cut to 200 characters.
    pub line: String,
    /// The library that prints such lines.
    pub stack: &'static str,
    /// Whether it is a limit of the program itself, below the slice.
    pub is_own_limit: bool,
}

/// Searches one stream for the error: the last lines that name it, unless the program continued
/// after them.
#[derive(Clone, Debug, Default)]
struct StreamReading {
    found: Option<TextEvidence>,
    /// Whether an error named it, not only a line of a log.
    is_error: bool,
    progress: usize,
    is_chained: bool,
    is_in_trace: bool,
}

impl StreamReading {
    fn take(&mut self, line: &str) {
        match meaning(line) {
            LineMeaning::OutOfMemory { stack, is_own_limit, is_error } => {
                // The first line of an error is shown, since later ones are consequences.
                let is_new =
                    self.found.is_none() || self.progress > 0 || (is_error && !self.is_error);
                if is_new {
                    let line = line.trim().chars().take(REPORTED_CHARS_MAX).collect();
                    self.found = Some(TextEvidence { line, stack, is_own_limit });
                }
                self.is_error |= is_error;
                (self.progress, self.is_chained) = (0, false);
            }
            LineMeaning::Handled => self.forget(),
            LineMeaning::Progress => {
                self.progress += 1;
                if self.progress >= PROGRESS_MIN {
                    self.forget();
                }
            }
            LineMeaning::Chained => self.is_chained = true,
            LineMeaning::Trace => self.is_in_trace = true,
            LineMeaning::OtherError => {
                // Another error ends the program, unless this one is its cause.
                if !self.is_chained && self.is_in_trace && self.found.is_some() && self.progress > 0
                {
                    self.forget();
                }
                if !self.is_chained && !self.is_error {
                    self.forget();
                }
                self.is_chained = false;
            }
            LineMeaning::Other => {}
        }
    }

    fn forget(&mut self) {
        *self = Self { is_in_trace: self.is_in_trace, ..Self::default() };
    }
}

/// Combines the evidence of two streams; `None` if neither names the error as the end of the
/// program.
///
/// The texts are the last [`WINDOW_BYTES`] of each. A program with `2>&1 | tee` has all of it on
/// its standard output.
pub fn find(stdout: &str, stderr: &str) -> Option<TextEvidence> {
    read(stderr).or_else(|| read(stdout))
}

fn read(text: &str) -> Option<TextEvidence> {
    let mut reading = StreamReading::default();
    // Progress bars end their lines with a carriage return.
    for line in text.split(['\n', '\r']) {
        reading.take(start_of(line));
    }
    reading.found
}

fn start_of(line: &str) -> &str {
    let mut end = line.len().min(LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";

    #[test]
    fn the_line_that_names_the_error_is_found_on_either_stream() {
        for (out, err) in [("", ERROR), (ERROR, ""), (ERROR, "srun: error: task 0\n")] {
            assert_eq!(find(out, err).unwrap().line, ERROR);
        }
        assert_eq!(find("", ""), None);
    }

    #[test]
    fn a_long_trace_after_the_error_does_not_hide_it() {
        let trace = "  File \"model.py\", line 3, in forward\n".repeat(20_000);

        assert!(find("", &format!("{ERROR}\n{trace}")).is_some());
    }

    #[test]
    fn an_error_that_the_program_survived_is_none() {
        let after =
            "epoch 1 loss: 0.5\nepoch 2 loss: 0.4\nepoch 3 loss: 0.3\nValueError: bad shape";

        assert_eq!(find("", &format!("{ERROR}\n{after}")), None);
        assert_eq!(find("", &format!("{ERROR}\nRetrying with batch size 4\nKeyError: 'a'")), None);
    }

    #[test]
    fn the_cause_of_another_error_is_the_cause_of_the_end() {
        let chained = "\nDuring handling of the above exception, another exception occurred:\n\n\
                       Traceback (most recent call last):\nRuntimeError: training failed";

        assert!(
            find("", &format!("Traceback (most recent call last):\n{ERROR}\n{chained}")).is_some()
        );
    }

    #[test]
    fn invalid_text_is_read_without_failure() {
        let wild = "\u{1F525}".repeat(2_000) + "\r\0\u{7f}" + ERROR;

        assert!(find(&wild, "").is_some());
    }
}
