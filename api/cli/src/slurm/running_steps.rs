//! The steps of running jobs, for `squeue -s` and `scontrol show step`: the script of each, and what `srun` started.

use tessera_api_types::StepRecord;
use time::OffsetDateTime;

use super::columns::{Column, column};
use super::job::{SlurmJob, uid};
use super::state::SlurmState;
use super::times::{local, now, secs_between, short_span};

/// The format of `squeue -s`.
pub const FORMAT: &str = "%.15i %.8j %.9P %.8u %.9M %N";

/// The script of a running job, or a step of it that runs.
pub struct RunningStep {
    /// The job in which it runs.
    pub job: SlurmJob,
    /// The step; `None` for the script.
    pub step: Option<StepRecord>,
}

/// Returns what runs in jobs, in the order of Slurm: the script first.
pub fn running_steps(jobs: Vec<SlurmJob>) -> Vec<RunningStep> {
    let mut found = Vec::new();
    for job in jobs.into_iter().filter(|job| job.state == SlurmState::Running) {
        let run = job.record.runs.last();
        let steps: Vec<StepRecord> = run
            .iter()
            .flat_map(|run| run.steps.iter().filter(|step| step.ended_at.is_none()).cloned())
            .collect();
        found.push(RunningStep { job: job.clone(), step: None });
        found.extend(
            steps.into_iter().map(|step| RunningStep { job: job.clone(), step: Some(step) }),
        );
    }
    found
}

impl RunningStep {
    /// Returns `42.batch`, or `42.0`.
    pub fn id(&self) -> String {
        let step = self.step.as_ref();
        let part = step.map_or_else(|| "batch".to_owned(), |step| step.step.to_string());
        format!("{}.{part}", self.job.id())
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        self.step.as_ref().map_or("batch", |step| &step.name)
    }

    /// Returns when it was started.
    pub fn started_at(&self) -> Option<OffsetDateTime> {
        self.step.as_ref().map_or(self.job.record.started_at, |step| Some(step.started_at))
    }

    /// Returns its nodes; a script has one.
    pub fn nodes(&self) -> String {
        let first = || self.job.nodes.first().cloned().unwrap_or_default();
        self.step.as_ref().map_or_else(first, |step| step.nodes.clone())
    }

    /// Returns the number of its processes.
    pub fn tasks(&self) -> u32 {
        self.step.as_ref().map_or(1, |step| step.tasks)
    }

    /// Returns whether a name such as `42` or `42.0` means it.
    pub fn is_named(&self, name: &str) -> bool {
        let raw = self.job.raw_id().to_string();
        let part = self.id();
        let part = part.split_once('.').map_or("", |(_, part)| part).to_owned();
        name == self.id()
            || name == self.job.id()
            || name == raw
            || name == format!("{raw}.{part}")
            || name == self.job.array_id().to_string()
    }
}

/// The columns of `squeue -s`.
pub static COLUMNS: &[Column<RunningStep>] = &[
    column(Some('i'), "StepID", "STEPID", "STEPID", RunningStep::id),
    column(Some('j'), "StepName", "NAME", "NAME", |step| step.name().to_owned()),
    column(Some('P'), "Partition", "PARTITION", "PARTITION", |step| step.job.partition()),
    column(Some('u'), "UserName", "USER", "USER", |step| step.job.record.user.clone()),
    column(Some('U'), "UserID", "USER", "USER", |step| uid(&step.job.record.user).to_string()),
    column(Some('M'), "TimeUsed", "TIME", "TIME", |step| {
        short_span(step.started_at().map_or(0, |start| secs_between(start, now())))
    }),
    column(Some('N'), "Nodes", "NODELIST", "NODELIST", RunningStep::nodes),
    column(Some('A'), "NumTasks", "TASKS", "TASKS", |step| step.tasks().to_string()),
    column(Some('S'), "StartTime", "START_TIME", "START_TIME", |step| {
        local(step.started_at(), "N/A")
    }),
    column(Some('l'), "TimeLimit", "TIME_LIMIT", "TIME_LIMIT", |step| {
        step.job.time_limit().map_or_else(|| "UNLIMITED".to_owned(), short_span)
    }),
    column(Some('b'), "Gres", "TRES_PER_NODE", "TRES_PER_NODE", |step| step.job.gres()),
    column(None, "JobID", "JOBID", "JOBID", |step| step.job.raw_id().to_string()),
    column(None, "State", "STATE", "STATE", |_| "RUNNING".to_owned()),
];

#[cfg(test)]
mod tests {
    use super::super::columns::{headings, of_codes, row};
    use super::super::job::gather;
    use super::super::job::samples::{record, records};
    use super::*;

    #[test]
    fn a_script_and_its_open_steps_are_listed_as_slurm_does() {
        let at = OffsetDateTime::UNIX_EPOCH;
        let step = |number: u32, ended_at: Option<OffsetDateTime>| {
            serde_json::json!({
                "step": number, "name": "python", "tasks": 2, "nodes": "g3",
                "started_at": "1970-01-01T00:00:00Z",
                "ended_at": ended_at.map(|_| "1970-01-01T00:00:01Z"),
            })
        };
        let mut job = record(50, 50, None);
        (job.state, job.node, job.started_at) =
            ("running".to_owned(), Some("g3".to_owned()), Some(at));
        let run = serde_json::json!({
            "number": 1, "state": "running", "node": "g3", "gpu_index": 0, "profile": "1g.5gb",
            "placed_at": "1970-01-01T00:00:00Z", "started_at": "1970-01-01T00:00:00Z", "ended_at": null,
            "steps": [step(0, Some(at)), step(1, None)],
        });
        job.runs = vec![serde_json::from_value(run).unwrap()];

        let steps = running_steps(gather(records(vec![job, record(51, 51, None)])));

        let parts = of_codes(FORMAT, COLUMNS);
        assert_eq!(
            headings(&parts),
            "         STEPID     NAME PARTITION     USER      TIME NODELIST\n"
        );
        let ids: Vec<String> = steps.iter().map(RunningStep::id).collect();
        assert_eq!(ids, ["50.batch", "50.1"]);
        assert!(row(&parts, &steps[1]).starts_with("           50.1   python       gpu      ada"));
        assert!(steps[1].is_named("50") && steps[1].is_named("50.1") && !steps[1].is_named("50.0"));
    }
}
