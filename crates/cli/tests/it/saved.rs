//! Weights that `tightfit train` saves: loaded, resumed with the same bits, and kept whole in every case.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::folder::{Folder, json, text};

/// A folder with a plan, so that every run uses the same algorithms.
fn planned() -> Folder {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 32 --budget 8MiB --out plan.json");
    folder
}

const TRAIN: &str = "train digits-net --plan plan.json --data digits";

fn bytes(folder: &Folder, name: &str) -> Vec<u8> {
    std::fs::read(folder.path().join(name)).unwrap()
}

/// The header of a safetensors file.
fn header(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + length]).unwrap()
}

/// The step that a file was saved after.
fn step(path: &Path) -> u64 {
    json(header(path)["__metadata__"]["tightfit"].as_str().unwrap())["step"].as_u64().unwrap()
}

#[test]
fn resumed_training_gives_the_bits_of_uninterrupted_training() {
    let folder = planned();
    // 38 steps are an epoch, so the second part begins in the second epoch and ends in the third.
    let whole = folder.json(&format!("{TRAIN} --steps 90 --save whole.safetensors --seed 5"));
    let first = folder.json(&format!("{TRAIN} --steps 41 --save part.safetensors --seed 5"));
    let rest = folder.json(&format!("{TRAIN} --steps 90 --resume part.safetensors --save part.safetensors"));
    let losses = |part: &Value| part["losses"].as_array().unwrap().clone();
    assert_eq!((&rest["steps_before"], &rest["steps"]), (&41.into(), &49.into()));
    assert_eq!([losses(&first), losses(&rest)].concat(), losses(&whole));
    assert_eq!(rest["test_accuracy"], whole["test_accuracy"]);
    assert_eq!(bytes(&folder, "part.safetensors"), bytes(&folder, "whole.safetensors"));

    let table = folder.succeed(&format!("{TRAIN} --steps 91 --resume part.safetensors"));
    assert!(table.lines().any(|line| line.trim_start().starts_with("91 ")), "rows count all steps: {table}");
    let output = folder.run(&format!("{TRAIN} --steps 90 --resume part.safetensors"));
    assert!(output.status.success() && text(&output.stderr).contains("raise --steps"), "{}", text(&output.stderr));
}

#[test]
fn resumed_adamw_keeps_its_moments_its_bias_correction_and_its_schedule() {
    let folder = Folder::on_cpu();
    folder.succeed("plan digits-net --batch 32 --budget 8MiB --solver adamw --out plan.json");
    let train = format!("{TRAIN} --schedule cosine --warm-up 10 --steps 30");
    folder.succeed(&format!("{train} --save whole.safetensors"));
    let (_, rest) = folder.interrupt(&format!("{train} --save part.safetensors -v"), "step 5:");
    assert!(rest.contains("saved in"), "{rest}");
    let output = folder.run(&format!("{train} --resume part.safetensors --save part.safetensors"));
    assert!(output.status.success() && !text(&output.stderr).contains("note"), "{}", text(&output.stderr));
    assert_eq!(bytes(&folder, "part.safetensors"), bytes(&folder, "whole.safetensors"));
}

