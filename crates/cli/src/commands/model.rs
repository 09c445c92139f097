//! A network by name or path, and what commands that run it must know of an ONNX model.

use std::collections::BTreeMap;
use std::path::Path;

use tightfit_core::network::onnx::{Model, Numbers};
use tightfit_core::network::{LayerKind, Network};
use tightfit_core::plan::Workload;
use tightfit_train::{Engine, Machine, replace};

use crate::failure::Failure;

/// How many layers an error names.
const SHOWN: usize = 3;

/// A network, with its ONNX model if it comes from one.
pub struct Opened {
    /// The network.
    pub network: Network,
    /// The model.
    pub model: Option<Model>,
}

/// Opens a built-in network or a file.
///
/// # Errors
/// Those of [`Network::open`].
pub fn open(name: &str) -> Result<Opened, Failure> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "onnx") {
        let model = Model::read(path)?;
        return Ok(Opened { network: model.network().clone(), model: Some(model) });
    }
    Ok(Opened { network: Network::open(name)?, model: None })
}

impl Opened {
    /// The weights in the file, unless random ones are wanted or there is no file.
    ///
    /// # Errors
    /// Those of [`Model::weights`], with what to do without them.
    pub fn weights(&self, random: bool) -> Result<Option<Vec<Numbers>>, Failure> {
        match &self.model {
            Some(model) if !random => model.weights().map(Some).map_err(|error| {
                Failure::Wrong(format!("{error}; add --random-weights to start without them"))
            }),
            _ => Ok(None),
        }
    }
}

/// Refuses a network with layers that cannot run, and names them; `what` is the command's verb.
///
/// # Errors
/// [`Failure::Usage`].
pub fn must_run(network: &Network, what: &str) -> Result<(), Failure> {
    let mut layers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for layer in network.layers() {
        if let LayerKind::Other(other) = &layer.kind {
            layers.entry(&other.operator).or_default().push(&layer.name);
        }
    }
    let vector = |layer: &&tightfit_core::network::Layer| layer.kind == LayerKind::SoftmaxLoss;
    if let Some(loss) = network.layers().iter().find(vector).filter(|loss| loss.shape.len() > loss.shape.channels()) {
        let (name, shape) = (network.name(), loss.shape);
        return Err(Failure::Usage(format!(
            "{name} gives {shape} for each sample, and `{what}` needs a vector with one number per class; `tightfit plan` \
             and `tightfit optimize` take {name}"
        )));
    }
    if layers.is_empty() {
        return Ok(());
    }
    let listed: Vec<String> = layers
        .iter()
        .map(|(operator, layers)| {
            let more = layers.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("\n  {operator}: {}{more}", layers[..layers.len().min(SHOWN)].join(", "))
        })
        .collect();
    let name = network.name();
    Err(Failure::Usage(format!(
        "{name} has operators that `{what}` cannot run:{}\n`tightfit plan` and `tightfit optimize` take {name}",
        listed.concat()
    )))
}

/// Starts an engine from these weights, if there are any.
///
/// # Errors
/// Those of [`replace`] and of writing them.
pub fn start_from<M: Machine>(
    engine: &mut Engine<M>,
    workload: &Workload<'_>,
    weights: Option<&[Numbers]>,
) -> Result<(), Failure> {
    let Some(weights) = weights else { return Ok(()) };
    let mut learned = engine.learned()?;
    replace(workload, &mut learned, weights)?;
    Ok(engine.take_over(&learned)?)
}
