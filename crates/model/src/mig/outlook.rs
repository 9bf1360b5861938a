//! What can still be made on a GPU: now, once idle instances go, and once jobs have ended.

use serde::{Deserialize, Serialize};

use super::geometry::{Geometry, IllegalLayout, Profile, ProfileId, Slot};
use super::subsets::{Subsets, split};
use crate::units::Millis;

/// Most sets of instances that are tried for one placement. The search beyond the instances
/// that lie in a placement's way is over pairs and triples in practice; no known GPU comes near.
const TRIES_MAX: usize = 4_096;

/// What an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// Nothing runs on it: it may be destroyed at once.
    Idle,
    /// It is in use, by a job or by a stranger.
    Busy {
        /// When it is expected to be free, on the caller's clock; `None` if nobody knows.
        until: Option<Millis>,
    },
    /// It can't be used or destroyed until a person looks.
    Stuck,
}

/// An instance that stands, and what it is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Where and what.
    pub slot: Slot,
    /// What it is doing.
    pub hold: Hold,
}

/// What stands between now and the first instance of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum First {
    /// Nothing: there is room.
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
    /// Instances that don't go away by themselves: a person must act.
    Blocked {
        /// The fewest stuck instances that would have to go.
        stuck: Vec<Slot>,
    },
}

/// What can be made of one profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlook {
    /// The profile.
    pub profile: ProfileId,
    /// How many more can be created beside everything that stands.
    pub now: u32,
    /// How many can be created once every idle instance is gone.
    pub after_idle: u32,
    /// What the first one needs.
    pub first: First,
}

/// Tells for each profile of the geometry, in its order, what can be made of it.
///
/// Among sets of equally few busy instances the one that is expected to end first is named,
/// unknown ends last; then the one that costs the fewest idle instances; then the lowest start.
///
/// # Errors
///
/// [`IllegalLayout`] if `tenants` can't stand together by this geometry: it is not theirs.
pub fn outlook(geometry: &Geometry, tenants: &[Tenant]) -> Result<Vec<Outlook>, IllegalLayout> {
    geometry.check(tenants.iter().map(|t| &t.slot))?;
    let crowd = Crowd { geometry, tenants };
    Ok(geometry.profiles.iter().map(|profile| crowd.outlook(profile)).collect())
}

/// Counts how many instances of one profile of the geometry fit beside `standing`; none beside what
/// can't stand together.
///
/// Exact: placements of one profile are equally long, so taking them from the left leaves the most
/// room, and counts and engines are the same wherever they stand.
pub fn room_for(geometry: &Geometry, standing: &[Slot], profile: &Profile) -> u32 {
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

/// The instances that stand on one GPU.
struct Crowd<'g> {
    geometry: &'g Geometry,
    tenants: &'g [Tenant],
}

impl Crowd<'_> {
    fn outlook(&self, profile: &Profile) -> Outlook {
        let everything = self.slots(|_| true);
        let lasting = self.slots(|hold| hold != Hold::Idle);
        let now = room_for(self.geometry, &everything, profile);
        let after_idle = room_for(self.geometry, &lasting, profile);
        let first = if now > 0 { First::Now } else { self.first(profile) };
        Outlook { profile: profile.id, now, after_idle, first }
    }

    fn slots(&self, keep: impl Fn(Hold) -> bool) -> Vec<Slot> {
        self.tenants.iter().filter(|t| keep(t.hold)).map(|t| t.slot).collect()
    }

    fn first(&self, profile: &Profile) -> First {
        let idle = self.slots(|hold| hold == Hold::Idle);
        let busy = self.slots(|hold| matches!(hold, Hold::Busy { .. }));
        let stuck = self.slots(|hold| hold == Hold::Stuck);
        let ways = || placements(profile);

        let lasting = [stuck.clone(), busy.clone()].concat();
        let by_idle = ways().filter_map(|slot| self.fewest(&lasting, &idle, slot));
        if let Some(idle) = by_idle.min_by_key(Vec::len) {
            return First::AfterIdle { idle };
        }
        let by_busy = ways().filter_map(|slot| {
            let gone = self.fewest(&stuck, &busy, slot)?;
            let left: Vec<_> = busy.iter().filter(|b| !gone.contains(b)).copied().collect();
            let beside = self.fewest(&[stuck.clone(), left].concat(), &idle, slot)?;
            Some((gone, beside))
        });
        let unknown_last = |ready: Option<Millis>| (ready.is_none(), ready);
        let best = by_busy
            .min_by_key(|(busy, idle)| (busy.len(), unknown_last(self.ready(busy)), idle.len()));
        if let Some((busy, idle)) = best {
            let ready = self.ready(&busy);
            return First::AfterBusy { busy, idle, ready };
        }
        let by_person = ways().filter_map(|slot| self.fewest(&[], &stuck, slot));
        First::Blocked { stuck: by_person.min_by_key(Vec::len).unwrap_or(stuck) }
    }

    /// Returns when the last of these instances is expected to end.
    fn ready(&self, slots: &[Slot]) -> Option<Millis> {
        let until = |slot: &Slot| match self.tenants.iter().find(|t| t.slot == *slot)?.hold {
            Hold::Busy { until } => until,
            Hold::Idle => Some(Millis::ZERO),
            Hold::Stuck => None,
        };
        slots.iter().map(until).try_fold(Millis::ZERO, |last, next| Some(last.max(next?)))
    }

    /// Returns the fewest of `movable` without which `slot` can stand beside the rest of them
    /// and `fixed`; of equally few, those that end first. `None` if that is never enough.
    ///
    /// What lies on the same slices has to go in any case; counts and engines may ask for more.
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
