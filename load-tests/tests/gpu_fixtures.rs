//! The read-only look at a real GPU: the script's exit paths, and the recordings of real GPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tessera_agent::inspect::Inspection;
use tessera_agent_core::companion::CompanionReadings;
use tessera_frames::cluster::MigReport;
use tessera_load_tests::programs::programs;
use tessera_model::readings::{MemoryReadings, ReadingUnit};
use tessera_model::{Bytes, Millis};
use tessera_predict::peak::{MemoryWatch, WatchAdvice, WatchTerms};
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::node::SimulatedNode;

fn gpu_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu")
}

fn look(library: &Path, sim: Option<&Path>, into: &Path) -> Output {
    let mut command = Command::new(gpu_folder().join("read-only.sh"));
    command
        .arg(into)
        .env("TESSERA_AGENT", programs().path("tessera-agent"))
        .env("TESSERA_NVML", library)
        .env("TESSERA_SIM_LATENCY", "0");
    if let Some(sim) = sim {
        command.env("TESSERA_SIM_NODE", sim);
    }
    command.output().unwrap()
}

/// Reads a fixture and checks what holds for every GPU.
fn sound(path: &Path) -> Inspection {
    let text = std::fs::read(path).unwrap();
    let seen: Inspection =
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(seen.may.contains("may"), "{}: {}", path.display(), seen.may);
    for gpu in &seen.gpus {
        assert!(gpu.facts.is_some() || !gpu.problems.is_empty(), "{}", path.display());
        let Some(facts) = &gpu.facts else { continue };
        assert!(!facts.model.is_empty() && facts.memory.get() > 0, "{facts:?}");
        if let MigReport::On { geometry } = &facts.mig {
            let slots: Vec<_> = facts.instances.iter().map(|instance| instance.slot).collect();
            geometry.check(&slots).unwrap();
            assert!(geometry.profiles.iter().all(|profile| !profile.starts.is_empty()));
        }
    }
    seen
}

#[test]
fn a_machine_without_a_gpu_is_skipped_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();

    let output = look(Path::new("/nowhere/libnvidia-ml.so.1"), None, folder.path());

    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "skipped: there is no /nowhere/libnvidia-ml.so.1\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_gpu_is_read_and_kept_with_what_may_be_done_and_is_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    // The user `nobody` must be able to read it.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let sim = folder.path().join("sim");
    let node = SimulatedNode::open(&StandInConfig::new(&sim, &["h100-80gb-sxm"])).unwrap();
    let before = node.read().unwrap();
    let into = folder.path().join("kept");

    let output = look(&programs().nvml, Some(&sim), &into);

    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}{err}");
    let kept = std::fs::read_dir(&into).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = kept.filter(|path| !path.to_string_lossy().contains("nobody")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let seen = sound(&kept[0]);
    assert!(
        seen.may.contains("may partition GPU 0") && printed.contains("may partition GPU 0"),
        "{}",
        seen.may
    );
    let facts = seen.gpus[0].facts.as_ref().unwrap();
    assert!(matches!(&facts.mig, MigReport::On { geometry } if geometry.profiles.len() > 4));
    assert!(seen.gpus[0].sample.as_ref().unwrap().power_mw.is_some());
    assert!(node.read().unwrap() == before, "nothing was changed");

    // The same without the permission for MIG: it lists the operations that it lacks permission
    // for.
    node.set_faults("call=nvmlDeviceGetGpuInstances code=4\n").unwrap();
    let output = look(&programs().nvml, Some(&sim), &into);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}");
    let seen = sound(&into.join("unread.json"));
    assert!(seen.may.contains("may neither partition nor use GPU 0"), "{}", seen.may);
    assert!(seen.findings.iter().any(|f| f.check == "mig_permission" && f.level == "blocks"));
    assert!(seen.gpus[0].problems[0].contains("4 from"), "{:?}", seen.gpus[0].problems);
}

