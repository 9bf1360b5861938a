//! Lanes: what streams have to do, in order.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use tessera_stand_in::cuda::schedule::{DemandRates, DeviceEngine};

use super::DriverState;
use super::pump::AHEAD;
use crate::abi::{CallResult, CudaCode, H, HostFunction, StreamCallback};
use crate::memory::CudaMemory;

/// Operations of one stream that may be pending; the next call waits (the driver's queue).
pub const DEPTH: u64 = 1_024;

/// The stream whose handle is 1.
const LEGACY: usize = 1;
/// The stream whose handle is 2.
const PER_THREAD: usize = 2;

/// One stream, or one of a context's default streams.
pub struct OperationLane {
    pub context: u64,
    pub kind: LaneKind,
    pub flags: u32,
    pub priority: i32,
    /// The capture of which it is a part.
    pub capture: Option<u64>,
    /// Destroyed by the program; it goes when its work is done.
    pub gone: bool,
    pub queue: VecDeque<LaneOperation>,
    /// Number of the latest operation.
    pub issued: u64,
    /// The number up to which all operations are completed.
    pub completed: u64,
    /// When the latest of them was.
    pub last_end: u64,
}

/// How a lane relates to the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneKind {
    /// It is that stream.
    Legacy,
    /// The default stream of one thread.
    PerThread,
    /// Waits for it, and is waited for.
    Blocking,
    /// Is independent of it.
    NonBlocking,
}

/// One operation.
pub struct LaneOperation {
    pub seq: u64,
    pub queued_at: u64,
    /// Positions in other lanes that must be completed.
    pub deps: Vec<(u64, u64)>,
    pub what: OperationKind,
    /// Its number with the device.
    pub job: Option<u64>,
    /// Handed to the executor.
    pub handed: bool,
}

/// What an operation does.
pub enum OperationKind {
    Job(JobOp),
    Record {
        event: H,
        generation: u64,
    },
    Host {
        function: HostWork,
    },
    Free {
        address: u64,
    },
    /// Only its dependencies count.
    Nothing,
}

/// A change in memory.
pub type MemoryEffect = Box<dyn FnOnce(&CudaMemory) -> CallResult + Send>;

/// Work for the device.
pub struct JobOp {
    pub engine: DeviceEngine,
    /// In nanoseconds.
    pub work: u64,
    pub need: DemandRates,
    pub kind: &'static str,
    pub name: Arc<str>,
    /// What changes in memory when it is completed.
    pub effect: Option<MemoryEffect>,
    /// It runs until this word is at least this value.
    pub until: Option<(u64, u64)>,
}

/// A function of the program.
#[derive(Clone, Copy)]
pub enum HostWork {
    Function(HostFunction, *mut c_void),
    Callback { function: StreamCallback, stream: H, data: *mut c_void },
}

/// A host function that is due.
pub struct HostCall {
    pub lane: u64,
    pub seq: u64,
    pub work: HostWork,
}

pub struct CudaEvent {
    pub context: u64,
    pub flags: u32,
    /// Counts its records: only the latest counts.
    pub generation: u64,
    /// Where it was last recorded.
    pub place: Option<(u64, u64)>,
    /// When that was over.
    pub done: Option<u64>,
    /// The capture in which it was last recorded, and the nodes that it stands for.
    pub captured: Option<(u64, Vec<usize>)>,
}

impl DriverState {
    /// Adds a lane to a context.
    pub fn add_lane(&mut self, context: u64, kind: LaneKind, flags: u32, priority: i32) -> u64 {
        let id = self.number();
        self.lanes.insert(
            id,
            OperationLane {
                context,
                kind,
                flags,
                priority,
                capture: None,
                gone: false,
                queue: VecDeque::new(),
                issued: 0,
                completed: 0,
                last_end: 0,
            },
        );
        id
    }

    /// Finds the lane that a stream handle means to this thread.
    pub fn lane_of(&mut self, stream: H, per_thread: bool) -> CallResult<u64> {
        match stream.addr() {
            0 if per_thread => self.thread_lane(),
            0 | LEGACY => Ok(self.context(self.current()?)?.legacy),
            PER_THREAD => self.thread_lane(),
            _ => {
                self.current()?;
                let lane = *self.streams.get(stream)?;
                let context = self.context(self.lanes[&lane].context)?;
                context.sticky.map_or(Ok(lane), Err)
            }
        }
    }

