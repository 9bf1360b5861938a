//! The two ends of a program's streams: a terminal or pipes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tessera_frames::cluster::LogStream;
use tessera_launch::order::{Input, Output};
use tessera_model::batch::TerminalSize;

/// What a terminal sends for the end of input (Ctrl-D).
const END_OF_TRANSMISSION: u8 = 4;

/// The shepherd's end.
#[derive(Debug)]
pub struct Channel {
    /// Takes the program's input, until that is over.
    pub input: Option<File>,
    /// Give the program's outputs, until they are over.
    pub outputs: Vec<(LogStream, File)>,
    /// The terminal, if there is one.
    terminal: Option<OwnedFd>,
}

/// The program's end, for its launcher.
#[derive(Debug)]
pub struct ProgramEnd {
    /// Standard input.
    pub input: OwnedFd,
    /// The kind of input.
    pub kind: Input,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error, if it is another one.
    pub stderr: Option<OwnedFd>,
}

impl ProgramEnd {
    /// Returns where standard error goes.
    pub const fn stderr_output(&self) -> Output {
        if self.stderr.is_some() { Output::Given } else { Output::SameAsStdout }
    }
}

impl Channel {
    /// Opens a terminal, or pipes.
    ///
    /// # Errors
    ///
    /// No descriptor or no terminal is left.
    pub fn open(terminal: Option<TerminalSize>) -> io::Result<(Self, ProgramEnd)> {
        match terminal {
            Some(size) => Self::open_terminal(size),
            None => Self::open_pipes(),
        }
    }

    fn open_terminal(size: TerminalSize) -> io::Result<(Self, ProgramEnd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        // Not by its name: another mount of /dev/pts may have another terminal of that name.
        let program = ioctl_tiocgptpeer(&master, flags)?;
        let never_blocks = fcntl_getfl(&master)? | OFlags::NONBLOCK;
        fcntl_setfl(&master, never_blocks)?;
        let channel = Self {
            input: Some(File::from(master.try_clone()?)),
            outputs: vec![(LogStream::Stdout, File::from(master.try_clone()?))],
            terminal: Some(master),
        };
        channel.resize(size);
        let end = ProgramEnd {
            stdout: program.try_clone()?,
            stderr: None,
            input: program,
            kind: Input::Terminal,
        };
        Ok((channel, end))
    }

    fn open_pipes() -> io::Result<(Self, ProgramEnd)> {
        let ends = || -> io::Result<(OwnedFd, OwnedFd)> { Ok(pipe_with(PipeFlags::CLOEXEC)?) };
        let (input, ours_in) = ends()?;
        let (ours_out, stdout) = ends()?;
        let (ours_err, stderr) = ends()?;
        // Only these ends: the program's own would surprise it.
        for ours in [&ours_in, &ours_out, &ours_err] {
            fcntl_setfl(ours, fcntl_getfl(ours)? | OFlags::NONBLOCK)?;
        }
        let channel = Self {
            input: Some(File::from(ours_in)),
            outputs: vec![
                (LogStream::Stdout, File::from(ours_out)),
                (LogStream::Stderr, File::from(ours_err)),
            ],
            terminal: None,
        };
        let end = ProgramEnd { input, kind: Input::Given, stdout, stderr: Some(stderr) };
        Ok((channel, end))
    }

    /// Returns whether it is a terminal.
    pub const fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Resizes the terminal, which signals the program; pipes have no size.
    pub fn resize(&self, size: TerminalSize) {
        let Some(terminal) = &self.terminal else { return };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        // Fails only for something that is not a terminal.
        let _ = tcsetwinsize(terminal.as_fd(), size);
    }

    /// Ends the input: a pipe is closed, a terminal sends what a person would type.
    pub fn end_input(&mut self) {
        let Some(input) = self.input.take() else { return };
        if self.is_terminal() {
            // A program that reads nothing has filled it, and misses the end as it would at a real one.
            let _ = io::Write::write(&mut &input, &[END_OF_TRANSMISSION]);
        }
    }

    /// Closes everything: a terminal that is closed sends its program `SIGHUP`.
    pub fn close(&mut self) {
        self.input = None;
        self.outputs.clear();
        self.terminal = None;
    }
}