#[test]
fn kill_9_costs_only_the_steps_since_the_last_save() {
    let folder = planned();
    let saved = folder.path().join("run.safetensors");
    let endless = format!("{TRAIN} --steps 1000000000 --save run.safetensors --save-every 3");
    let mut child = folder.tightfit(&endless).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !(saved.exists() && step(&saved) >= 9) {
        assert!(begun.elapsed() < Duration::from_secs(120), "nothing was saved");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = step(&saved);
    assert_eq!(kept % 3, 0);
    let steps = kept + 10;
    folder.succeed(&format!("{TRAIN} --steps {steps} --resume run.safetensors --save run.safetensors"));
    folder.succeed(&format!("{TRAIN} --steps {steps} --save whole.safetensors"));
    assert_eq!(bytes(&folder, "run.safetensors"), bytes(&folder, "whole.safetensors"));
}

#[test]
fn interrupted_training_saves_and_says_how_to_continue() {
    let folder = planned();
    let (_, rest) = folder.interrupt(&format!("{TRAIN} --steps 1000000000 --save run.safetensors -v"), "step 3:");
    assert!(rest.contains("saved in run.safetensors: add --resume run.safetensors"), "{rest}");
    let steps = step(&folder.path().join("run.safetensors"));
    assert!(rest.contains(&format!("interrupted after {steps} of")), "{rest}");
    folder.succeed(&format!("{TRAIN} --steps {steps} --save whole.safetensors"));
    assert_eq!(bytes(&folder, "run.safetensors"), bytes(&folder, "whole.safetensors"));
}

#[test]
fn saved_weights_predict_and_train_on() {
    let folder = planned();
    let trained = folder.json(&format!("{TRAIN} --steps 114 --learning-rate 0.02 --save net.safetensors"));
    let predicted = folder.json("predict digits-net --batch 32 --budget 8MiB --data digits --load net.safetensors");
    assert_eq!(predicted["weights"], "net.safetensors");
    assert_eq!(predicted["accuracy"], trained["test_accuracy"]);
    assert!(predicted["accuracy"].as_f64().unwrap() > 0.8, "{predicted}");
    // A new run from these weights: its first loss is far below ln 10, the loss of ten equal classes.
    let tuned = folder.json(&format!("{TRAIN} --steps 1 --load net.safetensors"));
    assert!(tuned["loss"].as_f64().unwrap() < 1.0 && tuned["steps_before"] == 0, "{tuned}");
}

#[test]
fn files_have_the_names_and_shapes_of_pytorch() {
    let folder = planned();
    folder.succeed(&format!("{TRAIN} --steps 1 --save net.safetensors"));
    let header = header(&folder.path().join("net.safetensors"));
    let shape = |name: &str| header[name]["shape"].clone();
    assert_eq!(shape("conv1.weight"), serde_json::json!([16, 1, 3, 3]), "{header}");
    assert_eq!(shape("conv1.bias"), serde_json::json!([16]));
    assert_eq!(shape("solver.momentum/conv1.weight"), shape("conv1.weight"));
    assert!(header.as_object().unwrap().values().all(|tensor| tensor["dtype"].is_null() || tensor["dtype"] == "F32"));
}

#[test]
fn a_full_disk_keeps_the_older_file_and_training_goes_on() {
    let folder = planned();
    folder.succeed(&format!("{TRAIN} --steps 2 --save net.safetensors"));
    let before = bytes(&folder, "net.safetensors");
    assert!(before.len() > 8 << 10);
    // No file may grow past 4 KiB.
    let script = format!(
        "trap '' XFSZ; ulimit -f 4; exec \"$tightfit\" {TRAIN} --steps 6 --save net.safetensors --save-every 2 --cache none"
    );
    let output = folder.shell(&script).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let full = "net.safetensors: cannot be written: a file of ";
    // Two saves on the way, and the last one here and among temporary files.
    assert_eq!((message.matches("warning: ").count(), message.matches(full).count()), (2, 4), "{message}");
    assert_eq!(message.matches("also not saved: ").count(), 1, "{message}");
    assert!(message.contains("the run since the last save is lost; net.safetensors stays as it was"), "{message}");
    assert!(text(&output.stdout).contains("6 steps"), "the results are shown all the same");
    assert_eq!(bytes(&folder, "net.safetensors"), before);
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<String> = left.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.ends_with(".part") || name.starts_with("tightfit-save")), "{left:?}");
}

#[test]
fn a_last_save_that_fails_is_made_beside_the_cache() {
    let folder = planned();
    let script = format!(
        "mkdir out; \"$tightfit\" {TRAIN} --steps 1000000000 --save out/net.safetensors -v 2>log & \
         until grep -q 'step 3:' log; do sleep 0.02; done; rm -r out; kill -TERM $!; wait $!"
    );
    let output = folder.shell(&script).output().unwrap();
    let message = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("out/net.safetensors: cannot be written: there is no folder out"), "{message}");
    let (_, rest) = message.split_once("  saved in ").expect(&message);
    let (saved, rest) = rest.split_once(" instead; out/net.safetensors stays as it was").expect(rest);
    assert!(rest.contains(&format!("add --resume {saved} to the command")), "{rest}");
    let saved = PathBuf::from(saved);
    assert_eq!(saved.parent().unwrap().parent().unwrap(), folder.path());
    let steps = step(&saved);
    folder.succeed(&format!("{TRAIN} --steps {steps} --save whole.safetensors"));
    assert_eq!(std::fs::read(&saved).unwrap(), bytes(&folder, "whole.safetensors"));
}

