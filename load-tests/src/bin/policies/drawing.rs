//! The result as a drawing: a panel for each figure, a group of bars for each workload, one bar for
//! each policy, all from the JSON that the driver writes.

use std::fmt::Write as _;

use serde_json::Value;

/// Policies in the order of their bars, with their colours.
const COLOURS: &[(&str, &str)] = &[
    ("exclusive", "#999999"),
    ("static-promote", "#bab0ac"),
    ("scheme-b", "#76b7b2"),
    ("scheme-a", "#59a14f"),
    ("time-slicing", "#d7b5a6"),
    ("mps-only", "#b07aa1"),
    ("miso", "#f28e2b"),
    ("oracle", "#edc948"),
    ("dyna-p", "#9c755f"),
    ("miger", "#ff9da7"),
    ("mmk", "#4e79a7"),
    ("tessera", "#e15759"),
];

/// What a panel shows.
struct Panel {
    title: &'static str,
    key: &'static str,
    /// Whether it is over the best policy's of the workload, and not as it stands.
    over_best: bool,
    /// Where bars are cut off: what is above is no choice.
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
    let height = 40.0 + PANEL * f64::from(u32::try_from(PANELS.len()).unwrap_or(1));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\"><rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let mut x = LEFT;
    for (name, colour) in COLOURS {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"8\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"18\" font-size=\"11\">{name}</text>",
            x + 15.0
        );
        x += 105.0;
    }
    let mut top = 40.0;
    for panel in PANELS {
        panel.draw(&mut svg, top, cases);
        top += PANEL;
    }
    svg + "</svg>\n"
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64, cases: &[Value]) {
        let bottom = top + 20.0 + BARS;
        let title = self.title;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\" font-size=\"14\" font-weight=\"bold\">{title}</text>",
            top + 10.0
        );
        let one = bottom - self.height(1.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{one:.1}\" y2=\"{one:.1}\" stroke=\"#bbb\"/>\
             <text x=\"{}\" y=\"{:.1}\" font-size=\"10\">1×</text>",
            WIDTH - 30.0,
            WIDTH - 26.0,
            one + 3.0
        );
        let groups = f64::from(u32::try_from(cases.len().max(1)).unwrap_or(1));
        let group = (WIDTH - 40.0) / groups;
        let bar = (group - 8.0) / f64::from(u32::try_from(COLOURS.len()).unwrap_or(1));
        let mut x = LEFT;
        for case in cases {
            let name = case["case"].as_str().unwrap_or_default();
            let figures = self.figures(case);
            for (place, (policy, colour)) in (0_u32..).zip(COLOURS) {
                let Some((_, value)) = figures.iter().find(|(known, _)| known == policy) else {
                    continue;
                };
                let tall = self.height(value.min(self.most));
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" \
                     fill=\"{colour}\"><title>{name} {policy} {value:.2}</title></rect>",
                    x + bar * f64::from(place),
                    bottom - tall,
                    bar - 0.6
                );
            }
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"9\">{name}</text>",
                bottom + 12.0
            );
            x += group;
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
