//! The program that divides GPUs, started as root for an agent that has its own account.
//!
//! The agent reaches it by its standard streams only. The launcher stays between them: the agent may not signal
//! root's processes, so that the end of its input is what ends the worker, also one that hangs.

use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};

use crate::helper::{become_effective, check_trusted, find_settings};
use crate::policy::WorkerRules;
use crate::sys::{self, Child, Forked};

/// Argument with which the program starts the worker. The library follows, and the worker's task.
pub const FLAG: &str = "--nvml-worker";
/// What the worker may be started for, in addition to its requests.
const EVENTS: &str = "--events";

/// Returns whether this program starts a worker for its caller.
pub fn is_allowed() -> bool {
    let (caller, own) = sys::uids();
    find_settings(caller, own).is_ok_and(|settings| settings.worker.is_some())
}

/// Runs the worker to its end; returns only why it was not started.
pub fn main(arguments: impl Iterator<Item = String>) -> io::Error {
    match start(arguments) {
        Ok(worker) => {
            attend(&worker);
            sys::exit(0)
        }
        Err(error) => error,
    }
}

fn start(mut arguments: impl Iterator<Item = String>) -> io::Result<Child> {
    let refuse = |reason: String| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    let (caller, own) = sys::uids();
    let rules = find_settings(caller, own)?.worker.ok_or_else(|| {
        refuse("it starts no NVML worker: write nvml = LIBRARY into launch.conf".to_owned())
    })?;
    let library = arguments.next().unwrap_or_default();
    if library != rules.library {
        let allowed = &rules.library;
        return Err(refuse(format!("the NVML worker may load {allowed} only, not {library}")));
    }
    let events = match arguments.next().as_deref() {
        None => false,
        Some(EVENTS) => true,
        Some(other) => return Err(refuse(format!("the NVML worker takes no {other}"))),
    };
    check_trusted(&File::open(&rules.program)?, &rules.program)?;
    let (arguments, environment) = words(&rules, events).map_err(io::Error::other)?;
    become_effective(own)?;
    sys::ignore_signals();
    sys::close_others_on_exec();
    std::env::set_current_dir("/")?;
    let null = File::options().write(true).open("/dev/null")?;
    match sys::fork(None, false)? {
        Forked::Parent(child) => {
            // The agent sees the end of the worker's output.
            sys::replace(null.as_fd(), 1)?;
            Ok(child)
        }
        Forked::Child { .. } => {
            sys::reset_signals();
            let error = sys::execute(&arguments[0], &arguments, &environment);
            let _ = writeln!(io::stderr(), "tessera-launch: {}: {error}", rules.program);
            sys::exit(1)
        }
    }
}

fn words(rules: &WorkerRules, events: bool) -> Result<(Vec<CString>, Vec<CString>), NulError> {
    let fixed = [&rules.program, "nvml-worker", "--nvml", &rules.library];
    let arguments = fixed.into_iter().chain(events.then_some(EVENTS));
    let arguments = arguments.map(CString::new).collect::<Result<_, _>>()?;
    let environment = rules.environment.iter().map(|pair| CString::new(pair.as_str()));
    Ok((arguments, environment.collect::<Result<_, _>>()?))
}

/// Waits for the worker's end. The end of the agent's input kills it.
pub(crate) fn attend(worker: &Child) {
    let input = io::stdin();
    loop {
        let [gone, ended] = sys::poll_ends(input.as_fd().as_raw_fd(), worker.pidfd.as_raw_fd());
        if gone {
            worker.kill();
        }
        if gone || ended {
            break;
        }
    }
    // One that hangs in the kernel keeps this process waiting, by which the agent counts it.
    sys::wait(worker.pid, true);
}
