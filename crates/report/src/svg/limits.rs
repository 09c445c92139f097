//! A network's time against its workspace limit, with one curve per choice of micro-batch sizes.

use tightfit_units::{Bytes, Nanos};

use super::axis::{Axis, Frame};
use super::canvas::{Anchor, Canvas, TEXT};
use super::legend::{self, Entry};

/// The times of one choice of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Name of the sizes.
    pub name: String,
    /// Rising limits, each with its time; limits that nothing fits are omitted.
    pub points: Vec<(Bytes, Nanos)>,
}

/// Draws one curve per choice of sizes; `limit` is the label of the horizontal axis.
///
/// ```
/// use tightfit_report::svg::{Curve, limits};
/// use tightfit_units::{Bytes, Nanos};
/// let fit = Curve {
///     name: "fit".to_owned(),
///     points: vec![(Bytes::ZERO, Nanos(42_000_000)), (Bytes::mib(64), Nanos(22_000_000))],
/// };
/// let picture = limits("alexnet, mini-batch 256", "workspace limit per kernel", &[fit]);
/// assert!(picture.starts_with("<svg") && picture.contains(">64 MiB<"));
/// ```
pub fn limits(title: &str, limit: &str, curves: &[Curve]) -> String {
    let entries: Vec<_> = curves
        .iter()
        .enumerate()
        .map(|(index, curve)| Entry::points(&curve.name, legend::color(index), legend::marker(index)))
        .collect();
    let width = 720.0;
    let frame = Frame { left: 90.0, top: legend::head_height(&entries, width), width: width - 140.0, height: 320.0 };
    let mut canvas = Canvas::new(width, frame.bottom() + 52.0);
    legend::draw_head(title, &entries, width, &mut canvas);

    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let time = Axis::of_times("time", points().map(|(_, time)| time).max().unwrap_or_default());
    let bytes = Axis::of_doubling_bytes(limit, points().map(|(bytes, _)| bytes));
    frame.draw_bottom(&bytes, &mut canvas);
    frame.draw_left(&time, &mut canvas);
    for (index, (curve, entry)) in curves.iter().zip(&entries).enumerate() {
        let places: Vec<_> =
            curve.points.iter().map(|(b, t)| (frame.x(bytes.at_bytes(*b)), frame.y(time.at_time(*t)))).collect();
        // Policies often agree, so each curve is thinner than the one under it.
        canvas.path(&places, entry.color, 2 + (curves.len() - 1 - index).min(3));
        for (&at, (bytes, time)) in places.iter().zip(&curve.points) {
            if let Some(marker) = entry.marker {
                canvas.marker(marker, at, entry.color, &format!("{}: {time} at {bytes}", curve.name));
            }
        }
    }
    if points().next().is_none() {
        canvas.text((frame.x(0.5), frame.y(0.5)), Anchor::Middle, TEXT, "no configuration");
    }
    canvas.finish(title)
}
