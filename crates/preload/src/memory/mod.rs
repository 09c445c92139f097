//! Our device memory, which kernels share: one total for all of them, or loans to single calls.

mod loan;
mod order;
mod total;

pub use loan::Loans;
pub use total::Totals;
