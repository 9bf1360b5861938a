//! The placements of the compute instances of a requested layout, and the steps that make them.

use std::collections::BTreeMap;

use super::compute::{self, Cut, NoCut, StandingCut};
use super::desired::{ArrangementError, DesiredLayout};
use super::geometry::{Geometry, Layout, Profile, Slot};
use super::plan::PlanStep;

/// The compute instances of every GPU instance of a layout.
pub type Cuts = BTreeMap<Slot, Cut>;

/// Cuts of the slots so far, and how many GPU instances have to be changed for them.
type Found = (usize, Vec<(Slot, Cut)>);

impl DesiredLayout {
    /// Finds the compute instances of each GPU instance of `layout`, which was arranged for these
    /// instances. Busy ones stay, and as few GPU instances as possible get new compute instances.
    ///
    /// # Errors
    ///
    /// [`ArrangementError::IllegalCut`] if a GPU instance can't be cut so;
    /// [`ArrangementError::InTheWay`] with the GPU instances whose compute instances are in use.
    pub fn cuts(
        &self,
        geometry: &Geometry,
        layout: &Layout,
        standing: &BTreeMap<Slot, StandingCut>,
    ) -> Result<Cuts, ArrangementError> {
        let mut cuts = Cuts::new();
        for profile in &geometry.profiles {
            let slots: Vec<_> =
                layout.iter().filter(|slot| slot.profile == profile.id).copied().collect();
            if !slots.is_empty() {
                cuts.extend(self.cuts_of(profile, &slots, standing)?);
            }
        }
        Ok(cuts)
    }

    fn cuts_of(
        &self,
        profile: &Profile,
        slots: &[Slot],
        standing: &BTreeMap<Slot, StandingCut>,
    ) -> Result<Vec<(Slot, Cut)>, ArrangementError> {
        let mine = || self.0.iter().filter(|desired| desired.profile == profile.name);
        let named = |slot: &Slot| mine().find(|w| w.start == Some(slot.start));
        let fixed = slots.iter().filter_map(|slot| Some((*slot, named(slot)?.cut.as_slice())));
        let open: Vec<Slot> = slots.iter().filter(|slot| named(slot).is_none()).copied().collect();
        let mut requested: Vec<&[u8]> =
            mine().filter(|w| w.start.is_none()).map(|w| w.cut.as_slice()).collect();
        // The same one after another, so that equals are tried once.
        requested.sort_unstable();
        let there = |slot: Slot| standing.get(&slot).copied().unwrap_or_default();
        let mut found = Vec::new();
        for (slot, sizes) in fixed {
            let cut = place(profile, sizes, there(slot))?;
            found.push((slot, cut.ok_or(ArrangementError::InTheWay { busy: vec![slot] })?));
        }
        let rest = assign(profile, &open, &requested, &there)?.ok_or_else(|| {
            let busy = |slot: &&Slot| !there(**slot).busy.is_empty();
            ArrangementError::InTheWay { busy: open.iter().filter(busy).copied().collect() }
        })?;
        found.extend(rest.1);
        Ok(found)
    }
}

/// Finds starts for the compute instances of one GPU instance; `None` if busy ones are in the way.
/// A GPU instance gets new compute instances only while nothing runs on any part of it.
fn place(
    profile: &Profile,
    sizes: &[u8],
    there: StandingCut,
) -> Result<Option<Cut>, ArrangementError> {
    let slices = profile.compute_slices;
    if sizes.is_empty() {
        // A GPU instance of unknown rules has one compute instance over all of it nevertheless.
        let too_many = |_: NoCut| compute::IllegalCut::Unknown { compute_slices: slices };
        let whole = Cut::whole(slices).map_err(too_many).map_err(|e| illegal(profile, e))?;
        return Ok(there.lets(whole).then_some(whole));
    }
    let cut = compute::arrange(slices, sizes, &there.cut, &there.busy);
    let cut = cut.map_err(|problem| illegal(profile, problem))?;
    Ok(cut.filter(|cut| there.lets(*cut)))
}

impl StandingCut {
    fn lets(&self, cut: Cut) -> bool {
        self.busy.is_empty() || self.cut == cut
    }
}

fn illegal(profile: &Profile, problem: compute::IllegalCut) -> ArrangementError {
    ArrangementError::IllegalCut { profile: profile.name.clone(), problem }
}

/// Gives every slot one of the requested divisions, so that the fewest are changed.
fn assign(
    profile: &Profile,
    slots: &[Slot],
    requested: &[&[u8]],
    there: &impl Fn(Slot) -> StandingCut,
) -> Result<Option<Found>, ArrangementError> {
    let Some((slot, rest)) = slots.split_first() else { return Ok(Some((0, Vec::new()))) };
    let mut best: Option<Found> = None;
    for (index, sizes) in requested.iter().enumerate() {
        if index > 0 && requested[index - 1] == *sizes {
            continue;
        }
        let standing = there(*slot);
        let Some(cut) = place(profile, sizes, standing)? else { continue };
        let mut others = requested.to_vec();
        others.remove(index);
        let Some((changed, mut found)) = assign(profile, rest, &others, there)? else { continue };
        let changed = changed + usize::from(cut != standing.cut);
        if best.as_ref().is_none_or(|(least, _)| changed < *least) {
            found.insert(0, (*slot, cut));
            best = Some((changed, found));
        }
    }
    Ok(best)
}

