//! Decisions about the program's descriptors, kept with the facts about them.

use std::sync::{Arc, OnceLock};

use tightfit_conv::Configuration;
use tightfit_cuda::GuestProgram;
use tightfit_cuda::sys::cudnn::Handle;

use crate::kernel::Kernel;
use crate::reason::Reason;
use crate::recognize::Graph;
use crate::shadow;
use crate::swap_cell::SwapCell;

/// Facts about a descriptor, with the conclusions from them.
pub type Object = shadow::Object<Notes>;
/// Facts about all descriptors.
pub type Shadows = shadow::Shadows<Notes>;

/// The conclusion from an object.
#[derive(Debug, Default)]
pub struct Notes {
    /// The graph that it is or leads to, or `None` if it has none.
    pub graph: OnceLock<Option<Arc<Graph>>>,
    /// The decision about a plan when it was finalized, or about an engine's configuration when its workspace was
    /// queried, which binds any plan made from it.
    pub decision: OnceLock<Decision>,
}

impl Notes {
    /// Of an object that leads to this graph.
    pub fn of(graph: Option<Arc<Graph>>) -> Notes {
        Notes { graph: OnceLock::from(graph), decision: OnceLock::new() }
    }
}

/// A decision, whose workspace was reported to the program. Cheap to copy.
#[derive(Clone, Debug)]
pub enum Decision {
    /// A kernel, which has the choice.
    Kernel(Arc<Setup>),
    /// The framework's choice runs, because there was no question or no answer.
    Left(Reason),
}

impl Decision {
    /// Bytes of workspace to report to the program, or `None` if the plan's own answer holds.
    pub fn workspace(&self) -> Option<usize> {
        self.kernel()?.reported().replacement()
    }

    /// The kernel decided about.
    pub fn kernel(&self) -> Option<&Arc<Kernel>> {
        match self {
            Decision::Kernel(setup) => Some(&setup.kernel),
            Decision::Left(_) => None,
        }
    }
}

/// A kernel on the handle with which the program made its graph.
pub struct Setup {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    handle: usize,
    /// The last setup on the handle; a kernel may run something else by now.
    program: SwapCell<Option<SetUpProgram>>,
}

/// A configuration with its setup.
struct SetUpProgram {
    configuration: Arc<Configuration>,
    program: Arc<GuestProgram>,
}

impl SetUpProgram {
    fn new((configuration, program): (Arc<Configuration>, Arc<GuestProgram>)) -> SetUpProgram {
        SetUpProgram { configuration, program }
    }
}

impl PartialEq for SetUpProgram {
    fn eq(&self, other: &SetUpProgram) -> bool {
        Arc::ptr_eq(&self.configuration, &other.configuration) && Arc::ptr_eq(&self.program, &other.program)
    }
}

impl Setup {
    /// A kernel on a handle, and its configuration set up there if it has one.
    pub fn new(kernel: Arc<Kernel>, handle: Handle, program: Option<(Arc<Configuration>, Arc<GuestProgram>)>) -> Setup {
        Setup { kernel, handle: handle.0 as usize, program: SwapCell::new(program.map(SetUpProgram::new)) }
    }

    /// Whether it is for this handle.
    pub fn is_on(&self, handle: Handle) -> bool {
        self.handle == handle.0 as usize
    }

    /// A configuration as it was set up on the handle, or `None` if it was not. Takes no lock, because every execution
    /// asks.
    pub fn program(&self, configuration: &Arc<Configuration>) -> Option<&Arc<GuestProgram>> {
        let SetUpProgram { configuration: known, program } = self.program.get().as_ref()?;
        Arc::ptr_eq(known, configuration).then_some(program)
    }

    /// The last setup on the handle.
    pub fn last_program(&self) -> Option<&Arc<GuestProgram>> {
        self.program.get().as_ref().map(|known| &known.program)
    }

    /// Keeps the configuration that was set up on the handle.
    pub fn keep(&self, configuration: Arc<Configuration>, program: Arc<GuestProgram>) {
        self.program.replace(Some(SetUpProgram::new((configuration, program))));
    }
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}
