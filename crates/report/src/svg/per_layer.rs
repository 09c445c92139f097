//! Memory and time of each layer, under one or several limits.
//!
//! ```text
//! bytes |      ww            | time     one bar per limit: feature maps (m), weights (x), workspace (w);
//!       | ww   ww            |          one point per limit: time of the layer's operations, on the right axis
//!       | xx . mm .    mm .  |
//!       +-conv1--conv2-----+
//! ```
//!
//! **Source**: Oyama et al. 2018, figure 1.

use tightfit_profile::answer::Optimized;
use tightfit_units::{Bytes, Nanos};

use super::axis::{Axis, Frame};
use super::canvas::{Anchor, Canvas, INK, TEXT, text_width};
use super::legend::{self, Entry};

const BAR: f64 = 16.0;
const GAP: f64 = 18.0;
/// Feature maps and weights; the workspaces take colors from the legend's order after them.
const MAPS: &str = "#BBBBBB";
const WEIGHTS: &str = "#777777";
/// Times are dark over any bar; the marker's shape identifies the limit.
const TIMES: &str = "#000000";

/// A layer under one limit.
#[derive(Clone, Default)]
struct Cost {
    workspace: Bytes,
    time: Nanos,
    /// Each operation with its configuration.
    choices: Vec<String>,
    /// Whether any of them runs in slices.
    is_sliced: bool,
}

/// A layer: its fixed memory, and its cost under each limit.
struct Layer<'a> {
    name: &'a str,
    maps: Bytes,
    weights: Bytes,
    costs: Vec<Cost>,
}

impl Layer<'_> {
    fn bytes(&self, cost: &Cost) -> Bytes {
        self.maps + self.weights + cost.workspace
    }
}

/// Draws results of one network under several limits, each with its name in the legend (such as `64 MiB`).
///
/// Feature maps are the layer's input and output for the whole mini-batch, without gradients. The times of a layer's
/// operations add up; of their workspaces, the largest counts. It is striped if any operation runs in slices along space.
pub fn per_layer(title: &str, results: &[(&str, &Optimized)]) -> String {
    let layers = layers(results);
    let mut entries = vec![Entry::area("feature maps", MAPS), Entry::area("weights", WEIGHTS)];
    entries.extend(
        results.iter().enumerate().map(|(i, (limit, _))| Entry::area(format!("workspace, {limit}"), legend::color(i))),
    );
    entries.extend(
        results
            .iter()
            .enumerate()
            .map(|(i, (limit, _))| Entry::points(format!("time, {limit}"), TIMES, legend::marker(i))),
    );

    if layers.iter().any(|layer| layer.costs.iter().any(|cost| cost.is_sliced)) {
        entries.push(Entry::slices());
    }

    let slot = (BAR * results.len() as f64 + GAP).max(40.0);
    let widest = layers.iter().map(|layer| text_width(layer.name, TEXT)).fold(0.0, f64::max);
    let turned = widest > slot - 4.0;
    let (left, right) = (f64::max(100.0, if turned { widest * 0.71 } else { 0.0 }), 100.0);
    let width = (left + right + slot * layers.len() as f64).max(640.0);
    let frame = Frame { left, top: legend::head_height(&entries, width), width: width - left - right, height: 320.0 };
    let labels = if turned { widest * 0.71 + 16.0 } else { 20.0 };
    let mut canvas = Canvas::new(width, frame.bottom() + labels + 16.0);
    legend::draw_head(title, &entries, width, &mut canvas);

    let costs = || layers.iter().flat_map(|layer| layer.costs.iter().map(move |cost| (layer, cost)));
    let bytes = Axis::of_bytes("memory", costs().map(|(layer, cost)| layer.bytes(cost)).max().unwrap_or_default());
    let time = Axis::of_times("time", costs().map(|(_, cost)| cost.time).max().unwrap_or_default());
    frame.draw_left(&bytes, &mut canvas);
    frame.draw_right(&time, &mut canvas);

    let slot = frame.width / layers.len().max(1) as f64;
    for (index, layer) in layers.iter().enumerate() {
        let middle = frame.left + slot * (index as f64 + 0.5);
        let first = middle - BAR * layer.costs.len() as f64 / 2.0;
        for (i, cost) in layer.costs.iter().enumerate() {
            let x = first + BAR * i as f64;
            let mut below = Bytes::ZERO;
            let choices = format!("; {}", cost.choices.join(", "));
            for (name, part, fill, more) in [
                ("feature maps", layer.maps, MAPS, ""),
                ("weights", layer.weights, WEIGHTS, ""),
                ("workspace", cost.workspace, legend::color(i), &*choices),
            ] {
                let (from, to) = (frame.y(bytes.at_bytes(below)), frame.y(bytes.at_bytes(below + part)));
                let (at, size) = ((x + 1.0, to), (BAR - 2.0, from - to));
                canvas.rect(at, size, fill, &format!("{}: {name} {part}{more}", layer.name));
                if cost.is_sliced && name == "workspace" {
                    canvas.stripe(at, size);
                }
                below = below + part;
            }
        }
        for (i, cost) in layer.costs.iter().enumerate() {
            let at = (first + BAR * (i as f64 + 0.5), frame.y(time.at_time(cost.time)));
            canvas.marker(legend::marker(i), at, TIMES, &format!("{}: {}", layer.name, cost.time));
        }
        if turned {
            canvas.turned_text((middle + 4.0, frame.bottom() + 12.0), Anchor::End, TEXT, -45.0, layer.name);
        } else {
            canvas.text((middle, frame.bottom() + 14.0), Anchor::Middle, TEXT, layer.name);
        }
    }
    canvas.line((frame.left, frame.bottom()), (frame.right(), frame.bottom()), INK);
    if layers.is_empty() {
        canvas.text((frame.x(0.5), frame.y(0.5)), Anchor::Middle, TEXT, "no layers");
    }
    canvas.finish(title)
}

