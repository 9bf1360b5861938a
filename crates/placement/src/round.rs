//! One round: the walk through the queue that all policies share.
//!
//! A policy is a [`Rule`]: what one GPU can offer to one request, and which waits block which jobs. The
//! walk keeps, for each distinct request, the GPUs ordered by what they offer, and applies the rule
//! again only for GPUs that a decision changed. So the time of a round grows with starts × log
//! GPUs, not with jobs × GPUs.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;

use tessera_model::JobId;

use crate::decision::{Decision, Explanation, JobPlacement, WaitReason};
use crate::explain::{self, Hopeless};
use crate::offer::{FutureFit, Offer, Order, Rank, Rule};
use crate::predictor::Predictor;
use crate::request::{NumberedRequest, RequestNumbers};
use crate::sharing;
use crate::view::{ClosureKind, ClusterView, QueuedJob};
use crate::working_state::WorkingState;

/// What is known about a request before the search for a placement.
#[derive(Debug)]
pub(crate) enum Fate {
    Possible,
    Waits(WaitReason, Hopeless),
}

impl Fate {
    /// Returns whether the request could be met after jobs end, without another layout.
    pub(crate) const fn is_possible(&self) -> bool {
        matches!(self, Self::Possible)
    }
}

/// The GPUs in the order in which they would be taken for one request.
#[derive(Debug)]
struct Market {
    fate: Fate,
    /// The first job that waits for this request.
    waiting: Option<JobId>,
    offers: Vec<Option<Rc<Offer>>>,
    order: BTreeSet<(Rank, usize)>,
    /// How much of the round's log of changed GPUs has been read.
    read: usize,
}

/// Decides one round.
pub fn decide<R: Rule>(
    rule: R,
    cluster: &ClusterView,
    predictor: &dyn Predictor,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    starts_max: usize,
) -> Vec<Decision> {
    let mut round = Round {
        rule,
        state: WorkingState::new(cluster, predictor),
        sizes: RequestNumbers::new(cluster),
        markets: Vec::new(),
        changed: Vec::new(),
        head: None,
        decisions: Vec::new(),
    };
    while round.changed.len() < starts_max {
        let Some(job) = queue.next() else { break };
        if round.consider(job).is_break() {
            break;
        }
    }
    round.decisions
}

#[derive(Debug)]
struct Round<'c, R> {
    rule: R,
    state: WorkingState<'c>,
    sizes: RequestNumbers,
    /// By the number of the size.
    markets: Vec<Market>,
    /// The GPU of each start so far.
    changed: Vec<usize>,
    /// The job that holds up all jobs behind it.
    head: Option<JobId>,
    decisions: Vec<Decision>,
}

impl<R: Rule> Round<'_, R> {
    /// Decides about the next job of the queue; breaks when no later job can start.
    fn consider(&mut self, job: &QueuedJob) -> ControlFlow<()> {
        let size = self.sizes.size(job);
        if size.number == self.markets.len() {
            self.markets.push(Market::open(&self.rule, &self.state, &size));
        }
        let market = &mut self.markets[size.number];
        if let Fate::Waits(..) = market.fate {
            self.decisions.extend(market.refuse::<R>(job));
            return ControlFlow::Continue(());
        }
        if let Some(head) = self.head {
            let why = explain::behind(R::NAME, job, head);
            self.wait(job, WaitReason::Priority, why);
            return ControlFlow::Break(());
        }
        if market.waiting.is_some() {
            return ControlFlow::Continue(());
        }
        market.refresh(&mut self.rule, &self.state, &size, &self.changed);
        match market.best() {
            Some((gpu, offer)) => {
                let why = explain::start(R::NAME, &self.state, job, &size, market.ranked());
                self.start(job, gpu, &offer, why);
            }
            None => {
                market.waiting = Some(job.id);
                self.head = match R::ORDER {
                    Order::Queue => Some(job.id),
                    Order::BySize => None,
                };
                let (reason, why) = explain::wait(&mut self.rule, &self.state, job, &size);
                self.wait(job, reason, why);
            }
        }
        ControlFlow::Continue(())
    }

    fn start(&mut self, job: &QueuedJob, gpu: usize, offer: &Offer, why: Explanation) {
        let now = &mut self.state.gpus[gpu];
        now.take(job.id, job.share.as_ref(), offer.slot, &offer.steps);
        let place = JobPlacement {
            gpu: now.view.id.clone(),
            slot: offer.slot,
            steps: offer.steps.clone(),
            part: None,
            share: None,
        };
        self.changed.push(gpu);
        self.decisions.push(Decision::Start { job: job.id, place, why });
    }

    fn wait(&mut self, job: &QueuedJob, reason: WaitReason, why: Explanation) {
        self.decisions.push(Decision::Wait { job: job.id, reason, why });
    }
}

impl Market {
    /// Classifies a request; no offer is computed yet.
    fn open<R: Rule>(rule: &R, state: &WorkingState<'_>, size: &NumberedRequest) -> Self {
        Self {
            fate: fate(rule, state, size),
            waiting: None,
            offers: Vec::new(),
            order: BTreeSet::new(),
            read: 0,
        }
    }

