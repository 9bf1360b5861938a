//! The timed device as pure code: what runs when, with the time as an argument.
//!
//! Each client (a context of a process) has lanes (its streams); a lane's jobs run one after
//! another. How the device is shared:
//!
//! | what | rule |
//! |---|---|
//! | kernels of one context | one at a time: by the stream's priority, then as they became ready |
//! | contexts of several processes | time slices in turn; changing over costs [`DeviceRules::switch`] |
//! | clients of one MPS server | at the same time: see [`rates`] |
//! | copies | on separate engines, which they share evenly, whatever the kernels do |
//!
//! A kernel that has begun is never withdrawn; at the end of a time slice it stops, and continues
//! in the next. All times are nanoseconds of one clock. Cutting an advance into several changes
//! nothing, which is what lets processes drive one device from a shared file.

pub mod rates;
mod snapshot;
mod step;

use std::collections::VecDeque;

use crate::process::ProcessIdentity;

pub use rates::DemandRates;
pub use snapshot::SnapshotError;

/// Clients of one device: more processes than any test starts, and a bound on the file.
pub const CLIENTS_MAX: usize = 128;

/// Stretches that are kept of one job; what a job runs after that many is added to the last.
pub const SPANS_MAX: usize = 64;

/// Work of a job that ends when it is finished, not by itself.
pub const OPEN_ENDED: u64 = u64::MAX;

/// A unit of work is a thousandth of a nanosecond at full speed, so that rates in thousandths leave
/// no remainder.
const UNITS_PER_NS: u64 = 1_000;

/// How contexts alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRules {
    /// Length of a time slice, in nanoseconds; at least 1.
    pub slice: u64,
    /// The cost of a context switch, in nanoseconds.
    pub switch: u64,
}

/// What runs on the device, and what waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSchedule {
    rules: DeviceRules,
    now: u64,
    /// The group that has the device, and since when.
    turn: Option<(ClientGroup, u64)>,
    /// The end of the current context switch.
    changing_until: u64,
    clients: Vec<DeviceClientState>,
    next_client: u64,
}

/// Identifies a client for as long as the device exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The clients that have the device at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientGroup {
    /// One context by itself.
    Alone(ClientId),
    /// The clients of the MPS server with this process id.
    Server(u32),
}

/// A new client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEntry {
    /// Its process: the client ends with it.
    pub process: ProcessIdentity,
    /// The MPS server that it shares, if any.
    pub server: Option<u32>,
    /// Most of the device's SMs that it may use, in thousandths.
    pub cap: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceClientState {
    id: ClientId,
    process: ProcessIdentity,
    group: ClientGroup,
    cap: u32,
    /// How long its kernels have run, in nanoseconds.
    busy: u64,
    lanes: Vec<DeviceLane>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceLane {
    id: u64,
    /// Lower numbers go first, as in CUDA.
    priority: i32,
    jobs: VecDeque<DeviceWork>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceWork {
    order: WorkOrder,
    left: u64,
    began: Option<u64>,
    ended: Option<u64>,
    spans: Vec<(u64, u64)>,
}

/// What runs a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEngine {
    /// The SMs.
    Compute,
    /// A copy engine.
    Copy,
}

/// One job for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkOrder {
    /// The client's own number for it, unique among its jobs.
    pub job: u64,
    /// What runs it.
    pub engine: DeviceEngine,
    /// From when it may run.
    pub ready_at: u64,
    /// How long it takes with all that it needs, in nanoseconds, or [`OPEN_ENDED`].
    pub work: u64,
    /// What it needs.
    pub need: DemandRates,
}

/// A completed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedWork {
    /// The lane that is free now.
    pub lane: u64,
    /// Its number.
    pub job: u64,
    /// When it first ran.
    pub began: u64,
    /// When it was completed.
    pub ended: u64,
    /// When it ran, in at most [`SPANS_MAX`] stretches.
    pub spans: Vec<(u64, u64)>,
}

/// The device has as many clients as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has {CLIENTS_MAX} clients, and takes no more")]
pub struct DeviceFull;

impl DeviceSchedule {
    /// Makes an idle device.
    pub fn new(rules: DeviceRules, now: u64) -> Self {
        let rules = DeviceRules { slice: rules.slice.max(1), ..rules };
        Self { rules, now, turn: None, changing_until: now, clients: Vec::new(), next_client: 1 }
    }

    /// Returns the time up to which it is known what ran.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Returns the group that has the device.
    pub fn turn(&self) -> Option<ClientGroup> {
        self.turn.map(|(group, _)| group)
    }

    /// Adds a client.
    ///
    /// # Errors
    ///
    /// [`DeviceFull`] if there are [`CLIENTS_MAX`] already.
    pub fn enter(&mut self, entry: ClientEntry) -> Result<ClientId, DeviceFull> {
        if self.clients.len() >= CLIENTS_MAX {
            return Err(DeviceFull);
        }
        let id = ClientId(self.next_client);
        self.next_client += 1;
        let group = entry.server.map_or(ClientGroup::Alone(id), ClientGroup::Server);
        let cap = entry.cap.clamp(1, rates::WHOLE);
        let (busy, lanes) = (0, Vec::new());
        self.clients.push(DeviceClientState {
            id,
            process: entry.process,
            group,
            cap,
            busy,
            lanes,
        });
        Ok(id)
    }

