//! The driver of this process: its settings, its clock, and its one lock.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tessera_stand_in::cuda::board::nanos;
use tessera_stand_in::cuda::settings::CudaSettings;

use crate::abi::{CallResult, CudaCode};
use crate::call_faults::CallFaults;
use crate::clock::{monotonic_nanos, sharpen_timer};
use crate::thread_state::{current_id, run_host_function};
use crate::trace::CallTrace;
use crate::world::DriverState;

/// Longest sleep while work is under way: another process may have died meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long the executor stays awake after the last work, in nanoseconds.
const LINGER: u64 = 1_000_000_000;

/// With virtual time: how long threads that are elsewhere may hold it up.
const PATIENCE: Duration = Duration::from_millis(20);

/// The driver of a process.
pub struct CudaDriver {
    /// The settings of the environment.
    pub settings: CudaSettings,
    /// Why it can't be used, if it can't.
    pub broken: Option<String>,
    /// The trace of calls and operations.
    pub trace: Option<Arc<CallTrace>>,
    /// The faults of this process.
    pub faults: CallFaults,
    world: Mutex<DriverState>,
    /// Notified when something may have changed for threads that wait.
    changed: Arc<Condvar>,
    virtual_now: AtomicU64,
    threads: Mutex<DriverThreads>,
}

/// The threads that might advance virtual time.
#[derive(Default)]
struct DriverThreads {
    known: usize,
    waiting: usize,
    /// Counts the moves of virtual time: a thread that waited has to look again.
    moves: u64,
}

/// The driver of this process.
pub fn driver() -> &'static CudaDriver {
    static DRIVER: OnceLock<CudaDriver> = OnceLock::new();
    DRIVER.get_or_init(CudaDriver::new)
}

impl CudaDriver {
    fn new() -> Self {
        let (settings, mut broken) = match CudaSettings::from_env() {
            Ok(settings) => (settings, None),
            Err(error) => {
                let unset = CudaSettings::from_variables(|_| None);
                (unset.expect("what is unset is right"), Some(error.to_string()))
            }
        };
        let faults = CallFaults::parse(&settings.faults).unwrap_or_else(|error| {
            broken = Some(error.to_string());
            CallFaults::default()
        });
        let trace = settings.trace.as_deref().and_then(|folder| match CallTrace::open(folder) {
            Ok(trace) => Some(Arc::new(trace)),
            Err(error) => {
                broken = Some(format!("can't write a trace into {}: {error}", folder.display()));
                None
            }
        });
        let changed = Arc::new(Condvar::new());
        let shared = (trace.clone(), Arc::clone(&changed));
        let world = Mutex::new(DriverState::new(&settings, shared.0, shared.1, execute));
        // Far from 0, so that nothing is before the beginning.
        let virtual_now = AtomicU64::new(1_000_000_000);
        let threads = Mutex::default();
        Self { settings, broken, trace, faults, world, changed, virtual_now, threads }
    }

    /// Locks the world.
    pub fn world(&self) -> MutexGuard<'_, DriverState> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device's time in nanoseconds: the machine's monotonic clock, or virtual time.
    pub fn now(&self) -> u64 {
        if self.settings.virtual_time {
            self.virtual_now.load(Ordering::Acquire)
        } else {
            monotonic_nanos()
        }
    }

    /// Records an error in the current context.
    pub fn poison_current(&self, code: CudaCode) {
        if let Some(id) = current_id()
            && let Some(context) = self.world().contexts.get_mut(&id)
        {
            context.sticky.get_or_insert(code);
        }
    }

    /// Leaves the MPS server, when the process ends in order.
    pub fn part(&self) {
        if let Ok(mut world) = self.world.try_lock()
            && let Some(mps) = world.mps.take()
        {
            mps.client.close();
        }
    }

    /// Keeps the calling thread busy until a launch has taken as long as a driver's.
    pub fn spend_launch_cost(&self, began: u64) {
        self.spend(began, self.settings.launch_cost);
    }

    /// Keeps the calling thread busy until so much time has passed since the call began.
    pub fn spend(&self, began: u64, cost: Duration) {
        let cost = nanos(cost);
        if self.settings.virtual_time {
            self.virtual_now.fetch_add(cost, Ordering::AcqRel);
            return;
        }
        // A driver's launch is work, not a wait: the processor is busy with it.
        while monotonic_nanos().saturating_sub(began) < cost {
            std::hint::spin_loop();
        }
    }

    /// Waits until `done` has an answer, and lets the device's work continue in the meantime.
    pub fn wait<T>(&self, mut done: impl FnMut(&mut DriverState) -> Option<T>) -> T {
        let mut world = self.world();
        loop {
            world.pump(self.now());
            if let Some(answer) = done(&mut world) {
                return answer;
            }
            world = self.sleep(world);
        }
    }

    /// Waits until these positions in lanes are completed.
    pub fn wait_for(&self, places: &[(u64, u64)]) {
        if places.is_empty() {
            return;
        }
        self.world().waiting_for.extend(places);
        self.wait(|world| places.iter().all(|place| world.is_settled(*place)).then_some(()));
        let mut world = self.world();
        for place in places {
            if let Some(own) = world.waiting_for.iter().position(|waited| waited == place) {
                world.waiting_for.swap_remove(own);
            }
        }
    }

