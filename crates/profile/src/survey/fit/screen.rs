//! Screening: measurements of each algorithm at one or two sizes predict its time per sample at the largest usable size. The usable sizes end where a
//! library switches to much slower kernels.
//!
//! ```text
//! time per sample                  x      x     beyond the cliff, which halves of the sizes between 4 and 32 find
//!                    x      x
//! samples            4     12     13     32     12 is the largest size of this algorithm
//! ```

use std::collections::BTreeMap;

use tightfit_conv::{Device, Problem};
use tightfit_units::{Bytes, Error};

use super::Search;
use crate::survey::grouped::SCREEN;

/// The largest size at which an algorithm with a single screening is screened at its run size.
const MAX_SIZE_AT_ONCE: usize = 64;
/// Up to this number of floating-point operations, a GPU computes all samples faster than it sets an algorithm up. Compiled engines take 0.2 to 1 s
/// at each size (depthwise and pointwise layers of MobileNetV3, H100).
const LITTLE_WORK_FLOPS: f64 = 1e10;
/// A size is beyond a cliff if its time per sample is this multiple of the first screening size's: libraries switch kernels.
const CLIFF_SLOWDOWN: f64 = 4.0;

/// The number of sizes at which each algorithm is screened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// At two, which predicts the growth of its time.
    Twice,
    /// At one, if setting an algorithm up costs more than running it.
    Once,
}

impl Screen {
    /// The sizes for an algorithm that could run up to this one.
    fn sizes(self, largest: usize, is_little: bool) -> Vec<usize> {
        match self {
            _ if is_little => vec![largest],
            Screen::Twice => SCREEN.map(|size| size.min(largest)).to_vec(),
            Screen::Once if largest <= MAX_SIZE_AT_ONCE => vec![largest],
            Screen::Once => vec![SCREEN[1]],
        }
    }
}

/// Whether running an algorithm on the whole problem takes less time than setting it up.
pub(in crate::survey) fn is_little(problem: &Problem, device: &Device) -> bool {
    device.backend == "cuda" && problem.flops() <= LITTLE_WORK_FLOPS
}

/// The result of screening each algorithm.
pub(super) struct Screening {
    /// Nanoseconds per sample at the largest size, best first.
    pub(super) foretold: Vec<(usize, f64)>,
    /// Algorithms that could not be measured at any screening size.
    pub(super) unknown: Vec<usize>,
}

impl Search<'_, '_> {
    /// Measures every algorithm at the screening sizes within its reach, which ends at a cliff.
    pub(super) fn screen(&mut self, limit: Bytes, largest: &mut BTreeMap<usize, usize>) -> Result<Screening, Error> {
        let (mut foretold, mut unknown) = (Vec::new(), Vec::new());
        let is_little = is_little(&self.problem, self.profiler.device());
        for (&algorithm, m) in largest {
            let mut points = Vec::new();
            for size in self.screen.sizes(*m, is_little) {
                let size = self.snap(size);
                if let Some(size) = size
                    && let Some(time) = self.measure(algorithm, size, limit)?
                    && points.last().is_none_or(|&(before, _)| before < size as f64)
                {
                    points.push((size as f64, time.0 as f64));
                }
            }
            if let [(low, fast), (high, slow)] = points[..]
                && high == *m as f64
                && slow / high > CLIFF_SLOWDOWN * fast / low
            {
                points.pop();
                points.extend(self.below_cliff(algorithm, (low, fast), high, limit)?);
                *m = points.last().map_or(*m, |&(size, _)| size as usize);
            }
            let m = *m as f64;
            match points[..] {
                [(low, fast), (high, slow)] => {
                    let slope = ((slow - fast) / (high - low)).max(0.0);
                    foretold.push((algorithm, (slow + slope * (m - high)) / m));
                }
                [(size, time)] => foretold.push((algorithm, time / size)),
                _ => unknown.push(algorithm),
            }
        }
        foretold.sort_by(|a, b| a.1.total_cmp(&b.1));
        Ok(Screening { foretold, unknown })
    }

    /// The largest size between two, found by bisection, that stays below the cliff per sample, and its time.
    fn below_cliff(
        &mut self,
        algorithm: usize,
        (low, fast): (f64, f64),
        high: f64,
        limit: Bytes,
    ) -> Result<Option<(f64, f64)>, Error> {
        let place = |search: &Self, size: f64| search.sizes.partition_point(|&known| (known as f64) < size);
        let (mut below, mut above, mut found) = (place(self, low), place(self, high), None);
        while above - below > 1 {
            let middle = usize::midpoint(below, above);
            let size = self.sizes[middle] as f64;
            let time = self.measure(algorithm, self.sizes[middle], limit)?.map(|time| time.0 as f64);
            match time.filter(|time| time / size <= CLIFF_SLOWDOWN * fast / low) {
                Some(time) => (below, found) = (middle, Some((size, time))),
                None => above = middle,
            }
        }
        Ok(found)
    }
}
