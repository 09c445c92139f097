//! The graph of a model: its nodes in order, the readers of each name, and the values known so far.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::control::captured;
use super::given::Given;
use super::proto::{DimensionProto, GraphProto, NodeProto, ValueInfoProto};
use super::shown::shown;
use super::tensor;
use super::value::{Constant, Dims, Value};

/// More nodes than any model has.
const MOST_NODES: usize = 50_000;

/// Primes that represent a mini-batch without a fixed size, so that no extent equals it by accident.
pub const STAND_INS: [usize; 2] = [61, 67];

/// A model's graph while it is read.
pub struct Graph<'a> {
    proto: &'a GraphProto,
    values: HashMap<&'a str, Value>,
    /// The nodes that read each name, in order; twice if a node reads it twice.
    readers: HashMap<&'a str, Vec<usize>>,
    /// The node that writes each name.
    writers: HashMap<&'a str, usize>,
    outputs: HashSet<&'a str>,
    /// Whether each node contributes to an output.
    reached: Vec<bool>,
    stated: HashMap<&'a str, &'a ValueInfoProto>,
    /// The version of ONNX's own operators.
    pub version: i64,
}

/// The samples that a model takes.
pub struct Input<'a> {
    /// Their name in the graph.
    pub name: &'a str,
    /// Extents, with the stand-in for the mini-batch.
    pub dims: Dims,
    /// The name of the mini-batch in other extents, if it has one.
    pub batch: Option<&'a str>,
}

impl<'a> Graph<'a> {
    /// Indexes a graph and reads its initializers; an error describes the fault.
    pub fn of(proto: &'a GraphProto) -> Result<Graph<'a>, String> {
        if proto.node.len() > MOST_NODES {
            return Err(format!("the graph has {} nodes, more than {MOST_NODES}", proto.node.len()));
        }
        let mut graph = Graph {
            proto,
            values: HashMap::new(),
            readers: HashMap::new(),
            writers: HashMap::new(),
            outputs: proto.output.iter().map(|output| output.name.as_str()).collect(),
            reached: vec![false; proto.node.len()],
            stated: proto.value_info.iter().chain(&proto.output).map(|info| (info.name.as_str(), info)).collect(),
            version: 0,
        };
        let sparse = proto.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref()).next();
        if let Some(sparse) = sparse {
            let name = shown(&sparse.name);
            return Err(format!("initializer {name} is sparse, which is not supported; store it as a dense tensor"));
        }
        for initializer in &proto.initializer {
            let constant = tensor::initializer(initializer)
                .map_err(|what| format!("initializer {}: {what}", shown(&initializer.name)))?;
            graph.values.insert(&initializer.name, Value::Constant(Rc::new(constant)));
        }
        for (at, node) in proto.node.iter().enumerate() {
            for name in node.output.iter().filter(|name| !name.is_empty()) {
                if graph.writers.insert(name, at).is_some() || graph.values.contains_key(name.as_str()) {
                    return Err(format!("{} is written twice", shown(name)));
                }
            }
            let read = node.input.iter().map(String::as_str).filter(|name| !name.is_empty());
            for name in read.chain(captured(node)) {
                graph.readers.entry(name).or_default().push(at);
            }
        }
        let mut open: Vec<&str> = graph.outputs.iter().copied().collect();
        while let Some(name) = open.pop() {
            if let Some(&writer) = graph.writers.get(name)
                && !std::mem::replace(&mut graph.reached[writer], true)
            {
                open.extend(proto.node[writer].input.iter().map(String::as_str));
                open.extend(captured(&proto.node[writer]));
            }
        }
        Ok(graph)
    }

