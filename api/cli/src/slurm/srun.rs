//! `srun`: a step inside of a job; elsewhere its own job, whose output and exit code it passes on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use tessera_api_types::JobView;
use tessera_client::{FollowMode, JobVerb, LogOutput, LogQuery, RetryPatience, SubmitKey};
use tessera_model::{JobId, JobRef};
use tokio::signal::unix::{SignalKind, signal};

use super::salloc::ALLOCATION;
use super::{Done, SlurmCommand, SlurmFailure, VERSION, connect, explain_usage, write_out};
use crate::array_wait::{is_over, wait_for};
use crate::container_options::ContainerOptions;
use crate::failure::CommandFailure;
use crate::interactive::{InteractiveJob, LocalInput, OwnOutput, execute};
use crate::logs::copy_output;
use crate::own_program;
use crate::session::CommandSession;
use crate::steps::{self, Allocation, MPI_LIST, StepMpi, StepOptions, UnusedStepOptions};
use crate::submit::{
    JobSource, NodesOption, PreparedSubmit, SlurmOptions, SubmitContext, SubmitDialect,
    VariablePrefix, with_option_names,
};
use crate::wait::worst;

/// Starts processes in the job that this program runs in, as Slurm's srun does.
#[derive(Parser)]
struct SrunStep {
    #[command(flatten)]
    step: StepOptions,
    #[command(flatten)]
    unused: UnusedStepOptions,
}

/// Submits a job, waits for it, prints its output and returns its exit code, as Slurm's srun does.
#[derive(Parser)]
struct SrunJob {
    #[command(flatten)]
    slurm: SlurmOptions,
    /// Begin each line of output with the number of its process
    #[arg(short, long)]
    label: bool,
    /// End all processes when one fails
    #[arg(short = 'K', long, num_args = 0..=1, require_equals = true, default_missing_value = "1", value_name = "0|1")]
    kill_on_bad_exit: Option<u8>,
    /// Seconds after the first process has ended at which the others are ended; 0 waits for all
    #[arg(short = 'W', long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// The file lists a program for each process: `0 prepare`, `1-3 work %t`
    #[arg(long)]
    multi_prog: bool,
    /// How processes with MPI find each other: `pmi2` or `none`; `list` prints these
    #[arg(long, value_name = "HOW")]
    mpi: Option<StepMpi>,
    /// Print nothing about the job
    #[arg(short = 'Q', long)]
    quiet: bool,
    #[command(flatten)]
    unused: UnusedStepOptions,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    program: Vec<String>,
}

/// Runs a step or a job.
pub async fn run(arguments: Vec<OsString>) -> Done {
    if arguments.get(1).is_some_and(|word| word == "--version" || word == "-V") {
        write_out(&format!("{VERSION}\n"))?;
        return Ok(0);
    }
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let held = environment.get(ALLOCATION).and_then(|job| job.parse().ok());
    match (Allocation::find(environment), held) {
        (Some(allocation), _) => run_step(arguments, &allocation).await,
        (None, Some(job)) => run_remote_step(arguments, JobRef::Job(JobId::from_number(job))).await,
        (None, None) => match named_job(&arguments)? {
            Some(job) => run_remote_step(arguments, job).await,
            None => run_job(arguments).await,
        },
    }
}

/// Returns the running job that a command line outside of jobs starts a step in.
fn named_job(arguments: &[OsString]) -> Result<Option<JobRef>, CommandFailure> {
    // A command line that is none of a step is that of a job, which reports what is wrong.
    let Ok(line) = parse::<SrunStep>(arguments.to_vec()) else { return Ok(None) };
    let Some(named) = line.unused.job() else { return Ok(None) };
    let unknown = || CommandFailure::refused("Invalid job id specified");
    Ok(Some(named.parse().map_err(|_| unknown())?))
}

/// Refuses parts of a heterogeneous job, which would otherwise be arguments of the first program.
fn refuse_parts(program: &[String]) -> Result<(), CommandFailure> {
    match program.iter().any(|word| word == ":") {
        true => Err(CommandFailure::refused(
            "parts that \":\" separates are not supported: name the program of each process in a file with --multi-prog, \
             or start each part by its own srun",
        )),
        false => Ok(()),
    }
}

/// Returns where a program is that was called by its name alone: the other node may have another search path.
fn called_path(program: OsString) -> OsString {
    let is_path = Path::new(&program).components().nth(1).is_some();
    let search = std::env::var_os("PATH").filter(|_| !is_path).unwrap_or_default();
    let found = std::env::split_paths(&search).map(|folder| folder.join(&program));
    found.into_iter().find(|path| path.is_file()).map_or(program, PathBuf::into_os_string)
}

