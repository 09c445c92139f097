//! The tests of this crate's public interface. One program, which links once.

mod admission;
mod cache;
mod cheap;
mod comparisons;
mod decisions;
mod fit;
mod forecast;
mod import;
mod mixed;
mod old_files;
mod parallel;
mod refused;
mod shipped;
mod slices;
mod stale;
