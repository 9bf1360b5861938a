//! From `nvmlInit` to `nvmlShutdown`, and the gate that every call passes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::device::{
    ClaimPlace, ComputeInstance, DeviceGpu, DeviceRefusal, DeviceState, GpuInstance,
};
use tessera_stand_in::faults::{FaultAction, FaultInjector};
use tessera_stand_in::node::{DeviceChangeError, SimulatedNode};

use crate::abi::{NvmlCode, Opaque, OpaqueHandle};
use crate::events::EventSets;
use crate::gpm::GpmSamples;

/// What lives while the library is initialised.
pub struct NvmlSession {
    pub node: SimulatedNode,
    pub injector: FaultInjector,
    pub events: EventSets,
    pub samples: GpmSamples,
}

/// The session, and how many initialisations hold it.
static CURRENT: Mutex<(u32, Option<Arc<NvmlSession>>)> = Mutex::new((0, None));

/// One call on its way: its name, and the state of the node when it came.
pub struct NvmlCall {
    pub name: &'static str,
    pub session: Arc<NvmlSession>,
    pub state: DeviceState,
    /// The faults that have affected the call so far.
    pub struck: RefCell<Vec<FaultAction>>,
}

/// A device handle that names something.
#[derive(Clone, Copy)]
pub enum DeviceHandle<'s> {
    Gpu(usize),
    Mig { gpu: usize, instance: &'s GpuInstance, compute: &'s ComputeInstance },
}

/// Exports functions of NVML. Each body runs behind the gate.
macro_rules! nvml {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$call:ident| $body:block
    )*) => {
        /// Names of the functions of this module.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($arg: $type),*
            ) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
                $crate::session::answer(|| {
                    let $call = $crate::session::NvmlCall::begin(stringify!($name))?;
                    $body
                })
            }
        )*
    };
}
pub(crate) use nvml;

/// Turns a body's outcome into NVML's, and a panic into its unknown error: unwinding into C
/// would be undefined behaviour.
pub fn answer(body: impl FnOnce() -> Result<(), NvmlCode>) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => NvmlCode::UNKNOWN.0,
    }
}

/// Counts an initialisation and opens the node on the first.
pub fn initialize(name: &'static str) -> Result<(), NvmlCode> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let session = match &current.1 {
        Some(session) => Arc::clone(session),
        None => Arc::new(open()?),
    };
    // A fault may hang here, and the other threads' calls must not.
    drop(current);
    session.strike(name, None)?;
    current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    current.0 += 1;
    current.1.get_or_insert(session);
    Ok(())
}

/// Undoes one initialisation, and closes the node with the last one.
pub fn shut_down() -> Result<(), NvmlCode> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    current.0 = current.0.checked_sub(1).ok_or(NvmlCode::UNINITIALIZED)?;
    if current.0 == 0 {
        current.1 = None;
    }
    Ok(())
}

fn open() -> Result<NvmlSession, NvmlCode> {
    let config =
        StandInConfig::from_env().map_err(|error| complain(&error, NvmlCode::DRIVER_NOT_LOADED))?;
    let node = SimulatedNode::open(&config)
        .map_err(|error| complain(&error, NvmlCode::DRIVER_NOT_LOADED))?;
    let injector = FaultInjector::new(node.clone(), &config.faults, &crate::NAMES)
        .map_err(|error| complain(&error, NvmlCode::UNKNOWN))?;
    if config.verbose {
        eprintln!("libnvidia-ml stand-in: simulated node in {}", config.folder.display());
    }
    Ok(NvmlSession { node, injector, events: EventSets::default(), samples: GpmSamples::default() })
}

/// Prints on stderr why a call fails, each reason once a process.
pub fn complain(error: &dyn std::error::Error, code: NvmlCode) -> NvmlCode {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        line = format!("{line}: {inner}");
        cause = inner.source();
    }
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.insert(line.clone()) {
        eprintln!("libnvidia-ml stand-in: {line}");
    }
    code
}

impl NvmlSession {
    /// Applies the faults of the list to a call.
    fn strike(&self, name: &str, gpu: Option<u32>) -> Result<Vec<FaultAction>, NvmlCode> {
        let actions =
            self.injector.strike(name, gpu).map_err(|error| complain(&error, NvmlCode::UNKNOWN))?;
        for action in &actions {
            match action {
                FaultAction::Fail(code) => return Err(NvmlCode(*code)),
                FaultAction::Lose => return Err(NvmlCode::GPU_IS_LOST),
                FaultAction::Ghost => return Err(NvmlCode::SUCCESS),
                FaultAction::Delay(time) => thread::sleep(*time),
                FaultAction::Crash => std::process::abort(),
                FaultAction::Hang => loop {
                    thread::park();
                },
                FaultAction::LeavePending(_)
                | FaultAction::Raise(_)
                | FaultAction::Recovery(_)
                | FaultAction::Remap(_) => {}
            }
        }
        Ok(actions)
    }
}

