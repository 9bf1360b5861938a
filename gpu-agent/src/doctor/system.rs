//! What the kernel reports about the machine and this account.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, geteuid, getrlimit};
use tessera_model::Bytes;

use crate::sys::{clock, identity};
use tessera_agent_core::doctor::{DiskFacts, MachineFacts, ProcessFacts};

/// The driver's file that names which file gives the right to configure MIG.
const MIG_CONFIG: &str = "/proc/driver/nvidia/capabilities/mig/config";
/// Services that cut GPUs by themselves.
const MIG_MANAGERS: [&str; 2] = ["nvidia-mig-manager.service", "nvidia-mig-parted.service"];
/// Programs that synchronise clocks, by their names in the kernel.
const CLOCK_KEEPERS: [&str; 4] = ["chronyd", "ntpd", "systemd-timesyn", "ptp4l"];
/// Programs that interfere even if they are not seen to have a GPU's file open.
const WATCHED: [&str; 3] = ["nv-hostengine", "nvidia-cuda-mps", "dcgm"];
/// Maximum number of processes that are reported.
const PROCESSES_MAX: usize = 64;

/// Gathers all facts; what can't be determined counts as absent.
pub(super) fn look(data: Option<&Path>) -> MachineFacts {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    let loaded = |name: &str| modules.lines().any(|line| line.split(' ').next() == Some(name));
    let everyone = processes();
    let kept = everyone.iter().any(|(_, name)| CLOCK_KEEPERS.contains(&name.as_str()))
        || Path::new("/run/systemd/timesync/synchronized").exists();
    let in_container = everyone.iter().all(|(_, name)| name != "systemd");
    MachineFacts {
        root: geteuid().is_root(),
        mig_config_file: mig_config_file(),
        nvml_worker: false,
        module: module_version(),
        nouveau: loaded("nouveau"),
        processes: everyone
            .into_iter()
            .filter_map(|(pid, name)| matters(pid, name, data))
            .take(PROCESSES_MAX)
            .collect(),
        competing_services: competing_services(),
        cgroup2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        isolation_gaps: BTreeSet::new(),
        data: data.and_then(disk),
        now_unix: clock::unix_now(),
        // A container has its host's clock, and doesn't see what synchronises it.
        clock_kept: if kept { Some(true) } else { (!in_container).then_some(false) },
        mps_control: None,
        mps_refused: false,
        raises_priority: None,
        open_files: getrlimit(Resource::Nofile).current,
        locked_memory: getrlimit(Resource::Memlock).current.map(Bytes::new),
    }
}

/// Returns whether the file that gives the right to configure MIG may be opened.
fn mig_config_file() -> Option<bool> {
    let text = fs::read_to_string(MIG_CONFIG).ok()?;
    let minor = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"))?;
    let file = format!("/dev/nvidia-caps/nvidia-cap{}", minor.trim());
    Some(File::open(file).is_ok())
}

/// Reads the loaded kernel module's version: the first word of digits and dots.
fn module_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?;
    let version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(version).map(str::to_owned)
}

fn competing_services() -> Vec<String> {
    let enabled = |name: &str| {
        let folder = Path::new("/etc/systemd/system/multi-user.target.wants");
        fs::symlink_metadata(folder.join(name)).is_ok()
    };
    MIG_MANAGERS.iter().filter(|name| enabled(name)).map(|name| (*name).to_owned()).collect()
}

fn disk(path: &Path) -> Option<DiskFacts> {
    let reported = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| Bytes::new(blocks.saturating_mul(reported.f_frsize));
    Some(DiskFacts {
        path: path.display().to_string(),
        free: bytes(reported.f_bavail),
        total: bytes(reported.f_blocks),
    })
}

fn processes() -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Some((pid, name.trim().to_owned()))
        })
        .collect()
}

/// Returns a process if it uses a GPU, or is known to interfere.
fn matters(pid: u32, name: String, data: Option<&Path>) -> Option<ProcessFacts> {
    let gpus = open_gpus(pid);
    let watched = || WATCHED.iter().any(|watched| name.starts_with(watched));
    // A process that has ended holds nothing, even if it was not reaped: containers have no init
    // for that.
    if gpus.is_empty() && !(watched() && identity::runs(pid)) {
        return None;
    }
    let ours = name.starts_with("tessera-") || is_ours(pid, data);
    Some(ProcessFacts { pid, name, ours, gpus })
}

/// The numbers of the GPUs whose files a process has open.
fn open_gpus(pid: u32) -> Vec<u32> {
    // Processes of other users can't be examined without privileges.
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let number = |path: PathBuf| {
        let name = path.strip_prefix("/dev").ok()?.to_str()?.to_owned();
        name.strip_prefix("nvidia")?.parse().ok()
    };
    let links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    let mut gpus: Vec<u32> = links.filter_map(number).collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus
}

/// Returns whether a process is of an attempt, or works in the agent's folder: by its environment. Where the agent may not
/// read that, it goes by the owners of the MPS daemons that it has started.
fn is_ours(pid: u32, data: Option<&Path>) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
        return data.is_some_and(|data| is_served(pid, data));
    };
    let mut variables = environment.split(|byte| *byte == 0);
    let folder = data.map(|data| data.display().to_string());
    variables.any(|variable| {
        let text = String::from_utf8_lossy(variable);
        text.starts_with("TESSERA_ATTEMPT")
            || folder.as_ref().is_some_and(|f| text.contains(f.as_str()))
    })
}

/// Returns whether the agent has an MPS daemon of the account of a process.
fn is_served(pid: u32, data: &Path) -> bool {
    let Ok(process) = fs::metadata(format!("/proc/{pid}")) else { return false };
    let folders = fs::read_dir(data.join("mps")).into_iter().flatten().flatten();
    let owner = |folder: PathBuf| fs::symlink_metadata(folder.join("p")).ok().map(|p| p.uid());
    folders.filter_map(|folder| owner(folder.path())).any(|uid| uid == process.uid())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_daemon_that_has_ended_is_not_counted_though_its_parent_never_reaps_it() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = folder.path().join("nvidia-cuda-mps-control");
        fs::copy("/bin/cat", &daemon).unwrap();
        let mut command = Command::new(&daemon);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        // A new process has its parent's name for a moment: it has its own once it answers.
        child.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let seen = || {
            let found = processes().into_iter().find(|(number, _)| *number == pid);
            found.and_then(|(pid, name)| matters(pid, name, None))
        };
        assert!(seen().is_some_and(|process| !process.ours));

        drop(child.stdin.take());
        let left_as_zombie = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), left_as_zombie).unwrap();

        assert_eq!(seen(), None);
        child.wait().unwrap();
    }
}
