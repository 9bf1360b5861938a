//! Draws what ran when on the device: alone, by time slices, by FIKIT's rules, by ours.

use crate::pairs::plain;
use tessera_kernel_queue::{Nanos, QueueRules};
use tessera_load_tests::timeline::{RanProgram, Timeline, TimelineLane, TimelineSpan};
use tessera_simulator::kernel_device::device::KernelSpan;
use tessera_simulator::kernel_device::experiment::{PairBench, SLICE};
use tessera_simulator::kernel_device::{PAIRS, SharingPolicy};

/// Length of the part of the run that is drawn.
const SHOWN: Nanos = Nanos::from_millis(6);

/// Returns the drawing of pair A's beginning as SVG.
pub fn draw(seed: u64) -> String {
    let pair = &PAIRS[0];
    let bench = PairBench::new(pair, 50, 3, seed);
    let lane = |name, policy| {
        let spans = bench.watched(policy).spans;
        TimelineLane { name, spans: spans.iter().map(drawn).collect() }
    };
    let timeline = Timeline {
        title: format!(
            "{} (high priority) and {} (low), first {} ms of device time",
            pair.high.name,
            pair.low.name,
            SHOWN.get() / 1_000_000,
        ),
        shown: SHOWN.get(),
        tick: 1_000_000,
        lanes: vec![
            lane("alone", SharingPolicy::Alone),
            lane("time slices", SharingPolicy::Slices(SLICE)),
            lane("FIKIT", SharingPolicy::Queue(QueueRules::paper())),
            lane("Tessera", SharingPolicy::Queue(plain())),
        ],
    };
    timeline.draw()
}

fn drawn(span: &KernelSpan) -> TimelineSpan {
    let program = if span.program == 0 { RanProgram::High } else { RanProgram::Low };
    TimelineSpan { program, from: span.from.get(), until: span.until.get() }
}
