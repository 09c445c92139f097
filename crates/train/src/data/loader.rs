//! Reads mini-batches from a source, on a thread that works ahead of the trainer.
//!
//! ```text
//! thread    read 0 | read 1 | read 2 | (queue full) . . | read 3 |
//! queue            | 0      | 0 1    | 0 1            1 | 1 2
//! trainer                                    takes 0 ---^
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use tightfit_cpu::random;

use super::{Augmentation, Crop, Source};
use crate::Error;

/// Number of batches to read ahead.
const AHEAD: usize = 2;

/// Samples one after another (c, h, w each), with a label for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// All elements of all samples.
    pub samples: Vec<f32>,
    /// A class for each sample.
    pub labels: Vec<u32>,
    /// Number of samples that count; any others only fill the last batch of an ordered pass.
    pub counted: usize,
}

/// An iterator over batches read by a background thread.
pub struct Loader {
    // Dropped before the thread is joined: its next send then fails, and it ends.
    batches: Option<Receiver<Result<Batch, Error>>>,
    thread: Option<JoinHandle<()>>,
    endless: bool,
}

impl Loader {
    /// Endless batches: every epoch uses each sample once, in a different order. The same seed gives the same batches.
    ///
    /// An epoch may end inside a batch, which the next epoch fills, so all batches are full.
    ///
    /// # Errors
    /// [`Error::LoaderThread`].
    pub fn shuffled(source: Arc<dyn Source>, batch: usize, seed: u64) -> Result<Loader, Error> {
        Loader::shuffled_after(source, batch, seed, 0, Augmentation::default())
    }

    /// Like [`Loader::shuffled`], without the first `taken` samples, and with random changes of the samples.
    ///
    /// # Errors
    /// [`Error::LoaderThread`].
    pub fn shuffled_after(
        source: Arc<dyn Source>,
        batch: usize,
        seed: u64,
        taken: u64,
        changes: Augmentation,
    ) -> Result<Loader, Error> {
        let len = source.len();
        let (epoch, skipped) = (taken / len.max(1) as u64, taken % len.max(1) as u64);
        let order = (epoch..).flat_map(move |epoch| permutation(len, seed, epoch)).skip(skipped as usize);
        Loader::new(source, batch, order, Some((taken, changes)))
    }

    /// Each sample once, in order; the last batch is filled with the samples before it, or with its first one.
    ///
    /// # Errors
    /// [`Error::LoaderThread`].
    pub fn in_order(source: Arc<dyn Source>, batch: usize) -> Result<Loader, Error> {
        let order = 0..source.len();
        Loader::new(source, batch, order, None)
    }

    fn new(
        source: Arc<dyn Source>,
        batch: usize,
        order: impl Iterator<Item = usize> + Send + 'static,
        changes: Option<(u64, Augmentation)>,
    ) -> Result<Loader, Error> {
        let (sender, batches) = sync_channel(AHEAD);
        let endless = changes.is_some();
        let work = move || load(&*source, batch, order, changes.unwrap_or_default(), &sender);
        let thread = Builder::new().name("loader".to_owned()).spawn(work);
        let thread = thread.map_err(|source| Error::LoaderThread { source })?;
        Ok(Loader { batches: Some(batches), thread: Some(thread), endless })
    }
}

impl Iterator for Loader {
    type Item = Result<Batch, Error>;

    fn next(&mut self) -> Option<Result<Batch, Error>> {
        let batch = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        // An endless thread that ended has panicked, or sent its error before.
        batch.or_else(|| self.endless.then_some(Err(Error::LoaderEnded)))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported as an error.
            let _ = thread.join();
        }
    }
}

/// Reads batch after batch until the order ends, something fails, or the receiver is gone.
fn load(
    source: &dyn Source,
    batch: usize,
    mut order: impl Iterator<Item = usize>,
    (mut taken, changes): (u64, Augmentation),
    sender: &SyncSender<Result<Batch, Error>>,
) {
    loop {
        let mut indices: Vec<usize> = order.by_ref().take(batch).collect();
        let counted = indices.len();
        if counted == 0 {
            return;
        }
        indices.resize(batch, indices[0]);
        let parts: Vec<Option<Crop>> = (taken..).take(batch).map(|place| changes.crop(place)).collect();
        let read = read(source, &indices, &parts, counted).map(|mut batch| {
            let len = source.shape().len().max(1);
            for (place, sample) in (taken..).zip(batch.samples.chunks_mut(len)) {
                changes.apply(place, source.shape(), sample);
            }
            batch
        });
        taken += counted as u64;
        let failed = read.is_err();
        if sender.send(read).is_err() || failed {
            return;
        }
    }
}

/// Reads the samples of a batch, or parts of them, on as many threads as the source suggests.
fn read(source: &dyn Source, indices: &[usize], crops: &[Option<Crop>], counted: usize) -> Result<Batch, Error> {
    let len = source.shape().len();
    let mut batch = Batch { samples: vec![0.0; len * indices.len()], labels: vec![0; indices.len()], counted };
    let share = indices.len().div_ceil(source.threads().max(1));
    let part = |(indices, crops): (&[usize], &[Option<Crop>]), samples: &mut [f32], labels: &mut [u32]| {
        let all = indices.iter().zip(crops).zip(samples.chunks_mut(len)).zip(labels);
        for (((&index, crop), sample), label) in all {
            *label = match crop {
                Some(crop) => source.read_part(index, *crop, sample)?,
                None => source.read(index, sample)?,
            };
        }
        Ok(())
    };
    let part = &part;
    std::thread::scope(|scope| {
        let which = indices.chunks(share).zip(crops.chunks(share));
        let parts = which.zip(batch.samples.chunks_mut(share * len));
        let mut parts = parts.zip(batch.labels.chunks_mut(share));
        if share == indices.len() {
            return parts.try_for_each(|((indices, samples), labels)| part(indices, samples, labels));
        }
        let threads: Result<Vec<_>, Error> = parts
            .map(|((indices, samples), labels)| {
                let thread = Builder::new().spawn_scoped(scope, move || part(indices, samples, labels));
                thread.map_err(|source| Error::LoaderThread { source })
            })
            .collect();
        threads?.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(Error::LoaderEnded)))
    })?;
    Ok(batch)
}

