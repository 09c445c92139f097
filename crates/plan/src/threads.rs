//! Runs independent searches on two threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Searches at once.
const THREADS: usize = 2;

/// The results of `count` searches, in order. The first ones begin first. If no thread can be started, they run one after another.
pub(crate) fn on_threads<T: Send>(count: usize, search: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= count {
                break;
            }
            let result = search(place);
            results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((place, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.min(count) {
            // Without another thread, this one does all the work.
            _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_complete() {
        for count in [0, 1, 2, 7, 100] {
            let squares: Vec<usize> = on_threads(count, |place| place * place);
            assert_eq!(squares, (0..count).map(|place| place * place).collect::<Vec<_>>());
        }
    }
}
