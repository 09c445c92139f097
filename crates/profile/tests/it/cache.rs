//! The cache as several programs and unlucky disks see it.

use std::fs;

use tempfile::TempDir;
use tightfit_conv::{Algorithm, Device, Measurement, Notes, Problem};
use tightfit_network::Kernel;
use tightfit_profile::{Admission, Cache, Mark, Owner, Recording};
use tightfit_units::{Bytes, Error, Nanos};

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub fn device(name: &str) -> Device {
    Device { backend: "cpu".to_owned(), name: name.to_owned(), library: "1.0".to_owned(), threads: 2 }
}

pub fn problem(batch: usize) -> Problem {
    format!("forward n{batch} c3 h8 w8 k4 r3 s3 f32").parse().unwrap()
}

pub fn measurement(algorithm: &str, micro_batch: usize, ns: u64) -> Measurement {
    Measurement {
        algorithm: Algorithm::new(algorithm),
        micro_batch,
        time: Nanos(ns),
        single: Some(Nanos(ns + 1)),
        workspace: Bytes(64 * micro_batch as u64),
        spread: 0.25,
        repeats: 3,
        notes: Notes::FFT,
    }
}

pub fn message<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("the cache opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn saved_measurements_are_found_again() {
    let folder = folder();
    let path = folder.path().join("deep/er/cache.db");
    let cache = Cache::open(&path).unwrap();
    let (gemm, fft) = (measurement("gemm", 4, 100), measurement("fft", 2, 70));
    cache.keep(&device("a"), &problem(4), &gemm).unwrap();
    cache.keep(&device("a"), &problem(2), &fft).unwrap();
    cache.keep(&device("b"), &problem(4), &measurement("gemm", 4, 55)).unwrap();
    drop(cache);
    let cache = Cache::open(&path).unwrap();
    // Any batch of the shape finds all micro-batches; another device, library or thread count finds none.
    let mut found = cache.measurements(&device("a"), &problem(256)).unwrap();
    found.sort_by_key(|m| m.micro_batch);
    assert_eq!(found, [fft, gemm]);
    let older = Device { library: "0.9".to_owned(), ..device("a") };
    let single = Device { threads: 1, ..device("a") };
    for other in [older, single, device("c")] {
        assert_eq!(cache.measurements(&other, &problem(4)).unwrap(), []);
    }
    assert_eq!(cache.measurements(&device("a"), &"forward n4 c3 h8 w8 k4 r3 s3 tf32".parse().unwrap()).unwrap(), []);
}

#[test]
fn more_repeats_win() {
    let folder = folder();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let once = Measurement { repeats: 1, ..measurement("gemm", 4, 900) };
    let often = Measurement { repeats: 9, ..measurement("gemm", 4, 100) };
    for (m, expected) in [(&once, 900), (&often, 100), (&once, 100)] {
        cache.keep(&device("a"), &problem(4), m).unwrap();
        assert_eq!(cache.measurements(&device("a"), &problem(4)).unwrap()[0].time, Nanos(expected));
    }
}

#[test]
fn processes_add_their_layers_to_one_program() {
    let folder = folder();
    let path = folder.path().join("cache.db");
    let kernel = |layer: &str, batch| Kernel { layer: layer.to_owned(), problem: problem(batch) };
    let (one, two) = (Cache::open(&path).unwrap(), Cache::open(&path).unwrap());
    one.add_to_program("train.py", &[kernel("conv1", 4), kernel("conv2", 4)]).unwrap();
    two.add_to_program("train.py", &[kernel("conv2", 4), kernel("conv2", 8), kernel("conv3", 4)]).unwrap();
    two.add_to_program("test.py", &[kernel("conv1", 1)]).unwrap();
    one.add_to_program("train.py", &[kernel("conv3", 4)]).unwrap();
    let networks = Cache::open_read_only(&path).unwrap().networks().unwrap();
    let layer = |layer: &str, batch| (layer.to_owned(), problem(batch).shape(), batch);
    let expected = [layer("conv1", 4), layer("conv2", 4), layer("conv2", 8), layer("conv3", 4)];
    assert_eq!((networks[0].name.as_str(), networks[0].owner), ("train.py", Owner::Program));
    assert_eq!(networks[0].layers, expected);
    assert_eq!((networks[1].name.as_str(), &networks[1].layers[..]), ("test.py", &[layer("conv1", 1)][..]));
}

