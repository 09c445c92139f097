//! Live objects by handle. A handle is used again as soon as its object is gone, as addresses are in the real library:
//! whoever keeps things by handle must notice the destruction.

/// The answer for a handle that names no live object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

/// Objects of one kind.
pub struct Table<T> {
    base: usize,
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

/// Distance of two handles.
const STEP: usize = 64;

impl<T> Table<T> {
    /// An empty table whose handles begin at `base`.
    pub const fn new(base: usize) -> Table<T> {
        Table { base, slots: Vec::new(), free: Vec::new() }
    }

    /// Adds an object. Returns its handle.
    pub fn insert(&mut self, object: T) -> usize {
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[index] = Some(object);
        self.base + index * STEP
    }

    fn index(&self, handle: usize) -> Result<usize, Absent> {
        let offset = handle.checked_sub(self.base).filter(|o| o.is_multiple_of(STEP)).ok_or(Absent)?;
        Some(offset / STEP).filter(|&i| i < self.slots.len()).ok_or(Absent)
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// [`Absent`].
    pub fn get(&self, handle: usize) -> Result<&T, Absent> {
        self.slots[self.index(handle)?].as_ref().ok_or(Absent)
    }

    /// The object of a handle, to change.
    ///
    /// # Errors
    /// [`Absent`].
    pub fn get_mut(&mut self, handle: usize) -> Result<&mut T, Absent> {
        let index = self.index(handle)?;
        self.slots[index].as_mut().ok_or(Absent)
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// [`Absent`].
    pub fn remove(&mut self, handle: usize) -> Result<T, Absent> {
        let index = self.index(handle)?;
        let object = self.slots[index].take().ok_or(Absent)?;
        self.free.push(index);
        Ok(object)
    }

    /// Live objects.
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Forgets all objects.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }
}
