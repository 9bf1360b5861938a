//! A separate node and copy of the library for each test.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t,
    nvmlReturn_t,
};
use tempfile::TempDir;
use tessera_model::mig::Slot;
use tessera_model::mig::catalog::{self, GpuModel};
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::node::SimulatedNode;

/// The environment belongs to the process, while tests run side by side in it.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// One simulated node with the library opened on it.
pub struct Rig {
    pub nvml: Nvml,
    pub node: SimulatedNode,
    pub folder: TempDir,
}

/// Makes a raw call through the rig's library and returns its code.
macro_rules! raw {
    ($rig:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let function = $rig.nvml.lib().$name.as_ref().expect(stringify!($name));
        // SAFETY: the arguments are the test's own, of the types that the binding names.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use raw;

impl Rig {
    /// Makes a node with MIG on and no latencies.
    pub fn new(gpus: &[&str]) -> Self {
        Self::with(gpus, &[])
    }

    /// Makes a node with further variables.
    pub fn with(gpus: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nvml = open(&folder, gpus, variables).unwrap();
        let node =
            SimulatedNode::open(&StandInConfig::new(folder.path().join("node"), gpus)).unwrap();
        Self { nvml, node, folder }
    }

    pub fn device(&self, index: u32) -> nvmlDevice_t {
        // SAFETY: the handle is only passed back to the library it came from.
        unsafe { self.nvml.device_by_index(index).unwrap().handle() }
    }

    pub fn create(
        &self,
        gpu: u32,
        profile: u32,
        at: Option<(u32, u32)>,
    ) -> Result<nvmlGpuInstance_t, nvmlReturn_t> {
        let mut instance = ptr::null_mut();
        let device = self.device(gpu);
        let code = match at {
            None => raw!(self, nvmlDeviceCreateGpuInstance(device, profile, &mut instance)),
            Some((start, size)) => {
                let placement = nvmlGpuInstancePlacement_t { start, size };
                raw!(
                    self,
                    nvmlDeviceCreateGpuInstanceWithPlacement(
                        device,
                        profile,
                        &placement,
                        &mut instance
                    )
                )
            }
        };
        result(code, instance)
    }

    pub fn create_at(&self, gpu: u32, slot: Slot) -> Result<nvmlGpuInstance_t, nvmlReturn_t> {
        let state = self.node.read().unwrap();
        let profile = state.gpus[index(gpu)].profile(slot.profile.0).unwrap();
        let size = profile.profile.memory_slices.into();
        self.create(gpu, slot.profile.0, Some((slot.start.into(), size)))
    }

    pub fn create_compute(
        &self,
        instance: nvmlGpuInstance_t,
        profile: u32,
    ) -> Result<nvmlComputeInstance_t, nvmlReturn_t> {
        let mut compute = ptr::null_mut();
        let code =
            raw!(self, nvmlGpuInstanceCreateComputeInstance(instance, profile, &mut compute));
        result(code, compute)
    }

    /// Creates an instance of the named profile with its whole compute instance, and returns
    /// the handles with the MIG device's UUID.
    pub fn slice(&self, gpu: u32, name: &str) -> Slice {
        let entry = entry(self.model(gpu), name);
        let instance = self.create(gpu, entry.0, None).unwrap();
        let compute = self.create_compute(instance, entry.1).unwrap();
        let state = self.node.read().unwrap();
        let newest = state.gpus[index(gpu)]
            .instances
            .iter()
            .flat_map(|i| &i.compute)
            .max_by_key(|c| c.serial)
            .unwrap();
        Slice { instance, compute, uuid: newest.mig_uuid() }
    }

    pub fn destroy(&self, slice: &Slice) -> nvmlReturn_t {
        match raw!(self, nvmlComputeInstanceDestroy(slice.compute)) {
            0 => raw!(self, nvmlGpuInstanceDestroy(slice.instance)),
            code => code,
        }
    }

    pub fn model(&self, gpu: u32) -> &'static GpuModel {
        self.node.read().unwrap().gpus[index(gpu)].model()
    }

    /// Prepares this test binary to run one of its tests as another process on the node.
    pub fn child(&self, test: &str) -> Command {
        let mut child = Command::new(std::env::current_exe().unwrap());
        forget_other_rigs(&mut child);
        child
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env("TESSERA_SIM_NODE", self.folder.path().join("node"))
            .env("TESSERA_SIM_LATENCY", "0")
            .env("TESSERA_SIM_TEST_CHILD", library(&self.folder));
        child
    }
}

/// Takes out of a command's environment what a rig of another test sets in this process for a
/// moment.
pub fn forget_other_rigs(command: &mut Command) {
    for name in ["TESSERA_SIM_GPUS", "TESSERA_SIM_MIG", "TESSERA_SIM_LATENCY", "TESSERA_SIM_FAULTS"]
    {
        command.env_remove(name);
    }
}

pub struct Slice {
    pub instance: nvmlGpuInstance_t,
    pub compute: nvmlComputeInstance_t,
    pub uuid: String,
}

/// Opens the library in a process that [`Rig::child`] started; `None` in the test run itself.
pub fn as_child() -> Option<Nvml> {
    let library = std::env::var_os("TESSERA_SIM_TEST_CHILD")?;
    Some(Nvml::builder().lib_path(&library).init().unwrap())
}

/// Opens its own copy of the library: the loader knows libraries by file, and each has
/// one node.
pub fn open(
    folder: &TempDir,
    gpus: &[&str],
    variables: &[(&str, &str)],
) -> Result<Nvml, nvml_wrapper::error::NvmlError> {
    let library = library(folder);
    let _turn = environment();
    let node = folder.path().join("node");
    let settings = [
        ("TESSERA_SIM_NODE", node.to_str().unwrap()),
        ("TESSERA_SIM_GPUS", &gpus.join(",")),
        ("TESSERA_SIM_LATENCY", "0"),
    ];
    let all: Vec<_> = settings.iter().chain(variables).copied().collect();
    // SAFETY: all tests change the environment under this lock, and Rust reads it under its own.
    all.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
    let opened = Nvml::builder().lib_path(OsStr::new(&library)).init();
    // SAFETY: as above.
    all.iter().for_each(|(name, _)| unsafe { std::env::remove_var(name) });
    opened
}

/// Returns the ids of a profile and of its whole compute profile.
pub fn entry(model: &GpuModel, name: &str) -> (u32, u32) {
    let entry = model.profiles.iter().find(|p| p.profile.name.as_str() == name).unwrap();
    let whole = entry.compute.iter().find(|c| c.whole).unwrap();
    (entry.profile.id.0, whole.id.unwrap())
}

pub fn every_model() -> impl Iterator<Item = (&'static str, &'static GpuModel)> {
    catalog::models().iter().map(|(key, model)| (key.as_str(), model))
}

fn library(folder: &TempDir) -> PathBuf {
    let copy = folder.path().join("libnvidia-ml.so.1");
    if !copy.exists() {
        fs::copy(tessera_stand_in::library::build().unwrap(), &copy).unwrap();
    }
    copy
}

fn environment() -> MutexGuard<'static, ()> {
    ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// NVML counts in its own width.
pub fn index(number: u32) -> usize {
    number.try_into().unwrap()
}

fn result<T>(code: nvmlReturn_t, value: T) -> Result<T, nvmlReturn_t> {
    if code == 0 { Ok(value) } else { Err(code) }
}
