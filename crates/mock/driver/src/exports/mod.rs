//! The C functions, by subject. Each only checks its arguments and names the rule; the rules are in the other modules.
//!
//! Out-parameters are `Option<&mut MaybeUninit<T>>`, which in C is a pointer that may be null: the caller owes that it is
//! null or points to room for a `T`, as the driver's documentation says of each.

use std::mem::MaybeUninit;

use crate::error::Code;

mod device;
mod event;
mod graph;
mod memory;
mod mock;
mod module;
mod stream;

/// Room for one answer, or null.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// A handle: never dereferenced, only looked up.
type Handle = usize;

/// Fills an out-parameter.
fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Code> {
    out.ok_or(Code::INVALID_VALUE)?.write(value);
    Ok(())
}

/// Refuses a null out-parameter before anything is made that it would have to hold.
fn room<'a, T>(out: Out<'a, T>) -> Result<&'a mut MaybeUninit<T>, Code> {
    out.ok_or(Code::INVALID_VALUE)
}
