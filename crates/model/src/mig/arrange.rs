//! The shortest way to a layout of which only the profiles are given, not their starts.

use super::geometry::{Geometry, Layout, ProfileId, Slot};
use super::plan::{Occupant, PlanRefused, Step, plan};
use super::states::{State, StateSpace};
use super::subsets::{Subsets, split};

/// Most partial layouts that are looked at. The largest known GPU has 2,319 states.
const TRIES_MAX: usize = 50_000;

/// A layout, and the steps that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arranged {
    /// Where everything stands in the end.
    pub layout: Layout,
    /// The way there.
    pub steps: Vec<Step>,
}

/// Finds starts for the profiles in `wanted` (each as often as it is named, and nothing else
/// will stand), and the plan to that layout.
///
/// Of all layouts of these profiles that keep every busy instance, the one with the fewest
/// steps; of equals the one with the largest `R`, then the lowest starts.
///
/// # Errors
///
/// [`PlanRefused`] says why there is no plan; where busy instances are the reason, it names the
/// fewest of them that have to end first.
pub fn arrange(
    geometry: &Geometry,
    space: &StateSpace,
    standing: &[Occupant],
    wanted: &[ProfileId],
) -> Result<Arranged, PlanRefused> {
    let present: Layout = standing.iter().map(|o| o.slot).collect();
    space.state(&present).ok_or(PlanRefused::Unknown)?;
    let busy: Vec<Slot> = standing.iter().filter(|o| o.busy).map(|o| o.slot).collect();
    let mut search = Search { space, present: &present, tries: 0, best: None };
    if let Some(layout) = search.run(&busy, wanted)? {
        let steps = plan(geometry, standing, &layout)?;
        return Ok(Arranged { layout, steps });
    }
    for size in 1..=busy.len() {
        for chosen in Subsets::new(busy.len(), size) {
            let (gone, stay) = split(&busy, &chosen);
            if search.run(&stay, wanted)?.is_some() {
                return Err(PlanRefused::Busy { slots: gone });
            }
        }
    }
    let name = |id: &ProfileId| match geometry.profile(*id) {
        Some(profile) => profile.name.to_string(),
        None => format!("profile {}", id.0),
    };
    let profiles = wanted.iter().map(name).collect::<Vec<_>>().join(", ");
    Err(PlanRefused::NeverTogether { profiles })
}

/// Looks at every layout of some profiles around what must stay.
struct Search<'s> {
    space: &'s StateSpace,
    present: &'s Layout,
    /// Partial layouts that were looked at, over all runs.
    tries: usize,
    /// How many instances are new, lost `R`, and the layout.
    best: Option<(usize, usize, Layout)>,
}

impl Search<'_> {
    /// Returns the best layout of `wanted` that holds `kept`; `None` if there is none.
    fn run(&mut self, kept: &[Slot], wanted: &[ProfileId]) -> Result<Option<Layout>, PlanRefused> {
        let mut open = wanted.to_vec();
        for slot in kept {
            match open.iter().position(|p| *p == slot.profile) {
                Some(found) => open.swap_remove(found),
                None => return Ok(None),
            };
        }
        open.sort_unstable();
        let kept: Layout = kept.iter().copied().collect();
        let Some(state) = self.space.state(&kept) else { return Ok(None) };
        self.best = None;
        self.place(state, &open, None)?;
        Ok(self.best.take().map(|(_, _, layout)| layout))
    }

    /// Places the rest, equal profiles from low starts to high ones, so that each layout comes
    /// once.
    fn place(
        &mut self,
        state: State,
        open: &[ProfileId],
        last: Option<Slot>,
    ) -> Result<(), PlanRefused> {
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return Err(PlanRefused::TooMany { tries: TRIES_MAX });
        }
        let Some((profile, rest)) = open.split_first() else {
            self.judge(state);
            return Ok(());
        };
        for (slot, next) in self.space.allocations(state, *profile) {
            let turned = last.filter(|last| last.profile == slot.profile && slot < *last);
            if turned.is_none() {
                self.place(next, rest, Some(slot))?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, state: State) {
        let layout = self.space.layout(state);
        // Every layout has as many instances: the fewest new ones are the fewest steps.
        let new = layout.difference(self.present).count();
        let way = (new, usize::MAX - self.space.reachability(state), layout);
        if self.best.as_ref().is_none_or(|best| way < *best) {
            self.best = Some(way);
        }
    }
}
