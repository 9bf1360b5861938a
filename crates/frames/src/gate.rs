//! The gate page: memory that the sessions of one slice share. With it a holder's launch ends grants
//! without a message (FIKIT's early stop at the speed of memory).
//!
//! It has [`GATE_BYTES`] and no name. The queue's process serves it on a Unix socket. Both sides map it and access it
//! as a [`GatePage`]. Every process that may write the page can write any numbers. They can only shorten
//! or prolong a wait within its bound.

use tessera_kernel_queue::{Epoch, GateState, KernelIndex, LastLaunch, Nanos};

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Length of the memory in bytes: one page, the least that can be mapped.
pub const GATE_BYTES: usize = 4096;

/// The first eight bytes: "TSRGATE" and the version of the layout, 1.
pub const GATE_MAGIC: u64 = u64::from_le_bytes(*b"TSRGATE\x01");

/// Longest interval between heartbeats of the queue while a filler waits or has a grant.
pub const HEARTBEAT_EVERY: Nanos = Nanos::from_millis(2);

/// Longest interval between heartbeats of the queue without requests and grants.
pub const IDLE_HEARTBEAT_EVERY: Nanos = Nanos::from_millis(100);

/// A waiting filler that sees no new heartbeat and receives no frame for so long considers the queue
/// dead. A queue whose process serves the page is not dead. The span is
/// ten heartbeats, and the bound on a wait for a dead queue in docs/reliability.md.
pub const QUEUE_DEAD_AFTER: Nanos = Nanos::from_millis(20);

/// A queue that is silent for so long hangs, even if its process serves the page. While
/// it is silent for less, that process is alive and only waits for a processor.
pub const QUEUE_HANGS_AFTER: Nanos = Nanos::from_millis(1_000);

/// A number on its own cache line, so that its writers don't slow down readers of the others.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct GateLine(AtomicU64);

/// What a holder launched last.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct LastLine {
    kernel: AtomicU64,
    at: AtomicU64,
}

/// The wait of a session for a launch of a holder.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct WaitLine {
    /// The launch that is awaited; 0 for none.
    launches: AtomicU64,
    /// Rises when it was made. Threads sleep on its address (`futex`).
    bell: AtomicU32,
}

/// When holders report.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct ReportLine {
    /// See [`ReportPace`].
    pace: AtomicU64,
    /// The launch whose report is awaited; 0 for none.
    launches: AtomicU64,
}

/// How soon a holder reports its launches and the ends of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportPace {
    /// Launches a moment later, and ends at once.
    Prompt,
    /// Both a moment later.
    Soon,
    /// Both a few milliseconds later, or when the named launch was made.
    Named,
}

/// Who awaits a launch of a holder. Each is reported to one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchAwaited {
    /// A session waits for it on the page: the bell has to ring.
    pub by_filler: bool,
    /// The queue needs its report at once.
    pub by_queue: bool,
}

/// The page. Any bytes are a valid page.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct GatePage {
    magic: GateLine,
    epoch: GateLine,
    launches: GateLine,
    heartbeat: GateLine,
    // Pages of agents before version 5 of the protocol have zeros here, and nobody uses them.
    last: LastLine,
    wait: WaitLine,
    reports: ReportLine,
}

const _: () = assert!(size_of::<GatePage>() == GATE_BYTES);

impl GatePage {
    /// Returns whether the page is open and has this layout.
    pub fn is_sound(&self) -> bool {
        self.magic.0.load(Ordering::Acquire) == GATE_MAGIC
    }

    /// Opens the page. Only the queue calls this, once, after it has set the first epoch.
    pub fn open(&self) {
        self.magic.0.store(GATE_MAGIC, Ordering::Release);
    }

    /// Closes the page: from now on it is not used.
    pub fn close(&self) {
        self.magic.0.store(0, Ordering::Release);
    }

    /// Returns whether the page is closed, or not open yet. A page of another layout is neither.
    pub fn is_closed(&self) -> bool {
        self.magic.0.load(Ordering::Acquire) == 0
    }

    /// Returns the state that grants are checked against before each launch.
    pub fn gate(&self) -> GateState {
        // The order of these two loads does not matter, since each number alone ends grants.
        let launches = self.launches.0.load(Ordering::Acquire);
        GateState { epoch: Epoch::new(self.epoch.0.load(Ordering::Acquire)), launches }
    }

