//! The precomputed rules of a model.

use tessera_model::mig::{Slot, State, catalog};

use crate::build::rules;

#[test]
fn reachability_beside_plain_instances_is_that_of_the_paper() {
    for key in catalog::models().keys() {
        let mig = rules(key);
        for state in mig.space.states() {
            let same = mig.all().state(&mig.space.layout(state)).unwrap();

            assert_eq!(mig.reachability(same), Some(mig.space.reachability(state)), "{key}");
        }
    }
}

#[test]
fn every_layout_that_may_stand_has_a_reachability() {
    for key in catalog::models().keys() {
        let mig = rules(key);

        assert!(mig.all().states().iter().all(|s| mig.reachability(*s) >= Some(1)), "{key}");
    }
}

#[test]
fn an_instance_of_another_profile_counts_as_an_obstacle() {
    let mig = rules("a100-40gb");
    let double = mig.geometry.by_name(&"1g.10gb".parse().unwrap()).unwrap().id;

    let last = mig.all().allocate(State::EMPTY, Slot { start: 6, profile: double }).unwrap();

    // The left half in its six ways, beside it 2g at 4 or two 1g.
    assert_eq!(mig.reachability(last), Some(12));
}
