//! A network by name or path, and what commands that run it must know of an ONNX model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tightfit_network::{LayerId, LayerKind, Network, Other};
use tightfit_onnx::{Model, Numbers, Shared};

use crate::failure::Failure;
use crate::message;
use crate::options::must_exist;

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
/// The errors of [`Network::open`].
pub fn open(name: &str) -> Result<Opened, Failure> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| ["py", "sh", "ipynb"].iter().any(|known| extension == *known)) {
        return Err(Failure::Usage(format!(
            "{name} is a program, not a network; run it with `tightfit run --budget 8GiB -- python {name}`"
        )));
    }
    if path.extension().is_some_and(|extension| extension == "onnx") {
        must_exist(path)?;
        let model = Model::read(path)?;
        return Ok(Opened { network: model.network().clone(), model: Some(model) });
    }
    Ok(Opened { network: Network::open(name)?, model: None })
}

impl Opened {
    /// The weights in the file, unless random ones are wanted or no file is given.
    ///
    /// # Errors
    /// The errors of [`Model::weights`], with what to do without them.
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

/// The parameters that layers of an ONNX model share; notes them, and the parameters that the file computes.
///
/// # Errors
/// The errors of [`Model::shared`].
pub fn shared(opened: &Opened) -> Result<Vec<Shared>, Failure> {
    let Some(model) = &opened.model else { return Ok(Vec::new()) };
    let shared = model.shared()?;
    for one in &shared {
        let layers: Vec<&str> = one.uses.iter().map(|(layer, _)| opened.network.layer(*layer).name.as_str()).collect();
        message::note(format_args!("{} is one tensor for layers {}: it is trained as one", one.name, listed(&layers)));
    }
    let computed: BTreeSet<&str> =
        model.computed().map(|(layer, _, _)| opened.network.layer(layer).name.as_str()).collect();
    let computed: Vec<&str> = computed.into_iter().collect();
    if !computed.is_empty() {
        message::note(format_args!(
            "{} computes parameters of layers {}: the results are trained and saved, not what they are computed from",
            opened.network.name(),
            listed(&computed)
        ));
    }
    Ok(shared)
}

/// Refuses a network with layers that cannot run, and names them; `what` is the command's verb.
///
/// # Errors
/// [`Failure::Usage`].
pub fn must_run(opened: &Opened, what: &str) -> Result<(), Failure> {
    let network = &opened.network;
    let reason = |layer| opened.model.as_ref().and_then(|model| model.reason(layer));
    let mut why = operators(network, reason, |other| other.function.is_none());
    for (id, layer) in network.iter() {
        if layer.kind == LayerKind::SoftmaxLoss && layer.shape.len() > layer.shape.channels() {
            why.push(format!("output of {}: it must be a vector, one number per class", layer.shape));
        }
        if !matches!(layer.kind, LayerKind::Other(_)) {
            why.extend(reason(id).map(str::to_owned));
        }
    }
    refuse(
        &why,
        format_args!("`{what}` cannot run {}", network.name()),
        "`tightfit plan` and `tightfit optimize` take it",
    )
}

/// Refuses a network with layers that run on the CPU alone if the backend is another one.
///
/// # Errors
/// [`Failure::Usage`].
pub fn must_run_on(backend: &str, network: &Network, what: &str) -> Result<(), Failure> {
    if backend == "cpu" {
        return Ok(());
    }
    let why = operators(network, |_| None, |_| true);
    let cannot = format_args!("`{what}` cannot run {} on {backend}", network.name());
    refuse(&why, cannot, "they run on the CPU: add --backend cpu")
}

/// The operators of other layers that match, each with its layers and what `reason` says of them.
fn operators<'a>(
    network: &'a Network,
    reason: impl Fn(LayerId) -> Option<&'a str>,
    matches: impl Fn(&Other) -> bool,
) -> Vec<String> {
    let mut layers: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (id, layer) in network.iter() {
        if let LayerKind::Other(other) = &layer.kind
            && matches(other)
        {
            layers.entry((&other.operator, reason(id).unwrap_or_default())).or_default().push(&layer.name);
        }
    }
    let line = |((operator, reason), layers): (&(&str, &str), &Vec<&str>)| {
        let because = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        format!("{operator}: {}{because}", listed(layers))
    };
    layers.iter().map(line).collect()
}

fn refuse(why: &[String], cannot: std::fmt::Arguments<'_>, next: &str) -> Result<(), Failure> {
    if why.is_empty() {
        return Ok(());
    }
    Err(Failure::Usage(format!("{cannot} because of\n  {}\n{next}", why.join("\n  "))))
}

/// The first of these names, and how many more there are.
pub fn listed(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(SHOWN).map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
