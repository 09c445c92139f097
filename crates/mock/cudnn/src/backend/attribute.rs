//! Descriptor kinds, the attributes that can be set on each, and reading their values from C arrays.

use std::collections::BTreeMap;
use std::ffi::c_void;

use super::built::Built;
use crate::status::Status;
use crate::{Handle, elements};

/// A `cudnnBackendDescriptorType_t` known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    Pointwise = 0,
    Convolution = 1,
    Engine = 2,
    EngineConfig = 3,
    Heuristics = 4,
    Plan = 5,
    KnobChoice = 7,
    KnobInfo = 8,
    Forward = 10,
    BackwardFilter = 11,
    BackwardData = 12,
    OperationPointwise = 13,
    Graph = 15,
    VariantPack = 16,
    Tensor = 17,
}

impl Kind {
    const ALL: [Kind; 15] = [
        Kind::Pointwise,
        Kind::Convolution,
        Kind::Engine,
        Kind::EngineConfig,
        Kind::Heuristics,
        Kind::Plan,
        Kind::KnobChoice,
        Kind::KnobInfo,
        Kind::Forward,
        Kind::BackwardFilter,
        Kind::BackwardData,
        Kind::OperationPointwise,
        Kind::Graph,
        Kind::VariantPack,
        Kind::Tensor,
    ];

    /// The kind of cuDNN's number.
    ///
    /// # Errors
    /// [`Status::NOT_SUPPORTED`] for kinds not known here, [`Status::BAD_PARAM`] for other numbers.
    pub fn from_raw(raw: i32) -> Result<Kind, Status> {
        let unknown = if (0..=43).contains(&raw) { Status::NOT_SUPPORTED } else { Status::BAD_PARAM };
        Kind::ALL.into_iter().find(|&k| k as i32 == raw).ok_or(unknown)
    }
}

/// `cudnnBackendAttributeType_t`
pub mod of_type {
    pub const HANDLE: i32 = 0;
    pub const DATA_TYPE: i32 = 1;
    pub const BOOLEAN: i32 = 2;
    pub const INT64: i32 = 3;
    pub const FLOAT: i32 = 4;
    pub const DOUBLE: i32 = 5;
    pub const VOID_PTR: i32 = 6;
    pub const CONVOLUTION_MODE: i32 = 7;
    pub const HEUR_MODE: i32 = 8;
    pub const KNOB_TYPE: i32 = 9;
    pub const NAN_PROPAGATION: i32 = 10;
    pub const NUMERICAL_NOTE: i32 = 11;
    pub const POINTWISE_MODE: i32 = 14;
    pub const DESCRIPTOR: i32 = 15;
    pub const BEHAVIOR_NOTE: i32 = 19;
    pub const REORDERING: i32 = 20;
    pub const CHAR: i32 = 24;
}

/// The values of one attribute. Enums, booleans and addresses are integers; descriptors are the objects that they were
/// finalized to.
#[derive(Clone)]
pub enum Value {
    Integers(Vec<i64>),
    Reals(Vec<f64>),
    Descriptors(Vec<Built>),
}

/// The attributes set so far.
#[derive(Clone, Default)]
pub struct Attributes(BTreeMap<i32, Value>);

impl Attributes {
    /// Sets, or sets again.
    pub fn set(&mut self, name: i32, value: Value) {
        self.0.insert(name, value);
    }

    /// Integers of an attribute, if set.
    pub fn integers(&self, name: i32) -> Option<&[i64]> {
        match self.0.get(&name) {
            Some(Value::Integers(values)) => Some(values),
            _ => None,
        }
    }

    /// One integer.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if it was not set.
    pub fn integer(&self, name: i32) -> Result<i64, Status> {
        self.integers(name).and_then(|v| v.first()).copied().ok_or(Status::BAD_PARAM)
    }

    /// One number, or its default if it was not set.
    pub fn real(&self, name: i32, default: f64) -> f64 {
        match self.0.get(&name) {
            Some(Value::Reals(values)) => values.first().copied().unwrap_or(default),
            _ => default,
        }
    }

    /// Descriptors of an attribute; empty if not set.
    pub fn descriptors(&self, name: i32) -> &[Built] {
        match self.0.get(&name) {
            Some(Value::Descriptors(values)) => values,
            _ => &[],
        }
    }
}

