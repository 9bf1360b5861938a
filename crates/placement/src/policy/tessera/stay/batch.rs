//! Closed batches: a [`plan`] of all jobs that wait, of which the first are started.

use std::rc::Rc;

use tessera_model::mig::Slot;

use super::super::rounding::{float, float_count, float_ms};
use super::order::TimedJob;
use super::plan::{self, PLANNED_GPUS_MAX, PLANNED_MAX, PlannableJob, PlannedGpu, PlannedJob};
use super::reservations::Reservation;
use super::sizes::{self, SizeOption, SizedJob};
use super::{MissedSizes, PlaceNow, StayRound};
use crate::offer::Offer;
use crate::policy::scheme_b;
use crate::request::SliceRequest;

impl<'c> StayRound<'c> {
    /// Plans a closed batch of jobs whose times are known, and starts the jobs whose planned start is now;
    /// `false` if the jobs are no such batch.
    pub(super) fn run_planned(&mut self, timed: &[TimedJob<'_>], starts_max: usize) -> bool {
        let gpus = self.state.gpus.iter().filter(|gpu| gpu.view.available).count();
        let plannable = |timed: &TimedJob<'_>| {
            timed.known
                && self.knowledge.jobs.facts(timed.job.id).deadline.is_none()
                && timed.job.share.is_none()
        };
        // Among jobs that were submitted together, none has waited longer than the others.
        let one_age = self.horizon.is_one_batch();
        let aged = timed.iter().any(|timed| self.is_overdue(timed.job));
        let one_rank = timed.windows(2).all(|two| two[0].job.queue_rank == two[1].job.queue_rank);
        if timed.is_empty()
            || timed.len() > PLANNED_MAX
            || gpus > PLANNED_GPUS_MAX
            || self.horizon.is_open()
            || !one_rank
            || (aged && !one_age)
            || self.quotas.is_some()
            || timed.iter().any(|one| one.job.user != timed[0].job.user)
                && self.knowledge.jobs.account(timed[0].job.id).is_some()
            || !timed.iter().all(plannable)
        {
            return false;
        }
        let Some(gpus) = self.planned_gpus() else { return false };
        let others = float_count(timed.len() - 1);
        let mut sized: Vec<SizedJob<'c>> = Vec::with_capacity(timed.len());
        for one in timed {
            sized.push(sizes::sized(&self.kinds, self.knowledge, one.job, others, self.thrift));
        }
        let jobs: Vec<PlannableJob<'c>> = timed
            .iter()
            .zip(&sized)
            .map(|(one, sized)| PlannableJob {
                job: one.job.id,
                waited_ms: self.now.minus(one.job.submitted).get(),
                options: sized.options.clone(),
            })
            .collect();
        let price = |options: &mut [SizeOption<'c>], others: f64| {
            sizes::price(&self.kinds, options, others, self.thrift);
        };
        let planned = plan::plan(&gpus, &jobs, &price, self.knowledge.budget);
        if planned.len() < jobs.len() {
            return false;
        }
        let now = float(self.now);
        let mut later: Vec<PlannedJob> = Vec::new();
        for one in planned {
            let option = jobs[one.index].options[one.option];
            let starts = one.begins == 0 && self.started < starts_max;
            let offer = if starts { self.offer_in(&option, one.gpu, one.slot) } else { None };
            match offer {
                Some(offer) => {
                    let place = PlaceNow { option, gpu: one.gpu, offer };
                    self.start(timed[one.index].job, &sized[one.index], place, jobs.len() - 1);
                }
                None => later.push(one),
            }
        }
        for one in &later {
            let (begins, ends) = (now + float_ms(one.begins), now + float_ms(one.ends));
            self.reserve(Reservation {
                job: jobs[one.index].job,
                gpu: one.gpu,
                slot: Some(one.slot),
                begins,
                ends,
                open_until: begins,
            });
        }
        for one in later {
            let (job, sized) = (timed[one.index].job, &sized[one.index]);
            if self.first_waiting.is_none() {
                self.first_waiting = Some(job.id);
                self.missed.push(MissedSizes { job: job.id, sizes: Vec::new() });
            }
            // A job that ends sooner than planned on a place that the plan leaves free need not wait.
            let place = self.find_place(job, sized);
            let place = place.filter(|place| place.option.ms < float_ms(one.ends));
            match place {
                Some(place) if self.started < starts_max => {
                    self.start(job, sized, place, jobs.len() - 1);
                    self.reservations.retain(|kept| kept.job != job.id);
                }
                _ => {
                    let size = self.requests.size(job);
                    self.waiting.entry(size.number).or_insert(job.id);
                    self.wait(job, &size);
                }
            }
        }
        true
    }

    /// Returns the GPUs as they are before a plan; `None` if one of them can't be planned for.
    pub(super) fn planned_gpus(&mut self) -> Option<Vec<PlannedGpu<'c>>> {
        let mut planned = Vec::new();
        for at in 0..self.state.gpus.len() {
            let view = self.state.gpus[at].view;
            if !view.available {
                continue;
            }
            if view.changing || view.operator.pinned.is_some() {
                return None;
            }
            let standing = self.state.gpus[at].layout?;
            let mut ends = Vec::new();
            for place in 0..self.state.gpus[at].instances.len() {
                let slot = self.state.gpus[at].instances[place].slot?;
                let mut last: Option<f64> = None;
                for job in self.state.gpus[at].holders(Some(slot)) {
                    let end = self.ends.of(job, view, Some(slot));
                    if !end.known {
                        return None;
                    }
                    last = Some(last.map_or(end.at, |known| known.max(end.at)));
                }
                if let Some(last) = last {
                    ends.push((sizes::millis(last - float(self.now)).get().max(1), slot));
                }
            }
            let (mig, kind) = (standing.mig, self.kind_of[at]);
            planned.push(PlannedGpu { mig, kind, busy: standing.busy, ends, at });
        }
        Some(planned)
    }

    /// Returns how a slot of a GPU can be had now.
    pub(super) fn offer_in(
        &mut self,
        option: &SizeOption<'c>,
        gpu: usize,
        slot: Slot,
    ) -> Option<Rc<Offer>> {
        let now = &self.state.gpus[gpu];
        let (standing, profile) = (now.layout.as_ref()?, option.profile?);
        let request = SliceRequest::Named(profile.name.clone());
        scheme_b::best_way_among(standing, now.view.changing, &request, &[(slot, profile)])
            .map(Rc::new)
    }
}