/// The numbers below `len` in an order that looks random (Fisher and Yates 1938, in Durstenfeld's form).
pub fn permutation(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for at in (1..len).rev() {
        // The product's upper half: uniform to within 2^-64 · len, without a division.
        let below = (u128::from(random::key(&[seed, epoch, at as u64])) * (at as u128 + 1)) >> 64;
        order.swap(at, below as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tightfit_network::Shape;

    use super::super::file;
    use super::*;

    /// Samples whose elements and label are their number; reading sample `bad` fails.
    struct Numbers {
        len: usize,
        bad: Option<usize>,
        threads: usize,
        reads: AtomicUsize,
    }

    impl Source for Numbers {
        fn shape(&self) -> Shape {
            Shape::flat(3)
        }

        fn classes(&self) -> usize {
            self.len
        }

        fn len(&self) -> usize {
            self.len
        }

        fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            if self.bad == Some(index) {
                return Err(file::bad(Path::new("numbers"), format!("number {index} is bad")));
            }
            sample.fill(index as f32);
            Ok(index as u32)
        }

        fn threads(&self) -> usize {
            self.threads
        }
    }

    fn numbers(len: usize, bad: Option<usize>, threads: usize) -> Arc<Numbers> {
        Arc::new(Numbers { len, bad, threads, reads: AtomicUsize::new(0) })
    }

    #[test]
    fn in_order_counts_each_sample_once() {
        for threads in [1, 3, 100] {
            let batches: Vec<Batch> =
                Loader::in_order(numbers(10, None, threads), 4).unwrap().map(|batch| batch.unwrap()).collect();
            let labels: Vec<_> = batches.iter().map(|batch| batch.labels.clone()).collect();
            assert_eq!(labels, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 8, 8]]);
            assert_eq!(batches.iter().map(|batch| batch.counted).collect::<Vec<_>>(), [4, 4, 2]);
            assert_eq!(batches[2].samples, [8.0, 8.0, 8.0, 9.0, 9.0, 9.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]);
        }
    }

    #[test]
    fn every_epoch_takes_each_sample_once_in_another_order() {
        let labels = |seed| -> Vec<u32> {
            let loader = Loader::shuffled(numbers(10, None, 1), 4, seed).unwrap();
            loader.take(5).flat_map(|batch| batch.unwrap().labels).collect()
        };
        let twenty = labels(1);
        for epoch in twenty.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort();
            assert!(sorted.into_iter().eq(0..10), "{epoch:?}");
            assert!(!epoch.is_sorted());
        }
        assert_ne!(twenty[..10], twenty[10..]);
        assert_eq!(twenty, labels(1));
        assert_ne!(twenty, labels(2));
    }

    #[test]
    fn samples_taken_before_are_skipped() {
        let labels = |taken| -> Vec<u32> {
            let loader = Loader::shuffled_after(numbers(10, None, 1), 4, 1, taken, Augmentation::default()).unwrap();
            loader.take(3).flat_map(|batch| batch.unwrap().labels).collect()
        };
        let whole = Loader::shuffled(numbers(10, None, 1), 4, 1).unwrap().take(20);
        let whole: Vec<u32> = whole.flat_map(|batch| batch.unwrap().labels).collect();
        for taken in [0, 4, 8, 10, 23, 40, 60] {
            assert_eq!(labels(taken), whole[taken as usize..][..12], "{taken}");
        }
    }

    #[test]
    fn every_order_of_three_is_as_likely() {
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..6000 {
            *counts.entry(permutation(3, 1, epoch)).or_insert(0) += 1;
        }
        assert!(counts.len() == 6 && counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn no_more_than_the_queue_is_read_ahead() {
        let source = numbers(1000, None, 1);
        let mut loader = Loader::in_order(Arc::clone(&source) as Arc<dyn Source>, 10).unwrap();
        loader.next();
        drop(loader);
        // One consumed, some in the queue, and one waiting to enter it.
        assert!(source.reads.load(Ordering::SeqCst) <= 10 * (1 + AHEAD + 1));
    }

    #[test]
    fn an_error_arrives_and_ends_the_batches() {
        for threads in [1, 2] {
            let mut loader = Loader::in_order(numbers(10, Some(5), threads), 4).unwrap();
            assert!(loader.next().is_some_and(|batch| batch.is_ok()));
            let error = loader.next().and_then(|batch| batch.err()).map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some("numbers: number 5 is bad"));
            assert!(loader.next().is_none());
        }
        let mut loader = Loader::shuffled(numbers(1, Some(0), 1), 1, 0).unwrap();
        assert!(matches!(loader.next(), Some(Err(Error::Data { .. }))));
        assert!(matches!(loader.next(), Some(Err(Error::LoaderEnded))));
    }
}
