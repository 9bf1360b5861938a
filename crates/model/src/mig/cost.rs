//! How long a plan takes, by the times of its operations.

use std::collections::BTreeMap;

use super::compute::{ComputeOccupant, StandingCut, recut, recut_time};
use super::geometry::{Geometry, Slot};
pub use super::operation_times::{creation, destruction};
use super::plan::PlanStep;
use crate::units::Millis;

/// Returns the predicted time of one step.
///
/// A profile that the geometry doesn't have counts as one compute slice.
pub fn step_time(geometry: &Geometry, step: PlanStep) -> Millis {
    let slices = |slot: Slot| geometry.profile(slot.profile).map_or(1, |p| p.compute_slices);
    match step {
        PlanStep::Destroy(_) => destruction(),
        PlanStep::Create(slot) => creation(slices(slot)),
        // The GPU instance without its one compute instance, and those that it gets.
        PlanStep::Cut(slot, cut) => {
            let instance = Millis::new(creation(slices(slot)).get() / 4 * 3);
            let parts = cut.iter().map(|part| creation(part.slices).get() / 4).sum();
            instance.plus(Millis::new(parts))
        }
    }
}

/// Returns the predicted time of a plan: the sum of its steps, since the operations on one GPU
/// run one after another even if they are requested together.
///
/// The study measured an idle A30 and gives no spread: take it for the order of magnitude.
///
/// # Source
///
/// Co-execution study, rule 8 and table 6.
pub fn predicted(geometry: &Geometry, steps: &[PlanStep]) -> Millis {
    steps.iter().fold(Millis::ZERO, |sum, step| sum.plus(step_time(geometry, *step)))
}

/// Returns the predicted time of a plan over the existing instances: of GPU instances that only get
/// new compute instances, only the created and destroyed compute instances take time.
pub fn predicted_over(
    geometry: &Geometry,
    standing: &BTreeMap<Slot, StandingCut>,
    steps: &[PlanStep],
) -> Millis {
    let time = |step: &PlanStep| match step {
        PlanStep::Cut(slot, cut) => {
            let there = standing.get(slot)?;
            let occupant = |slot| ComputeOccupant { slot, busy: false };
            let parts: Vec<_> = there.cut.iter().map(occupant).collect();
            let slices = geometry.profile(slot.profile)?.compute_slices;
            recut(slices, &parts, cut).ok().map(|steps| recut_time(&steps))
        }
        PlanStep::Destroy(_) | PlanStep::Create(_) => None,
    };
    let times = steps.iter().map(|step| time(step).unwrap_or_else(|| step_time(geometry, *step)));
    times.fold(Millis::ZERO, Millis::plus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::catalog;

    #[test]
    fn a_plan_takes_as_long_as_its_steps_one_after_the_other() {
        let a100 = catalog::models()["a100-40gb"].geometry();
        let slot = |name: &str, start| Slot {
            start,
            profile: a100.by_name(&name.parse().unwrap()).unwrap().id,
        };
        let steps = [
            PlanStep::Destroy(slot("4g.20gb", 0)),
            PlanStep::Create(slot("2g.10gb", 0)),
            PlanStep::Create(slot("2g.10gb", 2)),
        ];

        assert_eq!(predicted(&a100, &steps), Millis::new(100 + 120 + 120));
        assert_eq!(predicted(&a100, &[]), Millis::ZERO);
    }
}
