//! The partition state machine of one geometry: states, successors, reachability.
//!
//! A state is a set of placements, one bit each. Legality is closed downward: taking an instance
//! away never makes a legal state illegal. So the full configurations that can be reached from
//! a state by allocations alone are exactly the full configurations that contain it. Every state,
//! its successors and its reachability `R` are worked out once, in [`table`]; from then on each
//! question is a read of an array.
//!
//! Nothing is assumed of a model: a geometry that nobody has seen before goes the same way. One
//! whose states are too many for the table goes without it, and [`StateSpace::measure`] reports it.

mod places;
mod table;

use crate::number::{clamped, index};
use std::collections::BTreeSet;

use super::geometry::{Geometry, Layout, ProfileId, Slot};
use places::{InstancePlacements, bits};
use table::{ENTRIES_MAX, StateTable};

/// A set of placements of one [`StateSpace`]. It means nothing to another space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigState {
    set: u128,
    /// Its row in the table; 0 where there is none.
    row: u32,
}

impl MigState {
    /// The unpartitioned GPU.
    pub const EMPTY: Self = Self { set: 0, row: 0 };

    /// Returns the number of instances.
    pub const fn instances(self) -> u32 {
        self.set.count_ones()
    }

    fn index(self) -> usize {
        index(u64::from(self.row))
    }
}

/// A geometry with more placements than a state has bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{placements} placements: a state holds at most {most}; offer fewer profiles")]
pub struct TooManyPlacements {
    /// How many placements the chosen profiles have.
    pub placements: usize,
    /// How many a state can hold.
    pub most: usize,
}

/// What the numbers mean that a space calls reachability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachabilityMeasure {
    /// MIGM's `R`, exactly: full configurations that allocations can still lead to.
    FullLayouts,
    /// One more than the placements that could be taken next. The states are too many to count
    /// full configurations; like `R` this is 1 for a full state and never grows along an
    /// allocation.
    OpenPlacements,
}

/// How large a state machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCounts {
    /// States, the empty one included.
    pub states: usize,
    /// Full configurations, distinguished by the placements of their instances.
    pub full: usize,
    /// Full configurations, distinguished only by the number of instances of each profile.
    pub multisets: usize,
}

/// All states of one geometry with one set of profiles on offer, precomputed.
///
/// Source: MIGM §4, `M = (S, Σ, δ, s0, F)`. `R` depends on the profiles on offer, so they are an
/// argument and never assumed.
#[derive(Clone, Debug)]
pub struct StateSpace {
    places: InstancePlacements,
    /// The placements that `R` counts with.
    offered: u128,
    table: Option<StateTable>,
}

impl StateSpace {
    /// Builds the space of the profiles in `offered` (all, if it is `None`): only they can
    /// stand.
    ///
    /// # Errors
    ///
    /// [`TooManyPlacements`] if the profiles have more than 128 placements together; no known
    /// GPU has more than 30.
    pub fn new(
        geometry: &Geometry,
        offered: Option<&BTreeSet<ProfileId>>,
    ) -> Result<Self, TooManyPlacements> {
        let places = InstancePlacements::new(geometry, offered)?;
        Ok(Self::build(places, u128::MAX, ENTRIES_MAX))
    }

    /// Builds the space of all profiles, of which only those in `offered` will be allocated: `R`
    /// counts the full layouts that they can still lead to around the other instances.
    ///
    /// For states of offered instances alone `R` is the same as in [`Self::new`].
    ///
    /// # Errors
    ///
    /// [`TooManyPlacements`].
    pub fn offering(
        geometry: &Geometry,
        offered: &BTreeSet<ProfileId>,
    ) -> Result<Self, TooManyPlacements> {
        let places = InstancePlacements::new(geometry, None)?;
        let offered = places.set_of(offered);
        Ok(Self::build(places, offered, ENTRIES_MAX))
    }

    fn build(places: InstancePlacements, offered: u128, entries_max: usize) -> Self {
        let everything = (0..places.len()).fold(0, |set, bit| set | 1 << bit);
        let offered = offered & everything;
        let table = StateTable::build(&places, offered, entries_max);
        Self { places, offered, table }
    }

    /// Returns what the numbers of [`Self::reachability`] mean.
    pub const fn measure(&self) -> ReachabilityMeasure {
        match self.table {
            Some(_) => ReachabilityMeasure::FullLayouts,
            None => ReachabilityMeasure::OpenPlacements,
        }
    }

    /// Returns the state of a layout, or `None` if the layout holds a slot that the space
    /// doesn't have, or can't stand.
    pub fn state(&self, layout: &Layout) -> Option<MigState> {
        layout.iter().try_fold(MigState::EMPTY, |state, slot| self.allocate(state, *slot))
    }

    /// Returns the slots of a state.
    pub fn layout(&self, state: MigState) -> Layout {
        bits(state.set).map(|bit| self.places.slot(bit)).collect()
    }

    /// Returns every state that allocations can reach from the empty GPU, the empty one included
    /// and first; `None` if they are too many to list.
    pub fn states(&self) -> Option<impl DoubleEndedIterator<Item = MigState>> {
        let table = self.table.as_ref()?;
        Some((0..table.len()).map(|row| row_of(table, row)))
    }

