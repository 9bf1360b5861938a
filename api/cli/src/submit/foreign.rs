//! Slurm's options that Tessera does not have.
//!
//! An option about something that Tessera decides itself or does not limit is accepted with a
//! warning. An option that would change the job's behaviour is refused.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// What to do about an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForeignVerdict {
    /// Warn, and ignore it.
    Ignore(&'static str),
    /// Accept the value 1, since a GPU has one process; refuse any other.
    OnlyOne,
    /// Refuse.
    Refuse(&'static str),
}

/// Whether an option comes with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionValue {
    Needed,
    None,
    /// Only behind an equals sign.
    Optional,
}

use ForeignVerdict::{Ignore, OnlyOne, Refuse};
use OptionValue::{Needed, Optional};

const PER_GPU: &str = "processor cores and host memory are not limited";
const ONE_QUEUE: &str = "there is one queue for all jobs";
const NO_MAIL: &str = "Tessera sends no mail";
const ONE_PROCESS: &str = "a job has one process tree for each of its GPUs";
const PLACES: &str = "Tessera chooses the node; request what the job needs (--vram, --profile)";

/// Long name, short name, value, verdict.
const FOREIGN: &[(&str, Option<char>, OptionValue, ForeignVerdict)] = &[
    ("ntasks-per-gpu", None, Needed, OnlyOne),
    ("cpus-per-task", Some('c'), Needed, Ignore(PER_GPU)),
    ("cpus-per-gpu", None, Needed, Ignore(PER_GPU)),
    ("mincpus", None, Needed, Ignore(PER_GPU)),
    ("mem", None, Needed, Ignore(PER_GPU)),
    ("mem-per-cpu", None, Needed, Ignore(PER_GPU)),
    ("mem-per-gpu", None, Needed, Ignore("that is host memory; for the GPU's write --vram")),
    ("tmp", None, Needed, Ignore("space on disks is not limited")),
    ("partition", Some('p'), Needed, Ignore(ONE_QUEUE)),
    ("qos", Some('q'), Needed, Ignore("write --class online or offline, or --priority")),
    ("account", Some('A'), Needed, Ignore("the controller's settings assign users to accounts")),
    ("wckey", None, Needed, Ignore("there are no workload characterization keys")),
    ("comment", None, Needed, Ignore("jobs have no comments")),
    ("mail-type", None, Needed, Ignore(NO_MAIL)),
    ("mail-user", None, Needed, Ignore(NO_MAIL)),
    ("time-min", None, Needed, Ignore("a time limit is never shortened")),
    ("open-mode", None, Needed, Ignore("each attempt appends to its output file")),
    ("get-user-env", None, Optional, Ignore("write --export")),
    ("gpu-bind", None, Needed, Ignore(ONE_PROCESS)),
    ("gpu-freq", None, Needed, Ignore("the driver sets clocks")),
    ("cpu-bind", None, Needed, Ignore(ONE_PROCESS)),
    ("mem-bind", None, Needed, Ignore(ONE_PROCESS)),
    ("hint", None, Needed, Ignore(ONE_PROCESS)),
    ("distribution", Some('m'), Needed, Ignore(ONE_PROCESS)),
    ("threads-per-core", None, Needed, Ignore(PER_GPU)),
    ("overcommit", Some('O'), OptionValue::None, Ignore(PER_GPU)),
    ("oversubscribe", Some('s'), OptionValue::None, Ignore("write --exclusive for the opposite")),
    ("propagate", None, Optional, Ignore("the node sets limits")),
    ("kill-on-invalid-dep", None, Needed, Ignore("there are no dependencies")),
    ("switches", None, Needed, Ignore(ONE_PROCESS)),
    ("verbose", Some('v'), OptionValue::None, Ignore("there is no more detailed output")),
    (
        "dependency",
        Some('d'),
        Needed,
        Refuse("jobs can't wait for other jobs yet; use `tessera wait`"),
    ),
    (
        "begin",
        Some('b'),
        Needed,
        Refuse("jobs can't wait for a time of day yet; use --hold and release it"),
    ),
    (
        "deadline",
        None,
        Needed,
        Refuse("deadlines are not supported yet; --time limits the run time"),
    ),
    (
        "signal",
        None,
        Needed,
        Refuse(
            "no signal is sent before the time limit yet; at the limit the job gets SIGTERM, and SIGKILL after --grace seconds",
        ),
    ),
    (
        "input",
        Some('i'),
        Needed,
        Refuse("jobs read nothing from standard input; redirect it in the script"),
    ),
    ("constraint", Some('C'), Needed, Refuse(PLACES)),
    ("nodelist", Some('w'), Needed, Refuse(PLACES)),
    ("nodefile", Some('F'), Needed, Refuse(PLACES)),
    ("exclude", Some('x'), Needed, Refuse(PLACES)),
    ("reservation", None, Needed, Refuse("there are no reservations")),
    ("licenses", Some('L'), Needed, Refuse("licences are not counted")),
    ("clusters", Some('M'), Needed, Refuse("choose the cluster with --url or TESSERA_URL")),
    ("export-file", None, Needed, Refuse("write --export or --env")),
    ("uid", None, Needed, Refuse("a job belongs to the user who submits it")),
    ("container", None, Needed, Refuse("start the container in the script")),
    ("test-only", None, OptionValue::None, Refuse("a dry run of submit is not supported yet")),
];

/// The options of this kind in one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignOptions {
    given: Vec<(usize, Option<String>)>,
}

impl ForeignOptions {
    /// Returns one warning for each option that has no effect.
    ///
    /// # Errors
    ///
    /// The first option that is refused.
    pub fn judge(&self) -> Result<Vec<String>, String> {
        let mut warnings = Vec::new();
        for (index, value) in &self.given {
            let (long, _, _, verdict) = FOREIGN[*index];
            match (verdict, value.as_deref()) {
                (Ignore(why), _) => warnings.push(format!("--{long} has no effect: {why}")),
                (OnlyOne, Some("1" | "1-1")) => {}
                (OnlyOne, value) => {
                    let value = value.unwrap_or_default();
                    return Err(format!("--{long}={value} is not supported: {ONE_PROCESS}"));
                }
                (Refuse(why), _) => return Err(format!("--{long} is not supported: {why}")),
            }
        }
        Ok(warnings)
    }
}

impl Args for ForeignOptions {
    fn augment_args(command: Command) -> Command {
        FOREIGN.iter().fold(command, |command, (long, short, value, _)| {
            let arg = Arg::new(*long).long(*long).hide(true);
            let arg = match value {
                Needed => arg.action(ArgAction::Append),
                OptionValue::None => arg.action(ArgAction::Count),
                Optional => arg
                    .action(ArgAction::Append)
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value(""),
            };
            command.arg(match short {
                Some(short) => arg.short(*short),
                None => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ForeignOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for (index, (long, _, value, _)) in FOREIGN.iter().enumerate() {
            if matches.value_source(long) != Some(ValueSource::CommandLine) {
                continue;
            }
            let last = match value {
                OptionValue::None => None,
                Needed | Optional => matches
                    .get_many::<String>(long)
                    .and_then(|mut values| values.next_back())
                    .cloned(),
            };
            given.push((index, last));
        }
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