    /// Returns the result of a context's work, after it was waited for.
    pub fn verdict(&self, context: u64) -> CallResult {
        let mut world = self.world();
        world.check_server(self.now());
        world.context(context)?.sticky.map_or(Ok(()), Err)
    }

    /// Sleeps until the device has something new, or a thread notifies it.
    fn sleep<'w>(&self, mut world: MutexGuard<'w, DriverState>) -> MutexGuard<'w, DriverState> {
        if self.settings.virtual_time {
            return self.sleep_virtually(world);
        }
        sharpen_timer();
        let now = self.now();
        let until = world.next_event(now).unwrap_or(u64::MAX);
        let time = Duration::from_nanos(until.saturating_sub(now)).min(LOOK_EVERY);
        world.waiters += 1;
        let slept = self.changed.wait_timeout(world, time);
        let (mut world, _) = slept.unwrap_or_else(PoisonError::into_inner);
        world.waiters -= 1;
        world
    }

    fn sleep_virtually<'w>(
        &self,
        mut world: MutexGuard<'w, DriverState>,
    ) -> MutexGuard<'w, DriverState> {
        let moves = {
            let mut threads = self.threads();
            threads.waiting += 1;
            if threads.waiting >= threads.known && world.is_quiet() {
                return self.move_time(world, threads);
            }
            threads.moves
        };
        let slept = self.changed.wait_timeout(world, PATIENCE);
        let (woken, timeout) = slept.unwrap_or_else(PoisonError::into_inner);
        world = woken;
        let mut threads = self.threads();
        if threads.moves != moves {
            return world;
        }
        if timeout.timed_out() && world.is_quiet() {
            // The others are not in the driver: they wait for this thread, or sleep for real.
            return self.move_time(world, threads);
        }
        threads.waiting = threads.waiting.saturating_sub(1);
        world
    }

    fn move_time<'w>(
        &self,
        world: MutexGuard<'w, DriverState>,
        mut threads: MutexGuard<'_, DriverThreads>,
    ) -> MutexGuard<'w, DriverState> {
        if let Some(next) = world.next_event(self.now()) {
            self.virtual_now.fetch_max(next, Ordering::AcqRel);
        }
        threads.waiting = 0;
        threads.moves += 1;
        self.changed.notify_all();
        world
    }

    /// Lets virtual time pass as if the program were busy, in nanoseconds.
    pub fn pass_virtual_time(&self, time: u64) {
        let end = self.now().saturating_add(time);
        self.world().alarms.push(end);
        self.wait(|_| (self.now() >= end).then_some(()));
        let mut world = self.world();
        if let Some(own) = world.alarms.iter().position(|alarm| *alarm == end) {
            world.alarms.swap_remove(own);
        }
    }

    fn threads(&self) -> MutexGuard<'_, DriverThreads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the calling thread among those for which virtual time waits.
    pub fn know_thread(&self) {
        struct KnownThread(Cell<bool>);
        impl Drop for KnownThread {
            fn drop(&mut self) {
                if self.0.get() {
                    let mut threads = driver().threads();
                    threads.known = threads.known.saturating_sub(1);
                }
            }
        }
        thread_local! {
            static KNOWN: KnownThread = const { KnownThread(Cell::new(false)) };
        }
        if self.settings.virtual_time {
            let news = KNOWN.try_with(|known| !known.0.replace(true));
            self.threads().known += usize::from(news.unwrap_or(false));
        }
    }
}

/// The executor's thread, until the process ends.
///
/// It moves work on that no call of the program moves on, and runs host functions.
fn execute() {
    sharpen_timer();
    let driver = driver();
    let mut world = driver.world();
    let mut worked_at = monotonic_nanos();
    loop {
        let now = driver.now();
        world.pump(now);
        if let Some(call) = world.hosts.pop_front() {
            world.host_runs = true;
            drop(world);
            run_host_function(|| call.work.run());
            world = driver.world();
            world.host_runs = false;
            let end = driver.now();
            world.complete_host(&call, end);
            driver.changed.notify_all();
            continue;
        }
        world.report_load(now);
        world.check_server(now);
        let real_now = monotonic_nanos();
        if world.has_work() {
            worked_at = real_now;
        }
        let slept = if real_now.saturating_sub(worked_at) > LINGER {
            world.executor_idle = true;
            driver.changed.wait(world).unwrap_or_else(PoisonError::into_inner)
        } else {
            let event = (world.needs_executor() && !driver.settings.virtual_time)
                .then(|| world.next_event(now))
                .flatten();
            let most = nanos(LOOK_EVERY);
            let sleep = event.map_or(most, |at| at.saturating_sub(now).min(most));
            let time = Duration::from_nanos(sleep.max(1));
            let slept = driver.changed.wait_timeout(world, time);
            slept.unwrap_or_else(PoisonError::into_inner).0
        };
        world = slept;
    }
}
