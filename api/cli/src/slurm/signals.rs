//! `scancel --signal`: signals to the processes of a running job.
//!
//! They are sent by a short session in the job, which runs as the job's user on its node: only there its processes are
//! known. A step over several nodes passes them on to its ranks elsewhere.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, getsid, kill_process};
use tessera_api_types::{JobRecord, RecordFilter, SessionOpening};
use tessera_model::{JobId, JobRef};

use super::SlurmFailure;
use crate::failure::CommandFailure;
use crate::interactive::{Conversation, LocalInput, OwnOutput, SessionEnd};
use crate::own_program;
use crate::session::CommandSession;

/// How often a job that is being started is looked at: for half a minute.
const LOOKS: u32 = 600;

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The command of this program that finds the processes, inside of the job.
const COMMAND: &str = "signal-processes";

/// Which processes of a job get a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SignalTarget {
    /// Those that `srun` started.
    Steps,
    /// The script's shell, or the program.
    Script,
    /// Both.
    All,
}

impl SignalTarget {
    const fn word(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Script => "script",
            Self::All => "all",
        }
    }
}

/// Sends a signal to running jobs. Returns 1 if a job does not run, and 0 for jobs that are unknown or have ended, as
/// Slurm does.
///
/// # Errors
///
/// The controller, or the node of a job, can't be reached.
pub async fn send(
    session: &CommandSession,
    jobs: &[JobRef],
    signal: i32,
    target: SignalTarget,
) -> Result<u8, SlurmFailure> {
    let mut code = 0;
    if jobs.is_empty() {
        return Ok(code);
    }
    let named: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    for record in started(session, &named.join(",")).await? {
        match (record.state.as_str(), record.rank) {
            // The first member of a gang has the steps; they pass signals on.
            ("running" | "stopping", None | Some(0)) => {
                code = code.max(send_one(session, &record, signal, target).await?);
            }
            ("queued" | "held", None | Some(0)) => {
                eprintln!(
                    "scancel: error: Kill job error on job id {}: Job is pending execution",
                    record.id
                );
                code = 1;
            }
            _ => {}
        }
    }
    Ok(code)
}

