//! Commands that root runs for an agent with its own account.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

/// Continues as the account that owns an agent's data folder, if root runs a command there: the agent could not use
/// files of root's, and may do less than root. Nothing changes for other accounts, and without such a folder.
///
/// # Errors
///
/// This program can't be executed again as that account.
pub fn act_as_owner(data: &Path) -> io::Result<()> {
    let Ok(folder) = data.metadata() else { return Ok(()) };
    if !geteuid().is_root() || folder.uid() == 0 {
        return Ok(());
    }
    // The new process has neither root's groups nor its capabilities.
    let mut again = Command::new("/proc/self/exe");
    Err(again.args(std::env::args_os().skip(1)).uid(folder.uid()).gid(folder.gid()).exec())
}
