//! The facts and predictions that a policy requested in a round, with their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::mig::ProfileId;
use tessera_model::place::PlaceFilter;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{Bytes, JobId, Millis};

use crate::facts::{Account, CoRunner, Demand, JobFacts};
use crate::predictor::{RunTime, SpeedRange};
use crate::preemption::PreemptionPrice;
use crate::view::MpsClient;

/// A job on a kind of slice: job, kind of GPU, profile.
type OnSlice = (JobId, u32, ProfileId);
/// The same with a percentage of the multiprocessors, and co-runners with theirs.
type MpsRun = (OnSlice, SmPercent, Vec<(JobId, SmPercent)>);
/// The same with a priority, and co-runners with theirs.
type KernelSharedRun = (OnSlice, Priority, Vec<(JobId, Priority)>);
/// Jobs that share a kind of slice under MPS: kind of GPU, profile (none with MIG off), jobs.
type MpsClients = (u32, Option<ProfileId>, Vec<MpsClient>);
/// A job on a kind of slice, or on a whole GPU with MIG off: job, kind of GPU, profile.
type OnSliceOrWhole = (JobId, u32, Option<ProfileId>);

/// The prediction for a job alone on a slice. The default is no prediction, which is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedRun {
    time: Option<Millis>,
    /// The upper end of its interval, if that differs from the time. Older records have none.
    latest: Option<Millis>,
    is_measured: bool,
}

impl Default for RecordedRun {
    fn default() -> Self {
        Self { time: None, latest: None, is_measured: true }
    }
}

impl RecordedRun {
    pub(super) fn of(run: Option<RunTime>) -> Self {
        let is_measured = run.is_none_or(|run| run.is_measured);
        let latest = run.filter(|run| run.latest != run.time).map(|run| run.latest);
        Self { time: run.map(|run| run.time), latest, is_measured }
    }

    pub(super) fn run(self) -> Option<RunTime> {
        self.time.map(|time| RunTime {
            time,
            latest: self.latest.unwrap_or(time),
            is_measured: self.is_measured,
        })
    }
}

/// Answers by question. The answer to a missing question is that nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) facts: BTreeMap<JobId, JobFacts>,
    /// Facts without usage, which changes in every round and is the same for all jobs of an
    /// account.
    pub(super) accounts: BTreeMap<JobId, Option<Account>>,
    pub(super) usage: BTreeMap<String, Millis>,
    pub(super) runs: BTreeMap<OnSlice, RecordedRun>,
    pub(super) mps_runs: BTreeMap<MpsRun, Option<Millis>>,
    pub(super) kernel_shared_runs: BTreeMap<KernelSharedRun, Option<Millis>>,
    pub(super) speeds: BTreeMap<MpsClients, Option<Vec<u32>>>,
    pub(super) shared_speeds: BTreeMap<MpsClients, Option<Vec<SpeedRange>>>,
    pub(super) rests_alone: BTreeMap<OnSliceOrWhole, Option<Millis>>,
    /// Whether waiting jobs may send others back to the queue, and what that costs.
    pub(super) preempting: BTreeMap<JobId, bool>,
    pub(super) preemption_prices: BTreeMap<JobId, Option<PreemptionPrice>>,
    /// The restrictions of running jobs to nodes and models.
    pub(super) places: BTreeMap<JobId, Option<Arc<PlaceFilter>>>,
    /// How many more jobs wait than the round lists.
    pub(super) unlisted: usize,
    /// Whether the round was allowed to continue searching, by the number of searches.
    pub(super) budget: BTreeMap<usize, bool>,
}

