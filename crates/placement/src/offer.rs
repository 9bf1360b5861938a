//! The offer of one GPU for one request, and the rule by which a policy finds offers.

use std::rc::Rc;

use tessera_model::mig::{PlanStep, Slot};
use tessera_model::{Bytes, JobId};

use crate::request::NumberedRequest;
use crate::working_state::WorkingGpu;

/// How a GPU would get an instance for a job; the cheapest way comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// On an instance that other jobs of its user share.
    Join,
    /// On an idle instance.
    Idle,
    /// On an instance that is created in free space.
    Create,
    /// On an instance that is created in place of idle ones.
    Rearrange,
}

/// How a job would be co-located on its instance; the best way comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ColocationRank {
    /// It joins sharers.
    Joins,
    /// It has the instance to itself, at least at first.
    Alone,
    /// It may share, but its fraction of the instance's memory is larger than its fraction of the
    /// multiprocessors.
    Cramped,
}

/// The order of offers: the smallest is taken, and among equals the first GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Whether it uses an instance that is shared already.
    pub colocation: ColocationRank,
    /// Memory of the instance; less is better.
    pub memory: Bytes,
    /// How the instance is obtained.
    pub way: Way,
    /// Compute slices of the instance.
    pub compute_slices: u8,
    /// Full layouts that can no longer be reached afterwards.
    pub lost_futures: usize,
}

/// The best offer of one GPU for one request.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The order of the choice; the smallest is taken.
    pub rank: Rank,
    /// The instance; `None` for a GPU with MIG off.
    pub slot: Option<Slot>,
    /// The layout steps that create it.
    pub steps: Vec<PlanStep>,
    /// `R` before and after, if the rule considers it.
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
    /// All jobs behind it.
    Queue,
    /// The jobs behind it that request the same.
    BySize,
}

/// Whether a GPU could hold a request once every job on it had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutureFit {
    /// It could.
    Possible,
    /// Only with another layout, which the policy doesn't change.
    OtherLayout,
    /// Not while it has instances that Tessera must not touch.
    InTheWay,
    /// The GPU can never hold it.
    Never,
}

/// The parts by which policies that follow a rule differ.
pub trait Rule {
    /// The policy's name.
    const NAME: &'static str;
    /// Which jobs a waiting job holds up.
    const ORDER: Order;
    /// Whether sharing jobs may join each other's slices.
    const JOINS: bool = true;

    /// Returns the best offer of an available GPU for the request now.
    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>>;

    /// Returns whether the GPU could ever hold the request.
    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit;

    /// Returns the smallest sets of jobs whose end would free enough space on the GPU: each entry
    /// alone suffices.
    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>>;

    /// Returns how many memory slices are free and how many are needed, if the GPU has enough
    /// of them, but not in a shape that may be used.
    fn fragmented(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<(u32, u8)>;
}
