//! Plan files: the network, all facts about the plan, and its schedule, as JSON.
//!
//! ```json
//! {"format": "tightfit-plan", "version": 1, "network": {..}, "plan": {"batch": 256, .., "schedule": {..}, ..}}
//! ```
//!
//! A plan runs without further checks, so a file is trusted only after its schedule has passed the checker.
//!
//! `document` has the schedule of a network's plan, `step_plan` and `step_schedule` the plan of a step file, and `action` the instructions of both.

use std::io::Read;
use std::path::Path;

use flate2::Compression;
use flate2::read::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod action;
mod document;
mod step_plan;
mod step_schedule;

use tightfit_network::Network;
use tightfit_units::{Bytes, Error, bounded};

use crate::{Budgets, Checked, Plan};
use document::Document as ScheduleDocument;

/// Identifies a plan file.
const FORMAT: &str = "tightfit-plan";
/// Increased when older files could no longer be read correctly.
const VERSION: u32 = 1;
/// Size limit of an uncompressed file; a network of 500 layers needs a few MiB.
const MAX_TEXT: Bytes = Bytes::mib(256);

#[derive(Serialize)]
struct Document<'a> {
    format: &'a str,
    version: u32,
    network: Value,
    plan: Plan<ScheduleDocument>,
}

/// The common head of every document.
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
    /// [`Error::Unsound`] if the plan is not for this network.
    pub fn to_json(&self, network: &Network) -> Result<String, Error> {
        let lowered = self.workload(network)?.lower()?;
        if *self.schedule.step() != lowered.step {
            return Err(Error::Unsound { what: format!("the plan is not for {}", network.name()) });
        }
        let plan = self.clone().with_schedule(ScheduleDocument::of(&self.schedule, &lowered));
        let network = serde_json::from_str(&network.to_json()).map_err(bad)?;
        let document = Document { format: FORMAT, version: VERSION, network, plan };
        Ok(serde_json::to_string(&document).map_err(bad)? + "\n")
    }

    /// Reads a plan and its network from JSON: the inverse of [`Plan::to_json`].
    ///
    /// # Errors
    /// [`Error::BadDocument`] if the text is not a plan, has another version, has a schedule that the checker rejects,
    /// or states facts that disagree with the schedule; the errors of [`Network::from_json`].
    pub fn from_json(text: &str) -> Result<(Network, Plan), Error> {
        let Head { format, version } = serde_json::from_str(text).map_err(bad)?;
        if (format.as_str(), version) != (FORMAT, VERSION) {
            let what =
                format!("it is `{format}` version {version}, but this program reads `{FORMAT}` version {VERSION}");
            return Err(bad(what));
        }
        let Body { network, plan } = serde_json::from_str(text).map_err(bad)?;
        let network = Network::from_json(&network.to_string())?;
        let plan = plan.verified(&network)?;
        Ok((network, plan))
    }

    /// Reads a plan file, compressed if its name ends in `.gz`; see [`Plan::from_json`].
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or decompressed, or with the error of [`Plan::from_json`] as its
    /// source.
    pub fn read(path: &Path) -> Result<(Network, Plan), Error> {
        bounded::read_document(path, MAX_TEXT, "plan", Plan::from_json)
    }

    /// The content for a file with this name: JSON, compressed if the name ends in `.gz`.
    ///
    /// # Errors
    /// As [`Plan::to_json`].
    pub fn to_file(&self, network: &Network, path: &Path) -> Result<Vec<u8>, Error> {
        packed(self.to_json(network)?, path)
    }

    /// The content for a file of the plan of a step file with this name; see [`Plan::to_step_json`].
    ///
    /// # Errors
    /// As [`Plan::to_step_json`].
    pub fn to_step_file(&self, path: &Path) -> Result<Vec<u8>, Error> {
        packed(self.to_step_json()?, path)
    }
}

/// The bytes of a text for a file with this name.
fn packed(text: String, path: &Path) -> Result<Vec<u8>, Error> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(text.into_bytes());
    }
    let mut packed = Vec::new();
    GzEncoder::new(text.as_bytes(), Compression::default()).read_to_end(&mut packed).map_err(bad)?;
    Ok(packed)
}

impl Plan<ScheduleDocument> {
    /// Checks the schedule; fails if the checker rejects it or if it disagrees with the plan's facts.
    fn verified(self, network: &Network) -> Result<Plan, Error> {
        let schedule = &self.schedule;
        let workload = self.workload(network)?;
        for (fact, stated, actual) in [
            ("network", self.network.clone(), network.name().to_owned()),
            ("mini-batch", self.batch.to_string(), schedule.batch.to_string()),
            ("types", self.types.to_string(), schedule.types.to_string()),
            ("peak", self.peak.to_string(), schedule.device_bytes.to_string()),
            ("host bytes", self.host.to_string(), schedule.host_bytes.to_string()),
            ("number of steps", self.simulation.spans.len().to_string(), schedule.steps.len().to_string()),
        ] {
            if stated != actual {
                return Err(bad(format!("it states {fact} {stated}, but its schedule has {actual}")));
            }
        }
        let budgets = Budgets { device: self.options.budget, host: self.options.host_budget };
        let lowered = workload.lower()?;
        let refused = |what: String| bad(format!("the checker rejects its schedule: {what}"));
        let schedule = schedule.clone().schedule(&lowered).map_err(refused)?;
        let checked = Checked::new(&lowered.step, schedule, budgets).map_err(|error| refused(error.to_string()))?;
        Ok(self.with_schedule(checked))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tightfit_conv::candidate::Candidates;
    use tightfit_conv::{Algorithm, Candidate, DivisionCost, Operation, Types};
    use tightfit_units::{Bytes, Nanos};

    use super::*;
    use crate::{CostModel, Fronts, Kind, Mode, Options, Policy, Workload, plan};

    fn planned(network: &str, policy: Policy) -> (Network, Plan) {
        let network = Network::open(network).unwrap();
        let workload = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&Fronts::assumed(&workload, &CostModel::h200()).unwrap(), &CostModel::h200()).unwrap();
        let options = Options { policy, budget: Bytes::gib(4), ..Options::default() };
        let plan = plan(&step, &CostModel::h200(), &options).unwrap();
        (network, plan)
    }

