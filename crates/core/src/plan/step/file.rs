//! Step files: a step as JSON, with the machine that it runs on. Their keys are a stable format.
//!
//! ```json
//! {"tightfit_step": 1, "name": "small", "batch": 8, "types": "f32", "mode": "training",
//!  "tensors": [{"name": "a", "bytes": 4096, "kind": "feature-map", "residence": "movable"}, ..],
//!  "groups": [{"name": "conv1"}, ..],
//!  "operations": [{"group": 0, "name": "conv", "stage": "forward", "reads": [], "writes": [0], "time_us": 12.5}, ..]}
//! ```
//!
//! The structs below mirror the document key for key, so the internal types stay free to change.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{
    Access, Again, Cost, Group, GroupId, Mode, Operation, Rerun, Residence, Resource, Stage, Step, Tag, Tensor,
    TensorId, Use,
};
use crate::plan::{CostModel, Kind, footprint};
use crate::{Algorithm, Bytes, Candidate, Configuration, DivisionCost, Error, Nanos, Types, bounded};

/// Increased when older files could no longer be read correctly.
const VERSION: u32 = 1;
/// Size limit of an uncompressed file; a step of 5000 operations needs a few MiB.
const MAX_TEXT: Bytes = Bytes::mib(512);
/// Limit on the sum of all tensors, so that sums of footprints never overflow.
const MAX_BYTES: u64 = 1 << 56;
/// Limit on each time, about 11 days; their sums never overflow.
const MAX_MICROS: f64 = 1e12;

/// A step with the machine that it was recorded on.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    /// The step.
    pub step: Step,
    /// The link and the host of the machine, if the file says.
    pub machine: Option<Machine>,
}

/// The link between device and host, and the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Copy rate to the host.
    pub to_host_bytes_per_s: f64,
    /// Copy rate from the host.
    pub to_device_bytes_per_s: f64,
    /// Copy rates of both directions together while both run; the sum of both if the file does not say.
    #[serde(default)]
    pub both_bytes_per_s: Option<f64>,
    /// Time of a computation beside a copy, as a multiple of its time alone.
    #[serde(default = "one")]
    pub slowdown_beside_copies: f64,
    /// Pinned host memory that the step may use; unlimited if the file does not say.
    #[serde(default)]
    pub host_bytes: Option<Bytes>,
    /// The share of the link's rates that this device gets while others copy too.
    #[serde(default = "one")]
    pub link_share: f64,
}

fn one() -> f64 {
    1.0
}

