//! Measures the sizes of one kernel that are known in advance, on several devices at once.
//!
//! ```text
//! problem A   1  2  4  8 .. 256     each size is a separate task, the largest first,
//! problem B   1  2  4  8 .. 256     and a free device takes the next one
//! ```
//!
//! One large kernel therefore occupies all devices. `fit` finds most of its sizes while it measures, and parts of the mini-batch use the best
//! algorithms; the device that completes the problem measures both.
//!
//! **Source**: Oyama et al. 2018, III.B, parallel evaluation.

use tightfit_conv::{Backend, Device, Problem};
use tightfit_units::{Bytes, Error};

use super::Scope;
use super::devices::each_task;
use super::env::Env;
use super::fit::is_little;
use super::grouped::SCREEN;
use super::sizes::measure_size;
use crate::{Admission, Known, Spent};

/// Measures the sizes of `problems` that are known in advance, and returns the measurements and their cost.
///
/// # Errors
/// The first fatal error of any device.
pub(super) fn ahead(
    problems: &[&Problem],
    scope: &Scope,
    backends: &mut [Box<dyn Backend>],
    env: &Env<'_>,
) -> Result<(Known, Spent), Error> {
    let Some(device) = backends.first().map(|backend| backend.device().clone()) else { return Ok(Default::default()) };
    let tasks = tasks(problems, scope, &device)?;
    let admission = Admission { deterministic: scope.deterministic, ..Admission::default() };
    each_task(
        backends,
        env,
        tasks.len(),
        |profiler| profiler.admit(admission),
        |profiler, place| {
            let (problem, limit) = &tasks[place];
            if profiler.sizes(problem).binary_search(&problem.batch()).is_ok() {
                measure_size(problem, *limit, profiler, &mut Vec::new())?;
            }
            Ok(())
        },
    )
}

/// The problems at each size that will certainly be asked for, with the limit at that size; most work first.
fn tasks(problems: &[&Problem], scope: &Scope, device: &Device) -> Result<Vec<(Problem, Bytes)>, Error> {
    let limit = scope.limits.iter().copied().max().unwrap_or_default();
    let mut tasks = Vec::new();
    for problem in problems {
        let batch = problem.batch();
        let screened = || SCREEN.into_iter().filter(|&size| size < batch && !is_little(problem, device)).collect();
        let mut sizes = scope.micro_batches().up_to(batch).unwrap_or_else(screened);
        sizes.extend(scope.baseline.map(|_| batch));
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            let baseline = scope.baseline.filter(|_| size == batch).unwrap_or_default();
            tasks.push((problem.with_batch(size)?, limit.max(baseline)));
        }
    }
    tasks.sort_by(|(a, _), (b, _)| b.flops().total_cmp(&a.flops()).then_with(|| a.cmp(b)));
    Ok(tasks)
}