    /// Returns the full configurations: states in which nothing more of what is on offer can be
    /// allocated. `None` if there are too many states to list them.
    pub fn full_configurations(&self) -> Option<Vec<MigState>> {
        let full = |state: &MigState| bits(self.offered).all(|bit| !self.may_join(*state, bit));
        Some(self.states()?.filter(full).collect())
    }

    /// Counts states and full configurations; `None` if they are too many to list.
    pub fn counts(&self) -> Option<StateCounts> {
        let full = self.full_configurations()?;
        let multiset = |state: &MigState| {
            let mut profiles: Vec<_> = self.layout(*state).iter().map(|s| s.profile).collect();
            profiles.sort_unstable();
            profiles
        };
        let multisets: BTreeSet<_> = full.iter().map(multiset).collect();
        let states = self.table.as_ref()?.len();
        Some(StateCounts { states, full: full.len(), multisets: multisets.len() })
    }

    /// Returns the successor of allocating `slot` in `state`, or `None` if that is illegal.
    pub fn allocate(&self, state: MigState, slot: Slot) -> Option<MigState> {
        self.with(state, self.places.bit(slot)?)
    }

    /// Returns the state without `slot`, or `None` if the slot isn't allocated in it.
    pub fn free(&self, state: MigState, slot: Slot) -> Option<MigState> {
        let bit = self.places.bit(slot)?;
        if state.set & (1 << bit) == 0 {
            return None;
        }
        Some(match &self.table {
            Some(table) => row_of(table, table.toggle(state.index(), bit)?),
            None => MigState { set: state.set & !(1 << bit), row: 0 },
        })
    }

    /// Returns each legal allocation with its successor, of profiles on offer and others.
    pub fn successors(&self, state: MigState) -> Vec<(Slot, MigState)> {
        (0..self.places.len())
            .filter_map(|bit| Some((self.places.slot(bit), self.with(state, bit)?)))
            .collect()
    }

    /// Returns `R`: how many full configurations can still be reached from `state` by
    /// allocations of what is on offer. A full state reaches itself: 1. In a space without a
    /// table it is another number, see [`Self::measure`].
    ///
    /// Source: MIGM §4.
    pub fn reachability(&self, state: MigState) -> usize {
        match &self.table {
            Some(table) => table.reach(state.index()),
            None => 1 + bits(self.offered).filter(|bit| self.may_join(state, *bit)).count(),
        }
    }

    /// Returns the placement of `profile` that keeps the most futures open, with its `R`; among
    /// equals the one with the highest start. `None` if the profile fits nowhere.
    ///
    /// Source: MIGM §4, allocation rule, which is silent about equals. The largest profiles start
    /// on low slices only (a `4g.20gb` on 0), so these are kept free: measured, the highest start
    /// loses fewer requests to fragmentation than the lowest (`docs/benchmarks.md`).
    pub fn best_placement(&self, state: MigState, profile: ProfileId) -> Option<(Slot, usize)> {
        let Some(table) = &self.table else {
            let ways = self.placements(state, profile);
            return ways.into_iter().max_by_key(|(_, reach)| *reach);
        };
        let number = self.places.profiles().iter().position(|p| *p == profile)?;
        let bit = table.best(state.index(), number)?;
        let next = table.toggle(state.index(), bit)?;
        Some((self.places.slot(bit), table.reach(next)))
    }

    /// Returns every legal placement of `profile` with the `R` of its successor, by start.
    pub fn placements(&self, state: MigState, profile: ProfileId) -> Vec<(Slot, usize)> {
        let ways = self.allocations(state, profile).into_iter();
        ways.map(|(slot, next)| (slot, self.reachability(next))).collect()
    }

    /// Returns every legal placement of `profile` with its successor, by start.
    pub fn allocations(&self, state: MigState, profile: ProfileId) -> Vec<(Slot, MigState)> {
        self.places
            .bits_of(profile)
            .filter_map(|bit| Some((self.places.slot(bit), self.with(state, bit)?)))
            .collect()
    }

    /// Returns whether two placements share a memory slice, so that they never coexist.
    pub fn exclude(&self, a: Slot, b: Slot) -> bool {
        match (self.places.bit(a), self.places.bit(b)) {
            (Some(a), Some(b)) => self.places.overlap(a, b),
            (None, _) | (_, None) => false,
        }
    }

    fn may_join(&self, state: MigState, bit: usize) -> bool {
        self.with(state, bit).is_some()
    }

    fn with(&self, state: MigState, bit: usize) -> Option<MigState> {
        if state.set & (1 << bit) != 0 {
            return None;
        }
        match &self.table {
            Some(table) => Some(row_of(table, table.toggle(state.index(), bit)?)),
            None => self
                .places
                .may_join(state.set, bit)
                .then_some(MigState { set: state.set | 1 << bit, row: 0 }),
        }
    }
}

fn row_of(table: &StateTable, row: usize) -> MigState {
    MigState { set: table.set(row), row: clamped(row) }
}
