//! The explanations of gangs.

use tessera_model::JobId;
use tessera_model::mig::Slot;

use super::capacity_search::{MemberPlacement, ReservedGpus};
use super::{Gang, PATIENCE};
use crate::decision::{Explanation, PlacementCandidate, WaitReason};
use crate::view::{ClusterView, GpuClosure, GpuView};

/// The most GPUs or jobs that one sentence lists.
const LISTED_MAX: usize = 8;

/// An earlier gang that has to start before a waiting one.
#[derive(Clone, Copy, Debug)]
pub(super) enum GangAhead {
    /// GPUs are reserved for it.
    Reserving(JobId),
    /// It requests the same.
    Same(JobId),
}

/// What is known about a waiting gang.
pub(super) struct WaitingGang<'w> {
    pub(super) policy: &'static str,
    pub(super) cluster: &'w ClusterView,
    pub(super) gang: &'w Gang<'w>,
    /// A GPU of each node with free placements, and the number of members that fit there.
    pub(super) partly: &'w [(usize, usize)],
    /// The GPUs that are reserved for it.
    pub(super) kept: Option<&'w ReservedGpus>,
    pub(super) before: Option<GangAhead>,
    pub(super) reason: WaitReason,
    /// The administrative overrides, if they are the reason.
    pub(super) closed: Option<&'w GpuClosure>,
}

impl WaitingGang<'_> {
    pub(super) fn explain(&self) -> Explanation {
        let free: usize = self.partly.iter().map(|(_, placements)| placements).sum();
        let of_node = |(gpu, placements): &(usize, usize)| {
            format!("{placements} on node {}", self.cluster.gpus[*gpu].node)
        };
        let there = match self.partly {
            [] => String::new(),
            nodes => format!(" ({})", listed(nodes.iter().map(of_node))),
        };
        let all = self.gang.size();
        let keeps = self.kept.map_or_else(String::new, |kept| {
            let gpus = kept.gpus.iter().map(|gpu| named(&self.cluster.gpus[*gpu]));
            format!("; reserved for it: {}", listed(gpus))
        });
        let why = match (self.reason, self.closed, self.before) {
            (_, Some(closed), _) => format!("; {}", closed.words),
            (WaitReason::BadConstraints, ..) => {
                "; the known nodes have too few suitable GPUs".to_owned()
            }
            (WaitReason::NodeUnavailable, ..) => {
                "; too many suitable GPUs are unavailable".to_owned()
            }
            (_, _, Some(GangAhead::Reserving(gang))) => {
                format!("; GPUs are reserved for gang {gang}, which is ahead in the queue")
            }
            (_, _, Some(GangAhead::Same(gang))) => {
                format!("; gang {gang}, which is ahead in the queue, requests the same")
            }
            (_, None, None) => String::new(),
        };
        let summary = format!(
            "{} requested: {free} of {all} places are free now{there}, and a gang starts only as a \
             whole{keeps}{why}",
            self.gang.shape
        );
        Explanation {
            policy: self.policy.to_owned(),
            summary,
            would_start_if: Some(self.would_start_if()),
            ..Explanation::default()
        }
    }

    fn would_start_if(&self) -> String {
        if let Some(closed) = self.closed {
            return closed.until.clone();
        }
        let Some(kept) = self.kept else {
            return match (self.reason, self.before) {
                (WaitReason::BadConstraints, _) => "nodes with more suitable GPUs join".to_owned(),
                (WaitReason::NodeUnavailable, _) => {
                    "nodes with suitable GPUs become available".to_owned()
                }
                (_, Some(GangAhead::Reserving(gang) | GangAhead::Same(gang))) => {
                    format!("gang {gang} starts, and {}", self.needed_capacity())
                }
                (_, None) => self.needed_capacity(),
            };
        };
        let secs = kept.wait.map(|wait| wait.get().div_ceil(1_000));
        let when = match secs {
            Some(secs) if kept.at_most => format!(" (in {secs} s at the latest, by time limits)"),
            Some(secs) => format!(" (expected in {secs} s)"),
            None => " (when some of them end is not known)".to_owned(),
        };
        match kept.jobs.as_slice() {
            [] => "the layout plans of its GPUs end".to_owned(),
            [job] => format!("job {job} ends{when}"),
            jobs => format!("jobs {} end{when}", listed(jobs.iter().map(ToString::to_string))),
        }
    }

    fn needed_capacity(&self) -> String {
        let shape = self.gang.shape;
        match (shape.nodes(), shape.per_node()) {
            (1, gpus) => format!("{gpus} GPUs of one node have capacity at the same time"),
            (nodes, 1) => format!("{nodes} nodes have capacity on one GPU each at the same time"),
            (nodes, gpus) => {
                format!("{nodes} nodes have capacity on {gpus} GPUs each at the same time")
            }
        }
    }
}

/// Explains the wait of a gang behind a waiting job.
pub(super) fn behind(policy: &str, gang: &Gang<'_>, before: JobId) -> Explanation {
    Explanation {
        policy: policy.to_owned(),
        summary: format!(
            "{} requested, and job {before}, which is ahead in the queue, still waits",
            gang.shape
        ),
        would_start_if: Some(format!(
            "job {before} starts, or the gang has waited {} s and no job ahead of it is older by \
             more than that",
            PATIENCE.get() / 1_000
        )),
        ..Explanation::default()
    }
}

/// Explains each member's placement, by rank.
pub(super) fn start(
    policy: &str,
    cluster: &ClusterView,
    gang: &Gang<'_>,
    placements: &[MemberPlacement],
) -> Vec<Explanation> {
    let nodes: Vec<String> = {
        let mut nodes: Vec<_> =
            placements.iter().map(|placed| cluster.gpus[placed.gpu].node.to_string()).collect();
        nodes.dedup();
        nodes
    };
    let one = |(rank, placed): (usize, &MemberPlacement)| {
        let gpu = &cluster.gpus[placed.gpu];
        let (slot, memory) = (placed.offer.slot, placed.offer.rank.memory);
        let candidate = PlacementCandidate {
            gpu: gpu.id.clone(),
            node: gpu.node.clone(),
            gpu_index: gpu.index,
            profile: profile(gpu, slot),
            start: slot.map(|slot| slot.start),
            memory,
            chosen: true,
            verdict: "chosen".to_owned(),
            reachability_after: None,
        };
        Explanation {
            policy: policy.to_owned(),
            summary: format!(
                "{} requested, and all {} places are free on {}: rank {rank} gets {} of {}",
                gang.shape,
                gang.size(),
                listed(nodes.iter().map(|node| format!("node {node}"))),
                candidate.profile,
                named(gpu),
            ),
            would_start_if: None,
            candidates: vec![candidate],
            candidates_left_out: 0,
        }
    };
    placements.iter().enumerate().map(one).collect()
}

fn named(gpu: &GpuView) -> String {
    format!("GPU {} of node {}", gpu.index, gpu.node)
}

fn profile(gpu: &GpuView, slot: Option<Slot>) -> String {
    let profile = slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile));
    profile.map_or_else(|| "whole GPU".to_owned(), |profile| profile.name.to_string())
}

fn listed(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(LISTED_MAX);
    let mut words: Vec<_> = words.take(LISTED_MAX).collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., end] => format!("{} and {end}", most.join(", ")),
    }
}
