//! One round: the walk through the queue that all policies share.
//!
//! A policy is a [`Rule`]: what one GPU can offer to one want, and whose wait blocks whom. The
//! walk keeps, for each distinct want, the GPUs ordered by what they offer, and asks the rule
//! again only for GPUs that a decision changed. So a round costs about (starts × log GPUs), not
//! jobs × GPUs.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;

use tessera_model::mig::{Slot, Step};
use tessera_model::{Bytes, JobId};

use crate::board::{Board, Gpu};
use crate::decision::{Decision, Explanation, Place, WaitReason};
use crate::explain::{self, Hopeless};
use crate::feasibility;
use crate::forecast::Forecast;
use crate::policy::Pinned;
use crate::sharing;
use crate::view::{Closure, ClusterView, QueuedJob};
use crate::want::{Size, Sizes, Want};

/// How a GPU would come to hold a job; the cheaper comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// On an instance that other jobs of its user share.
    Join,
    /// On an instance that stands idle.
    Idle,
    /// On an instance made in free space.
    Create,
    /// On an instance made in the place of idle ones.
    Rearrange,
}

/// With whom a job would be on its instance; the better comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Company {
    /// It joins sharers.
    Joins,
    /// It has the instance to itself, for now or for good.
    Alone,
    /// It may share, but on the instance its part of the memory is larger than its part of the
    /// multiprocessors.
    Cramped,
}

/// What orders the offers of different GPUs: the smallest is taken, of equals the first GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Whether it uses what is shared already.
    pub(crate) company: Company,
    /// Memory of the instance: the tighter the better.
    pub(crate) memory: Bytes,
    /// What has to be done first.
    pub(crate) way: Way,
    /// Compute slices of the instance.
    pub(crate) compute_slices: u8,
    /// Full layouts that can no longer be reached afterwards.
    pub(crate) lost_futures: usize,
}

/// The best that one GPU has for one want.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) rank: Rank,
    /// The instance; `None` for a GPU with MIG off.
    pub(crate) slot: Option<Slot>,
    /// What makes it.
    pub(crate) steps: Vec<Step>,
    /// `R` before and after, where the rule looks at it.
    pub(crate) futures: Option<Futures>,
    /// Other placements on the same GPU that were weighed, best first, with their `R`.
    pub(crate) others: Vec<(Slot, usize)>,
}

/// How many full layouts can be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Futures {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

/// Whom a waiting job holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Everyone behind it.
    InTurn,
    /// Those behind it that want the same.
    BySize,
}

/// Whether a GPU could hold a want once every job on it had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// It could.
    Possible,
    /// Only if its layout were another one, which the policy doesn't change.
    OtherLayout,
    /// Not while instances stand there that Tessera must not touch.
    InTheWay,
    /// The GPU has no such place.
    Never,
}

/// What distinguishes one policy from another.
pub(crate) trait Rule {
    /// The policy's name.
    const NAME: &'static str;
    /// Whom a waiting job holds up.
    const ORDER: Order;
    /// Whether sharers may join each other's slices.
    const JOINS: bool = true;

