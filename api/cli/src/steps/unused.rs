//! Options of Slurm's `srun` that a step does not need, and those that would change what it does.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::Allocation;

/// How an option is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepVerdict {
    /// It has no effect, and needs none.
    Unused,
    /// It is valid if it names this job.
    OwnJob,
    /// The single process gets the terminal.
    Terminal,
    /// It has no effect, which is printed.
    Remarked(&'static str),
    /// It is refused, with what would be right.
    Refused(&'static str),
}

use StepVerdict::{OwnJob, Refused, Remarked, Terminal, Unused};

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Needed,
    None,
    Optional,
}

const NAMED_CONTAINER: StepVerdict =
    Refused("each process has its own container, which ends with it; write --container-image");

/// Long name, short name, value, verdict.
const STEP: &[(&str, Option<char>, Value, StepVerdict)] = &[
    ("accel-bind", None, Value::Needed, Unused),
    ("account", Some('A'), Value::Needed, Unused),
    ("bcast", None, Value::Optional, Unused),
    ("comment", None, Value::Needed, Unused),
    ("compress", None, Value::Optional, Unused),
    ("constraint", Some('C'), Value::Needed, Unused),
    ("container-entrypoint", None, Value::None, Refused("name the entry point as the program")),
    ("container-env", None, Value::Needed, Unused),
    ("container-name", None, Value::Needed, NAMED_CONTAINER),
    ("container-readonly", None, Value::None, Unused),
    ("container-remap-root", None, Value::None, Unused),
    ("container-save", None, Value::Needed, NAMED_CONTAINER),
    ("container-writable", None, Value::None, Unused),
    ("core-spec", Some('S'), Value::Needed, Unused),
    ("cores-per-socket", None, Value::Needed, Unused),
    ("cpu-bind", None, Value::Needed, Unused),
    ("cpu-freq", None, Value::Needed, Unused),
    ("cpus-per-gpu", None, Value::Needed, Unused),
    ("disable-status", Some('X'), Value::None, Unused),
    ("epilog", None, Value::Needed, Refused("call it in the script")),
    ("exact", None, Value::None, Unused),
    ("exclusive", None, Value::Optional, Unused),
    ("extra-node-info", Some('B'), Value::Needed, Unused),
    ("gpu-freq", None, Value::Needed, Unused),
    ("gres-flags", None, Value::Needed, Unused),
    (
        "het-group",
        None,
        Value::Needed,
        Refused("a job has one part; start each part's program in its own job"),
    ),
    ("hint", None, Value::Needed, Unused),
    ("immediate", Some('I'), Value::Optional, Unused),
    ("interactive", None, Value::None, Unused),
    ("jobid", None, Value::Needed, OwnJob),
    ("mem", None, Value::Needed, Unused),
    ("mem-bind", None, Value::Needed, Unused),
    ("mem-per-cpu", None, Value::Needed, Unused),
    ("mem-per-gpu", None, Value::Needed, Unused),
    ("network", None, Value::Needed, Unused),
    ("no-container-entrypoint", None, Value::None, Unused),
    ("no-container-mount-home", None, Value::None, Unused),
    ("no-container-remap-root", None, Value::None, Unused),
    ("no-kill", Some('k'), Value::Optional, Unused),
    ("ntasks-per-core", None, Value::Needed, Unused),
    ("ntasks-per-gpu", None, Value::Needed, Unused),
    ("ntasks-per-socket", None, Value::Needed, Unused),
    ("open-mode", None, Value::Needed, Unused),
    ("overcommit", Some('O'), Value::None, Unused),
    ("oversubscribe", Some('s'), Value::None, Unused),
    ("partition", Some('p'), Value::Needed, Unused),
    ("preserve-env", Some('E'), Value::None, Unused),
    ("prolog", None, Value::Needed, Refused("call it in the script")),
    ("propagate", None, Value::Optional, Unused),
    ("pty", None, Value::Optional, Terminal),
    ("qos", Some('q'), Value::Needed, Unused),
    ("quiet", Some('Q'), Value::None, Unused),
    ("resv-ports", None, Value::Optional, Unused),
    ("slurmd-debug", None, Value::Needed, Unused),
    ("spread-job", None, Value::None, Unused),
    ("task-epilog", None, Value::Needed, Refused("call it in the script")),
    ("task-prolog", None, Value::Needed, Refused("call it in the script")),
    ("thread-spec", None, Value::Needed, Unused),
    ("threads", Some('T'), Value::Needed, Unused),
    ("threads-per-core", None, Value::Needed, Unused),
    ("time", Some('t'), Value::Needed, Remarked("the time limit of the job applies")),
    ("tres-bind", None, Value::Needed, Unused),
    ("unbuffered", Some('u'), Value::None, Unused),
    ("verbose", Some('v'), Value::None, Unused),
    ("wckey", None, Value::Needed, Unused),
];

