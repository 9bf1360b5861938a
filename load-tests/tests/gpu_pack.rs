//! The GPU pack, rehearsed on the driver's stand-in: the same files, programs and steps as on a GPU. The
//! assertions are about counts, and times of the stand-in's own device, never about times of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tessera_load_tests::programs::programs;

const PARTS: [&str; 9] = [
    "1-inventory",
    "2-interception",
    "3-hashes",
    "4-overhead",
    "5-profiles",
    "6-switches",
    "7-pairs",
    "8-memory",
    "9-cluster",
];

fn target() -> PathBuf {
    programs().path("..").canonicalize().unwrap()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu")
}

/// A pack as `./x gpu-pack` makes it, with a simulated node and a folder for results.
struct UnpackedPack {
    folder: TempDir,
}

impl UnpackedPack {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new(sources().join("pack.sh"))
            .arg(target())
            .arg(folder.path().join("pack"))
            .status()
            .unwrap();
        assert!(made.success());
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a `run.sh` on the stand-in.
    fn run(&self, script: &Path, arguments: &[&str]) -> Output {
        let stand_in = target().join("stand-in");
        let path = format!("{}:{}", std::env::var("PATH").unwrap(), stand_in.display());
        self.command(script, arguments)
            .env("LD_LIBRARY_PATH", &stand_in)
            // The stand-in's MPS control program.
            .env("PATH", path)
            .env("TESSERA_SIM_NODE", self.path("node"))
            .env("TESSERA_SIM_MIG", "off")
            .env("TESSERA_SIM_GPUS", "h100-80gb-sxm")
            .env("TESSERA_PACK_NVML", stand_in.join("libnvidia-ml.so.1"))
            .output()
            .unwrap()
    }

    fn command(&self, script: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(script);
        command
            .arg("--out")
            .arg(self.path("results"))
            .arg("--quick")
            .args(arguments)
            .env("PYTHONPATH", sources().join("../../lab/stand-in/python"))
            .env_remove("LD_PRELOAD");
        command
    }

