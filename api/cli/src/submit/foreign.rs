//! Slurm's options that Tessera does not have.
//!
//! An option about something that Tessera decides itself or does not limit is accepted with a
//! warning. An option that would change the job's behaviour is refused.

use std::fmt;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// How to handle an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForeignVerdict {
    /// Warn, and ignore it.
    Ignore(&'static str),
    Refuse(RefusalReason),
}

/// Why an option is refused, and what to use instead; empty where there is nothing to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalReason {
    /// The equivalent in Tessera.
    pub why: &'static str,
    /// The text to write instead.
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
    /// Only after an equals sign.
    Optional,
}

use ForeignVerdict::Ignore;
use OptionValue::{Needed, Optional};

const NO_BINDING: &str = "the kernel's scheduler places processes on the processors of the job";
const NO_SOCKETS: &str = "processors are not counted by sockets and cores; write --cpus-per-task";
const NO_STAGING: &str = "there are no burst buffers; copy files in the script";
const POWER: &str = "the driver and the node's operator set clocks";
const ACCOUNTS: &str = "the controller's settings assign users to accounts";
const NAMED_CONTAINER: ForeignVerdict =
    refuse("each job has its own container, which ends with it", "write --container IMAGE");

const fn refuse(why: &'static str, instead: &'static str) -> ForeignVerdict {
    ForeignVerdict::Refuse(RefusalReason { why, instead })
}

/// Long name, short name, value, verdict.
const FOREIGN: &[(&str, Option<char>, OptionValue, ForeignVerdict)] = &[
    ("account", Some('A'), Needed, Ignore(ACCOUNTS)),
    (
        "acctg-freq",
        None,
        Needed,
        Ignore("GPUs are sampled ten times a second, and the rest is counted at the end"),
    ),
    ("batch", None, Needed, Ignore("the script runs on the first node of the job")),
    ("bb", None, Needed, refuse(NO_STAGING, "")),
    ("bbf", None, Needed, refuse(NO_STAGING, "")),
    (
        "cluster-constraint",
        None,
        Needed,
        refuse("there is one cluster", "choose it with --url or TESSERA_URL"),
    ),
    ("clusters", Some('M'), Needed, refuse("", "choose the cluster with --url or TESSERA_URL")),
    ("cluster", None, Needed, refuse("", "choose the cluster with --url or TESSERA_URL")),
    (
        "container-entrypoint",
        None,
        OptionValue::None,
        refuse(
            "the job's program takes the place of the image's",
            "name the entry point in the script",
        ),
    ),
    (
        "container-env",
        None,
        Needed,
        Ignore(
            "variables of the job win over those of the image only where --export or --env names them",
        ),
    ),
    ("container-id", None, Needed, NAMED_CONTAINER),
    ("container-name", None, Needed, NAMED_CONTAINER),
    (
        "container-readonly",
        None,
        OptionValue::None,
        Ignore("what a program writes into its container is removed with it"),
    ),
    (
        "container-remap-root",
        None,
        OptionValue::None,
        Ignore("the user is always root inside of the container, and nobody but the user outside"),
    ),
    ("container-save", None, Needed, NAMED_CONTAINER),
    ("container-writable", None, OptionValue::None, Ignore("a container can always be written to")),
    ("contiguous", None, OptionValue::None, Ignore("nodes have no order")),
    ("core-spec", Some('S'), Needed, Ignore("the operator reserves processors for the system")),
    ("cores-per-socket", None, Needed, Ignore(NO_SOCKETS)),
    ("cpu-bind", None, Needed, Ignore(NO_BINDING)),
    ("cpu-freq", None, Needed, Ignore(POWER)),
    ("delay-boot", None, Needed, Ignore("nodes are not switched off")),
    (
        "distribution",
        Some('m'),
        Needed,
        Ignore("every node has the same number of tasks, in the order of ranks"),
    ),
    ("export-file", None, Needed, refuse("", "write --export or --env")),
    ("extra", None, Needed, Ignore("jobs have no further data")),
    ("extra-node-info", Some('B'), Needed, Ignore(NO_SOCKETS)),
    ("get-user-env", None, Optional, Ignore("write --export")),
    ("gid", None, Needed, refuse("a job belongs to the user who submits it", "use `newgrp` first")),
    ("gpu-bind", None, Needed, Ignore("the steps of the job choose: srun --gpus-per-task")),
    ("gpu-freq", None, Needed, Ignore(POWER)),
    (
        "gpus-per-socket",
        None,
        Needed,
        refuse("GPUs are not counted by sockets", "write --gpus-per-node"),
    ),
    ("gres-flags", None, Needed, Ignore(NO_BINDING)),
    ("hint", None, Needed, Ignore(NO_BINDING)),
    ("ignore-pbs", None, OptionValue::None, Ignore("lines of #PBS are never read")),
    (
        "licenses",
        Some('L'),
        Needed,
        refuse("licences are not counted", "write --array 0-9%N to limit how many run at a time"),
    ),
    ("mcs-label", None, Needed, Ignore("users never see each other's processes")),
    ("mem-bind", None, Needed, Ignore(NO_BINDING)),
    ("mincpus", None, Needed, Ignore("write --cpus-per-task")),
    ("network", None, Needed, Ignore("networks are not reserved")),
    (
        "no-kill",
        Some('k'),
        OptionValue::None,
        Ignore("a job that loses a node is requeued, or see --on-lost"),
    ),
    (
        "no-container-entrypoint",
        None,
        OptionValue::None,
        Ignore("the job's program always takes the place of the image's"),
    ),
    (
        "no-container-mount-home",
        None,
        OptionValue::None,
        Ignore("the home folder is only mounted with --container-mount-home"),
    ),
    (
        "no-container-remap-root",
        None,
        OptionValue::None,
        Ignore("the user is always root inside of the container, and nobody but the user outside"),
    ),
    ("nodefile", Some('F'), Needed, refuse("", "write --nodelist")),
    ("ntasks-per-core", None, Needed, Ignore(NO_SOCKETS)),
    ("ntasks-per-socket", None, Needed, Ignore(NO_SOCKETS)),
    ("oom-kill-step", None, Optional, Ignore("the whole job ends as out of memory")),
    ("overcommit", Some('O'), OptionValue::None, Ignore("write --cpus-per-task")),
    (
        "oversubscribe",
        Some('s'),
        OptionValue::None,
        Ignore("jobs share GPUs by slices; see --share"),
    ),
    ("power", None, Needed, Ignore(POWER)),
    ("prefer", None, Needed, Ignore("only --constraint is followed")),
    ("propagate", None, Optional, Ignore("the node sets limits")),
    ("reboot", None, OptionValue::None, Ignore("nodes are not rebooted for jobs")),
    (
        "reservation",
        None,
        Needed,
        Ignore("there are no reservations: the job waits like any other"),
    ),
    ("resv-ports", None, Optional, Ignore("ports are reserved only with --launch each")),
    ("segment", None, Needed, Ignore("the topology of the network is not known")),
    ("sockets-per-node", None, Needed, Ignore(NO_SOCKETS)),
    ("spread-job", None, OptionValue::None, Ignore("Tessera chooses the nodes")),
    ("stepmgr", None, OptionValue::None, Ignore("steps are managed by srun itself")),
    ("switches", None, Needed, Ignore("the topology of the network is not known")),
    ("thread-spec", None, Needed, Ignore("the operator reserves processors for the system")),
    ("threads-per-core", None, Needed, Ignore(NO_SOCKETS)),
    ("time-min", None, Needed, Ignore("a time limit is never shortened")),
    ("tmp", None, Needed, Ignore("space on disks is not limited")),
    ("tres-bind", None, Needed, Ignore(NO_BINDING)),
    ("tres-per-task", None, Needed, refuse("", "write --gpus-per-task and --cpus-per-task")),
    ("uid", None, Needed, refuse("a job belongs to the user who submits it", "use `sudo -u`")),
    (
        "use-min-nodes",
        None,
        OptionValue::None,
        Ignore(
            "the minimum number of nodes is always \
                                                       used",
        ),
    ),
    ("verbose", Some('v'), OptionValue::None, Ignore("there is no more detailed output")),
    ("wait-all-nodes", None, Needed, Ignore("all processes start together")),
    ("wckey", None, Needed, Ignore("there are no workload characterization keys")),
];

