//! A finalized descriptor, and its attributes. Their values are copied out of the caller's arrays, and may be objects
//! themselves.

use std::ffi::c_void;
use std::sync::Arc;

use tightfit_cuda::sys::cudnn::{Attribute, ElementType, Kind};

use super::Address;

/// The object of a finalized descriptor.
#[derive(Debug)]
pub struct Object<N> {
    /// Its kind.
    pub kind: Kind,
    attributes: Option<Attributes<N>>,
    /// The conclusion from it.
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

    /// The program's attributes, or `None` for an object that cuDNN made, or if the notes hold all of them.
    pub fn attributes(&self) -> Option<&Attributes<N>> {
        self.attributes.as_ref()
    }

    /// The program's attributes, if the object is of this kind.
    pub fn attributes_of(&self, kind: Kind) -> Option<&Attributes<N>> {
        self.attributes().filter(|_| self.kind == kind)
    }
}

/// The values of one attribute.
#[derive(Debug)]
pub enum Value<N> {
    /// Integers, enums, booleans, handles and addresses.
    Integers(Vec<i64>),
    /// Factors.
    Real(f64),
    /// The objects of the descriptors when set, or `None` for one that was not finalized or not seen.
    Objects(Vec<Option<Arc<Object<N>>>>),
    /// Of a type that is not read here.
    Other,
}

/// The most elements to copy: dimensions, ids and addresses are far fewer.
const MAX_ELEMENTS: i64 = 4096;

impl<N> Value<N> {
    /// Copies the values of an attribute that cuDNN accepted. `object` returns the object of a descriptor.
    ///
    /// # Safety
    /// `array` points to `count` elements of the C type that `element` names.
    pub unsafe fn read(
        element: ElementType,
        count: i64,
        array: *const c_void,
        object: impl Fn(Address) -> Option<Arc<Object<N>>>,
    ) -> Value<N> {
        let Some(len) = usize::try_from(count).ok().filter(|_| count <= MAX_ELEMENTS && !array.is_null()) else {
            return Value::Other;
        };
        // SAFETY: each arm reads the C type of `element`, `len` times.
        unsafe {
            match element {
                ElementType::HANDLE | ElementType::INT64 | ElementType::VOID_PTR => {
                    Value::Integers(std::slice::from_raw_parts(array.cast::<i64>(), len).to_vec())
                }
                ElementType::BOOLEAN => {
                    let bytes = std::slice::from_raw_parts(array.cast::<u8>(), len);
                    Value::Integers(bytes.iter().map(|&byte| i64::from(byte)).collect())
                }
                ElementType::DATA_TYPE
                | ElementType::CONVOLUTION_MODE
                | ElementType::HEUR_MODE
                | ElementType::KNOB_TYPE
                | ElementType::TENSOR_REORDERING_MODE
                | ElementType::INT32 => {
                    let words = std::slice::from_raw_parts(array.cast::<i32>(), len);
                    Value::Integers(words.iter().map(|&word| i64::from(word)).collect())
                }
                ElementType::FLOAT if len == 1 => Value::Real(f64::from(*array.cast::<f32>())),
                ElementType::DOUBLE if len == 1 => Value::Real(*array.cast::<f64>()),
                ElementType::BACKEND_DESCRIPTOR => {
                    let addresses = std::slice::from_raw_parts(array.cast::<Address>(), len);
                    Value::Objects(addresses.iter().map(|&address| object(address)).collect())
                }
                _ => Value::Other,
            }
        }
    }
}

/// The attributes set so far; a list, because there are few.
#[derive(Debug)]
pub struct Attributes<N>(Vec<(Attribute, Value<N>)>);

impl<N> Default for Attributes<N> {
    fn default() -> Attributes<N> {
        Attributes(Vec::new())
    }
}

impl<N> Attributes<N> {
    /// Sets, or sets again.
    pub fn set(&mut self, attribute: Attribute, value: Value<N>) {
        match self.0.iter_mut().find(|(known, _)| *known == attribute) {
            Some((_, place)) => *place = value,
            None => self.0.push((attribute, value)),
        }
    }

    /// The values of an attribute.
    pub fn get(&self, attribute: Attribute) -> Option<&Value<N>> {
        self.0.iter().find(|(known, _)| *known == attribute).map(|(_, value)| value)
    }

    /// Integers of an attribute.
    pub fn integers(&self, attribute: Attribute) -> Option<&[i64]> {
        match self.get(attribute)? {
            Value::Integers(values) => Some(values),
            _ => None,
        }
    }

    /// One integer.
    pub fn integer(&self, attribute: Attribute) -> Option<i64> {
        self.integers(attribute)?.first().copied()
    }

    /// A factor, or its default if unset.
    pub fn real(&self, attribute: Attribute, default: f64) -> Option<f64> {
        match self.get(attribute) {
            None => Some(default),
            Some(Value::Real(value)) => Some(*value),
            Some(_) => None,
        }
    }

    /// The objects of an attribute; none in the place of one that was not finalized or not seen.
    pub fn objects(&self, attribute: Attribute) -> Option<&[Option<Arc<Object<N>>>]> {
        match self.get(attribute)? {
            Value::Objects(objects) => Some(objects),
            _ => None,
        }
    }

    /// The one object of an attribute.
    pub fn object(&self, attribute: Attribute) -> Option<&Arc<Object<N>>> {
        self.objects(attribute)?.first()?.as_ref()
    }

    /// Whether nothing but these was set.
    pub fn are_among(&self, known: &[Attribute]) -> bool {
        self.0.iter().all(|(attribute, _)| known.contains(attribute))
    }
}
