//! Slurm's commands: `tessera` under their names, with their flags, formats and exit codes.
//!
//! Scripts and workflow tools parse these outputs, so every heading, width and blank is that of Slurm 22.05.
//! Where Slurm is surprising, so are these; the verbs of `tessera` report more.

mod columns;
mod hosts;
mod job;
mod links;
mod lists;
#[cfg(test)]
mod page;
mod partitions;
mod processes;
mod report_views;
mod running_steps;
mod sacct;
mod sacctmgr;
mod salloc;
mod sbatch;
mod sbcast;
mod scancel;
mod scontrol;
mod show;
mod signals;
mod sinfo;
mod sprio;
mod squeue;
mod srun;
mod sshare;
mod sstat;
mod state;
mod times;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use super::connection::{Connection, Given};
use super::failure::CommandFailure;
use super::session::CommandSession;
use tessera_client::ClientError;

pub use self::links::SlurmLinks;
pub use self::processes::print_own as print_processes;
pub use self::sbcast::ReceiveFile;
pub use self::signals::{SignalTarget, signal_processes};

/// The release of Slurm whose outputs are followed, as tools read it.
pub const VERSION: &str = "slurm-wlm 22.05.8";
/// The default partition of jobs and nodes.
pub const PARTITION: &str = super::submit::DEFAULT_PARTITION;

/// One of Slurm's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlurmCommand {
    /// Accounting of jobs.
    Sacct,
    /// Accounts, for reading.
    Sacctmgr,
    /// Holds GPUs while a command runs.
    Salloc,
    /// Follows the output of a job.
    Sattach,
    /// Submits a script.
    Sbatch,
    /// Copies a file to the nodes of a job.
    Sbcast,
    /// Cancels and signals jobs.
    Scancel,
    /// Shows and changes jobs and nodes.
    Scontrol,
    /// One job's efficiency.
    Seff,
    /// Lists partitions and nodes.
    Sinfo,
    /// Priorities of waiting jobs.
    Sprio,
    /// Lists jobs.
    Squeue,
    /// Usage of accounts and users.
    Sreport,
    /// Starts processes in a job, or a job.
    Srun,
    /// Shares and recent usage of accounts.
    Sshare,
    /// What running jobs use.
    Sstat,
}

/// Hidden commands for which the program starts itself on the nodes of a job.
const OWN_VERBS: [&str; 6] = [
    "step-part",
    "step-terminal",
    "step-watch",
    "signal-processes",
    "job-processes",
    "receive-file",
];

impl SlurmCommand {
    /// Every command.
    pub const ALL: [Self; 16] = [
        Self::Sacct,
        Self::Sacctmgr,
        Self::Salloc,
        Self::Sattach,
        Self::Sbatch,
        Self::Sbcast,
        Self::Scancel,
        Self::Scontrol,
        Self::Seff,
        Self::Sinfo,
        Self::Sprio,
        Self::Squeue,
        Self::Sreport,
        Self::Srun,
        Self::Sshare,
        Self::Sstat,
    ];

    /// Returns the name by which it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sacct => "sacct",
            Self::Sacctmgr => "sacctmgr",
            Self::Salloc => "salloc",
            Self::Sattach => "sattach",
            Self::Sbatch => "sbatch",
            Self::Sbcast => "sbcast",
            Self::Scancel => "scancel",
            Self::Scontrol => "scontrol",
            Self::Seff => "seff",
            Self::Sinfo => "sinfo",
            Self::Sprio => "sprio",
            Self::Squeue => "squeue",
            Self::Sreport => "sreport",
            Self::Srun => "srun",
            Self::Sshare => "sshare",
            Self::Sstat => "sstat",
        }
    }

    /// Returns the command that a program was called as.
    fn called_as(program: &OsString) -> Option<Self> {
        let name = Path::new(program).file_name()?;
        Self::ALL.into_iter().find(|command| name == command.name())
    }

    /// Returns the command that a command line stands for. What this program calls itself for is none, even if it is a
    /// copy with a command's name: a copy as `srun` would start itself without end.
    pub fn of_line(arguments: &[OsString]) -> Option<Self> {
        let verb = arguments.get(1);
        let own = verb.is_some_and(|verb| OWN_VERBS.iter().any(|own| verb == own));
        arguments.first().filter(|_| !own).and_then(Self::called_as)
    }

    /// The exit code for a wrong command line.
    const fn usage_code(self) -> u8 {
        match self {
            Self::Sbatch => 255,
            _ => 1,
        }
    }
}

