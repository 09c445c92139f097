//! Our thread next to the program's, started when it has something to do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// The name of an idle thread. At work, a thread has a name of its own, which tools and tests see.
const IDLE: &str = "idle-tightfit";

/// The work of a thread on its tasks.
pub trait Work<T> {
    /// Does a task.
    fn work(&mut self, task: T);

    /// No more tasks will come.
    fn end(self);
}

/// A thread and its tasks.
pub struct Worker<T> {
    name: &'static str,
    thread: Mutex<Option<Thread<T>>>,
    /// How many threads are at work.
    at_work: Arc<AtomicUsize>,
}

struct Thread<T> {
    tasks: Sender<T>,
    is_ending: Arc<AtomicBool>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts no thread yet. The thread will have this name while it works.
    pub fn new(name: &'static str) -> Worker<T> {
        Worker { name, thread: Mutex::default(), at_work: Arc::default() }
    }

    /// Hands a task to the thread. If the thread does not run yet, it is started with `work`. Returns whether a thread
    /// runs.
    pub fn hand_over<W: Work<T> + Send + 'static>(&self, task: T, work: impl FnOnce() -> W) -> bool {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let (tasks, receiver) = channel();
            let is_ending = Arc::new(AtomicBool::new(false));
            let (name, at_work, work) = (self.name, self.at_work.clone(), work());
            let ends = is_ending.clone();
            let spawned = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || run(name, &receiver, &ends, &at_work, work));
            *thread = spawned.is_ok().then_some(Thread { tasks, is_ending });
        }
        thread.as_ref().is_some_and(|thread| thread.tasks.send(task).is_ok())
    }

    /// Whether a thread is at work.
    pub fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Acquire) > 0
    }

    /// Hands over no more tasks. The thread drops the tasks that it has not begun, and ends. Until then it counts as at
    /// work.
    pub fn end(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            self.at_work.fetch_add(1, Ordering::AcqRel);
            thread.is_ending.store(true, Ordering::Release);
        }
    }

    /// Waits for the current task when the program ends, but no longer than this.
    pub fn finish(&self, patience: Duration) {
        self.end();
        let begun = Instant::now();
        while self.is_at_work() && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs tasks until no more will come.
fn run<T>(name: &str, tasks: &Receiver<T>, is_ending: &AtomicBool, at_work: &AtomicUsize, mut work: impl Work<T>) {
    let begin = || {
        at_work.fetch_add(1, Ordering::AcqRel);
        set_name(name);
    };
    let pause = || {
        set_name(IDLE);
        at_work.fetch_sub(1, Ordering::AcqRel);
    };
    while let Ok(task) = tasks.recv() {
        begin();
        if is_ending.load(Ordering::Acquire) {
            pause();
            break;
        }
        work.work(task);
        pause();
    }
    // The end of the program also waits until this memory is freed.
    begin();
    work.end();
    pause();
    if is_ending.load(Ordering::Acquire) {
        at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

fn set_name(name: &str) {
    let _ = std::fs::write("/proc/thread-self/comm", name);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Adding(Arc<Mutex<Vec<u32>>>);

    impl Work<u32> for Adding {
        fn work(&mut self, task: u32) {
            std::thread::sleep(Duration::from_millis(30));
            lock(&self.0).push(task);
        }

        fn end(self) {
            lock(&self.0).push(u32::MAX);
        }
    }

    #[test]
    fn tasks_are_done_in_order_and_those_not_begun_are_left_at_the_end() {
        let (worker, done) = (Worker::new("adding"), Arc::new(Mutex::new(Vec::new())));
        for task in 0..2 {
            assert!(worker.hand_over(task, || Adding(done.clone())));
        }
        while lock(&done).len() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        (2..9).for_each(|task| assert!(worker.hand_over(task, || Adding(done.clone()))));
        while lock(&done).len() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        worker.finish(Duration::from_secs(10));
        let all = lock(&done).clone();
        assert!(all.starts_with(&[0, 1, 2]) && all.ends_with(&[u32::MAX]) && all.len() < 8, "{all:?}");
        // A new thread starts after one has ended.
        assert!(worker.hand_over(9, || Adding(done.clone())));
        while lock(&done).last() != Some(&9) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