#[test]
fn everything_that_was_kept_of_real_gpus_is_still_understood() {
    let kept = std::fs::read_dir(gpu_folder().join("fixtures")).unwrap();
    for path in kept.map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|ending| ending == "json") {
            let seen = sound(&path);
            assert!(!seen.gpus.is_empty(), "{}", path.display());
        }
    }
}

/// A program on a real GPU whose memory was limited: what its companion reported, and how it ended.
struct RecordedSeries {
    name: String,
    limit: u64,
    ran_out: bool,
    lines: Vec<(u64, String)>,
}

/// Reads the series that part 8 of the GPU pack kept.
fn recorded_series() -> Vec<RecordedSeries> {
    let folder = gpu_folder().join("results/nvidia-h200/series");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let (_, facts) = (lines.next().unwrap(), lines.next().unwrap());
        let limit = facts.strip_prefix("# limit ").unwrap().split_once(',').unwrap().0;
        let rows = lines.skip(1).map(|row| {
            let (iteration, numbers) = row.split_once(',').unwrap();
            let line = format!("m 1 0 {iteration} {}\n", numbers.replace(',', " "));
            (iteration.parse().unwrap(), line)
        });
        RecordedSeries {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            limit: limit.parse().unwrap(),
            ran_out: facts.contains("ended out of memory"),
            lines: rows.collect(),
        }
    };
    paths.iter().map(read).collect()
}

/// The first prediction about a series: where it was made, where memory is expected to run out, and whether the job would
/// have been moved in the end.
struct Predicted {
    first: Option<(u64, u64)>,
    last: Option<u64>,
    moved: Option<u64>,
}

/// Follows a series as agent and controller do: a report every five seconds.
fn follow(series: &RecordedSeries) -> Predicted {
    const ITERATION: u64 = 110;
    let (mut readings, mut watch) = (CompanionReadings::default(), MemoryWatch::default());
    let mut predicted = Predicted { first: None, last: None, moved: None };
    let terms = WatchTerms {
        capacity: Bytes::new(series.limit),
        checkpoint: Some(Millis::from_secs(1)),
        delay: Millis::from_secs(1),
        left: None,
        restart: Millis::from_secs(5),
    };
    for (at, (iteration, line)) in series.lines.iter().enumerate() {
        let now = Millis::new(iteration * ITERATION);
        readings.take(line.as_bytes(), now);
        if at % 9 != 8 {
            continue;
        }
        watch.take(&MemoryReadings {
            unit: ReadingUnit::Iterations,
            left_out: Bytes::ZERO,
            preallocated: false,
            readings: readings.take_trail(now),
        });
        match watch.advise(&terms) {
            WatchAdvice::Wait => {}
            WatchAdvice::Report(forecast) => {
                predicted.first.get_or_insert((*iteration, forecast.crossing));
                predicted.last = Some(forecast.crossing);
            }
            WatchAdvice::Act(forecast) => {
                predicted.first.get_or_insert((*iteration, forecast.crossing));
                predicted.last = Some(forecast.crossing);
                predicted.moved.get_or_insert(*iteration);
            }
        }
    }
    predicted
}

#[test]
fn real_programs_that_run_out_of_memory_are_predicted_and_others_are_left_alone() {
    let all = recorded_series();
    assert_eq!(all.iter().filter(|series| series.ran_out).count(), 4);
    assert_eq!(all.iter().filter(|series| !series.ran_out).count(), 5);
    for series in all {
        let end = series.lines.last().unwrap().0;
        let Predicted { first, last, moved } = follow(&series);
        println!(
            "{}: {} at {end}; first {first:?}, last {last:?}, moved {moved:?}",
            series.name, series.ran_out
        );
        if !series.ran_out {
            assert_eq!(moved, None, "{}", series.name);
            continue;
        }
        // Ten iterations are its checkpoint of a second.
        assert!(moved.unwrap() + 9 <= end, "{}: {moved:?} of {end}", series.name);
        assert!(last.unwrap().abs_diff(end) * 10 <= end, "{}: {last:?}, not {end}", series.name);
    }
}
