//! `tessera mig`, as a process: it needs no controller.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn mig(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera"))
        .arg("mig")
        .args(words)
        .env("TESSERA_URL", "not even an address")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(words: &[&str]) -> Value {
    let output = mig(&[words, &["--json"]].concat());
    assert!(output.status.success(), "{}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn reach(report: &Value, profile: &str) -> Vec<u64> {
    let placements = report["placements"].as_array().unwrap().iter();
    let mine = placements.filter(|p| p["profile"] == profile);
    mine.map(|p| p["reachability"].as_u64().unwrap()).collect()
}

/// The cases of the data file, which every GPU's owner may run.
fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/model/data/mig-legality-cases.json")
}

#[test]
fn the_published_numbers_of_states_are_printed() {
    for (model, profiles, expected) in [
        ("a100-40gb", "plain", [298, 19, 14]),
        ("a100-40gb", "plain+double", [723, 78, 38]),
        ("a100-40gb", "plain+me", [1_089, 67, 24]),
        ("a100-40gb", "all", [2_319, 239, 64]),
        ("gb200", "all", [2_319, 239, 64]),
        ("a30-24gb", "plain", [26, 5, 4]),
    ] {
        let report = json(&["states", model, "--profiles", profiles]);

        let counts = &report["counts"];
        let found = ["states", "full_layouts", "multisets"].map(|n| counts[n].as_u64().unwrap());
        assert_eq!(found, expected, "{model} {profiles}");
        assert_eq!(report["measure"], "full_layouts");
    }
}

#[test]
fn each_placement_is_weighed_from_the_layout_that_is_given() {
    let empty = json(&["states", "a100-40gb"]);
    let double = json(&[
        "states",
        "a100-40gb",
        "--profiles",
        "1g.5gb,1g.10gb,2g.10gb,3g.20gb,4g.20gb,7g.40gb",
    ]);
    let taken = json(&["states", "a100-40gb", "--layout", "1g.5gb@6, 3g.20gb@0"]);

    assert_eq!(reach(&empty, "1g.5gb"), [6, 6, 6, 6, 6, 6, 12]);
    assert_eq!(reach(&double, "1g.5gb"), [21, 21, 21, 21, 22, 22, 33]);
    assert_eq!(empty["reachability"], 19);
    let best = |p: &&Value| p["profile"] == "1g.5gb" && p["best"] == true;
    let chosen: Vec<_> = empty["placements"].as_array().unwrap().iter().filter(best).collect();
    assert_eq!(chosen.len(), 1);
    assert_eq!(chosen[0]["start"], 6);
    // Next to a half and the last eighth: a pair at 4, or two eighths.
    assert_eq!(taken["reachability"], 2);
    assert_eq!(reach(&taken, "2g.10gb"), [1]);
    assert_eq!(taken["layout"][0]["size"], 4);
}

#[test]
fn a_person_sees_a_table_and_the_layout_drawn() {
    let output = mig(&["states", "a100-40gb", "--layout", "2g.10gb@0,1g.5gb@6"]);

    let text = out(&output);
    assert!(text.contains("298 states, 19 full layouts (14 by profiles alone)"), "{text}");
    assert!(text.contains("│2g.10gb") && text.contains("│1g.5gb"), "{text}");
    assert!(text.contains("BEST START"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("3g.20gb")), "no half is left: {text}");
}

#[test]
fn a_wrong_word_is_answered_with_what_would_be_right() {
    for (words, message) in [
        (["states", "a100-40", "--layout", ""], "did you mean one of a100-40gb, a100-80gb?"),
        (["states", "a30-24gb", "--profiles", "tiny"], "expected plain, double, me"),
        (["states", "a30-24gb", "--layout", "1g.6gb"], "write PROFILE@START, such as 1g.5gb@6"),
        (["states", "a30-24gb", "--layout", "1g.5gb@0"], "it has 1g.6gb"),
        (["states", "a30-24gb", "--layout", "2g.12gb@1"], "may start on [0, 2]"),
        (["states", "a30-24gb", "--layout", "2g.12gb@0,1g.6gb@1"], "slice 1 is claimed twice"),
        (["states", "rtx-pro-4500-32gb", "--layout", ""], "no source states the placements"),
    ] {
        let output = mig(&words);

        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(err(&output).contains(message), "{words:?}: {}", err(&output));
    }
}

