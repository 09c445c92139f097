//! Branches side by side: plans with lanes, their gain, and the checker's detection of every missing wait.

use serde_json::{Value, json};
use tightfit_conv::Types;
use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_plan::step::StepFile;
use tightfit_plan::{
    Action, BlockId, Budgets, Checked, CostModel, Fronts, InstructionId, Kind, Mode, Options, Plan, Policy, Prepared,
    Schedule, Step, Stop, Stream, Violation, Workload, check, plan, sweep,
};
use tightfit_units::{Bytes, Error};

/// Two modules of branches.
fn network() -> Network {
    let mut net = Builder::new("modules");
    net.input(Shape::image(8, 56, 56)).conv("stem", Filters::new(64, 3).pad(1)).relu();
    for module in ["one", "two"] {
        let fork = net.here();
        let name = |branch: &str| format!("{module}.{branch}");
        let a = net.conv(name("a"), Filters::new(64, 3).pad(1)).batch_norm().relu().here();
        let b = net.at(fork).conv(name("b"), Filters::new(64, 1)).relu();
        let b = b.conv(name("b.wide"), Filters::new(64, 5).pad(2)).relu().here();
        let c =
            net.at(fork).max_pool(name("pool"), Window::new(3, 1).pad(1)).conv(name("c"), Filters::new(64, 1)).here();
        net.concat(name("join"), &[a, b, c]);
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 3).softmax_loss();
    net.finish().unwrap()
}

fn costs(side_by_side: f64) -> CostModel {
    CostModel { side_by_side, ..CostModel::h200() }
}

fn step_of(network: &Network, batch: usize, mode: Mode) -> Step {
    let workload = Workload::new(network, batch, Types::F32, mode).unwrap();
    workload.step(&Fronts::assumed(&workload, &CostModel::h200()).unwrap(), &CostModel::h200()).unwrap()
}

fn planned(step: &Step, budget: Bytes, lanes: bool) -> Plan {
    plan(step, &costs(1.12), &Options { budget, lanes, ..Options::default() }).unwrap()
}

#[test]
fn branches_run_side_by_side_where_that_is_faster() {
    let googlenet = Network::open("googlenet").unwrap();
    for mode in [Mode::Training, Mode::Inference] {
        let step = step_of(&googlenet, 64, mode);
        let (one, several) = (planned(&step, Bytes::gib(16), false), planned(&step, Bytes::gib(16), true));
        assert_eq!((one.schedule.lanes(), several.schedule.lanes()), (1, 4));
        let faster = 1.0 - several.step_time.ratio(one.step_time);
        assert!((0.04..1.0 - 1.0 / 1.12).contains(&faster), "{mode:?}: {faster}");
        assert!(several.peak <= Bytes::gib(16) && several.bound.is_none() && several.gap.is_none());
        let taken: Vec<&str> =
            several.decisions.iter().filter(|decision| decision.taken).map(|decision| &*decision.attempt).collect();
        assert_eq!(taken, ["lanes"]);
        let sum = several.simulation.compute;
        assert!(sum < one.simulation.compute && several.simulation.time >= sum, "computations, side by side");
    }
}

#[test]
fn nothing_changes_where_lanes_never_pay_or_another_policy_is_asked_for() {
    let step = step_of(&network(), 32, Mode::Training);
    let with = |policy: Policy, lanes: bool, side_by_side: f64| {
        let options = Options { policy, lanes, ..Options::default() };
        plan(&step, &costs(side_by_side), &options).unwrap().schedule
    };
    assert!(with(Policy::Optimal, true, 1.0) == with(Policy::Optimal, false, 1.0));
    for policy in Policy::ALL {
        let is_same = with(policy, true, 1.12) == with(policy, false, 1.12);
        assert_eq!(is_same, policy != Policy::Optimal, "{policy}");
    }
}

#[test]
fn projections_of_residual_blocks_stay_on_one_lane() {
    let resnet = Network::open("resnet50").unwrap();
    let plan = planned(&step_of(&resnet, 64, Mode::Training), Bytes::gib(16), true);
    assert_eq!((plan.schedule.lanes(), plan.bound.is_some()), (1, true));
}

