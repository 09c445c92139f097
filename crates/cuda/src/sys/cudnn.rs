//! cuDNN's interface (`libcudnn.so.9`): the legacy convolution calls and the backend descriptors.

use std::ffi::{c_char, c_int, c_void};

use super::driver::Stream;
use super::{functions, integers, objects, status};

status! {
    /// The result of a cuDNN call (`cudnnStatus_t`).
    CudnnStatus, "CUDNN_STATUS_",
    SUCCESS = 0;
    NOT_INITIALIZED = 1001;
    SUBLIBRARY_VERSION_MISMATCH = 1002;
    SERIALIZATION_VERSION_MISMATCH = 1003;
    DEPRECATED = 1004;
    LICENSE_ERROR = 1005;
    RUNTIME_IN_PROGRESS = 1006;
    RUNTIME_FP_OVERFLOW = 1007;
    SUBLIBRARY_LOADING_FAILED = 1008;
    BAD_PARAM = 2000;
    BAD_PARAM_NULL_POINTER = 2002;
    BAD_PARAM_MISALIGNED_POINTER = 2003;
    BAD_PARAM_NOT_FINALIZED = 2004;
    BAD_PARAM_OUT_OF_BOUND = 2005;
    BAD_PARAM_SIZE_INSUFFICIENT = 2006;
    BAD_PARAM_STREAM_MISMATCH = 2007;
    BAD_PARAM_SHAPE_MISMATCH = 2008;
    BAD_PARAM_DUPLICATED_ENTRIES = 2009;
    BAD_PARAM_ATTRIBUTE_TYPE = 2010;
    BAD_PARAM_CUDA_GRAPH_MISMATCH = 2011;
    BAD_PARAM_DESCRIPTOR_TYPE = 2012;
    NOT_SUPPORTED = 3000;
    NOT_SUPPORTED_GRAPH_PATTERN = 3001;
    NOT_SUPPORTED_SHAPE = 3002;
    NOT_SUPPORTED_DATA_TYPE = 3003;
    NOT_SUPPORTED_LAYOUT = 3004;
    NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER = 3005;
    NOT_SUPPORTED_INCOMPATIBLE_CUDART = 3006;
    NOT_SUPPORTED_ARCH_MISMATCH = 3007;
    NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING = 3008;
    NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE = 3009;
    NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT = 3010;
    NOT_SUPPORTED_PADDING = 3011;
    NOT_SUPPORTED_BAD_LAUNCH_PARAM = 3012;
    NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API = 3013;
    NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE = 3014;
    INTERNAL_ERROR = 4000;
    INTERNAL_ERROR_COMPILATION_FAILED = 4001;
    INTERNAL_ERROR_UNEXPECTED_VALUE = 4002;
    INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003;
    INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004;
    INTERNAL_ERROR_BAD_LAUNCH_PARAM = 4005;
    INTERNAL_ERROR_TEXTURE_CREATION_FAILED = 4006;
    EXECUTION_FAILED = 5000;
    EXECUTION_FAILED_CUDA_DRIVER = 5001;
    EXECUTION_FAILED_CUBLAS = 5002;
    EXECUTION_FAILED_CUDART = 5003;
    EXECUTION_FAILED_CURAND = 5004;
    INVALID_VALUE = 2001;
}

impl CudnnStatus {
    /// Whether the library does not support the request, as opposed to a failure.
    pub fn is_not_supported(self) -> bool {
        (3000..4000).contains(&self.0)
    }
}

objects! {
    /// A library context (`cudnnHandle_t`).
    Handle;
    /// Shape, strides and type of a tensor (`cudnnTensorDescriptor_t`).
    TensorDescriptor;
    /// Shape, layout and type of filters (`cudnnFilterDescriptor_t`).
    FilterDescriptor;
    /// Padding, stride, dilation, groups and arithmetic (`cudnnConvolutionDescriptor_t`).
    ConvolutionDescriptor;
    /// Any object of the backend interface (`cudnnBackendDescriptor_t`).
    BackendDescriptor;
}

