//! What a commit brought to light: answers to users, and jobs that wait again.

use std::collections::BTreeMap;

use tessera_model::life::JobState;
use tessera_model::{JobId, Millis};

use super::{Cluster, Input, Round};
use crate::ports::{CommandResult, JobMoved};
use crate::store::commit::Findings;
use crate::store::moves::Change;
use crate::store::submit::FreshJob;

impl Round {
    /// Returns the jobs that stand in the queue by their users' last word. `moved` tells of each
    /// command the state that the store has the job in since; `None` if it didn't take it.
    pub fn released(&self, moved: &[Option<JobState>]) -> Vec<JobId> {
        let last: BTreeMap<JobId, JobState> = self.taken(moved).collect();
        last.into_iter().filter(|(_, to)| *to == JobState::Queued).map(|(job, _)| job).collect()
    }

    /// Returns the results of commands by token, with what only the store could tell.
    pub fn answers(&self, findings: &Findings) -> Vec<(u64, Vec<CommandResult>)> {
        // Each result that the picture left open stands for one command, in their order.
        let mut moved = findings.moved.iter();
        let mut tell = |job: &JobId, known: &Option<CommandResult>| {
            known.clone().unwrap_or_else(|| match moved.next() {
                Some(Some(_)) => CommandResult::Done,
                Some(None) | None => match findings.unmoved.get(job) {
                    Some(state) => CommandResult::Refused { state: state.clone() },
                    None => CommandResult::NotFound,
                },
            })
        };
        let answer = |(token, jobs): &(u64, Vec<(JobId, Option<CommandResult>)>)| {
            (*token, jobs.iter().map(|(job, known)| tell(job, known)).collect())
        };
        self.results.iter().map(answer).collect()
    }

    /// Returns what the users' words did to waiting jobs, to be announced.
    pub fn moved_by_users(&self, findings: &Findings) -> Vec<JobMoved> {
        self.taken(&findings.moved)
            .map(|(job, state)| JobMoved { job, attempt: None, state })
            .collect()
    }

    fn taken(&self, moved: &[Option<JobState>]) -> impl Iterator<Item = (JobId, JobState)> {
        let taken = self.commands.iter().zip(moved);
        taken.filter_map(|(command, moved)| Some((command.job, (*moved)?)))
    }
}

impl Cluster {
    /// Remembers the jobs that users moved: if one is announced only after that, the announcement
    /// is out of date.
    pub fn note_moved(&mut self, round: &Round, findings: &Findings, now: Millis) {
        self.moved.extend(round.taken(&findings.moved).map(|(job, _)| (job, now)));
    }

    /// Whether a job that is announced only now was moved by a user already.
    pub(super) fn was_moved(&self, job: JobId, round: &Round) -> bool {
        // It is in the store, waiting, or it would not be announced: the command will move it. If
        // it is released after that, the release says so once more.
        let released = Change::To(JobState::Queued);
        let now = round.commands.iter().any(|c| c.job == job && c.change != released);
        now || self.moved.contains_key(&job)
    }
}

impl Findings {
    /// Returns the released jobs as the next round's **first** input: whatever was said of them
    /// since comes after it.
    pub fn requeued(&mut self) -> Option<Input> {
        let released = std::mem::take(&mut self.released);
        let fresh = |(job, sheet): (JobId, super::JobSheet)| {
            let fresh = FreshJob::new(job, &sheet.spec, sheet.gang, sheet.attempts);
            FreshJob { waited: sheet.waited, done: sheet.done, ..fresh }
        };
        let jobs: Vec<_> = released.into_iter().map(fresh).collect();
        (!jobs.is_empty()).then_some(Input::Requeued(jobs))
    }
}