/// Refuses an attribute that the kind does not have, of the wrong type, or of a wrong number of elements.
///
/// # Errors
/// [`Status::BAD_PARAM`], [`Status::ATTRIBUTE_TYPE`], [`Status::NOT_SUPPORTED`] for attributes that exist but not here.
pub fn check(kind: Kind, name: i32, given: i32, count: i64) -> Result<(), Status> {
    use of_type::*;
    const REAL: &[i32] = &[FLOAT, DOUBLE];
    const ONE: i64 = 1;
    const DIMS: i64 = 8;
    const MANY: i64 = 1024;
    let (types, most): (&[i32], i64) = match (kind, name) {
        (Kind::Tensor, 900 | 904..=906) => (&[INT64], ONE),
        (Kind::Tensor, 901) => (&[DATA_TYPE], ONE),
        (Kind::Tensor, 902 | 903) => (&[INT64], DIMS),
        (Kind::Tensor, 907 | 908) => (&[BOOLEAN], ONE),
        (Kind::Tensor, 909) => (&[REORDERING], ONE),
        (Kind::Convolution, 100) | (Kind::Pointwise, 1) => (&[DATA_TYPE], ONE),
        (Kind::Convolution, 101) => (&[CONVOLUTION_MODE], ONE),
        (Kind::Convolution, 102..=105) => (&[INT64], DIMS),
        (Kind::Convolution, 106) => (&[INT64], ONE),
        (Kind::Forward, 700 | 701) | (Kind::BackwardData, 706 | 707) | (Kind::BackwardFilter, 712 | 713) => (REAL, ONE),
        (Kind::Forward, 702..=705) | (Kind::BackwardData, 708..=711) | (Kind::BackwardFilter, 714..=717) => {
            (&[DESCRIPTOR], ONE)
        }
        (Kind::Pointwise, 0) => (&[POINTWISE_MODE], ONE),
        (Kind::Pointwise, 2) => (&[NAN_PROPAGATION], ONE),
        (Kind::OperationPointwise, 750..=753) => (&[DESCRIPTOR], ONE),
        (Kind::OperationPointwise, 754 | 755) => (REAL, ONE),
        (Kind::Graph, 800) | (Kind::Plan, 400) => (&[HANDLE], ONE),
        (Kind::Graph, 801) => (&[DESCRIPTOR], MANY),
        // Dynamic or overridden shapes: allowed, never used.
        (Kind::Graph, 803 | 805) => (&[BOOLEAN], ONE),
        (Kind::Heuristics, 200) => (&[HEUR_MODE], ONE),
        (Kind::Heuristics, 201) | (Kind::Engine, 1300) => (&[DESCRIPTOR], ONE),
        (Kind::Engine, 1301) => (&[INT64], ONE),
        (Kind::EngineConfig, 300) | (Kind::Plan, 401) => (&[DESCRIPTOR], ONE),
        (Kind::EngineConfig, 302) => (&[DESCRIPTOR], MANY),
        (Kind::KnobChoice, 600) => (&[KNOB_TYPE], ONE),
        (Kind::KnobChoice, 601) => (&[INT64], ONE),
        (Kind::Plan, 405) => (&[CHAR], MANY),
        (Kind::VariantPack, 1000) => (&[INT64], MANY),
        (Kind::VariantPack, 1001 | 1002) => (&[VOID_PTR], MANY),
        (Kind::VariantPack, 1003) => (&[VOID_PTR], ONE),
        // Ragged, overridden, limited to some multiprocessors: real, but not here.
        (Kind::Tensor, 913)
        | (Kind::Graph, 804)
        | (Kind::Heuristics, 203 | 204)
        | (Kind::Engine, 1306..=1308)
        | (Kind::Plan, 406 | 407)
        | (Kind::VariantPack, 1010..=1012) => return Err(Status::NOT_SUPPORTED),
        _ => return Err(Status::BAD_PARAM),
    };
    if !types.contains(&given) {
        return Err(Status::ATTRIBUTE_TYPE);
    }
    if (1..=most).contains(&count) || (count == 0 && most == MANY) { Ok(()) } else { Err(Status::BAD_PARAM) }
}

/// Reads the values of an attribute; `built` finds the content of a finalized descriptor.
///
/// # Safety
/// `array` is null or points to `count` elements of the C type that `given` names.
pub unsafe fn read(
    given: i32,
    count: i64,
    array: *const c_void,
    built: impl Fn(Handle) -> Result<Built, Status>,
) -> Result<Value, Status> {
    use of_type::*;
    // SAFETY: for each arm, the C type of `given` is the one read.
    unsafe {
        Ok(match given {
            FLOAT => Value::Reals(elements(array.cast::<f32>(), count)?.iter().map(|&v| f64::from(v)).collect()),
            DOUBLE => Value::Reals(elements(array.cast::<f64>(), count)?.to_vec()),
            INT64 | HANDLE | VOID_PTR => Value::Integers(elements(array.cast::<i64>(), count)?.to_vec()),
            BOOLEAN | CHAR => {
                Value::Integers(elements(array.cast::<u8>(), count)?.iter().map(|&v| i64::from(v)).collect())
            }
            DESCRIPTOR => {
                let handles = elements(array.cast::<usize>(), count)?;
                Value::Descriptors(handles.iter().map(|&h| built(h)).collect::<Result<_, _>>()?)
            }
            _ => Value::Integers(elements(array.cast::<i32>(), count)?.iter().map(|&v| i64::from(v)).collect()),
        })
    }
}
