//! `tessera submit`: what `sbatch` is to a batch scheduler.

mod array;
mod export;
mod foreign;
mod gpu;
mod headers;
mod links_path;
mod options;
mod resources;
mod script;
mod signal;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use tessera_model::{JobId, JobRef};

use self::export::ExportChoice;
use self::foreign::ForeignOptions;
#[cfg(test)]
pub use self::foreign::ForeignOptions as OptionsOfSlurm;
pub use self::gpu::NodesOption;
pub use self::headers::VariablePrefix;
use self::headers::{ScriptHeaders, TerminalOptions};
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
    slurm: SlurmOptions,
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
    /// The script, and its arguments; by default it is read from standard input
    #[arg(value_name = "SCRIPT", trailing_var_arg = true)]
    script: Vec<String>,
    /// A program on the node, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// The options of a job as `submit`, `sbatch`, `srun` and `salloc` take them: ours, and those of Slurm that
/// have no effect or are refused.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct SlurmOptions {
    /// Options of the job.
    #[command(flatten)]
    pub options: JobOptions,
    /// Slurm's other options.
    #[command(flatten)]
    pub foreign: ForeignOptions,
}

/// The program whose defaults a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitDialect {
    /// Ours.
    Tessera,
    /// Those of one of Slurm's commands: the whole environment, `slurm-%j.out`, and variables such as
    /// `SBATCH_PARTITION`.
    Slurm(VariablePrefix),
}

impl SubmitDialect {
    /// Returns whether it is that of Slurm's commands.
    pub const fn is_slurm(self) -> bool {
        matches!(self, Self::Slurm(_))
    }
}

/// The environment of a command that submits a job.
#[derive(Clone, Debug)]
pub struct SubmitContext {
    /// The current folder.
    pub folder: PathBuf,
    /// The variables that are text.
    pub environment: BTreeMap<String, String>,
    /// The name of this machine.
    pub host: Option<String>,
    /// The program whose defaults apply.
    pub dialect: SubmitDialect,
}

/// The program of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobSource {
    /// A script that is named, or read from standard input; and its arguments.
    Script(Option<PathBuf>, Vec<String>),
    /// A line of shell.
    Line(String),
    /// A program and its arguments.
    Program(Vec<String>),
}

/// A request that is ready to be sent, with remarks for its user.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedSubmit {
    pub request: SubmitRequest,
    /// Options without effect.
    pub warnings: Vec<String>,
    /// What a script requests of the command that submits it.
    pub terminal: TerminalOptions,
}

impl SlurmOptions {
    /// Builds the request of a job. Options of the command line override Slurm's variables, and those override
    /// the script's lines.
    ///
    /// # Errors
    ///
    /// [`CommandFailure`] names the first option that can't be honoured, and what would be right.
    pub fn prepare(
        self,
        source: JobSource,
        around: &SubmitContext,
    ) -> Result<PreparedSubmit, CommandFailure> {
        let mut warnings = self.foreign.judge().map_err(CommandFailure::usage)?;
        let uncounted = self.options.uncounted();
        warnings.extend(
            uncounted.map(|name| format!("--gres={name} has no effect: only GPUs are counted")),
        );
        warnings.extend(self.options.unmailed());
        let mut request = SubmitRequest::default();
        let script = source.file(around);
        let headers = source.write_into(&mut request)?;
        let variables = match around.dialect {
            SubmitDialect::Tessera => ScriptHeaders::default(),
            SubmitDialect::Slurm(prefix) => headers::read_variables(prefix, &around.environment)
                .map_err(CommandFailure::usage)?,
        };
        warnings.extend(headers.warnings);
        warnings.extend(variables.warnings);
        let foreign = headers.foreign.under(variables.foreign).under(self.foreign);
        let terminal = headers.terminal.under(variables.terminal);
        self.options.gpu().map_err(CommandFailure::usage)?;
        let options = headers.options.under(variables.options).map_err(CommandFailure::usage)?;
        let options = options.under(self.options).map_err(CommandFailure::usage)?;
        warnings.extend(options.write_into(&mut request, around).map_err(CommandFailure::usage)?);
        request.env.extend(foreign.variables());
        request.env.extend(script.map(|path| (SCRIPT_VARIABLE.to_owned(), path)));
        Ok(PreparedSubmit { request, warnings, terminal })
    }
}

/// The partition of jobs that name none, as Slurm's commands show it.
pub const DEFAULT_PARTITION: &str = "gpu";
/// The variable by which `scontrol show job` in a job names the job's script: many scripts submit themselves again.
pub const SCRIPT_VARIABLE: &str = "SLURM_SUBMIT_SCRIPT";

impl JobSource {
    /// Returns the path of its script for Slurm's commands; `None` for other programs.
    fn file(&self, around: &SubmitContext) -> Option<String> {
        let Self::Script(Some(path), _) = self else { return None };
        let is_stream = path.starts_with("/dev") || path.as_os_str() == "-";
        let is_file = around.dialect.is_slurm() && !is_stream;
        let path = around.folder.join(path);
        path.to_str().filter(|_| is_file).map(str::to_owned)
    }

