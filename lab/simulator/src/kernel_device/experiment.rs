//! FIKIT's experiments with its ten pairs (§4), in virtual time.

use tessera_kernel_queue::{Nanos, QueueRules, TaskProfile};
use tessera_model::number::clamped;

use super::ideal::{longest_gaps, omniscient};
use super::measuring::measure;
use super::models::ProgramPair;
use super::outcome::{SharingOutcome, float};
use super::program::{ProgramCourse, SimulatedProgram, TaskArrivals, TimeNoise};
use super::world::{PathLatencies, SharingPolicy, SharingRun};

/// The driver's time slice: fitted so that pair A's high program is 1.573 times slower under
/// default sharing, as FIKIT's Table 2 gives it (50.85 ms against 32.32 ms). Fitted to that one
/// figure, used for all pairs.
pub const SLICE: Nanos = Nanos::from_micros(900);

/// One pair, measured and ready to run under any policy.
#[derive(Clone, Debug)]
pub struct PairBench {
    programs: [SimulatedProgram; 2],
    profiles: [TaskProfile; 2],
    noise: [TimeNoise; 2],
    priorities: [u8; 2],
    switch: Nanos,
    latencies: PathLatencies,
    seed: u64,
    tasks: usize,
}

/// Spread of kernel times: inputs of one size on locked clocks.
const KERNEL_NOISE: u64 = 20;

impl PairBench {
    /// Measures both programs of a pair alone, with gaps that vary by this many thousandths.
    pub fn new(pair: &ProgramPair, gap_noise: u64, tasks: usize, seed: u64) -> Self {
        let programs = [pair.high.program(), pair.low.program()];
        let noise = [
            TimeNoise { kernels: KERNEL_NOISE, gaps: gap_noise },
            TimeNoise { kernels: KERNEL_NOISE, gaps: 50 },
        ];
        // Measured in a different run from those that are compared: other times, same spread.
        let measured = [0, 1].map(|at: usize| measure(&programs[at], seed ^ 0xFEED, noise[at]).0);
        Self {
            programs,
            profiles: measured,
            noise,
            priorities: [0, 5],
            switch: Nanos::ZERO,
            latencies: PathLatencies::default(),
            seed,
            tasks,
        }
    }

    /// Sets the time of a context switch of the device. At first it is zero.
    #[must_use]
    pub fn with_switch(self, switch: Nanos) -> Self {
        Self { switch, ..self }
    }

    /// Gives both programs the same priority.
    #[must_use]
    pub fn with_equal_priorities(self) -> Self {
        Self { priorities: [5; 2], ..self }
    }

    /// Sets how long messages take.
    #[must_use]
    pub fn with_latencies(self, latencies: PathLatencies) -> Self {
        Self { latencies, ..self }
    }

    fn run(
        &self,
        policy: SharingPolicy,
        arrivals: [TaskArrivals; 2],
        until: (usize, usize),
    ) -> SharingRun {
        SharingRun {
            programs: self.programs.clone(),
            priorities: self.priorities,
            arrivals,
            until,
            limit: Nanos::MAX,
            noise: self.noise,
            policy,
            latencies: self.latencies,
            switch: self.switch,
            profiles: self.profiles.clone(),
            seed: self.seed,
            keep_spans: matches!(policy, SharingPolicy::Alone),
        }
    }

    /// Both run without a pause until the high one has ended its tasks.
    pub fn both(&self, policy: SharingPolicy) -> SharingOutcome {
        self.run(policy, [TaskArrivals::Continuous; 2], (0, self.tasks)).go()
    }

    /// As [`Self::both`], and keeps what ran when.
    pub fn watched(&self, policy: SharingPolicy) -> SharingOutcome {
        let mut run = self.run(policy, [TaskArrivals::Continuous; 2], (0, self.tasks));
        run.keep_spans = true;
        run.go()
    }

    /// The high one without a pause, a low task every `period`: FIKIT's steady scenario. Ends
    /// after twice the time that the tasks should need to arrive.
    pub fn low_every(&self, policy: SharingPolicy, period: Nanos) -> SharingOutcome {
        let arrivals = [TaskArrivals::Continuous, TaskArrivals::Every(period)];
        let mut run = self.run(policy, arrivals, (1, self.tasks));
        run.limit = period.times(2 * self.tasks as u64);
        run.go()
    }

    /// The low one without a pause, a high task every `period`: FIKIT's preempting scenario.
    pub fn high_every(&self, policy: SharingPolicy, period: Nanos) -> SharingOutcome {
        let arrivals = [TaskArrivals::Every(period), TaskArrivals::Continuous];
        self.run(policy, arrivals, (0, self.tasks)).go()
    }

