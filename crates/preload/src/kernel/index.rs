//! All kernels of the process, by question.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use tightfit_conv::Problem;

use super::order::Order;
use super::{Kernel, Planned, Question};
use crate::layer::Layer;
use crate::limits::Limits;
use crate::lock::lock;
use crate::settings::Terms;

/// A convolution under an algorithm's number, as the legacy interface names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number {
    /// The device's ordinal.
    pub device: usize,
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The algorithm.
    pub algorithm: c_int,
}

#[derive(Default)]
struct Index {
    by_question: HashMap<(Question, Terms), Arc<Kernel>>,
    /// So that a call need not query the workspace of an algorithm that it does not run. A decision made under capture
    /// is final here too: the program knows its workspace, and without a plan, calls before and after a new decision
    /// look alike.
    by_number: HashMap<Number, Arc<Kernel>>,
    /// By device and convolution, whatever the framework's choice.
    by_problem: HashMap<(usize, Problem), Vec<Arc<Kernel>>>,
    all: Vec<Arc<Kernel>>,
}

/// The kernels of the process.
#[derive(Default)]
pub struct Kernels {
    index: Mutex<Index>,
    order: Arc<Order>,
}

impl Kernels {
    /// The kernel of a question that already has an answer on these terms; these layers share it from now on.
    pub fn find(&self, question: &Question, terms: Terms, layers: &[Layer]) -> Option<Arc<Kernel>> {
        let found = lock(&self.index).by_question.get(&(question.clone(), terms)).cloned()?;
        found.add_layers(layers.iter().cloned());
        Some(found)
    }

    /// The kernel of a number that was decided about.
    pub fn find_number(&self, number: &Number) -> Option<Arc<Kernel>> {
        lock(&self.index).by_number.get(number).cloned()
    }

    /// Stores the kernel of a number.
    pub fn keep_number(&self, number: Number, kernel: Arc<Kernel>) {
        lock(&self.index).by_number.insert(number, kernel);
    }

    /// All kernels.
    pub fn all(&self) -> Vec<Arc<Kernel>> {
        lock(&self.index).all.clone()
    }

    /// Stores an answer found under these limits; one that is final is found again. If another thread was first, its answer holds for both.
    pub fn keep(&self, planned: Planned, limits: &Limits, is_lasting: bool) -> Arc<Kernel> {
        let key = (planned.question.clone(), planned.terms);
        let mut index = lock(&self.index);
        if let Some(first) = index.by_question.get(&key) {
            first.add_layers(planned.layers);
            return first.clone();
        }
        let alike = index.by_problem.entry((key.0.device, key.0.problem)).or_default();
        let kernel = Arc::new(Kernel::new(planned, limits, alike, self.order.clone()));
        alike.push(kernel.clone());
        if is_lasting {
            index.by_question.insert(key, kernel.clone());
        }
        index.all.push(kernel.clone());
        kernel
    }

    /// The kernels that were called, by order of first call, and how many were only planned.
    pub fn called(&self) -> (Vec<Arc<Kernel>>, usize) {
        let (mut called, planned): (Vec<_>, Vec<_>) = self.all().into_iter().partition(|kernel| kernel.calls() > 0);
        called.sort_by_key(|kernel| kernel.place.get().copied());
        (called, planned.len())
    }
}
