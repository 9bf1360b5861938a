//! Memory, processors and processes of an attempt, limited by control groups of either version.
//!
//! Version 2: the limits stand in the attempt's own group. Version 1, and machines that have both: one group
//! for each controller, made for the attempt and removed after it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use tessera_model::Bytes;

use super::group::PARENT;

/// Length of the interval in which processor time is counted, in microseconds: the kernel's default.
const CPU_PERIOD: u64 = 100_000;

/// The limits of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the host.
    pub memory: Option<Bytes>,
    /// Processors.
    pub cpus: Option<u32>,
    /// Processes and threads.
    pub tasks: Option<u64>,
}

/// One thing that can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Memory of the host.
    Memory,
    /// Processor time.
    Cpu,
    /// Processes and threads.
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }

    /// Returns the files to write for the limits, in their order, with what is written.
    fn settings(self, limits: Limits, is_v2: bool) -> Vec<(&'static str, String)> {
        match (self, is_v2) {
            (Self::Memory, false) => limits.memory.map_or_else(Vec::new, |limit| {
                let limit = limit.get().to_string();
                // The sum with swap can't be the smaller one, and goes second.
                vec![
                    ("memory.limit_in_bytes", limit.clone()),
                    ("memory.memsw.limit_in_bytes", limit),
                ]
            }),
            (Self::Memory, true) => {
                let limit = limits.memory.map(|limit| limit.get().to_string());
                let swap = if limit.is_some() { "0" } else { "max" };
                let whole = if limit.is_some() { "1" } else { "0" };
                vec![
                    ("memory.max", limit.unwrap_or_else(|| "max".to_owned())),
                    ("memory.swap.max", swap.to_owned()),
                    ("memory.oom.group", whole.to_owned()),
                ]
            }
            (Self::Cpu, false) => limits.cpus.map_or_else(Vec::new, |cpus| {
                vec![
                    ("cpu.cfs_period_us", CPU_PERIOD.to_string()),
                    ("cpu.cfs_quota_us", (u64::from(cpus) * CPU_PERIOD).to_string()),
                ]
            }),
            (Self::Cpu, true) => {
                let quota = limits.cpus.map(|cpus| (u64::from(cpus) * CPU_PERIOD).to_string());
                let quota = quota.unwrap_or_else(|| "max".to_owned());
                vec![("cpu.max", format!("{quota} {CPU_PERIOD}"))]
            }
            (Self::Pids, false) => {
                limits.tasks.map_or_else(Vec::new, |tasks| vec![("pids.max", tasks.to_string())])
            }
            (Self::Pids, true) => {
                let tasks = limits.tasks.map(|tasks| tasks.to_string());
                vec![("pids.max", tasks.unwrap_or_else(|| "max".to_owned()))]
            }
        }
    }
}

/// Files that older kernels, or kernels without swap, don't have. Their effect is then not needed.
const OPTIONAL: [&str; 3] = ["memory.memsw.limit_in_bytes", "memory.swap.max", "memory.oom.group"];

/// Where this machine's controllers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Version 1: the folder in which groups are made.
    v1: Vec<(Controller, PathBuf)>,
    /// Version 2: whether the groups under the shepherds' parent have it.
    v2: Vec<Controller>,
}

impl Controllers {
    /// Finds the controllers, and turns those of version 2 on for the groups under `parent`.
    pub fn find(parent: Option<&Path>) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let v1 = Controller::ALL.into_iter().filter_map(|controller| {
            let path = v1_path(&mounts, &own, controller.name())?;
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
                // One that an agent of another account left is not ours.
                Ok(()) | Err(_) => {
                    access(&path, Access::WRITE_OK).is_ok().then_some((controller, path))
                }
            }
        });
        Self { v1: v1.collect(), v2: parent.map_or_else(Vec::new, turn_on) }
    }

    /// Returns whether something can be limited at all.
    pub fn has(&self, controller: Controller) -> bool {
        self.v2.contains(&controller) || self.v1.iter().any(|(found, _)| *found == controller)
    }

    /// Sets the limits of an attempt, whose group of version 2 is `group`.
    ///
    /// # Errors
    ///
    /// The kernel refuses a limit: the attempt must not start without it.
    pub fn limit(
        &self,
        group: Option<&Path>,
        name: &str,
        limits: Limits,
    ) -> io::Result<LimitGroups> {
        for controller in &self.v2 {
            if let Some(group) = group {
                write_all(group, &controller.settings(limits, true))?;
            }
        }
        let mut groups = LimitGroups::default();
        for (controller, parent) in &self.v1 {
            let settings = controller.settings(limits, false);
            if settings.is_empty() || self.v2.contains(controller) {
                continue;
            }
            let path = parent.join(name);
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            groups.0.push((*controller, path.clone(), File::open(&path)?));
            write_all(&path, &settings)?;
        }
        Ok(groups)
    }
}

/// Removes the groups of version 1 that a dead shepherd left.
pub fn remove_left(name: &str) {
    for (_, parent) in Controllers::find(None).v1 {
        let _ = fs::remove_dir(parent.join(name));
    }
}

