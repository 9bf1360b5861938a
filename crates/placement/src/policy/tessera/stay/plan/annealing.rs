//! Simulated annealing (Kirkpatrick et al., Science 1983): the best first candidate is changed step by step.
//!
//! A step changes the size of a job or its place in the order. It is kept if the score gets better, or worse by less than
//! the present tolerance. Three steps in ten concern the job that ends last, which determines the makespan.
//!
//! A controller may end the search at any time. So there are several passes, each twice as long as the one before.
//! Each begins with the best candidate so far, and its tolerance falls to zero. The changes follow a fixed sequence, so
//! that the same round makes the same plan.

use tessera_model::number::index;

use super::super::super::rounding::float_count;
use super::list_schedule::NotAbove;
use super::{Candidate, PlannedJob, Planner, Scale, Tally};

/// The number of candidates for a plan of one job; it falls with the square of the number of jobs. Chosen to
/// limit the duration of a round.
const CANDIDATES: usize = 3_200_000;
const CANDIDATES_MIN: usize = 1_600;
const CANDIDATES_MAX: usize = 6_000;

/// How many passes there are.
const PASSES: u32 = 5;

/// The first tolerance of each pass, as a part of the best score, in a plan of one job. It falls with their number: one of
/// many jobs changes the score by less. Chosen on seeds 1 to 10, for batches of 5 to 100 jobs, as are the steps below.
const TOLERANCE: f64 = 0.2;

/// Of 100 steps, how many concern the job that ends last.
const OF_LAST_JOB: usize = 30;

/// Changes a candidate with a known score, and returns the best one that was found.
pub(super) fn improved(
    planner: &Planner<'_, '_>,
    (mut known, mut best): (f64, Candidate),
    scale: Scale,
    tally: &mut Tally<'_>,
) -> Candidate {
    let count = planner.jobs.len().max(1);
    let tries = (CANDIDATES / (count * count)).clamp(CANDIDATES_MIN, CANDIDATES_MAX);
    let mut sequence = Sequence(0x9E37_79B9_7F4A_7C15);
    let mut planned = Vec::with_capacity(count);
    for pass in 0..PASSES {
        let steps = (tries << pass) / ((1 << PASSES) - 1);
        let mut current = (known, best.clone());
        let mut last = last_job(planner, &current.1, &mut planned);
        for step in 0..steps {
            if !tally.allows_more() {
                return best;
            }
            let of_last = sequence.below(100) < OF_LAST_JOB;
            let next = altered(planner, &current.1, of_last.then_some(last), &mut sequence);
            if next == current.1 {
                continue;
            }
            let left = float_count(steps - step) / float_count(steps);
            let most = current.0 + TOLERANCE / float_count(count) * known * left;
            let limit = NotAbove { scale, score: most };
            let Some(value) = planner.value(&next, Some(limit), None) else { continue };
            let score = scale.score(value);
            current = (score, next);
            last = last_job(planner, &current.1, &mut planned);
            if score < known {
                (known, best) = (score, current.1.clone());
            }
        }
    }
    best
}

/// Returns the job that ends last. `planned` is memory that is used again.
fn last_job(
    planner: &Planner<'_, '_>,
    candidate: &Candidate,
    planned: &mut Vec<PlannedJob>,
) -> usize {
    planned.clear();
    planner.value(candidate, None, Some(planned));
    planned.iter().max_by_key(|one| one.ends).map_or(0, |one| one.index)
}

/// Changes the size of a job, or its place in the order: of `chosen`, or of any.
fn altered(
    planner: &Planner<'_, '_>,
    known: &Candidate,
    chosen: Option<usize>,
    sequence: &mut Sequence,
) -> Candidate {
    let mut next = known.clone();
    let count = planner.jobs.len();
    let any = sequence.below(count);
    let place = chosen.and_then(|job| known.order.iter().position(|one| *one == job));
    let at = place.unwrap_or(any);
    match sequence.below(4) {
        0 | 1 => {
            let job = known.order[at];
            let option = sequence.below(planner.jobs[job].options.len());
            let kind = planner.jobs[job].options[option].kind;
            // If it has a size on another kind of GPU, too, it may also give up this kind.
            let others = next.sizes.of(job).iter().flatten().count() > 1;
            let gives_up = others && next.sizes.of(job)[kind].is_some() && sequence.below(3) == 0;
            next.sizes.of_mut(job)[kind] = (!gives_up).then_some(option);
        }
        2 => {
            let job = next.order.remove(at);
            // The last job ends sooner only if it begins sooner.
            let places = if place.is_some() { at.max(1) } else { count };
            next.order.insert(sequence.below(places), job);
        }
        _ => next.order.swap(at, sequence.below(count)),
    }
    next
}

/// A fixed sequence of numbers (xorshift64*; Vigna, 2016): the plan of a round must be the same each time.
///
/// It stays our own: `rand_xoshiro`, which other generators use, has no xorshift64*. With other numbers,
/// recorded rounds would be decided differently.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        index(drawn) % bound.max(1)
    }
}