fn parse<P: clap::CommandFactory + clap::FromArgMatches>(
    arguments: Vec<OsString>,
) -> Result<P, clap::Error> {
    let parser = P::command()
        .name("srun")
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_subcommand(true);
    parser.try_get_matches_from(arguments).and_then(|matches| P::from_arg_matches(&matches))
}

async fn run_step(arguments: Vec<OsString>, allocation: &Allocation) -> Done {
    let mut line: SrunStep = match parse(arguments) {
        Ok(line) => line,
        Err(wrong) => return Ok(explain_usage(SlurmCommand::Srun, &wrong)?),
    };
    refuse_parts(&line.step.program)?;
    line.step.stated = line.unused.variables();
    let tasks = line.step.task_count(allocation);
    let remarks = line.unused.check(Some(allocation), tasks).map_err(CommandFailure::refused)?;
    remarks.iter().for_each(|remark| eprintln!("srun: {remark}"));
    if line.unused.has_terminal() {
        return Ok(steps::run_in_terminal(line.step, allocation).await?);
    }
    Ok(steps::run(line.step, allocation).await?)
}

/// Runs a step in an allocation that `salloc` holds: the same command line, on the job's node.
async fn run_remote_step(arguments: Vec<OsString>, job: JobRef) -> Done {
    let line: SrunStep = match parse(arguments.clone()) {
        Ok(line) => line,
        Err(wrong) => return Ok(explain_usage(SlurmCommand::Srun, &wrong)?),
    };
    let mut arguments = arguments.into_iter();
    let program = arguments.next().map(called_path);
    let words = program.into_iter().chain(arguments).map(|word| {
        word.into_string().map_err(|_| {
            CommandFailure::usage(
                "an argument of the command line is not valid \
                                                UTF-8",
            )
        })
    });
    let words = words.collect::<Result<Vec<_>, _>>()?;
    let session = connect()?;
    Ok(execute(&session.client, job, words, line.unused.has_terminal()).await?)
}

async fn run_job(arguments: Vec<OsString>) -> Done {
    let line: SrunJob = match parse(arguments) {
        Ok(line) => line,
        Err(wrong) => return Ok(explain_usage(SlurmCommand::Srun, &wrong)?),
    };
    if line.mpi == Some(StepMpi::List) {
        write_out(MPI_LIST)?;
        return Ok(0);
    }
    line.unused.check(None, line.tasks()).map_err(CommandFailure::refused)?;
    refuse_parts(&line.program)?;
    let quiet = line.quiet;
    let pty = line.unused.has_terminal();
    let around = SubmitContext::find(SubmitDialect::Slurm(VariablePrefix::Srun))?;
    let (prepared, has_file) = line.prepare(own_program::words("step")?, &around)?;
    let session = connect()?;
    if !quiet {
        prepared.warnings.iter().for_each(|warning| eprintln!("srun: warning: {warning}"));
    }
    if pty {
        let job = InteractiveJob::submit(&session, prepared.request, true).await?;
        let mut job = job.map_err(|refused| {
            let text = format!("srun: error: Unable to allocate resources: {refused}");
            SlurmFailure::Message(text)
        })?;
        if !quiet {
            job.remarks.iter().for_each(|remark| eprintln!("srun: {remark}"));
            job.notes = Some("srun");
        }
        return Ok(job.follow_job(&session, LocalInput::of_stdin(), &mut OwnOutput).await?);
    }
    let submitted = session.client.submit(&prepared.request, &SubmitKey::new_unique()).await;
    let submitted = match submitted.map_err(with_option_names) {
        Ok(submitted) => submitted,
        Err(refused) => {
            let text = format!("srun: error: Unable to allocate resources: {refused}");
            return Err(SlurmFailure::Message(text));
        }
    };
    if !quiet {
        submitted.remarks.iter().for_each(|remark| eprintln!("srun: {remark}"));
    }
    let job = JobRef::Job(JobId::from_number(submitted.job_id));
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let ended = tokio::select! {
        ended = print_until_end(&session, job, has_file, quiet) => return ended,
        _ = interrupted.recv() => 130,
        _ = terminated.recv() => 143,
    };
    eprintln!("srun: Cancelling job {job}");
    session.client.act(job, JobVerb::Cancel).await?;
    Ok(ended)
}