/// Tests each limit on a separate group, and returns the controllers that accepted it.
pub fn enforced() -> Vec<Controller> {
    // Without a group of version 2 a shepherd limits nothing.
    let Some(parent) = super::group::find_parent() else { return Vec::new() };
    let controllers = Controllers::find(Some(&parent));
    let name = format!("doctor-{}", std::process::id());
    let group = parent.join(&name);
    let _ = fs::create_dir(&group);
    let tried = [
        (Controller::Memory, Limits { memory: Some(Bytes::from_mib(64)), ..Limits::default() }),
        (Controller::Cpu, Limits { cpus: Some(1), ..Limits::default() }),
        (Controller::Pids, Limits { tasks: Some(1_000), ..Limits::default() }),
    ];
    let takes = |(controller, limits): &(Controller, Limits)| {
        controllers.has(*controller) && controllers.limit(Some(&group), &name, *limits).is_ok()
    };
    let found =
        tried.iter().filter(|tried| takes(tried)).map(|(controller, _)| *controller).collect();
    let _ = fs::remove_dir(&group);
    found
}

fn write_all(group: &Path, settings: &[(&'static str, String)]) -> io::Result<()> {
    for (file, value) in settings {
        match fs::write(group.join(file), value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && OPTIONAL.contains(file) => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("{file} = {value}: {error}")));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Groups of version 1 that one attempt is in.
#[derive(Debug, Default)]
pub struct LimitGroups(Vec<(Controller, PathBuf, File)>);

impl LimitGroups {
    /// Returns what the launcher takes.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|(_, _, folder)| folder.as_fd()).collect()
    }

    /// Returns how often the kernel killed a member for lack of memory.
    pub fn out_of_memory_kills(&self) -> u64 {
        let memory = self.0.iter().find(|(controller, ..)| *controller == Controller::Memory);
        let text = memory
            .and_then(|(_, path, _)| fs::read_to_string(path.join("memory.oom_control")).ok());
        text.map_or(0, |text| oom_kills(&text))
    }
}

impl Drop for LimitGroups {
    fn drop(&mut self) {
        for (_, path, _) in &self.0 {
            // A process that hangs in the kernel keeps its group.
            let _ = fs::remove_dir(path);
        }
    }
}

/// Reads the count of kills out of `memory.events` or `memory.oom_control`.
pub fn oom_kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

/// Turns on what can be turned on for the groups under `parent`; returns what they have.
fn turn_on(parent: &Path) -> Vec<Controller> {
    for controller in Controller::ALL {
        // One by one: a controller that is not available must not prevent the others.
        for group in parent.parent().into_iter().chain([parent]) {
            let _ =
                fs::write(group.join("cgroup.subtree_control"), format!("+{}", controller.name()));
        }
    }
    let on = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
    let is_on =
        |controller: &Controller| on.split_whitespace().any(|name| name == controller.name());
    Controller::ALL.into_iter().filter(is_on).collect()
}

/// Returns where groups of a controller of version 1 are made: below the group that this process is in.
fn v1_path(mounts: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let (root, mount) = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let is_v1 = after.next()? == "cgroup";
        let options = after.nth(1)?;
        let mut before = before.split(' ').skip(3);
        let (root, mount) = (before.next()?, before.next()?);
        (is_v1 && has(options)).then_some((root, mount))
    })?;
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        has(names).then_some(path)
    })?;
    // In a container the mount may begin below the hierarchy's root.
    let path = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
    Some(Path::new(mount).join(path.trim_start_matches('/')).join(PARENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        34 30 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 30 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn groups_of_version_1_are_made_below_the_own_one() {
        let own = "4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/\n";
        assert_eq!(
            v1_path(MOUNTS, own, "memory"),
            Some("/sys/fs/cgroup/memory/jobs/7/tessera-jobs".into())
        );
        assert_eq!(v1_path(MOUNTS, own, "cpu"), Some("/sys/fs/cgroup/cpu/tessera-jobs".into()));
        assert_eq!(v1_path(MOUNTS, own, "pids"), None);
    }

    #[test]
    fn each_limit_is_written_in_the_words_of_its_version() {
        let limits =
            Limits { memory: Some(Bytes::from_mib(100)), cpus: Some(2), tasks: Some(1_000) };
        let text = |controller: Controller, is_v2| {
            let settings = controller.settings(limits, is_v2);
            settings.into_iter().map(|(file, value)| format!("{file}={value}")).collect::<Vec<_>>()
        };
        let bytes = 100 << 20;
        assert_eq!(
            text(Controller::Memory, false),
            [
                format!("memory.limit_in_bytes={bytes}"),
                format!("memory.memsw.limit_in_bytes={bytes}")
            ]
        );
        assert_eq!(
            text(Controller::Memory, true),
            [
                format!("memory.max={bytes}"),
                "memory.swap.max=0".into(),
                "memory.oom.group=1".into()
            ]
        );
        assert_eq!(
            text(Controller::Cpu, false),
            ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=200000"]
        );
        assert_eq!(text(Controller::Cpu, true), ["cpu.max=200000 100000"]);
        assert_eq!(text(Controller::Pids, true), ["pids.max=1000"]);
        assert_eq!(
            Controller::Cpu.settings(Limits::default(), true),
            [("cpu.max", "max 100000".to_owned())],
            "a group that is used again"
        );
        assert!(Controller::Memory.settings(Limits::default(), false).is_empty());
    }

    #[test]
    fn kills_are_counted_in_both_versions_files() {
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills("low 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 1\n"), 1);
        assert_eq!(oom_kills(""), 0);
    }
}
