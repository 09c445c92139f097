//! vDNN's static policies: offload the inputs of convolutions, or of all layers of the feature extraction.
//!
//! ```text
//! forward n    compute n | wait                     backward m   compute m          | wait
//! memory       offload X | release X                memory       prefetch X of n < m |
//! ```
//!
//! One memory stream carries both directions, and the compute stream waits for it at the end of each layer. If several layers read a map, the last
//! reader of the forward pass offloads it: that layer needs the map first in the backward pass. A map that no backward pass reads is released without
//! a copy. A layer in place needs no separate offload: its input is gone, and its output is the input of the next layer.
//!
//! **Source**: Rhu et al. 2016, 3.2, 3.3 and figure 8.

use std::collections::HashSet;

use crate::footprint;
use crate::memory::arena::Drafter;
use crate::schedule::script::{Move, Script};
use crate::step::{Access, Operation, Residence, Stage, Step, Tag, TensorId};

/// The operations whose inputs to offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// None: maps are only released when nothing reads them again.
    None,
    /// The convolutions.
    Convolutions,
    /// All layers of the feature extraction; the classifier runs as without vDNN.
    All,
}

impl Offloads {
    fn includes(self, tag: Tag) -> bool {
        match tag {
            Tag::Convolution => self != Offloads::None,
            Tag::Feature => self == Offloads::All,
            Tag::Other => false,
        }
    }
}

/// The room for prefetches. A prefetch that would exceed it is omitted and its map fetched on demand.
pub(crate) struct Room {
    /// For each operation: live bytes if nothing moves.
    pub(crate) live: Vec<u64>,
    /// Limit on live bytes.
    pub(crate) limit: u64,
}

impl Room {
    /// Reserves bytes from one operation until another, if they are free throughout.
    fn take(&mut self, from: usize, until: usize, bytes: u64) -> bool {
        let stretch = &mut self.live[from..until.max(from)];
        let fits = stretch.iter().all(|live| live + bytes <= self.limit);
        if fits {
            stretch.iter_mut().for_each(|live| *live += bytes);
        }
        fits
    }
}

/// The network-wide baseline: all maps stay for the whole step, as in frameworks of the time; only gradient maps share memory.
///
/// The paper's baseline has one dX and one dY of the largest size. Here each gradient map takes memory only while needed, which needs no more memory
/// and also works for networks with forks.
///
/// **Source**: Rhu et al. 2016, 4.1.
pub(crate) fn baseline(step: &Step) -> Script {
    Script::network_wide(step.operations.len())
}

/// The decisions of the paper's policies. With `room`, prefetches use only free bytes; the paper always prefetches.
pub(crate) fn script(drafter: &Drafter<'_>, moved: Offloads, mut room: Option<Room>) -> Script {
    let (step, lifetimes) = (drafter.step, &drafter.lifetimes);
    let mut script = Script::new(step.operations.len());
    let mut memory = Memory::new(step);
    let rounded = |tensor| footprint(step.tensor(tensor).bytes.0);
    let inputs = inputs(step, moved);
    for (place, tensor) in step.tensors.iter().enumerate() {
        let id = TensorId(place);
        let Some(lifetime) = lifetimes.get(id).filter(|_| tensor.residence == Residence::Movable) else { continue };
        let (Some(last_reader), Some(next)) = (lifetime.last_forward, lifetime.first_backward) else { continue };
        if inputs.contains(&id) {
            script.before(last_reader, Move::Offload(id));
            script.after(last_reader, Move::Leave(id));
            memory.offloaded[step.operations[last_reader].group.0].push(id);
            memory.on_host.insert(id);
            if let Some(room) = &mut room {
                room.live[last_reader + 1..next].iter_mut().for_each(|live| *live -= rounded(id));
            }
        }
    }
    let mut at = step.forward();
    while at < step.operations.len() {
        let passes = step.run_of_group(at);
        for used in step.operations[passes.clone()].iter().flat_map(|operation| &operation.uses) {
            if used.access == Access::Read && memory.on_host.remove(&used.tensor) {
                script.before(at, Move::Prefetch(used.tensor));
            }
        }
        if let Some(found) = memory.find_prefetch_group(step.operations[at].group.0) {
            for id in memory.offloaded[found].clone() {
                let next = lifetimes.get(id).and_then(|lifetime| lifetime.first_backward).unwrap_or(at);
                let fits = room.as_mut().is_none_or(|room| room.take(at, next, rounded(id)));
                if fits && memory.on_host.remove(&id) {
                    script.before(at, Move::Prefetch(id));
                    script.after(passes.end - 1, Move::Arrive(id));
                }
            }
        }
        at = passes.end;
    }
    script
}

/// The script of a static policy, with the prefetches that stay within `limit`.
pub(crate) fn limited(drafter: &Drafter<'_>, moved: Offloads, limit: u64) -> Script {
    let room = Room { live: drafter.live(), limit };
    script(drafter, moved, Some(room))
}

/// The tensors read and not overwritten, going forward, by the operations whose inputs are offloaded.
fn inputs(step: &Step, moved: Offloads) -> HashSet<TensorId> {
    let going_forward = step.operations.iter().filter(|operation| operation.stage == Stage::Forward);
    let moving = going_forward.filter(|operation| moved.includes(operation.tag));
    let is_changed = |operation: &Operation, tensor| {
        operation.uses.iter().any(|used| used.tensor == tensor && used.access != Access::Read)
    };
    let read = moving.flat_map(|operation| {
        let tensors = operation.uses.iter().map(|used| used.tensor);
        tensors.filter(move |tensor| !is_changed(operation, *tensor))
    });
    read.collect()
}