/// Returns jobs once none of them is being started: a program may signal its own job before the controller knows that it
/// runs.
async fn started(session: &CommandSession, jobs: &str) -> Result<Vec<JobRecord>, SlurmFailure> {
    let filter = RecordFilter { jobs: Some(jobs.to_owned()), ..RecordFilter::default() };
    let mut records = session.client.records(&filter).await?.jobs;
    for _ in 0..LOOKS {
        if records.iter().all(|record| record.state != "starting") {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
        records = session.client.records(&filter).await?.jobs;
    }
    Ok(records)
}

async fn send_one(
    session: &CommandSession,
    record: &JobRecord,
    signal: i32,
    target: SignalTarget,
) -> Result<u8, SlurmFailure> {
    let mut program = own_program::words(COMMAND).map_err(CommandFailure::from)?;
    program.extend([signal.to_string(), target.word().to_owned()]);
    let opening = SessionOpening { program, ..SessionOpening::default() };
    let name = (JobRef::Job(JobId::from_number(record.id)), uuid::Uuid::new_v4().to_string());
    let client = session.client.clone();
    let conversation = Conversation::new(client, name, opening, LocalInput::none());
    let failed = match conversation.run(&mut OwnOutput).await {
        Ok(SessionEnd::Exited(0)) => return Ok(0),
        Ok(SessionEnd::NotStarted(why)) if why.starts_with("no such program") => {
            format!("{why}: tessera must have the same path on the job's node")
        }
        Ok(SessionEnd::NotStarted(why)) => why,
        Ok(SessionEnd::Exited(_) | SessionEnd::Interrupted(_) | SessionEnd::Replaced) => {
            "its processes were not found".to_owned()
        }
        Err(failed) => failed.to_string(),
    };
    eprintln!("scancel: error: Kill job error on job id {}: {failed}", record.id);
    Ok(1)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct JobProcess {
    pid: Pid,
    /// Its session's leader.
    session: Pid,
    /// When it started, in the kernel's ticks.
    started: u64,
    is_of_step: bool,
}

/// Signals processes of the job that this process belongs to. Returns 1 if the job's program is not found.
///
/// # Errors
///
/// This is not inside of a job, or there is no such signal.
pub fn signal_processes(number: i32, target: SignalTarget) -> Result<u8, CommandFailure> {
    let inside = || CommandFailure::usage("only scancel calls this, inside of a job");
    // Numbers of jobs are those of one cluster, and attempts' names are unique.
    let attempt = std::env::var("TESSERA_ATTEMPT_ID").map_err(|_| inside())?;
    let signal = Signal::from_named_raw(number).ok_or_else(inside)?;
    let found = processes(&format!("TESSERA_ATTEMPT_ID={attempt}"));
    let Some(program) = program_of(&found) else { return Ok(1) };
    for process in chosen(&found, program, target) {
        // One that has ended needs no signal.
        let _ = kill_process(process, signal);
    }
    Ok(0)
}

/// Lists this account's processes that have a word in their environment.
fn processes(word: &str) -> Vec<JobProcess> {
    let read = |folder: &Path| {
        let pid = Pid::from_raw(folder.file_name()?.to_str()?.parse().ok()?)?;
        let environment = std::fs::read(folder.join("environ")).ok()?;
        let mut words = environment.split(|byte| *byte == 0);
        words.clone().any(|own| own == word.as_bytes()).then_some(())?;
        let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
        // Fields count from the state, behind the name in brackets.
        let started = stat.rsplit(") ").next()?.split(' ').nth(19)?.parse().ok()?;
        let is_of_step = words.any(|own| own.starts_with(b"SLURM_STEP_ID="));
        Some(JobProcess { pid, session: getsid(Some(pid)).ok()?, started, is_of_step })
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read(&entry.path())).collect()
}

/// Returns the job's own program: the leader of a session that started first. Interactive sessions have later ones.
fn program_of(found: &[JobProcess]) -> Option<Pid> {
    let leaders = found.iter().filter(|process| process.pid == process.session);
    leaders
        .min_by_key(|process| (process.started, process.pid.as_raw_pid()))
        .map(|leader| leader.pid)
}

fn chosen(found: &[JobProcess], program: Pid, target: SignalTarget) -> Vec<Pid> {
    let steps = found.iter().filter(|process| {
        target != SignalTarget::Script && process.session == program && process.is_of_step
    });
    let script = (target != SignalTarget::Steps).then_some(program);
    steps.map(|process| process.pid).chain(script).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, session: i32, started: u64, is_of_step: bool) -> JobProcess {
        let pid_of = |number| Pid::from_raw(number).unwrap();
        JobProcess { pid: pid_of(pid), session: pid_of(session), started, is_of_step }
    }

    #[test]
    fn signals_reach_the_steps_the_script_or_both_and_no_interactive_session() {
        let found = [
            process(90, 90, 700, false), // this session
            process(40, 40, 100, false), // the script
            process(41, 40, 150, false), // srun
            process(42, 40, 160, true),
            process(95, 95, 900, true), // a step in an interactive session
        ];
        let program = program_of(&found).unwrap();
        let pids = |target| {
            chosen(&found, program, target).into_iter().map(Pid::as_raw_pid).collect::<Vec<_>>()
        };

        assert_eq!(pids(SignalTarget::Steps), [42]);
        assert_eq!(pids(SignalTarget::Script), [40]);
        assert_eq!(pids(SignalTarget::All), [42, 40]);
    }

    #[test]
    fn the_processes_of_a_job_are_found_by_their_environment() {
        use std::io::{Read as _, Write as _};

        let word = format!("TESSERA_ATTEMPT_ID=test-{}", std::process::id());
        let (name, value) = word.split_once('=').unwrap();
        let mut child = std::process::Command::new("cat")
            .env(name, value)
            .env("SLURM_STEP_ID", "0")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Its environment can be read once the program runs, and `spawn` returns a little earlier.
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();

        let found = processes(&word);

        let pids: Vec<u32> =
            found.iter().map(|process| process.pid.as_raw_pid().cast_unsigned()).collect();
        assert_eq!(pids, [child.id()]);
        assert!(found[0].is_of_step && found[0].started > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
