//! Data to train on and to test with.

use std::sync::Arc;

use super::loader::permutation;
use super::{Normalization, Normalized, Source, Subset};
use crate::Error;

/// Data to train on and to test with.
#[derive(Clone)]
pub struct Dataset {
    /// Its name in reports.
    pub name: String,
    /// The training samples.
    pub train: Arc<dyn Source>,
    /// The test samples, if any.
    pub test: Option<Arc<dyn Source>>,
}

impl Dataset {
    pub(super) fn new(name: &str, train: impl Source + 'static, test: Option<impl Source + 'static>) -> Dataset {
        let test = test.map(|test| Arc::new(test) as Arc<dyn Source>);
        Dataset { name: name.to_owned(), train: Arc::new(train), test }
    }

    /// The same data, of whose training samples a share, drawn by the seed, is for testing instead. At least one sample
    /// is on each side if there are two.
    pub fn with_test_share(self, share: f64, seed: u64) -> Dataset {
        let len = self.train.len();
        let mut order = permutation(len, seed, u64::MAX);
        let held = ((len as f64 * share).round() as usize).clamp(1, len.saturating_sub(1).max(1));
        let mut rest = order.split_off(held);
        let part = |mut indices: Vec<usize>| -> Arc<dyn Source> {
            indices.sort_unstable();
            Arc::new(Subset { source: Arc::clone(&self.train), indices })
        };
        // A single sample is on both sides.
        if rest.is_empty() {
            rest.clone_from(&order);
        }
        Dataset { name: self.name.clone(), train: part(rest), test: Some(part(order)) }
    }

    /// The same data with normalized pixels.
    ///
    /// # Errors
    /// [`Error::Batch`] unless there is one mean and one positive standard deviation per channel.
    pub fn normalized(self, by: &Normalization) -> Result<Dataset, Error> {
        let channels = self.train.shape().channels();
        if by.mean.len() != channels || by.std.len() != channels {
            let what = format!("{} means and {} standard deviations", by.mean.len(), by.std.len());
            return Err(Error::Batch { what, wanted: format!("{channels} of each, one per channel") });
        }
        if let Some(bad) = by.std.iter().chain(&by.mean).find(|value| !value.is_finite()) {
            return Err(Error::Batch { what: format!("the number {bad}"), wanted: "finite ones".to_owned() });
        }
        if let Some(bad) = by.std.iter().find(|std| **std <= 0.0) {
            let what = format!("a standard deviation of {bad}");
            return Err(Error::Batch { what, wanted: "one above 0".to_owned() });
        }
        let wrap = |source: Arc<dyn Source>| -> Arc<dyn Source> { Arc::new(Normalized { source, by: by.clone() }) };
        Ok(Dataset { name: self.name, train: wrap(self.train), test: self.test.map(wrap) })
    }
}
