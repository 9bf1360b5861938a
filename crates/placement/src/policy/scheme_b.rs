//! `scheme-b`: MIGM's scheme B, in queue order, on slices that are created in the needed size.
//!
//! Source: MIGM, scheme B: "For the head job":
//!
//! 1. "an idle slice that fits tightly";
//! 2. "else create one";
//! 3. "else merge idle neighbours or split a bigger idle slice to make the tightest fit";
//! 4. "else wait for a running job to end".
//!
//! "Never co-locates two jobs on one slice." What (2) creates is decided by the allocation rule of
//! MIGM §4: of all legal placements the one whose successor has the largest reachability `R`, over
//! the plain profiles. A job's size follows MIGM §2.2; a job of unknown size starts on the smallest
//! slice (case 4). Warp folding does not apply, since no request names multiprocessors.
//!
//! The paper has one GPU of one model, and leaves the following open. This policy chose:
//!
//! - **Which GPU.** The least sufficient memory, whatever steps it needs. Then (1) before (2)
//!   before (3), and then the fewest compute slices. Then the fewest lost futures (`R` before minus
//!   `R` after), and last the cluster's order. Lost futures are a difference, not a ratio. So GPUs
//!   in use are filled before an empty one is used, which keeps whole GPUs for jobs that need them.
//! - **Tight** is a matter of memory, since compute is soft (§2.2): an idle 3g.20gb or 4g.20gb is
//!   taken, and `R` determines which one is created. If `R` is equal, the one with more compute is
//!   created: no other job could have used that slice, and the paper's mix Ml3 runs on 4g and 3g.
//!   In the comparison of GPUs such a slice doesn't count.
//! - **A larger idle slice is never used as it is** on a GPU with MIG on: it is split. While the
//!   layout of its GPU is changing, the job waits (`awaiting_repartition`). A GPU with MIG off
//!   can't be split; it is taken as a whole, after all tighter slices.
//! - **Equals in (1) and all of (3)** are ordered by `R` too, but idle instances count as free,
//!   since (3) may remove them. In (3) the next criteria are the fewest destroyed instances, and
//!   then the largest `R` of the resulting layout: of several idle instances, those are removed
//!   whose removal opens most. A split leaves the rest of the slice unpartitioned until a job needs
//!   it, which is the shortest plan.
//! - **`R` next to instances of other profiles** counts the full layouts that plain allocations can
//!   still lead to around them.
//! - **Sharing jobs**, which the paper doesn't have, join each other by the rules of the module
//!   `sharing`; the first one gets a slice by the steps above.
//! - **A whole GPU** is an instance of the largest profile on a GPU that is otherwise empty, or a
//!   GPU with MIG off.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_model::JobId;
use tessera_model::mig::{MigState, PlanStep, Profile, Slot, select_instances_to_destroy};

use super::{ByRule, SliceManner};
use crate::offer::{FutureFit, Futures, Offer, Order, Rank, Rule, Way};
use crate::request::{NumberedRequest, SliceRequest};
use crate::sharing;
use crate::view::InstanceState;
use crate::working_state::{GpuLayout, WorkingGpu};

/// The policy `scheme-b`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SchemeB;

impl ByRule for SchemeB {
    type Rule = MadeToMeasure;
    const SLICE_MANNER: SliceManner = SliceManner::MadeToMeasure;
}

/// GPUs of one model in one state have the same offers, so each such case is computed once a round.
#[derive(Debug, Default)]
pub struct MadeToMeasure {
    known: BTreeMap<Case, Option<Rc<Offer>>>,
    /// By model, by the instances that stay, and by size.
    future_fits: RefCell<BTreeMap<(usize, MigState, usize), FutureFit>>,
    obstacles: RefCell<BTreeMap<Obstacle, Ways>>,
}

/// GPUs of one model on which the same instances stay and the same slots have jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Obstacle {
    model: usize,
    fixed: MigState,
    held: Vec<Slot>,
    size: usize,
}

/// For each possible placement of a size, the occupied slots that are in its way.
type Ways = Rc<[Vec<usize>]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    model: usize,
    all: MigState,
    busy: MigState,
    changing: bool,
    size: usize,
}

impl Rule for MadeToMeasure {
    const NAME: &'static str = "scheme-b";
    const ORDER: Order = Order::Queue;