/// The layers of all results in the order of their first kernel.
fn layers<'a>(results: &[(&str, &'a Optimized)]) -> Vec<Layer<'a>> {
    let mut layers: Vec<Layer<'a>> = Vec::new();
    for (index, (_, optimized)) in results.iter().enumerate() {
        for kernel in &optimized.kernels {
            let known = layers.iter().position(|layer| layer.name == kernel.layer);
            let at = known.unwrap_or_else(|| {
                let (problem, size) = (&kernel.problem, kernel.problem.types().storage().size());
                layers.push(Layer {
                    name: &kernel.layer,
                    maps: Bytes::of(problem.input_len() + problem.output_len(), size),
                    weights: Bytes::of(problem.filter_len(), size),
                    costs: vec![Cost::default(); results.len()],
                });
                layers.len() - 1
            });
            let cost = &mut layers[at].costs[index];
            cost.workspace = cost.workspace.max(kernel.configuration.workspace());
            cost.time = cost.time + kernel.configuration.time();
            cost.choices.push(format!("{} {}", kernel.problem.operation(), kernel.configuration));
            cost.is_sliced |= kernel.configuration.is_sliced();
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use tightfit_profile::answer::samples;

    use super::super::well_formed::{check, text_of};
    use super::*;

    #[test]
    fn layers_in_slices_are_striped_and_say_how() {
        let mut optimized = samples::network(6);
        let names = |picture: &str| text_of(picture).iter().any(|text| text == "in slices along space");
        let whole = super::per_layer("whole", &[("8 GiB", &optimized)]);
        assert!(!names(&whole) && !whole.contains("<path"));
        optimized.kernels[1].configuration = samples::configuration(&[(1, "4 x h8 gemm", 40, 2)]);
        let picture = super::per_layer("sliced", &[("8 GiB", &optimized)]);
        check(&picture, &["in slices along space"]);
        assert_eq!(picture.matches("<path").count(), 2, "in the legend, and one layer of two");
        let (layer, operation) = (&optimized.kernels[1].layer, optimized.kernels[1].problem.operation());
        assert!(
            picture.contains(&format!("{layer}: workspace")) && picture.contains(&format!("{operation} 4 x h8 gemm"))
        );
    }

    #[test]
    fn operations_of_one_layer_are_taken_together() {
        let optimized = samples::network(6);
        let layers = layers(&[("8 GiB", &optimized), ("again", &optimized)]);
        assert_eq!(layers.len(), 2);
        for (layer, kernels) in layers.iter().zip(optimized.kernels.chunks(3)) {
            assert_eq!(layer.maps + layer.weights, kernels[0].problem.tensor_bytes());
            for cost in &layer.costs {
                assert_eq!(cost.time, kernels.iter().map(|kernel| kernel.configuration.time()).sum());
                assert_eq!(
                    cost.workspace,
                    kernels.iter().map(|kernel| kernel.configuration.workspace()).max().unwrap()
                );
            }
        }
    }
}
