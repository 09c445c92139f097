//! Why convolutions are left as they are, and how often: counted without a lock, since every call may be counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the reasons with the words that the report has for them.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $words:literal;)*) => {
        /// Why a call is handed on as it is.
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
    /// Made before this library looked, or filled by it with something else.
    Descriptor = "unknown descriptor";
    /// The plan was made from a text, without its graph.
    Restored = "deserialized plan";
    /// Tensors with gaps or in a mixed order.
    Layout = "layout with gaps";
    /// Types other than the five.
    Types = "number types";
    /// Flipped filters.
    Mode = "true convolution";
    /// Other than two or three spatial dimensions, or sizes that do not belong together.
    Shape = "shape";
    /// Work outside a device's primary context, or on a device that is not asked for.
    Device = "device or context";
    /// First seen while a graph was captured, before the memory of a total was taken.
    Capture = "first seen under capture";
    /// Nothing fits the limit, however divided.
    NothingFits = "nothing fits the limit";
    /// Something of ours failed.
    Failed = "failed";
    /// Something of ours panicked.
    Panicked = "panicked";
    /// The library's own graph of kernels was asked for.
    NativeGraph = "native CUDA graph";
    /// The workspace given is less than what was said.
    Workspace = "less workspace than said";
    /// A convolution with bias and activation in one call, which runs undivided.
    FusedCall = "fused call";
    /// The rest of a workspace that was sized by an answer of ours to another question was lent; counted beside the reason
    /// why the call runs undivided.
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

static COUNTS: [[AtomicU64; FUNCTIONS]; REASONS] = [const { [const { AtomicU64::new(0) }; FUNCTIONS] }; REASONS];

/// Counts a call that is handed on.
pub fn count(reason: Reason, function: Function) {
    COUNTS[reason as usize][function as usize].fetch_add(1, Ordering::Relaxed);
}

/// Every reason that was met, with the function and how often.
pub fn counted() -> Vec<(Reason, Function, u64)> {
    let pairs = Reason::ALL.iter().flat_map(|reason| Function::ALL.iter().map(move |function| (*reason, *function)));
    pairs
        .map(|(reason, function)| {
            (reason, function, COUNTS[reason as usize][function as usize].load(Ordering::Relaxed))
        })
        .filter(|(.., calls)| *calls > 0)
        .collect()
}
