//! Every state of a space with what follows from it, worked out once.

use super::places::{InstancePlacements, bits};
use crate::number::{clamped, index};

/// Maximum number of entries of the table of successors, states times placements: 16 MiB of them.
/// The largest known GPU takes a seventieth.
pub const ENTRIES_MAX: usize = 4_194_304;

/// No such state.
const NOWHERE: u32 = u32::MAX;

/// No such placement.
const NO_PLACE: u8 = u8::MAX;

/// All states by index. A state's index is below that of every state that contains it; the empty
/// one has index 0.
#[derive(Clone, Debug)]
pub struct StateTable {
    sets: Vec<u128>,
    /// By state and placement: the state with the placement taken or, if it has it, given back.
    toggled: Vec<u32>,
    /// `R` by state.
    reach: Vec<u32>,
    /// By state and profile: the placement that keeps the most futures open.
    best: Vec<u8>,
    places: usize,
    profiles: usize,
}

impl StateTable {
    /// Works the table out, with `R` over the placements in `offered`; `None` if it would have
    /// more than `entries_max` entries. What was begun until then is the most that is spent.
    pub fn build(places: &InstancePlacements, offered: u128, entries_max: usize) -> Option<Self> {
        let mut table = Self {
            sets: Vec::new(),
            toggled: Vec::new(),
            reach: Vec::new(),
            best: Vec::new(),
            places: places.len(),
            profiles: places.profiles().len(),
        };
        table.list_states(places, entries_max)?;
        table.join_states();
        table.count_futures(offered);
        table.choose_placements(places);
        Some(table)
    }

    /// Lists every legal set, small ones first. Each is found once: from itself less its
    /// highest placement, which is legal too.
    fn list_states(&mut self, places: &InstancePlacements, entries_max: usize) -> Option<()> {
        self.push(0, entries_max)?;
        let mut from = 0;
        while let Some(set) = self.sets.get(from).copied() {
            for bit in above_highest(set)..self.places {
                if places.may_join(set, bit) {
                    let to = self.push(set | 1 << bit, entries_max)?;
                    self.join(from, to, bit);
                }
            }
            from += 1;
        }
        Some(())
    }

    fn push(&mut self, set: u128, entries_max: usize) -> Option<usize> {
        let entries = self.toggled.len().saturating_add(self.places.max(1));
        if entries > entries_max {
            return None;
        }
        self.sets.push(set);
        self.toggled.resize(self.sets.len() * self.places, NOWHERE);
        Some(self.sets.len() - 1)
    }

    fn join(&mut self, without: usize, with: usize, bit: usize) {
        self.toggled[without * self.places + bit] = short(with);
        self.toggled[with * self.places + bit] = short(without);
    }

    /// Joins each state with those that have one more placement *below* its highest one `h`.
    ///
    /// With `s = r + h`, the state `s + b` is `(r + b) + h`; `r + b` is smaller than `s` and done,
    /// and its step to `h`, above all it has, was joined when it was listed.
    fn join_states(&mut self) {
        for state in 0..self.sets.len() {
            let set = self.sets[state];
            let Some(highest) = above_highest(set).checked_sub(1) else { continue };
            let Some(rest) = self.toggle(state, highest) else { continue };
            for bit in (0..highest).filter(|bit| set & (1 << bit) == 0) {
                let swapped = self.toggle(rest, bit).and_then(|next| self.toggle(next, highest));
                if let Some(with) = swapped {
                    self.join(state, with, bit);
                }
            }
        }
    }

    /// Counts for each state the states without an offered successor that contain it and differ
    /// from it in offered placements only.
    ///
    /// Summed over supersets one placement at a time: after the pass for a placement, a state
    /// holds the count of those that differ from it in this and earlier placements.
    fn count_futures(&mut self, offered: u128) {
        self.reach = (0..self.sets.len())
            .map(|state| u32::from(self.successors(state, offered).next().is_none()))
            .collect();
        for bit in bits(offered) {
            for state in 0..self.sets.len() {
                if self.sets[state] & (1 << bit) == 0
                    && let Some(next) = self.toggle(state, bit)
                {
                    self.reach[state] += self.reach[next];
                }
            }
        }
    }

    fn choose_placements(&mut self, places: &InstancePlacements) {
        let ways: Vec<_> = places.profiles().iter().map(|p| places.bits_of(*p)).collect();
        let mut best = Vec::with_capacity(self.sets.len() * ways.len());
        for state in 0..self.sets.len() {
            for way in &ways {
                let mut choice = (0, NO_PLACE);
                for bit in way.clone().filter(|bit| self.sets[state] & (1 << bit) == 0) {
                    let reach = self.toggle(state, bit).map_or(0, |next| self.reach[next]);
                    // Starts ascend: among equals the last one remains.
                    if reach > 0 && reach >= choice.0 {
                        choice = (reach, clamped(bit));
                    }
                }
                best.push(choice.1);
            }
        }
        self.best = best;
    }

    fn successors(&self, state: usize, among: u128) -> impl Iterator<Item = usize> {
        bits(among & !self.sets[state]).filter_map(move |bit| self.toggle(state, bit))
    }

    /// Returns how many states there are.
    pub const fn len(&self) -> usize {
        self.sets.len()
    }

    /// Returns the placements of a state.
    pub fn set(&self, state: usize) -> u128 {
        self.sets[state]
    }

    /// Returns the state with the placement taken, or given back if it has it; `None` if it
    /// can't be taken.
    pub fn toggle(&self, state: usize, bit: usize) -> Option<usize> {
        let next = self.toggled[state * self.places + bit];
        (next != NOWHERE).then(|| long(next))
    }

    /// Returns `R` of a state.
    pub fn reach(&self, state: usize) -> usize {
        long(self.reach[state])
    }

    /// Returns the best placement of the profile with this number.
    pub fn best(&self, state: usize, profile: usize) -> Option<usize> {
        let bit = self.best[state * self.profiles + profile];
        (bit != NO_PLACE).then(|| usize::from(bit))
    }
}

/// Returns the number of the lowest bit above all that are set.
fn above_highest(set: u128) -> usize {
    index(u64::from(u128::BITS - set.leading_zeros()))
}

/// There are fewer states than [`ENTRIES_MAX`], so that no index is cut.
fn short(number: usize) -> u32 {
    clamped(number)
}

fn long(number: u32) -> usize {
    index(u64::from(number))
}
