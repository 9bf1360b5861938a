//! Jobs that share a slice.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::share::{SHARERS_MAX, SliceShare, SmPercent};
use tessera_model::{Bytes, JobId};

use crate::kernel_sharing::{self, KernelSharer, SharingGain};
use crate::numbers;

/// The sharing jobs of one slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenancy {
    /// The user of all jobs: under MPS one job's fault ends all of them, so users are never mixed.
    /// (Under kernel-level sharing each job has its own context, but the jobs trust each other with
    /// the gate page, and the agent may use MPS below.)
    #[serde(with = "super::shared_text")]
    pub user: Arc<str>,
    /// The jobs with their shares.
    pub sharers: Vec<(JobId, SliceShare)>,
    /// How busy jobs under kernel-level sharing are, as far as it is known.
    #[serde(rename = "turns", default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_sharers: Vec<(JobId, KernelSharer)>,
    /// What predictions know about jobs under MPS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<(JobId, MpsClient)>,
    /// The job that nothing may run next to, if there is one ([`SharingRequest::apart`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<JobId>,
}

/// What predictions know about a job under MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MpsClient {
    /// Whether it serves requests.
    pub online: bool,
    /// Its percentage of the slice's multiprocessors.
    pub sm: SmPercent,
    /// The part of its time alone in which one of its kernels runs, in thousandths; `None` if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u16>,
}

impl Tenancy {
    /// Returns a tenancy about whose jobs nothing is known but their shares.
    pub fn of(user: Arc<str>, sharers: Vec<(JobId, SliceShare)>) -> Self {
        Self { user, sharers, kernel_sharers: Vec::new(), clients: Vec::new(), apart: None }
    }

    /// Begins a tenancy with its first job.
    pub fn begun(job: JobId, sharer: &SharingRequest) -> Self {
        let mut tenancy = Self::of(sharer.user.clone(), Vec::new());
        tenancy.add(job, sharer);
        tenancy
    }

    /// Adds a job.
    pub fn add(&mut self, job: JobId, sharer: &SharingRequest) {
        self.sharers.push((job, sharer.share));
        self.kernel_sharers.extend(sharer.kernel_sharer.map(|kernel_sharer| (job, kernel_sharer)));
        self.clients.extend(sharer.client.map(|client| (job, client)));
        self.apart = self.apart.or(sharer.apart.then_some(job));
    }

    /// Removes a job.
    pub fn remove(&mut self, job: JobId) {
        self.sharers.retain(|(other, _)| *other != job);
        self.kernel_sharers.retain(|(other, _)| *other != job);
        self.clients.retain(|(other, _)| *other != job);
        self.apart = self.apart.filter(|other| *other != job);
    }

    /// Returns the predicted effect of one more job under kernel-level sharing.
    pub fn prospect(&self, request: &SharingRequest) -> SharingGain {
        let there: Vec<KernelSharer> =
            self.kernel_sharers.iter().map(|(_, kernel_sharer)| *kernel_sharer).collect();
        match request.kernel_sharer {
            Some(kernel_sharer) if there.len() == self.sharers.len() => {
                kernel_sharing::prospect(&there, kernel_sharer)
            }
            _ => SharingGain::Unknown,
        }
    }

    /// Returns the predicted effect of one more job under MPS; `speeds` returns the speeds of jobs
    /// together, in thousandths of each one's speed without co-runners.
    pub fn prospect_under_mps(
        &self,
        request: &SharingRequest,
        speeds: impl Fn(&[MpsClient]) -> Option<Vec<u64>>,
    ) -> SharingGain {
        let mut all: Vec<MpsClient> = self.clients.iter().map(|(_, client)| *client).collect();
        let (there, Some(more)) = (all.len(), request.client) else { return SharingGain::Unknown };
        if there != self.sharers.len() {
            return SharingGain::Unknown;
        }
        all.push(more);
        let Some((before, after)) = speeds(&all[..there]).zip(speeds(&all)) else {
            return SharingGain::Unknown;
        };
        let slowed = |speeds: Vec<u64>| -> Vec<u64> {
            speeds.into_iter().map(|speed| 1_000_000 / speed.max(1)).collect()
        };
        kernel_sharing::weigh(&slowed(before), &slowed(after), |at| all[at].online)
    }

    /// Returns one of the jobs for the model of kernel-level sharing.
    pub fn kernel_sharer(&self, job: JobId) -> Option<KernelSharer> {
        self.kernel_sharers
            .iter()
            .find(|(known, _)| *known == job)
            .map(|(_, kernel_sharer)| *kernel_sharer)
    }

    /// Returns the sum of the percentages that jobs have.
    pub fn sm_percent(&self) -> u32 {
        self.sharers.iter().map(|(_, share)| share.sm_percent()).sum()
    }

    /// Returns the sum of the memory that jobs have.
    pub fn memory(&self) -> Bytes {
        let bytes = self.sharers.iter().map(|(_, share)| share.memory().get());
        Bytes::new(bytes.fold(0, u64::saturating_add))
    }

    /// Returns whether one more job fits on a slice with this memory, in addition to the others.
    pub fn has_capacity(&self, request: &SharingRequest, memory: Bytes) -> bool {
        !self.is_kept_apart(request) && self.has_free_shares(request, memory)
    }

    /// Returns whether a job may not run next to the others because of an earlier fault.
    pub fn is_kept_apart(&self, request: &SharingRequest) -> bool {
        self.apart.is_some() || (request.apart && !self.sharers.is_empty())
    }

    /// Returns whether the shares of one more job are free.
    pub fn has_free_shares(&self, request: &SharingRequest, memory: Bytes) -> bool {
        let sm = self.sm_percent() + request.share.sm_percent();
        let bytes = self.memory().get().saturating_add(request.share.memory().get());
        let count = numbers::saturating_u32(self.sharers.len());
        let alike = self.sharers.iter().all(|(_, share)| share.goes_with(request.share));
        alike
            && self.user == request.user
            && sm <= 100
            && bytes <= memory.get()
            && count < SHARERS_MAX
    }
}

/// A job that may share a slice, with its user and its share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SharingRequest {
    /// Name of the user who submitted the job.
    #[serde(with = "super::shared_text")]
    pub user: Arc<str>,
    /// What it may use.
    pub share: SliceShare,
    /// Its kernel-level sharing, if it requested that.
    #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
    pub kernel_sharer: Option<KernelSharer>,
    /// What predictions know about it, if it shares under MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<MpsClient>,
    /// Whether nothing may run next to it: a fault ended its last attempt together with others on the slice, and which
    /// job caused that is not known. Alone, the faulty job fails by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
}

impl SharingRequest {
    /// Returns a job about which nothing is known but its share.
    pub fn new(user: impl Into<Arc<str>>, share: SliceShare) -> Self {
        Self { user: user.into(), share, kernel_sharer: None, client: None, apart: false }
    }
}
