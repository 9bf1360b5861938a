//! The companion of Python programs: one file, which the agent puts before the user's `PYTHONPATH`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The companion itself.
pub const SOURCE: &str = include_str!("../companion/sitecustomize.py");

/// Writes the companion where every account may read it, and returns its folder.
///
/// # Errors
///
/// The disk refused.
pub fn write(data: &Path) -> io::Result<PathBuf> {
    let folder = data.join("companion");
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    let (file, new) = (folder.join("sitecustomize.py"), folder.join("sitecustomize.py.new"));
    fs::write(&new, SOURCE)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
    // Programs that start meanwhile read the old file or the new one.
    fs::rename(&new, &file)?;
    Ok(folder)
}

/// Returns whether the value of `TESSERA_COMPANION` switches it off.
pub fn is_off(value: &str) -> bool {
    ["off", "0", "false"].contains(&value.to_ascii_lowercase().as_str())
}