/// Why one of Slurm's commands failed.
#[derive(Debug, thiserror::Error)]
pub enum SlurmFailure {
    /// A complete message in Slurm's wording.
    #[error("{0}")]
    Message(String),
    /// The same as a verb of `tessera`.
    #[error(transparent)]
    Command(#[from] CommandFailure),
}

impl From<ClientError> for SlurmFailure {
    fn from(failed: ClientError) -> Self {
        Self::Command(failed.into())
    }
}

impl From<std::io::Error> for SlurmFailure {
    fn from(failed: std::io::Error) -> Self {
        Self::Command(failed.into())
    }
}

/// What a command did: its exit code.
type Done = Result<u8, SlurmFailure>;

/// Runs a command, and returns its exit code.
pub async fn run(command: SlurmCommand, arguments: Vec<OsString>) -> u8 {
    let name = command.name();
    let done = dispatch(command, arguments).await;
    match done {
        Ok(code) => code,
        Err(SlurmFailure::Command(failure)) if failure.is_closed_pipe() => 0,
        Err(SlurmFailure::Message(text)) => {
            eprintln!("{text}");
            1
        }
        Err(SlurmFailure::Command(failure)) => {
            eprintln!("{name}: error: {failure}");
            match failure {
                CommandFailure::Usage(_) => command.usage_code(),
                _ => 1,
            }
        }
    }
}

async fn dispatch(command: SlurmCommand, arguments: Vec<OsString>) -> Done {
    match command {
        SlurmCommand::Sacct => with(command, arguments, sacct::Sacct::run).await,
        SlurmCommand::Sacctmgr => with(command, arguments, sacctmgr::Sacctmgr::run).await,
        SlurmCommand::Salloc => salloc::run(arguments).await,
        SlurmCommand::Sattach => with(command, arguments, sbcast::Sattach::run).await,
        SlurmCommand::Sbatch => sbatch::run(arguments).await,
        SlurmCommand::Sbcast => with(command, arguments, sbcast::Sbcast::run).await,
        SlurmCommand::Scancel => with(command, arguments, scancel::Scancel::run).await,
        SlurmCommand::Scontrol => with(command, arguments, scontrol::Scontrol::run).await,
        SlurmCommand::Seff => with(command, arguments, report_views::Seff::run).await,
        SlurmCommand::Sinfo => with(command, arguments, sinfo::Sinfo::run).await,
        SlurmCommand::Sprio => with(command, arguments, sprio::Sprio::run).await,
        SlurmCommand::Squeue => with(command, arguments, squeue::Squeue::run).await,
        SlurmCommand::Sreport => with(command, arguments, report_views::Sreport::run).await,
        SlurmCommand::Srun => srun::run(arguments).await,
        SlurmCommand::Sshare => with(command, arguments, sshare::Sshare::run).await,
        SlurmCommand::Sstat => with(command, arguments, sstat::Sstat::run).await,
    }
}

/// Parses the command line as Slurm's programs do: options may stand anywhere, the last one wins,
/// and long ones may be abbreviated.
async fn with<A, F>(
    command: SlurmCommand,
    arguments: Vec<OsString>,
    run: impl FnOnce(A) -> F,
) -> Done
where
    A: CommandFactory + FromArgMatches,
    F: Future<Output = Done>,
{
    let parser = A::command()
        .name(command.name())
        .version(VERSION)
        .disable_version_flag(true)
        .infer_long_args(true)
        .args_override_self(true)
        .disable_help_subcommand(true);
    let parsed =
        parser.try_get_matches_from(arguments).and_then(|matches| A::from_arg_matches(&matches));
    match parsed {
        Ok(arguments) => run(arguments).await,
        Err(wrong) => Ok(explain_usage(command, &wrong)?),
    }
}

/// Prints what is wrong with a command line, in the wording of `getopt`.
fn explain_usage(command: SlurmCommand, wrong: &clap::Error) -> Result<u8, std::io::Error> {
    let name = command.name();
    if wrong.kind() == ErrorKind::DisplayHelp {
        write!(std::io::stdout(), "{wrong}")?;
        return Ok(0);
    }
    let given = wrong.get(clap::error::ContextKind::InvalidArg).map(ToString::to_string);
    match (wrong.kind(), given) {
        (ErrorKind::UnknownArgument, Some(option)) if option.starts_with("--") => {
            eprintln!("{name}: unrecognized option '{option}'");
        }
        (ErrorKind::UnknownArgument, Some(option)) if option.starts_with('-') => {
            let letter = option.trim_start_matches('-');
            eprintln!("{name}: invalid option -- '{letter}'");
        }
        _ => eprint!("{name}: {wrong}"),
    }
    eprintln!("Try \"{name} --help\" for more information");
    Ok(command.usage_code())
}

/// Connects to the controller that the environment or `tessera login` names.
fn connect() -> Result<CommandSession, SlurmFailure> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let given = Given {
        url: set("TESSERA_URL"),
        token: set("TESSERA_TOKEN"),
        ca: set("TESSERA_CA").map(Into::into),
    };
    let found = Connection::find(&given)?;
    Ok(CommandSession::open(&found, false)?)
}

