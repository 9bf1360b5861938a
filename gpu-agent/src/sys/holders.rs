//! Which processes keep a GPU or an instance of it open: a driver that reports "in use" doesn't
//! name them.
//!
//! An instance is opened through capability files, whose minor numbers the driver lists; a GPU
//! through its own file. Monitors such as DCGM hold these without computing, so that they are
//! in none of the driver's lists.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Maximum number of processes that are named.
pub const HOLDERS_MAX: usize = 8;

/// Where device files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFiles {
    /// Folder of `nvidia0`, `nvidia-caps/…`.
    pub folder: PathBuf,
    /// The driver's table of minor numbers.
    pub minors: PathBuf,
}

impl Default for DeviceFiles {
    fn default() -> Self {
        Self { folder: "/dev".into(), minors: "/proc/driver/nvidia-caps/mig-minors".into() }
    }
}

/// A process that keeps something open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The process as the kernel numbers it.
    pub pid: u32,
    /// Name of its program, as the kernel has it.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Finds the processes that keep an instance open, by the GPU's and the instance's numbers; if
/// there are none, those that keep the whole GPU open. The agent's own processes are left out.
pub fn holders(files: &DeviceFiles, gpu_minor: u32, instance: u32) -> Vec<Holder> {
    // Names of open files are absolute and without links.
    let Ok(folder) = files.folder.canonicalize() else { return Vec::new() };
    let table = fs::read_to_string(&files.minors).unwrap_or_default();
    let caps: BTreeSet<_> = minors(&table, gpu_minor, instance)
        .into_iter()
        .map(|minor| folder.join(format!("nvidia-caps/nvidia-cap{minor}")))
        .collect();
    let device_file = folder.join(format!("nvidia{gpu_minor}"));
    let (mut of_instance, mut of_gpu) = (BTreeSet::new(), BTreeSet::new());
    for pid in others() {
        let open = open_files(pid);
        if open.iter().any(|path| caps.contains(path)) {
            of_instance.insert(pid);
        } else if open.contains(&device_file) {
            of_gpu.insert(pid);
        }
    }
    let found = if of_instance.is_empty() { of_gpu } else { of_instance };
    found.into_iter().take(HOLDERS_MAX).map(|pid| Holder { pid, name: name(pid) }).collect()
}

/// Reads the minor numbers of an instance and of all that is in it.
pub(crate) fn minors(table: &str, gpu: u32, instance: u32) -> Vec<u32> {
    let prefix = format!("gpu{gpu}/gi{instance}/");
    table
        .lines()
        .filter(|line| line.starts_with(&prefix))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect()
}

/// Lists the processes that are neither this one nor its children.
fn others() -> Vec<u32> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own && parent(*pid) != Some(own))
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and brackets: the fields start after the last one.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn open_files(pid: u32) -> BTreeSet<PathBuf> {
    // Processes of other users can't be examined without privileges.
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
    name.map_or_else(|_| "a process".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const TABLE: &str = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n\
                         gpu0/gi11/access 102\ngpu1/gi1/access 147\n";

    #[test]
    fn an_instance_has_the_minors_that_its_driver_lists() {
        assert_eq!(minors(TABLE, 0, 1), [12, 13]);
        assert_eq!(minors(TABLE, 0, 11), [102]);
        assert!(minors(TABLE, 1, 11).is_empty());
    }

    #[test]
    fn who_keeps_an_instance_open_is_named_before_who_keeps_the_gpu_open() {
        let folder = tempfile::tempdir().unwrap();
        let files = DeviceFiles {
            folder: folder.path().to_owned(),
            minors: folder.path().join("mig-minors"),
        };
        fs::write(&files.minors, TABLE).unwrap();
        fs::create_dir(folder.path().join("nvidia-caps")).unwrap();
        let hold = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            // Its parent is gone at once, or it would count as this program's own.
            let line = format!("sleep 60 < {} & echo $!", path.display());
            let mut shell = Command::new("/bin/sh");
            let out = shell.arg("-c").arg(line).stderr(Stdio::null()).output_until_line();
            let pid = out.trim().parse::<u32>().unwrap();
            // It has the shell's name until it runs its own program.
            while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() != "sleep" {
                std::thread::yield_now();
            }
            pid
        };
        let gpu_holder = hold("nvidia0");
        let named = |instance| -> Vec<u32> {
            holders(&files, 0, instance).iter().map(|holder| holder.pid).collect()
        };
        assert_eq!(named(1), [gpu_holder]);

        let holder = hold("nvidia-caps/nvidia-cap13");

        assert_eq!(named(1), [holder]);
        assert_eq!(named(11), [gpu_holder]);
        assert!(holders(&files, 0, 1)[0].to_string().starts_with("sleep (pid "));
        for pid in [gpu_holder, holder] {
            Command::new("kill").arg(pid.to_string()).status().unwrap();
        }
    }

    trait OutputUntilLine {
        fn output_until_line(&mut self) -> String;
    }

    impl OutputUntilLine for Command {
        /// The background process keeps the pipe open: read no further than its pid.
        fn output_until_line(&mut self) -> String {
            use std::io::{BufRead as _, BufReader};
            let mut child = self.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            child.wait().unwrap();
            line
        }
    }
}
