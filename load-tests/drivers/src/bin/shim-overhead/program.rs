//! The programs under the shim.

use std::ffi::{CStr, c_void};
use std::io::Read as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde_json::json;

use crate::{BLOCK, GRID, PATIENCE};

/// The state of a shim that watches, after the first launch, as its counters have it.
const WATCHED: u64 = 7;

/// The program.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Part {
    /// Makes calls that are passed on.
    Inert,
    /// Launches and allocates, and is watched without a queue.
    Watched,
    /// Joins, and does nothing until its input ends.
    Filler,
    /// Launches as the holder.
    Holder,
    /// Launches as the holder, at the given rate per second.
    Sustained,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Self::Inert => "inert",
            Self::Watched => "watched",
            Self::Filler => "filler",
            Self::Holder => "holder",
            Self::Sustained => "sustained",
        }
    }
}

type Launch =
    unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize) -> i32;
type Flags = unsafe extern "C" fn(*mut u32) -> i32;
type Init = unsafe extern "C" fn(u32) -> i32;
type GetFunction = unsafe extern "C" fn(*mut usize, usize, *const libc::c_char) -> i32;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> i32;
type Free = unsafe extern "C" fn(u64) -> i32;
type Counters = unsafe extern "C" fn(*mut u64, usize) -> usize;

/// One library's functions.
struct Library {
    handle: *mut c_void,
}

impl Library {
    fn open(path: &CStr) -> anyhow::Result<Self> {
        // SAFETY: a text that ends with a zero; the library is ours.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        ensure!(!handle.is_null(), "{path:?} can't be opened");
        Ok(Self { handle })
    }

    /// # Safety
    ///
    /// `F` is the function's type.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> anyhow::Result<F> {
        // SAFETY: an open library, a text that ends with a zero.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        ensure!(!address.is_null(), "{name:?} is not there");
        // SAFETY: the caller's promise.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// What the programs call, all of it through the shim.
struct Cuda {
    launch: Launch,
    flags: Flags,
    allocate: Allocate,
    free: Free,
    counters: Counters,
    function: usize,
}

impl Cuda {
    fn open() -> anyhow::Result<Self> {
        let library = Library::open(c"libcuda.so.1")?;
        // SAFETY: the functions' types, as the driver's header has them; places of ours.
        unsafe {
            ensure!(library.function::<Init>(c"cuInit")?(0) == 0, "no driver");
            let mut function = 0;
            library.function::<GetFunction>(c"cuModuleGetFunction")?(
                &raw mut function,
                1,
                c"k0".as_ptr(),
            );
            Ok(Self {
                launch: library.function(c"cuLaunchKernel")?,
                flags: library.function(c"cuCtxGetFlags")?,
                allocate: library.function(c"cuMemAlloc_v2")?,
                free: library.function(c"cuMemFree_v2")?,
                counters: library.function(c"tessera_kernel_shim_counters")?,
                function,
            })
        }
    }

    /// Returns the same without the shim.
    fn direct(&self) -> anyhow::Result<Self> {
        let path = std::env::var("TESSERA_KERNEL_CUDA")?;
        let driver = Library::open(&std::ffi::CString::new(path)?)?;
        // SAFETY: the functions' types.
        unsafe {
            Ok(Self {
                launch: driver.function(c"cuLaunchKernel")?,
                flags: driver.function(c"cuCtxGetFlags")?,
                allocate: driver.function(c"cuMemAlloc_v2")?,
                free: driver.function(c"cuMemFree_v2")?,
                ..*self
            })
        }
    }

    fn launch(&self) {
        let ([gx, gy, gz], [bx, by, bz]) = (GRID, BLOCK);
        // SAFETY: the function's type; the driver behind it looks at nothing.
        unsafe { (self.launch)(self.function, gx, gy, gz, bx, by, bz, 0, 0, 0, 0) };
    }

    fn counters(&self) -> [u64; 16] {
        let mut numbers = [0; 16];
        // SAFETY: there is space for sixteen.
        unsafe { (self.counters)(numbers.as_mut_ptr(), 16) };
        numbers
    }

