//! The search for starts: the best placements for the instances of a layout of which only the profiles
//! are given.

use super::geometry::{Geometry, Layout, ProfileId, Slot};

/// Maximum number of partial layouts that are looked at for one question. The largest known GPU has
/// 2,319 states, and a question that busy instances make hopeless looks at some of them again.
pub const TRIES_MAX: usize = 50_000;

/// More partial layouts than [`TRIES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimitReached;

/// Looks at every layout of some profiles around what must stay.
pub struct ArrangementSearch<'s, R> {
    geometry: &'s Geometry,
    /// The existing instances now.
    present: &'s Layout,
    /// Returns a legal layout's `R`.
    reach: R,
    /// Partial layouts that were looked at, over all runs.
    tries: usize,
    /// How many instances are new, lost `R`, and the layout.
    best: Option<(usize, usize, Layout)>,
}

impl<'s, R: Fn(&Layout) -> usize> ArrangementSearch<'s, R> {
    /// Begins a search.
    pub const fn new(geometry: &'s Geometry, present: &'s Layout, reach: R) -> Self {
        Self { geometry, present, reach, tries: 0, best: None }
    }

    /// Returns the layout of `named` and instances of the profiles in `open` that holds all of
    /// `kept`, with the fewest new instances. Among equals it is the one with the largest `R`, then
    /// the lowest starts. `None` if there is none.
    ///
    /// Every such layout has as many instances: the fewest new ones are the shortest plan.
    ///
    /// # Errors
    ///
    /// [`SearchLimitReached`], once all runs together have looked at [`TRIES_MAX`] partial layouts.
    pub fn run(
        &mut self,
        kept: &[Slot],
        named: &Layout,
        open: &[ProfileId],
    ) -> Result<Option<Layout>, SearchLimitReached> {
        let mut open = open.to_vec();
        let mut begun = named.clone();
        for slot in kept {
            if begun.insert(*slot) {
                match open.iter().position(|p| *p == slot.profile) {
                    Some(found) => open.swap_remove(found),
                    None => return Ok(None),
                };
            }
        }
        if self.geometry.check(&begun).is_err() {
            return Ok(None);
        }
        open.sort_unstable();
        self.best = None;
        self.place(&begun, &open, None)?;
        Ok(self.best.take().map(|(_, _, layout)| layout))
    }

    /// Places the rest, equal profiles from low starts to high ones, so that each layout comes
    /// once.
    fn place(
        &mut self,
        begun: &Layout,
        open: &[ProfileId],
        last: Option<Slot>,
    ) -> Result<(), SearchLimitReached> {
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return Err(SearchLimitReached);
        }
        let Some((id, rest)) = open.split_first() else {
            self.judge(begun);
            return Ok(());
        };
        let geometry = self.geometry;
        let starts = geometry.profile(*id).map_or(&[][..], |p| &p.starts);
        for slot in starts.iter().map(|start| Slot { start: *start, profile: *id }) {
            let turned = last.is_some_and(|last| last.profile == *id && slot < last);
            let mut next = begun.clone();
            if !turned && next.insert(slot) && geometry.check(&next).is_ok() {
                self.place(&next, rest, Some(slot))?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, layout: &Layout) {
        let new = layout.difference(self.present).count();
        if self.best.as_ref().is_some_and(|(fewest, _, _)| *fewest < new) {
            return;
        }
        let way = (new, usize::MAX - (self.reach)(layout), layout.clone());
        if self.best.as_ref().is_none_or(|best| way < *best) {
            self.best = Some(way);
        }
    }
}
