//! Where the files of an attempt lie in the data folder.

use std::path::{Path, PathBuf};

use tessera_frames::cluster::LogStream;
use tessera_model::AttemptId;

/// Where output goes that nobody reads: nothing is kept of it, not even a link.
pub const NOWHERE: &str = "/dev/null";

/// Returns the folder of an attempt: its script, its working folder if it has no other, and its
/// exit record if no agent was there.
pub fn folder(data: &Path, attempt: AttemptId) -> PathBuf {
    data.join("attempts").join(attempt.as_uuid().hyphenated().to_string())
}

/// Returns the file of one of an attempt's outputs, or the link to where its user directed it.
pub fn output(data: &Path, attempt: AttemptId, stream: LogStream) -> PathBuf {
    let ending = match stream {
        LogStream::Stdout => "out",
        LogStream::Stderr => "err",
    };
    outputs(data).join(format!("{}.{ending}", attempt.as_uuid().hyphenated()))
}

/// Returns the folder of all attempts' outputs.
pub fn outputs(data: &Path) -> PathBuf {
    data.join("outputs")
}

/// Removes everything that an attempt left. Files that its user named are not touched.
pub fn remove(data: &Path, attempt: AttemptId) {
    // Most attempts have none, or not all of them.
    let _ = std::fs::remove_dir_all(folder(data, attempt));
    for stream in [LogStream::Stdout, LogStream::Stderr] {
        let _ = std::fs::remove_file(output(data, attempt, stream));
    }
}
