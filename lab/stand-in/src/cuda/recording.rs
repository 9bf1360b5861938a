//! Recordings of programs, for the player (`tessera-sim-player`).
//!
//! ```text
//! player 1
//! # A training step: two kernels, then the host reads data.
//! memory 512MiB
//! streams 2
//! iterations 100
//! kernel gemm dur=2ms sm=78 mem=8
//! kernel relu dur=lognormal(100us,0.1)
//! run gemm 64x1x1/256x1x1
//! run relu 8x1x1/128x1x1 stream=1
//! sync
//! gap 8ms
//! ```
//!
//! | line | meaning |
//! |---|---|
//! | `player 1` | the first line, always |
//! | `memory SIZE` | device memory that the program holds, with `KiB`, `MiB` or `GiB` |
//! | `streams N` | streams that it makes, 1 at least; the first is stream 0 |
//! | `iterations N` | how often it does the lines that follow |
//! | `kernel NAME …` | a kernel, with the words of module images ([`super::image`]) |
//! | `run NAME [GRID/BLOCK] [stream=N]` | launches it; of one block of 256 threads if nothing is stated |
//! | `sync` | waits for the device |
//! | `gap TIME` | waits for the device, then the host is busy for this long |
//!
//! Lines that begin with `#` are remarks. An iteration ends when the device has done it.

use super::duration::parse_time;
use super::image::{ImageError, KernelImage, LaunchShape, ShapeError};

/// Maximum number of steps of an iteration, and iterations: more is a typing error.
const STEPS_MAX: usize = 1_000_000;
const ITERATIONS_MAX: u32 = 100_000_000;
/// Streams of one program.
const STREAMS_MAX: usize = 256;

/// A program that was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkRecording {
    /// Its kernels, as a module image.
    pub image: String,
    /// Their names, in the order of the image.
    pub kernels: Vec<String>,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Streams that it makes.
    pub streams: usize,
    /// How often it does its steps.
    pub iterations: u32,
    /// What it does each time.
    pub steps: Vec<RecordedStep>,
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedStep {
    /// Launches a kernel.
    Run {
        /// Place of the kernel in the image.
        kernel: usize,
        /// Grid and block.
        shape: LaunchShape,
        /// Place of the stream.
        stream: usize,
    },
    /// Waits for the device.
    Sync,
    /// Waits for the device, then is busy for this many nanoseconds.
    Gap(u64),
}

/// A recording that can't be played, with what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct RecordingError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub why: RecordingProblem,
}

/// What is wrong with a line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingProblem {
    /// The first line is another one.
    #[error("a recording begins with `player 1`")]
    NoHeader,
    /// It has no steps.
    #[error("nothing to play: write `run NAME`, `sync` or `gap TIME`")]
    NoSteps,
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Too many streams, or none.
    #[error("use 1 to {STREAMS_MAX} streams")]
    StreamCount,
    /// Too many iterations, or none.
    #[error("use 1 to {ITERATIONS_MAX} iterations")]
    IterationCount,
    /// A kernel that an image can't have.
    #[error("{}", without_line(.0))]
    Kernel(ImageError),
    /// Not a time.
    #[error("write a time with its unit: 8ms")]
    NoTime,
    /// An unknown kind of line.
    #[error("`{0}`: use memory, streams, iterations, kernel, run, sync or gap")]
    UnknownLine(String),
    /// More steps than a recording may have.
    #[error("more than {STEPS_MAX} steps")]
    TooManySteps,
    /// It runs a kernel that no line above describes.
    #[error("no kernel {0} above: write `kernel {0} dur=2ms`")]
    UnknownKernel(String),
    /// Not a grid and a block.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A stream that the program doesn't make.
    #[error("streams are 0 to {highest}")]
    UnknownStream {
        /// The highest stream.
        highest: usize,
    },
}

/// Shows the error of an image of one line: the recording's line is named instead of the image's.
fn without_line(error: &ImageError) -> String {
    match error {
        ImageError::Line { why, .. } => why.to_string(),
        ImageError::Unknown => error.to_string(),
    }
}

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: write 512MiB, with KiB, MiB or GiB")]
pub struct SizeError(String);

