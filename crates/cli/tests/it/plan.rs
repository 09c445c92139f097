//! `tightfit plan` as a person or a script meets it: words, exit codes, output and files.

use serde_json::Value;

use crate::folder::{Folder, RECORDED, said, text};

/// A network whose convolutions run in slices where memory is short: one large sample.
const SLICED: &str = r#"{"format": "tightfit-network", "version": 1, "name": "big", "layers": [
  {"name": "input", "kind": "input", "shape": [16, 48, 40]},
  {"name": "conv1", "kind": "convolution", "inputs": ["input"], "filters": 16, "filter": [3, 3], "pad": [1, 1]},
  {"name": "conv2", "kind": "convolution", "inputs": ["conv1"], "filters": 16, "filter": [3, 3], "pad": [1, 1]},
  {"name": "fc", "kind": "fully-connected", "inputs": ["conv2"], "outputs": 3},
  {"name": "loss", "kind": "softmax-loss", "inputs": ["fc"]}]}"#;

fn replayed(rest: &str) -> String {
    format!("plan alexnet-1col --batch 256 --backend replay:{RECORDED} {rest}")
}

#[test]
fn the_baseline_of_the_paper_has_two_gradient_maps() {
    let folder = Folder::new();
    let plan = |network: &str| {
        let plan = folder
            .json(&format!("plan {network} --batch 8 --assume --divide off --policy baseline --algorithms memory"));
        let sum = |list: &str, key: &str| -> u64 {
            plan[list].as_array().unwrap().iter().map(|one| one[key].as_u64().unwrap()).sum()
        };
        let paper = &plan["accounting"]["paper"];
        let rest = paper["baseline_bytes"].as_u64().unwrap() - sum("layers", "weight_bytes") - sum("maps", "bytes");
        let ours = plan["accounting"]["ours"]["maximum_saved"].as_f64().unwrap();
        (rest, paper["maximum_saved"].as_f64().unwrap(), ours)
    };
    // The largest gradients belong to 64 maps of 224 x 224 pixels; the labels count as a map.
    let (vgg, resnet) = (plan("vgg16"), plan("resnet50"));
    assert_eq!(vgg.0, 2 * 8 * 64 * 224 * 224 * 4 + 8 * 4);
    // Where a network forks, a third gradient map is live.
    assert!(vgg.1 > -0.001 && resnet.1 < -0.01, "{vgg:?} {resnet:?}");
    // A step without a plan releases what nothing reads again, which the paper's baseline keeps.
    assert!(vgg.2 < -0.05 && resnet.2 < -0.05, "{vgg:?} {resnet:?}");
}

