//! The names of solvers: `plan` reserves their memory, and `train` runs them.

use clap::ValueEnum;

/// A solver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SolverName {
    /// Stochastic gradient descent with momentum
    #[default]
    Sgd,
    /// Adam with decoupled weight decay
    Adamw,
}
