//! All that the driver knows in this process: one lock holds it.

mod capture;
mod contexts;
mod lanes;
mod modules;
mod pump;

use std::collections::{BTreeMap, VecDeque};

use tessera_sim::client::Client as Claim;
use tessera_sim::cuda::board::Board;
use tessera_sim::cuda::duration::Chance;
use tessera_sim::cuda::settings::Settings;
use tessera_sim::cuda::silicon::{ClientId, Rules};
use tessera_sim::cuda::visible::Visible;
use tessera_sim::mps::client::Client as MpsClient;
use tessera_sim::node::Node;

use crate::abi::{Code, H, Outcome};
use crate::memory::Memory;
use crate::slab::Slab;

pub use capture::{Capture, Graph, GraphExec, Node as GraphNode, Put};
pub use contexts::{context_handle, context_id, devices_of_process, mps_code};
pub use lanes::{Effect, Event, HostCall, HostWork, JobOp, Kind as LaneKind, Lane, What};
pub use modules::{Function, Library, LibraryKernel, Module};
pub use pump::AHEAD;

/// All that the driver knows.
pub struct World {
    pub node: Option<Node>,
    pub devices: Vec<Device>,
    pub mps: Option<Mps>,
    pub contexts: BTreeMap<u64, Context>,
    pub modules: Slab<Module>,
    pub functions: Slab<Function>,
    pub libraries: Slab<Library>,
    pub kernels: Slab<LibraryKernel>,
    /// Streams that programs made, by their lanes.
    pub streams: Slab<u64>,
    pub events: Slab<Event>,
    pub graphs: Slab<Graph>,
    pub nodes: Slab<GraphNode>,
    pub execs: Slab<GraphExec>,
    pub captures: BTreeMap<u64, Capture>,
    /// What `cuStreamGetCaptureInfo` points to.
    pub lent: Vec<H>,
    pub lanes: BTreeMap<u64, Lane>,
    pub memory: Memory,
    pub chance: Chance,
    /// Host functions whose turn it is, and whether one runs.
    pub hosts: VecDeque<HostCall>,
    pub host_runs: bool,
    /// What threads wait for: places in lanes.
    pub waiting_for: Vec<(u64, u64)>,
    /// Threads that wait.
    pub waiters: usize,
    /// Moments of virtual time for which threads wait.
    pub alarms: Vec<u64>,
    /// Whether the executor sleeps until it is told of work.
    pub executor_idle: bool,
    pub executor_runs: bool,
    launch_to_start: u64,
    context_bytes: u64,
    rules: Rules,
    virtual_time: bool,
    next_number: u64,
}

/// A device that the process sees.
pub struct Device {
    pub visible: Visible,
    pub board: Option<Board>,
    /// Its primary context, if it is active, and how often it was retained.
    pub primary: Option<(u64, u32)>,
    pub primary_flags: u32,
}

/// The MPS server of which the process is a client.
pub struct Mps {
    pub client: MpsClient,
    /// Share of the SMs that it may use, in thousandths.
    pub cap: u32,
    pub asked_at: u64,
}

/// A context.
pub struct Context {
    pub device: usize,
    pub flags: u32,
    /// The error that stays until the context is destroyed.
    pub sticky: Option<Code>,
    pub client: ClientId,
    pub claim: Claim,
    pub legacy: u64,
    pub per_thread: BTreeMap<i32, u64>,
    /// Jobs with the device.
    pub pushed: usize,
    /// When the load was last told, how busy it was by then, and what was told.
    pub load: (u64, u64, u8),
}

// SAFETY: the pointers in here are handles, which are numbers, and functions and arguments of
// the program, which it lets any thread use.
unsafe impl Send for World {}

impl World {
    pub fn new(settings: &Settings) -> Self {
        Self {
            node: None,
            devices: Vec::new(),
            mps: None,
            contexts: BTreeMap::new(),
            modules: Slab::new(0x5c02),
            functions: Slab::new(0x5c03),
            libraries: Slab::new(0x5c04),
            kernels: Slab::new(0x5c05),
            streams: Slab::new(0x5c06),
            events: Slab::new(0x5c07),
            graphs: Slab::new(0x5c08),
            nodes: Slab::new(0x5c09),
            execs: Slab::new(0x5c0a),
            captures: BTreeMap::new(),
            lent: Vec::new(),
            lanes: BTreeMap::new(),
            memory: Memory::default(),
            chance: Chance::new(settings.seed),
            hosts: VecDeque::new(),
            host_runs: false,
            waiting_for: Vec::new(),
            waiters: 0,
            alarms: Vec::new(),
            executor_idle: false,
            executor_runs: false,
            launch_to_start: settings.launch_to_start,
            context_bytes: settings.context_bytes,
            rules: settings.rules,
            virtual_time: settings.virtual_time,
            next_number: 1,
        }
    }

    /// Finds a device by its ordinal.
    pub fn device(&self, ordinal: i32) -> Outcome<&Device> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.devices.get(index)).ok_or(Code::INVALID_DEVICE)
    }

    /// Finds a device by its ordinal.
    pub fn device_mut(&mut self, ordinal: i32) -> Outcome<&mut Device> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.devices.get_mut(index)).ok_or(Code::INVALID_DEVICE)
    }

    /// Returns a number that was never handed out before.
    pub const fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}
