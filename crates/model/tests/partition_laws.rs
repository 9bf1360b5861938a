//! The laws of the partition state machine, on every GPU of the catalogue.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tessera_model::mig::{
    Geometry, Layout, Occupant, PlanRefused, ProfileId, Slot, State, StateSpace, Step, catalog,
    plan,
};

fn geometry(key: &str) -> Geometry {
    catalog::models()[key].geometry()
}

fn ids(geometry: &Geometry, names: &[&str]) -> BTreeSet<ProfileId> {
    names.iter().map(|n| geometry.by_name(&n.parse().unwrap()).unwrap().id).collect()
}

/// Partial states with the empty one, full layouts, multisets of profiles of the full layouts.
fn counts(space: &StateSpace) -> (usize, usize, usize) {
    let multisets: BTreeSet<Vec<ProfileId>> = space
        .full_configurations()
        .iter()
        .map(|full| {
            let mut profiles: Vec<_> = space.layout(*full).iter().map(|s| s.profile).collect();
            profiles.sort();
            profiles
        })
        .collect();
    (space.states().len(), space.full_configurations().len(), multisets.len())
}

#[test]
fn the_a100_scheme_has_the_published_numbers_of_states() {
    let a100 = geometry("a100-40gb");
    let plain = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"];
    let with = |more: &[&str]| ids(&a100, &[&plain, more].concat());

    for (offered, expected) in [
        (a100.plain(), (298, 19, 14)),
        (with(&[]), (298, 19, 14)),
        (with(&["1g.10gb"]), (723, 78, 38)),
        (with(&["1g.5gb+me"]), (1_089, 67, 24)),
        (with(&["1g.10gb", "1g.5gb+me"]), (2_319, 239, 64)),
    ] {
        assert_eq!(counts(&StateSpace::new(&a100, Some(&offered)).unwrap()), expected);
    }
}

#[test]
fn every_gpu_of_the_a100_scheme_has_its_numbers_of_states() {
    for (key, model) in catalog::models() {
        let geometry = model.geometry();
        if geometry.profiles.len() != 7 {
            continue;
        }
        let plain = StateSpace::new(&geometry, Some(&geometry.plain())).unwrap();
        assert_eq!(counts(&plain), (298, 19, 14), "{key}");
        assert_eq!(counts(&StateSpace::new(&geometry, None).unwrap()), (2_319, 239, 64), "{key}");
    }
}

#[test]
fn the_a30_scheme_has_the_published_numbers_of_states() {
    let a30 = geometry("a30-24gb");

    let space = StateSpace::new(&a30, Some(&a30.plain())).unwrap();

    assert_eq!(counts(&space), (26, 5, 4));
}

#[test]
fn the_first_small_instance_goes_where_most_futures_stay_open() {
    let a100 = geometry("a100-40gb");
    let space = StateSpace::new(&a100, Some(&a100.plain())).unwrap();
    let small = a100.by_name(&"1g.5gb".parse().unwrap()).unwrap().id;

    let reach: Vec<_> = space.placements(State::EMPTY, small).iter().map(|(_, r)| *r).collect();

    assert_eq!(reach, [6, 6, 6, 6, 6, 6, 12]);
    let (best, _) = space.best_placement(State::EMPTY, small).unwrap();
    assert_eq!(best.start, 6);
}

#[test]
fn reachability_depends_on_the_profiles_on_offer() {
    let a100 = geometry("a100-40gb");
    let mut offered = a100.plain();
    offered.extend(ids(&a100, &["1g.10gb"]));
    let space = StateSpace::new(&a100, Some(&offered)).unwrap();
    let small = a100.by_name(&"1g.5gb".parse().unwrap()).unwrap().id;

    let reach: Vec<_> = space.placements(State::EMPTY, small).iter().map(|(_, r)| *r).collect();

    assert_eq!(reach, [21, 21, 21, 21, 22, 22, 33]);
}

#[test]
fn media_engines_bind_on_the_a30() {
    let a30 = geometry("a30-24gb");
    let slot = |name: &str, start| Slot {
        start,
        profile: a30.by_name(&name.parse().unwrap()).unwrap().id,
    };

    let both = [slot("1g.6gb+me", 0), slot("2g.12gb+me", 2)];

    assert!(a30.check(&both).unwrap_err().to_string().contains("media engines"));
}

