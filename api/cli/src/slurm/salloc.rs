//! `salloc`: holds a slice while a command or a shell runs here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use rustix::process::{Pid, Signal, kill_process};
use tessera_api_types::SessionOpening;
use tessera_client::JobVerb;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};

use super::{Done, SlurmCommand, SlurmFailure, VERSION, connect, explain_usage, write_out};
use crate::failure::CommandFailure;
use crate::interactive::{Collected, Conversation, InteractiveJob, LocalInput, Output, SessionEnd};
use crate::session::CommandSession;
use crate::submit::{JobSource, SlurmOptions, SubmitContext, SubmitDialect, VariablePrefix};

/// The variable that names the job whose slice `salloc` holds, for `srun`.
pub const ALLOCATION: &str = "TESSERA_ALLOCATION";
/// The program of a job that only holds its slice: it ends when its input ends.
const HOLDER: &str = "/bin/cat";
/// Prints the environment of the job, which names what is allocated.
const ENVIRONMENT: [&str; 2] = ["/usr/bin/env", "-0"];
/// Variables of processes in the job: `salloc` sets only those of the allocation.
const OF_PROCESSES: [&str; 14] = [
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GTIDS",
    "SLURM_JOB_GPUS",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "SLURM_TASK_PID",
    "SLURM_TMPDIR",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
];

/// Allocates GPUs, and runs a command here while they are held, as Slurm's salloc does.
#[derive(Parser)]
struct Salloc {
    #[command(flatten)]
    slurm: SlurmOptions,
    /// Print nothing about the job
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// The command and its arguments; by default your shell
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

/// Runs the command line.
pub async fn run(arguments: Vec<OsString>) -> Done {
    if arguments.get(1).is_some_and(|word| word == "--version" || word == "-V") {
        write_out(&format!("{VERSION}\n"))?;
        return Ok(0);
    }
    let parser = Salloc::command()
        .name("salloc")
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_subcommand(true);
    let parsed = parser
        .try_get_matches_from(arguments)
        .and_then(|matches| Salloc::from_arg_matches(&matches));
    match parsed {
        Ok(line) => line.run().await,
        Err(wrong) => Ok(explain_usage(SlurmCommand::Salloc, &wrong)?),
    }
}

impl Salloc {
    async fn run(self) -> Done {
        let Self { slurm, quiet, command } = self;
        let around = SubmitContext::find(SubmitDialect::Slurm(VariablePrefix::Salloc))?;
        let mut prepared = slurm.prepare(JobSource::Program(vec![HOLDER.to_owned()]), &around)?;
        let request = &mut prepared.request;
        // The command's output stays here.
        (request.stdout, request.stderr, request.open_mode) = (None, None, None);
        request.name.get_or_insert_with(|| "interactive".to_owned());
        let note = |text: String| {
            if !quiet {
                eprintln!("salloc: {text}");
            }
        };
        prepared.warnings.iter().for_each(|warning| note(format!("warning: {warning}")));
        let session = connect()?;
        let held = InteractiveJob::submit(&session, prepared.request, false).await?;
        let held = held.map_err(|refused| {
            let text = format!("salloc: error: Job submit/allocate failed: {refused}");
            SlurmFailure::Message(text)
        })?;
        held.remarks.iter().for_each(|remark| note(remark.clone()));
        let job = held.job;
        note(format!("Pending job allocation {job}"));
        let (release, input) = mpsc::channel(1);
        let (begun, has_begun) = oneshot::channel();
        let client = session.client.with_patience(tessera_client::RetryPatience::LONG);
        let talk = held.conversation(client, LocalInput::of(input)).notifying(begun);
        let mut silence = Silence;
        let talk = talk.run(&mut silence);
        tokio::pin!(talk);
        let ended = tokio::select! {
            ended = &mut talk => Some(ended?),
            _ = has_begun => None,
        };
        match ended {
            Some(SessionEnd::Interrupted(_)) => {
                session.client.act(job, JobVerb::Cancel).await?;
                note(format!("Job allocation {job} has been revoked."));
                return Ok(1);
            }
            Some(SessionEnd::NotStarted(reason)) => {
                return Err(SlurmFailure::Message(format!("salloc: error: {reason}")));
            }
            Some(SessionEnd::Exited(_) | SessionEnd::Replaced) => {
                note(format!("Job allocation {job} has been revoked."));
                return Ok(1);
            }
            None => {}
        }
        let allocated = allocated(&session, &held).await;
        let allocated = match allocated {
            Ok(allocated) => allocated,
            Err(failed) => {
                session.client.act(job, JobVerb::Cancel).await?;
                return Err(failed.into());
            }
        };
        note(format!("Granted job allocation {job}"));
        let nodes = allocated.get("SLURM_JOB_NODELIST").cloned().unwrap_or_default();
        note(format!("Nodes {nodes} are ready for job"));
        let mut child = match spawn(command, &allocated) {
            Ok(child) => child,
            Err(failed) => {
                session.client.act(job, JobVerb::Cancel).await?;
                return Err(failed.into());
            }
        };
        let (code, revoked) = tokio::select! {
            status = child.wait() => (code_of(status?), false),
            // The job has ended, by its time limit for example: the command has no more to do.
            _ = &mut talk => {
                note(format!("Job allocation {job} has been revoked."));
                let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                if let Some(pid) = pid {
                    // One that has just ended needs no signal.
                    let _ = kill_process(pid, Signal::HUP);
                    let _ = kill_process(pid, Signal::CONT);
                }
                (code_of(child.wait().await?), true)
            }
        };
        if revoked {
            return Ok(code);
        }
        note(format!("Relinquishing job allocation {job}"));
        drop(release);
        // The holder ends with its input; an end that is not seen is that of the job's client a minute later.
        if talk.await.is_err() {
            session.client.act(job, JobVerb::Cancel).await?;
        }
        Ok(code)
    }
}

/// Takes the output of a program that has none.
struct Silence;

impl Output for Silence {
    async fn stdout(&mut self, _: Vec<u8>) -> std::io::Result<()> {
        Ok(())
    }

