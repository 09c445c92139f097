//! Parsers of numbers, whose errors say which may be given.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::builder::TypedValueParser;
use tightfit_conv::Problem;
use tightfit_network::Hyperparameter;

/// Parses a whole number of this range; a range that ends at the largest number has no upper limit.
pub fn whole<T>(range: RangeInclusive<u64>) -> impl TypedValueParser<Value = T>
where
    T: TryFrom<u64> + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let most: &dyn Display = if *range.end() == u64::MAX { &"2^64 - 1" } else { range.end() };
            format!("write a whole number from {} to {most}", range.start())
        })
    }
}

/// Parses a mini-batch size.
pub fn samples() -> impl TypedValueParser<Value = usize> {
    whole(1..=Problem::MOST_SAMPLES as u64)
}

/// Reads a mini-batch size.
///
/// # Errors
/// The words that may be given instead.
pub fn read_samples(text: &str) -> Result<usize, String> {
    let samples = text.parse::<usize>().ok().filter(|samples| (1..=Problem::MOST_SAMPLES).contains(samples));
    samples.ok_or_else(|| format!("write a whole number from 1 to {}", Problem::MOST_SAMPLES))
}

/// Parses a number that a solver is set by.
pub fn hyperparameter(of: Hyperparameter) -> impl TypedValueParser<Value = f32> {
    number(move |number: f32| of.allows(number.into()), of.range())
}

/// Parses a number that is not infinite.
pub fn finite(text: &str) -> Result<f32, String> {
    parsed(text, |number: &f32| number.is_finite(), "a finite number")
}

/// Parses a number that `is_allowed`, which `range` has in words.
pub fn number<T>(
    is_allowed: impl Fn(T) -> bool + Clone + Send + Sync + 'static,
    range: &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Copy + Send + Sync + 'static,
{
    move |text: &str| parsed(text, |number| is_allowed(*number), range)
}

fn parsed<T: FromStr>(text: &str, is_allowed: impl Fn(&T) -> bool, range: &str) -> Result<T, String> {
    text.parse().ok().filter(is_allowed).ok_or_else(|| format!("write {range}"))
}
