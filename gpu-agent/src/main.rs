//! `tessera-agent`: assembles the parts and runs them until it has to stop.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};
use tessera_agent::accounts::AccountRules;
use tessera_agent::actors::{gpu, node};
use tessera_agent::calls::CallListener;
use tessera_agent::certificate::NodeCertificate;
use tessera_agent::companion;
use tessera_agent::config::{AgentArguments, AgentCommand, AgentConfig};
use tessera_agent::container::ContainerFacts;
use tessera_agent::disk::{DataFolder, NodeState};
use tessera_agent::doctor::Doctor;
use tessera_agent::gpus::managed::GpuTools;
use tessera_agent::join::{self, JoinOrder};
use tessera_agent::journal::JournalFile;
use tessera_agent::kernel::{self, KernelEvent, KernelSettings};
use tessera_agent::kernel_log::{self, KernelLog};
use tessera_agent::lease_page::LeasePage;
use tessera_agent::link::{self, ControllerAddress};
use tessera_agent::messages::gpu::GpuOrder;
use tessera_agent::messages::mps::{MPS_ORDERS_MAX, MpsOrder};
use tessera_agent::messages::telemetry::{TELEMETRY_EVENTS_MAX, TelemetryEvent};
use tessera_agent::messages::{INPUTS_MAX, NodeInput};
use tessera_agent::mps::{self, MpsSettings};
use tessera_agent::node::{AgentNode, FatalRefusal, NodeFacts, NodeParts};
use tessera_agent::nvml::client::{NvmlClient, WorkerProgram};
use tessera_agent::nvml::events;
use tessera_agent::outputs::OutputKeeper;
use tessera_agent::pool::{ShepherdLauncher, ShepherdPool};
use tessera_agent::shepherd::group;
use tessera_agent::sys::{clock, owner::act_as_owner};
use tessera_agent::telemetry::health::NodeHealth;
use tessera_agent::telemetry::{self, TelemetryParts};
use tessera_agent::{accounts, adopt, http, isolation, nvml};
use tessera_agent_core::shepherd::HeldAttempt;
use tessera_model::{BootId, Bytes, NodeName};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

/// The exit status for "don't start me again as I am" (`EX_CONFIG`).
const REFUSED: u8 = 78;
/// Orders to GPUs that may be queued.
const GPU_ORDERS: usize = 64;
/// How long closing the connection to the controller may take.
const GOODBYE_WITHIN: std::time::Duration = std::time::Duration::from_millis(500);
/// Requests to the doctor that may be queued.
const DOCTOR_REQUESTS: usize = 16;

