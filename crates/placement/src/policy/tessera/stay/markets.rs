//! The places that are free now, by size, and which jobs get them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tessera_model::mig::{Profile, Slot};

use super::super::rounding::float;
use super::reservations::{overlap, starts};
use super::sizes::{SizeOption, SizedJob};
use super::{DEPTH, NAME, PlaceNow, SIZE_NUMBERS, StayRound};
use crate::decision::{Decision, JobPlacement};
use crate::explain;
use crate::numbers;
use crate::offer::{Offer, Rank, Rule};
use crate::policy::scheme_b;
use crate::request::{NumberedRequest, SliceRequest};
use crate::sharing;
use crate::view::QueuedJob;

/// The GPUs of one kind in the order in which a job would take an instance of one profile.
#[derive(Debug, Default)]
pub(super) struct SizeMarket {
    pub(super) opened: bool,
    pub(super) offers: BTreeMap<usize, Rc<Offer>>,
    pub(super) order: BTreeSet<(Rank, usize)>,
    /// How much of the round's log of changed GPUs has been read.
    pub(super) read: usize,
}

impl SizeMarket {
    pub(super) fn forget(&mut self, gpu: usize) {
        if let Some(old) = self.offers.remove(&gpu) {
            self.order.remove(&(old.rank, gpu));
        }
    }

    pub(super) fn note(&mut self, gpu: usize, offer: Rc<Offer>) {
        self.order.insert((offer.rank, gpu));
        self.offers.insert(gpu, offer);
    }
}

impl<'c> StayRound<'c> {
    /// Finds the cheapest place that is free.
    pub(super) fn find_place(
        &mut self,
        job: &QueuedJob,
        sized: &SizedJob<'c>,
    ) -> Option<PlaceNow<'c>> {
        let mut rest = &sized.options[..];
        while let Some(first) = rest.first() {
            let equal = rest.iter().take_while(|option| self.differ_by_part(first, option)).count();
            let (equal, others) = rest.split_at(equal.max(1));
            rest = others;
            // Restrictions of other jobs don't change which of equal GPUs suits this one best.
            let mut best: Option<((Rank, u32, usize), PlaceNow<'c>)> = None;
            for option in equal {
                let part = self.kinds[option.kind].view.part;
                let market = self.refreshed(option);
                let Some((rank, gpu)) = market.order.first().copied() else { continue };
                let Some(offer) = market.offers.get(&gpu).map(Rc::clone) else { continue };
                let order = (rank, part, gpu);
                if best.as_ref().is_none_or(|(known, _)| order < *known) {
                    best = Some((order, PlaceNow { option: *option, gpu, offer }));
                }
            }
            if let Some((_, place)) = best {
                return Some(place);
            }
            for option in equal {
                if let Some((gpu, offer)) = self.fill(job, sized, option) {
                    return Some(PlaceNow { option: *option, gpu, offer });
                }
            }
        }
        None
    }

    /// Returns whether two sizes are of the same model and cost, and differ at most in the jobs that may run there.
    fn differ_by_part(&self, one: &SizeOption<'c>, other: &SizeOption<'c>) -> bool {
        let profile = |option: &SizeOption<'_>| option.profile.map(|profile| profile.id);
        let view = |option: &SizeOption<'c>| self.kinds[option.kind].view;
        one.cost.total_cmp(&other.cost).is_eq()
            && profile(one) == profile(other)
            && view(one).is_same_kind(view(other))
    }

    /// Brings the offers of unreserved GPUs up to date.
    pub(super) fn refreshed(&mut self, option: &SizeOption<'c>) -> &SizeMarket {
        let size = size_request(option);
        let key = (option.kind, option.profile.map(|profile| profile.id));
        let market = self.markets.entry(key).or_default();
        let gpus: Vec<usize> = match market.opened {
            false => (0..self.state.gpus.len()).collect(),
            true => self.changed[market.read..].to_vec(),
        };
        market.opened = true;
        market.read = self.changed.len();
        for gpu in gpus.into_iter().filter(|gpu| self.kind_of[*gpu] == option.kind) {
            market.forget(gpu);
            let now = &self.state.gpus[gpu];
            if !now.view.available || self.reservations.iter().any(|kept| kept.gpu == gpu) {
                continue;
            }
            if let Some(offer) = self.rule.offer(now, &size) {
                market.note(gpu, offer);
            }
        }
        market
    }