    fn offer(&mut self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Rc<Offer>> {
        let Some(standing) = &gpu.layout else {
            return unpartitioned(gpu, size).map(Rc::new);
        };
        let case = Case {
            model: standing.model,
            all: standing.all,
            busy: standing.busy,
            changing: gpu.view.changing,
            size: size.number,
        };
        let work_out = || best_way(standing, gpu.view.changing, size).map(Rc::new);
        self.known.entry(case).or_insert_with(work_out).clone()
    }

    fn future_fit(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> FutureFit {
        let Some(standing) = &gpu.layout else {
            return match gpu.unpartitioned() {
                None => FutureFit::InTheWay,
                Some(whole) if !size.request.suits_unpartitioned(whole.memory) => FutureFit::Never,
                Some(whole) => match whole.state {
                    InstanceState::Idle
                    | InstanceState::Taken { .. }
                    | InstanceState::Shared(_)
                    | InstanceState::Leaving => FutureFit::Possible,
                    InstanceState::Cut(_)
                    | InstanceState::Foreign
                    | InstanceState::Stuck
                    | InstanceState::Quarantined => FutureFit::InTheWay,
                },
            };
        };
        let case = (standing.model, standing.fixed, size.number);
        let mut known = self.future_fits.borrow_mut();
        *known.entry(case).or_insert_with(|| future_fit_of(standing, size))
    }

    fn blockers(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Vec<Vec<JobId>> {
        let Some(standing) = &gpu.layout else { return vec![gpu.jobs()] };
        let mut holders: Vec<(Slot, Vec<JobId>)> =
            gpu.instances.iter().filter_map(|i| Some((i.slot?, gpu.holders(i.slot)))).collect();
        holders.retain(|(_, jobs)| !jobs.is_empty());
        holders.sort_unstable_by_key(|(slot, _)| *slot);
        let held = holders.iter().map(|(slot, _)| *slot).collect();
        let (model, fixed) = (standing.model, standing.fixed);
        let case = Obstacle { model, fixed, held, size: size.number };
        let mut known = self.obstacles.borrow_mut();
        let ways = known.entry(case).or_insert_with_key(|case| {
            let slots = tight_slots(standing, size);
            slots.filter_map(|(slot, _)| in_the_way(standing, &case.held, slot)).collect()
        });
        let jobs = |way: &&Vec<usize>| way.iter().map(|at| holders[*at].1.len()).sum::<usize>();
        let fewest = ways.iter().map(|way| jobs(&way)).min();
        let fewest = ways.iter().filter(|way| Some(jobs(way)) == fewest);
        let mut ways: Vec<Vec<JobId>> = fewest
            .map(|way| {
                let jobs = way.iter().flat_map(|at| &holders[*at].1);
                let mut jobs: Vec<JobId> = jobs.copied().collect();
                jobs.sort_unstable();
                jobs
            })
            .collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    }

    fn fragmented(&self, gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<(u32, u8)> {
        let standing = gpu.layout.as_ref()?;
        let geometry = &standing.mig.geometry;
        let mask = |slot: Slot| geometry.mask(slot).unwrap_or(0);
        let usable = tight_slots(standing, size).fold(0, |set, (slot, _)| set | mask(slot));
        let busy = standing.mig.all().layout(standing.busy);
        let free = busy.into_iter().fold(usable, |set, slot| set & !mask(slot)).count_ones();
        let needed = tight_slots(standing, size).map(|(_, profile)| profile.memory_slices).min()?;
        (free >= u32::from(needed)).then_some((free, needed))
    }
}

/// Returns whether a GPU could hold a size after its jobs have ended.
fn future_fit_of(standing: &GpuLayout<'_>, size: &NumberedRequest) -> FutureFit {
    let fits = |base: MigState| {
        let mut slots = tight_slots(standing, size);
        slots.any(|(slot, _)| standing.mig.all().allocate(base, slot).is_some())
    };
    match (fits(standing.fixed), fits(MigState::EMPTY)) {
        (true, _) => FutureFit::Possible,
        (false, true) => FutureFit::InTheWay,
        (false, false) => FutureFit::Never,
    }
}

/// Returns the indices of the occupied slots that must become empty before an instance can be
/// created in `slot`; `None` if that is not enough.
fn in_the_way(standing: &GpuLayout<'_>, held: &[Slot], slot: Slot) -> Option<Vec<usize>> {
    let space = standing.mig.all();
    let mut rest = space.allocate(standing.fixed, slot)?;
    let mut gone = Vec::new();
    for (at, other) in held.iter().enumerate() {
        match space.allocate(rest, *other) {
            Some(combined) => rest = combined,
            None => gone.push(at),
        }
    }
    Some(gone)
}

/// Returns every placement of the profiles that fit tightly.
fn tight_slots<'c>(
    standing: &GpuLayout<'c>,
    size: &NumberedRequest,
) -> impl Iterator<Item = (Slot, &'c Profile)> {
    size.request.tight(standing.mig).into_iter().flat_map(|profile| {
        profile
            .starts
            .iter()
            .map(move |start| (Slot { start: *start, profile: profile.id }, profile))
    })
}

/// A GPU with MIG off can't be partitioned: the whole GPU is its tightest fit.
fn unpartitioned(gpu: &WorkingGpu<'_>, size: &NumberedRequest) -> Option<Offer> {
    let whole = gpu.unpartitioned()?;
    let fits = whole.state == InstanceState::Idle && size.request.suits_unpartitioned(whole.memory);
    fits.then(|| Offer {
        rank: Rank {
            colocation: sharing::rank_colocation(&size.request, whole.memory),
            memory: whole.memory,
            way: Way::Idle,
            compute_slices: 0,
            lost_futures: 0,
        },
        slot: None,
        steps: Vec::new(),
        futures: None,
        others: Vec::new(),
    })
}

/// Steps (1) to (3) of scheme B on one GPU.
fn best_way(standing: &GpuLayout<'_>, changing: bool, size: &NumberedRequest) -> Option<Offer> {
    let slots: Vec<_> = tight_slots(standing, size).collect();
    best_way_among(standing, changing, &size.request, &slots)
}

/// Does the same for some of the slots that fit.
pub(super) fn best_way_among(
    standing: &GpuLayout<'_>,
    changing: bool,
    request: &SliceRequest,
    slots: &[(Slot, &Profile)],
) -> Option<Offer> {
    let idle = || best_of(request, idle_ways(standing, slots));
    let create = || best_of(request, create_ways(standing, slots));
    let rearrange = || best_of(request, rearrange_ways(standing, slots));
    if changing { idle() } else { idle().or_else(create).or_else(rearrange) }
}

/// One way to get a placement, with the values by which ways are ordered.
#[derive(Debug)]
struct Candidate<'c> {
    way: Way,
    slot: Slot,
    profile: &'c Profile,
    steps: Vec<PlanStep>,
    futures: Futures,
    /// `R` of the resulting layout, including idle instances.
    left_open: usize,
}

/// Takes the way with the largest `R`. Among equals it takes the one with the fewest steps, then
/// the one whose destroyed instances open most. The next criteria are the most compute slices and
/// the highest start. The other ways are kept for the explanation.
fn best_of(request: &SliceRequest, mut ways: Vec<Candidate<'_>>) -> Option<Offer> {
    let cost = |c: &Candidate<'_>| {
        let least_lost = usize::MAX - c.futures.after;
        let least_opened = usize::MAX - c.left_open;
        (least_lost, c.steps.len(), least_opened)
    };
    ways.sort_by_key(|c| (cost(c), Reverse((c.profile.compute_slices, c.slot.start))));
    // Compute slices beyond those of an equal candidate can't be used by any other job.
    let equals = ways.iter().take_while(|c| cost(c) == cost(&ways[0]));
    let compute_slices = equals.map(|c| c.profile.compute_slices).min()?;
    let mut ways = ways.into_iter();
    let best = ways.next()?;
    Some(Offer {
        rank: Rank {
            colocation: sharing::rank_colocation(request, best.profile.memory),
            memory: best.profile.memory,
            way: best.way,
            compute_slices,
            lost_futures: best.futures.before.saturating_sub(best.futures.after),
        },
        slot: Some(best.slot),
        steps: best.steps,
        futures: Some(best.futures),
        others: ways.map(|c| (c.slot, c.futures.after)).collect(),
    })
}

/// (1) Idle instances that fit tightly. Idle neighbours count as free in `R`.
fn idle_ways<'c>(standing: &GpuLayout<'_>, slots: &[(Slot, &'c Profile)]) -> Vec<Candidate<'c>> {
    let space = standing.mig.all();
    let before = standing.futures(standing.busy);
    slots
        .iter()
        .filter(|(slot, _)| space.free(standing.all, *slot).is_some())
        .filter_map(|(slot, profile)| {
            // An instance that is busy can't be allocated a second time.
            let taken = space.allocate(standing.busy, *slot)?;
            let futures = Futures { before, after: standing.futures(taken) };
            let (steps, left_open) = (Vec::new(), futures.after);
            Some(Candidate { way: Way::Idle, slot: *slot, profile, steps, futures, left_open })
        })
        .collect()
}

/// (2) Instances in free space, by the allocation rule.
fn create_ways<'c>(standing: &GpuLayout<'_>, slots: &[(Slot, &'c Profile)]) -> Vec<Candidate<'c>> {
    let before = standing.futures(standing.all);
    slots
        .iter()
        .filter_map(|(slot, profile)| {
            let next = standing.mig.all().allocate(standing.all, *slot)?;
            let futures = Futures { before, after: standing.futures(next) };
            let (steps, left_open) = (vec![PlanStep::Create(*slot)], futures.after);
            Some(Candidate { way: Way::Create, slot: *slot, profile, steps, futures, left_open })
        })
        .collect()
}

/// (3) Instances in place of idle ones: as few as possible are destroyed, by the release rule.
fn rearrange_ways<'c>(
    standing: &GpuLayout<'_>,
    slots: &[(Slot, &'c Profile)],
) -> Vec<Candidate<'c>> {
    let space = standing.mig.all();
    let before = standing.futures(standing.busy);
    let busy = space.layout(standing.busy);
    let idle: Vec<_> =
        space.layout(standing.all).into_iter().filter(|slot| !busy.contains(slot)).collect();
    slots
        .iter()
        .filter_map(|(slot, profile)| {
            let taken = space.allocate(standing.busy, *slot)?;
            let gone = select_instances_to_destroy(space, standing.all, &idle, *slot)?;
            let rest = gone.iter().try_fold(standing.all, |all, slot| space.free(all, *slot))?;
            let left_open = standing.futures(space.allocate(rest, *slot)?);
            let steps =
                gone.into_iter().map(PlanStep::Destroy).chain([PlanStep::Create(*slot)]).collect();
            let futures = Futures { before, after: standing.futures(taken) };
            let way = Way::Rearrange;
            Some(Candidate { way, slot: *slot, profile, steps, futures, left_open })
        })
        .collect()
}
