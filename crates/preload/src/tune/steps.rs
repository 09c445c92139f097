//! The length of a step, and the executions of a convolution in one, by the latest executions.
//!
//! ```text
//! executions   .. | the window before: 16 steps or more | this window, up to as long |
//! calls           |         30 of most convolutions, 3 in a smaller last batch, 90 of one used three times a step
//! step            |         executions / 30
//! ```
//!
//! The program does not mark where a step begins. Most executions belong to every step. The rarest of these kernels is
//! executed once per step. Executions before both windows, such as a first validation, no longer count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Steps of a window.
const WINDOW_STEPS: u64 = 16;
/// A kernel with less than this share of all executions does not belong to every step.
const RARE_SHARE: f64 = 0.15;
/// A kernel that is executed less often than others by this factor may be rare.
const RARE_FACTOR: u64 = 3;

/// See the module.
#[derive(Default)]
pub(super) struct Steps {
    /// Executions of each convolution in the window before and in this one.
    calls: HashMap<usize, [u64; 2]>,
    executions: [u64; 2],
    /// The shortest time of an execution, as the mean of a step: others were held up.
    least: [Option<Duration>; 2],
    /// Executions of a step.
    length: u64,
    /// Steps seen in both windows.
    seen: u64,
    /// Executions in the current step, and when it began.
    in_step: u64,
    began: Option<Instant>,
}

impl Steps {
    /// Records an execution. Returns whether a step ends with it.
    pub fn on_execution(&mut self, kernel: usize, now: Instant) -> bool {
        self.calls.entry(kernel).or_default()[1] += 1;
        self.executions[1] += 1;
        self.in_step += 1;
        if self.in_step < self.length {
            return false;
        }
        // There is no step before a convolution was seen twice.
        if let Some(began) = self.began.filter(|_| self.seen > 1) {
            let took = now.duration_since(began) / u32::try_from(self.in_step).unwrap_or(u32::MAX);
            self.least[1] = Some(self.least[1].map_or(took, |least| least.min(took)));
        }
        (self.in_step, self.began) = (0, Some(now));
        self.seen = self.once_a_step();
        self.length = self.all() / self.seen;
        if self.executions[1] >= WINDOW_STEPS * self.length {
            self.calls.values_mut().for_each(|calls| *calls = [calls[1], 0]);
            self.executions = [self.executions[1], 0];
            self.least = [self.least[1], None];
        }
        true
    }

    /// Executions of a step, as far as known.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether it was executed before.
    pub fn knows(&self, kernel: usize) -> bool {
        self.calls.contains_key(&kernel)
    }

    /// Executions in both windows.
    fn all(&self) -> u64 {
        self.executions.iter().sum()
    }

    /// How often that was executed which is executed once a step.
    fn once_a_step(&self) -> u64 {
        let mut calls: Vec<u64> = self.calls.values().map(|calls| calls.iter().sum()).collect();
        calls.sort_unstable();
        let mut rare = RARE_SHARE * self.all() as f64;
        let common = calls.iter().find(|calls| {
            rare -= **calls as f64;
            rare < 0.0
        });
        let common = common.copied().unwrap_or(1);
        calls.retain(|calls| calls * RARE_FACTOR >= common);
        calls.get(calls.len() / 10).copied().unwrap_or(1).max(1)
    }

    /// How often a convolution was executed in a step lately.
    pub fn calls_a_step(&self, kernel: usize) -> f64 {
        let calls: u64 = self.calls.get(&kernel).into_iter().flatten().sum();
        calls as f64 * self.length as f64 / self.all().max(1) as f64
    }

    /// The time of a step, once one was seen.
    pub fn time(&self) -> Option<Duration> {
        let least = self.least.into_iter().flatten().min()?;
        Some(least * u32::try_from(self.length).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A program whose executions take a millisecond each.
    struct Program {
        steps: Steps,
        now: Instant,
    }

    impl Program {
        fn new() -> Program {
            Program { steps: Steps::default(), now: Instant::now() }
        }

        fn run(&mut self, kernels: impl IntoIterator<Item = usize>) {
            for kernel in kernels {
                self.now += MILLISECOND;
                self.steps.on_execution(kernel, self.now);
            }
        }

        /// A step is taken for as long as it is, within a quarter, and its time follows.
        fn assert_step(&self, length: u64) {
            let known = self.steps.length;
            assert!(known.abs_diff(length) * 4 <= length, "{known} for {length}");
            assert_eq!(self.steps.time(), Some(MILLISECOND * known as u32));
        }

        fn assert_calls(&self, kernel: usize, a_step: f64) {
            let known = self.steps.calls_a_step(kernel);
            assert!((known - a_step).abs() <= a_step / 4.0 + 0.1, "{known} for {a_step}");
        }
    }

    #[test]
    fn a_step_of_plain_training_is_every_convolution_once() {
        let mut program = Program::new();
        program.run(0..50);
        assert_eq!(program.steps.time(), None, "nothing was seen twice");
        for step in 1..200 {
            program.run(0..50);
            if step > 10 {
                program.assert_step(50);
                program.assert_calls(7, 1.0);
            }
        }
    }

    #[test]
    fn other_batches_in_a_while_make_no_step_longer() {
        for every in [10, 20] {
            let mut program = Program::new();
            for step in 1..2000 {
                program.run(if step % every == 0 { 100..150 } else { 0..50 });
                if step > 100 {
                    program.assert_step(50);
                }
            }
            program.assert_calls(7, 1.0);
            program.assert_calls(120, 1.0 / every as f64);
        }
    }

    #[test]
    fn earlier_executions_are_forgotten() {
        let mut program = Program::new();
        // Two batches of validation, of another size.
        (0..2).for_each(|_| program.run(200..250));
        (0..100).for_each(|_| program.run(0..150));
        program.assert_step(150);
        program.assert_calls(7, 1.0);
        program.assert_calls(220, 0.0);
        // Later, a long validation in between.
        (0..300).for_each(|_| program.run(200..250));
        (0..100).for_each(|_| program.run(0..150));
        program.assert_step(150);
    }

    #[test]
    fn a_convolution_may_run_several_times_a_step() {
        let mut program = Program::new();
        // The first one is used three times, one in the middle 23 times, as in ResNet-101.
        (0..200).for_each(|_| program.run((0..20).chain([0; 2]).chain([13; 22])));
        program.assert_step(44);
        program.assert_calls(0, 3.0);
        program.assert_calls(13, 23.0);
        program.assert_calls(7, 1.0);
    }
}
