//! One page that shows what became of a workload under each policy: no network, no script.

use std::fmt::Write as _;

use super::metrics::{Outcome, Sample, Segment, Summary};
use super::number::{count, float};

/// Width and height of a plot, in pixels.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;

/// Most points of one curve, GPUs and bars of one chart: more can't be told apart.
const POINTS_MAX: usize = 1_200;
const GPUS_MAX: usize = 40;
const BARS_MAX: usize = 12_000;

const COLOURS: [&str; 10] = [
    "#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#9c755f", "#edc948",
    "#ff9da7", "#666666",
];

/// Writes the page.
pub fn html(title: &str, runs: &[(Outcome, Summary)]) -> String {
    let mut page = String::new();
    let title = escaped(title);
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>\
         body{{font:14px sans-serif;margin:2em;max-width:960px}}td,th{{padding:2px 10px;\
         text-align:right}}td:first-child,th:first-child{{text-align:left}}svg{{background:#fafafa}}\
         </style><h1>{title}</h1>{}",
        table(runs)
    );
    page.push_str("<h2>Time from submit to end: part of the jobs that are done in so long</h2>");
    page.push_str(&distribution(runs));
    page.push_str("<h2>Compute slices that jobs have, over time</h2>");
    page.push_str(&over_time(runs, |sample| float(sample.used_per_mille) / 1_000.0));
    page.push_str("<h2>Compute slices left over on GPUs in use (fragmentation), over time</h2>");
    page.push_str(&over_time(runs, |sample| float(sample.stranded_per_mille) / 1_000.0));
    for (outcome, _) in runs {
        let _ = write!(page, "<h2>Who was where under {}</h2>", escaped(&outcome.policy));
        page.push_str(&gantt(outcome));
    }
    page.push_str("</html>\n");
    page
}

fn table(runs: &[(Outcome, Summary)]) -> String {
    let mut text = String::from(
        "<table><tr><th>policy<th>mean JCT<th>p95 JCT<th>makespan<th>throughput<th>energy\
         <th>cuts<th>moves<th>late<th>JCT/bound<th>makespan/bound",
    );
    for (_, s) in runs {
        let _ = write!(
            text,
            "<tr><td>{}<td>{:.1} s<td>{:.1} s<td>{:.1} s<td>{:.3}<td>{:.1} kJ<td>{}<td>{}<td>{}\
             <td>{:.3}<td>{:.3}",
            escaped(&s.policy),
            s.jct_mean_s,
            s.jct_p95_s,
            s.makespan_s,
            s.system_throughput,
            s.energy_j / 1_000.0,
            s.reconfigurations,
            s.moves,
            s.deadlines_missed,
            s.jct_over_bound,
            s.makespan_over_bound
        );
    }
    text.push_str("</table>");
    text
}

fn distribution(runs: &[(Outcome, Summary)]) -> String {
    let longest = runs.iter().flat_map(|(o, _)| o.jobs.iter().map(|j| j.jct_ms())).max();
    let longest = float(longest.unwrap_or(1).max(10)).log10();
    let curve = |(outcome, _): &(Outcome, Summary)| {
        let mut times: Vec<u64> = outcome.jobs.iter().map(|job| job.jct_ms()).collect();
        times.sort_unstable();
        let all = count(times.len().max(1));
        let point = |(place, ms): (usize, u64)| {
            (float(ms.max(1)).log10() / longest, count(place + 1) / all)
        };
        thinned(times.into_iter().enumerate().map(point).collect())
    };
    let marks: Vec<(f64, String)> = ["1 s", "10 s", "100 s", "1,000 s", "10,000 s", "100,000 s"]
        .iter()
        .zip([3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        .filter(|(_, at)| *at <= longest)
        .map(|(text, at)| (at / longest, (*text).to_owned()))
        .collect();
    plot(runs.iter().map(|run| (run.0.policy.as_str(), curve(run))), &marks)
}

fn over_time(runs: &[(Outcome, Summary)], value: impl Fn(&Sample) -> f64) -> String {
    let end = float(runs.iter().map(|(o, _)| o.makespan_ms).max().unwrap_or(1).max(1));
    let curve = |(outcome, _): &(Outcome, Summary)| {
        let points = outcome.samples.iter().map(|s| (float(s.at_ms) / end, value(s)));
        thinned(points.collect())
    };
    plot(runs.iter().map(|run| (run.0.policy.as_str(), curve(run))), &hours(end))
}

fn hours(end_ms: f64) -> Vec<(f64, String)> {
    let quarters = [0.25, 0.5, 0.75, 1.0];
    quarters.iter().map(|part| (*part, format!("{:.0} s", end_ms * part / 1_000.0))).collect()
}

fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(POINTS_MAX).max(1);
    points.into_iter().step_by(stride).collect()
}

fn plot<'a>(
    curves: impl Iterator<Item = (&'a str, Vec<(f64, f64)>)>,
    marks: &[(f64, String)],
) -> String {
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {}\" width=\"{WIDTH}\">", HEIGHT + 30.0);
    for (at, text) in marks {
        let x = at * WIDTH;
        let _ = write!(
            svg,
            "<line x1=\"{x:.0}\" x2=\"{x:.0}\" y1=\"0\" y2=\"{HEIGHT}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"end\">{text}</text>",
            x - 2.0,
            HEIGHT + 14.0
        );
    }
    for (number, (name, points)) in curves.enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{:.1},{:.1} ", x * WIDTH, (1.0 - y.min(1.0)) * HEIGHT);
        }
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{path}\"/>\
             <text x=\"8\" y=\"{:.0}\" fill=\"{colour}\" font-size=\"12\">{}</text>",
            16.0 + 14.0 * count(number),
            escaped(name)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Draws each GPU as a band, each job on it as a box as high as its slice.
fn gantt(outcome: &Outcome) -> String {
    let gpus = outcome.segments.iter().map(|s| s.gpu + 1).max().unwrap_or(0);
    let shown = gpus.min(GPUS_MAX);
    let (band, end) = (32.0, float(outcome.makespan_ms.max(1)));
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" width=\"{WIDTH}\">",
        count(shown) * band + 20.0
    );
    let bars = outcome.segments.iter().filter(|segment| segment.gpu < shown).take(BARS_MAX);
    for segment in bars {
        svg.push_str(&bar(segment, band, end));
    }
    for (at, text) in hours(end) {
        let (x, y) = (at * WIDTH - 2.0, count(shown) * band + 14.0);
        let _ = write!(
            svg,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"11\" text-anchor=\"end\">{text}</text>"
        );
    }
    svg.push_str("</svg>");
    if gpus > shown {
        let _ = write!(svg, "<p>The first {shown} of {gpus} GPUs; the rest is in the data.</p>");
    }
    svg
}

fn bar(segment: &Segment, band: f64, end: f64) -> String {
    let slice = (band - 4.0) / 8.0;
    let x = float(segment.from_ms) / end * WIDTH;
    let width = (float(segment.to_ms - segment.from_ms) / end * WIDTH).max(0.3);
    let y = count(segment.gpu) * band + f64::from(segment.start) * slice;
    let height = f64::from(segment.slices.min(8)) * slice - 0.5;
    let place = usize::try_from(segment.job).unwrap_or(0) % COLOURS.len();
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\">\
         <title>job {}</title></rect>",
        COLOURS[place], segment.job
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