#[test]
fn diverged_weights_do_not_replace_good_ones() {
    let folder = planned();
    folder.succeed(&format!("{TRAIN} --steps 2 --save net.safetensors"));
    let before = bytes(&folder, "net.safetensors");
    let message = folder.fail(&format!("{TRAIN} --steps 99 --learning-rate 1e30 --save net.safetensors"), 1);
    assert!(message.contains("net.safetensors stays as it was last saved"), "{message}");
    assert_eq!(bytes(&folder, "net.safetensors"), before);
}

/// A safetensors file of this header and data.
fn written(folder: &Folder, name: &str, header: &Value, data: &[u8]) -> PathBuf {
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    let path = folder.path().join(name);
    std::fs::write(&path, [&length[..], header.as_bytes(), data].concat()).unwrap();
    path
}

#[test]
fn files_that_do_not_fit_are_refused_with_the_reason() {
    let folder = planned();
    folder.succeed(&format!("{TRAIN} --steps 1 --save net.safetensors"));
    let whole = bytes(&folder, "net.safetensors");
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    put("cut.safetensors", &whole[..whole.len() - 1]);
    put("head.safetensors", &whole[..100]);
    put("empty.safetensors", b"");
    put("long.safetensors", &[&whole[..], b"more"].concat());
    put("text.safetensors", b"these are no weights at all");
    let tensor = |shape: &[usize], from: usize, to: usize, dtype: &str| serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [from, to]});
    written(&folder, "other.safetensors", &serde_json::json!({"a": tensor(&[2], 0, 8, "F32")}), &[0; 8]);
    let mut altered = header(&folder.path().join("net.safetensors"));
    altered["conv1.bias"]["shape"] = serde_json::json!([4, 4]);
    let data = &whole[8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize..];
    written(&folder, "shape.safetensors", &altered, data);
    altered["conv1.bias"] =
        serde_json::json!({"dtype": "I32", "shape": [16], "data_offsets": altered["conv1.bias"]["data_offsets"]});
    written(&folder, "type.safetensors", &altered, data);
    altered.as_object_mut().unwrap().remove("__metadata__");
    written(&folder, "foreign.safetensors", &altered, data);

    for (options, code, part) in [
        ("--load cut.safetensors", 1, "cut.safetensors: is not a complete safetensors file"),
        ("--load head.safetensors", 1, "head.safetensors: is not a complete safetensors file"),
        ("--load empty.safetensors", 1, "empty.safetensors: is not a safetensors file"),
        ("--load long.safetensors", 1, "long.safetensors: is not a complete safetensors file"),
        ("--load text.safetensors", 1, "text.safetensors: is not a"),
        ("--load nowhere.safetensors", 1, "nowhere.safetensors: cannot be read"),
        ("--load /dev/zero", 1, "is a device, not a file"),
        ("--load other.safetensors", 1, "has no tensor conv1.weight, conv1.bias"),
        ("--load shape.safetensors", 1, "conv1.bias has shape [4, 4], expected [16]"),
        ("--load type.safetensors", 1, "conv1.bias has type I32, expected F32"),
        ("--resume foreign.safetensors", 2, "was not written by `tightfit train --save`; use --load"),
        ("--resume cut.safetensors", 1, "cut.safetensors: is not a complete safetensors file"),
        ("--load a --resume b", 2, "cannot be used with"),
        ("--load a --random-weights", 2, "cannot be used with"),
        ("--save-every 3", 2, "--save <FILE>"),
        ("--save nowhere/net.safetensors", 1, "there is no folder"),
    ] {
        let message = folder.fail(&format!("{TRAIN} --steps 2 {options}"), code);
        assert!(message.contains(part), "{options}: {message}");
    }
    let message = folder.fail("train digits-net --plan plan.json --data synthetic --resume net.safetensors", 2);
    assert!(message.contains("training on digits (1198 samples), not on synthetic (65536 samples)"), "{message}");
    let message = folder.fail("predict lenet --batch 8 --budget 64MiB --data synthetic --load net.safetensors", 1);
    assert!(message.contains("net.safetensors"), "{message}");
}

