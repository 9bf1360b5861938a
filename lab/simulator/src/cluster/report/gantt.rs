//! Which job had which slice of which GPU, over time.
//!
//! Drawn here, not by plotters: each bar shows its job, slices and times when a pointer is on it, and
//! lasts for less than a pixel at times. The SVG of plotters has no tooltips, and whole pixels only.

use maud::{Markup, html};

use super::super::metrics::{InstanceSegment, JobSegment, RunOutcome};
use super::super::number::{count, float, seconds};

/// Width of the drawing, and height of a GPU's band, in pixels.
const WIDTH: f64 = 900.0;
const BAND: f64 = 32.0;

/// Maximum number of GPUs and bars of a drawing: more can't be distinguished.
const GPUS_MAX: usize = 40;
const BARS_MAX: usize = 12_000;

/// Colours of consecutive jobs: Paul Tol's muted ones, which people with any kind of colour vision can
/// distinguish.
const COLOURS: [&str; 9] = [
    "#332288", "#cc6677", "#117733", "#ddcc77", "#88ccee", "#882255", "#44aa99", "#999933",
    "#aa4499",
];

/// Draws each GPU as a band, each instance that exists there in grey, and each job on it in colour,
/// as high as its slice.
pub fn draw_gantt(outcome: &RunOutcome) -> Markup {
    let gpus = outcome.segments.iter().map(|segment| segment.gpu + 1).max().unwrap_or(0);
    let shown = gpus.min(GPUS_MAX);
    let end_ms = outcome.makespan_ms.max(1);
    let instances = outcome.slices.iter().filter(|slice| slice.gpu < shown).take(BARS_MAX);
    let jobs = outcome.segments.iter().filter(|segment| segment.gpu < shown).take(BARS_MAX);
    let bands = count(shown) * BAND;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {:.0}", bands + 34.0)) width=(WIDTH) {
            @for instance in instances { (draw_instance(instance, end_ms)) }
            @for job in jobs { (draw_job(job, end_ms)) }
            @for quarter in 1..=4_u8 {
                @let x = f64::from(quarter) / 4.0 * WIDTH;
                @let time = seconds(end_ms) * f64::from(quarter) / 4.0;
                line x1=(x) x2=(x) y1="0" y2=(bands) stroke="#ddd" {}
                text x=(x - 2.0) y=(bands + 14.0) font-size="11" text-anchor="end" {
                    (format!("{time:.0} s"))
                }
            }
            text x=(WIDTH / 2.0) y=(bands + 29.0) font-size="11" text-anchor="middle" {
                "time (s); one band for each GPU, from 0 on top"
            }
        }
        @if gpus > shown {
            p { "The first " (shown) " of " (gpus) " GPUs; the rest is in the data." }
        }
    }
}

fn draw_instance(instance: &InstanceSegment, end_ms: u64) -> Markup {
    let bar = BarPlace::new(instance, end_ms);
    let InstanceSegment { gpu, start, .. } = instance;
    html! {
        rect x=(bar.x) y=(bar.y) width=(bar.width) height=(bar.height) fill="#e4e4e4"
            stroke="#aaa" stroke-width="0.4" {
            title { "instance on GPU " (gpu) ", memory slices " (start) " to " (last(instance)) }
        }
    }
}

fn draw_job(segment: &JobSegment, end_ms: u64) -> Markup {
    let JobSegment { job, gpu, start, slices, from_ms, to_ms } = *segment;
    let instance = InstanceSegment { gpu, start, slices, from_ms, to_ms };
    let bar = BarPlace::new(&instance, end_ms);
    let times = format!("from {:.1} s to {:.1} s", seconds(from_ms), seconds(to_ms));
    html! {
        rect x=(bar.x) y=(bar.y) width=(bar.width) height=(bar.height) fill=(colour(job)) {
            title {
                "job " (job) " on GPU " (gpu) ", memory slices " (start) " to " (last(&instance))
                ", " (times)
            }
        }
    }
}

fn last(instance: &InstanceSegment) -> u8 {
    instance.start + instance.slices.max(1) - 1
}

#[expect(clippy::cast_possible_truncation, reason = "less than the number of colours")]
fn colour(job: u64) -> &'static str {
    COLOURS[(job % COLOURS.len() as u64) as usize]
}

/// Where a bar is drawn, in tenths of a pixel.
struct BarPlace {
    x: String,
    y: String,
    width: String,
    height: String,
}

impl BarPlace {
    fn new(instance: &InstanceSegment, end_ms: u64) -> Self {
        let slice = (BAND - 4.0) / 8.0;
        let across = |ms: u64| float(ms) / float(end_ms) * WIDTH;
        let lasted = across(instance.to_ms.saturating_sub(instance.from_ms)).max(0.3);
        let y = count(instance.gpu) * BAND + f64::from(instance.start) * slice;
        let tenths = |pixels: f64| format!("{pixels:.1}");
        Self {
            x: tenths(across(instance.from_ms)),
            y: tenths(y),
            width: tenths(lasted),
            height: tenths(f64::from(instance.slices.min(8)) * slice - 0.5),
        }
    }
}
