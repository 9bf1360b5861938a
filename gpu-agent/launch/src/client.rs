//! The other side of the launcher: starting one, and reading a user's file through one.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::helper::{PROBE_FLAG, PROTOCOL_FLAG, VERSION};
use crate::order::{FileOrder, Reply, Request};
use crate::socket::{Received, Socket};
use crate::sys;

/// A launcher that runs.
#[derive(Debug)]
pub struct LauncherProcess {
    /// The connection to it.
    pub socket: Socket,
    child: Child,
}

impl LauncherProcess {
    /// Starts a launcher. It ends with its connection.
    ///
    /// # Errors
    ///
    /// The program can't be run.
    pub fn start(program: &Path) -> io::Result<Self> {
        let (socket, theirs) = Socket::pair()?;
        let child = Command::new(program)
            .env_clear()
            .stdin(theirs.into_end())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { socket, child })
    }

    /// Closes the connection, which ends the launcher and everything that it started.
    pub fn dismiss(self) -> EndingLauncher {
        drop(self.socket);
        EndingLauncher(self.child)
    }

    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// A launcher whose connection has ended.
#[derive(Debug)]
pub struct EndingLauncher(Child);

impl EndingLauncher {
    /// Waits until it and everything that it started have ended.
    pub fn reap(mut self) {
        // Fails only if it was reaped elsewhere.
        let _ = self.0.wait();
    }
}

/// Why a user's file is not open.
#[derive(Debug)]
pub enum ReadError {
    /// The launcher failed.
    Launcher(io::Error),
    /// The launcher gave another answer than a file.
    Answer(Reply),
    /// The launcher sent no descriptor.
    NoDescriptor,
    /// The user has no permission, or it is another file: the launcher's message.
    Refused(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launcher(error) => write!(f, "tessera-launch failed: {error}"),
            Self::Answer(reply) => write!(f, "tessera-launch answered {reply:?}"),
            Self::NoDescriptor => f.write_str("no descriptor came"),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

impl Error for ReadError {}

/// Why a launcher's program can't be used.
#[derive(Debug)]
pub enum LaunchProgramError {
    /// It can't be run.
    Run(PathBuf, io::Error),
    /// It speaks another version of the protocol.
    Version(PathBuf, u16),
    /// It prints no version.
    NoVersion(PathBuf),
}

impl fmt::Display for LaunchProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(program, error) => write!(f, "{} can't be run: {error}", program.display()),
            Self::Version(program, version) => write!(
                f,
                "{} speaks version {version} of the launcher's protocol, this program version \
                 {VERSION}: install both from one release",
                program.display()
            ),
            Self::NoVersion(program) => write!(
                f,
                "{} prints no version: install it from the release of this agent",
                program.display()
            ),
        }
    }
}

impl Error for LaunchProgramError {}

/// Opens a file as its account, in another process that may hang.
///
/// # Errors
///
/// The launcher failed, or the user may not read the file.
pub fn open_as(
    program: &Path,
    file: FileOrder,
    (device, inode, born): (u64, u64, u64),
) -> Result<File, ReadError> {
    // The child has its own timeout; this one is for a launcher that fails.
    let patience = i32::try_from(file.within_ms).unwrap_or(i32::MAX).saturating_add(2_000);
    let answer = query(program, &Request::Read { file, device, inode, born }, patience);
    match answer.map_err(ReadError::Launcher)? {
        (Reply::Opened { refusal }, mut descriptors) if refusal.is_empty() => {
            descriptors.pop().map(File::from).ok_or(ReadError::NoDescriptor)
        }
        (Reply::Opened { refusal }, _) => Err(ReadError::Refused(refusal)),
        (reply, _) => Err(ReadError::Answer(reply)),
    }
}

/// Removes what is in a folder as its account, as far as that can be done in time.
pub fn remove_as(program: &Path, folder: FileOrder) {
    let patience = i32::try_from(folder.within_ms).unwrap_or(i32::MAX).saturating_add(2_000);
    // The next sweep of outputs tries again to remove what is left.
    let _ = query(program, &Request::Remove(folder), patience);
}

fn query(program: &Path, request: &Request, patience: i32) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let mut launcher = LauncherProcess::start(program)?;
    let answered = launcher.socket.request(request, &[]).and_then(|()| {
        sys::poll(&[launcher.socket.number()], patience);
        match launcher.socket.receive_reply()? {
            Received::Message(reply, descriptors) => Ok((reply, descriptors)),
            Received::Nothing => Err(io::ErrorKind::TimedOut.into()),
            Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    });
    drop(launcher.socket);
    // It ends with its connection.
    let _ = launcher.child.wait();
    answered
}

/// Reads which version of the protocol a launcher's program has.
///
/// # Errors
///
/// It can't be run, or it has another version: launcher, shepherd and agent belong together.
pub fn check_program(program: &Path) -> Result<(), LaunchProgramError> {
    let shown = || program.to_owned();
    let output = Command::new(program).arg(PROTOCOL_FLAG).stdin(Stdio::null()).output();
    let output = output.map_err(|error| LaunchProgramError::Run(shown(), error))?;
    match String::from_utf8_lossy(&output.stdout).trim().parse::<u16>() {
        Ok(VERSION) => Ok(()),
        Ok(version) => Err(LaunchProgramError::Version(shown(), version)),
        Err(_) => Err(LaunchProgramError::NoVersion(shown())),
    }
}

/// What a launcher can do on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one ability")]
pub struct Abilities {
    /// It can give attempts private mounts, such as a private `/tmp`.
    pub mounts: bool,
    /// It can hide other accounts' processes from attempts.
    pub hidden_processes: bool,
    /// It can close device nodes.
    pub device_filters: bool,
    /// It starts the program that divides GPUs as root, for a caller that isn't.
    pub nvml_worker: bool,
    /// It starts the program that serves MPS as a user, for a caller that isn't root.
    pub mps: bool,
}

/// Lets a launcher try what it can do. A program that can't be run can do nothing.
pub fn probe(program: &Path) -> Abilities {
    let output = Command::new(program).arg(PROBE_FLAG).stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let can = |word: &str| text.split_whitespace().any(|found| found == word);
    Abilities {
        mounts: can("mounts"),
        hidden_processes: can("hidden-processes"),
        device_filters: can("device-filters"),
        nvml_worker: can("nvml-worker"),
        mps: can("mps"),
    }
}
