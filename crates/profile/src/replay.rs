//! A backend that answers from recorded profiles, so that everything except running kernels works without the device.

use tightfit_conv::backend::{Backend, Device, Effort, Offer, Run, Scale, Tensors, corrected};
use tightfit_conv::candidate::{Algorithm, Measurement};
use tightfit_conv::{Configuration, DivisionCost, Problem};
use tightfit_units::{Bytes, Error};

use super::Recording;

/// A recorded device.
#[derive(Clone, Debug)]
pub struct Replay {
    device: Device,
    recording: Recording,
}

impl Replay {
    /// Replays several recordings of one device, merged as by [`Recording::by_device`].
    ///
    /// # Errors
    /// [`Error::SeveralDevices`] for several devices; [`Error::Backend`] without a recording.
    pub fn of(recordings: impl IntoIterator<Item = Recording>) -> Result<Replay, Error> {
        let refuse = |what| Error::Backend { backend: "replay".to_owned(), what, source: None };
        let recordings = recordings.into_iter().filter(|recording| !recording.is_of_decisions());
        let mut recordings = Recording::by_device(recordings);
        if recordings.len() > 1 {
            let devices = recordings.iter().map(|recording| recording.device.to_string()).collect();
            return Err(Error::SeveralDevices { devices });
        }
        let recording = recordings.pop().ok_or_else(|| refuse("there is no recording to replay".to_owned()))?;
        let device = Device { backend: "replay".to_owned(), ..recording.device.clone() };
        Ok(Replay { device, recording })
    }

    fn refused(problem: &Problem, algorithm: &Algorithm, reason: &str) -> Error {
        Error::Refused {
            algorithm: algorithm.name().to_owned(),
            problem: problem.to_string(),
            reason: reason.to_owned(),
        }
    }
}

impl Backend for Replay {
    fn device(&self) -> &Device {
        &self.device
    }

    fn is_replay(&self) -> bool {
        true
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        let Some(algorithms) = self.recording.algorithms(&problem.shape()) else { return Ok(Vec::new()) };
        let offers = algorithms.iter().map(|(algorithm, recorded)| {
            let row = recorded.rows.get(&problem.batch());
            let workspace = match row {
                Some(row) if row.time.is_some() => Ok(row.workspace),
                Some(_) => Err("was not run when the profile was recorded".to_owned()),
                None => {
                    let batch = problem.batch();
                    Err(format!(
                        "not recorded at {batch} samples; measure it with `tightfit profile NETWORK --batch {batch}`"
                    ))
                }
            };
            let notes = corrected(&self.device, problem.operation(), algorithm, recorded.notes);
            Offer { algorithm: algorithm.clone(), notes, workspace }
        });
        Ok(offers.collect())
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        let offers = self.offers(problem)?;
        match offers.into_iter().find(|offer| offer.algorithm == *algorithm) {
            Some(offer) => offer.workspace.map_err(|reason| Replay::refused(problem, algorithm, &reason)),
            None => Err(Replay::refused(problem, algorithm, "is not in the recording")),
        }
    }

    fn sizes(&self, problem: &Problem) -> Option<Vec<usize>> {
        let algorithms = self.recording.algorithms(&problem.shape());
        let mut sizes: Vec<usize> =
            algorithms.iter().flat_map(|all| all.values()).flat_map(|recorded| recorded.rows.keys().copied()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        Some(sizes)
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, _: &Effort) -> Result<Measurement, Error> {
        let recorded = self.recording.algorithms(&problem.shape()).and_then(|all| all.get(algorithm));
        recorded
            .and_then(|recorded| {
                let row = recorded.rows.get(&problem.batch())?;
                let notes = corrected(&self.device, problem.operation(), algorithm, recorded.notes);
                row.measurement(algorithm, notes, problem.batch())
            })
            .ok_or_else(|| Replay::refused(problem, algorithm, "was not measured at this size when it was recorded"))
    }

    fn division_cost(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        Ok(self.recording.division_cost(&problem.shape()))
    }

    fn run(&mut self, _: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        Err(Error::Backend {
            backend: "replay".to_owned(),
            what: format!(
                "a recorded profile of {} cannot run anything; use the cpu backend, or cuda on a machine with a GPU",
                self.device.name
            ),
            source: None,
        })
    }
}