    fn result(&self, part: &str) -> Value {
        let text = fs::read(self.path("results").join(format!("{part}.json"))).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

fn rows(result: &Value) -> BTreeMap<String, Value> {
    let rows = result["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["name"].as_str().unwrap().to_owned(), row.clone())).collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned()
}

fn play(file: &Path, node: &Path) -> Value {
    let played = Command::new(target().join("stand-in/tessera-sim-player"))
        .arg(file)
        .env("LD_LIBRARY_PATH", target().join("stand-in"))
        .env("TESSERA_SIM_NODE", node)
        .env("TESSERA_SIM_MIG", "off")
        .output()
        .unwrap();
    assert!(played.status.success(), "{}", text(&played));
    serde_json::from_slice(&played.stdout).unwrap()
}

#[test]
fn the_whole_pack_runs_on_the_stand_in_and_says_so_in_every_file() {
    let pack = UnpackedPack::new();

    let output = pack.run(&pack.path("pack/run.sh"), &[]);

    let printed = text(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    for part in PARTS {
        let result = pack.result(part);
        assert_eq!(result["complete"], true, "{part}");
        assert_eq!(result["machine"]["stand_in"], true, "{part}");
        assert_eq!(result["machine"]["driver"], "stand-in", "{part}");
        let device = result["machine"]["device"].as_str().unwrap();
        assert!(device.starts_with("stand-in for "), "{part}: {device}");
        assert!(printed.contains(part), "the table names {part}");
        for row in result["rows"].as_array().unwrap() {
            assert_ne!(row["status"], "fail", "{row}");
            // The parts that can't be rehearsed are skipped for exactly this reason.
            let reason = row["reason"].as_str().unwrap_or("stand-in");
            assert!(reason.contains("stand-in") || reason.contains("the role was"), "{row}");
        }
    }
    every_launch_is_counted(&rows(&pack.result("2-interception")));
    results_are_the_same_in_each_role(&rows(&pack.result("3-hashes")));
    costs_are_measured_in_their_roles(&rows(&pack.result("4-overhead")));
    a_recording_can_be_played(&pack);
    time_slices_are_the_devices_own(&rows(&pack.result("6-switches")));
    pairs_run_in_all_forms(&rows(&pack.result("7-pairs")));
    the_stand_in_of_pytorch_keeps_the_contract(&rows(&pack.result("8-memory")));
    a_cluster_runs_jobs_in_all_ways(&rows(&pack.result("9-cluster")));
}

fn the_stand_in_of_pytorch_keeps_the_contract(rows: &BTreeMap<String, Value>) {
    let kept =
        rows.iter().filter(|(name, row)| name.starts_with("PyTorch: ") && row["status"] == "pass");
    assert_eq!(kept.count(), 13, "{rows:?}");
    let series = &rows["steps_alone: the companion's figures"];
    assert_eq!((&series["iterations"], &series["reserved_peak_mib"]), (&json!(40), &json!(320)));
    assert_eq!(rows["the companion initialises nothing"]["initialised"], false);
}

fn a_cluster_runs_jobs_in_all_ways(rows: &BTreeMap<String, Value>) {
    for row in [
        "a job without a size runs and succeeds",
        "out of memory is recognised, and no size is tried twice",
        "a job outlives its agent",
        "a running job is cancelled",
        "two jobs with --share mps run at the same time",
        "a sharing job gets what it requested and no more",
        "two jobs with --share kernel run at the same time",
    ] {
        assert_eq!(rows[row]["status"], "pass", "{}", rows[row]);
    }
    assert_eq!(rows["training"]["status"], "skip", "it needs a real PyTorch");
}

fn every_launch_is_counted(rows: &BTreeMap<String, Value>) {
    let ways: Vec<_> = rows.iter().filter(|(name, _)| name.starts_with("launches by ")).collect();
    assert_eq!(ways.len(), 5, "{rows:?}");
    for (way, row) in ways {
        assert_eq!((&row["launched"], &row["counted"]), (&json!(100), &json!(100)), "{way}");
    }
    assert_eq!(rows["unhooked functions"]["unhooked"], 0);
    // 5 ways of 100 launches each, 3 launches that were captured, and the first one.
    assert_eq!(rows["launch calls by the stand-in's own count"]["stand_in"], 504);
    // Each of 100 launches of their graph runs the 3 captured ones.
    assert_eq!(rows["kernels by the stand-in's own count"]["stand_in"], 701);
}

fn results_are_the_same_in_each_role(rows: &BTreeMap<String, Value>) {
    for role in ["measure", "free", "hold", "fill"] {
        let row = &rows[&format!("driver: ordered steps, {role}")];
        assert_eq!(row["hash"], row["without"], "{row}");
        assert_eq!(row["hash"].as_str().unwrap().len(), 64, "{row}");
    }
    assert_eq!(rows["driver: ordered steps, fill"]["role"], "fill");
}

fn costs_are_measured_in_their_roles(rows: &BTreeMap<String, Value>) {
    for role in ["measure", "free", "hold"] {
        let row = &rows[&format!("a launch, {role}")];
        if row["status"] == "skip" {
            continue;
        }
        assert_eq!(row["role"], role, "{row}");
        assert_eq!(row["launched"], row["counted"], "{row}");
        assert_eq!(row["shim_ns"]["samples"], 20, "{row}");
    }
    assert_eq!(rows["a launch, measure"]["status"], "measured");
    assert!(rows["a launch without the shim"]["launch_ns"]["p50"].as_f64().unwrap() > 0.0);
}

fn a_recording_can_be_played(pack: &UnpackedPack) {
    let rows = rows(&pack.result("5-profiles"));
    // FIKIT's twelve networks, and the proxy that the stand-in can run.
    assert_eq!(rows.len(), 13, "{rows:?}");
    let row = &rows["alexnet-proxy"];
    assert_eq!(row["launches"], 24);
    let file = pack.path("results").join(row["file"].as_str().unwrap());
    assert!(fs::read_to_string(&file).unwrap().contains("stand-in for "), "who recorded it");
    assert_eq!(play(&file, &pack.path("played"))["launches"], 24);
}

fn time_slices_are_the_devices_own(rows: &BTreeMap<String, Value>) {
    let row = &rows["turns of two processes"];
    // The stand-in's settings: slices of 2 ms, and 150 µs for a context switch.
    assert_eq!(row["turn_ms"]["p50"], 2.0, "{row}");
    assert_eq!(row["change_us"]["p50"], 150.0, "{row}");
    assert_eq!(row["at_once"], 0, "{row}");
    // A switch lies in the launch after the pause, unless the device was recalled.
    let median = |name: &str| rows[name]["task_ms"]["p50"].as_f64().unwrap();
    let waits = median("a launch after a pause, next to a process that used it");
    let recalled = median("the same, after a recall 1 ms before");
    assert!(recalled + 0.05 < waits, "{recalled} {waits}");
}

fn pairs_run_in_all_forms(rows: &BTreeMap<String, Value>) {
    let scenes = [
        "finding 1: low with kernels of 50 ms",
        "finding 2: high with kernels of 30 ms and a profile of 2 ms",
        "pair F by proxies",
    ];
    for scene in scenes {
        for form in ["alone", "default sharing", "Tessera", "MPS", "Tessera over MPS"] {
            let row = &rows[&format!("{scene}: {form}")];
            assert_eq!(row["status"], "measured", "{row}");
            assert!(row["task_ms"]["samples"].as_u64().unwrap() >= 3, "{row}");
            assert_eq!(row.get("times_alone").is_some(), form != "alone", "{row}");
        }
        for form in ["Tessera", "Tessera over MPS"] {
            let row = &rows[&format!("{scene}: {form}, intercepted")];
            assert_eq!((&row["unhooked"], &row["sessions"]), (&json!([0, 0]), &json!([1, 1])));
        }
        let [alternating, over_mps] =
            ["Tessera", "Tessera over MPS"].map(|form| &rows[&format!("{scene}: {form}")]);
        // The switch is the one that part 6 measures on the stand-in.
        assert_eq!(alternating["rules"], json!({ "switch_us": 150 }), "{alternating}");
        assert_eq!(over_mps["rules"], json!({ "over_mps": true }), "{over_mps}");
        assert_eq!(alternating["queue"]["low"]["colocated"], 0, "{alternating}");
    }
}

#[test]
fn a_machine_without_a_driver_skips_everything_with_the_reason() {
    let pack = UnpackedPack::new();

    let output = pack
        .command(&pack.path("pack/run.sh"), &["--only", "2,6"])
        .env("LD_LIBRARY_PATH", "/nowhere")
        .output()
        .unwrap();

    // A machine with a GPU has a driver, which this test would measure.
    if Path::new("/dev/nvidiactl").exists() {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for part in ["2-interception", "6-switches"] {
        let result = pack.result(part);
        let reason = result["rows"][0]["reason"].as_str().unwrap();
        assert!(reason.starts_with("no device: "), "{reason}");
        assert_eq!(result["machine"]["device"], Value::Null);
    }
}

#[test]
fn without_the_built_programs_it_names_what_packs_them() {
    let pack = UnpackedPack::new();
    fs::remove_dir_all(pack.path("pack/bin")).unwrap();

    let output = pack.run(&pack.path("pack/run.sh"), &["--only", "2"]);

    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let reason = &pack.result("2-interception")["rows"][0]["reason"];
    assert_eq!(reason, "bin/tessera-kernel-endpoint is missing: ./x gpu-pack packs it");
}

#[test]
fn a_failed_part_stops_no_other_and_is_listed_as_failed() {
    let pack = UnpackedPack::new();
    fs::write(pack.path("pack/gpu_pack/inventory.py"), "raise SystemExit(7)\n").unwrap();

    let output = pack.run(&pack.path("pack/run.sh"), &["--only", "1,6"]);

    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("FAILED with exit status 7"), "{printed}");
    assert!(printed.contains("fail  1-inventory: not complete"), "{printed}");
    assert_eq!(pack.result("6-switches")["complete"], true);
    assert_eq!(pack.result("summary")["failed"], 1);
}

#[test]
fn wrong_arguments_are_refused_with_the_right_ones() {
    let pack = UnpackedPack::new();

    for (arguments, right) in [
        (["--only", "2;8"], "--only takes numbers from 1 to 9 with commas, such as 2,3; not 2;8"),
        (["--fast", ""], "unknown argument --fast; use --out FOLDER, --only 2,3 or --quick"),
    ] {
        let output = pack.run(&pack.path("pack/run.sh"), &arguments);

        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains(right), "{}", text(&output));
    }
}

#[test]
fn a_trace_of_torchs_profiler_becomes_a_file_that_plays() {
    let folder = tempfile::tempdir().unwrap();
    let event = |at: f64, task: f64, grid: u32, stream: u32| {
        json!({"cat": "kernel", "name": "void gemm<float, 4>(int*)", "ts": task * 1000.0 + at, "dur": 100.5,
            "args": {"grid": [grid, 1, 1], "block": [128, 1, 1], "stream": stream}})
    };
    let mark = |task: f64| json!({"cat": "user_annotation", "name": "task", "ts": task * 1000.0, "dur": 900});
    let tasks = [0.0, 1.0, 2.0];
    let events: Vec<_> = tasks
        .iter()
        .flat_map(|task| [mark(*task), event(50.0, *task, 4, 7), event(152.0, *task, 8, 20)])
        .chain([json!({"cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 1.0, "dur": 2.0})])
        .collect();
    let program = "import json, sys\nfrom gpu_pack import player\n\
         events, windows = player.of_profiler(json.load(sys.stdin), 'task')\n\
         print(player.recording('a test', player.split(events, windows), windows)[0], end='')";
    let mut python = Command::new("python3")
        .args(["-c", program])
        .env("PYTHONPATH", sources())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let trace = json!({ "traceEvents": events });
    python.stdin.take().unwrap().write_all(trace.to_string().as_bytes()).unwrap();

    let written = python.wait_with_output().unwrap();

    let file = folder.path().join("recorded.player");
    fs::write(&file, &written.stdout).unwrap();
    // The pause of 1.5 µs between both is not a pause of the host.
    let expected = "player 1\n# a test\nstreams 2\niterations 1\n# k0: void gemm<float, 4>(int*)\n\
        kernel k0 dur=100500ns\nkernel k0 dur@8x1x1/128x1x1=100500ns\ngap 50000ns\nrun k0 4x1x1/128x1x1\n\
        run k0 8x1x1/128x1x1 stream=1\ngap 647500ns\n";
    assert_eq!(String::from_utf8(written.stdout).unwrap(), expected);
    assert_eq!(play(&file, &folder.path().join("node"))["launches"], 2);
}

#[test]
fn nothing_in_the_pack_can_change_a_setting_of_a_gpu() {
    let pack = UnpackedPack::new();
    let mut files: Vec<PathBuf> = vec![pack.path("pack/run.sh")];
    let modules = fs::read_dir(pack.path("pack/gpu_pack")).unwrap();
    files.extend(modules.map(|entry| entry.unwrap().path()));
    assert!(files.len() > 15);

    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        for word in source.split(|letter: char| !letter.is_ascii_alphanumeric()) {
            let is_question = ["nvmlInit", "nvmlSystemGet", "nvmlDeviceGet"];
            let asks = is_question.iter().any(|begin| word.starts_with(begin));
            assert!(
                !word.starts_with("nvml") || word == "nvml" || asks,
                "{}: {word}",
                file.display()
            );
        }
        // NVIDIA's program is started once, for a query.
        let starts = source.matches("which(\"nvidia-smi\")").count();
        assert_eq!(
            starts,
            source.matches("[program, \"--query-gpu=\"").count(),
            "{}",
            file.display()
        );
        for order in [
            "--mig",
            "-mig",
            "multi-instance",
            "lock-gpu-clocks",
            "lock-memory-clocks",
            "-lgc",
            "-lmc",
            "applications-clocks",
            "persistence-mode",
            "-pm ",
            "--compute-mode",
            "power-limit",
            "gpu-reset",
            "set_default_",
            "set_active_",
            "sudo ",
        ] {
            assert!(!source.contains(order), "{}: {order}", file.display());
        }
    }
}

#[test]
fn the_endpoint_answers_an_invalid_request_with_an_error_and_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mut endpoint = Command::new(env!("CARGO_BIN_EXE_tessera-kernel-endpoint"))
        .arg("--shim")
        .arg(target().join("kernel-shim/libcuda.so.1"))
        .arg("--folder")
        .arg(folder.path())
        .args(["--slice", "GPU-00000000-0000-0000-0000-000000000001"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut orders = endpoint.stdin.take().unwrap();
    let mut answers = BufReader::new(endpoint.stdout.take().unwrap()).lines();
    let mut answer = |order: &str| -> Value {
        writeln!(orders, "{order}").unwrap();
        serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap()
    };

    let nonsense = answer("go");
    let too_low = answer(r#"{"admit":{"task":"a","priority":12,"class":"offline"}}"#);
    let admitted = answer(
        r#"{"admit":{"task":"a","priority":0,"class":"online","environment":{"LD_LIBRARY_PATH":"/opt"}}}"#,
    );

    assert!(nonsense["error"].as_str().unwrap().starts_with("no order: use admit or end"));
    assert!(!too_low["error"].as_str().unwrap().is_empty(), "{too_low}");
    let environment = &admitted["environment"];
    assert!(environment["LD_PRELOAD"].as_str().unwrap().ends_with("kernel-shim/libcuda.so.1"));
    assert!(environment["LD_LIBRARY_PATH"].as_str().unwrap().ends_with("kernel-shim:/opt"));
    assert_eq!(environment["TESSERA_KERNEL_TOKEN"].as_str().unwrap().len(), 64);
    let end = json!({ "end": admitted["attempt"] });
    assert_eq!(answer(&end.to_string())["tally"]["sessions"], 0);
    drop(orders);
    assert!(endpoint.wait().unwrap().success(), "it ends with its input");
}
