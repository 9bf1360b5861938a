//! Draws which program's kernels ran when.

use std::fmt::Write as _;

use tessera_simulator::kernels::ProgramPair;

use tessera_load_tests::players::Played;

/// How much of each run is drawn, in nanoseconds.
const SHOWN: u64 = 120_000_000;
/// Ticks of the axis, in nanoseconds.
const TICK: u64 = 20_000_000;
const WIDTH: u64 = 900;
const LEFT: u64 = 130;
const TOP: u64 = 60;
const LANE: u64 = 34;
const PITCH: u64 = 56;
const HIGH: &str = "#1f4e79";
const LOW: &str = "#e0a030";

/// Returns the drawing of a pair's runs as SVG: the first milliseconds after the run-in, when all
/// are under way.
pub fn draw(pair: &ProgramPair, lanes: &[(&str, &Played)]) -> String {
    let count = u64::try_from(lanes.len()).unwrap_or(0);
    let height = TOP + PITCH * count + 30;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\">{} (high priority) and {} (low): {} ms of the device's own \
         trace</text>\n",
        LEFT + WIDTH + 20,
        pair.high.name,
        pair.low.name,
        SHOWN / 1_000_000,
    );
    for (x, colour, word) in [(LEFT, HIGH, "high priority"), (LEFT + 150, LOW, "low priority")] {
        // Into a string, which takes everything; so below.
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"14\" height=\"14\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"44\">{word}</text>",
            x + 20
        );
    }
    for (number, (name, played)) in (0..).zip(lanes) {
        lane(&mut svg, TOP + PITCH * number, name, played);
    }
    for tick in (0..=SHOWN).step_by(usize::try_from(TICK).unwrap_or(1)) {
        let x = LEFT + tick * WIDTH / SHOWN;
        let y = TOP + PITCH * count + 6;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"56\" x2=\"{x}\" y2=\"{}\" stroke=\"#bbb\" \
             stroke-width=\"0.5\"/><text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{} ms</text>",
            y - 16,
            tick / 1_000_000,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn lane(svg: &mut String, y: u64, name: &str, played: &Played) {
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\
         <rect x=\"{LEFT}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{LANE}\" fill=\"#f3f3f3\"/>",
        LEFT - 10,
        y + 22
    );
    let begin = played.window.0;
    for (kernels, colour) in [(&played.high, HIGH), (&played.low, LOW)] {
        for (from, until) in kernels.iter().flat_map(|ran| &ran.spans) {
            // In hundredths of a pixel from the left end.
            let across = |at: u64| at.saturating_sub(begin).min(SHOWN) * WIDTH * 100 / SHOWN;
            let (from, width) = (across(*from), across(*until) - across(*from));
            if width > 0 {
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
    }
}
