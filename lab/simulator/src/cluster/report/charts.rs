//! Curves and bars, drawn by plotters: axes with units, a legend to the right of the plot.

use std::io;
use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::super::number::count;

/// Why a chart can't be drawn.
pub type ChartError = DrawingAreaErrorKind<io::Error>;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Okabe and Ito's colours, which people with any kind of colour vision can distinguish; their yellow
/// is left out, since it is hard to see on white.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// Width of a chart and of its legend, and height of a plot and of one bar, in pixels.
const WIDTH: u32 = 960;
const LEGEND: u32 = 150;
const HEIGHT: u32 = 300;
const BAR: u32 = 24;
/// Font sizes in plotters' unit, 1.24 of a pixel.
const FONT: (&str, u32) = ("sans-serif", 15);
const AXIS_FONT: (&str, u32) = ("sans-serif", 14);

/// One line of a plot.
pub struct Curve<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// Its points, by rising x.
    pub points: Vec<(f64, f64)>,
}

/// What the axes of a plot show.
pub struct PlotAxes<'a> {
    /// Quantity and unit.
    pub x: &'a str,
    /// The first and the last value.
    pub x_range: Range<f64>,
    /// Whether the scale is logarithmic.
    pub is_x_logarithmic: bool,
    /// Quantity and unit; the axis begins at 0.
    pub y: &'a str,
    /// The largest value.
    pub y_max: f64,
}

/// Draws curves.
///
/// # Errors
///
/// [`ChartError`] if plotters can't place a text.
pub fn draw_curves(axes: &PlotAxes<'_>, curves: &[Curve<'_>]) -> Result<String, ChartError> {
    draw(HEIGHT, |canvas| {
        let (plot, legend) = canvas.split_horizontally(WIDTH - LEGEND);
        let range = axes.x_range.clone();
        if axes.is_x_logarithmic {
            plot_curves(&plot, range.log_scale(), axes, curves)?;
        } else {
            plot_curves(&plot, range, axes, curves)?;
        }
        for (y, (number, curve)) in (24..).step_by(18).zip(curves.iter().enumerate()) {
            legend.draw(&PathElement::new([(4, y), (28, y)], line_style(number)))?;
            legend.draw(&Text::new(curve.name, (34, y), text_style(HPos::Left)))?;
        }
        Ok(())
    })
}

/// Draws one horizontal bar for each name, the first one on top, each with its number.
///
/// # Errors
///
/// [`ChartError`] if plotters can't place a text.
pub fn draw_bars(unit: &str, bars: &[(&str, f64)]) -> Result<String, ChartError> {
    let longest = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let longest = if longest > 0.0 { longest } else { 1.0 };
    let rows = bars.len().max(1);
    let height = u32::try_from(rows).map_or(u32::MAX, |rows| rows.saturating_mul(BAR));
    draw(height.saturating_add(56), |canvas| {
        let mut chart = ChartBuilder::on(canvas)
            .margin(6)
            .x_label_area_size(40)
            .y_label_area_size(130)
            .build_cartesian_2d(0.0..longest * 1.15, 0.0..count(rows))?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .x_labels(8)
            .x_desc(unit)
            .x_label_formatter(&|value| plain(*value))
            .label_style(AXIS_FONT)
            .draw()?;
        for (number, (name, value)) in bars.iter().enumerate() {
            let bottom = count(rows - number - 1);
            let corners = [(0.0, bottom), (*value, bottom + 1.0)];
            let mut bar = Rectangle::new(corners, colour(number).filled());
            bar.set_margin(3, 3, 0, 0);
            chart.draw_series([bar])?;
            let text = format!(" {} {unit}", plain(*value));
            let place = (*value, bottom + 0.5);
            chart.draw_series([Text::new(text, place, text_style(HPos::Left))])?;
            let (x, y) = chart.backend_coord(&(0.0, bottom + 0.5));
            canvas.draw(&Text::new(*name, (x - 8, y), text_style(HPos::Right)))?;
        }
        Ok(())
    })
}

fn draw(
    height: u32,
    paint: impl FnOnce(&Canvas<'_>) -> Result<(), ChartError>,
) -> Result<String, ChartError> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        canvas.fill(&WHITE)?;
        paint(&canvas)?;
        canvas.present()?;
    }
    Ok(svg)
}

fn plot_curves<X>(
    plot: &Canvas<'_>,
    x: X,
    axes: &PlotAxes<'_>,
    curves: &[Curve<'_>],
) -> Result<(), ChartError>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(plot)
        .margin(6)
        .margin_right(20)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(x, 0.0..axes.y_max)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(axes.x)
        .x_labels(8)
        .x_label_formatter(&|value| plain(*value))
        .y_desc(axes.y)
        .y_labels(6)
        .y_label_formatter(&|value| plain(*value))
        .label_style(AXIS_FONT)
        .draw()?;
    for (number, curve) in curves.iter().enumerate() {
        let points = curve.points.iter().map(|(x, y)| (*x, y.min(axes.y_max)));
        chart.draw_series(LineSeries::new(points, line_style(number)))?;
    }
    Ok(())
}

fn text_style(side: HPos) -> TextStyle<'static> {
    FONT.into_font().color(&BLACK).pos(Pos::new(side, VPos::Center))
}

fn colour(number: usize) -> RGBColor {
    PALETTE[number % PALETTE.len()]
}

/// Colours are repeated with a thicker line.
fn line_style(number: usize) -> ShapeStyle {
    colour(number).stroke_width(if number < PALETTE.len() { 2 } else { 4 })
}

/// Writes a number with up to three decimals.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Maximum number of points of one curve: more can't be distinguished.
const POINTS_MAX: usize = 1_200;

/// Leaves points out of a curve that has too many.
pub fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(POINTS_MAX).max(1);
    points.into_iter().step_by(stride).collect()
}

/// Returns the part of a sorted list of values up to each of them, in percent.
pub fn cumulate(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let all = count(values.len().max(1));
    thin((1..).zip(values).map(|(done, value)| (value, count(done) / all * 100.0)).collect())
}
