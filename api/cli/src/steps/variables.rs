//! Options of a step that variables of its job set, as Slurm's `srun` reads them.

use std::collections::BTreeMap;

use super::options::{StepMpi, StepOptions};

impl StepOptions {
    /// Fills in what the command line leaves open from variables such as `SLURM_GPUS_PER_TASK`. Numbers of nodes and
    /// processes are read where they are needed, and an unreadable value counts as none, as in Slurm.
    pub fn with_variables(mut self, environment: &BTreeMap<String, String>) -> Self {
        let of = |name: &str| {
            environment.get(&format!("SLURM_{name}")).filter(|text| !text.is_empty()).cloned()
        };
        let is_set = |name: &str| of(name).is_some_and(|text| text != "0" && text != "no");
        let names_gpus = self.gpus.is_some() || self.gpus_per_node.is_some() || self.gres.is_some();
        if !names_gpus {
            self.gpus_per_task = self.gpus_per_task.or_else(|| of("GPUS_PER_TASK"));
            let single = || Some(format!("single:{}", of("NTASKS_PER_GPU")?));
            self.gpu_bind = self.gpu_bind.or_else(|| of("GPU_BIND")).or_else(single);
        }
        if self.gpus_per_task.is_none() {
            self.gres = self.gres.or_else(|| of("STEP_GRES"));
        }
        let plane = || Some(format!("plane={}", of("DIST_PLANESIZE")?));
        self.distribution = self.distribution.or_else(|| match of("DISTRIBUTION")?.as_str() {
            "plane" => plane(),
            other => Some(other.to_owned()),
        });
        self.export = self.export.or_else(|| of("EXPORT_ENV"));
        self.output = self.output.or_else(|| of("STDOUTMODE"));
        self.error = self.error.or_else(|| of("STDERRMODE"));
        self.input = self.input.or_else(|| of("STDINMODE"));
        self.chdir = self.chdir.or_else(|| of("WORKING_DIR").map(Into::into));
        self.wait = self.wait.or_else(|| of("WAIT")?.parse().ok());
        self.mpi = self.mpi.or_else(|| of("MPI_TYPE")?.parse().ok().filter(StepMpi::is_served));
        self.kill_on_bad_exit =
            self.kill_on_bad_exit.or_else(|| Some(u8::from(of("KILL_BAD_EXIT")? != "0")));
        self.label |= is_set("LABELIO");
        self.overlap |= is_set("OVERLAP");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(options: StepOptions, variables: &[(&str, &str)]) -> StepOptions {
        let variables =
            variables.iter().map(|(name, value)| (format!("SLURM_{name}"), (*value).to_owned()));
        options.with_variables(&variables.collect())
    }

    #[test]
    fn variables_stand_for_options_that_are_not_given() {
        let all = [
            ("GPUS_PER_TASK", "1"),
            ("DISTRIBUTION", "plane"),
            ("DIST_PLANESIZE", "4"),
            ("LABELIO", "1"),
            ("KILL_BAD_EXIT", "0"),
            ("WAIT", "7"),
            ("MPI_TYPE", "none"),
            ("EXPORT_ENV", "NONE"),
        ];
        let step = filled(StepOptions::default(), &all);
        let given = StepOptions {
            distribution: Some("cyclic".to_owned()),
            gpus: Some("2".to_owned()),
            ..StepOptions::default()
        };
        let given = filled(given, &all);

        assert_eq!(step.gpus_per_task.as_deref(), Some("1"));
        assert_eq!(step.distribution.as_deref(), Some("plane=4"));
        assert_eq!((step.label, step.kill_on_bad_exit, step.wait), (true, Some(0), Some(7)));
        assert_eq!((step.mpi, step.export.as_deref()), (Some(StepMpi::None), Some("NONE")));
        assert_eq!(given.distribution.as_deref(), Some("cyclic"));
        assert_eq!(given.gpus_per_task, None, "its GPUs are those that it names");
        let shared = filled(StepOptions::default(), &[("NTASKS_PER_GPU", "2")]);
        assert_eq!(shared.gpu_bind.as_deref(), Some("single:2"));
    }

    #[test]
    fn what_is_unset_or_switched_off_changes_nothing() {
        let step =
            filled(StepOptions::default(), &[("LABELIO", "0"), ("WAIT", "soon"), ("OVERLAP", "")]);

        assert!(!step.label && !step.overlap && step.wait.is_none() && step.export.is_none());
    }
}
