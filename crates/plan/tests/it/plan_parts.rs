//! Plans with a stretch in parts of the mini-batch: when they are found, their memory, and their limits.

use serde_json::{Value, json};
use tightfit_conv::Types;
use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_plan::step::{Phase, Stage, StepFile};
use tightfit_plan::{
    Action, Block, Budgets, Checked, Compute, CostModel, Fronts, Holding, MapTreatment, Mode, Options, Plan, Policy,
    Step, Stop, Workload, check, plan, rivals, simulate,
};
use tightfit_units::{Bytes, Error, Nanos};

fn costs() -> CostModel {
    CostModel::h200()
}

fn step(network: &Network, batch: usize, mode: Mode) -> Step {
    let workload = Workload::new(network, batch, Types::F32, mode).unwrap();
    workload.step(&Fronts::assumed(&workload, &costs()).unwrap(), &costs()).unwrap()
}

fn planned(step: &Step, budget: Bytes, divide: bool) -> Result<Plan, Error> {
    plan(step, &costs(), &Options { budget, divide, ..Options::default() })
}

/// The computations of a plan, in order.
fn computed(plan: &Plan) -> Vec<&Compute> {
    let mut computed: Vec<&Compute> = Vec::new();
    for instruction in &plan.schedule.instructions {
        if let Action::Compute(compute) = &instruction.action {
            computed.push(compute);
        }
    }
    computed
}

