//! The gaps of one task by the pair of kernels that they follow, in bounded memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fikit::EPSILON;
use crate::ids::KernelIndex;
use crate::limits::PAIRS_MAX;
use crate::sketch::Sketch;
use crate::time::Nanos;

/// The kernels that a gap follows: the last kernel and, if it matters, the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelPair {
    /// The kernel before; `None` stands for any kernel.
    pub before: Option<KernelIndex>,
    /// The kernel that the gap follows.
    pub kernel: KernelIndex,
}

impl KernelPair {
    /// Returns what stands for any kernel of a function after any other. No kernel has this index before it.
    const fn of_function(function: KernelIndex) -> Self {
        Self { before: Some(KernelIndex::UNKNOWN), kernel: function }
    }
}

/// Fewest gaps of a histogram that is trusted.
const TRUSTED_SAMPLES_MIN: u32 = 8;
/// The same if the gaps are alike: a program that repeats itself needs no more. Until then, those after the kernel alone
/// count, and among these are others.
const ALIKE_SAMPLES_MIN: u32 = 3;

/// Twice as many slots as histograms, so that a free slot is always near.
const SLOTS: usize = 2 * PAIRS_MAX;

/// Histograms of gaps by [`KernelPair`].
///
/// At most [`PAIRS_MAX`] histograms are kept. Gaps of further pairs count only for the kernel alone,
/// if it has a histogram. All memory is allocated at once, so that learning allocates nothing.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Vec<(KernelPair, Sketch)>", into = "Vec<(KernelPair, Sketch)>")]
pub struct GapHistograms {
    /// Open addressing: an index into `held` plus one. Zero is a free slot.
    slots: Box<[u16]>,
    held: Vec<(KernelPair, Sketch)>,
}

impl Default for GapHistograms {
    fn default() -> Self {
        Self { slots: vec![0; SLOTS].into_boxed_slice(), held: Vec::with_capacity(PAIRS_MAX) }
    }
}

impl fmt::Debug for GapHistograms {
    /// Shows the histograms without the slots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.held.iter().map(|(pair, gaps)| (pair, gaps.held()))).finish()
    }
}

impl PartialEq for GapHistograms {
    fn eq(&self, other: &Self) -> bool {
        self.held == other.held
    }
}

impl GapHistograms {
    /// Adds a gap that followed `kernel`, which followed `before`.
    pub fn add(&mut self, before: Option<KernelIndex>, kernel: KernelIndex, gap: Nanos) {
        if let Some(alone) = self.entry(KernelPair { before: None, kernel }) {
            alone.add(gap);
        }
        if before.is_some()
            && let Some(of_pair) = self.entry(KernelPair { before, kernel })
        {
            of_pair.add(gap);
        }
    }

    /// Adds a gap that followed any kernel of a function. Such gaps are specific to the slice and not merged.
    pub fn add_of_function(&mut self, function: KernelIndex, gap: Nanos) {
        if let Some(of_function) = self.entry(KernelPair::of_function(function)) {
            of_function.add(gap);
        }
    }

    /// Returns the gaps after all kernels of a function, if they are not too few.
    pub fn trusted_of_function(&self, function: KernelIndex) -> Option<&Sketch> {
        let index = self.find(KernelPair::of_function(function)).ok()?;
        let sketch = &self.held[index].1;
        (sketch.held() >= TRUSTED_SAMPLES_MIN).then_some(sketch)
    }

    /// Returns the pair's gaps or, if they are too few, the kernel's. `None` if both are too few.
    pub fn trusted(&self, before: Option<KernelIndex>, kernel: KernelIndex) -> Option<&Sketch> {
        let of = |before| {
            let index = self.find(KernelPair { before, kernel }).ok()?;
            let sketch = &self.held[index].1;
            let is_enough = sketch.held() >= TRUSTED_SAMPLES_MIN
                || (sketch.held() >= ALIKE_SAMPLES_MIN && are_alike(sketch));
            is_enough.then_some(sketch)
        };
        before.and_then(|before| of(Some(before))).or_else(|| of(None))
    }

    /// Adds all gaps of another task profile. `renamed` maps its kernel indexes to those used here.
    pub fn merge(&mut self, other: &Self, renamed: impl Fn(KernelIndex) -> Option<KernelIndex>) {
        for (pair, sketch) in &other.held {
            let before = pair.before.map(&renamed);
            // A pair needs an index for both of its kernels.
            let (Some(kernel), Some(before)) =
                (renamed(pair.kernel), before.map_or(Some(None), |renamed| renamed.map(Some)))
            else {
                continue;
            };
            if let Some(mine) = self.entry(KernelPair { before, kernel }) {
                mine.merge(sketch);
            }
        }
    }

