//! The two quantities behind every decision: bytes and time, both integers, so that sums are exact and the order of
//! addition never matters.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Mul, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A number of bytes, printed and read in binary units (`64 MiB`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl Bytes {
    /// No bytes at all.
    pub const ZERO: Bytes = Bytes(0);
    /// More than any device has: no limit.
    pub const UNLIMITED: Bytes = Bytes(u64::MAX);

    /// `n` kibibytes.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// `n` mebibytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` gibibytes.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The number of bytes of `count` elements of `size` bytes, saturating on overflow.
    pub fn of(count: usize, size: usize) -> Bytes {
        Bytes((count as u64).saturating_mul(size as u64))
    }

    /// As displayed, but not rounded to one decimal; exact below 2^53 bytes.
    pub fn unrounded(self) -> String {
        if self == Bytes::UNLIMITED {
            return self.to_string();
        }
        let (name, unit) = self.unit();
        format!("{} {name}", self.0 as f64 / unit as f64)
    }

    /// The smallest size with at most one decimal that is read as at least this number of bytes.
    pub fn rounded_up(self) -> String {
        self.rounded(|tenths_of_bytes, unit| (tenths_of_bytes - 5).div_ceil(unit))
    }

    /// The largest size with at most one decimal that is read as at most this number of bytes.
    pub fn rounded_down(self) -> String {
        self.rounded(|tenths_of_bytes, unit| (tenths_of_bytes + 4) / unit)
    }

    /// As displayed, but with the tenths of the unit that `round` computes from ten times the bytes. Reading a size rounds it to the nearest byte, so
    /// half a byte too little is enough.
    fn rounded(self, round: impl Fn(u128, u128) -> u128) -> String {
        let (name, unit) = self.unit();
        if self == Bytes::UNLIMITED || self.0.is_multiple_of(unit) {
            return self.to_string();
        }
        let tenths = round(u128::from(self.0) * 10, u128::from(unit));
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }

    /// The name and the bytes of the largest binary unit that is not larger, or of a single byte.
    fn unit(self) -> (&'static str, u64) {
        UNITS[..4].iter().find(|(_, unit)| self.0 >= *unit).copied().unwrap_or(("B", 1))
    }

    /// A hint for a limit or a budget that is written as such a small number of bytes that another unit must have been meant. `None` for zero, for 1
    /// MiB or more, and for any text with a unit.
    pub fn missing_unit(text: &str) -> Option<String> {
        let text = text.trim();
        let has_unit = text.contains(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let bytes: Bytes = text.parse().ok().filter(|_| !has_unit)?;
        (bytes > Bytes::ZERO && bytes < Bytes::mib(1)).then(|| {
            format!(
                "`{text}` means {bytes}; for {text} MiB, write {text}MiB (or {text}B for bytes)",
                bytes = bytes.in_bytes()
            )
        })
    }

    /// With the unit `byte`: `1 byte`, `64 bytes`.
    fn in_bytes(self) -> String {
        format!("{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }

    /// These bytes minus `other`, or zero if `other` is larger.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(bytes: I) -> Bytes {
        bytes.fold(Bytes::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Bytes::UNLIMITED {
            return f.pad("unlimited");
        }
        let (name, unit) = self.unit();
        let text = if self.0.is_multiple_of(unit) {
            format!("{} {name}", self.0 / unit)
        } else {
            format!("{:.1} {name}", self.0 as f64 / unit as f64)
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = Error;

    /// Reads `64MiB`, `1.5 GiB`, `512MB`, plain bytes, or `unlimited`; case is ignored, except that `Mb` would be bits.
    ///
    /// # Errors
    /// [`Error::BadSize`] for anything else.
    fn from_str(text: &str) -> Result<Bytes, Error> {
        let bad = || Error::BadSize { text: text.to_owned(), instead: instead(text) };
        let lower = text.trim().to_ascii_lowercase();
        if lower == "unlimited" {
            return Ok(Bytes::UNLIMITED);
        }
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = (&lower[..split], text.trim()[split..].trim());
        // A small `b` after a capital is the symbol of a bit.
        if unit.ends_with('b') && unit.contains(|letter: char| letter.is_ascii_uppercase()) {
            return Err(bad());
        }
        let unit = match unit {
            "" => 1,
            _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(bad)?.1,
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(unit).map(Bytes).ok_or_else(bad);
        }
        let bytes = number.parse::<f64>().map_err(|_| bad())? * unit as f64;
        if bytes < u64::MAX as f64 { Ok(Bytes(bytes.round() as u64)) } else { Err(bad()) }
    }
}

/// A replacement for text that is not a size. For the bare letter of a unit, its possible meanings in full units (`8M` is 8 MiB to some programs and
/// 8 MB to others); otherwise examples.
fn instead(text: &str) -> String {
    let text = text.trim();
    let letter = text.chars().last().unwrap_or_default();
    let number = text.strip_suffix(letter).unwrap_or_default().trim_end();
    let units: Vec<String> = UNITS
        .iter()
        .filter(|(name, unit)| {
            *unit > 1 && name.starts_with([letter.to_ascii_uppercase(), letter.to_ascii_lowercase()])
        })
        .filter_map(|(name, _)| Some((name, format!("{number}{name}").parse::<Bytes>().ok()?)))
        .map(|(name, bytes)| format!("{number}{name} ({} bytes)", bytes.0))
        .collect();
    if units.is_empty() && text.starts_with('-') {
        return "0 bytes or more, as in 64MiB, 1.5GiB, 512MB, or unlimited".to_owned();
    }
    if units.is_empty() {
        return "bytes or a unit, as in 64MiB, 1.5GiB, 512MB, or unlimited".to_owned();
    }
    units.join(" or ")
}

/// A span of time in whole nanoseconds, printed in microseconds or milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);

    /// The nearest whole number of nanoseconds to `us` microseconds; zero for a negative or undefined number.
    pub fn from_micros(us: f64) -> Nanos {
        Nanos((us * 1e3).round() as u64)
    }

    /// This time in microseconds.
    pub fn as_micros(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// This time in milliseconds.
    pub fn as_millis(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// This time in seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The ratio of this time to `other`; infinite if `other` is zero.
    pub fn ratio(self, other: Nanos) -> f64 {
        self.0 as f64 / other.0 as f64
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Nanos {
    type Output = Nanos;
    fn mul(self, times: u64) -> Nanos {
        Nanos(self.0.saturating_mul(times))
    }
}

impl Sum for Nanos {
    fn sum<I: Iterator<Item = Nanos>>(times: I) -> Nanos {
        times.fold(Nanos::ZERO, Add::add)
    }
}

impl From<std::time::Duration> for Nanos {
    fn from(time: std::time::Duration) -> Nanos {
        Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Nanos {
    type Err = Error;

    /// Reads `10s`, `500ms`, `2m`, `1h` or plain seconds.
    ///
    /// # Errors
    /// [`Error::BadOption`] for anything else.
    fn from_str(text: &str) -> Result<Nanos, Error> {
        let bad = || Error::BadOption {
            what: format!("{text:?} is not a time; write 0 or more seconds, or a time such as 10s, 500ms or 2m"),
        };
        let lower = text.trim().to_ascii_lowercase();
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let unit = match lower[split..].trim() {
            "" | "s" => 1e9,
            "ms" => 1e6,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            _ => return Err(bad()),
        };
        let nanos = lower[..split].parse::<f64>().map_err(|_| bad())? * unit;
        Ok(Nanos(nanos.round() as u64))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0..1_000_000 => format!("{:.1} µs", self.as_micros()),
            1_000_000..10_000_000_000 => format!("{:.2} ms", self.as_millis()),
            _ => format!("{:.1} s", self.as_secs()),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, nanos) in [
            ("10s", 10_000_000_000),
            (" 500 ms ", 500_000_000),
            ("2m", 120_000_000_000),
            ("0", 0),
            ("1.5", 1_500_000_000),
        ] {
            assert_eq!(text.parse::<Nanos>().unwrap(), Nanos(nanos), "{text}");
        }
        for wrong in ["", "soon", "-1s", "10 apples", "1.2.3s", "s", "unlimited"] {
            let error = wrong.parse::<Nanos>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("500ms"), "{error}");
        }
    }

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [
            ("64MiB", Bytes::mib(64)),
            ("64 mib", Bytes::mib(64)),
            ("8mb", Bytes(8_000_000)),
            ("1.5GiB", Bytes::mib(1536)),
            ("0", Bytes::ZERO),
            ("512", Bytes(512)),
            ("2kB", Bytes(2000)),
            ("unlimited", Bytes::UNLIMITED),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), bytes, "{text}");
        }
        for bytes in [Bytes(1), Bytes::kib(3), Bytes::mib(64), Bytes::gib(8), Bytes::UNLIMITED] {
            assert_eq!(bytes.to_string().parse::<Bytes>().unwrap(), bytes);
        }
        assert_eq!(Bytes(1536 << 10).to_string(), "1.5 MiB");
    }

    #[test]
    fn rounded_sizes_are_read_as_enough_or_as_no_more() {
        for (bytes, up, down) in [
            (Bytes(5_293_056), "5.1 MiB", "5.0 MiB"),
            (Bytes(5_452_595), "5.2 MiB", "5.2 MiB"),
            (Bytes::mib(5), "5 MiB", "5 MiB"),
            (Bytes(1023), "1023 B", "1023 B"),
            (Bytes(1025), "1.1 KiB", "1.0 KiB"),
            (Bytes((1 << 20) - 1), "1024.0 KiB", "1023.9 KiB"),
            (Bytes::UNLIMITED, "unlimited", "unlimited"),
        ] {
            assert_eq!((&*bytes.rounded_up(), &*bytes.rounded_down()), (up, down), "{bytes:?}");
        }
        for at in (0..=2_000).map(|step| (1 << 20) + step * 104_857) {
            for bytes in (at - 3..at + 3).map(Bytes) {
                let [up, down] = [bytes.rounded_up(), bytes.rounded_down()].map(|text| text.parse::<Bytes>().unwrap());
                assert!(down <= bytes && bytes <= up, "{bytes:?}");
                assert!(up.0 - down.0 <= 104_858, "{bytes:?}");
            }
        }
    }

    #[test]
    fn errors_quote_the_bad_size() {
        for text in ["", "MiB", "64 Mi", "-1", "1e9999GiB", "99999999999TiB", "1.2.3", "0x10", "8M", "8Mb", "8MIb"] {
            let message = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(message.contains(text), "{message}");
        }
        for (text, meant) in [
            ("8M", "`8M` is not a size; write 8MiB (8388608 bytes) or 8MB (8000000 bytes)"),
            ("1.5 g", "`1.5 g` is not a size; write 1.5GiB (1610612736 bytes) or 1.5GB (1500000000 bytes)"),
            ("8k", "`8k` is not a size; write 8KiB (8192 bytes) or 8kB (8000 bytes)"),
            ("-8M", "`-8M` is not a size; write 0 bytes or more, as in 64MiB, 1.5GiB, 512MB, or unlimited"),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap_err().to_string(), meant);
        }
    }

    #[test]
    fn a_small_number_without_a_unit_is_in_doubt() {
        let expected = "`64` means 64 bytes; for 64 MiB, write 64MiB (or 64B for bytes)";
        assert_eq!(Bytes::missing_unit("64").as_deref(), Some(expected));
        assert!(Bytes::missing_unit(" 1 ").is_some_and(|advice| advice.contains("means 1 byte;")));
        for clear in ["0", "0.0", "1048576", "64B", "64 MiB", "64kB", "unlimited", "auto", "", "-1", "1.2.3"] {
            assert_eq!(Bytes::missing_unit(clear), None, "{clear}");
        }
    }
}
