//! The stand-in for `nvidia-cuda-mps-control` next to the real one: the same answers, files and logs
//! on a machine without GPUs, word for word.
//!
//! `mps_transcript/VERSION.txt` is what NVIDIA's program of that driver printed, written down by
//! `mps-transcript PROGRAM EMPTY-FOLDER`. With the path of such a program in
//! `TESSERA_REAL_MPS_CONTROL` (and its driver's version in `TESSERA_REAL_MPS_VERSION`) it is recorded
//! again.

use std::path::Path;

use tessera_stand_in::mps::transcript::TranscriptRig;

const R535: (&str, &str) = ("535.261.03", include_str!("mps_transcript/535.261.03.txt"));
const R550: (&str, &str) = ("550.163.01", include_str!("mps_transcript/550.163.01.txt"));

/// Runs the stand-in as it is with a list of faults on a node without GPUs.
fn stand_in(faults: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("node");
    std::fs::create_dir(&node).unwrap();
    std::fs::write(node.join("mps-faults"), faults).unwrap();
    let variables = [("TESSERA_SIM_NODE".to_owned(), node.display().to_string())];
    let program = Path::new(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
    let rig = folder.path().join("rig");
    TranscriptRig { program, folder: &rig, variables: &variables }.record().unwrap()
}

/// Shows the first line that differs with what came before it.
fn assert_same(reported: &str, expected: &str) {
    let pairs = reported.lines().zip(expected.lines()).enumerate();
    for (number, (said_line, wanted_line)) in pairs {
        if said_line != wanted_line {
            let before: Vec<_> = expected.lines().take(number).collect();
            let before = before[before.len().saturating_sub(4)..].join("\n");
            panic!("line {}:\n{before}\nis     {said_line}\nwanted {wanted_line}", number + 1);
        }
    }
    assert_eq!(reported.lines().count(), expected.lines().count(), "one says more");
}

#[test]
fn the_stand_in_says_what_driver_535_says() {
    assert_same(&stand_in("release=535\nserver_fails=1\n"), R535.1);
}

#[test]
fn the_stand_in_says_what_driver_550_says() {
    assert_same(&stand_in("release=550\nserver_fails=1\n"), R550.1);
}

#[test]
fn a_real_control_program_says_what_was_written_down() {
    let Some(program) = std::env::var_os("TESSERA_REAL_MPS_CONTROL") else {
        eprintln!("skipped: TESSERA_REAL_MPS_CONTROL names no nvidia-cuda-mps-control");
        return;
    };
    let version = std::env::var("TESSERA_REAL_MPS_VERSION").unwrap_or(R535.0.to_owned());
    let known = [R535, R550].into_iter().find(|(known, _)| *known == version);
    let (_, expected) = known.unwrap_or_else(|| panic!("no transcript of {version}"));
    let folder = tempfile::tempdir().unwrap();

    let rig = TranscriptRig { program: Path::new(&program), folder: folder.path(), variables: &[] };

    assert_same(&rig.record().unwrap(), expected);
}
