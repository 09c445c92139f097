//! The parameters of layers, read from the file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tightfit_conv::problem::Storage;
use tightfit_units::{Bytes, Error};

use super::call::Call;
use super::constants::{self, MOST_COMPUTED};
use super::control::{self, Branch};
use super::decode::{decode, file_error};
use super::given::Given;
use super::graph::Graph;
use super::proto::{EXTERNAL, GraphProto, NodeProto, TensorProto, data_type};
use super::shown::shown;
use super::slots::{Slot, Source};
use super::value::{Constant, Data, Dims, Order, Value, elements};
use super::{operators, tensor};
use tightfit_network::{LayerId, LayerKind, Network, ParameterKind};

/// Most bytes of weights to read.
const MOST: Bytes = Bytes::gib(64);

/// The most elements of all computed values together.
const MOST_KEPT: usize = 2 * MOST_COMPUTED;

/// The most elements for all nodes to read.
const MOST_READ: usize = 32 * MOST_COMPUTED;

/// The numbers of a layer's slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// The layer.
    pub layer: LayerId,
    /// The slot of the layer.
    pub slot: Slot,
    /// The numbers, in the order of the slot.
    pub numbers: Vec<f32>,
}

/// The sources of all layers' numbers, and the inputs for computing numbers that no initializer holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    pub sources: Vec<Source>,
    /// The branches that replaced their nodes.
    pub branches: Vec<Branch>,
    /// The version of ONNX's own operators.
    version: i64,
    /// Values that follow from the shapes of samples, and that weights are computed from.
    known: BTreeMap<String, Constant>,
}

impl Weights {
    /// The weights of these sources.
    pub fn of(graph: &Graph<'_>, sources: Vec<Source>) -> Weights {
        // Values that later nodes cannot compute from constants alone.
        let mut of_shapes: HashSet<&str> = HashSet::new();
        for node in (0..graph.len()).map(|at| graph.node(at)) {
            if !graph.has_constants_only(node) || node.input.iter().any(|name| of_shapes.contains(name.as_str())) {
                of_shapes.extend(node.output.iter().map(String::as_str));
            }
        }
        let mut known = BTreeMap::new();
        for name in graph.constants_behind(sources.iter().map(|source| source.value.as_str())) {
            if let Some(constant) = graph.constant(name).filter(|constant| constant.data != Data::Unknown)
                && of_shapes.contains(name)
            {
                known.insert(name.to_owned(), constant.clone());
            }
        }
        Weights { sources, branches: Vec::new(), version: graph.version, known }
    }

    /// Whether any weights are computed from the shapes of samples.
    pub fn follow_from_shapes(&self) -> bool {
        !self.known.is_empty()
    }

    /// Forgets the values that change with the mini-batch.
    pub fn forget_changed(&mut self, other: Option<&Weights>) {
        for (name, constant) in &mut self.known {
            if other.and_then(|other| other.known.get(name)).is_none_or(|other| other.data != constant.data) {
                constant.data = Data::Unknown;
            }
        }
    }

    /// Reads the numbers of all sources from a file and its external data files.
    pub fn read(&self, path: &Path, network: &Network) -> Result<Vec<Numbers>, Error> {
        self.must_be_all(path, network)?;
        let mut graph = decode(path, usize::MAX, MOST.0)?.graph.unwrap_or_default();
        control::inline(&mut graph, &self.branches).map_err(|what| file_error(path, what))?;
        let wanted: HashSet<&str> = self.sources.iter().map(|source| source.value.as_str()).collect();
        let mut values = Values::new(path, &graph, self.version, &self.known);
        values.compute(&wanted);
        let mut all = Vec::new();
        for source in &self.sources {
            let wrong = |what: String| {
                let (layer, slot) = (&network.layer(source.layer).name, source.slot.words());
                file_error(path, format!("layer {layer}: the {slot} {} {what}", shown(&source.value)))
            };
            let (dims, mut numbers) = values.numbers(&source.value).map_err(wrong)?;
            if source.order == Order::Transposed {
                numbers = transposed(&dims, &numbers).map_err(wrong)?;
            }
            all.push(Numbers { layer: source.layer, slot: source.slot, numbers });
        }
        Ok(all)
    }

