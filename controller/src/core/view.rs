//! The cluster as policies see it, built from what agents reported and what was decided since.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{Geometry, Slot, TooManyPlacements};
use tessera_model::{Bytes, GpuId, JobId, Millis, SliceId};
use tessera_placement::{
    ClusterView, GpuView, InstanceState, InstanceView, MigView, Seats, Tenancy,
};
use tessera_wire::frames::{GpuHealth, GpuReport, InstanceReport, InstanceTrouble, MigReport};

use super::{Cluster, Gpu, Live};

impl Cluster {
    /// Returns the cluster as policies see it.
    pub fn view(&self, now: Millis) -> ClusterView {
        let mut taken: BTreeMap<&GpuId, Vec<&Live>> = BTreeMap::new();
        for live in self.live.values() {
            taken.entry(&live.gpu).or_default().push(live);
        }
        let mut gpus: Vec<_> = self
            .gpus
            .values()
            .filter_map(|gpu| {
                let node = self.nodes.get(&gpu.node)?;
                let holders = taken.get(&gpu.report.gpu).map_or(&[][..], Vec::as_slice);
                let operator = self.operator_word(gpu);
                Some(GpuView {
                    id: gpu.report.gpu.clone(),
                    node: node.name.clone(),
                    index: gpu.report.index,
                    model: gpu.report.model.clone(),
                    memory: gpu.report.memory,
                    sms: gpu.report.sms,
                    mig: gpu.mig.clone(),
                    mps: node.mps,
                    kernel: node.kernel,
                    available: self.available(gpu, now)
                        && operator.closed.is_none()
                        && !self.is_wished(&gpu.report.gpu)
                        && same_mode(gpu, holders),
                    changing: gpu.open_plan.is_some()
                        || self.has_unmade(gpu, holders)
                        || self.moving.first_on(&gpu.report.gpu).is_some(),
                    instances: {
                        let mut views = self.with_quarantines(gpu, instances(gpu, holders));
                        self.moving.close(&gpu.report.gpu, &mut views);
                        views
                    },
                    operator,
                })
            })
            .collect();
        gpus.sort_by(|a, b| (&a.node, a.index).cmp(&(&b.node, b.index)));
        ClusterView { gpus }
    }

    /// Returns what stands or is promised on one GPU.
    pub(super) fn instances_of(&self, gpu: &Gpu) -> Vec<InstanceView> {
        self.with_quarantines(gpu, instances(gpu, &self.holders(gpu)))
    }

    /// Whether an attempt waits for an instance of the GPU that doesn't stand yet.
    pub(super) fn makes_a_place(&self, gpu: &Gpu) -> bool {
        self.has_unmade(gpu, &self.holders(gpu)) || self.moving.first_on(&gpu.report.gpu).is_some()
    }

    fn holders(&self, gpu: &Gpu) -> Vec<&Live> {
        self.live.values().filter(|live| live.gpu == gpu.report.gpu).collect()
    }

    /// Lays quarantined places over what stands: whatever covers one is left alone once its job
    /// has ended, and nothing is made where nothing stands.
    fn with_quarantines(&self, gpu: &Gpu, mut views: Vec<InstanceView>) -> Vec<InstanceView> {
        let MigReport::On { geometry } = &gpu.report.mig else { return views };
        for place in self.quarantined(&gpu.report.gpu) {
            let covers =
                |view: &InstanceView| view.slot.is_some_and(|slot| geometry.overlap(slot, place));
            let mut covered = false;
            for view in views.iter_mut().filter(|view| covers(view)) {
                covered = true;
                view.state = match &view.state {
                    InstanceState::Taken { job } => InstanceState::Taken { job: *job },
                    InstanceState::Shared(tenancy) => closed_to_others(tenancy),
                    InstanceState::Cut(Seats { tenancy: Some(tenancy), .. }) => {
                        held_seats(tenancy.clone())
                    }
                    _ => InstanceState::Quarantined,
                };
            }
            if let (false, Some(profile)) = (covered, geometry.profile(place.profile)) {
                let state = InstanceState::Quarantined;
                views.push(InstanceView { slot: Some(place), memory: profile.memory, state });
            }
        }
        views.sort_by_key(|view| view.slot);
        views
    }

    /// Whether new attempts may start on a GPU.
    pub(super) fn available(&self, gpu: &Gpu, now: Millis) -> bool {
        let node = self.nodes.get(&gpu.node);
        let connected = node.is_some_and(|node| {
            !node.lost && node.session.as_ref().is_some_and(|session| session.ready)
        });
        connected && gpu.fresh && gpu.report.health == GpuHealth::Healthy && now >= gpu.paused_until
    }