    #[test]
    fn plans_round_trip() {
        for (name, policy) in
            [("lenet", Policy::VdnnAll), ("googlenet", Policy::VdnnConv), ("resnet18", Policy::Baseline)]
        {
            let (network, plan) = planned(name, policy);
            let read = Plan::from_json(&plan.to_json(&network).unwrap()).unwrap();
            assert!(read == (network, plan), "{name}");
        }
    }

    #[test]
    fn files_that_do_not_say_have_momentum() {
        let (network, plan) = planned("lenet", Policy::VdnnAll);
        let text = plan.to_json(&network).unwrap();
        assert!(text.contains("\"momentum\":true,"));
        let silent = text.replacen("\"momentum\":true,", "", 1);
        assert!(Plan::from_json(&silent).unwrap() == (network, plan));
        let contrary = Plan::from_json(&text.replacen("\"momentum\":true", "\"momentum\":false", 1)).unwrap_err();
        assert!(contrary.to_string().contains("the checker rejects its schedule"), "{contrary}");
    }

    #[test]
    fn plans_without_momentum_round_trip_and_take_less() {
        let (network, with) = planned("lenet", Policy::VdnnAll);
        let workload = with.workload(&network).unwrap().with_momentum(false);
        let fronts = Fronts::assumed(&workload, &CostModel::h200()).unwrap();
        let step = workload.step(&fronts, &CostModel::h200()).unwrap();
        let without = plan(&step, &CostModel::h200(), &with.options).unwrap();
        let momentum = with.at_most.get(Kind::Momentum);
        assert!(!without.momentum && momentum > Bytes::ZERO);
        assert_eq!(without.at_most.get(Kind::Momentum), Bytes::ZERO);
        assert_eq!(without.most_live + momentum, with.most_live);
        let read = Plan::from_json(&without.to_json(&network).unwrap()).unwrap();
        assert!(read == (network, without));
    }

    #[test]
    fn plans_for_adamw_round_trip_and_take_a_second_moment() {
        let (network, with) = planned("lenet", Policy::VdnnAll);
        let workload = with.workload(&network).unwrap().with_adamw(true);
        let fronts = Fronts::assumed(&workload, &CostModel::h200()).unwrap();
        let step = workload.step(&fronts, &CostModel::h200()).unwrap();
        let adamw = plan(&step, &CostModel::h200(), &with.options).unwrap();
        let momentum = |plan: &Plan| plan.at_most.get(Kind::Momentum);
        assert!(adamw.adamw && adamw.momentum && !with.adamw);
        assert_eq!(momentum(&adamw), Bytes(2 * momentum(&with).0));
        assert_eq!(adamw.most_live, with.most_live + momentum(&with));
        assert!(!with.to_json(&network).unwrap().contains("adamw"), "files for SGD stay as they were");
        let read = Plan::from_json(&adamw.to_json(&network).unwrap()).unwrap();
        assert!(read == (network, adamw));
    }

    #[test]
    fn files_may_be_compressed() {
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
    fn tampered_plans_are_rejected() {
        let (network, plan) = planned("lenet", Policy::VdnnAll);
        let whole = plan.to_json(&network).unwrap();
        type Tamper = fn(&mut Plan<ScheduleDocument>);
        let tampered: [(&str, Tamper); 9] = [
            ("the checker rejects its schedule", |plan| plan.schedule.blocks[0].offset = u64::MAX),
            ("the checker rejects its schedule", |plan| plan.schedule.blocks[0].offset += 256),
            ("the checker rejects its schedule", |plan| _ = plan.schedule.blocks.pop()),
            ("the checker rejects its schedule", |plan| _ = plan.schedule.host_blocks.pop()),
            ("the checker rejects its schedule", |plan| plan.schedule.steps.swap(3, 20)),
            ("the checker rejects its schedule", |plan| plan.options.budget = Bytes(plan.peak.0 - 1)),
            ("it states peak", |plan| plan.peak = Bytes(1)),
            ("it states mini-batch 9, but its schedule has 8", |plan| plan.batch = 9),
            ("it states number of steps", |plan| _ = plan.schedule.steps.pop()),
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

    /// Changing any number in a file makes the plan rejected or leaves it valid; nothing panics.
    #[test]
    fn wrong_numbers_never_panic() {
        for (network, plan) in [planned("lenet", Policy::VdnnAll), divided()] {
            any_number_of(&network, &plan);
        }
    }

    /// A plan whose convolutions run in two micro-batches each.
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
    fn overflowing_sums_are_rejected() {
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
        assert!(refused > starts.len() / 5 / 4, "only {refused} rejected: times may have any value, positions may not");
    }

    #[test]
    fn other_documents_are_rejected() {
        let (network, plan) = planned("lenet", Policy::VdnnAll);
        let text = plan.to_json(&network).unwrap();
        for (text, part) in [
            (String::new(), "EOF"),
            (network.to_json(), "it is `tightfit-network` version 1"),
            (text.replacen("\"version\":1", "\"version\":2", 1), "version 2, but this program reads"),
            (text.replacen("\"schedule\"", "\"program\"", 1), "schedule"),
            (text.replacen("\"filters\":20", "\"filters\":21", 1), "the checker rejects its schedule"),
        ] {
            let error = Plan::from_json(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
