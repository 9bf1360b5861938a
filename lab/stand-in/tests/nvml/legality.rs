//! Which instances may coexist, as NVML shows it.

use proptest::prelude::*;
use serde::Deserialize;
use tessera_model::mig::Slot;

use crate::rig::{Rig, every_model, raw};

const CASES: &str = include_str!("../../../../crates/model/data/mig-legality-cases.json");

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    id: String,
    gpu: String,
    what: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    profile: String,
    ok: bool,
    start: Option<u8>,
}

#[test]
fn every_documented_case_goes_as_documented() {
    let file: File = serde_json::from_str(CASES).unwrap();
    assert!(!file.cases.is_empty());

    for case in &file.cases {
        let rig = Rig::new(&[&case.gpu]);
        for (number, step) in case.steps.iter().enumerate() {
            let made = attempt(&rig, step);
            assert_eq!(made, step.ok, "{} step {number}: {}", case.id, case.what);
        }
    }
}

/// Tries a step. A step that names no start is refused only if the driver finds no place by itself
/// and refuses every place that is named. It is done only if the driver finds one.
fn attempt(rig: &Rig, step: &Step) -> bool {
    let profile = rig
        .model(0)
        .profiles
        .iter()
        .find(|p| p.profile.name.as_str() == step.profile)
        .unwrap_or_else(|| panic!("{} is no profile of this GPU", step.profile));
    let size = profile.profile.memory_slices.into();
    let id = profile.profile.id.0;
    if let Some(start) = step.start {
        return rig.create(0, id, Some((start.into(), size))).is_ok();
    }
    let chosen = rig.create(0, id, None).is_ok();
    if !chosen {
        for start in &profile.profile.starts {
            let named = rig.create(0, id, Some(((*start).into(), size)));
            assert_eq!(named, Err(23), "{} at {start}", step.profile);
        }
    }
    chosen
}

#[test]
fn a_full_gpu_lacks_resources_while_an_impossible_placement_is_an_invalid_argument() {
    let rig = Rig::new(&["a100-40gb"]);
    rig.create(0, 9, Some((0, 4))).unwrap();

    assert_eq!(rig.create(0, 5, Some((0, 4))), Err(23), "the slices are taken");
    assert_eq!(rig.create(0, 0, None), Err(23), "nowhere is room for the whole card");
    assert_eq!(rig.create(0, 14, Some((1, 2))), Err(2), "no 2g starts on slice 1");
    assert_eq!(rig.create(0, 14, Some((4, 1))), Err(2), "a 2g is 2 slices");
    assert_eq!(rig.create(0, 14, Some((u32::MAX, 2))), Err(2));
    assert_eq!(rig.create(0, 99, None), Err(2), "no such profile");
}

#[derive(Clone, Debug)]
enum Move {
    Create { profile: prop::sample::Index, start: u8 },
    CreateAnywhere { profile: prop::sample::Index },
    Destroy { which: prop::sample::Index },
}

fn a_move() -> impl Strategy<Value = Move> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), 0_u8..13).prop_map(|(profile, start)| Move::Create { profile, start }),
        2 => index().prop_map(|profile| Move::CreateAnywhere { profile }),
        3 => index().prop_map(|which| Move::Destroy { which }),
    ]
}

#[test]
fn any_sequence_of_operations_agrees_with_the_partition_laws() {
    for (key, model) in every_model() {
        let rig = Rig::new(&[key]);
        let geometry = model.geometry();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 12,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let moves = prop::collection::vec(a_move(), 1..40);
        runner
            .run(&moves, |moves| {
                let mut standing: Vec<(Slot, _)> = Vec::new();
                for step in moves {
                    apply(&rig, &geometry, &mut standing, step)?;
                    let slots: Vec<Slot> = standing.iter().map(|(slot, _)| *slot).collect();
                    prop_assert!(geometry.check(&slots).is_ok());
                    prop_assert_eq!(&slots_of(&rig), &sorted(slots));
                }
                for (_, instance) in standing {
                    prop_assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 0);
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

fn apply(
    rig: &Rig,
    geometry: &tessera_model::mig::Geometry,
    standing: &mut Vec<(Slot, nvml_wrapper_sys::bindings::nvmlGpuInstance_t)>,
    step: Move,
) -> Result<(), TestCaseError> {
    let legal = |standing: &[(Slot, _)], slot: Slot| {
        let all: Vec<Slot> = standing.iter().map(|(s, _)| *s).chain([slot]).collect();
        geometry.check(&all).is_ok()
    };
    match step {
        Move::Create { profile, start } => {
            let profile = profile.get(&geometry.profiles).id;
            let slot = Slot { start, profile };
            let made = rig.create_at(0, slot);
            prop_assert_eq!(made.is_ok(), legal(standing, slot), "{:?}", slot);
            standing.extend(made.ok().map(|instance| (slot, instance)));
        }
        Move::CreateAnywhere { profile } => {
            let profile = profile.get(&geometry.profiles);
            let slot = |start: &u8| Slot { start: *start, profile: profile.id };
            let possible = profile.starts.iter().any(|s| legal(standing, slot(s)));
            let made = rig.create(0, profile.id.0, None);
            prop_assert_eq!(made.is_ok(), possible, "{}", &profile.name);
            if let Ok(instance) = made {
                let before: Vec<Slot> = standing.iter().map(|(s, _)| *s).collect();
                let new = slots_of(rig).into_iter().find(|s| !before.contains(s)).unwrap();
                standing.push((new, instance));
            }
        }
        Move::Destroy { which } if !standing.is_empty() => {
            let (_, instance) = standing.swap_remove(which.index(standing.len()));
            prop_assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 0);
            prop_assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 2, "stale");
        }
        Move::Destroy { .. } => {}
    }
    Ok(())
}

fn slots_of(rig: &Rig) -> Vec<Slot> {
    let state = rig.node.read().unwrap();
    sorted(state.gpus[0].instances.iter().map(|i| i.slot).collect())
}

fn sorted(mut slots: Vec<Slot>) -> Vec<Slot> {
    slots.sort();
    slots
}
