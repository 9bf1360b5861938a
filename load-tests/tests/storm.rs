//! Layouts under kills; the long run is the driver `layout-storm`.

use std::path::Path;

use tessera_load_tests::storm::{StormPlan, run};

#[test]
fn a_storm_of_changes_and_kills_leaks_nothing_and_touches_nothing_busy() {
    let folder = tempfile::tempdir().unwrap();
    let seed = rand::random();
    let plan = StormPlan { transitions: 200, kills_per_thousand: 150, seed };

    let result = run(Path::new(env!("CARGO_BIN_EXE_layout-storm")), folder.path(), plan);

    let result = result.unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(result.transitions, 200);
    assert!(result.kills > 5, "seed {seed}: {result:?}");
}
