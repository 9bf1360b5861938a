//! A limit on the power that the cluster's GPUs may draw together (Dyna-P §5, power capping).
//!
//! Nothing here measures power or changes a clock. Each GPU is expected to draw its idle power and, for each
//! compute slice in use, a part of the rest of its board's limit. A board enforces that limit itself, so the expected
//! power is an upper bound: jobs that leave their slices idle draw less. A job starts only if the bound with it stays
//! within the cap.
//!
//! The check comes after the policy and all other rules, on the whole cluster, so that it holds for every policy.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::mig::{Slot, catalog};
use tessera_model::{GpuId, JobId};

use crate::decision::{Decision, Explanation, WaitReason};
use crate::fair::slices;
pub use crate::power_cap::{BadPower, CAP_WATTS_MAX, PowerCap};
use crate::view::{ClusterView, GpuView, InstanceState, QueuedJob};

/// Power limits of boards in watts, by the driver's name.
///
/// Source: NVIDIA's published specifications (maximum thermal design power).
const BOARDS: [(&str, u32); 24] = [
    ("NVIDIA A30", 165),
    ("NVIDIA A100-SXM4-40GB", 400),
    ("NVIDIA A100-PCIE-40GB", 250),
    ("NVIDIA A100-SXM4-80GB", 400),
    ("NVIDIA A100 80GB PCIe", 300),
    ("NVIDIA A800-SXM4-40GB", 400),
    ("NVIDIA A800-SXM4-80GB", 400),
    ("NVIDIA A800 80GB PCIe", 300),
    ("NVIDIA H100 80GB HBM3", 700),
    ("NVIDIA H100 SXM5 94GB", 700),
    ("NVIDIA H100 PCIe", 350),
    ("NVIDIA H100 NVL", 400),
    ("NVIDIA H800", 700),
    ("NVIDIA H800 NVL", 400),
    ("NVIDIA H200", 700),
    ("NVIDIA H200 NVL", 600),
    ("NVIDIA H20", 400),
    ("NVIDIA B200", 1_000),
    ("NVIDIA GB200", 1_200),
    ("NVIDIA B300 SXM6", 1_100),
    ("NVIDIA GB300", 1_400),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 600),
    ("NVIDIA RTX PRO 5000 Blackwell", 300),
    ("NVIDIA RTX PRO 4500 Blackwell", 200),
];

/// The limit of a board that is not listed: as high as the highest listed one.
const UNKNOWN_BOARD: u32 = 1_400;

/// Idle power in thousandths of a board's limit: 32 of the 165 W of an A30, rounded up. Other boards are assumed
/// to be alike.
///
/// Source: co-execution study, table 6.
const IDLE_THOUSANDTHS: u32 = 194;

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
struct BoardPower {
    idle: u64,
    limit: u64,
    /// Compute slices of the whole GPU.
    slices: u64,
}

impl BoardPower {
    fn of(gpu: &GpuView) -> Self {
        let limit = board_limit(&gpu.model).unwrap_or(UNKNOWN_BOARD);
        let idle = (limit * IDLE_THOUSANDTHS).div_ceil(1_000);
        let whole = u64::from(slices(gpu, None)).max(1);
        Self { idle: u64::from(idle), limit: u64::from(limit), slices: whole }
    }

    /// Returns the most that a GPU draws with so many compute slices in use.
    fn with(self, used: u64) -> u64 {
        let part = (self.limit - self.idle) * used.min(self.slices);
        self.idle + part.div_ceil(self.slices)
    }
}

/// Returns the power limit of a board in watts, by the driver's name. For the key of a model of the catalogue, as
/// simulations have it, that is the highest limit of its boards.
fn board_limit(model: &str) -> Option<u32> {
    let listed = |name: &str| BOARDS.iter().find(|(known, _)| *known == name);
    let of_board = |name: &str| listed(name).map(|(_, limit)| *limit);
    of_board(model).or_else(|| {
        let names = &catalog::models().get(model)?.names;
        names.iter().filter_map(|name| of_board(name)).max()
    })
}

