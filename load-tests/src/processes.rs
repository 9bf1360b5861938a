//! The processes of this machine, as `/proc` shows them: the tests' own view, not the product's.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

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

/// Has a program run with ordinary priority, whatever this one has.
pub fn be_ordinary(command: &mut Command) {
    let set = || {
        let ordinary = libc::sched_param { sched_priority: 0 };
        // Sound: both calls read their own parameters and no other memory of ours.
        unsafe {
            if libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
        Ok(())
    };
    // Sound: only system calls are made between fork and exec.
    unsafe { command.pre_exec(set) };
}

/// Kills a group of processes.
pub fn end_group(leader: u32) {
    if let Ok(leader) = i32::try_from(leader) {
        // Sound: kill(2) touches no memory of ours.
        unsafe { libc::kill(-leader, libc::SIGKILL) };
    }
}

/// Returns the name and the nice value of each thread of a process.
pub fn nice_values(pid: u32) -> Vec<(String, i32)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let values = threads.filter_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        // Behind the name in brackets: the state is the first field, the nice value the seventeenth.
        let nice = stat.rsplit(") ").next()?.split(' ').nth(16)?.parse().ok()?;
        Some((name.trim().to_owned(), nice))
    });
    values.collect()
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
