//! `tightfit optimize` and `verify`: their figures, formats and pictures.

use std::fs;

use crate::folder::{Folder, RECORDED, json};

#[test]
fn failed_verification_is_reported() {
    let folder = Folder::new();
    let whole = "verify lenet --batch 4 --workspace 1KiB --values whole --format json";
    let result = json(&folder.succeed(whole));
    for kernel in result["kernels"].as_array().unwrap() {
        assert_eq!(kernel["verification"]["max_relative_error_reference"], 0.0, "{kernel}");
    }
    // An alpha that overflows every output: nothing can be right.
    let message = folder.fail("verify lenet --batch 4 --workspace 1KiB --alpha 3e38", 1);
    assert!(message.contains("64-bit arithmetic") && message.contains("conv1 forward"), "{message}");
}

#[test]
fn replayed_figures_are_exact() {
    let folder = Folder::new();
    for (sizes, undivided, time) in [("undivided", 37.8, 37.8), ("power-of-two", 37.8, 22.9), ("all", 37.8, 21.7)] {
        let arguments = format!(
            "optimize alexnet-1col --batch 256 --workspace 64MiB --backend replay:{RECORDED} --sizes {sizes} --format json"
        );
        let result = json(&folder.succeed(&arguments));
        let ms = |name: &str| (result[name].as_f64().unwrap() / 100.0).round() / 10.0;
        assert_eq!((ms("undivided_time_us"), ms("time_us")), (undivided, time), "{sizes}");
        assert_eq!(result["kernels"].as_array().unwrap().len(), 15);
    }
    assert!(!folder.path().join("cache.db").exists(), "a replay is not kept");
}

#[test]
fn every_way_to_divide_one_sample_is_right() {
    let folder = Folder::new();
    fs::write(folder.path().join("large.txt"), "large c16 h48 w40 k16 r3 s3 pad1\n").unwrap();
    for divide in ["batch", "space", "both", "off", "on"] {
        let result = folder.json(&format!("verify large.txt --batch 1 --workspace 256KiB --full --divide {divide}"));
        // An old word for both.
        let named = if divide == "on" { "both" } else { divide };
        assert_eq!(result["divide"], named);
        for kernel in result["kernels"].as_array().unwrap() {
            let part = &kernel["configuration"][0];
            assert_eq!(part["micro_batch"], 1, "{kernel}");
            assert!(kernel["verification"]["max_relative_error_reference"].as_f64().unwrap() < 1e-4, "{kernel}");
            let is_sliced = part["algorithm"].as_str().unwrap().contains(" x h");
            assert!(!is_sliced || !["batch", "off"].contains(&divide), "{divide}: {kernel}");
        }
    }
    // Slices are measured in addition to measurements without them.
    fs::write(folder.path().join("other.txt"), "other c16 h56 w40 k16 r3 s3 pad1\n").unwrap();
    for (option, divide, is_new) in [
        ("--divide off", "off", true),
        ("--divide batch", "batch", false),
        ("", "both", true),
        ("--divide space", "space", false),
    ] {
        let profiled = folder.json(&format!("profile other.txt --batch 1 --workspace 256KiB {option}"));
        assert_eq!(profiled["divide"], divide);
        assert_eq!(profiled["measured"].as_u64().unwrap() > 0, is_new, "{divide}: {profiled}");
    }
    let message = folder.fail("optimize large.txt --batch 1 --divide maybe", 2);
    assert!(message.contains("batch, space, both, off"), "{message}");
}

#[test]
fn every_format_has_every_kernel() {
    let folder = Folder::new();
    let arguments = "verify lenet --batch 6 --workspace 64KiB";
    let table = folder.succeed(arguments);
    let csv = folder.succeed(&format!("{arguments} --format csv"));
    let object = folder.json(arguments);
    assert_eq!(csv.lines().count(), 1 + 6);
    assert_eq!(object["kernels"].as_array().unwrap().len(), 6);
    for operation in ["forward", "backward-data", "backward-filter"] {
        // A busy machine may have a line about a kernel that is slower divided.
        let rows = table.lines().filter(|line| line.starts_with("conv") && line.contains(operation));
        assert_eq!(rows.count(), 2, "{table}");
    }
    for kernel in object["kernels"].as_array().unwrap() {
        let samples: u64 =
            kernel["configuration"].as_array().unwrap().iter().map(|c| c["micro_batch"].as_u64().unwrap()).sum();
        assert_eq!(samples, 6);
        assert!(kernel["workspace_bytes"].as_u64().unwrap() <= 64 << 10);
        assert!(kernel["verification"]["max_relative_error_reference"].as_f64().unwrap() < 1e-4);
    }
}

#[test]
fn pictures_are_drawn() {
    let folder = Folder::new();
    let common = format!("--batch 256 --backend replay:{RECORDED}");
    for (name, arguments, word) in [
        ("front", "--layers conv2 --operations forward --workspace 512MiB", "fft-tiling"),
        ("layers", "--workspace 64MiB", "conv5"),
        ("allotment", "--total-workspace 120MiB", "conv5"),
        ("limits", "--workspace 512MiB --sizes power-of-two", "undivided"),
    ] {
        let file = folder.path().join(format!("{name}.svg"));
        folder
            .succeed(&format!("optimize alexnet-1col {common} {arguments} --picture {name} --plot {}", file.display()));
        let svg = fs::read_to_string(&file).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains(word), "{name}");
    }
    let several = format!("optimize alexnet-1col {common} --workspace 1MiB --picture front --plot x.svg");
    assert!(folder.fail(&several, 2).contains("--layers"));
}