#[test]
fn unknown_words_are_listed_with_valid_ones() {
    let folder = Folder::new();
    for (arguments, parts) in [
        ("plan lenet --batch 4 --budget 1MiB --policy best", &["best", "baseline", "overlap", "optimal"][..]),
        ("plan lenet --batch 4 --assume --sweep 100..25", &["100..25", "25..100:5"]),
        ("plan lenet --batch 4 --assume --sweep 25..100:0", &["25..100:0"]),
        ("plan lenet --batch 4 --assume --sweep 25..100 --budget 1MiB", &["--sweep", "--budget"]),
        ("plan lenet --batch 4 --assume --sweep 25..100 --trace trace.json", &["--sweep", "--trace"]),
        ("plan lenet --step step.json", &["--step"]),
        ("plan --step step.json --batch 4", &["--step", "--batch"]),
        ("plan", &["<NETWORK>"]),
        ("plan lenet --batch 4 --assume --plan-time soon", &["soon", "seconds", "500ms"]),
        ("plan lenet --batch 4 --assume --plan-time unlimited", &["unlimited", "seconds"]),
        ("plan lenet --batch 4 --budget 1MiB --algorithms quick", &["quick", "memory", "performance"]),
        (
            "plan lenet --batch 4 --budget 1MiB --assume --policy vdnn-dynamic --algorithms memory",
            &["vdnn-dynamic", "vdnn-all", "overlap"],
        ),
        ("plan lenet --batch 4 --budget 1MiB --divide maybe", &["maybe"]),
        ("plan lenet --batch 4 --budget 1MiB --lanes maybe", &["maybe", "`on`", "`off`"]),
        ("plan lenet --batch 4 --budget 1MiB --assume --costs k41", &["k41", "k40"]),
        ("plan lenet --batch 4 --budget 1MiB --assume --out plan.json", &["--assume", "--out", "--format json"]),
        ("plan lenet --batch 4 --budget 1MiB --assume --measure", &["--assume", "--measure"]),
        ("plan lenet --batch 4 --budget 1MiB --measure --backend replay:x.jsonl", &["--measure", "replay:"]),
        ("plan lenet --batch max --assume", &["--batch max", "--budget 8GiB"]),
        ("plan lenet --batch many --assume", &["many", "whole number"]),
        ("plan lenet --batch 4 --assume --budget -1", &["-1", "--budget", "is not a size"]),
        ("plan lenet --batch 4 --assume --momentum nan", &["'nan'", "--momentum", "less than 1"]),
        ("plan lenet --batch 4 --assume --solver adamw --momentum 0.5", &["--momentum 0.5", "--solver sgd"]),
        ("plan lenet --batch 4 --assume --html same --trace ./same", &["--html", "--trace", "./same", "two files"]),
        ("plan lenet --batch 4 --budget 1MiB --assume --layout nhwc", &["nhwc", "nchw"]),
        ("plan alexnett --batch 4 --budget 1MiB", &["alexnett", "alexnet"]),
    ] {
        let message = folder.fail(arguments, 2);
        assert!(parts.iter().all(|part| message.contains(part)), "{arguments}: {message}");
    }
    let list = folder.fail("plan deepbench --batch 4 --budget 1MiB --assume", 1);
    assert!(list.contains("layer lists are not networks"), "{list}");
}

#[test]
fn the_size_that_an_error_or_a_plan_names_is_enough() {
    let folder = Folder::new();
    let between = |text: &str, before: &str, after: &str| {
        let rest = text.split_once(before).unwrap_or_else(|| panic!("no `{before}`: {text}")).1;
        rest.split_once(after).unwrap_or_else(|| panic!("no `{after}`: {text}")).0.replace(' ', "")
    };
    for network in ["lenet", "digits-net", "alexnet-1col"] {
        for batch in [7, 64] {
            for policy in ["baseline", "vdnn-all", "vdnn-dynamic", "overlap", "optimal"] {
                let plan =
                    format!("plan {network} --batch {batch} --policy {policy} --assume --lanes off --divide off");
                let message = folder.fail(&format!("{plan} --budget 1kB"), 3);
                let after = if message.contains("smallest plan found") { " in the smallest" } else { " under " };
                let named = between(&message.replace("at least ", ""), " needs ", after);
                let table = folder.succeed(&format!("{plan} --budget {named}"));
                assert_eq!(between(&table, "least budget    ", " with this policy"), named, "{plan}");
            }
        }
    }
}

#[test]
fn a_sweep_names_a_budget_that_is_enough() {
    let folder = Folder::new();
    let plan = "plan lenet --batch 7 --assume";
    let sweep = folder.succeed(&format!("{plan} --sweep 1..1"));
    let named =
        sweep.split_once("needs ").and_then(|(_, rest)| rest.split_once(" (")).expect(&sweep).0.replace(' ', "");
    folder.succeed(&format!("{plan} --budget {named}"));
}