    /// Whether an attempt waits for an instance that no ordered plan makes yet.
    fn has_unmade(&self, gpu: &Gpu, holders: &[&Live]) -> bool {
        let stands = |slot: Slot| gpu.report.instances.iter().any(|i| i.slot == slot);
        holders.iter().any(|held| held.slot.is_some_and(|slot| !stands(slot)))
    }

    /// Returns the slice on which an attempt would run, if it stands and was reported in the
    /// node's present session.
    pub(super) fn standing_slice(&self, live: &Live) -> Option<SliceId> {
        let gpu = self.gpus.get(&live.gpu).filter(|gpu| gpu.fresh)?;
        slice_at(&gpu.report, live.slot, live.part())
    }

    /// Returns the shared rules of a GPU's geometry; equal geometries share them.
    pub(super) fn mig_view(&mut self, report: &GpuReport) -> Option<Arc<MigView>> {
        let MigReport::On { geometry } = &report.mig else { return None };
        let geometry = &without(geometry, &report.refused);
        if let Some(known) = self.mig_views.iter().find(|view| view.geometry == *geometry) {
            return Some(Arc::clone(known));
        }
        // More placements than any known GPU has: see `Gpu::unplannable`.
        let view = Arc::new(MigView::new(geometry.clone()).ok()?);
        self.mig_views.push(Arc::clone(&view));
        Some(view)
    }
}

impl Gpu {
    /// Says why nothing can be planned on a GPU whose driver lists more placements than the state
    /// machine has room for. No known GPU has a quarter of them.
    pub(super) fn unplannable(&self) -> Option<String> {
        let MigReport::On { geometry } = &self.report.mig else { return None };
        if self.mig.is_some() {
            return None;
        }
        let too_many = MigView::new(without(geometry, &self.report.refused)).err()?;
        let TooManyPlacements { placements, most } = too_many;
        Some(format!(
            "its driver lists {placements} placements of instances, and Tessera can plan with at \
             most {most}: it is left alone"
        ))
    }
}

/// Leaves out the placements that the driver refused lately: policies never think of them.
fn without(geometry: &Geometry, refused: &[Slot]) -> Geometry {
    let mut geometry = geometry.clone();
    for profile in &mut geometry.profiles {
        let is_refused = |start: u8| refused.contains(&Slot { start, profile: profile.id });
        profile.starts.retain(|start| !is_refused(*start));
    }
    geometry.profiles.retain(|profile| !profile.starts.is_empty());
    geometry
}

/// Whether the attempts on a GPU were placed for its present MIG mode. Until the others are over
/// it can't be told what they hold.
fn same_mode(gpu: &Gpu, holders: &[&Live]) -> bool {
    let partitioned = matches!(gpu.report.mig, MigReport::On { .. });
    holders.iter().all(|held| held.slot.is_some() == partitioned)
}

/// Returns the slice in a slot, or that over one of its compute instances; of a whole GPU with MIG
/// off, the GPU itself.
pub(super) fn slice_at(
    report: &GpuReport,
    slot: Option<Slot>,
    part: Option<ComputeSlot>,
) -> Option<SliceId> {
    match slot {
        Some(slot) => {
            let sound = |i: &&InstanceReport| i.slot == slot && i.trouble.is_none();
            let instance = report.instances.iter().find(sound)?;
            match part {
                Some(part) => instance.parts.iter().find(|p| p.slot == part)?.slice.clone(),
                None => instance.slice.clone(),
            }
        }
        None => report.gpu.as_str().parse().ok(),
    }
}

fn instances(gpu: &Gpu, holders: &[&Live]) -> Vec<InstanceView> {
    let MigReport::On { geometry } = &gpu.report.mig else {
        let state = held_by(holders, None).unwrap_or(InstanceState::Idle);
        return vec![InstanceView { slot: None, memory: gpu.report.memory, state }];
    };
    let mut views: Vec<_> = gpu
        .report
        .instances
        .iter()
        .map(|i| InstanceView {
            slot: Some(i.slot),
            memory: i.memory,
            state: match &gpu.wish {
                Some(wish) if wish.takes(i.slot) => InstanceState::Leaving,
                _ => state_of(i, held_by(holders, Some(i.slot)), doomed(gpu, geometry, i, holders)),
            },
        })
        .collect();
    for held in holders {
        let Some(slot) = held.slot else { continue };
        // Several sharers may wait for one instance.
        if views.iter().all(|view| view.slot != Some(slot)) {
            let memory = geometry.profile(slot.profile).map_or(Bytes::ZERO, |p| p.memory);
            let state = held_by(holders, Some(slot)).unwrap_or(InstanceState::Idle);
            views.push(InstanceView { slot: Some(slot), memory, state });
        }
    }
    views.sort_by_key(|view| view.slot);
    views
}

