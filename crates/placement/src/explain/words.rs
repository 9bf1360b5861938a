//! The phrases that explanations are made of.

use std::fmt;

use tessera_model::Bytes;
use tessera_model::mig::Slot;
use tessera_model::spec::GpuAsk;

use crate::board::Gpu;
use crate::round::{Offer, Way};
use crate::sharing;
use crate::turns::Prospect;
use crate::view::{GpuView, InstanceState, QueuedJob, Sharer};
use crate::want::{Size, Want};

/// Most alternatives that one sentence lists.
const LISTED_MAX: usize = 4;

/// What a GPU with MIG off offers, in the place of a profile's name.
const WHOLE_GPU: &str = "whole GPU";

/// "10 GiB asked", or "10 GiB and 50 % of a slice asked".
pub(super) struct Asked<'a>(pub(super) &'a QueuedJob);

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Sharer { share, .. }) = &self.0.share {
            return write!(f, "{share} of a slice asked");
        }
        match &self.0.gpu {
            GpuAsk::Unknown => f.write_str("no size asked"),
            GpuAsk::Memory(bytes) => write!(f, "{bytes} asked"),
            GpuAsk::Profile(name) => write!(f, "{name} asked"),
            GpuAsk::Whole => f.write_str("a whole GPU asked"),
            GpuAsk::Compute(name) => write!(f, "{name} asked"),
        }
    }
}

/// "; jobs 3 and 4 of ada have 70 % and 8 GiB of it", where a sharer joins.
pub(super) fn company(gpu: &Gpu<'_>, size: &Size, offer: &Offer) -> String {
    let instance = gpu.instances.iter().find(|i| i.slot == offer.slot);
    match instance.map(|i| &i.state) {
        Some(InstanceState::Shared(tenancy)) if offer.rank.way == Way::Join => {
            let jobs: Vec<_> = tenancy.sharers.iter().map(|(job, _)| job.to_string()).collect();
            let (noun, verb) = if jobs.len() == 1 { ("job", "has") } else { ("jobs", "have") };
            let (user, sm, memory) = (&tenancy.user, tenancy.sm_percent(), tenancy.memory());
            let jobs = listed(&jobs, "and");
            let of = |sharer: &Sharer| instance.map(|i| sharing::prospect(gpu, i, tenancy, sharer));
            let prospect = match &size.want {
                Want::Shared(sharer) => of(sharer),
                _ => None,
            };
            if tenancy.sharers.iter().any(|(_, share)| share.is_kernel()) {
                let by = prospect.filter(|_| gpu.view.kernel).map_or(String::new(), reckoned);
                return format!(
                    "; {noun} {jobs} of {user} {verb} {memory} of it, kernel by kernel{by}"
                );
            }
            // Where nothing is learned of company, there is nothing to tell.
            let by = prospect.filter(|prospect| *prospect != Prospect::Unknown);
            let by = by.map_or(String::new(), reckoned);
            format!("; {noun} {jobs} of {user} {verb} {sm} % and {memory} of it{by}")
        }
        _ => String::new(),
    }
}

/// ", where it adds 45 % of what a job does alone".
fn reckoned(prospect: Prospect) -> String {
    match prospect {
        Prospect::Adds(gain) => {
            format!(", where it adds {} % of what a job does alone", gain / 10)
        }
        Prospect::Unknown => {
            ", as its user wishes: how busy all of them are isn't known".to_owned()
        }
        Prospect::Little(_) | Prospect::Slows(..) => String::new(),
    }
}

/// "GPU 0 of node a".
pub(super) struct GpuOfNode<'a>(pub(super) &'a GpuView);

impl fmt::Display for GpuOfNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} of node {}", self.0.index, self.0.node)
    }
}

/// "2g.10gb at slices 4-5".
pub(super) struct Instance<'a> {
    pub(super) gpu: &'a GpuView,
    pub(super) slot: Slot,
}

impl fmt::Display for Instance<'_> {
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
pub(super) struct Place<'a> {
    pub(super) gpu: &'a GpuView,
    pub(super) slot: Option<Slot>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = GpuOfNode(self.gpu);
        match self.slot {
            Some(slot) => write!(f, "{} of {gpu}", Instance { gpu: self.gpu, slot }),
            None => write!(f, "the whole {gpu}"),
        }
    }
}

/// Lists words as people do: "17, 18 or 19"; past a few, counts the rest.
pub(super) fn listed(words: &[String], last: &str) -> String {
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
pub(super) fn gpus<'g>(views: impl Iterator<Item = &'g GpuView>, last: &str) -> String {
    listed(&views.map(|view| GpuOfNode(view).to_string()).collect::<Vec<_>>(), last)
}

/// Returns the name of the profile in a slot, or what stands for it.
pub(super) fn profile_name(gpu: &GpuView, slot: Option<Slot>) -> &str {
    slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile))
        .map_or(WHOLE_GPU, |profile| profile.name.as_str())
}

/// Returns the memory of an instance in a slot, or of the whole GPU.
pub(super) fn slot_memory(gpu: &GpuView, slot: Option<Slot>) -> Bytes {
    slot.and_then(|slot| gpu.mig.as_ref()?.geometry.profile(slot.profile))
        .map_or(gpu.memory, |profile| profile.memory)
}

/// Returns the name of what fits a want tightly on a GPU, and its memory.
pub(super) fn tight_fit(gpu: &GpuView, size: &Size) -> (String, Bytes) {
    let named = |mig: &crate::view::MigView, want: &Want| {
        want.tight(mig).first().map(|p| (p.name.to_string(), p.memory))
    };
    gpu.mig
        .as_deref()
        .and_then(|mig| named(mig, &size.want))
        .unwrap_or_else(|| (WHOLE_GPU.to_owned(), gpu.memory))
}
