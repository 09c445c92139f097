//! Axes: map values to positions in a frame, and choose the ticks.
//!
//! ```text
//!  time [ms]                          a time axis starts at 0 and steps by 1, 2 or 5 times a power of ten;
//!    40 +-----------------------+     an axis of bytes by a power of two;
//!    20 +                       |
//!     0 +--+----+----+----+----++
//!        none  8    32  128  unlim.   a doubling axis has places for zero bytes and for "unlimited"
//! ```

use tightfit_units::{Bytes, Nanos};

use super::canvas::{Anchor, Canvas, FAINT, INK, TEXT, text_width};

/// Maximum number of steps between the ticks of an axis of bytes.
const STEPS: u64 = 8;
/// Maximum number of steps of a doubling axis; with its two special places, nine labels fit the narrowest frame.
const DOUBLINGS: u32 = 7;

/// A mapping of values to 0..=1 along one side of a frame, with its ticks.
pub struct Axis {
    title: String,
    ticks: Vec<(f64, String)>,
    scale: Scale,
}

enum Scale {
    Linear { most: f64 },
    Doubling { least: f64, most: f64 },
}

impl Axis {
    /// Times from zero to at least `most`.
    pub fn of_times(title: &str, most: Nanos) -> Axis {
        let times = Times::up_to(most);
        let end = times.steps().ceil();
        times.axis(title, end, end)
    }

    /// Times from zero to exactly `end`.
    pub fn of_times_until(title: &str, end: Nanos) -> Axis {
        let times = Times::up_to(end);
        times.axis(title, times.steps().floor(), times.steps())
    }

    /// Bytes from zero to at least `most`.
    pub fn of_bytes(title: &str, most: Bytes) -> Axis {
        let step = most.0.max(1).div_ceil(STEPS).checked_next_power_of_two().unwrap_or(1 << 63);
        let steps = most.0.max(1).div_ceil(step);
        let ticks = (0..=steps).map(|i| (i as f64 / steps as f64, Bytes(i.saturating_mul(step)).unrounded()));
        Axis {
            title: title.to_owned(),
            ticks: ticks.collect(),
            scale: Scale::Linear { most: steps as f64 * step as f64 },
        }
    }

    /// Samples from zero to exactly `batch`.
    pub fn of_samples(title: &str, batch: usize) -> Axis {
        let batch = batch.max(1);
        let step = batch.div_ceil(4).next_power_of_two();
        let ticks = (0..=batch).step_by(step).map(|n| (n as f64 / batch as f64, n.to_string()));
        Axis { title: title.to_owned(), ticks: ticks.collect(), scale: Scale::Linear { most: batch as f64 } }
    }

    /// Bytes by powers of two, over the range of `values`. Zero and [`Bytes::UNLIMITED`] have separate positions.
    pub fn of_doubling_bytes(title: &str, values: impl Iterator<Item = Bytes> + Clone) -> Axis {
        let finite = || values.clone().filter(|&bytes| bytes != Bytes::ZERO && bytes != Bytes::UNLIMITED);
        let lowest = finite().min().map_or(0, |bytes| bytes.0.ilog2());
        let highest = finite().max().map_or(1, |bytes| (bytes.0 - 1).checked_ilog2().map_or(0, |log| log + 1));
        let highest = highest.max(lowest + 1);
        let has = |special| values.clone().any(|bytes| bytes == special);
        // A tick for each `every` powers of two. The two special positions are that far away too, so that their names have room.
        let every = (highest - lowest).div_ceil(DOUBLINGS).max(1);
        let least = f64::from(lowest) - if has(Bytes::ZERO) { f64::from(every) } else { 0.0 };
        let most = f64::from(highest) + if has(Bytes::UNLIMITED) { f64::from(every) } else { 0.0 };
        let scale = Scale::Doubling { least, most };
        let mut ticks: Vec<_> = (lowest..=highest)
            .step_by(every as usize)
            .map(|log| ((f64::from(log) - least) / (most - least), power_of_two(log)))
            .collect();
        if has(Bytes::ZERO) {
            ticks.insert(0, (0.0, "none".to_owned()));
        }
        if has(Bytes::UNLIMITED) {
            ticks.push((1.0, "unlimited".to_owned()));
        }
        Axis { title: title.to_owned(), ticks, scale }
    }

