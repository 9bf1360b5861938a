use proptest::prelude::*;

use super::*;
use crate::mig::catalog;

fn a100() -> Geometry {
    catalog::models()["a100-40gb"].geometry()
}

fn slot(geometry: &Geometry, name: &str, start: u8) -> Slot {
    Slot { start, profile: geometry.by_name(&name.parse().unwrap()).unwrap().id }
}

fn of(geometry: &Geometry, instances: &[OccupiedInstance], name: &str) -> ProfileAvailability {
    let id = geometry.by_name(&name.parse().unwrap()).unwrap().id;
    let all = list_availability(geometry, instances).unwrap();
    all.into_iter().find(|o| o.profile == id).unwrap()
}

const fn busy(slot: Slot, until: u64) -> OccupiedInstance {
    OccupiedInstance { slot, hold: InstanceUse::Busy { until: Some(Millis::new(until)) } }
}

#[test]
fn an_empty_gpu_takes_as_many_of_each_profile_as_it_may_hold() {
    let a100 = a100();

    for profile in &a100.profiles {
        let found = of(&a100, &[], profile.name.as_str());
        assert_eq!(found.now, u32::from(profile.max_instances), "{}", profile.name);
        assert_eq!(found.first, FirstOpening::Now);
    }
}

#[test]
fn idle_instances_in_the_way_are_named_and_no_others() {
    let a100 = a100();
    let small = slot(&a100, "1g.5gb", 1);
    let instances = [
        OccupiedInstance { slot: small, hold: InstanceUse::Idle },
        OccupiedInstance {
            slot: slot(&a100, "1g.5gb", 6),
            hold: InstanceUse::Busy { until: None },
        },
    ];

    let found = of(&a100, &instances, "4g.20gb");

    assert_eq!((found.now, found.after_idle), (0, 1));
    assert_eq!(found.first, FirstOpening::AfterIdle { idle: vec![small] });
}

#[test]
fn the_fewest_busy_instances_that_end_soonest_are_waited_for() {
    let a100 = a100();
    let (left, right) = (slot(&a100, "3g.20gb", 0), slot(&a100, "3g.20gb", 4));

    let found = of(&a100, &[busy(left, 900), busy(right, 400)], "2g.10gb");

    assert_eq!((found.now, found.after_idle), (0, 0));
    assert_eq!(
        found.first,
        FirstOpening::AfterBusy { busy: vec![right], idle: vec![], ready: Some(Millis::new(400)) }
    );
}

#[test]
fn the_whole_gpu_waits_for_the_last_and_an_unknown_end_is_reported() {
    let a100 = a100();
    let (left, right) = (slot(&a100, "4g.20gb", 0), slot(&a100, "3g.20gb", 4));
    let mut instances = vec![busy(left, 900), busy(right, 400)];

    let known = of(&a100, &instances, "7g.40gb").first;
    instances[0].hold = InstanceUse::Busy { until: None };
    let unknown = of(&a100, &instances, "7g.40gb").first;

    let both = vec![left, right];
    let ready = Some(Millis::new(900));
    assert_eq!(known, FirstOpening::AfterBusy { busy: both.clone(), idle: vec![], ready });
    assert_eq!(unknown, FirstOpening::AfterBusy { busy: both, idle: vec![], ready: None });
}

#[test]
fn a_stuck_instance_is_for_a_person() {
    let a100 = a100();
    let stuck = slot(&a100, "1g.5gb", 5);
    let instances = [OccupiedInstance { slot: stuck, hold: InstanceUse::Stuck }];

    assert_eq!(
        of(&a100, &instances, "7g.40gb").first,
        FirstOpening::Blocked { stuck: vec![stuck] }
    );
    assert_eq!(of(&a100, &instances, "3g.20gb").now, 1);
}

#[test]
fn an_engine_that_is_taken_elsewhere_is_waited_for_too() {
    let a30 = catalog::models()["a30-24gb"].geometry();
    let holder = slot(&a30, "1g.6gb+me", 0);

    let found = of(&a30, &[busy(holder, 70)], "2g.12gb+me");

    let ready = Some(Millis::new(70));
    assert_eq!(found.first, FirstOpening::AfterBusy { busy: vec![holder], idle: vec![], ready });
}