    fn thread_lane(&mut self) -> CallResult<u64> {
        let context = self.current()?;
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        if let Some(lane) = self.context(context)?.per_thread.get(&thread) {
            return Ok(*lane);
        }
        let lane = self.add_lane(context, LaneKind::PerThread, 0, 0);
        if let Some(context) = self.contexts.get_mut(&context) {
            context.per_thread.insert(thread, lane);
        }
        Ok(lane)
    }

    /// Finds a lane that exists.
    pub fn lane(&mut self, id: u64) -> CallResult<&mut OperationLane> {
        self.lanes.get_mut(&id).ok_or(CudaCode::INVALID_HANDLE)
    }

    /// Returns whether a lane takes another operation.
    pub fn has_space(&self, lane: u64) -> bool {
        self.lanes.get(&lane).is_none_or(|lane| lane.issued - lane.completed < DEPTH)
    }

    /// Puts an operation at the end of a lane; returns its number there.
    pub fn enqueue(
        &mut self,
        id: u64,
        deps: Vec<(u64, u64)>,
        what: OperationKind,
        now: u64,
    ) -> u64 {
        let mut deps = deps;
        self.add_implicit(id, &mut deps);
        let starts_something = matches!(what, OperationKind::Host { .. }) || !deps.is_empty();
        let Some(lane) = self.lanes.get_mut(&id) else { return 0 };
        lane.issued += 1;
        let seq = lane.issued;
        // The executor has to be notified of what no call of the program would move on.
        let notify = self.executor_idle || starts_something || lane.queue.len() == AHEAD;
        lane.queue.push_back(LaneOperation {
            seq,
            queued_at: now,
            deps,
            what,
            job: None,
            handed: false,
        });
        if notify {
            self.executor_idle = false;
            self.changed.notify_all();
        }
        self.start_executor();
        seq
    }

    /// The legacy stream waits for all blocking streams, and they for it.
    fn add_implicit(&self, id: u64, deps: &mut Vec<(u64, u64)>) {
        let Some(own) = self.lanes.get(&id) else { return };
        let pending = |lane: &OperationLane| lane.issued > lane.completed;
        match own.kind {
            LaneKind::NonBlocking => {}
            LaneKind::Legacy => deps.extend(
                self.lanes
                    .iter()
                    .filter(|(other, lane)| {
                        **other != id
                            && lane.context == own.context
                            && matches!(lane.kind, LaneKind::Blocking | LaneKind::PerThread)
                            && pending(lane)
                    })
                    .map(|(other, lane)| (*other, lane.issued)),
            ),
            LaneKind::Blocking | LaneKind::PerThread => {
                let legacy = self.contexts.get(&own.context).map(|context| context.legacy);
                let legacy = legacy.and_then(|legacy| Some((legacy, self.lanes.get(&legacy)?)));
                deps.extend(
                    legacy
                        .filter(|(_, lane)| pending(lane))
                        .map(|(legacy, lane)| (legacy, lane.issued)),
                );
            }
        }
    }

    /// Returns whether a position in a lane is completed; this includes lanes that no longer exist.
    pub fn is_over(&self, (lane, seq): (u64, u64)) -> bool {
        self.lanes.get(&lane).is_none_or(|lane| lane.completed >= seq)
    }

    /// Returns whether a wait for a position ends: it is completed, or its context is broken.
    pub fn is_settled(&self, place: (u64, u64)) -> bool {
        let context = self.lanes.get(&place.0).and_then(|lane| self.contexts.get(&lane.context));
        self.is_over(place) || context.is_none_or(|context| context.sticky.is_some())
    }

    /// Returns where the lanes of a context end: waiting for all of it is waiting for these.
    pub fn ends_of(&self, context: u64) -> Vec<(u64, u64)> {
        let lanes = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.context == context && lane.issued > lane.completed);
        lanes.map(|(id, lane)| (*id, lane.issued)).collect()
    }
}

impl HostWork {
    /// Runs it on the calling thread.
    pub fn run(self) {
        // SAFETY: the program's own function with the argument that it gave for it.
        match self {
            Self::Function(function, data) => unsafe { function(data) },
            Self::Callback { function, stream, data } => unsafe {
                function(stream, CudaCode::SUCCESS.0, data);
            },
        }
    }
}
