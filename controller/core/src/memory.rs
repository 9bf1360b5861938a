//! The memory that a job requests, and where that size comes from.
//!
//! MIGM §2.2 names the ways to know a need. [`SizeSource`] has their order here. A job about which
//! nothing is known fits on any slice, and gets larger ones after it runs out of memory.
//! No learned or estimated size exceeds the cluster's largest slice. A run's memory is reported in
//! a separate frame, usually after its end, so ended attempts are kept for a while.

use crate::predictions::TaskFacts;
use crate::predictions::sizes::{LearnedBasis, LearnedSize, MEASURED_MIN};
use crate::predictions::trained::RunEstimator;
use crate::rows::submitted::OwnMemory;
use std::collections::{HashMap, VecDeque};
use tessera_model::sizing::SizeSource;
use tessera_model::spec::GpuRequest;
use tessera_model::{AttemptId, Bytes};
use tessera_predict::memory::MemoryEstimate;

/// Maximum number of ended attempts whose memory is awaited: as many as end within some seconds in
/// a large cluster. Later reports are learned by the next leader, from the store.
const ENDED_MAX: usize = 4_096;

/// The memory that a job requests for another reason than its user's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRequest {
    /// The amount.
    pub(crate) bytes: Bytes,
    /// The evidence for it.
    pub(crate) evidence: SizeEvidence,
}

/// Why a job requests so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeEvidence {
    /// It ran out of memory itself, or was predicted to.
    OutOfMemory {
        /// How often it ran out; 0 if it was moved before.
        events: u32,
    },
    /// What an attempt of it had allocated before its first kernel.
    FirstLaunch,
    /// Runs of its task.
    Learned(LearnedSize),
    /// Its user's estimate.
    Estimated(Bytes),
}

impl MemoryRequest {
    /// Returns the source of the size.
    pub(crate) const fn source(&self) -> SizeSource {
        match self.evidence {
            SizeEvidence::OutOfMemory { events: 0 } => SizeSource::Predicted,
            SizeEvidence::OutOfMemory { .. } => SizeSource::OutOfMemory,
            SizeEvidence::FirstLaunch => SizeSource::FirstLaunch,
            SizeEvidence::Learned(_) => SizeSource::Learned,
            SizeEvidence::Estimated(_) => SizeSource::Estimated,
        }
    }

    /// Returns what was learned about the task, if the request is based on that.
    pub(crate) const fn learned(&self) -> Option<MemoryEstimate> {
        match self.evidence {
            SizeEvidence::Learned(learned) => Some(learned.estimate),
            SizeEvidence::OutOfMemory { .. }
            | SizeEvidence::FirstLaunch
            | SizeEvidence::Estimated(_) => None,
        }
    }
}

/// An ended attempt whose memory is awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedRun {
    pub(crate) task: String,
    pub(crate) gpu_model: String,
    /// The memory that it had.
    pub(crate) slice: Bytes,
    pub(crate) prediction: Option<MemoryEstimate>,
    pub(crate) end: AwaitedEnd,
}

/// How an attempt ended whose memory is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedEnd {
    Succeeded,
    /// Its output states that memory ran out. It counts if the peak comes near the slice.
    RanOut,
}

/// Ended attempts whose peak memory is not known yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct AwaitedMemory {
    runs: HashMap<AttemptId, AwaitedRun>,
    order: VecDeque<AttemptId>,
}

/// Returns why a job requests so much, as the end of a sentence.
pub(crate) fn evidence_text(request: &MemoryRequest) -> String {
    let names_none = "; it states no memory size itself";
    let (text, found) = match request.evidence {
        SizeEvidence::OutOfMemory { events: 0 } => {
            return format!(
                "; it was predicted to run out of GPU memory, so that it requests at least {}",
                request.bytes
            );
        }
        SizeEvidence::OutOfMemory { events } => {
            let times = if events == 1 { "once".to_owned() } else { format!("{events} times") };
            return format!(
                "; it ran out of GPU memory {times}, so that it requests at least {}",
                request.bytes
            );
        }
        SizeEvidence::FirstLaunch => {
            return format!(
                "{names_none}: it had allocated {} before its first kernel, so it requests at \
                 least that",
                request.bytes
            );
        }
        SizeEvidence::Estimated(bytes) => {
            (format!("{names_none}: its user's estimate is {bytes}"), bytes)
        }
        SizeEvidence::Learned(learned) => {
            (format!("{names_none}: {}", learned_text(&learned)), learned.estimate.value)
        }
    };
    if request.bytes < found {
        let bytes = request.bytes;
        return format!(
            "{text}; no slice of this cluster is so large, so that it requests the largest, with {bytes}"
        );
    }
    text
}

