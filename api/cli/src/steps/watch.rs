//! Ends a step's processes on the caller's own node when the caller is killed, which can't do that itself.
//!
//! A separate process reads from a pipe which process groups exist. The pipe's end means that the
//! caller is gone.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use crate::own_program;

/// How long processes have for their end.
const GRACE: Duration = Duration::from_secs(3);
/// The last message of a caller that ends by itself.
const DONE: &str = "done";

/// The caller's end.
#[derive(Debug)]
pub struct StepWatch(Option<ChildStdin>);

impl StepWatch {
    /// Starts the process that watches.
    ///
    /// # Errors
    ///
    /// This program can't be started.
    pub fn start() -> io::Result<Self> {
        let mut command = own_program::command("step-watch")?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal to the caller's group must not end it.
        Ok(Self(command.process_group(0).spawn()?.stdin.take()))
    }

    /// Adds a process group.
    pub fn add(&mut self, group: Pid) {
        self.write(&group.as_raw_pid().to_string());
    }

    /// Removes one whose process has ended, since its number may soon be reused.
    pub fn remove(&mut self, group: Pid) {
        self.write(&format!("-{}", group.as_raw_pid()));
    }

    fn write(&mut self, line: &str) {
        // A caller that has ended no longer watches, and the step continues.
        let _ = self.0.as_mut().map(|to| writeln!(to, "{line}"));
    }
}

impl Drop for StepWatch {
    fn drop(&mut self) {
        self.write(DONE);
    }
}

/// Watches for the caller at this process's standard input.
///
/// # Errors
///
/// Signals can't be caught.
pub async fn run_watch() -> io::Result<()> {
    // It ends with the caller, and not by signals that are meant for the caller.
    let _caught = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::quit())?,
        signal(SignalKind::user_defined1())?,
        signal(SignalKind::user_defined2())?,
    ];
    let left = tokio::task::spawn_blocking(|| left_behind(io::stdin().lock())).await;
    let left = left.unwrap_or_default();
    if left.is_empty() {
        return Ok(());
    }
    for number in [Signal::TERM, Signal::CONT] {
        end(&left, number);
    }
    tokio::time::sleep(GRACE).await;
    end(&left, Signal::KILL);
    Ok(())
}

fn end(groups: &HashSet<Pid>, number: Signal) {
    for group in groups {
        // A process that has ended needs no signal.
        let _ = kill_process_group(*group, number);
    }
}

/// Returns the groups that a caller leaves behind; none, if it has ended by itself.
fn left_behind(from: impl io::BufRead) -> HashSet<Pid> {
    let mut groups = HashSet::new();
    for line in from.lines().map_while(Result::ok) {
        let (word, ends) = match line.strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (line.as_str(), false),
        };
        if word == DONE {
            return HashSet::new();
        }
        let Some(group) = word.parse().ok().and_then(Pid::from_raw) else { continue };
        match ends {
            true => drop(groups.remove(&group)),
            false => drop(groups.insert(group)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> Vec<i32> {
        let mut left: Vec<i32> =
            left_behind(text.as_bytes()).into_iter().map(Pid::as_raw_pid).collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn a_killed_caller_leaves_the_processes_that_have_not_ended() {
        assert_eq!(left("7\n8\n9\n-8\n"), [7, 9]);
        assert!(left("7\n8\n-7\ndone\n").is_empty(), "it ended by itself");
        assert!(left("").is_empty());
    }
}
