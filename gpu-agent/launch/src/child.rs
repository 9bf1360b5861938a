//! What an attempt's child does before it becomes the program: first what needs privileges, then the change
//! of the account, then everything that touches the user's files.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::Path;
use std::ptr;

use crate::connect;
use crate::order::{Account, Input, Order, Program};
use crate::prepare::{self, PrepareError, explain, on_node, private_tmp};
use crate::socket::Socket;
use crate::sys::{self, check};

/// First byte of a child's report: what it opens next.
pub const OPENS: u8 = b'S';
/// The outputs that its account may read, each with its number and length, and their descriptors.
pub const READABLE: u8 = b'O';
/// The descriptor of its mounts.
pub const MOUNTS: u8 = b'M';
/// Why it can't become the program.
pub const FAILED: u8 = b'F';

/// Descriptors that came with an order.
#[derive(Debug)]
pub struct Descriptors {
    /// The lease page.
    pub lease: File,
    /// The control group (version 2).
    pub group: Option<OwnedFd>,
    /// Groups of version 1 to join.
    pub v1_groups: Vec<OwnedFd>,
    /// Standard input.
    pub stdin: Option<OwnedFd>,
    /// Output files of the node's own.
    pub outputs: Vec<OwnedFd>,
}

/// What a child has of its launcher.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The socket on which it reports what it does. When it closes, the program runs.
    pub report: &'a Socket,
    /// The null device.
    pub null: BorrowedFd<'a>,
    /// The launcher's pid.
    pub parent: u32,
    /// The account of the launcher's caller.
    pub caller: u32,
}

/// Turns the child into the attempt's program, if it is in the group that it has to be in.
pub fn run(
    order: &Order,
    change: Option<&Account>,
    (descriptors, joined): (Descriptors, io::Result<()>),
    around: &Surroundings<'_>,
) -> ! {
    let failed = match joined {
        Ok(()) => become_program(order, change, descriptors, around),
        Err(error) => PrepareError::by_node(format!(
            "the node could not put the attempt into its control group: {error}"
        )),
    };
    let mut message = vec![FAILED, u8::from(failed.by_job), u8::from(failed.lease)];
    message.extend_from_slice(failed.detail.as_bytes());
    // A launcher that is gone needs no reason.
    let _ = around.report.send_raw(&message, &[]);
    sys::exit(127)
}

fn become_program(
    order: &Order,
    change: Option<&Account>,
    descriptors: Descriptors,
    around: &Surroundings<'_>,
) -> PrepareError {
    match prepare_all(order, change, descriptors, around) {
        Ok(_) if let Program::Connect(port) = order.program => match connect::open(port) {
            Ok(peer) => {
                // This also closes the socket of reports, which shows that it runs.
                sys::close_others(peer.as_raw_fd());
                sys::exit(connect::copy(peer))
            }
            Err(error) => PrepareError::by_job(format!(
                "nothing in the job listens on port {port} of its node: {error}"
            )),
        },
        Ok((program, arguments, environment)) => {
            explain(&sys::execute(&program, &arguments, &environment), &program)
        }
        Err(failed) => failed,
    }
}

/// The variable that a program finds its number in, without a value.
const TASK_PID: &str = "SLURM_TASK_PID=";

type Image = (CString, Vec<CString>, Vec<CString>);

