//! Step times of networks, and mini-batches over named devices, against search by hand.

use std::sync::atomic::AtomicBool;

use tightfit_conv::optimize::divide;
use tightfit_conv::{Algorithm, Candidate, Device, DivisionCost, Layout, Measurement, Operation, Problem, Types};
use tightfit_network::{Builder, Network};
use tightfit_profile::mixed::{self, MixedSplit, StepOptions, training_bytes};
use tightfit_profile::survey::Sizes;
use tightfit_profile::{Model, Owner, RecordedNetwork, Recording, Replay, step_name};
use tightfit_units::{Bytes, Error, Nanos};

fn device(name: &str) -> Device {
    Device { backend: "cuda".to_owned(), name: name.to_owned(), library: "cudnn 7.1.2".to_owned(), threads: 0 }
}

/// A measurement without notes.
pub fn measurement(algorithm: &str, micro_batch: usize, time: u64, workspace: u64) -> Measurement {
    Measurement {
        repeats: 3,
        ..Measurement::once(Algorithm::new(algorithm), micro_batch, Nanos(time), Bytes(workspace))
    }
}

/// A device with measured steps of `time(n)` for every batch up to 32.
fn steps(name: &str, time: impl Fn(u64) -> u64) -> Recording {
    let mut recording = Recording::new(device(name));
    for n in 1..=32 {
        recording.add(&step_name("resnet18", Types::F32), measurement("measured", n, time(n as u64), 1000 * n as u64));
    }
    recording
}

fn step_times(
    recording: &Recording,
    network: &Network,
    mini_batch: usize,
    options: &StepOptions,
) -> Result<Vec<(usize, Nanos)>, Error> {
    mixed::step_times(recording, &Model::Network(network.clone()), mini_batch, options, &AtomicBool::new(false))
}

fn split_network(
    recordings: &[Recording],
    devices: &[String],
    network: &Network,
    mini_batch: usize,
    options: &StepOptions,
    memory: &[Bytes],
) -> Result<MixedSplit, Error> {
    mixed::split_network(
        recordings,
        devices,
        &Model::Network(network.clone()),
        mini_batch,
        options,
        memory,
        &AtomicBool::new(false),
    )
}

fn resnet() -> Network {
    Network::open("resnet18").unwrap()
}

/// Two convolutions of one shape and one of another.
fn small() -> Network {
    let list = "a.1 n6 c4 h9 w9 k4 r3 s3 pad1\na.2 n6 c4 h9 w9 k4 r3 s3 pad1\nb n6 c3 h12 w12 k8 r3 s3\n";
    Network::from_list("small", list).unwrap()
}

/// Backward-filter pays for being divided, as half precision does.
fn cost(problem: &Problem) -> DivisionCost {
    match problem.operation() {
        Operation::BackwardFilter => DivisionCost { time: Nanos(25), workspace: Bytes(40) },
        _ => DivisionCost::default(),
    }
}

fn recorded(network: &Network, layout: Layout) -> (Recording, Vec<(Problem, Vec<Candidate>)>) {
    let mut recording = Recording::new(device("P100"));
    let mut known: Vec<(Problem, Vec<Candidate>)> = Vec::new();
    let kernels = network.kernels(Some(6), &Operation::ALL, Types::F32, layout).unwrap();
    for (place, kernel) in kernels.iter().enumerate() {
        if known.iter().any(|(problem, _)| *problem == kernel.problem) {
            continue;
        }
        let mut candidates = Vec::new();
        for n in 1..=6_usize {
            for (algorithm, time, workspace) in [
                ("gemm", 40 * n + 3 + place, 0),
                ("fft", 12 * n + 20 + 7 * place, 30 * n),
                ("winograd", 9 * n * n + 5, 10 * n * n),
            ] {
                let m = measurement(algorithm, n, time as u64, workspace as u64);
                recording.add(&kernel.problem.shape(), m.clone());
                candidates.push(m.candidate());
            }
        }
        recording.add_division_cost(&kernel.problem.shape(), cost(&kernel.problem));
        known.push((kernel.problem, candidates));
    }
    (recording, known)
}

#[test]
fn steps_sum_the_divided_kernels() {
    let network = small();
    let (recording, known) = recorded(&network, Layout::Nchw);
    for sizes in [Sizes::Undivided, Sizes::PowerOfTwo, Sizes::All] {
        for limit in [0, 30, 90, 200].map(Bytes) {
            let options = StepOptions { sizes, workspace: limit, rest: Nanos(11), ..StepOptions::default() };
            let found = step_times(&recording, &network, 6, &options).unwrap();
            let by_hand = (1..=6).map(|n| {
                let kernels = network.kernels(Some(n), &Operation::ALL, Types::F32, Layout::Nchw).unwrap();
                let time = |problem: &Problem| {
                    let (_, all) = known.iter().find(|(known, _)| known.shape() == problem.shape()).unwrap();
                    let sizes = sizes.up_to(n).unwrap();
                    let admitted: Vec<_> = all.iter().filter(|c| sizes.contains(&c.micro_batch)).cloned().collect();
                    divide(problem, &admitted, limit, cost(problem)).unwrap().time()
                };
                (n, kernels.iter().map(|kernel| time(&kernel.problem)).sum::<Nanos>() + Nanos(11 * n as u64))
            });
            assert_eq!(found, by_hand.collect::<Vec<_>>(), "{sizes} {limit}");
        }
    }
}

