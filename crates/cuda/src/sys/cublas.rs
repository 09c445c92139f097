//! cuBLAS's interface (`libcublas.so.13`, `.12`): matrix products.

use std::ffi::{c_int, c_void};

use super::driver::Stream;
use super::{functions, integers, objects, status};

status! {
    /// The result of a cuBLAS call (`cublasStatus_t`).
    CublasStatus, "CUBLAS_STATUS_",
    SUCCESS = 0;
    NOT_INITIALIZED = 1;
    ALLOC_FAILED = 3;
    INVALID_VALUE = 7;
    ARCH_MISMATCH = 8;
    MAPPING_ERROR = 11;
    EXECUTION_FAILED = 13;
    INTERNAL_ERROR = 14;
    NOT_SUPPORTED = 15;
    LICENSE_ERROR = 16;
}

objects! {
    /// A library context (`cublasHandle_t`).
    Handle;
}

integers! {
    /// Whether a matrix is transposed (`cublasOperation_t`).
    Operation: N = 0, T = 1;
    /// Type of a matrix's elements (`cudaDataType_t`).
    DataType: R_32F = 0, R_16F = 2, R_16BF = 14;
    /// Type of products and sums (`cublasComputeType_t`): PEDANTIC keeps to the arithmetic as written.
    ComputeType: F32 = 68, F32_PEDANTIC = 69, F32_FAST_TF32 = 77;
    /// Which algorithm (`cublasGemmAlgo_t`).
    Algorithm: DEFAULT = -1;
}

functions! {
    /// cuBLAS's functions.
    Cublas, "libcublas.so",
    create = "cublasCreate_v2": fn(*mut Handle) -> CublasStatus;
    destroy = "cublasDestroy_v2": fn(Handle) -> CublasStatus;
    get_version = "cublasGetVersion_v2": fn(Handle, *mut c_int) -> CublasStatus;
    set_stream = "cublasSetStream_v2": fn(Handle, Stream) -> CublasStatus;
    set_workspace = "cublasSetWorkspace_v2": fn(Handle, *mut c_void, usize) -> CublasStatus;
    gemm = "cublasGemmEx": fn(
        Handle, Operation, Operation, c_int, c_int, c_int, *const c_void, *const c_void, DataType, c_int,
        *const c_void, DataType, c_int, *const c_void, *mut c_void, DataType, c_int, ComputeType, Algorithm
    ) -> CublasStatus;
}