    /// Finds a place on GPUs with reservations that doesn't touch these, or is free again in time.
    pub(super) fn fill(
        &mut self,
        job: &QueuedJob,
        sized: &SizedJob<'c>,
        option: &SizeOption<'c>,
    ) -> Option<(usize, Rc<Offer>)> {
        let gpus: BTreeSet<usize> = self.reservations.iter().map(|kept| kept.gpu).collect();
        let limit = self.knowledge.jobs.facts(job.id).limit.map(float);
        // A filler that overruns delays the job that the slot is reserved for. So nine of ten have to end in time.
        let latest = option.ms * option.late;
        let takes = match (sized.known, limit) {
            (true, Some(limit)) => latest.min(limit),
            (true, None) => latest,
            (false, Some(limit)) => limit,
            (false, None) => f64::INFINITY,
        };
        let ends = float(self.now) + takes;
        let mut best: Option<(Rank, usize, Rc<Offer>)> = None;
        for gpu in gpus.into_iter().filter(|gpu| self.kind_of[*gpu] == option.kind) {
            let now = &self.state.gpus[gpu];
            if !now.view.available {
                continue;
            }
            let reserved = self.reserved_until(gpu, ends);
            let mig = now.view.mig.as_deref();
            let keeps = |slot| !reserved.iter().any(|kept| overlap(mig, slot, *kept));
            let offer = match (&now.layout, option.profile) {
                (Some(standing), Some(profile)) if now.view.operator.pinned.is_none() => {
                    let slots: Vec<(Slot, &Profile)> = starts(profile)
                        .filter(|slot| keeps(Some(*slot)))
                        .map(|s| (s, profile))
                        .collect();
                    let request = SliceRequest::Named(profile.name.clone());
                    scheme_b::best_way_among(standing, now.view.changing, &request, &slots)
                        .map(Rc::new)
                }
                _ => self.rule.offer(now, &size_request(option)).filter(|offer| keeps(offer.slot)),
            };
            if let Some(offer) = offer {
                let found = (offer.rank, gpu, offer);
                if best.as_ref().is_none_or(|known| (found.0, found.1) < (known.0, known.1)) {
                    best = Some(found);
                }
            }
        }
        best.map(|(_, gpu, offer)| (gpu, offer))
    }

    /// Serves a job that may share a slice, as any policy does. It touches no reserved slot, unless its time limit ends
    /// before that slot is needed.
    pub(super) fn serve_sharer(&mut self, job: &QueuedJob, size: &NumberedRequest, others: usize) {
        if self.waiting.contains_key(&size.number) {
            return;
        }
        let mut market = self.shared.remove(&size.number).unwrap_or_default();
        let gpus: Vec<usize> = match market.opened {
            false => (0..self.state.gpus.len()).collect(),
            true => self.changed[market.read..].to_vec(),
        };
        market.opened = true;
        market.read = self.changed.len();
        for gpu in gpus {
            market.forget(gpu);
            let now = &self.state.gpus[gpu];
            if !now.view.available || !size.allows(now.view) {
                continue;
            }
            let offer = match self.reservations.iter().any(|kept| kept.gpu == gpu) {
                true => self.offer_outside_reservations(gpu, job, size),
                false => sharing::best_offer(&mut self.rule, now, size),
            };
            if let Some(offer) = offer {
                market.note(gpu, offer);
            }
        }
        self.take_shared(job, size, &market, others);
        self.shared.insert(size.number, market);
    }

