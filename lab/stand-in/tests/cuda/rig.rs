//! A separate node and copy of the driver for each test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::cuda::image::LaunchShape;
use tessera_stand_in::cuda::program::{CudaError, CudaProgram};
use tessera_stand_in::library::{StandInLibrary, build_part};
use tessera_stand_in::node::SimulatedNode;

/// The environment belongs to the process, while tests run side by side in it.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// Every variable that a driver reads: what a test doesn't set is unset.
pub const VARIABLES: [&str; 16] = [
    "TESSERA_SIM_GPUS",
    "TESSERA_SIM_MIG",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "TESSERA_SIM_CUDA_VERSION",
    "TESSERA_SIM_CUDA_CLOCK",
    "TESSERA_SIM_CUDA_SLICE_US",
    "TESSERA_SIM_CUDA_SWITCH_US",
    "TESSERA_SIM_CUDA_LAUNCH_NS",
    "TESSERA_SIM_CUDA_START_NS",
    "TESSERA_SIM_CUDA_CONTEXT_MIB",
    "TESSERA_SIM_CUDA_TRACE",
    "TESSERA_SIM_CUDA_STRICT",
    "TESSERA_SIM_CUDA_FAULTS",
    "TESSERA_SIM_CUDA_SEED",
];

/// One block of one thread.
pub const ONE: LaunchShape = LaunchShape { grid: [1; 3], block: [1; 3] };

/// One simulated node with the driver opened on it.
pub struct Rig {
    pub cuda: CudaProgram,
    pub node: SimulatedNode,
    pub folder: TempDir,
}

impl Rig {
    /// Makes a node of one whole A30, with a context in virtual time and a trace.
    pub fn new() -> Self {
        Self::with(&[("TESSERA_SIM_CUDA_CLOCK", "virtual")])
    }

    /// Does the same with variables of the test's own.
    pub fn with(variables: &[(&'static str, &str)]) -> Self {
        let rig = Self::uninitialized(variables);
        rig.started(variables).unwrap();
        rig
    }

    /// Opens a driver and calls nothing.
    pub fn uninitialized(variables: &[(&'static str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = open_node(folder.path());
        let copy = folder.path().join("libcuda.so.1");
        fs::copy(build_part(StandInLibrary::Cuda).unwrap(), &copy).unwrap();
        let cuda = CudaProgram::open(&copy).unwrap();
        let rig = Self { cuda, node, folder };
        // The driver reads its settings with the first call.
        rig.in_environment(variables, || {
            let mut version = 0;
            tessera_stand_in::cuda_call!(rig.cuda, cuDriverGetVersion(&mut version => *mut i32))
                .unwrap();
        });
        rig
    }

    /// Initialises the driver and makes a context.
    pub fn started(&self, variables: &[(&'static str, &str)]) -> Result<(), CudaError> {
        self.in_environment(variables, || {
            self.cuda.init()?;
            self.cuda.use_device(0).map(drop)
        })
    }

    /// Initialises the driver.
    pub fn init(&self, variables: &[(&'static str, &str)]) -> Result<(), CudaError> {
        self.in_environment(variables, || self.cuda.init())
    }

    fn in_environment<T>(&self, variables: &[(&'static str, &str)], run: impl FnOnce() -> T) -> T {
        let _lock = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        let set = |name: &str, value: Option<&str>| {
            // SAFETY: under the lock that all tests take; nothing else reads these variables.
            unsafe {
                match value {
                    Some(value) => std::env::set_var(name, value),
                    None => std::env::remove_var(name),
                }
            }
        };
        for name in VARIABLES {
            set(name, variables.get(name).copied());
        }
        let (node, trace) = (self.folder.path().join("node"), self.folder.path().join("trace"));
        set("TESSERA_SIM_NODE", node.to_str());
        set("CUDA_MPS_PIPE_DIRECTORY", Some("/nowhere"));
        if !variables.contains_key("TESSERA_SIM_CUDA_TRACE") {
            set("TESSERA_SIM_CUDA_TRACE", trace.to_str());
        }
        run()
    }

    /// Returns the lines of the trace.
    pub fn trace(&self) -> Vec<serde_json::Value> {
        let pid = std::process::id();
        read_trace(&self.folder.path().join("trace").join(format!("cuda-{pid}.jsonl")))
    }

    /// Returns the device's operations of one kind: `(name, start, end)`.
    pub fn operations(&self, kind: &str) -> Vec<(String, u64, u64)> {
        let lines = self.trace();
        let of_kind = lines.iter().filter(|line| line["op"] == kind);
        of_kind
            .map(|line| {
                let time = |name: &str| line[name].as_u64().unwrap();
                (line["name"].as_str().unwrap().to_owned(), time("start"), time("end"))
            })
            .collect()
    }
}

pub fn read_trace(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Makes a node of one A30 without MIG in a folder.
pub fn open_node(folder: &Path) -> SimulatedNode {
    let config =
        StandInConfig { mig: false, ..StandInConfig::new(folder.join("node"), &["a30-24gb"]) };
    SimulatedNode::open(&config).unwrap()
}
