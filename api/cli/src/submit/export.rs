//! `--export`: the environment variables of the submitter that a job gets.
//!
//! Slurm exports all of them. Tessera does not by default: the environment is stored with the job
//! and may have 20,000 bytes. A login session is often larger, and contains secrets and values that
//! are wrong on another machine. A job gets what it needs to find its programs, and more on request
//! (`--export ALL`, `--export NAME,…`, `--env NAME=VALUE`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::str::FromStr;

use tessera_model::spec::{CONTROLLER_VARIABLES, ENV_VARS_MAX, REST_BYTES_MAX};

/// Variables for finding programs and for the user's language.
const ESSENTIAL: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
];
/// Prefix of further essential variables.
const ESSENTIAL_PREFIX: &str = "LC_";
/// Variables that exist in a job that submits another one.
const OF_ANOTHER_JOB: &[&str] =
    &["SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_"];
/// Prefix of variables that Tessera sets itself or that only concern this command.
const OWN_PREFIX: &str = "TESSERA_";

/// The variables to export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportChoice {
    base: ExportBase,
    named: Vec<(String, Option<String>)>,
    /// What the user wrote; empty for a default.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportBase {
    Essentials,
    /// All, and the largest are left out if there are too many.
    AllThatFit,
    All,
    Nothing,
}

/// An environment that can't be exported to a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExport {
    /// The chosen variables exceed what is stored with a job.
    #[error(
        "the environment has {variables} variables and {bytes} bytes, but a job takes \
         {ENV_VARS_MAX} and {REST_BYTES_MAX}; the largest are {largest}; name those that the job \
         needs: --export NAME,NAME"
    )]
    TooLarge {
        /// How many variables were chosen.
        variables: usize,
        /// How many bytes they have together.
        bytes: usize,
        /// The largest ones, each with its size.
        largest: String,
    },
}

impl ExportChoice {
    /// The default.
    pub const ESSENTIALS: Self = Self::default_of(ExportBase::Essentials);
    /// The default of Slurm's commands.
    pub const ALL_THAT_FIT: Self = Self::default_of(ExportBase::AllThatFit);

    const fn default_of(base: ExportBase) -> Self {
        Self { base, named: Vec::new(), text: String::new() }
    }

    /// Exports all that fit where the user wrote that all are exported: what does not fit is left out, instead of
    /// refusing the job.
    pub fn that_fits(mut self) -> Self {
        if self.base == ExportBase::All {
            self.base = ExportBase::AllThatFit;
        }
        self
    }

    /// Returns the variables by which a job's steps know what its user wrote, as Slurm sets them.
    pub fn variables(&self) -> Vec<(String, String)> {
        if self.text.is_empty() || self.text.eq_ignore_ascii_case("ALL") {
            return Vec::new();
        }
        let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![named("SLURM_EXPORT_ENV", &self.text), named("SLURM_GET_USER_ENV", "1")]
    }

