//! One page that shows what became of a workload under each policy: no network, no script.

use std::fmt::Write as _;

use super::metrics::{ClusterSample, InstanceSegment, JobSegment, RunOutcome, Summary};
use super::number::{count, float};

/// Width and height of a plot, in pixels.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;

/// Height of one bar, and width of the label before it and of the number behind it.
const BAR: f64 = 22.0;
const LABEL: f64 = 110.0;

/// Most points of one curve, GPUs and bars of one chart: more can't be distinguished.
const POINTS_MAX: usize = 1_200;
const GPUS_MAX: usize = 40;
const BARS_MAX: usize = 12_000;

const COLOURS: [&str; 10] = [
    "#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#9c755f", "#edc948",
    "#ff9da7", "#666666",
];

/// Writes the page.
pub fn html(title: &str, runs: &[(RunOutcome, Summary)]) -> String {
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
    page.push_str("<h2>Makespan</h2>");
    page.push_str(&bars(runs, "s", |s| s.makespan_s));
    page.push_str("<h2>System throughput: time alone of all jobs, over makespan and GPUs</h2>");
    page.push_str(&bars(runs, "", |s| s.system_throughput));
    page.push_str("<h2>Energy of all GPUs</h2>");
    page.push_str(&bars(runs, "kJ", |s| s.energy_j / 1_000.0));
    page.push_str("<h2>Time from submit to end: part of the jobs that are done in so long</h2>");
    page.push_str(&distribution(runs));
    page.push_str("<h2>Compute slices that jobs have, over time</h2>");
    page.push_str(&over_time(runs, |sample| Some(float(sample.used_per_mille) / 1_000.0)));
    page.push_str("<h2>Compute slices left over on GPUs in use (fragmentation), over time</h2>");
    page.push_str(&over_time(runs, |sample| Some(float(sample.stranded_per_mille) / 1_000.0)));
    page.push_str("<h2>Jobs that are done, of all, over time</h2>");
    page.push_str(&done_over_time(runs));
    let most = runs.iter().flat_map(|(o, _)| &o.samples).map(|s| s.waiting).max().unwrap_or(0);
    let _ = write!(page, "<h2>Jobs that wait, over time (at most {most})</h2>");
    page.push_str(&over_time(runs, |sample| Some(float(sample.waiting) / float(most.max(1)))));
    let watts = runs.iter().flat_map(|(o, _)| &o.samples).filter_map(|s| s.milliwatts).max();
    let most = float(watts.unwrap_or(1).max(1));
    let shown = most / 1e6;
    let _ = write!(page, "<h2>Power of all GPUs, over time (at most {shown:.2} kW)</h2>");
    page.push_str(&over_time(runs, |sample| Some(float(sample.milliwatts?) / most)));
    for (outcome, _) in runs {
        let _ = write!(page, "<h2>Who was where under {}</h2>", escaped(&outcome.policy));
        page.push_str(&gantt(outcome));
    }
    page.push_str("</html>\n");
    page
}

