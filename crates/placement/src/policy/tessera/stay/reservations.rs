//! Places that are kept for jobs, and when they are expected to be free.

use std::rc::Rc;

use tessera_model::JobId;
use tessera_model::mig::{Profile, Slot};

use super::super::rounding::float;
use super::sizes::{SizeOption, SizedJob};
use super::{DEPTH, PlaceNow, StayRound, WAIT_GAIN};
use crate::view::{InstanceView, MigView, QueuedJob};

/// The most GPUs of one kind on which a later place is looked for. Chosen to limit the duration of a round: the
/// first of so many jobs to end is hardly later than the first of all. They are the same GPUs in each round, so that a
/// reservation keeps its place.
const LATER_GPUS_MAX: usize = 1_024;

/// What places are compared by: for a job that needs most of a GPU, how many jobs without a known end are in the way;
/// then the cost.
type LaterRank = (usize, f64);

/// A slot that is kept for a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub(super) job: JobId,
    pub(super) gpu: usize,
    /// `None` for a whole GPU with MIG off.
    pub(super) slot: Option<Slot>,
    /// When the job is expected to start there, in milliseconds of the clock.
    pub(super) begins: f64,
    /// When it is expected to have ended.
    pub(super) ends: f64,
    /// Until when other jobs may use the slot: `begins`. If the end of a job there is unknown, or the job has
    /// waited too long, they may not use it.
    pub(super) open_until: f64,
}

/// When a slot is free.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeSlot {
    /// `None` for a whole GPU with MIG off.
    pub(super) slot: Option<Slot>,
    pub(super) at: f64,
    /// When the last of the jobs in the way came.
    pub(super) came: f64,
    /// Jobs in the way.
    pub(super) jobs: usize,
    /// Whether all of their ends are known.
    pub(super) known: bool,
}

/// The slots for one profile on GPUs of one kind. Each job without a place looks through all of them, and they change
/// only where a job starts or a slot is reserved.
#[derive(Debug, Default)]
pub(super) struct LaterSlots {
    /// By GPU, as far as they were requested.
    pub(super) by_gpu: Vec<Option<Box<[FreeSlot]>>>,
    /// How much of the round's log of changed GPUs has been read.
    read: usize,
}

/// An instance with the ends of its jobs.
#[derive(Debug)]
pub(super) struct HeldInstance {
    slot: Option<Slot>,
    /// Whether it stays taken, whichever jobs end.
    fixed: bool,
    at: f64,
    came: f64,
    jobs: usize,
    known: bool,
}

impl<'c> StayRound<'c> {
    /// Returns the place where a job would end so much sooner that waiting is better.
    pub(super) fn better_later(
        &mut self,
        job: &QueuedJob,
        sized: &SizedJob<'c>,
        place: &PlaceNow<'c>,
    ) -> Option<Reservation> {
        let cheapest = sized.options.first()?.cost;
        if !sized.known
            || self.reservations.len() >= DEPTH
            || cheapest > WAIT_GAIN * place.option.cost
        {
            return None;
        }
        let (later, cost) = self.find_later(job, sized)?;
        (cost < WAIT_GAIN * place.option.cost && later.open_until > float(self.now))
            .then_some(later)
    }

    /// Finds the place that would be best for a job once jobs have ended there, with its cost.
    pub(super) fn find_later(
        &mut self,
        job: &QueuedJob,
        sized: &SizedJob<'c>,
    ) -> Option<(Reservation, f64)> {
        self.find_later_by(f64::INFINITY, job, sized)
    }

    /// Returns the same among the places where it is expected to have ended by a time.
    pub(super) fn find_later_by(
        &mut self,
        latest: f64,
        job: &QueuedJob,
        sized: &SizedJob<'c>,
    ) -> Option<(Reservation, f64)> {
        let now = float(self.now);
        let aged = self.is_out_of_turn(job);
        let is_wide = self.wide.contains(&job.id);
        let mut best: Option<(LaterRank, usize, Reservation)> = None;
        for option in &sized.options {
            if !aged && best.as_ref().is_some_and(|(rank, ..)| *rank <= (0, option.cost)) {
                continue;
            }
            let later = self.later_slots(option);
            for (gpu, slots) in later.by_gpu.iter().enumerate() {
                for free in slots.iter().flatten() {
                    let ends = if sized.known { free.at + option.ms } else { f64::INFINITY };
                    if ends > latest {
                        continue;
                    }
                    // A job that has waited too long gets the place with the oldest last arrival. No more
                    // jobs arrive there, so the choice stays the same until it is free.
                    let cost = if aged { free.came } else { (free.at - now) + option.cost };
                    // Of many jobs with unknown ends, the last ends later than of few.
                    let in_the_way = if is_wide && !free.known && !aged { free.jobs } else { 0 };
                    let rank = (in_the_way, cost);
                    let better = best.as_ref().is_none_or(|(known, jobs, _)| {
                        rank < *known || (rank <= *known && free.jobs < *jobs)
                    });
                    if better {
                        let open_until = if free.known && !aged { free.at } else { now };
                        let kept = Reservation {
                            job: job.id,
                            gpu,
                            slot: free.slot,
                            begins: free.at,
                            ends,
                            open_until,
                        };
                        best = Some((rank, free.jobs, kept));
                    }
                }
            }
        }
        best.map(|((_, cost), _, kept)| (kept, cost))
    }

