//! The state machine once more, as slow and plain as can be: layouts as sets, legality by the
//! check of whole layouts, every count by listing.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tessera_model::mig::{Geometry, Layout, ReachabilityMeasure, Slot, StateSpace};

use crate::invented::{slots, small};

/// Every legal layout.
fn layouts(geometry: &Geometry) -> BTreeSet<Layout> {
    let slots = slots(geometry);
    let mut seen = BTreeSet::from([Layout::new()]);
    let mut frontier = vec![Layout::new()];
    while let Some(layout) = frontier.pop() {
        for next in slots.iter().filter_map(|slot| with(geometry, &layout, *slot)) {
            if seen.insert(next.clone()) {
                frontier.push(next);
            }
        }
    }
    seen
}

fn with(geometry: &Geometry, layout: &Layout, slot: Slot) -> Option<Layout> {
    let mut next = layout.clone();
    (next.insert(slot) && geometry.check(&next).is_ok()).then_some(next)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn on_invented_gpus_the_table_equals_the_list_of_every_layout(geometry in small()) {
        let layouts = layouts(&geometry);
        let all = slots(&geometry);
        let full: Vec<&Layout> = layouts
            .iter()
            .filter(|l| all.iter().all(|slot| with(&geometry, l, *slot).is_none()))
            .collect();
        let space = StateSpace::new(&geometry, None).unwrap();

        prop_assert_eq!(space.measure(), ReachabilityMeasure::FullLayouts);
        let found: BTreeSet<Layout> = space.states().unwrap().map(|s| space.layout(s)).collect();
        prop_assert_eq!(&found, &layouts);
        prop_assert_eq!(space.counts().unwrap().full, full.len());
        for layout in &layouts {
            let state = space.state(layout).unwrap();
            let reach = full.iter().filter(|f| f.is_superset(layout)).count();
            prop_assert_eq!(space.reachability(state), reach);
            for slot in &all {
                let next = with(&geometry, layout, *slot);
                let found = space.allocate(state, *slot).map(|s| space.layout(s));
                prop_assert_eq!(found, next);
            }
        }
    }

    #[test]
    fn the_best_placement_has_the_largest_r_and_of_equals_the_highest_start(geometry in small()) {
        let space = StateSpace::new(&geometry, None).unwrap();
        for state in space.states().unwrap() {
            for profile in &geometry.profiles {
                let ways = space.placements(state, profile.id);
                let most = ways.iter().map(|(_, reach)| *reach).max();
                let expected = ways.into_iter().rfind(|(_, reach)| Some(*reach) == most);
                prop_assert_eq!(space.best_placement(state, profile.id), expected);
            }
        }
    }

    #[test]
    fn with_fewer_profiles_on_offer_the_others_are_obstacles(
        geometry in small(), keep in any::<u8>(),
    ) {
        let offered: BTreeSet<_> = geometry
            .profiles
            .iter()
            .enumerate()
            .filter(|(i, _)| keep & (1 << i) != 0)
            .map(|(_, p)| p.id)
            .collect();
        let all: Vec<Slot> =
            slots(&geometry).into_iter().filter(|s| offered.contains(&s.profile)).collect();
        let space = StateSpace::offering(&geometry, &offered).unwrap();
        for state in space.states().unwrap() {
            // Every end of a walk through offered allocations, each counted once.
            let mut seen = BTreeSet::from([state]);
            let mut frontier = vec![state];
            let mut ends = 0;
            while let Some(state) = frontier.pop() {
                let ways: Vec<_> = all.iter().filter_map(|s| space.allocate(state, *s)).collect();
                ends += usize::from(ways.is_empty());
                frontier.extend(ways.into_iter().filter(|next| seen.insert(*next)));
            }
            prop_assert_eq!(space.reachability(state), ends);
        }
    }
}
