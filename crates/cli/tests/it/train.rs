//! `tightfit train` as a person or a script meets it.

use crate::folder::{Folder, json, text};

#[test]
fn digits_are_learned_to_97_percent() {
    let folder = Folder::on_cpu();
    let learn = "train digits-net --batch 32 --data digits --learning-rate 0.02 --format json";
    let roomy = json(&folder.succeed(&format!("{learn} --epochs 5 --budget 64MiB --policy baseline")));
    let least = roomy["min_feasible_bytes"].as_u64().unwrap();
    assert!(roomy["test_accuracy"].as_f64().unwrap() >= 0.97, "{roomy}");
    assert_eq!((&roomy["steps"], &roomy["test_samples"]), (&190.into(), &599.into()), "{roomy}");
    assert_eq!(roomy["losses"].as_array().unwrap().len(), 190);
    // The plan's peak counts whole allocation units. Where the fastest algorithms need no workspace, it is the least.
    let (peak, planned) = (roomy["peak_bytes"].as_u64().unwrap(), roomy["planned_peak_bytes"].as_u64().unwrap());
    assert!(peak <= planned && planned >= least && roomy["offloaded_bytes"] == 0, "{roomy}");

    let all = json(&folder.succeed(&format!("{learn} --epochs 2 --budget 64MiB --policy vdnn-all --check")));
    assert!(all["test_accuracy"].as_f64().unwrap() >= 0.9 && all["offloaded_bytes"].as_u64().unwrap() > 0, "{all}");
}

#[test]
fn impossible_numbers_and_options_without_effect_are_refused() {
    let folder = Folder::on_cpu();
    let train = "train digits-net --batch 32 --data digits --steps 1";
    for (options, parts) in [
        ("--learning-rate nan", &["'nan'", "--learning-rate", "of at least 0"][..]),
        ("--learning-rate -1", &["'-1'", "--learning-rate", "of at least 0"]),
        ("--momentum nan", &["'nan'", "--momentum", "less than 1"]),
        ("--momentum 2", &["'2'", "--momentum", "less than 1"]),
        ("--weight-decay inf", &["'inf'", "--weight-decay", "finite"]),
        ("--loss-scale 0", &["'0'", "--loss-scale", "greater than 0"]),
        ("--schedule step --decay 0", &["'0'", "--decay", "greater than 0"]),
        ("--steps 0", &["'0'", "--steps", "from 1 to 2^64 - 1"]),
        ("--solver adamw --momentum 0.5", &["--momentum 0.5", "--solver sgd"]),
        ("--decay 0.5", &["--decay", "--schedule step"]),
        ("--schedule cosine --decay-every 5", &["--decay-every", "--schedule step"]),
        ("--shift 8", &["--shift 8", "8 x 8 pixels", "use --shift 7 or less"]),
        ("--shift -1", &["'-1'", "--shift", "a whole number from 0"]),
        ("--trace same --save ./same", &["--trace", "--save", "./same"]),
    ] {
        let train = if options.starts_with("--steps") {
            train.replace("--steps 1", options)
        } else {
            format!("{train} {options}")
        };
        let message = folder.fail(&train, 2);
        assert!(parts.iter().all(|part| message.contains(part)), "{options}: {message}");
    }
}

#[test]
fn frozen_layers_need_less_and_stay_as_they_are() {
    let folder = Folder::on_cpu();
    let plan = |options: &str| {
        json(&folder.succeed(&format!("plan digits-net --batch 8 --budget 8MiB --assume --format json {options}")))
    };
    let (whole, part) = (plan(""), plan("--freeze conv --freeze fc1"));
    assert!(part["peak_bytes"].as_u64().unwrap() < whole["peak_bytes"].as_u64().unwrap(), "{part}");
    assert!(whole["frozen"].is_null() && part["frozen"] == serde_json::json!(["conv", "fc1"]), "{part}");
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --freeze conv1 --out plan.json");
    let train = "train digits-net --data synthetic --steps 2 --plan plan.json";
    folder.succeed(&format!("{train} --save two.safetensors"));
    folder
        .succeed(&format!("{} --resume two.safetensors --save four.safetensors", train.replace("steps 2", "steps 4")));
    let weights = |name: &str| {
        let file = std::fs::read(folder.path().join(name)).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let head: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        let of = |layer: &str| {
            let span = &head[layer]["data_offsets"];
            let place = |at: usize| 8 + length + span[at].as_u64().unwrap() as usize;
            file[place(0)..place(1)].to_vec()
        };
        (of("conv1.weight"), of("conv2.weight"), head.to_string().contains("solver.momentum/conv1"))
    };
    let ((still, moved, has_state), (same, other, _)) = (weights("two.safetensors"), weights("four.safetensors"));
    assert!(still == same && moved != other && !has_state);
    for (options, parts) in [
        ("train digits-net --data synthetic --plan plan.json --freeze conv2", &["--freeze", "cannot be used with"][..]),
        ("plan digits-net --batch 8 --assume --freeze nothing", &["`nothing`", "tightfit networks"]),
        ("plan digits-net --batch 8 --assume --freeze conv,fc", &["all layers", "nothing trains"]),
        ("plan digits-net --batch 8 --assume --inference --freeze conv", &["--freeze", "training"]),
    ] {
        let message = folder.fail(options, 2);
        assert!(parts.iter().all(|part| message.contains(part)), "{options}: {message}");
    }
}

