//! Finalizing: attributes become the object that they describe, or are refused.

use std::sync::{Arc, Mutex};

use super::attribute::{Attributes, Kind};
use super::built::{Built, VariantPack};
use super::engine::{self, Config, Engine};
use super::graph::{Graph, Node};
use tightfit_mock_support::lock;

use crate::control::compile;
use crate::handle;
use crate::number::{DataType, type_of};
use crate::pointwise::{Mode, Pointwise};
use crate::problem::{Geometry, Operation, Problem};
use crate::status::Status;
use crate::tensor::Tensor;

/// Makes the object that the attributes of a descriptor describe.
///
/// # Errors
/// [`Status::BAD_PARAM`] and its kin where something is missing or contradictory; statuses of the not-supported category
/// for a valid request that is refused.
pub fn build(kind: Kind, attributes: &Attributes) -> Result<Built, Status> {
    match kind {
        Kind::Tensor => tensor(attributes),
        Kind::Convolution => convolution(attributes),
        Kind::Pointwise => {
            if type_of(attributes.integer(1)? as i32)? != DataType::F32 {
                return Err(Status::UNSUPPORTED_TYPE);
            }
            Ok(Built::Pointwise(Mode::from_raw(attributes.integer(0)? as i32)?))
        }
        Kind::Forward => operation(attributes, Operation::Forward, [704, 703, 705], 702, [700, 701]),
        Kind::BackwardData => operation(attributes, Operation::BackwardData, [710, 709, 711], 708, [706, 707]),
        Kind::BackwardFilter => operation(attributes, Operation::BackwardFilter, [716, 715, 717], 714, [712, 713]),
        Kind::OperationPointwise => pointwise(attributes),
        Kind::Graph => graph(attributes),
        Kind::Heuristics => {
            Ok(Built::Heuristics(Arc::new(engine::heuristics(&graph_of(attributes, 201)?, attributes.integer(200)?)?)))
        }
        Kind::Engine => Ok(Built::Engine(Engine::new(graph_of(attributes, 1300)?, attributes.integer(1301)?)?)),
        Kind::KnobChoice => {
            Ok(Built::KnobChoice { kind: attributes.integer(600)? as i32, value: attributes.integer(601)? })
        }
        Kind::EngineConfig => config(attributes),
        Kind::Plan => match attributes.descriptors(401) {
            [] => restored(attributes),
            [Built::Config(config)] => {
                config.check_plan()?;
                if config.is_compiled() {
                    std::thread::sleep(compile());
                    config.check_code()?;
                }
                Ok(Built::Plan(Arc::new(config.clone())))
            }
            _ => Err(Status::BAD_PARAM),
        },
        Kind::VariantPack => variant_pack(attributes),
        // Only ever filled by GetAttribute.
        Kind::KnobInfo => Err(Status::BAD_PARAM),
    }
}

fn tensor(attributes: &Attributes) -> Result<Built, Status> {
    let data_type = type_of(attributes.integer(901)? as i32)?;
    let dims = attributes.integers(902).ok_or(Status::BAD_PARAM)?;
    let strides = attributes.integers(903).ok_or(Status::BAD_PARAM)?;
    let mut tensor = Tensor::new(data_type, dims, strides)?;
    tensor.alignment = attributes.integer(900)?;
    tensor.uid = attributes.integer(906)?;
    if tensor.alignment < data_type.bytes() as i64 || tensor.alignment.count_ones() != 1 {
        return Err(Status::BAD_PARAM);
    }
    if attributes.integer(904).unwrap_or(1) != 1 || attributes.integer(909).unwrap_or(0) != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    [tensor.is_inner, tensor.is_by_value] = [907, 908].map(|name| attributes.integer(name).unwrap_or(0) != 0);
    Ok(Built::Tensor(Arc::new(tensor)))
}

fn convolution(attributes: &Attributes) -> Result<Built, Status> {
    let spatial = attributes.integer(106)?;
    let values = |name: i32, least: i64| match attributes.integers(name) {
        Some(values) if values.len() as i64 == spatial && values.iter().all(|&v| v >= least) => Ok(values.to_vec()),
        _ => Err(Status::BAD_PARAM),
    };
    Ok(Built::Convolution(Arc::new(Geometry {
        pre: values(105, 0)?,
        post: values(104, 0)?,
        strides: values(103, 1)?,
        dilations: values(102, 1)?,
        mirrored: attributes.integer(101)? == 0,
        accumulate: type_of(attributes.integer(100)? as i32)?,
    })))
}

fn tensor_of(attributes: &Attributes, name: i32) -> Result<&Tensor, Status> {
    match attributes.descriptors(name) {
        [Built::Tensor(tensor)] => Ok(tensor),
        _ => Err(Status::BAD_PARAM),
    }
}