#[test]
fn undivided_plans_have_undivided_convolutions() {
    let folder = Folder::new();
    let configurations = |rest: &str| -> Vec<String> {
        let plan = folder.json(&replayed(rest));
        let steps = plan["steps"].as_array().unwrap().iter();
        steps.filter_map(|step| Some(step.get("configuration")?.as_str()?.to_owned())).collect()
    };
    let undivided = configurations("--budget 3GiB --divide off");
    assert_eq!(undivided.len(), 14, "the first layer needs no gradient of its input");
    assert!(undivided.iter().all(|text| text.starts_with("256 ") || text.starts_with("1 x 256 ")), "{undivided:?}");
    let divided = configurations("--budget 1400MiB --sizes all");
    // In micro-batches, or in parts of the whole step.
    assert!(divided.iter().any(|text| text.contains(" + ") || !text.starts_with("256 ")), "{divided:?}");
    assert_eq!(configurations("--budget 3GiB --inference").len(), 5);
}

#[test]
fn branches_run_side_by_side_where_a_device_gains_by_it() {
    let folder = Folder::new();
    let request = |rest: &str| format!("plan googlenet --batch 128 --budget 8GiB --assume {rest}");
    let (on, off) = (folder.json(&request("--costs h200")), folder.json(&request("--costs h200 --lanes off")));
    let time = |plan: &Value| plan["step_time_us"].as_f64().unwrap();
    let faster = 1.0 - time(&on) / time(&off);
    assert!((0.05..0.1).contains(&faster), "{faster}; 6 to 10% were measured");
    assert_eq!((on["lanes"].as_u64(), on.get("bound_us"), &on["gap"]), (Some(4), None, &Value::Null));
    let streams = |plan: &Value| plan["steps"].as_array().unwrap().iter().any(|step| step["stream"] == "lane-4");
    assert!(streams(&on) && !streams(&off) && off.get("lanes").is_none() && off["bound_us"].is_number());
    let table = folder.succeed(&request("--costs h200 --html page.html --trace trace.json"));
    assert!(table.contains("side by side on 4 streams; no bound is known"), "{table}");
    for file in ["page.html", "trace.json"] {
        assert!(std::fs::read_to_string(folder.path().join(file)).unwrap().contains("lane-4"), "{file}");
    }
    for rest in ["--costs k40", "--costs cpu", "--costs h200 --policy vdnn-all"] {
        assert_eq!(folder.json(&request(rest)).get("lanes"), None, "{rest}");
    }
}

#[test]
fn cpu_measurements_are_cached() {
    let folder = Folder::new();
    let first = folder.json("plan digits-net --batch 4 --backend cpu --sizes undivided");
    assert_eq!(first["backend"], "cpu");
    assert!(first["budget_bytes"].as_u64().unwrap() > 1 << 20, "the memory that is free");
    let again = folder.json("plan digits-net --batch 4 --backend cpu --sizes undivided --budget 4MiB");
    assert_eq!(first["step_time_us"], again["step_time_us"], "from the cache");
}

#[test]
fn the_default_policy_is_optimal_and_slower_ones_name_it() {
    let folder = Folder::new();
    let plan = |rest: &str| {
        let request = format!("plan resnet50 --batch 256 --assume --format json {rest}");
        let output = folder.tightfit(&request).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (crate::folder::json(&text(&output.stdout)), text(&output.stderr))
    };
    let time = |plan: &Value| plan["step_time_us"].as_f64().unwrap();
    let (best, quiet) = plan("--budget 16GiB");
    assert_eq!((best["policy"].as_str(), quiet.as_str()), (Some("optimal"), ""));
    let (slower, said) = plan("--budget 16GiB --policy vdnn-dynamic");
    assert!(time(&slower) > 1.05 * time(&best), "the example has lost its point");
    assert!(said.contains("use --policy optimal"), "{said}");
    // As fast as the baseline: nothing to say.
    assert_eq!(plan("--policy vdnn-dynamic --budget 64GiB").1, "");
}

