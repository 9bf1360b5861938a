//! The folder in which DCGM's exporter looks for jobs, and the note of which files are ours.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use tessera_agent_core::telemetry::job_map::{
    JobFileChange, JobMap, OwnJobFiles, changes, ours_after, ours_meanwhile,
};

/// The note's name in the data folder.
const NOTE: &str = "telemetry/job-mapping.json";
/// The exporter runs under another account.
const READABLE: u32 = 0o644;

/// Which files in which folder are ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobFilesNote {
    folder: PathBuf,
    ours: OwnJobFiles,
}

/// The folder.
#[derive(Clone, Debug)]
pub struct JobFiles {
    note_path: PathBuf,
    note: JobFilesNote,
    brought: Option<JobMap>,
    complained: bool,
}

impl JobFiles {
    /// Begins to use the folder. What we left in a folder that was named before is removed, even if
    /// none is named any more.
    pub fn open(folder: Option<&Path>, data: &Path) -> Option<Self> {
        let note_path = data.join(NOTE);
        let text = fs::read(&note_path).ok();
        let note: JobFilesNote =
            text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        if folder.is_none_or(|folder| folder != note.folder) {
            for (name, contents) in &note.ours {
                let path = note.folder.join(name);
                if fs::read_to_string(&path).is_ok_and(|text| contents.contains(&text)) {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        let Some(folder) = folder else {
            let _ = fs::remove_file(&note_path);
            return None;
        };
        let note = if note.folder == folder {
            note
        } else {
            JobFilesNote { folder: folder.to_owned(), ours: OwnJobFiles::default() }
        };
        Some(Self { note_path, note, brought: None, complained: false })
    }

    /// Returns whether the folder was brought to another state than this.
    pub fn differs(&self, map: &JobMap) -> bool {
        self.brought.as_ref() != Some(map)
    }

    /// Brings the folder up to date. An error is logged once, and retried with the next call.
    pub fn bring(&mut self, map: JobMap) {
        match self.try_to_bring(&map) {
            Ok(()) => {
                self.brought = Some(map);
                self.complained = false;
            }
            Err(error) if !self.complained => {
                self.complained = true;
                let folder = self.note.folder.display();
                tracing::warn!(%folder, %error, "the job files of DCGM's exporter can't be written");
            }
            Err(_) => {}
        }
    }

    fn try_to_bring(&mut self, map: &JobMap) -> io::Result<()> {
        let folder = self.note.folder.clone();
        let stands = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let changes = changes(map, &self.note.ours, stands);
        let after = ours_after(map, &self.note.ours);
        if changes.is_empty() && after == self.note.ours {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        // Noted before it is done: whatever a crash leaves of ours is known to be ours.
        self.keep(ours_meanwhile(map, &self.note.ours))?;
        for change in changes {
            match change {
                JobFileChange::Write { name, content } => write(&folder, &name, &content)?,
                JobFileChange::Remove { name } => match fs::remove_file(folder.join(name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                },
            }
        }
        self.keep(after)
    }

    fn keep(&mut self, ours: OwnJobFiles) -> io::Result<()> {
        if self.note.ours == ours {
            return Ok(());
        }
        self.note.ours = ours;
        if let Some(folder) = self.note_path.parent() {
            fs::create_dir_all(folder)?;
        }
        let temporary = self.note_path.with_extension("new");
        fs::write(&temporary, serde_json::to_vec(&self.note).map_err(io::Error::other)?)?;
        fs::rename(&temporary, &self.note_path)
    }
}

/// Replaces a file in one step: the exporter never reads half of it, and ignores the temporary
/// name.
fn write(folder: &Path, name: &str, content: &str) -> io::Result<()> {
    let temporary = folder.join(format!(".{name}.tessera"));
    fs::write(&temporary, content)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(READABLE))?;
    fs::rename(&temporary, folder.join(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tessera_model::JobId;

    use super::*;
    use tessera_agent_core::telemetry::job_map::DcgmEntity;

    fn map(job: u64) -> JobMap {
        let place = DcgmEntity { gpu: 0, instance: Some(3) };
        let jobs = BTreeSet::from([JobId::from_number(job)]);
        JobMap { known: BTreeSet::from([0]), jobs: [(place, jobs)].into() }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_later_agent_takes_away_what_an_earlier_one_left_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("dcgm");
        JobFiles::open(Some(&folder), data.path()).unwrap().bring(map(7));
        assert_eq!(fs::read_to_string(folder.join("0.3")).unwrap(), "7\n");
        fs::write(folder.join("1"), "another scheduler's\n").unwrap();

        let mut later = JobFiles::open(Some(&folder), data.path()).unwrap();
        later.bring(JobMap { known: BTreeSet::from([0, 1]), ..JobMap::default() });

        assert_eq!(names(&folder), ["1"]);
    }

    #[test]
    fn a_folder_that_is_named_no_more_is_left_clean() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("dcgm");
        JobFiles::open(Some(&folder), data.path()).unwrap().bring(map(7));

        assert!(JobFiles::open(None, data.path()).is_none());

        assert_eq!(names(&folder), Vec::<String>::new());
    }
}
