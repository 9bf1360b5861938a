//! The placements of a geometry as bits, and which of them exclude which.

use std::collections::BTreeSet;

use super::TooManyPlacements;
use crate::mig::geometry::{Geometry, MediaEngines, Profile, ProfileId, Slot};

/// Maximum number of placements that a state has bits for. The largest known GPU has 30.
const PLACES_MAX: usize = 128;

/// One placement that can be taken, with what it excludes.
#[derive(Clone, Debug)]
struct Place {
    slot: Slot,
    /// Placements that share a memory slice with this one, itself included.
    overlapping: u128,
    /// All placements of its profile.
    siblings: u128,
    max_instances: u32,
    media: MediaEngines,
}

/// All placements of a set of profiles: by profile, then by start.
#[derive(Clone, Debug)]
pub struct InstancePlacements {
    places: Vec<Place>,
    /// The profiles, as the driver lists them.
    profiles: Vec<ProfileId>,
    budget: MediaEngines,
}

impl InstancePlacements {
    /// Collects the placements of the profiles in `chosen` (all, if it is `None`).
    ///
    /// # Errors
    ///
    /// [`TooManyPlacements`] if they are more than a state has bits.
    pub fn new(
        geometry: &Geometry,
        chosen: Option<&BTreeSet<ProfileId>>,
    ) -> Result<Self, TooManyPlacements> {
        let mut profiles: Vec<&Profile> = Vec::new();
        for profile in &geometry.profiles {
            let listed_before = profiles.iter().any(|p| p.id == profile.id);
            if !listed_before && chosen.is_none_or(|chosen| chosen.contains(&profile.id)) {
                profiles.push(profile);
            }
        }
        let spans: Vec<(&Profile, u8, u64)> = profiles
            .iter()
            .flat_map(|profile| {
                let starts: BTreeSet<u8> = profile.starts.iter().copied().collect();
                starts.into_iter().filter_map(|s| Some((*profile, s, profile.span(s)?)))
            })
            .collect();
        if spans.len() > PLACES_MAX {
            return Err(TooManyPlacements { placements: spans.len(), most: PLACES_MAX });
        }
        let bits = |keep: &dyn Fn(&Profile, u64) -> bool| {
            let kept = spans.iter().enumerate().filter(|(_, (p, _, span))| keep(p, *span));
            kept.fold(0_u128, |set, (bit, _)| set | 1 << bit)
        };
        let places = spans
            .iter()
            .map(|(profile, start, span)| Place {
                slot: Slot { start: *start, profile: profile.id },
                overlapping: bits(&|_, other| span & other != 0),
                siblings: bits(&|other, _| other.id == profile.id),
                max_instances: u32::from(profile.max_instances),
                media: profile.media,
            })
            .collect();
        let profiles: Vec<_> = profiles.iter().map(|p| p.id).collect();
        Ok(Self { places, profiles, budget: geometry.media_budget() })
    }

    /// Returns how many there are.
    pub const fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the profiles, as the driver lists them.
    pub fn profiles(&self) -> &[ProfileId] {
        &self.profiles
    }

    /// Returns the slot of a bit.
    pub fn slot(&self, bit: usize) -> Slot {
        self.places[bit].slot
    }

    /// Returns the bit of a slot.
    pub fn bit(&self, slot: Slot) -> Option<usize> {
        self.places.iter().position(|p| p.slot == slot)
    }

    /// Returns the bits of a profile, by start.
    pub fn bits_of(&self, profile: ProfileId) -> std::ops::Range<usize> {
        let first = self.places.iter().position(|p| p.slot.profile == profile);
        let first = first.unwrap_or(self.places.len());
        let count = self.places[first..].iter().take_while(|p| p.slot.profile == profile).count();
        first..first + count
    }

    /// Returns the bits of the profiles in `chosen` as a set.
    pub fn set_of(&self, chosen: &BTreeSet<ProfileId>) -> u128 {
        let bits = self.places.iter().enumerate();
        let kept = bits.filter(|(_, place)| chosen.contains(&place.slot.profile));
        kept.fold(0, |set, (bit, _)| set | 1 << bit)
    }

    /// Returns whether two placements share a memory slice.
    pub fn overlap(&self, a: usize, b: usize) -> bool {
        self.places[a].overlapping & (1 << b) != 0
    }

    /// Returns whether the placement `bit` may join the legal set `set`.
    pub fn may_join(&self, set: u128, bit: usize) -> bool {
        let place = &self.places[bit];
        let crowded = (set & place.siblings).count_ones() >= place.max_instances;
        let engines = || bits(set).fold(place.media, |sum, b| sum.plus(self.places[b].media));
        set & place.overlapping == 0 && !crowded && engines().within(self.budget)
    }
}

/// Returns the numbers of the bits that are set, ascending.
pub fn bits(set: u128) -> impl Iterator<Item = usize> {
    let mut rest = set;
    std::iter::from_fn(move || {
        let bit = usize::try_from(rest.trailing_zeros()).ok().filter(|_| rest != 0)?;
        rest &= rest - 1;
        Some(bit)
    })
}