#[test]
fn an_unnamed_kernel_is_one_row_in_any_order_until_it_gets_a_name() {
    let folder = folder();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let kernel = |layer: &str, batch| Kernel { layer: layer.to_owned(), problem: problem(batch) };
    let layers = || {
        let networks = cache.networks().unwrap();
        networks[0].layers.iter().map(|(name, _, batch)| (name.clone(), *batch)).collect::<Vec<_>>()
    };
    let row = |name: &str, batch| (name.to_owned(), batch);
    for order in [[4, 8], [8, 4], [4, 4]] {
        cache.add_to_program("train.py", &order.map(|batch| kernel("", batch))).unwrap();
        assert_eq!(layers(), [row("", 4), row("", 8)], "{order:?}");
    }
    // Two layers of one problem: the first takes the place of the unnamed one.
    cache.add_to_program("train.py", &[kernel("conv1", 8), kernel("conv2", 8), kernel("", 8)]).unwrap();
    assert_eq!(layers(), [row("", 4), row("conv1", 8), row("conv2", 8)]);
}

#[test]
fn importing_adds_to_a_program_and_replaces_a_network() {
    let folder = folder();
    let kernel = |layer: &str, batch| Kernel { layer: layer.to_owned(), problem: problem(batch) };
    let filled = |name: &str, own: &str| {
        let cache = Cache::open(&folder.path().join(name)).unwrap();
        // Recordings are grouped by device, so a device needs a measurement.
        cache.keep(&device(name), &problem(4), &measurement("gemm", 4, 100)).unwrap();
        cache.add_to_program("train.py", &[kernel("shared", 4), kernel(own, 4)]).unwrap();
        cache.keep_network("tiny", Some(4), &[kernel(own, 4)]).unwrap();
        cache
    };
    let (one, two, third) = (filled("one.db", "a"), filled("two.db", "b"), filled("third.db", "c"));
    for recording in [one.recordings().unwrap(), two.recordings().unwrap(), two.recordings().unwrap()].concat() {
        third.import(&recording).unwrap();
    }
    let networks = third.networks().unwrap();
    let layers = |name: &str| {
        let network = networks.iter().find(|network| network.name == name).unwrap();
        network.layers.iter().map(|(layer, ..)| layer.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(layers("train.py"), ["shared", "c", "a", "b"]);
    assert_eq!(layers("tiny"), ["b"]);
}

#[test]
fn threads_and_connections_write_together() {
    let folder = folder();
    let path = folder.path().join("cache.db");
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let path = &path;
            threads.spawn(move || {
                // Opened at the same moment as well: one of them makes the tables.
                let cache = Cache::open(path).unwrap();
                for size in 1..=50 {
                    let algorithm = format!("algorithm-{}", (thread + size) % 4);
                    cache.keep(&device("a"), &problem(size), &measurement(&algorithm, size, 10)).unwrap();
                }
            });
        }
    });
    let cache = Cache::open(&path).unwrap();
    assert_eq!(cache.measurements(&device("a"), &problem(1)).unwrap().len(), 200);
}

