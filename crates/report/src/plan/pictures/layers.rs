//! Every layer's bytes, and the time of its passes.
//!
//! ```text
//! bytes |  ww       | time     stacked: input map, output map, weights, workspace;
//!       |  yy .     |          points: time forward and backward, on the right axis
//!       |  xx   yy .|
//!       +-conv1-pool1
//! ```

use tightfit_plan::{Kind, LayerPlan, Plan};
use tightfit_units::{Bytes, Nanos};

use super::kind_color;
use crate::svg::axis::{Axis, Frame};
use crate::svg::canvas::{Anchor, Canvas, INK, Marker, TEXT, text_width};
use crate::svg::legend::{self, Entry, color};

const SLOT: f64 = 18.0;
const BAR: f64 = 12.0;

/// Draws the layers that own memory or compute.
pub fn layers(plan: &Plan) -> String {
    let entries = [
        Entry::area("input map", color(0)),
        Entry::area("output map", color(4)),
        Entry::area("weights", kind_color(Kind::Weights)),
        Entry::area("workspace", kind_color(Kind::Workspace)),
        Entry::points("forward", INK, Marker::Circle),
        Entry::points("backward", INK, Marker::Triangle),
    ];
    let is_drawn = |layer: &&LayerPlan| layer.weights > Bytes::ZERO || layer.output > Bytes::ZERO;
    let layers: Vec<&LayerPlan> = plan.layers.iter().filter(is_drawn).collect();
    let workspace = |layer: &LayerPlan| layer.forward_workspace.max(layer.backward_workspace);
    let most = layers.iter().map(|layer| layer.input + layer.output + layer.weights + workspace(layer)).max();
    let longest = layers.iter().map(|layer| layer.forward.max(layer.backward)).max();
    let bytes = Axis::of_bytes("memory", most.unwrap_or_default());
    let time = Axis::of_times("time", longest.unwrap_or(Nanos(1)));

    let names = layers.iter().map(|layer| text_width(&layer.name, TEXT)).fold(0.0, f64::max);
    let width = (SLOT * layers.len() as f64 + 200.0).max(640.0);
    let top = legend::head_height(&entries, width);
    let frame = Frame { left: 100.0, top, width: width - 200.0, height: 300.0 };
    let mut canvas = Canvas::new(width, frame.bottom() + names + 24.0);
    legend::draw_head("layers", &entries, width, &mut canvas);
    frame.draw_left(&bytes, &mut canvas);
    frame.draw_right(&time, &mut canvas);
    for (index, layer) in layers.iter().enumerate() {
        let middle = frame.left + SLOT * (index as f64 + 0.5);
        let mut below = Bytes::ZERO;
        let parts = [layer.input, layer.output, layer.weights, workspace(layer)];
        for (part, entry) in parts.into_iter().zip(&entries) {
            let (from, to) = (frame.y(bytes.at_bytes(below)), frame.y(bytes.at_bytes(below + part)));
            let tooltip = format!("{}: {} {part}", layer.name, entry.name);
            canvas.rect((middle - BAR / 2.0, to), (BAR, from - to), entry.color, &tooltip);
            below = below + part;
        }
        for (spent, entry) in [layer.forward, layer.backward].into_iter().zip(&entries[4..]) {
            let at = (middle, frame.y(time.at_time(spent)));
            let tooltip = format!("{}: {} {spent}", layer.name, entry.name);
            canvas.marker(entry.marker.unwrap_or(Marker::Dot), at, entry.color, &tooltip);
        }
        canvas.turned_text((middle, frame.bottom() + 8.0), Anchor::End, TEXT, -90.0, &layer.name);
    }
    canvas.line((frame.left, frame.bottom()), (frame.right(), frame.bottom()), INK);
    canvas.finish("layers")
}
