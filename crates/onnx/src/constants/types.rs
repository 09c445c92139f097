//! The types of elements: their names, their sizes, and the conversion of numbers to them.

use crate::proto::data_type as of;
use crate::value::{Constant, Data, is_floating};

/// Bits of an element; an error continues after the tensor's name.
pub fn bits(code: i32) -> Result<usize, String> {
    Ok(match code {
        of::FLOAT | of::INT32 | of::UINT32 => 32,
        of::FLOAT16 | of::BFLOAT16 | of::INT16 | of::UINT16 => 16,
        of::DOUBLE | of::INT64 | of::UINT64 => 64,
        of::INT8 | of::UINT8 | of::BOOL => 8,
        of::INT4 | of::UINT4 => 4,
        other => return Err(format!("have the type {}, which is not supported", name(other))),
    })
}

/// The name of a type in messages.
pub fn name(code: i32) -> String {
    let names = [
        "undefined",
        "float",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "double",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
        "float8e4m3fn",
        "float8e4m3fnuz",
        "float8e5m2",
        "float8e5m2fnuz",
        "uint4",
        "int4",
        "float4e2m1",
    ];
    let known = usize::try_from(code).ok().and_then(|at| names.get(at));
    known.map_or_else(|| format!("number {code}"), |name| (*name).to_owned())
}

/// The smallest and largest integer of a type; `None` for floating-point types.
pub fn range(code: i32) -> Option<(i64, i64)> {
    Some(match code {
        of::INT4 => (-8, 7),
        of::UINT4 => (0, 15),
        of::INT8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        of::UINT8 => (0, i64::from(u8::MAX)),
        of::INT16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        of::UINT16 => (0, i64::from(u16::MAX)),
        of::INT32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        of::UINT32 => (0, i64::from(u32::MAX)),
        of::INT64 => (i64::MIN, i64::MAX),
        of::UINT64 => (0, i64::MAX),
        of::BOOL => (0, 1),
        _ => return None,
    })
}

/// A floating-point number rounded to a type.
fn rounded(code: i32, number: f64) -> f64 {
    match code {
        of::FLOAT => f64::from(number as f32),
        of::FLOAT16 => half::f16::from_f64(number).to_f64(),
        of::BFLOAT16 => half::bf16::from_f64(number).to_f64(),
        _ => number,
    }
}

/// Results as their type stores them: rounded; an integer that does not fit is refused.
pub fn fit(code: i32, data: Data) -> Result<Data, String> {
    match data {
        Data::Floats(mut all) if is_floating(code) => {
            all.iter_mut().for_each(|number| *number = rounded(code, *number));
            Ok(Data::Floats(all))
        }
        Data::Integers(all) => {
            let (least, most) = range(code).ok_or_else(|| format!("whole numbers of type {}", name(code)))?;
            match all.iter().find(|number| !(least..=most).contains(number)) {
                Some(number) => Err(format!("{number} does not fit into {}", name(code))),
                None => Ok(Data::Integers(all)),
            }
        }
        _ => Err(format!("numbers of type {}", name(code))),
    }
}

/// The elements in another type; conversion to integers rounds toward zero.
pub fn cast(input: &Constant, to: i32) -> Result<Data, String> {
    let unknown = || "its input is not known".to_owned();
    if is_floating(to) {
        return fit(to, Data::Floats(input.floats().ok_or_else(unknown)?));
    }
    if to == of::BOOL {
        let all = input.floats().ok_or_else(unknown)?;
        return Ok(Data::Integers(all.into_iter().map(|number| i64::from(number != 0.0)).collect()));
    }
    fit(to, Data::Integers(input.integers().ok_or_else(unknown)?))
}
