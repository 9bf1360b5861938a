//! What one GPU offers for one request, and the rule by which a policy finds offers.

use std::rc::Rc;

use tessera_model::mig::{PlanStep, Slot};
use tessera_model::{Bytes, JobId};

use crate::request::NumberedRequest;
use crate::working_state::WorkingGpu;

/// How a GPU would come to hold a job; the cheaper comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// On an instance that other jobs of its user share.
    Join,
    /// On an instance that stands idle.
    Idle,
    /// On an instance made in free space.
    Create,
    /// On an instance made in the place of idle ones.
    Rearrange,
}

/// How a job would be co-located on its instance; the better comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ColocationRank {
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
pub struct Rank {
    /// Whether it uses what is shared already.
    pub colocation: ColocationRank,
    /// Memory of the instance: the tighter the better.
    pub memory: Bytes,
    /// What has to be done first.
    pub way: Way,
    /// Compute slices of the instance.
    pub compute_slices: u8,
    /// Full layouts that can no longer be reached afterwards.
    pub lost_futures: usize,
}

/// The best that one GPU has for one request.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The order of the choice; the smallest is taken.
    pub rank: Rank,
    /// The instance; `None` for a GPU with MIG off.
    pub slot: Option<Slot>,
    /// What makes it.
    pub steps: Vec<PlanStep>,
    /// `R` before and after, where the rule looks at it.
    pub futures: Option<Futures>,
    /// Other placements on the same GPU that were weighed, best first, with their `R`.
    pub others: Vec<(Slot, usize)>,
}

/// How many full layouts can be reached.
#[derive(Clone, Copy, Debug)]
pub struct Futures {
    /// Full layouts that were reachable before.
    pub before: usize,
    /// Full layouts that are reachable afterwards.
    pub after: usize,
}

/// Which jobs a waiting job holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Everyone behind it.
    Queue,
    /// Those behind it that request the same.
    BySize,
}

/// Whether a GPU could hold a request once every job on it had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutureFit {
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
pub trait Rule {
    /// The policy's name.
    const NAME: &'static str;
    /// Which jobs a waiting job holds up.
    const ORDER: Order;
    /// Whether sharers may join each other's slices.
    const JOINS: bool = true;

    /// Returns the best that an available GPU has for the request now.
    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>>;

    /// Returns whether the GPU could ever hold the request.
    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit;

    /// Returns the fewest jobs whose end would free space on the GPU: each entry alone suffices.
    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>>;

    /// Returns how many memory slices are free and how many are needed, if the GPU has enough
    /// of them, but not in a shape that may be used.
    fn fragmented(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<(u32, u8)>;
}
