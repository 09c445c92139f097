//! Minimum cuts of directed graphs with integer capacities.
//!
//! **Source**: flow by levels, Dinic 1970.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct Arc {
    to: u32,
    left: i128,
}

const UNREACHED: u32 = u32::MAX;

/// A graph with a source and a sink, and the flow between them.
#[derive(Debug)]
pub struct Flow {
    arcs: Vec<Arc>,
    /// For each node: its arcs. An arc and its opposite differ in the last bit.
    of: Vec<Vec<u32>>,
    level: Vec<u32>,
    next: Vec<u32>,
    source: u32,
    sink: u32,
}

impl Flow {
    /// A graph without arcs.
    pub fn new(nodes: usize, source: u32, sink: u32) -> Flow {
        Flow {
            arcs: Vec::new(),
            of: vec![Vec::new(); nodes],
            level: vec![0; nodes],
            next: vec![0; nodes],
            source,
            sink,
        }
    }

    /// Adds an arc and its opposite, which has no capacity.
    pub fn arc(&mut self, from: u32, to: u32, capacity: i128) {
        if capacity > 0 && from != to {
            self.of[from as usize].push(self.arcs.len() as u32);
            self.of[to as usize].push(self.arcs.len() as u32 + 1);
            self.arcs.push(Arc { to, left: capacity });
            self.arcs.push(Arc { to: from, left: 0 });
        }
    }

    /// Sends as much flow as the arcs allow. Returns the amount, which is the capacity of the minimum cut.
    ///
    /// - Cost: O(nodes² × arcs) at worst; close to linear on the graphs of steps.
    pub fn fill(&mut self) -> i128 {
        let mut flow: i128 = 0;
        while self.set_levels() {
            self.next.fill(0);
            flow = flow.saturating_add(self.push());
        }
        flow
    }

    /// After [`Flow::fill`]: whether a node is on the source's side of the minimum cut that is nearest to the source.
    pub fn is_near(&self, node: u32) -> bool {
        self.level[node as usize] != UNREACHED
    }

    /// After [`Flow::fill`]: whether each node is on the source's side of the minimum cut that is nearest to the sink.
    pub fn last_cut(&self) -> Vec<bool> {
        let mut near = vec![true; self.of.len()];
        near[self.sink as usize] = false;
        let mut stack = vec![self.sink];
        while let Some(node) = stack.pop() {
            for &arc in &self.of[node as usize] {
                let from = self.arcs[arc as usize].to;
                if near[from as usize] && self.arcs[arc as usize ^ 1].left > 0 {
                    near[from as usize] = false;
                    stack.push(from);
                }
            }
        }
        near
    }

    /// Computes distances from the source along arcs with remaining capacity; returns whether the sink is reached.
    fn set_levels(&mut self) -> bool {
        self.level.fill(UNREACHED);
        self.level[self.source as usize] = 0;
        let mut queue = VecDeque::from([self.source]);
        while let Some(node) = queue.pop_front() {
            for &arc in &self.of[node as usize] {
                let Arc { to, left } = self.arcs[arc as usize];
                if left > 0 && self.level[to as usize] == UNREACHED {
                    self.level[to as usize] = self.level[node as usize] + 1;
                    queue.push_back(to);
                }
            }
        }
        self.level[self.sink as usize] != UNREACHED
    }

    /// Sends flow along paths of rising levels until no path is left.
    fn push(&mut self) -> i128 {
        let mut flow: i128 = 0;
        let mut path: Vec<u32> = Vec::new();
        let mut node = self.source;
        loop {
            if node == self.sink {
                let least = path.iter().map(|arc| self.arcs[*arc as usize].left).min().unwrap_or(0);
                for arc in &path {
                    self.arcs[*arc as usize].left -= least;
                    self.arcs[*arc as usize ^ 1].left += least;
                }
                flow = flow.saturating_add(least);
                // The search continues from the start of the first full arc.
                let Some(full) = path.iter().position(|arc| self.arcs[*arc as usize].left == 0) else { return flow };
                node = self.arcs[path[full] as usize ^ 1].to;
                path.truncate(full);
                continue;
            }
            let place = self.next[node as usize] as usize;
            if let Some(&arc) = self.of[node as usize].get(place) {
                let Arc { to, left } = self.arcs[arc as usize];
                if left > 0 && self.level[to as usize] == self.level[node as usize] + 1 {
                    path.push(arc);
                    node = to;
                } else {
                    self.next[node as usize] += 1;
                }
            } else if let Some(arc) = path.pop() {
                node = self.arcs[arc as usize ^ 1].to;
                self.next[node as usize] += 1;
            } else {
                return flow;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cuts_are_the_least_of_all_cuts() {
        let mut state = 7_u64;
        let mut next = |below: u64| tightfit_units::random::split_mix(&mut state) % below;
        for _ in 0..300 {
            let nodes = 3 + next(5) as u32;
            let arcs: Vec<(u32, u32, i128)> = (0..3 + next(14))
                .map(|_| (next(u64::from(nodes)) as u32, next(u64::from(nodes)) as u32, 1 + i128::from(next(9))))
                .collect();
            let mut flow = Flow::new(nodes as usize, 0, 1);
            arcs.iter().for_each(|&(from, to, capacity)| flow.arc(from, to, capacity));
            let sent = flow.fill();
            let cost = |near: &dyn Fn(u32) -> bool| -> i128 {
                arcs.iter().filter(|(from, to, _)| near(*from) && !near(*to)).map(|arc| arc.2).sum()
            };
            let of = |side: u32| move |node: u32| node == 0 || node > 1 && side >> node & 1 == 1;
            let least = (0..1_u32 << nodes).map(|side| cost(&of(side))).min().unwrap();
            let last = flow.last_cut();
            assert_eq!(cost(&|node| flow.is_near(node)), least, "{arcs:?}");
            assert_eq!(cost(&|node| last[node as usize]), least, "{arcs:?}");
            assert_eq!(sent, least, "{arcs:?}");
            assert!((0..nodes).all(|node| !flow.is_near(node) || last[node as usize]));
        }
    }
}
