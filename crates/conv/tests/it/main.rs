//! The tests of this crate's public interface. One program, which links once.

mod allot;
mod divide;
mod part;
mod split;
mod verify;
