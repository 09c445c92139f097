//! The inputs of an operation on constants.

use crate::call::Call;
use crate::value::{Constant, Value};

/// All inputs, which are constants.
pub(super) fn inputs<'a>(call: &'a Call<'_>) -> Result<Vec<&'a Constant>, String> {
    let constants = call.inputs.iter().flatten().map(|input| match input {
        Value::Constant(constant) => Ok(&**constant),
        Value::Map(_) => Err("it has an input that depends on the samples".to_owned()),
    });
    let all = constants.collect::<Result<Vec<&Constant>, String>>()?;
    if all.is_empty() { Err("it has no inputs".to_owned()) } else { Ok(all) }
}

/// The single number in an input.
pub(super) fn number(call: &Call<'_>, at: usize) -> Result<f64, String> {
    let all = call.constant(at)?.floats().ok_or_else(|| format!("input {at} is not known"))?;
    match all[..] {
        [number] => Ok(number),
        _ => Err(format!("input {at} has {} numbers, not 1", all.len())),
    }
}