integers! {
    /// Type of an element or of arithmetic (`cudnnDataType_t`).
    DataType: FLOAT = 0, HALF = 2, BFLOAT16 = 9;
    /// Which instructions are allowed (`cudnnMathType_t`).
    MathType: DEFAULT = 0, TENSOR_OP = 1, FMA = 3;
    /// Order of a filter's dimensions (`cudnnTensorFormat_t`).
    TensorFormat: NCHW = 0, NHWC = 1;
    /// Whether filters are flipped (`cudnnConvolutionMode_t`); networks use the one that is not.
    ConvolutionMode: CROSS_CORRELATION = 1;
    /// A legacy algorithm's number (`cudnnConvolutionFwdAlgo_t` and its two siblings).
    LegacyAlgorithm:;
    /// Kind of a backend object (`cudnnBackendDescriptorType_t`).
    Kind: POINTWISE = 0, CONVOLUTION = 1, ENGINE = 2, ENGINECFG = 3, ENGINEHEUR = 4, EXECUTION_PLAN = 5,
        KNOB_CHOICE = 7, KNOB_INFO = 8, OPERATION_CONVOLUTION_FORWARD = 10,
        OPERATION_CONVOLUTION_BACKWARD_FILTER = 11, OPERATION_CONVOLUTION_BACKWARD_DATA = 12,
        OPERATION_POINTWISE = 13, OPERATIONGRAPH = 15, VARIANT_PACK = 16, TENSOR = 17;
    /// Attribute of a backend object (`cudnnBackendAttributeName_t`).
    Attribute: POINTWISE_MODE = 0, POINTWISE_MATH_PREC = 1,
        CONVOLUTION_COMP_TYPE = 100, CONVOLUTION_CONV_MODE = 101, CONVOLUTION_DILATIONS = 102,
        CONVOLUTION_FILTER_STRIDES = 103, CONVOLUTION_POST_PADDINGS = 104, CONVOLUTION_PRE_PADDINGS = 105,
        CONVOLUTION_SPATIAL_DIMS = 106,
        ENGINEHEUR_MODE = 200, ENGINEHEUR_OPERATION_GRAPH = 201, ENGINEHEUR_RESULTS = 202,
        ENGINEHEUR_SM_COUNT_TARGET = 203,
        ENGINECFG_ENGINE = 300, ENGINECFG_KNOB_CHOICES = 302, ENGINECFG_WORKSPACE_SIZE = 303,
        EXECUTION_PLAN_HANDLE = 400, EXECUTION_PLAN_ENGINE_CONFIG = 401, EXECUTION_PLAN_WORKSPACE_SIZE = 402,
        EXECUTION_PLAN_JSON_REPRESENTATION = 405, EXECUTION_PLAN_DEVICEPROP = 407,
        KNOB_CHOICE_KNOB_TYPE = 600, KNOB_CHOICE_KNOB_VALUE = 601,
        FORWARD_ALPHA = 700, FORWARD_BETA = 701, FORWARD_CONV_DESC = 702, FORWARD_W = 703, FORWARD_X = 704,
        FORWARD_Y = 705,
        BWD_DATA_ALPHA = 706, BWD_DATA_BETA = 707, BWD_DATA_CONV_DESC = 708, BWD_DATA_W = 709, BWD_DATA_DX = 710,
        BWD_DATA_DY = 711,
        BWD_FILTER_ALPHA = 712, BWD_FILTER_BETA = 713, BWD_FILTER_CONV_DESC = 714, BWD_FILTER_DW = 715,
        BWD_FILTER_X = 716, BWD_FILTER_DY = 717,
        OPERATION_POINTWISE_PW_DESCRIPTOR = 750, OPERATION_POINTWISE_XDESC = 751, OPERATION_POINTWISE_BDESC = 752,
        OPERATION_POINTWISE_YDESC = 753,
        OPERATIONGRAPH_HANDLE = 800, OPERATIONGRAPH_OPS = 801, OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802,
        OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED = 803, OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED = 805,
        TENSOR_BYTE_ALIGNMENT = 900, TENSOR_DATA_TYPE = 901, TENSOR_DIMENSIONS = 902, TENSOR_STRIDES = 903,
        TENSOR_VECTOR_COUNT = 904, TENSOR_VECTORIZED_DIMENSION = 905, TENSOR_UNIQUE_ID = 906, TENSOR_IS_VIRTUAL = 907,
        TENSOR_IS_BY_VALUE = 908, TENSOR_REORDERING_MODE = 909, TENSOR_RAGGED_OFFSET_DESC = 913,
        VARIANT_PACK_UNIQUE_IDS = 1000, VARIANT_PACK_DATA_POINTERS = 1001, VARIANT_PACK_WORKSPACE = 1003,
        KNOB_INFO_TYPE = 1200, KNOB_INFO_MAXIMUM_VALUE = 1201, KNOB_INFO_MINIMUM_VALUE = 1202,
        KNOB_INFO_STRIDE = 1203,
        ENGINE_OPERATION_GRAPH = 1300, ENGINE_GLOBAL_INDEX = 1301, ENGINE_KNOB_INFO = 1302,
        ENGINE_NUMERICAL_NOTE = 1303, ENGINE_BEHAVIOR_NOTE = 1305, ENGINE_SM_COUNT_TARGET = 1306;
    /// Type of an attribute's elements (`cudnnBackendAttributeType_t`).
    ElementType: HANDLE = 0, DATA_TYPE = 1, BOOLEAN = 2, INT64 = 3, FLOAT = 4, DOUBLE = 5, VOID_PTR = 6,
        CONVOLUTION_MODE = 7, HEUR_MODE = 8, KNOB_TYPE = 9, NUMERICAL_NOTE = 11, POINTWISE_MODE = 14,
        BACKEND_DESCRIPTOR = 15, BEHAVIOR_NOTE = 19, TENSOR_REORDERING_MODE = 20, INT32 = 23;
    /// How engines are proposed (`cudnnBackendHeurMode_t`); A is asked for by the older name INSTANT.
    HeuristicMode: INSTANT = 0, B = 1, FALLBACK = 2;
    /// The kind of an engine's knob (`cudnnBackendKnobType_t`), only ever printed by number.
    KnobType:;
    /// cuDNN's note on an engine's arithmetic (`cudnnBackendNumericalNote_t`).
    NumericalNote: TENSOR_CORE = 0, DOWN_CONVERT_INPUTS = 1, REDUCED_PRECISION_REDUCTION = 2, FFT = 3,
        NONDETERMINISTIC = 4, WINOGRAD = 5, WINOGRAD_TILE_4X4 = 6, WINOGRAD_TILE_6X6 = 7, WINOGRAD_TILE_13X13 = 8;
    /// cuDNN's note on an engine's behavior (`cudnnBackendBehaviorNote_t`).
    BehaviorNote: RUNTIME_COMPILATION = 0, SUPPORTS_CUDA_GRAPH_NATIVE_API = 3;
    /// An elementwise operation (`cudnnPointwiseMode_t`).
    PointwiseMode: ADD = 0, IDENTITY = 21;
}