#[test]
fn memory_and_multiples_leave_batches_out() {
    let network = small();
    let (recording, _) = recorded(&network, Layout::Nchw);
    let batches = |options: &StepOptions| -> Vec<usize> {
        step_times(&recording, &network, 6, options).unwrap().into_iter().map(|step| step.0).collect()
    };
    let plain = StepOptions::default();
    assert_eq!(batches(&plain), [1, 2, 3, 4, 5, 6]);
    assert_eq!(batches(&StepOptions { multiple_of: 2, ..plain.clone() }), [2, 4, 6]);
    // The largest workspace of any candidate, 360 bytes of winograd at 6, comes on top of the maps.
    let memory = training_bytes(&Model::Network(network.clone()), 4, Types::F32) + Bytes(360);
    assert_eq!(batches(&StepOptions { memory, ..plain.clone() }), [1, 2, 3, 4]);
    let memory = memory.saturating_sub(Bytes(1));
    assert_eq!(batches(&StepOptions { memory, ..plain.clone() }), [1, 2, 3]);
    assert!(batches(&StepOptions { types: Types::F16, ..plain.clone() }).is_empty());
    let wrong = step_times(&recording, &network, 6, &StepOptions { multiple_of: 3, ..plain });
    assert!(matches!(wrong, Err(Error::BadOption { .. })));
}

#[test]
fn maps_gradients_and_weights_are_counted() {
    let mut builder = Builder::new("one");
    builder.input(tightfit_network::Shape::flat(10)).fully_connected("fc", 5);
    let network = builder.finish().unwrap();
    // Outputs of 10 + 5, each with its gradient, and 55 weights three times.
    assert_eq!(training_bytes(&Model::Network(network.clone()), 4, Types::F32), Bytes(4 * (2 * 4 * 15 + 3 * 55)));
}

#[test]
fn the_split_reports_the_even_split_and_the_fastest_single_device() {
    let recordings = [steps("Tesla K80", |n| 10 * n), steps("Tesla K20Xm", |n| 30 * n)];
    let devices = ["K80", "K20Xm"].map(str::to_owned);
    let plain = StepOptions::default();
    let found = split_network(&recordings, &devices, &resnet(), 32, &plain, &[]).unwrap();
    assert_eq!((found.devices[0].batch, found.devices[1].batch), (24, 8));
    assert_eq!((found.time, found.even_time, found.alone_time), (Nanos(240), Some(Nanos(480)), Some(Nanos(320))));
    assert_eq!((found.speedup_over_even, found.speedup_over_alone), (Some(2.0), Some(320.0 / 240.0)));
    assert!(found.devices.iter().all(|device| device.measured));
    // With memory for 5 samples the slow device gets no even share, and one for 20 leaves the fast one short of 32.
    let found = split_network(&recordings, &devices, &resnet(), 25, &plain, &[Bytes(20_000), Bytes(5_000)]).unwrap();
    assert_eq!((found.devices[0].batch, found.devices[1].batch), (20, 5));
    assert_eq!((found.even_time, found.speedup_over_even, found.alone_time), (None, None, None));
    let short = split_network(&recordings, &devices, &resnet(), 26, &plain, &[Bytes(20_000), Bytes(5_000)]);
    assert!(matches!(short, Err(Error::NoSplit { mini_batch: 26, largest: 25 })));
}

#[test]
fn unknown_and_ambiguous_device_names_are_refused() {
    let recordings = [steps("Tesla K80", |n| n), steps("Tesla K20Xm", |n| n), Recording::new(device("GTX 750 Ti"))];
    let find = |name: &str| {
        split_network(&recordings, &[name.to_owned()], &resnet(), 8, &StepOptions::default(), &[]).map(|_| ())
    };
    assert!(find("tesla k80").is_ok());
    let several = find("Tesla").unwrap_err();
    assert!(matches!(&several, Error::Ambiguous { known, .. } if known.len() == 2), "{several}");
    assert!(several.to_string().contains("Tesla K20Xm (cudnn 7.1.2)"), "{several}");
    assert!(matches!(find("V100"), Err(Error::UnknownWord { .. })));
    assert!(matches!(find("750"), Err(Error::NoStepTimes { .. })));
    let none = split_network(&recordings, &[], &resnet(), 8, &StepOptions::default(), &[]);
    assert!(matches!(none, Err(Error::BadOption { .. })));
}