    /// The position of a number of bytes, from 0 at the start of the axis to 1 at its end.
    pub fn at_bytes(&self, bytes: Bytes) -> f64 {
        match self.scale {
            Scale::Linear { most } => bytes.0 as f64 / most,
            Scale::Doubling { .. } if bytes == Bytes::ZERO => 0.0,
            Scale::Doubling { .. } if bytes == Bytes::UNLIMITED => 1.0,
            Scale::Doubling { least, most } => ((bytes.0 as f64).log2() - least) / (most - least),
        }
    }

    /// The position of a time on an axis of times.
    pub fn at_time(&self, time: Nanos) -> f64 {
        self.at_bytes(Bytes(time.0))
    }
}

/// How to write times up to some time.
struct Times {
    name: &'static str,
    /// Nanoseconds.
    unit: f64,
    /// The most, in units.
    most: f64,
    /// Between two ticks, in units.
    step: f64,
}

impl Times {
    fn up_to(most: Nanos) -> Times {
        let (name, unit) = match most.0 {
            0..10_000 => ("ns", 1.0),
            10_000..1_000_000 => ("µs", 1e3),
            1_000_000..10_000_000_000 => ("ms", 1e6),
            _ => ("s", 1e9),
        };
        let most = (most.0 as f64 / unit).max(1.0);
        let rough = most / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|&s| s >= rough).unwrap_or(rough);
        Times { name, unit, most, step }
    }

    fn steps(&self) -> f64 {
        self.most / self.step
    }

    /// An axis of `end` steps with a tick at every step up to `last`.
    fn axis(&self, title: &str, last: f64, end: f64) -> Axis {
        let decimals = if self.step < 1.0 { 1 } else { 0 };
        let label = |i: u32| format!("{:.decimals$}", f64::from(i) * self.step);
        Axis {
            title: format!("{title} [{}]", self.name),
            ticks: (0..=last as u32).map(|i| (f64::from(i) / end, label(i))).collect(),
            scale: Scale::Linear { most: end * self.step * self.unit },
        }
    }
}