fn prepare_all(
    order: &Order,
    change: Option<&Account>,
    descriptors: Descriptors,
    around: &Surroundings<'_>,
) -> Result<Image, PrepareError> {
    let Surroundings { report, null, parent, caller } = *around;
    let by_node = |what: &'static str| {
        move |error: io::Error| PrepareError::by_node(format!("the node could not {what}: {error}"))
    };
    for group in &descriptors.v1_groups {
        join(group).map_err(by_node("put the attempt into its control group"))?;
    }
    // SAFETY: takes nothing; fails only for a leader of a group, which a new child is not.
    unsafe { libc::setsid() };
    sys::reset_signals();
    // The launcher is protected from the out-of-memory killer; the program must not be.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    if let Some(own) = order.own.as_ref().filter(|_| !order.joins) {
        make_own(Path::new(own), change, caller)
            .map_err(|error| on_node("the attempt's folder", Path::new(own), &error))?;
    }
    if let Some(terminal) = descriptors.stdin.as_ref().filter(|_| order.stdin == Input::Terminal) {
        take_terminal(terminal, change, caller)
            .map_err(by_node("give the program its terminal"))?;
    }
    if let Some(account) = change {
        if build_walls(order, account).map_err(by_node("give the attempt its own folders"))? {
            // The process that closes them last removes them, which takes milliseconds. That is the launcher,
            // after the report of the end.
            if let Ok(mounts) = File::open("/proc/self/ns/mnt") {
                let _ = report.send_raw(&[MOUNTS], &[mounts.as_fd()]);
            }
        }
        become_account(account).map_err(by_node("change to the job's account"))?;
    }
    if order.walls.no_new_privileges {
        // SAFETY: plain numbers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
            .map_err(by_node("take privileges from the attempt"))?;
    }
    // Only now, since a change of the account undoes it.
    sys::die_with_parent();
    if u32::try_from(sys::parent()).ok() != Some(parent) {
        // The launcher may have died before the line above: then nobody would watch the child.
        sys::exit(127);
    }
    close_by_mask();
    let opens = |what: &str| {
        let _ = report.send_raw(&[&[OPENS], what.as_bytes()].concat(), &[]);
    };
    let prepared = prepare::prepare(order, descriptors.outputs, opens)?;
    if !prepared.readable.is_empty() {
        let mut numbers = Vec::new();
        for (stream, file) in &prepared.readable {
            numbers.push(*stream);
            let length = file.metadata().map_or(0, |found| found.len());
            numbers.extend_from_slice(&length.to_le_bytes());
        }
        let files: Vec<_> = prepared.readable.iter().map(|(_, file)| file.as_fd()).collect();
        report
            .send_raw(&[&[READABLE], numbers.as_slice()].concat(), &files)
            .map_err(by_node("report what it opened"))?;
    }
    let stdin = descriptors.stdin.as_ref().or(prepared.stdin.as_ref());
    let stdin = stdin.map_or(null, |stdin| stdin.as_fd());
    let streams = [stdin, prepared.stdout.as_fd(), prepared.stderr.as_fd()];
    for (target, stream) in (0..).zip(streams) {
        sys::replace(stream, target).map_err(by_node("set the attempt's streams"))?;
    }
    enter(&prepared.folder).map_err(|cause| {
        PrepareError::by_job(format!("the working folder could not be entered: {cause}"))
    })?;
    sys::close_others_on_exec();
    // Checked right before the program starts: opening may have taken longer than the lease.
    if !is_leased(&descriptors.lease, order) {
        let detail = "the node's lease expired before it started".to_owned();
        return Err(PrepareError { by_job: false, lease: true, detail });
    }
    let environment = prepared.environment.into_iter().map(with_own_number);
    Ok((prepared.program, prepared.arguments, environment.collect()))
}

/// Fills in the variable that has the number of a job's first process, if it is empty.
fn with_own_number(variable: CString) -> CString {
    match variable.as_bytes() == TASK_PID.as_bytes() {
        true => CString::new(format!("{TASK_PID}{}", std::process::id())).unwrap_or(variable),
        false => variable,
    }
}

/// Makes a terminal the controlling one of this process, and gives it to the program's account, so that the
/// program can open it by its name.
fn take_terminal(terminal: &OwnedFd, change: Option<&Account>, caller: u32) -> io::Result<()> {
    let found = File::from(terminal.try_clone()?).metadata()?;
    // The major numbers of Unix 98 terminals. Only the caller's own terminals are given away.
    let is_terminal = found.file_type().is_char_device()
        && (136..=143).contains(&libc::major(found.rdev()))
        && found.uid() == caller;
    if !is_terminal {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no terminal"));
    }
    // SAFETY: a descriptor and plain numbers.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) })?;
    if let Some(account) = change {
        std::os::unix::fs::fchown(terminal, Some(account.uid), None)?;
    }
    Ok(())
}

fn enter(folder: &CStr) -> io::Result<()> {
    // SAFETY: the path is a C string.
    check(unsafe { libc::chdir(folder.as_ptr()) }).map(drop)
}

/// Only its account may write a program's files, unless the program allows more.
fn close_by_mask() {
    // SAFETY: plain numbers.
    unsafe { libc::umask(0o022) };
}

