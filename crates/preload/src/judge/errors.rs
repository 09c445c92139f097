//! Which configurations of a problem are as accurate as the framework's choice, by the errors that comparisons have shown, in this
//! process and in earlier ones.

use tightfit_core::{Algorithm, Configuration, DivisionCost, Notes};

use super::accuracy::is_allowed;
use crate::kernel::Question;
use crate::log::trace;
use crate::settings::Terms;

/// The errors of configurations of one problem, each known again whatever time it takes.
#[derive(Clone, Debug, Default)]
pub struct Errors(Vec<(Configuration, f64)>);

impl Errors {
    /// What a cache has.
    pub fn new(known: Vec<(Configuration, f64)>) -> Errors {
        Errors(known)
    }

    /// Takes down an error.
    pub fn add(&mut self, configuration: &Configuration, error: f64) {
        let configuration = configuration.without_times();
        self.0.retain(|(known, _)| *known != configuration);
        self.0.push((configuration, error));
    }

    /// The error of a configuration, if it was compared.
    pub fn of(&self, configuration: &Configuration) -> Option<f64> {
        let configuration = configuration.without_times();
        self.0.iter().find(|(known, _)| *known == configuration).map(|(_, error)| *error)
    }

    /// Whether a configuration may replace the framework's choice on these terms; none if that takes a comparison.
    pub fn allow(&self, question: &Question, terms: Terms, ours: &Configuration) -> Option<bool> {
        self.of(ours).and_then(|error| self.allow_error(question, terms, error))
    }

    fn allow_error(&self, question: &Question, terms: Terms, ours: f64) -> Option<bool> {
        let (theirs, storage) = (self.of(&own(question)), question.problem.types().storage());
        let is_allowed = is_allowed(storage, terms.is_auto, theirs.unwrap_or_default(), ours);
        // Without the error of the framework's choice, what is right is right, and what errs may err as much as that choice.
        let is_known = is_allowed || theirs.is_some() || !terms.is_auto;
        is_known.then_some(is_allowed)
    }

    /// The algorithms of those that are not accurate enough on these terms, by what the library reports about their arithmetic.
    pub fn inaccurate(
        &self,
        question: &Question,
        terms: Terms,
        mut notes: impl FnMut(&Algorithm) -> Notes,
    ) -> Inaccurate {
        let is_out = |error: f64| self.allow_error(question, terms, error) == Some(false);
        let mut inaccurate = Inaccurate::default();
        for (ours, _) in self.0.iter().filter(|(_, error)| is_out(*error)) {
            let algorithms = blamed(ours, &question.chosen.algorithm).into_iter();
            inaccurate.add(algorithms.map(|one| (one.clone(), notes(one))).collect());
        }
        inaccurate
    }
}

/// The framework's choice as a configuration.
pub fn own(question: &Question) -> Configuration {
    Configuration::new(vec![question.own()], DivisionCost::default())
}

/// Logs that a configuration is left out for its error.
pub fn log_inaccurate(question: &Question, ours: &Configuration) {
    trace!("{}: {ours} is less accurate than {}", question.problem, question.chosen.algorithm);
}

/// The algorithms to which an inaccurate configuration owes its error: those that the framework did not choose, if there are any.
fn blamed<'a>(ours: &'a Configuration, chosen: &Algorithm) -> Vec<&'a Algorithm> {
    let all: Vec<&Algorithm> = ours.parts().iter().flat_map(|part| part.algorithm.plain()).collect();
    let others: Vec<&Algorithm> = all.iter().copied().filter(|one| *one != chosen).collect();
    if others.is_empty() { all } else { others }
}

/// What is less accurate than the framework's choice.
#[derive(Default)]
pub struct Inaccurate {
    algorithms: Vec<Algorithm>,
    transforms: Vec<Notes>,
}

impl Inaccurate {
    /// Takes down the algorithms of a configuration, with what the library reports about their arithmetic. Where transforms are
    /// among them, it is these: others by the same are no better.
    fn add(&mut self, parts: Vec<(Algorithm, Notes)>) {
        let transforms: Vec<Notes> = parts.iter().filter_map(|(_, notes)| transform(*notes)).collect();
        match transforms.is_empty() {
            true => self.algorithms.extend(parts.into_iter().map(|(algorithm, _)| algorithm)),
            false => self.transforms.extend(transforms),
        }
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.algorithms.is_empty() && self.transforms.is_empty()
    }

