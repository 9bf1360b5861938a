//! The control group that a shepherd's attempts are born in, and the sweep that stands in for
//! it on machines without.
//!
//! A group belongs to a shepherd, not to an attempt: making and removing one each time would cost
//! more than the start itself. It is emptied with `cgroup.kill` after an attempt that left
//! something behind, and then never used again. Kernels from 6.14 on kill whatever is cloned into a
//! group that was ever killed, since they compare its count of kills with the parent's.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

use super::limits::oom_kills;

/// The parent group of the shepherds' groups.
pub(super) const PARENT: &str = "tessera-jobs";

/// The agent's own group within a unit of systemd (`DelegateSubgroup=agent`).
const AGENT_SUBGROUP: &str = "/agent";

/// The unit that keeps the group of all jobs while the agent restarts. systemd starts no program in a group that has
/// groups with limits below it. Versions before 254 start the agent in its unit's own group.
const JOBS_UNIT: &str = "tessera-jobs.service";
/// The group of that unit's own program.
const KEEPER_SUBGROUP: &str = "keeper";

/// How long killed processes may take to end. Chosen: a busy machine takes milliseconds.
const GONE_WITHIN: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// One shepherd's control group (version 2).
#[derive(Debug)]
pub struct Group {
    parent: PathBuf,
    name: String,
    path: PathBuf,
    folder: File,
    /// How many groups this one replaces.
    number: u64,
    killed: Cell<bool>,
}

impl Group {
    /// Makes the group of a shepherd.
    ///
    /// # Errors
    ///
    /// This machine does not allow it: continue without.
    pub fn make(parent: &Path, name: &str) -> io::Result<Self> {
        Self::make_numbered(parent, name, 0)
    }

    /// Returns a group that nothing was ever killed in: this one, or a new one in its place.
    ///
    /// # Errors
    ///
    /// No new one can be created: continue without.
    pub fn unkilled(self) -> io::Result<Self> {
        if !self.killed.get() {
            return Ok(self);
        }
        self.remove();
        Self::make_numbered(&self.parent, &self.name, self.number + 1)
    }

    fn make_numbered(parent: &Path, name: &str, number: u64) -> io::Result<Self> {
        let path = match number {
            0 => parent.join(name),
            number => parent.join(format!("{name}.{number}")),
        };
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        if !path.join("cgroup.kill").exists() {
            let _ = std::fs::remove_dir(&path);
            return Err(io::ErrorKind::Unsupported.into());
        }
        let folder = File::open(&path)?;
        let (parent, name) = (parent.to_owned(), name.to_owned());
        Ok(Self { parent, name, path, folder, number, killed: Cell::new(false) })
    }

    /// Returns what `clone3` takes.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Kills everything in the group; processes that are being forked included.
    pub fn kill(&self) {
        self.killed.set(true);
        kill(&self.path);
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records that the launcher killed what was in the group.
    pub fn note_killed(&self) {
        self.killed.set(true);
    }

    /// Returns whether nothing runs in the group.
    pub fn is_empty(&self) -> bool {
        std::fs::read_to_string(self.path.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "populated 0"))
    }

    /// Returns how often the kernel killed a member for lack of memory; 0 where it doesn't count.
    pub fn out_of_memory_kills(&self) -> u64 {
        std::fs::read_to_string(self.path.join("memory.events"))
            .map_or(0, |events| oom_kills(&events))
    }

