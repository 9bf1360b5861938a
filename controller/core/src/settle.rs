//! The consequences of a commit: answers to users, and jobs that wait again.

use crate::LaunchSpec;
use crate::commands::{CommandResult, JobStateChange};
use crate::input::Input;
use crate::round::{JobWrites, Round};
use crate::rows::findings::CommitFindings;
use crate::rows::submitted::SubmittedJob;
use crate::rows::transitions::WaitingJobChange;
use crate::state::queue::JobQueue;
use std::collections::BTreeMap;
use tessera_model::JobId;
use tessera_model::life::JobState;

impl Round {
    /// Returns the jobs that are queued by their users' last commands. `moved` has the state of
    /// each command's job in the store; `None` if the job did not take the command.
    pub fn released(&self, moved: &[Option<JobState>]) -> Vec<JobId> {
        let last: BTreeMap<JobId, JobState> = self.taken(moved).collect();
        last.into_iter().filter(|(_, to)| *to == JobState::Queued).map(|(job, _)| job).collect()
    }

    /// Returns the results of commands by token, completed by what only the store knows.
    pub fn complete_answers(&self, findings: &CommitFindings) -> Vec<(u64, Vec<CommandResult>)> {
        // Each result that the state left open belongs to one command, in their order.
        let mut moved = findings.moved.iter();
        let mut result = |job: &JobId, known: &Option<CommandResult>| {
            known.clone().unwrap_or_else(|| match moved.next() {
                Some(Some(_)) => CommandResult::Done,
                Some(None) | None => match findings.unmoved.get(job) {
                    Some(state) => CommandResult::Refused { state: state.clone() },
                    None => CommandResult::NotFound,
                },
            })
        };
        let answer = |(token, jobs): &(u64, Vec<(JobId, Option<CommandResult>)>)| {
            (*token, jobs.iter().map(|(job, known)| result(job, known)).collect())
        };
        self.answers.users.iter().map(answer).collect()
    }

    /// Returns the state changes of waiting jobs that users commanded, to be announced.
    pub fn commanded_changes(&self, findings: &CommitFindings) -> Vec<JobStateChange> {
        self.taken(&findings.moved)
            .map(|(job, state)| JobStateChange { job, attempt: None, state })
            .collect()
    }

    pub(crate) fn taken(
        &self,
        moved: &[Option<JobState>],
    ) -> impl Iterator<Item = (JobId, JobState)> {
        let taken = self.jobs.commands.iter().zip(moved);
        taken.filter_map(|(command, moved)| Some((command.job, (*moved)?)))
    }
}

impl CommitFindings {
    /// Returns the released jobs as the **first** input of the next round: later commands come
    /// after it.
    pub fn take_requeued(&mut self) -> Option<Input> {
        let released = std::mem::take(&mut self.released);
        let submitted = |(job, launch_spec): (JobId, LaunchSpec)| {
            let job =
                SubmittedJob::new(job, &launch_spec.spec, launch_spec.gang, launch_spec.attempts);
            let array = launch_spec.array.map(|place| place.array);
            let LaunchSpec { waited, done, own, .. } = launch_spec;
            SubmittedJob { waited, done, own, array, ..job }.after(launch_spec.restart_reason)
        };
        let jobs: Vec<_> = released.into_iter().map(submitted).collect();
        (!jobs.is_empty()).then_some(Input::Requeued(jobs))
    }

    /// Returns the new answers about jobs that others depend on, as an input of the next round.
    pub fn take_dependencies(&mut self) -> Option<Input> {
        let known = std::mem::take(&mut self.dependencies);
        (!known.is_empty()).then_some(Input::Dependencies(known))
    }
}

/// Returns whether a user already changed a job that is announced only now.
pub(crate) fn was_commanded(queue: &JobQueue, job: JobId, jobs: &JobWrites) -> bool {
    // It is announced, so it waits in the store, and the command will change its state. If it is
    // released after that, the release announces it once more.
    let queued = |change: &WaitingJobChange| change.to() == Some(JobState::Queued);
    let now = jobs.commands.iter().any(|c| c.job == job && !queued(&c.change));
    now || queue.recently_commanded.contains_key(&job)
}
