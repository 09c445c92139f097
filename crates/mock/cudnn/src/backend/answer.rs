//! Answers of finalized descriptors. The real library does not return some of the attributes that were set; nor does
//! this one.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::Handle;
use super::attribute::{Kind, of_type};
use super::build::saved;
use super::built::Built;
use super::descriptors::DESCRIPTORS;
use super::graph::Node;
use tightfit_mock_support::lock;

use crate::number::raw;
use crate::problem::Problem;
use crate::status::Status;
use crate::tensor::Tensor;

/// The values of an attribute, with their C type.
pub enum Answer {
    Integers(i32, Vec<i64>),
    Real(f64),
    /// To be filled into descriptors that the caller created.
    Descriptors(Kind, Vec<Built>),
}

/// The value of an attribute of a finalized descriptor.
///
/// # Errors
/// [`Status::NOT_SUPPORTED`] where it cannot be asked.
pub fn answer(built: &Built, name: i32) -> Result<Answer, Status> {
    use of_type::*;
    let long = |value: i64| Ok(Answer::Integers(INT64, vec![value]));
    let longs = |values: &[i64]| Ok(Answer::Integers(INT64, values.to_vec()));
    let ints = |of: i32, values: Vec<i32>| Ok(Answer::Integers(of, values.into_iter().map(i64::from).collect()));
    let one = |kind: Kind, built: Built| Ok(Answer::Descriptors(kind, vec![built]));
    match (built, name) {
        (Built::Tensor(t), 900) => long(t.alignment),
        (Built::Tensor(t), 901) => ints(DATA_TYPE, vec![raw(t.data_type)]),
        (Built::Tensor(t), 902) => longs(&t.dims),
        (Built::Tensor(t), 903) => longs(&t.strides),
        (Built::Tensor(t), 906) => long(t.uid),
        (Built::Tensor(t), 907) => ints(BOOLEAN, vec![i32::from(t.is_inner)]),
        (Built::Convolution(g), 100) => ints(DATA_TYPE, vec![raw(g.accumulate)]),
        (Built::Convolution(g), 101) => ints(CONVOLUTION_MODE, vec![i32::from(!g.mirrored)]),
        (Built::Convolution(g), 102) => longs(&g.dilations),
        (Built::Convolution(g), 103) => longs(&g.strides),
        (Built::Convolution(g), 104) => longs(&g.post),
        (Built::Convolution(g), 105) => longs(&g.pre),
        (Built::Convolution(g), 106) => long(g.pre.len() as i64),
        (Built::Operation(node), _) => of_operation(node, name),
        (Built::Graph(graph), 802) => long(graph.engines()),
        (Built::Heuristics(configs), 202) => {
            Ok(Answer::Descriptors(Kind::EngineConfig, configs.iter().cloned().map(Built::Config).collect()))
        }
        (Built::Engine(engine), 1300) => one(Kind::Graph, Built::Graph(engine.graph.clone())),
        (Built::Engine(engine), 1301) => long(engine.index),
        (Built::Engine(engine), 1302) => {
            Ok(Answer::Descriptors(Kind::KnobInfo, engine.knob().into_iter().map(Built::KnobInfo).collect()))
        }
        (Built::Engine(engine), 1303) => ints(NUMERICAL_NOTE, engine.numerical_notes()),
        (Built::Engine(engine), 1305) => ints(BEHAVIOR_NOTE, engine.behavior_notes()),
        (Built::KnobInfo(knob), 1200) => ints(KNOB_TYPE, vec![knob.kind]),
        (Built::KnobInfo(knob), 1201) => long(knob.most),
        (Built::KnobInfo(knob), 1202) => long(knob.least),
        (Built::KnobInfo(knob), 1203) => long(knob.stride),
        (Built::KnobChoice { kind, .. }, 600) => ints(KNOB_TYPE, vec![*kind]),
        (Built::KnobChoice { value, .. }, 601) => long(*value),
        (Built::Config(config), 300) => one(Kind::Engine, Built::Engine(config.engine.clone())),
        (Built::Config(config), 302) => {
            let knob = config.engine.knob().into_iter();
            let choices = knob.map(|k| Built::KnobChoice { kind: k.kind, value: config.knob }).collect();
            Ok(Answer::Descriptors(Kind::KnobChoice, choices))
        }
        (Built::Config(config), 303) => long(config.workspace()),
        (Built::Plan(config), 402) => long(config.workspace()),
        (Built::Plan(config), 405) => Ok(Answer::Integers(CHAR, saved(config).bytes().map(i64::from).collect())),
        (Built::Plan(config), 401) => one(Kind::EngineConfig, Built::Config(config.as_ref().clone())),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Tensors always come back in five dimensions.
fn of_operation(node: &Node, name: i32) -> Result<Answer, Status> {
    let Node::Convolution(problem) = node else { return Err(Status::NOT_SUPPORTED) };
    let Problem { x, w, y, geometry, alpha, beta, .. } = problem;
    let tensor = |t: &Tensor| Ok(Answer::Descriptors(Kind::Tensor, vec![Built::Tensor(Arc::new(t.clone()))]));
    match name {
        700 | 706 | 712 => Ok(Answer::Real(f64::from(*alpha))),
        701 | 707 | 713 => Ok(Answer::Real(f64::from(*beta))),
        702 | 708 | 714 => {
            Ok(Answer::Descriptors(Kind::Convolution, vec![Built::Convolution(Arc::new(geometry.clone()))]))
        }
        704 | 710 | 716 => tensor(x),
        703 | 709 | 715 => tensor(w),
        705 | 711 | 717 => tensor(y),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

impl Answer {
    /// Writes up to `requested` values; returns how many there are.
    ///
    /// # Errors
    /// [`Status::ATTRIBUTE_TYPE`] if the caller expects another type; for descriptors also [`Status::DESCRIPTOR_TYPE`].
    ///
    /// # Safety
    /// `array` is null or has room for `requested` elements of the C type that `given` names; for descriptors it holds
    /// `requested` of them.
    pub unsafe fn write(&self, given: i32, requested: i64, array: *mut c_void) -> Result<i64, Status> {
        use of_type::*;
        let room = if array.is_null() { 0 } else { usize::try_from(requested).map_err(|_| Status::BAD_PARAM)? };
        match self {
            Answer::Integers(of, values) if *of == given => {
                for (i, &value) in values.iter().take(room).enumerate() {
                    // SAFETY: `i` is under `requested`, and each arm writes the C type of `given`.
                    unsafe {
                        match given {
                            INT64 => array.cast::<i64>().add(i).write(value),
                            BOOLEAN | CHAR => array.cast::<u8>().add(i).write(value as u8),
                            _ => array.cast::<i32>().add(i).write(value as i32),
                        }
                    }
                }
                Ok(values.len() as i64)
            }
            Answer::Real(value) if [FLOAT, DOUBLE].contains(&given) => {
                if room > 0 {
                    // SAFETY: there is room for one, of the type that `given` names.
                    unsafe {
                        if given == FLOAT {
                            array.cast::<f32>().write(*value as f32);
                        } else {
                            array.cast::<f64>().write(*value);
                        }
                    }
                }
                Ok(1)
            }
            Answer::Descriptors(kind, values) if given == DESCRIPTOR => {
                for (i, value) in values.iter().take(room).enumerate() {
                    // SAFETY: `i` is under `requested`, the number of descriptors that the caller put there.
                    fill(unsafe { ptr::read(array.cast::<Handle>().add(i)) }, *kind, value)?;
                }
                Ok(values.len() as i64)
            }
            _ => Err(Status::ATTRIBUTE_TYPE),
        }
    }
}

/// Fills a descriptor that the caller created; it is finalized from then on.
fn fill(handle: Handle, kind: Kind, value: &Built) -> Result<(), Status> {
    let mut descriptors = lock(&DESCRIPTORS);
    let descriptor = descriptors.get_mut(handle)?;
    if descriptor.kind != kind {
        return Err(Status::DESCRIPTOR_TYPE);
    }
    descriptor.built = Some(value.clone());
    Ok(())
}
