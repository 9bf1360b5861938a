//! The laws of the partition state machine, on every GPU of the catalogue and on invented ones.

use proptest::prelude::*;
use tessera_model::mig::{
    Geometry, Layout, MigState, ReachabilityMeasure, Slot, StateSpace, TooManyPlacements, catalog,
    select_instances_to_destroy,
};

use crate::invented::{any_gpu, arrive, arrived, forks, profile, slots, vast};

/// The laws at one state, by every step that leads on from it.
fn lawful(geometry: &Geometry, space: &StateSpace, state: MigState) -> Result<(), TestCaseError> {
    let layout = space.layout(state);
    prop_assert!(geometry.check(&layout).is_ok(), "{layout:?} can't stand");
    let masks: Vec<u64> = layout.iter().map(|slot| geometry.mask(*slot).unwrap()).collect();
    let covered = masks.iter().fold(0, |all, mask| all | mask);
    let lengths: u32 = masks.iter().map(|mask| mask.count_ones()).sum();
    prop_assert_eq!(covered.count_ones(), lengths, "two instances overlap");
    prop_assert_eq!(space.state(&layout), Some(state));

    let ways = space.successors(state);
    if ways.is_empty() {
        prop_assert_eq!(space.reachability(state), 1, "a full state reaches itself");
    }
    for (slot, next) in ways {
        prop_assert!(space.reachability(next) <= space.reachability(state), "R grew");
        prop_assert!(space.reachability(next) >= 1);
        prop_assert_eq!(space.free(next, slot), Some(state), "free undoes alloc");
        prop_assert_eq!(space.allocate(next, slot), None, "no slot is taken twice");
    }
    Ok(())
}

#[test]
fn every_state_of_every_known_gpu_keeps_the_laws() {
    for (key, model) in catalog::models() {
        let geometry = model.geometry();
        let space = StateSpace::new(&geometry, None).unwrap();
        for state in space.states().unwrap() {
            lawful(&geometry, &space, state).unwrap_or_else(|error| panic!("{key}: {error}"));
        }
    }
}

#[test]
fn a_gpu_with_too_many_states_is_planned_for_by_another_measure_that_keeps_the_laws() {
    let geometry = vast();
    let space = StateSpace::new(&geometry, None).unwrap();

    assert_eq!(space.measure(), ReachabilityMeasure::OpenPlacements);
    assert!(space.states().is_none() && space.counts().is_none());
    let mut state = MigState::EMPTY;
    let small = geometry.profiles[0].id;
    while let Some((slot, reach)) = space.best_placement(state, small) {
        lawful(&geometry, &space, state).unwrap();
        state = space.allocate(state, slot).unwrap();
        assert_eq!(space.reachability(state), reach);
    }
    assert_eq!(state.instances(), 16);
    assert_eq!(space.reachability(state), 1);
}

#[test]
fn more_placements_than_a_state_has_bits_are_refused_with_a_count() {
    let profiles = (0..5).map(|id| profile(id, 1, 1, 1, (0..32).collect()));
    let geometry = Geometry::new(profiles.collect());

    let refused = StateSpace::new(&geometry, None).unwrap_err();

    assert_eq!(refused, TooManyPlacements { placements: 160, most: 128 });
}

#[test]
fn what_a_driver_reports_beyond_reason_is_left_out_and_never_overflows() {
    let wide = profile(1, 7, 200, 1, vec![0, 100]);
    let odd = profile(2, 1, 0, 4, vec![0, 1]);
    let doubled = profile(3, 1, 4, 4, vec![60, 0, 0, 61]);
    let geometry = Geometry::new(vec![wide, odd, doubled.clone(), doubled]);

    let space = StateSpace::new(&geometry, None).unwrap();

    assert_eq!(geometry.memory_slices, 64);
    assert_eq!(space.counts().unwrap().states, 4, "nothing, either of 0 and 60, or both");
}

