//! Operations of step files.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost};
use tightfit_units::{Bytes, Error, Nanos};

use crate::step::machine::bad;
use crate::step::{Access, Again, Cost, GroupId, Operation, Rerun, Resource, Stage, Tag, TensorId, Use};

/// Limit on the sum of all tensors, so that sums of footprints never overflow.
pub(super) const MAX_BYTES: u64 = 1 << 56;
/// Limit on each time, about 11 days; their sums never overflow.
const MAX_MICROS: f64 = 1e12;

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StageWord {
    Forward,
    Backward,
    Update,
}

#[derive(Serialize, Deserialize)]
pub(super) struct OperationObject {
    pub(super) group: usize,
    pub(super) name: String,
    pub(super) stage: StageWord,
    #[serde(default)]
    pub(super) reads: Vec<usize>,
    #[serde(default)]
    pub(super) writes: Vec<usize>,
    #[serde(default)]
    pub(super) adds: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) time_us: Option<f64>,
    #[serde(default)]
    pub(super) workspace_bytes: Bytes,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) choices: Vec<ChoiceObject>,
    #[serde(default)]
    pub(super) rerun: RerunObject,
    #[serde(default)]
    pub(super) rerun_time_us: Option<f64>,
    #[serde(default)]
    pub(super) independent_samples: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sums_time_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) workspaces: Option<Vec<i64>>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct ChoiceObject {
    pub(super) time_us: f64,
    #[serde(default)]
    pub(super) workspace_bytes: Bytes,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RerunObject {
    #[default]
    Never,
    Same,
    ReadOnly(Vec<usize>),
}

impl OperationObject {
    pub(super) fn operation(
        &self,
        place: usize,
        (groups, batch): (usize, usize),
        roots: &[usize],
        written: &mut [bool],
    ) -> Result<Operation, Error> {
        let at = |key: &str| format!("operations[{place}].{key}");
        if self.group >= groups {
            return Err(bad(format!("{} is {}, but there are {} groups", at("group"), self.group, groups)));
        }
        let known = |key: &str, list: &[usize]| match list.iter().position(|tensor| *tensor >= roots.len()) {
            Some(index) => {
                let (of, count) = (at(key), roots.len());
                Err(bad(format!("{of}[{index}] is {}, but there are {count} tensors", list[index])))
            }
            None => Ok(()),
        };
        known("reads", &self.reads)?;
        known("writes", &self.writes)?;
        known("adds", &self.adds)?;
        let read_only: BTreeSet<usize> = match &self.rerun {
            RerunObject::ReadOnly(tensors) => {
                known("rerun.read_only", tensors)?;
                tensors.iter().map(|tensor| roots[*tensor]).collect()
            }
            RerunObject::Never | RerunObject::Same => BTreeSet::new(),
        };
        let mut uses: Vec<Use> = Vec::new();
        let mut add = |tensor: usize, access: Access| {
            let rerun = if read_only.contains(&tensor) { Rerun::ReadOnly } else { Rerun::Same };
            let used = Use { tensor: TensorId(tensor), access, rerun };
            if !uses.contains(&used) {
                uses.push(used);
            }
        };
        let changed: Vec<usize> = self.adds.iter().map(|tensor| roots[*tensor]).collect();
        for tensor in self.reads.iter().map(|tensor| roots[*tensor]) {
            if !changed.contains(&tensor) {
                add(tensor, Access::Read);
            }
        }
        for &tensor in &self.writes {
            let (root, is_view) = (roots[tensor], roots[tensor] != tensor);
            let access = if is_view && written[root] { Access::Add } else { Access::Write };
            if !changed.contains(&root) {
                add(root, access);
            }
        }
        changed.iter().for_each(|tensor| add(*tensor, Access::Add));
        for used in &uses {
            written[used.tensor.0] |= used.access != Access::Read;
        }
        if let Some(tensor) = read_only.iter().find(|tensor| !uses.iter().any(|used| used.tensor.0 == **tensor)) {
            return Err(bad(format!("{} has {tensor}, which the operation does not use", at("rerun.read_only"))));
        }
        let time = |key: String, micros: f64| match (0.0..=MAX_MICROS).contains(&micros) {
            true => Ok(Nanos::from_micros(micros)),
            false => Err(bad(format!("{key} is {micros:?}; it must be between 0 and {MAX_MICROS:?}"))),
        };
        let scratch = |key: String, bytes: Bytes| match bytes.0 <= MAX_BYTES {
            true => Ok(bytes),
            false => Err(bad(format!("{key} is {}; it must be at most {MAX_BYTES}", bytes.0))),
        };
        let is_too_large = |size: &&i64| size.unsigned_abs() > MAX_BYTES;
        if let Some(size) = self.workspaces.iter().flatten().find(is_too_large) {
            return Err(bad(format!("{} has {size}; each must be at most {MAX_BYTES}", at("workspaces"))));
        }
        let cost = match (&self.time_us, self.choices.as_slice()) {
            (Some(_), [_, ..]) => return Err(bad(format!("operations[{place}] has both time_us and choices"))),
            (None, []) => return Err(bad(format!("operations[{place}] has neither time_us nor choices"))),
            (Some(micros), []) if self.workspace_bytes == Bytes::ZERO => Cost::Fixed(time(at("time_us"), *micros)?),
            (Some(micros), []) => {
                let bytes = scratch(at("workspace_bytes"), self.workspace_bytes)?;
                Cost::Listed([choice(batch, time(at("time_us"), *micros)?, bytes)].into())
            }
            (None, choices) => {
                let mut points = Vec::with_capacity(choices.len());
                for (index, choice) in choices.iter().enumerate() {
                    let key = |what| at(&format!("choices[{index}].{what}"));
                    let bytes = scratch(key("workspace_bytes"), choice.workspace_bytes)?;
                    points.push((bytes, time(key("time_us"), choice.time_us)?));
                }
                points.sort_unstable();
                let mut front: Vec<Configuration> = Vec::new();
                for (bytes, time) in points {
                    if front.last().is_none_or(|last| time < last.time()) {
                        front.push(choice(batch, time, bytes));
                    }
                }
                Cost::Listed(front.into())
            }
        };
        Ok(Operation {
            group: GroupId(self.group),
            name: self.name.clone(),
            stage: match self.stage {
                StageWord::Forward => Stage::Forward,
                StageWord::Backward => Stage::Backward,
                StageWord::Update => Stage::Update,
            },
            tag: Tag::Other,
            resource: Resource::Device,
            uses,
            cost,
            again: match (&self.rerun, self.rerun_time_us) {
                (RerunObject::Never, _) => Again::Never,
                (_, None) => Again::Allowed,
                (_, Some(micros)) => Again::Taking(time(at("rerun_time_us"), micros)?),
            },
            independent_samples: self.independent_samples,
            sums: self.sums_time_us.map(|micros| time(at("sums_time_us"), micros)).transpose()?,
            workspaces: self.workspaces.clone().unwrap_or_default(),
        })
    }

    pub(super) fn of(operation: &Operation) -> OperationObject {
        let of = |access: Access| {
            let used = operation.uses.iter().filter(move |used| used.access == access);
            used.map(|used| used.tensor.0).collect::<Vec<usize>>()
        };
        let point = |configuration: &Configuration| ChoiceObject {
            time_us: operation.cost.time(Some(configuration)).as_micros(),
            workspace_bytes: configuration.workspace(),
        };
        let (time_us, choices) = match &operation.cost {
            Cost::Fixed(time) => (Some(time.as_micros()), Vec::new()),
            Cost::Choice(front) => (None, front.divided.iter().map(point).collect()),
            Cost::Listed(choices) => (None, choices.iter().map(point).collect()),
        };
        let mut read_only: Vec<usize> =
            operation.uses.iter().filter(|used| used.rerun == Rerun::ReadOnly).map(|used| used.tensor.0).collect();
        read_only.dedup();
        OperationObject {
            group: operation.group.0,
            name: operation.name.clone(),
            stage: match operation.stage {
                Stage::Forward => StageWord::Forward,
                Stage::Backward => StageWord::Backward,
                Stage::Update => StageWord::Update,
            },
            reads: of(Access::Read),
            writes: of(Access::Write),
            adds: of(Access::Add),
            time_us,
            workspace_bytes: Bytes::ZERO,
            choices,
            rerun: match (operation.again, read_only.is_empty()) {
                (Again::Never, _) => RerunObject::Never,
                (_, true) => RerunObject::Same,
                (_, false) => RerunObject::ReadOnly(read_only),
            },
            rerun_time_us: match operation.again {
                Again::Taking(time) => Some(time.as_micros()),
                Again::Never | Again::Allowed => None,
            },
            independent_samples: operation.independent_samples,
            sums_time_us: operation.sums.map(Nanos::as_micros),
            workspaces: Some(operation.workspaces.clone()).filter(|blocks| !blocks.is_empty()),
        }
    }
}

fn choice(batch: usize, time: Nanos, workspace: Bytes) -> Configuration {
    let candidate = Candidate { micro_batch: batch, algorithm: Algorithm::new("choice"), time, workspace };
    Configuration::new(vec![candidate], DivisionCost::default())
}
