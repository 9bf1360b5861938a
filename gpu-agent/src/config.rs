//! The agent's settings: one file, the command line and the environment over it, read once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use serde::{Deserialize, Serialize};
use tessera_agent_core::container::CDI_FOLDER;
use tessera_kernel_queue::QueueRules;
use tessera_model::number::clamped;
use tessera_model::share::SmPercent;
use tessera_model::{Bytes, Millis, RetentionTime};

use crate::join;
use crate::kernel;
use crate::outputs;
use crate::sys::holders::DeviceFiles;
use tessera_agent_core::environment::NodeEnvironment;
use tessera_agent_core::ownership::AdoptionPolicy;
use tessera_agent_core::plan::TRIES_MAX;
use tessera_agent_core::retention::RetentionLimits;
use tessera_agent_core::telemetry::pace::SamplingPace;

/// The name of NVIDIA's management library, as the linker finds it.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";
/// NVIDIA's MPS control program, unless another is named.
pub const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

/// Runs attempts on this machine's GPUs for a Tessera controller.
#[derive(Clone, Debug, Parser)]
#[command(name = "tessera-agent", version)]
pub struct AgentArguments {
    /// The controller's address: `host:port` [default: the one by which this machine joined].
    #[arg(long, env = "TESSERA_AGENT_CONTROLLER")]
    pub controller: Option<String>,
    /// The agent's data folder; `identity/` in it holds its certificate.
    #[arg(long, env = "TESSERA_AGENT_DATA")]
    pub data: Option<PathBuf>,
    /// NVIDIA's management library [default: libnvidia-ml.so.1].
    #[arg(long, env = "TESSERA_AGENT_NVML")]
    pub nvml: Option<OsString>,
    /// Serve metrics for Prometheus on this address, such as 127.0.0.1:9401 [default: none].
    #[arg(long, env = "TESSERA_AGENT_HTTP", value_name = "ADDR")]
    pub http: Option<SocketAddr>,
    /// File with the tokens of those who may read the metrics, one per line [default: metrics-token in
    /// the data folder, made at the first start].
    #[arg(long, env = "TESSERA_AGENT_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
    /// Folder in which DCGM's exporter looks for the jobs of GPUs (its --hpc-job-mapping-dir).
    #[arg(long, env = "TESSERA_AGENT_DCGM_JOB_MAPPING", value_name = "DIR")]
    pub dcgm_job_mapping: Option<PathBuf>,
    /// NVIDIA's MPS control program, for jobs that share slices [default: nvidia-cuda-mps-control
    /// from PATH].
    #[arg(long, env = "TESSERA_AGENT_MPS_CONTROL")]
    pub mps_control: Option<PathBuf>,
    /// Program that runs a small kernel as a client of MPS to test a server, with its arguments [default: this program].
    #[arg(long, env = "TESSERA_AGENT_MPS_CANARY")]
    pub mps_canary: Option<String>,
    /// The kernel plane's shim, for jobs that share slices kernel by kernel [default:
    /// kernel-shim/libcuda.so.1 next to this program, or next to its folder].
    #[arg(long, env = "TESSERA_AGENT_KERNEL_SHIM", value_name = "FILE")]
    pub kernel_shim: Option<PathBuf>,
    /// Account that jobs run under: submitter (each as the user who submitted it), or agent (all as
    /// this agent's account) [default: submitter].
    #[arg(long, env = "TESSERA_AGENT_RUN_AS", value_enum)]
    pub run_as: Option<RunAs>,
    /// Let jobs run as root, if that is their account [default: no].
    #[arg(long, env = "TESSERA_AGENT_ROOT_JOBS")]
    pub root_jobs: bool,
    /// How long the output of an attempt is kept after its end: 7d, 12h, 30m, or forever
    /// [default: 7d].
    #[arg(long, env = "TESSERA_AGENT_KEEP_OUTPUTS", value_name = "DURATION")]
    pub keep_outputs: Option<RetentionTime>,
    /// Maximum disk space for all outputs together, such as 50G; the oldest go first [default: a
    /// tenth of the disk].
    #[arg(long, env = "TESSERA_AGENT_KEEP_OUTPUTS_BYTES", value_name = "SIZE")]
    pub keep_outputs_bytes: Option<String>,
    /// A TOML file with the same settings, and those without an option (see docs/operations.md).
    #[arg(long, env = "TESSERA_AGENT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the effective settings or what is wrong with them, and exit.
    #[arg(long)]
    pub check: bool,
    /// A task other than the agent itself.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
}

