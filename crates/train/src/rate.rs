//! The learning rate of each step: warm-up, then constant, in steps, or along a cosine.
//!
//! ```text
//! base          ________                          ________                 ______
//!         _____/        constant            _____/        |___ step  _____/      \__ cosine
//!   warm-up                                                   |___                  \____ 0 at the end
//! ```

use std::f64::consts::PI;

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// It stays.
    Constant,
    /// It is multiplied by `factor` every `every` steps, counted from the first step of training.
    Step {
        /// Number of steps, at least 1.
        every: u64,
        /// Factor.
        factor: f32,
    },
    /// It falls to 0 at the end along half a cosine (Loshchilov and Hutter 2017).
    Cosine,
}

/// The learning rate over a training run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The rate after the warm-up.
    pub base: f32,
    /// Number of steps in which it rises linearly.
    pub warm_up: u64,
    /// How it falls after that.
    pub decay: Decay,
    /// Number of steps of the whole run.
    pub steps: u64,
}

impl LearningRate {
    /// The learning rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f32 {
        if step < self.warm_up {
            return (f64::from(self.base) * (step + 1) as f64 / self.warm_up as f64) as f32;
        }
        match self.decay {
            Decay::Constant => self.base,
            Decay::Step { every, factor } => {
                // Past 2^31 times, any factor below 1 gives 0.
                let times = i32::try_from(step / every.max(1)).unwrap_or(i32::MAX);
                (f64::from(self.base) * f64::from(factor).powi(times)) as f32
            }
            Decay::Cosine => {
                let left = self.steps.saturating_sub(self.warm_up).max(1) as f64;
                let done = ((step - self.warm_up) as f64 / left).min(1.0);
                (f64::from(self.base) * 0.5 * (1.0 + (PI * done).cos())) as f32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(warm_up: u64, decay: Decay) -> Vec<f32> {
        let rate = LearningRate { base: 8.0, warm_up, decay, steps: 8 };
        (0..9).map(|step| rate.at(step)).collect()
    }

    #[test]
    fn rates_rise_and_fall_as_drawn() {
        assert_eq!(rates(0, Decay::Constant), [8.0; 9]);
        assert_eq!(rates(4, Decay::Constant)[..5], [2.0, 4.0, 6.0, 8.0, 8.0]);
        let step = Decay::Step { every: 3, factor: 0.5 };
        assert_eq!(rates(2, step), [4.0, 8.0, 8.0, 4.0, 4.0, 4.0, 2.0, 2.0, 2.0]);
        let cosine = rates(4, Decay::Cosine);
        for (got, wanted) in cosine[4..].iter().zip([8.0, 6.828_427, 4.0, 1.171_573, 0.0]) {
            assert!((got - wanted).abs() < 1e-5, "{cosine:?}");
        }
    }

    #[test]
    fn extremes_stay_finite() {
        for decay in [Decay::Constant, Decay::Step { every: 0, factor: 0.1 }, Decay::Cosine] {
            for warm_up in [0, 8, u64::MAX] {
                let rate = LearningRate { base: 1.0, warm_up, decay, steps: 8 };
                assert!([0, 7, 8, u64::MAX - 1].into_iter().all(|step| rate.at(step).is_finite()), "{rate:?}");
            }
        }
    }
}
