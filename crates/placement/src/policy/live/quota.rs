//! How many compute slices an account may hold at once, whoever of the two decides: the rules know
//! nothing of accounts, and the search nothing of what the rules gave away in this round.
//!
//! A seat counts with the compute slices of its instance, a shared instance with its sharers' parts of
//! it (whole ones, rounded up together), a GPU that is not partitioned with [`WHOLE`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_model::mig::Slot;
use tessera_model::{GpuId, JobId};

use super::{NAME, on};
use crate::decision::{Decision, Explanation, WaitReason};
use crate::forecast::{Account, Forecast};
use crate::view::{ClusterView, GpuView, InstanceState, QueuedJob};
use crate::want::Want;

/// Compute slices that a GPU without MIG counts for: as many as the large partitioned ones have.
const WHOLE: u32 = 7;
/// How often a round is decided at most, each time without more jobs that their quotas hold. What is
/// left over then waits for the next round.
pub(super) const TRIES_MAX: usize = 4;

/// What accounts would take beyond their quotas.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// Whose decisions are taken out.
    pub(super) jobs: BTreeSet<JobId>,
    /// The GPUs that they were about.
    pub(super) gpus: BTreeSet<GpuId>,
}

/// What accounts with quotas hold as a round begins.
pub(super) struct Quotas<'r> {
    cluster: &'r ClusterView,
    forecast: &'r dyn Forecast,
    held: BTreeMap<Arc<str>, u32>,
}

impl<'r> Quotas<'r> {
    pub(super) fn of(cluster: &'r ClusterView, forecast: &'r dyn Forecast) -> Self {
        let mut quotas = Self { cluster, forecast, held: BTreeMap::new() };
        for gpu in &cluster.gpus {
            for instance in &gpu.instances {
                let holder = match &instance.state {
                    InstanceState::Taken { job } => Some(*job),
                    // All of them are one user's.
                    InstanceState::Shared(tenancy) => tenancy.sharers.first().map(|(job, _)| *job),
                    InstanceState::Cut(seats) => {
                        let tenancy = seats.tenancy.as_ref();
                        tenancy.and_then(|tenancy| tenancy.sharers.first().map(|(job, _)| *job))
                    }
                    _ => None,
                };
                if let Some(account) = holder.and_then(|job| quotas.account(job)) {
                    *quotas.held.entry(account.name).or_default() += slices(gpu, instance.slot);
                }
            }
        }
        quotas
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.forecast.account(job).filter(|account| account.quota.is_some())
    }

    /// Whether the least that a job could get is more than its account may still take.
    pub(super) fn bars(&self, job: &QueuedJob) -> bool {
        let Some(account) = self.account(job.id) else { return false };
        let left = self.left(&account, &self.held);
        left == 0 || self.least(job).is_some_and(|least| least > left)
    }

    fn left(&self, account: &Account, held: &BTreeMap<Arc<str>, u32>) -> u32 {
        let has = held.get(&account.name).copied().unwrap_or(0);
        account.quota.unwrap_or(u32::MAX).saturating_sub(has)
    }

    /// Returns the compute slices of the smallest slice that suits a job; nothing for sharers, who may
    /// find one that their account has already.
    fn least(&self, job: &QueuedJob) -> Option<u32> {
        if job.share.is_some() {
            return None;
        }
        let want = Want::of(&job.gpu, None);
        let of_gpu = |gpu: &GpuView| match gpu.mig.as_deref() {
            Some(mig) => {
                let suits = want.tight(mig).into_iter();
                suits.map(|profile| u32::from(profile.compute_slices)).min()
            }
            None => Some(WHOLE),
        };
        self.cluster.gpus.iter().filter_map(of_gpu).min()
    }

