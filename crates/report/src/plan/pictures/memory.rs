//! Live bytes over one step, stacked by kind.
//!
//! ```text
//! bytes |      ____            temporary memory is stacked on resident memory
//!       |   __/    \___
//!       |__/___________\__
//!       +-----------------+ time
//! ```

use tightfit_plan::{Kind, KindBytes, Plan};
use tightfit_units::{Bytes, Nanos};

use super::{WIDTH, kind_color};
use crate::svg::axis::{Axis, Frame};
use crate::svg::canvas::{Canvas, INK};
use crate::svg::legend::{self, Entry};

/// Number of columns to draw; each shows its highest level.
const COLUMNS: usize = 450;

/// Draws live bytes over time, with a dot at the peak, and the budget as a dashed line if it is near.
pub fn memory(plan: &Plan) -> String {
    let kinds = Kind::ALL.into_iter().filter(|kind| plan.at_most.get(*kind) > Bytes::ZERO);
    let kinds: Vec<Kind> = kinds.collect();
    let entries: Vec<Entry> = kinds.iter().map(|&kind| Entry::area(kind.name(), kind_color(kind))).collect();
    let columns = columns(plan);
    let most = columns.iter().map(KindBytes::total).max().unwrap_or_default();
    // A budget far above the peak would squeeze the picture.
    let budget = Some(plan.options.budget).filter(|budget| budget.0 / 2 <= most.0);
    let time = Axis::of_times_until("time", plan.step_time);
    let bytes = Axis::of_bytes("live bytes", most.max(budget.unwrap_or_default()));

    let top = legend::head_height(&entries, WIDTH);
    let frame = Frame { left: 100.0, top, width: WIDTH - 140.0, height: 320.0 };
    let mut canvas = Canvas::new(WIDTH, frame.bottom() + 52.0);
    let title = format!("live bytes over one step, at most {most}");
    legend::draw_head(&title, &entries, WIDTH, &mut canvas);
    frame.draw_left(&bytes, &mut canvas);
    frame.draw_bottom(&time, &mut canvas);

    let step = frame.width * time.at_time(plan.step_time) / columns.len().max(1) as f64;
    let x = |column: usize| frame.left + step * column as f64;
    let mut below = vec![Bytes::ZERO; columns.len()];
    for &kind in &kinds {
        let above: Vec<Bytes> = columns.iter().zip(&below).map(|(live, below)| *below + live.get(kind)).collect();
        let edge = |heights: &[Bytes]| -> Vec<(f64, f64)> {
            let corner = |(column, height): (usize, &Bytes)| {
                let y = frame.y(bytes.at_bytes(*height));
                [(x(column), y), (x(column + 1), y)]
            };
            heights.iter().enumerate().flat_map(corner).collect()
        };
        let outline: Vec<_> = edge(&above).into_iter().chain(edge(&below).into_iter().rev()).collect();
        canvas.area(&outline, kind_color(kind));
        below = above;
    }
    for (column, live) in columns.iter().enumerate() {
        let at = Nanos(plan.step_time.0 / columns.len() as u64 * column as u64);
        let parts = kinds.iter().map(|&kind| format!("{} {}", kind.name(), live.get(kind)));
        let text = format!("{at}: {} live; {}", live.total(), parts.collect::<Vec<_>>().join(", "));
        canvas.rect((x(column), frame.top), (step, frame.height), "transparent", &text);
    }
    if let Some(budget) = budget {
        let y = frame.y(bytes.at_bytes(budget));
        canvas.dashed((frame.left, y), (frame.right(), y), INK);
    }
    // The columns are narrower than the marker, so the tooltip of the highest one is the marker's.
    if let Some(column) = columns.iter().position(|live| live.total() == most) {
        let at = (x(column) + step / 2.0, frame.y(bytes.at_bytes(most)));
        canvas.marker(legend::marker(0), at, INK, &format!("at most {most}"));
    }
    canvas.finish(&title)
}

/// For each column, the level with the most live bytes.
fn columns(plan: &Plan) -> Vec<KindBytes> {
    let levels = &plan.simulation.levels;
    let place = |at: Nanos| (at.0 as u128 * COLUMNS as u128 / u128::from(plan.step_time.0.max(1))) as usize;
    let mut columns: Vec<Option<KindBytes>> = vec![None; COLUMNS];
    let ends = levels.iter().skip(1).map(|level| level.at).chain([plan.step_time]);
    for (level, end) in levels.iter().zip(ends) {
        let last = place(end).min(COLUMNS - 1);
        for column in &mut columns[place(level.at).min(COLUMNS - 1)..=last] {
            if column.is_none_or(|most| most.total() < level.live.total()) {
                *column = Some(level.live);
            }
        }
    }
    columns.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;

    #[test]
    fn short_peaks_are_drawn() {
        let mut plan = samples::small();
        plan.step_time = Nanos(1_000_000);
        let mut live = KindBytes::default();
        live.add(Kind::Workspace, 7);
        plan.simulation.levels = [(0, KindBytes::default()), (500_000, live), (500_001, KindBytes::default())]
            .map(|(at, live)| tightfit_plan::Level { at: Nanos(at), live })
            .into();
        let columns = columns(&plan);
        assert_eq!(columns.len(), COLUMNS);
        assert_eq!(columns.iter().filter(|live| live.total() == Bytes(7)).count(), 1);
        assert_eq!(columns[COLUMNS / 2].total(), Bytes(7));
    }
}