    /// Refuses a layer that runs but has parameters without numbers in the file.
    fn must_be_all(&self, path: &Path, network: &Network) -> Result<(), Error> {
        let given: HashSet<(LayerId, Slot)> = self.sources.iter().map(|source| (source.layer, source.slot)).collect();
        for (id, layer) in network.iter() {
            if matches!(&layer.kind, LayerKind::Other(other) if other.function.is_none()) {
                continue;
            }
            let kinds = layer.kind.parameter_kinds(&network.input_shapes(id)).into_iter();
            let mut slots: Vec<Slot> = kinds.filter(|(_, count)| *count > 0).map(|(kind, _)| Slot::of(kind)).collect();
            if layer.kind.behavior().statistics {
                slots.extend([Slot::Mean, Slot::Variance]);
            }
            if let Some(slot) = slots.into_iter().find(|slot| !given.contains(&(id, *slot))) {
                return Err(file_error(
                    path,
                    format!("layer {}: nothing in the file gives its {}", layer.name, slot.words()),
                ));
            }
        }
        Ok(())
    }
}

impl Slot {
    fn of(kind: ParameterKind) -> Slot {
        match kind {
            ParameterKind::Weight => Slot::Weight,
            ParameterKind::Bias => Slot::Bias,
            ParameterKind::Scale => Slot::Scale,
            ParameterKind::Shift => Slot::Shift,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Slot::Weight => "weights",
            Slot::Bias => "biases",
            Slot::Scale => "factors",
            Slot::Shift => "offsets",
            Slot::Mean => "running means",
            Slot::Variance => "running variances",
        }
    }
}

/// The values of a graph that do not depend on the samples, with all of their elements.
struct Values<'a> {
    path: &'a Path,
    graph: &'a GraphProto,
    version: i64,
    tensors: HashMap<&'a str, &'a TensorProto>,
    known: &'a BTreeMap<String, Constant>,
    computed: HashMap<&'a str, Result<Rc<Constant>, String>>,
    /// Elements of all computed values.
    elements: usize,
    /// Elements that nodes have read.
    read: usize,
}