    /// Removes a client and all its jobs, as of now.
    pub fn leave(&mut self, client: ClientId) {
        self.clients.retain(|c| c.id != client);
    }

    /// Removes the clients whose processes are not alive by `is_alive`; returns how many.
    pub fn bury(&mut self, is_alive: impl Fn(ProcessIdentity) -> bool) -> usize {
        let before = self.clients.len();
        self.clients.retain(|client| is_alive(client.process));
        before - self.clients.len()
    }

    /// Returns how long kernels of a client have run so far, in nanoseconds.
    pub fn busy(&self, client: ClientId) -> u64 {
        self.clients.iter().find(|c| c.id == client).map_or(0, |c| c.busy)
    }

    /// Returns whether a client exists.
    pub fn knows(&self, client: ClientId) -> bool {
        self.clients.iter().any(|c| c.id == client)
    }

    /// Returns whether a client other than this one has work here.
    pub fn is_shared(&self, client: ClientId) -> bool {
        self.clients.iter().any(|c| c.id != client && c.unended().next().is_some())
    }

    /// Puts a job at the end of a lane, which is made on first use. A job that could have run
    /// earlier than [`Self::now`] runs from now on: what ran is never changed. Jobs of clients
    /// that are gone are dropped.
    pub fn submit(&mut self, client: ClientId, lane: u64, priority: i32, order: WorkOrder) {
        let Some(client) = self.clients.iter_mut().find(|c| c.id == client) else { return };
        let left = match order.work {
            OPEN_ENDED => OPEN_ENDED,
            // A job takes time, or it could neither begin nor end.
            work => work.max(1).saturating_mul(UNITS_PER_NS).min(OPEN_ENDED - 1),
        };
        let job = DeviceWork { order, left, began: None, ended: None, spans: Vec::new() };
        match client.lanes.iter_mut().find(|l| l.id == lane) {
            Some(found) => found.jobs.push_back(job),
            None => {
                client.lanes.push(DeviceLane { id: lane, priority, jobs: VecDeque::from([job]) });
            }
        }
    }

    /// Ends an open-ended job as of now, if it runs.
    pub fn finish(&mut self, client: ClientId, job: u64) {
        let now = self.now;
        let clients = self.clients.iter_mut().filter(|c| c.id == client);
        let jobs = clients.flat_map(|c| &mut c.lanes).flat_map(|l| &mut l.jobs);
        for job in jobs.filter(|j| j.order.job == job && j.began.is_some()) {
            job.left = 0;
            job.ended.get_or_insert(now);
        }
    }

    /// Returns the results of a client's jobs, in the order of their ends.
    pub fn collect(&mut self, client: ClientId) -> Vec<EndedWork> {
        let mut all = Vec::new();
        let Some(client) = self.clients.iter_mut().find(|c| c.id == client) else { return all };
        for lane in &mut client.lanes {
            while let Some(ended) = lane.jobs.front().and_then(|job| job.ended) {
                let Some(job) = lane.jobs.pop_front() else { break };
                let began = job.began.unwrap_or(ended);
                let DeviceWork { order, spans, .. } = job;
                all.push(EndedWork { lane: lane.id, job: order.job, began, ended, spans });
            }
        }
        client.lanes.retain(|lane| !lane.jobs.is_empty());
        all.sort_by_key(|job| (job.ended, job.job));
        all
    }

    /// Lets the time pass until `to`.
    pub fn advance(&mut self, to: u64) {
        while self.now < to {
            self.step(to);
        }
    }

    /// Returns when the first of these jobs of a client will be over if nobody submits anything
    /// more. It is a time before that if it takes more than `steps` changes, and `None` if none of
    /// them ever ends by itself.
    pub fn foresee(&self, client: ClientId, jobs: &[u64], steps: usize) -> Option<u64> {
        let mut ahead = self.clone();
        for _ in 0..steps {
            let own = ahead.clients.iter().find(|c| c.id == client)?;
            let all = own.lanes.iter().flat_map(|lane| &lane.jobs);
            let mut of_interest = all.filter(|job| jobs.contains(&job.order.job)).peekable();
            of_interest.peek()?;
            if let Some(ended) = of_interest.filter_map(|job| job.ended).min() {
                return Some(ended);
            }
            let before = ahead.now;
            ahead.step(u64::MAX);
            if ahead.now == u64::MAX {
                return None;
            }
            assert!(ahead.now > before, "time passes with each step");
        }
        Some(ahead.now)
    }
}

impl DeviceClientState {
    fn unended(&self) -> impl Iterator<Item = &DeviceWork> {
        self.lanes.iter().flat_map(|lane| &lane.jobs).filter(|job| job.ended.is_none())
    }
}

impl DeviceLane {
    /// Returns the next job of the lane.
    fn head(&self) -> Option<&DeviceWork> {
        self.jobs.iter().find(|job| job.ended.is_none())
    }
}
