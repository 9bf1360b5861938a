//! `tessera-agent`: puts the parts together and runs them until told to stop.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use tessera_agent::actors::{gpu, node};
use tessera_agent::config::{Arguments, Command, Config, MPS_CONTROL, NVML_LIBRARY};
use tessera_agent::disk::{DataFolder, NodeState};
use tessera_agent::doctor::Doctor;
use tessera_agent::gpus::one::Tools;
use tessera_agent::journal::JournalFile;
use tessera_agent::kernel::{self, KernelSettings};
use tessera_agent::kernel_log::{self, KernelLog};
use tessera_agent::lease_page::LeasePage;
use tessera_agent::link::{self, Controller};
use tessera_agent::mps::{self, MpsSettings};
use tessera_agent::node::{Fatal, INPUTS_MAX, Input, Node, NodeFacts, NodeParts};
use tessera_agent::nvml::client::{NvmlClient, WorkerProgram};
use tessera_agent::nvml::events;
use tessera_agent::outputs::OutputKeeper;
use tessera_agent::pool::{Nursery, Pool};
use tessera_agent::shepherd::group;
use tessera_agent::telemetry::{self, TelemetryParts};
use tessera_agent::{adopt, http, nvml, sys::clock};
use tessera_model::Bytes;
use tessera_wire::tls::Identity;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

/// The exit status for "don't start me again as I am" (`EX_CONFIG`).
const REFUSED: u8 = 78;
/// Orders that may wait for GPUs.
const GPU_ORDERS: usize = 64;
/// How long a good-bye to the controller may take.
const GOODBYE_WITHIN: std::time::Duration = std::time::Duration::from_millis(500);
/// Questions for the doctor that may wait.
const QUESTIONS: usize = 16;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::MpsTerminate(what)) => return status(mps::terminate::run(what)),
        Some(Command::MpsCanary) => {
            let ran = mps::canary::run().inspect_err(|error| eprintln!("{error}"));
            return status(ran.is_ok());
        }
        Some(Command::NvmlCheckup { nvml: library }) => {
            return status(nvml::checkup::run(library).is_ok());
        }
        Some(Command::Doctor { nvml: library, data, json }) => {
            return consult(&arguments, library.as_ref(), data.as_ref(), *json);
        }
        Some(Command::Inspect { nvml: library }) => return inspect(&arguments, library.as_ref()),
        Some(Command::NvmlWorker { nvml: library, events }) => {
            let run = if *events { nvml::watch::run } else { nvml::worker::run };
            // The agent sees that it is gone, and starts another.
            return status(run(library).is_ok());
        }
        None => {}
    }
    // Lives until the end, outside of any runtime: its own end sends the last spans.
    let _telemetry = match tessera_telemetry::init("tessera-agent") {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("tessera-agent: {error}");
            return ExitCode::FAILURE;
        }
    };
    match start(&arguments) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the agent can't go on");
            ExitCode::FAILURE
        }
    }
}