/// The tasks of this program other than the agent itself.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AgentCommand {
    /// Ends an attempt's clients of MPS before it is killed. Never started by hand.
    #[command(hide = true)]
    MpsTerminate(crate::mps::terminate::TerminateArguments),
    /// Runs a small kernel as a client of MPS. Never started by hand.
    #[command(hide = true)]
    MpsCanary,
    /// Serves a user's MPS as that user, for an agent that isn't root. Never started by hand.
    #[command(hide = true)]
    MpsWorker,
    /// Looks an account up. Never started by hand.
    #[command(hide = true)]
    Account {
        /// The user's name.
        name: String,
        /// A file that names the accounts, in place of the system's name service.
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Reports what keeps this machine from running jobs or partitioning its GPUs, and how to fix it.
    ///
    /// Needs no controller. Exit code 1 if something blocks.
    Doctor {
        /// NVIDIA's management library [default: libnvidia-ml.so.1].
        #[arg(long)]
        nvml: Option<OsString>,
        /// The agent's data folder, whose disk is checked.
        #[arg(long)]
        data: Option<PathBuf>,
        /// Print JSON, as `tessera doctor --json` does for one machine.
        #[arg(long)]
        json: bool,
    },
    /// Joins a cluster: gets this machine's certificate by the token of an invitation.
    ///
    /// `tessera node invite NAME` prints the token and the whole command. Run it as the agent's account.
    Join {
        /// The token, or - to read it from standard input.
        token: String,
        /// The controller's address for agents: `host:port` [default: the agent's setting].
        #[arg(long)]
        controller: Option<String>,
        /// The agent's data folder [default: the agent's setting].
        #[arg(long)]
        data: Option<PathBuf>,
        /// Replace this machine's existing identity.
        #[arg(long)]
        replace: bool,
    },
    /// Prints the driver's GPUs as JSON: inventory, placements, instances, measurements,
    /// and what this account may do. Changes nothing.
    ///
    /// Needs no controller. Exit code 1 if the GPUs can't be listed.
    Inspect {
        /// NVIDIA's management library [default: libnvidia-ml.so.1].
        #[arg(long)]
        nvml: Option<OsString>,
    },
    /// Writes the manual pages of this program into a folder.
    #[command(hide = true)]
    Manual {
        /// The folder.
        out: PathBuf,
    },
    /// Keeps the control group of all jobs while the agent restarts. The unit tessera-jobs starts it.
    #[command(hide = true)]
    KeepGroups,
    /// Looks at the driver for the doctor. Never started by hand.
    #[command(hide = true)]
    NvmlCheckup {
        /// NVIDIA's management library.
        #[arg(long)]
        nvml: OsString,
    },
    /// Makes the agent's calls to the driver. Never started by hand.
    #[command(hide = true)]
    NvmlWorker {
        /// NVIDIA's management library.
        #[arg(long)]
        nvml: OsString,
        /// Wait for the driver's events instead.
        #[arg(long)]
        events: bool,
    },
}

/// The account that jobs run under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RunAs {
    /// Each job runs as the user who submitted it.
    #[default]
    Submitter,
    /// All jobs run as the agent's own account: no user is protected from another.
    Agent,
}

