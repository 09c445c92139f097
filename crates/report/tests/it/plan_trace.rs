//! The trace of a plan: its tracks, its sums, and what its events say.

use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;
use tightfit_conv::{Device, Types};
use tightfit_network::Network;
use tightfit_plan::step::StepFile;
use tightfit_plan::{
    Action, CostModel, Fronts, Kind, KindBytes, Level, Mode, Options, Plan, Policy, Stream, Workload, plan,
};
use tightfit_report::plan::trace;
use tightfit_units::{Bytes, Nanos};

/// A plan with estimated times, under a share of the budget that the baseline needs.
fn planned(name: &str, batch: usize, costs: &CostModel, policy: Policy, percent: u64) -> Plan {
    let network = Network::open(name).unwrap();
    let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
    let step = workload.step(&Fronts::assumed(&workload, costs).unwrap(), costs).unwrap();
    let roomy = plan(&step, costs, &Options { policy: Policy::Baseline, ..Options::default() }).unwrap();
    let share = if policy == Policy::Baseline { 100 } else { percent };
    let budget = Bytes(roomy.peak.0 * share / 100);
    plan(&step, costs, &Options { policy, budget, ..Options::default() }).unwrap()
}

/// One plan of every policy, of a network with concatenations and of one that recomputes, and one of a step file.
static PLANS: LazyLock<Vec<Plan>> = LazyLock::new(|| {
    let mut plans: Vec<Plan> =
        Policy::ALL.iter().map(|policy| planned("googlenet", 16, &CostModel::h200(), *policy, 60)).collect();
    plans.push(planned("vgg16", 32, &CostModel::k40(), Policy::VdnnAll, 70));
    plans.push(planned("resnet18", 32, &CostModel::h200(), Policy::Optimal, 45));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/tests/data/steps/residual-12.json.gz");
    let StepFile { step, machine } = StepFile::read(&file).unwrap();
    let costs = machine.map_or_else(CostModel::h200, |machine| machine.costs());
    let roomy = plan(&step, &costs, &Options::default()).unwrap();
    plans.push(plan(&step, &costs, &Options { budget: roomy.min_feasible, ..Options::default() }).unwrap());
    plans
});

struct Event {
    track: u64,
    start: u64,
    end: u64,
    category: String,
    name: String,
    arguments: Value,
}

/// A time in µs as whole nanoseconds, as trace viewers read it.
fn nanos(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e3).round() as u64
}

fn document(plan: &Plan) -> Value {
    let [backend, name, library] = ["assumed", "nothing", "none"].map(str::to_owned);
    let device = Device { backend, name, library, threads: 0 };
    serde_json::from_str(&trace(plan, &device)).unwrap()
}

/// The complete events of a trace, in their order.
fn events(document: &Value) -> Vec<Event> {
    let all = document["traceEvents"].as_array().unwrap();
    let event = |event: &Value| {
        let start = nanos(&event["ts"]);
        Event {
            track: event["tid"].as_u64().unwrap(),
            start,
            end: start + nanos(&event["dur"]),
            category: event["cat"].as_str().unwrap().to_owned(),
            name: event["name"].as_str().unwrap().to_owned(),
            arguments: event["args"].clone(),
        }
    };
    all.iter().filter(|event| event["ph"] == "X").map(event).collect()
}

/// The number of the track with the name of a stream.
fn track(document: &Value, stream: Stream) -> u64 {
    let all = document["traceEvents"].as_array().unwrap();
    let is_named = |event: &&Value| event["name"] == "thread_name" && event["args"]["name"] == stream.name();
    all.iter().find(is_named).unwrap()["tid"].as_u64().unwrap()
}

