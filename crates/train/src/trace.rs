//! A timeline of a run for a trace viewer (Chrome's `about:tracing`, Perfetto): one lane per stream, with the run above
//! the plan. Of a long run, it keeps the last steps.
//!
//! **Source:** the Trace Event Format, complete events (`"ph": "X"`), times in µs.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tightfit_core::Nanos;
use tightfit_core::plan::{Action, BlockId, Checked, Simulation, Stream};

use crate::machine::Span;

/// A trace under construction.
#[derive(Debug)]
pub struct Trace {
    names: Vec<(Stream, String)>,
    head: Vec<Value>,
    ran: VecDeque<Vec<Value>>,
}

/// The processes of the trace: the run and the plan.
const RUN: u32 = 1;
const PLAN: u32 = 2;

impl Trace {
    /// Number of steps to keep; older ones are dropped.
    pub const STEPS: usize = 10;

    /// An empty trace of a schedule.
    pub fn new(schedule: &Checked) -> Trace {
        let mut head = Vec::new();
        for (process, name) in [(RUN, "run"), (PLAN, "plan")] {
            head.push(json!({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}));
            for stream in Stream::ALL {
                let (thread, arguments) = (stream.index(), json!({"name": stream.name()}));
                head.push(json!({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": arguments}));
            }
        }
        let names = schedule.instructions.iter().map(|next| (next.stream, name(schedule, &next.action)));
        Trace { names: names.collect(), head, ran: VecDeque::new() }
    }

    /// Adds a step that began at `start`: its tasks and copies, each with its index in the schedule.
    pub fn ran(&mut self, start: Nanos, spans: &[(usize, Span)]) {
        if self.ran.len() == Trace::STEPS {
            self.ran.pop_front();
        }
        let events =
            spans.iter().filter_map(|(step, span)| self.event(RUN, *step, start + span.start, start + span.end));
        self.ran.push_back(events.collect());
    }

    fn event(&self, process: u32, step: usize, start: Nanos, end: Nanos) -> Option<Value> {
        let (stream, name) = self.names.get(step)?;
        let (from, long) = (start.as_micros(), end.0.saturating_sub(start.0) as f64 / 1e3);
        Some(json!({
            "name": name, "ph": "X", "pid": process, "tid": stream.index(), "ts": from, "dur": long,
            "args": {"step": step},
        }))
    }

    /// The content of the file: the run and the simulation.
    pub fn json(&self, planned: &Simulation) -> String {
        let planned = planned.spans.iter().enumerate().filter(|(_, span)| span.end > span.start);
        let planned = planned.filter_map(|(step, span)| self.event(PLAN, step, span.start, span.end));
        let events: Vec<Value> = self.head.iter().chain(self.ran.iter().flatten()).cloned().chain(planned).collect();
        json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
    }
}

/// The name of an instruction.
fn name(schedule: &Checked, action: &Action) -> String {
    let tensor = |block: BlockId| schedule.step().describe(schedule.blocks[block.0].holds);
    match action {
        Action::Wait(on) => format!("wait for {}", on.0),
        Action::Allocate(block) => format!("allocate {}", tensor(*block)),
        Action::Release(block) => format!("release {}", tensor(*block)),
        Action::Compute(_) | Action::Offload(..) | Action::Prefetch(..) => {
            schedule.describe(action).unwrap_or_default()
        }
    }
}
