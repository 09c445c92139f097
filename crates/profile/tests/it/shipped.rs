//! The read-only store behind the cache: its decisions for each device, and its handling of damaged files.

use std::fs;
use std::path::Path;

use tightfit_conv::Device;
use tightfit_profile::{Admission, Decision, DecisionKey, Recording, Shipped};
use tightfit_units::{Bytes, Nanos};

use crate::decisions;
use crate::mixed::measurement;

fn device(name: &str, library: &str) -> Device {
    Device { backend: "cuda".to_owned(), name: name.to_owned(), library: library.to_owned(), threads: 0 }
}

fn key(batch: usize) -> DecisionKey {
    let problem = format!("forward n{batch} c3 h8 w8 k4 r3 s3 f32").parse().unwrap();
    DecisionKey { problem, admission: Admission::default(), ..decisions::key() }
}

/// The program's own choice, which took so long.
fn kept(nanos: u64) -> Decision {
    Decision { configuration: None, framework_time: Some(Nanos(nanos)), is_final: true }
}

/// A recording of decisions by mini-batch, and a measurement.
fn recording(device: &Device, decisions: &[(usize, u64)]) -> Recording {
    let mut recording = Recording::new(device.clone());
    recording.add("forward c3 h8 w8 k4 r3 s3 f32", measurement("gemm", 4, 1, 0));
    decisions.iter().for_each(|(batch, nanos)| recording.add_decision(&key(*batch), kept(*nanos)));
    recording
}

/// The decisions of a store for a device, by mini-batch.
fn found(file: &Path, device: &Device) -> Vec<(usize, u64)> {
    let shipped = Shipped::read(file, device).unwrap();
    let of = |batch| Some((batch, shipped.decision(&key(batch))?.framework_time?.0));
    let found: Vec<_> = (1..9).filter_map(of).collect();
    assert_eq!(shipped.count(), found.len());
    found
}

#[test]
fn a_store_answers_for_the_same_model_and_version_of_cudnn() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export.jsonl.gz");
    let [one, two, newer] =
        ["cudnn 9.19.0 / driver 570 / cuda 13.0", "cudnn 9.19.0 / driver 580 / cuda 13.0", "cudnn 9.20.0 / driver 570"]
            .map(|library| device("NVIDIA H200", library));
    let recordings = [
        recording(&one, &[(1, 10), (2, 20)]),
        recording(&two, &[(2, 200), (3, 300)]),
        recording(&newer, &[(4, 4000)]),
        recording(&device("NVIDIA H100 80GB HBM3", &one.library), &[(5, 50)]),
    ];
    // Decisions of the same driver take precedence, in any order.
    for order in [[0, 1, 2, 3], [3, 2, 1, 0]] {
        Recording::write(&file, &order.map(|place| recordings[place].clone())).unwrap();
        assert_eq!(found(&file, &one), [(1, 10), (2, 20), (3, 300)]);
        assert_eq!(found(&file, &two), [(1, 10), (2, 200), (3, 300)]);
        assert_eq!(found(&file, &newer), [(4, 4000)]);
        let other = device("NVIDIA H200", "cudnn 9.19.0 / driver 600 / cuda 14.0");
        assert_eq!(found(&file, &other).len(), 3, "another driver");
        for none in [
            device("NVIDIA H200 NVL", &one.library),
            device("NVIDIA H200", "cudnn 9.19"),
            Device { backend: "cpu".to_owned(), ..one.clone() },
            Device { threads: 1, ..one.clone() },
        ] {
            assert_eq!(found(&file, &none), [], "{none}");
        }
    }
    let shipped = Shipped::read(&file, &one).unwrap();
    let other = DecisionKey { limit: Bytes(4097), ..key(1) };
    assert_eq!((shipped.decision(&key(1)), shipped.decision(&other)), (Some(&kept(10)), None));
    assert!(Shipped::embedded(&device("a", "b")).is_ok_and(|embedded| embedded.count() == 0));
}

#[test]
fn a_damaged_store_is_an_error_and_an_empty_one_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export.jsonl");
    let device = device("NVIDIA H200", "cudnn 9.19.0");
    Recording::write(&file, &[recording(&device, &[(1, 10), (2, 20)])]).unwrap();
    let whole = fs::read_to_string(&file).unwrap();
    let without_last: String = whole.lines().take(whole.lines().count() - 1).map(|line| format!("{line}\n")).collect();
    for (text, word) in [
        (without_last.as_str(), "announces"),
        (&whole[..whole.len() - 20], "line 5"),
        (&whole.replace("\"question\"", "\"answer\""), "line 4"),
        (&whole.replace("\"version\":1", "\"version\":2"), "version 2"),
        ("", "contains no device"),
        ("\u{1f}rubbish", "line 1"),
    ] {
        fs::write(&file, text).unwrap();
        let error = Shipped::read(&file, &device).unwrap_err().chain();
        assert!(error.contains(word) && error.contains("export.jsonl"), "{word}: {error}");
    }
    assert!(Shipped::read(&folder.path().join("none"), &device).unwrap_err().chain().contains("none"));
    fs::write(&file, "{\"format\":\"tightfit-profile\",\"version\":1,\"lines\":0}\n").unwrap();
    assert_eq!(found(&file, &device), []);
}
