//! Fair share: in which order the jobs of accounts are served.
//!
//! The weight of an account is halved for each multiple of its part that it has used. The factor is
//! `2^-(u/s)`, with `u` its part of the recent usage of all accounts that wait and `s` its part of
//! their shares. (Source: the classic fair-share factor of Slurm's multifactor priority.)
//!
//! In the order of service a job is treated as if it had been submitted later: by [`DELAY_MAX`],
//! reduced in proportion to its account's factor. So among equal priorities no job is overtaken by
//! one that was submitted more than [`DELAY_MAX`] later, whatever its account has used. The order
//! among the jobs of one account doesn't change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tessera_model::Millis;
use tessera_model::spec::QueueRank;

use crate::facts::{Account, JobTable};
use crate::numbers::saturating_millis;
use crate::view::QueuedJob;

/// The longest delay of an account's jobs, for one that has used far more than its part: half a day.
/// A job that has waited longer is ahead of all newer ones.
pub const DELAY_MAX: Millis = Millis::from_secs(12 * 3_600);

/// A job of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedJob<'q> {
    pub(crate) job: &'q QueuedJob,
    /// The time by which it is ordered: the time of its submit, plus a delay for accounts with much
    /// usage.
    pub(crate) ranked_at: Millis,
}

/// Sorts a queue into the order of service: by priority, then by the accounts' recent usage.
/// `fairly` is whether usage counts.
pub(crate) fn order_jobs<'q>(
    queue: &mut dyn Iterator<Item = &'q QueuedJob>,
    jobs: &dyn JobTable,
    fairly: bool,
) -> Vec<OrderedJob<'q>> {
    let mut ordered: Vec<OrderedJob<'q>> =
        queue.map(|job| OrderedJob { job, ranked_at: job.submitted }).collect();
    if !fairly {
        return ordered;
    }
    // By number and not by name: thousands of jobs belong to a few users.
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut users: Vec<Option<Account>> = Vec::new();
    let mut last: Option<(&Arc<str>, usize)> = None;
    let mut user_of = Vec::with_capacity(ordered.len());
    for OrderedJob { job, .. } in &ordered {
        // Tasks of one array follow each other, and most of them have the same text in memory.
        let known = last.filter(|(user, _)| Arc::ptr_eq(user, &job.user)).map(|(_, number)| number);
        let number = known.unwrap_or_else(|| {
            *numbers.entry(&*job.user).or_insert_with(|| {
                users.push(jobs.account(job.id));
                users.len() - 1
            })
        });
        last = Some((&job.user, number));
        user_of.push(number);
    }
    let names = users.iter().flatten().map(|account| Arc::clone(&account.name));
    let accounts: BTreeMap<Arc<str>, Option<Account>> = names.map(|name| (name, None)).collect();
    if accounts.len() < 2 {
        return ordered;
    }
    let numbers: HashMap<&str, usize> = accounts.keys().map(|name| &**name).zip(0..).collect();
    let account_of: Vec<Option<usize>> =
        users.iter().map(|account| numbers.get(&*account.as_ref()?.name).copied()).collect();
    let delays: Vec<Millis> =
        delays(accounts.clone(), users.iter().flatten()).into_values().collect();
    // Among one account's jobs of a priority the order stays, whatever the clock showed at their
    // submits.
    let mut last: HashMap<(usize, QueueRank), Millis> = HashMap::new();
    for (ordered_job, user) in ordered.iter_mut().zip(user_of) {
        let Some(account) = account_of[user] else { continue };
        let latest = last.entry((account, ordered_job.job.queue_rank)).or_default();
        ordered_job.ranked_at = ordered_job.ranked_at.plus(delays[account]).max(*latest);
        *latest = ordered_job.ranked_at;
    }
    ordered.sort_by_key(|ordered_job| {
        (ordered_job.job.queue_rank, ordered_job.ranked_at, ordered_job.job.id)
    });
    ordered
}

/// Returns a queue in the order in which a policy serves it.
pub fn order_queue<'q>(
    fairly: bool,
    queue: &mut dyn Iterator<Item = &'q QueuedJob>,
    jobs: &dyn JobTable,
) -> Vec<&'q QueuedJob> {
    let ordered = order_jobs(queue, jobs, fairly);
    ordered.into_iter().map(|ordered_job| ordered_job.job).collect()
}

fn delays<'a>(
    mut accounts: BTreeMap<Arc<str>, Option<Account>>,
    known: impl Iterator<Item = &'a Account>,
) -> BTreeMap<Arc<str>, Millis> {
    for account in known {
        accounts.insert(Arc::clone(&account.name), Some(account.clone()));
    }
    let known: Vec<Option<Account>> = accounts.values().cloned().collect();
    let factors = factors(&known);
    accounts.into_keys().zip(factors).map(|(name, factor)| (name, delay(factor))).collect()
}

fn delay(factor: f64) -> Millis {
    let share = (1.0 - factor).clamp(0.0, 1.0);
    let whole = Duration::from_millis(DELAY_MAX.get()).mul_f64(share);
    saturating_millis(whole.as_millis())
}

/// Returns the fair-share factors of accounts relative to each other; 1 for a job without an
/// account.
fn factors(accounts: &[Option<Account>]) -> Vec<f64> {
    let known = || accounts.iter().flatten();
    let used: f64 = known().map(|account| secs(account.used)).sum();
    let shares: f64 = known().map(|account| f64::from(account.shares)).sum();
    let one = |account: &Option<Account>| {
        let Some(account) = account else { return 1.0 };
        factor((secs(account.used), used), (f64::from(account.shares), shares))
    };
    accounts.iter().map(one).collect()
}

/// Returns an account's factor, between 0 and 1. Each pair has the account's value and the sum of
/// all: usage (in seconds of one compute slice) and shares.
pub fn factor((used, all_used): (f64, f64), (shares, all_shares): (f64, f64)) -> f64 {
    let part = shares / all_shares.max(1.0);
    let had = used / all_used.max(0.001);
    // An account without shares is served last, but is not shut out.
    2.0_f64.powf(-(had / part.max(0.001)).min(60.0))
}

fn secs(time: Millis) -> f64 {
    time.duration().as_secs_f64()
}

#[cfg(test)]
mod tests;