#[test]
fn plans_networks_and_pages_round_trip() {
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    folder.succeed("networks lenet --out mine.json");
    let measured = "--batch 8 --budget 8MiB --backend cpu --sizes undivided";
    folder.succeed(&format!("plan mine.json {measured} --out plan.json.gz --html plan.html"));
    assert!(std::fs::read_to_string(at("plan.html")).unwrap().starts_with("<!DOCTYPE html>"));
    let (network, plan) = tightfit_plan::Plan::read(&at("plan.json.gz")).unwrap();
    assert_eq!(network, tightfit_network::Network::open("lenet").unwrap());
    assert_eq!((plan.batch, plan.network.as_str()), (8, "lenet"));
    let table = folder.succeed("plan lenet --batch 8 --assume --budget 8MiB");
    assert!(table.contains("policy optimal, algorithms fit, budget 8 MiB"), "{table}");
    let csv = folder.succeed("plan lenet --batch 8 --assume --budget 8MiB --format csv");
    let columns = "layer,output_bytes,weights_bytes,workspace_bytes,forward_us,backward_us,map,reuse_us";
    assert_eq!(csv.lines().next(), Some(columns));
    // conv1 of LeNet: 8 samples of 20 maps of 24x24 floats.
    let conv1: Vec<&str> = csv.lines().find(|line| line.starts_with("conv1,")).unwrap().split(',').collect();
    assert_eq!(conv1[1].parse(), Ok(8 * 20 * 24 * 24 * 4));
    assert!(conv1[4].parse::<f64>().unwrap() > 0.0, "{conv1:?}");

    std::fs::write(at("bad.json"), "{}").unwrap();
    let message = folder.fail("plan bad.json --batch 8 --assume --budget 8MiB", 1);
    assert!(message.contains("cannot be read as a network: field `format` is missing"), "{message}");
    folder.fail(&format!("plan lenet {measured} --out missing/plan.json"), 1);
}

#[test]
fn without_a_gpu_plan_assumes_rates_and_prints_one_note() {
    let folder = Folder::new();
    // Measuring these convolutions on one thread takes hours.
    let vgg19 = "plan vgg19 --batch 128 --budget 8GiB --format json";
    let output = folder.run(vgg19);
    let note = said(&output.stderr);
    assert!(output.status.success(), "{note}");
    assert_eq!(note.lines().count(), 1, "{note}");
    for part in ["no GPU was found", "nothing is measured", "h200", "--costs", "--measure", "replay:FILE"] {
        assert!(note.contains(part), "{part}: {note}");
    }
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["backend"], &plan["device"]), (&"assumed".into(), &"h200".into()));
    let assumed = folder.run(&format!("{vgg19} --assume"));
    assert_eq!(assumed.stdout, output.stdout);
    assert_eq!(said(&assumed.stderr), "", "who asks for it need not be told");
    let k40 = folder.run(&format!("{vgg19} --costs k40"));
    let plan_for: Value = serde_json::from_slice(&k40.stdout).unwrap();
    assert_eq!((plan_for["device"].as_str(), said(&k40.stderr)), (Some("k40"), String::new()), "who names rates, too");
    // Also without a budget: the needs of the step with everything resident.
    let resident = folder.json("plan vgg19 --batch 128");
    assert_eq!((&resident["budget_bytes"], &resident["offloaded_bytes"]), (&Value::Null, &0.into()));
    assert!(resident["peak_bytes"].as_u64() > plan["peak_bytes"].as_u64(), "{}", resident["peak_bytes"]);
    assert!(!folder.path().join("cache.db").exists(), "nothing is kept");
}

#[test]
fn plan_file_requires_measurements() {
    let folder = Folder::new();
    let digits = "plan digits-net --batch 4 --budget 8MiB --sizes undivided --out plan.json";
    let message = folder.fail(digits, 2);
    assert!(message.contains("--out") && message.contains("add --measure"), "{message}");
    let measured = folder.json(&format!("{digits} --measure"));
    assert_eq!(measured["backend"], "cpu");
    assert!(folder.path().join("plan.json").exists() && folder.measurements() > 0);
}

