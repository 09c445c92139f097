//! The tests of the library on the mocks, in child processes. One program, which links once.

mod backend;
mod cache;
mod faults;
mod fused;
mod legacy;
mod limits;
mod real;
mod surroundings;
mod total;
mod tune;
