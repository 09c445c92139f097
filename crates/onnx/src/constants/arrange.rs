//! Operations that only move elements: each lists the sources of its output's elements.

use super::inputs::inputs;
use crate::call::{Call, axis};
use crate::shapes::{permutation, slices};
use crate::value::{Constant, Data, elements};

/// The sources of elements: the sum of a base and, for each axis, the position along it times a step.
pub struct Walk<'a> {
    dims: &'a [usize],
    steps: Vec<isize>,
    places: Vec<usize>,
    at: isize,
    left: usize,
}

impl<'a> Walk<'a> {
    /// Over all elements of a tensor with these extents, in order.
    pub fn new(dims: &'a [usize], steps: Vec<isize>, base: isize) -> Walk<'a> {
        Walk { dims, steps, places: vec![0; dims.len()], at: base, left: elements(dims).unwrap_or(0) }
    }
}

impl Iterator for Walk<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        for axis in (0..self.dims.len()).rev() {
            self.places[axis] += 1;
            self.at += self.steps[axis];
            if self.places[axis] < self.dims[axis] {
                break;
            }
            self.at -= self.steps[axis] * self.dims[axis] as isize;
            self.places[axis] = 0;
        }
        usize::try_from(at).ok()
    }
}

/// Elements between neighbors along each axis.
pub fn strides(dims: &[usize]) -> Vec<isize> {
    (0..dims.len()).map(|at| dims[at + 1..].iter().product::<usize>() as isize).collect()
}

/// The elements at these places.
pub fn pick(data: &Data, places: impl Iterator<Item = usize>) -> Result<Data, String> {
    fn each<T: Copy>(all: &[T], mut places: impl Iterator<Item = usize>) -> Result<Vec<T>, String> {
        places.try_fold(Vec::new(), |mut picked, place| {
            picked.push(*all.get(place).ok_or("it takes an element that is not there")?);
            Ok(picked)
        })
    }
    match data {
        Data::Unknown => Err("its input is not known".to_owned()),
        Data::Integers(all) => each(all, places).map(Data::Integers),
        Data::Floats(all) => each(all, places).map(Data::Floats),
    }
}

/// A constant stretched to these extents.
pub fn spread(input: &Constant, dims: &[usize]) -> Result<Data, String> {
    if input.dims == dims {
        return Ok(input.data.clone());
    }
    let wrong = || format!("{:?} cannot be stretched to {dims:?}", input.dims);
    let skipped = dims.len().checked_sub(input.dims.len()).ok_or_else(wrong)?;
    let mut steps = vec![0; skipped];
    for ((own, step), dim) in input.dims.iter().zip(strides(&input.dims)).zip(&dims[skipped..]) {
        if *own != 1 && own != dim {
            return Err(wrong());
        }
        steps.push(if *own == 1 { 0 } else { step });
    }
    pick(&input.data, Walk::new(dims, steps, 0))
}

/// Joins tensors along an axis.
pub fn concat(call: &Call<'_>) -> Result<Data, String> {
    let parts = inputs(call)?;
    let rank = parts.first().map_or(0, |part| part.dims.len());
    let along = axis(call.int("axis").ok_or("its axis is missing")?, rank)?;
    let rows: usize = parts[0].dims[..along].iter().product();
    let widths: Vec<usize> = parts.iter().map(|part| part.dims[along..].iter().product()).collect();
    fn joined<T: Copy>(parts: &[Vec<T>], rows: usize, widths: &[usize]) -> Option<Vec<T>> {
        let mut all = Vec::new();
        for row in 0..rows {
            for (part, width) in parts.iter().zip(widths) {
                all.extend_from_slice(part.get(row * width..(row + 1) * width)?);
            }
        }
        Some(all)
    }
    let unknown = || "its input is not known".to_owned();
    if parts.iter().all(|part| matches!(part.data, Data::Integers(_))) {
        let parts: Option<Vec<Vec<i64>>> = parts.iter().map(|part| part.integers()).collect();
        return parts.and_then(|parts| joined(&parts, rows, &widths)).map(Data::Integers).ok_or_else(unknown);
    }
    let parts: Option<Vec<Vec<f64>>> = parts.iter().map(|part| part.floats()).collect();
    parts.and_then(|parts| joined(&parts, rows, &widths)).map(Data::Floats).ok_or_else(unknown)
}

/// The parts of a tensor along an axis, with these extents.
pub fn split(call: &Call<'_>, input: &Constant, outputs: &[Vec<usize>]) -> Result<Vec<Data>, String> {
    let along = axis(call.int("axis").unwrap_or(0), input.dims.len())?;
    let steps = strides(&input.dims);
    let mut first = 0;
    let part = |dims: &Vec<usize>| {
        let base = first * steps[along];
        first += dims[along] as isize;
        pick(&input.data, Walk::new(dims, steps.clone(), base))
    };
    outputs.iter().map(part).collect()
}

/// Picks along an axis.
pub fn gather(call: &Call<'_>, input: &Constant, dims: &[usize]) -> Result<Data, String> {
    let along = axis(call.int("axis").unwrap_or(0), input.dims.len())?;
    let indices = call.integers_in(1)?.ok_or("its indices are missing")?;
    let places = indices.iter().map(|&at| axis(at, input.dims[along])).collect::<Result<Vec<usize>, String>>()?;
    let inner: usize = input.dims[along + 1..].iter().product();
    let row = input.dims[along] * inner;
    let outer: usize = input.dims[..along].iter().product();
    let all = (0..outer)
        .flat_map(|at| places.iter().flat_map(move |place| (0..inner).map(move |i| at * row + place * inner + i)));
    debug_assert_eq!(elements(dims), Some(outer * inner * places.len()));
    pick(&input.data, all)
}

