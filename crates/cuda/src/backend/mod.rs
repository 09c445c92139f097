//! cuDNN's two families of algorithms as one backend.
//!
//! Querying workspaces needs descriptors but no memory; measuring and running allocate memory and wait for the device
//! before they return. The micro-batches of a configuration are enqueued on one stream without waits between them; each
//! begins when the previous one has ended, so one workspace serves all.
//!
//! ```text
//! host    enqueue a | enqueue b | enqueue c |            wait              |
//! stream             |--- a, workspace ---|--- b, same ---|--- c, same ---|
//! ```

mod fix;
mod guest;
mod host;
mod launches;
mod measure;
mod pattern;
mod plans;
mod recent;
mod run;
mod scratch;
mod segments;
mod steps;
mod timing;
mod trial;
mod trust;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use tightfit_conv::backend::{Backend, Device, Effort, Offer, Run, Scale, Task, Tensors, Together, corrected};
use tightfit_conv::problem::Storage;
use tightfit_conv::{Algorithm, Configuration, DivisionCost, Measurement, Notes, Operation, Problem, Types};
use tightfit_units::{Bytes, Error};

use crate::CudaError;
use crate::convolution::{
    Elementwise, Family, Graph, MOST_ALIGNMENT, Name, Output, PreparedAlgorithm, Search, fault, legacy_names,
    legacy_notes, listed, prepare_legacy, proposals,
};
use crate::safe::{Context, Handle};
use crate::version::driver_version;
pub use guest::{Chosen, Guest, GuestProgram, NotEnqueued, legacy_chosen, on_copies};
pub use host::{BesideCaptures, Host, Lane};
pub use pattern::Pattern;
pub use plans::Builder;
use plans::Sharing;
use recent::Recent;
use scratch::Scratch;
use steps::sums_in_scratch;
pub use trial::{Course, CourseResult, Moment, Trial};
pub use trust::must_be_proven;

/// How many calls to keep set up: enough for every algorithm of a kernel at every size that a policy needs.
const MAX_CALLS: usize = 2048;
/// How many graphs to keep; each serves all engines of a problem at one size. `fit` queries one algorithm after the other
/// about the same sizes, up to a hundred, each in two to four forms: with fewer graphs, every query would miss.
const MAX_GRAPHS: usize = 512;
/// How many elementwise steps to keep; each serves one number of filter elements.
const MAX_STEPS: usize = 16;

/// The libraries and devices to open, and the algorithms to offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The device's ordinal, counted from 0 by the driver (so after `CUDA_VISIBLE_DEVICES`).
    pub device: usize,
    /// The driver's file or folder, instead of searching for it.
    pub cuda: Option<PathBuf>,
    /// cuDNN's file or folder, instead of searching for it.
    pub cudnn: Option<PathBuf>,
    /// cuBLAS's file or folder, instead of searching for it; only training needs it.
    pub cublas: Option<PathBuf>,
    /// Offer every engine of the backend interface, instead of only the engines that its heuristics propose.
    pub every_engine: bool,
    /// Offer variants of each engine with one knob changed at a time.
    pub knobs: bool,
    /// Run configurations as one captured CUDA graph.
    pub capture: bool,
    /// Run configurations only once, for their outputs: the reported time is then the time of a first call.
    pub untimed: bool,
}

/// Convolutions on one NVIDIA GPU; the crate's page has an example.
pub struct CudaBackend {
    calls: Recent<CallKey, PreparedAlgorithm>,
    graphs: Recent<GraphKey, Graph>,
    elementwise: Recent<(Storage, usize, usize), Elementwise>,
    scratch: Scratch,
    handle: Arc<Handle>,
    device: Device,
    search: Search,
    capture: bool,
    /// The alignment of buffer addresses.
    base: usize,
    untimed: bool,
    /// Plans built by others, or for them.
    sharing: Sharing,
    /// Engines that computed a problem right; see [`trust`].
    proven: HashSet<(Problem, Family)>,
    /// Backends on separate streams in the same context, for configurations that run at the same time.
    siblings: Vec<CudaBackend>,
}

/// The key of a graph; the factors are compared by their bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct GraphKey {
    problem: Problem,
    output: Output,
    factors: [u32; 2],
    base: usize,
}

/// The key of a call: an algorithm and a graph.
#[derive(Clone, PartialEq, Eq, Hash)]
struct CallKey {
    graph: GraphKey,
    family: Family,
}

