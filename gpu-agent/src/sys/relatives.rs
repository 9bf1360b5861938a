//! A process's user and parent, for a caller that the kernel named.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What leads from a process to its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relatives {
    /// The user whose rights the process has.
    pub uid: u32,
    /// The parent's pid; 0 for a process of another namespace.
    pub parent: u32,
}

/// Finds a process's user and parent.
///
/// `/proc` may hide the processes of others (`hidepid`) from an agent that isn't root. Since Linux 6.13 the kernel
/// also reports both by a descriptor of the process, which needs no rights.
///
/// # Errors
///
/// There is no such process, or the kernel reports nothing about it.
pub fn find(pid: u32) -> io::Result<Relatives> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    match status.ok().and_then(|text| by_status(&text)) {
        Some(found) => Ok(found),
        None => by_descriptor(pid),
    }
}

/// Reads `/proc/PID/status`.
fn by_status(text: &str) -> Option<Relatives> {
    let field = |name: &str, place: usize| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().nth(place)?.parse().ok()
    };
    Some(Relatives { uid: field("Uid:", 1)?, parent: field("PPid:", 0)? })
}

fn by_descriptor(pid: u32) -> io::Result<Relatives> {
    let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let known = known.ok_or(io::ErrorKind::InvalidInput)?;
    let descriptor = pidfd_open(known, PidfdFlags::empty())?;
    let info = request_info(&descriptor)?;
    match info.pid == pid {
        true => Ok(Relatives { uid: info.euid, parent: info.ppid }),
        // The process has ended meanwhile.
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The first version of the kernel's `struct pidfd_info` (`linux/pidfd.h`). Later kernels fill in no more than this.
#[derive(Default)]
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ruid: u32,
    rgid: u32,
    euid: u32,
    egid: u32,
    suid: u32,
    sgid: u32,
    fsuid: u32,
    fsgid: u32,
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64, "PIDFD_INFO_SIZE_VER0");

/// `PIDFD_INFO_PID | PIDFD_INFO_CREDS`.
const PID_AND_CREDS: u64 = 0b11;
/// `PIDFD_GET_INFO`: `_IOWR(0xFF, 11, struct pidfd_info)`.
const GET_INFO: libc::Ioctl = (3 << 30) | (64 << 16) | (0xFF << 8) | 11;

fn request_info(descriptor: &impl AsFd) -> io::Result<PidfdInfo> {
    let mut info = PidfdInfo { mask: PID_AND_CREDS, ..PidfdInfo::default() };
    // SAFETY: the kernel writes at most the 64 bytes that the number of the request states, and all numbers are values.
    let result = unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), GET_INFO, &raw mut info) };
    match result {
        0 if info.mask & PID_AND_CREDS == PID_AND_CREDS => Ok(info),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_the_effective_user_and_the_parent() {
        let text = "Name:\tsh\nPPid:\t30\nUid:\t1000\t1001\t1002\t1003\n";
        assert_eq!(by_status(text), Some(Relatives { uid: 1_001, parent: 30 }));
        assert_eq!(by_status("Name:\tsh\n"), None);
    }

    #[test]
    fn a_descriptor_tells_the_same_as_the_status() {
        let own = std::process::id();
        let by_text = fs::read_to_string(format!("/proc/{own}/status")).unwrap();
        match by_descriptor(own) {
            Ok(found) => assert_eq!(Some(found), by_status(&by_text)),
            Err(error) => eprintln!("SKIPPED: this kernel is older than 6.13 ({error})"),
        }
    }

    #[test]
    fn a_process_that_is_gone_has_no_relatives() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(find(pid).is_err());
    }
}
