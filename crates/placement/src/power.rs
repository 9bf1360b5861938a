//! A limit on the power that the cluster's GPUs may draw together (Dyna-P §5, power capping).
//!
//! Nothing here measures power or changes a clock. Each GPU is expected to draw its idle power and, for each
//! compute slice in use, a part of the rest of its board's limit. A board enforces that limit itself, so the expected
//! power is an upper bound: jobs that leave their slices idle draw less. A job starts only if the bound with it stays
//! within the cap.
//!
//! The check comes after the policy and all other rules, on the whole cluster, so that it holds for every policy.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::board_power::BoardPower;
use tessera_model::mig::{Profile, Slot};
use tessera_model::{GpuId, JobId};

use crate::decision::{Decision, Explanation, WaitReason};
use crate::fair::slices;
pub use crate::power_cap::{BadPower, CAP_WATTS_MAX, PowerCap};
use crate::view::{ClusterView, GpuView, InstanceState, QueuedJob};

/// The expected power of a cluster, in watts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PowerUse {
    /// What all GPUs draw while idle.
    pub idle: u64,
    /// What idle GPUs and the slices in use draw at most.
    pub expected: u64,
    /// What all GPUs draw at most with every slice in use.
    pub full: u64,
    /// The models whose limit is not known, so that the highest one is assumed.
    pub unknown: BTreeSet<String>,
}

/// The power of one GPU, in watts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GpuPower {
    idle: u64,
    limit: u64,
    /// Compute slices of the whole GPU.
    slices: u64,
}

impl GpuPower {
    fn of(gpu: &GpuView) -> Self {
        let listed = BoardPower::find(&gpu.model).unwrap_or(BoardPower::UNLISTED);
        let slices = u64::from(slices(gpu, None)).max(1);
        // The highest reading: a cap has to hold for every board of a model.
        Self { idle: listed.idle_watts_max.into(), limit: listed.limit_watts.into(), slices }
    }

    /// Returns the most that a GPU draws with so many compute slices in use.
    fn with(self, used: u64) -> u64 {
        let part = (self.limit - self.idle) * used.min(self.slices);
        self.idle + part.div_ceil(self.slices)
    }
}

/// Returns the power of each GPU of a cluster. A large one has thousands of GPUs of a few models.
fn boards(cluster: &ClusterView) -> Vec<GpuPower> {
    let mut known: BTreeMap<(&str, u32), GpuPower> = BTreeMap::new();
    let of = |gpu| *known.entry(kind_of(gpu)).or_insert_with(|| GpuPower::of(gpu));
    cluster.gpus.iter().map(of).collect()
}

fn kind_of(gpu: &GpuView) -> (&str, u32) {
    (&gpu.model, slices(gpu, None))
}

/// Returns whether jobs share an instance: one more job there uses no further slices.
fn is_shared(state: &InstanceState) -> bool {
    match state {
        InstanceState::Shared(tenancy) => !tenancy.sharers.is_empty(),
        InstanceState::Cut(compute) => compute.tenancy.is_some(),
        _ => false,
    }
}

/// Returns the compute slices in use on a GPU. Slices that other programs may use count, too.
fn used_slices(gpu: &GpuView) -> u64 {
    let in_use = gpu.instances.iter().filter(|instance| match &instance.state {
        InstanceState::Idle => false,
        state @ (InstanceState::Shared(_) | InstanceState::Cut(_)) => is_shared(state),
        InstanceState::Taken { .. }
        | InstanceState::Foreign
        | InstanceState::Stuck
        | InstanceState::Leaving
        | InstanceState::Quarantined => true,
    });
    in_use.map(|instance| u64::from(slices(gpu, instance.slot))).sum()
}

/// Returns the expected power of a cluster.
pub fn power_use(cluster: &ClusterView) -> PowerUse {
    let mut all = PowerUse::default();
    for (gpu, board) in cluster.gpus.iter().zip(boards(cluster)) {
        all.idle += board.idle;
        all.expected += board.with(used_slices(gpu));
        all.full += board.limit;
        if !all.unknown.contains(&gpu.model) && BoardPower::find(&gpu.model).is_none() {
            all.unknown.insert(gpu.model.clone());
        }
    }
    all
}

