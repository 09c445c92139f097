//! The read-only store that is used if the user's cache has no answer: decisions that come with the program, or a
//! profile file in their place.
//!
//! Only the decisions of one device and cuDNN version are kept in memory. The driver, the rest of a device's library, is not compared: the library is
//! asked again for a configuration's needs before it runs.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tightfit_conv::Device;
use tightfit_units::Error;

use super::{Fault, Line, Recording, bounded, for_read_lines};
use crate::{Decision, DecisionKey};

/// The recordings that come with the program; `scripts/ship-recordings.py` makes them from exports.
const EMBEDDED: &[u8] = include_bytes!("../../data/shipped.jsonl.gz");

/// The decisions of one device, read-only.
#[derive(Debug)]
pub struct Shipped(Recording);

impl Shipped {
    /// The decisions for `device` that come with the program, read again by every call.
    ///
    /// # Errors
    /// [`Error::BadDocument`] if it is damaged.
    pub fn embedded(device: &Device) -> Result<Shipped, Error> {
        let read = read(BufReader::new(MultiGzDecoder::new(EMBEDDED)), device, |theirs| Fit::of(theirs, device));
        read.map_err(|fault| Error::BadDocument { document: "shipped recordings", what: fault.chain() })
    }

    /// The decisions for `device` in a profile file, such as an export of `tightfit cache export`.
    ///
    /// Lines without decisions are skipped unread. Memory is bounded as in [`Recording::read`].
    ///
    /// # Errors
    /// As [`Recording::read`]; a file without devices is read too.
    pub fn read(path: &Path, device: &Device) -> Result<Shipped, Error> {
        let reader = bounded::open(path).map_err(|error| Fault::of("cannot be opened", error));
        let read = reader.and_then(|reader| read(reader, device, |theirs| Fit::of(theirs, device)));
        read.map_err(|fault| fault.in_file(path))
    }

    /// The decision about a question, if any.
    pub fn decision(&self, key: &DecisionKey) -> Option<&Decision> {
        self.0.decisions.get(&(key.problem.to_string(), key.words()))
    }

    /// How many decisions there are.
    pub fn count(&self) -> usize {
        self.0.decisions.len()
    }
}

/// How well the device of some decisions matches the requested device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// Another model or version of cuDNN.
    None,
    /// Another driver.
    Version,
    Exact,
}

impl Fit {
    fn of(theirs: &Device, asked: &Device) -> Fit {
        let key = |device: &Device| (device.backend.clone(), device.name.clone(), device.threads);
        let version = |device: &Device| device.library.split(" / ").next().map(str::to_owned);
        match theirs {
            _ if theirs == asked => Fit::Exact,
            _ if key(theirs) == key(asked) && version(theirs) == version(asked) => Fit::Version,
            _ => Fit::None,
        }
    }
}

/// The decisions of matching devices. The same driver takes precedence, then the later decision.
fn read(reader: impl BufRead, device: &Device, fit: impl Fn(&Device) -> Fit) -> Result<Shipped, Fault> {
    let [mut same, mut others] = [Recording::new(device.clone()), Recording::new(device.clone())];
    let here = Cell::new(Fit::None);
    let is_wanted =
        |text: &str| text.contains("\"device\"") || (here.get() != Fit::None && text.contains("\"decision\""));
    for_read_lines(reader, is_wanted, |_, line| {
        match line {
            Line::Device { device } => here.set(fit(&device)),
            line if here.get() == Fit::Exact => same.take_decision(line),
            line => others.take_decision(line),
        }
        Ok(())
    })?;
    others.decisions.extend(same.decisions);
    Ok(Shipped(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If it were larger, every tuned program would start slower.
    const MOST: usize = 300_000;

    #[test]
    fn shipped_recordings_are_readable_and_final() {
        let device = Device { backend: String::new(), name: String::new(), library: String::new(), threads: 0 };
        let reader = || BufReader::new(MultiGzDecoder::new(EMBEDDED));
        let all = read(reader(), &device, |_| Fit::Exact).unwrap_or_else(|fault| panic!("{}", fault.chain()));
        assert!(all.0.decisions().all(|(.., decision)| decision.is_final));
        assert!(EMBEDDED.len() < MOST, "{}", EMBEDDED.len());
        // Nothing but devices and decisions.
        let mut lines = 0;
        let text = reader().lines().map(Result::unwrap).collect::<Vec<String>>();
        for_read_lines(
            reader(),
            |_| true,
            |number, line| match line {
                Line::Device { .. } | Line::Decision { .. } => {
                    lines += 1;
                    Ok(())
                }
                _ => Err(format!("line {number} is of another kind").into()),
            },
        )
        .unwrap_or_else(|fault| panic!("{}", fault.chain()));
        assert_eq!(lines + 1, text.len());
        assert!(text[0].contains(&format!("\"lines\":{lines}")), "a truncated file is to be noticed: {}", text[0]);
    }
}
