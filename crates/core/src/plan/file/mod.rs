//! A plan as a file: the network, everything that is known of the plan, and its schedule, as JSON.
//!
//! ```json
//! {"format": "tightfit-plan", "version": 1, "network": {..}, "plan": {"batch": 256, .., "schedule": {..}, ..}}
//! ```
//!
//! A plan is carried out without asking again, so a file is trusted only after its schedule has passed the checker.

use std::io::Read;
use std::path::Path;

use flate2::Compression;
use flate2::read::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod document;

use document::Document as ScheduleDocument;

use super::{Budgets, Checked, Plan, Workload};
use crate::{Bytes, Error, Network, bounded};

/// The word by which a file of a plan is known.
const FORMAT: &str = "tightfit-plan";
/// Raised when a file of before could not be read as it was meant.
const VERSION: u32 = 1;
/// The largest file, unpacked; that of a network of 500 layers has a few MiB.
const MOST_TEXT: Bytes = Bytes::mib(256);

#[derive(Serialize)]
struct Document<'a> {
    format: &'a str,
    version: u32,
    network: Value,
    plan: Plan<ScheduleDocument>,
}

/// What a document begins with, whatever else it holds.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Deserialize)]
struct Body {
    network: Value,
    plan: Plan<ScheduleDocument>,
}

fn bad(what: impl ToString) -> Error {
    Error::BadDocument { document: "plan", what: what.to_string() }
}

impl Plan {
    /// Writes the plan of `network` as JSON; reading it with [`Plan::from_json`] gives the same plan.
    ///
    /// # Errors
    /// [`Error::Unsound`] for a plan of something else than this network.
    pub fn to_json(&self, network: &Network) -> Result<String, Error> {
        let lowered = Workload::new(network, self.batch, self.types, self.mode)?.lower()?;
        if *self.schedule.step() != lowered.step {
            return Err(Error::Unsound { what: format!("it is not of {}", network.name()) });
        }
        let plan = self.clone().with_schedule(ScheduleDocument::of(&self.schedule, &lowered));
        let network = serde_json::from_str(&network.to_json()).map_err(bad)?;
        let document = Document { format: FORMAT, version: VERSION, network, plan };
        Ok(serde_json::to_string(&document).map_err(bad)? + "\n")
    }

    /// Reads a plan from JSON with the network that it is of: the inverse of [`Plan::to_json`].
    ///
    /// # Errors
    /// [`Error::BadDocument`] for what is no plan, of another version, or wrong: if the checker refuses its schedule, or if
    /// the facts beside it tell of another one; those of [`Network::from_json`].
    pub fn from_json(text: &str) -> Result<(Network, Plan), Error> {
        let Head { format, version } = serde_json::from_str(text).map_err(bad)?;
        if (format.as_str(), version) != (FORMAT, VERSION) {
            let what = format!("it is `{format}` version {version}, this program reads `{FORMAT}` version {VERSION}");
            return Err(bad(what));
        }
        let Body { network, plan } = serde_json::from_str(text).map_err(bad)?;
        let network = Network::from_json(&network.to_string())?;
        let plan = plan.verified(&network)?;
        Ok((network, plan))
    }

    /// Reads the file of this path, packed if its name ends in `.gz`, as [`Plan::from_json`].
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read or unpacked, caused by those of [`Plan::from_json`] for its content.
    pub fn read(path: &Path) -> Result<(Network, Plan), Error> {
        let file = |what: &str, source: Box<dyn std::error::Error + Send + Sync>| Error::File {
            path: path.to_owned(),
            what: what.to_owned(),
            source: Some(source),
        };
        let text = bounded::read_text(path, MOST_TEXT);
        let text = text.map_err(|error| file("cannot be read; is it cut off?", error.into()))?;
        Plan::from_json(&text).map_err(|error| file("is not a plan that can be carried out", error.into()))
    }

