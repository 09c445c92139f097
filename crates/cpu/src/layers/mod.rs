//! The layers other than convolutions, forward and backward, one per file: nchw, f32, on slices owned by the caller.
//!
//! Every sum runs in an order that depends on the sizes alone, so results are the same with any number of threads.
//! Gradients overwrite the old content or are added to it ([`Store`]); layers that work element by element may also
//! work in place ([`Flow`]).

pub mod activation;
pub mod add;
pub mod batch_norm;
pub mod bias;
pub mod concat;
pub mod drop_samples;
pub mod dropout;
pub mod fully_connected;
pub mod layer_norm;
pub mod lrn;
pub mod multiply;
pub mod pooling;
pub mod resize;
pub mod scale;
pub mod softmax_loss;
pub mod solver;
pub mod transpose;

#[cfg(test)]
mod tests;

use crate::team::Team;

/// Elements that a thread takes at a time where each is computed alone.
const PIECE: usize = 1 << 15;

/// The treatment of an output's earlier content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// It is overwritten, whatever it was.
    Write,
    /// The result is added to it.
    Add,
}

impl Store {
    /// The factor of the old content.
    pub fn beta(self) -> f32 {
        match self {
            Store::Write => 0.0,
            Store::Add => 1.0,
        }
    }

    /// Stores one value.
    fn put(self, place: &mut f32, value: f32) {
        match self {
            Store::Write => *place = value,
            Store::Add => *place += value,
        }
    }
}

/// The input and output of an elementwise layer.
#[derive(Debug)]
pub enum Flow<'a> {
    /// Each value is changed in place.
    InPlace(&'a mut [f32]),
    /// From one slice to another of the same length.
    Between(&'a [f32], &'a mut [f32], Store),
}

impl Flow<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Flow::InPlace(values) => values.len(),
            Flow::Between(_, to, _) => to.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Passes every element (its place, its value) through a function.
    pub fn map(self, team: &Team, each: impl Fn(usize, f32) -> f32 + Sync) {
        match self {
            Flow::InPlace(values) => {
                let pieces = values.chunks_mut(PIECE).enumerate().collect();
                team.share(pieces, &mut [], |(piece, values): (usize, &mut [f32]), _, _| {
                    values.iter_mut().enumerate().for_each(|(i, value)| *value = each(piece * PIECE + i, *value));
                });
            }
            Flow::Between(from, to, store) => {
                let pieces = from.chunks(PIECE).zip(to.chunks_mut(PIECE)).enumerate().collect();
                team.share(pieces, &mut [], |(piece, (from, to)): (usize, (&[f32], &mut [f32])), _, _| {
                    let places = from.iter().zip(to).enumerate();
                    places.for_each(|(i, (from, to))| store.put(to, each(piece * PIECE + i, *from)));
                });
            }
        }
    }
}
