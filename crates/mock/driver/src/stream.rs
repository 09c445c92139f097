//! A stream: a queue, and a thread that takes from it, later.
//!
//! ```text
//! host:    push(work) push(record e) push(work) ...           returns at once
//! thread:          delay  work  record e  delay  work          e completes when the thread gets there
//! other stream's thread:            wait e ........| work
//! ```

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tightfit_mock_support::lock;

use crate::clock;
use crate::control;
use crate::error::Code;

/// A piece of work: its function, and its virtual time. It may run many times, once per graph launch.
#[derive(Clone)]
pub struct Work {
    /// Runs on the stream's thread.
    pub run: Arc<dyn Fn() -> Result<(), Code> + Send + Sync>,
    /// Virtual duration.
    pub nanos: u64,
}

/// A point in a stream that others can wait for; it knows its time once the stream got there.
#[derive(Default)]
pub struct Mark {
    time: Mutex<Option<u64>>,
    reached: Condvar,
}

impl Mark {
    /// The time at which the stream got there, if it has.
    pub fn time(&self) -> Option<u64> {
        *lock(&self.time)
    }

    fn reach(&self, time: u64) {
        *lock(&self.time) = Some(time);
        self.reached.notify_all();
    }

    /// Blocks until the stream got there.
    pub fn wait(&self) -> u64 {
        let mut time = lock(&self.time);
        loop {
            if let Some(time) = *time {
                return time;
            }
            time = self.reached.wait(time).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

enum Item {
    Work(Work),
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
}

#[derive(Default)]
struct Queue {
    /// Items with the host's virtual time when they were pushed.
    items: VecDeque<(u64, Item)>,
    /// Items pushed and not finished.
    pending: usize,
    closed: bool,
    /// Virtual time of the last thing done.
    now: u64,
}

/// One stream of a device.
pub struct Stream {
    /// Its place in the order of creation since the last reset, by which delays name it.
    pub ordinal: u64,
    /// The device it works on.
    pub device: usize,
    /// Whether it is ordered with the device's default stream.
    pub blocking: bool,
    sticky: Arc<AtomicI32>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Stream {
    /// Starts a stream and its thread. `sticky` is the device's lasting error, set when a piece of work fails.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] if the system gives no thread.
    pub fn start(ordinal: u64, device: usize, blocking: bool, sticky: Arc<AtomicI32>) -> Result<Arc<Stream>, Code> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let stream = Arc::new(Stream { ordinal, device, blocking, sticky, queue, changed });
        let worker = stream.clone();
        std::thread::Builder::new()
            .name(format!("stream-{ordinal}"))
            .spawn(move || worker.serve())
            .map_err(|_| Code::OUT_OF_MEMORY)?;
        Ok(stream)
    }

    fn push(&self, item: Item) {
        let mut queue = lock(&self.queue);
        queue.items.push_back((clock::host_now(), item));
        queue.pending += 1;
        self.changed.notify_all();
    }

    /// Appends a piece of work.
    pub fn enqueue(&self, work: Work) {
        self.push(Item::Work(work));
    }

    /// Appends a point to wait for.
    pub fn record(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark::default());
        self.push(Item::Record(mark.clone()));
        mark
    }

    /// Later work of this stream waits for the mark.
    pub fn wait_for(&self, mark: Arc<Mark>) {
        self.push(Item::Wait(mark));
    }

    /// Whether everything pushed is finished.
    pub fn is_idle(&self) -> bool {
        lock(&self.queue).pending == 0
    }

    /// Blocks until everything pushed is finished; the calling thread's virtual time moves there.
    pub fn synchronize(&self) {
        let mut queue = lock(&self.queue);
        while queue.pending > 0 {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        clock::host_waited_until(queue.now);
    }

    /// No more work will come: the thread ends after the present work.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn serve(&self) {
        loop {
            let (issued, item) = {
                let mut queue = lock(&self.queue);
                loop {
                    if let Some(item) = queue.items.pop_front() {
                        break item;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let begin = lock(&self.queue).now.max(issued);
            let end = self.carry_out(item, begin);
            let mut queue = lock(&self.queue);
            queue.now = end;
            queue.pending -= 1;
            self.changed.notify_all();
        }
    }

    /// Does one item. Returns the virtual time of its end. After a lasting error, work is passed over but marks are still reached, so no thread waits
    /// forever.
    fn carry_out(&self, item: Item, begin: u64) -> u64 {
        match item {
            Item::Work(work) => {
                std::thread::sleep(control::delay(self.ordinal));
                if self.sticky.load(Ordering::SeqCst) == 0
                    && let Err(code) =
                        catch_unwind(AssertUnwindSafe(|| (work.run)())).unwrap_or(Err(Code::LAUNCH_FAILED))
                {
                    self.sticky.store(code.0, Ordering::SeqCst);
                }
                begin + work.nanos
            }
            Item::Record(mark) => {
                mark.reach(begin);
                begin
            }
            Item::Wait(mark) => begin.max(mark.wait()),
        }
    }
}
