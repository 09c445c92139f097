//! `--deterministic` and `--exact-class`: the admitted algorithms, and the effect on a configuration.

use tightfit_conv::optimize::divide;
use tightfit_conv::{Algorithm, Backend, Device, Measurement, Notes, Problem};
use tightfit_profile::survey::{Env, Scope, Sizes, survey};
use tightfit_profile::{Recording, Replay};
use tightfit_units::{Bytes, Nanos};

/// Under 10 bytes, undivided gemm takes 100. algo-0 is faster but not deterministic. Winograd fits only in micro-batches of up to 4, and is fastest.
/// So is engine 17, which cuDNN 9.19 does not report as Winograd.
const ROWS: [(&str, Notes, usize, u64, u64); 8] = [
    ("legacy:algo-0", Notes::NONDETERMINISTIC, 8, 90, 0),
    ("legacy:algo-0", Notes::NONDETERMINISTIC, 4, 40, 0),
    ("legacy:algo-1", Notes::NONE, 8, 100, 0),
    ("legacy:algo-1", Notes::NONE, 4, 48, 0),
    ("legacy:winograd-nonfused", Notes::WINOGRAD, 8, 20, 80),
    ("legacy:winograd-nonfused", Notes::WINOGRAD, 4, 12, 10),
    ("engine17:k25=0", Notes::NONE, 4, 10, 10),
    ("engine16", Notes::NONE, 8, 120, 0),
];

fn problem() -> Problem {
    "backward-filter n8 c3 h8 w8 k4 r5 s5 pad2 f32".parse().unwrap()
}

/// The division under 10 bytes with the algorithms that are admitted for a version of cuDNN.
fn divided(version: &str, deterministic: bool, exact_class: bool) -> String {
    let library = format!("cudnn {version} / cuda 13.0");
    let device = Device { backend: "cuda".into(), name: "made up".into(), library, threads: 0 };
    let mut recording = Recording::new(device);
    for (name, notes, micro_batch, time, workspace) in ROWS {
        let measurement = Measurement {
            repeats: 3,
            notes,
            ..Measurement::once(Algorithm::new(name), micro_batch, Nanos(time), Bytes(workspace))
        };
        recording.add(&problem().shape(), measurement);
    }
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Replay::of([recording]).unwrap())];
    let limit = Bytes(10);
    let scope =
        Scope { baseline: Some(limit), deterministic, exact_class, ..Scope::new(Sizes::PowerOfTwo, vec![limit]) };
    let mut survey = survey(&[problem()], &scope, &mut backends, &Env::default()).unwrap();
    let found = survey.candidates.remove(&problem()).unwrap();
    divide(&problem(), &found.candidates, limit, found.cost).unwrap().to_string()
}

#[test]
fn everything_competes_unless_told_otherwise() {
    assert_eq!(divided("9.19.0", false, false), "2 x 4 engine17:k25=0");
}

#[test]
fn deterministic_excludes_algorithms_that_may_differ() {
    assert_eq!(divided("9.19.0", true, false), "2 x 4 engine17:k25=0");
    // Among algorithms of the class of gemm it decides.
    assert_eq!(divided("9.19.0", false, true), "2 x 4 legacy:algo-0");
    assert_eq!(divided("9.19.0", true, true), "2 x 4 legacy:algo-1");
}

#[test]
fn exact_class_trusts_corrections_over_an_engines_own_notes() {
    assert_eq!(divided("9.19.0", true, true), "2 x 4 legacy:algo-1");
    // Nothing is known of the same engine in another version.
    assert_eq!(divided("9.99.0", true, true), "2 x 4 engine17:k25=0");
}
