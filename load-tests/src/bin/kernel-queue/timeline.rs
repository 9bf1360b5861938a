//! Draws what ran when on the device: alone, by time slices, by FIKIT's rules, by ours.

use std::fmt::Write;

use tessera_kernel_queue::{Nanos, QueueRules};
use tessera_simulator::kernels::experiment::{PairBench, SLICE};
use tessera_simulator::kernels::{PAIRS, SharingPolicy};

/// How much of the run is drawn.
const SHOWN: Nanos = Nanos::from_millis(6);
const WIDTH: u64 = 900;
const LEFT: u64 = 130;
const LANE: u64 = 34;
const PITCH: u64 = 56;
const HIGH: &str = "#1f4e79";
const LOW: &str = "#e0a030";

/// Returns the drawing of pair A's beginning as SVG.
pub fn draw(seed: u64) -> String {
    let bench = PairBench::new(&PAIRS[0], 50, 3, seed);
    let lanes = [
        ("alone", SharingPolicy::Alone),
        ("time slices", SharingPolicy::Slices(SLICE)),
        ("FIKIT", SharingPolicy::Queue(QueueRules::paper())),
        ("Tessera", SharingPolicy::Queue(QueueRules::default())),
    ];
    let height = 60 + PITCH * 4 + 30;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\">{} (high priority) and {} (low), first {} ms of device \
         time</text>\n",
        LEFT + WIDTH + 20,
        PAIRS[0].high.name,
        PAIRS[0].low.name,
        SHOWN.get() / 1_000_000,
    );
    for (x, colour, word) in [(LEFT, HIGH, "high priority"), (LEFT + 150, LOW, "low priority")] {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"14\" height=\"14\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"44\">{word}</text>",
            x + 20
        );
    }
    for (number, (name, policy)) in (0..).zip(lanes) {
        lane(&mut svg, 60 + PITCH * number, name, &bench.watched(policy).spans);
    }
    for tick in 0..=SHOWN.get() / 1_000_000 {
        let x = LEFT + across(Nanos::from_millis(tick)) / 100;
        let y = 60 + PITCH * 4 + 6;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"56\" x2=\"{x}\" y2=\"{}\" stroke=\"#bbb\" \
             stroke-width=\"0.5\"/><text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{tick} \
             ms</text>",
            y - 16
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn lane(
    svg: &mut String,
    y: u64,
    name: &str,
    spans: &[tessera_simulator::kernels::device::KernelSpan],
) {
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\
         <rect x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{LANE}\" fill=\"#f3f3f3\"/>",
        LEFT - 10,
        y + 22
    );
    for span in spans.iter().filter(|span| span.from < SHOWN) {
        let from = across(span.from);
        let width = across(span.until.min(SHOWN)) - from;
        let colour = if span.program == 0 { HIGH } else { LOW };
        let _ = writeln!(
            svg,
            "<rect x=\"{}.{:02}\" y=\"{y}\" width=\"{}.{:02}\" height=\"{LANE}\" \
             fill=\"{colour}\"/>",
            LEFT + from / 100,
            from % 100,
            width / 100,
            width % 100
        );
    }
}

/// Returns where a moment is drawn, in hundredths of a pixel from the left end.
fn across(at: Nanos) -> u64 {
    at.get() * WIDTH * 100 / SHOWN.get()
}