functions! {
    /// cuDNN's functions.
    Cudnn, "libcudnn.so.9",
    get_version = "cudnnGetVersion": fn() -> usize;
    get_last_error_string = "cudnnGetLastErrorString": fn(*mut c_char, usize) -> ();
    create = "cudnnCreate": fn(*mut Handle) -> CudnnStatus;
    destroy = "cudnnDestroy": fn(Handle) -> CudnnStatus;
    get_stream = "cudnnGetStream": fn(Handle, *mut Stream) -> CudnnStatus;
    set_stream = "cudnnSetStream": fn(Handle, Stream) -> CudnnStatus;
    create_tensor = "cudnnCreateTensorDescriptor": fn(*mut TensorDescriptor) -> CudnnStatus;
    set_tensor = "cudnnSetTensorNdDescriptor":
        fn(TensorDescriptor, DataType, c_int, *const c_int, *const c_int) -> CudnnStatus;
    destroy_tensor = "cudnnDestroyTensorDescriptor": fn(TensorDescriptor) -> CudnnStatus;
    create_filter = "cudnnCreateFilterDescriptor": fn(*mut FilterDescriptor) -> CudnnStatus;
    set_filter = "cudnnSetFilterNdDescriptor":
        fn(FilterDescriptor, DataType, TensorFormat, c_int, *const c_int) -> CudnnStatus;
    destroy_filter = "cudnnDestroyFilterDescriptor": fn(FilterDescriptor) -> CudnnStatus;
    create_convolution = "cudnnCreateConvolutionDescriptor": fn(*mut ConvolutionDescriptor) -> CudnnStatus;
    set_convolution = "cudnnSetConvolutionNdDescriptor": fn(
        ConvolutionDescriptor, c_int, *const c_int, *const c_int, *const c_int, ConvolutionMode, DataType
    ) -> CudnnStatus;
    set_group_count = "cudnnSetConvolutionGroupCount": fn(ConvolutionDescriptor, c_int) -> CudnnStatus;
    set_math_type = "cudnnSetConvolutionMathType": fn(ConvolutionDescriptor, MathType) -> CudnnStatus;
    destroy_convolution = "cudnnDestroyConvolutionDescriptor": fn(ConvolutionDescriptor) -> CudnnStatus;
    forward_workspace = "cudnnGetConvolutionForwardWorkspaceSize": fn(
        Handle, TensorDescriptor, FilterDescriptor, ConvolutionDescriptor, TensorDescriptor, LegacyAlgorithm, *mut usize
    ) -> CudnnStatus;
    backward_data_workspace = "cudnnGetConvolutionBackwardDataWorkspaceSize": fn(
        Handle, FilterDescriptor, TensorDescriptor, ConvolutionDescriptor, TensorDescriptor, LegacyAlgorithm, *mut usize
    ) -> CudnnStatus;
    backward_filter_workspace = "cudnnGetConvolutionBackwardFilterWorkspaceSize": fn(
        Handle, TensorDescriptor, TensorDescriptor, ConvolutionDescriptor, FilterDescriptor, LegacyAlgorithm, *mut usize
    ) -> CudnnStatus;
    forward = "cudnnConvolutionForward": fn(
        Handle, *const c_void, TensorDescriptor, *const c_void, FilterDescriptor, *const c_void, ConvolutionDescriptor,
        LegacyAlgorithm, *mut c_void, usize, *const c_void, TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
    backward_data = "cudnnConvolutionBackwardData": fn(
        Handle, *const c_void, FilterDescriptor, *const c_void, TensorDescriptor, *const c_void, ConvolutionDescriptor,
        LegacyAlgorithm, *mut c_void, usize, *const c_void, TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
    backward_filter = "cudnnConvolutionBackwardFilter": fn(
        Handle, *const c_void, TensorDescriptor, *const c_void, TensorDescriptor, *const c_void, ConvolutionDescriptor,
        LegacyAlgorithm, *mut c_void, usize, *const c_void, FilterDescriptor, *mut c_void
    ) -> CudnnStatus;
    backend_create = "cudnnBackendCreateDescriptor": fn(Kind, *mut BackendDescriptor) -> CudnnStatus;
    backend_destroy = "cudnnBackendDestroyDescriptor": fn(BackendDescriptor) -> CudnnStatus;
    backend_set = "cudnnBackendSetAttribute":
        fn(BackendDescriptor, Attribute, ElementType, i64, *const c_void) -> CudnnStatus;
    backend_get = "cudnnBackendGetAttribute":
        fn(BackendDescriptor, Attribute, ElementType, i64, *mut i64, *mut c_void) -> CudnnStatus;
    backend_finalize = "cudnnBackendFinalize": fn(BackendDescriptor) -> CudnnStatus;
    backend_execute = "cudnnBackendExecute": fn(Handle, BackendDescriptor, BackendDescriptor) -> CudnnStatus;
}