/// Returns how many watts are left below the cap; `None` without one, or if all slices together stay below it.
pub(crate) fn power_left(cluster: &ClusterView) -> Option<u64> {
    let cap = cluster.power_cap?.watts;
    let PowerUse { expected, full, .. } = power_use(cluster);
    (cap < full).then(|| cap.saturating_sub(expected))
}

/// Returns how many watts more a GPU draws at most with one more instance in use, or with the whole GPU.
pub(crate) fn power_of(gpu: &GpuView, instance: Option<&Profile>) -> u64 {
    let board = GpuPower::of(gpu);
    let taken = instance.map_or(board.slices, |profile| profile.compute_slices.into());
    board.with(taken) - board.idle
}

/// The power of one round: what is in use, with the decisions of the round that are kept.
struct RoundPower<'c> {
    cluster: &'c ClusterView,
    cap: PowerCap,
    /// The place of each GPU in the cluster.
    places: BTreeMap<&'c GpuId, usize>,
    boards: Vec<GpuPower>,
    /// What all GPUs draw while idle.
    idle: u64,
    expected: u64,
    /// Compute slices in use by GPU.
    used: Vec<u64>,
    /// Slots on which one more job uses no further slices.
    shared: BTreeSet<(usize, Option<Slot>)>,
    /// The first job that waits for power.
    saved_for: Option<JobId>,
}

/// What some decisions change: only the GPUs that they name.
#[derive(Default)]
struct PowerChange {
    expected: u64,
    used: BTreeMap<usize, u64>,
    shared: BTreeSet<(usize, Option<Slot>)>,
}

impl<'c> RoundPower<'c> {
    fn new(cluster: &'c ClusterView, cap: PowerCap) -> Self {
        let boards = boards(cluster);
        let used: Vec<u64> = cluster.gpus.iter().map(used_slices).collect();
        let mut shared = BTreeSet::new();
        for (at, gpu) in cluster.gpus.iter().enumerate() {
            let joined = gpu.instances.iter().filter(|instance| is_shared(&instance.state));
            shared.extend(joined.map(|instance| (at, instance.slot)));
        }
        Self {
            cluster,
            cap,
            places: cluster.gpus.iter().enumerate().map(|(at, gpu)| (&gpu.id, at)).collect(),
            idle: boards.iter().map(|board| board.idle).sum(),
            expected: boards.iter().zip(&used).map(|(board, used)| board.with(*used)).sum(),
            boards,
            used,
            shared,
            saved_for: None,
        }
    }