#[test]
fn the_instance_whose_removal_opens_most_is_destroyed() {
    let a100 = catalog::models()["a100-40gb"].geometry();
    let space = StateSpace::new(&a100, Some(&a100.plain())).unwrap();
    let slot = |name: &str, start| Slot {
        start,
        profile: a100.by_name(&name.parse().unwrap()).unwrap().id,
    };
    // All seven compute slices are given away: for one more it takes one of them.
    let ones = [0, 1, 2, 3, 4, 5].map(|start| slot("1g.5gb", start));
    let state = space.state(&Layout::from(ones)).unwrap();
    let wanted = slot("2g.10gb", 4);

    let gone = select_instances_to_destroy(&space, state, &ones, wanted).unwrap();

    assert_eq!(gone, [slot("1g.5gb", 4), slot("1g.5gb", 5)], "what lies in the way, and no more");
    let full = Layout::from([slot("4g.20gb", 0), slot("3g.20gb", 4)]);
    let state = space.state(&full).unwrap();
    let idle: Vec<_> = full.iter().copied().collect();
    for wanted in [slot("1g.5gb", 6), slot("1g.5gb", 0)] {
        let gone = select_instances_to_destroy(&space, state, &idle, wanted).unwrap();
        let after = |gone: &[Slot]| {
            let rest = gone.iter().try_fold(state, |state, slot| space.free(state, *slot))?;
            Some(space.reachability(space.allocate(rest, wanted)?))
        };
        let each = idle.iter().filter_map(|slot| after(std::slice::from_ref(slot)));
        assert_eq!(after(&gone), each.max(), "{wanted:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_walk_on_any_gpu_keeps_the_laws(geometry in any_gpu(), forks in forks()) {
        for offered in [None, Some(geometry.plain())] {
            let space = StateSpace::new(&geometry, offered.as_ref()).unwrap();
            lawful(&geometry, &space, arrive(&space, &forks))?;
        }
    }

    #[test]
    fn the_space_and_the_check_agree_on_what_is_legal(geometry in any_gpu(), forks in forks()) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let all = slots(&geometry);
        let mut layout = Layout::new();
        let mut state = MigState::EMPTY;
        for slot in forks.iter().filter(|_| !all.is_empty()).map(|fork| *fork.get(&all)) {
            let mut bigger = layout.clone();
            let fresh = bigger.insert(slot);
            let next = space.allocate(state, slot);
            prop_assert_eq!(fresh && geometry.check(&bigger).is_ok(), next.is_some());
            if let Some(next) = next {
                layout = bigger;
                state = next;
            }
        }
    }

    #[test]
    fn the_fewest_instances_that_open_most_are_destroyed(
        geometry in any_gpu(), forks in forks(), held in any::<u16>(), which in any::<prop::sample::Index>(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let layout = arrived(&space, &forks);
        let state = space.state(&layout).unwrap();
        let idle: Vec<Slot> = layout
            .iter()
            .enumerate()
            .filter(|(i, _)| held & (1 << i) == 0)
            .map(|(_, slot)| *slot)
            .collect();
        let all = slots(&geometry);
        prop_assume!(!all.is_empty());
        let slot = *which.get(&all);
        prop_assume!(!layout.contains(&slot));

        let found = select_instances_to_destroy(&space, state, &idle, slot);

        // Every set of idle instances, as `(how many, R lost, which)`.
        let expected = (0_u32..1 << idle.len())
            .filter_map(|chosen| {
                let gone = idle.iter().enumerate().filter(|(i, _)| chosen & (1 << i) != 0);
                let gone: Vec<Slot> = gone.map(|(_, slot)| *slot).collect();
                let rest = gone.iter().try_fold(state, |state, slot| space.free(state, *slot))?;
                let reach = space.reachability(space.allocate(rest, slot)?);
                Some((gone.len(), usize::MAX - reach, gone))
            })
            .min();
        prop_assert_eq!(found, expected.map(|(_, _, gone)| gone));
    }
}
