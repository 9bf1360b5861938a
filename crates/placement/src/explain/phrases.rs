//! Phrases for explanations.

use std::fmt;

use tessera_model::Bytes;
use tessera_model::mig::Slot;
use tessera_model::spec::GpuRequest;

use crate::kernel_sharing::SharingGain;
use crate::offer::{Offer, Way};
use crate::request::{NumberedRequest, SliceRequest};
use crate::sharing;
use crate::view::{GpuView, InstanceState, QueuedJob, SharingRequest};
use crate::working_state::WorkingGpu;

/// The most alternatives that one sentence lists.
const LISTED_MAX: usize = 4;

/// The name of the offer of a GPU with MIG off, in place of a profile's name.
const WHOLE_GPU: &str = "whole GPU";

/// "10 GiB requested", or "10 GiB and 50 % of a slice requested".
pub(crate) struct RequestText<'a>(pub(crate) &'a QueuedJob);

impl fmt::Display for RequestText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(SharingRequest { share, .. }) = &self.0.share {
            return write!(f, "{share} of a slice requested");
        }
        match &self.0.gpu {
            GpuRequest::Unknown => f.write_str("no size requested"),
            GpuRequest::Memory(bytes) => write!(f, "{bytes} requested"),
            GpuRequest::Profile(name) => write!(f, "{name} requested"),
            GpuRequest::Whole => f.write_str("a whole GPU requested"),
            GpuRequest::Unpartitioned => f.write_str("a whole GPU with MIG off requested"),
            GpuRequest::Compute(name) => write!(f, "{name} requested"),
        }
    }
}

/// "; jobs 3 and 4 of ada have 70 % and 8 GiB of it", where a sharer joins.
pub(crate) fn describe_colocation(
    gpu: &WorkingGpu<'_>,
    size: &NumberedRequest,
    offer: &Offer,
) -> String {
    let instance = gpu.instances.iter().find(|i| i.slot == offer.slot);
    match instance.map(|i| &i.state) {
        Some(InstanceState::Shared(tenancy)) if offer.rank.way == Way::Join => {
            let jobs: Vec<_> = tenancy.sharers.iter().map(|(job, _)| job.to_string()).collect();
            let (noun, verb) = if jobs.len() == 1 { ("job", "has") } else { ("jobs", "have") };
            let (user, sm, memory) = (&tenancy.user, tenancy.sm_percent(), tenancy.memory());
            let jobs = listed(&jobs, "and");
            let of = |sharer: &SharingRequest| {
                instance.map(|i| sharing::prospect(gpu, i, tenancy, sharer))
            };
            let prospect = match &size.request {
                SliceRequest::Shared(sharer) => of(sharer),
                _ => None,
            };
            if tenancy.sharers.iter().any(|(_, share)| share.is_kernel()) {
                let by = prospect.filter(|_| gpu.view.kernel).map_or(String::new(), reckoned);
                return format!(
                    "; {noun} {jobs} of {user} {verb} {memory} of it under kernel-level sharing{by}"
                );
            }
            // Without predictions for co-runners the explanation has no figures.
            let by = prospect.filter(|prospect| *prospect != SharingGain::Unknown);
            let by = by.map_or(String::new(), reckoned);
            format!("; {noun} {jobs} of {user} {verb} {sm} % and {memory} of it{by}")
        }
        _ => String::new(),
    }
}

/// ", where it adds 45 % of the throughput of a job alone".
fn reckoned(prospect: SharingGain) -> String {
    match prospect {
        SharingGain::Adds(gain) => {
            format!(", where it adds {} % of the throughput of a job alone", gain / 10)
        }
        SharingGain::Unknown => {
            ", as its user requested: how busy these jobs are is not known".to_owned()
        }
        SharingGain::OneAtATime => {
            ", as its user requested: with share = kernel:exclusive they run one after another"
                .to_owned()
        }
        SharingGain::Little(_)
        | SharingGain::Slows(..)
        | SharingGain::NeverFits(_)
        | SharingGain::StopsService(_) => String::new(),
    }
}

/// "GPU 0 of node a".
pub(crate) struct GpuOfNode<'a>(pub(crate) &'a GpuView);

impl fmt::Display for GpuOfNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} of node {}", self.0.index, self.0.node)
    }
}

/// "2g.10gb at slices 4-5".
pub(crate) struct InstanceText<'a> {
    pub(crate) gpu: &'a GpuView,
    pub(crate) slot: Slot,
}

impl fmt::Display for InstanceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.slot.start;
        let profile = self.gpu.mig.as_ref().and_then(|m| m.geometry.profile(self.slot.profile));
        match profile.map(|p| (&p.name, p.memory_slices)) {
            Some((name, 0 | 1)) => write!(f, "{name} at slice {start}"),
            Some((name, slices)) => write!(f, "{name} at slices {start}-{}", start + slices - 1),
            None => write!(f, "an instance at slice {start}"),
        }
    }
}

/// "2g.10gb at slices 4-5 of GPU 0 of node a", or "the whole GPU 0 of node a".
pub(crate) struct PlaceText<'a> {
    pub(crate) gpu: &'a GpuView,
    pub(crate) slot: Option<Slot>,
}

impl fmt::Display for PlaceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = GpuOfNode(self.gpu);
        match self.slot {
            Some(slot) => write!(f, "{} of {gpu}", InstanceText { gpu: self.gpu, slot }),
            None => write!(f, "the whole {gpu}"),
        }
    }
}

/// Lists texts as "17, 18 or 19"; of more than a few, it counts the rest.
pub(crate) fn listed(words: &[String], last: &str) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., end] if words.len() <= LISTED_MAX => {
            format!("{} {last} {end}", most.join(", "))
        }
        [..] => {
            let more = words.len() - LISTED_MAX;
            format!("{} {last} {more} more", words[..LISTED_MAX].join(", "))
        }
    }
}

/// Lists GPUs.
pub(crate) fn gpus<'g>(views: impl Iterator<Item = &'g GpuView>, last: &str) -> String {
    listed(&views.map(|view| GpuOfNode(view).to_string()).collect::<Vec<_>>(), last)
}

/// Returns the name of the profile in a slot, or its substitute.
pub(crate) fn profile_name(gpu: &GpuView, slot: Option<Slot>) -> &str {
    slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile))
        .map_or(WHOLE_GPU, |profile| profile.name.as_str())
}

/// Returns the memory of an instance in a slot, or of the whole GPU.
pub(crate) fn slot_memory(gpu: &GpuView, slot: Option<Slot>) -> Bytes {
    slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile))
        .map_or(gpu.memory, |profile| profile.memory)
}

/// Returns the name and the memory of the tightest fit for a request on a GPU.
pub(crate) fn tight_fit(gpu: &GpuView, size: &NumberedRequest) -> (String, Bytes) {
    let named = |mig: &crate::view::MigView, request: &SliceRequest| {
        request.tight(mig).first().map(|p| (p.name.to_string(), p.memory))
    };
    gpu.mig
        .as_deref()
        .and_then(|mig| named(mig, &size.request))
        .unwrap_or_else(|| (WHOLE_GPU.to_owned(), gpu.memory))
}
