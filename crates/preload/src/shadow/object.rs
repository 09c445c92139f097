//! A finalized descriptor.

use tightfit_cuda::sys::cudnn::Kind;

use super::Attributes;

/// What a finalized descriptor stands for.
#[derive(Debug)]
pub struct Object<N> {
    /// Its kind.
    pub kind: Kind,
    attributes: Option<Attributes<N>>,
    /// What is concluded from it.
    pub notes: N,
}

impl<N: Default> Object<N> {
    /// The object of these attributes.
    pub fn new(kind: Kind, attributes: Attributes<N>) -> Object<N> {
        Object { kind, attributes: Some(attributes), notes: N::default() }
    }
}

impl<N> Object<N> {
    /// An object of which only the notes are known.
    pub fn filled(kind: Kind, notes: N) -> Object<N> {
        Object { kind, attributes: None, notes }
    }

    /// What the program set; none for an object that cuDNN made, or of which the notes say all.
    pub fn attributes(&self) -> Option<&Attributes<N>> {
        self.attributes.as_ref()
    }

    /// What the program set, if the object is of this kind.
    pub fn attributes_of(&self, kind: Kind) -> Option<&Attributes<N>> {
        self.attributes().filter(|_| self.kind == kind)
    }
}
