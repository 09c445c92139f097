//! When a block is in use, in the order of a list of steps and on the streams that run them.

/// Number of streams.
pub const STREAMS: usize = 6;

/// A number of steps for each stream.
pub type Clock = [u32; STREAMS];

/// Whether `other` knows everything counted in `one`.
pub fn is_known(one: &Clock, other: &Clock) -> bool {
    one.iter().zip(other).all(|(one, other)| one <= other)
}

/// The steps counted in both.
pub(crate) fn least(one: Clock, other: Clock) -> Clock {
    std::array::from_fn(|stream| one[stream].min(other[stream]))
}

/// The lifetime of a block in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Bytes it occupies in its arena.
    pub bytes: u64,
    /// First list position at which it is live.
    pub begin: usize,
    /// List position at which it ends.
    pub end: usize,
    /// The steps known to have ended when it is first accessed.
    pub start: Clock,
    /// The last step of each stream that accesses it.
    pub last: Clock,
}

impl Life {
    /// Whether this lifetime ends before `other` begins, in list order and on every stream.
    fn is_before(&self, other: &Life) -> bool {
        self.end <= other.begin && is_known(&self.last, &other.start)
    }

    /// Whether the two must not share a byte.
    pub fn conflicts(&self, other: &Life) -> bool {
        !self.is_before(other) && !other.is_before(self)
    }
}

#[cfg(test)]
impl Life {
    /// A lifetime on the first stream alone, one step per list position.
    pub(crate) fn of(bytes: u64, begin: usize, end: usize) -> Life {
        let on_first = |number: usize| std::array::from_fn(|stream| if stream == 0 { number as u32 } else { 0 });
        Life { bytes, begin, end, start: on_first(begin), last: on_first(end) }
    }

    /// The same lifetime, last accessed by the second stream's step with this number.
    pub(crate) fn copied(mut self, number: u32) -> Life {
        self.last[1] = number;
        self
    }

    /// The same lifetime, starting once the second stream's steps up to this number are known to have ended.
    pub(crate) fn knowing(mut self, number: u32) -> Life {
        self.start[1] = number;
        self
    }
}