impl NvmlCall {
    /// Lets a call in, unless the library isn't initialised or a fault affects it.
    pub fn begin(name: &'static str) -> Result<Self, NvmlCode> {
        let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let session = current.1.clone().ok_or(NvmlCode::UNINITIALIZED)?;
        drop(current);
        let struck = RefCell::new(session.strike(name, None)?);
        let state = session.node.read().map_err(|error| complain(&error, NvmlCode::UNKNOWN))?;
        Ok(Self { name, session, state, struck })
    }

    /// Finds what a device handle names.
    pub fn device(&self, device: nvmlDevice_t) -> Result<DeviceHandle<'_>, NvmlCode> {
        let found = match device.handle()? {
            OpaqueHandle::Gpu(gpu) => DeviceHandle::Gpu(gpu),
            OpaqueHandle::Mig(serial) => {
                let found =
                    self.state.compute_instance(serial).ok_or(NvmlCode::INVALID_ARGUMENT)?;
                let (gpu, instance, compute) = found;
                DeviceHandle::Mig { gpu, instance, compute }
            }
            OpaqueHandle::GpuInstance(_)
            | OpaqueHandle::ComputeInstance(_)
            | OpaqueHandle::EventSet(_)
            | OpaqueHandle::GpmSample(_) => {
                return Err(NvmlCode::INVALID_ARGUMENT);
            }
        };
        self.reach(found.gpu())?;
        Ok(found)
    }

    /// Finds the GPU that a device handle names; a MIG device is not one.
    pub fn gpu(&self, device: nvmlDevice_t) -> Result<usize, NvmlCode> {
        match device.handle()? {
            OpaqueHandle::Gpu(gpu) => self.reach(gpu).map(|()| gpu),
            OpaqueHandle::Mig(_)
            | OpaqueHandle::GpuInstance(_)
            | OpaqueHandle::ComputeInstance(_)
            | OpaqueHandle::EventSet(_)
            | OpaqueHandle::GpmSample(_) => Err(NvmlCode::INVALID_ARGUMENT),
        }
    }

    /// Finds the GPU that a device handle names, for figures that MIG devices don't have.
    pub fn gpu_figure(&self, device: nvmlDevice_t) -> Result<usize, NvmlCode> {
        match self.device(device)? {
            DeviceHandle::Gpu(gpu) => Ok(gpu),
            DeviceHandle::Mig { .. } => Err(NvmlCode::NOT_SUPPORTED),
        }
    }

    /// Finds a GPU instance.
    pub fn gpu_instance<H: Opaque>(&self, handle: H) -> Result<(usize, &GpuInstance), NvmlCode> {
        let OpaqueHandle::GpuInstance(serial) = handle.handle()? else {
            return Err(NvmlCode::INVALID_ARGUMENT);
        };
        let found = self.state.gpu_instance(serial).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        self.reach(found.0)?;
        Ok(found)
    }

    /// Finds a compute instance.
    pub fn compute_instance<H: Opaque>(
        &self,
        handle: H,
    ) -> Result<(usize, &GpuInstance, &ComputeInstance), NvmlCode> {
        let OpaqueHandle::ComputeInstance(serial) = handle.handle()? else {
            return Err(NvmlCode::INVALID_ARGUMENT);
        };
        let found = self.state.compute_instance(serial).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        self.reach(found.0)?;
        Ok(found)
    }

    /// Returns a GPU that was found.
    pub fn gpu_state(&self, gpu: usize) -> &DeviceGpu {
        &self.state.gpus[gpu]
    }

    /// Applies the faults of a GPU to the call, once its GPU is known.
    pub fn reach(&self, gpu: usize) -> Result<(), NvmlCode> {
        if gpu >= self.state.gpus.len() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let number = u32::try_from(gpu).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
        self.struck.borrow_mut().extend(self.session.strike(self.name, Some(number))?);
        Ok(())
    }

    /// Carries out an operation that keeps the GPU busy.
    pub fn operate<T>(
        &self,
        gpu: usize,
        takes: std::time::Duration,
        change: impl Fn(&mut DeviceState) -> Result<T, DeviceRefusal>,
    ) -> Result<T, NvmlCode> {
        self.session.node.operate(gpu, takes, change).map_err(|error| match error {
            DeviceChangeError::Refused(refusal) => refusal.into(),
            DeviceChangeError::Node(error) => complain(&error, NvmlCode::UNKNOWN),
        })
    }
}

impl DeviceHandle<'_> {
    pub const fn gpu(self) -> usize {
        match self {
            Self::Gpu(gpu) | Self::Mig { gpu, .. } => gpu,
        }
    }

    pub const fn place(self) -> ClaimPlace {
        match self {
            Self::Gpu(gpu) => ClaimPlace::Gpu(gpu),
            Self::Mig { compute, .. } => ClaimPlace::Compute(compute.serial),
        }
    }
}