    async fn stderr(&mut self, _: Vec<u8>) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads the allocation's variables from the job itself, so that they are those that its steps see.
async fn allocated(
    session: &CommandSession,
    held: &InteractiveJob,
) -> Result<BTreeMap<String, String>, CommandFailure> {
    let opening = SessionOpening {
        program: ENVIRONMENT.map(str::to_owned).into(),
        ..SessionOpening::default()
    };
    let name = (held.job, uuid::Uuid::new_v4().to_string());
    let mut printed = Collected::default();
    let talk = Conversation::new(session.client.clone(), name, opening, LocalInput::none());
    match talk.run(&mut printed).await? {
        SessionEnd::Exited(0) => {}
        other => {
            let problem = format!("the allocation can't be read from the job: {other:?}");
            return Err(CommandFailure::refused(problem));
        }
    }
    let mut variables: BTreeMap<String, String> = of_allocation(&printed.0);
    variables.insert(ALLOCATION.to_owned(), held.job.to_string());
    Ok(variables)
}

/// Picks the variables of an allocation out of an environment as the kernel writes it.
fn of_allocation(environment: &[u8]) -> BTreeMap<String, String> {
    let pairs = environment.split(|byte| *byte == 0);
    let texts = pairs.filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('='));
    let of_job =
        texts.filter(|(name, _)| name.starts_with("SLURM_") && !OF_PROCESSES.contains(name));
    of_job.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn spawn(
    command: Vec<String>,
    variables: &BTreeMap<String, String>,
) -> Result<tokio::process::Child, CommandFailure> {
    let shell = || std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
    let mut words = command.into_iter();
    let program = words.next().or_else(shell).unwrap_or_else(|| "/bin/sh".to_owned());
    let spawned = Command::new(&program).args(words).envs(variables).spawn();
    spawned.map_err(|error| CommandFailure::refused(format!("{program}: {error}")))
}

/// Returns an exit code as shells do.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Salloc::command().debug_assert();
    }

    #[test]
    fn only_variables_of_the_allocation_are_taken() {
        let found = of_allocation(
            b"SLURM_JOB_ID=7\0SLURM_PROCID=0\0PATH=/bin\0CUDA_VISIBLE_DEVICES=0\0SLURM_JOB_NODELIST=n1\0",
        );

        let expected = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n1")];
        assert_eq!(found, expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
    }
}
