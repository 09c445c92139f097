//! Selects and merges recordings by device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tightfit_conv::Device;
use tightfit_units::Error;

use super::Recording;

impl Recording {
    /// One recording per device, in order of first appearance. If two have the same measurement, the later one counts.
    ///
    /// Older recordings list fewer of a device's libraries ([`Device::more_specific`]). They are merged with the newer recordings, unless they match
    /// two devices; then they remain separate.
    ///
    /// - Cost: O(n log n) comparisons of devices, plus the merging.
    pub fn by_device(recordings: impl IntoIterator<Item = Recording>) -> Vec<Recording> {
        let recordings: Vec<Recording> = recordings.into_iter().collect();
        let devices: Vec<Device> = recordings.iter().map(|recording| recording.device.clone()).collect();
        let fullest = fullest(&devices);
        let mut each: Vec<Recording> = Vec::new();
        let mut places: HashMap<&Device, usize> = HashMap::new();
        for (recording, device) in recordings.into_iter().zip(&devices) {
            let device = fullest.get(device).copied().unwrap_or(device);
            match places.entry(device) {
                Entry::Occupied(place) => each[*place.get()].merge(recording),
                Entry::Vacant(place) => {
                    place.insert(each.len());
                    each.push(Recording { device: device.clone(), ..recording });
                }
            }
        }
        each
    }

    /// The recordings of devices with this name or, failing that, with this text in their name and library; case is ignored.
    ///
    /// # Errors
    /// [`Error::UnknownWord`], which lists the recorded devices, if none matches.
    pub fn named<'a>(recordings: &'a [Recording], name: &str) -> Result<Vec<&'a Recording>, Error> {
        let exact: Vec<&Recording> = recordings.iter().filter(|r| r.device.name.eq_ignore_ascii_case(name)).collect();
        if !exact.is_empty() {
            return Ok(exact);
        }
        let part = name.to_lowercase();
        let fits = |recording: &&Recording| recording.device.to_string().to_lowercase().contains(&part);
        let partly: Vec<&Recording> = recordings.iter().filter(fits).collect();
        if partly.is_empty() {
            let known = recordings.iter().map(|recording| recording.device.to_string());
            return Err(Error::unknown_word("recorded devices", name, known));
        }
        Ok(partly)
    }
}

/// The most specific description of each device among all of them; its own if two that are more specific contradict each
/// other.
///
/// In the order of their libraries, a device is followed by all that are more specific:
///
/// ```text
/// place                          end   fullest
/// 0   cudnn 9                     4    0, because 2 and 3 contradict each other
/// 1   cudnn 9 / driver 570        3    2
/// 2   cudnn 9 / driver 570 / x    3    2
/// 3   cudnn 9 / driver 580        4    3
/// ```
fn fullest(devices: &[Device]) -> HashMap<&Device, &Device> {
    let mut sorted: Vec<&Device> = devices.iter().collect();
    sorted.sort_by(|a, b| {
        let [(a, a_libraries), (b, b_libraries)] = [a, b].map(|device| {
            let Device { backend, name, library, threads } = device;
            ((backend, name, threads), library.split(" / "))
        });
        a.cmp(&b).then_with(|| a_libraries.cmp(b_libraries))
    });
    sorted.dedup();
    let extends = |long: usize, short: usize| sorted[short].more_specific(sorted[long]) == Some(sorted[long]);
    let mut ends = vec![0; sorted.len()];
    let mut fullest: Vec<Option<usize>> = vec![None; sorted.len()];
    for place in (0..sorted.len()).rev() {
        let next = place + 1;
        (ends[place], fullest[place]) = (next, Some(place));
        if next < sorted.len() && extends(next, place) {
            (ends[place], fullest[place]) = (ends[next], fullest[next]);
            while ends[place] < sorted.len() && extends(ends[place], place) {
                (ends[place], fullest[place]) = (ends[ends[place]], None);
            }
        }
    }
    sorted
        .iter()
        .zip(fullest)
        .map(|(&device, fullest)| (device, fullest.map_or(device, |place| sorted[place])))
        .collect()
}
