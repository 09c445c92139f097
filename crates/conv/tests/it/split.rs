//! Uneven mini-batches against exhaustive search.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tightfit_conv::Problem;
use tightfit_conv::optimize::check::{Violation, check_split};
use tightfit_conv::optimize::{self, Split};
use tightfit_units::{Error, Nanos};

type Device = Vec<(usize, Nanos)>;

fn split(devices: &[Device], mini_batch: usize) -> Result<Split, Error> {
    optimize::split(devices, mini_batch, &AtomicBool::new(false))
}

/// Every split as (slowest, sum, batches negated). The wanted split is the least: it gives more samples to the first devices.
fn exhaustive(devices: &[Device], left: usize) -> Vec<(Nanos, Nanos, Vec<isize>)> {
    let Some((first, others)) = devices.split_first() else {
        return if left == 0 { vec![(Nanos(0), Nanos(0), Vec::new())] } else { Vec::new() };
    };
    let mut found = Vec::new();
    for &(batch, time) in first.iter().filter(|e| e.0 > 0).chain([&(0, Nanos(0))]).filter(|e| e.0 <= left) {
        for (slowest, sum, mut batches) in exhaustive(others, left - batch) {
            batches.insert(0, -(batch as isize));
            found.push((slowest.max(time), sum + time, batches));
        }
    }
    found
}

fn some_device() -> impl Strategy<Value = Device> {
    proptest::collection::vec((0_usize..9, (0_u64..12).prop_map(Nanos)), 0..6)
}

proptest! {
    #[test]
    fn equals_exhaustive_search(devices in proptest::collection::vec(some_device(), 0..5), mini_batch in 0_usize..16) {
        let best = exhaustive(&devices, mini_batch).into_iter().min();
        match split(&devices, mini_batch) {
            Ok(found) => {
                prop_assert_eq!(check_split(&devices, mini_batch, &found), []);
                let batches = found.batches.iter().map(|&batch| -(batch as isize)).collect();
                prop_assert_eq!(Some((found.time, found.device_time, batches)), best);
            }
            Err(Error::NoSplit { largest, .. }) => {
                prop_assert_eq!(best, None);
                let possible = |sum: &usize| !exhaustive(&devices, *sum).is_empty();
                prop_assert_eq!(Some(largest), (0..mini_batch).rev().find(possible));
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }

    /// Sums cross words of the set: sizes around multiples of 64.
    #[test]
    fn sums_cross_words(batches in proptest::collection::vec(1_usize..200, 1..8)) {
        let devices: Vec<Device> = batches.iter().map(|&batch| vec![(batch, Nanos(batch as u64))]).collect();
        let all: usize = batches.iter().sum();
        prop_assert_eq!(split(&devices, all).unwrap().batches, batches);
        let too_many = matches!(split(&devices, all + 1), Err(Error::NoSplit { largest, .. }) if largest == all);
        prop_assert!(too_many);
    }
}

#[test]
fn a_device_that_only_slows_down_gets_nothing() {
    let fast: Device = (1..=8).map(|n| (n, Nanos(n as u64))).collect();
    let slow: Device = (1..=8).map(|n| (n, Nanos(100 * n as u64))).collect();
    assert_eq!(split(&[fast.clone(), slow, fast], 8).unwrap().batches, [4, 0, 4]);
}

#[test]
fn the_checker_sees_each_fault() {
    let devices: Vec<Device> = vec![vec![(2, Nanos(5)), (3, Nanos(7))], vec![(1, Nanos(4))]];
    let good = split(&devices, 3).unwrap();
    assert_eq!(good, Split { batches: vec![2, 1], time: Nanos(5), device_time: Nanos(9) });
    assert_eq!(check_split(&devices, 3, &good), []);
    assert_eq!(check_split(&devices, 4, &good), [Violation::Samples { found: 3, expected: 4 }]);
    let check = |batches: &[usize], time, sum| {
        check_split(&devices, 3, &Split { batches: batches.to_vec(), time: Nanos(time), device_time: Nanos(sum) })
    };
    assert_eq!(check(&[3], 7, 7), [Violation::Count { found: 1, expected: 2 }]);
    assert_eq!(check(&[2, 1], 4, 9), [Violation::Time { stated: Nanos(4), actual: Nanos(5) }]);
    assert_eq!(check(&[2, 1], 5, 8), [Violation::Time { stated: Nanos(8), actual: Nanos(9) }]);
    assert_eq!(
        check(&[1, 2], 0, 0),
        [Violation::NoSuchBatch { device: 0, batch: 1 }, Violation::NoSuchBatch { device: 1, batch: 2 }]
    );
}

#[test]
fn an_oversized_mini_batch_is_refused_and_the_largest_is_split() {
    let device: Device = (0..=20).map(|power| (1 << power, Nanos(1 << power))).collect();
    let most = Problem::MOST_SAMPLES;
    assert_eq!(split(&[device.clone(), device.clone()], most).unwrap().batches, [most / 2, most / 2]);
    for mini_batch in [most + 1, 1 << 31, 1 << 62, usize::MAX] {
        let error = split(std::slice::from_ref(&device), mini_batch).unwrap_err();
        assert!(matches!(error, Error::BadOption { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&mini_batch.to_string()) && text.contains("1048576"), "{text}");
    }
}

#[test]
fn stop_ends_the_search() {
    let device: Device = vec![(1, Nanos(1))];
    let stopped = optimize::split(&[device], 1, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
}