fn main() -> ExitCode {
    let arguments = AgentArguments::parse();
    match &arguments.command {
        Some(AgentCommand::MpsTerminate(what)) => return status(mps::terminate::run(what)),
        Some(AgentCommand::MpsCanary) => {
            let ran = mps::canary::run().inspect_err(|error| eprintln!("{error}"));
            return status(ran.is_ok());
        }
        Some(AgentCommand::MpsWorker) => return status(mps::worker::run().is_ok()),
        Some(AgentCommand::Account { name, file }) => {
            return status(accounts::print(name, file.as_deref()).is_ok());
        }
        Some(AgentCommand::KeepGroups) => return status(keep_groups()),
        Some(AgentCommand::NvmlCheckup { nvml: library }) => {
            return status(nvml::checkup::run(library).is_ok());
        }
        Some(AgentCommand::Doctor { nvml: library, data, json }) => {
            return consult(&arguments, library.as_ref(), data.as_ref(), *json);
        }
        Some(AgentCommand::Inspect { nvml: library }) => {
            return inspect(&arguments, library.as_ref());
        }
        Some(AgentCommand::Join { token, controller, data, replace }) => {
            let own = (controller.clone(), data.clone());
            return status(join_cluster(&arguments, token.clone(), own, *replace));
        }
        Some(AgentCommand::Manual { out }) => {
            let written =
                write_manual(out).inspect_err(|error| eprintln!("tessera-agent: {error}"));
            return status(written.is_ok());
        }
        Some(AgentCommand::NvmlWorker { nvml: library, events }) => {
            let run = if *events { nvml::watch::run } else { nvml::worker::run };
            // The agent sees that it is gone, and starts another.
            return status(run(library).is_ok());
        }
        None => {}
    }
    // What the unit gives (docs/install.md) is this process's, and nothing that it starts inherits it.
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
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

/// Creates the parent group of jobs' control groups, and keeps it until a signal ends this process.
fn keep_groups() -> bool {
    if let Err(error) = group::leave_to_jobs() {
        eprintln!("tessera-agent: can't make the control group of jobs: {error}");
        return false;
    }
    loop {
        std::thread::park();
    }
}

/// Joins a cluster for a person.
fn join_cluster(
    arguments: &AgentArguments,
    token: String,
    own: (Option<String>, Option<PathBuf>),
    replace: bool,
) -> bool {
    let joined = arguments.place(own).and_then(|(controller, data)| {
        act_as_owner(&data)?;
        join::run(&JoinOrder { token, controller, data, replace })
    });
    match &joined {
        Ok(node) => {
            println!("this machine is the node {} ({}): start the agent", node.name, node.id);
        }
        Err(error) => eprintln!("tessera-agent: {error:#}"),
    }
    joined.is_ok()
}

fn write_manual(out: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(out)?;
    clap_mangen::generate_to(AgentArguments::command(), out)
}

fn status(well: bool) -> ExitCode {
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks this machine for a person; no controller and no identity are needed.
fn consult(
    arguments: &AgentArguments,
    library: Option<&OsString>,
    data: Option<&PathBuf>,
    json: bool,
) -> ExitCode {
    let doctor = doctor(arguments, library).map(|mut doctor| {
        if let Some(data) = data {
            doctor.config.data.clone_from(data);
        }
        let found = Some(doctor.config.data.clone()).filter(|folder| folder.exists());
        Doctor { data: data.cloned().or(found), ..doctor }
    });
    match doctor {
        Ok(doctor) => {
            status(actix::System::new().block_on(async move { doctor.print(json).await }))
        }
        Err(error) => refuse(&error),
    }
}

/// Prints what the driver reports about its GPUs.
fn inspect(arguments: &AgentArguments, library: Option<&OsString>) -> ExitCode {
    match doctor(arguments, library) {
        Ok(doctor) => status(actix::System::new().block_on(tessera_agent::inspect::print(doctor))),
        Err(error) => refuse(&error),
    }
}

fn doctor(arguments: &AgentArguments, library: Option<&OsString>) -> anyhow::Result<Doctor> {
    let config = AgentConfig::load_for_doctor(arguments)?;
    act_as_owner(&config.data)?;
    let program = std::env::current_exe().context("can't find this program itself")?;
    let library = library.map_or_else(|| config.nvml.clone(), PathBuf::from);
    Ok(Doctor { program, library, data: None, config })
}

fn refuse(error: &anyhow::Error) -> ExitCode {
    eprintln!("tessera-agent: {error:#}");
    ExitCode::FAILURE
}

fn start(arguments: &AgentArguments) -> anyhow::Result<ExitCode> {
    let config = AgentConfig::load(arguments)?;
    if arguments.check {
        act_as_owner(&config.data)?;
    }
    let identity = config.data.join("identity");
    let certificate = NodeCertificate::load(&identity).context(
        "no identity: run `tessera node invite NAME`, and here the command that it prints",
    )?;
    let own = certificate.node().clone();
    anyhow::ensure!(config.shepherd.exists(), "no shepherd: {}", config.shepherd.display());
    tessera_agent::pool::check_program(&config.shepherd)?;
    tessera_launch::client::check_program(&config.launch)?;
    accounts::check(&config)?;
    if arguments.check {
        println!("{}", toml::to_string(&config)?);
        println!("# node {} ({})", own.name, own.id);
        return Ok(ExitCode::SUCCESS);
    }
    tracing::info!(node = %own.name, id = %own.id, data = %config.data.display(), "starting");
    let folder = DataFolder::take(&config.data)?;
    actix::System::new().block_on(run(config, folder, certificate))
}

async fn run(
    config: AgentConfig,
    folder: DataFolder,
    certificate: NodeCertificate,
) -> anyhow::Result<ExitCode> {
    let (inputs, received) = mpsc::channel(INPUTS_MAX);
    let startup = Startup::new(config, &folder, inputs, certificate)?;
    let outputs = startup.start_outputs()?;
    let queues = startup.start_kernel_queues();
    let ports = startup.start_node(received, queues.as_ref(), outputs.clone()).await?;
    let nvml = NvmlClient::start(startup.worker());
    startup.start_telemetry(&nvml, queues.as_ref(), ports.telemetry)?;
    // The first inventory names every GPU that answers.
    let _ = startup.start_gpus(nvml, ports.gpu_orders).await;
    startup.start_doctor(ports.doctor_requests);
    startup.serve_controller(outputs, ports.fatal).await
}

/// What the parts of the agent are started with.
struct Startup {
    config: AgentConfig,
    data: PathBuf,
    name: NodeName,
    /// This program, which runs the NVML worker and the doctor's look at the driver, too.
    program: PathBuf,
    boot: BootId,
    /// The boot in which the GPUs' instances live.
    gpu_boot: BootId,
    inputs: mpsc::Sender<NodeInput>,
    /// This node's certificate.
    certificate: NodeCertificate,
}

/// The receiving ends of what the node sends to the other parts.
struct NodePorts {
    gpu_orders: mpsc::Receiver<GpuOrder>,
    doctor_requests: mpsc::Receiver<u64>,
    telemetry: mpsc::Receiver<TelemetryEvent>,
    fatal: oneshot::Receiver<FatalRefusal>,
}

impl Startup {
    fn new(
        config: AgentConfig,
        folder: &DataFolder,
        inputs: mpsc::Sender<NodeInput>,
        certificate: NodeCertificate,
    ) -> anyhow::Result<Self> {
        let boot = clock::boot_id().context("the kernel reports no boot id")?;
        let gpu_boot = clock::boot_id_in(&config.gpu_boot_id).with_context(|| {
            format!("{} holds no boot id of the GPUs' machine", config.gpu_boot_id.display())
        })?;
        let program = std::env::current_exe().context("can't find this program itself")?;
        let data = folder.path().to_owned();
        let name = certificate.node().name.clone();
        Ok(Self { config, data, name, program, boot, gpu_boot, inputs, certificate })
    }

    fn start_outputs(&self) -> anyhow::Result<OutputKeeper> {
        let limits = self.config.output_limits().context("can't read the size of the disk")?;
        OutputKeeper::start(&self.data, limits).context("can't start the thread of outputs")
    }

    /// Starts the kernel queues, if there is a shim. Without them the agent continues: jobs that
    /// need them are not placed here.
    fn start_kernel_queues(&self) -> Option<kernel::Endpoint> {
        let Some(shim) = self.config.kernel_shim.clone() else {
            tracing::info!("no kernel-shim/libcuda.so.1: kernel-level sharing is off");
            return None;
        };
        let shim = match kernel::store_shim(&shim, &self.data) {
            Ok(copy) => copy,
            Err(error) => {
                let shim = shim.display();
                tracing::error!(%error, %shim, "the shim can't be copied: kernel-level sharing is off");
                return None;
            }
        };
        let settings = KernelSettings {
            shim,
            rules: if self.config.kernel_over_mps {
                self.config.kernel_rules.over_mps()
            } else {
                self.config.kernel_rules
            },
            data: self.data.clone(),
            gates: self.config.kernel_gates.clone(),
        };
        match kernel::start(settings) {
            Ok((endpoint, events)) => {
                actix::spawn(forward_kernel_events(events, self.inputs.clone()));
                Some(endpoint)
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::error!(error, "kernel-level sharing is off");
                None
            }
        }
    }

    /// Starts the node's actor, with the state that an earlier agent left.
    async fn start_node(
        &self,
        received: mpsc::Receiver<NodeInput>,
        queues: Option<&kernel::Endpoint>,
        outputs: OutputKeeper,
    ) -> anyhow::Result<NodePorts> {
        let state = NodeState::load(&self.data)?;
        let (journal, ledger) = JournalFile::open(&self.data).context("can't open the journal")?;
        let page = LeasePage::open_writer(&self.data).context("can't open the lease page")?;
        let (pool, held) = self.adopt_shepherds().await;
        let facts = self.node_facts();
        let mps = self.start_mps(&facts);
        let journal =
            journal.start(self.inputs.clone()).context("can't start the journal's thread")?;
        let (gpus, gpu_orders) = mpsc::channel(GPU_ORDERS);
        let (doctor, doctor_requests) = mpsc::channel(DOCTOR_REQUESTS);
        let (telemetry, telemetry_events) = mpsc::channel(TELEMETRY_EVENTS_MAX);
        let (fatal, fatal_received) = oneshot::channel();
        let parts = NodeParts {
            facts,
            state,
            page,
            pool,
            journal,
            ledger,
            held,
            outputs,
            gpus,
            doctor,
            mps,
            kernel_endpoint: queues.map(|endpoint| endpoint.handle.clone()),
            telemetry,
            inputs: self.inputs.clone(),
            fatal,
        };
        node::NodeActor::start(AgentNode::start(parts), received);
        Ok(NodePorts {
            gpu_orders,
            doctor_requests,
            telemetry: telemetry_events,
            fatal: fatal_received,
        })
    }

    async fn adopt_shepherds(&self) -> (ShepherdPool, Vec<HeldAttempt>) {
        let groups = if self.config.cgroups { group::find_parent() } else { None };
        tracing::info!(?groups, "control groups");
        let (program, data) = (self.config.shepherd.clone(), self.data.clone());
        let launch = self.config.launch.clone();
        let nursery = ShepherdLauncher { program, launch, data, groups, boot: self.boot };
        let mut pool = ShepherdPool::new(nursery.clone(), self.inputs.clone());
        let held = adopt::adopt(&nursery, &mut pool).await;
        (pool, held)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "two processes with one identity must draw different numbers (A8)"
    )]
    fn node_facts(&self) -> NodeFacts {
        #[expect(clippy::cast_possible_truncation, reason = "Linux has at most 8,192 processors")]
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let accounts = AccountRules::new(&self.config, &self.data, self.program.clone());
        accounts.report(&self.config, &self.data);
        NodeFacts {
            name: self.name.clone(),
            boot: self.boot,
            process: rand::random(),
            cores,
            memory: machine_memory(),
            data: self.data.clone(),
            environment: self.config.environment(),
            isolation_gaps: isolation::find_gaps(&self.config, &self.data, &self.program),
            mps: mps::find(&self.config.mps_control).filter(|_| accounts.serves_mps()),
            accounts,
            kernel_over_mps: self.config.kernel_over_mps,
            kernel_offline_percent: self.config.kernel_offline_percent,
            companion: self.companion(),
            containers: ContainerFacts::find(&self.config),
            watch: self.config.watch,
            address: self.config.address.clone(),
        }
    }

    /// Writes the Python companion into the data folder; attempts run without it if the disk refuses.
    fn companion(&self) -> Option<String> {
        if !self.config.companion {
            return None;
        }
        let written = companion::write(&self.data);
        written
            .inspect_err(|error| tracing::warn!(%error, "programs run without the companion"))
            .ok()
            .map(|folder| folder.display().to_string())
    }

    fn start_mps(&self, facts: &NodeFacts) -> mpsc::Sender<MpsOrder> {
        let control = facts.mps.clone();
        let launcher = facts.accounts.starts_mps_workers().then(|| self.config.launch.clone());
        tracing::info!(mps = ?control, worker_launcher = ?launcher, "sharing of slices");
        let settings = MpsSettings {
            control: control.unwrap_or_else(|| self.config.mps_control.clone()),
            canary: self.config.mps_canary.clone(),
            data: self.data.clone(),
            passed: self.config.environment().passed.into_iter().collect(),
            launcher,
        };
        let (orders, received) = mpsc::channel(MPS_ORDERS_MAX);
        actix::spawn(mps::run(settings, self.boot, self.inputs.clone(), received));
        orders
    }

    fn worker(&self) -> WorkerProgram {
        WorkerProgram::new(self.program.clone(), &self.config)
    }

    /// Starts the sampling of GPUs and, if an address is set, the metrics' HTTP server.
    fn start_telemetry(
        &self,
        nvml: &NvmlClient,
        queues: Option<&kernel::Endpoint>,
        events: mpsc::Receiver<TelemetryEvent>,
    ) -> anyhow::Result<()> {
        let parts = TelemetryParts {
            nvml: nvml.clone(),
            node: self.inputs.clone(),
            data: self.data.clone(),
            boot: self.gpu_boot,
            pace: self.config.pace(),
            report_every: self.config.telemetry_report_every(),
            job_mapping: self.config.dcgm_job_mapping.clone(),
        };
        let shared = telemetry::SharedTelemetry::default();
        if let Some(address) = self.config.http {
            let listener = std::net::TcpListener::bind(address)
                .with_context(|| format!("can't listen on {address} (HTTP)"))?;
            let tokens =
                http::ScrapeTokens::open(self.config.http_token_file.as_deref(), &self.data)
                    .context("no token for collectors of metrics (http_token_file)")?;
            let (address, file) = (listener.local_addr()?, tokens.file().display());
            tracing::info!(%address, tokens = %file, "serving metrics");
            let kernels = queues.map(|endpoint| endpoint.handle.numbers().clone());
            let name = self.name.to_string();
            let health =
                NodeHealth { data: self.data.clone(), certificate: self.certificate.clone() };
            actix::spawn(http::serve(listener, tokens, name, shared.clone(), kernels, health)?);
        }
        actix::spawn(telemetry::run(parts, shared, events));
        Ok(())
    }

    /// Starts the GPUs' actors and the two sources of driver errors; the receiver that is
    /// returned completes with the first inventory.
    fn start_gpus(
        &self,
        nvml: NvmlClient,
        orders: mpsc::Receiver<GpuOrder>,
    ) -> oneshot::Receiver<()> {
        let tools = GpuTools {
            nvml,
            node: self.inputs.clone(),
            data: self.data.clone(),
            tries_max: self.config.destroy_tries,
            adopt: self.config.adopt,
            boot: self.gpu_boot,
            files: self.config.device_files.clone(),
        };
        let (ready, inventory) = oneshot::channel();
        let (errors, received) = mpsc::channel(GPU_ORDERS);
        actix::spawn(gpu::run(tools, orders, received, ready));
        actix::spawn(events::run(self.worker(), errors.clone()));
        let (path, data) = (self.config.kernel_log.clone(), self.data.clone());
        actix::spawn(kernel_log::run(KernelLog { path, data, boot: self.gpu_boot }, errors));
        inventory
    }

    fn start_doctor(&self, requests: mpsc::Receiver<u64>) {
        let doctor = Doctor {
            program: self.program.clone(),
            library: self.config.nvml.clone(),
            data: Some(self.data.clone()),
            config: self.config.clone(),
        };
        let node = self.inputs.clone();
        actix::spawn(async move {
            doctor.log().await;
            doctor.serve(requests, node).await;
        });
    }

    /// Talks to the controller until the agent is to end.
    async fn serve_controller(
        self,
        outputs: OutputKeeper,
        fatal: oneshot::Receiver<FatalRefusal>,
    ) -> anyhow::Result<ExitCode> {
        let address = self.config.controller;
        let launch = self.config.launch.clone();
        let calls = CallListener::open(&self.data)
            .inspect_err(|error| tracing::error!(%error, "jobs can't start steps on other nodes"))
            .ok();
        let controller = ControllerAddress {
            address,
            certificate: self.certificate,
            data: self.data,
            launch,
            outputs,
            calls,
        };
        let (stop, stopping) = watch::channel(false);
        let link = actix::spawn(link::run(controller, self.inputs, stopping));
        // Its GPUs are known: the node serves from now on, whether the controller answers or not.
        tessera_telemetry::service::notify_ready("serving; attempts continue without the agent");
        let code = wait_for_end(fatal).await?;
        tessera_telemetry::service::notify_stopping();
        stop.send_replace(true);
        // Between two connections there is no controller to notify.
        let _ = tokio::time::timeout(GOODBYE_WITHIN, link).await;
        Ok(code)
    }
}

async fn forward_kernel_events(
    mut events: mpsc::Receiver<KernelEvent>,
    node: mpsc::Sender<NodeInput>,
) {
    while let Some(event) = events.recv().await {
        if node.send(NodeInput::Kernel(event)).await.is_err() {
            return;
        }
    }
}

/// Waits for a signal or the controller's refusal. Attempts continue: their shepherds don't need an
/// agent.
async fn wait_for_end(refused: oneshot::Receiver<FatalRefusal>) -> std::io::Result<ExitCode> {
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

/// Reads the machine's memory; zero if the kernel doesn't report it.
fn machine_memory() -> Bytes {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Bytes::new(kib.unwrap_or(0).saturating_mul(1024))
}
