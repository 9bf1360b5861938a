//! Which idle instances go, so that another can be made.

use super::geometry::Slot;
use super::states::{MigState, StateSpace};
use super::subsets::{Subsets, split};

/// Maximum number of sets of idle instances that are tried for one placement, beyond those that lie
/// in its way; no known GPU comes near.
const TRIES_MAX: usize = 4_096;

/// Returns the fewest of the `idle` instances of `state` that have to go so that `slot` can be
/// allocated, by start. Of equally few it takes those that leave the largest `R` once `slot` stands,
/// then those with the lowest starts. `None` if no set of them is enough.
///
/// The release rule for several instances: what lies in the way has to go. Where counts or
/// engines leave a choice, it falls on the instances whose removal opens most. The search is cut
/// off after 4,096 sets; then all idle instances are named.
///
/// Source: MIGM, scheme B, step (3), which leaves the choice open; `R` by MIGM §4.
pub fn select_instances_to_destroy(
    space: &StateSpace,
    state: MigState,
    idle: &[Slot],
    slot: Slot,
) -> Option<Vec<Slot>> {
    let without = |gone: &[Slot]| {
        let rest = gone.iter().try_fold(state, |state, slot| space.free(state, *slot))?;
        space.allocate(rest, slot)
    };
    without(idle)?;
    let (forced, others): (Vec<Slot>, Vec<Slot>) =
        idle.iter().partition(|other| space.exclude(**other, slot));
    let mut tries = 0;
    for size in 0..=others.len() {
        let mut best: Option<(usize, Vec<Slot>)> = None;
        for chosen in Subsets::new(others.len(), size) {
            tries += 1;
            if tries > TRIES_MAX {
                return Some(idle.to_vec());
            }
            let (out, _) = split(&others, &chosen);
            let mut gone = [forced.clone(), out].concat();
            let Some(next) = without(&gone) else { continue };
            gone.sort_unstable();
            let way = (usize::MAX - space.reachability(next), gone);
            if best.as_ref().is_none_or(|best| way < *best) {
                best = Some(way);
            }
        }
        if let Some((_, gone)) = best {
            return Some(gone);
        }
    }
    None
}
