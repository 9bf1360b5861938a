//! The places that are free now, by size, and which jobs get them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tessera_model::mig::{Profile, Slot};

use super::super::rounding::float;
use super::reservations::{overlap, starts};
use super::sizes::{SizeOption, SizedJob};
use super::{NAME, PlaceNow, SIZE_NUMBERS, StayRound};
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
        for option in &sized.options {
            let market = self.refreshed(option);
            let best = market
                .order
                .first()
                .and_then(|(_, gpu)| Some((*gpu, Rc::clone(market.offers.get(gpu)?))));
            if let Some((gpu, offer)) = best.or_else(|| self.fill(job, sized, option)) {
                return Some(PlaceNow { option: *option, gpu, offer });
            }
        }
        None
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
            let reserved = self.reservations.iter().filter(|kept| kept.gpu == gpu);
            let reserved: Vec<Option<Slot>> =
                reserved.filter(|kept| ends > kept.open_until).map(|kept| kept.slot).collect();
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

    /// Serves a job that may share a slice, as any policy does, on GPUs without reservations.
    pub(super) fn serve_sharer(&mut self, job: &QueuedJob, size: &NumberedRequest) {
        if self.waiting.contains_key(&size.number) {
            return;
        }
        let market = self.shared.entry(size.number).or_default();
        let gpus: Vec<usize> = match market.opened {
            false => (0..self.state.gpus.len()).collect(),
            true => self.changed[market.read..].to_vec(),
        };
        market.opened = true;
        market.read = self.changed.len();
        for gpu in gpus {
            market.forget(gpu);
            let now = &self.state.gpus[gpu];
            if !now.view.available {
                continue;
            }
            let offer = match self.reservations.iter().any(|kept| kept.gpu == gpu) {
                true => sharing::join(now, size),
                false => sharing::best_offer(&mut self.rule, now, size),
            };
            if let Some(offer) = offer {
                market.note(gpu, offer);
            }
        }
        let best = market.order.first().and_then(|(_, gpu)| Some((*gpu, market.offers.get(gpu)?)));
        let Some((gpu, offer)) = best.map(|(gpu, offer)| (gpu, Rc::clone(offer))) else {
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
}

/// Returns the request for a profile, or for a whole GPU with MIG off.
pub(super) fn size_request(option: &SizeOption<'_>) -> NumberedRequest {
    match option.profile {
        Some(profile) => NumberedRequest {
            number: SIZE_NUMBERS + numbers::index(profile.id.0),
            request: SliceRequest::Named(profile.name.clone()),
        },
        None => NumberedRequest { number: SIZE_NUMBERS - 1, request: SliceRequest::Whole },
    }
}
