//! Lists in one piece of memory. An evaluation reads the lists of all operations in order, and reads of scattered lists would take most of its time.

use std::ops::Index;

/// Several lists, one after another.
pub(super) struct Lists<T> {
    all: Vec<T>,
    /// The end of each list.
    ends: Vec<u32>,
}

impl<T> Lists<T> {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|list| &self[list])
    }
}

impl<T> Index<usize> for Lists<T> {
    type Output = [T];

    fn index(&self, list: usize) -> &[T] {
        let start = list.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[start as usize..self.ends[list] as usize]
    }
}

impl<T> FromIterator<Vec<T>> for Lists<T> {
    fn from_iter<I: IntoIterator<Item = Vec<T>>>(lists: I) -> Lists<T> {
        let mut made = Lists { all: Vec::new(), ends: Vec::new() };
        for list in lists {
            made.all.extend(list);
            made.ends.push(made.all.len() as u32);
        }
        made
    }
}
