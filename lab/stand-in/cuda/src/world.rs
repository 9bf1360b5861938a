//! The driver's whole state in this process, under one lock.

mod capture;
mod contexts;
mod lanes;
mod modules;
mod pump;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar};

use tessera_stand_in::client::DeviceClient;
use tessera_stand_in::cuda::board::SharedDevice;
use tessera_stand_in::cuda::duration::SeededRng;
use tessera_stand_in::cuda::schedule::{ClientId, DeviceRules};
use tessera_stand_in::cuda::settings::CudaSettings;
use tessera_stand_in::cuda::visible::VisibleDevice;
use tessera_stand_in::mps::client::MpsClient;
use tessera_stand_in::node::SimulatedNode;

use crate::abi::{CallResult, CudaCode, H};
use crate::memory::CudaMemory;
use crate::slab::HandleSlab;
use crate::trace::CallTrace;

pub use capture::{CudaGraph, GraphExec, GraphNode, PutOutcome, StreamCapture};
pub use contexts::{context_handle, context_id, devices_of_process, mps_code};
pub use lanes::{
    CudaEvent, HostCall, HostWork, JobOp, LaneKind, MemoryEffect, OperationKind, OperationLane,
};
pub use modules::{LibraryKernel, LoadedLibrary, LoadedModule, ModuleFunction};
pub use pump::AHEAD;
pub use work::{KernelLaunch, StreamStep};

pub struct DriverState {
    pub node: Option<SimulatedNode>,
    pub devices: Vec<CudaDevice>,
    pub mps: Option<MpsConnection>,
    pub contexts: BTreeMap<u64, CudaContext>,
    pub modules: HandleSlab<LoadedModule>,
    pub functions: HandleSlab<ModuleFunction>,
    pub libraries: HandleSlab<LoadedLibrary>,
    pub kernels: HandleSlab<LibraryKernel>,
    /// Streams that programs made, by their lanes.
    pub streams: HandleSlab<u64>,
    pub events: HandleSlab<CudaEvent>,
    pub graphs: HandleSlab<CudaGraph>,
    pub nodes: HandleSlab<GraphNode>,
    pub execs: HandleSlab<GraphExec>,
    pub captures: BTreeMap<u64, StreamCapture>,
    /// What `cuStreamGetCaptureInfo` points to.
    pub lent: Vec<H>,
    pub lanes: BTreeMap<u64, OperationLane>,
    pub memory: CudaMemory,
    pub rng: SeededRng,
    /// Host functions that are due, and whether one runs.
    pub hosts: VecDeque<HostCall>,
    pub host_runs: bool,
    /// What threads wait for: places in lanes.
    pub waiting_for: Vec<(u64, u64)>,
    /// Threads that wait.
    pub waiters: usize,
    /// Moments of virtual time for which threads wait.
    pub alarms: Vec<u64>,
    /// Whether the executor sleeps until it is notified of work.
    pub executor_idle: bool,
    pub executor_runs: bool,
    /// The executor's thread runs this.
    executor: fn(),
    /// Notified when something may have changed for threads that wait.
    changed: Arc<Condvar>,
    /// The trace of operations.
    trace: Option<Arc<CallTrace>>,
    launch_to_start: u64,
    context_bytes: u64,
    rules: DeviceRules,
    virtual_time: bool,
    next_number: u64,
}

/// A device that the process sees.
pub struct CudaDevice {
    pub visible: VisibleDevice,
    pub board: Option<SharedDevice>,
    /// Its primary context, if it is active, and how often it was retained.
    pub primary: Option<(u64, u32)>,
    pub primary_flags: u32,
}

/// The MPS server of which the process is a client.
pub struct MpsConnection {
    pub client: MpsClient,
    /// Share of the SMs that it may use, in thousandths.
    pub cap: u32,
    pub checked_at: u64,
}

pub struct CudaContext {
    pub device: usize,
    pub flags: u32,
    /// The error that stays until the context is destroyed.
    pub sticky: Option<CudaCode>,
    pub client: ClientId,
    pub claim: DeviceClient,
    pub legacy: u64,
    pub per_thread: BTreeMap<i32, u64>,
    /// Jobs with the device.
    pub pushed: usize,
    /// When the load was last reported, how busy it was by then, and what was reported.
    pub load: (u64, u64, u8),
}

// SAFETY: the pointers in here are handles, which are numbers, and functions and arguments of
// the program, which it lets any thread use.
unsafe impl Send for DriverState {}

impl DriverState {
    /// Makes the state of a process that has not initialised the driver yet.
    ///
    /// `changed` is notified of progress, and `executor` is run by its own thread from the first
    /// operation on.
    pub fn new(
        settings: &CudaSettings,
        trace: Option<Arc<CallTrace>>,
        changed: Arc<Condvar>,
        executor: fn(),
    ) -> Self {
        Self {
            node: None,
            devices: Vec::new(),
            mps: None,
            contexts: BTreeMap::new(),
            modules: HandleSlab::new(0x5c02),
            functions: HandleSlab::new(0x5c03),
            libraries: HandleSlab::new(0x5c04),
            kernels: HandleSlab::new(0x5c05),
            streams: HandleSlab::new(0x5c06),
            events: HandleSlab::new(0x5c07),
            graphs: HandleSlab::new(0x5c08),
            nodes: HandleSlab::new(0x5c09),
            execs: HandleSlab::new(0x5c0a),
            captures: BTreeMap::new(),
            lent: Vec::new(),
            lanes: BTreeMap::new(),
            memory: CudaMemory::default(),
            rng: SeededRng::new(settings.seed),
            hosts: VecDeque::new(),
            host_runs: false,
            waiting_for: Vec::new(),
            waiters: 0,
            alarms: Vec::new(),
            executor_idle: false,
            executor_runs: false,
            executor,
            changed,
            trace,
            launch_to_start: settings.launch_to_start,
            context_bytes: settings.context_bytes,
            rules: settings.rules,
            virtual_time: settings.virtual_time,
            next_number: 1,
        }
    }

    /// Finds a device by its ordinal.
    pub fn device(&self, ordinal: i32) -> CallResult<&CudaDevice> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.devices.get(index)).ok_or(CudaCode::INVALID_DEVICE)
    }

    /// Finds a device by its ordinal.
    pub fn device_mut(&mut self, ordinal: i32) -> CallResult<&mut CudaDevice> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.devices.get_mut(index)).ok_or(CudaCode::INVALID_DEVICE)
    }

    /// Returns a number that was never used before.
    pub const fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}
