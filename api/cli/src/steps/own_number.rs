//! `SLURM_TASK_PID`: the number of a step's process, among its own variables.
//!
//! The number exists only once the process does. So each process begins as this program, which adds its number to the
//! environment and becomes the step's program. What can't be executed is reported by the process itself, as under Slurm.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use tokio::process::Command;

/// What `srun` returns if a program can't be started.
pub const NOT_STARTED: u8 = 2;

/// The variable with the number.
pub const TASK_PID: &str = "SLURM_TASK_PID";

/// The hidden verb by which a process begins. It is read before all others, because a step may have many processes.
const VERB: &str = "step-process";

/// Returns a command that becomes a program with these arguments.
pub fn command_of(words: &[String]) -> Command {
    if cfg!(test) {
        // The program of unit tests has no verbs; the clusters of load-tests run the whole way.
        let mut command = Command::new(words.first().map_or("", String::as_str));
        command.args(words.iter().skip(1));
        return command;
    }
    // The file of this very program, also if another has taken its place by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tessera").arg(VERB).args(words);
    command
}

/// Becomes a step's program, if the process began with the verb for it. It returns the exit code if the program can't be
/// executed.
pub fn become_program(arguments: &[OsString]) -> Option<u8> {
    let [_, verb, program, rest @ ..] = arguments else { return None };
    if verb != VERB {
        return None;
    }
    let own = std::process::id().to_string();
    let error = std::process::Command::new(program).args(rest).env(TASK_PID, own).exec();
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_default();
    Some(report_not_started(&node, &program.to_string_lossy(), &error))
}

/// Prints that a process's program can't be executed, as Slurm does, and returns the step's exit code.
pub fn report_not_started(node: &str, program: &str, error: &std::io::Error) -> u8 {
    eprintln!("slurmstepd-{node}: error: execve(): {program}: {}", plain(error));
    NOT_STARTED
}

/// Returns an error of the system in the words of the C library.
pub fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_verbs_start_no_program() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(become_program(&words(&["tessera", "step", "true"])), None);
        assert_eq!(become_program(&words(&["tessera", VERB])), None);
    }
}