    /// Removes the group; fails harmlessly while something runs in it.
    pub fn remove(&self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn kill(path: &Path) {
    // Fails only where the group is gone, and with it its members.
    let _ = std::fs::write(path.join("cgroup.kill"), "1");
}

/// Kills what a dead shepherd left behind in its group, waits until it is gone, and removes the group. A process
/// that was killed holds its files and its GPU until it has ended, and the next attempt may begin at once.
pub fn kill_orphans(parent: &Path, name: &str) {
    let replacement = format!("{name}.");
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let ours = found.to_str().is_some_and(|f| f == name || f.starts_with(&replacement));
        if ours {
            kill(&entry.path());
            await_empty(&entry.path());
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Waits until nothing runs in a group, for [`GONE_WITHIN`] at most: what is left then hangs in the kernel, and no
/// signal reaches it.
fn await_empty(path: &Path) {
    let Ok(mut events) = File::open(path.join("cgroup.events")) else { return };
    let begun = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec;
    let elapsed = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec - begun;
    while elapsed() <= GONE_WITHIN.tv_sec {
        let mut text = String::new();
        let read = events.rewind().and_then(|()| events.read_to_string(&mut text));
        if read.is_err() || text.lines().any(|line| line == "populated 0") {
            return;
        }
        // The kernel reports a change of the file in this way.
        let mut changed = [PollFd::new(&events, PollFlags::PRI)];
        let _ = poll(&mut changed, Some(&GONE_WITHIN));
    }
}

/// Returns the group under which shepherds may make theirs, if this machine has one.
pub fn find_parent() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let parent = parent_path(&mounts, &own, |path| path.exists())?;
    match std::fs::create_dir(&parent) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
        // One that an agent of another account left is not ours.
        Ok(()) | Err(_) => {
            let is_usable = parent.join("cgroup.kill").exists()
                && rustix::fs::access(&parent, rustix::fs::Access::WRITE_OK).is_ok();
            is_usable.then_some(parent)
        }
    }
}

fn parent_path(mounts: &str, own: &str, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let (mount, path) = own_path(mounts, own)?;
    // The agent's own group next to those of its jobs: a group with limits holds no processes itself.
    let path = path.strip_suffix(AGENT_SUBGROUP).unwrap_or(path);
    let path = mount.join(path.trim_start_matches('/'));
    let jobs = path.with_file_name(JOBS_UNIT);
    let is_kept = path != mount && exists(&jobs.join(KEEPER_SUBGROUP));
    Some(if is_kept { jobs.join(PARENT) } else { path.join(PARENT) })
}

/// Returns where groups of version 2 are, and the path of this process's below it.
fn own_path<'a>(mounts: &'a str, own: &'a str) -> Option<(&'a Path, &'a str)> {
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4)).flatten()
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some((Path::new(mount), path))
}

/// Puts this process into a group below its unit's, so that the unit's may have groups with limits. Without version 2
/// there is nothing to do.
///
/// # Errors
///
/// The group can't be made or joined.
pub fn leave_to_jobs() -> io::Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let Some((mount, path)) = own_path(&mounts, &own) else { return Ok(()) };
    let group = mount.join(path.trim_start_matches('/')).join(KEEPER_SUBGROUP);
    match std::fs::create_dir(&group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    std::fs::write(group.join("cgroup.procs"), "0")
}

/// Maximum number of rounds of [`sweep`]: each takes one generation of descendants.
const SWEEPS_MAX: usize = 64;

/// Kills every descendant of this process, which must be a child subreaper: those whose parent
/// dies become its children, so that each round sees the next generation.
///
/// Returns whether none is left but `kept`.
pub fn sweep(kept: Option<u32>) -> bool {
    let kept = kept.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    for _ in 0..SWEEPS_MAX {
        while crate::sys::spawn::wait(-1, false).is_some() {}
        let children: Vec<Pid> =
            children().into_iter().filter(|child| Some(*child) != kept).collect();
        if children.is_empty() {
            return true;
        }
        for child in children {
            // The pid of a child that isn't reaped can't have been reused.
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    false
}

fn children() -> Vec<Pid> {
    let pid = std::process::id();
    std::fs::read_to_string(format!("/proc/self/task/{pid}/children"))
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|child| Pid::from_raw(child.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_group_is_found_in_hybrid_and_in_plain_set_ups() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      40 30 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let plain = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";

        let parent_path = |mounts, own| parent_path(mounts, own, |_| false);
        assert_eq!(
            parent_path(hybrid, "9:name=systemd:/\n0::/\n"),
            Some("/sys/fs/cgroup/unified/tessera-jobs".into())
        );
        assert_eq!(
            parent_path(plain, "0::/system.slice/tessera.service\n"),
            Some("/sys/fs/cgroup/system.slice/tessera.service/tessera-jobs".into())
        );
        assert_eq!(
            parent_path(plain, "0::/system.slice/tessera.service/agent\n"),
            Some("/sys/fs/cgroup/system.slice/tessera.service/tessera-jobs".into())
        );
        assert_eq!(parent_path("", "0::/\n"), None);
    }

    #[test]
    fn jobs_are_in_the_group_of_their_own_unit_where_it_is_kept() {
        let plain = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
        let kept = Path::new("/sys/fs/cgroup/system.slice/tessera-jobs.service/keeper");
        let with_jobs = |own| parent_path(plain, own, |path| path == kept);

        assert_eq!(
            with_jobs("0::/system.slice/tessera-agent.service\n"),
            Some("/sys/fs/cgroup/system.slice/tessera-jobs.service/tessera-jobs".into())
        );
        assert_eq!(
            with_jobs("0::/user.slice/session-1.scope\n"),
            Some("/sys/fs/cgroup/user.slice/session-1.scope/tessera-jobs".into())
        );
        assert_eq!(
            parent_path(plain, "0::/\n", |_| true),
            Some("/sys/fs/cgroup/tessera-jobs".into())
        );
    }
}
