//! A finalized descriptor.

use tightfit_cuda::sys::cudnn::Kind;

use super::Attributes;

/// What a finalized descriptor stands for.
#[derive(Debug)]
pub struct Object<N> {
    /// Its kind.
    pub kind: Kind,
    /// What the program set; nothing for an object that cuDNN made or of which the notes say all.
    pub attributes: Attributes<N>,
    /// What is concluded from it.
    pub notes: N,
}

impl<N: Default> Object<N> {
    /// The object of these attributes.
    pub fn new(kind: Kind, attributes: Attributes<N>) -> Object<N> {
        Object { kind, attributes, notes: N::default() }
    }

    /// An object of which only the notes are known.
    pub fn filled(kind: Kind, notes: N) -> Object<N> {
        Object { kind, attributes: Attributes::default(), notes }
    }
}