    /// Returns what some decisions change.
    fn change<'d>(&self, decisions: impl IntoIterator<Item = &'d Decision>) -> PowerChange {
        let mut change = PowerChange { expected: self.expected, ..PowerChange::default() };
        for decision in decisions {
            self.count(decision, &mut change);
        }
        change
    }

    fn count(&self, decision: &Decision, change: &mut PowerChange) {
        let Some(at) = decision.gpu().and_then(|gpu| self.places.get(gpu)).copied() else { return };
        let gpu = &self.cluster.gpus[at];
        let before = change.used.get(&at).copied().unwrap_or(self.used[at]);
        let after = match decision {
            Decision::Wait { .. } | Decision::Preempt { .. } => return,
            Decision::Start { place, .. } => {
                let slot = (at, place.slot);
                let joins = self.shared.contains(&slot) || !change.shared.insert(slot);
                before + if joins { 0 } else { u64::from(slices(gpu, place.slot)) }
            }
            Decision::Reshape { reshape, .. } => {
                let slots: BTreeSet<_> =
                    reshape.placements.iter().map(|placed| placed.slot).collect();
                let placed: u64 = slots.into_iter().map(|slot| u64::from(slices(gpu, slot))).sum();
                let stays = gpu.instances.iter().filter(|instance| instance.state.fixed());
                placed + stays.map(|one| u64::from(slices(gpu, one.slot))).sum::<u64>()
            }
        };
        let board = self.boards[at];
        change.expected = change.expected - board.with(before) + board.with(after);
        change.used.insert(at, after);
    }

    fn apply(&mut self, change: PowerChange) {
        self.expected = change.expected;
        for (at, used) in change.used {
            self.used[at] = used;
        }
        self.shared.extend(change.shared);
    }

    /// Returns whether the power after some decisions is within the cap, and not saved for another job.
    fn fits(&self, change: &PowerChange) -> bool {
        change.expected <= self.expected
            || self.saved_for.is_none() && change.expected <= self.cap.watts
    }

    /// Fits the reshapes of a round below the cap: the waiting jobs that they place are left out, the last
    /// one first, until the others fit. Where none of them fits, nothing is changed: a new layout that only running
    /// jobs gain from would be made again in each round. Returns the result for each reshape.
    fn fit_reshapes(
        &mut self,
        reshapes: &[&Decision],
        queued: &BTreeSet<JobId>,
    ) -> Vec<Vec<Decision>> {
        let mut kept: Vec<Decision> = reshapes.iter().map(|one| (*one).clone()).collect();
        let mut left_out: Vec<(usize, JobId, u64)> = Vec::new();
        let mut change = self.change(&kept);
        while !self.fits(&change) {
            let last = (0..kept.len()).rev().find_map(|at| {
                let Decision::Reshape { reshape, .. } = &mut kept[at] else { return None };
                let waits = reshape.placements.iter().rposition(|one| queued.contains(&one.job))?;
                Some((at, reshape.placements.remove(waits).job))
            });
            let Some((at, job)) = last else { break };
            let without = self.change(&kept);
            left_out.push((at, job, change.expected.saturating_sub(without.expected)));
            change = without;
        }
        let places_one =
            |decision: &Decision| placed_jobs(decision).iter().any(|job| queued.contains(job));
        let has_a_gain = left_out.is_empty() || kept.iter().any(places_one);
        let is_kept = self.fits(&change) && has_a_gain;
        let mut outcomes: Vec<Vec<Decision>> = vec![Vec::new(); reshapes.len()];
        for (at, job, added) in left_out.into_iter().rev() {
            outcomes[at].push(self.wait(policy_of(reshapes[at]), job, added));
            self.save_for(job, added);
        }
        if is_kept {
            self.apply(change);
            for (outcome, one) in outcomes.iter_mut().zip(kept) {
                outcome.insert(0, one);
            }
        }
        outcomes
    }

    /// Fits starts below the cap that happen together or not at all. Returns the result for each.
    fn fit_starts(&mut self, starts: &[&Decision]) -> Vec<Vec<Decision>> {
        let change = self.change(starts.iter().copied());
        if self.fits(&change) {
            self.apply(change);
            return starts.iter().map(|start| vec![(*start).clone()]).collect();
        }
        let added = change.expected.saturating_sub(self.expected);
        let wait = |start: &&Decision| {
            let jobs = placed_jobs(start).into_iter();
            jobs.map(|job| self.wait(policy_of(start), job, added)).collect()
        };
        let waits = starts.iter().map(wait).collect();
        if let Some(first) = starts.first().and_then(|start| placed_jobs(start).first().copied()) {
            self.save_for(first, added);
        }
        waits
    }

    /// Saves power for a job that waits for it, if it is the first one and the cap can hold it.
    fn save_for(&mut self, job: JobId, added: u64) {
        if self.saved_for.is_none() && self.idle + added <= self.cap.watts {
            self.saved_for = Some(job);
        }
    }

    fn wait(&self, policy: &str, job: JobId, added: u64) -> Decision {
        let PowerCap { watts: cap } = self.cap;
        let (expected, left) = (self.expected, self.cap.watts.saturating_sub(self.expected));
        let saved = match self.saved_for {
            Some(first) if first != job => {
                format!(", which job {first} ahead of it waits for")
            }
            _ => String::new(),
        };
        let least = self.idle + added;
        let would_start_if = if least > cap {
            format!("the power cap is raised to {least} W: with less it can never start")
        } else {
            let short = added.saturating_sub(left).max(1);
            format!("jobs whose slices draw {short} W end, or the power cap is raised")
        };
        let why = Explanation {
            policy: policy.to_owned(),
            summary: format!(
                "power cap: the GPUs draw up to {expected} of {cap} W; {left} W are left{saved}, and this job \
                 would add up to {added} W"
            ),
            would_start_if: Some(would_start_if),
            ..Explanation::default()
        };
        Decision::Wait { job, reason: WaitReason::PowerCap, why }
    }
}

