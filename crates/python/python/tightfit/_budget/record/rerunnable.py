"""Which operations may run again in the backward pass.

The list says which operations may run again, and never which may not: an operation qualifies if the same inputs give the same bits, and if running it
twice changes nothing else. Random numbers, collectives, and functions that a program defines are not on the list.
"""

from __future__ import annotations

from typing import Any

from .data import Operation

__all__ = ["BATCH_NORMS", "CONVOLUTIONS", "gives_only_results", "may_run_again"]

# Their arguments 3 and 4 are running statistics.
BATCH_NORMS = frozenset(["native_batch_norm", "cudnn_batch_norm"])
CONVOLUTIONS = frozenset(["convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"])
# Attention in one operation, by the library that PyTorch chooses for it.
ATTENTION = frozenset(
    """
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu
    """.split()
)
# Names without overloads, of operations that also work in place.
_SAME = frozenset(
    """
    abs add addcdiv addcmul addmm amax amin arange avg_pool2d avg_pool3d baddbmm bitwise_and bitwise_not bitwise_or
    bmm cat clamp clamp_max clamp_min clone constant_pad_nd copy cos div elu embedding empty empty_like eq erf exp
    fill full full_like gather ge gelu glu gt hardsigmoid hardswish hardtanh im2col index index_select le leaky_relu
    linalg_vector_norm log log_sigmoid_forward logical_and logical_not logical_or lt masked_fill max_pool2d_with_indices
    max_pool3d_with_indices maximum mean minimum mish mm mul native_group_norm native_layer_norm ne neg new_empty
    new_empty_strided new_full new_ones new_zeros ones ones_like pixel_shuffle pixel_unshuffle pow prelu
    reciprocal reflection_pad2d relu relu6 repeat replication_pad2d roll rsqrt rsub select_backward sigmoid silu sin
    softplus split_with_sizes_copy sqrt square stack sub sum tanh threshold tril triu
    upsample_bicubic2d upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    var_mean where zero zeros zeros_like _adaptive_avg_pool2d _adaptive_avg_pool3d _log_softmax _softmax _to_copy
    _fused_rms_norm adaptive_max_pool2d
    """.split()
)
# Reshapings, which make nothing.
_VIEWS = frozenset(
    """
    alias as_strided detach diagonal expand lift_fresh permute select slice split split_with_sizes squeeze t transpose unbind unfold
    unsqueeze view view_as_complex view_as_real _reshape_alias _unsafe_view movedim
    """.split()
)
# Others that have no effect but their results, for timing. Not those whose fake arguments lack what cuDNN reserves.
_BACKWARD = frozenset(
    """
    avg_pool2d_backward avg_pool3d_backward convolution_backward elu_backward gelu_backward hardsigmoid_backward
    hardswish_backward hardtanh_backward leaky_relu_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward mish_backward native_batch_norm_backward native_dropout native_dropout_backward
    native_group_norm_backward native_layer_norm_backward sigmoid_backward silu_backward softplus_backward tanh_backward
    threshold_backward upsample_bilinear2d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    upsample_trilinear3d_backward _adaptive_avg_pool2d_backward _log_softmax_backward_data _softmax_backward_data
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu_backward
    """.split()
)
_ONLY_RESULTS = (_SAME - {"embedding", "gather", "index"}) | _VIEWS | CONVOLUTIONS | BATCH_NORMS | ATTENTION | _BACKWARD


def may_run_again(operation: Operation) -> bool:
    """Whether a call gives the same bits again, apart from the statistics of batch normalization; convolutions with `cudnn.benchmark`, on the
    same thread (`threads.share`)."""
    name = operation.name
    if operation.function.namespace not in ("aten", "prims"):
        return False
    if name in ATTENTION:
        return _drops_nothing(operation)
    return name.removesuffix("_") in _SAME or name in _SAME or name in _VIEWS or name in CONVOLUTIONS or name in BATCH_NORMS


def _drops_nothing(attention: Operation) -> bool:
    """Whether a call of attention draws no random numbers."""
    arguments, named = attention.structure.unflatten(attention.arguments)
    places = [argument.name for argument in attention.function._schema.arguments]
    return not {**dict(zip(places, arguments, strict=False)), **named}.get("dropout_p", 0.0)


def gives_only_results(function: Any) -> bool:
    """Whether a call may be made on scratch tensors: it has no effect but its results, whatever numbers it is given."""
    if function.namespace not in ("aten", "prims"):
        return False
    name = str(function._schema.name.split("::")[-1])
    return name.removesuffix("_") in _SAME - {"embedding", "gather", "index"} or name in _ONLY_RESULTS
