//! Looks up the jobs that a job waits for, at its submit and when it is updated.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::batch::ArrayRules;
use tessera_model::dependency::{
    Condition, Dependency, DependencyKind, DependencyRequest, JobRange, RequestedCondition,
};
use tessera_model::spec::{BadField, DependencyUpdate, JobSpec};
use tessera_model::{JobId, JobRef, Millis};

use super::error::ApiError;
use super::identity::Caller;
use super::state::{State, no_job};
use crate::store::reads::{SubmissionShape, Targets};

/// What a request states about the jobs that it waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct DependencyText {
    /// The conditions.
    pub(super) text: Option<String>,
    /// Whether the job is cancelled once they can never be met.
    pub(super) cancel_if_never: bool,
    /// Whether conditions on unknown jobs are left out.
    pub(super) ignore_unknown: bool,
    /// The first index of the job's own array.
    pub(super) array_first: Option<u32>,
}

impl DependencyText {
    /// Reads the conditions and looks their jobs up. Returns them, and remarks about those that are left out.
    pub(super) async fn look_up(
        self,
        state: &State,
        caller: &Caller,
        spec: &JobSpec,
    ) -> Result<(Option<Dependency>, Vec<String>), ApiError> {
        let Some(text) = self.text.as_deref().filter(|text| !text.trim().is_empty()) else {
            return Ok((None, Vec::new()));
        };
        let request: DependencyRequest = text.parse()?;
        let named = request.conditions.iter().filter_map(|condition| condition.job);
        let numbers: Vec<JobId> = named.map(number_of).collect();
        let known = state.reads().submissions_of(numbers, caller.jobs()).await?;
        let own = OwnArray { first: self.array_first, rules: &spec.array };
        Ok(self.resolve(&request, &known, &own)?)
    }

    /// Returns the conditions on jobs that exist, and remarks about those that are left out.
    fn resolve(
        &self,
        request: &DependencyRequest,
        known: &BTreeMap<JobId, SubmissionShape>,
        own: &OwnArray<'_>,
    ) -> Result<(Option<Dependency>, Vec<String>), BadField> {
        let (mut conditions, mut remarks) = (Vec::new(), Vec::new());
        for requested in &request.conditions {
            match own.condition(requested, known)? {
                Some(condition) => conditions.push(condition),
                None if self.ignore_unknown => remarks.push(format!(
                    "{} does not exist: the job does not wait for it",
                    name_of(requested)
                )),
                None => {
                    return Err(BadField::new(
                        "dependency",
                        format!("{} does not exist", name_of(requested)),
                        "jobs that were submitted, and are kept",
                    ));
                }
            }
        }
        // One condition is enough, and a job that does not exist has ended.
        let is_met = conditions.is_empty() || (request.any && !remarks.is_empty());
        let dependency =
            Dependency { any: request.any, cancel_if_never: self.cancel_if_never, conditions };
        Ok(((!is_met).then_some(dependency), remarks))
    }
}

/// Reads what a submitted job is to wait for from now on, and looks these jobs up.
pub(super) async fn new_dependency(
    state: &State,
    caller: &Caller,
    job: JobRef,
    text: &str,
) -> Result<DependencyUpdate, ApiError> {
    let scope = caller.jobs();
    let request: DependencyRequest = text.parse()?;
    let named = request.conditions.iter().filter_map(|condition| condition.job);
    let numbers = named.map(number_of).chain([number_of(job)]).collect();
    let known = state.reads().submissions_of(numbers, scope.clone()).await?;
    let shape = known.get(&number_of(job)).ok_or_else(|| no_job(job))?;
    let own =
        OwnArray { first: shape.array_first.filter(|_| shape.is_array()), rules: &shape.rules };
    let (dependency, _) = DependencyText::default().resolve(&request, &known, &own)?;
    let Some(mut dependency) = dependency else { return Ok(DependencyUpdate::Removed) };
    let jobs = match state.reads().targets(job, &scope).await?.ok_or_else(|| no_job(job))? {
        Targets::One(number) => vec![number],
        Targets::Tasks { unfinished, .. } => unfinished,
    };
    let ranges = dependency.conditions.iter().filter_map(|condition| condition.on).collect();
    let facts = state.reads().dependency_facts(jobs, ranges).await?;
    if facts.is_circular {
        return Err(ApiError::from(BadField::new(
            "dependency",
            format!("job {job} would wait for itself ({text})"),
            "jobs that don't wait for this one",
        )));
    }
    dependency.cancel_if_never = facts.cancel_if_never;
    Ok(DependencyUpdate::To(Arc::new(dependency)))
}