    /// Returns what an omniscient filler would use of the high one's gaps.
    pub fn omniscient(&self, alone: &SharingOutcome, epsilon: Nanos) -> Nanos {
        let low = ProgramCourse::new(self.programs[1].clone(), self.seed, self.noise[1]);
        omniscient(&alone.spans, low, epsilon, Nanos::ZERO)
    }

    /// Runs both under rules and compares with the high one alone.
    pub fn compare(&self, rules: QueueRules) -> PairComparison {
        let alone = self.both(SharingPolicy::Alone);
        let ours = self.both(SharingPolicy::Queue(rules));
        // The time that the high one waited was no longer a gap.
        let used = ours.programs[1].busy.minus(ours.programs[0].behind.total);
        let ideal = self.omniscient(&alone, rules.epsilon);
        let every = self.omniscient(&alone, Nanos::ZERO);
        let longest = self.longest_low();
        PairComparison {
            alone_ms: alone.programs[0].mean() / 1e6,
            high_ms: ours.programs[0].mean() / 1e6,
            high_ratio: ours.programs[0].mean() / alone.programs[0].mean(),
            ideal_fraction: float(ideal) / float(alone.end),
            fill_ratio: float(used) / float(ideal).max(1.0),
            fill_ratio_of_all: float(used) / float(every).max(1.0),
            longest_low_us: float(longest) / 1e3,
            behind_max_us: float(ours.programs[0].behind.longest) / 1e3,
            ours,
        }
    }

    /// Runs both under rules on a device whose context switches take time, and compares with omniscient fillers.
    pub fn compare_with_switches(&self, rules: QueueRules) -> SwitchComparison {
        let alone = self.both(SharingPolicy::Alone);
        let ours = self.both(SharingPolicy::Queue(rules));
        let used = float(ours.programs[1].busy.minus(ours.programs[0].behind.total));
        let low = || ProgramCourse::new(self.programs[1].clone(), self.seed, self.noise[1]);
        let best = |fills: u64| {
            let fills = clamped(fills);
            let spans = longest_gaps(&alone.spans, fills);
            float(omniscient(&spans, low(), rules.epsilon, self.switch)).max(1.0)
        };
        // One switch of each filled gap is the high one's.
        let fills = ours.switches / 2;
        let saved = alone.end.thousandths(rules.fill_cost_thousandths).get();
        SwitchComparison {
            high_ratio: ours.programs[0].mean() / alone.programs[0].mean(),
            fills,
            of_omniscient: used / best(u64::MAX),
            of_omniscient_at_the_same_cost: used / best(saved / self.switch.get().max(1)),
            of_omniscient_in_as_many_gaps: used / best(fills),
        }
    }

    /// Returns the nominal time of the low one's longest kernel.
    fn longest_low(&self) -> Nanos {
        Nanos::new(self.programs[1].steps.iter().map(|step| step.took_ns).max().unwrap_or(0))
    }
}

/// The high program with a co-runner against the high program alone.
#[derive(Clone, Debug)]
pub struct PairComparison {
    /// Mean time of a high task alone, in milliseconds.
    pub alone_ms: f64,
    /// With a co-runner.
    pub high_ms: f64,
    /// With a co-runner over alone.
    pub high_ratio: f64,
    /// Share of the time that an omniscient filler's kernels run.
    pub ideal_fraction: f64,
    /// The low one's kernel time in gaps over the omniscient filler's, which leaves gaps up to ε
    /// alone as well.
    pub fill_ratio: f64,
    /// The same over that of an omniscient filler that uses every gap.
    pub fill_ratio_of_all: f64,
    /// Nominal time of the low one's longest kernel, in microseconds.
    pub longest_low_us: f64,
    /// Longest that a kernel of the high one waited for kernels of the low one, in microseconds.
    pub behind_max_us: f64,
    /// Everything else.
    pub ours: SharingOutcome,
}

/// The low program's kernel time in gaps, against omniscient fillers that need context switches as well.
#[derive(Clone, Copy, Debug)]
pub struct SwitchComparison {
    /// Mean time of a high task with a co-runner over that alone.
    pub high_ratio: f64,
    /// How often the device left the high program's context.
    pub fills: u64,
    /// Over that of a filler that uses every gap.
    pub of_omniscient: f64,
    /// Over that of a filler that uses the longest gaps, of which the switches cost the high program as much as the
    /// queue may spend.
    pub of_omniscient_at_the_same_cost: f64,
    /// Over that of a filler that uses the longest gaps, as many as were used.
    pub of_omniscient_in_as_many_gaps: f64,
}