/// The faults of the tracks of a trace; none if each holds the work of its stream, one after another, and the compute
/// track has no gap that is not a wait.
fn faults(plan: &Plan, document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let events = events(document);
    let work = plan.schedule.instructions.iter().filter(|next| plan.schedule.describe(&next.action).is_some());
    let waits = plan.simulation.stalls.len();
    if events.len() != work.count() + waits {
        faults.push(format!("{} events", events.len()));
    }
    for stream in plan.schedule.streams() {
        let number = track(document, stream);
        let on_track: Vec<&Event> = events.iter().filter(|event| event.track == number).collect();
        for event in &on_track {
            let place = event.arguments["step"].as_u64().unwrap() as usize;
            if plan.schedule.instructions[place].stream != stream {
                faults.push(format!("{} is not on {}", event.name, stream.name()));
            }
        }
        let mut before = 0;
        for event in on_track {
            if event.start < before || stream == Stream::Compute && event.start > before {
                faults.push(format!("{} begins at {}, not {before}", event.name, event.start));
            }
            before = event.end;
        }
    }
    let end = events.iter().map(|event| event.end).max();
    if end != Some(plan.step_time.0) {
        faults.push(format!("ends at {end:?}, not {}", plan.step_time.0));
    }
    faults
}

#[test]
fn every_track_holds_the_work_of_its_stream_one_after_another() {
    for plan in PLANS.iter() {
        let document = document(plan);
        assert_eq!(faults(plan, &document), [""; 0], "{} {}", plan.network, plan.options.policy);
        assert_eq!(document["displayTimeUnit"], "ms");
        let about = &document["otherData"];
        assert_eq!(nanos(&about["step_time_us"]), plan.step_time.0);
        assert_eq!(about["peak_bytes"].as_u64(), Some(plan.peak.0));
    }
}

#[test]
fn a_wrong_trace_has_faults() {
    let plan = planned("vgg16", 32, &CostModel::k40(), Policy::VdnnAll, 70);
    let whole = document(&plan);
    let all = whole["traceEvents"].as_array().unwrap();
    let find = |category: &str| all.iter().position(|event| event["cat"] == category).unwrap();
    for (change, expected) in [
        ((find("forward"), "dur", 0.001.into()), "begins at"),
        ((find("wait"), "tid", all[find("offload")]["tid"].clone()), "is not on offload"),
        ((find("offload"), "ph", "i".into()), " events"),
        ((all.iter().rposition(|event| event["cat"] == "update").unwrap(), "dur", 1e9.into()), "ends at"),
    ] {
        let ((place, key, value), mut wrong): ((usize, &str, Value), Value) = (change, whole.clone());
        wrong["traceEvents"][place][key] = value;
        let faults = faults(&plan, &wrong);
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:?}");
    }
}

