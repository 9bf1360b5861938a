//! Explanations for jobs that wait because of a quota.

use std::sync::Arc;

use super::Quotas;
use crate::decision::{Decision, Explanation, WaitReason};
use crate::facts::SliceLimit;
use crate::view::QueuedJob;

impl Quotas<'_> {
    /// Explains the wait of a job, or of each member of a gang, for its quota. `takes` is how many
    /// compute slices it would take, if that is known more exactly than the smallest suitable
    /// slice.
    pub(crate) fn wait(
        &self,
        policy: &str,
        job: &QueuedJob,
        members: u32,
        takes: Option<u32>,
    ) -> Decision {
        let limits = self.limits_for(job);
        let least = self.least(job).map(|least| least.saturating_mul(members));
        let takes = takes.or(least);
        if let Some(both) = self.wait_for_both(policy, job, members, takes, &limits) {
            return both;
        }
        // A quota under which the job can never start comes first, then the one with the fewest
        // slices left.
        let binds = limits.iter().min_by_key(|limit| {
            let never = least.is_some_and(|least| least > limit.slices);
            (!never, self.left(limit, &self.held))
        });
        let (name, quota) =
            binds.map_or_else(|| (Arc::clone(&job.user), 0), |l| (Arc::clone(&l.name), l.slices));
        let held = self.held.get(&name).copied().unwrap_or(0);
        let request = requested_slices(members, takes);
        let never = least.is_some_and(|least| least > quota);
        let (then, would_start_if) = match (never, takes) {
            (true, _) => (
                ": it can never start under this quota",
                format!("the quota of {name} is raised to {}", least.unwrap_or(0)),
            ),
            (false, Some(takes)) => {
                let short = (held + takes).saturating_sub(quota);
                let slices = if short == 1 { "slice" } else { "slices" };
                let end = format!("jobs of {name} that hold {short} compute {slices} end");
                ("", format!("{end}, or the quota is raised to {}", held + takes))
            }
            (false, None) => ("", format!("another job of {name} ends, or the quota is raised")),
        };
        let why = Explanation {
            policy: policy.to_owned(),
            summary: format!(
                "jobs of {name} hold {held} of their limit of {quota} compute slices, and \
                 {request}{then}"
            ),
            would_start_if: Some(would_start_if),
            ..Explanation::default()
        };
        Decision::Wait { job: job.id, reason: WaitReason::Quota, why }
    }

    /// Explains the wait of a job for both its account's and its user's quota: it starts once both
    /// allow it.
    fn wait_for_both(
        &self,
        policy: &str,
        job: &QueuedJob,
        members: u32,
        takes: Option<u32>,
        limits: &[SliceLimit],
    ) -> Option<Decision> {
        let [account, user] = limits else { return None };
        let takes_slices = takes?;
        let short = |limit: &SliceLimit| {
            let held = self.held.get(&limit.name).copied().unwrap_or(0);
            let raised = held.saturating_add(takes_slices);
            let can_ever = takes_slices <= limit.slices;
            (can_ever && raised > limit.slices).then(|| (held, raised, raised - limit.slices))
        };
        let (of_account, of_user) = (short(account)?, short(user)?);
        let slices = |short: u32| if short == 1 { "slice" } else { "slices" };
        // The slices of the user's jobs are part of those of the account's jobs.
        let end = match (of_account.2, of_user.2) {
            (all, own) if own >= all => {
                format!("jobs of {} that hold {own} compute {} end", user.name, slices(own))
            }
            (all, own) => format!(
                "jobs of {} that hold {all} compute {} end, of them {own} of {}",
                account.name,
                slices(all),
                user.name
            ),
        };
        let why = Explanation {
            policy: policy.to_owned(),
            summary: format!(
                "jobs of {} hold {} of their limit of {} compute slices, those of {} {} of their \
                 limit of {}, and {}",
                account.name,
                of_account.0,
                account.slices,
                user.name,
                of_user.0,
                user.slices,
                requested_slices(members, takes)
            ),
            would_start_if: Some(format!(
                "{end}, or the quotas are raised to {} and {}",
                of_account.1, of_user.1
            )),
            ..Explanation::default()
        };
        Some(Decision::Wait { job: job.id, reason: WaitReason::Quota, why })
    }
}

fn requested_slices(members: u32, takes: Option<u32>) -> String {
    let this = if members > 1 { format!("this gang of {members}") } else { "this job".to_owned() };
    match takes {
        Some(takes) => format!("{this} needs at least {takes} more"),
        None => format!("{this} needs its own slice"),
    }
}