/// The options of this kind on one command line, with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnusedStepOptions {
    given: Vec<(usize, String)>,
}

/// An option that would change what the step does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{option} is not supported: {instead}")]
pub struct UnsupportedStepOption {
    option: &'static str,
    instead: String,
}

impl UnusedStepOptions {
    /// Returns remarks about options without effect. `allocation` is the job that this process belongs to.
    ///
    /// # Errors
    ///
    /// [`UnsupportedStepOption`] is the first option that can't be honoured.
    pub fn check(
        &self,
        allocation: Option<&Allocation>,
        tasks: u32,
    ) -> Result<Vec<String>, UnsupportedStepOption> {
        let mut remarks = Vec::new();
        for (place, value) in &self.given {
            let (option, .., verdict) = STEP[*place];
            let refuse = |instead: String| Err(UnsupportedStepOption { option, instead });
            match (verdict, allocation) {
                // Outside of a job these are options of the job.
                (Unused, _) | (Remarked(_), None) => {}
                (Remarked(why), Some(_)) => {
                    remarks.push(format!("--{option} has no effect: {why}"));
                }
                (Refused(instead), _) => return refuse(instead.to_owned()),
                (OwnJob, Some(own)) if *value == own.job => {}
                (OwnJob, Some(own)) => {
                    return refuse(format!("a step runs in its own job, which is {}", own.job));
                }
                (OwnJob, None) => {
                    return refuse("this is not inside a job; call it in the script".to_owned());
                }
                (Terminal, _) if tasks == 1 => {}
                (Terminal, _) => {
                    return refuse(format!(
                        "{tasks} processes can't share a terminal; start one of them with it"
                    ));
                }
            }
        }
        Ok(remarks)
    }

    /// Returns the variables by which processes know of options that have no other effect.
    pub fn variables(&self) -> Vec<(String, String)> {
        let stated = self.given.iter().filter_map(|(place, value)| {
            let name = match STEP[*place].0 {
                "ntasks-per-core" => "SLURM_NTASKS_PER_CORE",
                "threads-per-core" => "SLURM_THREADS_PER_CORE",
                "hint" if value == "nomultithread" => {
                    return Some(("SLURM_THREADS_PER_CORE", "1".to_owned()));
                }
                _ => return None,
            };
            Some((name, value.clone()))
        });
        stated.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns the job that the command line names.
    pub fn job(&self) -> Option<&str> {
        let found = self.given.iter().find(|(place, _)| STEP[*place].0 == "jobid");
        found.map(|(_, job)| job.as_str())
    }

    /// Returns whether the process is to have the terminal.
    pub fn has_terminal(&self) -> bool {
        self.given.iter().any(|(place, _)| STEP[*place].0 == "pty")
    }

    /// Returns the names of the options without effect, for the page about Slurm.
    #[cfg(test)]
    pub fn unused_names() -> impl Iterator<Item = &'static str> {
        STEP.iter().filter(|(.., verdict)| *verdict == Unused).map(|(long, ..)| *long)
    }
}

