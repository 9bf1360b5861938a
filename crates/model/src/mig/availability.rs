//! Which instances can still be created on a GPU: now, after idle instances are destroyed, and after jobs end.

use serde::{Deserialize, Serialize};

use super::geometry::{Geometry, IllegalLayout, Profile, ProfileId, Slot};
use super::subsets::{Subsets, split};
use crate::units::Millis;

/// Maximum number of sets of instances that are tried for one placement. The search beyond the
/// instances that lie in a placement's way is over pairs and triples in practice; no known GPU
/// comes near.
const TRIES_MAX: usize = 4_096;

/// How an instance is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstanceUse {
    /// Nothing runs on it: it may be destroyed at once.
    Idle,
    /// A job or a foreign process uses it.
    Busy {
        /// When it is expected to be free, on the caller's clock; `None` if that is unknown.
        until: Option<Millis>,
    },
    /// It cannot be used or destroyed until an operator repairs it.
    Stuck,
}

/// An existing instance and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccupiedInstance {
    /// Its profile and placement.
    pub slot: Slot,
    /// Its use.
    pub hold: InstanceUse,
}

/// What must happen before the first instance of a profile can be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstOpening {
    /// Nothing: there is enough free space.
    Now,
    /// These idle instances, the fewest that are enough.
    AfterIdle {
        /// What has to be destroyed.
        idle: Vec<Slot>,
    },
    /// These busy instances, the fewest that are enough.
    AfterBusy {
        /// What has to end first.
        busy: Vec<Slot>,
        /// The idle instances that have to be destroyed as well.
        idle: Vec<Slot>,
        /// When the last of `busy` is expected to end; `None` if that isn't known of each.
        ready: Option<Millis>,
    },
    /// Stuck instances are in the way: an operator must act.
    Blocked {
        /// The fewest stuck instances that would have to go.
        stuck: Vec<Slot>,
    },
}

/// What can be made of one profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileAvailability {
    /// The number that NVML has for the profile.
    pub profile: ProfileId,
    /// How many more can be created without destroying an instance.
    pub now: u32,
    /// How many can be created once every idle instance is gone.
    pub after_idle: u32,
    /// What the first one needs.
    pub first: FirstOpening,
}

/// Returns for each profile of the geometry, in its order, what can be created.
///
/// Among sets of equally few busy instances the one that is expected to end first is named,
/// unknown ends last. Then the one that costs the fewest idle instances counts, then the lowest start.
///
/// # Errors
///
/// [`IllegalLayout`] if `instances` cannot coexist in this geometry.
pub fn list_availability(
    geometry: &Geometry,
    instances: &[OccupiedInstance],
) -> Result<Vec<ProfileAvailability>, IllegalLayout> {
    geometry.check(instances.iter().map(|t| &t.slot))?;
    let search = InstanceSearch { geometry, instances };
    Ok(geometry.profiles.iter().map(|profile| search.find_availability(profile)).collect())
}

/// Counts how many instances of one profile of the geometry fit in addition to `standing`; none if those
/// cannot coexist.
///
/// Exact: placements of one profile are equally long, so taking them from the left leaves the most
/// space, and counts and engines are the same at any placement.
pub fn count_creatable(geometry: &Geometry, standing: &[Slot], profile: &Profile) -> u32 {
    let mut filled = standing.to_vec();
    let mut made = 0;
    for slot in placements(profile) {
        filled.push(slot);
        if geometry.check(&filled).is_ok() {
            made += 1;
        } else {
            filled.pop();
        }
    }
    made
}

/// The existing instances on one GPU.
struct InstanceSearch<'g> {
    geometry: &'g Geometry,
    instances: &'g [OccupiedInstance],
}