#[test]
fn a_plan_keeps_what_both_layouts_share() {
    let a100 = geometry("a100-40gb");
    let slot = |name: &str, start| Slot {
        start,
        profile: a100.by_name(&name.parse().unwrap()).unwrap().id,
    };
    let busy = Occupant { slot: slot("3g.20gb", 4), busy: true };
    let idle = Occupant { slot: slot("4g.20gb", 0), busy: false };
    let wanted = Layout::from([slot("2g.10gb", 0), slot("2g.10gb", 2), slot("3g.20gb", 4)]);

    let steps = plan(&a100, &[busy, idle], &wanted).unwrap();

    assert_eq!(
        steps,
        [
            Step::Destroy(slot("4g.20gb", 0)),
            Step::Create(slot("2g.10gb", 0)),
            Step::Create(slot("2g.10gb", 2)),
        ]
    );
}

#[test]
fn no_plan_takes_a_busy_instance_away() {
    let a100 = geometry("a100-40gb");
    let whole = a100.largest().unwrap().id;
    let small = a100.by_name(&"1g.5gb".parse().unwrap()).unwrap().id;
    let busy = Slot { start: 6, profile: small };

    let refused = plan(
        &a100,
        &[Occupant { slot: busy, busy: true }],
        &Layout::from([Slot { start: 0, profile: whole }]),
    );

    assert_eq!(refused, Err(PlanRefused::Busy { slot: busy }));
}

/// A model of the catalogue, and which way to go at each fork of a walk through its states.
fn walk() -> impl Strategy<Value = (String, Vec<prop::sample::Index>)> {
    let keys: Vec<_> = catalog::models().keys().cloned().collect();
    (prop::sample::select(keys), prop::collection::vec(any::<prop::sample::Index>(), 1..24))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_walk_stays_legal_and_never_gains_futures((key, forks) in walk()) {
        let geometry = geometry(&key);
        let space = StateSpace::new(&geometry, Some(&geometry.plain())).unwrap();
        let mut state = State::EMPTY;
        for fork in forks {
            let ways = space.successors(state);
            if ways.is_empty() {
                prop_assert_eq!(space.reachability(state), 1, "a full state reaches itself");
                break;
            }
            let (slot, next) = ways[fork.index(ways.len())];
            geometry.check(&space.layout(next)).unwrap();
            prop_assert!(space.reachability(next) <= space.reachability(state));
            prop_assert!(space.reachability(next) >= 1);
            prop_assert_eq!(space.free(next, slot), Some(state), "free undoes alloc");
            prop_assert_eq!(space.state(&space.layout(next)), Some(next));
            state = next;
        }
    }

    #[test]
    fn the_space_and_the_check_agree_on_what_is_legal((key, forks) in walk()) {
        let geometry = geometry(&key);
        let space = StateSpace::new(&geometry, None).unwrap();
        let all: Vec<Slot> = geometry
            .profiles
            .iter()
            .flat_map(|p| p.starts.iter().map(|start| Slot { start: *start, profile: p.id }))
            .collect();
        let mut layout = Layout::new();
        let mut state = State::EMPTY;
        for fork in forks {
            let slot = all[fork.index(all.len())];
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
    fn every_plan_passes_only_through_legal_layouts((key, forks) in walk(), turn in 0_usize..24) {
        let geometry = geometry(&key);
        let space = StateSpace::new(&geometry, Some(&geometry.plain())).unwrap();
        let arrive = |forks: &[prop::sample::Index]| {
            forks.iter().fold(State::EMPTY, |state, fork| {
                let ways = space.successors(state);
                if ways.is_empty() { state } else { ways[fork.index(ways.len())].1 }
            })
        };
        let (a, b) = forks.split_at(turn.min(forks.len()));
        let standing: Vec<_> = space
            .layout(arrive(a))
            .into_iter()
            .map(|slot| Occupant { slot, busy: false })
            .collect();
        let wanted = space.layout(arrive(b));

        let steps = plan(&geometry, &standing, &wanted).unwrap();

        let mut layout: Layout = standing.iter().map(|o| o.slot).collect();
        for step in &steps {
            match step {
                Step::Destroy(slot) => prop_assert!(layout.remove(slot)),
                Step::Create(slot) => prop_assert!(layout.insert(*slot)),
            }
            geometry.check(&layout).unwrap();
        }
        prop_assert_eq!(layout, wanted);
    }
}
