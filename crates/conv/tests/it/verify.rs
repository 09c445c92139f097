//! The references for the errors of a configuration and of concurrent runs, on a backend whose algorithms have known errors.

use tightfit_conv::backend::{Backend, Effort, Offer, Run, Scale, Task, Tensors, Together};
use tightfit_conv::execute::{Data, Trial, Values, verify, verify_together};
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Measurement, Notes, Problem};
use tightfit_units::{Bytes, Error, Nanos};

/// Every output is 1, plus the largest error of the configuration's algorithms.
struct Off {
    device: Device,
    /// Name, notes, error, and whether it serves the whole mini-batch.
    algorithms: Vec<(&'static str, Notes, f32, bool)>,
    /// The configurations that ran.
    ran: Vec<String>,
    /// The additional error of outputs in concurrent runs.
    together: f32,
}

impl Off {
    fn new(algorithms: &[(&'static str, Notes, f32, bool)]) -> Off {
        let device = Device { backend: "cuda".into(), name: "off".into(), library: "1".into(), threads: 0 };
        Off { device, algorithms: algorithms.to_vec(), ran: Vec::new(), together: 0.0 }
    }

    fn refused(problem: &Problem, algorithm: &Algorithm) -> Error {
        let algorithm = algorithm.name().to_owned();
        Error::Refused { algorithm, problem: problem.to_string(), reason: "does not serve".to_owned() }
    }
}

impl Backend for Off {
    fn device(&self) -> &Device {
        &self.device
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        let offer = |&(name, notes, _, whole): &(&str, Notes, f32, bool)| Offer {
            algorithm: Algorithm::new(name),
            notes,
            workspace: if whole || problem.batch() < 4 { Ok(Bytes(8)) } else { Err("too large".to_owned()) },
        };
        Ok(self.algorithms.iter().map(offer).collect())
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        Err(Off::refused(problem, algorithm))
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, _: &Effort) -> Result<Measurement, Error> {
        Err(Off::refused(problem, algorithm))
    }

    fn run(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        tensors: Tensors<'_>,
        _: Scale,
    ) -> Result<Run, Error> {
        let mut off = 0.0f32;
        for part in configuration.parts() {
            let known = self.algorithms.iter().find(|(name, ..)| *name == part.algorithm.name());
            let Some((_, _, by, whole)) = known else { return Err(Off::refused(problem, &part.algorithm)) };
            if !whole && part.micro_batch >= 4 {
                return Err(Off::refused(problem, &part.algorithm));
            }
            off = off.max(*by);
        }
        self.ran.push(configuration.to_string());
        let output = vec![1.0 + off; tensors.output.len()];
        Ok(Run { output, time: Nanos(100), single: Some(Nanos(120)) })
    }

    fn run_together(&mut self, tasks: &[Task<'_>]) -> Result<Together, Error> {
        let mut outputs = Vec::new();
        for task in tasks {
            let run = self.run(task.problem, task.configuration, task.tensors, task.scale)?;
            outputs.push(run.output.into_iter().map(|value| value + self.together).collect());
        }
        Ok(Together { outputs, time: Nanos(130), streams: tasks.len() })
    }
}

fn problem() -> Problem {
    "forward n4 c1 h2 w2 k1 r1 s1 f32".parse().unwrap()
}

fn configuration(parts: &[(usize, &str)]) -> Configuration {
    let part =
        |&(micro_batch, name): &(usize, &str)| Candidate::new(Algorithm::new(name), micro_batch, Nanos(1), Bytes(8));
    Configuration::new(parts.iter().map(part).collect(), DivisionCost::default())
}

fn ones(_: &Problem, _: Tensors<'_>, _: Scale, at: &[usize]) -> Vec<f64> {
    vec![1.0; at.len()]
}

/// The error of the class, whether the configuration is within it, and what ran besides the two.
fn class_of(backend: &mut Off, chosen: &[(usize, &str)], undivided: &str) -> (Option<f64>, Option<bool>, Vec<String>) {
    let (problem, data) = (problem(), Data::random(&problem(), Values::Real, 1));
    let (configuration, undivided) = (configuration(chosen), configuration(&[(4, undivided)]));
    let trial = Trial {
        problem: &problem,
        configuration: &configuration,
        undivided: Some(&undivided),
        data: &data,
        scale: Scale::OVERWRITE,
    };
    backend.ran.clear();
    let seen = verify(backend, &trial, ones, 16).unwrap();
    let besides = if configuration == undivided { 1 } else { 2 };
    (seen.class_error_reference, seen.is_of_class(), backend.ran.split_off(besides))
}

const GEMM: (&str, Notes, f32, bool) = ("gemm", Notes::NONE, 0.0, true);

#[test]
fn an_error_is_compared_within_its_class() {
    let mut backend = Off::new(&[
        GEMM,
        ("winograd", Notes::WINOGRAD, 0.25, true),
        ("winograd-small", Notes::WINOGRAD, 0.5, false),
        ("winograd-coarse", Notes::WINOGRAD.with(Notes::NONDETERMINISTIC), 2.0, false),
        ("fft-small", Notes::FFT, 0.125, false),
    ]);
    let none: Vec<String> = Vec::new();
    // The undivided choice itself, or a configuration of its class, needs no further run.
    assert_eq!(class_of(&mut backend, &[(4, "gemm")], "gemm"), (Some(0.0), Some(true), none.clone()));
    assert_eq!(class_of(&mut backend, &[(2, "gemm"), (2, "gemm")], "gemm"), (Some(0.0), Some(true), none.clone()));
    // Another class is run undivided by the same algorithm, or by another of the class.
    let alone = vec!["4 winograd".to_owned()];
    let twice = [(2, "winograd"), (2, "winograd")];
    assert_eq!(class_of(&mut backend, &twice, "gemm"), (Some(0.25), Some(true), alone.clone()));
    let small = [(2, "winograd-small"), (2, "winograd-small")];
    assert_eq!(class_of(&mut backend, &small, "gemm"), (Some(0.25), Some(true), alone.clone()));
    assert_eq!(class_of(&mut backend, &small, "winograd"), (Some(0.25), Some(true), none.clone()));
    // Whether two runs agree makes no class; more than twice the error does not pass.
    let coarse = [(2, "winograd-coarse"), (2, "winograd-coarse")];
    assert_eq!(class_of(&mut backend, &coarse, "gemm"), (Some(0.25), Some(false), alone.clone()));
    // With several classes the larger error counts. A class without an undivided algorithm leaves no reference.
    assert_eq!(class_of(&mut backend, &[(2, "winograd"), (2, "gemm")], "gemm"), (Some(0.25), Some(true), alone));
    assert_eq!(class_of(&mut backend, &[(2, "fft-small"), (2, "gemm")], "gemm").0, None);
}

#[test]
fn differences_side_by_side_are_seen() {
    let mut backend = Off::new(&[GEMM]);
    let (problem, data) = (problem(), Data::random(&problem(), Values::Real, 1));
    let configuration = configuration(&[(2, "gemm"), (2, "gemm")]);
    let trial = Trial {
        problem: &problem,
        configuration: &configuration,
        undivided: None,
        data: &data,
        scale: Scale::OVERWRITE,
    };
    for (off, error) in [(0.0, 0.0), (0.5, 0.5)] {
        backend.together = off;
        let seen = verify_together(&mut backend, vec![3, 7], &[trial, trial]).unwrap();
        assert_eq!((seen.error, seen.time, seen.alone), (error, Nanos(130), Nanos(200)));
        assert_eq!((seen.workspace, seen.streams, seen.kernels), (Bytes(16), 2, vec![3, 7]));
    }
}
