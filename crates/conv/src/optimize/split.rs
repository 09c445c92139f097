//! Splits a mini-batch unevenly over unequal devices, so that the slowest device finishes as early as possible.
//!
//! ```text
//! K80     |==== 14 ====|
//! K80     |==== 14 ====|
//! 750Ti   |== 4 ==|    ' the step ends here
//! ```
//!
//! Under a given maximum time, each device may get only some batches; a set of reachable sums, one bit per sum, shows
//! whether they can add up to the mini-batch. A binary search over the measured times finds the least maximum; among
//! the splits within it, the one with the least sum of times wins.

use std::sync::atomic::{AtomicBool, Ordering};

use tightfit_units::{Error, Nanos};

use crate::Problem;

/// How many samples each device gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Samples of each device, in the order given; 0 for a device that would only slow the others down.
    pub batches: Vec<usize>,
    /// Time of the slowest device.
    pub time: Nanos,
    /// Sum of the times of all devices.
    pub device_time: Nanos,
}

/// Splits `mini_batch` samples over devices so that the slowest finishes as early as possible.
///
/// `times` lists for each device the batches it may get and the time of each; leave out a batch that it cannot hold or
/// should not get. Any device may get 0 samples, in no time. Among splits with equal slowest time the one with the
/// least sum of times wins, then the one that gives the first devices the most.
///
/// - Cost: O(entries × mini-batch / 64 × log entries) for the slowest time; entries × mini-batch once for the split,
///   over the entries not slower than that. Memory: 16 bytes × mini-batch, and 8 for each device.
/// - Source: Oyama et al. 2018, III.E, whose 0-1 program this solves exactly.
///
/// # Errors
/// [`Error::NoSplit`] if no batches of the devices add up to the mini-batch; [`Error::BadOption`] for a mini-batch over
/// [`Problem::MOST_SAMPLES`]; [`Error::Interrupted`] soon after `stop` is set.
pub fn split(times: &[Vec<(usize, Nanos)>], mini_batch: usize, stop: &AtomicBool) -> Result<Split, Error> {
    check_samples(mini_batch)?;
    let mut thresholds: Vec<Nanos> = times.iter().flatten().map(|&(_, time)| time).collect();
    thresholds.push(Nanos::ZERO);
    thresholds.sort_unstable();
    thresholds.dedup();
    // Reachability only grows with the threshold, so binary search finds the least one.
    let (mut least, mut end) = (0, thresholds.len());
    while least < end {
        let middle = usize::midpoint(least, end);
        if has(&sums(times, mini_batch, thresholds[middle], stop)?, mini_batch) {
            end = middle
        } else {
            least = middle + 1
        }
    }
    match thresholds.get(least) {
        Some(&longest) => cheapest(times, mini_batch, longest, stop),
        None => Err(Error::NoSplit { mini_batch, largest: largest(times, mini_batch, stop)? }),
    }
}

/// Rejects a mini-batch larger than any problem's, because memory and time grow with it.
///
/// # Errors
/// [`Error::BadOption`] with the most samples.
pub fn check_samples(mini_batch: usize) -> Result<(), Error> {
    if mini_batch <= Problem::MOST_SAMPLES {
        return Ok(());
    }
    let most = Problem::MOST_SAMPLES;
    Err(Error::BadOption { what: format!("the mini-batch has {mini_batch} samples; use at most {most}") })
}

/// Fails if the caller has asked to stop.
pub(super) fn check_stop(stop: &AtomicBool) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

/// The batches of a device that take at most `longest` and do not exceed the mini-batch.
fn allowed(device: &[(usize, Nanos)], mini_batch: usize, longest: Nanos) -> impl Iterator<Item = (usize, Nanos)> {
    device.iter().copied().filter(move |&(batch, time)| (1..=mini_batch).contains(&batch) && time <= longest)
}

/// The largest sum of batches of the devices up to the mini-batch; 0 without any.
fn largest(times: &[Vec<(usize, Nanos)>], mini_batch: usize, stop: &AtomicBool) -> Result<usize, Error> {
    let sums = sums(times, mini_batch, Nanos(u64::MAX), stop)?;
    Ok((0..=mini_batch).rev().find(|&sum| has(&sums, sum)).unwrap_or(0))
}

/// Whether a sum is in a set, which has one bit for each.
fn has(sums: &[u64], sum: usize) -> bool {
    sums[sum / 64] >> (sum % 64) & 1 == 1
}

/// The sums up to the mini-batch of batches that each take at most `longest`.
fn sums(
    times: &[Vec<(usize, Nanos)>],
    mini_batch: usize,
    longest: Nanos,
    stop: &AtomicBool,
) -> Result<Vec<u64>, Error> {
    let mut sums = vec![0_u64; mini_batch / 64 + 1];
    sums[0] = 1;
    for device in times {
        let before = sums.clone();
        for (batch, _) in allowed(device, mini_batch, longest) {
            check_stop(stop)?;
            let (words, bits) = (batch / 64, batch % 64);
            for (into, word) in (words..sums.len()).zip(&before) {
                sums[into] |= word << bits;
            }
            if bits > 0 {
                for (into, word) in (words + 1..sums.len()).zip(&before) {
                    sums[into] |= word >> (64 - bits);
                }
            }
        }
    }
    Ok(sums)
}

/// The split with the least sum of times, none above `longest`, which must be possible.
fn cheapest(
    times: &[Vec<(usize, Nanos)>],
    mini_batch: usize,
    longest: Nanos,
    stop: &AtomicBool,
) -> Result<Split, Error> {
    const NEVER: u64 = u64::MAX;
    // Devices are added from last to first, so that reading back from the first prefers larger batches for it.
    let mut least = vec![NEVER; mini_batch + 1];
    least[0] = 0;
    let mut given: Vec<Vec<usize>> = Vec::with_capacity(times.len());
    for device in times.iter().rev() {
        let before = least.clone();
        let mut batches = vec![0; mini_batch + 1];
        let mut entries: Vec<_> = allowed(device, mini_batch, longest).collect();
        entries.sort_unstable();
        for (batch, time) in entries {
            check_stop(stop)?;
            for (samples, &rest) in (batch..).zip(&before[..=mini_batch - batch]) {
                let sum = rest.saturating_add(time.0);
                if sum < NEVER && sum <= least[samples] {
                    least[samples] = sum;
                    batches[samples] = batch;
                }
            }
        }
        given.push(batches);
    }
    let mut left = mini_batch;
    let batches: Vec<usize> = given
        .iter()
        .rev()
        .map(|batches| {
            let batch = batches[left];
            left -= batch;
            batch
        })
        .collect();
    let spent = |(device, &batch): (&Vec<(usize, Nanos)>, &usize)| {
        device.iter().filter(|&&(size, _)| size == batch && batch > 0).map(|&(_, time)| time).min().unwrap_or_default()
    };
    let spent: Vec<Nanos> = times.iter().zip(&batches).map(spent).collect();
    let time = spent.iter().copied().max().unwrap_or_default();
    Ok(Split { batches, time, device_time: spent.into_iter().sum() })
}
