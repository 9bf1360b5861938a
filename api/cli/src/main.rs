//! The `tessera` command, verb by verb.
//!
//! Tables are for people; `--json` prints exactly the API's response. Exit codes:
//! 0 for success, 1 for refused or failed, 2 for wrong usage; verbs that wait for a job return the
//! job's own code.

#![forbid(unsafe_code)]

mod array_wait;
mod audit;
mod cancel;
mod clock_time;
mod cluster;
#[cfg(test)]
mod commands_page;
mod completions;
mod connection;
mod container_options;
mod decisions;
mod demo;
mod efficiency;
mod estimate;
mod experiment;
mod explain;
mod failure;
#[cfg(test)]
mod glossary;
mod gpus;
mod interactive;
mod jobs;
mod kernels_command;
mod login;
mod logs;
mod memory_curve;
mod mig;
mod node;
mod operator;
mod power_cap;
mod predictions;
mod queue;
mod replay;
mod report;
mod schema;
mod session;
mod show;
mod simulate;
mod slurm;
mod span;
mod spark;
mod steps;
mod submit;
mod support;
mod token;
mod top;
mod usage;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::connection::{Connection, Given};
use self::failure::CommandFailure;
use self::session::CommandSession;
use self::slurm::{SignalTarget, SlurmCommand};

/// Runs many jobs on each GPU: submits them, and shows their state and the reasons for it.
#[derive(Parser)]
#[command(name = "tessera", version, about, max_term_width = 100)]
struct Cli {
    /// Address of the controller: unix:///run/tessera/api.sock, or https://gpu.example.org:7070
    /// [default: that of tessera login, or the socket of this machine, or http://127.0.0.1:7070]
    #[arg(long, global = true, env = "TESSERA_URL", value_name = "URL")]
    url: Option<String>,
    /// File (PEM) with the authority whose certificates are trusted for https
    #[arg(long, global = true, env = "TESSERA_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Personal token; a Unix socket needs none
    #[arg(
        long,
        global = true,
        env = "TESSERA_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// Print the API's JSON instead of text for people
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Submit a script, a command, or an array of them
    Submit(Box<submit::Submit>),
    /// Run a program as a job that talks with this terminal: run --pty bash
    Run(Box<interactive::Run>),
    /// Run a program in a running job
    Exec(interactive::Exec),
    /// Take over the terminal of a job, or follow its output
    Attach(interactive::Attach),
    /// Make a port of a job reachable on this machine
    Forward(interactive::Forward),
    /// Start processes inside a job on its nodes, with ranks and GPUs, as srun does
    Step(Box<steps::StepOptions>),
    /// List the jobs that wait or run
    Queue(queue::Queue),
    /// Show all details of a job
    Show(show::Show),
    /// Explain why a job waits, or why it was placed where it runs
    Explain(explain::ExplainJob),
    /// Print a job's output
    Logs(logs::Logs),
    /// Cancel jobs
    Cancel(cancel::Cancel),
    /// Keep waiting jobs from starting
    Hold(jobs::Hold),
    /// Allow held jobs to start again
    Release(jobs::Release),
    /// Put running jobs, which are ended, and jobs that have ended back into the queue
    Requeue(jobs::Requeue),
    /// Update jobs: their priority, time limit, deadline, what they wait for, or their share of a slice
    Update(jobs::Update),
    /// Wait until jobs have ended; exit with their code
    Wait(wait::Wait),
    /// List the machines
    Nodes(cluster::NodeList),
    /// Let machines join as nodes, and revoke their certificates
    Node(node::Node),
    /// Show or replace the authority that signs certificates
    Authority(node::Authority),
    /// Draw the layout of every GPU; `gpus layout` previews and applies layouts
    Gpus(gpus::GpuList),
    /// Show the current and recent load of every GPU, and its jobs
    Top(top::Top),
    /// Keep new jobs off a node or a GPU; running jobs finish
    Drain(operator::Drain),
    /// Allow new jobs on a node or a GPU again
    Undrain(operator::Undrain),
    /// Take a GPU or a slice out of use
    Quarantine(operator::Quarantine),
    /// Clear a quarantine and recorded faults, and check the GPU again
    Clear(operator::Clear),
    /// Check whether nodes can run jobs and partition GPUs, and show how to fix what is wrong
    Doctor(operator::Doctor),
    /// List actions of operators
    Events(operator::Events),
    /// List layout plans of GPUs
    Layouts(decisions::Layouts),
    /// List placement decisions, or show one
    Decisions(decisions::DecisionList),
    /// List tasks with measured kernels, or the kernels of one task
    Kernels(kernels_command::Kernels),
    /// Show the accuracy of predictions, and the models in use
    Predictions(predictions::PredictionList),
    /// Show recent usage, held slices and quotas of accounts and users
    #[command(visible_alias = "share")]
    Usage(usage::UsageList),
    /// Add up what accounts and users used in a period
    Report(report::Report),
    /// Compare what tasks requested with what they used, and show what to request
    Efficiency(efficiency::Efficiency),
    /// Estimate the GPU memory of a model from its description; this needs no cluster
    Estimate(estimate::Estimate),
    /// Switch the MIG mode of an empty GPU
    MigMode(cluster::MigMode),
    /// Study how a GPU model can be partitioned; this needs no cluster
    Mig(mig::Mig),
    /// Simulate a workload on a cluster in virtual time, under one or more policies
    Simulate(simulate::Simulate),
    /// Rerun experiments of the papers, and compare with the published results
    Experiment(experiment::Experiment),
    /// Show what the GPUs may draw together, and what they are expected to draw
    PowerCap(power_cap::PowerCapView),
    /// Show an overview of the cluster
    Info(cluster::Info),
    /// Submit the jobs of a recorded trace at their recorded times
    Replay(replay::Replay),
    /// Demonstrate what Tessera does, on a running cluster
    Demo(demo::Demo),
    /// Store a token for a controller that is reached over the network; it is read from standard
    /// input
    Login(login::Login),
    /// Delete the token that login stored
    Logout(login::Logout),
    /// Show who you are to the controller, and what you may do
    Whoami(login::Whoami),
    /// Create, list and revoke personal tokens
    Token(token::Token),
    /// List what callers changed, and which requests were refused; for administrators
    Audit(audit::Audit),
    /// Collect what a maintainer needs to understand a cluster, without secrets
    SupportBundle(support::SupportBundle),
    /// Make this program callable by the names of Slurm's commands, such as sbatch and squeue
    SlurmLinks(slurm::SlurmLinks),
    /// Print the completions of a shell
    Completions(completions::Completions),
    /// Run a step's processes on one node, for the step
    #[command(hide = true)]
    StepPart,
    /// Become a step's process that has a terminal, for the step
    #[command(hide = true)]
    StepTerminal {
        /// What it is, as JSON
        order: String,
    },
    /// End a step's processes on this node with their caller, for the step
    #[command(hide = true)]
    StepWatch,
    /// Signal processes of the job that this one belongs to, for scancel
    #[command(hide = true)]
    SignalProcesses {
        /// The signal's number
        number: i32,
        /// Which processes
        target: SignalTarget,
    },
    /// List the processes of the job that this one belongs to, for sstat
    #[command(hide = true)]
    JobProcesses,
    /// Write a file that comes from standard input, for sbcast
    #[command(hide = true)]
    ReceiveFile(slurm::ReceiveFile),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Manual(completions::Manual),
    /// Write the JSON schemas of what `--json` prints
    #[command(hide = true)]
    Schema(schema::Schema),
}