fn operation(
    attributes: &Attributes,
    operation: Operation,
    tensors: [i32; 3],
    convolution: i32,
    [alpha, beta]: [i32; 2],
) -> Result<Built, Status> {
    let [Built::Convolution(geometry)] = attributes.descriptors(convolution) else { return Err(Status::BAD_PARAM) };
    let [x, w, y] = tensors.map(|name| tensor_of(attributes, name));
    let mut problem = Problem::new(operation, [x?, w?, y?], geometry)?;
    problem.alpha = attributes.real(alpha, 1.0) as f32;
    problem.beta = attributes.real(beta, 0.0) as f32;
    Ok(Built::Operation(Arc::new(Node::Convolution(problem))))
}

fn pointwise(attributes: &Attributes) -> Result<Built, Status> {
    let [Built::Pointwise(mode)] = attributes.descriptors(750) else { return Err(Status::BAD_PARAM) };
    let b = attributes.descriptors(752).first().map(|_| tensor_of(attributes, 752)).transpose()?;
    let operation = Pointwise {
        mode: *mode,
        x: tensor_of(attributes, 751)?.clone(),
        b: b.cloned(),
        y: tensor_of(attributes, 753)?.clone(),
        alpha1: attributes.real(754, 1.0) as f32,
        alpha2: attributes.real(755, 1.0) as f32,
    };
    operation.check()?;
    Ok(Built::Operation(Arc::new(Node::Pointwise(operation))))
}

fn graph(attributes: &Attributes) -> Result<Built, Status> {
    handle::stream_of(attributes.integer(800)? as usize)?;
    let graph = match attributes.descriptors(801) {
        [Built::Operation(node)] => Graph { node: node.as_ref().clone(), after: None },
        [Built::Operation(first), Built::Operation(second)] => fused(first, second)?,
        [] => return Err(Status::BAD_PARAM),
        _ => return Err(Status::UNSUPPORTED_PATTERN),
    };
    let scalar = graph.pointwise().and_then(|pointwise| pointwise.b.as_ref());
    let is_wrong = |t: &&Tensor| t.is_inner || (t.is_by_value && scalar.is_none_or(|scalar| scalar.uid != t.uid));
    if graph.node.tensors().iter().any(is_wrong) {
        return Err(Status::UNSUPPORTED_PATTERN);
    }
    Ok(Built::Graph(Arc::new(graph)))
}

/// A convolution whose result is never in memory: a pointwise operation reads it.
fn fused(first: &Node, second: &Node) -> Result<Graph, Status> {
    match (first, second) {
        (Node::Convolution(problem), Node::Pointwise(after))
            if problem.operation == Operation::Forward && problem.y.is_inner && problem.y.uid == after.x.uid =>
        {
            let (mut problem, mut after) = (problem.clone(), after.clone());
            problem.y = after.y.expanded()?;
            after.x = after.y.clone();
            Ok(Graph { node: Node::Convolution(problem), after: Some(after) })
        }
        _ => Err(Status::UNSUPPORTED_PATTERN),
    }
}

/// Configurations by the number that their plans' texts have.
static SAVED: Mutex<Vec<Config>> = Mutex::new(Vec::new());

/// The text of a plan, for this process.
pub fn saved(config: &Config) -> String {
    let mut saved = lock(&SAVED);
    saved.push(config.clone());
    (saved.len() - 1).to_string()
}

/// The plan of a text.
fn restored(attributes: &Attributes) -> Result<Built, Status> {
    let text = attributes.integers(405).ok_or(Status::BAD_PARAM)?;
    let text: String = text.iter().map(|&byte| char::from(byte as u8)).collect();
    let number: usize = text.parse().map_err(|_| Status::BAD_PARAM)?;
    lock(&SAVED).get(number).cloned().map(|config| Built::Plan(Arc::new(config))).ok_or(Status::BAD_PARAM)
}

fn graph_of(attributes: &Attributes, name: i32) -> Result<Arc<Graph>, Status> {
    match attributes.descriptors(name) {
        [Built::Graph(graph)] => Ok(graph.clone()),
        _ => Err(Status::BAD_PARAM),
    }
}

fn config(attributes: &Attributes) -> Result<Built, Status> {
    let [Built::Engine(engine)] = attributes.descriptors(300) else { return Err(Status::BAD_PARAM) };
    let mut config = Config::new(engine.clone());
    for choice in attributes.descriptors(302) {
        let Built::KnobChoice { kind, value } = choice else { return Err(Status::BAD_PARAM) };
        config.turn(*kind, *value)?;
    }
    config.check()?;
    Ok(Built::Config(config))
}

fn variant_pack(attributes: &Attributes) -> Result<Built, Status> {
    let uids = attributes.integers(1000).ok_or(Status::BAD_PARAM)?;
    let addresses = attributes.integers(1001).ok_or(Status::BAD_PARAM)?;
    let mut sorted = uids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if uids.len() != addresses.len() || sorted.len() != uids.len() {
        return Err(Status::BAD_PARAM);
    }
    let data = uids.iter().zip(addresses).map(|(&uid, &address)| (uid, address as usize)).collect();
    let workspace = attributes.integer(1003).unwrap_or(0) as usize;
    Ok(Built::VariantPack(Arc::new(VariantPack { data, workspace })))
}
