//! The tests of this crate on the mock libraries, and (ignored without one) on a real GPU. One program, which links once.

mod algorithms;
mod concurrent;
mod device;
mod failures;
mod layers;
mod layers_norm;
mod loading;
mod reference;
mod slices;
mod trial;
