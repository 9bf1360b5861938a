//! Plans: legal at every step, shortest, and never over a busy instance.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tessera_model::mig::{
    ArrangementError, DesiredInstance, DesiredLayout, Geometry, InstanceOccupant, Layout,
    PlanRefusal, PlanStep, Slot, StateSpace, catalog, plan,
};

use crate::invented::{any_gpu, arrived, forks, small, vast};

#[test]
fn a_plan_keeps_what_both_layouts_share() {
    let a100 = catalog::models()["a100-40gb"].geometry();
    let slot = |name: &str, start| Slot {
        start,
        profile: a100.by_name(&name.parse().unwrap()).unwrap().id,
    };
    let busy = InstanceOccupant { slot: slot("3g.20gb", 4), busy: true };
    let idle = InstanceOccupant { slot: slot("4g.20gb", 0), busy: false };
    let expected = Layout::from([slot("2g.10gb", 0), slot("2g.10gb", 2), slot("3g.20gb", 4)]);

    let steps = plan(&a100, &[busy, idle], &expected).unwrap();

    assert_eq!(
        steps,
        [
            PlanStep::Destroy(slot("4g.20gb", 0)),
            PlanStep::Create(slot("2g.10gb", 0)),
            PlanStep::Create(slot("2g.10gb", 2)),
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
        &[InstanceOccupant { slot: busy, busy: true }],
        &Layout::from([Slot { start: 0, profile: whole }]),
    );

    assert_eq!(refused, Err(PlanRefusal::Busy { slots: vec![busy] }));
}

#[test]
fn two_idle_quarters_become_a_half_and_the_busy_half_stays() {
    let a100 = catalog::models()["a100-40gb"].geometry();
    let id = |name: &str| a100.by_name(&name.parse().unwrap()).unwrap().id;
    let slot = |name: &str, start| Slot { start, profile: id(name) };
    let standing = [
        InstanceOccupant { slot: slot("2g.10gb", 0), busy: false },
        InstanceOccupant { slot: slot("2g.10gb", 2), busy: false },
        InstanceOccupant { slot: slot("3g.20gb", 4), busy: true },
    ];

    let (_, steps) = arrange(&a100, &standing, &"2x3g.20gb".parse().unwrap()).unwrap();

    let merged = [
        PlanStep::Destroy(slot("2g.10gb", 0)),
        PlanStep::Destroy(slot("2g.10gb", 2)),
        PlanStep::Create(slot("3g.20gb", 0)),
    ];
    assert_eq!(steps, merged);
}

#[test]
fn the_fewest_busy_instances_in_the_way_are_named() {
    let a100 = catalog::models()["a100-40gb"].geometry();
    let id = |name: &str| a100.by_name(&name.parse().unwrap()).unwrap().id;
    let in_the_way = Slot { start: 1, profile: id("1g.5gb") };
    let harmless = Slot { start: 6, profile: id("1g.5gb") };
    let standing = [in_the_way, harmless].map(|slot| InstanceOccupant { slot, busy: true });

    let blocked = arrange(&a100, &standing, &"4g.20gb,2x1g.5gb".parse().unwrap());

    assert_eq!(blocked, Err(ArrangementError::InTheWay { busy: vec![in_the_way] }));
}

#[test]
fn a_search_among_too_many_layouts_is_given_up_with_a_word() {
    let vast = vast();
    let of = |sizes: &[usize]| {
        let name = |size: &usize| vast.profiles[*size].name.clone();
        let open = |size| DesiredInstance { profile: name(size), start: None, cut: Vec::new() };
        DesiredLayout(sizes.iter().map(open).collect())
    };

    let few = arrange(&vast, &[], &of(&[0, 1, 5]));
    let many = arrange(&vast, &[], &of(&[0, 0, 0, 0, 1, 1, 2]));

    assert_eq!(few.unwrap().1.len(), 3);
    assert_eq!(many, Err(ArrangementError::TooMany));
}

/// Finds the desired layout, and the plan to it.
fn arrange(
    geometry: &Geometry,
    standing: &[InstanceOccupant],
    expected: &DesiredLayout,
) -> Result<(Layout, Vec<PlanStep>), ArrangementError> {
    let space = StateSpace::new(geometry, None).unwrap();
    let reach = |layout: &Layout| space.reachability(space.state(layout).unwrap());
    let layout = expected.arrange(geometry, standing, reach)?;
    let steps = plan(geometry, standing, &layout).unwrap();
    Ok((layout, steps))
}

/// The fewest steps from `standing` to a layout that `is_goal` accepts, by trying everything.
fn fewest_steps(
    space: &StateSpace,
    standing: &[InstanceOccupant],
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
    standing: &[InstanceOccupant],
    steps: &[PlanStep],
) -> Result<Layout, TestCaseError> {
    let mut layout: Layout = standing.iter().map(|o| o.slot).collect();
    for step in steps {
        match step {
            PlanStep::Destroy(slot) => {
                prop_assert!(layout.remove(slot), "what isn't there can't go");
                prop_assert!(standing.iter().all(|o| !o.busy || o.slot != *slot), "it is busy");
            }
            PlanStep::Create(slot) => prop_assert!(layout.insert(*slot)),
            PlanStep::Cut(..) => prop_assert!(false, "layouts know nothing of compute instances"),
        }
        prop_assert!(geometry.check(&layout).is_ok());
    }
    Ok(layout)
}

fn occupied(layout: Layout, held: u16) -> Vec<InstanceOccupant> {
    let number = layout.into_iter().enumerate();
    number.map(|(i, slot)| InstanceOccupant { slot, busy: held & (1 << i) != 0 }).collect()
}

/// Requests the profiles of a layout, and the starts of those instances that `fixed` has a bit for.
fn like(geometry: &Geometry, layout: &Layout, fixed: u16) -> DesiredLayout {
    let desired = |(i, slot): (usize, &Slot)| DesiredInstance {
        profile: geometry.profile(slot.profile).unwrap().name.clone(),
        start: (fixed & (1 << i) != 0).then_some(slot.start),
        cut: Vec::new(),
    };
    DesiredLayout(layout.iter().enumerate().map(desired).collect())
}

/// Returns whether a layout is one of the desired ones.
fn meets(geometry: &Geometry, layout: &Layout, expected: &DesiredLayout) -> bool {
    let mut rest: Vec<&Slot> = layout.iter().collect();
    let mut instances: Vec<&DesiredInstance> = expected.0.iter().collect();
    // Those with a start first: any instance will do for the others.
    instances.sort_by_key(|instance| instance.start.is_none());
    let all = instances.iter().all(|instance| {
        let id = geometry.by_name(&instance.profile).unwrap().id;
        let fits = |slot: &&Slot| {
            slot.profile == id && instance.start.is_none_or(|start| start == slot.start)
        };
        rest.iter().position(fits).map(|found| rest.swap_remove(found)).is_some()
    });
    all && rest.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_plan_to_a_layout_is_lawful_and_shortest_and_refused_only_where_there_is_none(
        geometry in small(), from in forks(), to in forks(), held in any::<u16>(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let standing = occupied(arrived(&space, &from), held);
        let expected = arrived(&space, &to);

        let fewest = fewest_steps(&space, &standing, |layout| *layout == expected);

        match plan(&geometry, &standing, &expected) {
            Ok(steps) => {
                prop_assert_eq!(carried_out(&geometry, &standing, &steps)?, expected);
                prop_assert_eq!(Some(steps.len()), fewest);
            }
            Err(refused) => {
                let blocked = matches!(refused, PlanRefusal::Busy { .. });
                prop_assert!(blocked, "{refused}");
                prop_assert_eq!(fewest, None);
            }
        }
    }

    #[test]
    fn a_plan_to_profiles_is_lawful_and_shortest_and_refused_only_where_there_is_none(
        geometry in small(), from in forks(), to in forks(), held in any::<u16>(),
        fixed in any::<u16>(),
    ) {
        let space = StateSpace::new(&geometry, None).unwrap();
        let standing = occupied(arrived(&space, &from), held);
        let expected = like(&geometry, &arrived(&space, &to), fixed & held);

        let fewest = fewest_steps(&space, &standing, |layout| meets(&geometry, layout, &expected));

        match arrange(&geometry, &standing, &expected) {
            Ok((layout, steps)) => {
                prop_assert!(meets(&geometry, &layout, &expected));
                prop_assert_eq!(carried_out(&geometry, &standing, &steps)?, layout);
                prop_assert_eq!(Some(steps.len()), fewest);
            }
            Err(ArrangementError::InTheWay { busy }) => {
                prop_assert_eq!(fewest, None);
                let freed = |o: &InstanceOccupant| InstanceOccupant { busy: o.busy && !busy.contains(&o.slot), ..*o };
                let freed: Vec<_> = standing.iter().map(freed).collect();
                prop_assert!(arrange(&geometry, &freed, &expected).is_ok(), "not enough");
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
        let expected = arrived(&space, &to);

        let steps = plan(&geometry, &standing, &expected).unwrap();
        let (layout, shorter) = arrange(&geometry, &standing, &like(&geometry, &expected, 0)).unwrap();

        prop_assert_eq!(carried_out(&geometry, &standing, &steps)?, expected);
        prop_assert_eq!(carried_out(&geometry, &standing, &shorter)?, layout);
        prop_assert!(shorter.len() <= steps.len());
    }
}
