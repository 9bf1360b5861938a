//! The `tessera` command, verb by verb.
//!
//! Tables are for people; `--json` gives programs exactly what the API answered. Exit codes:
//! 0 all is well, 1 refused or failed, 2 used wrongly; verbs that wait for a job return the
//! job's own code.

mod array_wait;
mod cancel;
mod cluster;
mod decisions;
mod demo;
mod experiment;
mod explain;
mod failure;
mod gpus;
mod jobs;
mod kernels;
mod logs;
mod mig;
mod operator;
mod predictions;
mod queue;
mod replay;
mod schema;
mod session;
mod show;
mod simulate;
mod span;
mod spark;
mod submit;
mod top;
mod usage;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::failure::Failure;
use self::session::Session;

/// Where a controller listens unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Runs many jobs per GPU: submits them, and shows what became of them and why.
#[derive(Parser)]
#[command(name = "tessera", version, about, max_term_width = 100)]
struct Cli {
    /// Address of the controller
    #[arg(long, global = true, env = "TESSERA_URL", default_value = DEFAULT_URL, value_name = "URL")]
    url: String,
    /// Token that the controller asks for
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
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Submit a script, a command, or an array of them
    Submit(Box<submit::Submit>),
    /// List the jobs that wait or run
    Queue(queue::Queue),
    /// Show everything that is known of a job
    Show(show::Show),
    /// Say why a job waits, or went where it went
    Explain(explain::ExplainJob),
    /// Print a job's output
    Logs(logs::Logs),
    /// Cancel jobs
    Cancel(cancel::Cancel),
    /// Keep jobs that wait from starting
    Hold(jobs::Hold),
    /// Let held jobs go on
    Release(jobs::Release),
    /// Change jobs that share a slice: give them another part of it
    Update(jobs::Update),
    /// Wait until jobs have ended; exit with their code
    Wait(wait::Wait),
    /// List the machines
    Nodes(cluster::NodeList),
    /// Draw the layout of every GPU; `gpus layout` plans and changes one
    Gpus(gpus::GpuList),
    /// Show what every GPU does now and did lately, and who has it
    Top(top::Top),
    /// Keep new work from a node or a GPU; what runs there finishes
    Drain(operator::Drain),
    /// Let new work go to a node or a GPU again
    Undrain(operator::Undrain),
    /// Keep a GPU or a slice out of use
    Quarantine(operator::Quarantine),
    /// Take a quarantine back, forget faults, and look again
    Clear(operator::Clear),
    /// Say what keeps a machine from running jobs or cutting GPUs, and what mends it
    Doctor(operator::Doctor),
    /// List what operators did
    Events(operator::Events),
    /// List changes of GPU layouts
    Layouts(decisions::Layouts),
    /// List decisions of the placement, or show one
    Decisions(decisions::DecisionList),
    /// List the tasks whose kernels were measured, or one task's kernels
    Kernels(kernels::Kernels),
    /// Say how good predictions of run times are, and what model makes them
    Predictions(predictions::PredictionList),
    /// Show what accounts and users have had of late, hold now, and may hold
    #[command(visible_alias = "share")]
    Usage(usage::UsageList),
    /// Switch MIG mode of an empty GPU
    MigMode(cluster::MigMode),
    /// Study how a GPU model can be partitioned; needs no cluster
    Mig(mig::Mig),
    /// Run a workload on a cluster in virtual time, under one policy or several
    Simulate(simulate::Simulate),
    /// Rerun experiments of the papers beside what is printed there
    Experiment(experiment::Experiment),
    /// Show the cluster at a glance
    Info(cluster::Info),
    /// Submit a recorded trace at its own pace
    Replay(replay::Replay),
    /// Walk through what Tessera does, on a running cluster
    Demo(demo::Demo),
    /// Write the JSON schemas of what `--json` prints
    #[command(hide = true)]
    Schema(schema::Schema),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(refused) => Err(Failure::from(refused)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        // Whoever read our output has seen enough, as with `tessera queue | head`.
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tessera: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

async fn run(cli: Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Schema(schema) => return schema.run(),
        Command::Mig(mig) => return mig.run(cli.json),
        Command::Simulate(simulate) if simulate.since().is_none() => return simulate.run(cli.json),
        Command::Experiment(experiment) => return experiment.run(cli.json),
        _ => {}
    }
    let session = Session::open(&cli.url, cli.token.as_deref(), cli.json)?;
    let session = &session;
    match cli.command {
        Command::Submit(verb) => verb.run(session).await,
        Command::Queue(verb) => verb.run(session).await,
        Command::Show(verb) => verb.run(session).await,
        Command::Explain(verb) => verb.run(session).await,
        Command::Logs(verb) => verb.run(session).await,
        Command::Cancel(verb) => verb.run(session).await,
        Command::Hold(verb) => verb.run(session).await,
        Command::Release(verb) => verb.run(session).await,
        Command::Update(verb) => verb.run(session).await,
        Command::Wait(verb) => verb.run(session).await,
        Command::Nodes(verb) => verb.run(session).await,
        Command::Gpus(verb) => verb.run(session).await,
        Command::Top(verb) => verb.run(session).await,
        Command::Drain(verb) => verb.run(session).await,
        Command::Undrain(verb) => verb.run(session).await,
        Command::Quarantine(verb) => verb.run(session).await,
        Command::Clear(verb) => verb.run(session).await,
        Command::Doctor(verb) => verb.run(session).await,
        Command::Events(verb) => verb.run(session).await,
        Command::Layouts(verb) => verb.run(session).await,
        Command::Decisions(verb) => verb.run(session).await,
        Command::Kernels(verb) => verb.run(session).await,
        Command::Predictions(verb) => verb.run(session).await,
        Command::Usage(verb) => verb.run(session).await,
        Command::MigMode(verb) => verb.run(session).await,
        Command::Info(verb) => verb.run(session).await,
        Command::Replay(verb) => verb.run(session).await,
        Command::Demo(verb) => verb.run(session).await,
        Command::Schema(verb) => verb.run(),
        Command::Mig(verb) => verb.run(cli.json),
        Command::Simulate(verb) => match verb.since() {
            Some(since) => verb.run_past(session, since).await,
            None => verb.run(cli.json),
        },
        Command::Experiment(verb) => verb.run(cli.json),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_two_options_share_a_name() {
        Cli::command().debug_assert();
    }
}