/// The settings file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    controller: Option<String>,
    data: Option<PathBuf>,
    nvml: Option<PathBuf>,
    mps_control: Option<PathBuf>,
    mps_canary: Option<String>,
    kernel_shim: Option<PathBuf>,
    kernel_gates: Option<PathBuf>,
    kernel_over_mps: Option<bool>,
    kernel_offline_percent: Option<SmPercent>,
    companion: Option<bool>,
    watch: Option<bool>,
    kernel_rules: Option<QueueRules>,
    shepherd: Option<PathBuf>,
    launch: Option<PathBuf>,
    run_as: Option<RunAs>,
    root_jobs: Option<bool>,
    uid_min: Option<u32>,
    accounts: Option<PathBuf>,
    private_tmp: Option<bool>,
    hide_processes: Option<bool>,
    no_new_privileges: Option<bool>,
    guard_devices: Option<bool>,
    tasks_max: Option<u64>,
    podman: Option<PathBuf>,
    apptainer: Option<PathBuf>,
    cdi_folder: Option<PathBuf>,
    driver_libraries: Option<PathBuf>,
    pass_env: Option<Vec<String>>,
    keep_attempts: Option<usize>,
    keep_outputs: Option<RetentionTime>,
    keep_outputs_bytes: Option<String>,
    destroy_tries: Option<u32>,
    cgroups: Option<bool>,
    adopt: Option<AdoptionPolicy>,
    kernel_log: Option<PathBuf>,
    gpu_boot_id: Option<PathBuf>,
    device_files: Option<DeviceFiles>,
    http: Option<SocketAddr>,
    http_token_file: Option<PathBuf>,
    dcgm_job_mapping: Option<PathBuf>,
    sample_idle_ms: Option<u64>,
    sample_busy_ms: Option<u64>,
    telemetry_report_ms: Option<u64>,
    address: Option<String>,
}

/// The effective settings.
#[derive(Clone, Debug, Serialize)]
pub struct AgentConfig {
    /// Where the controller is.
    pub controller: String,
    /// Where other nodes reach this one, for jobs that run on several: a name or an address. By
    /// default the address by which this machine talks to the controller.
    pub address: Option<String>,
    /// The data folder.
    pub data: PathBuf,
    /// NVIDIA's management library.
    pub nvml: PathBuf,
    /// NVIDIA's MPS control program.
    pub mps_control: PathBuf,
    /// What runs a small kernel as a client of MPS.
    pub mps_canary: Vec<String>,
    /// The kernel plane's shim, if there is one.
    pub kernel_shim: Option<PathBuf>,
    /// The folder of the sockets that serve the gate pages of slices.
    pub kernel_gates: PathBuf,
    /// Whether jobs that share a slice kernel by kernel also use MPS.
    pub kernel_over_mps: bool,
    /// Percent of the slice's multiprocessors that offline jobs among them may use.
    pub kernel_offline_percent: SmPercent,
    /// Whether Python programs get the companion, which reports their memory.
    pub companion: bool,
    /// Whether the shim watches programs whose jobs do not set `TESSERA_WATCH`.
    pub watch: bool,
    /// How they share it.
    pub kernel_rules: QueueRules,
    /// The shepherd's program.
    pub shepherd: PathBuf,
    /// The program that starts attempts as their users.
    pub launch: PathBuf,
    /// The account that jobs run under.
    pub run_as: RunAs,
    /// Whether jobs may run as root.
    pub root_jobs: bool,
    /// The smallest uid of a person: those below belong to the system, and run no jobs.
    pub uid_min: u32,
    /// A file like `/etc/passwd` that names the accounts, in place of the system's name service.
    pub accounts: Option<PathBuf>,
    /// Whether jobs of accounts other than the agent's have a private `/tmp`.
    pub private_tmp: bool,
    /// Whether such jobs see only their own account's processes.
    pub hide_processes: bool,
    /// Whether such jobs are prevented from getting more rights, for example by `sudo`.
    pub no_new_privileges: bool,
    /// Whether GPUs' device nodes are closed for jobs that don't use them.
    pub guard_devices: bool,
    /// Maximum number of processes and threads of a job.
    pub tasks_max: u64,
    /// Podman, if it isn't where it usually is.
    pub podman: Option<PathBuf>,
    /// Apptainer, if it isn't where it usually is.
    pub apptainer: Option<PathBuf>,
    /// Where slices are described to podman.
    pub cdi_folder: PathBuf,
    /// The folder of the driver's libraries, if they aren't where they usually are.
    pub driver_libraries: Option<PathBuf>,
    /// Variables of the agent's own environment that attempts get.
    pub pass_env: Vec<String>,
    /// The number of ended attempts whose outputs are kept.
    pub keep_attempts: usize,
    /// How long outputs are kept.
    pub keep_outputs: RetentionTime,
    /// How much space outputs may take; by default a tenth of the disk.
    pub keep_outputs_bytes: Option<String>,
    /// How often a blocked layout step is tried.
    pub destroy_tries: u32,
    /// Whether attempts are put into control groups where the machine has them.
    pub cgroups: bool,
    /// When instances that the node did not create become its own: `never`, `at-start` or
    /// `exclusive`.
    pub adopt: AdoptionPolicy,
    /// The kernel's log, which contains the driver's errors.
    pub kernel_log: PathBuf,
    /// The file that names the boot in which the GPUs' instances live.
    pub gpu_boot_id: PathBuf,
    /// Where device files are, to find the processes that keep an instance open.
    pub device_files: DeviceFiles,
    /// Where metrics are served, if anywhere.
    pub http: Option<SocketAddr>,
    /// The file with the tokens of those who may read the metrics, if it is not the one in the data folder.
    pub http_token_file: Option<PathBuf>,
    /// Where DCGM's exporter looks for the jobs of GPUs.
    pub dcgm_job_mapping: Option<PathBuf>,
    /// Milliseconds between samples of a GPU that no attempt has.
    pub sample_idle_ms: u64,
    /// The same while an attempt has it: at least 100.
    pub sample_busy_ms: u64,
    /// Milliseconds between reports of the GPUs' figures to the controller: at least 1,000.
    pub telemetry_report_ms: u64,
}