/// Adds to the steps of a plan between layouts what makes the compute instances. A creation with
/// several is one step. Existing instances with other compute instances get new ones last.
pub fn cut_steps(
    geometry: &Geometry,
    steps: Vec<PlanStep>,
    standing: &BTreeMap<Slot, StandingCut>,
    cuts: &Cuts,
) -> Vec<PlanStep> {
    let whole = |slot: Slot| Cut::whole(geometry.profile(slot.profile)?.compute_slices).ok();
    let created = |step: PlanStep| match step {
        PlanStep::Create(slot) => match cuts.get(&slot) {
            Some(cut) if Some(*cut) != whole(slot) => PlanStep::Cut(slot, *cut),
            Some(_) | None => step,
        },
        PlanStep::Destroy(_) | PlanStep::Cut(..) => step,
    };
    let mut all: Vec<_> = steps.into_iter().map(created).collect();
    let changed = cuts.iter().filter(|(slot, cut)| {
        standing.get(slot).is_some_and(|there| !there.cut.is_empty() && there.cut != **cut)
    });
    all.extend(changed.map(|(slot, cut)| PlanStep::Cut(*slot, *cut)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::catalog;
    use crate::mig::compute::ComputeSlot;

    fn a100() -> Geometry {
        catalog::models()["a100-40gb"].geometry()
    }

    fn slot(name: &str, start: u8) -> Slot {
        Slot { start, profile: a100().by_name(&name.parse().unwrap()).unwrap().id }
    }

    fn cut(parts: &[(u8, u8)]) -> Cut {
        let slot = |(start, slices): &(u8, u8)| ComputeSlot { start: *start, slices: *slices };
        parts.iter().map(slot).collect::<Vec<_>>().try_into().unwrap()
    }

    fn cuts(text: &str, standing: &[(Slot, Cut, Cut)]) -> Result<Cuts, ArrangementError> {
        let desired: DesiredLayout = text.parse().unwrap();
        let occupants: Vec<_> = standing
            .iter()
            .map(|(slot, _, busy)| super::super::InstanceOccupant {
                slot: *slot,
                busy: !busy.is_empty(),
            })
            .collect();
        let layout = desired.arrange(&a100(), &occupants, |_| 0)?;
        let standing = standing
            .iter()
            .map(|(slot, cut, busy)| (*slot, StandingCut { cut: *cut, busy: *busy }))
            .collect();
        desired.cuts(&a100(), &layout, &standing)
    }

    #[test]
    fn a_request_without_compute_instances_gets_one_over_the_whole() {
        let found = cuts("3g.20gb@0,1g.5gb@6", &[]).unwrap();

        assert_eq!(found[&slot("3g.20gb", 0)], cut(&[(0, 3)]));
        assert_eq!(found[&slot("1g.5gb", 6)], cut(&[(0, 1)]));
    }

    #[test]
    fn the_instance_that_is_cut_so_already_keeps_its_cut() {
        let (left, right) = (slot("3g.20gb", 0), slot("3g.20gb", 4));
        let standing = [
            (left, cut(&[(0, 3)]), Cut::default()),
            (right, cut(&[(0, 1), (1, 1), (2, 1)]), cut(&[(1, 1)])),
        ];

        let found = cuts("1c+1c+1c.3g.20gb,3g.20gb", &standing).unwrap();

        assert_eq!(found[&left], cut(&[(0, 3)]));
        assert_eq!(found[&right], cut(&[(0, 1), (1, 1), (2, 1)]));
    }

    #[test]
    fn what_runs_on_a_compute_instance_keeps_it_from_being_cut_away() {
        let one = slot("3g.20gb", 0);
        let standing = [(one, cut(&[(0, 1), (1, 1)]), cut(&[(1, 1)]))];

        let same = cuts("1c+1c.3g.20gb", &standing).unwrap();

        assert_eq!(same[&one], cut(&[(0, 1), (1, 1)]));
        for refused in ["3g.20gb", "1c+1c+1c.3g.20gb", "1c+2c.3g.20gb", "3g.20gb@0"] {
            let problem = cuts(refused, &standing);
            assert_eq!(problem, Err(ArrangementError::InTheWay { busy: vec![one] }), "{refused}");
        }
    }

    #[test]
    fn what_no_instance_can_be_cut_into_is_refused_with_the_reason() {
        for (text, why) in [("4c.3g.20gb", "[1, 2, 3]"), ("2c+2c.3g.20gb", "don't fit")] {
            let problem = cuts(text, &[]).unwrap_err();
            assert!(problem.to_string().contains(why), "{problem}");
        }
    }

    #[test]
    fn a_cut_is_made_with_its_instance_or_where_the_instance_stands() {
        let (new, old) = (slot("3g.20gb", 0), slot("3g.20gb", 4));
        let thirds = cut(&[(0, 1), (1, 1), (2, 1)]);
        let standing = [(old, StandingCut { cut: cut(&[(0, 3)]), busy: Cut::default() })].into();
        let desired = [(new, thirds), (old, cut(&[(0, 1), (1, 1)]))].into();

        let steps = cut_steps(&a100(), vec![PlanStep::Create(new)], &standing, &desired);

        assert_eq!(steps, [PlanStep::Cut(new, thirds), PlanStep::Cut(old, cut(&[(0, 1), (1, 1)]))]);
        let whole = [(new, cut(&[(0, 3)]))].into();
        let steps = cut_steps(&a100(), vec![PlanStep::Create(new)], &standing, &whole);
        assert_eq!(steps, [PlanStep::Create(new)]);
    }
}
