//! The tests of this crate's public interface. One program, which links once.

mod admission;
mod allot;
mod cache;
mod cheap;
mod concurrent;
mod decisions;
mod divide;
mod fit;
mod forecast;
mod import;
mod layers;
mod mixed;
mod networks;
mod old_files;
mod onnx;
mod output;
mod parallel;
mod plan;
mod plan_check;
mod plan_facts;
mod plan_random;
mod plan_simulate;
mod shipped;
mod split;
mod stale;
mod verify;
