//! Decisions about the convolutions of programs.

use tightfit_conv::{Algorithm, Configuration, Problem};
use tightfit_units::{Bytes, Nanos};

use super::Admission;

/// A question about a program's convolution: everything a decision depends on, except the device.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionKey {
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The program's own algorithm.
    pub chosen: Algorithm,
    /// Its workspace, which reveals another version of the library.
    pub chosen_workspace: Bytes,
    /// The largest workspace.
    pub limit: Bytes,
    /// Name of the rule that chose the sizes, such as `fit`; with ` auto` if the limit is the workspace of the program's own choice.
    pub sizes: String,
    /// The admitted algorithms.
    pub admission: Admission,
    /// The bits of both factors.
    pub factors: [u32; 2],
    /// The alignment of every address.
    pub base: usize,
}

impl DecisionKey {
    /// Everything but the problem, as the cache and profile files have it.
    pub(super) fn words(&self) -> String {
        let DecisionKey { chosen, chosen_workspace, limit, sizes, admission, factors: [alpha, beta], base, .. } = self;
        let class = admission.class.map_or(-1, |class| i64::from(class.0));
        format!(
            "{chosen} {} limit {} sizes {sizes} deterministic {} class {class} without {} factors {alpha:08x} {beta:08x} base {base}",
            chosen_workspace.0, limit.0, admission.deterministic, admission.without.0
        )
    }
}

/// A decision that was measured and compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The configuration that runs; `None` for the program's own choice.
    pub configuration: Option<Configuration>,
    /// Time of the program's own choice, measured alternately with the configuration.
    pub framework_time: Option<Nanos>,
    /// Whether nothing is left to measure.
    pub is_final: bool,
}