/// Default milliseconds between samples: ten a second show a program's phases,
/// and one in two seconds costs an idle node next to nothing. A new attempt is sampled at once.
const SAMPLE_IDLE_MS: u64 = 2_000;
const SAMPLE_BUSY_MS: u64 = 100;
/// Default milliseconds between reports, and the smallest setting.
const REPORT_MS: u64 = 5_000;
const REPORT_MS_MIN: u64 = 1_000;
/// Default number of ended attempts whose outputs are kept: each is a file or two,
/// and all are listed when the agent starts.
const KEEP_ATTEMPTS: usize = 200_000;
/// Default number of processes and threads of a job: more than programs have, and few enough that a job that
/// forks without end leaves enough for others.
const TASKS_MAX: u64 = 32_768;
/// How long outputs are kept by default.
const KEEP_OUTPUTS: RetentionTime = RetentionTime::days(7);

/// The settings file that the packages install.
const INSTALLED_FILE: &str = "/etc/tessera/agent.toml";

/// The data folder of the packages.
const INSTALLED_DATA: &str = "/var/lib/tessera-agent";
/// Replaces the controller's address, which a check of this machine doesn't need.
const UNSET_CONTROLLER: &str = "unset";

impl AgentArguments {
    /// Returns the controller's address and the data folder: from the command's own options, or
    /// otherwise as the agent finds them. Without any option the installed settings file counts.
    ///
    /// # Errors
    ///
    /// What is missing or wrong, and where.
    pub fn place(
        &self,
        (controller, data): (Option<String>, Option<PathBuf>),
    ) -> anyhow::Result<(String, PathBuf)> {
        let installed = Some(PathBuf::from(INSTALLED_FILE)).filter(|path| path.exists());
        let file = read_config(self.config.clone().or(installed).as_deref())?;
        let data = data.or(self.data.clone()).or(file.data).with_context(|| missing("data"))?;
        let controller = controller.or(self.controller.clone()).or(file.controller);
        Ok((controller_of(controller, &data)?, data))
    }
}