    /// Takes out the decisions by which accounts would get more than they may, in their order.
    pub(super) fn over(&self, said: &mut Vec<Decision>) -> Over {
        let mut held = self.held.clone();
        let mut over = Over::default();
        said.retain(|decision| {
            let more = self.more(decision);
            let beyond: BTreeSet<Arc<str>> = more
                .iter()
                .filter(|(_, (account, more))| {
                    *more > 0 && *more > i64::from(self.left(account, &held))
                })
                .map(|(name, _)| Arc::clone(name))
                .collect();
            if beyond.is_empty() {
                for (name, (_, more)) in more {
                    let entry = held.entry(name).or_default();
                    *entry = u32::try_from((i64::from(*entry) + more).max(0)).unwrap_or(u32::MAX);
                }
                return true;
            }
            let of_those = |job: &JobId| {
                self.account(*job).is_some_and(|account| beyond.contains(&account.name))
            };
            over.jobs.extend(named(decision).into_iter().filter(of_those));
            over.gpus.extend(on(decision).cloned());
            false
        });
        over
    }

    /// Returns what accounts take or give back by a decision.
    fn more(&self, decision: &Decision) -> BTreeMap<Arc<str>, (Account, i64)> {
        let mut more: BTreeMap<Arc<str>, (Account, i64)> = BTreeMap::new();
        let mut count = |job: JobId, slices: u32, sign: i64| {
            if let Some(account) = self.account(job) {
                let name = Arc::clone(&account.name);
                more.entry(name).or_insert((account, 0)).1 += sign * i64::from(slices);
            }
        };
        let gpu_of = |id: &GpuId| self.cluster.gpus.iter().find(|gpu| gpu.id == *id);
        match decision {
            Decision::Wait { .. } => {}
            Decision::Start { job, place, .. } => {
                let Some(gpu) = gpu_of(&place.gpu) else { return more };
                // Who joins others takes nothing more.
                let joins = gpu.instances.iter().any(|instance| {
                    instance.slot == place.slot
                        && matches!(
                            &instance.state,
                            InstanceState::Shared(tenancy) if !tenancy.sharers.is_empty()
                        )
                });
                if !joins {
                    count(*job, slices(gpu, place.slot), 1);
                }
            }
            Decision::Reshape { reshape, .. } => {
                let Some(gpu) = gpu_of(&reshape.gpu) else { return more };
                for instance in &gpu.instances {
                    if let InstanceState::Taken { job } = instance.state {
                        count(job, slices(gpu, instance.slot), -1);
                    }
                }
                for seat in &reshape.seats {
                    count(seat.job, slices(gpu, seat.slot), 1);
                }
            }
        }
        more
    }

    /// Tells a job what its account's quota holds it for.
    pub(super) fn wait(&self, job: &QueuedJob) -> Decision {
        let account = self.account(job.id);
        let (name, quota) = account.map_or_else(
            || (Arc::clone(&job.user), 0),
            |account| (account.name, account.quota.unwrap_or(0)),
        );
        let held = self.held.get(&name).copied().unwrap_or(0);
        let least = self.least(job);
        let wants = match least {
            Some(1) => "takes at least 1 more".to_owned(),
            Some(least) => format!("takes at least {least} more"),
            None => "would need a slice of its own".to_owned(),
        };
        let never = least.is_some_and(|least| least > quota);
        let would_start_if = match never {
            true => format!("the quota of {name} is raised to {}", least.unwrap_or(0)),
            false => format!("another job of {name} ends, or the quota is raised"),
        };
        let why = Explanation {
            policy: NAME.to_owned(),
            summary: format!(
                "jobs of {name} hold {held} of the {quota} compute slices that they may have at once, \
                 and this one {wants}"
            ),
            would_start_if: Some(would_start_if),
            ..Explanation::default()
        };
        Decision::Wait { job: job.id, reason: WaitReason::Quota, why }
    }
}

/// Returns the jobs that a decision gives places.
fn named(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Start { job, .. } => vec![*job],
        Decision::Wait { .. } => Vec::new(),
        Decision::Reshape { reshape, .. } => reshape.seats.iter().map(|seat| seat.job).collect(),
    }
}

fn slices(gpu: &GpuView, slot: Option<Slot>) -> u32 {
    match (slot, gpu.mig.as_deref()) {
        (Some(slot), Some(mig)) => {
            let profile = mig.geometry.profile(slot.profile);
            profile.map_or(0, |profile| u32::from(profile.compute_slices))
        }
        (None, Some(mig)) => {
            let largest = mig.geometry.largest();
            largest.map_or(WHOLE, |largest| u32::from(largest.compute_slices))
        }
        (_, None) => WHOLE,
    }
}
