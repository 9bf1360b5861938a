//! The files of the repository that are checked.

use std::fs;
use std::path::{Path, PathBuf};

/// One file of the repository with its text.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The path from the root of the repository, with `/`.
    pub path: String,
    /// What the file contains.
    pub text: String,
}

/// Reads every file below `folder` whose name ends with `ending`, sorted by path.
///
/// Build outputs and hidden folders are left out.
///
/// # Errors
///
/// If a folder or a file can't be read.
pub fn read_files(root: &Path, folder: &str, ending: &str) -> anyhow::Result<Vec<SourceFile>> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(read_file(root, &path)?);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Reads one file.
///
/// # Errors
///
/// If it can't be read.
pub fn read_file(root: &Path, path: &Path) -> anyhow::Result<SourceFile> {
    let shown = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
    Ok(SourceFile { path: shown, text: fs::read_to_string(path)? })
}

/// Returns the root of the repository that this crate is part of.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap_or_default()
}

/// Returns whether a source file holds only tests, by its name or folder.
pub fn is_test_file(path: &str) -> bool {
    let folder_of_tests = path.split('/').any(|part| matches!(part, "tests" | "benches"));
    folder_of_tests || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}
