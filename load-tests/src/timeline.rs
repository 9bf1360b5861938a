//! Draws which of two programs ran when on a device, one lane for each way to share it.
//!
//! Drawn here, not by plotters: kernels last for fractions of a pixel, and its SVG has whole pixels only.

use maud::{Markup, PreEscaped, html};

/// Sizes in pixels.
const WIDTH: u64 = 900;
const LEFT: u64 = 130;
const TOP: u64 = 60;
const LANE: u64 = 34;
const PITCH: u64 = 56;

/// Which program ran; dark blue and orange, which people with any kind of colour vision can
/// distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanProgram {
    /// The one of high priority.
    High,
    /// The one of low priority.
    Low,
}

impl RanProgram {
    const fn colour(self) -> &'static str {
        match self {
            Self::High => "#1f4e79",
            Self::Low => "#e0a030",
        }
    }
}

/// A time in which a kernel ran, in nanoseconds from the start of the drawing.
#[derive(Clone, Copy, Debug)]
pub struct TimelineSpan {
    /// Program of the kernel.
    pub program: RanProgram,
    /// Its start.
    pub from: u64,
    /// Its end.
    pub until: u64,
}

/// One way to share the device.
#[derive(Clone, Debug)]
pub struct TimelineLane {
    /// The label at the left of the lane.
    pub name: &'static str,
    /// The kernels that ran, in any order.
    pub spans: Vec<TimelineSpan>,
}

/// Lanes over one time axis.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The heading.
    pub title: String,
    /// Length of the drawn time, in nanoseconds.
    pub shown: u64,
    /// Distance of the ticks of the axis, in nanoseconds.
    pub tick: u64,
    /// The lanes, from the top.
    pub lanes: Vec<TimelineLane>,
}

impl Timeline {
    /// Draws the lanes as SVG.
    pub fn draw(&self) -> String {
        let bottom = (0..).zip(&self.lanes).map(|(number, _)| lane_top(number + 1)).max();
        let bottom = bottom.unwrap_or(TOP);
        let legend = [
            (LEFT, RanProgram::High, "high priority"),
            (LEFT + 150, RanProgram::Low, "low priority"),
        ];
        let ticks = (0..).map(|number| number * self.tick).take_while(|at| *at <= self.shown);
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg"
                viewBox=(format!("0 0 {} {}", LEFT + WIDTH + 20, bottom + 30))
                font-family="sans-serif" font-size="14" {
                rect width="100%" height="100%" fill="#fff" {}
                text x=(LEFT) y="22" { (self.title) }
                @for (x, program, word) in legend {
                    rect x=(x) y="32" width="14" height="14" fill=(program.colour()) {}
                    text x=(x + 20) y="44" { (word) }
                }
                @for (number, lane) in (0..).zip(&self.lanes) {
                    (self.draw_lane(lane_top(number), lane))
                }
                @for at in ticks {
                    @let x = LEFT + at * WIDTH / self.shown;
                    line x1=(x) y1="56" x2=(x) y2=(bottom - 10) stroke="#bbb" stroke-width="0.5" {}
                    text x=(x) y=(bottom + 6) text-anchor="middle" { (at / 1_000_000) " ms" }
                }
            }
        };
        svg.into_string() + "\n"
    }

    fn draw_lane(&self, y: u64, lane: &TimelineLane) -> Markup {
        html! {
            (NEW_LINE)
            text x=(LEFT - 10) y=(y + 22) text-anchor="end" { (lane.name) }
            rect x=(LEFT) y=(y) width=(WIDTH) height=(LANE) fill="#f3f3f3" {}
            @for span in &lane.spans {
                @let from = self.across(span.from);
                @let width = self.across(span.until) - from;
                @if width > 0 {
                    (NEW_LINE)
                    rect x=(pixels(LEFT * 100 + from)) y=(y) width=(pixels(width)) height=(LANE)
                        fill=(span.program.colour()) {}
                }
            }
        }
    }

    /// Returns where a time is drawn, in hundredths of a pixel from the left end of a lane.
    fn across(&self, at: u64) -> u64 {
        at.min(self.shown) * WIDTH * 100 / self.shown
    }
}

/// One element on each line, so that a difference between two drawings can be read.
const NEW_LINE: PreEscaped<&str> = PreEscaped("\n");

fn lane_top(number: u64) -> u64 {
    TOP + PITCH * number
}

fn pixels(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_drawn_to_the_hundredth_of_a_pixel_and_cut_off_at_the_end() {
        let span = |program, from, until| TimelineSpan { program, from, until };
        let spans = vec![
            span(RanProgram::High, 0, 1_000),
            span(RanProgram::Low, 5_500_000, 9_000_000),
            span(RanProgram::Low, 7_000_000, 8_000_000),
        ];
        let title = "a < b".to_owned();
        let lanes = vec![TimelineLane { name: "alone", spans }];

        let svg = Timeline { title, shown: 6_000_000, tick: 1_000_000, lanes }.draw();

        assert!(svg.contains("a &lt; b"));
        assert!(
            svg.contains("x=\"130.00\" y=\"60\" width=\"0.15\" height=\"34\" fill=\"#1f4e79\"")
        );
        assert!(
            svg.contains("x=\"955.00\" y=\"60\" width=\"75.00\" height=\"34\" fill=\"#e0a030\"")
        );
        assert_eq!(svg.matches("#e0a030").count(), 2, "one kernel and the legend");
        assert_eq!(svg.matches(" ms</text>").count(), 7);
    }
}
