//! The precomputed rules of a model.

use tessera_model::mig::{MigState, Slot, StateSpace, catalog};

use crate::build::rules;

#[test]
fn reachability_next_to_plain_instances_is_that_of_the_paper() {
    for key in catalog::models().keys() {
        let mig = rules(key);
        let plain = StateSpace::new(&mig.geometry, Some(&mig.geometry.plain())).unwrap();
        for state in plain.states().unwrap() {
            let same = mig.all().state(&plain.layout(state)).unwrap();

            assert_eq!(mig.full_layouts(same), Some(plain.reachability(state)), "{key}");
        }
    }
}

#[test]
fn every_valid_layout_has_a_reachability() {
    for key in catalog::models().keys() {
        let mig = rules(key);

        let mut states = mig.all().states().unwrap();

        assert!(states.all(|state| mig.full_layouts(state) >= Some(1)), "{key}");
    }
}

#[test]
fn an_instance_of_another_profile_counts_as_an_obstacle() {
    let mig = rules("a100-40gb");
    let double = mig.geometry.by_name(&"1g.10gb".parse().unwrap()).unwrap().id;

    let last = mig.all().allocate(MigState::EMPTY, Slot { start: 6, profile: double }).unwrap();

    // The left half has six layouts, and next to it is a 2g at 4 or two 1g.
    assert_eq!(mig.full_layouts(last), Some(12));
}