/// Returns the controller's address: the one in the settings, or the one by which this machine joined.
fn controller_of(settings: Option<String>, data: &Path) -> anyhow::Result<String> {
    let found = match settings {
        Some(address) => Some(address),
        None => join::remembered_controller(data)?,
    };
    found.with_context(|| missing("controller"))
}

fn missing(what: &str) -> String {
    format!("{what} is missing: give it as --{what} or in the file")
}

fn read_config(path: Option<&Path>) -> anyhow::Result<ConfigFile> {
    let Some(path) = path else { return Ok(ConfigFile::default()) };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in {}", path.display()))
}

impl AgentConfig {
    /// Merges the settings for a check of this machine, which may not have joined a cluster yet.
    /// Without any option the installed settings file counts, if this account may read it.
    ///
    /// # Errors
    ///
    /// What is wrong, and where.
    pub fn load_for_doctor(arguments: &AgentArguments) -> anyhow::Result<Self> {
        let is_readable = |path: &PathBuf| std::fs::File::open(path).is_ok();
        let installed = || Some(PathBuf::from(INSTALLED_FILE)).filter(is_readable);
        let config = arguments.config.clone().or_else(installed);
        let file = read_config(config.as_deref())?;
        let unset = |set: bool, value: &str| (!set).then(|| value.to_owned());
        Self::load(&AgentArguments {
            controller: arguments
                .controller
                .clone()
                .or_else(|| unset(file.controller.is_some(), UNSET_CONTROLLER)),
            data: arguments
                .data
                .clone()
                .or_else(|| unset(file.data.is_some(), INSTALLED_DATA).map(PathBuf::from)),
            config,
            ..arguments.clone()
        })
    }

