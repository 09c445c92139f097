"""Small ONNX graphs, one operator under test in each, over many attributes and versions of ONNX's operators.

    x (n, 3, 8, 8) -- Conv -- f (n, 4, 8, 8) -- the operator -- Flatten -- Gemm -- y (n, 10)

The last product reads every element of the operator's output, so that a wrong one changes the classes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

SAMPLE = (3, 8, 8)
FEATURES = (4, 8, 8)
CLASSES = 10

# The newest format that the oldest ONNX Runtime in use reads; it does not matter to operators.
FORMAT = 9


@dataclass
class Case:
    """Nodes from ``f`` to ``r`` at a version, and the words of the refusal if the graph is not to run."""

    name: str
    version: int
    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    refused: str = ""
    loss: bool = False

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def numbers(name: str, *shape: int, low: float | None = None) -> np.ndarray:
    """Numbers that depend on the name alone."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape) if low is None else rng.uniform(low, low + 1, shape)
    return drawn.astype(np.float32)


def model(case: Case, head: bool) -> onnx.ModelProto:
    """The graph of a case, to ``r`` or to the classes."""
    constants = {"first.weight": numbers("first", 4, 3, 3, 3) / 5, "first.bias": numbers("bias", 4), **case.constants}
    nodes = [helper.make_node("Conv", ["x", "first.weight", "first.bias"], ["f"], pads=[1, 1, 1, 1]), *case.nodes]
    if head and not case.loss:
        features = int(np.prod(extents(case)[1:]))
        constants["last.weight"] = numbers("last", CLASSES, features) / np.sqrt(features).astype(np.float32)
        constants["last.bias"] = numbers("offset", CLASSES)
        nodes.append(helper.make_node("Flatten", ["r"], ["flat"]))
        nodes.append(helper.make_node("Gemm", ["flat", "last.weight", "last.bias"], ["y"], transB=1))
    last = helper.make_empty_tensor_value_info("r")
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", *SAMPLE])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", CLASSES]) if head else last],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.version)], ir_version=FORMAT)
    if case.version > 21:
        made.ir_version = 10
    return made


def extents(case: Case) -> list[int]:
    """The extents of ``r`` for two samples, by ONNX's own shape inference."""
    made = model(case, head=False)
    if "ceil_mode" in case.name:
        # Before version 22, inference counts windows that begin in the padding, and implementations do not.
        made.opset_import[0].version = 22
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
    # Group normalization is a function, which is not inferred; it keeps the extents.
    return [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] or [2, *FEATURES]


def node(operator: str, *inputs: str, outputs: tuple[str, ...] = ("r",), **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def integers(*all: int) -> np.ndarray:
    return np.array(all, np.int64)
