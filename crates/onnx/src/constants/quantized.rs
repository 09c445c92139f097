//! Integers that represent real numbers by a scale and a zero point.

use super::arrange::{pick, spread};
use super::types;
use crate::call::{Call, axis};
use crate::value::{Constant, Data};

/// Whole numbers by their scale and zero point: `(x - zero) · scale`, for the tensor, for each place of an axis, or for
/// blocks along it.
pub fn dequantized(call: &Call<'_>) -> Result<Data, String> {
    let (x, scale) = (call.constant(0)?, call.constant(1)?);
    let scales = quantization(call, x, scale)?;
    let scales = Constant { data: scales, dims: x.dims.clone(), ..(**scale).clone() }
        .floats()
        .ok_or("its scale is not known")?;
    let zeros = match call.optional(2) {
        Some(_) => {
            let zero = call.constant(2)?;
            let all = Constant { data: quantization(call, x, zero)?, dims: x.dims.clone(), ..(**zero).clone() };
            all.integers().ok_or("its zero point is not known")?
        }
        None => vec![0; scales.len()],
    };
    let all = x.integers().ok_or("its input is not known")?;
    let results = all.iter().zip(zeros.iter().zip(&scales));
    results
        .map(|(x, (zero, scale))| x.checked_sub(*zero).map(|x| x as f64 * scale))
        .collect::<Option<_>>()
        .map(Data::Floats)
        .ok_or_else(|| "its numbers are too large".to_owned())
}

/// Converts numbers to integers of the zero point's type: `x / scale + zero`, rounded to even and clamped to the type.
pub fn quantized(call: &Call<'_>, to: i32) -> Result<Data, String> {
    let (x, scale) = (call.constant(0)?, call.constant(1)?);
    let scales =
        Constant { data: quantization(call, x, scale)?, ..(**x).clone() }.floats().ok_or("its scale is not known")?;
    let zeros = match call.optional(2) {
        Some(_) => quantization(call, x, call.constant(2)?)?,
        None => Data::Integers(vec![0; scales.len()]),
    };
    let Data::Integers(zeros) = zeros else { return Err("its zero point is not known".to_owned()) };
    let (least, most) = types::range(to).ok_or_else(|| format!("to {}, which is not supported", types::name(to)))?;
    let all = x.floats().ok_or("its input is not known")?;
    let one = |(x, (zero, scale)): (&f64, (&i64, &f64))| {
        ((x / scale).round_ties_even() as i64).saturating_add(*zero).clamp(least, most)
    };
    Ok(Data::Integers(all.iter().zip(zeros.iter().zip(&scales)).map(one).collect()))
}

/// A scale or zero point, expanded to the extents of its tensor.
fn quantization(call: &Call<'_>, x: &Constant, by: &Constant) -> Result<Data, String> {
    let rank = x.dims.len();
    let block = call.int("block_size").unwrap_or(0);
    if by.dims.iter().product::<usize>() == 1 && block == 0 {
        return spread(&Constant { dims: Vec::new(), ..by.clone() }, &x.dims);
    }
    let along = axis(call.int("axis").unwrap_or(1), rank)?;
    let wrong = || format!("a scale or zero point of {:?} for {:?} along axis {along}", by.dims, x.dims);
    if block > 0 {
        let block = usize::try_from(block).map_err(|_| wrong())?;
        let fits = by.dims.len() == rank
            && (0..rank).all(|at| by.dims[at] == if at == along { x.dims[at].div_ceil(block) } else { x.dims[at] });
        if !fits {
            return Err(wrong());
        }
        let (inner, own) = (x.dims[along + 1..].iter().product::<usize>(), by.dims[along]);
        let place =
            |at: usize| (at / inner / x.dims[along] * own + at / inner % x.dims[along] / block) * inner + at % inner;
        return pick(&by.data, (0..x.dims.iter().product()).map(place));
    }
    if by.dims != [x.dims[along]] {
        return Err(wrong());
    }
    let dims = (0..rank).map(|at| if at == along { x.dims[at] } else { 1 }).collect();
    spread(&Constant { dims, ..by.clone() }, &x.dims)
}
