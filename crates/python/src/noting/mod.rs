//! Notes the calls of a pass with their arguments, and runs them again.
//!
//! ```text
//! notes     a function mode's notes of a pass: each call, before and after it runs (`_budget/eager/noting.py` has the rare cases)
//! rerun     the calls that make a saved tensor again (`_budget/eager/again.py`)
//! decide    what becomes of a saved tensor when its operation has returned (`_budget/eager/packs.py` has the other ways)
//! slots     the state of a saved tensor
//! noted     the tensors that noted calls have made or read
//! calls     a noted call, its outputs, and the tensors that it reads from outside
//! tensors   attributes of tensors, and functions of PyTorch, as Python has them
//! ```
//!
//! Each file uses only files below it. A host waits for each of these calls, so names are interned and tables are by identity.

mod calls;
mod decide;
mod noted;
mod notes;
mod rerun;
mod slots;
mod tensors;

pub use calls::{Call, Held, Value};
pub use decide::settle;
pub use notes::Notes;
pub use rerun::Rerun;
pub use slots::{Handle, Slot};
pub use tensors::{settings, unowned, view_of};
