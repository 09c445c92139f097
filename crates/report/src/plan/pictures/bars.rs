//! Horizontal bars of bytes: a plan's totals, and its peak of live bytes by kind.

use tightfit_plan::{Kind, Plan};
use tightfit_units::Bytes;

use super::{WIDTH, kind_color};
use crate::rounded;
use crate::svg::axis::{Axis, Frame};
use crate::svg::canvas::{Anchor, Canvas, TEXT, text_width};
use crate::svg::legend::{self, color};

const ROW: f64 = 24.0;

struct Row {
    name: String,
    bytes: Bytes,
    fill: &'static str,
    note: String,
}

/// Draws plain, the peak and the average of live bytes, as counted by tightfit and by the vDNN paper.
pub fn totals(plan: &Plan) -> String {
    let mut rows = Vec::new();
    for (prefix, whole, accounting) in [("", "plain", &plan.ours), ("as in the paper: ", "baseline", &plan.paper)] {
        for (name, bytes, saved) in [
            (whole, accounting.baseline, None),
            ("maximum", accounting.maximum, Some(accounting.maximum_saved())),
            ("average", accounting.average, Some(accounting.average_saved())),
        ] {
            let share =
                saved.filter(|saved| saved.is_finite()).map(|saved| format!(", {}% saved", rounded(saved * 100.0, 1)));
            let fill = if saved.is_none() { "#bbbbbb" } else { color(if name == "maximum" { 0 } else { 4 }) };
            rows.push(Row { name: format!("{prefix}{name}"), bytes, fill, note: share.unwrap_or_default() });
        }
    }
    for (name, bytes) in
        [("arena on the device", plan.peak), ("arena on the host", plan.host), ("offloaded per step", plan.offloaded)]
    {
        rows.push(Row { name: name.to_owned(), bytes, fill: color(1), note: String::new() });
    }
    bars("peak and average", &rows)
}

/// Draws the peak of live bytes by kind, and the largest working set of a layer.
pub fn kinds(plan: &Plan) -> String {
    let most = plan.at_most.total();
    let share = |bytes: Bytes, of: Bytes, what: &str| {
        format!(", {:.1}% of {what}", bytes.0 as f64 / of.0.max(1) as f64 * 100.0)
    };
    let mut rows: Vec<Row> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let bytes = plan.at_most.get(kind);
            Row { name: kind.name().to_owned(), bytes, fill: kind_color(kind), note: share(bytes, most, "all") }
        })
        .collect();
    let working_set = plan.layers.iter().map(|layer| layer.working_set).max().unwrap_or_default();
    let note = share(working_set, plan.baseline, "plain");
    rows.push(Row { name: "largest working set of a layer".to_owned(), bytes: working_set, fill: color(1), note });
    bars("by kind at the peak", &rows)
}

fn bars(title: &str, rows: &[Row]) -> String {
    let axis = Axis::of_bytes("bytes", rows.iter().map(|row| row.bytes).max().unwrap_or_default());
    let notes = rows.iter().map(|row| format!("{}{}", row.bytes, row.note));
    let notes: Vec<String> = notes.collect();
    let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(|text| text_width(text, TEXT)).fold(0.0, f64::max);
    let left = widest(&mut rows.iter().map(|row| row.name.as_str())) + 24.0;
    let right = widest(&mut notes.iter().map(String::as_str)) + 16.0;
    let top = legend::head_height(&[], WIDTH);
    let frame = Frame { left, top, width: WIDTH - left - right, height: ROW * rows.len() as f64 };
    let mut canvas = Canvas::new(WIDTH, frame.bottom() + 52.0);
    legend::draw_head(title, &[], WIDTH, &mut canvas);
    frame.draw_bottom(&axis, &mut canvas);
    for (index, (row, note)) in rows.iter().zip(&notes).enumerate() {
        let y = frame.top + ROW * (index as f64 + 0.5);
        let width = frame.width * axis.at_bytes(row.bytes);
        canvas.text((left - 8.0, y), Anchor::End, TEXT, &row.name);
        canvas.rect((left, y - ROW / 3.0), (width, ROW / 1.5), row.fill, &format!("{}: {note}", row.name));
        canvas.text((left + width + 8.0, y), Anchor::Start, TEXT, note);
    }
    canvas.finish(title)
}
