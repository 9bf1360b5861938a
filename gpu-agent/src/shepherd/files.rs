//! Where the files of an attempt lie in the data folder.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::LogStream;
use tessera_model::AttemptId;

use super::protocol::AccountNumbers;

/// The destination of output that nobody reads: nothing of it is kept, not even a link.
pub const NOWHERE: &str = "/dev/null";

/// Returns the folder of an attempt: its script, its working folder if it has no other, and its
/// exit record if no agent was running.
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

/// Returns where an attempt runs if its user named no folder, and where its script is. An attempt of another
/// account than the agent's has it inside of [`folder`], where it can't reach its own exit record.
pub fn work_folder(data: &Path, attempt: AttemptId, is_foreign: bool) -> PathBuf {
    let folder = folder(data, attempt);
    if is_foreign { folder.join("work") } else { folder }
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
        let output = output(data, attempt, stream);
        let _ = std::fs::remove_file(named_path(&output));
        let _ = std::fs::remove_file(output);
    }
}

/// Removes what an attempt left in its folder for temporary files. Where it left nothing, the folder stays until
/// [`remove`]: when ext4 without a journal makes a folder, it looks through all that were removed in the last half minute.
/// That took a tenth of a node's time under jobs of a millisecond.
pub fn empty_tmp(tmp: &Path) {
    let is_empty = std::fs::read_dir(tmp).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty {
        let _ = std::fs::remove_dir_all(tmp);
    }
}

/// Returns the file that describes the user-named output behind a link.
pub fn named_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".as");
    name.into()
}

/// An output that its user named, as the attempt opened it: only this very file is ever shown to readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedOutput {
    /// The account that the attempt ran under; `None` for the agent's own.
    pub account: Option<AccountNumbers>,
    /// The smallest uid of a person.
    pub uid_min: u32,
    /// Whether attempts may run as root.
    pub root_allowed: bool,
    /// The file system.
    pub device: u64,
    /// The file's number there.
    pub inode: u64,
    /// When it was made.
    pub born: u64,
}

impl NamedOutput {
    /// Writes it next to the output's link.
    ///
    /// # Errors
    ///
    /// The disk refused: the output can't be read through Tessera.
    pub fn write(&self, output: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let path = named_path(output);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&text)
    }

    /// Reads it.
    ///
    /// # Errors
    ///
    /// There is none: the user may not read the file, or the attempt has not opened it.
    pub fn read(output: &Path) -> io::Result<Self> {
        serde_json::from_slice(&std::fs::read(named_path(output))?).map_err(io::Error::other)
    }
}