/// Weights, gradients and momentum of 6.6 GiB: with any convolutions, it does not fit 512 MiB.
#[test]
fn impossible_budget_is_refused_before_measuring() {
    let folder = Folder::new();
    let digits = tightfit_network::Network::open("digits-net").unwrap().to_json();
    let wide = digits.replacen("\"outputs\": 64", "\"outputs\": 1150000", 1);
    assert_ne!(digits, wide);
    std::fs::write(folder.path().join("wide.json"), wide).unwrap();
    for (arguments, layer, budget) in [
        ("plan vgg16 --batch 64 --budget 1MiB --measure", "pool1", "1 MiB"),
        ("plan vgg16 --batch 64 --budget 1MiB --backend cpu --policy overlap", "conv1_2", "1 MiB"),
        ("train vgg16 --batch 64 --budget 1MiB --data synthetic", "pool1", "1 MiB"),
        ("train wide.json --batch 8 --budget 512MiB --data digits", "fc1", "512 MiB"),
    ] {
        let message = folder.fail(arguments, 3);
        for part in ["needs at least", "GiB", layer, &format!("the budget is {budget}")] {
            assert!(message.contains(part), "{arguments}: {part}: {message}");
        }
        assert_eq!(folder.measurements(), 0, "{arguments}");
    }
    let told = folder.fail("plan vgg16 --batch 64 --budget 1MiB", 3);
    assert!(told.contains("no GPU was found") && told.contains("needs at least"), "{told}");
}

/// A step of a million samples: no machine that runs this test has the terabytes.
#[cfg(target_os = "linux")]
#[test]
fn work_beyond_the_machines_memory_is_refused_with_alternatives() {
    let folder = Folder::new();
    for (arguments, choices) in [
        ("plan vgg19 --batch 1048576 --budget unlimited --measure", &["--batch", "--assume", "replay:FILE"][..]),
        ("train vgg19 --batch 1048576 --budget unlimited --data synthetic", &["--batch", "plan --assume"]),
        ("optimize vgg19 --batch 1048576 --workspace 1MiB", &["--batch", "limit", "replay:FILE"]),
        ("profile vgg19 --batch 1048576 --workspace 1MiB --policy all", &["--batch", "limit", "replay:FILE"]),
        ("verify vgg19 --batch 1048576 --workspace 1MiB", &["--batch", "limit"]),
    ] {
        let message = folder.fail(arguments, 3);
        let parts = ["vgg19 takes at least", "TiB of memory", "may be used", "nothing was measured"];
        for part in parts.iter().chain(choices) {
            assert!(message.contains(part), "{arguments}: {part}: {message}");
        }
        assert_eq!(folder.measurements(), 0, "{arguments}");
    }
}

#[test]
fn a_recorded_step_is_planned_from_its_file() {
    let folder = Folder::new();
    let step = concat!(env!("CARGO_MANIFEST_DIR"), "/../plan/tests/data/steps/residual-4.json");
    let free = folder.json(&format!("plan --step {step} --policy optimal"));
    assert_eq!((free["network"].as_str(), free["batch"].as_u64()), (Some("residual-4"), Some(8)));
    assert_eq!(free["offloaded_bytes"].as_u64().unwrap() + free["recomputed_us"].as_f64().unwrap() as u64, 0);
    let least = free["min_feasible_bytes"].as_u64().unwrap();
    assert!(free["proven_least_bytes"].as_u64().unwrap() <= least);
    let tight = format!("plan --step {step} --policy optimal --budget {least} --out plan.json --html plan.html");
    let plan = folder.json(&tight);
    assert!(
        plan["peak_bytes"].as_u64().unwrap() <= least && plan["bound_us"].as_f64() <= plan["step_time_us"].as_f64()
    );
    let written: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("plan.json")).unwrap()).unwrap();
    assert_eq!(written["format"], "tightfit-step-plan");
    assert_eq!(written["tensors"], plan["tensors"]);
    let decisions = written["tensors"].as_array().unwrap();
    let is_away = |decision: &&Value| decision["decision"] != "keep";
    assert!(decisions.iter().filter(is_away).count() > 0, "{written}");
    assert!(std::fs::read_to_string(folder.path().join("plan.html")).unwrap().contains("residual-4"));
    let refused = folder.fail(&format!("plan --step {step} --policy optimal --budget {}", least - 256), 3);
    assert!(refused.contains("needs at least") && refused.contains("residual-4"), "{refused}");
    let missing = folder.fail("plan --step nothing.json", 1);
    assert!(missing.contains("nothing.json"), "{missing}");
}

