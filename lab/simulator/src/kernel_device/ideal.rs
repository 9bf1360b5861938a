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
    mut low: ProgramCourse,
    epsilon: Nanos,
    change: Nanos,
) -> Nanos {
    let mut used = Nanos::ZERO;
    let mut ready = Nanos::ZERO;
    let mut launch = low.launch();
    let ends = alone.iter().map(|span| span.until);
    let begins = alone.iter().skip(1).map(|span| span.from);
    let mut now = Nanos::ZERO;
    let gaps = ends.zip(begins).filter(|(begin, end)| end.minus(*begin) > epsilon);
    for (begin, end) in gaps {
        now = now.max(begin.plus(change));
        while let Some(next) = after(&launch, now.max(ready), end) {
            now = now.max(ready).plus(launch.took);
            ready = next;
            used = used.plus(launch.took);
            launch = low.launch();
        }
    }
    used
}

/// Returns when the host comes to its next launch, if this one ends in time.
fn after(launch: &KernelLaunch, from: Nanos, end: Nanos) -> Option<Nanos> {
    let until = from.plus(launch.took);
    (until <= end).then(|| match launch.next {
        AfterLaunch::AfterDevice(gap) => until.plus(gap),
        AfterLaunch::After(work) => from.plus(work),
    })
}
