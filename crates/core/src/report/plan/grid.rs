//! The layers of a plan as rows.

use std::collections::HashMap;

use crate::plan::{MapPlan, Plan};
use crate::report::{Align, Grid};
use crate::{Bytes, Nanos};

/// One row per layer.
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
    let first = |map: &'_ MapPlan| Some((map.layers.first()?.clone(), map.clone()));
    let maps: HashMap<String, MapPlan> = plan.maps.iter().filter_map(first).collect();
    let bytes = |bytes: Bytes| if bytes == Bytes::ZERO { String::new() } else { bytes.to_string() };
    let micros = |time: Nanos| if time == Nanos::ZERO { String::new() } else { format!("{:.1}", time.as_micros()) };
    for layer in &plan.layers {
        let map = maps.get(&layer.name);
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
