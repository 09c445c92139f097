//! Input data that reveals the arithmetic of a convolution.

use tightfit_units::by_name;
use tightfit_units::random::split_mix;

use crate::backend::Tensors;
use crate::problem::Storage;
use crate::{Operation, Problem};

/// The kind of numbers to compute with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// Numbers between -1 and 1, exact in the problem's storage type, so that all errors come from the arithmetic.
    #[default]
    Real,
    /// -1, 0 and 1: sums are exact in any order as long as they stay within 2^24 (2^11 in half precision), so every
    /// algorithm that only multiplies and adds must agree to the bit.
    Whole,
}

impl Values {
    /// Both, in the order of the documentation.
    pub const ALL: [Values; 2] = [Values::Real, Values::Whole];

    /// The name used in options.
    pub fn name(self) -> &'static str {
        match self {
            Values::Real => "real",
            Values::Whole => "whole",
        }
    }
}

by_name!(Values, "kinds of values");

/// The tensors of one problem in host memory.
#[derive(Clone, Debug)]
pub struct Data {
    data: Vec<f32>,
    other: Vec<f32>,
    output: Vec<f32>,
}

impl Data {
    /// Pseudorandom tensors for a problem, determined by the seed.
    pub fn random(problem: &Problem, values: Values, seed: u64) -> Data {
        let (data, other, output) = match problem.operation() {
            Operation::Forward => (problem.input_len(), problem.filter_len(), problem.output_len()),
            Operation::BackwardData => (problem.output_len(), problem.filter_len(), problem.input_len()),
            Operation::BackwardFilter => (problem.input_len(), problem.output_len(), problem.filter_len()),
        };
        let bits = match problem.types().storage() {
            Storage::F32 => 23,
            Storage::F16 => 10,
            Storage::Bf16 => 7,
        };
        let mut state = seed;
        let mut fill = |len: usize| -> Vec<f32> {
            (0..len)
                .map(|_| {
                    let random = split_mix(&mut state);
                    match values {
                        Values::Real => {
                            let magnitude = (random >> 40) as u32 >> (24 - bits);
                            let value = magnitude as f32 / (1u32 << bits) as f32;
                            if random & 1 == 0 { value } else { -value }
                        }
                        Values::Whole => (random >> 32) as u32 as f32 % 3.0 - 1.0,
                    }
                })
                .collect()
        };
        Data { data: fill(data), other: fill(other), output: fill(output) }
    }

    /// The tensors in the form that backends accept.
    pub fn tensors(&self) -> Tensors<'_> {
        Tensors { data: &self.data, other: &self.other, output: &self.output }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_match_their_kind() {
        for (types, bits) in [("f32", 23), ("f16", 10), ("bf16", 7)] {
            let problem: Problem = format!("forward n2 c3 h8 w8 k4 r3 s3 {types}").parse().unwrap();
            let real = Data::random(&problem, Values::Real, 1);
            let scale = (1u32 << bits) as f32;
            assert!(real.data.iter().all(|v| v.abs() < 1.0 && (v * scale).fract() == 0.0));
            assert!(real.data.iter().any(|v| *v < -0.5) && real.data.iter().any(|v| *v > 0.5));
            let whole = Data::random(&problem, Values::Whole, 1);
            for value in [-1.0, 0.0, 1.0] {
                assert!(whole.other.contains(&value));
            }
            assert!(whole.data.iter().all(|v| [-1.0, 0.0, 1.0].contains(v)));
        }
    }

    #[test]
    fn a_seed_repeats() {
        let problem: Problem = "backward-filter n2 c3 h8 w8 k4 r3 s3 f32".parse().unwrap();
        let tensors = |seed| Data::random(&problem, Values::Real, seed).data;
        assert_eq!(tensors(7), tensors(7));
        assert_ne!(tensors(7), tensors(8));
    }
}
