//! Groups operations into moments: between two changes, only the operation with the most bytes matters.
//!
//! ```text
//! operations   conv   view   pack   relu   view   view   conv
//! slots        |----------------|   |--------|    |--|   |--|
//!              nothing comes or goes after the conv;  the last view needs more bytes than relu
//! ```

use super::model::Model;

/// An operation, or several in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The first operation.
    pub(super) from: usize,
    /// The operation after the last.
    pub(super) to: usize,
    /// Whether nothing comes or goes at any of them.
    pub(super) is_quiet: bool,
    /// The most bytes at once of tensors that never move; for quiet slots.
    pub(super) needs: u64,
    /// Time of all operations, without the first operation of a slot that is not quiet.
    pub(super) time: u64,
}

/// The slots of all operations, in order.
pub(super) fn slots(model: &Model<'_>) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    // For each tensor: whether it has certainly been on the device since its last use.
    let mut stays = vec![false; model.managed.len()];
    for (at, (touches, points)) in model.touches.iter().zip(&model.points).enumerate() {
        let is_there = touches.iter().all(|touch| stays[touch.tensor]);
        for touch in touches {
            stays[touch.tensor] = touch.interval.is_none() && !touch.dies;
        }
        let changes = touches.iter().any(|touch| touch.writes || touch.dies || touch.interval.is_some());
        let (time, needs) = match points.as_slice() {
            [point] if is_there && !changes => (point.time, model.fixed[at] + point.scratch),
            _ => {
                slots.push(Slot { from: at, to: at + 1, is_quiet: false, needs: 0, time: 0 });
                continue;
            }
        };
        // The bytes that the previous slot needs at least.
        let least = |slot: &Slot| match slot.is_quiet {
            true => u64::MAX,
            false => {
                model.fixed[slot.from] + model.points[slot.from].iter().map(|point| point.scratch).min().unwrap_or(0)
            }
        };
        match slots.last_mut() {
            Some(last) if needs <= least(last) => {
                last.to = at + 1;
                last.time += time;
                last.needs = last.needs.max(needs);
            }
            _ => slots.push(Slot { from: at, to: at + 1, is_quiet: true, needs, time }),
        }
    }
    slots
}