/// Replaces starts that would exceed the cluster's power cap by waits. `waiting` is the queue.
///
/// Power is given in the order of the decisions. Once a job waits for power, no later decision gets any, so that many
/// small jobs can't keep a large one waiting. So less power than that job needs stays unused. A job that
/// needs more than the cap allows delays no other job. Members of a gang start together or not at all, and
/// all reshapes of a round happen together or not at all.
pub fn keep_below_cap(
    cluster: &ClusterView,
    waiting: &[&QueuedJob],
    decisions: Vec<Decision>,
) -> Vec<Decision> {
    let Some(cap) = cluster.power_cap else { return decisions };
    let gangs: BTreeMap<JobId, JobId> =
        waiting.iter().filter_map(|queued| Some((queued.id, queued.gang.as_ref()?.gang))).collect();
    let gang_of = |decision: &Decision| match decision {
        Decision::Start { job, .. } => gangs.get(job).copied(),
        _ => None,
    };
    let queued: BTreeSet<JobId> = waiting.iter().map(|queued| queued.id).collect();
    let mut round = RoundPower::new(cluster, cap);
    // The steps of a decision assume those of earlier ones for the same GPU.
    let mut refused_gpus: BTreeSet<&GpuId> = BTreeSet::new();
    let mut outcomes: Vec<Option<Vec<Decision>>> = vec![None; decisions.len()];
    for at in 0..decisions.len() {
        if outcomes[at].is_some() {
            continue;
        }
        let is_reshape = |i: &usize| matches!(decisions[*i], Decision::Reshape { .. });
        let members: Vec<usize> = match gang_of(&decisions[at]) {
            // One reshape may place a job that another one stops, so all of a round belong together.
            None if is_reshape(&at) => (at..decisions.len()).filter(is_reshape).collect(),
            None => vec![at],
            gang => (at..decisions.len()).filter(|i| gang_of(&decisions[*i]) == gang).collect(),
        };
        let group: Vec<&Decision> = members.iter().map(|member| &decisions[*member]).collect();
        let gpus = || group.iter().filter_map(|decision| decision.gpu());
        let made: Vec<Vec<Decision>> = if gpus().any(|gpu| refused_gpus.contains(gpu)) {
            // It is decided again in the next round.
            vec![Vec::new(); group.len()]
        } else if is_reshape(&at) {
            round.fit_reshapes(&group, &queued)
        } else {
            round.fit_starts(&group)
        };
        let is_made =
            |made: &[Decision]| made.iter().any(|one| !matches!(one, Decision::Wait { .. }));
        let is_refused = !made.iter().any(|made| is_made(made));
        if is_refused {
            refused_gpus.extend(gpus());
        }
        for (member, made) in members.into_iter().zip(made) {
            outcomes[member] = Some(made);
        }
    }
    outcomes.into_iter().flatten().flatten().collect()
}

fn policy_of(decision: &Decision) -> &str {
    match decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. }
        | Decision::Preempt { why, .. } => &why.policy,
    }
}

/// Returns the jobs that a decision places.
fn placed_jobs(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Start { job, .. } => vec![*job],
        Decision::Wait { .. } | Decision::Preempt { .. } => Vec::new(),
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
    }
}