impl Args for UnusedStepOptions {
    fn augment_args(command: Command) -> Command {
        STEP.iter().fold(command, |command, (long, short, value, _)| {
            let has_long = |arg: &Arg| arg.get_long() == Some(*long);
            // Options that the command has itself are honoured there.
            if command.get_arguments().any(has_long) {
                return command;
            }
            let arg = Arg::new(*long).long(*long).hide(true);
            let arg = match *long {
                "cpu-bind" => arg.alias("cpu_bind"),
                "mem-bind" => arg.alias("mem_bind"),
                _ => arg,
            };
            let arg = match value {
                Value::Needed => arg.action(ArgAction::Append),
                Value::None => arg.action(ArgAction::Count),
                Value::Optional => arg
                    .action(ArgAction::Append)
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value(""),
            };
            let is_free =
                |letter: &char| command.get_arguments().all(|arg| arg.get_short() != Some(*letter));
            let arg = match short.filter(is_free) {
                Some(letter) => arg.short(letter),
                None => arg,
            };
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for UnusedStepOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for (place, (long, _, value, _)) in STEP.iter().enumerate() {
            if matches.try_contains_id(long).is_err()
                || matches.value_source(long) != Some(ValueSource::CommandLine)
            {
                continue;
            }
            let text = match value {
                Value::None => None,
                // One that the command has itself may have another type.
                Value::Needed | Value::Optional => matches
                    .try_get_many::<String>(long)
                    .ok()
                    .flatten()
                    .and_then(|mut all| all.next_back()),
            };
            given.push((place, text.cloned().unwrap_or_default()));
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
        unused: UnusedStepOptions,
    }

    fn check(words: &[&str], tasks: u32) -> Result<Vec<String>, UnsupportedStepOption> {
        let variables = [("TESSERA_JOB_ID", "29"), ("TESSERA_NODE", "g1")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let allocation = Allocation::find(variables.into()).unwrap();
        let line = Line::try_parse_from([&["srun"], words].concat()).unwrap();
        line.unused.check(Some(&allocation), tasks)
    }

    #[test]
    fn options_that_scripts_give_to_steps_are_accepted() {
        for words in [
            &["--unbuffered", "--cpu-bind=q", "--mem=4G", "--exact", "--exclusive", "-u"][..],
            &["--jobid=29", "--cpu_bind=v,none"],
        ] {
            assert_eq!(check(words, 2), Ok(Vec::new()), "{words:?}");
        }
        assert_eq!(check(&["--time=5"], 1).unwrap().len(), 1);
    }

    #[test]
    fn a_steps_processes_know_its_options_about_cores_by_variables() {
        for (words, variable) in [
            (&["--threads-per-core=1", "--cpu-bind=none"][..], ("SLURM_THREADS_PER_CORE", "1")),
            (&["--hint=nomultithread"], ("SLURM_THREADS_PER_CORE", "1")),
            (&["--ntasks-per-core=2", "--hint=compute_bound"], ("SLURM_NTASKS_PER_CORE", "2")),
        ] {
            let line = Line::try_parse_from([&["srun"], words].concat()).unwrap();
            let (name, value) = variable;
            assert_eq!(line.unused.variables(), [(name.to_owned(), value.to_owned())], "{words:?}");
        }
    }

    #[test]
    fn what_would_change_the_meaning_of_a_step_is_refused_with_what_would_be_right() {
        for (words, why) in [
            (&["--jobid=30"][..], "its own job, which is 29"),
            (&["--container-name=pytorch"], "write --container-image"),
            (&["--pty"], "4 processes can't share a terminal"),
        ] {
            let refused = check(words, 4).unwrap_err().to_string();
            assert!(refused.contains(why), "{words:?}: {refused}");
        }
    }
}
