//! The layers of a plan as rows.

use std::collections::HashMap;

use tightfit_plan::{MapPlan, Plan};
use tightfit_units::{Bytes, Nanos};

use crate::{Align, Grid};

/// One row per layer, for people.
///
/// `output` is empty if the layer writes its input's map. `map` is the fate of the map that the layer writes first, and
/// `reuse` the time from the map's last forward use until it is read again.
pub fn grid(plan: &Plan) -> Grid {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("layer", left),
        ("output", right),
        ("weights", right),
        ("workspace", right),
        ("forward [µs]", right),
        ("backward [µs]", right),
        ("map", left),
        ("reuse [µs]", right),
    ]);
    let maps = first_maps(plan);
    let bytes = |bytes: Bytes| if bytes == Bytes::ZERO { String::new() } else { bytes.to_string() };
    let micros = |time: Nanos| if time == Nanos::ZERO { String::new() } else { format!("{:.1}", time.as_micros()) };
    for layer in &plan.layers {
        let map = maps.get(layer.name.as_str());
        grid.push([
            layer.name.clone(),
            bytes(layer.output),
            bytes(layer.weights),
            bytes(layer.forward_workspace.max(layer.backward_workspace)),
            micros(layer.forward),
            micros(layer.backward),
            map.map(|map| map.fate.name().to_owned()).unwrap_or_default(),
            map.and_then(|map| map.reuse_distance).map(micros).unwrap_or_default(),
        ]);
    }
    grid
}

/// The rows of [`grid()`] for programs: whole bytes, and microseconds that are not rounded.
pub fn csv(plan: &Plan) -> String {
    let columns =
        ["layer", "output_bytes", "weights_bytes", "workspace_bytes", "forward_us", "backward_us", "map", "reuse_us"];
    let mut grid = Grid::new(columns.map(|column| (column, Align::Left)));
    let maps = first_maps(plan);
    let micros = |time: Nanos| time.as_micros().to_string();
    for layer in &plan.layers {
        let map = maps.get(layer.name.as_str());
        grid.push([
            layer.name.clone(),
            layer.output.0.to_string(),
            layer.weights.0.to_string(),
            layer.forward_workspace.max(layer.backward_workspace).0.to_string(),
            micros(layer.forward),
            micros(layer.backward),
            map.map(|map| map.fate.name().to_owned()).unwrap_or_default(),
            map.and_then(|map| map.reuse_distance).map(micros).unwrap_or_default(),
        ]);
    }
    grid.csv()
}

/// The map that each layer writes first, by the name of the layer.
fn first_maps(plan: &Plan) -> HashMap<&str, &MapPlan> {
    plan.maps.iter().filter_map(|map| Some((map.layers.first()?.as_str(), map))).collect()
}
