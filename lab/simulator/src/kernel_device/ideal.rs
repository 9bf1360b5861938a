//! How much a filler that knew every gap beforehand could use: FIKIT's Algorithm 1 with the gaps'
//! and kernels' true times.

use tessera_kernel_queue::Nanos;

use super::device::KernelSpan;
use super::program::{AfterLaunch, KernelLaunch, ProgramCourse};

/// Returns how long the low program's kernels could run in the gaps of `alone`, the high one's
/// run without a co-runner. Each is launched exactly when it ends before its gap does.
///
/// Its launches keep their order, so launching each as early as it fits is optimal. Its host waits
/// at each launch as in the real system, and does the same work between launches; but no launch and
/// no message takes time. Gaps up to `epsilon` it leaves alone. In each other the device needs
/// `change` before the first kernel, to change contexts.
pub fn omniscient(
    alone: &[KernelSpan],
    low: ProgramCourse,
    epsilon: Nanos,
    change: Nanos,
) -> Nanos {
    omniscient_that_enters(alone, low, epsilon, || change)
}

/// The same for a filler that enters each gap later: `entry` returns by how much for the next gap, with
/// the context switch in it. It knows when the gap ends, and is woken as late as a real filler.
pub fn omniscient_that_enters(
    alone: &[KernelSpan],
    mut low: ProgramCourse,
    epsilon: Nanos,
    mut entry: impl FnMut() -> Nanos,
) -> Nanos {
    let mut used = Nanos::ZERO;
    let mut ready = Nanos::ZERO;
    let mut launch = low.launch();
    let ends = alone.iter().map(|span| span.until);
    let begins = alone.iter().skip(1).map(|span| span.from);
    let mut now = Nanos::ZERO;
    let gaps = ends.zip(begins).filter(|(begin, end)| end.minus(*begin) > epsilon);
    for (begin, end) in gaps {
        now = now.max(begin.plus(entry()));
        while let Some(next) = after(&launch, now.max(ready), end) {
            now = now.max(ready).plus(launch.took);
            ready = next;
            used = used.plus(launch.took);
            launch = low.launch();
        }
    }
    used
}

/// Joins spans over all gaps but the `kept` longest ones.
pub fn longest_gaps(spans: &[KernelSpan], kept: usize) -> Vec<KernelSpan> {
    let gap = |pair: &[KernelSpan]| pair[1].from.minus(pair[0].until);
    let mut gaps: Vec<Nanos> = spans.windows(2).map(gap).collect();
    gaps.sort_unstable_by(|one, other| other.cmp(one));
    let least = gaps.get(kept).copied().unwrap_or(Nanos::ZERO);
    let mut joined: Vec<KernelSpan> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from.minus(last.until) <= least => last.until = span.until,
            Some(_) | None => joined.push(*span),
        }
    }
    joined
}

/// Returns when the host comes to its next launch, if this one ends in time.
fn after(launch: &KernelLaunch, from: Nanos, end: Nanos) -> Option<Nanos> {
    let until = from.plus(launch.took);
    (until <= end).then(|| match launch.next {
        AfterLaunch::AfterDevice(gap) => until.plus(gap),
        AfterLaunch::After(work) => from.plus(work),
    })
}

#[cfg(test)]
mod tests {
    use super::super::program::{ProgramStep, SimulatedProgram, TimeNoise};
    use super::*;

    const fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    /// Kernels of 100 µs, one after another.
    fn filler() -> ProgramCourse {
        let step = ProgramStep {
            kernel: 0,
            took_ns: 100_000,
            gap_ns: 0,
            waits_for_device: true,
            host_ns: 0,
        };
        let program = SimulatedProgram::new("filler", vec![step]);
        ProgramCourse::new(program, 0, TimeNoise { kernels: 0, gaps: 0 })
    }

    /// Kernels of 50 µs with these gaps between them.
    fn spans(gaps: &[u64]) -> Vec<KernelSpan> {
        let mut from = Nanos::ZERO;
        let ends = gaps.iter().map(|gap| Some(us(*gap))).chain([None]);
        ends.map(|gap| {
            let span = KernelSpan { program: 0, from, until: from.plus(us(50)) };
            from = span.until.plus(gap.unwrap_or_default());
            span
        })
        .collect()
    }

    #[test]
    fn only_the_longest_gaps_are_kept() {
        let gaps = |kept| {
            let joined = longest_gaps(&spans(&[300, 900, 200, 700]), kept);
            let lengths = joined.windows(2).map(|pair| pair[1].from.minus(pair[0].until));
            lengths.collect::<Vec<_>>()
        };

        assert_eq!(gaps(0), []);
        assert_eq!(gaps(2), [us(900), us(700)]);
        assert_eq!(gaps(9), [us(300), us(900), us(200), us(700)]);
    }

    #[test]
    fn a_filler_that_enters_late_uses_what_is_left_of_each_gap() {
        let spans = spans(&[1_000, 350, 1_000]);
        let used = |entries: [u64; 3]| {
            let mut entries = entries.into_iter().map(us);
            let entry = || entries.next().expect("there are three gaps");
            omniscient_that_enters(&spans, filler(), us(100), entry)
        };

        assert_eq!(used([0, 0, 0]), us(1_000 + 300 + 1_000));
        assert_eq!(used([150, 150, 150]), us(800 + 200 + 800));
        assert_eq!(used([150, 300, 450]), us(800 + 500));
        assert_eq!(omniscient(&spans, filler(), us(400), us(150)), us(800 + 800));
    }
}