    /// Launches until the session exists, and then until it has the role.
    fn join(&self, roles: &[u64]) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.launch();
        while !roles.contains(&self.counters()[1]) {
            ensure!(begun.elapsed() < PATIENCE, "no such role: {:?}", self.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Runs one program and prints what it found.
pub fn run(part: Part, secs: u64, rate: u64) -> anyhow::Result<()> {
    let cuda = Cuda::open()?;
    let found = match part {
        Part::Inert => inert(&cuda)?,
        Part::Watched => watched(&cuda)?,
        Part::Filler => {
            cuda.join(&[2, 4])?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            return Ok(());
        }
        Part::Holder => {
            cuda.join(&[3])?;
            holder(&cuda, &cuda.direct()?)
        }
        Part::Sustained => {
            cuda.join(&[3])?;
            sustained(&cuda, secs, rate)?
        }
    };
    println!("{found}");
    Ok(())
}

/// Nanoseconds a call, the median of many rounds: a preempted round is not the call's.
fn nanos(call: impl Fn()) -> f64 {
    const CALLS: u32 = 20_000;
    let mut rounds: Vec<f64> = (0..201)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            begun.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn inert(cuda: &Cuda) -> anyhow::Result<serde_json::Value> {
    let direct = cuda.direct()?;
    let stub = |cuda: &Cuda| {
        nanos(|| {
            let mut flags = 0;
            // SAFETY: a place of ours.
            unsafe { (cuda.flags)(&raw mut flags) };
            std::hint::black_box(flags);
        })
    };
    let (direct_call, through_stub) = (stub(&direct), stub(cuda));
    let (direct_launch, through_hook) = (nanos(|| direct.launch()), nanos(|| cuda.launch()));
    Ok(json!({
        "stub_ns": through_stub - direct_call,
        "direct_call_ns": direct_call,
        "hook_ns": through_hook - direct_launch,
        "direct_launch_ns": direct_launch,
    }))
}

/// The cost of the watch: of a launch after the first one, and of an allocation with its end.
fn watched(cuda: &Cuda) -> anyhow::Result<serde_json::Value> {
    let direct = cuda.direct()?;
    cuda.launch();
    ensure!(cuda.counters()[0] == WATCHED, "the program is not watched: {:?}", cuda.counters());
    let (direct_launch, through_hook) = (nanos(|| direct.launch()), nanos(|| cuda.launch()));
    let pair = |cuda: &Cuda| {
        nanos(|| {
            let mut address = 0;
            // SAFETY: a place of ours; the driver behind it gives the same address each time.
            unsafe {
                (cuda.allocate)(&raw mut address, 4096);
                (cuda.free)(address);
            }
        })
    };
    let (direct_pair, through_hooks) = (pair(&direct), pair(cuda));
    Ok(json!({
        "launch_ns": through_hook - direct_launch,
        "allocation_and_free_ns": through_hooks - direct_pair,
    }))
}

/// Quantiles of single launches, without what reading the clock takes.
fn quantiles(cuda: &Cuda, launches: usize, pause: Duration) -> serde_json::Value {
    let mut took = Vec::with_capacity(launches);
    let mut clock = Vec::with_capacity(launches);
    for _ in 0..launches {
        let begun = Instant::now();
        cuda.launch();
        took.push(begun.elapsed());
        let begun = Instant::now();
        clock.push(begun.elapsed());
        let until = Instant::now() + pause;
        if pause > Duration::from_micros(200) {
            std::thread::sleep(pause);
        }
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    took.sort_unstable();
    clock.sort_unstable();
    let clock = clock[clock.len() / 2];
    let at = |thousandths: usize| {
        let at = (took.len() - 1) * thousandths / 1_000;
        (took[at].saturating_sub(clock).as_secs_f64() * 1e9).round()
    };
    json!({ "p50_ns": at(500), "p99_ns": at(990), "p999_ns": at(999), "launches": launches })
}

fn holder(cuda: &Cuda, direct: &Cuda) -> serde_json::Value {
    // The first of its kind is named.
    cuda.launch();
    let before = cuda.counters()[15];
    // Launches as fast as a driver accepts them, and rarely, which has to wake the session's
    // thread.
    let (often, seldom) = (Duration::from_micros(5), Duration::from_millis(3));
    let dense = quantiles(cuda, 400_000, often);
    let rare = quantiles(cuda, 1_000, seldom);
    let after = cuda.counters();
    json!({
        "every_5_us": dense,
        "every_3_ms": rare,
        "driver_alone_every_5_us": quantiles(direct, 400_000, often),
        "driver_alone_every_3_ms": quantiles(direct, 1_000, seldom),
        "allocations": after[15] - before,
        "lost": after[9],
    })
}

#[expect(clippy::cast_possible_truncation, reason = "the value is far below 2^32")]
#[expect(clippy::cast_precision_loss, reason = "a figure for people: 52 bits are enough")]
fn sustained(cuda: &Cuda, secs: u64, rate: u64) -> anyhow::Result<serde_json::Value> {
    // The ring's pages are touched once; memory that grows after that is a leak.
    for _ in 0..100_000 {
        cuda.launch();
        std::hint::spin_loop();
        std::thread::yield_now();
    }
    let (before, reported_before) = (rss_bytes()?, cuda.counters()[2]);
    let cpu = cpu_time().context("the clock of this process")?;
    let thread = thread_time().context("the clock of this thread")?;
    let begun = Instant::now();
    let all = secs * rate;
    let mut made = 0;
    let (mut peak, mut next_look) = (before, 0);
    while made < all {
        // Never more than a millisecond's launches behind: what was missed is made up for slowly.
        let due = (begun.elapsed().as_nanos() as u64).saturating_mul(rate) / 1_000_000_000;
        let now = due.min(made + rate / 1_000).min(all);
        (made..now).for_each(|_| cuda.launch());
        made = now;
        if made >= next_look {
            next_look += rate / 2;
            peak = peak.max(rss_bytes()?);
        }
        // Between launches a program computes; here it lets others compute.
        std::thread::yield_now();
    }
    let took = begun.elapsed().as_secs_f64();
    let own = thread_time().context("the clock of this thread")? - thread;
    let others = cpu_time().context("the clock of this process")? - cpu - own;
    std::thread::sleep(Duration::from_millis(200));
    let after = cuda.counters();
    Ok(json!({
        "launches_per_second": all as f64 / took,
        "secs": took,
        "told": after[2] - reported_before,
        "lost": after[9],
        "session_thread_core_percent": others.as_secs_f64() / took * 100.0,
        "rss_growth_bytes": peak.max(rss_bytes()?) - before,
    }))
}

fn rss_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("the second field")?.parse()?;
    Ok(pages * 4096)
}

/// Returns the processor time of this process.
pub fn cpu_time() -> Option<Duration> {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn thread_time() -> Option<Duration> {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place of ours.
    let is_read = unsafe { libc::clock_gettime(which, &raw mut time) } == 0;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|_| is_read)?;
    Some(Duration::new(time.tv_sec.unsigned_abs(), nanos))
}
