//! The tests of this crate's public interface. One program, which links once.

mod concurrent;
mod networks;