    /// Writes the program into a request, and returns the options in a script's lines.
    fn write_into(self, request: &mut SubmitRequest) -> Result<ScriptHeaders, CommandFailure> {
        match self {
            Self::Line(line) => {
                request.script = Some(format!("#!/bin/sh\n\n{line}\n"));
                request.name = Some("wrap".to_owned());
                Ok(ScriptHeaders::default())
            }
            Self::Program(words) => {
                request.command = Some(words);
                Ok(ScriptHeaders::default())
            }
            Self::Script(path, arguments) => {
                let script = JobScript::find(path.as_deref())?;
                let headers =
                    headers::read(&script.name, &script.text).map_err(CommandFailure::refused)?;
                request.name = Some(script.name);
                request.script = Some(script.text);
                request.arguments = arguments;
                Ok(headers)
            }
        }
    }
}

impl Submit {
    pub async fn run(self: Box<Self>, session: &CommandSession) -> Result<u8, CommandFailure> {
        self.run_as(SubmitDialect::Tessera, session).await
    }

    /// Submits with the defaults of the command that was called.
    ///
    /// # Errors
    ///
    /// [`CommandFailure`] names what is wrong with the job, or why it was not submitted.
    pub async fn run_as(
        self: Box<Self>,
        dialect: SubmitDialect,
        session: &CommandSession,
    ) -> Result<u8, CommandFailure> {
        let (wait, parsable, quiet) = (self.wait, self.parsable, self.quiet);
        let around = SubmitContext::find(dialect)?;
        let PreparedSubmit { request, warnings, terminal } = self.prepare(&around)?;
        let wait = wait || terminal.has("wait");
        let parsable = parsable || terminal.has("parsable");
        let quiet = quiet || terminal.has("quiet");
        if !quiet {
            warnings.iter().for_each(|warning| session.remark(&format!("warning: {warning}")));
        }
        let submitted = session.client.submit(&request, &SubmitKey::new_unique()).await;
        let submitted = submitted.map_err(with_option_names)?;
        if !quiet {
            submitted.remarks.iter().for_each(|remark| session.remark(remark));
        }
        if request.test_only {
            if session.json {
                session.print(&submitted, |_| String::new())?;
            } else if !quiet {
                session.remark("the job would be accepted; nothing was stored");
            }
            return Ok(0);
        }
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
    fn prepare(self, around: &SubmitContext) -> Result<PreparedSubmit, CommandFailure> {
        let mut words = self.script.into_iter();
        let source = match (self.wrap, words.next(), self.program.is_empty()) {
            (Some(line), ..) => JobSource::Line(line),
            // What follows a script is its arguments, also after two hyphens.
            (None, Some(path), _) => {
                JobSource::Script(Some(path.into()), words.chain(self.program).collect())
            }
            (None, None, false) => JobSource::Program(self.program),
            (None, None, true) => JobSource::Script(None, Vec::new()),
        };
        self.slurm.prepare(source, around)
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
    ("container.image", "container"),
    ("container.mounts", "container-mounts"),
    ("container.work_dir", "container-workdir"),
    ("idle_timeout_secs", "idle-timeout"),
    ("name", "job-name"),
    ("mail_types", "mail-type"),
    ("gpu_model", "gpus"),
    ("array_indexes", "array"),
    ("array_limit", "array"),
];

/// Names the invalid option instead of the field, since the user writes options.
pub fn with_option_names(mut failed: ClientError) -> ClientError {
    let command = Submit::augment_args(clap::Command::new("submit"));
    let is_option =
        |name: &str| command.get_arguments().any(|known| known.get_long() == Some(name));
    if let ClientError::Refused(problem) = &mut failed {
        if let Some(field) = &mut problem.field {
            let option = option_of(field);
            if is_option(&option) {
                *field = format!("--{option}");
            }
        }
        problem.detail = named_as_options(&problem.detail, &is_option);
        problem.expected =
            problem.expected.as_deref().map(|text| named_as_options(text, &is_option));
    }
    failed
}

fn option_of(field: &str) -> String {
    let other = OPTIONS_OF_FIELDS.iter().find(|(name, _)| *name == field);
    other.map_or_else(|| field.replace('_', "-"), |(_, name)| (*name).to_owned())
}

/// Writes fields of the API in a sentence as options: `allow_pending` becomes `--allow-pending`.
fn named_as_options(text: &str, is_option: &dyn Fn(&str) -> bool) -> String {
    let mut named = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(from) = rest.find(|c: char| c.is_ascii_lowercase()) {
        let (before, word) = rest.split_at(from);
        let end = word.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        named.push_str(before);
        let option = option_of(word);
        let follows_more =
            before.ends_with(|c: char| c.is_alphanumeric() || "-_/\"'`.".contains(c));
        match word.contains('_') && !follows_more && is_option(&option) {
            true => named.push_str(&format!("--{option}")),
            false => named.push_str(word),
        }
        rest = after;
    }
    named.push_str(rest);
    named
}

impl SubmitContext {
    /// Reads the environment of this process.
    ///
    /// # Errors
    ///
    /// [`CommandFailure::Refused`] if there is no current folder.
    pub fn find(dialect: SubmitDialect) -> Result<Self, CommandFailure> {
        let folder = std::env::current_dir().map_err(|bad| {
            CommandFailure::refused(format!("the current folder can't be used: {bad}"))
        })?;
        // Variables that aren't text can't be handed over: JSON has no bytes.
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = host.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        Ok(Self { folder, environment, host, dialect })
    }

    /// Returns which variables a job gets if its user names none.
    pub(super) const fn default_export(&self) -> ExportChoice {
        match self.dialect {
            SubmitDialect::Tessera => ExportChoice::ESSENTIALS,
            SubmitDialect::Slurm(_) => ExportChoice::ALL_THAT_FIT,
        }
    }
}

#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod tests;
