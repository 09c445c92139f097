//! Recordings by device: those of one device merged, and those of a name.

use super::Recording;
use crate::{Device, Error};

impl Recording {
    /// One recording per device, in order of first appearance; if two have the same measurement, the later one counts.
    ///
    /// Older recordings list fewer of a device's libraries ([`Device::more_specific`]); they are merged with the newer
    /// ones, unless they fit two devices, in which case they stay a device of their own.
    ///
    /// - Cost: O(recordings²) comparisons of devices, plus the merging.
    pub fn by_device(recordings: impl IntoIterator<Item = Recording>) -> Vec<Recording> {
        let recordings: Vec<Recording> = recordings.into_iter().collect();
        let devices: Vec<Device> = recordings.iter().map(|recording| recording.device.clone()).collect();
        let mut each: Vec<Recording> = Vec::new();
        for recording in recordings {
            let device = fullest(&recording.device, &devices).clone();
            match each.iter_mut().find(|known| known.device == device) {
                Some(known) => known.merge(recording),
                None => each.push(Recording { device, ..recording }),
            }
        }
        each
    }

    /// The recordings of devices with this name or, if there are none, with this text in their name and library; case
    /// is ignored.
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

/// The most specific description of `device` in `devices`; its own if several contradict each other.
fn fullest<'a>(device: &'a Device, devices: &'a [Device]) -> &'a Device {
    let mut fuller = devices.iter().filter(|other| device.more_specific(other) == Some(*other));
    fuller.try_fold(device, |fullest, other| fullest.more_specific(other)).unwrap_or(device)
}
