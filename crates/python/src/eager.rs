//! Steps of PyTorch programs, predicted and decided as hooks carry plans out. Decisions come and go as the JSON of a plan file.

use std::time::Duration;

use pyo3::prelude::*;
use tightfit_plan::TensorDecision;
use tightfit_plan::eager::{self, EagerStep as Step, Impossible, InitialReservation, Limits, Prediction, Sizes};

use crate::failure::{bad_input, raise};
use crate::interrupt::interruptible;

/// A recorded step.
#[pyclass(frozen)]
pub struct EagerStep(Step);

/// A prediction: peak, its operation, bytes at each operation, bytes moved, times of reruns, of stalls and of the step, and where
/// each offloaded tensor is needed.
type Values = (i64, usize, Vec<i64>, i64, f64, f64, f64, Vec<(usize, usize)>);

/// Of a call of a rerun: operation, copies, results, renames and drops.
type Call = (usize, Vec<usize>, Vec<usize>, Vec<(usize, usize)>, Vec<usize>);

#[pymethods]
impl EagerStep {
    /// Reads the text of a step file.
    #[new]
    fn new(text: &str) -> PyResult<EagerStep> {
        Step::from_json(text).map(EagerStep).map_err(raise)
    }

    /// The predicted values of a step under decisions.
    fn simulate(&self, decisions: &str) -> PyResult<Values> {
        self.prediction(decisions).map(values)
    }

    /// The bytes that PyTorch's allocator reserves under decisions, and the first operation at which this is more than
    /// `most`. Before the step, `bytes` are reserved, and the blocks `free` of them are free. `sizes` are the largest small
    /// block and a page, if they differ from the defaults.
    fn reserved(
        &self,
        decisions: &str,
        most: Option<i64>,
        bytes: i64,
        free: Vec<i64>,
        sizes: Option<(i64, i64)>,
    ) -> PyResult<(i64, Option<usize>)> {
        let found = self.0.reserved(&self.prediction(decisions)?, most, &initial(bytes, free, sizes));
        Ok((found.bytes, found.at))
    }

    /// The decisions of a greedy search for a budget, and their predicted values.
    fn greedy(&self, py: Python<'_>, budget: i64) -> PyResult<(String, Values)> {
        let found = interruptible(py, |_| Ok(eager::greedy(&self.0, budget)))?;
        found.map(|(decisions, prediction)| (text(&decisions), values(prediction))).map_err(impossible)
    }

    /// Searches from `bases` for decisions for which the allocator has room. Returns `None` if nothing beats the first.
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    fn with_room(
        &self,
        py: Python<'_>,
        bases: Vec<String>,
        budget: i64,
        most: i64,
        bytes: i64,
        free: Vec<i64>,
        sizes: Option<(i64, i64)>,
        seconds: f64,
    ) -> PyResult<Option<String>> {
        let bases = bases.iter().map(|base| read(base)).collect::<PyResult<Vec<_>>>()?;
        let time = Duration::try_from_secs_f64(seconds).map_err(|error| bad_input(error.to_string()))?;
        let limits = Limits { budget, reserved: most, initial: initial(bytes, free, sizes), time };
        interruptible(py, |stop| Ok(eager::with_room(&self.0, &limits, &bases, stop).map(|found| text(&found))))
    }

    /// The operations that make a tensor again.
    fn closure(&self, tensor: usize) -> PyResult<Vec<usize>> {
        self.0.closure(tensor).map(<[usize]>::to_vec).map_err(impossible)
    }

    /// The tensors that a rerun of these operations reads and does not make.
    fn leaves(&self, operations: Vec<usize>) -> PyResult<Vec<usize>> {
        self.0.leaves(&operations).map_err(impossible)
    }

    /// The calls of a rerun of some operations, after which some tensors stay.
    fn calls(&self, operations: Vec<usize>, held: Vec<usize>) -> PyResult<Vec<Call>> {
        let found = self.0.calls(&operations, &held).map_err(impossible)?;
        Ok(found.into_iter().map(|call| (call.operation, call.copies, call.makes, call.renames, call.drops)).collect())
    }
}

impl EagerStep {
    fn prediction(&self, decisions: &str) -> PyResult<Prediction> {
        self.0.simulate(&read(decisions)?).map_err(impossible)
    }
}

fn values(of: Prediction) -> Values {
    (of.peak, of.at, of.live, of.moved, of.rebuilt_us, of.stalled_us, of.time_us, of.needed)
}

fn initial(bytes: i64, free: Vec<i64>, sizes: Option<(i64, i64)>) -> InitialReservation {
    InitialReservation { bytes, free, sizes: sizes.map_or_else(Sizes::default, |(small, page)| Sizes { small, page }) }
}

fn read(decisions: &str) -> PyResult<Vec<TensorDecision>> {
    serde_json::from_str(decisions).map_err(|error| bad_input(format!("decisions: {error}")))
}

fn text(decisions: &[TensorDecision]) -> String {
    serde_json::to_string(decisions).expect("decisions are plain data")
}

fn impossible(error: Impossible) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(error.0)
}
