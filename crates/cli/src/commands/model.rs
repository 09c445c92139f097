//! A network by name or path, and what commands that run it must know of an ONNX model.

use std::collections::BTreeMap;
use std::path::Path;

use tightfit_core::network::onnx::{Model, Numbers};
use tightfit_core::network::{LayerKind, Network};

use crate::failure::Failure;

/// How many names a message lists.
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
            Some(model) if !random => model
                .weights()
                .map(Some)
                .map_err(|error| Failure::Wrong(format!("{error}; add --random-weights to start without them"))),
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
    let mut why: Vec<String> =
        layers.iter().map(|(operator, layers)| format!("{operator}: {}", listed(layers))).collect();
    let loss = network.layers().iter().find(|layer| layer.kind == LayerKind::SoftmaxLoss);
    if let Some(loss) = loss.filter(|loss| loss.shape.len() > loss.shape.channels()) {
        why.push(format!("output of {}: it must be a vector, one number per class", loss.shape));
    }
    if why.is_empty() {
        return Ok(());
    }
    let name = network.name();
    Err(Failure::Usage(format!(
        "`{what}` cannot run {name} because of\n  {}\n`tightfit plan` and `tightfit optimize` take it",
        why.join("\n  ")
    )))
}

/// The first of these names, and how many more there are.
pub fn listed(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(SHOWN).map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
