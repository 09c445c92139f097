//! A case: a built-in network, its measured convolutions, and a mini-batch.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Backend, Problem, Types};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_network::Network;
use tightfit_plan::{Fronts, Mode, Workload};
use tightfit_profile::survey::{Env, Scope, Sizes, survey};
use tightfit_profile::{Cache, Recording};
use tightfit_units::Bytes;

use crate::Failure;

/// `NETWORK:BATCH`.
pub fn case(text: &str) -> Result<(Network, usize), Failure> {
    let (name, batch) = text.split_once(':').ok_or("a case is NETWORK:BATCH")?;
    Ok((Network::open(name)?, batch.parse()?))
}

/// Deterministic candidates of the workload's convolutions: the whole mini-batch, halves and quarters.
fn candidates(workload: &Workload<'_>, cache: &Cache) -> Result<HashMap<Problem, Candidates>, Failure> {
    let scope = Scope { deterministic: true, ..Scope::new(Sizes::Undivided, vec![Bytes(16 << 30)]) };
    let env = Env { cache: Some(cache), ..Env::default() };
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(CudaBackend::open(&Options::default())?)];
    let problems = workload.problems()?;
    let mut found: HashMap<Problem, Candidates> = HashMap::new();
    for parts in [1, 2, 4] {
        let size = (workload.batch / parts).max(1);
        let smaller = problems.iter().map(|problem| problem.with_batch(size)).collect::<Result<Vec<_>, _>>()?;
        let mut survey = survey(&smaller, &scope, &mut backends, &env)?;
        for (problem, smaller) in problems.iter().zip(&smaller) {
            let Some(own) = survey.candidates.remove(smaller) else { continue };
            match found.entry(*problem) {
                Entry::Vacant(entry) => drop(entry.insert(own)),
                Entry::Occupied(mut entry) => entry.get_mut().candidates.extend(own.candidates),
            }
        }
    }
    Ok(found)
}

/// The candidates as a plan takes them.
pub fn kernels(workload: &Workload<'_>, cache: &Cache) -> Result<Fronts, Failure> {
    Ok(Fronts::of(&candidates(workload, cache)?)?)
}

/// Measures the convolutions of the cases into a cache, starting from the measurements of a recording.
pub fn profile(cache: &Path, recording: &str, cases: &[&str]) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    if recording != "-" {
        for recording in Recording::read(Path::new(recording))? {
            cache.import(&recording)?;
        }
    }
    for text in cases {
        let started = std::time::Instant::now();
        let (network, batch) = case(text)?;
        kernels(&Workload::new(&network, batch, Types::F32, Mode::Training)?, &cache)?;
        println!("{text}: profiled in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Numbers between -1 and 1, the same for the same seed.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let key = tightfit_cpu::random::key(&[seed]);
    (0..count as u64).map(|i| tightfit_cpu::random::uniform(key, i)).collect()
}

/// A mini-batch and labels that stay the same: the time of a step does not depend on them.
pub fn batch(workload: &Workload<'_>) -> (Vec<f32>, Vec<u32>) {
    let layers = workload.network.layers();
    let classes = layers.last().map_or(1, |layer| layer.shape.len()) as u32;
    let sample = layers[0].shape.len();
    // Numbers repeat after one megabyte: more of them take longer to make and test nothing else.
    let pattern = numbers(1 << 18, 7);
    let samples = pattern.iter().cycle().take(workload.batch * sample).copied().collect();
    (samples, (0..workload.batch as u32).map(|n| n * 7 % classes).collect())
}
