//! Plans: legal at every step, shortest, and never over a busy instance.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tessera_model::mig::{
    Arranged, Geometry, Layout, Occupant, PlanRefused, ProfileId, Slot, StateSpace, Step, arrange,
    catalog, plan,
};

use crate::invented::{any_gpu, arrived, forks, small, vast};

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

    assert_eq!(refused, Err(PlanRefused::Busy { slots: vec![busy] }));
}

#[test]
fn two_idle_quarters_become_a_half_and_the_busy_half_stays() {
    let a100 = catalog::models()["a100-40gb"].geometry();
    let space = StateSpace::new(&a100, None).unwrap();
    let id = |name: &str| a100.by_name(&name.parse().unwrap()).unwrap().id;
    let slot = |name: &str, start| Slot { start, profile: id(name) };
    let standing = [
        Occupant { slot: slot("2g.10gb", 0), busy: false },
        Occupant { slot: slot("2g.10gb", 2), busy: false },
        Occupant { slot: slot("3g.20gb", 4), busy: true },
    ];

    let merged = arrange(&a100, &space, &standing, &[id("3g.20gb"), id("3g.20gb")]).unwrap();

    let steps = [
        Step::Destroy(slot("2g.10gb", 0)),
        Step::Destroy(slot("2g.10gb", 2)),
        Step::Create(slot("3g.20gb", 0)),
    ];
    assert_eq!(merged.steps, steps);
}

#[test]
fn why_there_is_no_plan_is_said() {
    let a100 = catalog::models()["a100-40gb"].geometry();
    let space = StateSpace::new(&a100, None).unwrap();
    let id = |name: &str| a100.by_name(&name.parse().unwrap()).unwrap().id;
    let in_the_way = Slot { start: 1, profile: id("1g.5gb") };
    let harmless = Slot { start: 6, profile: id("1g.5gb") };
    let standing = [in_the_way, harmless].map(|slot| Occupant { slot, busy: true });

    let wanted = [id("4g.20gb"), id("1g.5gb"), id("1g.5gb")];
    let blocked = arrange(&a100, &space, &standing, &wanted).unwrap_err();
    let never = arrange(&a100, &space, &[], &[id("7g.40gb"), id("1g.5gb")]).unwrap_err();

    assert_eq!(blocked, PlanRefused::Busy { slots: vec![in_the_way] });
    assert_eq!(
        never.to_string(),
        "7g.40gb, 1g.5gb can't stand together on this GPU, even if it were empty"
    );
}

#[test]
fn a_search_among_too_many_layouts_is_given_up_with_a_word() {
    let vast = vast();
    let space = StateSpace::new(&vast, None).unwrap();
    let ids: Vec<_> = vast.profiles.iter().map(|p| p.id).collect();

    let few = arrange(&vast, &space, &[], &[ids[0], ids[1], ids[5]]);
    let many = arrange(&vast, &space, &[], &[0, 0, 0, 0, 1, 1, 2].map(|size| ids[size]));

    assert_eq!(few.unwrap().steps.len(), 3);
    assert!(matches!(many, Err(PlanRefused::TooMany { .. })));
}

/// The fewest steps from `standing` to a layout that `is_goal` accepts, by trying everything.
fn fewest_steps(
    space: &StateSpace,
    standing: &[Occupant],
    is_goal: impl Fn(&Layout) -> bool,
) -> Option<usize> {
    let layout = standing.iter().map(|o| o.slot).collect();
    let start = space.state(&layout)?;
    let mut seen = BTreeMap::from([(start, 0)]);
    let mut frontier = VecDeque::from([start]);
    while let Some(state) = frontier.pop_front() {
        let steps = seen[&state];
        let layout = space.layout(state);
        if is_goal(&layout) {
            return Some(steps);
        }
        let busy = |slot: &Slot| standing.iter().any(|o| o.busy && o.slot == *slot);
        let idle = layout.iter().filter(|slot| !busy(slot));
        let freed = idle.filter_map(|slot| space.free(state, *slot));
        for next in freed.chain(space.successors(state).into_iter().map(|(_, next)| next)) {
            seen.entry(next).or_insert_with(|| {
                frontier.push_back(next);
                steps + 1
            });
        }
    }
    None
}

