//! Plans: legal at every step, shortest, and never over a busy instance.

use proptest::prelude::*;
use tessera_model::mig::{Layout, Occupant, PlanRefused, Slot, StateSpace, Step, catalog, plan};

use crate::invented::{any_gpu, arrived, forks};

#[test]
fn a_plan_keeps_what_both_layouts_share() {
    let a100 = catalog::models()["a100-40gb"].geometry();
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
    let a100 = catalog::models()["a100-40gb"].geometry();
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_plan_passes_only_through_legal_layouts(
        geometry in any_gpu(), from in forks(), to in forks(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let idle = |slot| Occupant { slot, busy: false };
        let standing: Vec<_> = arrived(&space, &from).into_iter().map(idle).collect();
        let wanted = arrived(&space, &to);

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
