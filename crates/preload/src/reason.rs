//! Counts why convolutions are left unchanged, without a lock, because every call may be counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::trace;

/// Declares the reasons with their text in the report.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $words:literal;)*) => {
        /// Why a call is passed through unchanged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All of them.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// In words.
            pub fn words(self) -> &'static str {
                match self { $(Reason::$name => $words,)* }
            }
        }
    };
}

reasons! {
    /// The graph has other operations than one convolution.
    Fused = "fused graph";
    /// A graph without a convolution.
    NoConvolution = "not a convolution";
    /// Shapes are given when it runs.
    Dynamic = "dynamic or overridden shapes";
    /// A scalar kept in the graph, or a tensor that is never in memory.
    Virtual = "virtual or by-value tensor";
    /// Ragged, vectorized or reordered tensors.
    Special = "ragged, vectorized or reordered tensor";
    /// An attribute that this library does not know.
    Attribute = "unknown attribute";
    /// Created before this library was active, or filled by cuDNN with something unknown.
    Descriptor = "unknown descriptor";
    /// The plan was deserialized, without its graph.
    Restored = "deserialized plan";
    /// Tensors with gaps or in a mixed order.
    Layout = "layout with gaps";
    /// Types other than the five.
    Types = "number types";
    /// Flipped filters.
    Mode = "true convolution";
    /// Other than two or three spatial dimensions, or sizes that do not match.
    Shape = "shape";
    /// Work outside a device's primary context, or on a device that the settings exclude.
    Device = "device or context";
    /// Nothing limits its layer.
    NoLimit = "no limit";
    /// First seen while a graph was captured, before the memory of a total was allocated.
    Capture = "first seen under capture";
    /// Nothing fits the limit, however divided.
    NothingFits = "nothing fits the limit";
    /// Our part failed.
    Failed = "failed";
    /// Our part panicked.
    Panicked = "panicked";
    /// The program requested cuDNN's own graph of kernels.
    NativeGraph = "native CUDA graph";
    /// The program gave less workspace than we reported.
    Workspace = "less workspace than said";
    /// A convolution with bias and activation in one call, which runs undivided.
    FusedCall = "fused call";
    /// We lent the rest of a workspace that the program had sized by our answer to another question; counted in
    /// addition to the reason why the call runs undivided.
    Lent = "workspace lent";
}

/// Declares the functions that count.
macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        /// A function that runs convolutions.
        #[allow(non_camel_case_types, missing_docs, clippy::enum_variant_names)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function { $($name,)* }

        impl Function {
            /// All of them.
            pub const ALL: &[Function] = &[$(Function::$name,)*];

            /// Its C name.
            pub fn name(self) -> &'static str {
                match self { $(Function::$name => stringify!($name),)* }
            }
        }
    };
}

functions! {
    cudnnBackendExecute,
    cudnnBackendPopulateCudaGraph,
    cudnnBackendUpdateCudaGraph,
    cudnnConvolutionForward,
    cudnnConvolutionBackwardData,
    cudnnConvolutionBackwardFilter,
    cudnnConvolutionBiasActivationForward,
}

const REASONS: usize = 32;
const FUNCTIONS: usize = 8;
const _: () = assert!(Reason::ALL.len() <= REASONS && Function::ALL.len() <= FUNCTIONS);

/// How many calls were passed through, by reason and function.
#[derive(Default)]
pub struct Counts([[AtomicU64; FUNCTIONS]; REASONS]);

impl Counts {
    /// Counts a call that is passed through.
    pub fn count(&self, reason: Reason, function: Function) {
        self.0[reason as usize][function as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Every reason that occurred, with the function and the number of calls.
    pub fn all(&self) -> Vec<(Reason, Function, u64)> {
        let pairs =
            Reason::ALL.iter().flat_map(|reason| Function::ALL.iter().map(move |function| (*reason, *function)));
        let calls =
            |(reason, function): (Reason, Function)| self.0[reason as usize][function as usize].load(Ordering::Relaxed);
        pairs.map(|pair| (pair.0, pair.1, calls(pair))).filter(|(.., calls)| *calls > 0).collect()
    }
}

/// Logs our failure if `TIGHTFIT_LOG` requests it.
pub fn failed(error: impl std::fmt::Display) -> Reason {
    trace!("{error}");
    Reason::Failed
}