/// The options of this kind in one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignOptions {
    given: Vec<usize>,
}

impl ForeignOptions {
    /// Returns how an option is handled, and why, for the page about Slurm; `None` if it is
    /// unknown.
    #[cfg(test)]
    pub fn verdict_of(name: &str) -> Option<(&'static str, String)> {
        let (.., verdict) = FOREIGN.iter().find(|(long, ..)| *long == name)?;
        Some(match verdict {
            Ignore(why) => ("no effect", (*why).to_owned()),
            ForeignVerdict::Refuse(reason) => ("refused", reason.to_string()),
        })
    }

    /// Returns one warning for each option that has no effect.
    ///
    /// # Errors
    ///
    /// [`UnsupportedOption`] is the first option that is refused.
    pub fn judge(&self) -> Result<Vec<String>, UnsupportedOption> {
        let mut warnings = Vec::new();
        for index in &self.given {
            let (long, _, _, verdict) = FOREIGN[*index];
            match verdict {
                Ignore(why) => warnings.push(format!("--{long} has no effect: {why}")),
                ForeignVerdict::Refuse(reason) => {
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
            // Slurm writes some names in two ways.
            let arg = match *long {
                "cpu-bind" => arg.alias("cpu_bind"),
                "mem-bind" => arg.alias("mem_bind"),
                _ => arg,
            };
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
        for (index, (long, ..)) in FOREIGN.iter().enumerate() {
            if matches.value_source(long) != Some(ValueSource::CommandLine) {
                continue;
            }
            given.push(index);
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
        let refused = judge(&["--licenses=matlab"]).unwrap_err();

        assert_eq!(refused.option, "--licenses");
        assert_eq!(
            refused.to_string(),
            "--licenses is not supported: licences are not counted; write --array 0-9%N to limit \
             how many run at a time"
        );
    }
}
