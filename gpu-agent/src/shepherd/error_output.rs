//! The end of a program's error output, where it states that GPU memory ran out. No driver reports
//! that an allocation failed, and the program ends like any other that gives up.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

/// So much of the end is looked at: traces of Python come after what failed with dozens of lines.
const LAST_BYTES: u64 = 16 * 1024;
/// Most characters of a line that are reported.
const LINE_CHARS_MAX: usize = 200;

/// What CUDA's libraries and those above them print: the runtime's and the driver's names of the error,
/// PyTorch, JAX, TensorFlow.
const OUT_OF_MEMORY_TEXTS: [&str; 6] = [
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "RESOURCE_EXHAUSTED: Out of memory",
    "OOM when allocating tensor",
];

/// Where an attempt's complaints go.
#[derive(Debug)]
pub struct ErrorOutput {
    file: File,
    /// How long the file was as the attempt began: what stands before is another one's.
    from: u64,
}

impl ErrorOutput {
    /// Takes a file that is open for reading, and held `from` bytes before the attempt wrote.
    pub const fn new(file: File, from: u64) -> Self {
        Self { file, from }
    }

    /// Returns the last line that names an out-of-memory error of the GPU, if one does.
    pub fn out_of_gpu_memory(&self) -> Option<String> {
        let mut file = &self.file;
        // A device keeps nothing.
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        // Shorter than it was: the program emptied it.
        let begin = if length < self.from { 0 } else { self.from };
        file.seek(SeekFrom::Start(begin.max(length.saturating_sub(LAST_BYTES)))).ok()?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let is_match = |line: &&str| OUT_OF_MEMORY_TEXTS.iter().any(|text| line.contains(text));
        text.lines()
            .rev()
            .find(is_match)
            .map(|line| line.trim().chars().take(LINE_CHARS_MAX).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(before: &str, after: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("err");
        std::fs::write(&path, before).unwrap();
        let error_output = ErrorOutput::new(File::open(&path).unwrap(), before.len() as u64);
        let mut written = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut written, after.as_bytes()).unwrap();
        error_output.out_of_gpu_memory()
    }

    #[test]
    fn the_line_that_names_the_error_is_reported() {
        let line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
        assert_eq!(reported("", &format!("Traceback:\n  {line}\nbye\n")).as_deref(), Some(line));
        assert_eq!(reported("", "MemoryError: the host has no more\n"), None);
        assert_eq!(reported("", ""), None);
    }

    #[test]
    fn what_an_earlier_attempt_wrote_is_not_held_against_a_later_one() {
        assert_eq!(reported("CUDA out of memory\n", "no such file\n"), None);
    }

    #[test]
    fn only_the_end_of_much_output_is_looked_at() {
        let much = "x".repeat(40_000);
        assert_eq!(reported("", &format!("CUDA out of memory\n{much}")), None);
        assert!(reported("", &format!("{much}\nCUDA_ERROR_OUT_OF_MEMORY\n")).is_some());
    }

    #[test]
    fn a_device_is_not_read() {
        let null = File::open("/dev/zero").unwrap();

        assert_eq!(ErrorOutput::new(null, 0).out_of_gpu_memory(), None);
    }
}
