//! Splits one mini-batch of a network over unequal devices, from recordings of each.
//!
//! ```text
//! "K80", "K80", "K20Xm" -> recordings by name -> step times of each -> split -> batches, compared with the even split
//! ```

use std::sync::atomic::AtomicBool;

use serde::{Serialize, Serializer};
use tightfit_conv::optimize::{check_samples, split};
use tightfit_units::{Bytes, Error, Nanos};

use super::{StepOptions, step_times};
use crate::{Model, Recording, step_name};

/// A device's allowed batches, each with its time.
type Steps = Vec<(usize, Nanos)>;

/// One device's share, and the time of its steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceShare {
    /// The device as requested.
    pub name: String,
    /// The device as recorded.
    pub device: String,
    /// Whether whole steps were measured; otherwise a step is the sum of the convolutions and the given rest.
    pub measured: bool,
    /// Its samples; 0 if it would only slow the others down.
    pub batch: usize,
    /// Its step.
    #[serde(rename = "time_us", serialize_with = "micros")]
    pub time: Nanos,
    /// Its samples in the even split.
    pub even_batch: usize,
    /// Its step in the even split; `None` if that batch is not measured or not allowed.
    #[serde(rename = "even_time_us", serialize_with = "some_micros")]
    pub even_time: Option<Nanos>,
    /// Its step with the whole mini-batch alone; `None` as above.
    #[serde(rename = "alone_time_us", serialize_with = "some_micros")]
    pub alone_time: Option<Nanos>,
}

/// An uneven split of a mini-batch, with the predicted steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MixedSplit {
    /// The network.
    pub network: String,
    /// Total samples.
    pub batch: usize,
    /// The step time of the slowest device.
    #[serde(rename = "time_us", serialize_with = "micros")]
    pub time: Nanos,
    /// The step of the even split; `None` if some device cannot take its even share.
    #[serde(rename = "even_time_us", serialize_with = "some_micros")]
    pub even_time: Option<Nanos>,
    /// Speedup over the even split.
    pub speedup_over_even: Option<f64>,
    /// The step of the whole mini-batch on the fastest single device; `None` if no device can take it.
    #[serde(rename = "alone_time_us", serialize_with = "some_micros")]
    pub alone_time: Option<Nanos>,
    /// Speedup over that device.
    pub speedup_over_alone: Option<f64>,
    /// The devices, in the given order.
    pub devices: Vec<DeviceShare>,
}

