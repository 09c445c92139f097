//! Least cuts, for plans of compiled graphs.

use pyo3::prelude::*;
use tightfit_plan::flow::Flow;

use crate::failure::bad_input;

/// Whether each node is on the side of the source (node 0) in the least cut between it and the sink (node 1). Of equal cuts, `last` asks
/// for the one nearest to the sink.
#[pyfunction]
pub fn least_cut(
    py: Python<'_>,
    nodes: u32,
    starts: Vec<u32>,
    ends: Vec<u32>,
    capacities: Vec<i64>,
    last: bool,
) -> PyResult<Vec<bool>> {
    let known = starts.iter().chain(&ends).all(|&node| node < nodes);
    if nodes < 2 || !known || starts.len() != ends.len() || starts.len() != capacities.len() {
        return Err(bad_input("arcs: give a start, an end and a capacity for each, with nodes that exist".to_owned()));
    }
    py.detach(|| {
        let mut flow = Flow::new(nodes as usize, 0, 1);
        for ((&start, &end), &capacity) in starts.iter().zip(&ends).zip(&capacities) {
            flow.arc(start, end, i128::from(capacity));
        }
        flow.fill();
        Ok(if last { flow.last_cut() } else { (0..nodes).map(|node| flow.is_near(node)).collect() })
    })
}
