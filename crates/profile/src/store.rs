//! The interface of a store of measurements.

use tightfit_conv::{Device, DivisionCost, Measurement, Problem};
use tightfit_network::Kernel;
use tightfit_units::Error;

/// Keeps measurements between runs. [`Cache`](super::Cache) uses a file; a program may provide its own store.
///
/// Several threads use it concurrently.
pub trait Store: Sync {
    /// Everything measured on `device` for the problem's shape, operation, types and layout, at any micro-batch.
    ///
    /// # Errors
    /// If reading fails.
    fn measurements(&self, device: &Device, problem: &Problem) -> Result<Vec<Measurement>, Error>;

    /// Saves a new measurement of the problem's shape.
    ///
    /// # Errors
    /// If writing fails.
    fn keep(&self, device: &Device, problem: &Problem, measurement: &Measurement) -> Result<(), Error>;

    /// The cost of dividing the problem's shape, if known.
    ///
    /// # Errors
    /// If reading fails.
    fn division_cost(&self, device: &Device, problem: &Problem) -> Result<Option<DivisionCost>, Error>;

    /// Saves the cost of dividing the problem's shape.
    ///
    /// # Errors
    /// If writing fails.
    fn keep_division_cost(&self, device: &Device, problem: &Problem, cost: DivisionCost) -> Result<(), Error>;

    /// Saves the layers of a network under its name and mini-batch.
    ///
    /// # Errors
    /// If writing fails.
    fn keep_network(&self, name: &str, batch: Option<usize>, kernels: &[Kernel]) -> Result<(), Error>;
}