impl MixedSplit {
    /// The split as one indented JSON object that ends in a line feed; times are in µs, or null if missing.
    pub fn json(&self) -> String {
        // Plain fields with string keys, written to memory: this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn micros<S: Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_micros())
}

fn some_micros<S: Serializer>(time: &Option<Nanos>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(Nanos::as_micros).serialize(serializer)
}

/// Splits the mini-batch of `model` over `devices` so that the slowest finishes as early as possible.
///
/// A device is given by its name, or by a part of its name and library that is unique among the recorded devices of
/// this network; case is ignored, and a name may be repeated. `memory` has one limit per device, or is empty. The
/// prediction excludes communication, which overlaps with the backward pass.
///
/// - Cost: O(mini-batch × measurements) per distinct device, plus the cost of [`split`].
/// - Source: Oyama et al. 2018, III.E.
///
/// # Errors
/// [`Error::UnknownWord`] or [`Error::Ambiguous`] for a name that matches no device or several; [`Error::NoStepTimes`]
/// for a device without recordings of the network; [`Error::NoSplit`] if the allowed batches do not add up;
/// [`Error::BadOption`] if there are no devices, or a different number of limits; the errors of [`step_times`] and
/// [`split`].
pub fn split_network(
    recordings: &[Recording],
    devices: &[String],
    model: &Model,
    mini_batch: usize,
    options: &StepOptions,
    memory: &[Bytes],
    stop: &AtomicBool,
) -> Result<MixedSplit, Error> {
    check_samples(mini_batch)?;
    if devices.is_empty() || !(memory.is_empty() || memory.len() == devices.len()) {
        let what = format!(
            "got {} devices and {} memory limits; give at least one device, and either no limits or one per device",
            devices.len(),
            memory.len()
        );
        return Err(Error::BadOption { what });
    }
    let recordings = Recording::by_device(recordings.to_vec());
    let mut found: Vec<(&Recording, Steps)> = Vec::with_capacity(devices.len());
    for (place, name) in devices.iter().enumerate() {
        let options = StepOptions { memory: memory.get(place).copied().unwrap_or(options.memory), ..options.clone() };
        let same = |&earlier: &usize| devices[earlier] == *name && memory.get(earlier) == memory.get(place);
        let device = match (0..place).find(same) {
            Some(earlier) => found[earlier].clone(),
            None => find(&recordings, name, model, mini_batch, &options, stop)?,
        };
        found.push(device);
    }
    let times: Vec<Steps> = found.iter().map(|(_, steps)| steps.clone()).collect();
    let best = split(&times, mini_batch, stop)?;

    let even = even(mini_batch, devices.len(), options.multiple_of);
    let name = step_name(model.name(), options.types);
    let share = |place: usize| {
        let (recording, steps) = &found[place];
        let time = |batch: usize| match batch {
            0 => Some(Nanos::ZERO),
            _ => steps.iter().find(|step| step.0 == batch).map(|step| step.1),
        };
        DeviceShare {
            name: devices[place].clone(),
            device: recording.device.to_string(),
            measured: !recording.of(&name).is_empty(),
            batch: best.batches[place],
            time: time(best.batches[place]).unwrap_or_default(),
            even_batch: even[place],
            even_time: time(even[place]),
            alone_time: time(mini_batch),
        }
    };
    let shares: Vec<DeviceShare> = (0..devices.len()).map(share).collect();
    let even_time = shares.iter().map(|share| share.even_time).max_by_key(|time| time.unwrap_or(Nanos(u64::MAX)));
    let even_time = even_time.flatten();
    let alone_time = shares.iter().filter_map(|share| share.alone_time).min();
    let speedup = |time: Option<Nanos>| time.filter(|_| best.time > Nanos::ZERO).map(|time| time.ratio(best.time));
    Ok(MixedSplit {
        network: model.name().to_owned(),
        batch: mini_batch,
        time: best.time,
        even_time,
        speedup_over_even: speedup(even_time),
        alone_time,
        speedup_over_alone: speedup(alone_time),
        devices: shares,
    })
}

/// Assigns every device the same number of units of `unit` samples, and the remainder to the first devices.
fn even(mini_batch: usize, devices: usize, unit: usize) -> Vec<usize> {
    let units = mini_batch / unit;
    (0..devices).map(|place| (units / devices + usize::from(place < units % devices)) * unit).collect()
}

/// The recorded device that a name identifies, and its steps.
fn find<'a>(
    recordings: &'a [Recording],
    name: &str,
    model: &Model,
    mini_batch: usize,
    options: &StepOptions,
    stop: &AtomicBool,
) -> Result<(&'a Recording, Steps), Error> {
    let named = Recording::named(recordings, name)?;
    // Whether the network is recorded does not depend on the device's memory limit.
    let anywhere = StepOptions { memory: Bytes::UNLIMITED, multiple_of: 1, ..options.clone() };
    let mut known = Vec::new();
    for recording in &named {
        if !step_times(recording, model, mini_batch, &anywhere, stop)?.is_empty() {
            known.push(*recording);
        }
    }
    match known[..] {
        [] => Err(Error::NoStepTimes { device: named[0].device.to_string(), network: model.name().to_owned() }),
        [only] => Ok((only, step_times(only, model, mini_batch, options, stop)?)),
        _ => Err(Error::Ambiguous {
            what: "recorded devices",
            word: name.to_owned(),
            known: known.iter().map(|recording| recording.device.to_string()).collect(),
        }),
    }
}
