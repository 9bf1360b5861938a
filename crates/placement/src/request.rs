//! The meaning of a job's request on GPUs of different models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tessera_model::Bytes;
use tessera_model::mig::compute::ComputeName;
use tessera_model::mig::{Profile, ProfileName};
use tessera_model::place::PlaceFilter;
use tessera_model::spec::GpuRequest;

use crate::feasibility;
use crate::view::{ClusterView, GpuView, MigView, QueuedJob, SharingRequest};

/// A request, reduced to the parts that affect placements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SliceRequest {
    /// A slice with at least this memory. An unknown need is zero bytes: any slice (the smallest in MIGM
    /// §2.2, case 4).
    AtLeast(Bytes),
    /// An instance of exactly this profile.
    Named(ProfileName),
    /// A whole GPU without co-runners.
    Whole,
    /// A whole GPU with MIG off.
    Unpartitioned,
    /// A share of a slice.
    Shared(SharingRequest),
    /// A compute instance, which [`crate::compute_instances`] handles instead of the policy.
    Part(ComputeName),
}

impl SliceRequest {
    /// Reads a request. A sharing job requests only memory, which is checked when jobs are
    /// submitted.
    pub fn of(gpu_request: &GpuRequest, share: Option<&SharingRequest>) -> Self {
        if let Some(sharer) = share {
            return Self::Shared(sharer.clone());
        }
        match gpu_request {
            GpuRequest::Unknown => Self::AtLeast(Bytes::ZERO),
            GpuRequest::Memory(bytes) => Self::AtLeast(*bytes),
            GpuRequest::Profile(name) => Self::Named(name.clone()),
            GpuRequest::Whole => Self::Whole,
            GpuRequest::Unpartitioned => Self::Unpartitioned,
            GpuRequest::Compute(name) => Self::Part(name.clone()),
        }
    }

    /// Returns the profiles that fit tightly on a partitioned GPU, best first; none, if the GPU
    /// can't hold the job.
    ///
    /// Tight means the smallest plain memory size that is enough. Profiles of equal memory
    /// (3g.20gb, 4g.20gb) all fit tightly, the one with fewer compute slices first: memory is
    /// hard, compute is soft (MIGM §2.2).
    pub fn tight<'m>(&self, mig: &'m MigView) -> Vec<&'m Profile> {
        match self {
            Self::AtLeast(bytes) => {
                let smallest = mig.plain().find(|p| p.memory >= *bytes).map(|p| p.memory);
                mig.plain().filter(|p| Some(p.memory) == smallest).collect()
            }
            Self::Shared(sharer) => {
                let roomy = sharer.share.roomy();
                let enough = || mig.plain().filter(|p| p.memory >= sharer.share.memory());
                let fits = enough().find(|p| p.memory >= roomy).or(enough().next_back());
                let memory = fits.map(|p| p.memory);
                mig.plain().filter(|p| Some(p.memory) == memory).collect()
            }
            Self::Named(name) => mig.geometry.by_name(name).into_iter().collect(),
            Self::Whole => mig.largest().into_iter().collect(),
            Self::Part(_) | Self::Unpartitioned => Vec::new(),
        }
    }

    /// Returns whether a whole GPU with MIG off and this memory can hold the job.
    ///
    /// Such a GPU is one instance without a profile, so it suits every request except for a named
    /// profile.
    pub fn suits_unpartitioned(&self, memory: Bytes) -> bool {
        match self {
            Self::AtLeast(bytes) => memory >= *bytes,
            Self::Named(_) | Self::Part(_) => false,
            Self::Whole | Self::Unpartitioned => true,
            Self::Shared(sharer) => memory >= sharer.share.memory(),
        }
    }
}

/// The requests of one round, numbered; requests that are equal on every GPU of the cluster share one number.
///
/// This bounds the work of a round: thousands of jobs request only a few sizes.
#[derive(Debug)]
pub struct RequestNumbers {
    steps: Vec<Bytes>,
    numbers: BTreeMap<(SliceRequest, Option<Arc<PlaceFilter>>), usize>,
    /// The last request as a job states it. Tasks of one array follow each other in the queue, and a comparison costs
    /// less than a search.
    last: Option<LastRequest>,
}

/// One request with its number.
#[derive(Clone, Debug)]
pub struct NumberedRequest {
    /// Its index among the requests of the round.
    pub number: usize,
    /// The request, with memory rounded up to a size that some GPU has.
    pub request: SliceRequest,
    /// The only nodes and models on which it may be served; `None` for all.
    pub place: Option<Arc<PlaceFilter>>,
}

impl NumberedRequest {
    /// Returns whether it may be served on this GPU's node and model.
    pub(crate) fn allows(&self, gpu: &GpuView) -> bool {
        self.place.as_ref().is_none_or(|place| place.allows(&gpu.node, &gpu.model))
    }

    /// Returns whether it may be served on this GPU, whose geometry has an instance for it.
    pub(crate) fn suits(&self, gpu: &GpuView) -> bool {
        self.allows(gpu) && feasibility::holds(gpu, &self.request)
    }
}

/// A request as a job states it, with its number.
type LastRequest = (GpuRequest, Option<SharingRequest>, NumberedRequest);

impl RequestNumbers {
    /// Collects the memory sizes that differ on the cluster's GPUs.
    pub fn new(cluster: &ClusterView) -> Self {
        let mut steps = BTreeSet::new();
        let mut last: Option<&MigView> = None;
        for gpu in &cluster.gpus {
            steps.extend(gpu.instances.iter().map(|i| i.memory));
            match gpu.mig.as_deref() {
                None => {
                    steps.insert(gpu.memory);
                }
                Some(mig) if last.is_some_and(|last| std::ptr::eq(last, mig)) => {}
                Some(mig) => {
                    steps.extend(mig.geometry.profiles.iter().map(|p| p.memory));
                    last = Some(mig);
                }
            }
        }
        Self { steps: steps.into_iter().collect(), numbers: BTreeMap::new(), last: None }
    }

    /// Returns a job's request with its number.
    pub fn size(&mut self, job: &QueuedJob) -> NumberedRequest {
        self.size_of(job).clone()
    }

    /// Returns the number of a job's request alone.
    pub(crate) fn number(&mut self, job: &QueuedJob) -> usize {
        self.size_of(job).number
    }

    fn size_of(&mut self, job: &QueuedJob) -> &NumberedRequest {
        let is_same = |(gpu, share, last): &LastRequest| {
            *gpu == job.gpu && *share == job.share && last.place == job.place
        };
        let last = self.last.take().filter(is_same);
        let last = last.unwrap_or_else(|| (job.gpu.clone(), job.share.clone(), self.find(job)));
        &self.last.insert(last).2
    }

    fn find(&mut self, job: &QueuedJob) -> NumberedRequest {
        let request = match SliceRequest::of(&job.gpu, job.share.as_ref()) {
            SliceRequest::AtLeast(bytes) => {
                let step = self.steps.partition_point(|step| *step < bytes);
                SliceRequest::AtLeast(self.steps.get(step).copied().unwrap_or(Bytes::new(u64::MAX)))
            }
            request @ (SliceRequest::Named(_)
            | SliceRequest::Whole
            | SliceRequest::Unpartitioned
            | SliceRequest::Shared(_)
            | SliceRequest::Part(_)) => request,
        };
        let next = self.numbers.len();
        let key = (request.clone(), job.place.clone());
        let number = *self.numbers.entry(key).or_insert(next);
        NumberedRequest { number, request, place: job.place.clone() }
    }
}