#[test]
fn a_sweep_prints_a_row_for_each_budget() {
    let folder = Folder::new();
    let rows = folder.json("plan digits-net --batch 4 --assume --policy optimal --sweep 25..100:25");
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4);
    let shares: Vec<f64> = rows.iter().map(|row| row["share"].as_f64().unwrap()).collect();
    assert_eq!(shares, [0.25, 0.5, 0.75, 1.0]);
    let steps: Vec<f64> = rows.iter().filter_map(|row| row["step_time_us"].as_f64()).collect();
    assert!(!steps.is_empty() && steps.is_sorted_by(|less, more| less >= more), "{rows:?}");
    let one = folder.json("plan digits-net --batch 4 --assume --sweep 90..90");
    let share = folder.json("plan digits-net --batch 4 --assume --budget 90%");
    assert_eq!(one[0]["budget_bytes"], share["budget_bytes"], "a share is of one number");
    let whole = folder.json("plan digits-net --batch 4 --assume --sweep 100..100");
    let free = folder.json("plan digits-net --batch 4 --assume --budget unlimited");
    assert_eq!(whole[0]["peak_bytes"], free["peak_bytes"], "all of it keeps everything");
}

#[test]
fn a_budget_may_be_a_share_of_keeping_everything() {
    let folder = Folder::new();
    let plan = |budget: &str| folder.json(&format!("plan resnet18 --batch 8 --assume --budget {budget}"));
    let whole = plan("unlimited")["peak_bytes"].as_u64().unwrap();
    for (text, share) in [("80%", 0.8), ("62.5%", 0.625)] {
        let planned = plan(text);
        let budget = (whole as f64 * share) as u64;
        assert_eq!(planned["budget_bytes"], budget, "{text}");
        assert!(planned["peak_bytes"].as_u64().unwrap() <= budget, "{text}");
    }
    assert_eq!(plan("100%")["offloaded_bytes"], 0);
    assert!(folder.fail("plan lenet --batch 4 --assume --budget 0%", 2).contains("is not a share"));
    assert!(folder.fail("plan lenet --batch 4 --assume --budget 1%", 3).contains("needs at least"));
}

#[test]
fn the_largest_mini_batch_is_found() {
    let folder = Folder::new();
    let plan =
        |batch: &str| folder.run(&format!("plan resnet18 --assume --budget 400MiB --format json --batch {batch}"));
    let output = plan("max");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let batch = found["batch"].as_u64().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains(&format!("the largest mini-batch in 400 MiB is {batch}; without a plan, ")), "{said}");
    assert!(found["peak_bytes"].as_u64().unwrap() <= 400 << 20);
    let kept: u64 = said.split("without a plan, ").nth(1).unwrap().trim().parse().unwrap();
    assert!(0 < kept && kept < batch, "{said}");
    let more = |batch: u64| plan(&format!("{batch} --divide off")).status.code();
    assert_eq!((more(batch), more(batch + 1)), (Some(0), Some(3)));
    let default = folder.run("plan lenet --assume");
    assert!(text(&default.stderr).contains("assuming a mini-batch of 32"), "{}", text(&default.stderr));
}

#[test]
fn a_card_has_rates_and_memory() {
    let folder = Folder::new();
    let output = folder.run("plan resnet50 --batch 64 --assume --costs RTX4090 --format json");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["budget_bytes"], (24_564_u64 - 1024) << 20);
    assert!(text(&output.stderr).contains("23.0 GiB: the 4090 has 24.0 GiB, and"), "{}", text(&output.stderr));
    let slower = folder.json("plan resnet50 --batch 64 --assume --costs l4 --budget 23GiB");
    assert!(slower["step_time_us"].as_f64() > found["step_time_us"].as_f64());
}