#[test]
fn times_and_bytes_add_up_to_those_of_the_plan() {
    let (mut waited, mut copied, mut again) = (0, 0, 0);
    for plan in PLANS.iter() {
        let name = format!("{} {}", plan.network, plan.options.policy);
        let events = events(&document(plan));
        let sum = |categories: &[&str]| -> u64 {
            let of = events.iter().filter(|event| categories.contains(&&*event.category));
            of.map(|event| event.end - event.start).sum()
        };
        let computed = sum(&["forward", "backward", "update", "recompute"]);
        // Copies slow computations down on an H200, but not on a K40. Each time is a whole nanosecond.
        let slowest = plan.simulation.compute.0 as f64 * if plan.network == "vgg16" { 1.0 } else { 1.04 };
        let rounded = events.len() as u64;
        assert!(computed + rounded >= plan.simulation.compute.0, "{name}: {computed}");
        assert!(computed as f64 <= slowest + rounded as f64, "{name}: {computed}, not {slowest}");
        assert_eq!(sum(&["recompute"]), plan.recomputed.0, "{name}");
        let stalls: u64 = plan.simulation.stalls.iter().map(|stall| (stall.span.end - stall.span.start).0).sum();
        assert_eq!(sum(&["wait"]), stalls, "{name}");
        let offloads = events.iter().filter(|event| event.category == "offload");
        let bytes: u64 = offloads.map(|event| event.arguments["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, plan.offloaded.0, "{name}");
        (waited, copied, again) = (waited + stalls, copied + bytes, again + plan.recomputed.0);
    }
    assert!(waited > 0 && copied > 0 && again > 0, "the plans have lost their point: {waited} {copied} {again}");
}

#[test]
fn counters_are_the_live_bytes_of_the_simulation() {
    for plan in PLANS.iter() {
        let name = format!("{} {}", plan.network, plan.options.policy);
        let document = document(plan);
        let all = document["traceEvents"].as_array().unwrap();
        let counter = |name: &str| -> Vec<(u64, u64)> {
            let of = all.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
            let sum = |values: &Value| values.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
            of.map(|event| (nanos(&event["ts"]), sum(&event["args"]))).collect()
        };
        let (by_kind, total) = (counter("live bytes"), counter("live bytes of all kinds"));
        assert_eq!(by_kind, total, "{name}");
        assert!(total.is_sorted_by_key(|(at, _)| *at) && total[0].0 == 0, "{name}");
        let most = total.iter().map(|(_, bytes)| *bytes).max().unwrap();
        assert_eq!(Bytes(most), plan.simulation.maximum(KindBytes::total), "{name}");
        assert_eq!(Bytes(most), plan.most_live, "{name}");
        assert!(Bytes(most) <= plan.peak, "{name}");
        // After each moment, the trace has the bytes of the simulation.
        for level in plan.simulation.levels.chunk_by(|one, next| one.at == next.at).filter_map(<[_]>::last) {
            let shown = total.iter().rfind(|(at, _)| *at == level.at.0).unwrap();
            assert_eq!(Bytes(shown.1), level.live.total(), "{name} at {}", level.at);
        }
    }
}

#[test]
fn the_highest_of_several_levels_at_one_moment_is_shown() {
    let mut plan = PLANS[0].clone();
    let level = |bytes: u64| {
        let mut live = KindBytes::default();
        live.add(Kind::Workspace, bytes);
        Level { at: Nanos(1500), live }
    };
    for (levels, expected) in [(&[1, 9, 4, 2][..], &[9, 2][..]), (&[1, 9], &[9]), (&[9], &[9]), (&[], &[])] {
        plan.simulation.levels = levels.iter().copied().map(level).collect();
        let document = document(&plan);
        let all = document["traceEvents"].as_array().unwrap();
        let total = all.iter().filter(|event| event["ph"] == "C").filter_map(|event| event["args"]["total"].as_u64());
        assert_eq!(total.collect::<Vec<_>>(), expected, "{levels:?}");
    }
}

#[test]
fn copies_and_reruns_name_their_readers() {
    let mut seen = Vec::new();
    for plan in PLANS.iter() {
        let events = events(&document(plan));
        for event in &events {
            let why = event.arguments["why"].as_str();
            let expected = match &*event.category {
                "offload" => Some("offloaded"),
                "prefetch" => Some("prefetched"),
                "recompute" => Some("recomputed"),
                "wait" => Some("waits"),
                _ => None,
            };
            assert_eq!(why, expected, "{}", event.name);
            let Some(needed_by) = event.arguments["needed_by"].as_str() else { continue };
            let place = event.arguments["step"].as_u64().unwrap() as usize;
            let later = events.iter().filter(|other| other.start >= event.end);
            let reader = later.into_iter().find(|other| other.name == needed_by);
            let reader = reader.unwrap_or_else(|| panic!("{} comes before {}", needed_by, event.name));
            let at = reader.arguments["step"].as_u64().unwrap() as usize;
            if let Action::Prefetch(_, block) = plan.schedule.instructions[place].action {
                assert!(plan.schedule.instructions[at].action.touches(block), "{} for {needed_by}", event.name);
            }
            seen.push(event.category.clone());
        }
        let copies = events.iter().filter(|event| ["offload", "prefetch"].contains(&&*event.category));
        for copy in copies {
            let tensor = copy.arguments["tensor"].as_str().unwrap();
            assert_eq!(copy.name, format!("{} {tensor}", copy.category));
        }
    }
    for category in ["offload", "prefetch", "recompute"] {
        assert!(seen.iter().any(|of| of == category), "no {category}");
    }
}
