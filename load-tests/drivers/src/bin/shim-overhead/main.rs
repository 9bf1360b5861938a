//! What the shim costs: a call that it passes on, a holder's launch, and 200,000 launches a second
//! reported to the agent's own endpoint. The driver behind it does nothing, so that only the shim's
//! cost is measured.

mod program;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::{Value, json};
use tessera_agent::kernel::{Endpoint, KernelSettings, start};
use tessera_agent_core::kernel::Admission;
use tessera_frames::kernel::variables;
use tessera_kernel_queue::{Dims, KernelId, Nanos, QueueRules, TaskKey, TaskProfile};
use tessera_load_tests::machine;
use tessera_load_tests::players::gpu_of_slice;
use tessera_model::AttemptId;
use tessera_model::spec::{Class, Priority};

/// The shape of the kernel that the programs launch.
const GRID: [u32; 3] = [4, 2, 1];
const BLOCK: [u32; 3] = [32, 1, 1];
const SLICE: &str = "MIG-00000000-0000-4000-8000-000000000001";

#[derive(Parser)]
struct Arguments {
    /// Seconds of 200,000 launches each.
    #[arg(long, default_value_t = 20)]
    secs: u64,
    /// Launches a second.
    #[arg(long, default_value_t = 200_000)]
    rate: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Internal: run as a program under test.
    #[arg(long, hide = true)]
    program: Option<program::Part>,
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(part) = arguments.program {
        return program::run(part, arguments.secs, arguments.rate);
    }
    let folder = tempfile::tempdir()?;
    let paths = install(folder.path())?;
    let endpoint = endpoint(folder.path())?;
    let high = admit(&endpoint, "high", 0, 1)?;
    let low = admit(&endpoint, "low", 7, 2)?;

    let none = BTreeMap::new();
    let inert = run(&paths, &none, program::Part::Inert, &arguments)?;
    let watch = watch(folder.path())?;
    let watched = run(&paths, &watch, program::Part::Watched, &arguments)?;
    // Somebody must be there to hold the device against.
    let mut filler = spawn(&paths, &low, program::Part::Filler, &arguments)?;
    let measured = run(&paths, &high, program::Part::Holder, &arguments)?;
    let before = endpoint_cpu_secs()?;
    let sustained = run(&paths, &high, program::Part::Sustained, &arguments)?;
    let endpoint_cpu = endpoint_cpu_secs()? - before;
    drop(filler.stdin.take());
    filler.wait()?;

    let lost = sustained["lost"].as_u64().context("lost")?;
    let result = json!({
        "what": "the kernel shim before a driver that does nothing, with the agent's own endpoint",
        "machine": machine::facts(),
        "passed_on": inert,
        "watched": watched,
        "holder": measured,
        "sustained": sustained,
        "endpoint_core_percent": endpoint_cpu / arguments.secs as f64 * 100.0,
    });
    machine::report(&result, arguments.out.as_deref())?;
    ensure!(lost == 0, "{lost} records were lost");
    Ok(())
}

/// Returns what a watched program needs. Nobody reads its pipe, so that its lines are lost once that is full.
fn watch(folder: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let pipe = folder.join("pipe");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "no pipe could be made");
    let all = [(variables::WATCH, variables::WATCH_ON.to_owned())];
    let all = all.into_iter().chain([(variables::MEMORY_PIPE, pipe.display().to_string())]);
    Ok(all.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The shim under its name, and the driver.
struct Paths {
    shim: PathBuf,
    driver: PathBuf,
}

fn install(folder: &Path) -> anyhow::Result<Paths> {
    let built = std::env::current_exe()?.with_file_name("libtessera_kernel_shim.so");
    let (shim, driver) = (folder.join("shim/libcuda.so.1"), folder.join("driver/libcuda.so.1"));
    for path in [&shim, &driver] {
        std::fs::create_dir(path.parent().context("a folder")?)?;
    }
    std::fs::copy(&built, &shim)
        .with_context(|| format!("{} is not there: run ./x build", built.display()))?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/null_driver.c");
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&driver, &source])
        .status()?;
    ensure!(status.success(), "the driver could not be compiled");
    Ok(Paths { shim, driver })
}

fn endpoint(folder: &Path) -> anyhow::Result<Endpoint> {
    let settings = KernelSettings {
        shim: PathBuf::from("/nowhere/libcuda.so.1"),
        rules: QueueRules::default(),
        data: folder.join("data"),
        gates: folder.join("gates"),
    };
    let (endpoint, mut events) = start(settings)?;
    // Nothing is learned from these programs.
    std::thread::spawn(move || while events.blocking_recv().is_some() {});
    Ok(endpoint)
}

/// Admits an attempt whose one kernel is known; returns what its programs need.
fn admit(
    endpoint: &Endpoint,
    task: &str,
    priority: u8,
    number: u128,
) -> anyhow::Result<BTreeMap<String, String>> {
    let task = TaskKey::new(task)?;
    let admission = Admission {
        attempt: AttemptId::from_uuid(uuid::Uuid::from_u128(number)),
        gpu: gpu_of_slice(&SLICE.parse()?)?,
        slice: SLICE.parse()?,
        task: task.clone(),
        priority: Priority::try_from(priority)?,
        class: Class::Offline,
        share_thousandths: 1_000,
        exclusive: false,
        owner: None,
    };
    let environment = endpoint.handle.admit(admission, &BTreeMap::new())?;
    endpoint.handle.share_profile(&task, &profile()?);
    Ok(environment.into_iter().collect())
}

fn profile() -> anyhow::Result<TaskProfile> {
    let mut profile = TaskProfile::default();
    let kernel = KernelId::new("k0", Dims(GRID), Dims(BLOCK))?;
    let index = profile.intern(&kernel).context("an empty profile has room")?;
    for _ in 0..20 {
        let known = profile.kernel_mut(index).context("just added")?;
        known.took.add(Nanos::from_micros(4));
        known.gap.add(Nanos::from_micros(1));
        profile.pairs.add(None, index, Nanos::from_micros(1));
    }
    profile.close_measuring();
    Ok(profile)
}

fn spawn(
    paths: &Paths,
    environment: &BTreeMap<String, String>,
    part: program::Part,
    arguments: &Arguments,
) -> anyhow::Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(["--program", part.name(), "--secs", &arguments.secs.to_string()])
        .args(["--rate", &arguments.rate.to_string()])
        .envs(environment.iter().filter(|(name, _)| name.starts_with("TESSERA_")))
        .env("LD_PRELOAD", &paths.shim)
        .env("TESSERA_KERNEL_CUDA", &paths.driver)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(child)
}

fn run(
    paths: &Paths,
    environment: &BTreeMap<String, String>,
    part: program::Part,
    arguments: &Arguments,
) -> anyhow::Result<Value> {
    let output = spawn(paths, environment, part, arguments)?.wait_with_output()?;
    std::io::stderr().write_all(&output.stderr)?;
    ensure!(output.status.success(), "the program ended with {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Processor time of this process, which is the endpoint's: nothing else happens here meanwhile.
fn endpoint_cpu_secs() -> anyhow::Result<f64> {
    Ok(program::cpu_time().context("the system's clock of this process")?.as_secs_f64())
}

/// Timeout for every wait.
const PATIENCE: Duration = Duration::from_secs(30);