impl CudaBackend {
    /// Opens the driver, the device and cuDNN.
    ///
    /// # Errors
    /// [`CudaError::Missing`] with every place searched for a library; [`CudaError::TooOld`];
    /// [`CudaError::Symbol`]; [`CudaError::NoDevice`]; [`CudaError::Driver`] and [`CudaError::Cudnn`] if one does not
    /// start.
    pub fn open(options: &Options) -> Result<CudaBackend, CudaError> {
        let context = Arc::new(Context::open(options.cuda.as_deref(), options.device)?);
        CudaBackend::on(Arc::new(Handle::open(options.cudnn.as_deref(), &context)?), options)
    }

    /// The same on a handle.
    fn on(handle: Arc<Handle>, options: &Options) -> Result<CudaBackend, CudaError> {
        let context = handle.context().clone();
        let driver = driver_version().map_or_else(String::new, |version| format!("driver {version} / "));
        let library = format!("cudnn {} / {driver}cuda {}", handle.version(), context.cuda_version()?);
        let device = Device { backend: "cuda".to_owned(), name: context.name()?, library, threads: 0 };
        Ok(CudaBackend {
            calls: Recent::new(MAX_CALLS),
            graphs: Recent::new(MAX_GRAPHS),
            elementwise: Recent::new(MAX_STEPS),
            scratch: Scratch::new(&handle)?,
            handle,
            device,
            search: Search { every_engine: options.every_engine, knobs: options.knobs },
            capture: options.capture,
            base: MOST_ALIGNMENT,
            untimed: options.untimed,
            sharing: Sharing::None,
            proven: HashSet::new(),
            siblings: Vec::new(),
        })
    }

    /// A backend of the same libraries in the same context, with a separate cuDNN handle and stream.
    ///
    /// # Errors
    /// [`CudaError::Driver`]; [`CudaError::Cudnn`] if cuDNN does not start.
    pub fn sibling(&self) -> Result<CudaBackend, CudaError> {
        let context = self.handle.context();
        let handle = Arc::new(Handle::open(Some(self.handle.library()), context)?);
        Ok(CudaBackend {
            device: self.device.clone(),
            search: self.search,
            capture: self.capture,
            untimed: self.untimed,
            base: self.base,
            ..CudaBackend::on(handle, &Options::default())?
        })
    }