    /// Merges the settings.
    ///
    /// # Errors
    ///
    /// What is missing or wrong, and where.
    pub fn load(arguments: &AgentArguments) -> anyhow::Result<Self> {
        let file = read_config(arguments.config.as_deref())?;
        let own = std::env::current_exe().context("can't find this program itself")?;
        let keep_outputs_bytes = arguments.keep_outputs_bytes.clone().or(file.keep_outputs_bytes);
        if let Some(text) = &keep_outputs_bytes {
            text.parse::<Bytes>().context("keep-outputs-bytes")?;
        }
        let kernel_over_mps = file.kernel_over_mps.unwrap_or(false);
        anyhow::ensure!(
            kernel_over_mps || file.kernel_offline_percent.is_none_or(|sm| sm == SmPercent::WHOLE),
            "kernel_offline_percent has no effect without MPS: set kernel_over_mps = true, or remove it"
        );
        let data = arguments.data.clone().or(file.data).with_context(|| missing("data"))?;
        let controller = controller_of(arguments.controller.clone().or(file.controller), &data)?;
        let kernel_shim = arguments.kernel_shim.clone().or(file.kernel_shim);
        if let Some(shim) = &kernel_shim {
            anyhow::ensure!(shim.is_file(), "kernel-shim: there is no file {}", shim.display());
        }
        Ok(Self {
            kernel_shim: kernel_shim.or_else(|| kernel::find_shim(&own)),
            kernel_gates: file.kernel_gates.unwrap_or_else(|| kernel::gates_of(&data)),
            kernel_over_mps,
            kernel_offline_percent: file.kernel_offline_percent.unwrap_or(SmPercent::WHOLE),
            companion: file.companion.unwrap_or(true),
            watch: file.watch.unwrap_or(false),
            kernel_rules: file.kernel_rules.unwrap_or_default(),
            data,
            keep_outputs_bytes,
            keep_outputs: arguments.keep_outputs.or(file.keep_outputs).unwrap_or(KEEP_OUTPUTS),
            controller,
            mps_control: arguments
                .mps_control
                .clone()
                .or(file.mps_control)
                .unwrap_or_else(|| MPS_CONTROL.into()),
            mps_canary: arguments.mps_canary.clone().or(file.mps_canary).map_or_else(
                || vec![own.display().to_string(), "mps-canary".to_owned()],
                |words| words.split_whitespace().map(str::to_owned).collect(),
            ),
            nvml: arguments
                .nvml
                .clone()
                .map(PathBuf::from)
                .or(file.nvml)
                .unwrap_or_else(|| NVML_LIBRARY.into()),
            shepherd: file.shepherd.unwrap_or_else(|| own.with_file_name("tessera-shepherd")),
            launch: file.launch.unwrap_or_else(|| own.with_file_name("tessera-launch")),
            run_as: arguments.run_as.or(file.run_as).unwrap_or_default(),
            root_jobs: arguments.root_jobs || file.root_jobs.unwrap_or(false),
            uid_min: file.uid_min.unwrap_or(tessera_launch::policy::UID_MIN),
            accounts: file.accounts,
            private_tmp: file.private_tmp.unwrap_or(true),
            hide_processes: file.hide_processes.unwrap_or(true),
            no_new_privileges: file.no_new_privileges.unwrap_or(true),
            guard_devices: file.guard_devices.unwrap_or(true),
            tasks_max: file.tasks_max.unwrap_or(TASKS_MAX),
            podman: file.podman,
            apptainer: file.apptainer,
            cdi_folder: file.cdi_folder.unwrap_or_else(|| CDI_FOLDER.into()),
            driver_libraries: file.driver_libraries,
            pass_env: file.pass_env.unwrap_or_else(|| {
                ["TESSERA_SIM_NODE", "TESSERA_SIM_LATENCY"].map(str::to_owned).to_vec()
            }),
            keep_attempts: file.keep_attempts.unwrap_or(KEEP_ATTEMPTS),
            destroy_tries: file.destroy_tries.unwrap_or(TRIES_MAX).max(1),
            cgroups: file.cgroups.unwrap_or(true),
            adopt: file.adopt.unwrap_or_default(),
            kernel_log: file.kernel_log.unwrap_or_else(|| "/dev/kmsg".into()),
            gpu_boot_id: file
                .gpu_boot_id
                .unwrap_or_else(|| "/proc/sys/kernel/random/boot_id".into()),
            device_files: file.device_files.unwrap_or_default(),
            http: arguments.http.or(file.http),
            http_token_file: arguments.http_token_file.clone().or(file.http_token_file),
            dcgm_job_mapping: arguments.dcgm_job_mapping.clone().or(file.dcgm_job_mapping),
            sample_idle_ms: file.sample_idle_ms.unwrap_or(SAMPLE_IDLE_MS),
            sample_busy_ms: file.sample_busy_ms.unwrap_or(SAMPLE_BUSY_MS),
            address: file.address,
            telemetry_report_ms: file.telemetry_report_ms.unwrap_or(REPORT_MS).max(REPORT_MS_MIN),
        })
    }

    /// Returns how often GPUs are sampled.
    pub fn pace(&self) -> SamplingPace {
        SamplingPace::new(Millis::new(self.sample_idle_ms), Millis::new(self.sample_busy_ms))
    }

    /// Returns how often GPU figures are reported to the controller.
    pub const fn telemetry_report_every(&self) -> Duration {
        Duration::from_millis(self.telemetry_report_ms)
    }

    /// Returns how long and how many outputs are kept.
    ///
    /// # Errors
    ///
    /// The size of the data folder's disk can't be read.
    pub fn output_limits(&self) -> anyhow::Result<RetentionLimits> {
        let bytes = match &self.keep_outputs_bytes {
            Some(text) => text.parse()?,
            None => outputs::share_of_disk(&self.data)?,
        };
        Ok(RetentionLimits { age: self.keep_outputs, bytes, attempts: self.keep_attempts })
    }

