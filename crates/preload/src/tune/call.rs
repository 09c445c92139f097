//! A call of the program, with the parts of the process that tuning needs for it.

use std::sync::Arc;

use tightfit_cuda::Host;
use tightfit_cuda::sys::cudnn::Handle;

use super::builds::Builds;
use super::task::Own;
use crate::choose::Chooser;
use crate::kernel::Kernels;
use crate::progress::Progress;
use crate::session::Sessions;
use crate::settings::Settings;

/// The parts of the process that tuning needs.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// Driver and cuDNN.
    pub host: &'a Arc<Host>,
    /// The cache, and what choosing has cost.
    pub chooser: &'a Chooser,
    /// The program's handles.
    pub sessions: &'a Sessions,
    /// The convolutions.
    pub kernels: &'a Kernels,
    /// The messages to the user.
    pub progress: &'a Progress,
}

/// The call that is about to be executed.
pub(super) struct TunedCall<'a> {
    pub around: &'a Around<'a>,
    pub handle: Handle,
    pub device: usize,
    pub own: Own<'a>,
    pub builds: &'a Builds,
}