    /// Returns the best that an available GPU has for the want now.
    fn offer(&mut self, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>>;

    /// Tells whether the GPU could ever hold the want.
    fn outlook(&self, gpu: &Gpu<'_>, size: &Size) -> Outlook;

    /// Returns the fewest jobs whose end would make room on the GPU: each entry alone suffices.
    fn blockers(&self, gpu: &Gpu<'_>, size: &Size) -> Vec<Vec<JobId>>;

    /// Returns how many memory slices are free and how many are wanted, if the GPU has enough
    /// of them, but not in a shape that may be used.
    fn fragmented(&self, gpu: &Gpu<'_>, size: &Size) -> Option<(u32, u8)>;
}

/// What can be said of a want before any place is looked for.
#[derive(Debug)]
enum Fate {
    Possible,
    Waits(WaitReason, Hopeless),
}

/// The GPUs in the order in which one want would take them.
#[derive(Debug)]
struct Market {
    fate: Fate,
    /// The first job that waits for this want.
    waiting: Option<JobId>,
    offers: Vec<Option<Rc<Offer>>>,
    order: BTreeSet<(Rank, usize)>,
    /// How much of the round's log of changed GPUs has been read.
    read: usize,
}

/// Decides one round.
pub(crate) fn decide<R: Rule>(
    rule: R,
    cluster: &ClusterView,
    forecast: &dyn Forecast,
    queue: &mut dyn Iterator<Item = &QueuedJob>,
    starts_max: usize,
) -> Vec<Decision> {
    let mut round = Round {
        rule: Pinned(rule),
        board: Board::new(cluster, forecast),
        sizes: Sizes::new(cluster),
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
    board: Board<'c>,
    sizes: Sizes,
    /// By the number of the size.
    markets: Vec<Market>,
    /// The GPU of each start so far.
    changed: Vec<usize>,
    /// The job that holds up everyone behind it.
    head: Option<JobId>,
    decisions: Vec<Decision>,
}

impl<R: Rule> Round<'_, R> {
    /// Decides about the next job of the queue; breaks when nobody behind it can start.
    fn consider(&mut self, job: &QueuedJob) -> ControlFlow<()> {
        let size = self.sizes.size(job);
        if size.number == self.markets.len() {
            self.markets.push(Market::open(&self.rule, &self.board, &size));
        }
        let market = &mut self.markets[size.number];
        if let Fate::Waits(..) = market.fate {
            self.decisions.extend(market.turn_away::<R>(job));
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
        market.refresh(&mut self.rule, &self.board, &size, &self.changed);
        match market.best() {
            Some((gpu, offer)) => {
                let why = explain::start(R::NAME, &self.board, job, &size, market.ranked());
                self.start(job, gpu, &offer, why);
            }
            None => {
                market.waiting = Some(job.id);
                self.head = match R::ORDER {
                    Order::InTurn => Some(job.id),
                    Order::BySize => None,
                };
                let (reason, why) = explain::wait(&mut self.rule, &self.board, job, &size);
                self.wait(job, reason, why);
            }
        }
        ControlFlow::Continue(())
    }

    fn start(&mut self, job: &QueuedJob, gpu: usize, offer: &Offer, why: Explanation) {
        let now = &mut self.board.gpus[gpu];
        now.take(job.id, job.share.as_ref(), offer.slot, &offer.steps);
        let place = Place {
            gpu: now.view.id.clone(),
            slot: offer.slot,
            steps: offer.steps.clone(),
            part: None,
        };
        self.changed.push(gpu);
        self.decisions.push(Decision::Start { job: job.id, place, why });
    }

    fn wait(&mut self, job: &QueuedJob, reason: WaitReason, why: Explanation) {
        self.decisions.push(Decision::Wait { job: job.id, reason, why });
    }
}

impl Market {
    /// Looks at what a want can hope for; no GPU is asked yet.
    fn open<R: Rule>(rule: &R, board: &Board<'_>, size: &Size) -> Self {
        Self {
            fate: fate(rule, board, size),
            waiting: None,
            offers: Vec::new(),
            order: BTreeSet::new(),
            read: 0,
        }
    }

    /// Tells a job that it waits whatever job ends. Where another layout would help, it would
    /// help all jobs of the size: they stand behind the first and are told nothing.
    fn turn_away<R: Rule>(&mut self, job: &QueuedJob) -> Option<Decision> {
        let Fate::Waits(reason, hopeless) = &self.fate else { return None };
        let why = match (self.waiting, reason) {
            (None, _) => hopeless.tell(R::NAME, job),
            (Some(_), WaitReason::MigFragmentation) => return None,
            (Some(_), _) => hopeless.tell_again(R::NAME, job),
        };
        self.waiting.get_or_insert(job.id);
        Some(Decision::Wait { job: job.id, reason: *reason, why })
    }

    /// Asks the GPUs again that changed since this want was last looked at; all, the first time.
    fn refresh<R: Rule>(
        &mut self,
        rule: &mut R,
        board: &Board<'_>,
        size: &Size,
        changed: &[usize],
    ) {
        if self.offers.is_empty() {
            self.offers = vec![None; board.gpus.len()];
            for gpu in 0..board.gpus.len() {
                self.ask(rule, board, size, gpu);
            }
        } else {
            for gpu in &changed[self.read..] {
                self.ask(rule, board, size, *gpu);
            }
        }
        self.read = changed.len();
    }

    fn ask<R: Rule>(&mut self, rule: &mut R, board: &Board<'_>, size: &Size, gpu: usize) {
        let now = &board.gpus[gpu];
        if let Some(old) = self.offers[gpu].take() {
            self.order.remove(&(old.rank, gpu));
        }
        if !now.view.available {
            return;
        }
        self.offers[gpu] = offer(rule, now, size);
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

/// Returns the best that a GPU has for a want: room beside sharers, or what the rule finds.
pub(crate) fn offer<R: Rule>(rule: &mut R, gpu: &Gpu<'_>, size: &Size) -> Option<Rc<Offer>> {
    if let Want::Shared(sharer) = &size.want
        && !gpu.view.shares(sharer.share)
    {
        return None;
    }
    let joined = if R::JOINS { sharing::join(gpu, size) } else { None };
    joined.or_else(|| rule.offer(gpu, size))
}

/// Tells whether a want can ever be met, and if not, why.
fn fate<R: Rule>(rule: &R, board: &Board<'_>, size: &Size) -> Fate {
    // Where no GPU was ever seen, nothing can be called impossible: the first may hold it.
    let mut reason = match board.gpus.is_empty() {
        true => WaitReason::NodeUnavailable,
        false => WaitReason::BadConstraints,
    };
    for gpu in &board.gpus {
        if !feasibility::holds(gpu.view, &size.want) {
            continue;
        }
        match (gpu.view.available, rule.outlook(gpu, size)) {
            (true, Outlook::Possible) => return Fate::Possible,
            (true, Outlook::OtherLayout) => reason = WaitReason::MigFragmentation,
            (true, Outlook::InTheWay | Outlook::Never) | (false, _) => {
                if reason == WaitReason::BadConstraints {
                    reason = WaitReason::NodeUnavailable;
                }
            }
        }
    }
    if reason == WaitReason::NodeUnavailable {
        reason = closed(board, size).unwrap_or(reason);
    }
    Fate::Waits(reason, Hopeless::new(R::NAME, board, size, reason))
}

/// Names what operators said, if nothing but their word keeps the want from its GPUs.
fn closed(board: &Board<'_>, size: &Size) -> Option<WaitReason> {
    let mut holders = board.gpus.iter().filter(|gpu| feasibility::holds(gpu.view, &size.want));
    let first = holders.next()?.view.operator.closed.as_ref()?.how;
    let rest: Option<Vec<Closure>> =
        holders.map(|gpu| gpu.view.operator.closed.as_ref().map(|closed| closed.how)).collect();
    let rest = rest?;
    // What is kept comes back when a gang starts.
    if first == Closure::Kept || rest.contains(&Closure::Kept) {
        return Some(WaitReason::Resources);
    }
    // Of both, the drained ones are the likelier to come back.
    match rest.contains(&Closure::Drained) || first == Closure::Drained {
        true => Some(WaitReason::NodeDrained),
        false => Some(WaitReason::GpuQuarantined),
    }
}