impl Machine {
    /// The costs of copies on this machine.
    pub fn costs(&self) -> CostModel {
        let share = self.link_share;
        let (out, back) = (self.to_host_bytes_per_s * share, self.to_device_bytes_per_s * share);
        CostModel {
            name: "recorded".to_owned(),
            offload_rate: out,
            prefetch_rate: back,
            both_rate: self.both_bytes_per_s.map_or(out.max(back), |both| both * share / 2.0),
            beside_copies: self.slowdown_beside_copies - 1.0,
            ..CostModel::h200()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let rates = [
            ("to_host_bytes_per_s", self.to_host_bytes_per_s, 1.0, 1e15),
            ("to_device_bytes_per_s", self.to_device_bytes_per_s, 1.0, 1e15),
            ("both_bytes_per_s", self.both_bytes_per_s.unwrap_or(1.0), 1.0, 1e15),
            ("slowdown_beside_copies", self.slowdown_beside_copies, 1.0, 1000.0),
            ("link_share", self.link_share, 1e-6, 1.0),
        ];
        match rates.iter().find(|(_, rate, least, most)| !(*least..=*most).contains(rate)) {
            Some((key, rate, least, most)) => {
                Err(bad(format!("machine.{key} is {rate}; it must be between {least} and {most}")))
            }
            None => Ok(()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    tightfit_step: u32,
    name: String,
    batch: usize,
    types: Types,
    mode: ModeWord,
    tensors: Vec<TensorObject>,
    groups: Vec<GroupObject>,
    operations: Vec<OperationObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeWord {
    Training,
    Inference,
}

#[derive(Serialize, Deserialize)]
struct TensorObject {
    name: String,
    bytes: Bytes,
    kind: KindWord,
    residence: ResidenceWord,
    #[serde(default)]
    result: bool,
    #[serde(default)]
    alias: Option<usize>,
    #[serde(default)]
    sample_bytes: Option<Bytes>,
}

/// The kinds of memory, in the singular; files may also use the plural of reports.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindWord {
    #[serde(alias = "feature-maps", alias = "input")]
    FeatureMap,
    #[serde(alias = "gradient-maps")]
    GradientMap,
    #[serde(alias = "weights")]
    Weight,
    #[serde(alias = "weight-gradients")]
    WeightGradient,
    #[serde(alias = "momentum")]
    OptimizerState,
    #[serde(alias = "saved")]
    Other,
    Workspace,
}

impl KindWord {
    const ALL: [(KindWord, Kind); 7] = [
        (KindWord::FeatureMap, Kind::FeatureMaps),
        (KindWord::GradientMap, Kind::GradientMaps),
        (KindWord::Weight, Kind::Weights),
        (KindWord::WeightGradient, Kind::WeightGradients),
        (KindWord::OptimizerState, Kind::Momentum),
        (KindWord::Other, Kind::Saved),
        (KindWord::Workspace, Kind::Workspace),
    ];

    fn kind(self) -> Kind {
        let found = KindWord::ALL.iter().find(|(word, _)| *word as usize == self as usize);
        found.map_or(Kind::Saved, |(_, kind)| *kind)
    }

    fn of(kind: Kind) -> KindWord {
        let found = KindWord::ALL.iter().find(|(_, of)| *of == kind);
        found.map_or(KindWord::Other, |(word, _)| *word)
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ResidenceWord {
    Resident,
    Movable,
    Temporary,
}

#[derive(Serialize, Deserialize)]
struct GroupObject {
    name: String,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StageWord {
    Forward,
    Backward,
    Update,
}

#[derive(Serialize, Deserialize)]
struct OperationObject {
    group: usize,
    name: String,
    stage: StageWord,
    #[serde(default)]
    reads: Vec<usize>,
    #[serde(default)]
    writes: Vec<usize>,
    #[serde(default)]
    adds: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_us: Option<f64>,
    #[serde(default)]
    workspace_bytes: Bytes,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    choices: Vec<ChoiceObject>,
    #[serde(default)]
    rerun: RerunObject,
    #[serde(default)]
    rerun_time_us: Option<f64>,
    #[serde(default)]
    independent_samples: bool,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct ChoiceObject {
    time_us: f64,
    #[serde(default)]
    workspace_bytes: Bytes,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RerunObject {
    #[default]
    Never,
    Same,
    ReadOnly(Vec<usize>),
}

fn bad(what: impl ToString) -> Error {
    Error::BadDocument { document: "step", what: what.to_string() }
}

impl StepFile {
    /// Reads a step from JSON: the inverse of [`StepFile::to_json`].
    ///
    /// Operations on a view become operations on the tensor whose bytes it shares; writing a part of a tensor counts as
    /// adding to it. Choices that are no faster than one with less workspace are dropped.
    ///
    /// # Errors
    /// [`Error::BadDocument`] with the place and the value that is wrong; the errors of [`Step::check`].
    pub fn from_json(text: &str) -> Result<StepFile, Error> {
        let document: Document = serde_json::from_str(text).map_err(bad)?;
        let step = document.step()?;
        step.check()?;
        if let Some(machine) = &document.machine {
            machine.check()?;
        }
        Ok(StepFile { step, machine: document.machine })
    }

    /// Writes the step as JSON.
    ///
    /// # Errors
    /// [`Error::BadDocument`] if it cannot be written.
    pub fn to_json(&self) -> Result<String, Error> {
        let document = Document::of(self);
        Ok(serde_json::to_string(&document).map_err(bad)? + "\n")
    }

    /// Reads a step file, compressed if its name ends in `.gz`.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, or with the error of [`StepFile::from_json`] as its source.
    pub fn read(path: &Path) -> Result<StepFile, Error> {
        let file = |what: &str, source: Box<dyn std::error::Error + Send + Sync>| Error::File {
            path: path.to_owned(),
            what: what.to_owned(),
            source: Some(source),
        };
        let text = bounded::read_text(path, MAX_TEXT);
        let text = text.map_err(|error| file("cannot be read; it may be truncated", error.into()))?;
        StepFile::from_json(&text).map_err(|error| file("is not a valid step", error.into()))
    }
}

impl Document {
    fn step(&self) -> Result<Step, Error> {
        if self.tightfit_step != VERSION {
            return Err(bad(format!(
                "it is of version {}, but this program reads version {VERSION}",
                self.tightfit_step
            )));
        }
        if self.batch == 0 {
            return Err(bad("batch is 0; a step has at least one sample"));
        }
        if self.operations.is_empty() {
            return Err(bad("operations is empty; a step has at least one"));
        }
        let roots = self.roots()?;
        let mut tensors: Vec<Tensor> = self.tensors.iter().map(TensorObject::tensor).collect();
        let mut written: Vec<bool> = tensors.iter().map(|tensor| tensor.residence == Residence::Resident).collect();
        let mut operations = Vec::with_capacity(self.operations.len());
        for (place, operation) in self.operations.iter().enumerate() {
            let operation = operation.operation(place, self, &roots, &mut written)?;
            for used in operation.uses.iter().filter(|used| used.access != Access::Read) {
                let groups = &mut tensors[used.tensor.0].groups;
                if !groups.contains(&operation.group) {
                    groups.push(operation.group);
                }
            }
            operations.push(operation);
        }
        let group = |group: &GroupObject| Group {
            name: group.name.clone(),
            input: Bytes::ZERO,
            output: Bytes::ZERO,
            weights: Bytes::ZERO,
        };
        Ok(Step {
            name: self.name.clone(),
            batch: self.batch,
            types: self.types,
            mode: match self.mode {
                ModeWord::Training => Mode::Training,
                ModeWord::Inference => Mode::Inference,
            },
            tensors,
            operations,
            groups: self.groups.iter().map(group).collect(),
        })
    }

    /// For each tensor: the one whose bytes it uses in the end.
    fn roots(&self) -> Result<Vec<usize>, Error> {
        let mut total: u64 = 0;
        let mut roots = Vec::with_capacity(self.tensors.len());
        for (place, tensor) in self.tensors.iter().enumerate() {
            let mut root = place;
            for _ in 0..=self.tensors.len() {
                let Some(alias) = self.tensors[root].alias else { break };
                if alias >= self.tensors.len() {
                    return Err(bad(format!("tensors[{root}].alias is {alias}, but there are {}", self.tensors.len())));
                }
                root = alias;
            }
            if self.tensors[root].alias.is_some() {
                return Err(bad(format!("tensors[{place}].alias leads back to itself")));
            }
            let (own, whole) = (tensor.bytes, self.tensors[root].bytes);
            if own > whole {
                return Err(bad(format!("tensors[{place}] is a view of {own}, but tensors[{root}] has only {whole}")));
            }
            if root == place {
                total = total.saturating_add(own.0.checked_next_multiple_of(footprint(1)).unwrap_or(u64::MAX));
            }
            if total > MAX_BYTES {
                return Err(bad(format!(
                    "tensors[{place}].bytes is {}: all together exceed {}",
                    own.0,
                    Bytes(MAX_BYTES)
                )));
            }
            roots.push(root);
        }
        Ok(roots)
    }

    fn of(file: &StepFile) -> Document {
        let StepFile { step, machine } = file;
        Document {
            tightfit_step: VERSION,
            name: step.name.clone(),
            batch: step.batch,
            types: step.types,
            mode: if step.mode == Mode::Training { ModeWord::Training } else { ModeWord::Inference },
            tensors: step.tensors.iter().map(TensorObject::of).collect(),
            groups: step.groups.iter().map(|group| GroupObject { name: group.name.clone() }).collect(),
            operations: step.operations.iter().map(OperationObject::of).collect(),
            machine: *machine,
        }
    }
}

impl TensorObject {
    fn tensor(&self) -> Tensor {
        Tensor {
            name: self.name.clone(),
            bytes: self.bytes,
            kind: self.kind.kind(),
            residence: match self.residence {
                ResidenceWord::Resident => Residence::Resident,
                ResidenceWord::Movable => Residence::Movable,
                ResidenceWord::Temporary => Residence::Temporary,
            },
            is_result: self.result,
            groups: Vec::new(),
            alias: self.alias.map(TensorId),
            sample_bytes: self.sample_bytes,
        }
    }

    fn of(tensor: &Tensor) -> TensorObject {
        TensorObject {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            kind: KindWord::of(tensor.kind),
            residence: match tensor.residence {
                Residence::Resident => ResidenceWord::Resident,
                Residence::Movable => ResidenceWord::Movable,
                Residence::Temporary => ResidenceWord::Temporary,
            },
            result: tensor.is_result,
            alias: tensor.alias.map(|alias| alias.0),
            sample_bytes: tensor.sample_bytes,
        }
    }
}

impl OperationObject {
    fn operation(
        &self,
        place: usize,
        document: &Document,
        roots: &[usize],
        written: &mut [bool],
    ) -> Result<Operation, Error> {
        let at = |key: &str| format!("operations[{place}].{key}");
        if self.group >= document.groups.len() {
            return Err(bad(format!(
                "{} is {}, but there are {} groups",
                at("group"),
                self.group,
                document.groups.len()
            )));
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
        let cost = match (&self.time_us, self.choices.as_slice()) {
            (Some(_), [_, ..]) => return Err(bad(format!("operations[{place}] has both time_us and choices"))),
            (None, []) => return Err(bad(format!("operations[{place}] has neither time_us nor choices"))),
            (Some(micros), []) if self.workspace_bytes == Bytes::ZERO => Cost::Fixed(time(at("time_us"), *micros)?),
            (Some(micros), []) => {
                let bytes = scratch(at("workspace_bytes"), self.workspace_bytes)?;
                Cost::Listed([choice(document.batch, time(at("time_us"), *micros)?, bytes)].into())
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
                        front.push(choice(document.batch, time, bytes));
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
        })
    }

    fn of(operation: &Operation) -> OperationObject {
        let of = |access: Access| {
            let used = operation.uses.iter().filter(move |used| used.access == access);
            used.map(|used| used.tensor.0).collect::<Vec<usize>>()
        };
        let point = |configuration: &Configuration| ChoiceObject {
            time_us: configuration.time().as_micros(),
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
        }
    }
}

fn choice(batch: usize, time: Nanos, workspace: Bytes) -> Configuration {
    let candidate = Candidate { micro_batch: batch, algorithm: Algorithm::new("choice"), time, workspace };
    Configuration::new(vec![candidate], DivisionCost::default())
}
