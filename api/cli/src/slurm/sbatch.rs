//! `sbatch`: submits a script.

use std::ffi::OsString;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use super::{Done, SlurmCommand, VERSION, connect, explain_usage, write_out};
use crate::failure::CommandFailure;
use crate::submit::{Submit, SubmitDialect, VariablePrefix};

/// Submits a script, as Slurm's sbatch does.
#[derive(Parser)]
struct Sbatch {
    #[command(flatten)]
    submit: Submit,
}

/// Submits what the command line names.
pub async fn run(arguments: Vec<OsString>) -> Done {
    if arguments.get(1).is_some_and(|word| word == "--version" || word == "-V") {
        write_out(&format!("{VERSION}\n"))?;
        return Ok(0);
    }
    let parser = Sbatch::command()
        .name("sbatch")
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_subcommand(true);
    let parsed = parser
        .try_get_matches_from(arguments)
        .and_then(|matches| Sbatch::from_arg_matches(&matches));
    let submit = match parsed {
        Ok(line) => line.submit,
        Err(wrong) => return Ok(explain_usage(SlurmCommand::Sbatch, &wrong)?),
    };
    submit_job(submit).await
}

/// Submits the job as `tessera submit` does.
async fn submit_job(submit: Submit) -> Done {
    let session = connect()?;
    match Box::new(submit).run_as(SubmitDialect::Slurm(VariablePrefix::Sbatch), &session).await {
        Ok(code) => Ok(code),
        Err(CommandFailure::Client(refused)) => {
            eprintln!("sbatch: error: Batch job submission failed: {refused}");
            Ok(1)
        }
        Err(other) => Err(other.into()),
    }
}