/// Returns the compute slices in use on a GPU. Slices that other programs may use count, too.
fn used_slices(gpu: &GpuView) -> u64 {
    let in_use = gpu.instances.iter().filter(|instance| match &instance.state {
        InstanceState::Idle => false,
        InstanceState::Cut(compute) => compute.tenancy.is_some(),
        InstanceState::Taken { .. }
        | InstanceState::Shared(_)
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
    for gpu in &cluster.gpus {
        let board = BoardPower::of(gpu);
        all.idle += board.idle;
        all.expected += board.with(used_slices(gpu));
        all.full += board.limit;
        if board_limit(&gpu.model).is_none() {
            all.unknown.insert(gpu.model.clone());
        }
    }
    all
}

/// The power of one round: what is in use, and what its decisions add.
#[derive(Clone)]
struct RoundPower<'c> {
    cluster: &'c ClusterView,
    cap: PowerCap,
    expected: u64,
    /// Compute slices in use by GPU, with those of this round's decisions.
    used: Vec<u64>,
    /// Slots that are in use or get jobs in this round: further jobs on them add nothing.
    occupied: BTreeSet<(usize, Option<Slot>)>,
    /// The first job that waits for power.
    saved_for: Option<JobId>,
}

impl<'c> RoundPower<'c> {
    fn new(cluster: &'c ClusterView, cap: PowerCap) -> Self {
        let mut occupied = BTreeSet::new();
        for (at, gpu) in cluster.gpus.iter().enumerate() {
            let busy = |state: &InstanceState| match state {
                InstanceState::Shared(tenancy) => !tenancy.sharers.is_empty(),
                InstanceState::Cut(compute) => compute.tenancy.is_some(),
                _ => false,
            };
            let joined = gpu.instances.iter().filter(|instance| busy(&instance.state));
            occupied.extend(joined.map(|instance| (at, instance.slot)));
        }
        Self {
            cluster,
            cap,
            expected: power_use(cluster).expected,
            used: cluster.gpus.iter().map(used_slices).collect(),
            occupied,
            saved_for: None,
        }
    }

    /// Returns the GPU of a decision, and how many of its slices are in use afterwards.
    fn after(&self, decision: &Decision) -> Option<(usize, u64)> {
        let id = decision.gpu()?;
        let at = self.cluster.gpus.iter().position(|gpu| gpu.id == *id)?;
        let gpu = &self.cluster.gpus[at];
        match decision {
            Decision::Wait { .. } => None,
            Decision::Start { place, .. } => {
                let joins = self.occupied.contains(&(at, place.slot));
                let more = if joins { 0 } else { u64::from(slices(gpu, place.slot)) };
                Some((at, self.used[at] + more))
            }
            Decision::Reshape { reshape, .. } => {
                let slots: BTreeSet<_> =
                    reshape.placements.iter().map(|placed| placed.slot).collect();
                let placed: u64 = slots.into_iter().map(|slot| u64::from(slices(gpu, slot))).sum();
                let stays = gpu.instances.iter().filter(|instance| instance.state.fixed());
                let stays: u64 = stays.map(|one| u64::from(slices(gpu, one.slot))).sum();
                Some((at, placed + stays))
            }
        }
    }

    fn count(&mut self, decision: &Decision) {
        if let Some((at, after)) = self.after(decision) {
            let board = BoardPower::of(&self.cluster.gpus[at]);
            self.expected = self.expected - board.with(self.used[at]) + board.with(after);
            self.used[at] = after;
            if let Decision::Start { place, .. } = decision {
                self.occupied.insert((at, place.slot));
            }
        }
    }

    /// Returns whether the power after some decisions is within the cap, and not saved for another job.
    fn fits(&self, after: &Self) -> bool {
        after.expected <= self.expected
            || self.saved_for.is_none() && after.expected <= self.cap.watts
    }

    /// Fits the reshapes of a round below the cap: the waiting jobs that they place are left out, the last
    /// one first, until the others fit. Where none of them fits, nothing is changed: a new layout that only running
    /// jobs gain from would be made again in each round.
    fn fit_reshapes(
        &mut self,
        decisions: &[Decision],
        members: &[usize],
        queued: &BTreeSet<JobId>,
    ) -> Vec<Vec<Decision>> {
        let mut kept: Vec<Decision> = members.iter().map(|at| decisions[*at].clone()).collect();
        let mut left_out: Vec<(usize, JobId, u64)> = Vec::new();
        loop {
            let mut after = self.clone();
            for decision in &kept {
                after.count(decision);
            }
            let places_one =
                |decision: &Decision| placed_jobs(decision).iter().any(|job| queued.contains(job));
            let has_a_gain = left_out.is_empty() || kept.iter().any(places_one);
            if !has_a_gain {
                return self.waits_of(decisions, members, &left_out);
            }
            if self.fits(&after) {
                let waits = self.waits_of(decisions, members, &left_out);
                *self = Self { saved_for: self.saved_for, ..after };
                return kept
                    .into_iter()
                    .zip(waits)
                    .map(|(one, waits)| [vec![one], waits].concat())
                    .collect();
            }
            let before = after.expected;
            let last = (0..kept.len()).rev().find_map(|at| {
                let Decision::Reshape { reshape, .. } = &mut kept[at] else { return None };
                let waits = reshape.placements.iter().rposition(|one| queued.contains(&one.job))?;
                Some((at, reshape.placements.remove(waits).job))
            });
            let Some((at, job)) = last else { return self.waits_of(decisions, members, &left_out) };
            let mut without = self.clone();
            for decision in &kept {
                without.count(decision);
            }
            left_out.push((at, job, before.saturating_sub(without.expected)));
        }
    }

    /// Returns the waits of the jobs that were left out, by the decision that placed them. Power is saved for the
    /// first of them that the cap can hold.
    fn waits_of(
        &mut self,
        decisions: &[Decision],
        members: &[usize],
        left_out: &[(usize, JobId, u64)],
    ) -> Vec<Vec<Decision>> {
        let idle = power_use(self.cluster).idle;
        let mut waits: Vec<Vec<Decision>> = vec![Vec::new(); members.len()];
        for (at, job, added) in left_out.iter().rev() {
            waits[*at].push(self.wait(policy_of(&decisions[members[*at]]), *job, *added));
            if self.saved_for.is_none() && idle + added <= self.cap.watts {
                self.saved_for = Some(*job);
            }
        }
        waits
    }

    fn left(&self) -> u64 {
        self.cap.watts.saturating_sub(self.expected)
    }

    fn wait(&self, policy: &str, job: JobId, added: u64) -> Decision {
        let PowerCap { watts: cap } = self.cap;
        let (expected, left) = (self.expected, self.left());
        let saved = match self.saved_for {
            Some(first) if first != job => {
                format!(", which job {first} ahead of it waits for")
            }
            _ => String::new(),
        };
        let least = power_use(self.cluster).idle + added;
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
/// small jobs can't keep a large one waiting. Less power than that job needs stays unused. A job that needs more than
/// the cap allows keeps nobody waiting. Members of a gang start together or not at all, and all reshapes of
/// a round happen together or not at all.
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
    let mut refused_gpus: BTreeSet<GpuId> = BTreeSet::new();
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
        // The steps of a decision assume those of earlier ones for the same GPU.
        let follows_refused = members
            .iter()
            .any(|i| decisions[*i].gpu().is_some_and(|gpu| refused_gpus.contains(gpu)));
        let mut after = round.clone();
        for member in &members {
            after.count(&decisions[*member]);
        }
        if is_reshape(&at) && !follows_refused {
            let fitted = round.fit_reshapes(&decisions, &members, &queued);
            for (member, made) in members.iter().zip(fitted) {
                outcomes[*member] = Some(made);
            }
            continue;
        }
        let added = after.expected.saturating_sub(round.expected);
        let fits = round.fits(&after);
        if fits && !follows_refused {
            round = after;
            for member in members {
                outcomes[member] = Some(vec![decisions[member].clone()]);
            }
            continue;
        }
        for member in members {
            let decision = &decisions[member];
            refused_gpus.extend(decision.gpu().cloned());
            let jobs = placed_jobs(decision).into_iter().filter(|job| queued.contains(job));
            let waits = jobs.map(|job| round.wait(policy_of(decision), job, added));
            // What only follows a refused decision is decided again in the next round.
            outcomes[member] = Some(if fits { Vec::new() } else { waits.collect() });
        }
        let can_ever = power_use(cluster).idle + added <= cap.watts;
        if !fits && can_ever && round.saved_for.is_none() {
            round.saved_for =
                placed_jobs(&decisions[at]).into_iter().find(|job| queued.contains(job));
        }
    }
    outcomes.into_iter().flatten().flatten().collect()
}

fn policy_of(decision: &Decision) -> &str {
    match decision {
        Decision::Start { why, .. }
        | Decision::Wait { why, .. }
        | Decision::Reshape { why, .. } => &why.policy,
    }
}

/// Returns the jobs that a decision places.
fn placed_jobs(decision: &Decision) -> Vec<JobId> {
    match decision {
        Decision::Start { job, .. } => vec![*job],
        Decision::Wait { .. } => Vec::new(),
        Decision::Reshape { reshape, .. } => {
            reshape.placements.iter().map(|placed| placed.job).collect()
        }
    }
}