#[test]
fn changed_settings_are_noted_and_unused_tensors_named() {
    let folder = planned();
    folder.succeed(&format!("{TRAIN} --steps 2 --save net.safetensors"));
    let output = folder.run(&format!("{TRAIN} --steps 3 --learning-rate 0.02 --resume net.safetensors"));
    let message = text(&output.stderr);
    assert!(output.status.success() && message.contains("trained with"), "{message}");
    assert!(message.contains("learning rate 0.01") && message.contains("learning rate 0.02"), "{message}");
    let same = folder.run(&format!("{TRAIN} --steps 3 --resume net.safetensors"));
    assert!(!text(&same.stderr).contains("note"), "{}", text(&same.stderr));

    let whole = bytes(&folder, "net.safetensors");
    let mut more = header(&folder.path().join("net.safetensors"));
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let data = &whole[8 + length..];
    more["extra"] = serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [data.len(), data.len() + 4]});
    written(&folder, "more.safetensors", &more, &[data, &[0; 4]].concat());
    let output = folder.run(&format!("{TRAIN} --steps 1 --load more.safetensors"));
    let message = text(&output.stderr);
    assert!(output.status.success() && message.contains("1 of its tensors are not used: extra"), "{message}");
}

#[test]
fn epochs_report_their_accuracy_and_change_no_bit() {
    let folder = planned();
    let output = folder.run(&format!("{TRAIN} --epochs 3 --save epochs.safetensors --format json"));
    let (told, message) = (json(&text(&output.stdout)), text(&output.stderr));
    assert!(message.contains("digits: 1198 training samples of 1x8x8 in 10 classes, 599 test samples"), "{message}");
    assert!(message.contains("epoch 1, step 38: test accuracy "), "{message}");
    let epochs = told["epochs"].as_array().unwrap();
    assert_eq!(epochs.iter().map(|epoch| epoch["step"].as_u64().unwrap()).collect::<Vec<_>>(), [38, 76, 114]);
    assert_eq!(epochs[2]["test_accuracy"], told["test_accuracy"]);
    assert!(epochs[2]["test_loss"].as_f64().unwrap() < epochs[0]["test_loss"].as_f64().unwrap(), "{told}");
    let steps = folder.json(&format!("{TRAIN} --steps 114 --save steps.safetensors"));
    assert_eq!(told["losses"], steps["losses"]);
    assert_eq!(bytes(&folder, "epochs.safetensors"), bytes(&folder, "steps.safetensors"));
    assert!(steps["epochs"].as_array().unwrap().is_empty());
}

#[test]
fn changed_samples_and_held_back_ones_are_the_same_after_resuming() {
    let folder = planned();
    let train = format!("{TRAIN} --flip --shift 1 --crop --test-share 0.25 --mean 0.5 --std 0.25");
    let whole = folder.json(&format!("{train} --steps 40 --save whole.safetensors"));
    assert_eq!((&whole["train_samples"], &whole["test_samples"]), (&898.into(), &300.into()));
    folder.json(&format!("{train} --steps 31 --save part.safetensors"));
    folder.json(&format!("{train} --steps 40 --resume part.safetensors --save part.safetensors"));
    assert_eq!(bytes(&folder, "part.safetensors"), bytes(&folder, "whole.safetensors"));
    let plain = folder.json(&format!("{TRAIN} --test-share 0.25 --mean 0.5 --std 0.25 --steps 40"));
    assert_ne!(plain["losses"], whole["losses"]);
    let other = folder.fail(&format!("{TRAIN} --steps 41 --resume part.safetensors"), 2);
    assert!(other.contains("digits (898 samples), not on digits (1198 samples)"), "{other}");
    for (options, code, part) in [
        ("--mean 0.5", 2, "--std"),
        ("--mean 0.5,0.5 --std 1,1", 1, "2 means and 2 standard deviations, expected 1 of each"),
        ("--mean 0.5 --std 0", 1, "a standard deviation of 0"),
        ("--test-share 1", 2, "between 0 and 1"),
        ("--test-share 0.1 --test-data digits", 2, "cannot be used with"),
        ("--test-data nowhere", 1, "nowhere: not a folder"),
    ] {
        let message = folder.fail(&format!("{TRAIN} --steps 1 {options}"), code);
        assert!(message.contains(part), "{options}: {message}");
    }
}

