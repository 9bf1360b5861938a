use proptest::prelude::*;
use tessera_model::spec::GpuRequest;
use tessera_model::{JobId, Millis};

use super::*;
use crate::facts::JobFacts;

fn account(name: &str, shares: u32, hours: u64) -> Option<Account> {
    let used = Millis::from_secs(hours * 3_600);
    Some(Account { name: name.into(), shares, used, quota: None, member: None })
}

/// The users' recent usage in hours. Each user has its own account with one share.
struct Had(BTreeMap<JobId, (&'static str, u64)>);

impl JobTable for Had {
    fn facts(&self, _: JobId) -> JobFacts {
        JobFacts::default()
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let (name, hours) = self.0.get(&job)?;
        account(name, 1, *hours)
    }
}

/// Jobs of users with the users' usage, in hours, and when they were submitted, in minutes.
fn jobs(of: &[(&'static str, u64, u64)]) -> (Vec<QueuedJob>, Had) {
    let ids = (1..).map(JobId::from_number);
    let one = |(id, (user, _, minutes)): (JobId, &(&'static str, u64, u64))| QueuedJob {
        id,
        gpu: GpuRequest::Unknown,
        user: (*user).into(),
        share: None,
        auto: None,
        online: false,
        queue_rank: QueueRank::default(),
        submitted: Millis::from_secs(minutes * 60),
        gang: None,
        place: None,
    };
    let had = ids.clone().zip(of).map(|(id, (user, hours, _))| (id, (*user, *hours))).collect();
    (ids.zip(of).map(one).collect(), Had(had))
}

fn order(jobs: &[QueuedJob], had: &Had) -> Vec<u64> {
    let ordered = order_jobs(&mut jobs.iter(), had, true);
    ordered.iter().map(|ordered_job| ordered_job.job.id.number()).collect()
}

#[test]
fn an_account_with_less_usage_is_served_before_a_slightly_earlier_submit() {
    let (queue, had) = jobs(&[("ada", 90, 0), ("ada", 90, 1), ("bob", 10, 2)]);

    assert_eq!(order(&queue, &had), [3, 1, 2]);
}

#[test]
fn a_job_that_waited_half_a_day_longer_is_first() {
    let (queue, had) = jobs(&[("ada", 1_000, 0), ("bob", 0, 12 * 60)]);

    assert_eq!(order(&queue, &had), [1, 2]);
}

#[test]
fn no_account_is_delayed_where_all_have_used_their_part() {
    let (queue, had) = jobs(&[("ada", 7, 0), ("bob", 7, 1), ("ada", 7, 2)]);

    assert_eq!(order(&queue, &had), [1, 2, 3]);
}

proptest! {
    #[test]
    fn accounts_keep_their_order_and_no_job_is_overtaken_by_one_submitted_half_a_day_later(
        of in prop::collection::vec((0_usize..4, 0_u64..3_000), 0..40),
        hours in prop::collection::vec(0_u64..1_000, 4),
    ) {
        let users = ["ada", "bob", "cyd", "dan"];
        let mut of: Vec<_> = of.into_iter().map(|(at, ranked_at)| (users[at], hours[at], ranked_at)).collect();
        of.sort_by_key(|(_, _, ranked_at)| *ranked_at);
        let (queue, had) = jobs(&of);

        let ordered = order_jobs(&mut queue.iter(), &had, true);

        prop_assert_eq!(ordered.len(), queue.len());
        for (at, one) in ordered.iter().enumerate() {
            for before in &ordered[..at] {
                let (one, before) = (one.job, before.job);
                prop_assert!(one.user != before.user || before.id < one.id);
                prop_assert!(before.submitted <= one.submitted.plus(DELAY_MAX));
            }
        }
    }
}

#[test]
fn an_account_that_used_its_part_weighs_half_and_an_unused_one_weighs_all() {
    let found = factors(&[account("a", 1, 50), account("b", 1, 50)]);
    assert_eq!(found, [0.5, 0.5]);
    let found = factors(&[account("a", 1, 100), account("b", 1, 0)]);
    assert_eq!(found, [0.25, 1.0]);
    let found = factors(&[account("a", 3, 75), account("b", 1, 25)]);
    assert_eq!(found, [0.5, 0.5]);
    assert_eq!(factors(&[account("a", 1, 0), None]), [1.0, 1.0]);
}
