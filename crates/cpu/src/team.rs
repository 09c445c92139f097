//! Threads that divide work in a fixed way: the assignment depends only on the number of items and threads, and so do
//! the results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The threads of one backend.
#[derive(Clone, Debug)]
pub struct Team {
    // `None` computes on the calling thread, if one thread was requested or the system provides no more.
    pool: Option<Arc<ThreadPool>>,
    threads: usize,
    /// Once set, the rest of the work is left; none if all of it must be done.
    stop: Option<Arc<AtomicBool>>,
}

impl Team {
    /// A team of this many threads; of one if the system gives none.
    pub fn new(threads: usize) -> Team {
        // Thousands of stacks exceed what a system allows, and no machine has that many cores.
        let threads = threads.clamp(1, 1024);
        let pool = (threads > 1).then(|| ThreadPoolBuilder::new().num_threads(threads).build().ok()).flatten();
        Team { threads: if pool.is_some() { threads } else { 1 }, pool: pool.map(Arc::new), stop: None }
    }

    /// The same threads, for work whose results do not count once `stop` is set: they skip the parts that they have not
    /// begun.
    pub fn until(&self, stop: Option<Arc<AtomicBool>>) -> Team {
        Team { stop, ..self.clone() }
    }

    /// Whether the rest of the work is left. Algorithms ask between parts of an item that takes long.
    pub fn is_left(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `each` once for every item, with a slice of `scratch` that is its own during the call; not for the items
    /// that are left.
    ///
    /// Every thread takes a run of neighboring items and an equal part of `scratch`. If there are fewer items than
    /// threads, they run one after another, and `each` may use as many threads as its last argument says.
    pub fn share<I: Send>(&self, items: Vec<I>, scratch: &mut [f32], each: impl Fn(I, &mut [f32], usize) + Sync) {
        let part = scratch.len() / self.threads;
        let each = |item, own: &mut [f32], threads| {
            if !self.is_left() {
                each(item, own, threads);
            }
        };
        match &self.pool {
            Some(pool) if items.len() >= self.threads => {
                let (count, mut items, mut scratch) = (items.len(), items.into_iter(), scratch);
                let mut tasks: Vec<Task> = Vec::with_capacity(self.threads);
                for thread in 0..self.threads {
                    let end = count * (thread + 1) / self.threads;
                    let mine: Vec<I> = items.by_ref().take(end - count * thread / self.threads).collect();
                    let (own, rest) = std::mem::take(&mut scratch).split_at_mut(part);
                    scratch = rest;
                    let each = &each;
                    tasks.push(Box::new(move || mine.into_iter().for_each(|item| each(item, own, 1))));
                }
                run(pool, tasks);
            }
            Some(pool) => run(
                pool,
                vec![Box::new(|| items.into_iter().for_each(|i| each(i, &mut scratch[..part], self.threads)))],
            ),
            None => items.into_iter().for_each(|item| each(item, scratch, 1)),
        }
    }
}

/// The work of one thread.
type Task<'t> = Box<dyn FnOnce() + Send + 't>;

/// Runs tasks on the threads of a pool and waits for them. The pool's code for this is compiled here, once, and not for
/// every kind of work.
fn run(pool: &ThreadPool, tasks: Vec<Task>) {
    pool.scope(|scope| tasks.into_iter().for_each(|task| scope.spawn(|_| task())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_left_once_the_flag_is_set() {
        for threads in 1..=3 {
            for count in [2usize, 9] {
                let (stop, done) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
                let team = Team::new(threads).until(Some(Arc::clone(&stop)));
                let run = || {
                    done.store(false, Ordering::Relaxed);
                    team.share(vec![(); count], &mut [], |(), _, _| done.store(true, Ordering::Relaxed));
                    done.load(Ordering::Relaxed)
                };
                assert!(run() && !team.is_left());
                stop.store(true, Ordering::Relaxed);
                assert!(!run() && team.is_left(), "{count} items on {threads} threads");
            }
        }
    }

    #[test]
    fn every_item_is_done_once_with_its_own_scratch() {
        for threads in 1..=3 {
            for count in 0..7usize {
                let mut done = vec![0u32; count];
                let mut scratch = vec![0.0; 2 * threads];
                Team::new(threads).share(done.iter_mut().collect(), &mut scratch, |item, own, inner| {
                    assert_eq!(own.len(), 2);
                    assert!(inner == 1 || inner == threads);
                    *item += 1;
                });
                assert!(done.iter().all(|&times| times == 1), "{count} items on {threads} threads");
            }
        }
    }
}