    /// Chooses from `environment`.
    ///
    /// # Errors
    ///
    /// [`BadExport`] names the largest variables if together they are too large.
    pub fn choose(
        &self,
        environment: &BTreeMap<String, String>,
    ) -> Result<ChosenVariables, BadExport> {
        let is_chosen = |name: &str| match self.base {
            // Commands in the job find the controller, whatever else it gets.
            _ if CONTROLLER_VARIABLES.contains(&name) => true,
            ExportBase::Essentials => {
                ESSENTIAL.contains(&name) || name.starts_with(ESSENTIAL_PREFIX)
            }
            ExportBase::All | ExportBase::AllThatFit => true,
            ExportBase::Nothing => false,
        };
        let mut chosen: BTreeMap<String, String> = environment
            .iter()
            .filter(|(name, _)| is_chosen(name) && can_be_set(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for (name, value) in &self.named {
            // As in Slurm, a named variable that is not set here is not set there.
            if let Some(value) = value.as_ref().or_else(|| environment.get(name)) {
                chosen.insert(name.clone(), value.clone());
            }
        }
        let mut left_out = Vec::new();
        if self.base == ExportBase::AllThatFit {
            left_out = leave_out_largest(&mut chosen);
        }
        check_size(&chosen)?;
        Ok(ChosenVariables { chosen, left_out })
    }
}

/// The variables that a job gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChosenVariables {
    pub chosen: BTreeMap<String, String>,
    /// Names of those that are left out since together they are too large.
    pub left_out: Vec<String>,
}

impl ChosenVariables {
    /// Returns a warning if variables are left out.
    pub fn warning(&self) -> Option<String> {
        let names = self.left_out.join(", ");
        (!self.left_out.is_empty()).then(|| {
            format!(
                "the job does not get {names}, since a job takes {REST_BYTES_MAX} bytes of environment; name \
                 what it needs: --export NAME,NAME"
            )
        })
    }
}

/// Returns whether a variable of a shell can be one of a job: also exported functions
/// (`BASH_FUNC_module%%`), but not what another job was given.
fn can_be_set(name: &str) -> bool {
    let plain = name.strip_prefix("BASH_FUNC_").and_then(|name| name.strip_suffix("%%"));
    let is_own = name.starts_with(OWN_PREFIX) && !CONTROLLER_VARIABLES.contains(&name);
    !is_own
        && !OF_ANOTHER_JOB.iter().any(|prefix| name.starts_with(prefix))
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && plain.unwrap_or(name).chars().all(|c| c.is_ascii_alphanumeric() || "_-:.".contains(c))
}

/// Variables that only a terminal or the module command itself reads.
const LEAST_NEEDED: &[&str] = &["LS_COLORS", "LESSOPEN", "LESSCLOSE", "_ModuleTable", "__LMOD"];

/// Leaves out the largest variables that finding programs doesn't need, until the rest fits. What a job needs least goes
/// first, and exported functions such as `module` last. Returns the names of those that are left out.
fn leave_out_largest(chosen: &mut BTreeMap<String, String>) -> Vec<String> {
    let need = |name: &str| match name {
        _ if LEAST_NEEDED.iter().any(|prefix| name.starts_with(prefix)) => 0,
        _ if name.starts_with("BASH_FUNC_") => 2,
        _ => 1,
    };
    let mut left_out = Vec::new();
    while check_size(chosen).is_err() {
        let largest = chosen
            .iter()
            .filter(|(name, _)| !ESSENTIAL.contains(&name.as_str()))
            .max_by_key(|(name, value)| (std::cmp::Reverse(need(name)), value.len()))
            .map(|(name, _)| name.clone());
        let Some(name) = largest else { break };
        chosen.remove(&name);
        left_out.push(name);
    }
    left_out
}

fn check_size(chosen: &BTreeMap<String, String>) -> Result<(), BadExport> {
    let bytes: usize = chosen.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    if bytes <= REST_BYTES_MAX && chosen.len() <= ENV_VARS_MAX {
        return Ok(());
    }
    let mut by_size: Vec<_> = chosen.iter().map(|(name, value)| (value.len(), name)).collect();
    by_size.sort_unstable_by(|a, b| b.cmp(a));
    let largest: Vec<_> =
        by_size.iter().take(3).map(|(bytes, name)| format!("{name} ({bytes} bytes)")).collect();
    Err(BadExport::TooLarge { variables: chosen.len(), bytes, largest: largest.join(", ") })
}

impl FromStr for ExportChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let mut export =
            Self { base: ExportBase::Nothing, named: Vec::new(), text: text.trim().to_owned() };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some((name, value)) => {
                    export.named.push((name.to_owned(), Some(value.to_owned())));
                }
                None if word.eq_ignore_ascii_case("ALL") => export.base = ExportBase::All,
                None if ["NONE", "NIL"].iter().any(|none| word.eq_ignore_ascii_case(none)) => {}
                None => export.named.push((word.to_owned(), None)),
            }
        }
        Ok(export)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> BTreeMap<String, String> {
        [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("TESSERA_TOKEN", "hush"),
            ("TESSERA_URL", "https://gpu.lab:7070"),
            ("BASH_FUNC_module%%", "() { :; }"),
            ("SLURM_JOB_ID", "1"),
            ("DATA", "/data"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    fn names(export: &str) -> Vec<String> {
        let export: ExportChoice = export.parse().unwrap();
        export.choose(&environment()).unwrap().chosen.into_keys().collect()
    }

    #[test]
    fn by_default_a_job_gets_no_secrets() {
        let chosen = ExportChoice::ESSENTIALS.choose(&environment()).unwrap().chosen;

        assert_eq!(chosen.into_keys().collect::<Vec<_>>(), ["LC_ALL", "PATH", "TESSERA_URL"]);
    }

    #[test]
    fn slurms_forms_choose_as_in_slurm() {
        // Where the controller is, each job learns.
        let url = "TESSERA_URL";
        assert_eq!(names("NONE"), [url]);
        assert_eq!(names("DATA"), ["DATA", url]);
        assert_eq!(names("DATA,X=1"), ["DATA", url, "X"]);
        let all = ["AWS_SECRET_ACCESS_KEY", "BASH_FUNC_module%%", "DATA", "LC_ALL", "PATH", url];
        assert_eq!(names("ALL"), all);
        assert_eq!(names("ALL,X=1").last().unwrap(), "X");
    }

    #[test]
    fn a_named_variable_that_is_not_set_stays_unset() {
        assert_eq!(names("MISSING,DATA"), ["DATA", "TESSERA_URL"]);
    }

    #[test]
    fn the_largest_variables_of_slurms_default_are_left_out_if_it_is_too_large() {
        let mut environment = environment();
        environment.insert("LS_COLORS".into(), "x".repeat(REST_BYTES_MAX / 4));
        environment.insert("LARGE".into(), "x".repeat(REST_BYTES_MAX / 2));
        environment.insert("BASH_FUNC_module%%".into(), "x".repeat(REST_BYTES_MAX * 3 / 4));
        let all: ExportChoice = "ALL".parse().unwrap();

        for export in [ExportChoice::ALL_THAT_FIT, all.that_fits()] {
            let fit = export.choose(&environment).unwrap();

            assert_eq!(fit.left_out, ["LS_COLORS", "LARGE"]);
            assert!(fit.chosen.contains_key("DATA"), "{fit:?}");
            assert!(fit.warning().unwrap().contains("LS_COLORS, LARGE"));
        }
    }

    #[test]
    fn steps_know_what_a_job_exports_as_in_slurm() {
        let given = |text: &str| text.parse::<ExportChoice>().unwrap().variables();

        assert_eq!((given("ALL"), ExportChoice::ESSENTIALS.variables()), (vec![], vec![]));
        assert_eq!(given("NONE")[0], ("SLURM_EXPORT_ENV".to_owned(), "NONE".to_owned()));
        assert_eq!(given("ALL,A=1")[1], ("SLURM_GET_USER_ENV".to_owned(), "1".to_owned()));
    }

    #[test]
    fn an_environment_that_is_too_large_names_the_largest_variables() {
        let mut environment = environment();
        environment.insert("LS_COLORS".into(), "x".repeat(REST_BYTES_MAX));
        let export: ExportChoice = "ALL".parse().unwrap();

        let refused = export.choose(&environment).unwrap_err().to_string();

        assert!(refused.contains("LS_COLORS (20000 bytes)"), "{refused}");
        assert!(refused.contains("--export NAME"), "{refused}");
    }
}