/// Joins a group of version 1.
fn join(group: &OwnedFd) -> io::Result<()> {
    const CGROUP_MAGIC: i64 = 0x0027_e0eb;
    // SAFETY: zeroed numbers are valid, and the place is valid for writes.
    let kind = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(group.as_raw_fd(), &raw mut found))?;
        found.f_type
    };
    if kind != CGROUP_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is no control group"));
    }
    let path = format!("/proc/self/fd/{}/cgroup.procs", group.as_raw_fd());
    fs::OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?.write_all(b"0")
}

/// Makes a folder in one of the caller's, and gives it to an account.
///
/// # Errors
///
/// The folder around it is not the caller's, or there is something of this name.
pub(crate) fn make_own(path: &Path, change: Option<&Account>, caller: u32) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY)
        .open(parent)?;
    // Otherwise the caller could make folders everywhere with the launcher's privileges.
    check_callers(&folder, caller)?;
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        // Nothing is given away that was there before.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || change.is_some() => {
            return Err(error);
        }
        Ok(()) | Err(_) => {}
    }
    let Some(account) = change else { return Ok(()) };
    give(&path, account)
}

/// Refuses a file or folder that is not the caller's own. Root may name everything, and a launcher without privileges
/// can do no more than its caller.
///
/// # Errors
///
/// It is somebody else's.
pub fn check_callers(file: &File, caller: u32) -> io::Result<()> {
    if caller == 0 || sys::uids().1 != 0 || file.metadata()?.uid() == caller {
        return Ok(());
    }
    let words = "it belongs to another account than the caller of tessera-launch";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, words))
}

fn give(path: &Path, account: &Account) -> io::Result<()> {
    let folder = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY)
        .open(path)?;
    if folder.metadata()?.uid() != sys::uids().1 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    std::os::unix::fs::fchown(&folder, Some(account.uid), Some(account.gid))
}

/// Makes the mounts that only this attempt sees. Returns whether there are any.
fn build_walls(order: &Order, account: &Account) -> io::Result<bool> {
    let tmp = order
        .own
        .as_deref()
        .filter(|_| order.walls.private_tmp)
        .map(|own| private_tmp(Path::new(own)));
    if tmp.is_none() && !order.walls.hide_processes {
        return Ok(false);
    }
    // SAFETY: plain numbers.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // What is mounted outside, such as home folders on demand, still appears inside.
    mount(None, "/", None, libc::MS_REC | libc::MS_SLAVE, None)?;
    if let Some(tmp) = tmp {
        if !order.joins {
            fs::DirBuilder::new().mode(0o700).create(&tmp)?;
            give(&tmp, account)?;
        }
        // By its descriptor: the account may have put a link to another's folder in its place.
        let folder = open_own_folder(&tmp, account)?;
        let tmp = format!("/proc/self/fd/{}", folder.as_raw_fd());
        for target in ["/tmp", "/var/tmp"] {
            mount(Some(&tmp), target, None, libc::MS_BIND, None)?;
            let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_NODEV | libc::MS_NOSUID;
            mount(None, target, None, flags, None)?;
        }
    }
    if order.walls.hide_processes {
        hide_processes()?;
    }
    Ok(true)
}

fn open_own_folder(path: &Path, account: &Account) -> io::Result<File> {
    let folder = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY)
        .open(path)?;
    match folder.metadata()?.uid() == account.uid {
        true => Ok(folder),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Tries in this process, which ends afterwards, whether attempts can have private mounts, and a `/proc`
/// that hides others' processes.
pub fn try_walls() -> [bool; 2] {
    // SAFETY: plain numbers.
    let apart = check(unsafe { libc::unshare(libc::CLONE_NEWNS) })
        .and_then(|_| mount(None, "/", None, libc::MS_REC | libc::MS_SLAVE, None));
    [apart.is_ok(), apart.and_then(|()| hide_processes()).is_ok()]
}

fn hide_processes() -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // Kernels that know this option apply it to this mount only.
    mount(Some("proc"), "/proc", Some("proc"), flags, Some("hidepid=invisible"))
}

fn mount(
    source: Option<&str>,
    target: &str,
    kind: Option<&str>,
    flags: libc::c_ulong,
    data: Option<&str>,
) -> io::Result<()> {
    let text = |text: Option<&str>| text.map(CString::new).transpose();
    let (source, target, kind, data) =
        (text(source)?, CString::new(target)?, text(kind)?, text(data)?);
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: all texts are C strings that outlive the call.
    check(unsafe {
        libc::mount(pointer(&source), target.as_ptr(), pointer(&kind), flags, pointer(&data).cast())
    })
    .map(drop)
}