/// Carries a plan out, law by law; returns where it ends.
fn carried_out(
    geometry: &Geometry,
    standing: &[Occupant],
    steps: &[Step],
) -> Result<Layout, TestCaseError> {
    let mut layout: Layout = standing.iter().map(|o| o.slot).collect();
    for step in steps {
        match step {
            Step::Destroy(slot) => {
                prop_assert!(layout.remove(slot), "what isn't there can't go");
                prop_assert!(standing.iter().all(|o| !o.busy || o.slot != *slot), "it is busy");
            }
            Step::Create(slot) => prop_assert!(layout.insert(*slot)),
        }
        prop_assert!(geometry.check(&layout).is_ok());
    }
    Ok(layout)
}

fn occupied(layout: Layout, held: u16) -> Vec<Occupant> {
    let number = layout.into_iter().enumerate();
    number.map(|(i, slot)| Occupant { slot, busy: held & (1 << i) != 0 }).collect()
}

fn profiles(layout: &Layout) -> Vec<ProfileId> {
    let mut profiles: Vec<_> = layout.iter().map(|slot| slot.profile).collect();
    profiles.sort_unstable();
    profiles
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_plan_to_a_layout_is_lawful_and_shortest_and_refused_only_where_there_is_none(
        geometry in small(), from in forks(), to in forks(), held in any::<u16>(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let standing = occupied(arrived(&space, &from), held);
        let wanted = arrived(&space, &to);

        let fewest = fewest_steps(&space, &standing, |layout| *layout == wanted);

        match plan(&geometry, &standing, &wanted) {
            Ok(steps) => {
                prop_assert_eq!(carried_out(&geometry, &standing, &steps)?, wanted);
                prop_assert_eq!(Some(steps.len()), fewest);
            }
            Err(refused) => {
                let blocked = matches!(refused, PlanRefused::Busy { .. });
                prop_assert!(blocked, "{refused}");
                prop_assert_eq!(fewest, None);
            }
        }
    }

    #[test]
    fn a_plan_to_profiles_is_lawful_and_shortest_and_refused_only_where_there_is_none(
        geometry in small(), from in forks(), to in forks(), held in any::<u16>(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let standing = occupied(arrived(&space, &from), held);
        let wanted = profiles(&arrived(&space, &to));

        let fewest = fewest_steps(&space, &standing, |layout| profiles(layout) == wanted);

        match arrange(&geometry, &space, &standing, &wanted) {
            Ok(Arranged { layout, steps }) => {
                prop_assert_eq!(profiles(&layout), wanted);
                prop_assert_eq!(carried_out(&geometry, &standing, &steps)?, layout);
                prop_assert_eq!(Some(steps.len()), fewest);
            }
            Err(PlanRefused::Busy { slots }) => {
                prop_assert_eq!(fewest, None);
                let gone = |o: &Occupant| Occupant { busy: o.busy && !slots.contains(&o.slot), ..*o };
                let freed: Vec<_> = standing.iter().map(gone).collect();
                prop_assert!(arrange(&geometry, &space, &freed, &wanted).is_ok(), "not enough");
            }
            Err(refused) => prop_assert!(false, "{refused}"),
        }
    }

    #[test]
    fn plans_on_every_gpu_pass_only_through_legal_layouts(
        geometry in any_gpu(), from in forks(), to in forks(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let standing = occupied(arrived(&space, &from), 0);
        let wanted = arrived(&space, &to);

        let steps = plan(&geometry, &standing, &wanted).unwrap();
        let arranged = arrange(&geometry, &space, &standing, &profiles(&wanted)).unwrap();

        prop_assert_eq!(carried_out(&geometry, &standing, &steps)?, wanted);
        prop_assert_eq!(carried_out(&geometry, &standing, &arranged.steps)?, arranged.layout);
        prop_assert!(arranged.steps.len() <= steps.len());
    }
}
