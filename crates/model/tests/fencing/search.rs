//! Looks for a run that breaks an invariant: breadth first, or by seeded random walks.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::mem::discriminant;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};

use crate::moves::{Move, successors};
use crate::rules::Rules;
use crate::state::{Bounds, Job, State, Violation};

/// Longest random walk: counterexamples have about 40 moves.
const WALK_MOVES_MAX: usize = 60;

/// What must happen in some run, or the search proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    pub done_by_first_attempt: bool,
    pub done_by_second_attempt: bool,
    pub node_declared_lost: bool,
    pub node_reattached: bool,
    pub leader_replaced: bool,
    pub store_went_back: bool,
    pub ran_out_of_memory: bool,
}

impl Reached {
    fn note(&mut self, name: Move, after: &State) {
        self.done_by_first_attempt |= after.store.job == Job::Done { by: 1 };
        self.done_by_second_attempt |= after.store.job == Job::Done { by: 2 };
        self.node_declared_lost |= matches!(name, Move::NodeIsDeclaredLost { .. });
        self.node_reattached |= matches!(name, Move::NodeReattaches { .. });
        self.leader_replaced |= matches!(name, Move::LeaderIsElected { .. });
        self.store_went_back |= matches!(name, Move::StoreGoesBack);
        self.ran_out_of_memory |= matches!(name, Move::ProcessRunsOutOfMemory { .. });
    }
}

/// How a search ended.
#[derive(Debug)]
pub enum Outcome {
    /// No invariant was broken.
    Holds { states: usize, exhausted: bool, reached: Reached },
    /// This run breaks one.
    Broken { violation: Violation, run: Vec<Move> },
}

impl Outcome {
    /// Shows the run that breaks an invariant, a line for each move.
    pub fn story(&self) -> String {
        match self {
            Self::Holds { states, exhausted, reached } => {
                format!("holds in {states} states (exhausted: {exhausted}), reached {reached:?}")
            }
            Self::Broken { violation, run } => {
                let mut story = format!("{violation:?} after {} moves:\n", run.len());
                for (number, name) in (1..).zip(run) {
                    writeln!(story, "{number:>4}. {name:?}").unwrap();
                }
                story
            }
        }
    }
}

/// Visits every state that can be reached, nearest first, up to `states_max`.
///
/// A counterexample is therefore a shortest one. States are remembered by a 128-bit fingerprint
/// together with their predecessor's. With ten million states the odds that two share one, and so a
/// state is missed, are about 1 in 10^24.
pub fn breadth_first(rules: Rules, bounds: Bounds, states_max: usize) -> Outcome {
    let initial = State::initial();
    let origin = fingerprint(&initial);
    let mut came_from = HashMap::<u128, u128, BuildHasherDefault<LowHalf>>::default();
    came_from.insert(origin, origin);
    let mut frontier = VecDeque::from([(origin, initial)]);
    let mut reached = Reached::default();
    while let Some((before, state)) = frontier.pop_front() {
        for (name, after) in successors(&state, rules, bounds) {
            reached.note(name, &after);
            let print = fingerprint(&after);
            if came_from.contains_key(&print) {
                continue;
            }
            came_from.insert(print, before);
            if let Some(violation) = after.violation() {
                let run = retrace(&came_from, print, rules, bounds);
                return Outcome::Broken { violation, run };
            }
            frontier.push_back((print, after));
        }
        if came_from.len() >= states_max {
            return Outcome::Holds { states: came_from.len(), exhausted: false, reached };
        }
    }
    Outcome::Holds { states: came_from.len(), exhausted: true, reached }
}

/// Walks back along the fingerprints, then forward again to name the moves.
fn retrace(
    came_from: &HashMap<u128, u128, BuildHasherDefault<LowHalf>>,
    last: u128,
    rules: Rules,
    bounds: Bounds,
) -> Vec<Move> {
    let mut prints = vec![last];
    while let Some(before) = prints.last().map(|print| came_from[print]) {
        if Some(&before) == prints.last() {
            break;
        }
        prints.push(before);
    }
    let mut state = State::initial();
    let mut run = Vec::new();
    for print in prints.into_iter().rev().skip(1) {
        let ways = successors(&state, rules, bounds);
        let (name, after) = ways.into_iter().find(|(_, s)| fingerprint(s) == print).unwrap();
        run.push(name);
        state = after;
    }
    run
}

/// Takes random walks until one breaks an invariant.
///
/// Each walk draws its own weight for each kind of move (swarm testing: Groce et al., ISSTA 2012).
/// So some walks hardly ever crash anything and others do little else.
pub fn random_walks(rules: Rules, bounds: Bounds, seed: u64, walks: u32) -> Outcome {
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut reached = Reached::default();
    let mut states = 0;
    for _ in 0..walks {
        let salt = random.next_u64();
        let mut state = State::initial();
        let mut run = Vec::new();
        while run.len() < WALK_MOVES_MAX {
            let mut ways = successors(&state, rules, bounds);
            let weights: Vec<u64> = ways.iter().map(|(name, _)| weight(salt, *name)).collect();
            let total: u64 = weights.iter().sum();
            if total == 0 {
                break;
            }
            let mut pick = random.next_u64() % total;
            let at = weights.iter().position(|weight| match pick.checked_sub(*weight) {
                Some(rest) => {
                    pick = rest;
                    false
                }
                None => true,
            });
            let (name, after) = ways.swap_remove(at.unwrap());
            state = after;
            states += 1;
            run.push(name);
            reached.note(name, &state);
            if let Some(violation) = state.violation() {
                return Outcome::Broken { violation, run };
            }
        }
    }
    Outcome::Holds { states, exhausted: false, reached }
}

/// Draws how likely a walk makes moves of this kind about this node.
fn weight(salt: u64, name: Move) -> u64 {
    let mut hasher = Fingerprint::default();
    (salt, discriminant(&name), name.node()).hash(&mut hasher);
    match (hasher.finish() >> 17) % 8 {
        0 => 1,
        1 | 2 => 10,
        3..=5 => 60,
        _ => 300,
    }
}

fn fingerprint(state: &State) -> u128 {
    let mut hasher = Fingerprint::default();
    state.hash(&mut hasher);
    hasher.mixed()
}

/// FNV-1a with 128 bits, a word at a time, and a final mix.
struct Fingerprint(u128);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fingerprint {
    fn take(&mut self, word: u128) {
        // An odd multiplier with bits all over, so that each word reaches the high half at once.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 ^= self.0 >> 59;
    }

    fn mixed(&self) -> u128 {
        let half = self.0 ^ (self.0 >> 64);
        half.wrapping_mul(0xbf58_476d_1ce4_e5b9_94d0_49bb_1331_11eb) ^ (half >> 61)
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        low_half(self.mixed())
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(16) {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            self.take(u128::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.take(u128::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.take(u128::from(value));
    }
}

/// Fingerprints are mixed already: the table uses their low half as it is.
#[derive(Default)]
struct LowHalf(u64);

impl Hasher for LowHalf {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut low = [0; 8];
        low.copy_from_slice(&bytes[..8]);
        self.0 = u64::from_le_bytes(low);
    }
}

fn low_half(word: u128) -> u64 {
    u64::try_from(word & u128::from(u64::MAX)).unwrap()
}