/// Pictures of one color, `count` in each of these classes.
fn pictures(folder: &Folder, name: &str, classes: &[(&str, u8)], count: usize) {
    for (class, gray) in classes {
        let path = folder.path().join(name).join(class);
        std::fs::create_dir_all(&path).unwrap();
        for at in 0..count {
            // A PGM would be simpler, but only PNG and JPEG are read.
            image::GrayImage::from_pixel(12, 10, image::Luma([*gray])).save(path.join(format!("{at}.png"))).unwrap();
        }
    }
}

#[test]
fn a_test_set_apart_from_the_training_data_is_scored_by_the_classes_of_the_training_data() {
    let folder = planned();
    pictures(&folder, "own", &[("black", 0), ("gray", 128), ("white", 255)], 4);
    pictures(&folder, "other", &[("white", 255)], 5);
    let train = "train digits-net --plan plan.json --data own --steps 60 --learning-rate 0.05";
    let told = folder.json(&format!("{train} --test-data other --save net.safetensors"));
    assert_eq!((&told["train_samples"], &told["test_samples"]), (&12.into(), &5.into()));
    assert_eq!(told["test_accuracy"], 1.0, "white is the third class: {told}");
    let test = "test digits-net --batch 32 --budget 8MiB --data own --load net.safetensors";
    let tested = folder.json(&format!("{test} --test-data other"));
    assert_eq!((&tested["accuracy"], &tested["samples"]), (&1.0.into(), &5.into()));
    assert_eq!(folder.json(test)["samples"], 12);
    pictures(&folder, "strange", &[("red", 9)], 1);
    let message = folder.fail(&format!("{train} --test-data strange"), 1);
    assert!(message.contains("class red is missing from"), "{message}");
}

/// Weights that were trained on folders of classes know their names; predictions of images without labels have them.
#[test]
fn images_without_labels_are_predicted_with_the_names_of_the_classes() {
    let folder = planned();
    pictures(&folder, "own", &[("black", 0), ("gray", 128), ("white", 255)], 4);
    pictures(&folder, "", &[("photos", 255)], 2);
    pictures(&folder, "", &[("more", 0)], 1);
    let train = "train digits-net --plan plan.json --data own --steps 60 --learning-rate 0.05";
    folder.succeed(&format!("{train} --save net.safetensors"));
    let predict = |of: &str| format!("predict digits-net {of} --batch 2 --budget 8MiB --load net.safetensors");

    let told = folder.json(&predict("photos more/0.png --top 3"));
    let predictions = told["predictions"].as_array().unwrap();
    let samples: Vec<&str> = predictions.iter().map(|of| of["sample"].as_str().unwrap()).collect();
    assert_eq!(samples, ["photos/0.png", "photos/1.png", "more/0.png"]);
    for (prediction, name) in predictions.iter().zip(["white", "white", "black"]) {
        let top = prediction["top"].as_array().unwrap();
        let probabilities: Vec<f64> = top.iter().map(|class| class["probability"].as_f64().unwrap()).collect();
        assert!(probabilities.len() == 3 && probabilities.is_sorted_by(|a, b| a >= b), "{prediction:#}");
        assert!(top[0]["name"] == name && probabilities[0] > 0.5, "{prediction:#}");
        assert!(prediction["label"].is_null(), "{prediction:#}");
    }
    assert!(told["accuracy"].is_null() && told["samples"] == 3, "{told:#}");

    for of in ["photos", "--data photos", "--data photos/1.png"] {
        let table = folder.succeed(&predict(of));
        assert!(table.contains("photos/1.png  white") && !table.contains("accuracy"), "{of}: {table}");
    }
    let rows = folder.succeed(&format!("{} --format csv", predict("more --top 2")));
    let mut rows = rows.lines();
    assert_eq!(rows.next(), Some("sample,rank,class,name,probability,label"));
    assert!(rows.next().unwrap().starts_with("more/0.png,1,0,black,"));
    assert!(rows.next().unwrap().starts_with("more/0.png,2,") && rows.next().is_none());
    // Labels are shown next to predictions, and a class without a name is a number.
    let labeled = folder.succeed(&predict("--data own"));
    assert!(labeled.contains("label") && labeled.contains("accuracy 100.00% (12 of 12)"), "{labeled}");
    let digits = folder.json(&predict("--data digits --batches 1"));
    assert!(digits["predictions"][0]["label"].is_u64() && digits["predictions"][1]["sample"] == "1", "{digits:#}");

    for (of, code, part) in [
        ("", 2, "<IMAGES>"),
        ("photos --data own", 2, "cannot be used with"),
        ("photos --top 0", 2, "a whole number from 1"),
        ("photos lost.png", 1, "lost.png: cannot be read"),
        ("own", 1, "own: has no images"),
    ] {
        let message = folder.fail(&predict(of), code);
        assert!(message.contains(part), "{of}: {message}");
    }
    let message = folder.fail(&format!("{} --data photos", train.replace(" --data own", "")), 1);
    assert!(message.contains("folder of images per class"), "{message}");
}