/// Answers that are new or changed. The keys of its text remain those of the first stored rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewAnswers {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    times: Vec<(OnSlice, Option<Millis>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    latest: Vec<(OnSlice, Option<Millis>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured: Vec<(OnSlice, bool)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    done: Vec<(JobId, Option<u32>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    since: Vec<(JobId, Option<Millis>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    submitted: Vec<(JobId, Option<Millis>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<(JobId, Option<Millis>)>,
    #[serde(rename = "move_prices", skip_serializing_if = "Vec::is_empty")]
    migration_prices: Vec<(JobId, Option<Millis>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resting: Vec<(JobId, bool)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory: Vec<(JobId, Option<Bytes>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    multiprocessors: Vec<(JobId, Option<u16>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deadlines: Vec<(JobId, Option<Millis>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    online: Vec<(JobId, bool)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    demands: Vec<(JobId, Option<Demand>)>,
    #[serde(rename = "beside", skip_serializing_if = "Vec::is_empty")]
    mps_runs: Vec<(MpsRun, Option<Millis>)>,
    #[serde(rename = "in_turns", skip_serializing_if = "Vec::is_empty")]
    kernel_shared_runs: Vec<(KernelSharedRun, Option<Millis>)>,
    #[serde(rename = "together", skip_serializing_if = "Vec::is_empty")]
    speeds: Vec<(MpsClients, Option<Vec<u32>>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shared_speeds: Vec<(MpsClients, Option<Vec<SpeedRange>>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rests_alone: Vec<(OnSliceOrWhole, Option<Millis>)>,
    #[serde(rename = "go_on", skip_serializing_if = "Vec::is_empty")]
    budget: Vec<(usize, bool)>,
    #[serde(rename = "companions", skip_serializing_if = "Vec::is_empty")]
    co_runners: Vec<(JobId, Option<CoRunner>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    accounts: Vec<(JobId, Option<Account>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    usage: Vec<(String, Millis)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preempting: Vec<(JobId, bool)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preemption_prices: Vec<(JobId, Option<PreemptionPrice>)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<(JobId, Option<PlaceFilter>)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted: Option<usize>,
}

impl Answers {
    /// Returns what differs from `before`.
    pub(super) fn since(&self, before: &Self) -> NewAnswers {
        let mut new = NewAnswers {
            mps_runs: changed(&before.mps_runs, &self.mps_runs, &None),
            kernel_shared_runs: changed(
                &before.kernel_shared_runs,
                &self.kernel_shared_runs,
                &None,
            ),
            speeds: changed(&before.speeds, &self.speeds, &None),
            shared_speeds: changed(&before.shared_speeds, &self.shared_speeds, &None),
            rests_alone: changed(&before.rests_alone, &self.rests_alone, &None),
            budget: changed(&before.budget, &self.budget, &true),
            accounts: changed(&before.accounts, &self.accounts, &None),
            usage: changed(&before.usage, &self.usage, &Millis::ZERO),
            preempting: changed(&before.preempting, &self.preempting, &false),
            preemption_prices: changed(&before.preemption_prices, &self.preemption_prices, &None),
            places: changed(&before.places, &self.places, &None)
                .into_iter()
                .map(|(job, place)| (job, place.map(|place| (*place).clone())))
                .collect(),
            unlisted: (self.unlisted != before.unlisted).then_some(self.unlisted),
            ..NewAnswers::default()
        };
        let (nothing, unknown) = (RecordedRun::default(), JobFacts::default());
        for (key, old, run) in paired(&before.runs, &self.runs, &nothing) {
            push(&mut new.times, key, &old.time, &run.time);
            push(&mut new.latest, key, &old.latest, &run.latest);
            push(&mut new.measured, key, &old.is_measured, &run.is_measured);
        }
        for (job, old, facts) in paired(&before.facts, &self.facts, &unknown) {
            push(&mut new.done, job, &old.done, &facts.done);
            push(&mut new.since, job, &old.since, &facts.since);
            push(&mut new.submitted, job, &old.submitted, &facts.submitted);
            push(&mut new.limits, job, &old.limit, &facts.limit);
            push(&mut new.migration_prices, job, &old.migration_price, &facts.migration_price);
            push(&mut new.resting, job, &old.resting, &facts.resting);
            push(&mut new.memory, job, &old.memory, &facts.memory);
            push(&mut new.multiprocessors, job, &old.multiprocessors, &facts.multiprocessors);
            push(&mut new.deadlines, job, &old.deadline, &facts.deadline);
            push(&mut new.online, job, &old.online, &facts.online);
            push(&mut new.demands, job, &old.demand, &facts.demand);
            push(&mut new.co_runners, job, &old.co_runner, &facts.co_runner);
        }
        new
    }

    /// Adds new and changed answers.
    pub(super) fn add(&mut self, new: &NewAnswers) {
        for (key, time) in &new.times {
            self.runs.entry(*key).or_default().time = *time;
        }
        for (key, latest) in &new.latest {
            self.runs.entry(*key).or_default().latest = *latest;
        }
        for (key, is_measured) in &new.measured {
            self.runs.entry(*key).or_default().is_measured = *is_measured;
        }
        self.set(&new.done, |facts, done| facts.done = done);
        self.set(&new.since, |facts, since| facts.since = since);
        self.set(&new.submitted, |facts, submitted| facts.submitted = submitted);
        self.set(&new.limits, |facts, limit| facts.limit = limit);
        self.set(&new.migration_prices, |facts, price| facts.migration_price = price);
        self.set(&new.resting, |facts, resting| facts.resting = resting);
        self.set(&new.memory, |facts, memory| facts.memory = memory);
        self.set(&new.multiprocessors, |facts, number| facts.multiprocessors = number);
        self.set(&new.deadlines, |facts, deadline| facts.deadline = deadline);
        self.set(&new.online, |facts, online| facts.online = online);
        self.set(&new.demands, |facts, demand| facts.demand = demand);
        self.set(&new.co_runners, |facts, co_runner| facts.co_runner = co_runner);
        self.mps_runs.extend(new.mps_runs.iter().cloned());
        self.kernel_shared_runs.extend(new.kernel_shared_runs.iter().cloned());
        self.speeds.extend(new.speeds.iter().cloned());
        self.shared_speeds.extend(new.shared_speeds.iter().cloned());
        self.rests_alone.extend(new.rests_alone.iter().copied());
        self.budget.extend(new.budget.iter().copied());
        self.accounts.extend(new.accounts.iter().cloned());
        self.usage.extend(new.usage.iter().cloned());
        self.preempting.extend(new.preempting.iter().copied());
        self.preemption_prices.extend(new.preemption_prices.iter().copied());
        let places = new.places.iter().map(|(job, place)| (*job, place.clone().map(Arc::new)));
        self.places.extend(places);
        self.unlisted = new.unlisted.unwrap_or(self.unlisted);
    }

    fn set<V: Clone>(&mut self, values: &[(JobId, V)], set: impl Fn(&mut JobFacts, V)) {
        for (job, value) in values {
            set(self.facts.entry(*job).or_default(), value.clone());
        }
    }

    /// Returns an account with its usage; the oldest records store the usage with each job.
    pub(super) fn with_usage(&self, account: Option<Account>) -> Option<Account> {
        let account = account?;
        let used = self.usage.get(&*account.name).copied().unwrap_or(account.used);
        Some(Account { used, ..account })
    }
}

/// From this many times more entries in `before` on, each one is looked up instead of reading all of them: a chain
/// remembers all of its ended jobs.
const LOOK_UP_FROM: usize = 8;

/// Returns the entries of `now`, each with its value in `before`, or with `missing` if it has none.
fn paired<'a, K: Ord, V>(
    before: &'a BTreeMap<K, V>,
    now: &'a BTreeMap<K, V>,
    missing: &'a V,
) -> impl Iterator<Item = (&'a K, &'a V, &'a V)> {
    let is_looked_up = before.len() / LOOK_UP_FROM > now.len();
    let mut old = before.iter().peekable();
    now.iter().map(move |(key, value)| {
        if is_looked_up {
            return (key, before.get(key).unwrap_or(missing), value);
        }
        while old.next_if(|(known, _)| *known < key).is_some() {}
        let known = old.next_if(|(known, _)| *known == key);
        (key, known.map_or(missing, |(_, known)| known), value)
    })
}

/// Returns the entries of `now` that differ in `before` or are absent there, unless they equal
/// `missing`.
fn changed<K: Ord + Clone, V: PartialEq + Clone>(
    before: &BTreeMap<K, V>,
    now: &BTreeMap<K, V>,
    missing: &V,
) -> Vec<(K, V)> {
    let mut changes = Vec::new();
    for (key, old, value) in paired(before, now, missing) {
        push(&mut changes, key, old, value);
    }
    changes
}

fn push<K: Clone, V: PartialEq + Clone>(changes: &mut Vec<(K, V)>, key: &K, old: &V, now: &V) {
    if old != now {
        changes.push((key.clone(), now.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_the_same_whether_old_answers_are_read_or_looked_up() {
        let now = BTreeMap::from([(1, 10), (50, 51), (200, 7), (300, 0)]);
        let few = BTreeMap::from([(1, 10), (50, 50)]);
        // With so many others, each is looked up.
        let others = (60..160).map(|key| (key, key));
        let many: BTreeMap<i32, i32> = few.clone().into_iter().chain(others).collect();
        assert!(many.len() / LOOK_UP_FROM > now.len());

        assert_eq!(changed(&few, &now, &0), [(50, 51), (200, 7)]);
        assert_eq!(changed(&many, &now, &0), [(50, 51), (200, 7)]);
    }
}
