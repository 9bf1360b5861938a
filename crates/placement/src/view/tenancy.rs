//! Jobs that share a slice.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::share::{SHARERS_MAX, SliceShare, SmPercent};
use tessera_model::{Bytes, JobId};

use crate::kernel_sharing::{self, KernelSharer, SharingGain};
use crate::numbers;

/// The sharers of one slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenancy {
    /// Whose jobs they are: under MPS one job's fault is everyone's, so that users are never
    /// mixed. (Kernel by kernel each has its own context; but they trust each other with the gate
    /// page, and the agent may put MPS beneath.)
    #[serde(with = "super::shared_text")]
    pub user: Arc<str>,
    /// The jobs with their parts.
    pub sharers: Vec<(JobId, SliceShare)>,
    /// Of kernel-level sharers, how busy they are, as far as that is known.
    #[serde(rename = "turns", default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_sharers: Vec<(JobId, KernelSharer)>,
    /// Of those under MPS, what predictions know of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<(JobId, MpsClient)>,
}

/// A job under MPS as predictions know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MpsClient {
    /// Whether it serves requests.
    pub online: bool,
    /// Its percentage of the slice's multiprocessors.
    pub sm: SmPercent,
    /// The part of its time alone in which a kernel of it runs, in thousandths; `None` where that
    /// isn't known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<u16>,
}

impl Tenancy {
    /// Returns one of whose sharers nothing is known but their parts.
    pub fn of(user: Arc<str>, sharers: Vec<(JobId, SliceShare)>) -> Self {
        Self { user, sharers, kernel_sharers: Vec::new(), clients: Vec::new() }
    }

    /// Begins one with its first sharer.
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
    }

    /// Removes a job.
    pub fn remove(&mut self, job: JobId) {
        self.sharers.retain(|(other, _)| *other != job);
        self.kernel_sharers.retain(|(other, _)| *other != job);
        self.clients.retain(|(other, _)| *other != job);
    }

    /// Returns what is to be expected of one more, under kernel-level sharing.
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

    /// Returns what is to be expected of one more under MPS; `speeds` returns how fast some are together, in
    /// thousandths of what each does while nobody else is there.
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

    /// Returns one of the jobs as a kernel-level sharer.
    pub fn kernel_sharer(&self, job: JobId) -> Option<KernelSharer> {
        self.kernel_sharers
            .iter()
            .find(|(known, _)| *known == job)
            .map(|(_, kernel_sharer)| *kernel_sharer)
    }

    /// Returns the percentages that are given away, added up.
    pub fn sm_percent(&self) -> u32 {
        self.sharers.iter().map(|(_, share)| share.sm_percent()).sum()
    }

    /// Returns the memory that is given away, added up.
    pub fn memory(&self) -> Bytes {
        let bytes = self.sharers.iter().map(|(_, share)| share.memory().get());
        Bytes::new(bytes.fold(0, u64::saturating_add))
    }

    /// Returns whether one more sharer fits next to the others on a slice with this memory.
    pub fn has_capacity(&self, request: &SharingRequest, memory: Bytes) -> bool {
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

/// A job that may share a slice: whose it is, and its part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SharingRequest {
    /// Whose job it is.
    #[serde(with = "super::shared_text")]
    pub user: Arc<str>,
    /// What it may use.
    pub share: SliceShare,
    /// Its kernel-level sharing, if it requests that.
    #[serde(rename = "turn", default, skip_serializing_if = "Option::is_none")]
    pub kernel_sharer: Option<KernelSharer>,
    /// What predictions know of it, if it shares under MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<MpsClient>,
}

impl SharingRequest {
    /// Returns a job of which nothing is known but its part.
    pub fn new(user: impl Into<Arc<str>>, share: SliceShare) -> Self {
        Self { user: user.into(), share, kernel_sharer: None, client: None }
    }
}
