//! How long a schedule takes and what is in memory when: three streams, with given costs.

use serde::{Deserialize, Serialize};

use super::{KindBytes, StepId};
use crate::Nanos;

/// When a step ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// From the beginning of the training step.
    pub start: Nanos,
    /// The same as `start` for steps that take no time.
    pub end: Nanos,
}

/// Live bytes from a moment on, until that of the next level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// From the beginning of the training step.
    pub at: Nanos,
    /// Bytes of live blocks.
    pub live: KindBytes,
}

/// The compute stream standing still for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The step that waits.
    pub step: StepId,
    /// The step that it waits for.
    pub waits_for: StepId,
    /// From when to when.
    pub span: Span,
}

/// One training step in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulation {
    /// When the last stream has ended.
    pub time: Nanos,
    /// Time in which the compute stream computes.
    pub compute: Nanos,
    /// Time in which something is copied, both directions at once counted once.
    pub copying: Nanos,
    /// Time by which the step is longer than its computations: copies that nothing hides.
    pub exposed: Nanos,
    /// By step of the schedule.
    pub spans: Vec<Span>,
    /// Live bytes over time, by rising moments; the last holds to the end.
    pub levels: Vec<Level>,
    /// Every wait of the compute stream that took time.
    pub stalls: Vec<Stall>,
}