#[test]
fn plans_and_traces_are_written_and_read() {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --policy vdnn-conv --out plan.json.gz");
    let train = "train digits-net --plan plan.json.gz --data synthetic --steps 3 --trace trace.json";
    let table = folder.succeed(train);
    assert!(table.contains("policy vdnn-conv") && table.contains("3 steps"), "{table}");
    assert!(!table.contains("test accuracy"), "synthetic data has no test part: {table}");

    let trace = json(&std::fs::read_to_string(folder.path().join("trace.json")).unwrap());
    let events = trace["traceEvents"].as_array().unwrap();
    let count = |process: u32, name: &str| {
        events.iter().filter(|event| event["pid"] == process && event["name"] == name && event["ph"] == "X").count()
    };
    assert_eq!((count(1, "conv1 forward"), count(2, "conv1 forward")), (3, 1), "three steps ran, one was planned");
    assert_eq!((count(1, "offload feature map input"), count(1, "prefetch feature map input")), (3, 3));
    let ends = |event: &serde_json::Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap();
    let event = |name: &str| events.iter().find(|event| event["pid"] == 1 && event["name"] == name).unwrap();
    assert!(ends(event("offload feature map input")) <= event("prefetch feature map input")["ts"].as_f64().unwrap());

    folder.succeed("plan digits-net --batch 8 --budget 8MiB --policy vdnn-conv --out plan.json");
    let path = folder.path().join("plan.json");
    let mut plan = json(&std::fs::read_to_string(&path).unwrap());
    plan["plan"]["device"]["library"] = "tightfit-cpu 0.0.1".into();
    std::fs::write(&path, plan.to_string()).unwrap();
    let elsewhere = folder.fail("train digits-net --plan plan.json --data synthetic --steps 1", 2);
    assert!(elsewhere.contains("tightfit-cpu 0.0.1") && elsewhere.contains("plan again"), "{elsewhere}");

    let other = folder.fail("train lenet --plan plan.json.gz --data synthetic --steps 1", 2);
    assert!(other.contains("is a plan for digits-net, not for lenet"), "{other}");
    let both = folder.fail("train digits-net --plan plan.json.gz --batch 8 --data digits", 2);
    assert!(both.contains("cannot be used with"), "{both}");
    for option in ["--host-budget 1MiB", "--costs cpu", "--types f16", "--policy baseline", "--layout nhwc"] {
        let both = folder.fail(&format!("train digits-net --plan plan.json.gz --data digits {option}"), 2);
        assert!(both.contains("cannot be used with"), "{option}: {both}");
        let before = option.starts_with("--types") || option.starts_with("--layout");
        let both = format!("{option} train digits-net --plan plan.json.gz --data digits");
        assert!(!before || folder.fail(&both, 2).contains("cannot be used with"), "{both}");
    }
    let mut command = folder.tightfit("train digits-net --plan plan.json.gz --data synthetic --steps 1");
    command.env("TIGHTFIT_BATCH", "64").env("TIGHTFIT_BUDGET", "1MiB").env("TIGHTFIT_SIZES", "all");
    let output = command.env("TIGHTFIT_TYPES", "f16").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn momentum_takes_memory_only_where_there_is_some() {
    let folder = Folder::on_cpu();
    let plan = "plan digits-net --batch 8 --budget 8MiB --policy baseline --format json --out";
    let with = json(&folder.succeed(&format!("{plan} with.json")));
    let without = json(&folder.succeed(&format!("{plan} without.json --momentum 0")));
    let momentum = |plan: &serde_json::Value| plan["bytes_by_kind"]["momentum"].as_u64().unwrap();
    assert!(momentum(&with) > 0 && momentum(&without) == 0);
    assert_eq!((&with["momentum"], &without["momentum"]), (&true.into(), &false.into()));
    let train = |options: &str| {
        let train = format!("train digits-net --data digits --steps 4 --format json {options}");
        json(&folder.succeed(&train))
    };
    let [roomy, tight] = ["--plan with.json --momentum 0", "--plan without.json"].map(train);
    assert_eq!(roomy["losses"], tight["losses"]);
    assert!(tight["peak_bytes"].as_u64() < roomy["peak_bytes"].as_u64());
    assert_ne!(train("--plan with.json")["losses"], tight["losses"], "0.9 without the option");
    let planned = train("--batch 8 --budget 8MiB --policy baseline --momentum 0");
    assert_eq!((&planned["losses"], &planned["peak_bytes"]), (&tight["losses"], &tight["peak_bytes"]));
    let refused = folder.fail("train digits-net --plan without.json --data digits --steps 1 --momentum 0.9", 2);
    assert!(refused.contains("no memory for momentum"), "{refused}");
}

#[test]
fn impossible_training_explains_why() {
    let folder = Folder::on_cpu();
    for (arguments, code, part) in [
        ("train digits-net --data digits --budget 8MiB --batch 0", 2, "--batch"),
        ("train digits-net --batch 8 --data nowhere --budget 8MiB", 1, "digits, synthetic, or a folder"),
        ("train lenet --batch 8 --data digits --budget 64MiB", 1, "samples are 1x8x8, but the network takes 1x28x28"),
        ("train digits-net --batch 8 --data digits --budget 64KiB", 3, "needs at least"),
        ("train digits-net --batch 8 --data digits --budget 8MiB --types bf16", 2, "--types bf16"),
        ("train digits-net --batch 8 --data digits --budget 8MiB --learning-rate 1e30 --steps 9", 1, "--learning-rate"),
    ] {
        let message = folder.fail(arguments, code);
        assert!(message.contains(part), "{arguments}: {message}");
    }
}

/// Without a mini-batch nothing can be planned, so these messages come before anything is measured.
#[test]
fn options_are_checked_before_anything_is_measured() {
    let folder = Folder::on_cpu();
    for (arguments, code, part) in [
        ("train digits-net --data nowhere", 1, "digits, synthetic, or a folder"),
        ("train digits-net --data digits --graph", 2, "no CUDA graphs"),
        ("train digits-net --data digits --trace nowhere/trace.json", 1, "nowhere"),
        ("train digits-net --data digits --trace .", 1, "is a folder"),
        ("plan digits-net --out nowhere/plan.json", 1, "cannot be written"),
    ] {
        let message = folder.fail(arguments, code);
        assert!(message.contains(part), "{arguments}: {message}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| !name.to_string_lossy().starts_with("cache.db")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn infinite_loss_stops_training_and_keeps_results() {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --out plan.json");
    let train = "train digits-net --plan plan.json --data digits --learning-rate 1e30 --steps 99 --trace trace.json";
    let output = folder.tightfit(&format!("{train} --format json")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--learning-rate"));
    let told = json(&text(&output.stdout));
    let steps = told["steps"].as_u64().unwrap();
    assert!((1..99).contains(&steps) && told["losses"].as_array().unwrap().len() as u64 == steps, "{told}");
    assert!(told["loss"].is_null() && told["test_accuracy"].is_null(), "{told}");
    assert!(folder.path().join("trace.json").exists());
    let table = folder.tightfit(train).output().unwrap();
    assert!(text(&table.stdout).contains(" steps, "), "{}", text(&table.stdout));
}

#[test]
fn a_trace_holds_the_last_steps() {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --out plan.json");
    folder.succeed("train digits-net --plan plan.json --data synthetic --steps 13 --trace trace.json");
    let trace = json(&std::fs::read_to_string(folder.path().join("trace.json")).unwrap());
    let events = trace["traceEvents"].as_array().unwrap();
    let ran = events.iter().filter(|event| event["pid"] == 1 && event["name"] == "conv1 forward").count();
    assert_eq!(ran, 10);
}

#[test]
fn adamw_learns_within_a_plan_that_has_its_moments() {
    let folder = Folder::on_cpu();
    let plan = "plan digits-net --batch 32 --budget 8MiB --policy baseline";
    let momentum = |options: &str| {
        let plan = folder.json(&format!("{plan} {options}"));
        plan["bytes_by_kind"]["momentum"].as_u64().unwrap()
    };
    assert_eq!(momentum("--solver adamw --out adamw.json"), 2 * momentum("--out sgd.json"));
    let train = "train digits-net --data digits --steps 76 --schedule cosine --warm-up 10 --learning-rate 0.003";
    let planned = folder.json(&format!("{train} --plan adamw.json"));
    assert!(planned["test_accuracy"].as_f64().unwrap() > 0.9, "the plan says which solver: {planned}");
    assert_eq!(folder.json(&format!("{train} --plan adamw.json --solver adamw"))["losses"], planned["losses"]);

    for (options, part) in [
        ("--plan sgd.json --solver adamw", "no memory for its two moments"),
        ("--plan adamw.json --solver sgd", "the plan is for adamw"),
        ("--plan adamw.json --momentum 0.9", "--momentum 0.9 is an option of SGD"),
    ] {
        let message = folder.fail(&format!("train digits-net --data digits {options}"), 2);
        assert!(message.contains(part), "{options}: {message}");
    }
}

#[test]
fn schedules_change_the_learning_rate() {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --out plan.json");
    let losses = |options: &str| {
        folder.json(&format!("train digits-net --plan plan.json --data digits --steps 6 {options}"))["losses"].clone()
    };
    let constant = losses("");
    assert_eq!(losses("--schedule step --decay 1"), constant);
    let step = losses("--schedule step --decay-every 4");
    // The rate of the fifth step shows in the loss of the sixth.
    assert_eq!(step.as_array().unwrap()[..5], constant.as_array().unwrap()[..5]);
    assert_ne!(step[5], constant[5]);
    assert_ne!(losses("--schedule cosine"), constant);
    let warm = losses("--warm-up 2");
    assert!(warm[0] == constant[0] && warm[1] != constant[1]);
}