    /// Returns the node's part of attempts' environments.
    pub fn environment(&self) -> NodeEnvironment {
        let own = |name: &str| std::env::var(name).ok();
        let user = own("USER").unwrap_or_else(|| "root".to_owned());
        let base = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", own("HOME").unwrap_or_else(|| "/".to_owned())),
            ("LOGNAME", user.clone()),
            ("USER", user),
            ("SHELL", "/bin/sh".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
        ];
        let base: BTreeMap<_, _> =
            base.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let passed =
            self.pass_env.iter().filter_map(|name| Some((name.clone(), own(name)?))).collect();
        let processors =
            std::thread::available_parallelism().map_or(1, |count| clamped(count.get()));
        NodeEnvironment { base, passed, processors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> anyhow::Result<AgentConfig> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        AgentConfig::load(&AgentArguments::parse_from([
            "tessera-agent",
            "--config",
            &path,
            "--data",
            "/d",
        ]))
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let config = load("controller = \"ctl:7443\"\ndata = \"/e\"\n").unwrap();

        assert_eq!(config.controller, "ctl:7443");
        assert_eq!(config.data, PathBuf::from("/d"));
        assert_eq!(config.nvml, PathBuf::from("libnvidia-ml.so.1"));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error = format!("{:#}", load("controler = \"ctl:7443\"\n").unwrap_err());

        assert!(error.contains("controler"), "{error}");
    }

    #[test]
    fn the_percentage_of_offline_jobs_needs_mps_and_is_one() {
        let load = |lines: &str| load(&format!("controller = \"c:1\"\n{lines}\n"));
        let over_mps = "kernel_over_mps = true\n";

        assert_eq!(load(over_mps).unwrap().kernel_offline_percent, SmPercent::WHOLE);
        let half = load(&format!("{over_mps}kernel_offline_percent = 50")).unwrap();
        assert_eq!(half.kernel_offline_percent.get(), 50);
        for (lines, hint) in [
            ("kernel_offline_percent = 50".to_owned(), "kernel_over_mps = true"),
            (format!("{over_mps}kernel_offline_percent = 0"), "1 to 100"),
        ] {
            let error = load(&lines).unwrap_err();
            assert!(format!("{error:#}").contains(hint), "{error:#}");
        }
    }

    #[test]
    fn what_is_kept_of_outputs_is_a_span_and_a_size() {
        let config =
            load("controller = \"c:1\"\nkeep_outputs = \"12h\"\nkeep_outputs_bytes = \"2G\"\n");
        let limits = config.unwrap().output_limits().unwrap();
        assert_eq!((limits.age.to_string().as_str(), limits.bytes.get()), ("12h", 2 << 30));

        for (line, hint) in [("keep_outputs = \"12\"", "7d"), ("keep_outputs_bytes = \"x\"", "10G")]
        {
            let error = load(&format!("controller = \"c:1\"\n{line}\n")).unwrap_err();
            assert!(format!("{error:#}").contains(hint), "{error:#}");
        }
    }

    #[test]
    fn a_missing_setting_is_named() {
        let error = format!("{:#}", load("").unwrap_err());

        assert!(error.contains("controller is missing"), "{error}");
    }

    #[test]
    fn the_controller_is_the_one_by_which_the_machine_joined_unless_the_settings_name_another() {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("identity")).unwrap();
        std::fs::write(data.path().join("identity/controller"), "joined:7071\n").unwrap();
        let file = data.path().join("agent.toml");
        let load = |settings: &str| {
            std::fs::write(&file, settings).unwrap();
            let words = ["tessera-agent", "--config", file.to_str().unwrap(), "--data"];
            let words = words.into_iter().chain(data.path().to_str());
            AgentConfig::load(&AgentArguments::parse_from(words)).unwrap().controller
        };

        assert_eq!(load(""), "joined:7071");
        assert_eq!(load("controller = \"other:7071\"\n"), "other:7071");
    }

    #[test]
    fn every_setting_and_option_is_in_the_operations_guide() {
        let guide = include_str!("../../docs/operations.md");
        let config = load("controller = \"c:1\"\n").unwrap();
        let keys = serde_json::to_value(&config).unwrap();
        for key in keys.as_object().unwrap().keys() {
            let is_there = [format!("| `{key}` |"), format!("| `[{key}]` |")];
            assert!(is_there.iter().any(|row| guide.contains(row)), "{key} is not documented");
        }
        let command = <AgentArguments as clap::CommandFactory>::command();
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(guide.contains(&format!("`--{option}`")), "--{option} is not documented");
        }
    }
}