#[test]
fn the_default_path_follows_the_variables() {
    let path = |pairs: &[(&str, &str)]| {
        Cache::default_path(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    };
    let (named, caches, home) = (("TIGHTFIT_CACHE", "my.db"), ("XDG_CACHE_HOME", "/caches"), ("HOME", "/home/me"));
    assert_eq!(path(&[named, caches, home]), Some("my.db".into()));
    assert_eq!(path(&[("TIGHTFIT_CACHE", "none"), caches, home]), None);
    assert_eq!(path(&[("TIGHTFIT_CACHE", ""), caches, home]), Some("/caches/tightfit/cache.db".into()));
    assert_eq!(path(&[("XDG_CACHE_HOME", ""), home]), Some("/home/me/.cache/tightfit/cache.db".into()));
    assert_eq!(path(&[]), None);
}

#[test]
fn deleting_a_row_deletes_its_mark() {
    let folder = folder();
    let path = folder.path().join("cache.db");
    let cache = Cache::open(&path).unwrap();
    let mark = |sizes: &str, batch| Mark {
        problem: problem(batch),
        sizes: sizes.to_owned(),
        limit: Bytes::UNLIMITED,
        admission: Admission { class: Some(Notes::FFT), ..Admission::default() },
    };
    let rows = [measurement("gemm", 4, 100), measurement("fft", 2, 70)];
    let candidates = rows.each_ref().map(Measurement::candidate);
    let fit = mark("fit", 4);
    let refill = || rows.iter().for_each(|row| cache.keep(&device("a"), &problem(4), row).unwrap());
    let marked = || cache.is_surveyed(&device("a"), &fit).unwrap();
    // Not every row was kept.
    cache.keep(&device("a"), &problem(4), &rows[0]).unwrap();
    assert!(!cache.mark_surveyed(&device("a"), &fit, &candidates).unwrap() && !marked());
    refill();
    assert!(cache.mark_surveyed(&device("a"), &fit, &candidates).unwrap() && marked());
    // Another question, another device, another cache.
    for other in [
        mark("fit total", 4),
        mark("fit", 8),
        Mark { limit: Bytes(64), ..fit.clone() },
        Mark { admission: Admission::default(), ..fit.clone() },
    ] {
        assert!(!cache.is_surveyed(&device("a"), &other).unwrap(), "{other:?}");
    }
    assert!(!cache.is_surveyed(&device("b"), &fit).unwrap());
    assert!(!Cache::open(&folder.path().join("cache.other")).unwrap().is_surveyed(&device("a"), &fit).unwrap());
    // More rows, and rows of another device or problem, change nothing.
    cache.keep(&device("a"), &problem(4), &measurement("winograd", 4, 50)).unwrap();
    cache.keep(&device("b"), &problem(4), &rows[0]).unwrap();
    assert_eq!(cache.clear(Some("b")).unwrap(), 1);
    assert!(marked());
    let recording = {
        let mut recording = Recording::new(device("a"));
        recording.add(&problem(4).shape(), measurement("gemm", 1, 30));
        recording
    };
    type Change<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let changes: [Change<'_>; 4] = [
        ("clear", Box::new(|| assert!(cache.clear(None).unwrap() > 0))),
        ("clear by name", Box::new(|| assert!(cache.clear(Some("a")).unwrap() > 0))),
        ("import", Box::new(|| assert_eq!(cache.import(&recording).unwrap().measurements, 1))),
        (
            "another program",
            Box::new(|| {
                let connection = rusqlite::Connection::open(&path).unwrap();
                assert!(connection.execute("DELETE FROM measurement WHERE micro_batch = 2", []).unwrap() > 0);
            }),
        ),
    ];
    for (change, make) in changes {
        refill();
        assert!(cache.mark_surveyed(&device("a"), &fit, &candidates).unwrap() && marked(), "{change}");
        make();
        assert!(!marked(), "{change}");
    }
}

#[test]
fn a_settled_cache_can_be_copied_as_one_file() {
    let folder = folder();
    let path = folder.path().join("cache.db");
    let cache = Cache::open(&path).unwrap();
    cache.keep(&device("a"), &problem(4), &measurement("gemm", 4, 100)).unwrap();
    let copied = || {
        let copy = folder.path().join("copy.db");
        fs::copy(&path, &copy).unwrap();
        Cache::open_read_only(&copy).unwrap().recordings().unwrap()
    };
    assert_ne!(copied(), cache.recordings().unwrap(), "the journal has it");
    cache.settle().unwrap();
    assert_eq!(copied(), cache.recordings().unwrap());
}

#[test]
fn a_profile_cut_anywhere_is_refused() {
    let folder = folder();
    let mut recording = Recording::new(device("a"));
    for size in 1..200 {
        recording.add(&problem(1).shape(), measurement("gemm", size, size as u64 * 77));
        recording.add(&problem(1).shape(), measurement("fft", size, size as u64 * 31));
    }
    for name in ["profile.jsonl.gz", "profile.jsonl"] {
        let file = folder.path().join(name);
        Recording::write(&file, std::slice::from_ref(&recording)).unwrap();
        let whole = fs::read(&file).unwrap();
        // The plain file is longer, and is valid without its last line feed.
        let is_plain = !name.ends_with("gz");
        let after_lines = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(place, _)| place + 1);
        let ends = (0..whole.len()).step_by(if is_plain { 211 } else { 1 }).chain(after_lines.filter(|_| is_plain));
        for end in ends.filter(|end| !is_plain || *end < whole.len() - 1) {
            fs::write(&file, &whole[..end]).unwrap();
            let error = Recording::read(&file).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("truncated"), "{end}: {error}");
        }
    }
}

#[test]
fn a_profile_without_a_line_count_is_read_unchecked() {
    let folder = folder();
    let file = folder.path().join("profile.jsonl");
    let mut recording = Recording::new(device("a"));
    recording.add(&problem(1).shape(), measurement("gemm", 1, 77));
    Recording::write(&file, std::slice::from_ref(&recording)).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(r#"{"format":"tightfit-profile","version":1,"lines":2}"#), "{text}");
    fs::write(&file, text.replace(r#","lines":2"#, "")).unwrap();
    assert_eq!(Recording::read(&file).unwrap(), [recording]);
    fs::write(&file, text.replace(r#""lines":2"#, r#""lines":1"#)).unwrap();
    assert!(Recording::read(&file).unwrap_err().to_string().contains("announces 1"));
}