const fn number_of(job: JobRef) -> JobId {
    match job {
        JobRef::Job(job) => job,
        JobRef::Task { array, .. } => array,
    }
}

fn name_of(requested: &RequestedCondition) -> String {
    requested.job.map_or_else(String::new, |job| format!("job {job}"))
}

/// The indexes of the array that is submitted.
struct OwnArray<'s> {
    first: Option<u32>,
    rules: &'s ArrayRules,
}

impl OwnArray<'_> {
    /// Returns a condition with its jobs; `None` if they don't exist.
    fn condition(
        &self,
        requested: &RequestedCondition,
        known: &BTreeMap<JobId, SubmissionShape>,
    ) -> Result<Option<Condition>, BadField> {
        let RequestedCondition { mut kind, job, minutes } = *requested;
        let (mut on, mut shift, mut members) = (None, 0, 1);
        if let Some(job) = job {
            let number = number_of(job);
            let Some(shape) = known.get(&number) else { return Ok(None) };
            let Some(range) = shape.range_of(job) else { return Ok(None) };
            on = Some(range);
            members = shape.members_of_task();
            if kind == DependencyKind::AfterCorr {
                match (self.first, shape.array_first.filter(|_| shape.is_array())) {
                    (Some(first), Some(other)) if range.jobs == shape.tasks => {
                        shift = self.shift(first, other, shape)?;
                    }
                    // Without two arrays no task corresponds to another one.
                    _ => kind = DependencyKind::AfterOk,
                }
            }
        }
        let name = job.map_or_else(String::new, |job| job.to_string());
        let delay = Millis::from_secs(minutes.saturating_mul(60));
        Ok(Some(Condition { kind, on, name, delay, shift, members }))
    }

    /// Returns by how much the places of tasks with the same index differ.
    fn shift(&self, first: u32, other: u32, shape: &SubmissionShape) -> Result<i64, BadField> {
        match (self.rules.indexes.is_empty(), shape.rules.indexes.is_empty()) {
            (true, true) => Ok(i64::from(first) - i64::from(other)),
            _ if self.rules.indexes == shape.rules.indexes => Ok(0),
            _ => Err(BadField::new(
                "dependency",
                format!("array {} has other indexes than this one", shape.first),
                "aftercorr on an array with the same indexes, or arrays without gaps",
            )),
        }
    }
}

impl SubmissionShape {
    /// Returns whether it is an array, and not a single gang.
    const fn is_array(&self) -> bool {
        self.members == 1 || !self.rules.indexes.is_empty()
    }

    /// Returns how many jobs each of its tasks is. The members of a gang alone are named as tasks are.
    const fn members_of_task(&self) -> u32 {
        if self.is_array() { self.members } else { 1 }
    }

