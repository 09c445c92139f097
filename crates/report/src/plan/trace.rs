//! The planned step as a trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.
//!
//! ```text
//! compute      |- conv1 forward -|- pool1 forward -|:: wait ::|- conv2 forward -|     ts and dur of each event in µs,
//! offload                        |- offload feature map conv1 -|                      from the beginning of the step
//! prefetch
//! live bytes   __|-----------------|________________|----------                       one value for each kind of memory
//! ```
//!
//! **Source**: the Trace Event Format: complete events (`"ph": "X"`), counters (`C`) and names (`M`).

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tightfit_conv::Device;
use tightfit_plan::step::{Access, Stage};
use tightfit_plan::{Action, BlockId, Compute, HostBlockId, InstructionId, Kind, Level, Plan, Span, Stall, Stream};
use tightfit_units::Bytes;

/// Writes the planned step as a trace: one JSON object with `traceEvents`, one event per line. The times were measured on `device`.
pub fn trace(plan: &Plan, device: &Device) -> String {
    let events: Vec<String> = TraceProcess(1).planned(plan).iter().map(Value::to_string).collect();
    let about = json!({
        "network": plan.network,
        "batch": plan.batch,
        "types": plan.types,
        "policy": plan.options.policy.name(),
        "backend": device.backend,
        "device": device.name,
        "library": device.library,
        "budget_bytes": Some(plan.options.budget).filter(|budget| *budget != Bytes::UNLIMITED),
        "peak_bytes": plan.peak,
        "most_live_bytes": plan.most_live,
        "step_time_us": plan.step_time.as_micros(),
    });
    let events = events.join(",\n");
    format!("{{\"traceEvents\":[\n{events}\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{about}}}\n")
}

/// A process of a trace, by its number from 1: a group of tracks, one for each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceProcess(pub u32);

impl TraceProcess {
    /// The events that name the process and the tracks of these streams.
    pub fn names(self, name: &str, streams: &[Stream]) -> Vec<Value> {
        let mut events = vec![json!({"ph": "M", "name": "process_name", "pid": self.0, "args": {"name": name}})];
        for &stream in streams {
            for (key, arguments) in [
                ("thread_name", json!({"name": stream.name()})),
                ("thread_sort_index", json!({"sort_index": stream.index()})),
            ] {
                let thread = self.thread(stream);
                events.push(json!({"ph": "M", "name": key, "pid": self.0, "tid": thread, "args": arguments}));
            }
        }
        events
    }

    /// An event on the track of a stream.
    pub fn event(self, stream: Stream, category: &str, name: &str, span: Span, arguments: Value) -> Value {
        json!({
            "ph": "X", "cat": category, "name": name, "pid": self.0, "tid": self.thread(stream),
            "ts": span.start.as_micros(), "dur": (span.end - span.start).as_micros(), "args": arguments,
        })
    }

    /// All events of a planned step: names, work and waits in the order of the schedule, and live bytes.
    pub fn planned(self, plan: &Plan) -> Vec<Value> {
        let Plan { network, batch, options, .. } = plan;
        let name = format!("plan of {network}, mini-batch {batch}, {}", options.policy);
        let mut events = self.names(&name, &plan.schedule.streams());
        let readers = readers(plan);
        let stalls: HashMap<InstructionId, &Stall> =
            plan.simulation.stalls.iter().map(|stall| (stall.instruction, stall)).collect();
        let spans = plan.schedule.instructions.iter().zip(&plan.simulation.spans);
        for (place, (instruction, span)) in spans.enumerate() {
            let (category, name, mut arguments) = match (&instruction.action, stalls.get(&InstructionId(place))) {
                (Action::Wait(_), Some(stall)) => waiting(plan, stall),
                (action, _) => match working(plan, action) {
                    Some(work) => work,
                    None => continue,
                },
            };
            arguments.insert("step".to_owned(), place.into());
            if let Some(reader) = readers[place] {
                arguments.insert("needed_by".to_owned(), describe(plan, reader).into());
            }
            events.push(self.event(instruction.stream, category, &name, *span, arguments.into()));
        }
        events.extend(self.live(plan));
        events
    }

    /// Live bytes over time: by kind, and of all kinds together.
    fn live(self, plan: &Plan) -> Vec<Value> {
        let is_used = |kind: &Kind| plan.simulation.maximum(|live| live.get(*kind)) > Bytes::ZERO;
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(is_used).collect();
        let events = |level: &Level| {
            let of_kind = |kind: &Kind| (kind.name().to_owned(), level.live.get(*kind).0.into());
            let total = [("total".to_owned(), level.live.total().0.into())];
            [
                self.counter(level, "live bytes", kinds.iter().map(of_kind).collect()),
                self.counter(level, "live bytes of all kinds", total.into_iter().collect()),
            ]
        };
        shown(&plan.simulation.levels).flat_map(events).collect()
    }

    fn counter(self, level: &Level, name: &str, values: Map<String, Value>) -> Value {
        json!({"ph": "C", "name": name, "pid": self.0, "ts": level.at.as_micros(), "args": values})
    }

