//! The plots of a report, as SVG. Colours are names here: the page says how each looks, in the light and in the dark.

use super::{book::Ending, figures, run::Outcome, styles::Style};
use crate::failure::Failure;
use plotters::{
    coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    prelude::{
        ChartBuilder, Color, IntoDrawingArea, IntoLogRange, LineSeries, RGBColor, SVGBackend,
    },
};
use std::io;

/// A plot and what it shows.
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) note: &'static str,
    pub(super) svg: String,
}

/// Of axes and letters.
pub(super) const INK: RGBColor = RGBColor(0, 0, 0);
/// Of the lines behind a plot.
pub(super) const GRID: RGBColor = RGBColor(0, 0, 1);

/// A style's.
pub(super) const fn colour(style: Style) -> RGBColor {
    match style {
        Style::Flawed => RGBColor(0, 0, 2),
        Style::Backoff => RGBColor(0, 0, 3),
        Style::Lockwarden => RGBColor(0, 0, 4),
        Style::LockwardenNested => RGBColor(0, 0, 5),
    }
}

/// As many points as a line can show.
const POINTS: usize = 300;
const SIZE: (u32, u32) = (760, 320);
/// Of the axis of response times, in ms.
const LEAST_RESPONSE_MS: f64 = 0.1;

struct Line {
    style: Style,
    points: Vec<(f64, f64)>,
}

/// All plots of a run.
pub(super) fn all(outcomes: &[Outcome]) -> Result<Vec<Plot>, Failure> {
    let longest_s = outcomes.iter().map(|it| figures::total(it).as_secs_f64()).fold(0.1, f64::max);
    let over_time = |y: &'static str, line: &dyn Fn(&Outcome) -> Vec<(f64, f64)>| {
        let lines = lines(outcomes, line);
        draw(0.0..longest_s * 1.02, "seconds since the start", y, &lines)
    };
    let responses = lines(outcomes, &latencies);
    let all = responses.iter().flat_map(|it| &it.points);
    let slowest_ms = all.map(|(ms, _)| *ms).fold(LEAST_RESPONSE_MS * 100.0, f64::max);
    Ok(vec![
        Plot {
            title: "How long orders waited for their locks",
            note: "The share of all orders that had their locks within this time. A line that ends low tells of orders \
                   that gave up.",
            svg: draw(
                (LEAST_RESPONSE_MS..slowest_ms * 1.1).log_scale(),
                "milliseconds (each step is ten times the one before)",
                "% of all orders",
                &responses,
            )?,
        },
        Plot {
            title: "Throughput",
            note: "Orders that were done, per second.",
            svg: over_time("orders per second", &throughput)?,
        },
        Plot {
            title: "Queue",
            note: "Orders that had asked for their locks and did not have them all.",
            svg: over_time("orders waiting", &queue)?,
        },
        Plot {
            title: "Connections",
            note: "Connections to the server, beyond those that were there before. None on an embedded store.",
            svg: over_time("connections", &connections)?,
        },
    ])
}

fn lines(outcomes: &[Outcome], points: &dyn Fn(&Outcome) -> Vec<(f64, f64)>) -> Vec<Line> {
    outcomes.iter().map(|it| Line { style: it.style, points: points(it) }).collect()
}

/// Time in ms, and the share of all orders.
fn latencies(outcome: &Outcome) -> Vec<(f64, f64)> {
    let responses = figures::responses(outcome);
    let all = outcome.book.entries().len() as f64;
    let mut points: Vec<(f64, f64)> = thinned(responses.len())
        .map(|index| (responses[index].max(LEAST_RESPONSE_MS), (index + 1) as f64 / all * 100.0))
        .collect();
    if let Some(first) = points.first().copied() {
        points.insert(0, (first.0, 0.0));
    }
    points
}

