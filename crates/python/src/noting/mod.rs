//! The calls that a pass makes: noted so that they can run again with the very arguments that they had, and run again.
//!
//! ```text
//! notes     a function mode's notes: what each call reads and makes (`_budget/eager/noting.py` has the rare cases)
//! calls     a noted call, its outputs, and the tensors that it reads from outside
//! rerun     the calls that make a saved tensor again (`_budget/eager/again.py`)
//! tensors   attributes of tensors, and functions of PyTorch, as Python has them
//! ```
//!
//! A host waits for each of these calls, so names are interned and tables are by identity.

mod calls;
mod notes;
mod rerun;
mod tensors;

pub use calls::{Call, Held, Value};
pub use notes::Notes;
pub use rerun::Rerun;
pub use tensors::{settings, view_of};