    /// Returns the longest gap, if there is one.
    pub fn longest(&self) -> Option<Nanos> {
        let observed = self.held.iter().filter(|(_, gaps)| gaps.held() > 0);
        observed.map(|(_, gaps)| gaps.longest()).max()
    }

    /// Returns every pair that has gaps.
    pub fn pairs(&self) -> impl Iterator<Item = KernelPair> {
        self.held.iter().filter(|(_, gaps)| gaps.held() > 0).map(|(pair, _)| *pair)
    }

    /// Adds the gaps of the pair `theirs` in `other` to the pair `mine`.
    pub fn merge_pair(&mut self, other: &Self, theirs: KernelPair, mine: KernelPair) {
        let Ok(index) = other.find(theirs) else { return };
        if let Some(entry) = self.entry(mine) {
            entry.merge(&other.held[index].1);
        }
    }

    /// Discards the gaps after one kernel.
    pub fn forget(&mut self, kernel: KernelIndex) {
        for (_, sketch) in self.held.iter_mut().filter(|(pair, _)| pair.kernel == kernel) {
            *sketch = Sketch::default();
        }
    }

    fn entry(&mut self, pair: KernelPair) -> Option<&mut Sketch> {
        let index = match self.find(pair) {
            Ok(index) => index,
            Err(slot) => {
                let number = u16::try_from(self.held.len() + 1).ok()?;
                if self.held.len() >= PAIRS_MAX {
                    return None;
                }
                self.slots[slot] = number;
                self.held.push((pair, Sketch::default()));
                usize::from(number) - 1
            }
        };
        Some(&mut self.held[index].1)
    }

    /// Returns the pair's index, or the free slot for it.
    fn find(&self, pair: KernelPair) -> Result<usize, usize> {
        let mut slot = start(pair);
        loop {
            let number = usize::from(self.slots[slot]);
            if number == 0 {
                return Err(slot);
            }
            if self.held[number - 1].0 == pair {
                return Ok(number - 1);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// Returns whether all gaps are about as long, or too short to be filled.
fn are_alike(sketch: &Sketch) -> bool {
    let longest = sketch.longest();
    longest.minus(sketch.shortest()) <= Nanos::new(longest.get() / 4).max(EPSILON)
}

/// Returns the slot at which the search for a pair starts (Fibonacci hashing).
fn start(pair: KernelPair) -> usize {
    let before = pair.before.map_or(u16::MAX, KernelIndex::get);
    let key = (u32::from(before) << 16) | u32::from(pair.kernel.get());
    let mixed = key.wrapping_mul(2_654_435_769) >> 16;
    mixed as usize % SLOTS
}

impl From<GapHistograms> for Vec<(KernelPair, Sketch)> {
    fn from(histograms: GapHistograms) -> Self {
        histograms.held
    }
}

/// The stored gaps contain a pair twice, or too many pairs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the profile is damaged: its gaps of {pairs} kernel pairs contain a duplicate or exceed {PAIRS_MAX}; measure again"
)]
pub struct BadPairs {
    pairs: usize,
}

impl TryFrom<Vec<(KernelPair, Sketch)>> for GapHistograms {
    type Error = BadPairs;

    fn try_from(stored: Vec<(KernelPair, Sketch)>) -> Result<Self, BadPairs> {
        let pairs = stored.len();
        let mut histograms = Self::default();
        for (pair, sketch) in stored {
            if histograms.find(pair).is_ok() {
                return Err(BadPairs { pairs });
            }
            *histograms.entry(pair).ok_or(BadPairs { pairs })? = sketch;
        }
        Ok(histograms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_gaps_are_enough_if_they_are_alike() {
        let (before, kernel) = (Some(KernelIndex::new(1)), KernelIndex::new(2));
        let held = |micros: &[u64]| {
            let mut gaps = GapHistograms::default();
            micros.iter().for_each(|gap| gaps.add(before, kernel, Nanos::from_micros(*gap)));
            gaps.trusted(before, kernel).is_some()
        };

        assert!(!held(&[1_000, 1_100]));
        assert!(held(&[1_000, 1_100, 1_200]));
        assert!(held(&[0, 0, 90]), "too short to be filled");
        assert!(!held(&[0, 1_000, 1_000]));
        assert!(held(&[0, 1_000, 1_000, 0, 0, 1_000, 0, 1_000]));
    }
}
