//! Every feature map: its size, its treatment, and its idle time.
//!
//! ```text
//!          bytes                reuse distance
//! conv1    #########            ===================     the first map written is the last one read again
//! pool1    ####                 ==============
//! ```

use tightfit_plan::{MapTreatment, Plan};
use tightfit_units::{Bytes, Nanos};

use crate::svg::axis::{Axis, Frame};
use crate::svg::canvas::{Anchor, Canvas, INK, TEXT, text_width};
use crate::svg::legend::{self, Entry, color};

const ROW: f64 = 16.0;
const PANEL: f64 = 380.0;

/// Draws one row per map, in the order of their first write.
pub fn maps(plan: &Plan) -> String {
    let fill = |fate: MapTreatment| match fate {
        MapTreatment::Kept => color(0),
        MapTreatment::Released => color(4),
        MapTreatment::Offloaded => color(1),
        MapTreatment::Recomputed => color(3),
    };
    let mut fates = vec![MapTreatment::Kept, MapTreatment::Released, MapTreatment::Offloaded];
    if plan.maps.iter().any(|map| map.fate == MapTreatment::Recomputed) {
        fates.push(MapTreatment::Recomputed);
    }
    let mut entries: Vec<Entry> = fates.iter().map(|&fate| Entry::area(fate.name(), fill(fate))).collect();
    entries.push(Entry::area("reuse distance", color(2)));
    let bytes = Axis::of_bytes("bytes", plan.maps.iter().map(|map| map.bytes).max().unwrap_or(Bytes(1)));
    let longest = plan.maps.iter().filter_map(|map| map.reuse_distance).max();
    let time = Axis::of_times("reuse distance", longest.unwrap_or(Nanos(1)));

    let name = |layers: &[String]| layers.first().cloned().unwrap_or_default();
    let left = 24.0 + plan.maps.iter().map(|map| text_width(&name(&map.layers), TEXT)).fold(60.0, f64::max);
    let width = left + 2.0 * PANEL + 90.0;
    let top = legend::head_height(&entries, width);
    let left_panel = Frame { left, top, width: PANEL, height: ROW * plan.maps.len().max(2) as f64 };
    let right_panel = Frame { left: left_panel.right() + 50.0, ..left_panel };
    let mut canvas = Canvas::new(width, left_panel.bottom() + 52.0);
    legend::draw_head("feature maps", &entries, width, &mut canvas);
    left_panel.draw_bottom(&bytes, &mut canvas);
    right_panel.draw_bottom(&time, &mut canvas);
    for (index, map) in plan.maps.iter().enumerate() {
        let y = top + ROW * (index as f64 + 0.5);
        canvas.text((left - 8.0, y), Anchor::End, TEXT, &name(&map.layers));
        let tooltip = format!("{}: {}, {}", map.layers.join(" "), map.bytes, map.fate.name());
        let size = (PANEL * bytes.at_bytes(map.bytes), ROW - 5.0);
        canvas.rect((left, y - size.1 / 2.0), size, fill(map.fate), &tooltip);
        if let Some(distance) = map.reuse_distance {
            let size = (PANEL * time.at_time(distance), ROW - 5.0);
            let tooltip = format!("{}: read again after {distance}", map.layers.join(" "));
            canvas.rect((right_panel.left, y - size.1 / 2.0), size, color(2), &tooltip);
        }
    }
    for frame in [left_panel, right_panel] {
        canvas.line((frame.left, frame.top), (frame.left, frame.bottom()), INK);
    }
    canvas.finish("feature maps")
}
