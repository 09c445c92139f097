//! The tests of the library by its C interface. One program, which links once.

mod backend;
mod client;
mod legacy;