impl InstanceSearch<'_> {
    fn find_availability(&self, profile: &Profile) -> ProfileAvailability {
        let everything = self.slots(|_| true);
        let lasting = self.slots(|hold| hold != InstanceUse::Idle);
        let now = count_creatable(self.geometry, &everything, profile);
        let after_idle = count_creatable(self.geometry, &lasting, profile);
        let first = if now > 0 { FirstOpening::Now } else { self.first(profile) };
        ProfileAvailability { profile: profile.id, now, after_idle, first }
    }

    fn slots(&self, keep: impl Fn(InstanceUse) -> bool) -> Vec<Slot> {
        self.instances.iter().filter(|t| keep(t.hold)).map(|t| t.slot).collect()
    }

    fn first(&self, profile: &Profile) -> FirstOpening {
        let idle = self.slots(|hold| hold == InstanceUse::Idle);
        let busy = self.slots(|hold| matches!(hold, InstanceUse::Busy { .. }));
        let stuck = self.slots(|hold| hold == InstanceUse::Stuck);
        let ways = || placements(profile);

        let lasting = [stuck.clone(), busy.clone()].concat();
        let by_idle = ways().filter_map(|slot| self.fewest(&lasting, &idle, slot));
        if let Some(idle) = by_idle.min_by_key(Vec::len) {
            return FirstOpening::AfterIdle { idle };
        }
        let by_busy = ways().filter_map(|slot| {
            let gone = self.fewest(&stuck, &busy, slot)?;
            let left: Vec<_> = busy.iter().filter(|b| !gone.contains(b)).copied().collect();
            let as_well = self.fewest(&[stuck.clone(), left].concat(), &idle, slot)?;
            Some((gone, as_well))
        });
        let unknown_last = |ready: Option<Millis>| (ready.is_none(), ready);
        let best = by_busy
            .min_by_key(|(busy, idle)| (busy.len(), unknown_last(self.ready(busy)), idle.len()));
        if let Some((busy, idle)) = best {
            let ready = self.ready(&busy);
            return FirstOpening::AfterBusy { busy, idle, ready };
        }
        let by_person = ways().filter_map(|slot| self.fewest(&[], &stuck, slot));
        FirstOpening::Blocked { stuck: by_person.min_by_key(Vec::len).unwrap_or(stuck) }
    }

    /// Returns when the last of these instances is expected to end.
    fn ready(&self, slots: &[Slot]) -> Option<Millis> {
        let until = |slot: &Slot| match self.instances.iter().find(|t| t.slot == *slot)?.hold {
            InstanceUse::Busy { until } => until,
            InstanceUse::Idle => Some(Millis::ZERO),
            InstanceUse::Stuck => None,
        };
        slots.iter().map(until).try_fold(Millis::ZERO, |last, next| Some(last.max(next?)))
    }

    /// Returns the fewest of `movable` without which `slot` can coexist with the rest of them
    /// and `fixed`; of equally few, those that end first. `None` if that is never enough.
    ///
    /// Instances on the same slices must be destroyed in any case; counts and engines may require more.
    /// That search is cut off after [`TRIES_MAX`] sets; then every movable instance is named.
    fn fewest(&self, fixed: &[Slot], movable: &[Slot], slot: Slot) -> Option<Vec<Slot>> {
        let legal = |more: &[Slot]| {
            let all = fixed.iter().chain(more).chain([&slot]);
            self.geometry.check(all).is_ok()
        };
        if !legal(&[]) {
            return None;
        }
        let (forced, others): (Vec<Slot>, Vec<Slot>) =
            movable.iter().partition(|other| self.geometry.overlap(**other, slot));
        let mut tries = 0;
        for size in 0..=others.len() {
            let mut best: Option<Vec<Slot>> = None;
            for gone in Subsets::new(others.len(), size) {
                tries += 1;
                if tries > TRIES_MAX {
                    return Some(movable.to_vec());
                }
                let (out, stay) = split(&others, &gone);
                if legal(&stay) {
                    let way = [forced.clone(), out].concat();
                    let key = |way: &[Slot]| {
                        let ready = self.ready(way);
                        (ready.is_none(), ready)
                    };
                    if best.as_ref().is_none_or(|best| key(&way) < key(best)) {
                        best = Some(way);
                    }
                }
            }
            if let Some(mut best) = best {
                best.sort_unstable();
                return Some(best);
            }
        }
        None
    }
}

fn placements(profile: &Profile) -> impl Iterator<Item = Slot> {
    let mut starts = profile.starts.clone();
    starts.sort_unstable();
    let id = profile.id;
    starts.into_iter().map(move |start| Slot { start, profile: id })
}

#[cfg(test)]
mod tests;
