//! Which configurations of a problem are as accurate as the framework's choice. The errors come from comparisons of this
//! process and of earlier ones.

use tightfit_conv::{Algorithm, Configuration, DivisionCost, Notes};
use tightfit_profile::Comparison;

use super::accuracy::is_allowed;
use crate::kernel::Question;
use crate::log::trace;
use crate::settings::Terms;

/// The comparisons for one question, found without regard to the times of their configurations.
#[derive(Clone, Debug, Default)]
pub struct Errors(Vec<Comparison>);

impl Errors {
    /// The cache's entries.
    pub fn new(known: Vec<Comparison>) -> Errors {
        Errors(known)
    }

    /// Records a comparison.
    pub fn add(&mut self, new: Comparison) {
        let new = Comparison { configuration: new.configuration.without_times(), ..new };
        self.0.retain(|known| known.configuration != new.configuration);
        self.0.push(new);
    }

    /// Whether a configuration may replace the framework's choice on these terms, or `None` if that takes a comparison.
    pub fn allow(&self, question: &Question, terms: Terms, ours: &Configuration) -> Option<bool> {
        let ours = ours.without_times();
        let known = self.0.iter().find(|known| known.configuration == ours);
        known.and_then(|known| is_allowed_by(known, question, terms))
    }

    /// The algorithms that are not accurate enough on these terms, by the library's report about their arithmetic.
    pub fn inaccurate(
        &self,
        question: &Question,
        terms: Terms,
        mut notes: impl FnMut(&Algorithm) -> Notes,
    ) -> Inaccurate {
        let is_out = |known: &&Comparison| is_allowed_by(known, question, terms) == Some(false);
        let mut inaccurate = Inaccurate::default();
        for known in self.0.iter().filter(is_out) {
            let algorithms = blamed(&known.configuration, &question.chosen.algorithm).into_iter();
            inaccurate.add(algorithms.map(|one| (one.clone(), notes(one))).collect());
        }
        inaccurate
    }
}

/// Whether a comparison allows its configuration to replace the framework's choice on these terms, or `None` if that takes
/// another.
fn is_allowed_by(known: &Comparison, question: &Question, terms: Terms) -> Option<bool> {
    let (chosen, storage) = (&question.chosen.algorithm, question.problem.types().storage());
    let theirs = known.own.as_ref().filter(|(own, _)| own == chosen).map(|(_, error)| *error);
    let is_allowed = is_allowed(storage, terms.is_auto, theirs.unwrap_or_default(), known.error);
    // Without the error of the framework's choice, a right output is right, and an error may be as large as that choice's.
    let is_known = is_allowed || theirs.is_some() || !terms.is_auto;
    is_known.then_some(is_allowed)
}

/// Verdicts from the errors of configurations that ran on the same data, on each except the framework's choice, which
/// may be among them.
pub fn comparisons(question: &Question, errors: Vec<(Configuration, f64)>) -> Vec<Comparison> {
    let (own, ours): (Vec<_>, Vec<_>) = errors.into_iter().partition(|(one, _)| is_own(one, question));
    let own = own.first().map(|(_, error)| (question.chosen.algorithm.clone(), *error));
    ours.into_iter().map(|(configuration, error)| Comparison { configuration, error, own: own.clone() }).collect()
}

/// Whether a configuration is the framework's choice itself.
pub fn is_own(configuration: &Configuration, question: &Question) -> bool {
    matches!(configuration.parts(), [part] if part.algorithm == question.chosen.algorithm)
}

/// The framework's choice as a configuration.
pub fn own(question: &Question) -> Configuration {
    Configuration::new(vec![question.own()], DivisionCost::default())
}

/// Logs that a configuration is left out for its error.
pub fn log_inaccurate(question: &Question, ours: &Configuration) {
    trace!("{}: {ours} is less accurate than {}", question.problem, question.chosen.algorithm);
}