#[test]
fn under_every_budget_a_plan_with_lanes_fits_and_is_no_slower() {
    let step = step_of(&network(), 64, Mode::Training);
    let roomy = planned(&step, Bytes::gib(16), false);
    let budget_at = |share: u64| Bytes(roomy.min_feasible.0 + (roomy.peak.0 - roomy.min_feasible.0) * share / 100);
    let mut lanes = Vec::new();
    let mut no_slower = |budget: Bytes, several: &Plan| {
        let one = planned(&step, budget, false);
        assert!(several.peak <= budget && several.step_time <= one.step_time, "{budget}");
        lanes.push(several.schedule.lanes());
    };
    no_slower(budget_at(40), &planned(&step, budget_at(40), true));
    // The least and the roomy one as a sweep plans them.
    let options = Options { lanes: true, ..Options::default() };
    let budgets = [budget_at(0), budget_at(100)];
    let swept = sweep(&step, &costs(1.12), &options, &budgets, Stop::Never).unwrap();
    let swept: Vec<(Bytes, &Plan)> = swept.iter().map(|(budget, plan)| (*budget, plan.as_ref().unwrap())).collect();
    swept.iter().for_each(|(budget, several)| no_slower(*budget, several));
    assert!(lanes.contains(&3), "{lanes:?}");
    let times: Vec<_> = swept.iter().map(|(_, plan)| plan.step_time).collect();
    assert!(times.is_sorted_by(|smaller, larger| larger <= smaller), "{times:?}");
}

#[test]
fn plans_with_lanes_round_trip() {
    let network = network();
    let plan = planned(&step_of(&network, 32, Mode::Training), Bytes::gib(1), true);
    let text = plan.to_json(&network).unwrap();
    assert!(text.contains("\"lane-2\"") && text.contains("\"lanes\":true"));
    let (_, read) = Plan::from_json(&text).unwrap();
    assert!(read == plan);
    assert!(
        !planned(&step_of(&network, 32, Mode::Training), Bytes::gib(1), false)
            .to_json(&network)
            .unwrap()
            .contains("lane")
    );
}

/// A plan of the network with lanes, and its step.
fn with_lanes() -> (Step, Schedule) {
    let step = step_of(&network(), 32, Mode::Training);
    let schedule = planned(&step, Bytes::gib(1), true).schedule.into_schedule();
    assert_eq!(schedule.lanes(), 3);
    (step, schedule)
}

fn violations(step: &Step, schedule: &Schedule) -> Vec<Violation> {
    check(step, schedule, Budgets::default())
}

/// The schedule without an instruction.
fn without(schedule: &Schedule, at: usize) -> Schedule {
    let mut schedule = schedule.clone();
    schedule.instructions.remove(at);
    for instruction in &mut schedule.instructions {
        if let Action::Wait(on) = &mut instruction.action
            && on.0 > at
        {
            on.0 -= 1;
        }
    }
    schedule
}

/// The blocks of a computation that hold gradients of maps.
fn gradients(step: &Step, schedule: &Schedule, at: usize) -> Vec<BlockId> {
    let Action::Compute(compute) = &schedule.instructions[at].action else { return Vec::new() };
    let is_gradient = |block: &BlockId| step.kind(schedule.blocks[block.0].holds) == Kind::GradientMaps;
    compute.touched().filter(is_gradient).collect()
}

#[test]
fn every_wait_between_lanes_is_needed() {
    let (step, schedule) = with_lanes();
    assert_eq!(violations(&step, &schedule), []);
    let [mut forks, mut joins, mut sums] = [0; 3];
    for (at, instruction) in schedule.instructions.iter().enumerate() {
        let Action::Wait(on) = instruction.action else { continue };
        let is_compute = |at: &usize| matches!(schedule.instructions[*at].action, Action::Compute(_));
        let next = (at..schedule.instructions.len()).find(is_compute).unwrap();
        let waits_for = gradients(&step, &schedule, on.0);
        if gradients(&step, &schedule, next).iter().any(|block| waits_for.contains(block)) {
            sums += 1;
        } else if instruction.stream == Stream::Compute {
            joins += 1;
        } else {
            forks += 1;
        }
        let found = violations(&step, &without(&schedule, at));
        let is_named = |violation: &Violation| matches!(violation, Violation::Unordered { .. });
        assert!(found.iter().any(is_named), "without the wait at {at}, {instruction:?}: {found:?}");
    }
    assert!(forks > 0 && joins > 0 && sums > 0, "{forks} {joins} {sums}");
}

