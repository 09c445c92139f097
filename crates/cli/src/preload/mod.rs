//! Searches of `run` and `doctor --preload`: our library, cuDNN, and the Python interpreter that a command starts.

mod call;
mod carried;
mod elf;
mod form;
mod library;
mod python;

pub use call::PythonCall;
pub use elf::Elf;
pub use form::Form;
pub use library::{Preload, found, supported};
pub use python::{Environment, find_program, python_of};
