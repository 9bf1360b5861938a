//! The gaps of one task, by the pair of kernels that they follow, within bounded memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::KernelIndex;
use crate::limits::PAIRS_MAX;
use crate::sketch::Sketch;
use crate::time::Nanos;

/// What a gap follows: the kernel itself, and the one before it, if that is to be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The kernel before; nothing stands for any.
    pub before: Option<KernelIndex>,
    /// The kernel that the gap follows.
    pub kernel: KernelIndex,
}

/// From so many gaps on a histogram is believed.
const BELIEVED_MIN: u32 = 8;

/// Twice as many slots as places, so that a free one is always near.
const SLOTS: usize = 2 * PAIRS_MAX;

/// Histograms of gaps by [`Place`].
///
/// One that would be the 2,049th is not begun: its gaps count for the kernel alone, if that has
/// one. All memory is taken at once, so that learning never allocates.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Vec<(Place, Sketch)>", into = "Vec<(Place, Sketch)>")]
pub struct Pairs {
    /// Open addressing: an index into `held`, one higher; zero is free.
    slots: Box<[u16]>,
    held: Vec<(Place, Sketch)>,
}

impl Default for Pairs {
    fn default() -> Self {
        Self { slots: vec![0; SLOTS].into_boxed_slice(), held: Vec::with_capacity(PAIRS_MAX) }
    }
}

impl fmt::Debug for Pairs {
    /// Shows what is held; the slots only find it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.held.iter().map(|(place, gaps)| (place, gaps.held()))).finish()
    }
}

impl PartialEq for Pairs {
    fn eq(&self, other: &Self) -> bool {
        self.held == other.held
    }
}

impl Pairs {
    /// Adds a gap that followed `kernel`, which followed `before`.
    pub fn add(&mut self, before: Option<KernelIndex>, kernel: KernelIndex, gap: Nanos) {
        if let Some(alone) = self.entry(Place { before: None, kernel }) {
            alone.add(gap);
        }
        if before.is_some()
            && let Some(pair) = self.entry(Place { before, kernel })
        {
            pair.add(gap);
        }
    }

    /// Returns the gaps to go by: the pair's, or the kernel's, or nothing if too few were seen.
    pub fn believed(&self, before: Option<KernelIndex>, kernel: KernelIndex) -> Option<&Sketch> {
        let of = |before| {
            let index = self.find(Place { before, kernel }).ok()?;
            let sketch = &self.held[index].1;
            (sketch.held() >= BELIEVED_MIN).then_some(sketch)
        };
        before.and_then(|before| of(Some(before))).or_else(|| of(None))
    }

    /// Adds all gaps of another, whose kernels are called `renamed` here.
    pub fn merge(&mut self, other: &Self, renamed: impl Fn(KernelIndex) -> Option<KernelIndex>) {
        for (place, sketch) in &other.held {
            let before = place.before.map(&renamed);
            // A pair of which one kernel found no room here is no pair.
            let (Some(kernel), Some(before)) =
                (renamed(place.kernel), before.map_or(Some(None), |renamed| renamed.map(Some)))
            else {
                continue;
            };
            if let Some(mine) = self.entry(Place { before, kernel }) {
                mine.merge(sketch);
            }
        }
    }

    /// Returns every place that has gaps.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.held.iter().filter(|(_, gaps)| gaps.held() > 0).map(|(place, _)| *place)
    }

    /// Adds the gaps at one place of another, which is called `mine` here.
    pub fn merge_place(&mut self, other: &Self, theirs: Place, mine: Place) {
        let Ok(index) = other.find(theirs) else { return };
        if let Some(entry) = self.entry(mine) {
            entry.merge(&other.held[index].1);
        }
    }

    /// Forgets the gaps after one kernel.
    pub fn forget(&mut self, kernel: KernelIndex) {
        for (_, sketch) in self.held.iter_mut().filter(|(place, _)| place.kernel == kernel) {
            *sketch = Sketch::default();
        }
    }

    fn entry(&mut self, place: Place) -> Option<&mut Sketch> {
        let index = match self.find(place) {
            Ok(index) => index,
            Err(slot) => {
                let number = u16::try_from(self.held.len() + 1).ok()?;
                if self.held.len() >= PAIRS_MAX {
                    return None;
                }
                self.slots[slot] = number;
                self.held.push((place, Sketch::default()));
                usize::from(number) - 1
            }
        };
        Some(&mut self.held[index].1)
    }

    /// Returns the place's index, or the free slot where it would be noted.
    fn find(&self, place: Place) -> Result<usize, usize> {
        let mut slot = start(place);
        loop {
            let number = usize::from(self.slots[slot]);
            if number == 0 {
                return Err(slot);
            }
            if self.held[number - 1].0 == place {
                return Ok(number - 1);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// Returns where the search for a place begins (Fibonacci hashing).
fn start(place: Place) -> usize {
    let before = place.before.map_or(u16::MAX, KernelIndex::get);
    let key = (u32::from(before) << 16) | u32::from(place.kernel.get());
    let mixed = key.wrapping_mul(2_654_435_769) >> 16;
    usize::try_from(mixed).unwrap_or(0) % SLOTS
}

impl From<Pairs> for Vec<(Place, Sketch)> {
    fn from(pairs: Pairs) -> Self {
        pairs.held
    }
}

/// Stored gaps that name a place twice or too many places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "gaps are stored for {places} places, with one twice or more than {PAIRS_MAX}: the profile is damaged, measure again"
)]
pub struct BadPairs {
    places: usize,
}

impl TryFrom<Vec<(Place, Sketch)>> for Pairs {
    type Error = BadPairs;

    fn try_from(stored: Vec<(Place, Sketch)>) -> Result<Self, BadPairs> {
        let places = stored.len();
        let mut pairs = Self::default();
        for (place, sketch) in stored {
            if pairs.find(place).is_ok() {
                return Err(BadPairs { places });
            }
            *pairs.entry(place).ok_or(BadPairs { places })? = sketch;
        }
        Ok(pairs)
    }
}
