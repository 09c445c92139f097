//! Recognizes random masks that exporters spell out: dropout of samples, and of elements.
//!
//! ```text
//! RandomUniformLike -- Less (p) -- Cast -- Div (p) --.
//! x ------------------------------------------------ Mul      keeps with probability p, scaled by 1 / p
//! ```

use super::given::{Given, is_standard};
use super::graph::Graph;
use super::value::Value;

/// The most nodes to follow from a product to its random numbers.
const LONGEST: usize = 8;

/// The fraction that this mask zeroes, if it keeps the mean.
pub fn rate(graph: &Graph<'_>, name: &str) -> Option<f32> {
    let (mut name, mut factor) = (name, 1.0);
    for _ in 0..LONGEST {
        let node = graph.writer(name).filter(|node| is_standard(node))?;
        let input = |at: usize| node.input.get(at).map(String::as_str);
        match node.op_type.as_str() {
            "Cast" | "CastLike" | "Identity" => {}
            "Div" => factor /= number(graph, input(1)?)?,
            "Mul" => factor *= number(graph, input(1)?)?,
            "Less" => {
                let kept = number(graph, input(1)?)?;
                let is_mask = is_uniform(graph, input(0)?) && kept > 0.0 && kept <= 1.0;
                return (is_mask && (kept * factor - 1.0).abs() < 1e-4).then_some((1.0 - kept) as f32);
            }
            _ => return None,
        }
        name = input(0)?;
    }
    None
}

/// Whether these are random numbers from 0 to 1.
fn is_uniform(graph: &Graph<'_>, name: &str) -> bool {
    let Some(node) = graph.writer(name) else { return false };
    let given = Given::of(node, graph.version);
    matches!(node.op_type.as_str(), "RandomUniform" | "RandomUniformLike")
        && given.float("low") == Some(0.0)
        && given.float("high") == Some(1.0)
}

/// A single number that is known.
fn number(graph: &Graph<'_>, name: &str) -> Option<f64> {
    match graph.value(name)? {
        Value::Constant(constant) => constant.floats().filter(|all| all.len() == 1).map(|all| all[0]),
        Value::Map(_) => None,
    }
}