impl WorkRecording {
    /// Reads a recording.
    ///
    /// # Errors
    ///
    /// [`RecordingError`] names the first line that can't be played.
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        let mut all = Self {
            image: "FKCU1\n".to_owned(),
            kernels: Vec::new(),
            memory_bytes: 0,
            streams: 1,
            iterations: 1,
            steps: Vec::new(),
        };
        for (index, line) in text.lines().enumerate() {
            let at = |why: RecordingProblem| RecordingError { line: index + 1, why };
            let words: Vec<_> = line.split_whitespace().collect();
            if index == 0 {
                if words != ["player", "1"] {
                    return Err(at(RecordingProblem::NoHeader));
                }
                continue;
            }
            if words.first().is_some_and(|word| !word.starts_with('#')) {
                all.add(line, &words).map_err(at)?;
            }
        }
        if all.steps.is_empty() {
            let line = text.lines().count();
            return Err(RecordingError { line, why: RecordingProblem::NoSteps });
        }
        Ok(all)
    }

    fn add(&mut self, line: &str, words: &[&str]) -> Result<(), RecordingProblem> {
        match words {
            ["memory", size] => self.memory_bytes = parse_size(size)?,
            ["streams", count] => {
                let count = count.parse().ok().filter(|n| (1..=STREAMS_MAX).contains(n));
                self.streams = count.ok_or(RecordingProblem::StreamCount)?;
            }
            ["iterations", count] => {
                let count = count.parse().ok().filter(|n| (1..=ITERATIONS_MAX).contains(n));
                self.iterations = count.ok_or(RecordingProblem::IterationCount)?;
            }
            ["kernel", name, ..] => {
                KernelImage::parse(format!("FKCU1\n{line}\n").as_bytes())
                    .map_err(RecordingProblem::Kernel)?;
                self.image.push_str(line);
                self.image.push('\n');
                if !self.kernels.iter().any(|known| known == name) {
                    self.kernels.push((*name).to_owned());
                }
            }
            ["run", name, rest @ ..] => {
                let step = self.run(name, rest)?;
                self.steps.push(step);
            }
            ["sync"] => self.steps.push(RecordedStep::Sync),
            ["gap", time] => {
                let time = parse_time(time);
                let time = time.ok_or(RecordingProblem::NoTime)?;
                self.steps.push(RecordedStep::Gap(time));
            }
            _ => return Err(RecordingProblem::UnknownLine(line.to_owned())),
        }
        if self.steps.len() > STEPS_MAX {
            return Err(RecordingProblem::TooManySteps);
        }
        Ok(())
    }

    fn run(&self, name: &str, rest: &[&str]) -> Result<RecordedStep, RecordingProblem> {
        let kernel = self.kernels.iter().position(|known| known == name);
        let kernel = kernel.ok_or_else(|| RecordingProblem::UnknownKernel(name.to_owned()))?;
        let mut shape = LaunchShape { grid: [1; 3], block: [256, 1, 1] };
        let mut stream = 0;
        for word in rest {
            match word.strip_prefix("stream=") {
                None => shape = LaunchShape::parse(word)?,
                Some(number) => {
                    let number = number.parse().ok().filter(|number| *number < self.streams);
                    let highest = self.streams - 1;
                    stream = number.ok_or(RecordingProblem::UnknownStream { highest })?;
                }
            }
        }
        Ok(RecordedStep::Run { kernel, shape, stream })
    }
}

/// Reads a size such as `512MiB`, in bytes.
///
/// # Errors
///
/// [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let bad = || SizeError(text.to_owned());
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .ok_or_else(bad)?;
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read_line_by_line() {
        let text = "player 1\n# remark\nmemory 2MiB\nstreams 2\niterations 3\nkernel k dur=2ms\n\
                    run k 64x1x1/256x1x1 stream=1\nrun k\nsync\ngap 8ms\n";
        let recording = WorkRecording::parse(text).unwrap();

        assert_eq!((recording.memory_bytes, recording.iterations), (2 << 20, 3));
        let shape = LaunchShape { grid: [64, 1, 1], block: [256, 1, 1] };
        assert_eq!(recording.steps[0], RecordedStep::Run { kernel: 0, shape, stream: 1 });
        assert_eq!(recording.steps[2..], [RecordedStep::Sync, RecordedStep::Gap(8_000_000)]);
        KernelImage::parse(recording.image.as_bytes()).unwrap();
    }

    #[test]
    fn a_bad_line_is_named_with_what_would_be_right() {
        for (line, hint) in [
            ("run k", "kernel k dur=2ms"),
            ("gap 5", "8ms"),
            ("memory 5", "512MiB"),
            ("streams 0", "1 to 256"),
            ("kernel k dur=soon", "2ms"),
            ("play", "run"),
        ] {
            let refused = WorkRecording::parse(&format!("player 1\n{line}\nsync\n")).unwrap_err();
            assert!(refused.to_string().contains(hint), "{line}: {refused}");
            assert_eq!(refused.line, 2);
        }
        assert!(WorkRecording::parse("").is_err());
        assert!(WorkRecording::parse("player 1\n").is_err());
    }
}