/// Becomes another account, irrevocably.
///
/// # Errors
///
/// The kernel refused, or the change could be undone.
pub fn become_account(account: &Account) -> io::Result<()> {
    // Raw calls: those of the C library change all threads, and wait for them. The bounding set needs a
    // privilege, so it comes first. The group needs the old user's rights, so it comes before the user.
    // SAFETY: plain numbers, and an array that outlives the call.
    unsafe {
        for capability in 0..64 {
            // The first number that the kernel doesn't know is the end.
            if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 {
                break;
            }
        }
        check(libc::syscall(libc::SYS_setgroups, account.groups.len(), account.groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, account.gid, account.gid, account.gid))?;
        check(libc::syscall(libc::SYS_setresuid, account.uid, account.uid, account.uid))?;
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        let (mut real, mut effective, mut saved) = (0, 0, 0);
        check(libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved))?;
        let is_back = account.uid != 0 && libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0;
        if [real, effective, saved] != [account.uid; 3] || is_back {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    Ok(())
}

const LEASE_MAGIC: [u8; 8] = *b"TSRLEAS1";
const LEASE_LENGTH: usize = 44;
/// A read may overlap with a write; the next one then sees a whole page.
const LEASE_READS_MAX: u32 = 8;

/// Returns whether the lease page allows the attempt to run now.
fn is_leased(page: &File, order: &Order) -> bool {
    let read = || {
        let mut bytes = [0; LEASE_LENGTH];
        page.read_exact_at(&mut bytes, 0).ok()?;
        lease_deadline(&bytes, order.generation, &order.boot)
    };
    let deadline = (0..LEASE_READS_MAX).find_map(|_| read());
    deadline.is_some_and(|deadline| sys::boot_millis() < deadline.unwrap_or(0))
}

/// Returns until when attempts of a generation may run; `None` for no whole page.
fn lease_deadline(
    page: &[u8; LEASE_LENGTH],
    generation: u64,
    boot: &[u8; 16],
) -> Option<Option<u64>> {
    let (body, sum) = page.split_first_chunk::<40>()?;
    if sum != crc32(body).to_le_bytes() || body[..8] != LEASE_MAGIC {
        return None;
    }
    let number = |at: usize| body[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let is_ours = number(8)? == generation && body[24..] == *boot;
    Some(number(16).filter(|_| is_ours))
}

/// The check sum of the lease page (IEEE).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 }
        })
    })
}

/// Becomes the account of a file's reader; used for what is done with a user's files outside of an attempt.
pub fn become_reader(change: Option<&Account>) -> io::Result<()> {
    change.map_or(Ok(()), become_account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_sum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_caller_gets_folders_only_in_what_is_its_own() {
        if sys::uids().1 != 0 {
            // Without privileges the kernel checks that.
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (own, caller) = (folder.path().join("own"), 64_010);

        let refused = make_own(&own, None, caller).unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        assert!(!own.exists());
        std::os::unix::fs::chown(folder.path(), Some(caller), None).unwrap();
        make_own(&own, None, caller).unwrap();
        assert!(own.is_dir());
        // A link in the caller's folder is not followed.
        let (link, other) = (folder.path().join("link"), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(other.path(), &link).unwrap();
        assert!(make_own(&link.join("x"), None, caller).is_err());
        assert!(!other.path().join("x").exists());
    }

    #[test]
    fn a_lease_of_another_generation_or_boot_allows_nothing() {
        let mut page = [0; LEASE_LENGTH];
        page[..8].copy_from_slice(&LEASE_MAGIC);
        page[8..16].copy_from_slice(&3_u64.to_le_bytes());
        page[16..24].copy_from_slice(&1_000_u64.to_le_bytes());
        page[24..40].copy_from_slice(&[7; 16]);
        let sum = crc32(&page[..40]);
        page[40..].copy_from_slice(&sum.to_le_bytes());

        assert_eq!(lease_deadline(&page, 3, &[7; 16]), Some(Some(1_000)));
        assert_eq!(lease_deadline(&page, 4, &[7; 16]), Some(None));
        assert_eq!(lease_deadline(&page, 3, &[8; 16]), Some(None));
        page[20] ^= 1;
        assert_eq!(lease_deadline(&page, 3, &[7; 16]), None);
    }
}