#[test]
fn a_layout_of_another_gpu_is_refused() {
    let a100 = a100();
    let instances = [OccupiedInstance {
        slot: Slot { start: 7, profile: ProfileId(19) },
        hold: InstanceUse::Idle,
    }];

    assert!(matches!(list_availability(&a100, &instances), Err(IllegalLayout::NotAStart { .. })));
}

/// Any legal set of instances on any GPU of the catalogue.
fn any_instances() -> impl Strategy<Value = (Geometry, Vec<OccupiedInstance>)> {
    let keys: Vec<_> = catalog::models().keys().cloned().collect();
    let hold = prop_oneof![
        Just(InstanceUse::Idle),
        (0..50_u64).prop_map(|t| InstanceUse::Busy { until: Some(Millis::new(t)) }),
        Just(InstanceUse::Busy { until: None }),
        Just(InstanceUse::Stuck),
    ];
    let picks = prop::collection::vec((any::<prop::sample::Index>(), hold), 0..8);
    (prop::sample::select(keys), picks).prop_map(|(key, picks)| {
        let geometry = catalog::models()[&key].geometry();
        let all: Vec<Slot> = geometry.profiles.iter().flat_map(placements).collect();
        let mut instances: Vec<OccupiedInstance> = Vec::new();
        for (index, hold) in picks {
            let slot = *index.get(&all);
            if geometry.check(instances.iter().map(|t| &t.slot).chain([&slot])).is_ok() {
                instances.push(OccupiedInstance { slot, hold });
            }
        }
        (geometry, instances)
    })
}

/// The size of the smallest set of busy instances without which an instance of `profile` fits
/// once every idle one is gone, by trying every set.
fn oracle(geometry: &Geometry, instances: &[OccupiedInstance], profile: &Profile) -> Option<u32> {
    let slots = |keep: &dyn Fn(InstanceUse) -> bool| -> Vec<Slot> {
        instances.iter().filter(|t| keep(t.hold)).map(|t| t.slot).collect()
    };
    let busy = slots(&|hold| matches!(hold, InstanceUse::Busy { .. }));
    let stuck = slots(&|hold| hold == InstanceUse::Stuck);
    (0_u32..1 << busy.len())
        .filter(|gone| {
            let stay = busy.iter().enumerate().filter(|(i, _)| gone & (1 << i) == 0);
            let rest: Vec<Slot> = stay.map(|(_, slot)| *slot).chain(stuck.clone()).collect();
            placements(profile).any(|slot| geometry.check(rest.iter().chain([&slot])).is_ok())
        })
        .map(u32::count_ones)
        .min()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_availability_agrees_with_trying_every_set((geometry, instances) in any_instances()) {
        for (found, profile) in list_availability(&geometry, &instances).unwrap().iter().zip(&geometry.profiles) {
            prop_assert!(found.now <= found.after_idle);
            let fewest = oracle(&geometry, &instances, profile);
            match &found.first {
                FirstOpening::Now => prop_assert!(found.now > 0),
                FirstOpening::AfterIdle { idle } => {
                    prop_assert!(found.now == 0 && found.after_idle > 0 && !idle.is_empty());
                    prop_assert_eq!(fewest, Some(0));
                }
                FirstOpening::AfterBusy { busy, idle, .. } => {
                    prop_assert_eq!(found.after_idle, 0);
                    prop_assert_eq!(fewest.map(|n| n as usize), Some(busy.len()));
                    let gone = |slot: &Slot| busy.contains(slot) || idle.contains(slot);
                    let rest: Vec<Slot> =
                        instances.iter().map(|t| t.slot).filter(|s| !gone(s)).collect();
                    let fits = |slot| geometry.check(rest.iter().chain([&slot])).is_ok();
                    prop_assert!(placements(profile).any(fits));
                }
                FirstOpening::Blocked { stuck } => {
                    prop_assert_eq!(fewest, None);
                    prop_assert!(!stuck.is_empty());
                }
            }
        }
    }
}