#[test]
fn test_scores_trained_weights_and_no_others() {
    let folder = planned();
    let trained = folder.json(&format!("{TRAIN} --steps 76 --save net.safetensors"));
    let test = "test digits-net --batch 32 --budget 8MiB";
    let tested = folder.json(&format!("{test} --data digits --load net.safetensors"));
    assert_eq!((&tested["accuracy"], &tested["samples"]), (&trained["test_accuracy"], &599.into()));
    assert!(folder.succeed(&format!("{test} --data digits --load net.safetensors")).contains("accuracy "));
    for (options, part) in [
        ("--data digits", "no trained weights to test; name them with --load FILE"),
        ("--data synthetic --load net.safetensors", "synthetic data has random labels"),
    ] {
        let message = folder.fail(&format!("{test} {options}"), 2);
        assert!(message.contains(part), "{options}: {message}");
    }
}

/// One unreadable test image must not cost the training between two tests.
#[test]
fn failing_tests_between_epochs_are_warnings_and_the_last_one_fails() {
    let folder = Folder::on_cpu();
    let tiny = r#"{"format": "tightfit-network", "version": 1, "name": "tiny", "layers": [
        {"name": "input", "kind": "input", "shape": [1, 2, 2]},
        {"name": "fc", "kind": "fully-connected", "inputs": ["input"], "outputs": 2},
        {"name": "loss", "kind": "softmax-loss", "inputs": ["fc"]}]}"#;
    std::fs::write(folder.path().join("tiny.json"), tiny).unwrap();
    // A gray PNG of one pixel.
    let png: &[u8] = &[
        0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00,
        0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x3a, 0x7e, 0x9b, 0x55, 0x00, 0x00, 0x00,
        0x0a, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x68, 0x00, 0x00, 0x00, 0x82, 0x00, 0x81, 0x77, 0xcd, 0x72,
        0xb6, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82,
    ];
    for class in ["train/a", "train/b", "val/a", "val/b"] {
        std::fs::create_dir_all(folder.path().join(class)).unwrap();
        std::fs::write(folder.path().join(class).join("one.png"), png).unwrap();
    }
    std::fs::write(folder.path().join("val/b/one.png"), "no image").unwrap();
    let train = "train tiny.json --batch 2 --budget 1MiB --data . --epochs 3 --save net.safetensors";
    let message = folder.fail(train, 1);
    assert_eq!(message.matches("is not a complete image").count(), 3, "{message}");
    assert_eq!(message.matches("warning: ").count(), 2, "{message}");
    assert_eq!(step(&folder.path().join("net.safetensors")), 3);
}