impl<'a> Values<'a> {
    fn new(path: &'a Path, graph: &'a GraphProto, version: i64, known: &'a BTreeMap<String, Constant>) -> Values<'a> {
        let tensors = graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        Values { path, graph, version, tensors, known, computed: HashMap::new(), elements: 0, read: 0 }
    }

    /// Computes these values, and the values between them and the initializers.
    fn compute(&mut self, wanted: &HashSet<&str>) {
        let mut needed: HashSet<&str> = wanted.clone();
        let mut nodes = Vec::new();
        // Nodes are in order: a node comes before its readers.
        for node in self.graph.node.iter().rev() {
            let is_needed = |name: &String| needed.contains(name.as_str()) && !self.known.contains_key(name);
            if node.output.iter().any(is_needed) {
                needed.extend(node.input.iter().map(String::as_str));
                nodes.push(node);
            }
        }
        for node in nodes.into_iter().rev() {
            let results = self.node(node);
            for (at, name) in node.output.iter().enumerate() {
                let result = match &results {
                    Ok(all) => all.get(at).cloned().ok_or_else(|| "it has no such output".to_owned()),
                    Err(what) => Err(what.clone()),
                };
                let place =
                    || format!("are computed by node {}, an operator {}: ", shown(&node.name), shown(&node.op_type));
                // The first node that fails is the cause.
                let result = result.map_err(|what| if what.starts_with("are ") { what } else { place() + &what });
                self.computed.insert(name, result);
            }
        }
    }

    fn node(&mut self, node: &'a NodeProto) -> Result<Vec<Rc<Constant>>, String> {
        let mut inputs = Vec::new();
        for name in &node.input {
            let is_there = self.tensors.contains_key(name.as_str())
                || self.known.contains_key(name)
                || self.computed.contains_key(name.as_str());
            // An input of which only the type or shape is used may depend on the samples.
            let passed = |what: String| match what.starts_with("are ") {
                true => what,
                false => format!("the numbers of its input {} {what}", shown(name)),
            };
            inputs.push(if is_there { Some(Value::Constant(self.value(name).map_err(passed)?)) } else { None });
        }
        let call = Call { node, given: Given::of(node, self.version), inputs, batch: 1, stated: None };
        if call.is_standard()
            && let Some(made) = self.made_of_nothing(&call)?
        {
            return Ok(vec![made]);
        }
        let read: usize = call.constants().filter_map(|constant| elements(&constant.dims)).sum();
        self.read = self.read.saturating_add(read);
        if self.read > MOST_READ {
            return Err(format!("all nodes that compute weights read more than {MOST_READ} elements"));
        }
        let dims = constants::dims(&call)?.ok_or("the operator is not supported")?;
        let all = constants::compute(&call, &dims, MOST_COMPUTED)?;
        for constant in &all {
            self.elements = self.elements.saturating_add(elements(&constant.dims).unwrap_or(usize::MAX));
        }
        if self.elements > MOST_KEPT {
            return Err(format!("all computed weights have more than {MOST_KEPT} elements"));
        }
        Ok(all.into_iter().map(Rc::new).collect())
    }

    /// The tensor of a `Constant` node, or the value of a node that needs only a shape.
    fn made_of_nothing(&self, call: &Call<'_>) -> Result<Option<Rc<Constant>>, String> {
        if let Some(tensor) = call.value().and_then(|value| value.t.as_ref()).filter(|_| call.operator() == "Constant")
        {
            return self.tensor(tensor).map(Some);
        }
        match operators::made_of_nothing(call, MOST_COMPUTED)? {
            Some(Value::Constant(constant)) if constant.data == Data::Unknown => {
                Err("its numbers are random, or too many".to_owned())
            }
            Some(Value::Constant(constant)) => Ok(Some(constant)),
            Some(Value::Map(_)) | None => Ok(None),
        }
    }

    /// One value; an error continues after its name.
    fn value(&self, name: &str) -> Result<Rc<Constant>, String> {
        if let Some(result) = self.computed.get(name) {
            return result.clone();
        }
        if let Some(constant) = self.known.get(name) {
            return match constant.data {
                Data::Unknown => Err("depend on the size of the mini-batch".to_owned()),
                _ => Ok(Rc::new(constant.clone())),
            };
        }
        self.tensor(self.tensors.get(name).ok_or("are not in the file")?)
    }

    /// The extents and elements of one value, in 32 bits.
    fn numbers(&self, name: &str) -> Result<(Dims, Vec<f32>), String> {
        let held = self.tensors.get(name).filter(|tensor| tensor.data_type == data_type::FLOAT);
        if let Some(tensor) = held.filter(|_| !self.computed.contains_key(name)) {
            // Most weights are large and unchanged.
            let (dims, count) = tensor::extents(tensor)?;
            let external = self.external(tensor, count)?;
            let bytes = external.as_deref().unwrap_or(if tensor.raw_data.is_empty() {
                &tensor.float_data
            } else {
                &tensor.raw_data
            });
            if bytes.len() / 4 == count && bytes.len() % 4 == 0 {
                return Ok((dims, Storage::F32.decode(bytes)));
            }
        }
        let constant = self.value(name)?;
        let numbers = constant.floats().ok_or("are not known before the model runs")?;
        Ok((constant.dims.clone(), numbers.into_iter().map(|number| number as f32).collect()))
    }

    fn tensor(&self, tensor: &TensorProto) -> Result<Rc<Constant>, String> {
        let (dims, count) = tensor::extents(tensor)?;
        let data = tensor::numbers(tensor, self.external(tensor, count)?.as_deref())?;
        Ok(Rc::new(Constant { dims, of: tensor.data_type, data, origin: None }))
    }

    /// The bytes of a tensor in an external data file.
    fn external(&self, tensor: &TensorProto, count: usize) -> Result<Option<Vec<u8>>, String> {
        match tensor.data_location {
            EXTERNAL => read_external(self.path, tensor, tensor::size(tensor, count)?).map(Some),
            _ => Ok(None),
        }
    }
}

/// The bytes of a tensor in an external data file next to the model.
fn read_external(path: &Path, tensor: &TensorProto, wanted: usize) -> Result<Vec<u8>, String> {
    use std::io::{Read, Seek, SeekFrom};
    let entry =
        |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let location = entry("location").ok_or("name no file that holds them")?;
    // A model must not read files outside its folder.
    let is_plain = Path::new(location).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if !is_plain {
        return Err(format!("are in {location:?}, which is not inside the model's folder"));
    }
    let number = |key: &str| entry(key).map_or(Ok(0), str::parse::<u64>).map_err(|_| format!("have a bad {key}"));
    let offset = number("offset")?;
    let beside: PathBuf = path.parent().unwrap_or(Path::new("")).join(location);
    let failed = |error: std::io::Error| format!("cannot be read from {}: {error}", beside.display());
    let mut file = std::fs::File::open(&beside).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if offset.checked_add(wanted as u64).is_none_or(|end| end > length) {
        return Err(format!("end at byte {offset} + {wanted} of {}, which has {length}", beside.display()));
    }
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = vec![0; wanted];
    file.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A matrix with rows and columns exchanged; `dims` are the extents before.
fn transposed(dims: &[usize], numbers: &[f32]) -> Result<Vec<f32>, String> {
    let [_, columns] = *dims else { return Err(format!("of {dims:?} are not a matrix")) };
    if columns == 0 {
        return Err("have no columns".to_owned());
    }
    Ok((0..columns).flat_map(|column| numbers.iter().skip(column).step_by(columns).copied()).collect())
}
