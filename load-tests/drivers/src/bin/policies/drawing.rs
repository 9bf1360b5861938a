//! The result as a drawing: a panel for each figure, a group of bars for each workload, one bar for
//! each policy, all from the JSON that the driver writes.
//!
//! Drawn here, not by plotters: a browser shows the number of a bar when a pointer is on it, and the
//! SVG of plotters has no tooltips.

use maud::{Markup, PreEscaped, html};
use serde_json::Value;
use tessera_simulator::cluster::number::count;

/// Policies in the order of their bars, with Paul Tol's muted colours, which people with any kind of
/// colour vision can distinguish. The order in a group is that of the legend.
const COLOURS: &[(&str, &str)] = &[
    ("exclusive", "#999999"),
    ("static-promote", "#cccccc"),
    ("scheme-b", "#88ccee"),
    ("scheme-a", "#44aa99"),
    ("time-slicing", "#ddcc77"),
    ("mps-only", "#aa4499"),
    ("miso", "#117733"),
    ("oracle", "#999933"),
    ("dyna-p", "#882255"),
    ("miger", "#cc6677"),
    ("mmk", "#332288"),
    ("tessera", "#000000"),
];

/// What a panel shows.
struct Panel {
    title: &'static str,
    key: &'static str,
    /// Whether the figure is relative to the best policy's of the workload, and not absolute.
    over_best: bool,
    /// Where bars are cut off: a policy above this is not an option.
    most: f64,
    /// Where bars begin.
    least: f64,
}

const PANELS: &[Panel] = &[
    Panel {
        title: "Mean time from submit to end, over the MIG-only lower bound",
        key: "jct_over_bound",
        over_best: false,
        most: 5.0,
        least: 0.0,
    },
    Panel {
        title: "Makespan, over the MIG-only lower bound",
        key: "makespan_over_bound",
        over_best: false,
        most: 2.0,
        least: 0.0,
    },
    Panel {
        title: "95th percentile of the time from submit to end, over the best policy's",
        key: "jct_p95_s",
        over_best: true,
        most: 3.0,
        least: 0.0,
    },
    Panel {
        title: "Energy, over the best policy's",
        key: "energy_j",
        over_best: true,
        most: 1.6,
        least: 0.8,
    },
];

const WIDTH: f64 = 1_180.0;
const PANEL: f64 = 210.0;
const BARS: f64 = 150.0;
const LEFT: f64 = 10.0;

/// Draws the cases of a result.
pub fn draw(cases: &[Value]) -> String {
    let height = 40.0 + PANEL * count(PANELS.len());
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {height}"))
            font-family="sans-serif" {
            rect width=(WIDTH) height=(height) fill="#fff" {}
            @for (number, (name, colour)) in COLOURS.iter().enumerate() {
                @let x = LEFT + 98.0 * count(number);
                rect x=(x) y="8" width="11" height="11" fill=(colour) {}
                text x=(x + 15.0) y="18" font-size="11" { (name) }
            }
            @for (number, panel) in PANELS.iter().enumerate() {
                (panel.draw(40.0 + PANEL * count(number), cases))
            }
        }
    };
    svg.into_string() + "\n"
}

impl Panel {
    fn draw(&self, top: f64, cases: &[Value]) -> Markup {
        let bottom = top + 20.0 + BARS;
        let group = (WIDTH - 40.0) / count(cases.len().max(1));
        html! {
            (NEW_LINE)
            text x=(LEFT) y=(top + 10.0) font-size="14" font-weight="bold" { (self.title) }
            @for level in self.levels() {
                @let y = bottom - self.height(level);
                line x1=(LEFT) x2=(WIDTH - 30.0) y1=(pixels(y)) y2=(pixels(y)) stroke="#ccc" {}
                text x=(WIDTH - 26.0) y=(pixels(y + 3.0)) font-size="10" { (level) "×" }
            }
            @for (number, case) in cases.iter().enumerate() {
                (self.draw_group(case, LEFT + group * count(number), bottom, group))
            }
        }
    }

    /// Returns the values that have a line: 1, and the ends of the bars.
    fn levels(&self) -> Vec<f64> {
        let mut levels = vec![self.least, 1.0, self.most];
        levels.dedup();
        levels
    }

    fn draw_group(&self, case: &Value, left: f64, bottom: f64, width: f64) -> Markup {
        let bar = (width - 8.0) / count(COLOURS.len());
        let name = case["case"].as_str().unwrap_or_default();
        let figures = self.figures(case);
        let value_of = |policy: &str| Some(figures.iter().find(|(known, _)| *known == policy)?.1);
        let bars = COLOURS.iter().enumerate();
        let bars = bars.filter_map(|(place, bar)| Some((place, bar, value_of(bar.0)?)));
        html! {
            @for (place, (policy, colour), value) in bars {
                @let tall = self.height(value.min(self.most));
                (NEW_LINE)
                rect x=(pixels(left + bar * count(place))) y=(pixels(bottom - tall))
                    width=(pixels(bar - 0.6)) height=(pixels(tall)) fill=(colour) {
                    title { (name) " " (policy) " " (format!("{value:.2}")) }
                }
            }
            text x=(pixels(left)) y=(pixels(bottom + 12.0)) font-size="9" { (name) }
        }
    }

    fn height(&self, value: f64) -> f64 {
        BARS * ((value - self.least) / (self.most - self.least)).max(0.0)
    }

    fn figures<'c>(&self, case: &'c Value) -> Vec<(&'c str, f64)> {
        let rows = case["policies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let known =
            rows.iter().filter_map(|row| Some((row["policy"].as_str()?, row[self.key].as_f64()?)));
        let mut figures: Vec<(&str, f64)> = known.collect();
        let best = figures.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        if self.over_best {
            figures.iter_mut().for_each(|(_, value)| *value /= best.max(1e-9));
        }
        figures
    }
}

/// One bar on each line, so that a difference between two drawings can be read.
const NEW_LINE: PreEscaped<&str> = PreEscaped("\n");

fn pixels(value: f64) -> String {
    format!("{value:.1}")
}