/// A wide stretch, then a normalization of less.
fn normalized() -> Network {
    let mut net = Builder::new("normalized");
    net.input(Shape::image(3, 64, 64)).conv("a", Filters::new(32, 3).pad(1)).relu();
    net.conv("b", Filters::new(32, 3).pad(1)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("c", Filters::new(16, 3).pad(1)).batch_norm().relu().global_average_pool("mean");
    net.flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

#[test]
fn a_network_without_normalization_takes_gradients_in_parts() {
    let step = step(&Network::open("alexnet").unwrap(), 64, Mode::Training);
    let whole = planned(&step, Bytes::UNLIMITED, false).unwrap();
    let divided = planned(&step, Bytes::UNLIMITED, true).unwrap();
    assert!(divided.in_parts.is_none() && divided.step_time == whole.step_time, "everything fits");
    assert!(divided.min_feasible < whole.min_feasible && divided.least == divided.min_feasible);
    assert!(divided.proven.unwrap() <= divided.min_feasible && divided.proven.unwrap() < whole.proven.unwrap());
    // Just below the needs of whole mini-batches, each part goes forward and backward, and no tensor is recomputed.
    let budget = Bytes(whole.min_feasible.0 - 1);
    assert!(planned(&step, budget, false).unwrap_err().is_over_limit());
    let plan = planned(&step, budget, true).unwrap();
    let is_whole = |attempt: &str| attempt.starts_with("conv1 to loss in");
    assert!(plan.in_parts.is_some() && plan.decisions.iter().any(|one| is_whole(&one.attempt) && one.fits));
    assert!(plan.peak <= budget && plan.overhead() < 0.1, "{} at {}", plan.peak, plan.overhead());
    assert!(plan.bound.unwrap() <= plan.step_time);
    assert_eq!(plan.in_parts.as_ref().unwrap().last, "loss");
    assert!(
        plan.maps.iter().all(|map| map.reuse_distance != Some(Nanos::ZERO)),
        "parts of the maps wait, not the maps"
    );
    // The simulator's time equals the planned time, with a share of each operation's time per part.
    assert_eq!(simulate(&step, &plan.schedule, &costs()).time, plan.step_time);
}

#[test]
fn the_least_budget_is_enough_and_one_byte_less_is_refused() {
    let networks = [normalized(), Network::open("lenet").unwrap()];
    for (network, batch) in networks.iter().flat_map(|network| [(network, 32), (network, 29)]) {
        let step = step(network, batch, Mode::Training);
        let least = planned(&step, Bytes::UNLIMITED, true).unwrap().min_feasible;
        let plan = planned(&step, least, true).unwrap();
        assert!(plan.in_parts.is_some() && plan.peak <= least, "{}, {batch}", network.name());
        let budgets = Budgets { device: least, host: plan.host };
        assert!(Checked::new(&step, plan.schedule.clone().into_schedule(), budgets).is_ok());
        match planned(&step, Bytes(least.0 - 256), true) {
            Err(Error::OverBudget { least: named, .. }) => assert_eq!(named, least, "{}", network.name()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stretch_before_a_normalization_is_computed_again_part_by_part() {
    let step = step(&normalized(), 32, Mode::Training);
    // Without host memory, what does not stay is computed again.
    let within = |budget| {
        let options = Options { budget, host_budget: Bytes::ZERO, divide: true, ..Options::default() };
        plan(&step, &costs(), &options).unwrap()
    };
    let plan = within(within(Bytes::UNLIMITED).min_feasible);
    let in_parts = plan.in_parts.clone().unwrap();
    assert_eq!(in_parts.first, "a");
    let (parts, samples) = (in_parts.parts, 32 / in_parts.parts);
    for compute in computed(&plan) {
        let name = step.group_name(compute.operation);
        let is_whole = compute.samples == (0..32);
        assert!(is_whole || compute.samples.len() == samples, "{name}: {:?}", compute.samples);
        let may_divide = match compute.phase {
            Phase::Whole => step.may_divide(compute.operation),
            Phase::Sums | Phase::Apply => step.may_divide_after_sums(compute.operation),
        };
        assert!(is_whole || may_divide, "{name}");
    }
    // The maps inside never exist whole: no block holds all samples of the widest.
    let widest = step.tensors.iter().filter(|tensor| tensor.name.starts_with("feature map b")).max_by_key(|t| t.bytes);
    let widest = widest.unwrap();
    let blocks = plan.schedule.blocks.iter().filter(|block| step.describe(block.holds) == widest.name);
    let blocks: Vec<u64> = blocks.map(|block| block.bytes).collect();
    assert!(blocks.len() >= parts && blocks.iter().all(|bytes| *bytes == widest.bytes.0 / parts as u64), "{blocks:?}");
    assert!(plan.maps.iter().any(|map| map.fate == MapTreatment::Recomputed) && plan.recomputed.0 > 0);
    assert_eq!(check(&step, &plan.schedule, Budgets::default()), []);
}

/// A network with enough layers that 16 parts of it take long to plan.
fn deep() -> Network {
    let mut net = Builder::new("deep");
    net.input(Shape::image(3, 32, 32));
    for layer in 0..40 {
        net.conv(format!("conv{layer}"), Filters::new(8, 3).pad(1)).relu();
    }
    net.global_average_pool("mean").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

#[test]
fn parts_that_take_long_to_plan_are_tried_where_nothing_else_fits() {
    let step = step(&deep(), 64, Mode::Training);
    let free = planned(&step, Bytes::UNLIMITED, true).unwrap();
    let budget = Bytes(free.min_feasible.0 - 256);
    assert!(free.proven.unwrap() < budget, "{} is proven", free.min_feasible);
    let plan = planned(&step, budget, true).unwrap();
    assert!(plan.peak <= budget && plan.in_parts.is_some());
    let least = free.proven.unwrap();
    let refused = planned(&step, Bytes(least.0 - 256), true).unwrap_err();
    let hint = format!("in the smallest plan found (proven minimum {})", least.rounded_down());
    assert!(refused.to_string().contains(&hint) && refused.to_string().contains("--plan-time"), "{refused}");
}

#[test]
fn inference_needs_less_in_parts() {
    let step = step(&normalized(), 32, Mode::Inference);
    let [whole, divided] = [false, true].map(|divide| planned(&step, Bytes::UNLIMITED, divide).unwrap().min_feasible);
    assert!(divided < whole, "{divided} of {whole}");
    assert!(planned(&step, divided, true).unwrap().in_parts.is_some());
}

#[test]
fn one_wide_normalization_runs_in_parts_after_its_sums() {
    let step = step(&Network::open("resnet18").unwrap(), 16, Mode::Training);
    let [whole, divided] = [false, true].map(|divide| planned(&step, Bytes::UNLIMITED, divide).unwrap());
    assert!(
        divided.min_feasible.0 < whole.min_feasible.0 / 3 * 2,
        "{} of {}",
        divided.min_feasible,
        whole.min_feasible
    );
    assert!(divided.proven.unwrap() <= divided.min_feasible);
    let plan = planned(&step, divided.min_feasible, true).unwrap();
    let in_parts = plan.in_parts.clone().unwrap();
    assert_eq!((in_parts.first.as_str(), in_parts.last.as_str()), ("conv1", "pool1"));
    // All sums come before the first sample that is computed by them, in both directions; those begin where the sums end.
    for stage in [Stage::Forward, Stage::Backward] {
        let norm = |compute: &&&Compute| {
            let operation = step.operation(compute.operation);
            step.group_name(compute.operation) == "conv1.bn" && operation.stage == stage && !compute.again
        };
        let all = computed(&plan);
        let runs: Vec<&Compute> = all.iter().filter(norm).copied().collect();
        let (sums, applied) = runs.split_at(in_parts.parts);
        assert!(sums.iter().all(|compute| compute.phase == Phase::Sums), "{stage:?}");
        assert!(applied.len() == in_parts.parts && applied.iter().all(|compute| compute.phase == Phase::Apply));
        assert_eq!(sums.last().unwrap().samples, applied[0].samples);
    }
    // No other layer's normalization does, and nothing of that layer's maps is ever whole.
    let is_apart = |compute: &&&Compute| !compute.phase.eq(&Phase::Whole);
    assert!(computed(&plan).iter().filter(is_apart).all(|of| step.group_name(of.operation) == "conv1.bn"));
    let inner = |block: &&Block| match block.holds {
        Holding::Tensor(id) => step.tensor(id).sample_bytes.is_some() && step.tensor(id).name.ends_with("conv1.bn"),
        Holding::Workspace(_) => false,
    };
    let most = plan.schedule.blocks.iter().filter(inner).map(|block| block.samples.len()).max();
    assert_eq!(most, Some(16 / in_parts.parts));
    // Both the sums and the second phase have a time.
    assert_eq!(simulate(&step, &plan.schedule, &costs()).time, plan.step_time);
}

#[test]
fn more_than_one_normalization_of_the_most_gains_nothing() {
    let mut net = Builder::new("two");
    net.input(Shape::image(3, 32, 32)).conv("a", Filters::new(32, 3).pad(1).no_bias()).batch_norm().relu();
    net.conv("b", Filters::new(32, 3).pad(1).no_bias()).batch_norm().relu().global_average_pool("mean");
    net.flatten().fully_connected("fc", 10).softmax_loss();
    let step = step(&net.finish().unwrap(), 16, Mode::Training);
    let [whole, divided] = [false, true].map(|divide| planned(&step, Bytes::UNLIMITED, divide).unwrap());
    // Apart from the statistics of channels, both normalizations need the same bytes.
    let gain = whole.min_feasible.0 - divided.min_feasible.0;
    assert!(gain < 4096, "{gain}");
}

/// Small networks in which a normalization needs the most memory: alone, next to another map, and before smaller ones.
fn small_normalized() -> [Network; 3] {
    let alone = |net: &mut Builder| {
        net.input(Shape::image(3, 8, 8)).conv("a", Filters::new(8, 3).pad(1).no_bias()).batch_norm().relu();
        net.max_pool("pool", Window::new(2, 2));
    };
    let beside = |net: &mut Builder| {
        let from = net.input(Shape::image(3, 8, 8)).conv("a", Filters::new(8, 3).pad(1)).relu().here();
        let long = net.conv("b", Filters::new(8, 3).pad(1).no_bias()).batch_norm().here();
        net.add("sum", &[long, from]).relu().max_pool("pool", Window::new(2, 2));
    };
    let before = |net: &mut Builder| {
        alone(net);
        let from = net.here();
        net.conv("c", Filters::new(8, 3).pad(1)).batch_norm().relu();
        let long = net.here();
        net.concat("join", &[long, from]);
    };
    let layers: [&dyn Fn(&mut Builder); 3] = [&alone, &beside, &before];
    layers.map(|layers| {
        let mut net = Builder::new("small");
        layers(&mut net);
        net.flatten().fully_connected("fc", 3).softmax_loss();
        net.finish().unwrap()
    })
}

#[test]
fn every_budget_of_small_networks_has_a_plan_that_the_checker_accepts() {
    let mut in_parts = [0; 2];
    for (network, batch) in small_normalized().iter().flat_map(|network| [(network, 8), (network, 5)]) {
        let step = step(network, batch, Mode::Training);
        let free = planned(&step, Bytes::UNLIMITED, true).unwrap();
        let (least, most) = (free.min_feasible.0, free.peak.0);
        assert!(least < planned(&step, Bytes::UNLIMITED, false).unwrap().min_feasible.0);
        for budget in (0..=4).map(|part| Bytes(least + (most - least) * part / 4)) {
            let plan = planned(&step, budget, true).unwrap();
            let budgets = Budgets { device: budget, host: plan.host };
            assert_eq!(check(&step, &plan.schedule, budgets), [], "{budget}");
            let sums = computed(&plan).iter().any(|compute| compute.phase == Phase::Sums);
            in_parts[0] += usize::from(plan.in_parts.is_some());
            in_parts[1] += usize::from(sums);
            assert!(plan.bound.is_none_or(|bound| bound <= plan.step_time));
            let text = plan.to_json(network).unwrap();
            assert_eq!(text.contains("\"phase\":\"sums\""), sums);
            assert!(Plan::from_json(&text).unwrap().1 == plan);
            assert!(Checked::from_step_plan(&plan.to_step_json().unwrap(), &step).unwrap() == plan.schedule);
        }
        assert!(planned(&step, Bytes(least - 256), true).unwrap_err().is_over_limit());
    }
    assert!(in_parts[1] >= 4, "{in_parts:?}");
}

#[test]
fn no_rival_is_faster() {
    let step = step(&Network::open("resnet18").unwrap(), 64, Mode::Training);
    let whole = planned(&step, Bytes::UNLIMITED, true).unwrap();
    let budgets: Vec<Bytes> = [100, 85, 70, 60].map(|share| Bytes(whole.peak.0 * share / 100)).into();
    let options = Options::default();
    let rivals = rivals(&step, &costs(), &options, &budgets, Stop::Never).unwrap();
    for (budget, rivals) in budgets.iter().zip(&rivals) {
        let ours = planned(&step, *budget, true).unwrap().step_time;
        for (name, time) in [("vdnn", rivals.vdnn), ("checkpoints", rivals.checkpoints)] {
            assert!(time.is_none_or(|time| ours <= time), "{name} in {budget}: {time:?}, ours {ours}");
        }
    }
    // Everything fits, and vDNN moves nothing; checkpoints recompute at any budget.
    assert_eq!(rivals[0].vdnn, Some(whole.step_time));
    assert!(rivals[0].checkpoints.is_some_and(|time| time > whole.step_time), "{rivals:?}");
    assert!(rivals[2].checkpoints.is_some(), "segments need less: {rivals:?}");
}

#[test]
fn once_time_is_over_no_more_stretches_are_planned() {
    let step = step(&normalized(), 32, Mode::Training);
    let least = planned(&step, Bytes::UNLIMITED, true).unwrap().min_feasible;
    let budget = Bytes(least.0 + least.0 / 4);
    let stretches = |plan: &Plan| plan.decisions.iter().filter(|one| one.attempt.contains(" to ")).count();
    assert!(stretches(&planned(&step, budget, true).unwrap()) > 0);
    let options = Options { budget, plan_time: Some(Nanos(1)), ..Options::default() };
    let plan = plan(&step, &costs(), &options).unwrap();
    assert!(plan.peak <= budget && stretches(&plan) == 0, "{:?}", plan.decisions);
}

#[test]
fn other_policies_compute_whole_mini_batches() {
    let step = step(&normalized(), 32, Mode::Training);
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Optimal) {
        let plan = plan(&step, &costs(), &Options { policy, ..Options::default() }).unwrap();
        assert!(
            plan.in_parts.is_none() && computed(&plan).iter().all(|compute| compute.samples == (0..32)),
            "{policy}"
        );
    }
}

#[test]
fn plans_of_steps_in_parts_are_read_as_they_were_written_and_checked() {
    let step = step(&normalized(), 32, Mode::Training);
    let least = planned(&step, Bytes::UNLIMITED, true).unwrap().min_feasible;
    for budget in [least, Bytes::UNLIMITED] {
        let plan = planned(&step, budget, true).unwrap();
        assert_eq!(plan.in_parts.is_some(), budget == least);
        let text = plan.to_step_json().unwrap();
        assert_eq!(text.contains("\"in_parts\":{\"first\":\"a\""), plan.in_parts.is_some());
        let read = Checked::from_step_plan(&text, &step).unwrap();
        assert!(read == plan.schedule);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json.gz");
        std::fs::write(&path, plan.to_step_file(&path).unwrap()).unwrap();
        assert!(Checked::read_step_plan(&path, &step).unwrap() == read);
    }
}

#[test]
fn damaged_plans_of_steps_are_refused() {
    let step = step(&normalized(), 32, Mode::Training);
    let least = planned(&step, Bytes::UNLIMITED, true).unwrap().min_feasible;
    let whole: Value = serde_json::from_str(&planned(&step, least, true).unwrap().to_step_json().unwrap()).unwrap();
    type Damage = fn(&mut Value);
    let damages: [(&str, Damage); 10] = [
        ("version 2, but this program reads", |plan| plan["version"] = 2.into()),
        ("it is the plan of other, 32 samples", |plan| plan["step"] = "other".into()),
        ("it was made for another recording", |plan| plan["step_crc32"] = "0badcafe".into()),
        ("it states peak_bytes 1", |plan| plan["peak_bytes"] = 1.into()),
        ("it states host_bytes 1", |plan| plan["host_bytes"] = 1.into()),
        ("the checker rejects its schedule", |plan| plan["budget_bytes"] = 256.into()),
        ("the checker rejects its schedule", |plan| _ = list(plan, "instructions").pop()),
        ("the checker rejects its schedule", |plan| list(plan, "blocks")[0]["offset"] = u64::MAX.into()),
        ("the checker rejects its schedule", |plan| {
            // A part is computed twice, another never.
            let part = |one: &&mut Value| one["compute"]["samples"][0].as_u64().is_some_and(|first| first > 0);
            let first = list(plan, "instructions").iter_mut().find(part).unwrap();
            let samples = first["compute"]["samples"].clone();
            let (first, last) = (samples[0].as_u64().unwrap(), samples[1].as_u64().unwrap());
            list(plan, "instructions").iter_mut().find(part).unwrap()["compute"]["samples"] = [0, last - first].into();
        }),
        ("unknown field `steps`", |plan| plan["schedule"]["steps"] = 1.into()),
    ];
    for (part, damage) in damages {
        let mut plan = whole.clone();
        damage(&mut plan);
        let error = Checked::from_step_plan(&plan.to_string(), &step).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

fn list<'a>(plan: &'a mut Value, of: &str) -> &'a mut Vec<Value> {
    plan["schedule"][of].as_array_mut().unwrap()
}

/// A step of four forward operations. The two in the middle may run in parts, forward and backward. The first one may too, but its backward operation
/// may not.
fn divided_in_the_middle(may_divide: bool) -> Step {
    let map = |name: &str, kind: &str, sample: u64| json!({ "name": name, "bytes": 4 * sample, "kind": kind, "residence": "movable", "sample_bytes": sample });
    let operation = |name: &str, group: u64, stage: &str, reads: &[u64], writes: &[u64], may_divide: bool| {
        json!({ "name": name, "group": group, "stage": stage, "reads": reads, "writes": writes, "time_us": 10,
                "independent_samples": may_divide })
    };
    let step = json!({
        "tightfit_step": 1, "name": "middle", "batch": 4, "types": "f32", "mode": "training",
        "groups": [{ "name": "first" }, { "name": "middle" }, { "name": "last" }],
        "tensors": [
            map("x", "feature-map", 1024), map("wide", "feature-map", 102_400), map("y", "feature-map", 1024),
            map("z", "feature-map", 1024), map("dz", "gradient-map", 1024),
        ],
        "operations": [
            operation("forward", 0, "forward", &[], &[0], may_divide),
            operation("forward", 1, "forward", &[0], &[1], true),
            operation("forward", 1, "forward", &[1], &[2], true),
            operation("forward", 2, "forward", &[2], &[3], false),
            operation("backward", 2, "backward", &[3], &[4], false),
            operation("backward", 0, "backward", &[4, 0], &[], false),
        ],
    });
    StepFile::from_json(&step.to_string()).unwrap().step
}

#[test]
fn a_stretch_may_begin_after_an_operation_that_cannot_go_back_in_parts() {
    for may_divide in [false, true] {
        let step = divided_in_the_middle(may_divide);
        let free = planned(&step, Bytes::UNLIMITED, true).unwrap();
        let quarter = Bytes(4096 + 102_400 + 4096);
        assert!(free.proven.unwrap() <= quarter && free.min_feasible <= quarter, "{}", free.min_feasible);
        let plan = planned(&step, free.min_feasible, true).unwrap();
        assert_eq!(plan.in_parts.unwrap().parts, 4, "{may_divide}");
    }
}
