//! The engines of the backend interface: lists the engines that cuDNN proposes for a graph, reads their notes, and sets one
//! up again from its name.

use std::sync::Arc;

use tightfit_conv::Notes;

use super::{Engine, Graph};
use crate::CudaError;
use crate::safe::Descriptor;
use crate::sys::cudnn::{Attribute, BehaviorNote, HeuristicMode, Kind, KnobType, NumericalNote};

/// Most notes an engine can have, and most knobs worth reading: both over what cuDNN 9 has.
const MAX_NOTES: usize = 16;
const MAX_KNOBS: usize = 64;
/// Values of one knob worth trying.
const MAX_VALUES: i64 = 32;

/// Where to look for engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    /// Every engine, by global index, instead of the engines that the heuristics propose.
    pub every_engine: bool,
    /// In addition to each engine, its variants with one knob changed at a time.
    pub knobs: bool,
}

/// A candidate engine, as described by cuDNN.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    /// The engine and its knobs.
    pub engine: Engine,
    /// cuDNN's notes on its arithmetic.
    pub notes: Notes,
}

/// The distinct engines for a graph, in the order of cuDNN's preference.
///
/// # Errors
/// [`CudaError::Cudnn`] if cuDNN cannot be queried. A heuristics mode without an answer is not an error.
pub(crate) fn proposals(graph: &Graph, search: Search) -> Result<Vec<Proposal>, CudaError> {
    let mut found: Vec<Proposal> = Vec::new();
    let mut add = |proposal: Proposal| {
        if !found.iter().any(|known| known.engine == proposal.engine) {
            found.push(proposal);
        }
    };
    if search.every_engine {
        let count: i64 = graph.descriptor.get_one(Attribute::OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, "the engine count")?;
        for index in 0..count {
            // Engines that do not support the graph fail to finalize, which is most of them.
            let Ok(engine) = engine(graph, index) else { continue };
            add(Proposal { engine: Engine { index, knobs: Vec::new() }, notes: notes(&engine)? });
        }
    } else {
        // Not mode B: for some convolutions, cuDNN 9.19 captures a graph to answer it. Calls that a capture forbids
        // then fail in other threads of the program, and if one of them ends the capture, cuDNN reads a wild address.
        for mode in [HeuristicMode::INSTANT, HeuristicMode::FALLBACK] {
            for config in heuristics(graph, mode)? {
                add(proposal(&config)?);
            }
        }
    }
    if search.knobs {
        for Proposal { engine: Engine { index, .. }, notes } in found.clone() {
            for knob in turned(&*engine(graph, index)?)? {
                let engine = Engine { index, knobs: vec![knob] };
                if !found.iter().any(|known| known.engine == engine) {
                    found.push(Proposal { engine, notes });
                }
            }
        }
    }
    Ok(found)
}

/// The configurations listed by one heuristics mode; empty if it has no answer.
fn heuristics(graph: &Graph, mode: HeuristicMode) -> Result<Vec<Descriptor>, CudaError> {
    let heuristic = Descriptor::new(graph.descriptor.handle(), Kind::ENGINEHEUR)?
        .with_objects(Attribute::ENGINEHEUR_OPERATION_GRAPH, &[&graph.descriptor])?
        .with(Attribute::ENGINEHEUR_MODE, &[mode])?
        .finalize();
    let heuristic = match heuristic {
        Err(error) if error.is_not_supported() => return Ok(Vec::new()),
        heuristic => heuristic?,
    };
    let count = heuristic.count(Attribute::ENGINEHEUR_RESULTS)?;
    heuristic.get_objects(Attribute::ENGINEHEUR_RESULTS, Kind::ENGINECFG, count)
}

/// The engine of a listed configuration.
pub(crate) fn proposal(config: &Descriptor) -> Result<Proposal, CudaError> {
    let engines = config.get_objects(Attribute::ENGINECFG_ENGINE, Kind::ENGINE, 1)?;
    let what = "a configuration's engine";
    let engine = engines.first().ok_or(CudaError::Answer { what, count: 0, expected: "one" })?;
    let mut knobs = Vec::new();
    for choice in config.get_objects(Attribute::ENGINECFG_KNOB_CHOICES, Kind::KNOB_CHOICE, MAX_KNOBS)? {
        let knob: KnobType = choice.get_one(Attribute::KNOB_CHOICE_KNOB_TYPE, "a knob's type")?;
        knobs.push((knob.0, choice.get_one::<i64>(Attribute::KNOB_CHOICE_KNOB_VALUE, "a knob's value")?));
    }
    knobs.sort_unstable();
    let index = engine.get_one(Attribute::ENGINE_GLOBAL_INDEX, "an engine's index")?;
    Ok(Proposal { engine: Engine { index, knobs }, notes: notes(engine)? })
}

