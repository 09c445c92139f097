//! Identifies the function that several nodes compute together by evaluating them at some numbers.
//!
//! Exporters spell out one function in many ways. Evaluation distinguishes a GELU from its approximations, whatever nodes express it.

use std::collections::HashMap;

use super::given::Given;
use super::graph::Graph;
use tightfit_network::{Activation, Function};

/// Largest difference from a function, as a share of the largest value.
const NEAR: f64 = 1e-5;

/// The activation among these that the nodes compute from `x`.
pub fn activation(graph: &Graph<'_>, nodes: &[usize], x: &str) -> Option<Function> {
    let points: Vec<f64> = (-48..=48).map(|at| f64::from(at) / 8.0).collect();
    let computed = compute(graph, nodes, x, &points)?;
    let candidates =
        [Activation::Silu, Activation::HardSwish, Activation::Gelu, Activation::GeluTanh, Activation::Mish];
    let found = candidates.into_iter().find(|candidate| {
        points.iter().zip(&computed).all(|(&x, y)| (candidate.value(x) - y).abs() <= NEAR * x.abs().max(1.0))
    });
    found.map(Function::Activation)
}

/// The layer normalization along the last axis that the nodes compute from `x`, which has `rank` axes; none of them may
/// scale or shift its result.
pub fn layer_norm(graph: &Graph<'_>, nodes: &[usize], x: &str, rank: usize) -> Option<Function> {
    let is_last = |given: Given<'_>| {
        let of_input = given.node.input.get(1).and_then(|name| numbers(graph, name));
        let of_attribute = || given.ints("axes").map(|axes| axes.into_iter().map(|axis| axis as f64).collect());
        let axes: Vec<f64> = of_input.or_else(of_attribute).unwrap_or_default();
        // Without the axis, means would be broadcast along other axes.
        given.int("keepdims") == Some(1) && (axes == [-1.0] || axes == [rank as f64 - 1.0])
    };
    let means = nodes.iter().map(|&at| graph.given(at)).filter(|given| given.node.op_type == "ReduceMean");
    if !means.clone().all(is_last) {
        return None;
    }
    let inputs = nodes.iter().flat_map(|&at| &graph.node(at).input);
    let known = inputs.filter_map(|name| numbers(graph, name)).filter(|all| all.len() == 1);
    let candidates: Vec<f64> = known.map(|all| all[0]).filter(|number| (0.0..0.1).contains(number)).collect();
    let points = [0.5, -1.0, 2.5, 0.25, -0.75];
    candidates.into_iter().find_map(|epsilon| {
        // At the second scale the variance is as small as epsilon.
        let fits = [1.0, epsilon.sqrt()].into_iter().all(|scale| {
            let points: Vec<f64> = points.iter().map(|point| point * scale).collect();
            let mean = points.iter().sum::<f64>() / points.len() as f64;
            let variance = points.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / points.len() as f64;
            let wanted = points.iter().map(|x| (x - mean) / (variance + epsilon).sqrt());
            compute(graph, nodes, x, &points)
                .is_some_and(|found| found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < NEAR))
        });
        fits.then_some(Function::LayerNorm { epsilon: epsilon as f32 })
    })
}

/// The output of the last node if `x` has these numbers along its last axis.
fn compute(graph: &Graph<'_>, nodes: &[usize], x: &str, points: &[f64]) -> Option<Vec<f64>> {
    let mut known: HashMap<&str, Vec<f64>> = HashMap::from([(x, points.to_vec())]);
    let mut last = None;
    for &at in nodes {
        let node = graph.node(at);
        let names = node.input.iter().filter(|name| !name.is_empty());
        let inputs: Vec<Vec<f64>> = names
            .map(|name| known.get(name.as_str()).cloned().or_else(|| numbers(graph, name)))
            .collect::<Option<_>>()?;
        let output = node.output.first()?;
        known.insert(output, apply(graph.given(at), &inputs)?);
        last = Some(output.as_str());
    }
    known.remove(last?).filter(|all| all.len() == points.len())
}

fn numbers(graph: &Graph<'_>, name: &str) -> Option<Vec<f64>> {
    graph.constant(name)?.floats()
}

/// One node, element by element; single numbers are broadcast.
fn apply(given: Given<'_>, inputs: &[Vec<f64>]) -> Option<Vec<f64>> {
    let number = |name: &str| given.float(name).map(f64::from);
    let first = inputs.first()?;
    let each = |function: &dyn Fn(f64) -> f64| Some(first.iter().map(|&x| function(x)).collect());
    let both = |function: &dyn Fn(f64, f64) -> f64| {
        let second = inputs.get(1)?;
        let length = first.len().max(second.len());
        let fits = |all: &[f64]| all.len() == length || all.len() == 1;
        let at = |all: &[f64], at: usize| if all.len() == 1 { all[0] } else { all[at] };
        (fits(first) && fits(second) && inputs.len() == 2)
            .then(|| (0..length).map(|i| function(at(first, i), at(second, i))).collect())
    };
    let value = |activation: Activation| each(&|x| activation.value(x));
    match given.node.op_type.as_str() {
        "Add" => both(&|a, b| a + b),
        "Sub" => both(&|a, b| a - b),
        "Mul" => both(&|a, b| a * b),
        "Div" => both(&|a, b| a / b),
        "Pow" => both(&f64::powf),
        "Min" => both(&f64::min),
        "Max" => both(&f64::max),
        "Neg" => each(&|x| -x),
        "Sqrt" => each(&f64::sqrt),
        "Reciprocal" => each(&f64::recip),
        "Exp" => each(&f64::exp),
        "Log" => each(&f64::ln),
        "Erf" => each(&tightfit_network::erf),
        "Tanh" => value(Activation::Tanh),
        "Sigmoid" => value(Activation::Sigmoid),
        "Softplus" => value(Activation::Softplus),
        "HardSigmoid" => {
            let (alpha, beta) = (number("alpha").unwrap_or(0.2), number("beta").unwrap_or(0.5));
            each(&|x| (alpha * x + beta).clamp(0.0, 1.0))
        }
        "Clip" => {
            // An omitted input is not among these: both bounds are required.
            let bound = |at: usize, name| inputs.get(at).and_then(|all| all.first().copied()).or_else(|| number(name));
            let (low, high) = (bound(1, "min")?, bound(2, "max")?);
            each(&|x| x.max(low).min(high))
        }
        "ReduceMean" => Some(vec![first.iter().sum::<f64>() / first.len() as f64]),
        _ => None,
    }
}