    /// The bytes of a file of this name: JSON, packed if the name ends in `.gz`.
    ///
    /// # Errors
    /// As [`Plan::to_json`].
    pub fn to_file(&self, network: &Network, path: &Path) -> Result<Vec<u8>, Error> {
        let text = self.to_json(network)?;
        if path.extension().is_none_or(|extension| extension != "gz") {
            return Ok(text.into_bytes());
        }
        let mut packed = Vec::new();
        GzEncoder::new(text.as_bytes(), Compression::default()).read_to_end(&mut packed).map_err(bad)?;
        Ok(packed)
    }
}

impl Plan<ScheduleDocument> {
    /// The plan with its schedule checked; refused if the checker refuses that, or if it is not the one that the plan tells of.
    fn verified(self, network: &Network) -> Result<Plan, Error> {
        let schedule = &self.schedule;
        let workload = Workload::new(network, self.batch, self.types, self.mode)?;
        for (fact, told, is) in [
            ("network", self.network.clone(), network.name().to_owned()),
            ("mini-batch", self.batch.to_string(), schedule.batch.to_string()),
            ("types", self.types.to_string(), schedule.types.to_string()),
            ("peak", self.peak.to_string(), schedule.device_bytes.to_string()),
            ("host bytes", self.host.to_string(), schedule.host_bytes.to_string()),
            ("number of steps", self.simulation.spans.len().to_string(), schedule.steps.len().to_string()),
        ] {
            if told != is {
                return Err(bad(format!("it tells of {fact} {told}, its schedule has {is}")));
            }
        }
        let budgets = Budgets { device: self.options.budget, host: self.options.host_budget };
        let lowered = workload.lower()?;
        let refused = |what: String| bad(format!("its schedule is refused: {what}"));
        let schedule = schedule.clone().schedule(&lowered).map_err(refused)?;
        let checked = Checked::new(&lowered.step, schedule, budgets).map_err(|error| refused(error.to_string()))?;
        Ok(self.with_schedule(checked))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::candidate::Candidates;
    use crate::plan::{CostModel, Fronts, Mode, Options, Policy, plan};
    use crate::{Algorithm, Bytes, Candidate, DivisionCost, Nanos, Operation, Types};

    fn planned(network: &str, policy: Policy) -> (Network, Plan) {
        let network = Network::open(network).unwrap();
        let workload = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&Fronts::assumed(&workload, &CostModel::h200()).unwrap(), &CostModel::h200()).unwrap();
        let options = Options { policy, budget: Bytes::gib(4), ..Options::default() };
        let plan = plan(&step, &CostModel::h200(), &options).unwrap();
        (network, plan)
    }

    #[test]
    fn a_plan_is_read_back_as_it_was() {
        for (name, policy) in
            [("lenet", Policy::VdnnAll), ("googlenet", Policy::VdnnConv), ("resnet18", Policy::Baseline)]
        {
            let (network, plan) = planned(name, policy);
            let read = Plan::from_json(&plan.to_json(&network).unwrap()).unwrap();
            assert!(read == (network, plan), "{name}");
        }
    }

    #[test]
    fn a_file_may_be_packed() {
        let (network, plan) = planned("lenet", Policy::VdnnAll);
        let folder = tempfile::tempdir().unwrap();
        for name in ["plan.json", "plan.json.gz"] {
            let path = folder.path().join(name);
            let bytes = plan.to_file(&network, &path).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            assert!(Plan::read(&path).unwrap() == (network.clone(), plan.clone()), "{name}");
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            assert!(Plan::read(&path).unwrap_err().chain().contains(name), "cut off");
        }
    }

