//! MIG's geometry: X1 and X2.

use tessera_model::mig::{StateSpace, catalog};

use super::{Finding, Proof, near};
use crate::cluster::number::count;

/// X1: how many layouts there are.
pub(super) fn layouts() -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, full, states) in [("a100-40gb", 19.0, 298.0), ("a30-24gb", 5.0, 26.0)] {
        let Some(model) = catalog::models().get(key) else { continue };
        let geometry = model.geometry();
        let space = StateSpace::new(&geometry, Some(&geometry.plain()));
        let counts = space.ok().and_then(|space| space.counts());
        let (found_full, found_states) = counts.map_or((0, 0), |c| (c.full, c.states));
        findings.push(exact("X1", format!("full layouts, {key}"), full, count(found_full)));
        findings.push(exact("X1", format!("states, {key}"), states, count(found_states)));
    }
    findings
}

/// X2: MIGM's reachability.
pub(super) fn reachability() -> Vec<Finding> {
    let Some(model) = catalog::models().get("a100-40gb") else { return Vec::new() };
    let geometry = model.geometry();
    let Ok(space) = StateSpace::offering(&geometry, &geometry.plain()) else { return Vec::new() };
    let smallest = geometry.profiles.iter().find(|p| p.name.as_str() == "1g.5gb");
    let Some(smallest) = smallest else { return Vec::new() };
    let ways = space.placements(tessera_model::mig::MigState::EMPTY, smallest.id);
    let finding = |(slot, reach): (tessera_model::mig::Slot, usize)| {
        let expected = if slot.start == 6 { 12.0 } else { 6.0 };
        exact("X2", format!("R after a first 1g on slice {}", slot.start), expected, count(reach))
    };
    ways.into_iter().map(finding).collect()
}

fn exact(id: &'static str, what: String, expected: f64, found: f64) -> Finding {
    near(id, what, Proof::Exact, expected, found, 0.0)
}