/// Runs the command that the process was started with.
fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(code) = steps::become_program(&arguments) {
        return ExitCode::from(code);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let (Some(command), Ok(runtime)) = (SlurmCommand::of_line(&arguments), &runtime) {
        return ExitCode::from(runtime.block_on(slurm::run(command, arguments)));
    }
    let cli = Cli::parse();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(refused) => Err(CommandFailure::from(refused)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        // The reader of our output has closed it, as with `tessera queue | head`.
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tessera: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

async fn run(cli: Cli) -> Result<u8, CommandFailure> {
    match &cli.command {
        CliCommand::Schema(schema) => return schema.run(),
        CliCommand::Step(step) => return steps::run_here((**step).clone()).await,
        CliCommand::StepPart => return steps::run_part().await,
        CliCommand::StepTerminal { order } => return steps::become_process(order),
        CliCommand::StepWatch => return Ok(steps::run_watch().await.map(|()| 0)?),
        CliCommand::SignalProcesses { number, target } => {
            return slurm::signal_processes(*number, *target);
        }
        CliCommand::JobProcesses => return slurm::print_processes(),
        CliCommand::ReceiveFile(file) => return file.run(),
        CliCommand::SlurmLinks(links) => return links.run(),
        CliCommand::Completions(completions) => return completions.run(Cli::command()),
        CliCommand::Manual(manual) => return manual.run(Cli::command()),
        CliCommand::Mig(mig) => return mig.run(cli.json),
        CliCommand::Simulate(simulate) if simulate.since().is_none() => {
            return simulate.run(cli.json);
        }
        CliCommand::Experiment(experiment) => return experiment.run(cli.json),
        CliCommand::Estimate(estimate) => return estimate.run(cli.json),
        _ => {}
    }
    let given = Given { url: cli.url, token: cli.token, ca: cli.ca };
    let found = match cli.command {
        CliCommand::Logout(verb) => return verb.run(),
        _ => Connection::find(&given)?,
    };
    let session = CommandSession::open(&found, cli.json)?;
    // A token that login stored must stay out of a bundle, too.
    let token = found.token.clone();
    let session = &session;
    match cli.command {
        CliCommand::Login(verb) => verb.run(found, given.token, cli.json).await,
        CliCommand::Logout(verb) => verb.run(),
        CliCommand::Whoami(verb) => verb.run(session).await,
        CliCommand::Token(verb) => verb.run(session).await,
        CliCommand::Audit(verb) => verb.run(session).await,
        CliCommand::Submit(verb) => verb.run(session).await,
        CliCommand::Run(verb) => verb.run(session).await,
        CliCommand::Exec(verb) => verb.run(session).await,
        CliCommand::Attach(verb) => verb.run(session).await,
        CliCommand::Forward(verb) => verb.run(session).await,
        CliCommand::Queue(verb) => verb.run(session).await,
        CliCommand::Show(verb) => verb.run(session).await,
        CliCommand::Explain(verb) => verb.run(session).await,
        CliCommand::Logs(verb) => verb.run(session).await,
        CliCommand::Cancel(verb) => verb.run(session).await,
        CliCommand::Hold(verb) => verb.run(session).await,
        CliCommand::Release(verb) => verb.run(session).await,
        CliCommand::Requeue(verb) => verb.run(session).await,
        CliCommand::Update(verb) => verb.run(session).await,
        CliCommand::Wait(verb) => verb.run(session).await,
        CliCommand::Nodes(verb) => verb.run(session).await,
        CliCommand::Node(verb) => verb.run(session).await,
        CliCommand::Authority(verb) => verb.run(session).await,
        CliCommand::Gpus(verb) => verb.run(session).await,
        CliCommand::Top(verb) => verb.run(session).await,
        CliCommand::Drain(verb) => verb.run(session).await,
        CliCommand::Undrain(verb) => verb.run(session).await,
        CliCommand::Quarantine(verb) => verb.run(session).await,
        CliCommand::Clear(verb) => verb.run(session).await,
        CliCommand::Doctor(verb) => verb.run(session).await,
        CliCommand::Events(verb) => verb.run(session).await,
        CliCommand::Layouts(verb) => verb.run(session).await,
        CliCommand::Decisions(verb) => verb.run(session).await,
        CliCommand::Kernels(verb) => verb.run(session).await,
        CliCommand::Predictions(verb) => verb.run(session).await,
        CliCommand::Usage(verb) => verb.run(session).await,
        CliCommand::Report(verb) => verb.run(session).await,
        CliCommand::Efficiency(verb) => verb.run(session).await,
        CliCommand::Estimate(verb) => verb.run(cli.json),
        CliCommand::MigMode(verb) => verb.run(session).await,
        CliCommand::PowerCap(verb) => verb.run(session).await,
        CliCommand::Info(verb) => verb.run(session).await,
        CliCommand::Replay(verb) => verb.run(session).await,
        CliCommand::Demo(verb) => verb.run(session).await,
        CliCommand::SupportBundle(verb) => verb.run(session, token.as_deref(), now_unix()).await,
        CliCommand::Schema(verb) => verb.run(),
        CliCommand::Step(verb) => steps::run_here(*verb).await,
        CliCommand::StepPart => steps::run_part().await,
        CliCommand::StepTerminal { order } => steps::become_process(&order),
        CliCommand::StepWatch => Ok(steps::run_watch().await.map(|()| 0)?),
        CliCommand::SignalProcesses { number, target } => slurm::signal_processes(number, target),
        CliCommand::JobProcesses => slurm::print_processes(),
        CliCommand::ReceiveFile(verb) => verb.run(),
        CliCommand::SlurmLinks(verb) => verb.run(),
        CliCommand::Completions(verb) => verb.run(Cli::command()),
        CliCommand::Manual(verb) => verb.run(Cli::command()),
        CliCommand::Mig(verb) => verb.run(cli.json),
        CliCommand::Simulate(verb) => match verb.since() {
            Some(since) => verb.run_past(session, since).await,
            None => verb.run(cli.json),
        },
        CliCommand::Experiment(verb) => verb.run(cli.json),
    }
}

#[expect(clippy::disallowed_methods, reason = "a bundle states when it was made")]
fn now_unix() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_options_share_a_name() {
        Cli::command().debug_assert();
    }
}
