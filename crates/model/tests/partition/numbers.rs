//! The numbers of known GPUs.

use std::collections::BTreeSet;

use tessera_model::mig::{Geometry, MigState, ProfileId, Slot, StateCounts, StateSpace, catalog};

fn geometry(key: &str) -> Geometry {
    catalog::models()[key].geometry()
}

fn ids(geometry: &Geometry, names: &[&str]) -> BTreeSet<ProfileId> {
    names.iter().map(|n| geometry.by_name(&n.parse().unwrap()).unwrap().id).collect()
}

/// Partial states with the empty one, full layouts, multisets of profiles of the full layouts.
fn counts(space: &StateSpace) -> (usize, usize, usize) {
    let StateCounts { states, full, multisets } = space.counts().unwrap();
    (states, full, multisets)
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

    let reach: Vec<_> = space.placements(MigState::EMPTY, small).iter().map(|(_, r)| *r).collect();

    assert_eq!(reach, [6, 6, 6, 6, 6, 6, 12]);
    let (best, _) = space.best_placement(MigState::EMPTY, small).unwrap();
    assert_eq!(best.start, 6);
}

#[test]
fn reachability_depends_on_the_profiles_on_offer() {
    let a100 = geometry("a100-40gb");
    let mut offered = a100.plain();
    offered.extend(ids(&a100, &["1g.10gb"]));
    let space = StateSpace::new(&a100, Some(&offered)).unwrap();
    let small = a100.by_name(&"1g.5gb".parse().unwrap()).unwrap().id;

    let reach: Vec<_> = space.placements(MigState::EMPTY, small).iter().map(|(_, r)| *r).collect();

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