/// Writes all of a command's output at once.
fn write_out(text: &str) -> Result<(), SlurmFailure> {
    Ok(super::session::write_out(text)?)
}

/// Splits lists that were given several times, at their commas.
fn words(lists: &[String]) -> Vec<String> {
    let words = lists.iter().flat_map(|list| list.split(','));
    words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_its_name_wherever_it_lies() {
        let called = |path: &str| SlurmCommand::called_as(&OsString::from(path));

        assert_eq!(called("/usr/lib/tessera/slurm/squeue"), Some(SlurmCommand::Squeue));
        assert_eq!(called("sbatch"), Some(SlurmCommand::Sbatch));
        assert_eq!(called("/usr/bin/tessera"), None);
    }

    #[test]
    fn a_copy_with_a_commands_name_does_not_take_the_programs_own_calls_for_it() {
        let line = |words: &[&str]| {
            SlurmCommand::of_line(&words.iter().map(OsString::from).collect::<Vec<_>>())
        };

        assert_eq!(line(&["/usr/bin/srun", "hostname"]), Some(SlurmCommand::Srun));
        assert_eq!(line(&["/usr/bin/sinfo"]), Some(SlurmCommand::Sinfo));
        for verb in OWN_VERBS {
            assert_eq!(line(&["/usr/bin/srun", verb]), None, "{verb}");
            assert!(crate::Cli::command().find_subcommand(verb).is_some(), "{verb}");
        }
    }

    #[test]
    fn the_command_lines_are_consistent() {
        sacct::Sacct::command().debug_assert();
        sacctmgr::Sacctmgr::command().debug_assert();
        sbcast::Sattach::command().debug_assert();
        sbcast::Sbcast::command().debug_assert();
        scancel::Scancel::command().debug_assert();
        sprio::Sprio::command().debug_assert();
        sshare::Sshare::command().debug_assert();
        sstat::Sstat::command().debug_assert();
        scontrol::Scontrol::command().debug_assert();
        sinfo::Sinfo::command().debug_assert();
        squeue::Squeue::command().debug_assert();
        report_views::Seff::command().debug_assert();
        report_views::Sreport::command().debug_assert();
    }
}
