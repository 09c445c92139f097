//! `tightfit predict` as a person or a script meets it.

use crate::folder::Folder;

#[test]
fn a_planned_prediction_needs_less_than_training() {
    let folder = Folder::on_cpu();
    // Only `optimal` runs layers in parts of the mini-batch, so other policies cannot reach the least bytes of such plans.
    let options = "digits-net --batch 32 --budget 8MiB --data digits --divide off";
    let predicted = folder.json(&format!("predict {options} --check"));
    let of = |key: &str| predicted[key].as_u64().unwrap();
    assert_eq!((of("batches"), of("samples"), &predicted["weights"]), (19, 599, &"random".into()));
    assert_eq!(predicted["batch_times_us"].as_array().unwrap().len(), 19);
    assert!(of("peak_bytes") <= of("planned_peak_bytes") && of("planned_peak_bytes") <= of("budget_bytes"));
    let accuracy = predicted["accuracy"].as_f64().unwrap();
    assert!((accuracy - of("correct") as f64 / 599.0).abs() < 1e-9 && predicted["loss"].is_f64());
    let trained = folder.json(&format!("train {options} --steps 2"));
    let least = of("min_feasible_bytes");
    assert!(least < trained["min_feasible_bytes"].as_u64().unwrap(), "{predicted}");

    let memory = format!("predict {options} --algorithms memory --policy");
    let roomy = folder.json(&format!("{memory} baseline"));
    let tight = folder.json(&format!("{memory} overlap").replace("8MiB", &least.to_string()));
    assert!(tight["planned_peak_bytes"].as_u64().unwrap() <= least);
    assert_eq!((&roomy["correct"], &roomy["loss"]), (&tight["correct"], &tight["loss"]));
    assert_ne!(folder.json(&format!("predict {options} --seed 5"))["loss"], predicted["loss"]);
}

#[test]
fn plans_for_inference_are_carried_out_and_others_refused() {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --inference --out plan.json.gz");
    folder.succeed("plan digits-net --batch 8 --budget 8MiB --out training.json");
    let table = folder.succeed("predict digits-net --plan plan.json.gz --data synthetic --batches 3");
    assert!(table.contains("3 mini-batches, 24 samples") && table.contains("random weights"), "{table}");
    assert!(!table.contains("accuracy") && !table.contains("label"), "synthetic labels are no truth: {table}");
    let digits = folder.succeed("predict digits-net --plan plan.json.gz --data digits");
    assert!(digits.contains("75 mini-batches, 599 samples") && digits.contains("of 599)"), "{digits}");
    let rows = folder.succeed("predict digits-net --plan plan.json.gz --data digits --format csv");
    assert_eq!(rows.lines().count(), 600, "{rows}");

    for (arguments, part) in [
        ("predict digits-net --plan training.json --data digits", "is a plan for training; make one with --inference"),
        ("train digits-net --plan plan.json.gz --data digits", "is a plan for inference; make one without --inference"),
        ("predict lenet --plan plan.json.gz --data synthetic", "is a plan for digits-net, not for lenet"),
        ("predict digits-net --plan plan.json.gz --batch 8 --data digits", "cannot be used with"),
        ("predict digits-net --data digits --graph", "no CUDA graphs"),
        ("predict deepbench --batch 8 --data digits", "is a layer list"),
    ] {
        let message = folder.fail(arguments, 2);
        assert!(message.contains(part), "{arguments}: {message}");
    }
    let message = folder.fail("predict digits-net --batch 32 --budget 1KiB --data digits", 3);
    assert!(message.contains("needs at least"), "{message}");
}

#[test]
fn interrupted_runs_report_their_progress() {
    let folder = Folder::on_cpu();
    let predict = "predict digits-net --batch 1 --budget 8MiB --data synthetic --batches 65536 -v";
    let (output, rest) = folder.interrupt(predict, "mini-batch 3:");
    assert!(rest.contains("interrupted after ") && rest.contains("of 65536 mini-batches"), "{rest}");
    assert!(output.contains("per mini-batch (median)"));
}