/// An engine of a graph by its global index.
fn engine(graph: &Graph, index: i64) -> Result<Arc<Descriptor>, CudaError> {
    Descriptor::new(graph.descriptor.handle(), Kind::ENGINE)?
        .with_objects(Attribute::ENGINE_OPERATION_GRAPH, &[&graph.descriptor])?
        .with(Attribute::ENGINE_GLOBAL_INDEX, &[index])?
        .finalize()
}

/// cuDNN's report about an engine. Notes that no decision depends on are omitted.
fn notes(engine: &Descriptor) -> Result<Notes, CudaError> {
    let notes: Vec<NumericalNote> = engine.get(Attribute::ENGINE_NUMERICAL_NOTE, MAX_NOTES)?;
    // A version without this query has no answer.
    let conduct: Vec<BehaviorNote> = engine.get(Attribute::ENGINE_BEHAVIOR_NOTE, MAX_NOTES).unwrap_or_default();
    let is_compiled = conduct.contains(&BehaviorNote::RUNTIME_COMPILATION);
    let begun = if is_compiled { Notes::COMPILED } else { Notes::NONE };
    Ok(notes.into_iter().fold(begun, |all, note| {
        all.with(match note {
            NumericalNote::TENSOR_CORE => Notes::TENSOR_CORE,
            NumericalNote::DOWN_CONVERT_INPUTS => Notes::DOWN_CONVERT,
            NumericalNote::REDUCED_PRECISION_REDUCTION => Notes::REDUCED_PRECISION,
            NumericalNote::FFT => Notes::FFT,
            NumericalNote::NONDETERMINISTIC => Notes::NONDETERMINISTIC,
            NumericalNote::WINOGRAD
            | NumericalNote::WINOGRAD_TILE_4X4
            | NumericalNote::WINOGRAD_TILE_6X6
            | NumericalNote::WINOGRAD_TILE_13X13 => Notes::WINOGRAD,
            _ => Notes::NONE,
        })
    }))
}

/// Every setting of every knob of an engine, one knob at a time.
fn turned(engine: &Descriptor) -> Result<Vec<(i32, i64)>, CudaError> {
    let mut settings = Vec::new();
    for info in engine.get_objects(Attribute::ENGINE_KNOB_INFO, Kind::KNOB_INFO, MAX_KNOBS)? {
        let knob: KnobType = info.get_one(Attribute::KNOB_INFO_TYPE, "a knob's type")?;
        let least: i64 = info.get_one(Attribute::KNOB_INFO_MINIMUM_VALUE, "a knob's least value")?;
        let most: i64 = info.get_one(Attribute::KNOB_INFO_MAXIMUM_VALUE, "a knob's largest value")?;
        let stride: i64 = info.get_one(Attribute::KNOB_INFO_STRIDE, "a knob's stride")?;
        let values = (0..MAX_VALUES).map(|step| least.saturating_add(step.saturating_mul(stride.max(1))));
        settings.extend(values.take_while(|value| *value <= most).map(|value| (knob.0, value)));
    }
    Ok(settings)
}

/// An engine with its knobs set, its exact workspace (queried without building a plan), and cuDNN's notes on it.
///
/// # Errors
/// [`CudaError::Cudnn`], also if the engine does not support the graph; [`CudaError::Answer`].
pub(crate) fn configure(graph: &Graph, wanted: &Engine) -> Result<(Arc<Descriptor>, usize, Notes), CudaError> {
    let engine = engine(graph, wanted.index)?;
    let choice = |&(knob, value): &(i32, i64)| {
        Descriptor::new(graph.descriptor.handle(), Kind::KNOB_CHOICE)?
            .with(Attribute::KNOB_CHOICE_KNOB_TYPE, &[KnobType(knob)])?
            .with(Attribute::KNOB_CHOICE_KNOB_VALUE, &[value])?
            .finalize()
    };
    let choices: Vec<Arc<Descriptor>> = wanted.knobs.iter().map(choice).collect::<Result<_, CudaError>>()?;
    let mut config = Descriptor::new(graph.descriptor.handle(), Kind::ENGINECFG)?
        .with_objects(Attribute::ENGINECFG_ENGINE, &[&engine])?;
    if !choices.is_empty() {
        config = config.with_objects(Attribute::ENGINECFG_KNOB_CHOICES, &choices.iter().collect::<Vec<_>>())?;
    }
    let config = config.finalize()?;
    let what = "a configuration's workspace";
    let bytes: i64 = config.get_one(Attribute::ENGINECFG_WORKSPACE_SIZE, what)?;
    let workspace =
        usize::try_from(bytes).map_err(|_| CudaError::Answer { what, count: bytes, expected: "0 or more" })?;
    Ok((config, workspace, notes(&engine)?))
}
