//! From `nvmlInit` to `nvmlShutdown`, and the gate that every call passes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use tessera_sim::config::Config;
use tessera_sim::device::{ComputeInstance, Gpu, GpuInstance, Place, Refusal, State};
use tessera_sim::faults::{Action, Injector};
use tessera_sim::node::{ChangeError, Node};

use crate::abi::{Code, Handle, Opaque};
use crate::events::EventSets;

/// What lives while the library is initialised.
pub struct Session {
    pub node: Node,
    pub injector: Injector,
    pub events: EventSets,
}

/// The session, and how many initialisations hold it.
static CURRENT: Mutex<(u32, Option<Arc<Session>>)> = Mutex::new((0, None));

/// One call on its way: its name, and the state of the node when it came.
pub struct Call {
    pub name: &'static str,
    pub session: Arc<Session>,
    pub state: State,
    /// What has struck the call so far, for the one that acts on it.
    pub struck: RefCell<Vec<Action>>,
}

/// A device handle that names something.
#[derive(Clone, Copy)]
pub enum Device<'s> {
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
                    let $call = $crate::session::Call::begin(stringify!($name))?;
                    $body
                })
            }
        )*
    };
}
pub(crate) use nvml;

/// Turns a body's outcome into NVML's, and a panic into its unknown error: unwinding into C
/// would be undefined behaviour.
pub fn answer(body: impl FnOnce() -> Result<(), Code>) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Counts an initialisation and opens the node on the first.
pub fn initialize(name: &'static str) -> Result<(), Code> {
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

/// Takes back one initialisation and closes the node with the last.
pub fn shut_down() -> Result<(), Code> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    current.0 = current.0.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
    if current.0 == 0 {
        current.1 = None;
    }
    Ok(())
}

fn open() -> Result<Session, Code> {
    let config = Config::from_env().map_err(|error| complain(&error, Code::DRIVER_NOT_LOADED))?;
    let node = Node::open(&config).map_err(|error| complain(&error, Code::DRIVER_NOT_LOADED))?;
    let injector = Injector::new(node.clone(), &config.faults, &crate::NAMES)
        .map_err(|error| complain(&error, Code::UNKNOWN))?;
    if config.verbose {
        eprintln!("libnvidia-ml stand-in: simulated node in {}", config.folder.display());
    }
    Ok(Session { node, injector, events: EventSets::default() })
}

/// Says on stderr why a call fails, each reason once a process.
pub fn complain(error: &dyn std::error::Error, code: Code) -> Code {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        line = format!("{line}: {inner}");
        cause = inner.source();
    }
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(line.clone()) {
        eprintln!("libnvidia-ml stand-in: {line}");
    }
    code
}

impl Session {
    /// Lets the faults of the list strike a call.
    fn strike(&self, name: &str, gpu: Option<u32>) -> Result<Vec<Action>, Code> {
        let actions =
            self.injector.strike(name, gpu).map_err(|error| complain(&error, Code::UNKNOWN))?;
        for action in &actions {
            match action {
                Action::Fail(code) => return Err(Code(*code)),
                Action::Lose => return Err(Code::GPU_IS_LOST),
                Action::Ghost => return Err(Code::SUCCESS),
                Action::Delay(time) => thread::sleep(*time),
                Action::Crash => std::process::abort(),
                Action::Hang => loop {
                    thread::park();
                },
                Action::LeavePending(_)
                | Action::Raise(_)
                | Action::Recovery(_)
                | Action::Remap(_) => {}
            }
        }
        Ok(actions)
    }
}

impl Call {
    /// Lets a call in, unless the library isn't initialised or a fault strikes it.
    pub fn begin(name: &'static str) -> Result<Self, Code> {
        let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let session = current.1.clone().ok_or(Code::UNINITIALIZED)?;
        drop(current);
        let struck = RefCell::new(session.strike(name, None)?);
        let state = session.node.read().map_err(|error| complain(&error, Code::UNKNOWN))?;
        Ok(Self { name, session, state, struck })
    }

    /// Finds what a device handle names.
    pub fn device(&self, device: nvmlDevice_t) -> Result<Device<'_>, Code> {
        let found = match device.handle()? {
            Handle::Gpu(gpu) => Device::Gpu(gpu),
            Handle::Mig(serial) => {
                let found = self.state.compute_instance(serial).ok_or(Code::INVALID_ARGUMENT)?;
                let (gpu, instance, compute) = found;
                Device::Mig { gpu, instance, compute }
            }
            Handle::GpuInstance(_) | Handle::ComputeInstance(_) | Handle::EventSet(_) => {
                return Err(Code::INVALID_ARGUMENT);
            }
        };
        self.reach(found.gpu())?;
        Ok(found)
    }

    /// Finds the GPU that a device handle names; a MIG device is none.
    pub fn gpu(&self, device: nvmlDevice_t) -> Result<usize, Code> {
        match device.handle()? {
            Handle::Gpu(gpu) => self.reach(gpu).map(|()| gpu),
            Handle::Mig(_)
            | Handle::GpuInstance(_)
            | Handle::ComputeInstance(_)
            | Handle::EventSet(_) => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// Finds the GPU that a device handle names, for figures that MIG devices don't have.
    pub fn gpu_figure(&self, device: nvmlDevice_t) -> Result<usize, Code> {
        match self.device(device)? {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Mig { .. } => Err(Code::NOT_SUPPORTED),
        }
    }

    /// Finds a GPU instance.
    pub fn gpu_instance<H: Opaque>(&self, handle: H) -> Result<(usize, &GpuInstance), Code> {
        let Handle::GpuInstance(serial) = handle.handle()? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let found = self.state.gpu_instance(serial).ok_or(Code::INVALID_ARGUMENT)?;
        self.reach(found.0)?;
        Ok(found)
    }

    /// Finds a compute instance.
    pub fn compute_instance<H: Opaque>(
        &self,
        handle: H,
    ) -> Result<(usize, &GpuInstance, &ComputeInstance), Code> {
        let Handle::ComputeInstance(serial) = handle.handle()? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let found = self.state.compute_instance(serial).ok_or(Code::INVALID_ARGUMENT)?;
        self.reach(found.0)?;
        Ok(found)
    }

    /// Returns a GPU that was found.
    pub fn card(&self, gpu: usize) -> &Gpu {
        &self.state.gpus[gpu]
    }

    /// Lets the faults of a GPU strike the call, once it is known which GPU it concerns.
    pub fn reach(&self, gpu: usize) -> Result<(), Code> {
        if gpu >= self.state.gpus.len() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let number = u32::try_from(gpu).map_err(|_| Code::INVALID_ARGUMENT)?;
        self.struck.borrow_mut().extend(self.session.strike(self.name, Some(number))?);
        Ok(())
    }

    /// Carries out an operation that keeps the GPU busy.
    pub fn operate<T>(
        &self,
        gpu: usize,
        takes: std::time::Duration,
        change: impl Fn(&mut State) -> Result<T, Refusal>,
    ) -> Result<T, Code> {
        self.session.node.operate(gpu, takes, change).map_err(|error| match error {
            ChangeError::Refused(refusal) => refusal.into(),
            ChangeError::Node(error) => complain(&error, Code::UNKNOWN),
        })
    }
}

impl Device<'_> {
    pub const fn gpu(self) -> usize {
        match self {
            Self::Gpu(gpu) | Self::Mig { gpu, .. } => gpu,
        }
    }

    pub const fn place(self) -> Place {
        match self {
            Self::Gpu(gpu) => Place::Gpu(gpu),
            Self::Mig { compute, .. } => Place::Compute(compute.serial),
        }
    }
}