fn table(runs: &[(RunOutcome, Summary)]) -> String {
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

fn distribution(runs: &[(RunOutcome, Summary)]) -> String {
    let longest = runs.iter().flat_map(|(o, _)| o.jobs.iter().map(|j| j.jct_ms())).max();
    let longest = float(longest.unwrap_or(1).max(10)).log10();
    let curve = |(outcome, _): &(RunOutcome, Summary)| {
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

/// Draws one bar a policy, each with its number.
fn bars(runs: &[(RunOutcome, Summary)], unit: &str, value: impl Fn(&Summary) -> f64) -> String {
    let longest = runs.iter().map(|(_, summary)| value(summary)).fold(0.0, f64::max);
    let height = count(runs.len()) * BAR + 4.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\">");
    for (number, (outcome, summary)) in runs.iter().enumerate() {
        let (colour, y) = (COLOURS[number % COLOURS.len()], count(number) * BAR);
        let width = value(summary) / longest.max(f64::MIN_POSITIVE) * (WIDTH - 2.0 * LABEL);
        let number = format!("{:.3}", value(summary));
        let number = number.trim_end_matches('0').trim_end_matches('.');
        let _ = write!(
            svg,
            "<text x=\"4\" y=\"{:.0}\" font-size=\"12\">{}</text>\
             <rect x=\"{LABEL}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"{:.0}\" \
             fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"12\">{number} {unit}</text>",
            y + 15.0,
            escaped(&outcome.policy),
            y + 3.0,
            BAR - 5.0,
            LABEL + width + 6.0,
            y + 15.0,
        );
    }
    svg.push_str("</svg>");
    svg
}

fn done_over_time(runs: &[(RunOutcome, Summary)]) -> String {
    let end = float(runs.iter().map(|(o, _)| o.makespan_ms).max().unwrap_or(1).max(1));
    let curve = |(outcome, _): &(RunOutcome, Summary)| {
        let mut ends: Vec<u64> = outcome.jobs.iter().map(|job| job.end_ms).collect();
        ends.sort_unstable();
        let all = count(ends.len().max(1));
        let point = |(place, ms): (usize, u64)| (float(ms) / end, count(place + 1) / all);
        thinned(ends.into_iter().enumerate().map(point).collect())
    };
    plot(runs.iter().map(|run| (run.0.policy.as_str(), curve(run))), &hours(end))
}

fn over_time(
    runs: &[(RunOutcome, Summary)],
    value: impl Fn(&ClusterSample) -> Option<f64>,
) -> String {
    let end = float(runs.iter().map(|(o, _)| o.makespan_ms).max().unwrap_or(1).max(1));
    let curve = |(outcome, _): &(RunOutcome, Summary)| {
        let points = outcome.samples.iter().filter_map(|s| Some((float(s.at_ms) / end, value(s)?)));
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

/// Draws each GPU as a band, each instance that stands there in grey, and each job on it in colour,
/// as high as its slice.
fn gantt(outcome: &RunOutcome) -> String {
    let gpus = outcome.segments.iter().map(|s| s.gpu + 1).max().unwrap_or(0);
    let shown = gpus.min(GPUS_MAX);
    let (band, end) = (32.0, float(outcome.makespan_ms.max(1)));
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" width=\"{WIDTH}\">",
        count(shown) * band + 20.0
    );
    let bars = outcome.segments.iter().filter(|segment| segment.gpu < shown).take(BARS_MAX);
    let standing = outcome.slices.iter().filter(|slice| slice.gpu < shown).take(BARS_MAX);
    for slice in standing {
        let (x, y, width, height) = place(slice, band, end);
        let _ = write!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"#e4e4e4\" stroke=\"#aaa\" stroke-width=\"0.4\"><title>instance on GPU {}, \
             memory slices {} to {}</title></rect>",
            slice.gpu,
            slice.start,
            slice.start + slice.slices.max(1) - 1,
        );
    }
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

/// Returns where an instance is drawn: x, y, width and height.
fn place(stood: &InstanceSegment, band: f64, end: f64) -> (f64, f64, f64, f64) {
    let slice = (band - 4.0) / 8.0;
    let x = float(stood.from_ms) / end * WIDTH;
    let width = (float(stood.to_ms.saturating_sub(stood.from_ms)) / end * WIDTH).max(0.3);
    let y = count(stood.gpu) * band + f64::from(stood.start) * slice;
    (x, y, width, f64::from(stood.slices.min(8)) * slice - 0.5)
}

fn bar(segment: &JobSegment, band: f64, end: f64) -> String {
    let JobSegment { job, gpu, start, slices, from_ms, to_ms } = *segment;
    let (x, y, width, height) =
        place(&InstanceSegment { gpu, start, slices, from_ms, to_ms }, band, end);
    #[expect(clippy::cast_possible_truncation, reason = "it is below the number of colours")]
    let colour = (job % COLOURS.len() as u64) as usize;
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\">\
         <title>job {} on GPU {}, memory slices {} to {}, from {:.1} s to {:.1} s</title></rect>",
        COLOURS[colour],
        segment.job,
        segment.gpu,
        segment.start,
        segment.start + segment.slices.max(1) - 1,
        float(segment.from_ms) / 1_000.0,
        float(segment.to_ms) / 1_000.0,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
