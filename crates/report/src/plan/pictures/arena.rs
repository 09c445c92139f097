//! The arena over one step: every block at its addresses, from its allocation to its release.
//!
//! ```text
//! address |  [ conv2 ]      [ conv2, back ]     a box per stay of a tensor: as high as its bytes, as long as its life
//!         |[   conv1    ]  [workspace]
//!         |[===== weights ================]
//!         +--------------------------------- time
//! ```

use tightfit_plan::{Action, Block, BlockId, Kind, Plan};
use tightfit_units::{Bytes, Nanos};

use super::{WIDTH, kind_color};
use crate::svg::axis::{Axis, Frame};
use crate::svg::canvas::Canvas;
use crate::svg::legend::{self, Entry};

/// Draws every block of the device arena.
pub fn arena(plan: &Plan) -> String {
    let schedule = &plan.schedule;
    let kinds = Kind::ALL.into_iter().filter(|kind| plan.at_most.get(*kind) > Bytes::ZERO);
    let entries: Vec<Entry> = kinds.map(|kind| Entry::area(kind.name(), kind_color(kind))).collect();
    let end_of = |block: &Block| Bytes(block.offset.saturating_add(block.bytes));
    let time = Axis::of_times_until("time", plan.step_time);
    let bytes = Axis::of_bytes("address", schedule.blocks.iter().map(end_of).max().unwrap_or_default());

    let top = legend::head_height(&entries, WIDTH);
    let frame = Frame { left: 100.0, top, width: WIDTH - 140.0, height: 420.0 };
    let mut canvas = Canvas::new(WIDTH, frame.bottom() + 52.0);
    legend::draw_head("the arena over one step", &entries, WIDTH, &mut canvas);
    frame.draw_left(&bytes, &mut canvas);
    frame.draw_bottom(&time, &mut canvas);
    for (block, [begin, end]) in schedule.blocks.iter().zip(lives(plan)) {
        let [from, to] = [begin, end].map(|at| frame.x(time.at_time(at)));
        let [low, high] = [Bytes(block.offset), end_of(block)].map(|at| frame.y(bytes.at_bytes(at)));
        let kind = schedule.step().kind(block.holds);
        let life = if block.resident { "always".to_owned() } else { format!("{begin} to {end}") };
        let words = [
            schedule.step().describe(block.holds),
            format!("{}, {} at {}", kind.name(), Bytes(block.bytes), Bytes(block.offset)),
            format!("{life}{}", fate(plan, block)),
        ];
        // Thin lives stay visible.
        canvas.outlined(
            (from, high),
            ((to - from).max(0.5), (low - high).max(0.3)),
            kind_color(kind),
            &words.join("; "),
        );
    }
    canvas.finish("the arena over one step")
}

/// The times at which each block is allocated and released; resident blocks stay throughout.
fn lives(plan: &Plan) -> Vec<[Nanos; 2]> {
    let mut lives = vec![[Nanos::ZERO, plan.step_time]; plan.schedule.blocks.len()];
    for (instruction, span) in plan.schedule.instructions.iter().zip(&plan.simulation.spans) {
        let mut set = |BlockId(block): BlockId, side: usize| {
            if let Some(life) = lives.get_mut(block) {
                life[side] = span.start;
            }
        };
        match instruction.action {
            Action::Allocate(block) => set(block, 0),
            Action::Release(block) => set(block, 1),
            _ => {}
        }
    }
    lives
}

/// The treatment of a feature map between its uses.
fn fate(plan: &Plan, block: &Block) -> String {
    let found = plan.maps.iter().find(|map| block.holds == tightfit_plan::Holding::Tensor(map.map));
    found.map_or_else(String::new, |map| format!("; {}", map.fate.name()))
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;

    #[test]
    fn every_block_has_a_box_that_tells_its_name_size_life_and_fate() {
        let plan = samples::small();
        let picture = arena(&plan);
        assert_eq!(picture.matches(" at ").count(), plan.schedule.blocks.len());
        for part in ["feature map conv1; feature-maps, ", "; always", "; offloaded", "weights conv1; weights, ", " to "]
        {
            assert!(picture.contains(part), "{part}");
        }
    }

    #[test]
    fn boxes_of_one_moment_do_not_overlap() {
        let plan = samples::small();
        let lives = lives(&plan);
        let boxes: Vec<_> = plan.schedule.blocks.iter().zip(&lives).filter(|(_, [begin, end])| begin < end).collect();
        assert!(boxes.len() > 10);
        for (place, (a, [begin, end])) in boxes.iter().enumerate() {
            for (b, [from, to]) in &boxes[..place] {
                let is_apart = end <= from || to <= begin;
                assert!(is_apart || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset, "{a:?} {b:?}");
            }
        }
    }
}