    /// The number of a stream's track: different in every process, and never 0, which is the idle task in traces of a system.
    fn thread(self, stream: Stream) -> u32 {
        self.0.saturating_mul(10).saturating_add(stream.index() as u32)
    }
}

/// The levels to show: of those at the same moment, the highest and the last.
fn shown(levels: &[Level]) -> impl Iterator<Item = &Level> {
    levels.chunk_by(|one, next| one.at == next.at).flat_map(|moment| {
        let total = |level: &&Level| level.live.total();
        let highest = moment.iter().max_by_key(total);
        let last = moment.last().filter(|last| highest.is_none_or(|highest| last.live != highest.live));
        highest.into_iter().chain(last)
    })
}

/// Category, name and arguments of an event.
type Described = (&'static str, String, Map<String, Value>);

/// Describes an instruction that takes time; `None` for one that takes none.
fn working(plan: &Plan, action: &Action) -> Option<Described> {
    let name = plan.schedule.describe(action)?;
    let (category, arguments) = match action {
        Action::Compute(compute) => computing(plan, compute),
        Action::Offload(block, _) => ("offload", copying(plan, *block, "offloaded")),
        Action::Prefetch(_, block) => ("prefetch", copying(plan, *block, "prefetched")),
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => return None,
    };
    Some((category, name, arguments))
}

fn computing(plan: &Plan, compute: &Compute) -> (&'static str, Map<String, Value>) {
    let (schedule, step) = (&plan.schedule, plan.schedule.step());
    let operation = step.operation(compute.operation);
    let mut blocks: Vec<BlockId> = compute.touched().collect();
    blocks.sort_unstable();
    blocks.dedup();
    let bytes: u64 = blocks.into_iter().map(|block| schedule.blocks[block.0].bytes).sum();
    let uses = step.uses(compute.operation, compute.phase).map(|(_, used)| (used, step.tensor(used.tensor)));
    let writes = uses.filter(|(used, tensor)| compute.access(used, tensor) != Access::Read);
    let written: Vec<&str> = writes.map(|(_, tensor)| &*tensor.name).collect();
    let mut arguments = Map::new();
    let mut add = |key: &str, value: Value| _ = arguments.insert(key.to_owned(), value);
    add("layer", step.group_name(compute.operation).into());
    add("operation", (&*operation.name).into());
    add("tensor", written.join(", ").into());
    add("bytes", bytes.into());
    if let Some(workspace) = compute.workspace {
        add("workspace_bytes", schedule.blocks[workspace.0].bytes.into());
    }
    if let Some(configuration) = &compute.configuration {
        add("configuration", configuration.to_string().into());
    }
    if compute.again {
        add("why", "recomputed".into());
        return ("recompute", arguments);
    }
    let category = match operation.stage {
        Stage::Forward => "forward",
        Stage::Backward => "backward",
        Stage::Update => "update",
    };
    (category, arguments)
}

fn copying(plan: &Plan, block: BlockId, why: &str) -> Map<String, Value> {
    let block = &plan.schedule.blocks[block.0];
    let tensor = plan.schedule.step().describe(block.holds);
    let arguments = [("tensor", tensor.into()), ("bytes", block.bytes.into()), ("why", why.into())];
    arguments.map(|(key, value): (_, Value)| (key.to_owned(), value)).into_iter().collect()
}

/// Describes a wait of the compute stream, with the tensor and the bytes of the copy it waits for.
fn waiting(plan: &Plan, stall: &Stall) -> Described {
    let copy = plan.schedule.instructions.get(stall.waits_for.0);
    let work = copy.and_then(|copy| working(plan, &copy.action));
    let mut arguments = work.map(|(.., arguments)| arguments).unwrap_or_default();
    arguments.insert("why".to_owned(), "waits".into());
    arguments.insert("waits_for".to_owned(), stall.waits_for.0.into());
    ("wait", format!("wait for {}", describe(plan, stall.waits_for.0)), arguments)
}

fn describe(plan: &Plan, place: usize) -> String {
    let instruction = plan.schedule.instructions.get(place);
    instruction.and_then(|instruction| plan.schedule.describe(&instruction.action)).unwrap_or_default()
}

/// For each instruction that moves or recomputes something: the instruction that needs it next.
fn readers(plan: &Plan) -> Vec<Option<usize>> {
    let instructions = &plan.schedule.instructions;
    let mut readers = vec![None; instructions.len()];
    // Walking backward, the next use is known.
    let mut of_block: HashMap<BlockId, usize> = HashMap::new();
    let mut of_host_block: HashMap<HostBlockId, usize> = HashMap::new();
    let mut first_run = None;
    for (place, instruction) in instructions.iter().enumerate().rev() {
        match &instruction.action {
            Action::Compute(compute) => {
                match compute.again {
                    true => readers[place] = first_run,
                    false => first_run = Some(place),
                }
                of_block.extend(compute.touched().map(|block| (block, place)));
            }
            Action::Prefetch(host, block) => {
                readers[place] = of_block.get(block).copied();
                of_host_block.extend(readers[place].map(|reader| (*host, reader)));
            }
            Action::Offload(_, host) => readers[place] = of_host_block.get(host).copied(),
            Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => {}
        }
    }
    readers
}
