//! Whether a framework is still trying several choices for one convolution, as `torch.backends.cudnn.benchmark` asks for.
//!
//! ```text
//! plans    conv1 by a, by b, by c                    conv1 is tried: each plan runs as itself
//! runs     a a a  b b b  c c c                       nothing else in between
//! runs     b  conv2  ..  b  conv2                    b goes on: it may be replaced
//! ```

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tightfit_conv::Problem;

/// Numbers the stretches of executions of one convolution, over all threads.
static STRETCHES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The convolution that the thread executed last, and the number of the stretch.
    static LAST: Cell<Option<(Problem, u64)>> = const { Cell::new(None) };
}

/// The trial of one choice.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Whether the convolution has another choice.
    is_contested: AtomicBool,
    /// The stretch in which it was first executed; 0 for none.
    first: AtomicU64,
    is_over: AtomicBool,
}

impl Trial {
    /// Of a new choice; the others are for the same convolution.
    pub fn new<'a>(others: impl Iterator<Item = &'a Trial>) -> Trial {
        let mut is_contested = false;
        for other in others {
            other.is_contested.store(true, Ordering::Relaxed);
            is_contested = true;
        }
        Trial { is_contested: AtomicBool::new(is_contested), ..Trial::default() }
    }

    /// Whether the choice is still executed, or is the only one.
    pub fn goes_on(&self) -> bool {
        !self.is_contested.load(Ordering::Relaxed) || self.is_over.load(Ordering::Relaxed)
    }

    /// Whether it is over when the kernel of this convolution is executed now.
    pub fn is_over(&self, problem: &Problem) -> bool {
        let stretch = LAST.try_with(|last| match last.get() {
            Some((known, stretch)) if known == *problem => stretch,
            _ => {
                let stretch = STRETCHES.fetch_add(1, Ordering::Relaxed);
                last.set(Some((*problem, stretch)));
                stretch
            }
        });
        if self.goes_on() {
            return true;
        }
        // A thread that is ending tries nothing.
        let Ok(stretch) = stretch else { return true };
        let first = match self.first.compare_exchange(0, stretch, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => stretch,
            Err(first) => first,
        };
        if first != stretch {
            self.is_over.store(true, Ordering::Relaxed);
        }
        first != stretch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(channels: usize) -> Problem {
        format!("forward n4 c{channels} h8 w8 k4 r3 s3 f32").parse().unwrap()
    }

    #[test]
    fn a_choice_among_several_is_tried_until_others_ran_in_between() {
        let (one, other) = (problem(3), problem(4));
        let alone = Trial::default();
        assert!(alone.is_over(&one) && alone.is_over(&one));
        let [first, second] = [(); 2].map(|()| Trial { is_contested: AtomicBool::new(true), ..Trial::default() });
        for _ in 0..3 {
            assert!(!first.is_over(&one));
        }
        for _ in 0..3 {
            assert!(!second.is_over(&one));
        }
        assert!(alone.is_over(&other));
        assert!(second.is_over(&one) && second.is_over(&one), "goes on");
        assert!(alone.is_over(&other) && first.is_over(&one), "goes on as well");
    }
}
