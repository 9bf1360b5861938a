//! `tessera submit`: what `sbatch` is to a batch scheduler.

mod array;
mod export;
mod foreign;
mod gpu;
mod headers;
mod options;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use tessera_model::{JobId, JobRef};

use self::foreign::ForeignOptions;
use self::headers::ScriptHeaders;
use self::options::JobOptions;
use self::script::JobScript;
use super::array_wait::wait_for;
use super::failure::CommandFailure;
use super::session::{CommandSession, moment, write_out};
use super::wait::worst;
use tessera_api_types::SubmitRequest;
use tessera_client::{ClientError, SubmitKey};

/// Submits a script (`submit job.sh`), a line of shell (`submit --wrap "..."`) or a program
/// (`submit -- python3 train.py`). A script may contain options, too, in lines that begin
/// with #TESSERA or #SBATCH. The command line overrides #TESSERA, which overrides #SBATCH.
#[derive(Args)]
pub struct Submit {
    #[command(flatten)]
    options: JobOptions,
    #[command(flatten)]
    foreign: ForeignOptions,
    /// Run this line of shell
    #[arg(long, value_name = "LINE", conflicts_with_all = ["script", "program"])]
    wrap: Option<String>,
    /// Wait until the job has ended, and exit with its code
    #[arg(short = 'W', long)]
    wait: bool,
    /// Print only the job's number
    #[arg(long)]
    parsable: bool,
    /// Print nothing on success
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// The script; by default it is read from standard input
    #[arg(value_name = "SCRIPT")]
    script: Vec<PathBuf>,
    /// A program on the node, and its arguments
    #[arg(last = true, value_name = "PROGRAM", conflicts_with = "script")]
    program: Vec<String>,
}

/// The environment of the command.
struct SubmitContext {
    folder: PathBuf,
    environment: BTreeMap<String, String>,
}

impl Submit {
    pub async fn run(self: Box<Self>, session: &CommandSession) -> Result<u8, CommandFailure> {
        let (wait, parsable, quiet) = (self.wait, self.parsable, self.quiet);
        let (request, warnings) = self.request(&SubmitContext::find()?)?;
        if !quiet {
            warnings.iter().for_each(|warning| session.remark(&format!("warning: {warning}")));
        }
        let submitted = session.client.submit(&request, &SubmitKey::new_unique()).await;
        let submitted = submitted.map_err(with_option_names)?;
        if session.json {
            session.print(&submitted, |_| String::new())?;
        } else if parsable {
            write_out(&format!("{}\n", submitted.job_id))?;
        } else if !quiet {
            // Exactly as `sbatch`: users' scripts parse the number.
            write_out(&format!("Submitted batch job {}\n", submitted.job_id))?;
        }
        if let Some(deadline) = submitted.deadline.as_ref().filter(|_| !quiet && !session.json) {
            let at = moment(deadline.at);
            session.remark(&format!("deadline {at}: {}", deadline.text));
        }
        if !wait {
            return Ok(0);
        }
        let ended = wait_for(session, &[JobRef::Job(JobId::from_number(submitted.job_id))]).await?;
        Ok(worst(&ended))
    }

    /// Builds the request, and its warnings.
    fn request(
        self,
        around: &SubmitContext,
    ) -> Result<(SubmitRequest, Vec<String>), CommandFailure> {
        let mut warnings = self.foreign.judge().map_err(CommandFailure::usage)?;
        let mut request = SubmitRequest::default();
        let headers = match (self.wrap, self.program.is_empty()) {
            (Some(line), _) => {
                request.script = Some(format!("#!/bin/sh\n\n{line}\n"));
                request.name = Some("wrap".to_owned());
                ScriptHeaders::default()
            }
            (None, false) => {
                request.command = Some(self.program);
                ScriptHeaders::default()
            }
            (None, true) => {
                let script = JobScript::find(&self.script)?;
                let headers =
                    headers::read(&script.name, &script.text).map_err(CommandFailure::refused)?;
                request.name = Some(script.name);
                request.script = Some(script.text);
                headers
            }
        };
        warnings.extend(headers.warnings);
        self.options.gpu().map_err(CommandFailure::usage)?;
        let options = headers.options.under(self.options).map_err(CommandFailure::usage)?;
        options
            .write_into(&mut request, &around.folder, &around.environment)
            .map_err(CommandFailure::usage)?;
        Ok((request, warnings))
    }
}

/// Fields of the API whose options have other names.
const OPTIONS_OF_FIELDS: &[(&str, &str)] = &[
    ("gpu_memory_bytes", "vram"),
    ("gpu_profile", "profile"),
    ("gpu_whole", "gpus"),
    ("gang", "gpus"),
    ("sm_percent", "sm"),
    ("checkpoint_signal", "checkpoint"),
    ("time_limit_secs", "time"),
    ("grace_secs", "grace"),
    ("host_memory_bytes", "mem"),
    ("cpus", "cpus-per-task"),
    ("work_dir", "chdir"),
    ("stdout", "output"),
    ("stderr", "error"),
    ("name", "job-name"),
];

/// Names the invalid option instead of the field, since the user writes options.
fn with_option_names(mut failed: ClientError) -> ClientError {
    if let ClientError::Refused(problem) = &mut failed
        && let Some(field) = &mut problem.field
    {
        let other = OPTIONS_OF_FIELDS.iter().find(|(name, _)| name == field);
        let option = other.map_or_else(|| field.replace('_', "-"), |(_, name)| (*name).to_owned());
        let command = Submit::augment_args(clap::Command::new("submit"));
        if command.get_arguments().any(|known| known.get_long() == Some(&option)) {
            *field = format!("--{option}");
        }
    }
    failed
}

impl SubmitContext {
    fn find() -> Result<Self, CommandFailure> {
        let folder = std::env::current_dir().map_err(|bad| {
            CommandFailure::refused(format!("the current folder can't be used: {bad}"))
        })?;
        // Variables that aren't text can't be handed over: JSON has no bytes.
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Ok(Self { folder, environment })
    }
}

/// Returns the user who runs this command: the process's owner, or the shell's variables.
pub fn user_name(environment: &BTreeMap<String, String>) -> String {
    owner_name(Path::new("/proc/self"), Path::new("/etc/passwd"))
        .or_else(|| ["USER", "LOGNAME"].iter().find_map(|name| environment.get(*name).cloned()))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn owner_name(process: &Path, passwd: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    let uid = std::fs::metadata(process).ok()?.uid().to_string();
    let passwd = std::fs::read_to_string(passwd).ok()?;
    let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entry = entries.find(|entry| entry.get(2) == Some(&uid.as_str()))?;
    entry.first().map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests;