/// A block that ends on one lane, and one that begins after it in the list on another, which does not know of that.
#[test]
fn bytes_of_two_lanes_may_not_meet() {
    let (step, schedule) = with_lanes();
    let mut ended: Vec<(Stream, BlockId)> = Vec::new();
    let mut pairs = Vec::new();
    for instruction in &schedule.instructions {
        match instruction.action {
            Action::Wait(_) => ended.clear(),
            Action::Release(block) => ended.push((instruction.stream, block)),
            Action::Allocate(block) => {
                let other = ended.iter().filter(|(stream, _)| *stream != instruction.stream);
                pairs.extend(other.map(|(_, other)| (*other, block)));
            }
            _ => {}
        }
    }
    assert!(!pairs.is_empty());
    for (one, other) in pairs {
        let end = |block: BlockId| schedule.blocks[block.0].offset + schedule.blocks[block.0].bytes;
        let offset = |block: BlockId| schedule.blocks[block.0].offset;
        assert!(end(one) <= offset(other) || end(other) <= offset(one), "{one:?} {other:?}");
        let mut shared = schedule.clone();
        shared.blocks[other.0].offset = offset(one);
        shared.device_bytes = Bytes(2 * schedule.device_bytes.0);
        let found = violations(&step, &shared);
        let is_named =
            |violation: &Violation| matches!(violation, Violation::Unordered { block, .. } if *block == other);
        assert!(found.iter().any(is_named), "{one:?} {other:?}: {found:?}");
    }
}

#[test]
fn lanes_do_not_copy_and_copy_streams_do_not_compute() {
    let (step, schedule) = with_lanes();
    let at = schedule.instructions.iter().position(|instruction| {
        instruction.stream == Stream::Lane2 && matches!(instruction.action, Action::Compute(_))
    });
    let at = at.unwrap();
    let mut moved = schedule;
    moved.instructions[at].stream = Stream::Offload;
    let wanted = Violation::WrongStream { at: InstructionId(at), stream: Stream::Offload };
    assert!(violations(&step, &moved).contains(&wanted));
    let vdnn = plan(&step, &costs(1.0), &Options { policy: Policy::VdnnAll, ..Options::default() }).unwrap();
    let mut moved = vdnn.schedule.into_schedule();
    let at = moved.instructions.iter().position(|instruction| matches!(instruction.action, Action::Offload(..)));
    let at = at.unwrap();
    moved.instructions[at].stream = Stream::Lane4;
    let wanted = Violation::WrongStream { at: InstructionId(at), stream: Stream::Lane4 };
    assert!(violations(&step, &moved).contains(&wanted));
}

/// A recorded step: a fork, three branches that take long, and a join, on the given machine.
fn recorded(machine: &Value) -> String {
    let map = |name: &str| json!({ "name": name, "bytes": 4096, "kind": "feature-map", "residence": "movable" });
    let branch = |group: u64| json!({ "name": "convolution", "group": group, "stage": "forward", "reads": [0], "writes": [group], "time_us": 500 });
    json!({
        "tightfit_step": 1, "name": "branches", "batch": 1, "types": "f32", "mode": "inference",
        "groups": [{ "name": "fork" }, { "name": "a" }, { "name": "b" }, { "name": "c" }, { "name": "join" }],
        "tensors": [map("x"), map("a"), map("b"), map("c"), map("y")],
        "operations": [
            { "name": "convolution", "group": 0, "stage": "forward", "reads": [], "writes": [0], "time_us": 10 },
            branch(1), branch(2), branch(3),
            { "name": "cat", "group": 4, "stage": "forward", "reads": [1, 2, 3], "writes": [4], "time_us": 10 },
        ],
        "machine": machine,
    })
    .to_string()
}

#[test]
fn recorded_steps_have_lanes_where_their_machine_gains_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.json");
    let planned = |machine: Value, rates: Option<&str>, lanes: bool| {
        std::fs::write(&path, recorded(&machine)).unwrap();
        let options = || Ok::<_, Error>(Options { lanes, ..Options::default() });
        let Prepared { step, costs, options, .. } = Prepared::recorded(&path, rates, options).unwrap();
        let plan = plan(&step, &costs, &options).unwrap();
        assert!(Checked::from_step_plan(&plan.to_step_json().unwrap(), &step).unwrap() == plan.schedule);
        plan
    };
    let gains = json!({ "name": "h200", "side_by_side": 1.5 });
    let (one, several) = (planned(gains.clone(), None, false), planned(gains.clone(), None, true));
    assert_eq!((one.schedule.lanes(), several.schedule.lanes()), (1, 3));
    assert!(several.step_time.ratio(one.step_time) < 0.8, "{} {}", several.step_time, one.step_time);
    assert_eq!(planned(gains, Some("k40"), true).schedule.lanes(), 3, "other rates are not another way to run it");
    // An H200 gains from lanes, but the program that runs the plan may not have them.
    assert_eq!(planned(json!({ "name": "h200" }), None, true).schedule.lanes(), 1);
    assert_eq!(planned(Value::Null, Some("h200"), true).schedule.lanes(), 1);
    for gain in [0.5, 4.5] {
        let refused = StepFile::from_json(&recorded(&json!({ "name": "h200", "side_by_side": gain }))).unwrap_err();
        let wanted = format!("machine.side_by_side is {gain}; it must be between 1 and 4");
        assert!(refused.to_string().contains(&wanted), "{refused}");
    }
}
