//! Range maximum queries over a list of values.

/// A table that answers range maximum queries in constant time.
pub(super) struct RangeMax {
    /// For each power of two: the maximum of that number of values from each position on.
    levels: Vec<Vec<i128>>,
}

impl RangeMax {
    /// - Cost: O(n log n).
    pub(super) fn of(values: Vec<i128>) -> RangeMax {
        let mut levels = vec![values];
        let mut half = 1;
        while let Some(last) = levels.last().filter(|last| last.len() > half) {
            let next = (0..last.len() - half).map(|place| last[place].max(last[place + half])).collect();
            levels.push(next);
            half *= 2;
        }
        RangeMax { levels }
    }

    /// The maximum from one position to another, both inclusive; 0 for an empty range.
    ///
    /// - Cost: O(1).
    pub(super) fn within(&self, from: usize, to: usize) -> i128 {
        let to = to.min(self.levels[0].len().saturating_sub(1));
        if from > to || self.levels[0].is_empty() {
            return 0;
        }
        let level = (to - from + 1).ilog2() as usize;
        let values = &self.levels[level];
        values[from].max(values[to + 1 - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_has_its_most() {
        let values: Vec<i128> = (0..37).map(|place| (place * 29 + 11) % 41 - 7).collect();
        let most = RangeMax::of(values.clone());
        for from in 0..values.len() {
            for to in from..values.len() {
                assert_eq!(most.within(from, to), *values[from..=to].iter().max().unwrap(), "{from}..={to}");
            }
        }
        assert_eq!(most.within(5, 4), 0);
        assert_eq!(RangeMax::of(Vec::new()).within(0, 3), 0);
    }
}