fn throughput(outcome: &Outcome) -> Vec<(f64, f64)> {
    let total_s = figures::total(outcome).as_secs_f64();
    // A bin that is shorter than a tenth of a second shows noise.
    let bin_s = (total_s / 50.0).max(0.1);
    let mut bins = vec![0.0_f64; (total_s / bin_s) as usize + 1];
    for (at_us, ending) in outcome.book.entries().iter().filter_map(|it| it.ended) {
        let at = (since_s(outcome, at_us) / bin_s) as usize;
        if let (Ending::Done, Some(bin)) = (ending, bins.get_mut(at)) {
            *bin += 1.0;
        }
    }
    let ends = |(index, count): (usize, &f64)| {
        let from_s = index as f64 * bin_s;
        [(from_s, count / bin_s), ((from_s + bin_s).min(total_s), count / bin_s)]
    };
    bins.iter().enumerate().flat_map(ends).chain([(total_s, 0.0)]).collect()
}

fn queue(outcome: &Outcome) -> Vec<(f64, f64)> {
    let mut changes = outcome.book.waiting.clone();
    // Processes are heard one after the other.
    changes.sort_by_key(|(at_us, _)| *at_us);
    let mut waiting = 0_i64;
    let lengths: Vec<(f64, f64)> = changes
        .iter()
        .map(|(at_us, change)| {
            waiting += i64::from(*change);
            (since_s(outcome, *at_us), waiting as f64)
        })
        .collect();
    thinned(lengths.len()).map(|index| lengths[index]).collect()
}

fn connections(outcome: &Outcome) -> Vec<(f64, f64)> {
    let samples = &outcome.counted.samples;
    let total_s = figures::total(outcome).as_secs_f64();
    let point =
        |index: usize| (since_s(outcome, samples[index].at_us), samples[index].connections as f64);
    thinned(samples.len()).map(point).filter(|(at_s, _)| (0.0..=total_s).contains(at_s)).collect()
}

fn since_s(outcome: &Outcome, at_us: u64) -> f64 {
    (at_us as f64 - outcome.began_us as f64).max(-1.0) / 1_000_000.0
}

/// So many of the places of a list that a line can show them, the last among them.
fn thinned(len: usize) -> impl Iterator<Item = usize> {
    let step = len.div_ceil(POINTS).max(1);
    let last = len.checked_sub(1).filter(|last| last % step != 0);
    (0..len).step_by(step).chain(last)
}

fn draw<X>(x: X, x_name: &str, y_name: &str, lines: &[Line]) -> Result<String, Failure>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let highest = lines.iter().flat_map(|it| &it.points).map(|(_, y)| *y).fold(1.0, f64::max);
    let mut svg = String::new();
    let drawn = (|| {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, 0.0..highest * 1.05)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .max_light_lines(0)
            .axis_style(INK)
            .label_style(("sans-serif", 15, &INK))
            .axis_desc_style(("sans-serif", 15, &INK))
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| short(*y))
            .x_desc(x_name)
            .y_desc(y_name)
            .draw()?;
        for Line { style, points } in lines {
            let style = colour(*style).stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        }
        area.present()
    })();
    drawn.map_err(|error| Failure::System {
        what: "draw a plot",
        source: io::Error::other(error.to_string()),
    })?;
    Ok(svg)
}

/// Without places that say nothing.
fn short(value: f64) -> String {
    // A step of an axis is no finer than that.
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        assert_eq!([100.0, 0.5, 0.25, 0.0].map(short), ["100", "0.5", "0.25", "0"]);
    }

    #[test]
    fn long_lines_are_thinned_and_keep_their_end() {
        assert_eq!(thinned(0).count(), 0);
        assert_eq!(thinned(3).collect::<Vec<_>>(), [0, 1, 2]);
        let places: Vec<usize> = thinned(1_001).collect();
        assert!(places.len() <= POINTS + 1 && places.contains(&1_000), "{}", places.len());
        assert_eq!(thinned(301).last(), Some(300));
    }
}