/// The algorithms to which an inaccurate configuration owes its error: the ones that the framework did not choose, if any.
fn blamed<'a>(ours: &'a Configuration, chosen: &Algorithm) -> Vec<&'a Algorithm> {
    let all: Vec<&Algorithm> = ours.parts().iter().flat_map(|part| part.algorithm.plain()).collect();
    let others: Vec<&Algorithm> = all.iter().copied().filter(|one| *one != chosen).collect();
    if others.is_empty() { all } else { others }
}

/// Configurations that are less accurate than the framework's choice.
#[derive(Default)]
pub struct Inaccurate {
    algorithms: Vec<Algorithm>,
    transforms: Vec<Notes>,
}

impl Inaccurate {
    /// Records the algorithms of a configuration, with the library's report about their arithmetic. Where transforms are
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
    use tightfit_conv::Candidate;
    use tightfit_units::{Bytes, Nanos};

    use super::*;
    use crate::kernel::samples;
    use crate::settings::Limit;

    fn question() -> Question {
        samples::question("own")
    }

    fn terms(is_auto: bool) -> Terms {
        Terms { is_auto, ..samples::terms(Limit::PerKernel(Bytes(512))) }
    }

    fn configuration(algorithms: [&str; 2], time: u64) -> Configuration {
        let part = |algorithm| Candidate::new(Algorithm::new(algorithm), 2, Nanos(time), Bytes(8));
        Configuration::new(algorithms.map(part).into(), DivisionCost::default())
    }

    #[test]
    fn accuracy_follows_from_both_errors() {
        let (question, ours) = (question(), configuration(["fft", "fft"], 7));
        let allow = |theirs: Option<f64>, error: f64, is_auto: bool| {
            let all = theirs.map(|theirs| (own(&question), theirs)).into_iter().chain([(ours.clone(), error)]);
            let mut errors = Errors::default();
            comparisons(&question, all.collect()).into_iter().for_each(|one| errors.add(one));
            // The time does not matter.
            let slower = configuration(["fft", "fft"], 9);
            assert_eq!(
                errors.allow(&question, terms(is_auto), &slower),
                errors.allow(&question, terms(is_auto), &ours)
            );
            errors.allow(&question, terms(is_auto), &ours)
        };
        assert_eq!([1.9e-4, 2.1e-4].map(|error| allow(Some(1e-4), error, true)), [Some(true), Some(false)]);
        assert_eq!([1e-3, 0.1].map(|error| allow(Some(1e-4), error, false)), [Some(true), Some(false)]);
        // The framework's choice was not compared, and may have the same error.
        assert_eq!([0.0, 1e-3].map(|error| allow(None, error, true)), [Some(true), None]);
        assert_eq!([1e-3, 0.1].map(|error| allow(None, error, false)), [Some(true), Some(false)]);
        assert_eq!(Errors::default().allow(&question, terms(true), &ours), None, "not compared");
    }

    #[test]
    fn errors_are_judged_within_one_comparison() {
        let ours = configuration(["fft", "fft"], 7);
        let mut errors = Errors::default();
        let of = |own: &str, error: f64| Comparison {
            configuration: ours.clone(),
            error,
            own: Some((Algorithm::new(own), error)),
        };
        let allow = |errors: &Errors| errors.allow(&question(), terms(true), &ours);
        errors.add(of("own", 1e-3));
        assert_eq!(allow(&errors), Some(true));
        // Compared with another choice, for which nothing follows.
        errors.add(of("another", 1e-3));
        assert_eq!(allow(&errors), None);
    }

    #[test]
    fn an_inaccurate_transform_leaves_out_all_its_algorithms() {
        let notes = |one: &Algorithm| match one.name() {
            "fft" | "tiling" => Notes::FFT,
            _ => Notes::NONE,
        };
        let inaccurate = |algorithms: [&str; 2]| {
            let mut errors = Errors::default();
            let compared = vec![(own(&question()), 1e-6), (configuration(algorithms, 1), 1e-3)];
            comparisons(&question(), compared).into_iter().for_each(|one| errors.add(one));
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
