//! The static policies of vDNN: the inputs of convolutions, or of convolutions and poolings, are offloaded.
//!
//! ```text
//! forward n    compute n | wait                     backward m   compute m          | wait
//! memory       offload X | release X                memory       prefetch X of n < m |
//! ```
//!
//! One memory stream carries both directions, and the compute stream waits for it at the end of each layer. Where a map
//! is read by several layers, the last one to read it going forward offloads it, and so needs it first going backward.
//!
//! **Source**: Rhu et al. 2016, 3.2, 3.3 and figure 8.

use std::collections::HashSet;

use crate::network::{LayerKind, MapId};
use crate::plan::program::Program;
use crate::plan::script::{Move, Script};
use crate::plan::{ALIGNMENT, Access, Tensor, Workload};

/// The layers whose inputs are offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Moved {
    /// None: maps go when nothing reads them again.
    None,
    /// The convolutions.
    Convolutions,
    /// The convolutions and the poolings.
    All,
}

impl Moved {
    fn includes(self, kind: &LayerKind) -> bool {
        match kind {
            LayerKind::Convolution { .. } => self != Moved::None,
            LayerKind::Pooling(_) => self == Moved::All,
            _ => false,
        }
    }
}

/// What prefetches may fill: one that would overflow it is left out, and its map fetched on demand.
pub(in crate::plan) struct Room {
    /// By computation: live bytes if nothing moves.
    pub(in crate::plan) live: Vec<u64>,
    /// The most bytes that may be live.
    pub(in crate::plan) limit: u64,
}

impl Room {
    /// Takes bytes from one computation on until another, if they are free for all of that.
    fn take(&mut self, from: usize, until: usize, bytes: u64) -> bool {
        let stretch = &mut self.live[from..until.max(from)];
        let fits = stretch.iter().all(|live| live + bytes <= self.limit);
        if fits {
            stretch.iter_mut().for_each(|live| *live += bytes);
        }
        fits
    }
}

/// The decisions of the paper's policies. With `room`, prefetches only take what is free; the paper prefetches always.
pub(in crate::plan) fn script(
    workload: &Workload<'_>,
    program: &Program,
    moved: Moved,
    mut room: Option<Room>,
) -> Script {
    let mut script = Script::new(program.operations.len());
    let mut memory = Memory::new(workload);
    let rounded = |map| workload.bytes(Tensor::FeatureMap(map)).0.next_multiple_of(ALIGNMENT);
    for (map, of) in workload.maps.iter() {
        let Some(uses) = program.uses(Tensor::FeatureMap(map)) else { continue };
        let (Some(last_reader), Some(next)) = (uses.last_forward, uses.first_backward) else { continue };
        if of.readers.iter().any(|&reader| moved.includes(&workload.network.layer(reader).kind)) {
            script.before(last_reader, Move::Offload(map));
            script.after(last_reader, Move::Leave(map));
            memory.offloaded[program.operations[last_reader].layer.index()].push(map);
            memory.on_host.insert(map);
            if let Some(room) = &mut room {
                room.live[last_reader + 1..next].iter_mut().for_each(|live| *live -= rounded(map));
            }
        }
    }
    let mut at = program.forward;
    while at < program.operations.len() {
        let passes = program.group(at);
        let layer = program.operations[at].layer.index();
        for used in program.operations[passes.clone()].iter().flat_map(|operation| &operation.uses) {
            if let (Tensor::FeatureMap(map), Access::Read) = (used.tensor, used.access)
                && memory.on_host.remove(&map)
            {
                script.before(at, Move::Prefetch(map));
            }
        }
        if let Some(found) = memory.find_prefetch_layer(layer) {
            for map in memory.offloaded[found].clone() {
                let next = program.uses(Tensor::FeatureMap(map)).and_then(|uses| uses.first_backward).unwrap_or(at);
                let fits = room.as_mut().is_none_or(|room| room.take(at, next, rounded(map)));
                if fits && memory.on_host.remove(&map) {
                    script.before(at, Move::Prefetch(map));
                    script.after(passes.end - 1, Move::Arrive(map));
                }
            }
        }
        at = passes.end;
    }
    script
}

/// What has been offloaded and not yet fetched.
struct Memory<'a> {
    workload: &'a Workload<'a>,
    /// By layer: the maps that it offloads.
    offloaded: Vec<Vec<MapId>>,
    on_host: HashSet<MapId>,
}

impl<'a> Memory<'a> {
    fn new(workload: &'a Workload<'a>) -> Memory<'a> {
        Memory { workload, offloaded: vec![Vec::new(); workload.network.layers().len()], on_host: HashSet::new() }
    }

    /// The nearest layer before `current` whose input is on the host, looked for no further than the nearest convolution.
    ///
    /// Source: Rhu et al. 2016, figure 8; its -1 is none.
    fn find_prefetch_layer(&self, current: usize) -> Option<usize> {
        for id in (0..current).rev() {
            if self.offloaded[id].iter().any(|map| self.on_host.contains(map)) {
                return Some(id);
            }
            if matches!(self.workload.network.layers()[id].kind, LayerKind::Convolution { .. }) {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Types;
    use crate::network::{Builder, Filters, Network, Shape, Window};

    /// Every decision with the computation that it goes with: `pool1 BackwardData: prefetch conv1`.
    fn text(network: &Network, moved: Moved) -> Vec<String> {
        let workload = Workload::new(network, 2, Types::F32, false).unwrap();
        let program = Program::of(&workload);
        let script = script(&workload, &program, moved, None);
        let name = |map: MapId| network.layer(workload.maps.get(map).layers[0]).name.clone();
        let mut lines = Vec::new();
        for (at, operation) in program.operations.iter().enumerate() {
            for decision in script.moves_before(at).iter().chain(script.moves_after(at)) {
                let what = match decision {
                    Move::Offload(map) => format!("offload {}", name(*map)),
                    Move::Leave(map) => format!("leave {}", name(*map)),
                    Move::Prefetch(map) => format!("prefetch {}", name(*map)),
                    Move::Arrive(map) => format!("arrive {}", name(*map)),
                };
                lines.push(format!("{} {:?}: {what}", network.layer(operation.layer).name, operation.pass));
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

    #[test]
    fn all_moves_inputs_of_convolutions_and_poolings() {
        let expected = [
            "a Forward: offload input",
            "a Forward: leave input",
            "pool Forward: offload a",
            "pool Forward: leave a",
            "b Forward: offload pool",
            "b Forward: leave pool",
            "c Forward: offload b",
            "c Forward: leave b",
            // The window of fc reaches back to c, which has offloaded its input: that is looked at first.
            "fc BackwardFilter: prefetch b",
            "fc Update: arrive b",
            // That of c.relu ends at c itself, whose input is there by now; that of c ends at b, which has offloaded.
            "c BackwardFilter: prefetch pool",
            "c Update: arrive pool",
            "b BackwardFilter: prefetch a",
            "b Update: arrive a",
            "pool BackwardData: prefetch input",
            "pool BackwardData: arrive input",
        ];
        let mut found = text(&chain(), Moved::All);
        let loss = found.iter().position(|line| line.starts_with("loss"));
        if let Some(loss) = loss {
            // The loss looks back first, and its window too reaches c.
            assert_eq!(found[loss], "loss BackwardData: prefetch b");
            found[loss] = "fc BackwardFilter: prefetch b".to_owned();
            found[loss + 1] = "fc Update: arrive b".to_owned();
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn none_moves_nothing() {
        assert!(text(&chain(), Moved::None).is_empty());
    }
}
