//! Slurm's options that Tessera does not have.
//!
//! An option about something that Tessera decides itself or does not limit is accepted with a
//! warning. An option that would change the job's behaviour is refused.

use std::fmt;

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
    Refuse(RefusalReason),
}

/// Why an option is refused, and what to use instead; empty where there is nothing to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalReason {
    /// What Tessera has or does.
    pub why: &'static str,
    /// What to write instead.
    pub instead: &'static str,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = if self.why.is_empty() || self.instead.is_empty() { "" } else { "; " };
        write!(f, "{}{both}{}", self.why, self.instead)
    }
}

/// An option of Slurm that Tessera can't honour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is not supported: {reason}")]
pub struct UnsupportedOption {
    /// The option as it is written, with its value if only that value is refused.
    pub option: String,
    /// Why, and what to use instead.
    pub reason: RefusalReason,
}

/// Whether an option comes with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionValue {
    Needed,
    None,
    /// Only behind an equals sign.
    Optional,
}

use ForeignVerdict::{Ignore, OnlyOne};
use OptionValue::{Needed, Optional};

const PER_GPU: &str = "a process is limited by --cpus-per-task and --mem";
const ONE_QUEUE: &str = "there is one queue for all jobs";
const NO_MAIL: &str = "Tessera sends no mail";
const ONE_PROCESS: &str = "a job has one process tree for each of its GPUs";
const PLACES: ForeignVerdict =
    refuse("Tessera chooses the node", "request what the job needs (--vram, --profile)");

const fn refuse(why: &'static str, instead: &'static str) -> ForeignVerdict {
    ForeignVerdict::Refuse(RefusalReason { why, instead })
}

/// Long name, short name, value, verdict.
const FOREIGN: &[(&str, Option<char>, OptionValue, ForeignVerdict)] = &[
    ("ntasks-per-gpu", None, Needed, OnlyOne),
    ("cpus-per-gpu", None, Needed, Ignore(PER_GPU)),
    ("mincpus", None, Needed, Ignore(PER_GPU)),
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
        refuse("jobs can't wait for other jobs yet", "use `tessera wait`"),
    ),
    (
        "begin",
        Some('b'),
        Needed,
        refuse("jobs can't wait for a time of day yet", "use --hold and release it"),
    ),
    (
        "signal",
        None,
        Needed,
        refuse(
            "no signal is sent before the time limit yet",
            "at the limit the job gets SIGTERM, and SIGKILL after --grace seconds",
        ),
    ),
    (
        "input",
        Some('i'),
        Needed,
        refuse("jobs read nothing from standard input", "redirect it in the script"),
    ),
    ("constraint", Some('C'), Needed, PLACES),
    ("nodelist", Some('w'), Needed, PLACES),
    ("nodefile", Some('F'), Needed, PLACES),
    ("exclude", Some('x'), Needed, PLACES),
    ("reservation", None, Needed, refuse("there are no reservations", "")),
    ("licenses", Some('L'), Needed, refuse("licences are not counted", "")),
    ("clusters", Some('M'), Needed, refuse("", "choose the cluster with --url or TESSERA_URL")),
    ("export-file", None, Needed, refuse("", "write --export or --env")),
    ("uid", None, Needed, refuse("a job belongs to the user who submits it", "")),
    ("container", None, Needed, refuse("", "start the container in the script")),
    ("test-only", None, OptionValue::None, refuse("a dry run of submit is not supported yet", "")),
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
    /// [`UnsupportedOption`] is the first option that is refused.
    pub fn judge(&self) -> Result<Vec<String>, UnsupportedOption> {
        let mut warnings = Vec::new();
        for (index, value) in &self.given {
            let (long, _, _, verdict) = FOREIGN[*index];
            match (verdict, value.as_deref()) {
                (Ignore(why), _) => warnings.push(format!("--{long} has no effect: {why}")),
                (OnlyOne, Some("1" | "1-1")) => {}
                (OnlyOne, value) => {
                    let option = format!("--{long}={}", value.unwrap_or_default());
                    let reason = RefusalReason { why: ONE_PROCESS, instead: "" };
                    return Err(UnsupportedOption { option, reason });
                }
                (ForeignVerdict::Refuse(reason), _) => {
                    return Err(UnsupportedOption { option: format!("--{long}"), reason });
                }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        foreign: ForeignOptions,
    }

    fn judge(words: &[&str]) -> Result<Vec<String>, UnsupportedOption> {
        Line::try_parse_from([&["line"], words].concat()).unwrap().foreign.judge()
    }

    #[test]
    fn a_refused_option_comes_with_the_reason_and_with_what_to_write_instead() {
        let refused = judge(&["--begin=18:00"]).unwrap_err();

        assert_eq!(refused.option, "--begin");
        assert_eq!(refused.reason.why, "jobs can't wait for a time of day yet");
        assert_eq!(refused.reason.instead, "use --hold and release it");
        assert_eq!(
            refused.to_string(),
            "--begin is not supported: jobs can't wait for a time of day yet; use --hold and \
             release it"
        );
    }

    #[test]
    fn one_process_for_each_gpu_is_accepted_and_more_are_refused() {
        assert_eq!(judge(&["--ntasks-per-gpu=1"]), Ok(Vec::new()));
        assert_eq!(
            judge(&["--ntasks-per-gpu=2"]).unwrap_err().to_string(),
            "--ntasks-per-gpu=2 is not supported: a job has one process tree for each of its GPUs"
        );
    }
}
