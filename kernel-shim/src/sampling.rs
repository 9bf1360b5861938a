//! How many launches are measured: as many as a fixed part of the program's time pays for.
//!
//! A measured launch costs the program 5 to 6 µs on an H200, and a network of PyTorch launches every 15 µs. If each of
//! its launches were measured, it would take 1.9 times as long. So one part in [`COST_PART`] of the time is saved, and
//! each sample takes what it actually cost the launching thread. The more samples a kernel has, the more must be
//! saved for the next one. So kernels with few samples come first.

use std::sync::atomic::{AtomicU64, Ordering};

use tessera_kernel_queue::Nanos;

/// Samples cost at most this part of the time: 1 %. What is saved at the start comes on top, once.
const COST_PART: u64 = 100;
/// The most that is saved: about two hundred samples, which is also what a program begins with.
const SAVED_MAX: Nanos = Nanos::from_millis(2);
/// What must be saved for the first sample of a kernel.
const FIRST_MIN: Nanos = Nanos::from_micros(10);
/// What must be saved for a further sample, for each sample that the kernel has.
const MORE_EACH: Nanos = Nanos::new(SAVED_MAX.get() / 2 / SAMPLES_COUNTED);
/// More samples of a kernel make no difference.
const SAMPLES_COUNTED: u64 = 16;
/// A longer step was interrupted: that is no cost of sampling.
const STEP_MAX: Nanos = Nanos::from_micros(50);
/// The time that the two events of a sample take on the device, in which it runs no kernel.
pub const DEVICE_COST: Nanos = Nanos::from_micros(2);

/// The saved time of a process.
#[derive(Debug)]
pub struct SamplingBudget {
    saved: AtomicU64,
    credited_at: AtomicU64,
}

impl SamplingBudget {
    /// Returns a full budget.
    pub const fn full() -> Self {
        Self { saved: AtomicU64::new(SAVED_MAX.get()), credited_at: AtomicU64::new(u64::MAX) }
    }

    /// Returns whether a kernel with so many samples may be measured at `now`.
    pub fn allows(&self, samples: u32, now: Nanos) -> bool {
        let before = self.credited_at.swap(now.get(), Ordering::Relaxed);
        let income = now.get().saturating_sub(before) / COST_PART;
        // Between the two steps another thread may take or add: a sample more or less makes no difference.
        let saved = self.saved.load(Ordering::Relaxed).saturating_add(income).min(SAVED_MAX.get());
        self.saved.store(saved, Ordering::Relaxed);
        saved >= FIRST_MIN.plus(MORE_EACH.times(u64::from(samples).min(SAMPLES_COUNTED))).get()
    }

    /// Takes the time of a step that so many samples needed.
    pub fn take(&self, cost: Nanos, samples: u64) {
        let cost = cost.min(STEP_MAX.times(samples));
        let saved = self.saved.load(Ordering::Relaxed).saturating_sub(cost.get());
        self.saved.store(saved, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that launches its kernels in turn. Returns the samples of each kernel, and the time that they cost.
    fn play(kernels: usize, launches: u64, every: Nanos, cost: Nanos) -> (Vec<u32>, Nanos) {
        let budget = SamplingBudget::full();
        let mut samples = vec![0_u32; kernels];
        let mut now = Nanos::from_millis(1_000);
        let mut spent = Nanos::ZERO;
        for launch in 0..launches {
            let kernel = usize::try_from(launch).unwrap() % kernels;
            now = now.plus(every);
            if budget.allows(samples[kernel], now) {
                samples[kernel] += 1;
                budget.take(cost, 1);
                spent = spent.plus(cost);
            }
        }
        (samples, spent)
    }

    #[test]
    fn samples_cost_one_part_in_a_hundred_at_any_rate_of_launches() {
        let cost = Nanos::from_micros(6);
        for (every, kernels) in [(5, 1), (15, 300), (35, 32), (200, 7), (3_000, 1)] {
            let launches = 4_000_000 / every;
            let (_, spent) = play(kernels, launches, Nanos::from_micros(every), cost);
            let income = Nanos::from_millis(40);
            assert!(spent <= income.plus(SAVED_MAX), "every {every} µs: {spent}");
        }
    }

    #[test]
    fn a_launch_bound_network_has_some_samples_of_each_kernel_after_its_first_second() {
        let every = Nanos::from_micros(15);
        let (samples, _) = play(300, 70_000, every, Nanos::from_micros(8));

        assert!(samples.iter().all(|samples| *samples >= 4), "{samples:?}");
    }

    #[test]
    fn a_program_with_few_launches_has_each_of_them_sampled() {
        let (samples, _) = play(1, 500, Nanos::from_millis(10), Nanos::from_micros(8));

        assert_eq!(samples, [500]);
    }

    #[test]
    fn an_interruption_is_no_cost_of_sampling() {
        let budget = SamplingBudget::full();
        budget.take(Nanos::from_millis(5), 1);

        assert!(budget.allows(0, Nanos::ZERO));
    }
}