    /// Free and total bytes of the device.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(Bytes, Bytes), CudaError> {
        self.handle.context().memory()
    }

    /// Frees the memory used for measuring.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn release(&mut self) -> Result<(), CudaError> {
        self.scratch.release()
    }

    /// The cuDNN handle, for other work in the same context.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn graph_key(&self, problem: &Problem, output: Output, scale: Scale) -> GraphKey {
        let factors = [scale.alpha, scale.beta].map(f32::to_bits);
        GraphKey { problem: *problem, output, factors, base: self.base }
    }

    /// The call of an algorithm on a problem in the problem's own types.
    ///
    /// # Errors
    /// [`CudaError`]; [`CudaError::is_not_supported`] says whether the algorithm is unsupported.
    fn prepare(
        &mut self,
        problem: &Problem,
        family: &Family,
        output: Output,
        scale: Scale,
    ) -> Result<Arc<PreparedAlgorithm>, CudaError> {
        let handle = self.handle.clone();
        match family {
            Family::Legacy(name) => {
                // A legacy call gets its factors when it runs, so one call serves all factors.
                let key =
                    CallKey { graph: self.graph_key(problem, Output::Own, Scale::OVERWRITE), family: family.clone() };
                if output == Output::F32 && problem.types().storage() != Storage::F32 {
                    return Err(CudaError::MixedOutput);
                }
                self.calls.get_or_make(key, || {
                    prepare_legacy(&handle, problem, name)?.ok_or_else(|| CudaError::NoSuchAlgorithm {
                        name: format!("legacy:{name}"),
                        operation: problem.operation(),
                    })
                })
            }
            Family::Engine(engine) => {
                if let Some(what) = fault(handle.version(), problem, engine) {
                    return Err(CudaError::Harmful { what });
                }
                let key = CallKey { graph: self.graph_key(problem, output, scale), family: family.clone() };
                if let Some(call) = self.calls.get(&key) {
                    return Ok(call);
                }
                let graph = self.graph(problem, output, scale)?;
                self.calls.get_or_make(key, || PreparedAlgorithm::engine(&graph, engine))
            }
            Family::Packed(inner) => {
                let key = CallKey { graph: self.graph_key(problem, output, scale), family: family.clone() };
                if let Some(call) = self.calls.get(&key) {
                    return Ok(call);
                }
                let inner = self.prepare(&problem.packed(), inner, output, scale)?;
                let written = match output {
                    Output::Own => problem.types().storage(),
                    Output::F32 => Storage::F32,
                };
                self.calls.get_or_make(key, || PreparedAlgorithm::packed(&handle, inner, problem, written, scale))
            }
        }
    }

    fn graph(&mut self, problem: &Problem, output: Output, scale: Scale) -> Result<Arc<Graph>, CudaError> {
        let (handle, base) = (self.handle.clone(), self.base);
        let key = self.graph_key(problem, output, scale);
        self.graphs.get_or_make(key, || Graph::new(&handle, problem, output, scale, base))
    }

    /// The elementwise steps on the problem's filters.
    fn elementwise(&mut self, problem: &Problem) -> Result<Arc<Elementwise>, CudaError> {
        let (handle, base) = (self.handle.clone(), self.base);
        let (storage, len) = (problem.types().storage(), problem.filter_len());
        let (key, sharing) = ((storage, len, base), &self.sharing);
        if let Some(known) = self.elementwise.get(&key) {
            return Ok(known);
        }
        let made = self.elementwise.get_or_make(key, || match sharing.elementwise(key, &handle) {
            Some(taken) => Ok(taken),
            None => Elementwise::new(&handle, storage, len, base),
        })?;
        self.sharing.keep_elementwise(key, &made);
        Ok(made)
    }

    /// Exact workspace of an algorithm over every form in which a configuration may run it, and cuDNN's notes on it.
    fn requirement(&mut self, problem: &Problem, family: &Family) -> Result<(Bytes, Notes), CudaError> {
        let adds_up = problem.operation() == Operation::BackwardFilter;
        let half = problem.types().storage() != Storage::F32;
        let call = self.prepare(problem, family, Output::Own, Scale::OVERWRITE)?;
        let mut bytes = call.workspace();
        if adds_up && !half {
            bytes = bytes.max(self.prepare(problem, family, Output::Own, ACCUMULATE)?.workspace());
        } else if adds_up {
            // When dividing, it may write f32; if it cannot, it runs as if undivided and its results are added up.
            for scale in [Scale::OVERWRITE, ACCUMULATE] {
                match self.prepare(problem, family, Output::F32, scale) {
                    Ok(mixed) => bytes = bytes.max(mixed.workspace()),
                    Err(error) if is_refusal(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let plain = family.plain();
        let notes = match plain {
            Family::Legacy(name) => legacy_notes(problem.operation(), name),
            _ => call.notes(),
        };
        let algorithm = Algorithm::new(&Name { family: plain.clone(), wide: false }.to_string());
        Ok((Bytes(bytes as u64), corrected(&self.device, problem.operation(), &algorithm, notes)))
    }

    /// The offers of one set of types. An engine that refuses the strides of a view is offered on copies.
    fn offers_of(&mut self, problem: &Problem, wide: bool) -> Result<Vec<Offer>, CudaError> {
        let mut offers = self.offers_in(problem, wide)?;
        if problem.is_packed() {
            return Ok(offers);
        }
        let is_in = |offers: &[Offer], name: &Algorithm| {
            offers.iter().any(|offer| offer.algorithm == *name && offer.workspace.is_ok())
        };
        for offer in self.offers_in(&problem.packed(), wide)? {
            let Ok(Name { family, wide }) = offer.algorithm.name().parse() else { continue };
            if offer.workspace.is_err() || is_in(&offers, &offer.algorithm) {
                continue;
            }
            let family = Family::Packed(Box::new(family));
            match self.requirement(problem, &family) {
                Ok((bytes, notes)) => {
                    let algorithm = Algorithm::new(&Name { family, wide }.to_string());
                    offers.push(Offer { algorithm, notes, workspace: Ok(bytes) });
                }
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(offers)
    }

    /// The offers of one set of types.
    fn offers_in(&mut self, problem: &Problem, wide: bool) -> Result<Vec<Offer>, CudaError> {
        // Engines first, in the order of cuDNN's heuristics: measured early, a fast one spares the slow ones repeats.
        let mut families: Vec<(Family, Notes)> = Vec::new();
        let listed = listed(problem);
        match self.graph(&listed, Output::Own, Scale::OVERWRITE).and_then(|graph| proposals(&graph, self.search)) {
            Ok(found) => families.extend(found.into_iter().map(|found| (Family::Engine(found.engine), found.notes))),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error),
        }
        let legacy = legacy_names(problem.operation()).map(|name| Family::Legacy(name.to_owned()));
        families.extend(legacy.map(|family| (family, Notes::NONE)));
        let mut offers = Vec::with_capacity(families.len());
        for (family, mut notes) in families {
            let workspace = match (excluded(problem.types(), notes), self.requirement(problem, &family)) {
                (Some(reason), _) => Err(reason.to_owned()),
                (None, Ok((bytes, said))) => {
                    notes = said;
                    Ok(bytes)
                }
                (None, Err(error)) if is_refusal(&error) => Err(error.to_string()),
                (None, Err(error)) => return Err(error),
            };
            offers.push(Offer { algorithm: Algorithm::new(&Name { family, wide }.to_string()), notes, workspace });
        }
        Ok(offers)
    }

    /// Resolves an algorithm's name for a problem: the family, and the problem in the types that the name selects.
    fn resolve(&self, problem: &Problem, algorithm: &Algorithm) -> Result<(Problem, Family), Error> {
        let refuse = |reason: &str| Error::Refused {
            algorithm: algorithm.name().to_owned(),
            problem: problem.to_string(),
            reason: reason.to_owned(),
        };
        let Name { family, wide } =
            algorithm.name().parse().map_err(|()| refuse("the CUDA backend has no algorithm of this name"))?;
        match (wide, problem.types()) {
            (false, _) => Ok((*problem, family)),
            (true, Types::F16) => Ok((widened(problem), family)),
            (true, _) => Err(refuse("only f16 has a choice of wider arithmetic")),
        }
    }

    /// Classifies a failure of an algorithm: a refusal if the algorithm is to blame, so that others can still run.
    fn failed(&self, problem: &Problem, algorithm: &Algorithm, error: CudaError) -> Error {
        // A failed kernel leaves the context either intact or lost; waiting for it shows which. On a handle of the program,
        // nothing has run yet, and its stream may be capturing.
        let waited = if self.handle.is_borrowed() { Ok(()) } else { self.handle.stream().synchronize() };
        let error = match waited {
            Err(lost) if lost.is_sticky() => lost,
            _ => error,
        };
        if is_refusal(&error) {
            let reason = error.to_string();
            return Error::Refused { algorithm: algorithm.name().to_owned(), problem: problem.to_string(), reason };
        }
        error.while_doing(format_args!("{algorithm} on {problem}"))
    }
}

/// Adds to the old output.
const ACCUMULATE: Scale = Scale { alpha: 1.0, beta: 1.0 };

/// Whether an error means that an algorithm is unsupported, rather than that the device, its memory or the library
/// failed.
fn is_refusal(error: &CudaError) -> bool {
    let unfit = matches!(
        error,
        CudaError::Cudnn { .. }
            | CudaError::OutOfBounds { .. }
            | CudaError::Misaligned { .. }
            | CudaError::Answer { .. }
            | CudaError::MixedOutput
            | CudaError::Unfit { .. }
            | CudaError::Harmful { .. }
            | CudaError::Unproven { .. }
            | CudaError::NoSuchAlgorithm { .. }
    );
    (unfit || error.is_not_supported()) && !error.is_out_of_memory() && !error.is_sticky()
}

/// Why types exclude an engine, according to cuDNN's notes.
fn excluded(types: Types, notes: Notes) -> Option<&'static str> {
    let single = matches!(types, Types::F32 | Types::Tf32);
    match types {
        Types::F32 if notes.contains(Notes::TENSOR_CORE) => Some("uses tensor cores, which f32 excludes; use tf32"),
        _ if single && notes.contains(Notes::DOWN_CONVERT) => Some("converts its inputs to a narrower type"),
        _ if single && notes.contains(Notes::REDUCED_PRECISION) => Some("sums in a narrower type"),
        _ => None,
    }
}

/// The same problem summed in f32.
fn widened(problem: &Problem) -> Problem {
    problem.with_types(Types::F16F32)
}

impl Backend for CudaBackend {
    fn device(&self) -> &Device {
        &self.device
    }

    fn free_memory(&self) -> Option<Bytes> {
        self.memory().ok().map(|(free, _)| free)
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        let failed = |error: CudaError| error.while_doing(format_args!("listing the algorithms for {problem}"));
        let mut offers = self.offers_of(problem, false).map_err(failed)?;
        if problem.types() == Types::F16 {
            offers.extend(self.offers_of(&widened(problem), true).map_err(failed)?);
        }
        Ok(offers)
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        let (typed, family) = self.resolve(problem, algorithm)?;
        match self.requirement(&typed, &family) {
            Ok((bytes, notes)) => match excluded(typed.types(), notes) {
                None => Ok(bytes),
                Some(reason) => Err(Error::Refused {
                    algorithm: algorithm.name().to_owned(),
                    problem: problem.to_string(),
                    reason: reason.to_owned(),
                }),
            },
            Err(error) => Err(self.failed(problem, algorithm, error)),
        }
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error> {
        self.measure_algorithm(problem, algorithm, effort)
    }

    fn division_cost(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        self.measure_division(problem)
    }

    fn run(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        tensors: Tensors<'_>,
        scale: Scale,
    ) -> Result<Run, Error> {
        self.run_configuration(&Task { problem, configuration, tensors, scale })
    }

    fn run_together(&mut self, tasks: &[Task<'_>]) -> Result<Together, Error> {
        self.run_side_by_side(tasks)
    }
}
