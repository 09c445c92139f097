//! The tests of this crate's public interface. One program, which links once.

mod layers;
mod plan;
mod plan_check;
mod plan_exhaustive;
mod plan_facts;
mod plan_lanes;
mod plan_links;
mod plan_monotone;
mod plan_parts;
mod plan_random;
mod plan_simulate;
mod plan_tight;
mod small_step;
mod step_file;
