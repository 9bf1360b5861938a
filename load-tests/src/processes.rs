//! The processes of this machine, as `/proc` shows them: the tests' own view, not the product's.

use std::fs;
use std::path::Path;

/// Returns the processes that belong to a cluster: whatever carries `mark` in its environment,
/// or names `folder` in its command line, or works in it.
///
/// Zombies are left out: they no longer run, and only wait for their parent.
pub fn of_cluster(mark: &str, folder: &Path) -> Vec<u32> {
    let folder = folder.to_string_lossy().into_owned();
    all()
        .filter(|&pid| pid != std::process::id())
        .filter(|&pid| {
            contains(&format!("/proc/{pid}/environ"), mark)
                || contains(&format!("/proc/{pid}/cmdline"), &folder)
                || fs::read_link(format!("/proc/{pid}/cwd"))
                    .is_ok_and(|cwd| cwd.starts_with(&folder))
        })
        .filter(|&pid| !is_zombie(pid))
        .collect()
}

/// Returns the processes that carry `mark` in their environment.
pub fn marked(mark: &str) -> Vec<u32> {
    all()
        .filter(|&pid| contains(&format!("/proc/{pid}/environ"), mark) && !is_zombie(pid))
        .collect()
}

/// Returns the living processes whose program's file has this name.
pub fn named(program: &str, among: &[u32]) -> Vec<u32> {
    let runs = |pid: u32| {
        fs::read_link(format!("/proc/{pid}/exe"))
            .is_ok_and(|exe| exe.file_name().is_some_and(|name| name == program))
    };
    among.iter().copied().filter(|&pid| runs(pid)).collect()
}

/// Shows a process for a report.
pub fn describe(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    format!("{pid} {}", command.trim())
}

/// Sends a signal. A process that has ended already is ignored.
pub fn signal(pid: u32, signal: i32) {
    if let Ok(pid) = i32::try_from(pid) {
        // Sound: kill(2) touches no memory of ours.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Has this thread, and all threads and processes that it starts from now on, run as soon as they can,
/// before everything else on the machine. Only root may; without that nothing changes.
pub fn go_first() {
    let priority = libc::sched_param { sched_priority: 1 };
    // Sound: sched_setscheduler(2) reads its own parameter and no other memory of ours.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) };
}

/// Returns whether a process runs.
pub fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(pid)
}

fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn contains(path: &str, needle: &str) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}