    /// Brings the slots for a size up to date. GPUs of another kind, those that are not available, and those beyond
    /// [`LATER_GPUS_MAX`] have none.
    pub(super) fn later_slots(&mut self, option: &SizeOption<'c>) -> &LaterSlots {
        let key = (option.kind, option.profile.map(|profile| profile.id));
        let mut later = self.later.remove(&key).unwrap_or_default();
        later.by_gpu.resize(self.state.gpus.len(), None);
        for gpu in &self.changed[later.read..] {
            later.by_gpu[*gpu] = None;
        }
        later.read = self.changed.len();
        let is_open =
            |gpu: &usize| self.kind_of[*gpu] == option.kind && self.state.gpus[*gpu].view.available;
        let open: Vec<usize> =
            (0..later.by_gpu.len()).filter(is_open).take(LATER_GPUS_MAX).collect();
        for gpu in open {
            if later.by_gpu[gpu].is_none() {
                let slots = self.slots(gpu, option.profile);
                let free = slots.into_iter().filter_map(|slot| self.free_at(gpu, slot));
                later.by_gpu[gpu] = Some(free.collect());
            }
        }
        self.later.entry(key).or_insert(later)
    }

    /// Returns the slots that a profile may have on a GPU once its jobs have ended.
    fn slots(&self, gpu: usize, profile: Option<&Profile>) -> Vec<Option<Slot>> {
        let now = &self.state.gpus[gpu];
        let (Some(profile), Some(standing)) = (profile, &now.layout) else {
            return match (profile, &now.view.mig) {
                (None, None) => vec![None],
                _ => Vec::new(),
            };
        };
        let pinned = now.view.operator.pinned.is_some();
        let stands =
            |slot: &Slot| now.instances.iter().any(|instance| instance.slot == Some(*slot));
        starts(profile)
            .filter(|slot| !pinned || stands(slot))
            .filter(|slot| pinned || standing.mig.all().allocate(standing.fixed, *slot).is_some())
            .map(Some)
            .collect()
    }

    /// Returns when a slot is expected to be free of jobs, including those for which it is reserved.
    fn free_at(&mut self, gpu: usize, slot: Option<Slot>) -> Option<FreeSlot> {
        let now = float(self.now);
        let mut free = FreeSlot { slot, at: now, came: 0.0, jobs: 0, known: true };
        for held in self.held(gpu).iter() {
            if !self.overlap(gpu, slot, held.slot) {
                continue;
            }
            if held.fixed {
                return None;
            }
            free.at = free.at.max(held.at);
            free.came = free.came.max(held.came);
            free.known &= held.known;
            free.jobs += held.jobs;
        }
        for kept in &self.reservations {
            if kept.gpu == gpu && self.overlap(gpu, slot, kept.slot) {
                free.at = free.at.max(kept.ends);
                free.came = free.came.max(kept.ends);
                free.jobs += 1;
            }
        }
        free.at.is_finite().then_some(free)
    }

    /// Returns the instances of a GPU with the ends of their jobs. They are read for each slot of each size,
    /// and change when a job starts.
    fn held(&mut self, gpu: usize) -> Rc<[HeldInstance]> {
        if let Some(Some(known)) = self.held.get(gpu) {
            return Rc::clone(known);
        }
        let now = &self.state.gpus[gpu];
        let begin = float(self.now);
        let of_instance = |instance: &InstanceView| {
            let slot = instance.slot;
            let fixed = instance.state.fixed();
            let free = HeldInstance { slot, fixed, at: begin, came: 0.0, jobs: 0, known: true };
            now.holders(slot).into_iter().fold(free, |all, job| {
                let end = self.ends.of(job, now.view, slot);
                HeldInstance {
                    at: all.at.max(end.at),
                    came: all.came.max(end.since),
                    known: all.known && end.known,
                    jobs: all.jobs + 1,
                    ..all
                }
            })
        };
        let held: Rc<[HeldInstance]> = now.instances.iter().map(of_instance).collect();
        self.held.resize(self.state.gpus.len(), None);
        self.held[gpu] = Some(Rc::clone(&held));
        held
    }

    /// Notes that a job has started on a GPU.
    pub(super) fn note_start(&mut self, gpu: usize) {
        self.changed.push(gpu);
        if let Some(held) = self.held.get_mut(gpu) {
            *held = None;
        }
    }

    pub(super) fn reserve(&mut self, kept: Reservation) {
        self.reservations.push(kept);
        self.changed.push(kept.gpu);
    }

    /// Returns the ratio of the whole cluster to the part that no job has and that is not reserved. A job
    /// without a known end may only use that part.
    pub(super) fn scarcity(&self) -> f64 {
        let (mut all, mut free) = (0.0, 0.0);
        for (at, gpu) in self.state.gpus.iter().enumerate().filter(|(_, gpu)| gpu.view.available) {
            all += 1.0;
            let kept = self.reservations.iter().filter(|kept| kept.gpu == at).map(|kept| kept.slot);
            let busy = gpu.instances.iter().filter(|i| i.state.busy()).map(|i| i.slot);
            let kind = &self.kinds[self.kind_of[at]];
            let part = |slot: Option<Slot>| {
                kind.part(slot.and_then(|slot| kind.mig()?.geometry.profile(slot.profile)))
            };
            free += (1.0 - busy.chain(kept).map(part).sum::<f64>()).max(0.0);
        }
        if free > 0.0 { all / free } else { 1.0 }
    }

    /// Returns whether two slots of a GPU can't exist at the same time.
    pub(super) fn overlap(&self, gpu: usize, a: Option<Slot>, b: Option<Slot>) -> bool {
        overlap(self.state.gpus[gpu].view.mig.as_deref(), a, b)
    }
}

pub(super) fn overlap(mig: Option<&MigView>, a: Option<Slot>, b: Option<Slot>) -> bool {
    match (mig, a, b) {
        (Some(mig), Some(a), Some(b)) => a == b || mig.all().exclude(a, b),
        (_, _, _) => true,
    }
}

pub(super) fn starts(profile: &Profile) -> impl Iterator<Item = Slot> {
    profile.starts.iter().map(|start| Slot { start: *start, profile: profile.id })
}
