//! The partition state machine of one geometry: states, successors, reachability.
//!
//! A state is a set of slots, one bit each. Legality is closed downward (taking an instance
//! away never makes a legal state illegal), so the full configurations that can be reached from
//! a state by allocations alone are exactly the full configurations that contain it. That turns
//! reachability `R` into a count over a short list of bit sets.

use std::collections::BTreeSet;

use super::geometry::{Geometry, Layout, MediaEngines, ProfileId, Slot};

/// A set of slots of one [`StateSpace`], one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(u64);

impl State {
    /// The unpartitioned GPU.
    pub const EMPTY: Self = Self(0);

    const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A geometry with more placements than a state has bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{placements} placements: a state holds at most 64")]
pub struct TooManyPlacements {
    /// How many placements the chosen profiles have.
    pub placements: usize,
}

/// One placement that can be taken, with what it excludes.
#[derive(Clone, Debug)]
struct Place {
    slot: Slot,
    /// Slots that share a memory slice with this one, itself included.
    overlapping: u64,
    /// All slots of its profile.
    siblings: u64,
    max_instances: u32,
    media: MediaEngines,
}

/// All states of one geometry with one set of profiles on offer, precomputed.
///
/// Source: MIGM §4, `M = (S, Σ, δ, s0, F)`. `R` depends on the profiles on offer, so they are an
/// argument and never assumed.
#[derive(Clone, Debug)]
pub struct StateSpace {
    places: Vec<Place>,
    budget: MediaEngines,
    full: Vec<State>,
}

impl StateSpace {
    /// Builds the space of `geometry` with the profiles in `offered` (all, if it is `None`).
    ///
    /// # Errors
    ///
    /// [`TooManyPlacements`] if the profiles have more than 64 placements together; no known
    /// GPU has more than 30.
    pub fn new(
        geometry: &Geometry,
        offered: Option<&BTreeSet<ProfileId>>,
    ) -> Result<Self, TooManyPlacements> {
        let profiles: Vec<_> = geometry
            .profiles
            .iter()
            .filter(|p| offered.is_none_or(|offered| offered.contains(&p.id)))
            .collect();
        let slots: Vec<_> =
            profiles.iter().flat_map(|p| p.starts.iter().map(move |start| (*p, *start))).collect();
        if slots.len() > 64 {
            return Err(TooManyPlacements { placements: slots.len() });
        }
        let bits = |keep: &dyn Fn(usize) -> bool| {
            (0..slots.len()).filter(|i| keep(*i)).fold(0_u64, |set, i| set | 1 << i)
        };
        let span = |i: usize| {
            let (profile, start) = slots[i];
            ((1_u64 << profile.memory_slices) - 1) << start
        };
        let places = slots
            .iter()
            .enumerate()
            .map(|(i, (profile, start))| Place {
                slot: Slot { start: *start, profile: profile.id },
                overlapping: bits(&|j| span(i) & span(j) != 0),
                siblings: bits(&|j| slots[j].0.id == profile.id),
                max_instances: u32::from(profile.max_instances),
                media: profile.media,
            })
            .collect();
        let mut space = Self { places, budget: geometry.media_budget(), full: Vec::new() };
        space.full =
            space.states().into_iter().filter(|s| space.successors(*s).is_empty()).collect();
        Ok(space)
    }

    /// Returns the state of a layout, or `None` if the layout holds a slot that is not on offer.
    pub fn state(&self, layout: &Layout) -> Option<State> {
        layout.iter().try_fold(State::EMPTY, |state, slot| {
            let bit = self.places.iter().position(|p| p.slot == *slot)?;
            Some(State(state.0 | 1 << bit))
        })
    }

    /// Returns the slots of a state.
    pub fn layout(&self, state: State) -> Layout {
        self.places
            .iter()
            .enumerate()
            .filter(|(bit, _)| state.0 & (1 << bit) != 0)
            .map(|(_, place)| place.slot)
            .collect()
    }

    /// Returns every state that allocations can reach from the empty GPU, the empty one included.
    pub fn states(&self) -> BTreeSet<State> {
        let mut seen = BTreeSet::from([State::EMPTY]);
        let mut frontier = vec![State::EMPTY];
        while let Some(state) = frontier.pop() {
            for (_, next) in self.successors(state) {
                if seen.insert(next) {
                    frontier.push(next);
                }
            }
        }
        seen
    }

    /// Returns the full configurations: states in which nothing more can be allocated.
    pub fn full_configurations(&self) -> &[State] {
        &self.full
    }

    /// Returns the successor of allocating `slot` in `state`, or `None` if that is illegal.
    pub fn allocate(&self, state: State, slot: Slot) -> Option<State> {
        let bit = self.places.iter().position(|p| p.slot == slot)?;
        self.try_bit(state, bit)
    }

    /// Returns the state without `slot`, or `None` if the slot isn't allocated in it.
    pub fn free(&self, state: State, slot: Slot) -> Option<State> {
        let bit = self.places.iter().position(|p| p.slot == slot)?;
        (state.0 & (1 << bit) != 0).then_some(State(state.0 & !(1 << bit)))
    }

    /// Returns each legal allocation with its successor.
    pub fn successors(&self, state: State) -> Vec<(Slot, State)> {
        (0..self.places.len())
            .filter_map(|bit| Some((self.places[bit].slot, self.try_bit(state, bit)?)))
            .collect()
    }

    /// Returns `R`: how many full configurations can still be reached from `state` by
    /// allocations alone. A full state reaches itself: 1.
    ///
    /// Source: MIGM §4.
    pub fn reachability(&self, state: State) -> usize {
        self.full.iter().filter(|full| full.contains(state)).count()
    }

    /// Returns the placement of `profile` that keeps the most futures open, with its `R`; of
    /// equals the one with the lowest start. `None` if the profile fits nowhere.
    ///
    /// Source: MIGM §4, allocation rule.
    pub fn best_placement(&self, state: State, profile: ProfileId) -> Option<(Slot, usize)> {
        self.placements(state, profile).into_iter().rev().max_by_key(|(_, reach)| *reach)
    }

    /// Returns every legal placement of `profile` with the `R` of its successor, by start.
    pub fn placements(&self, state: State, profile: ProfileId) -> Vec<(Slot, usize)> {
        (0..self.places.len())
            .filter(|bit| self.places[*bit].slot.profile == profile)
            .filter_map(|bit| {
                let next = self.try_bit(state, bit)?;
                Some((self.places[bit].slot, self.reachability(next)))
            })
            .collect()
    }

    fn try_bit(&self, state: State, bit: usize) -> Option<State> {
        let place = &self.places[bit];
        let crowded = (state.0 & place.siblings).count_ones() >= place.max_instances;
        if state.0 & place.overlapping != 0 || crowded {
            return None;
        }
        let next = State(state.0 | 1 << bit);
        let media = self
            .places
            .iter()
            .enumerate()
            .filter(|(i, _)| next.0 & (1 << i) != 0)
            .fold(MediaEngines::default(), |sum, (_, p)| sum.plus(p.media));
        media.within(self.budget).then_some(next)
    }
}