/// Prints the output of a job until it has ended, and returns its exit code. A job that is requeued is followed
/// into its next run.
async fn print_until_end(
    session: &CommandSession,
    job: JobRef,
    has_file: bool,
    quiet: bool,
) -> Done {
    let client = session.client.with_patience(RetryPatience::LONG);
    let now = client.job(job).await?.job;
    if !quiet && ["queued", "held"].contains(&now.state.as_str()) {
        eprintln!("srun: job {job} queued and waiting for resources");
    }
    let mut query = LogQuery {
        stream: LogOutput::Stdout,
        attempt: Some(1),
        offset: 0,
        follow: FollowMode::UntilEnd,
    };
    loop {
        if !has_file {
            match copy_output(&client, job, query).await {
                Ok(()) => query.attempt = query.attempt.map(|attempt| attempt + 1),
                // A job that ended before it started has no output.
                Err(failed) if is_absent(&failed) && is_over(&client.job(job).await?.job) => {}
                Err(failed) => return Err(failed.into()),
            }
        }
        let now = client.wait_a_while(job).await?;
        if is_over(&now) {
            let ended = wait_for(session, &[job]).await?;
            let code = worst(&ended);
            return Ok(match ended.first().and_then(not_started) {
                Some(reason) => {
                    eprintln!("srun: error: job {job}: {reason}");
                    NOT_EXECUTED
                }
                None => {
                    report(job, code, &now.state);
                    code
                }
            });
        }
    }
}

/// srun's exit code for a program that can't be executed.
const NOT_EXECUTED: u8 = 2;

/// Returns why a job's program could not be started, if that is how the job ended.
fn not_started(ended: &JobView) -> Option<&str> {
    ended.reason_text.as_deref().filter(|_| ended.reason.as_deref() == Some("launch_failed"))
}

/// Returns whether there is no such output.
fn is_absent(failed: &CommandFailure) -> bool {
    matches!(failed, CommandFailure::Client(refused) if refused.status() == Some(404))
}

/// Reports a failure in Slurm's wording.
fn report(job: JobRef, code: u8, state: &str) {
    match state {
        "cancelled" => eprintln!("srun: error: Job {job} was cancelled"),
        "timed_out" => eprintln!("srun: error: Job {job} has exceeded its time limit"),
        _ if code != 0 => eprintln!("srun: error: job {job}: Exited with exit code {code}"),
        _ => {}
    }
}

impl SrunJob {
    /// Returns how many processes the step has.
    fn tasks(&self) -> u32 {
        let options = &self.slurm.options;
        let nodes = options.nodes.as_ref().map(|NodesOption(nodes)| *nodes);
        let of_nodes = || Some(options.ntasks_per_node?.saturating_mul(nodes.unwrap_or(1)));
        options.ntasks.or_else(of_nodes).or(nodes).unwrap_or(1)
    }

    /// Builds the job. Several processes are started by a step inside of it. Returns also whether its output goes
    /// to a file.
    fn prepare(
        mut self,
        step: Vec<String>,
        around: &SubmitContext,
    ) -> Result<(PreparedSubmit, bool), CommandFailure> {
        let Some(name) = self.program.first().cloned() else {
            return Err(CommandFailure::usage("no program is given: write srun PROGRAM ARGUMENTS"));
        };
        let is_step = self.tasks() > 1 || self.label || self.multi_prog;
        let mut words = Vec::new();
        if is_step {
            words = step;
            words.extend(self.step_words());
            words.push("--".to_owned());
            // Each process has its own container; the step that starts them runs on the node.
            let options = &mut self.slurm.options;
            options.container = ContainerOptions::default();
        }
        words.append(&mut self.program);
        let options = &mut self.slurm.options;
        let has_file = options.output.is_some() || (is_step && options.error.is_some());
        if is_step {
            // The step names its files by process.
            let of_process =
                |file: &Option<String>| file.as_ref().is_some_and(|f| f.contains("%t"));
            if of_process(&options.output) || of_process(&options.error) {
                (options.output, options.error) = (None, None);
            }
            // The base name of the program, not that of the one that starts it.
            options.job_name.get_or_insert_with(|| base_name(&name));
        }
        let had_output = options.output.is_some();
        let mut prepared = self.slurm.prepare(JobSource::Program(words), around)?;
        if !had_output {
            // The output comes to this terminal.
            prepared.request.stdout = None;
            prepared.request.open_mode = None;
        }
        Ok((prepared, has_file))
    }

