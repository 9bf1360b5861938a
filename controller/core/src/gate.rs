//! Jobs that may not start yet: before their time, while enough tasks of their array run, or while they wait for
//! other jobs.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::{JobId, Millis};
use tessera_placement::{Explanation, WaitReason};

use crate::round::JobWrites;
use crate::rows::transitions::{WaitingJobChange, WaitingJobCommand};
use crate::state::RoundClock;
use crate::state::attempts::AttemptTable;
use crate::state::dependencies::DependencyTable;
use crate::state::queue::{JobQueue, WaitingJob};
use tessera_model::dependency::DependencyVerdict;
use tessera_model::number::clamped;

/// Finds the waiting jobs that may not start yet, one after another in the order of service.
pub(crate) struct Gate<'c> {
    attempts: &'c AttemptTable,
    dependencies: &'c DependencyTable,
    clock: &'c RoundClock,
    now: Millis,
    /// How many tasks of an array run or may start.
    running: BTreeMap<JobId, u32>,
    /// The gangs that the limits of their arrays allow to start. All members start together.
    passed: BTreeSet<JobId>,
}

impl<'c> Gate<'c> {
    pub(crate) const fn new(
        attempts: &'c AttemptTable,
        dependencies: &'c DependencyTable,
        clock: &'c RoundClock,
        now: Millis,
    ) -> Self {
        let running = BTreeMap::new();
        Self { attempts, dependencies, clock, now, running, passed: BTreeSet::new() }
    }

    /// Returns why a job may not start now; `None` allows it.
    pub(crate) fn bars(&mut self, waiting: &WaitingJob) -> Option<WaitReason> {
        let rules = &waiting.facts.rules;
        if rules.begin.is_some_and(|begin| self.clock.on_boot_clock(begin) > self.now) {
            return Some(WaitReason::BeginTime);
        }
        if let Some(reason) = self.unmet_dependency(waiting) {
            return Some(reason);
        }
        let (limit, array) = (rules.array_limit?, waiting.array?);
        let gang = waiting.job.gang;
        if gang.is_some_and(|member| self.passed.contains(&member.gang)) {
            return None;
        }
        let members = gang.map_or(1, |member| member.shape.members());
        let running = self.running.entry(array).or_insert_with(|| {
            let is_live = |job: u64| self.attempts.of_job(JobId::from_number(job)).is_some();
            let first_of = |task: u32| array.number() + u64::from(task) * u64::from(members);
            let runs = |task: &u32| (first_of(*task)..first_of(task + 1)).any(is_live);
            clamped((0..limit.tasks).filter(runs).count())
        });
        if *running >= limit.at_once {
            return Some(WaitReason::ArrayTaskLimit);
        }
        *running += 1;
        self.passed.extend(gang.map(|member| member.gang));
        None
    }

    fn unmet_dependency(&self, waiting: &WaitingJob) -> Option<WaitReason> {
        let dependency = waiting.facts.rules.dependency.as_ref()?;
        let (job, place) = (waiting.job.id, waiting.place_in_array());
        match self.dependencies.verdict(job, place, dependency) {
            Some(DependencyVerdict::Met) => None,
            Some(DependencyVerdict::MetAt(at)) if self.clock.on_boot_clock(at) <= self.now => None,
            Some(DependencyVerdict::Never) => Some(WaitReason::DependencyNeverSatisfied),
            Some(DependencyVerdict::MetAt(_) | DependencyVerdict::Unmet) | None => {
                Some(WaitReason::Dependency)
            }
        }
    }
}

/// Cancels the jobs whose dependencies became impossible to meet, if their users requested that.
pub(crate) fn give_up_never_satisfied(queue: &mut JobQueue, jobs: &mut JobWrites) {
    for job in queue.dependencies.take_changed() {
        let Some(waiting) = queue.queued(job) else { continue };
        let Some(dependency) = &waiting.facts.rules.dependency else { continue };
        let place = waiting.place_in_array();
        let verdict = queue.dependencies.verdict(job, place, dependency);
        if dependency.cancel_if_never && verdict == Some(DependencyVerdict::Never) {
            queue.dequeue(job);
            jobs.commands.push(WaitingJobCommand { job, change: WaitingJobChange::GiveUp });
        }
    }
}

/// Explains the wait of a job that may not start yet.
pub(crate) fn explain_gate(policy: &str, waiting: &WaitingJob, reason: WaitReason) -> Explanation {
    let rules = &waiting.facts.rules;
    let dependency = rules.dependency.as_ref().map(ToString::to_string).unwrap_or_default();
    let (summary, would_start_if) = match (reason, rules.array_limit) {
        (WaitReason::ArrayTaskLimit, Some(limit)) => (
            format!("{} tasks of its array may run at a time, and as many do", limit.at_once),
            "another task of the array ends",
        ),
        (WaitReason::Dependency, _) => (
            format!("it waits for other jobs (--dependency {dependency})"),
            "those jobs start or end as the dependency requires",
        ),
        (WaitReason::DependencyNeverSatisfied, _) => (
            format!(
                "it never starts: the jobs that it waits for did not end as it requires \
                 (--dependency {dependency})"
            ),
            "it is cancelled, and submitted again with another dependency",
        ),
        _ => (
            "its user set a time before which it may not start (--begin)".to_owned(),
            "that time comes",
        ),
    };
    Explanation {
        policy: policy.to_owned(),
        summary,
        would_start_if: Some(would_start_if.to_owned()),
        ..Explanation::default()
    }
}
