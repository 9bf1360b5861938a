//! Layouts under kills; the long run is the driver `layout-storm`.

use std::path::Path;

use tessera_load_tests::storm::{Change, StormPlan, kill_at_every_point, run};

#[test]
fn a_storm_of_changes_and_kills_leaks_no_instance_and_touches_no_busy_one() {
    let folder = tempfile::tempdir().unwrap();
    let seed = rand::random();
    let plan = StormPlan { transitions: 200, kills_per_thousand: 150, seed };

    let result = run(Path::new(env!("CARGO_BIN_EXE_layout-storm")), folder.path(), plan);

    let result = result.unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(result.transitions, 200);
    assert!(result.kills > 5, "seed {seed}: {result:?}");
}

#[test]
fn after_an_agent_is_killed_at_any_call_of_a_plan_the_next_one_restores_order() {
    for change in [Change::Replace, Change::Cut, Change::ReplaceByCut] {
        let folder = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_layout-storm"));

        let points = kill_at_every_point(program, folder.path(), change);

        let points = points.unwrap_or_else(|error| panic!("{change:?}: {error:#}"));
        assert!(points > 20, "only {points} calls");
    }
}
