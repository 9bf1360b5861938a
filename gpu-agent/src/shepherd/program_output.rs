//! The end of a program's output, where it states that GPU memory ran out.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use tessera_agent_core::out_of_memory::text::{self, TextEvidence, WINDOW_BYTES};

/// One stream of an attempt's output.
#[derive(Debug)]
pub struct OutputStream {
    file: File,
    /// The length of the file when the attempt began: earlier content belongs to another attempt.
    from: u64,
}

impl OutputStream {
    /// Takes a file that is open for reading, and held `from` bytes before the attempt wrote.
    pub const fn new(file: File, from: u64) -> Self {
        Self { file, from }
    }

    /// Returns the end of what the attempt wrote; empty if nothing can be read.
    fn end(&self) -> String {
        self.read_end().unwrap_or_default()
    }

    fn read_end(&self) -> Option<String> {
        let mut file = &self.file;
        // A device keeps nothing.
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        // Shorter than it was: the program emptied it.
        let begin = if length < self.from { 0 } else { self.from };
        file.seek(SeekFrom::Start(begin.max(length.saturating_sub(WINDOW_BYTES)))).ok()?;
        let mut bytes = Vec::new();
        file.take(WINDOW_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Where an attempt writes.
#[derive(Debug, Default)]
pub struct ProgramOutput {
    /// Standard output.
    pub stdout: Option<OutputStream>,
    /// Standard error.
    pub stderr: Option<OutputStream>,
}

impl ProgramOutput {
    /// Returns the line that names an out-of-memory error of the GPU, if one does and the program
    /// did not continue.
    pub fn out_of_gpu_memory(&self) -> Option<TextEvidence> {
        let end = |stream: &Option<OutputStream>| {
            stream.as_ref().map(OutputStream::end).unwrap_or_default()
        };
        text::find(&end(&self.stdout), &end(&self.stderr))
    }

    /// Returns what follows `begin` on the last line that begins with it.
    pub fn last_line_after(&self, begin: &str) -> Option<String> {
        let last = |stream: &Option<OutputStream>| {
            let text = stream.as_ref()?.end();
            text.lines().rev().find_map(|line| line.strip_prefix(begin)).map(str::to_owned)
        };
        last(&self.stderr).or_else(|| last(&self.stdout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(folder: &std::path::Path, name: &str, before: &str, after: &str) -> OutputStream {
        let path = folder.join(name);
        std::fs::write(&path, before).unwrap();
        let stream = OutputStream::new(File::open(&path).unwrap(), before.len() as u64);
        let mut written = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut written, after.as_bytes()).unwrap();
        stream
    }

    fn reported(before: &str, stdout: &str, stderr: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let output = ProgramOutput {
            stdout: Some(stream(folder.path(), "out", before, stdout)),
            stderr: Some(stream(folder.path(), "err", before, stderr)),
        };
        output.out_of_gpu_memory().map(|found| found.line)
    }

    #[test]
    fn the_line_that_names_the_error_is_reported_from_either_stream() {
        let line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
        let text = format!("Traceback (most recent call last):\n  {line}\nbye\n");
        assert_eq!(reported("", "", &text).as_deref(), Some(line));
        assert_eq!(reported("", &text, "").as_deref(), Some(line), "2>&1 | tee");
        assert_eq!(reported("", "", "MemoryError: the host has no more\n"), None);
        assert_eq!(reported("", "", ""), None);
    }

    #[test]
    fn what_an_earlier_attempt_wrote_is_not_held_against_a_later_one() {
        assert_eq!(reported("CUDA out of memory\n", "", "no such file\n"), None);
    }

    #[test]
    fn a_trace_of_half_a_mebibyte_does_not_hide_the_error() {
        let much = "  File \"model.py\", line 1, in forward\n".repeat(14_000);
        assert!(reported("", "", &format!("CUDA out of memory\n{much}")).is_some());
        assert_eq!(reported("", "", &format!("CUDA out of memory\n{much}{much}{much}")), None);
    }

    #[test]
    fn the_last_sentence_of_a_kind_is_found_behind_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let stdout =
            stream(folder.path(), "out", "tessera: old\n", "tessera: one\ntessera: two\nbye\n");
        let output = ProgramOutput { stdout: Some(stdout), stderr: None };

        assert_eq!(output.last_line_after("tessera: ").as_deref(), Some("two"));
        assert_eq!(output.last_line_after("podman: "), None);
    }

    #[test]
    fn a_device_is_not_read() {
        let null = OutputStream::new(File::open("/dev/zero").unwrap(), 0);

        assert_eq!(null.end(), "");
    }
}