fn status(well: bool) -> ExitCode {
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Looks at this machine for a person; no controller and no identity are needed.
fn consult(
    arguments: &Arguments,
    library: Option<&OsString>,
    data: Option<&PathBuf>,
    json: bool,
) -> ExitCode {
    let library = library.or(arguments.nvml.as_ref()).map(PathBuf::from);
    let doctor = std::env::current_exe().map(|program| Doctor {
        program,
        library: library.unwrap_or_else(|| NVML_LIBRARY.into()),
        data: data.or(arguments.data.as_ref()).cloned(),
        mps_control: arguments.mps_control.clone().unwrap_or_else(|| MPS_CONTROL.into()),
    });
    let sound = match doctor {
        Ok(doctor) => actix::System::new().block_on(async move { doctor.print(json).await }),
        Err(error) => {
            eprintln!("tessera-agent: can't find this program itself: {error}");
            false
        }
    };
    status(sound)
}

/// Prints what the driver tells of its GPUs.
fn inspect(arguments: &Arguments, library: Option<&OsString>) -> ExitCode {
    let library = library.or(arguments.nvml.as_ref()).map(PathBuf::from);
    let library = library.unwrap_or_else(|| NVML_LIBRARY.into());
    let mps_control = arguments.mps_control.clone().unwrap_or_else(|| MPS_CONTROL.into());
    match std::env::current_exe() {
        Ok(program) => {
            let looked = tessera_agent::inspect::print(program, library, mps_control);
            status(actix::System::new().block_on(looked))
        }
        Err(error) => {
            eprintln!("tessera-agent: can't find this program itself: {error}");
            status(false)
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(arguments)?;
    let identity = config.data.join("identity");
    let identity = Identity::load(&identity).context("no identity: make one with node-cert")?;
    let own = identity.node().context("the certificate is not a node's")?;
    let tls = identity.client()?;
    anyhow::ensure!(config.shepherd.exists(), "no shepherd: {}", config.shepherd.display());
    tessera_agent::pool::check_program(&config.shepherd).map_err(anyhow::Error::msg)?;
    if arguments.check {
        println!("{}", toml::to_string(&config)?);
        println!("# node {} ({})", own.name, own.id);
        return Ok(ExitCode::SUCCESS);
    }
    tracing::info!(node = %own.name, id = %own.id, data = %config.data.display(), "starting");
    let folder = DataFolder::take(&config.data)?;
    actix::System::new().block_on(run(config, folder, own.name, tls))
}

async fn run(
    config: Config,
    folder: DataFolder,
    name: tessera_model::NodeName,
    tls: quinn::ClientConfig,
) -> anyhow::Result<ExitCode> {
    let data = folder.path().to_owned();
    let boot = clock::boot_id().context("this kernel names no boot")?;
    let state = NodeState::load(&data)?;
    let (journal, ledger) = JournalFile::open(&data).context("can't open the journal")?;
    let page = LeasePage::open_writer(&data).context("can't open the lease page")?;
    let (inputs, heard) = mpsc::channel(INPUTS_MAX);

    let groups = if config.cgroups { group::find_parent() } else { None };
    tracing::info!(?groups, "control groups");
    let nursery = Nursery { program: config.shepherd.clone(), data: data.clone(), groups, boot };
    let mut pool = Pool::new(nursery.clone(), inputs.clone());
    let held = adopt::adopt(&nursery, &mut pool).await;

    let (gpu_port, gpu_orders) = mpsc::channel(GPU_ORDERS);
    let (doctor_port, questions) = mpsc::channel(QUESTIONS);
    let (fatal, refused) = oneshot::channel();
    let own = name.to_string();
    let facts = NodeFacts {
        name,
        boot,
        process: rand::random(),
        cores: std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        memory: machine_memory(),
        data: data.clone(),
        environment: config.environment(),
        mps: mps::find(&config.mps_control),
        kernel_over_mps: config.kernel_over_mps,
        address: config.address.clone(),
    };
    let queues = start_queues(&config, &data, &inputs);
    let (mps, mps_orders) = mpsc::channel(mps::ORDERS_MAX);
    let settings = MpsSettings {
        control: facts.mps.clone().unwrap_or_else(|| config.mps_control.clone()),
        canary: config.mps_canary.clone(),
        data: data.clone(),
        passed: config.environment().passed.into_iter().collect(),
    };
    tracing::info!(mps = ?facts.mps, "sharing of slices");
    actix::spawn(mps::run(settings, boot, inputs.clone(), mps_orders));
    let journal = journal.start(inputs.clone()).context("can't start the journal's thread")?;
    let (telemetry, tenants) = mpsc::channel(telemetry::EVENTS_MAX);
    let limits = config.output_limits().context("can't tell what outputs may take")?;
    let outputs =
        OutputKeeper::start(&data, limits).context("can't start the thread of outputs")?;
    let parts = NodeParts {
        facts,
        state,
        page,
        pool,
        journal,
        ledger,
        held,
        outputs: outputs.clone(),
        gpus: gpu_port,
        doctor: doctor_port,
        mps,
        desk: queues.as_ref().map(|endpoint| endpoint.desk.clone()),
        telemetry,
        fatal,
    };
    node::NodeActor::start(Node::start(parts), heard);

    let program = std::env::current_exe().context("can't find this program itself")?;
    let library = config.nvml.clone().into_os_string();
    let worker = WorkerProgram { program, library };
    let (ready, looked) = oneshot::channel();
    let gpu_boot = clock::boot_id_in(&config.gpu_boot_id).with_context(|| {
        format!("{} names no boot of the GPUs' machine", config.gpu_boot_id.display())
    })?;
    let nvml = NvmlClient::start(worker.clone());
    let sampling = TelemetryParts {
        nvml: nvml.clone(),
        node: inputs.clone(),
        data: data.clone(),
        boot: gpu_boot,
        pace: config.pace(),
        report_every: config.telemetry_report_every(),
        job_mapping: config.dcgm_job_mapping.clone(),
    };
    let shared = telemetry::Shared::default();
    if let Some(address) = config.http {
        let listener = std::net::TcpListener::bind(address)
            .with_context(|| format!("can't listen on {address} (HTTP)"))?;
        tracing::info!(address = %listener.local_addr()?, "serving metrics");
        let kernels = queues.as_ref().map(|endpoint| endpoint.desk.board().clone());
        actix::spawn(http::serve(listener, own, shared.clone(), kernels)?);
    }
    actix::spawn(telemetry::run(sampling, shared, tenants));
    let tools = Tools {
        nvml,
        node: inputs.clone(),
        data: data.clone(),
        tries_max: config.destroy_tries,
        adopt: config.adopt,
        boot: gpu_boot,
        files: config.device_files.clone(),
    };
    let (tell, told) = mpsc::channel(GPU_ORDERS);
    actix::spawn(gpu::run(tools, gpu_orders, told, ready));
    actix::spawn(events::run(worker, tell.clone()));
    let log = KernelLog { path: config.kernel_log.clone(), data: data.clone(), boot: gpu_boot };
    actix::spawn(kernel_log::run(log, tell));
    // The first inventory names every GPU that answers.
    let _ = looked.await;
    let doctor = Doctor {
        program: std::env::current_exe().context("can't find this program itself")?,
        library: config.nvml.clone(),
        data: Some(data.clone()),
        mps_control: config.mps_control.clone(),
    };
    let node = inputs.clone();
    actix::spawn(async move {
        doctor.log().await;
        doctor.serve(questions, node).await;
    });
    let controller = Controller { address: config.controller.clone(), tls, data, outputs };
    let (stop, stopping) = watch::channel(false);
    let link = actix::spawn(link::run(controller, inputs, stopping));
    let code = wait(refused).await?;
    stop.send_replace(true);
    // A link that is waiting for its next try has nobody to say good-bye to.
    let _ = tokio::time::timeout(GOODBYE_WITHIN, link).await;
    Ok(code)
}

/// Starts the kernel queues, if there is a shim. Without them the agent goes on: jobs that need
/// them are not placed here.
fn start_queues(
    config: &Config,
    data: &std::path::Path,
    node: &mpsc::Sender<Input>,
) -> Option<kernel::Endpoint> {
    let Some(shim) = config.kernel_shim.clone() else {
        tracing::info!("no kernel-shim/libcuda.so.1: slices are not shared kernel by kernel");
        return None;
    };
    let shim = match kernel::shelve(&shim, data) {
        Ok(copy) => copy,
        Err(error) => {
            let shim = shim.display();
            tracing::error!(%error, %shim, "no copy of the shim can be made: slices are not shared kernel by kernel");
            return None;
        }
    };
    let settings = KernelSettings {
        shim,
        rules: config.kernel_rules,
        data: data.to_owned(),
        gates: config.kernel_gates.clone(),
    };
    match kernel::start(settings) {
        Ok((endpoint, mut events)) => {
            let node = node.clone();
            actix::spawn(async move {
                while let Some(event) = events.recv().await {
                    if node.send(Input::Kernel(event)).await.is_err() {
                        return;
                    }
                }
            });
            Some(endpoint)
        }
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::error!(error, "slices are not shared kernel by kernel");
            None
        }
    }
}

/// Waits for the end. Attempts go on: their shepherds don't need an agent.
async fn wait(refused: oneshot::Receiver<Fatal>) -> std::io::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        fatal = refused => {
            if let Ok(fatal) = fatal {
                tracing::error!(reason = fatal.reason, "stopped by the controller");
                return Ok(ExitCode::from(REFUSED));
            }
        }
    }
    tracing::info!("stopping; attempts go on");
    Ok(ExitCode::SUCCESS)
}

/// Reads the machine's memory; zero if the kernel doesn't tell.
fn machine_memory() -> Bytes {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Bytes::new(kib.unwrap_or(0).saturating_mul(1024))
}
