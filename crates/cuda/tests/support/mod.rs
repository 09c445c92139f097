//! What the tests share: the mock libraries with a hand on their levers, and the convolution as plain loops.
#![allow(dead_code)] // each test binary uses its part

pub mod mocks;
pub mod reference;
