//! A thread of ours beside the program's, started when there is something to do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// How long the program's end waits for what is being done.
const ENDING: Duration = Duration::from_secs(2);
/// Its name while it has nothing to do; at work it has its own, where tools and tests see it.
const IDLE: &str = "idle-tightfit";

/// What a thread does with its tasks.
pub trait Work<T> {
    /// Does a task.
    fn work(&mut self, task: T);

    /// There will be no more.
    fn end(self);
}

/// A thread and what it has to do.
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
    /// No thread yet, which will have this name while it is at work.
    pub fn new(name: &'static str) -> Worker<T> {
        Worker { name, thread: Mutex::default(), at_work: Arc::default() }
    }

    /// Hands over a task to the thread, which begins with `work` if there is none. Gives whether there is a thread.
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

    /// Hands over no more: the thread leaves what it has not begun, and ends.
    pub fn end(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            thread.is_ending.store(true, Ordering::Relaxed);
        }
    }

    /// The program ends: waits a little for what is on the device.
    pub fn finish(&self) {
        self.end();
        let begun = Instant::now();
        while self.at_work.load(Ordering::Acquire) > 0 && begun.elapsed() < ENDING {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Does tasks until there are no more.
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
        if is_ending.load(Ordering::Relaxed) {
            pause();
            break;
        }
        work.work(task);
        pause();
    }
    // Until its memory is given back, the program's end waits as well.
    begin();
    work.end();
    pause();
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
        worker.finish();
        let all = lock(&done).clone();
        assert!(all.starts_with(&[0, 1, 2]) && all.ends_with(&[u32::MAX]) && all.len() < 8, "{all:?}");
        // Another thread begins where one has ended.
        assert!(worker.hand_over(9, || Adding(done.clone())));
    }
}
