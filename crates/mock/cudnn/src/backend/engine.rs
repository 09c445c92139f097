//! Engines by global index, their knobs, and which of them the heuristics propose.

use std::sync::Arc;

use super::graph::Graph;
use crate::control::{compile, on_mode_b, reported};
use crate::method::{Choice, ENGINES, Method};
use crate::number::DataType;
use crate::problem::Problem;
use crate::status::Status;

/// `CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION`
pub const COMPILES: i32 = 0;

/// A knob of an engine.
#[derive(Clone, Copy)]
pub struct KnobInfo {
    /// `cudnnBackendKnobType_t`
    pub kind: i32,
    /// Least value, also the one without a choice.
    pub least: i64,
    /// Most.
    pub most: i64,
    /// Distance of values.
    pub stride: i64,
}

/// An engine for a graph.
#[derive(Clone)]
pub struct Engine {
    /// Its operation.
    pub graph: Arc<Graph>,
    /// Its global index.
    pub index: i64,
}

impl Engine {
    /// The engine of an index.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for an index that the graph does not have; [`Status::NOT_SUPPORTED`] for one without code.
    pub fn new(graph: Arc<Graph>, index: i64) -> Result<Engine, Status> {
        if !(0..graph.engines()).contains(&index) {
            return Err(Status::BAD_PARAM);
        }
        let engine = Engine { graph, index };
        if engine.method() == Method::Absent { Err(Status::NOT_SUPPORTED) } else { Ok(engine) }
    }

    /// Its method; the one engine of pointwise graphs has no other than the plain one.
    fn method(&self) -> Method {
        usize::try_from(self.index).ok().and_then(|i| ENGINES.get(i)).copied().unwrap_or(Method::Absent)
    }

    /// Its knob, if it has one.
    pub fn knob(&self) -> Option<KnobInfo> {
        match (self.method(), self.graph.problem()) {
            // CUDNN_KNOB_TYPE_WORKSPACE, CUDNN_KNOB_TYPE_SPLIT_K_SLC
            (Method::Gemm, Some(_)) => Some(KnobInfo { kind: 25, least: 0, most: 2, stride: 1 }),
            (Method::SplitK, Some(_)) => Some(KnobInfo { kind: 17, least: 1, most: 4, stride: 1 }),
            _ => None,
        }
    }

    /// `cudnnBackendNumericalNote_t`
    pub fn numerical_notes(&self) -> Vec<i32> {
        self.graph.problem().map(|p| Choice::plain(self.method()).notes(p)).unwrap_or_default()
    }

    /// `cudnnBackendBehaviorNote_t`: one engine compiles at run time, another knows graphs of its kernels.
    pub fn behavior_notes(&self) -> Vec<i32> {
        match self.method() {
            _ if self.graph.problem().is_none() => vec![],
            Method::FftTiling => vec![COMPILES],
            Method::Gemm => vec![3],
            _ => vec![],
        }
    }
}

/// An engine with its knob set.
#[derive(Clone)]
pub struct Config {
    /// The engine.
    pub engine: Engine,
    /// The value of its knob; 0 if it has none.
    pub knob: i64,
}

impl Config {
    /// The engine with the default of its knob.
    pub fn new(engine: Engine) -> Config {
        let knob = engine.knob().map_or(0, |k| k.least);
        Config { engine, knob }
    }

    /// Sets the knob.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a knob that the engine has not; [`Status::NOT_SUPPORTED`] for a value it has not.
    pub fn turn(&mut self, kind: i32, value: i64) -> Result<(), Status> {
        let knob = self.engine.knob().filter(|k| k.kind == kind).ok_or(Status::BAD_PARAM)?;
        if !(knob.least..=knob.most).contains(&value) {
            return Err(Status::NOT_SUPPORTED);
        }
        self.knob = value;
        Ok(())
    }

    /// The method with its knob.
    pub fn choice(&self) -> Choice {
        Choice { method: self.engine.method(), knob: self.knob }
    }

    /// Whether the engine computes the graph's shapes and types.
    ///
    /// # Errors
    /// The status of a refusal.
    pub fn check(&self) -> Result<(), Status> {
        self.engine.graph.problem().map_or(Ok(()), |problem| self.choice().check(problem))
    }

    /// Whether a plan can be made: the shapes, and the alignment that every tensor promises.
    ///
    /// # Errors
    /// The status of a refusal.
    pub fn check_plan(&self) -> Result<(), Status> {
        self.check()?;
        let least = if self.engine.graph.problem().is_some() { self.choice().alignment() } else { 1 };
        let promised = self.engine.graph.node.tensors().iter().all(|t| t.alignment >= least);
        if promised { Ok(()) } else { Err(Status::NOT_SUPPORTED) }
    }

    /// Whether a plan of it is compiled: plans of elementwise steps are, and cuDNN reports it of some engines.
    pub fn is_compiled(&self) -> bool {
        self.engine.graph.problem().is_none() || self.engine.behavior_notes().contains(&COMPILES)
    }

    /// Whether the compiled code can be used. Engines that take time to compile cannot write f32 from halves.
    ///
    /// # Errors
    /// [`Status::NOT_SUPPORTED`]
    pub fn check_code(&self) -> Result<(), Status> {
        let widens = |p: &Problem| p.w.data_type == DataType::F32 && p.x.data_type != DataType::F32;
        let refuses = !compile().is_zero() && self.engine.graph.problem().is_some_and(widens);
        if refuses { Err(Status::NOT_SUPPORTED) } else { Ok(()) }
    }

    /// The workspace to tell, in bytes.
    pub fn workspace(&self) -> i64 {
        let bytes = self.engine.graph.problem().map_or(0, |problem| reported(self.choice().workspace(problem)));
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }
}

/// The configurations that a heuristic mode proposes, best first.
///
/// Mode A (also called instant) knows most engines, B also their knobs, fallback two that compute nearly everything.
/// Two Winograd engines are only reached by index.
///
/// # Errors
/// [`Status::BAD_PARAM`] for an unknown mode.
pub fn heuristics(graph: &Arc<Graph>, mode: i64) -> Result<Vec<Config>, Status> {
    let config = |index: i64| Engine::new(graph.clone(), index).ok().map(Config::new);
    let indices: &[i64] = match mode {
        0 | 1 | 3 => &[0, 1, 2, 3, 4, 6, 7, 9],
        2 => &[0, 1],
        _ => return Err(Status::BAD_PARAM),
    };
    let Some(problem) = graph.problem() else { return Ok(config(0).into_iter().collect()) };
    let mut configs: Vec<Config> = indices.iter().filter_map(|&i| config(i)).collect();
    if mode == 1 {
        on_mode_b();
        let turned = |c: &Config| {
            let (config, knob) = (c.clone(), c.engine.knob());
            let values = knob.map_or(0..0, |k| k.least + 1..k.most + 1);
            values.map(move |knob| Config { knob, ..config.clone() }).collect::<Vec<_>>()
        };
        let more: Vec<Config> = configs.iter().flat_map(turned).collect();
        configs.extend(more);
    }
    configs.retain(|c| c.check_plan().is_ok());
    configs.sort_by_key(|c| c.choice().nanos(problem));
    Ok(configs)
}
