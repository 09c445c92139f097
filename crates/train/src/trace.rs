//! A timeline of a run for a trace viewer (chrome://tracing, Perfetto): one track per stream, with the run above the
//! plan. Of a long run, it keeps the last steps.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tightfit_plan::{self as plan, Action, BlockId, Checked, Plan, Stream};
use tightfit_report::plan::TraceProcess;
use tightfit_units::Nanos;

use crate::machine::Span;

/// A trace under construction.
#[derive(Debug)]
pub struct Trace {
    streams: Vec<Stream>,
    names: Vec<(Stream, String)>,
    ran: VecDeque<Vec<Value>>,
}

const RUN: TraceProcess = TraceProcess(1);
const PLAN: TraceProcess = TraceProcess(2);

impl Trace {
    /// Number of steps to keep; older ones are dropped.
    pub const STEPS: usize = 10;

    /// An empty trace of a schedule.
    pub fn new(schedule: &Checked) -> Trace {
        let names = schedule.instructions.iter().map(|next| (next.stream, name(schedule, &next.action)));
        Trace { streams: schedule.streams(), names: names.collect(), ran: VecDeque::new() }
    }

    /// Adds a step that began at `start`: its tasks and copies, each with its index in the schedule.
    pub fn ran(&mut self, start: Nanos, spans: &[(usize, Span)]) {
        if self.ran.len() == Trace::STEPS {
            self.ran.pop_front();
        }
        let event = |(step, span): &(usize, Span)| {
            let (stream, name) = self.names.get(*step)?;
            let span = plan::Span { start: start + span.start, end: start + span.end };
            Some(RUN.event(*stream, stream.name(), name, span, json!({"step": step})))
        };
        let events = spans.iter().filter_map(event).collect();
        self.ran.push_back(events);
    }

    /// The content of the file: the run, and the plan that it carried out.
    pub fn json(&self, plan: &Plan) -> String {
        let ran = self.ran.iter().flatten().cloned();
        let names = RUN.names("run", &self.streams).into_iter();
        let events: Vec<Value> = names.chain(ran).chain(PLAN.planned(plan)).collect();
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