fn learned_text(learned: &LearnedSize) -> String {
    let LearnedSize { estimate, basis, .. } = learned;
    let runs = match estimate.runs {
        1 => "1 earlier run".to_owned(),
        runs => format!("{runs} earlier runs"),
    };
    match basis {
        _ if estimate.cautious => format!(
            "its task's runs exceeded earlier ones, so it requests half as much again, {}",
            estimate.value
        ),
        LearnedBasis::RanOutOf(slice) => format!("an earlier run of its task ran out of {slice}"),
        LearnedBasis::Peaks { peak } => format!(
            "{runs} of its task used at most {peak}, and it requests {} with headroom",
            estimate.value
        ),
        LearnedBasis::Enough { measured } if *measured < MEASURED_MIN => format!(
            "{} was enough for {runs} of its task; less is requested once {MEASURED_MIN} peaks \
             have been measured",
            estimate.value
        ),
        LearnedBasis::Enough { .. } => {
            format!("{} was enough for {runs} of its task, which need most of it", estimate.value)
        }
    }
}

/// Returns the memory that a job requests for another reason than its user's request.
pub(crate) fn memory_request_of(
    estimator: &RunEstimator,
    largest: Bytes,
    declared: &GpuRequest,
    facts: &TaskFacts,
    own: OwnMemory,
) -> Option<MemoryRequest> {
    // Before any GPU was seen, the first one may have it.
    let within = |bytes: Bytes| if largest > Bytes::ZERO { bytes.min(largest) } else { bytes };
    let of_task = match declared {
        GpuRequest::Unknown => learned_size(estimator, facts).map(|learned| MemoryRequest {
            bytes: within(learned.estimate.value),
            evidence: SizeEvidence::Learned(learned),
        }),
        GpuRequest::Memory(_)
        | GpuRequest::Profile(_)
        | GpuRequest::Whole
        | GpuRequest::Unpartitioned
        | GpuRequest::Compute(_) => None,
    };
    let held = own.held.filter(|_| *declared == GpuRequest::Unknown).map(within);
    if let Some(at_least) = own.at_least {
        let known = match declared {
            GpuRequest::Memory(bytes) => *bytes,
            _ => of_task.map_or(Bytes::ZERO, |request| request.bytes),
        };
        let evidence = SizeEvidence::OutOfMemory { events: own.events };
        let bytes = at_least.max(known).max(held.unwrap_or(Bytes::ZERO));
        return Some(MemoryRequest { bytes, evidence });
    }
    let estimated = || {
        let bytes = facts.estimated_memory.filter(|_| *declared == GpuRequest::Unknown)?;
        Some(MemoryRequest { bytes: within(bytes), evidence: SizeEvidence::Estimated(bytes) })
    };
    let known = of_task.or_else(estimated);
    let first = held.map(|bytes| MemoryRequest { bytes, evidence: SizeEvidence::FirstLaunch });
    match (known, first) {
        (Some(known), Some(first)) if first.bytes > known.bytes => Some(first),
        (known, first) => known.or(first),
    }
}

/// Returns what was learned from the runs of a job's task.
pub(crate) fn learned_size(estimator: &RunEstimator, facts: &TaskFacts) -> Option<LearnedSize> {
    if facts.task.is_empty() {
        return None;
    }
    estimator.learned_size(&facts.task)
}

impl AwaitedMemory {
    /// Records an attempt whose memory is awaited.
    pub(crate) fn wait_for(&mut self, attempt: AttemptId, run: AwaitedRun) {
        if self.runs.insert(attempt, run).is_some() {
            return;
        }
        self.order.push_back(attempt);
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.runs.remove(&oldest);
        }
    }

    /// Returns an awaited attempt, once: nodes repeat their reports.
    pub(crate) fn take(&mut self, attempt: AttemptId) -> Option<AwaitedRun> {
        self.runs.remove(&attempt)
    }
}