/// The job for whose place an instance is about to be destroyed.
fn doomed(
    gpu: &Gpu,
    geometry: &tessera_model::mig::Geometry,
    instance: &InstanceReport,
    holders: &[&Live],
) -> Option<JobId> {
    let mask = geometry.mask(instance.slot).ok()?;
    holders.iter().find_map(|held| {
        let slot = held.slot?;
        let promised = gpu.report.instances.iter().all(|i| i.slot != slot);
        (promised && geometry.mask(slot).is_ok_and(|m| m & mask != 0)).then_some(held.job)
    })
}

/// Returns what the attempts in a slot make of it; `None` if there are none.
fn held_by(holders: &[&Live], slot: Option<Slot>) -> Option<InstanceState> {
    let mut there = holders.iter().filter(|held| held.slot == slot);
    let first = there.next()?;
    let Some(sharer) = &first.share else { return Some(InstanceState::Taken { job: first.job }) };
    let mut tenancy = Tenancy::begun(first.job, sharer);
    let others = there.filter_map(|held| Some((held.job, held.share.as_ref()?)));
    others.for_each(|(job, sharer)| tenancy.add(job, sharer));
    Some(InstanceState::Shared(tenancy))
}

/// Shows a shared instance as taken: its sharers go on, and nobody joins them.
fn closed_to_others(tenancy: &Tenancy) -> InstanceState {
    let first = tenancy.sharers.first().map(|(job, _)| *job);
    first.map_or(InstanceState::Quarantined, |job| InstanceState::Taken { job })
}

/// Shows the compute instances that are taken and no others: nobody joins.
fn held_seats(tenancy: Tenancy) -> InstanceState {
    let cut = tenancy.sharers.iter().filter_map(|(_, part)| part.compute());
    let cut = cut.fold(Cut::default(), |mut cut, slot| {
        cut.insert(slot);
        cut
    });
    InstanceState::Cut(Seats { cut, tenancy: Some(tenancy) })
}

/// Returns what a GPU instance with several compute instances is doing.
fn seats_of(instance: &InstanceReport, held: Option<InstanceState>) -> InstanceState {
    let tenancy = match held {
        Some(InstanceState::Shared(tenancy)) => Some(tenancy),
        // Somebody cut it under its job, or it is taken for a change.
        Some(state) => return state,
        None => None,
    };
    match (&instance.trouble, tenancy) {
        (Some(_), Some(tenancy)) => held_seats(tenancy),
        (Some(InstanceTrouble::Foreign { .. }), None) => InstanceState::Foreign,
        (Some(InstanceTrouble::Stuck { .. }), None) => InstanceState::Stuck,
        (None, tenancy) => {
            // Without its device nothing can run on a compute instance.
            let mut cut = Cut::default();
            for part in instance.parts.iter().filter(|part| part.slice.is_some()) {
                cut.insert(part.slot);
            }
            InstanceState::Cut(Seats { cut, tenancy })
        }
    }
}

fn state_of(
    instance: &InstanceReport,
    held: Option<InstanceState>,
    doomed_for: Option<JobId>,
) -> InstanceState {
    if !instance.parts.is_empty() {
        return seats_of(instance, held);
    }
    match (held, doomed_for) {
        // Nobody joins sharers where something is the matter.
        (Some(InstanceState::Shared(tenancy)), _) if instance.trouble.is_some() => {
            return closed_to_others(&tenancy);
        }
        (Some(state), _) => return state,
        (None, Some(job)) => return InstanceState::Taken { job },
        (None, None) => {}
    }
    match &instance.trouble {
        Some(InstanceTrouble::Foreign { .. }) => InstanceState::Foreign,
        Some(InstanceTrouble::Stuck { .. }) => InstanceState::Stuck,
        // Without its one compute instance nothing can run on it, and whose it is is not known.
        None if instance.slice.is_none() => InstanceState::Foreign,
        None => InstanceState::Idle,
    }
}