    /// Counts a launch of a holder before it is made. Returns the `count` to report.
    pub fn add_launch(&self, kernel: KernelIndex, at: Nanos) -> u64 {
        self.last.kernel.store(kernel.get().into(), Ordering::Relaxed);
        self.last.at.store(at.get(), Ordering::Relaxed);
        // A process that sees the count sees what was launched.
        self.launches.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// Returns the last launch of a holder. While another one is being made, it may be a mixture of both. Then the count
    /// is different a moment later, and ends grants.
    pub fn last_launch(&self) -> LastLaunch {
        let count = self.launches.0.load(Ordering::Acquire);
        let kernel = u16::try_from(self.last.kernel.load(Ordering::Acquire));
        let kernel = kernel.map_or(KernelIndex::UNKNOWN, KernelIndex::new);
        LastLaunch { count, kernel, at: Nanos::new(self.last.at.load(Ordering::Acquire)) }
    }

    /// Begins to wait for a launch of a holder. Returns the bell's number: the caller checks [`Self::gate`], and sleeps
    /// until the bell has another one. The last one who calls this is woken in time, and others by their timeouts.
    pub fn await_launch(&self, launches: u64) -> u32 {
        let bell = self.wait.bell.load(Ordering::Acquire);
        self.wait.launches.store(launches, Ordering::Release);
        // Either the holder's look below sees this, or the caller's look sees its launch.
        fence(Ordering::SeqCst);
        bell
    }

    /// Returns who awaits a launch that was made. A holder calls this after its own.
    pub fn take_awaited(&self, count: u64) -> LaunchAwaited {
        // Either this sees what the other side awaits, or the other side's look at the count sees the launch.
        fence(Ordering::SeqCst);
        LaunchAwaited {
            by_filler: take(&self.wait.launches, count),
            by_queue: take(&self.reports.launches, count),
        }
    }

    /// Changes the bell's number, and returns the bell to wake those that sleep on it.
    pub fn ring(&self) -> &AtomicU32 {
        self.wait.bell.fetch_add(1, Ordering::AcqRel);
        &self.wait.bell
    }

    /// Returns the bell, to sleep on it.
    pub const fn bell(&self) -> &AtomicU32 {
        &self.wait.bell
    }

    /// Sets how soon holders report, and the launch whose report is awaited; 0 for none. Only the queue calls this.
    ///
    /// A launch that was made before is not noticed: the caller looks at [`Self::gate`] afterwards.
    pub fn set_reports(&self, pace: ReportPace, launches: u64) {
        self.reports.launches.store(launches, Ordering::Release);
        let pace = match pace {
            ReportPace::Prompt => 0,
            // Shims that know no named launches report soon then.
            ReportPace::Soon => 1,
            ReportPace::Named => 2,
        };
        self.reports.pace.store(pace, Ordering::Release);
        // Either the holder's look below sees this, or the caller's look sees its launch.
        fence(Ordering::SeqCst);
    }

    /// Returns how soon a holder reports.
    pub fn report_pace(&self) -> ReportPace {
        match self.reports.pace.load(Ordering::Acquire) {
            0 => ReportPace::Prompt,
            2 => ReportPace::Named,
            _ => ReportPace::Soon,
        }
    }

    /// Sets the epoch. Only the queue calls this.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.0.store(epoch.get(), Ordering::Release);
    }

    /// Sets the heartbeat to `now`, on `CLOCK_MONOTONIC`. Only the queue calls this.
    pub fn set_heartbeat(&self, now: Nanos) {
        self.heartbeat.0.store(now.get(), Ordering::Release);
    }

    /// Returns the time of the last heartbeat, on `CLOCK_MONOTONIC`.
    pub fn heartbeat(&self) -> Nanos {
        Nanos::new(self.heartbeat.0.load(Ordering::Acquire))
    }
}

/// Clears an awaited launch if it was made. Returns whether this caller, and no other, did.
fn take(awaited: &AtomicU64, count: u64) -> bool {
    let launches = awaited.load(Ordering::Acquire);
    let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    (1..=count).contains(&launches) && awaited.compare_exchange(launches, 0, order, failed).is_ok()
}

/// Returns whether a queue is dead whose last frame, or the begin of the wait, was at `last_sign` and whose page
/// showed `heartbeat`.
///
/// A queue whose process serves the page lives, and is only not scheduled. One that hangs is
/// noticed after [`QUEUE_HANGS_AFTER`]. `now` must be read after the heartbeat, which would otherwise lie in the
/// future.
pub fn is_queue_dead(
    last_sign: Nanos,
    heartbeat: Nanos,
    now: Nanos,
    is_served: impl FnOnce() -> bool,
) -> bool {
    // The page may hold any number: a heartbeat in the future is ignored.
    let heartbeat = if heartbeat > now { Nanos::ZERO } else { heartbeat };
    let silent = now.minus(last_sign.max(heartbeat));
    silent >= QUEUE_HANGS_AFTER || (silent >= QUEUE_DEAD_AFTER && !is_served())
}
