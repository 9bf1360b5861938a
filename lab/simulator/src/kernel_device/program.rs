//! What one program does: a task of launches, run again and again.

use tessera_kernel_queue::{Dims, KernelId, Nanos};

use tessera_predict::random::SeededRng;

/// What a launch call costs the host, in nanoseconds.
pub const LAUNCH_NS: u64 = 5_000;

/// One launch of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStep {
    /// Which kernel, counted from zero.
    pub kernel: u16,
    /// How long it runs.
    pub took_ns: u64,
    /// How long the device is idle after it, if the program is alone.
    pub gap_ns: u64,
    /// Whether the host waits for the kernel's end before it goes on.
    pub waits_for_device: bool,
    /// For a host that does not wait: from this launch to the kernel's end when all is nominal.
    pub host_ns: u64,
}

/// A program as a series of kernels and gaps.
#[derive(Clone, Debug)]
pub struct SimulatedProgram {
    /// What it is called.
    pub name: &'static str,
    /// The launches of one task.
    pub steps: Vec<ProgramStep>,
}

/// How much times vary from one task to the next: standard deviations in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeNoise {
    /// Of kernel times.
    pub kernels: u64,
    /// Seed of the variation of gaps, which is apart from that of kernels.
    pub gaps: u64,
}

/// When tasks begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskArrivals {
    /// Each as soon as the one before has ended.
    Continuous,
    /// One in each period, or when the one before has ended, if that is later.
    Every(Nanos),
}

impl SimulatedProgram {
    /// Takes a task, and computes how long hosts that do not wait are busy.
    pub fn new(name: &'static str, mut steps: Vec<ProgramStep>) -> Self {
        let (mut host, mut device) = (0_u64, 0_u64);
        for step in &mut steps {
            device = device.max(host) + step.took_ns;
            step.host_ns = device - host;
            host = if step.gap_ns > 0 { device + step.gap_ns } else { host + LAUNCH_NS };
        }
        Self { name, steps }
    }

    /// Returns what the driver would call a kernel.
    ///
    /// # Panics
    ///
    /// Never: the names are short and not empty.
    pub fn kernel_id(&self, kernel: u16) -> KernelId {
        let grid = Dims([u32::from(kernel) + 1, 1, 1]);
        KernelId::new(format!("{}_{kernel}", self.name), grid, Dims([256, 1, 1]))
            .expect("the name is short and not empty")
    }

    /// Returns how many different kernels there may be.
    pub fn kernels(&self) -> u16 {
        self.steps.iter().map(|step| step.kernel + 1).max().unwrap_or(0)
    }
}

/// A launch with its times in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLaunch {
    /// Its number, counted from zero.
    pub number: u64,
    /// The index of the kernel in its program.
    pub kernel: u16,
    /// How long it runs.
    pub took: Nanos,
    /// What the host does next.
    pub next: AfterLaunch,
    /// Whether it is the last of its task.
    pub is_last: bool,
}

/// What the host does after a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLaunch {
    /// Waits for the kernel's end, then works for this long.
    AfterDevice(Nanos),
    /// Works for this long, whatever the device does.
    After(Nanos),
}

/// A running program, which returns one launch after another.
///
/// The times are drawn in the order of launches, so they are the same whichever programs share the device.
#[derive(Clone, Debug)]
pub struct ProgramCourse {
    program: SimulatedProgram,
    rng: SeededRng,
    noise: TimeNoise,
    at: usize,
    launches: u64,
}

impl ProgramCourse {
    /// Begins a program.
    pub fn new(program: SimulatedProgram, seed: u64, noise: TimeNoise) -> Self {
        let rng = SeededRng::named(seed, program.name);
        Self { program, rng, noise, at: 0, launches: 0 }
    }

    /// Returns the next launch.
    pub fn launch(&mut self) -> KernelLaunch {
        let step = self.program.steps[self.at];
        self.at = (self.at + 1) % self.program.steps.len();
        let took = Nanos::new(self.rng.spread(step.took_ns, self.noise.kernels));
        let gap = Nanos::new(self.rng.spread(step.gap_ns, self.noise.gaps));
        let next = if step.waits_for_device && (step.gap_ns > 0 || self.at == 0) {
            AfterLaunch::AfterDevice(gap)
        } else if step.gap_ns > 0 {
            AfterLaunch::After(Nanos::new(step.host_ns).plus(gap))
        } else {
            AfterLaunch::After(Nanos::new(LAUNCH_NS))
        };
        let number = self.launches;
        self.launches += 1;
        KernelLaunch { number, kernel: step.kernel, took, next, is_last: self.at == 0 }
    }
}