#[test]
fn every_documented_case_of_every_gpu_goes_as_documented() {
    let file = cases();
    let text = std::fs::read_to_string(&file).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let all = all["cases"].as_array().unwrap();
    let gpus: std::collections::BTreeSet<_> =
        all.iter().map(|case| case["gpu"].as_str().unwrap()).collect();
    let mut run = 0;
    for gpu in gpus {
        let report = json(&["check", gpu, file.to_str().unwrap()]);

        assert_eq!(report["ok"], true, "{gpu}: {report}");
        run += report["cases"].as_array().unwrap().len();
    }
    assert_eq!(run, all.len());
}

#[test]
fn a_step_with_another_result_than_expected_is_shown_and_fails_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.json");
    let steps = r#"[
        {"profile": "4g.20gb"},
        {"profile": "3g.20gb", "start": 4},
        {"profile": "1g.5gb"},
        {"profile": "7g.40gb", "ok": false}
    ]"#;
    std::fs::write(&file, steps).unwrap();
    let file = file.to_str().unwrap();

    let output = mig(&["check", "a100-40gb", file, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = mig(&["check", "a100-40gb", file]);

    assert_eq!((output.status.code(), shown.status.code()), (Some(1), Some(1)));
    let steps = &report["cases"][0]["steps"];
    let legal: Vec<_> = (0..4).map(|i| steps[i]["legal"].as_bool().unwrap()).collect();
    assert_eq!(legal, [true, true, false, false]);
    assert_eq!(steps[0]["placed_at"], 0);
    assert!(steps[2]["reason"].as_str().unwrap().contains("other instances exist"));
    assert_eq!(report["cases"][0]["layout"].as_array().unwrap().len(), 2);
    assert!(out(&shown).contains("NOT AS EXPECTED"), "{}", out(&shown));
    assert!(out(&shown).contains("0 of 1 cases as expected"), "{}", out(&shown));
}

#[test]
fn compute_instances_are_checked_within_their_gpu_instance() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.json");
    let steps = r#"{"id": "cut", "gpu": "a100-40gb", "steps": [
        {"profile": "1c.4g.20gb", "within": 0, "ok": false},
        {"profile": "4g.20gb", "start": 0},
        {"profile": "2c.4g.20gb", "within": 0, "start": 2},
        {"profile": "1c.4g.20gb", "within": 0},
        {"profile": "2c.4g.20gb", "within": 0, "ok": false},
        {"profile": "2c.4g.20gb", "within": 0, "start": 3, "ok": false},
        {"profile": "1c.3g.20gb", "within": 0, "ok": false}
    ]}"#;
    std::fs::write(&file, steps).unwrap();

    let report = json(&["check", "a100-40gb", file.to_str().unwrap()]);

    assert_eq!(report["ok"], true, "{report}");
    let steps = &report["cases"][0]["steps"];
    let reason = |step: usize| steps[step]["reason"].as_str().unwrap().to_owned();
    assert_eq!(reason(0), "no GPU instance starts on memory slice 0");
    assert_eq!((&steps[2]["placed_at"], &steps[3]["placed_at"]), (&2.into(), &0.into()));
    assert!(reason(4).contains("claimed twice"), "{}", reason(4));
    assert!(reason(5).contains("may start on [0, 2]"), "{}", reason(5));
    assert!(reason(6).contains("it has 1c.4g.20gb, 2c.4g.20gb, 4g.20gb"), "{}", reason(6));
}

#[test]
fn a_file_without_steps_is_refused_with_the_expected_shape() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.json");
    std::fs::write(&file, r#"{"stages": []}"#).unwrap();

    let wrong = mig(&["check", "a30-24gb", file.to_str().unwrap()]);
    let absent = mig(&["check", "a30-24gb", "/nowhere/steps.json"]);
    let foreign = mig(&["check", "gb300", cases().to_str().unwrap()]);

    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).contains(r#"expected [{"profile""#), "{}", err(&wrong));
    assert!(err(&absent).contains("can't be read"), "{}", err(&absent));
    assert!(err(&foreign).contains("holds no case for gb300"), "{}", err(&foreign));
}
