//! What ran when, as a file for a trace viewer (Chrome's `about:tracing`, Perfetto): a lane for each stream, the run and
//! the plan one below the other.
//!
//! **Source:** the Trace Event Format, complete events (`"ph": "X"`), times in µs.

use serde_json::{Value, json};
use tightfit_core::Nanos;
use tightfit_core::plan::{Action, Schedule, Simulation, Stream, Workload};

use crate::machine::Span;
use crate::resolve::{index, pass_name};

/// A trace in the making.
#[derive(Debug)]
pub struct Trace {
    names: Vec<(Stream, String)>,
    events: Vec<Value>,
}

/// The processes of the trace: what ran, and what was planned.
const RUN: u32 = 1;
const PLAN: u32 = 2;

impl Trace {
    /// An empty trace of a schedule.
    pub fn new(workload: &Workload<'_>, schedule: &Schedule) -> Trace {
        let mut events = Vec::new();
        for (process, name) in [(RUN, "run"), (PLAN, "plan")] {
            events.push(json!({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}));
            for stream in Stream::ALL {
                let name = format!("{stream:?}").to_lowercase();
                let thread = index(stream);
                let arguments = json!({"name": name});
                events
                    .push(json!({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": arguments}));
            }
        }
        let names = schedule.steps.iter().map(|step| (step.stream, name(workload, schedule, &step.action)));
        Trace { names: names.collect(), events }
    }

    /// Adds a step that began at `start`: its tasks and copies with their steps of the schedule.
    pub fn ran(&mut self, start: Nanos, spans: &[(usize, Span)]) {
        for (step, span) in spans {
            self.event(RUN, *step, start + span.start, start + span.end);
        }
    }

    /// Adds what was simulated.
    pub fn planned(&mut self, simulation: &Simulation) {
        for (step, span) in simulation.spans.iter().enumerate().filter(|(_, span)| span.end > span.start) {
            self.event(PLAN, step, span.start, span.end);
        }
    }

    fn event(&mut self, process: u32, step: usize, start: Nanos, end: Nanos) {
        let Some((stream, name)) = self.names.get(step) else { return };
        let (from, long) = (start.as_micros(), end.0.saturating_sub(start.0) as f64 / 1e3);
        self.events.push(json!({
            "name": name, "ph": "X", "pid": process, "tid": index(*stream), "ts": from, "dur": long,
            "args": {"step": step},
        }));
    }

    /// The file.
    pub fn json(&self) -> String {
        json!({"traceEvents": self.events, "displayTimeUnit": "ms"}).to_string()
    }
}

/// What a step is called.
fn name(workload: &Workload<'_>, schedule: &Schedule, action: &Action) -> String {
    let tensor = |block: usize| schedule.blocks.get(block).map(|block| block.tensor);
    let map = |block: usize| match tensor(block) {
        Some(tightfit_core::plan::Tensor::FeatureMap(map)) => {
            let first = workload.maps.get(map).layers.first();
            first.map_or(String::new(), |&layer| workload.network.layer(layer).name.clone())
        }
        Some(tensor) => format!("{tensor:?}"),
        None => String::new(),
    };
    match action {
        Action::Compute(compute) => {
            let again = if compute.again { " again" } else { "" };
            format!("{} {}{again}", workload.network.layer(compute.layer).name, pass_name(compute.pass))
        }
        Action::Offload(block, _) => format!("offload {}", map(block.0)),
        Action::Prefetch(_, block) => format!("prefetch {}", map(block.0)),
        Action::Wait(step) => format!("wait for {}", step.0),
        Action::Allocate(block) => format!("allocate {}", map(block.0)),
        Action::Release(block) => format!("release {}", map(block.0)),
    }
}