    /// Explains to a job that the end of other jobs doesn't let it start.
    fn refuse<R: Rule>(&mut self, job: &QueuedJob) -> Option<Decision> {
        let decision = refuse::<R>(&self.fate, job, self.waiting.is_some());
        self.waiting.get_or_insert(job.id);
        decision
    }

    /// Computes the offers of GPUs that changed since this request's last offers; the first time,
    /// of all GPUs.
    fn refresh<R: Rule>(
        &mut self,
        rule: &mut R,
        state: &WorkingState<'_>,
        size: &NumberedRequest,
        changed: &[usize],
    ) {
        if self.offers.is_empty() {
            self.offers = vec![None; state.gpus.len()];
            for gpu in 0..state.gpus.len() {
                self.find_offer(rule, state, size, gpu);
            }
        } else {
            for gpu in &changed[self.read..] {
                self.find_offer(rule, state, size, *gpu);
            }
        }
        self.read = changed.len();
    }

    fn find_offer<R: Rule>(
        &mut self,
        rule: &mut R,
        state: &WorkingState<'_>,
        size: &NumberedRequest,
        gpu: usize,
    ) {
        let now = &state.gpus[gpu];
        if let Some(old) = self.offers[gpu].take() {
            self.order.remove(&(old.rank, gpu));
        }
        if !now.view.available || !size.allows(now.view) {
            return;
        }
        self.offers[gpu] = sharing::best_offer(rule, now, size);
        if let Some(offer) = &self.offers[gpu] {
            self.order.insert((offer.rank, gpu));
        }
    }

    fn ranked(&self) -> impl ExactSizeIterator<Item = (usize, Option<&Offer>)> {
        self.order.iter().map(|(_, gpu)| (*gpu, self.offers[*gpu].as_deref()))
    }

    fn best(&self) -> Option<(usize, Rc<Offer>)> {
        let (_, gpu) = self.order.first()?;
        self.offers[*gpu].clone().map(|offer| (*gpu, offer))
    }
}

/// Explains to a job that the end of other jobs doesn't let it start. Where another layout would
/// help, it would help all jobs with the request: only the first gets an explanation.
pub(crate) fn refuse<R: Rule>(fate: &Fate, job: &QueuedJob, again: bool) -> Option<Decision> {
    let Fate::Waits(reason, hopeless) = fate else { return None };
    let why = match (again, reason) {
        (false, _) => hopeless.explain_first(R::NAME, job),
        (true, WaitReason::MigFragmentation) => return None,
        (true, _) => hopeless.explain_again(R::NAME, job),
    };
    Some(Decision::Wait { job: job.id, reason: *reason, why })
}

/// Returns whether a request can ever be met, and if not, why.
pub(crate) fn fate<R: Rule>(rule: &R, state: &WorkingState<'_>, size: &NumberedRequest) -> Fate {
    // Before any GPU was seen, no request is impossible: the first GPU may hold it.
    let mut reason = match state.gpus.is_empty() {
        true => WaitReason::NodeUnavailable,
        false => WaitReason::BadConstraints,
    };
    for gpu in &state.gpus {
        if !size.suits(gpu.view) {
            continue;
        }
        match (gpu.view.available, rule.future_fit(gpu, size)) {
            (true, FutureFit::Possible) => return Fate::Possible,
            (true, FutureFit::OtherLayout) => reason = WaitReason::MigFragmentation,
            (true, FutureFit::InTheWay | FutureFit::Never) => {
                if reason == WaitReason::BadConstraints {
                    reason = WaitReason::GpuBlocked;
                }
            }
            (false, _) => {
                if matches!(reason, WaitReason::BadConstraints | WaitReason::GpuBlocked) {
                    reason = WaitReason::NodeUnavailable;
                }
            }
        }
    }
    if reason == WaitReason::NodeUnavailable {
        reason = closed(state, size).unwrap_or(reason);
    }
    Fate::Waits(reason, Hopeless::new(R::NAME, state, size, reason))
}

/// Names the administrative overrides, if they alone block the request.
fn closed(state: &WorkingState<'_>, size: &NumberedRequest) -> Option<WaitReason> {
    let mut holders = state.gpus.iter().filter(|gpu| size.suits(gpu.view));
    let first = holders.next()?.view.operator.closed.as_ref()?.how;
    let rest: Option<Vec<ClosureKind>> =
        holders.map(|gpu| gpu.view.operator.closed.as_ref().map(|closed| closed.how)).collect();
    let rest = rest?;
    // Reserved GPUs become available when a gang starts.
    if first == ClosureKind::Kept || rest.contains(&ClosureKind::Kept) {
        return Some(WaitReason::Resources);
    }
    // Of drained and quarantined GPUs, the drained ones are more likely to become available.
    match rest.contains(&ClosureKind::Drained) || first == ClosureKind::Drained {
        true => Some(WaitReason::NodeDrained),
        false => Some(WaitReason::GpuQuarantined),
    }
}
