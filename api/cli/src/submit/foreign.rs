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
    /// The steps of the job follow it, which read its variable.
    Steps(&'static str),
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

use ForeignVerdict::{Ignore, Steps};
use OptionValue::{Needed, Optional};

const NO_BINDING: &str = "the kernel's scheduler places processes on the processors of the job";
const NO_SOCKETS: &str = "processors are not counted by sockets and cores; write --cpus-per-task";
const NO_STAGING: &str = "there are no burst buffers; copy files in the script";
const POWER: &str = "the driver and the node's operator set clocks";
const ONE_CLUSTER: &str = "there is one cluster, which --url or TESSERA_URL names";
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
    ("clusters", Some('M'), Needed, Ignore(ONE_CLUSTER)),
    ("cluster", None, Needed, Ignore(ONE_CLUSTER)),
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
        Steps("the order of ranks over nodes: block, cyclic, or plane=N"),
    ),
    ("export-file", None, Needed, refuse("", "write --export or --env")),
    ("extra", None, Needed, Ignore("jobs have no further data")),
    ("extra-node-info", Some('B'), Needed, Ignore(NO_SOCKETS)),
    ("get-user-env", None, Optional, Ignore("write --export")),
    ("gid", None, Needed, refuse("a job belongs to the user who submits it", "use `newgrp` first")),
    (
        "gpu-bind",
        None,
        Needed,
        Steps("single:1 gives one GPU to each process; otherwise each sees those of the step"),
    ),
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
        Ignore("licences are not counted; write --array 0-9%N to limit how many run at a time"),
    ),
    ("mcs-label", None, Needed, Ignore("users never see each other's processes")),
    ("mem-bind", None, Needed, Ignore(NO_BINDING)),
    ("mincpus", None, Needed, Ignore("write --cpus-per-task")),
    ("network", None, Needed, Ignore("networks are not reserved")),
    (
        "no-kill",
        Some('k'),
        Optional,
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

/// Options that Slurm states in a variable of the job, by which programs and steps know them.
const STATED: &[(&str, &str)] = &[
    ("account", "SLURM_JOB_ACCOUNT"),
    ("acctg-freq", "SLURM_ACCTG_FREQ"),
    ("get-user-env", "SLURM_GET_USER_ENV"),
    ("gpu-bind", "SLURM_GPU_BIND"),
    ("gpu-freq", "SLURM_GPU_FREQ"),
    ("hint", "SLURM_HINT"),
    ("ntasks-per-core", "SLURM_NTASKS_PER_CORE"),
    ("ntasks-per-socket", "SLURM_NTASKS_PER_SOCKET"),
    ("overcommit", "SLURM_OVERCOMMIT"),
    ("reservation", "SLURM_JOB_RESERVATION"),
    ("threads-per-core", "SLURM_THREADS_PER_CORE"),
];

/// The options of this kind in one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignOptions {
    /// Their places in [`FOREIGN`], and their values.
    given: Vec<(usize, String)>,
}

impl ForeignOptions {
    /// Returns how an option is handled, and why, for the page about Slurm; `None` if it is
    /// unknown.
    #[cfg(test)]
    pub fn verdict_of(name: &str) -> Option<(&'static str, String)> {
        let (.., verdict) = FOREIGN.iter().find(|(long, ..)| *long == name)?;
        Some(match verdict {
            Ignore(why) => ("no effect", (*why).to_owned()),
            Steps(why) => ("works", format!("for the job's steps: {why}")),
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
        for (index, _) in &self.given {
            let (long, _, _, verdict) = FOREIGN[*index];
            match verdict {
                Steps(_) => {}
                Ignore(why) => warnings.push(format!("--{long} has no effect: {why}")),
                ForeignVerdict::Refuse(reason) => {
                    return Err(UnsupportedOption { option: format!("--{long}"), reason });
                }
            }
        }
        Ok(warnings)
    }

    /// Overrides this layer with `stronger`.
    pub fn under(mut self, stronger: Self) -> Self {
        self.given.extend(stronger.given);
        self
    }

    /// Returns the variables by which a job knows these options, as Slurm sets them.
    pub fn variables(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for (index, value) in &self.given {
            let (long, ..) = FOREIGN[*index];
            let mut set = |name: &str, value: &str| all.push((name.to_owned(), value.to_owned()));
            if let Some((_, name)) = STATED.iter().find(|(option, _)| *option == long) {
                set(name, if value.is_empty() { "1" } else { value });
            }
            match (long, value.split_once('=')) {
                ("distribution", Some(("plane", size))) => {
                    set("SLURM_DISTRIBUTION", "plane");
                    set("SLURM_DIST_PLANESIZE", size);
                }
                ("distribution", _) => set("SLURM_DISTRIBUTION", value),
                ("hint", _) if value == "nomultithread" => set("SLURM_THREADS_PER_CORE", "1"),
                _ => {}
            }
        }
        all
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
        for (index, (long, _, value, _)) in FOREIGN.iter().enumerate() {
            if matches.value_source(long) != Some(ValueSource::CommandLine) {
                continue;
            }
            let text = match value {
                OptionValue::None => None,
                Needed | Optional => {
                    matches.get_many::<String>(long).and_then(|mut all| all.next_back())
                }
            };
            given.push((index, text.cloned().unwrap_or_default()));
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
        let refused = judge(&["--gid=100"]).unwrap_err();

        assert_eq!(refused.option, "--gid");
        assert_eq!(
            refused.to_string(),
            "--gid is not supported: a job belongs to the user who submits it; use `newgrp` first"
        );
    }

    #[test]
    fn a_job_knows_these_options_by_variables_of_which_the_strongest_counts() {
        let layer =
            |words: &[&str]| Line::try_parse_from([&["line"], words].concat()).unwrap().foreign;
        let script = layer(&["-m", "plane=4", "--gpu-bind=none", "--hint=nomultithread", "-O"]);

        let both = script.under(layer(&["--gpu-bind=single:1", "--distribution=cyclic"]));

        let all: std::collections::BTreeMap<_, _> = both.variables().into_iter().collect();
        for (name, value) in [
            ("SLURM_DISTRIBUTION", "cyclic"),
            ("SLURM_GPU_BIND", "single:1"),
            ("SLURM_HINT", "nomultithread"),
            ("SLURM_OVERCOMMIT", "1"),
            ("SLURM_THREADS_PER_CORE", "1"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
    }
}