#[test]
fn an_oversized_mini_batch_is_refused_and_stop_is_obeyed() {
    let recordings = [steps("Tesla K80", |n| n)];
    let (devices, plain) = (["K80".to_owned()], StepOptions::default());
    for mini_batch in [Problem::MOST_SAMPLES + 1, usize::MAX] {
        let split = split_network(&recordings, &devices, &resnet(), mini_batch, &plain, &[]).unwrap_err();
        let steps = step_times(&recordings[0], &resnet(), mini_batch, &plain).unwrap_err();
        for error in [split, steps] {
            assert!(matches!(error, Error::BadOption { .. }) && error.to_string().contains("1048576"), "{error}");
        }
    }
    let network = small();
    let (recording, _) = recorded(&network, Layout::Nchw);
    let stopped = mixed::step_times(&recording, &Model::Network(network.clone()), 6, &plain, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
}

/// Recordings of one device that list more and more of its libraries are of one device, which `split` finds and lists once.
#[test]
fn older_and_later_recordings_of_a_device_are_one_device() {
    let recording = |libraries: &str, batches: std::ops::RangeInclusive<usize>| {
        let mut recording = Recording::new(Device { library: libraries.to_owned(), ..device("K80") });
        for n in batches {
            recording.add(&step_name("resnet18", Types::F32), measurement("measured", n, 100 * n as u64, 0));
        }
        recording
    };
    let [old, late] = [recording("cudnn 7.1.2", 1..=4), recording("cudnn 7.1.2 / driver 390", 3..=8)];
    for recordings in [vec![old.clone(), late.clone()], vec![late.clone(), old.clone()]] {
        let each = Recording::by_device(recordings.clone());
        assert_eq!(each.iter().map(|one| &one.device).collect::<Vec<_>>(), [&late.device]);
        assert_eq!(each[0].of(&step_name("resnet18", Types::F32)).len(), 8);
        assert!(Replay::of(recordings.clone()).is_ok());
        let names = ["K80".to_owned(), "k80".to_owned()];
        let found = split_network(&recordings, &names, &resnet(), 16, &StepOptions::default(), &[]).unwrap();
        assert_eq!(found.devices.iter().map(|share| share.batch).collect::<Vec<_>>(), [8, 8]);
        assert!(found.devices.iter().all(|share| share.device == late.device.to_string()), "{found:?}");
    }

    // One that fits two devices is of neither.
    let other = recording("cudnn 7.1.2 / driver 410", 1..=2);
    let three = [late.clone(), old.clone(), other.clone()];
    assert_eq!(Recording::by_device(three.clone()), three);
    let message = Replay::of(three).unwrap_err().to_string();
    assert!(message.contains("are from K80 (cudnn 7.1.2 / driver 390) and K80 (cudnn 7.1.2) and K80"), "{message}");
}

/// Every set of eight descriptions, in two orders, against the definition.
#[test]
fn each_device_is_the_most_specific_one_that_nothing_contradicts() {
    let libraries = ["a", "a / b", "a / b / c", "a / b / d", "a / e", "a b", "ab", "b"];
    for set in 0..1 << libraries.len() {
        let mut devices: Vec<Device> = (0..libraries.len())
            .filter(|place| set >> place & 1 == 1)
            .map(|place| Device { library: libraries[place].to_owned(), ..device("K80") })
            .collect();
        for _ in 0..2 {
            devices.reverse();
            let fullest = |device: &Device| {
                let mut fuller = devices.iter().filter(|other| device.more_specific(other) == Some(*other));
                fuller.try_fold(device, |fullest, other| fullest.more_specific(other)).unwrap_or(device).clone()
            };
            let mut expected: Vec<Device> = Vec::new();
            for device in devices.iter().map(fullest) {
                if !expected.contains(&device) {
                    expected.push(device);
                }
            }
            let found = Recording::by_device(devices.iter().cloned().map(Recording::new));
            assert_eq!(found.into_iter().map(|one| one.device).collect::<Vec<_>>(), expected, "{devices:?}");
        }
    }
}

#[test]
fn merged_recordings_of_one_cache_list_their_networks_once() {
    let networks = |batch: usize| RecordedNetwork {
        name: "small".to_owned(),
        owner: Owner::Network { batch: Some(batch) },
        layers: vec![("a".to_owned(), "forward c3 h12 w12 k8 r3 s3 f32".to_owned(), batch)],
    };
    let both = vec![networks(2), networks(4)];
    let [one, other] = ["K80", "K20Xm"].map(|name| {
        let mut recording = Recording::new(device(name));
        recording.networks.clone_from(&both);
        recording
    });
    assert_eq!(Recording::all_networks(&[one.clone(), other]), both.iter().collect::<Vec<_>>());
    assert_eq!(Recording::by_device([one.clone(), one])[0].networks, both);
}
