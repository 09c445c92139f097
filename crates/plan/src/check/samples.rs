//! Sets of samples of a mini-batch.

use std::ops::Range;

/// A set of samples, as ordered, non-empty ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Samples(Vec<Range<usize>>);

impl Samples {
    pub(super) fn of(range: Range<usize>) -> Samples {
        Samples(if range.is_empty() { Vec::new() } else { vec![range] })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all samples of a range are in it.
    pub(super) fn covers(&self, range: &Range<usize>) -> bool {
        self.0.iter().any(|own| own.start <= range.start && range.end <= own.end)
    }

    /// Whether some sample of a range is in it.
    pub(super) fn meets(&self, range: &Range<usize>) -> bool {
        self.0.iter().any(|own| own.start < range.end && range.start < own.end)
    }

    pub(super) fn insert(&mut self, range: &Range<usize>) {
        let mut all = range.clone();
        self.0.retain(|own| {
            let touches = own.start <= all.end && all.start <= own.end;
            if touches {
                all = all.start.min(own.start)..all.end.max(own.end);
            }
            !touches
        });
        let place = self.0.partition_point(|own| own.end < all.start);
        self.0.insert(place, all);
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, range: &Range<usize>) {
        let left =
            self.0.iter().flat_map(|own| [own.start..own.end.min(range.start), own.start.max(range.end)..own.end]);
        self.0 = left.filter(|part| !part.is_empty()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of flags, for all pairs of ranges of a few samples.
    #[test]
    fn ranges_come_and_go() {
        const COUNT: usize = 6;
        let ranges: Vec<Range<usize>> =
            (0..COUNT).flat_map(|start| (start + 1..=COUNT).map(move |end| start..end)).collect();
        for (one, two) in ranges.iter().flat_map(|one| ranges.iter().map(move |two| (one, two))) {
            for out in &ranges {
                let (mut samples, mut flags) = (Samples::default(), [false; COUNT]);
                assert!(samples.is_empty() && !samples.meets(one));
                for range in [one, two] {
                    samples.insert(range);
                    flags[range.clone()].fill(true);
                }
                samples.remove(out);
                flags[out.clone()].fill(false);
                for range in &ranges {
                    let own = &flags[range.clone()];
                    assert_eq!(samples.covers(range), own.iter().all(|flag| *flag), "{samples:?} {range:?}");
                    assert_eq!(samples.meets(range), own.iter().any(|flag| *flag), "{samples:?} {range:?}");
                }
                assert!(samples.0.is_sorted_by(|one, two| one.end < two.start), "{samples:?}");
            }
        }
    }
}
