//! The devices of a survey share its tasks: each free device takes the next one.
//!
//! ```text
//! task      0  1  2  3  4  5
//! device 0  0-----  2--  5--     an error ends its device, and the others begin no further task
//! device 1  1--  3---  4----
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tightfit_conv::Backend;
use tightfit_units::Error;

use super::env::Env;
use crate::{Known, Profiler, Spent};

/// Runs the tasks `0..count`, and returns the measurements and costs of all devices. `prepare` is called once per device, `task` with the number of
/// each task and the profiler of the device that takes it. A single device works on the calling thread; several devices have a thread each.
///
/// # Errors
/// The first error of any task. The other devices finish their current task.
pub(super) fn each_task(
    backends: &mut [Box<dyn Backend>],
    env: &Env<'_>,
    count: usize,
    prepare: impl Fn(&mut Profiler<'_>) + Sync,
    task: impl Fn(&mut Profiler<'_>, usize) -> Result<(), Error> + Sync,
) -> Result<(Known, Spent), Error> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new((Known::default(), Spent::default(), None));
    let work = |device: usize, backend: &mut dyn Backend| {
        let mut profiler = Profiler::new(backend, env.cache, env.stop);
        prepare(&mut profiler);
        let mut places = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&it| it < count);
        let error = places.try_for_each(|place| task(&mut profiler, place)).err();
        if error.is_some() {
            next.store(count, Ordering::Relaxed);
        }
        let (known, spent) = profiler.into_known();
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.0.extend(known);
        all.1.add(spent.by_device(device));
        all.2 = all.2.take().or(error);
    };
    match backends {
        [backend] => work(0, backend.as_mut()),
        _ => std::thread::scope(|threads| {
            for (device, backend) in backends.iter_mut().enumerate() {
                let work = &work;
                threads.spawn(move || work(device, backend.as_mut()));
            }
        }),
    }
    let (known, spent, error) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok((known, spent)), Err)
}
