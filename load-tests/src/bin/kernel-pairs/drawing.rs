//! Draws which program's kernels ran when.

use tessera_load_tests::players::Played;
use tessera_load_tests::timeline::{RanProgram, Timeline, TimelineLane, TimelineSpan};
use tessera_simulator::kernel_device::ProgramPair;

/// How much of each run is drawn, in nanoseconds.
const SHOWN: u64 = 120_000_000;
/// Ticks of the axis, in nanoseconds.
const TICK: u64 = 20_000_000;

/// Returns the drawing of a pair's runs as SVG: the first milliseconds after the run-in, when all
/// are under way.
pub fn draw(pair: &ProgramPair, runs: &[(&'static str, &Played)]) -> String {
    let timeline = Timeline {
        title: format!(
            "{} (high priority) and {} (low): {} ms of the device's own trace",
            pair.high.name,
            pair.low.name,
            SHOWN / 1_000_000,
        ),
        shown: SHOWN,
        tick: TICK,
        lanes: runs.iter().map(|(name, played)| lane(name, played)).collect(),
    };
    timeline.draw()
}

fn lane(name: &'static str, played: &Played) -> TimelineLane {
    let begin = played.window.0;
    let programs = [(RanProgram::High, &played.high), (RanProgram::Low, &played.low)];
    let spans = programs.into_iter().flat_map(|(program, kernels)| {
        kernels.iter().flat_map(|ran| &ran.spans).map(move |(from, until)| TimelineSpan {
            program,
            from: from.saturating_sub(begin),
            until: until.saturating_sub(begin),
        })
    });
    TimelineLane { name, spans: spans.collect() }
}
