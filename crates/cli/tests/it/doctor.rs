//! `tightfit doctor --preload`: whether `run` can intercept a Python environment.

use std::fs;

use crate::folder::text;
use crate::virtual_env::{NEWER, REAL, VirtualEnv};

/// Puts a torch into the environment whose CUDA library is linked with `options`.
fn install_torch(place: &VirtualEnv, options: &[&str]) {
    let torch = place.site().join("torch");
    fs::create_dir_all(torch.join("lib")).unwrap();
    fs::write(torch.join("version.py"), "debug = False\n__version__ = '2.11.0+cu130'\n").unwrap();
    fs::create_dir_all(place.site().join("nvidia_cudnn_cu13-9.19.0.56.dist-info")).unwrap();
    place.compile(
        "int cudnnCreate(void); int use(void) { return cudnnCreate(); }",
        &torch.join("lib/libtorch_cuda.so"),
        options,
    );
}

fn doctor(place: &VirtualEnv) -> (i32, String, String) {
    let python = place.python();
    let output = place.tightfit(&["doctor", "--preload", "--python", &python, "--format", "csv"]).output().unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn doctor_checks_a_python_environment_from_its_files() {
    let place = VirtualEnv::new(REAL);
    let cudnn = place.cudnn().display().to_string();
    let (code, table, message) = doctor(&place);
    assert_eq!(code, 1, "{table}");
    assert!(message.contains("torch: not installed") && table.contains("will not work"), "{table}{message}");

    install_torch(&place, &[&cudnn, "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cudnn/lib"]);
    let (code, table, message) = doctor(&place);
    assert_eq!(code, 0, "{table}{message}");
    for part in
        ["2.11.0+cu130", "DT_RPATH", "9.19.0.56", "all of this cuDNN's functions are known", "will intercept", "3.12.1"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }

    install_torch(&place, &[]);
    let (code, table, message) = doctor(&place);
    assert_eq!(code, 1, "{table}");
    assert!(table.contains("does not link cuDNN") && message.contains("will not work"), "{table}{message}");
}

#[test]
fn doctor_knows_versions_that_do_not_reach_cudnn_in_three_dimensions() {
    let place = VirtualEnv::new(REAL);
    install_torch(&place, &[&place.cudnn().display().to_string()]);
    assert!(!doctor(&place).1.contains("166643"));
    let version = place.site().join("torch/version.py");
    for (torch, cudnn, is_slow) in
        [("2.9.1+cu128", "9.10.2.21", true), ("2.9.0", "9.15.0.57", false), ("2.10.0", "9.10.2.21", false)]
    {
        fs::write(&version, format!("__version__ = '{torch}'\n")).unwrap();
        let place_of = |version: &str| place.site().join(format!("nvidia_cudnn_cu13-{version}.dist-info"));
        for entry in fs::read_dir(place.site()).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.to_string_lossy().ends_with(".dist-info") {
                fs::remove_dir_all(entry).unwrap();
            }
        }
        fs::create_dir(place_of(cudnn)).unwrap();
        let (code, table, message) = doctor(&place);
        assert_eq!((code, table.contains("166643")), (0, is_slow), "{torch} {cudnn}: {table}{message}");
    }
}

#[test]
fn doctor_knows_which_packages_a_newer_cudnn_still_allows() {
    let place = VirtualEnv::new(NEWER);
    fs::create_dir(place.site().join("jax_cuda13_plugin-0.10.2.dist-info")).unwrap();
    let (code, table, _) = doctor(&place);
    assert_eq!(code, 1, "JAX opens cuDNN by name: {table}");
    assert!(table.contains("1 unknown (cudnnNewThing"), "{table}");
    install_torch(&place, &[&place.cudnn().display().to_string()]);
    assert_eq!(doctor(&place).0, 0, "PyTorch links it");
    fs::remove_file(place.cudnn()).unwrap();
    let (code, table, _) = doctor(&place);
    assert!(code == 1 && table.contains("pip install nvidia-cudnn-cu13"), "{table}");
}

#[test]
fn doctor_needs_a_working_python() {
    let place = VirtualEnv::new(REAL);
    let output = place.tightfit(&["doctor", "--preload", "--python", "/no/python"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("--python"));
    assert_eq!(place.tightfit(&["doctor", "--python", "python3"]).output().unwrap().status.code(), Some(2));
}