    /// Returns the options of the step inside of the job.
    fn step_words(&self) -> Vec<String> {
        let options = &self.slurm.options;
        let mut words = vec![format!("--ntasks={}", self.tasks())];
        let mut add = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("--{name}={value}")));
        };
        let counted = |name: &str| {
            let found = options.counted_gpus().find(|(option, _)| *option == name);
            found.map(|(_, counted)| counted.count)
        };
        add("gpus-per-task", counted("--gpus-per-task").map(|number| number.to_string()));
        let nodes = options.nodes.as_ref().map(|NodesOption(nodes)| nodes.to_string());
        add("nodes", nodes);
        add("kill-on-bad-exit", self.kill_on_bad_exit.map(|how| how.to_string()));
        add("wait", self.wait.map(|secs| secs.to_string()));
        add("mpi", self.mpi.map(|how| how.word().to_owned()));
        let of_process = |file: &&String| file.contains("%t");
        if options.output.iter().chain(&options.error).any(|file| of_process(&file)) {
            add("output", options.output.clone());
            add("error", options.error.clone());
        }
        words.extend(options.container.words());
        words.extend(self.label.then(|| "--label".to_owned()));
        words.extend(self.multi_prog.then(|| "--multi-prog".to_owned()));
        words
    }
}

fn base_name(program: &str) -> String {
    program.rsplit('/').next().unwrap_or(program).to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn around() -> SubmitContext {
        SubmitContext {
            folder: "/home/ada".into(),
            environment: BTreeMap::new(),
            host: None,
            dialect: SubmitDialect::Slurm(VariablePrefix::Srun),
        }
    }

    fn prepared(words: &[&str]) -> (PreparedSubmit, bool) {
        let words = [&["srun"], words].concat().into_iter().map(OsString::from).collect();
        let line: SrunJob = parse(words).unwrap();
        line.prepare(vec!["/usr/bin/tessera".to_owned(), "step".to_owned()], &around()).unwrap()
    }

    #[test]
    fn the_command_lines_are_consistent() {
        SrunStep::command().debug_assert();
        SrunJob::command().debug_assert();
    }

    #[test]
    fn one_process_is_the_job_itself_and_its_output_comes_to_the_terminal() {
        let (job, has_file) = prepared(&["--gpus=1", "-t", "5", "nvidia-smi", "-L"]);

        assert_eq!(job.request.command.unwrap(), ["nvidia-smi", "-L"]);
        assert_eq!((job.request.stdout, has_file), (None, false));
        assert_eq!(job.request.time_limit_secs, Some(300));
    }

    #[test]
    fn several_processes_are_a_step_inside_of_the_job() {
        let (job, has_file) =
            prepared(&["-n2", "--gpus=2", "--gpus-per-task=1", "-l", "-K", "/opt/bin/train", "-v"]);

        let words = job.request.command.unwrap().join(" ");
        let expected =
            "/usr/bin/tessera step --ntasks=2 --gpus-per-task=1 --kill-on-bad-exit=1 --label";
        assert_eq!(words, format!("{expected} -- /opt/bin/train -v"));
        assert_eq!(job.request.name.as_deref(), Some("train"));
        assert!(!has_file);
    }

    #[test]
    fn files_by_process_are_the_steps_and_others_the_jobs() {
        let (step, has_file) = prepared(&["-n2", "-o", "out-%t.txt", "hostname"]);
        let (job, _) = prepared(&["-o", "out-%j.txt", "hostname"]);

        assert!(has_file);
        assert!(step.request.command.unwrap().contains(&"--output=out-%t.txt".to_owned()));
        assert_eq!(step.request.stdout, None);
        assert_eq!(job.request.stdout.as_deref(), Some("/home/ada/out-%j.txt"));
    }

    #[test]
    fn outside_of_jobs_a_step_may_name_the_running_job_that_it_starts_in() {
        let job = |words: &[&str]| {
            let words: Vec<_> =
                [&["srun"], words].concat().into_iter().map(OsString::from).collect();
            named_job(&words).map(|job| job.map(|job| job.to_string())).map_err(|no| no.to_string())
        };

        assert_eq!(job(&["--jobid=42", "--overlap", "hostname"]), Ok(Some("42".to_owned())));
        assert_eq!(job(&["--jobid", "42", "--pty", "bash"]), Ok(Some("42".to_owned())));
        assert_eq!(job(&["--gres=gpu:1", "hostname", "--jobid=42"]), Ok(None));
        assert!(job(&["--jobid=none", "hostname"]).unwrap_err().contains("Invalid job id"));
    }

    #[test]
    fn parts_of_a_heterogeneous_job_are_no_arguments() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();

        assert!(refuse_parts(&words("train : -n4 serve")).is_err());
        assert!(refuse_parts(&words("train a:b :x")).is_ok());
    }

    #[test]
    fn what_needs_another_job_or_more_terminals_is_refused() {
        for words in [&["--pty", "-n2", "a"][..], &["--jobid=7", "hostname"]] {
            let words: Vec<_> =
                [&["srun"], words].concat().into_iter().map(OsString::from).collect();
            let line: SrunJob = parse(words.clone()).unwrap();
            assert!(line.unused.check(None, line.tasks()).is_err(), "{words:?}");
        }
    }
}
