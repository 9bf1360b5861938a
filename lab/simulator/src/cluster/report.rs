//! One page that shows the outcome of a workload under each policy: no network, no script.

mod charts;
mod gantt;

use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use self::charts::ChartError;
use self::charts::{Curve, PlotAxes, cumulate, draw_bars, draw_curves, thin};
use self::gantt::draw_gantt;
use super::metrics::{ClusterSample, RunOutcome, Summary};
use super::number::{float, seconds};

/// Dark text on white, even if the browser prefers dark pages: the charts have white backgrounds.
const STYLE: &str = "html{color-scheme:light;background:#fff}body{font:14px sans-serif;margin:2em;\
                     max-width:960px}td,th{padding:2px 10px;text-align:right}td:first-child,\
                     th:first-child{text-align:left}svg{background:#fafafa}";

type PolicyRun = (RunOutcome, Summary);

/// Writes the page.
///
/// # Errors
///
/// [`ChartError`] if a chart can't be drawn.
pub fn render_page(title: &str, runs: &[PolicyRun]) -> Result<String, ChartError> {
    let charts = draw_charts(runs)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                (table(runs))
                @for (heading, chart) in &charts {
                    h2 { (heading) }
                    (PreEscaped(chart))
                }
                @for (outcome, _) in runs {
                    h2 { "Who was where under " (outcome.policy) }
                    (draw_gantt(outcome))
                }
            }
        }
    };
    Ok(page.into_string())
}

fn table(runs: &[PolicyRun]) -> Markup {
    let titles = [
        "policy",
        "mean JCT",
        "p95 JCT",
        "makespan",
        "throughput",
        "energy",
        "cuts",
        "moves",
        "late",
        "JCT/bound",
        "makespan/bound",
    ];
    html! {
        table {
            tr { @for title in titles { th { (title) } } }
            @for (_, s) in runs {
                tr {
                    td { (s.policy) }
                    td { (format!("{:.1} s", s.jct_mean_s)) }
                    td { (format!("{:.1} s", s.jct_p95_s)) }
                    td { (format!("{:.1} s", s.makespan_s)) }
                    td { (format!("{:.3}", s.system_throughput)) }
                    td { (format!("{:.1} kJ", s.energy_j / 1_000.0)) }
                    td { (s.reconfigurations) }
                    td { (s.moves) }
                    td { (s.deadlines_missed) }
                    td { (format!("{:.3}", s.jct_over_bound)) }
                    td { (format!("{:.3}", s.makespan_over_bound)) }
                }
            }
        }
    }
}

/// Draws every chart except the Gantt charts, each with its heading.
fn draw_charts(runs: &[PolicyRun]) -> Result<Vec<(String, String)>, ChartError> {
    let bars = |unit: &str, value: &dyn Fn(&Summary) -> f64| {
        let bars: Vec<_> = runs.iter().map(|(o, s)| (o.policy.as_str(), value(s))).collect();
        draw_bars(unit, &bars)
    };
    let samples = || runs.iter().flat_map(|(outcome, _)| &outcome.samples);
    let waiting = samples().map(|sample| sample.waiting).max().unwrap_or(0);
    let power = samples().filter_map(|sample| sample.milliwatts).max().unwrap_or(0);
    let slices = "% of all compute slices";
    let percent = |per_mille: u64| Some(float(per_mille) / 10.0);
    let charts = [
        ("Makespan".to_owned(), bars("s", &|s| s.makespan_s)?),
        (
            "System throughput: time alone of all jobs, over makespan and GPUs".to_owned(),
            bars("", &|s| s.system_throughput)?,
        ),
        ("Energy of all GPUs".to_owned(), bars("kJ", &|s| s.energy_j / 1_000.0)?),
        (
            "Time from submit to end: part of the jobs that are done in so long".to_owned(),
            draw_distribution(runs)?,
        ),
        (
            "Compute slices that jobs have, over time".to_owned(),
            draw_over_time(runs, slices, 100.0, |s| percent(s.used_per_mille))?,
        ),
        (
            "Compute slices left over on GPUs in use (fragmentation), over time".to_owned(),
            draw_over_time(runs, slices, 100.0, |s| percent(s.stranded_per_mille))?,
        ),
        ("Jobs that are done, of all, over time".to_owned(), draw_done(runs)?),
        (
            format!("Jobs that wait, over time (at most {waiting})"),
            draw_over_time(runs, "jobs", float(waiting.max(1)), |s| Some(float(s.waiting)))?,
        ),
        (
            format!("Power of all GPUs, over time (at most {:.2} kW)", kilowatts(power)),
            draw_over_time(runs, "kW", if power > 0 { kilowatts(power) } else { 1.0 }, |s| {
                Some(kilowatts(s.milliwatts?))
            })?,
        ),
    ];
    Ok(charts.into())
}

fn kilowatts(milliwatts: u64) -> f64 {
    float(milliwatts) / 1e6
}

/// Draws the distribution of the jobs' times.
fn draw_distribution(runs: &[PolicyRun]) -> Result<String, ChartError> {
    let times = |outcome: &RunOutcome| -> Vec<f64> {
        outcome.jobs.iter().map(|job| seconds(job.jct_ms().max(1))).collect()
    };
    let all: Vec<f64> = runs.iter().flat_map(|(outcome, _)| times(outcome)).collect();
    let shortest = all.iter().copied().fold(1.0, f64::min);
    let longest = all.iter().copied().fold(shortest * 10.0, f64::max);
    let axes = PlotAxes {
        x: "time from submit to end (s)",
        x_range: shortest..longest,
        is_x_logarithmic: true,
        y: "% of all jobs",
        y_max: 100.0,
    };
    draw_curves(&axes, &curves(runs, |outcome| cumulate(times(outcome))))
}

/// Draws which part of the jobs was done when.
fn draw_done(runs: &[PolicyRun]) -> Result<String, ChartError> {
    let ends = |outcome: &RunOutcome| -> Vec<f64> {
        outcome.jobs.iter().map(|job| seconds(job.end_ms)).collect()
    };
    let axes = time_axes(runs, "% of all jobs", 100.0);
    draw_curves(&axes, &curves(runs, |outcome| cumulate(ends(outcome))))
}

fn draw_over_time(
    runs: &[PolicyRun],
    y: &str,
    y_max: f64,
    value: impl Fn(&ClusterSample) -> Option<f64>,
) -> Result<String, ChartError> {
    let points = |outcome: &RunOutcome| {
        let point = |sample: &ClusterSample| Some((seconds(sample.at_ms), value(sample)?));
        thin(outcome.samples.iter().filter_map(point).collect())
    };
    draw_curves(&time_axes(runs, y, y_max), &curves(runs, points))
}

fn curves(runs: &[PolicyRun], points: impl Fn(&RunOutcome) -> Vec<(f64, f64)>) -> Vec<Curve<'_>> {
    runs.iter()
        .map(|(outcome, _)| Curve { name: &outcome.policy, points: points(outcome) })
        .collect()
}

/// Returns axes from the start to the end of the longest run.
fn time_axes<'a>(runs: &[PolicyRun], y: &'a str, y_max: f64) -> PlotAxes<'a> {
    let end_ms = runs.iter().map(|(outcome, _)| outcome.makespan_ms).max().unwrap_or(0);
    PlotAxes {
        x: "time (s)",
        x_range: 0.0..seconds(end_ms.max(1)),
        is_x_logarithmic: false,
        y,
        y_max,
    }
}