#[test]
fn a_sweep_is_drawn_beside_others() {
    let folder = Folder::new();
    folder.succeed("plan resnet18 --batch 8 --assume --sweep 40..100:30 --plot front.svg --html front.html");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let (picture, page) = (read("front.svg"), read("front.html"));
    assert!(page.contains("</b>plain</div>"), "three numbers come first");
    for curve in ["optimal", "vdnn-dynamic", "checkpoints", "plain"] {
        assert!(picture.contains(curve) && page.contains(curve), "{curve}");
    }
    assert!(picture.starts_with("<svg") && picture.contains("resnet18, mini-batch 8"));
    for share in ["40%", "70%", "100%"] {
        assert!(page.contains(&format!(", {share}</h2>")), "{share}");
    }
    let without = folder.fail("plan resnet18 --batch 8 --assume --plot front.svg", 2);
    assert!(without.contains("--sweep"), "{without}");
}

#[test]
fn a_trace_has_the_times_and_bytes_that_are_printed() {
    let folder = Folder::new();
    let step = concat!(env!("CARGO_MANIFEST_DIR"), "/../plan/tests/data/steps/residual-4.json");
    std::fs::write(folder.path().join("big.json"), SLICED).unwrap();
    let mut commands = vec![
        "plan big.json --batch 1 --budget 700KiB --inference --backend cpu".to_owned(),
        format!("plan --step {step}"),
        "plan resnet18 --batch 32 --budget 500MiB --assume".to_owned(),
    ];
    let policies = ["baseline", "vdnn-all", "vdnn-conv", "vdnn-dynamic", "overlap", "optimal"];
    commands.extend(policies.map(|policy| format!("plan vgg16 --batch 16 --budget 3GiB --assume --policy {policy}")));
    for command in commands {
        let plan = folder.json(&format!("{command} --trace trace.json"));
        let trace = std::fs::read_to_string(folder.path().join("trace.json")).unwrap();
        let trace: Value = serde_json::from_str(&trace).unwrap();
        let all = trace["traceEvents"].as_array().unwrap();
        let find = |step: &Value| all.iter().find(|event| event["args"]["step"] == *step);
        let tracks: Vec<&Value> = all.iter().filter(|event| event["name"] == "thread_name").collect();
        let mut compared = 0;
        for step in plan["steps"].as_array().unwrap() {
            let Some(event) = find(&step["step"]) else {
                assert!(
                    ["allocate", "release", "wait"].iter().any(|none| step["action"] == *none),
                    "{command}: {step}"
                );
                continue;
            };
            let time = |from: &Value| (from.as_f64().unwrap() * 1e3).round();
            let (start, length) = (time(&event["ts"]), time(&event["dur"]));
            assert_eq!((start, start + length), (time(&step["start_us"]), time(&step["end_us"])), "{command}: {step}");
            let track = tracks.iter().find(|track| track["tid"] == event["tid"]).unwrap();
            assert_eq!(track["args"]["name"], step["stream"], "{command}: {step}");
            assert_eq!(event["args"]["configuration"], step["configuration"], "{command}: {step}");
            if step["action"] == "offload" || step["action"] == "prefetch" {
                assert_eq!(event["args"]["bytes"], step["bytes"], "{command}: {step}");
            }
            compared += 1;
        }
        assert_eq!(compared, all.iter().filter(|event| event["ph"] == "X").count(), "{command}");
        let live = all.iter().filter_map(|event| event["args"]["total"].as_u64());
        assert_eq!(live.max(), plan["most_live_bytes"].as_u64(), "{command}");
        for key in ["network", "batch", "policy", "device", "budget_bytes", "peak_bytes", "step_time_us"] {
            assert_eq!(trace["otherData"][key], plan[key], "{command}: {key}");
        }
    }
}
