//! The record of an evaluation so far, which can be rewound to any operation.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::schedule::script::Move;

/// One run of an operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::search) struct Moment {
    operation: u32,
    pub(in crate::search) again: bool,
    /// Its start time, without waits for copies from the host.
    pub(super) start: u64,
    /// The next operation of the step, or this one.
    at: u32,
    /// The last operation of the group that counts as this moment.
    last: u32,
}

impl Moment {
    pub(super) fn of(operation: usize, again: bool, start: u64, group: RangeInclusive<usize>) -> Moment {
        let (at, last) = (*group.start() as u32, *group.end() as u32);
        Moment { operation: operation as u32, again, start, at, last }
    }

    pub(in crate::search) fn operation(&self) -> usize {
        self.operation as usize
    }

    pub(in crate::search) fn at(&self) -> usize {
        self.at as usize
    }

    pub(super) fn last(&self) -> usize {
        self.last as usize
    }
}

/// A tensor on its way back from the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub(super) tensor: usize,
    pub(super) interval: usize,
    /// The first moment at which its bytes may be allocated.
    pub(super) from: usize,
    pub(super) needed: usize,
}

/// A tensor that leaves once its copy to the host has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub(super) tensor: u32,
    pub(super) end: u64,
}

/// Sums over the moments so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// Bytes of managed tensors on the device.
    pub(super) live: u64,
    /// The time, without waits for copies from the host.
    pub(super) now: u64,
    /// The time of the step's operations, without reruns and waits.
    pub(super) spent: u64,
    pub(super) link_free: u64,
    /// Bytes copied to the host.
    pub(super) moved: u64,
    /// Time of all copies.
    pub(super) copying: u64,
    /// Bytes over the limit, summed over all moments.
    pub(super) excess: u64,
    pub(super) reruns: usize,
}

/// Whether a tensor is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Away,
    There,
    /// Until its copy to the host has ended.
    Leaving,
}

/// How to undo a change.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Presence(u32, Presence),
    /// It was there and left, and had left before after this number of moments.
    Left(u32, Presence, u32),
    OnHost(u32, u64),
    /// Its position among the leaving tensors.
    Queued(u32),
    /// It was taken from this place.
    Unqueued(u32, Leaving),
}

/// Stands for the end of a copy that does not exist.
const NO_COPY: u64 = u64::MAX;

/// Lengths and sums before a slot.
#[derive(Clone, Copy, Debug)]
struct Mark {
    sums: Sums,
    undo: u32,
    moments: u32,
    moves: u32,
    fetches: u32,
}

/// The slots carried out so far.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) sums: Sums,
    pub(super) moments: Vec<Moment>,
    /// For each moment: live bytes, without tensors on their way back.
    pub(super) live: Vec<u64>,
    /// Tensors that move, each after a number of moments.
    pub(super) moves: Vec<(usize, Move)>,
    pub(super) fetches: Vec<Fetch>,
    presence: Vec<Presence>,
    /// For each tensor: the number of moments before it last left.
    left: Vec<u32>,
    /// For each tensor: when its copy on the host is complete, or [`NO_COPY`].
    on_host: Vec<u64>,
    /// By the ends of their copies.
    leaving: VecDeque<Leaving>,
    undo: Vec<Undo>,
    marks: Vec<Mark>,
}