/// The tensors that are offloaded and not yet fetched.
struct Memory {
    /// For each group: the tensors it offloads.
    offloaded: Vec<Vec<TensorId>>,
    /// For each group: whether it is a convolution.
    convolves: Vec<bool>,
    on_host: HashSet<TensorId>,
}

impl Memory {
    fn new(step: &Step) -> Memory {
        let mut convolves = vec![false; step.groups.len()];
        for operation in &step.operations {
            convolves[operation.group.0] |= operation.tag == Tag::Convolution;
        }
        Memory { offloaded: vec![Vec::new(); step.groups.len()], convolves, on_host: HashSet::new() }
    }

    /// The nearest group before `current` whose input is on the host; the search ends at the nearest convolution.
    ///
    /// Source: Rhu et al. 2016, figure 8, which returns -1 for `None`.
    fn find_prefetch_group(&self, current: usize) -> Option<usize> {
        for group in (0..current).rev() {
            if self.offloaded[group].iter().any(|tensor| self.on_host.contains(tensor)) {
                return Some(group);
            }
            if self.convolves[group] {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_network::{Builder, Filters, Network, Shape, Window};

    use super::*;
    use crate::{CostModel, Fronts, Mode, Options, Stop, Workload};

    /// Every decision with its computation, such as `pool1 backward-data: prefetch conv1`.
    fn text(network: &Network, moved: Offloads) -> Vec<String> {
        let workload = Workload::new(network, 2, Types::F32, Mode::Training).unwrap();
        let costs = CostModel::cpu();
        let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
        let script = script(&Drafter::new(&step, &costs, Options::default(), Stop::Never).unwrap(), moved, None);
        let name = |tensor: TensorId| step.groups[step.tensor(tensor).groups[0].0].name.clone();
        let mut lines = Vec::new();
        for (at, operation) in step.operations.iter().enumerate() {
            for decision in script.moves_before(at).iter().chain(script.moves_after(at)) {
                let what = match decision {
                    Move::Offload(map) => format!("offload {}", name(*map)),
                    Move::Leave(map) => format!("leave {}", name(*map)),
                    Move::Prefetch(map) => format!("prefetch {}", name(*map)),
                    Move::Arrive(map) => format!("arrive {}", name(*map)),
                    Move::Rerun(run) => format!("rerun {}", step.operation(*run).name),
                };
                lines.push(format!("{} {}: {what}", step.groups[operation.group.0].name, operation.name));
            }
        }
        lines
    }

    fn chain() -> Network {
        let mut net = Builder::new("chain");
        net.input(Shape::image(2, 8, 8)).conv("a", Filters::new(2, 3)).relu().max_pool("pool", Window::new(2, 2));
        net.conv("b", Filters::new(2, 1)).relu().conv("c", Filters::new(2, 1)).relu();
        net.flatten().fully_connected("fc", 3).softmax_loss();
        net.finish().unwrap()
    }

    /// Normalizations, a sum and a concatenation; the mean over windows reads nothing again.
    fn joined() -> Network {
        let mut net = Builder::new("joined");
        net.input(Shape::image(2, 8, 8)).conv("a", Filters::new(2, 1).no_bias()).batch_norm().relu();
        let fork = net.here();
        let left = net.conv("b", Filters::new(2, 1)).lrn().here();
        let mean = net.add("sum", &[left, fork]).average_pool("mean", Window::new(2, 2)).here();
        let right = net.conv("c", Filters::new(2, 1)).here();
        net.concat("join", &[mean, right]).flatten().fully_connected("fc", 3).softmax_loss();
        net.finish().unwrap()
    }

    #[test]
    fn all_offloads_inputs_of_normalizations_sums_and_concatenations() {
        // The sum, c, and the classifier's inputs are missing: no backward pass reads them, or vDNN leaves them alone.
        let expected = [
            "a forward: offload input",
            "a forward: leave input",
            "a.bn forward: offload a",
            "a.bn forward: leave a",
            "b.lrn forward: offload b",
            "b.lrn forward: leave b",
            "sum forward: offload a.bn",
            "sum forward: offload b.lrn",
            "sum forward: leave a.bn",
            "sum forward: leave b.lrn",
            "join forward: offload mean",
            "join forward: leave mean",
        ];
        let lines = text(&joined(), Offloads::All);
        assert_eq!(lines[..expected.len()], expected);
        let fetched: Vec<&str> = lines.iter().filter_map(|line| line.split("prefetch ").nth(1)).collect();
        // The map nearest to the loss comes back first.
        assert_eq!(fetched, ["mean", "a.bn", "b.lrn", "b", "a", "input"]);
        let of_convolutions = text(&joined(), Offloads::Convolutions);
        let fetched: Vec<&str> = of_convolutions.iter().filter_map(|line| line.split("prefetch ").nth(1)).collect();
        assert_eq!(fetched, ["mean", "a.bn", "input"]);
    }

    #[test]
    fn all_offloads_inputs_of_convolutions_and_poolings() {
        let expected = [
            "a forward: offload input",
            "a forward: leave input",
            "pool forward: offload a",
            "pool forward: leave a",
            "b forward: offload pool",
            "b forward: leave pool",
            "c forward: offload b",
            "c forward: leave b",
            // The window of the loss reaches back to c, whose input is offloaded and found first.
            "loss backward-data: prefetch b",
            "loss backward-data: arrive b",
            // The window of c.relu ends at c, whose input is back by now; the window of c ends at b, whose input is
            // offloaded.
            "c backward-filter: prefetch pool",
            "c update: arrive pool",
            "b backward-filter: prefetch a",
            "b update: arrive a",
            "pool backward-data: prefetch input",
            "pool backward-data: arrive input",
        ];
        assert_eq!(text(&chain(), Offloads::All), expected);
    }

    #[test]
    fn none_moves_nothing() {
        assert!(text(&chain(), Offloads::None).is_empty());
    }
}
