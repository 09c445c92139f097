//! The streams over time: computations, copies, and the waits between them.
//!
//! ```text
//! compute    |-- conv1 --|-- conv2 --|::::|-- conv3 --|     : waits for a copy
//! offload    |     |--- conv1 ---|
//! prefetch                                  |--- conv1 ---|
//! lane-2          |-- conv2b --|                             only where branches run side by side
//! ```

use tightfit_plan::step::{Stage, Step};
use tightfit_plan::{Action, Instruction, Plan, Span, Stream};

use super::super::words;
use super::WIDTH;
use crate::svg::axis::{Axis, Frame};
use crate::svg::canvas::{Anchor, Canvas, INK, TEXT};
use crate::svg::legend::{self, Entry, color};

const ROW: f64 = 44.0;
const BAR: f64 = 28.0;
const STALL: &str = "#F0E442";

/// Draws one row per stream.
pub fn streams(plan: &Plan) -> String {
    let entries = [
        Entry::area("forward", color(0)),
        Entry::area("backward", color(4)),
        Entry::area("update", "#999999"),
        Entry::area("offload", color(1)),
        Entry::area("prefetch", color(2)),
        Entry::area("waiting for a copy", STALL),
    ];
    let time = Axis::of_times_until("time", plan.step_time);
    let top = legend::head_height(&entries, WIDTH);
    // A plan that copies nothing has no lanes for copies.
    let works = |stream: Stream| {
        let mut own = plan.schedule.instructions.iter().filter(|instruction| instruction.stream == stream);
        own.any(|instruction| words::work(plan, instruction).is_some())
    };
    let streams: Vec<Stream> = plan.schedule.streams().into_iter().filter(|stream| works(*stream)).collect();
    let frame = Frame { left: 100.0, top, width: WIDTH - 140.0, height: ROW * streams.len() as f64 };
    let mut canvas = Canvas::new(WIDTH, frame.bottom() + 52.0);
    legend::draw_head("streams", &entries, WIDTH, &mut canvas);
    frame.draw_bottom(&time, &mut canvas);
    let row = |stream: Stream| streams.iter().position(|own| *own == stream).unwrap_or_default();
    let middle = |stream: Stream| frame.top + ROW * (row(stream) as f64 + 0.5);
    for &stream in &streams {
        let y = middle(stream);
        canvas.text((frame.left - 8.0, y), Anchor::End, TEXT, stream.name());
        canvas.line((frame.left, y), (frame.right(), y), INK);
    }
    let mut bar = |stream: Stream, span: Span, height: f64, fill: &str, tooltip: &str| {
        let (from, to) = (frame.x(time.at_time(span.start)), frame.x(time.at_time(span.end)));
        canvas.rect((from, middle(stream) - height / 2.0), (to - from, height), fill, tooltip);
    };
    for stall in &plan.simulation.stalls {
        let copy = plan.schedule.instructions.get(stall.waits_for.0).and_then(|copy| words::work(plan, copy));
        let text = format!("waits {} for {}", stall.span.end - stall.span.start, copy.unwrap_or_default());
        bar(Stream::Compute, stall.span, BAR / 2.0, STALL, &text);
    }
    for (instruction, span) in plan.schedule.instructions.iter().zip(&plan.simulation.spans) {
        if let Some(work) = words::work(plan, instruction) {
            let text = format!("{work}: {} from {}", span.end - span.start, span.start);
            bar(instruction.stream, *span, BAR, fill(plan.schedule.step(), instruction), &text);
        }
    }
    canvas.finish("streams")
}

fn fill(step: &Step, instruction: &Instruction) -> &'static str {
    match &instruction.action {
        Action::Compute(compute) => match step.operation(compute.operation).stage {
            Stage::Forward => color(0),
            Stage::Backward => color(4),
            Stage::Update => "#999999",
        },
        Action::Offload(..) => color(1),
        _ => color(2),
    }
}