impl Trace {
    pub(super) fn new(tensors: usize) -> Trace {
        Trace {
            sums: Sums::default(),
            moments: Vec::new(),
            live: Vec::new(),
            moves: Vec::new(),
            fetches: Vec::new(),
            presence: vec![Presence::Away; tensors],
            left: vec![0; tensors],
            on_host: vec![NO_COPY; tensors],
            leaving: VecDeque::new(),
            undo: Vec::new(),
            marks: Vec::new(),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.marks.len()
    }

    /// Begins the next slot.
    pub(super) fn begin(&mut self) {
        self.marks.push(Mark {
            sums: self.sums,
            undo: self.undo.len() as u32,
            moments: self.moments.len() as u32,
            moves: self.moves.len() as u32,
            fetches: self.fetches.len() as u32,
        });
    }

    /// Rewinds to the moment before a slot began, if it has begun.
    ///
    /// - Cost: O(changes since then).
    pub(super) fn back_to(&mut self, slot: usize) {
        let Some(&mark) = self.marks.get(slot) else { return };
        self.marks.truncate(slot);
        self.sums = mark.sums;
        self.moments.truncate(mark.moments as usize);
        self.live.truncate(mark.moments as usize);
        self.moves.truncate(mark.moves as usize);
        self.fetches.truncate(mark.fetches as usize);
        for undo in self.undo.drain(mark.undo as usize..).rev() {
            match undo {
                Undo::Presence(tensor, was) => self.presence[tensor as usize] = was,
                Undo::Left(tensor, was, left) => {
                    self.presence[tensor as usize] = was;
                    self.left[tensor as usize] = left;
                }
                Undo::OnHost(tensor, was) => self.on_host[tensor as usize] = was,
                Undo::Queued(place) => _ = self.leaving.remove(place as usize),
                Undo::Unqueued(place, leaving) => self.leaving.insert(place as usize, leaving),
            }
        }
    }

    pub(super) fn is_present(&self, tensor: usize) -> bool {
        self.presence[tensor] != Presence::Away
    }

    /// The number of moments before a tensor last left.
    pub(super) fn left(&self, tensor: usize) -> usize {
        self.left[tensor] as usize
    }

    pub(super) fn on_host(&self, tensor: usize) -> Option<u64> {
        Some(self.on_host[tensor]).filter(|end| *end != NO_COPY)
    }

    #[inline]
    pub(super) fn set_on_host(&mut self, tensor: usize, end: Option<u64>) {
        let (end, was) = (end.unwrap_or(NO_COPY), self.on_host[tensor]);
        if was != end {
            self.undo.push(Undo::OnHost(tensor as u32, was));
            self.on_host[tensor] = end;
        }
    }

    /// Records the location of a tensor; returns the previous location.
    #[inline]
    fn set(&mut self, tensor: usize, presence: Presence) -> Presence {
        let was = std::mem::replace(&mut self.presence[tensor], presence);
        if was != presence {
            self.undo.push(Undo::Presence(tensor as u32, was));
        }
        was
    }

    /// Brings a tensor onto the device, or keeps it there if it was about to leave.
    #[inline]
    pub(super) fn appear(&mut self, tensor: usize, bytes: u64) {
        match self.set(tensor, Presence::There) {
            Presence::Away => self.sums.live += bytes,
            // Its next use came before the copy ended.
            Presence::Leaving => {
                let place = self.leaving.iter().position(|leaving| leaving.tensor as usize == tensor);
                place.into_iter().for_each(|place| self.unqueue(place));
            }
            Presence::There => {}
        }
    }

    /// Removes a tensor from the device after the last moment; returns whether it was there.
    pub(super) fn leave(&mut self, tensor: usize, bytes: u64) -> bool {
        let was = std::mem::replace(&mut self.presence[tensor], Presence::Away);
        if was == Presence::Away {
            return false;
        }
        let left = std::mem::replace(&mut self.left[tensor], self.moments.len() as u32);
        self.undo.push(Undo::Left(tensor as u32, was, left));
        self.sums.live -= bytes;
        true
    }

    /// Makes a tensor leave once its copy to the host has ended.
    pub(super) fn leave_after(&mut self, tensor: usize, end: u64) {
        self.set(tensor, Presence::Leaving);
        let place = self.leaving.partition_point(|other| other.end <= end);
        self.undo.push(Undo::Queued(place as u32));
        self.leaving.insert(place, Leaving { tensor: tensor as u32, end });
    }

    pub(super) fn first_leaving(&self) -> Option<Leaving> {
        self.leaving.front().copied()
    }

    /// Removes a tensor from the leaving ones.
    pub(super) fn unqueue(&mut self, place: usize) {
        if let Some(leaving) = self.leaving.remove(place) {
            self.undo.push(Undo::Unqueued(place as u32, leaving));
        }
    }
}