    /// The only input of samples; `stand_in` represents a mini-batch without a fixed size.
    pub fn input(&self, stand_in: usize) -> Result<Input<'a>, String> {
        let is_read = |name: &str| self.readers(name).iter().any(|&reader| self.reached[reader]);
        let given = self.proto.input.iter().filter(|input| !self.values.contains_key(input.name.as_str()));
        let given: Vec<&ValueInfoProto> = given.filter(|input| is_read(&input.name)).collect();
        let input = match given[..] {
            [input] => input,
            [] => return Err("no input of the graph leads to an output".to_owned()),
            _ => {
                let names: Vec<String> = given.iter().take(5).map(|input| shown(&input.name)).collect();
                return Err(format!(
                    "the graph has {} inputs ({}); only one is supported",
                    given.len(),
                    names.join(", ")
                ));
            }
        };
        let shape = input.r#type.as_ref().and_then(|of| of.tensor_type.as_ref()).and_then(|of| of.shape.as_ref());
        let name = shown(&input.name);
        let shape =
            shape.ok_or_else(|| format!("input {name} has no shape; export the model with a fixed sample size"))?;
        let mut dims = Vec::new();
        let mut batch = None;
        for (at, dim) in shape.dim.iter().enumerate() {
            dims.push(match fixed(dim) {
                Some(dim) if (1..=1 << 31).contains(&dim) => dim as usize,
                Some(dim) => return Err(format!("extent {at} of input {name} is {dim}; it must be 1 to 2^31")),
                None if at == 0 => {
                    batch = Some(dim.dim_param.as_str()).filter(|name| !name.is_empty());
                    stand_in
                }
                None => {
                    let free = match dim.dim_value {
                        Some(dim) => format!(" ({dim})"),
                        None if dim.dim_param.is_empty() => String::new(),
                        None => format!(" ({})", shown(&dim.dim_param)),
                    };
                    return Err(format!(
                        "extent {at}{free} of input {name} is not fixed; only the mini-batch, extent 0, may be free: export \
                         the model with a fixed sample size"
                    ));
                }
            });
        }
        if dims.len() < 2 {
            return Err(format!("input {name} has {} extents; a mini-batch of samples has at least 2", dims.len()));
        }
        Ok(Input { name: &input.name, dims, batch })
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.proto.node.len()
    }

    /// One node.
    pub fn node(&self, at: usize) -> &'a NodeProto {
        &self.proto.node[at]
    }

    /// One node's attributes, by the table of operators.
    pub fn given(&self, at: usize) -> Given<'a> {
        Given::of(self.node(at), self.version)
    }

    /// The operator of one node.
    pub fn operator(&self, at: usize) -> &'a str {
        &self.proto.node[at].op_type
    }

    /// Whether a node contributes to an output.
    pub fn is_reached(&self, at: usize) -> bool {
        self.reached[at]
    }

    /// The nodes that read a name, in order.
    pub fn readers(&self, name: &str) -> &[usize] {
        self.readers.get(name).map_or(&[], Vec::as_slice)
    }

    /// The node that writes a name.
    pub fn writer(&self, name: &str) -> Option<&'a NodeProto> {
        self.writers.get(name).map(|&at| self.node(at))
    }

    /// Whether a name is an output of the graph.
    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.contains(name)
    }

    /// The names of the graph's outputs, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &'a str> {
        self.proto.output.iter().map(|output| output.name.as_str())
    }

    /// The value of a name, if known.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Sets the value of a name.
    pub fn set(&mut self, name: &'a str, value: Value) {
        if !name.is_empty() {
            self.values.insert(name, value);
        }
    }

    /// The value of a name, if it is a constant.
    pub fn constant(&self, name: &str) -> Option<&Constant> {
        match self.values.get(name) {
            Some(Value::Constant(constant)) => Some(constant),
            _ => None,
        }
    }

    /// Whether a name's value may be learned: more than one floating-point number, from any source.
    pub fn is_learned(&self, name: &str) -> bool {
        self.constant(name).is_some_and(Constant::is_learnable)
    }

    /// Whether all inputs of a node are known and do not depend on the samples.
    pub fn has_constants_only(&self, node: &NodeProto) -> bool {
        node.input.iter().all(|name| name.is_empty() || self.constant(name).is_some())
    }

    /// These values and the values that they are computed from, each once, stopping at values that depend on samples.
    pub fn constants_behind<'n>(&self, names: impl Iterator<Item = &'n str>) -> HashSet<&'n str>
    where
        'a: 'n,
    {
        let mut seen = HashSet::new();
        let mut open: Vec<&str> = names.collect();
        while let Some(name) = open.pop() {
            if self.constant(name).is_some() && seen.insert(name) {
                open.extend(self.writer(name).iter().flat_map(|node| &node.input).map(String::as_str));
            }
        }
        seen
    }

    /// The values of a node's inputs; an error names an input that no earlier node has written.
    pub fn inputs(&self, node: &NodeProto) -> Result<Vec<Option<Value>>, String> {
        let known = |name: &String| match self.values.get(name.as_str()) {
            _ if name.is_empty() => Ok(None),
            Some(value) => Ok(Some(value.clone())),
            None => Err(match self.writers.get(name.as_str()) {
                Some(&writer) if node.output.contains(name) || !self.has_value(writer) => format!(
                    "it reads {}, which only a later node writes; nodes must be in order, without cycles",
                    shown(name)
                ),
                Some(&writer) => format!(
                    "it reads {}, an output of node {} ({}) that is not supported; export the model without it",
                    shown(name),
                    shown(&self.node(writer).name),
                    shown(self.operator(writer))
                ),
                None => format!("it reads {}, but no node, input or initializer has that name", shown(name)),
            }),
        };
        node.input.iter().map(known).collect()
    }

    /// Whether a node has been read.
    fn has_value(&self, node: usize) -> bool {
        self.proto.node[node].output.first().is_some_and(|name| self.values.contains_key(name.as_str()))
    }

    /// The stated extents of the first of these values, which does not depend on the samples.
    pub fn stated_without_batch(&self, names: &[String]) -> Option<Dims> {
        let stated = self.stated.get(names.first()?.as_str())?;
        let shape = stated.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
        let dims = shape.dim.iter().map(|dim| usize::try_from(dim.dim_value?).ok().filter(|dim| *dim <= 1 << 31));
        dims.collect()
    }

    /// The extents of a value as the file states them, if all of them are known.
    pub fn stated(&self, name: &str, input: &Input<'_>) -> Option<Dims> {
        let shape = self.stated.get(name)?.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
        let dims = shape.dim.iter().enumerate().map(|(at, dim)| match fixed(dim) {
            Some(dim) => usize::try_from(dim).ok().filter(|dim| (1..=1 << 31).contains(dim)),
            None if at == 0 || !dim.dim_param.is_empty() && input.batch == Some(dim.dim_param.as_str()) => {
                Some(input.dims[0])
            }
            None => None,
        });
        dims.collect()
    }
}

/// The extent that a file fixes. Some exporters write a free extent as -1 or 0.
fn fixed(dim: &DimensionProto) -> Option<i64> {
    dim.dim_value.filter(|dim| *dim != -1 && *dim != 0)
}