/// 2^log bytes; 2^64 is the end of an axis that reaches beyond what a number of bytes can hold.
fn power_of_two(log: u32) -> String {
    1u64.checked_shl(log).map_or("16 EiB".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// The rectangle for the data.
#[derive(Clone, Copy)]
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Frame {
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// The pixel of a position along the bottom, 0 at the left.
    pub fn x(&self, place: f64) -> f64 {
        self.left + place * self.width
    }

    /// The pixel of a position along a side, 0 at the bottom.
    pub fn y(&self, place: f64) -> f64 {
        self.bottom() - place * self.height
    }

    /// Draws an axis along the left side, with grid lines through the frame.
    pub fn draw_left(&self, axis: &Axis, canvas: &mut Canvas) {
        for (place, label) in &axis.ticks {
            let y = self.y(*place);
            canvas.line((self.left, y), (self.right(), y), FAINT);
            canvas.text((self.left - 8.0, y), Anchor::End, TEXT, label);
        }
        canvas.line((self.left, self.top), (self.left, self.bottom()), INK);
        let away = widest(&axis.ticks) + 24.0;
        let middle = (self.left - away, self.top + self.height / 2.0);
        canvas.turned_text(middle, Anchor::Middle, TEXT, -90.0, &axis.title);
    }

    /// Draws an axis along the right side, without grid lines.
    pub fn draw_right(&self, axis: &Axis, canvas: &mut Canvas) {
        for (place, label) in &axis.ticks {
            let y = self.y(*place);
            canvas.line((self.right(), y), (self.right() + 4.0, y), INK);
            canvas.text((self.right() + 8.0, y), Anchor::Start, TEXT, label);
        }
        canvas.line((self.right(), self.top), (self.right(), self.bottom()), INK);
        let away = widest(&axis.ticks) + 24.0;
        let middle = (self.right() + away, self.top + self.height / 2.0);
        canvas.turned_text(middle, Anchor::Middle, TEXT, -90.0, &axis.title);
    }

    /// Draws an axis along the bottom, with grid lines through the frame; if labels lack room, only every second,
    /// third, .. is written.
    pub fn draw_bottom(&self, axis: &Axis, canvas: &mut Canvas) {
        let apart = self.width / (axis.ticks.len() - 1).max(1) as f64;
        let every = ((widest(&axis.ticks) + 4.0) / apart).ceil() as usize;
        for (index, (place, label)) in axis.ticks.iter().enumerate() {
            let x = self.x(*place);
            canvas.line((x, self.top), (x, self.bottom() + 4.0), FAINT);
            if index.is_multiple_of(every.max(1)) {
                canvas.text((x, self.bottom() + 14.0), Anchor::Middle, TEXT, label);
            }
        }
        canvas.line((self.left, self.bottom()), (self.right(), self.bottom()), INK);
        let middle = (self.left + self.width / 2.0, self.bottom() + 34.0);
        canvas.text(middle, Anchor::Middle, TEXT, &axis.title);
    }
}

fn widest(ticks: &[(f64, String)]) -> f64 {
    ticks.iter().map(|(_, label)| text_width(label, TEXT)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn times_step_by_round_numbers_in_a_fitting_unit() {
        let axis = Axis::of_times("time", Nanos(37_800_000));
        assert_eq!(axis.title, "time [ms]");
        assert_eq!(labels(&axis), ["0", "10", "20", "30", "40"]);
        assert_eq!(axis.at_time(Nanos(20_000_000)), 0.5);
        let until = Axis::of_times_until("time", Nanos(32_400_000));
        assert_eq!(labels(&until), ["0", "10", "20", "30"]);
        assert!((until.at_time(Nanos(32_400_000)) - 1.0).abs() < 1e-9);
        assert_eq!(labels(&Axis::of_times("time", Nanos(1_400_000))), ["0.0", "0.5", "1.0", "1.5"]);
    }

    #[test]
    fn bytes_step_by_powers_of_two() {
        let axis = Axis::of_bytes("workspace", Bytes::mib(120));
        assert_eq!(labels(&axis).first(), Some(&"0 B"));
        assert_eq!(labels(&axis).last(), Some(&"128 MiB"));
        assert_eq!(axis.at_bytes(Bytes::mib(64)), 0.5);
    }

    #[test]
    fn byte_ticks_match_their_labels() {
        assert_eq!(
            labels(&Axis::of_bytes("", Bytes::mib(1200))),
            ["0 B", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB"]
        );
        for most in (0..60).flat_map(|log| [5, 6, 7, 8].map(|eighths| eighths << log)) {
            let axis = Axis::of_bytes("", Bytes(most));
            for (place, label) in &axis.ticks {
                let printed: Bytes = label.parse().unwrap();
                assert_eq!(axis.at_bytes(printed), *place, "{most}: {label}");
            }
        }
    }

    #[test]
    fn doubling_axes_have_places_for_nothing_and_for_no_limit() {
        let values = [Bytes::ZERO, Bytes::mib(8), Bytes::mib(50), Bytes::UNLIMITED];
        let axis = Axis::of_doubling_bytes("limit", values.into_iter());
        assert_eq!(labels(&axis), ["none", "8 MiB", "16 MiB", "32 MiB", "64 MiB", "unlimited"]);
        let places = values.map(|bytes| axis.at_bytes(bytes));
        assert_eq!((places[0], places[1], places[3]), (0.0, 0.2, 1.0));
        assert!(places.is_sorted());
    }

    #[test]
    fn extreme_values_stay_inside() {
        for value in [0, 1, 2, 3, u64::MAX - 1, u64::MAX] {
            for axis in [
                Axis::of_bytes("", Bytes(value)),
                Axis::of_times("", Nanos(value)),
                Axis::of_doubling_bytes("", [Bytes(value)].into_iter()),
            ] {
                let place = axis.at_bytes(Bytes(value));
                assert!((0.0..=1.0).contains(&place), "{value}: {place}");
                assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= 11, "{value}: {:?}", axis.ticks);
                assert!(axis.ticks.iter().all(|(place, _)| (0.0..=1.0).contains(place)));
            }
        }
        Axis::of_doubling_bytes("", std::iter::empty());
    }
}