    /// Finds a place for a job that may share a slice on a GPU with reservations.
    fn offer_outside_reservations(
        &self,
        gpu: usize,
        job: &QueuedJob,
        size: &NumberedRequest,
    ) -> Option<Rc<Offer>> {
        let now = &self.state.gpus[gpu];
        let limit = self.knowledge.jobs.facts(job.id).limit.map(float);
        let ends = float(self.now) + limit.unwrap_or(f64::INFINITY);
        let mig = now.view.mig.as_deref();
        let reserved = self.reserved_until(gpu, ends);
        let keeps = |slot| !reserved.iter().any(|kept| overlap(mig, slot, *kept));
        let joined = sharing::join_among(now, size, keeps);
        let (Some(mig), Some(standing)) = (mig, &now.layout) else { return joined };
        if joined.is_some() || now.view.operator.pinned.is_some() {
            return joined;
        }
        let slots = size.request.tight(mig).into_iter().flat_map(|profile| {
            starts(profile).filter(|slot| keeps(Some(*slot))).map(move |slot| (slot, profile))
        });
        let slots: Vec<(Slot, &Profile)> = slots.collect();
        scheme_b::best_way_among(standing, now.view.changing, &size.request, &slots).map(Rc::new)
    }

    /// Returns the reserved slots of a GPU that a job must not use, which ends at this time.
    fn reserved_until(&self, gpu: usize, ends: f64) -> Vec<Option<Slot>> {
        let reserved = self.reservations.iter().filter(|kept| kept.gpu == gpu);
        reserved.filter(|kept| ends > kept.open_until).map(|kept| kept.slot).collect()
    }

    /// Starts a job on the best of the slices that it may share, or lets it wait.
    fn take_shared(
        &mut self,
        job: &QueuedJob,
        size: &NumberedRequest,
        market: &SizeMarket,
        others: usize,
    ) {
        let best = market.order.first().and_then(|(_, gpu)| Some((*gpu, market.offers.get(gpu)?)));
        let Some((gpu, offer)) = best.map(|(gpu, offer)| (gpu, Rc::clone(offer))) else {
            self.reserve_for_sharer(job, others);
            self.first_waiting.get_or_insert(job.id);
            self.waiting.insert(size.number, job.id);
            self.wait(job, size);
            return;
        };
        let ranked: Vec<_> =
            market.order.iter().map(|(_, at)| (*at, market.offers.get(at).map(|o| &**o))).collect();
        let why = explain::start(NAME, &self.state, job, size, ranked.into_iter());
        let now = &mut self.state.gpus[gpu];
        now.take(job.id, job.share.as_ref(), offer.slot, &offer.steps);
        let place = JobPlacement {
            gpu: now.view.id.clone(),
            slot: offer.slot,
            steps: offer.steps.clone(),
            part: None,
            share: None,
        };
        let limit = self.knowledge.jobs.facts(job.id).limit.map(float);
        self.ends.begin(job.id, limit.unwrap_or(f64::INFINITY), limit.is_some());
        self.note_start(gpu);
        self.started += 1;
        self.decisions.push(Decision::Start { job: job.id, place, why });
    }

    /// Reserves a slot for a job that may share a slice, by the rules for jobs of unknown length.
    fn reserve_for_sharer(&mut self, job: &QueuedJob, others: usize) {
        let is_first = self.reservations.is_empty() || self.is_out_of_turn(job);
        let Some(share) =
            job.share.as_ref().filter(|_| is_first && self.reservations.len() < DEPTH)
        else {
            return;
        };
        let mut sized = self.sized(job, others);
        sized.known = false;
        sized.options.retain(|option| self.kinds[option.kind].view.shares(share.share));
        if let Some((later, _)) = self.find_later(job, &sized)
            && self.state.gpus[later.gpu].view.shares(share.share)
        {
            self.reserve(later);
        }
    }
}

/// Returns the request for a profile, or for a whole GPU with MIG off. The kind of GPU has the job's restriction.
pub(super) fn size_request(option: &SizeOption<'_>) -> NumberedRequest {
    match option.profile {
        Some(profile) => NumberedRequest {
            number: SIZE_NUMBERS + numbers::index(profile.id.0),
            request: SliceRequest::Named(profile.name.clone()),
            place: None,
        },
        None => {
            NumberedRequest { number: SIZE_NUMBERS - 1, request: SliceRequest::Whole, place: None }
        }
    }
}
