//! Decisions in a recording. A replay ignores them; a cache imports them.

use tightfit_conv::Problem;
use tightfit_units::Nanos;

use super::{Line, Recording};
use crate::{Decision, DecisionKey};

impl Recording {
    /// Adds a decision, replacing an earlier one about the same question.
    pub fn add_decision(&mut self, key: &DecisionKey, decision: Decision) {
        self.add_answer(&key.problem, key.words(), decision);
    }

    /// The decisions by problem with its mini-batch and question, in their order.
    pub fn decisions(&self) -> impl Iterator<Item = (&str, &str, &Decision)> {
        self.decisions.iter().map(|((problem, question), decision)| (problem.as_str(), question.as_str(), decision))
    }

    /// Whether it holds decisions and nothing that could be replayed.
    pub(crate) fn is_of_decisions(&self) -> bool {
        self.problems.is_empty() && !self.decisions.is_empty()
    }

    pub(crate) fn add_answer(&mut self, problem: &Problem, question: String, decision: Decision) {
        self.decisions.insert((problem.to_string(), question), decision);
    }

    /// Takes a line that has no fault.
    pub(super) fn take_decision(&mut self, line: Line) {
        if let Line::Decision { decision: problem, question, configuration, framework_ns, is_final } = line
            && let Ok(problem) = problem.parse()
        {
            let framework_time = framework_ns.map(Nanos);
            self.add_answer(&problem, question, Decision { configuration, framework_time, is_final });
        }
    }

    pub(super) fn decision_lines(&self) -> impl Iterator<Item = Line> {
        self.decisions().map(|(problem, question, decision)| Line::Decision {
            decision: problem.to_owned(),
            question: question.to_owned(),
            configuration: decision.configuration.clone(),
            framework_ns: decision.framework_time.map(|time| time.0),
            is_final: decision.is_final,
        })
    }
}