    /// Whether an algorithm is among it.
    pub fn contains(&self, algorithm: &Algorithm, notes: Notes) -> bool {
        self.algorithms.contains(algorithm) || transform(notes).is_some_and(|by| self.transforms.contains(&by))
    }
}

/// The transform by which an algorithm computes, if any.
fn transform(notes: Notes) -> Option<Notes> {
    [Notes::WINOGRAD, Notes::FFT].into_iter().find(|one| notes.contains(*one))
}

#[cfg(test)]
mod tests {
    use tightfit_core::backend::Scale;
    use tightfit_core::survey::{Divide, Sizes};
    use tightfit_core::{Bytes, Candidate, Nanos};
    use tightfit_cuda::Chosen;

    use super::*;
    use crate::kernel::bits;
    use crate::settings::{Limit, Tune};

    fn question() -> Question {
        Question {
            device: 0,
            problem: "forward n4 c3 h8 w8 k4 r3 s3 f32".parse().unwrap(),
            chosen: Chosen { algorithm: Algorithm::new("own"), workspace: Bytes(512), notes: Notes::NONE },
            admitted: Notes::NONE,
            factors: bits(Scale::OVERWRITE),
            base: 16,
        }
    }

    fn terms(is_auto: bool) -> Terms {
        let limit = Limit::PerKernel(Bytes(512));
        Terms { limit, sizes: Sizes::Fit, divide: Divide::Both, tune: Tune::Measure, is_auto }
    }

    fn configuration(algorithms: [&str; 2], time: u64) -> Configuration {
        let part = |algorithm| Candidate {
            micro_batch: 2,
            algorithm: Algorithm::new(algorithm),
            time: Nanos(time),
            workspace: Bytes(8),
        };
        Configuration::new(algorithms.map(part).into(), DivisionCost::default())
    }

    #[test]
    fn what_is_accurate_follows_from_both_errors() {
        let (question, ours) = (question(), configuration(["fft", "fft"], 7));
        let allow = |theirs: Option<f64>, error: f64, is_auto: bool| {
            let mut errors = Errors::default();
            if let Some(theirs) = theirs {
                errors.add(&own(&question), theirs);
            }
            errors.add(&ours, error);
            // Whatever time it takes.
            assert_eq!(errors.of(&configuration(["fft", "fft"], 9)), Some(error));
            errors.allow(&question, terms(is_auto), &ours)
        };
        assert_eq!([1.9e-4, 2.1e-4].map(|error| allow(Some(1e-4), error, true)), [Some(true), Some(false)]);
        assert_eq!([1e-3, 0.1].map(|error| allow(Some(1e-4), error, false)), [Some(true), Some(false)]);
        // The framework's choice was not compared: what errs may err as it does.
        assert_eq!([0.0, 1e-3].map(|error| allow(None, error, true)), [Some(true), None]);
        assert_eq!([1e-3, 0.1].map(|error| allow(None, error, false)), [Some(true), Some(false)]);
        assert_eq!(Errors::default().allow(&question, terms(true), &ours), None, "not compared");
    }

    #[test]
    fn what_is_inaccurate_by_a_transform_leaves_out_all_by_the_same() {
        let notes = |one: &Algorithm| match one.name() {
            "fft" | "tiling" => Notes::FFT,
            _ => Notes::NONE,
        };
        let inaccurate = |algorithms: [&str; 2]| {
            let mut errors = Errors::default();
            errors.add(&own(&question()), 1e-6);
            errors.add(&configuration(algorithms, 1), 1e-3);
            let inaccurate = errors.inaccurate(&question(), terms(true), notes);
            ["own", "gemm", "direct", "fft", "tiling"].map(|name| {
                let one = Algorithm::new(name);
                inaccurate.contains(&one, notes(&one))
            })
        };
        assert_eq!(inaccurate(["fft", "gemm"]), [false, false, false, true, true]);
        assert_eq!(inaccurate(["own", "gemm"]), [false, true, false, false, false]);
        // Divided, the framework's own may be wrong.
        assert_eq!(inaccurate(["own", "own"]), [true, false, false, false, false]);
    }
}
