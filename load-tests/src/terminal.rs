//! A terminal with a program in it, as a user has one: keys are written, and the screen's bytes are
//! read.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::wait;

/// A program with its own terminal. Its end kills the program.
#[derive(Debug)]
pub struct Terminal {
    keys: File,
    screen: Arc<(Mutex<Vec<u8>>, Condvar)>,
    child: Child,
}

impl Terminal {
    /// Starts a program in a new terminal of 24 lines and 80 columns.
    ///
    /// # Panics
    ///
    /// There is no terminal, or no such program.
    pub fn start(command: &mut Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        unlockpt(&master).expect("a terminal");
        let program = ioctl_tiocgptpeer(&master, flags).expect("its other end");
        let keys = File::from(master);
        resize(&keys, 24, 80);
        let stream = || program.try_clone().expect("a descriptor");
        command.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: only system calls that are allowed after a fork; descriptor 0 is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().expect("the program starts");
        // Also the copies that the command keeps: the screen must end with the program.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        drop(program);
        let screen = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let mut reader = keys.try_clone().expect("a descriptor");
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            // A terminal whose program has ended returns an error.
            while let Ok(read @ 1..) = reader.read(&mut chunk) {
                let mut bytes = shown.0.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&chunk[..read]);
                shown.1.notify_all();
            }
        });
        Self { keys, screen, child }
    }

    /// Types.
    ///
    /// # Panics
    ///
    /// The terminal is closed.
    pub fn type_in(&mut self, keys: impl AsRef<[u8]>) {
        self.keys.write_all(keys.as_ref()).expect("the terminal accepts keys");
    }

    /// Resizes the terminal, which signals the program.
    pub fn resize(&self, rows: u16, columns: u16) {
        resize(&self.keys, rows, columns);
    }

    /// Returns what was shown so far.
    pub fn shown(&self) -> Vec<u8> {
        self.screen.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets what was shown so far.
    pub fn clear(&self) {
        self.screen.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits until a text is shown, and returns all that is.
    ///
    /// # Panics
    ///
    /// It is not, after `within`.
    #[track_caller]
    pub fn wait_for(&self, text: impl AsRef<[u8]>, within: Duration) -> Vec<u8> {
        let text = text.as_ref();
        let deadline = Instant::now() + within;
        let mut bytes = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if bytes.windows(text.len()).any(|part| part == text) {
                return bytes.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "not shown: {:?}, but {:?}",
                String::from_utf8_lossy(text),
                String::from_utf8_lossy(&bytes)
            );
            bytes =
                self.screen.1.wait_timeout(bytes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether the program has made the terminal raw: keys are then passed on as they are.
    ///
    /// # Panics
    ///
    /// The terminal is closed.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(self.keys.as_fd()).expect("the terminal's settings").local_modes;
        !modes.contains(LocalModes::ICANON)
    }

    /// Returns the program's pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program without notice.
    ///
    /// # Panics
    ///
    /// It doesn't run.
    pub fn kill(&mut self) {
        self.child.kill().expect("the program runs");
        self.child.wait().expect("it ends");
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    ///
    /// It has not ended after `within`.
    #[track_caller]
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        let ended = wait::within_time(within, || self.child.try_wait().expect("a child"));
        ended.unwrap_or_else(|| panic!("it still runs: {}", String::from_utf8_lossy(&self.shown())))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal has a size");
}
