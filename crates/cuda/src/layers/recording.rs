//! A step recorded once, to be enqueued with few calls: its computations as graphs, which are cut only at copies.
//!
//! ```text
//! commands   a  b  record 0 | offload stream: wait 0, copy a | c  d  wait 1 (for a copy) | e
//! recorded   graph a b, record 0, wait 0, copy a, graph c d, wait 1, graph e
//! ```
//!
//! Copies stay outside of the graphs, because a graph that holds them launches its kernels no faster than one by one
//! (docs/results.md, "The joint plan").

use std::collections::HashSet;
use std::ops::Range;

use super::Lane;
use crate::safe::{Capture, Graph, Region};

/// A part of a recorded step.
pub(super) enum Recorded {
    /// All that streams that compute do between two pieces of another kind.
    Graph(Graph),
    /// A copy to the host.
    Offload(Lane, Region, Range<usize>),
    /// A copy from the host.
    Prefetch(Lane, Range<usize>, Region),
    /// Filling bytes with ones.
    Poison(Lane, Region),
    /// The mark of a point in a stream, by the number of its event.
    Record(Lane, usize),
    /// A wait for such a point.
    Wait(Lane, usize),
}

impl Recorded {
    /// The stream that it is enqueued on.
    pub(super) fn lane(&self) -> Lane {
        match self {
            Recorded::Graph(_) => Lane::Compute,
            Recorded::Offload(lane, ..)
            | Recorded::Prefetch(lane, ..)
            | Recorded::Poison(lane, _)
            | Recorded::Record(lane, _)
            | Recorded::Wait(lane, _) => *lane,
        }
    }
}

/// A recording in progress.
#[derive(Default)]
pub(super) struct Recording {
    /// The record so far.
    pieces: Vec<Recorded>,
    /// The graph in progress.
    capture: Option<Capture>,
    /// Events that computing streams have marked, and the events in the graph in progress.
    computed: HashSet<usize>,
    inside: HashSet<usize>,
}

/// How a stream that computes gets behind an event in a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// By waiting for it, inside the graph in progress.
    Inside,
    /// It already is: the event lies in an earlier graph.
    Already,
    /// By waiting for it before the next graph.
    Outside,
}

impl Recording {
    /// Whether a graph is in progress.
    pub(super) fn is_capturing(&self) -> bool {
        self.capture.is_some()
    }

    /// Begins a graph.
    pub(super) fn begin(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Notes that a stream that computes has marked a point in the graph in progress.
    pub(super) fn mark(&mut self, event: usize) {
        self.computed.insert(event);
        self.inside.insert(event);
    }

    /// How a stream that computes gets behind an event.
    pub(super) fn behind(&self, event: usize) -> Behind {
        if self.inside.contains(&event) {
            Behind::Inside
        } else if self.computed.contains(&event) {
            Behind::Already
        } else {
            Behind::Outside
        }
    }

    /// Takes the graph in progress, to end it.
    pub(super) fn take_capture(&mut self) -> Option<Capture> {
        self.capture.take()
    }

    /// Adds the graph that has ended. A wait for a point of it waits for its end.
    pub(super) fn end(&mut self, graph: Graph) {
        self.pieces.push(Recorded::Graph(graph));
        self.pieces.extend(self.inside.drain().map(|event| Recorded::Record(Lane::Compute, event)));
    }

    /// Adds a piece between graphs.
    pub(super) fn push(&mut self, piece: Recorded) {
        self.pieces.push(piece);
    }

    /// All pieces, without marks that nothing waits for.
    pub(super) fn finish(self) -> Vec<Recorded> {
        let awaited = |piece: &Recorded| match piece {
            Recorded::Wait(_, event) => Some(*event),
            _ => None,
        };
        let awaited: HashSet<usize> = self.pieces.iter().filter_map(awaited).collect();
        let is_needed = |piece: &Recorded| !matches!(piece, Recorded::Record(_, event) if !awaited.contains(event));
        self.pieces.into_iter().filter(is_needed).collect()
    }
}