    #[test]
    fn a_plan_that_was_tampered_with_is_refused() {
        let (network, plan) = planned("lenet", Policy::VdnnAll);
        let whole = plan.to_json(&network).unwrap();
        type Tamper = fn(&mut Plan<ScheduleDocument>);
        let tampered: [(&str, Tamper); 9] = [
            ("its schedule is refused", |plan| plan.schedule.blocks[0].offset = u64::MAX),
            ("its schedule is refused", |plan| plan.schedule.blocks[0].offset += 256),
            ("its schedule is refused", |plan| _ = plan.schedule.blocks.pop()),
            ("its schedule is refused", |plan| _ = plan.schedule.host_blocks.pop()),
            ("its schedule is refused", |plan| plan.schedule.steps.swap(3, 20)),
            ("its schedule is refused", |plan| plan.options.budget = Bytes(plan.peak.0 - 1)),
            ("it tells of peak", |plan| plan.peak = Bytes(1)),
            ("it tells of mini-batch 9, its schedule has 8", |plan| plan.batch = 9),
            ("it tells of number of steps", |plan| _ = plan.schedule.steps.pop()),
        ];
        for (part, tamper) in tampered {
            let lowered = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap().lower().unwrap();
            let mut plan = plan.clone().with_schedule(ScheduleDocument::of(&plan.schedule, &lowered));
            tamper(&mut plan);
            let mut text: Value = serde_json::from_str(&whole).unwrap();
            text["plan"] = serde_json::to_value(&plan).unwrap();
            let error = Plan::from_json(&text.to_string()).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    /// Any number of a file may be another one: the plan is then refused, or is a plan all the same; nothing panics.
    #[test]
    fn any_number_may_be_wrong() {
        for (network, plan) in [planned("lenet", Policy::VdnnAll), divided()] {
            any_number_of(&network, &plan);
        }
    }

    /// A plan whose convolutions run in two micro-batches.
    fn divided() -> (Network, Plan) {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap();
        let part = |time| Candidate {
            micro_batch: 4,
            algorithm: Algorithm::new("half"),
            time: Nanos(time),
            workspace: Bytes(512),
        };
        let mut candidates = HashMap::new();
        for (layer, _) in network.convolutions() {
            for operation in Operation::ALL {
                let problem = workload.problem(layer, operation).unwrap();
                candidates.insert(problem, Candidates { candidates: vec![part(1000)], cost: DivisionCost::default() });
            }
        }
        let options = Options { policy: Policy::VdnnAll, budget: Bytes::gib(4), ..Options::default() };
        let step = workload.step(&Fronts::of(&candidates).unwrap(), &CostModel::h200()).unwrap();
        let plan = plan(&step, &CostModel::h200(), &options).unwrap();
        (network, plan)
    }

    #[test]
    fn sums_beyond_every_number_are_refused() {
        let (network, plan) = divided();
        let text = plan.to_json(&network).unwrap();
        let most = u64::MAX;
        for (from, to, part) in [
            ("\"micro_batch\":4", format!("\"micro_batch\":{most}"), "samples"),
            (
                "\"time\":1000,\"workspace\":512",
                format!("\"time\":{most},\"workspace\":512"),
                "time of a configuration",
            ),
            (
                "\"cost\":{\"time\":0,\"workspace\":0}",
                format!("\"cost\":{{\"time\":0,\"workspace\":{most}}}"),
                "workspace of a configuration",
            ),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Plan::from_json(&text.replacen(from, &to, 1)).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    fn any_number_of(network: &Network, plan: &Plan) {
        let text = plan.to_json(network).unwrap();
        let starts: Vec<usize> = (1..text.len())
            .filter(|&at| text.as_bytes()[at].is_ascii_digit() && b":[,".contains(&text.as_bytes()[at - 1]))
            .collect();
        let mut refused = 0;
        for (count, &start) in starts.iter().enumerate().step_by(5) {
            let digits = text[start..].chars().take_while(char::is_ascii_digit).count();
            let other = ["0", "1", "255", "100000", "9223372036854775807", "18446744073709551615"][count % 6];
            let wrong = format!("{}{other}{}", &text[..start], &text[start + digits..]);
            refused += usize::from(Plan::from_json(&wrong).is_err());
        }
        assert!(refused > starts.len() / 5 / 4, "{refused}: times may be any, places may not");
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        let (network, plan) = planned("lenet", Policy::VdnnAll);
        let text = plan.to_json(&network).unwrap();
        for (text, part) in [
            (String::new(), "EOF"),
            (network.to_json(), "it is `tightfit-network` version 1"),
            (text.replacen("\"version\":1", "\"version\":2", 1), "version 2, this program reads"),
            (text.replacen("\"schedule\"", "\"program\"", 1), "schedule"),
            (text.replacen("\"filters\":20", "\"filters\":21", 1), "its schedule is refused"),
        ] {
            let error = Plan::from_json(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
