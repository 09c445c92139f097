//! A list that only grows. Every call reads it, without a lock.

use std::sync::OnceLock;

/// A list without a value twice. Reading takes no lock and never waits.
#[derive(Debug)]
pub struct AppendOnlyList<T> {
    value: T,
    next: OnceLock<Box<AppendOnlyList<T>>>,
}

impl<T: PartialEq> AppendOnlyList<T> {
    /// A list of one value.
    pub fn new(value: T) -> AppendOnlyList<T> {
        AppendOnlyList { value, next: OnceLock::new() }
    }

    /// Its values, by order of adding.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::successors(Some(self), |list| list.next.get().map(Box::as_ref)).map(|list| &list.value)
    }

    /// Adds a value unless the list has it; returns whether it was added.
    pub fn add(&self, value: T) -> bool {
        let mut last = self;
        let mut new = Box::new(AppendOnlyList::new(value));
        loop {
            if last.value == new.value {
                return false;
            }
            last = match last.next.get() {
                Some(next) => next,
                None => match last.next.set(new) {
                    Ok(()) => return true,
                    Err(refused) => {
                        // Another thread was first, so there is a next one.
                        new = refused;
                        continue;
                    }
                },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_each_value_once() {
        let list = AppendOnlyList::new(0);
        let added = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for value in 0..50 {
                        added.fetch_add(usize::from(list.add(value)), std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
        });
        let mut values: Vec<i32> = list.iter().copied().collect();
        values.sort_unstable();
        assert_eq!(values, (0..50).collect::<Vec<_>>());
        assert_eq!(added.into_inner(), 49);
    }
}