    /// Returns the jobs that a name means.
    fn range_of(&self, job: JobRef) -> Option<JobRange> {
        match job {
            // The number of an array or a gang means all of it.
            JobRef::Job(job) if job == self.first => {
                Some(JobRange { first: job, jobs: self.tasks })
            }
            JobRef::Job(job) => Some(JobRange { first: job, jobs: 1 }),
            JobRef::Task { array, index } if array == self.first => {
                let place = match self.rules.indexes.is_empty() {
                    true => index.checked_sub(self.array_first?)?,
                    false => self.rules.indexes.binary_search(&index).ok()?.try_into().ok()?,
                };
                let jobs = self.members_of_task();
                let place = place.checked_mul(jobs)?;
                let number = array.number().checked_add(u64::from(place))?;
                (place < self.tasks).then(|| JobRange { first: JobId::from_number(number), jobs })
            }
            JobRef::Task { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(first: u64, tasks: u32, array_first: Option<u32>, indexes: &[u32]) -> SubmissionShape {
        let rules = ArrayRules { indexes: indexes.to_vec(), ..ArrayRules::default() };
        SubmissionShape { first: JobId::from_number(first), tasks, array_first, rules, members: 1 }
    }

    fn resolve(
        text: &str,
        ignore_unknown: bool,
        own: (Option<u32>, &[u32]),
    ) -> Result<(Option<Dependency>, Vec<String>), BadField> {
        let known = [
            array(10, 1, None, &[]),
            array(20, 5, Some(3), &[]),
            array(30, 3, Some(1), &[1, 4, 9]),
            SubmissionShape { members: 2, ..array(40, 6, Some(1), &[1, 4, 9]) },
            SubmissionShape { members: 2, ..array(50, 2, Some(0), &[]) },
        ];
        let known = known.into_iter().map(|shape| (shape.first, shape)).collect();
        let rules = ArrayRules { indexes: own.1.to_vec(), ..ArrayRules::default() };
        let text =
            DependencyText { ignore_unknown, text: Some(text.to_owned()), ..Default::default() };
        let request: DependencyRequest = text.text.as_deref().unwrap_or_default().parse()?;
        text.resolve(&request, &known, &OwnArray { first: own.0, rules: &rules })
    }

    fn ranges(text: &str) -> Vec<(u64, u32)> {
        let (dependency, _) = resolve(text, false, (None, &[])).unwrap();
        let conditions = dependency.unwrap().conditions.into_iter();
        conditions.filter_map(|c| c.on.map(|on| (on.first.number(), on.jobs))).collect()
    }

    #[test]
    fn names_mean_whole_arrays_and_single_tasks() {
        assert_eq!(
            ranges("afterok:10:20:20_4,afterany:30_9"),
            [(10, 1), (20, 5), (21, 1), (32, 1)]
        );
    }

    #[test]
    fn names_mean_whole_gangs_in_arrays_and_single_ranks_of_gangs() {
        assert_eq!(ranges("afterok:40:40_4:50:50_1"), [(40, 6), (42, 2), (50, 2), (51, 1)]);
        assert_eq!(resolve("afterok:50_2", true, (None, &[])).unwrap().0, None);
    }

    #[test]
    fn unknown_jobs_are_refused_or_count_as_ended() {
        for unknown in ["afterok:99", "afterok:20_99", "afterok:30_2"] {
            let refused = resolve(unknown, false, (None, &[])).unwrap_err();
            assert!(refused.problem.ends_with("does not exist"), "{refused}");
            let (dependency, remarks) = resolve(unknown, true, (None, &[])).unwrap();
            assert_eq!((dependency, remarks.len()), (None, 1), "{unknown}");
        }
        let (left, _) = resolve("afterok:99,afterok:10", true, (None, &[])).unwrap();
        assert_eq!(left.unwrap().to_string(), "afterok:10");
        let (left, _) = resolve("afterok:99?afterok:10", true, (None, &[])).unwrap();
        assert_eq!(left, None, "one that is met is enough");
    }

    #[test]
    fn corresponding_tasks_are_found_by_their_indexes() {
        let shift = |text: &str, own| {
            let (dependency, _) = resolve(text, false, own)?;
            let condition = dependency.unwrap().conditions.remove(0);
            Ok::<_, BadField>((condition.kind.word(), condition.shift))
        };

        assert_eq!(shift("aftercorr:20", (Some(5), &[])), Ok(("aftercorr", 2)));
        assert_eq!(shift("aftercorr:30", (Some(1), &[1, 4, 9])), Ok(("aftercorr", 0)));
        assert_eq!(shift("aftercorr:40", (Some(1), &[1, 4, 9])), Ok(("aftercorr", 0)));
        assert_eq!(shift("aftercorr:50", (Some(0), &[])), Ok(("afterok", 0)), "it is no array");
        assert_eq!(shift("aftercorr:20", (None, &[])), Ok(("afterok", 0)));
        assert!(shift("aftercorr:30", (Some(1), &[])).is_err());
    }
}
