//! One workspace, cut into the parts that an algorithm needs; never grown, never zeroed.

/// A workspace that is handed out from its front.
#[derive(Debug)]
pub struct Workspace<'a> {
    rest: &'a mut [f32],
}

impl<'a> Workspace<'a> {
    /// All of these floats.
    pub fn new(floats: &'a mut [f32]) -> Workspace<'a> {
        Workspace { rest: floats }
    }

    /// The next `length` floats, holding whatever they held.
    ///
    /// # Panics
    /// If fewer are left, because an algorithm used more than it declared.
    pub fn take(&mut self, length: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.rest).split_at_mut(length);
        self.rest = rest;
        part
    }
}

/// Converts a count of floats, which must be under 2^60.
pub fn floats(count: u128) -> Result<usize, String> {
    usize::try_from(count)
        .ok()
        .filter(|&count| count < 1 << 60)
        .ok_or_else(|| format!("its workspace would be {count} floats, more than can be addressed"))
}
