//! A value that every call reads and that is replaced now and then.

use std::sync::OnceLock;

/// The latest of a few values. Reading takes no lock and never waits; a value that was replaced stays until all are
/// dropped, because a reader may still use it.
#[derive(Debug)]
pub struct Latest<T> {
    value: T,
    next: OnceLock<Box<Latest<T>>>,
}

impl<T> Latest<T> {
    /// The first value.
    pub const fn new(value: T) -> Latest<T> {
        Latest { value, next: OnceLock::new() }
    }

    /// The latest value, in as many steps as there were replacements.
    pub fn get(&self) -> &T {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        &last.value
    }

    /// Replaces the value for whoever reads it from now on.
    pub fn replace(&self, value: T) {
        let mut last = self;
        let mut new = Box::new(Latest::new(value));
        while let Err(refused) = last.next.set(new) {
            // Another thread was first, so there is a next one.
            new = refused;
            if let Some(next) = last.next.get() {
                last = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_latest_value_and_keep_the_one_they_have() {
        let latest = Latest::new(0);
        let first = latest.get();
        std::thread::scope(|threads| {
            for value in 1..=8 {
                let latest = &latest;
                threads.spawn(move || latest.replace(value));
            }
        });
        assert_ne!(*latest.get(), 0);
        assert_eq!(*first, 0);
        latest.replace(9);
        assert_eq!(*latest.get(), 9);
    }
}