/// Cuts a part out, also backward.
pub fn slice(call: &Call<'_>, input: &Constant, dims: &[usize]) -> Result<Data, String> {
    let mut steps = strides(&input.dims);
    let mut base = 0;
    for (at, start, _, step) in slices(call, &input.dims)? {
        base += start as isize * steps[at];
        steps[at] *= step as isize;
    }
    pick(&input.data, Walk::new(dims, steps, base))
}

/// Exchanges axes.
pub fn transpose(call: &Call<'_>, input: &Constant, dims: &[usize]) -> Result<Data, String> {
    let own = strides(&input.dims);
    let steps = permutation(call, input.dims.len())?.into_iter().map(|at| own[at]).collect();
    pick(&input.data, Walk::new(dims, steps, 0))
}

/// Repeats a tensor along its axes.
pub fn tile(input: &Constant, dims: &[usize]) -> Result<Data, String> {
    if elements(dims) == Some(0) {
        return pick(&input.data, std::iter::empty());
    }
    let maps: Vec<Vec<Option<usize>>> =
        input.dims.iter().zip(dims).map(|(&own, &dim)| (0..dim).map(|at| at.checked_rem(own)).collect()).collect();
    mapped(input, dims, &maps, None)
}

/// Adds elements before and after each axis, or removes some.
pub fn pad(call: &Call<'_>, input: &Constant, dims: &[usize]) -> Result<Data, String> {
    // The other extents may be large if one is 0.
    if elements(dims) == Some(0) {
        return pick(&input.data, std::iter::empty());
    }
    let pads = call.integers(1, "pads")?.ok_or("its pads are missing")?;
    let along = match call.integers_in(3)? {
        Some(given) => given.iter().map(|&at| axis(at, dims.len())).collect::<Result<Vec<usize>, String>>()?,
        None => (0..dims.len()).collect(),
    };
    let mut before = vec![0; dims.len()];
    for (at, pad) in along.iter().zip(&pads) {
        before[*at] = *pad;
    }
    let mode = call.text("mode").unwrap_or_else(|| "constant".to_owned());
    let mut maps = Vec::new();
    for ((&own, &dim), before) in input.dims.iter().zip(dims).zip(before) {
        let own = own as i64;
        let place = |at: i64| -> Result<Option<usize>, String> {
            let inside = (0..own).contains(&at);
            let place = match mode.as_str() {
                _ if inside => at,
                "constant" => return Ok(None),
                _ if own == 0 => return Err("it repeats elements that are not there".to_owned()),
                "edge" => at.clamp(0, own - 1),
                "wrap" => at.rem_euclid(own),
                // The ends are not repeated: 0 1 2 continues with 1 0 1.
                "reflect" if own == 1 => 0,
                "reflect" => (own - 1) - ((own - 1) - at.rem_euclid(2 * own - 2)).abs(),
                other => return Err(format!("mode `{other}` is not supported")),
            };
            Ok(usize::try_from(place).ok())
        };
        maps.push((0..dim as i64).map(|at| place(at.saturating_sub(before))).collect::<Result<Vec<_>, String>>()?);
    }
    let filling = match call.optional(2) {
        Some(_) => Some(super::inputs::number(call, 2)?),
        None => call.float("value").map(f64::from),
    };
    mapped(input, dims, &maps, Some(filling.unwrap_or(0.0)))
}

/// The elements at the positions in `maps` for each axis, or `filling` where `maps` has none.
fn mapped(input: &Constant, dims: &[usize], maps: &[Vec<Option<usize>>], filling: Option<f64>) -> Result<Data, String> {
    let steps = strides(&input.dims);
    let count = elements(dims).ok_or("too many elements")?;
    let own = strides(dims);
    let source = |at: usize| {
        let parts = maps.iter().zip(&steps).zip(own.iter().zip(dims));
        parts
            .map(|((map, step), (stride, dim))| Some(map[at / *stride as usize % dim]? * *step as usize))
            .sum::<Option<usize>>()
    };
    let missing = || "it takes an element that is not there".to_owned();
    match (&input.data, filling) {
        (Data::Unknown, _) => Err("its input is not known".to_owned()),
        (Data::Integers(all), filling) => {
            let one = |at| match source(at) {
                Some(place) => all.get(place).copied(),
                None => filling.map(|number| number as i64),
            };
            (0..count).map(one).collect::<Option<_>>().map(Data::Integers).ok_or_else(missing)
        }
        (Data::Floats(all), filling) => {
            let one = |at| match source(at) {
                Some(place) => all.get(place).copied(),
                None => filling,
            };
            (0..count).map(one).collect::<Option<_>>().map(Data::Floats).ok_or_else(missing)
        }
    }
}

/// Keeps the triangle above or below a diagonal of the last two axes.
pub fn triangle(call: &Call<'_>, input: &Constant) -> Result<Data, String> {
    let [.., rows, columns] = input.dims[..] else { return Err("its input is not a matrix".to_owned()) };
    let shift = if call.optional(1).is_some() { super::inputs::number(call, 1)? as i64 } else { 0 };
    let upper = call.int("upper").unwrap_or(1) != 0;
    let keeps = |at: usize| {
        let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
        let distance = column - row;
        if upper { distance >= shift } else { distance <= shift }
    };
    match &input.data {
        Data::Unknown => Err("its input is not known".to_owned()),
        Data::Integers(all) => {
            Ok(Data::Integers(all.iter().enumerate().map(|(at, &number)| if keeps(at) { number } else { 0 }).collect()))
        }
        Data::Floats(all) => {
            Ok(Data::Floats(all.iter().enumerate().map(|(at, &number)| if keeps(at) { number } else { 0.0 }).collect()))
        }
    }
}
