"""The graphs of ``onnx_graphs``: every operator that runs, with attributes that it honors and attributes that it refuses."""

from __future__ import annotations

import numpy as np
import onnx
from onnx_graphs import CLASSES, Case, integers, node, numbers


def convolutions() -> list[Case]:
    cases = []
    for at, (version, attributes) in enumerate(
        (version, attributes)
        for version in (7, 11, 22)
        for attributes in (
            {},
            {"pads": [1, 0, 2, 1], "strides": [2, 1]},
            {"dilations": [2, 1], "group": 2},
            {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
            {"auto_pad": "SAME_LOWER", "dilations": [2, 1]},
            {"auto_pad": "VALID", "kernel_shape": [3, 2], "group": 4},
        )
    ):
        groups = attributes.get("group", 1)
        constants = {"w": numbers(f"w{groups}", 4, 4 // groups, 3, 2), "b": numbers("b", 4)}
        inputs = ("f", "w", "b") if at % 2 else ("f", "w")
        cases.append(Case(f"Conv {attributes}", version, [node("Conv", *inputs, **attributes)], constants))
    for version, shape, kernel in ((11, (4, 64), (5,)), (22, (2, 2, 8, 8), (2, 3, 3))):
        wide = {"s": integers(0, *shape), "w": numbers("many", 3, shape[0], *kernel)}
        nodes = [node("Reshape", "f", "s", outputs=("s1",)), node("Conv", "s1", "w", dilations=[1] * len(kernel))]
        cases.append(Case(f"Conv of {len(kernel)}", version, nodes, wide))
    wide = {"w": numbers("up", 4, 3, 2, 2)}
    for attributes in ({}, {"output_padding": [1, 1], "strides": [2, 2]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}):
        cases.append(
            Case(f"ConvTranspose {attributes}", 11, [node("ConvTranspose", "f", "w", **attributes)], wide, "ConvTranspose")
        )
    return cases


def poolings() -> list[Case]:
    cases = []
    for operator, versions in (("MaxPool", (7, 8, 10, 12, 22)), ("AveragePool", (7, 10, 11, 19, 22))):
        for version in versions:
            for attributes in (
                {"kernel_shape": [2, 3]},
                {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 1, 2]},
                {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
                {"kernel_shape": [3, 2], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
                {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
            ):
                cases.append(Case(f"{operator} {attributes}", version, [node(operator, "f", **attributes)]))
            if version >= 10:
                ceil = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
                cases.append(Case(f"{operator} {ceil}", version, [node(operator, "f", **ceil)]))
            for dilations in ([1, 1], [3, 3], [1, 2]) if version >= {"MaxPool": 10, "AveragePool": 19}[operator] else ():
                made = [node(operator, "f", kernel_shape=[2, 2], dilations=dilations)]
                refused = "" if dilations == [1, 1] else f"attribute `dilations` = {dilations}, not 1"
                cases.append(Case(f"{operator} dilations {dilations}", version, made, refused=refused))
    for version in (7, 11, 19):
        for pads, refused in (([0, 0, 0, 0], ""), ([1, 1, 1, 1], "attribute `count_include_pad` = 1")):
            made = [node("AveragePool", "f", kernel_shape=[3, 3], pads=pads, count_include_pad=1)]
            cases.append(Case(f"AveragePool counts {pads}", version, made, refused=refused))
    for operator in ("MaxPool", "AveragePool"):
        for version in (10, 22):
            for attributes in (
                {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
                {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1},
                {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 0, 1], "ceil_mode": 1},
                {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER", "ceil_mode": 1},
            ):
                cases.append(Case(f"{operator} {attributes}", version, [node(operator, "f", **attributes)]))
        for shape, kernel in (((4, 64), (3,)), ((2, 2, 8, 8), (2, 3, 2))):
            wide = {"s": integers(0, *shape)}
            start = node("Reshape", "f", "s", outputs=("w",))
            cases.append(Case(f"{operator} of {len(kernel)}", 19, [start, node(operator, "w", kernel_shape=kernel)], wide))
            holes = node(operator, "w", kernel_shape=kernel, dilations=[1] * (len(kernel) - 1) + [2])
            cases.append(Case(f"{operator} dilated of {len(kernel)}", 19, [start, holes], wide, "attribute `dilations`"))
            cases.append(Case(f"Global{operator} of {len(kernel)}", 13, [start, node(f"Global{operator}", "w")], wide))
    made = [node("AveragePool", "f", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1)]
    cases += [Case("AveragePool counts, but nothing is padded", version, made) for version in (10, 11, 19, 22)]
    cases.append(Case("MaxPool order", 8, [node("MaxPool", "f", kernel_shape=[2, 2], storage_order=1)]))
    made = [node("MaxPool", "f", outputs=("p", "i"), kernel_shape=[2, 2]), node("Cast", "i", to=1)]
    cases.append(Case("MaxPool indices", 12, made, refused="it reads `i`, an output of node"))
    for operator in ("GlobalMaxPool", "GlobalAveragePool"):
        cases += [Case(operator, version, [node(operator, "f")]) for version in (7, 22)]
    for version, attributes, inputs in (
        (7, {"axes": [2, 3]}, ()),
        (11, {"axes": [-1, -2], "keepdims": 0}, ()),
        (13, {"axes": [3, 2], "keepdims": 1}, ()),
        (18, {"keepdims": 0}, ("a",)),
        (18, {}, ("a",)),
        (28, {"noop_with_empty_axes": 1}, ("a",)),
    ):
        made = [node("ReduceMean", "f", *inputs, **attributes)]
        cases.append(Case(f"ReduceMean {attributes} {inputs}", version, made, {"a": integers(2, 3)} if inputs else {}))
    made = [node("ReduceMean", "f", axes=[1])]
    cases.append(Case("ReduceMean of channels", 13, made, refused="ReduceMean"))
    for version, inputs in ((13, ()), (18, ("a",))):
        made = [node("ReduceMean", "f", *inputs, outputs=("m",)), node("Mul", "f", "m")]
        given = {"a": integers()} if inputs else {}
        cases.append(Case(f"ReduceMean of all {inputs}", version, made, given, "ReduceMean"))
    return cases


def products() -> list[Case]:
    cases = []
    flat = node("Flatten", "f", outputs=("v",))
    for version in (7, 9, 11, 13):
        for attributes, refused in (
            ({}, ""),
            ({"transB": 1}, ""),
            ({"alpha": 1.0, "beta": 1.0}, ""),
            ({"alpha": 0.5}, "attribute `alpha` = 0.5, not 1"),
            ({"beta": 2.0}, "attribute `beta` = 2, not 1"),
        ):
            matrix = numbers("g", 256, 5) / 16
            constants = {"w": matrix.T.copy() if attributes.get("transB") else matrix, "b": numbers("b", 5)}
            made = [flat, node("Gemm", "v", "w", "b", **attributes)]
            cases.append(Case(f"Gemm {attributes}", version, made, constants, refused))
    cases.append(Case("Gemm without bias", 11, [flat, node("Gemm", "v", "w", beta=3.0)], {"w": numbers("g", 256, 5) / 16}))
    turned = [flat, node("Transpose", "v", outputs=("t",)), node("Gemm", "t", "w", transA=1)]
    cases.append(Case("Gemm transA", 13, turned, {"w": numbers("g", 256, 5) / 16}, "attribute `transA` = 1, not 0"))
    for name, bias, refused in (
        ("row", numbers("b", 1, 5), ""),
        ("number", numbers("b"), "is not one constant for each of 5 outputs"),
        ("one", numbers("b", 1), "is not one constant for each of 5 outputs"),
    ):
        made = [flat, node("Gemm", "v", "w", "b")]
        cases.append(Case(f"Gemm and a {name}", 13, made, {"w": numbers("g", 256, 5) / 16, "b": bias}, refused))
    made = [node("Reshape", "f", "s", outputs=("t",)), node("MatMul", "t", "w", outputs=("m",)), node("Add", "b", "m")]
    rows = {"s": integers(0, 8, 32), "w": numbers("t", 32, 5) / 8, "b": numbers("b", 5)}
    cases.append(Case("MatMul of rows and Add", 13, made, rows))
    for axis, (depth, features) in ((2, (64, 12)), (3, (8, 96))):
        made = [
            node("Flatten", "f", axis=axis, outputs=("v",)),
            node("Gemm", "v", "w", outputs=("g",)),
            node("Reshape", "g", "s"),
        ]
        constants = {"w": numbers(f"g{axis}", depth, 3) / 8, "s": integers(-1, features)}
        cases.append(Case(f"Gemm of rows {axis}", 13, made, constants, "does not have the samples"))
    for version in (7, 13):
        made = [flat, node("MatMul", "v", "w", outputs=("m",)), node("Add", "m", "b")]
        cases.append(Case("MatMul and Add", version, made, {"w": numbers("g", 256, 5) / 16, "b": numbers("b", 5)}))
        cases.append(Case("MatMul of maps", version, [node("MatMul", "f", "w")], {"w": numbers("m", 8, 3)}))
        cases.append(Case("MatMul on the left", version, [node("MatMul", "w", "f")], {"w": numbers("m", 3, 8)}, "MatMul"))
        cases.append(Case("MatMul of two maps", version, [node("MatMul", "f", "f")], {}, "MatMul"))
    return cases


def normalizations() -> list[Case]:
    cases = []
    channels = {"s": numbers("s", 4, low=0.5), "b": numbers("b", 4), "m": numbers("m", 4), "v": numbers("v", 4, low=0.5)}
    for version, attributes in (
        (7, {}),
        (7, {"spatial": 1, "momentum": 0.5}),
        (9, {"epsilon": 0.25}),
        (14, {"epsilon": 0.5}),
        (15, {"training_mode": 0, "momentum": 0.99}),
    ):
        made = [node("BatchNormalization", "f", "s", "b", "m", "v", **attributes)]
        cases.append(Case(f"BatchNormalization {attributes}", version, made, channels))
    for attributes in ({"size": 3}, {"size": 3, "alpha": 0.5}, {"size": 1, "beta": 0.5, "bias": 2.0}, {"size": 5, "alpha": 2.0}):
        cases += [Case(f"LRN {attributes}", version, [node("LRN", "f", **attributes)]) for version in (7, 13)]
    last = {"s": numbers("s", 8), "b": numbers("b", 8)}
    for version, attributes, inputs, refused in (
        (17, {}, ("s", "b"), ""),
        (17, {"axis": 3, "epsilon": 0.5}, ("s", "b"), ""),
        (20, {"stash_type": 1}, ("s", "b"), ""),
        (17, {}, ("s",), "input 2 is missing"),
        (17, {"stash_type": 16}, ("s", "b"), "attribute `stash_type` = 16, not 1"),
    ):
        made = [node("LayerNormalization", "f", *inputs, **attributes)]
        cases.append(Case(f"LayerNormalization {attributes} {inputs}", version, made, last, refused))
    for shape in ((0, 8, 32), (0, 256)):
        made = [node("Reshape", "f", "shape", outputs=("t",)), node("LayerNormalization", "t", "s", "b")]
        rows = {"shape": integers(*shape), "s": numbers("s", shape[-1]), "b": numbers("b", shape[-1])}
        cases.append(Case(f"LayerNormalization of {shape}", 17, made, rows))
    for shape in ((0, 4, 64), (0, 256), (0, 2, 2, 8, 8)):
        made = [node("Reshape", "f", "shape", outputs=("t",)), node("BatchNormalization", "t", "s", "b", "m", "v")]
        four = {name: numbers(name, shape[1], low=0.5) for name in "sbmv"}
        cases.append(Case(f"BatchNormalization of {shape}", 15, made, {"shape": integers(*shape), **four}))
    made = [
        node("Reshape", "f", "shape", outputs=("t",)),
        node("BatchNormalization", "t", "s", "b", "m", "v", outputs=("n",)),
        node("Reshape", "n", "back"),
    ]
    halves = {"shape": integers(-1, 4, 4, 8), "back": integers(-1, 256), **channels}
    cases.append(Case("BatchNormalization of halves", 15, made, halves, "does not have the samples"))
    wide = {"s": numbers("s", 8, 8), "b": numbers("b", 8, 8)}
    made = [node("LayerNormalization", "f", "s", "b", axis=2)]
    cases.append(Case("LayerNormalization of planes", 17, made, wide, "attribute `axis` = 2, not the last axis"))
    made = [node("InstanceNormalization", "f", "s", "b")]
    cases.append(Case("InstanceNormalization", 7, made, channels, "InstanceNormalization"))
    made = [node("GroupNormalization", "f", "s", "b", num_groups=2)]
    cases.append(Case("GroupNormalization", 21, made, channels, "GroupNormalization"))
    for version, attributes, inputs in (
        (7, {"ratio": 0.25}, ()),
        (10, {}, ()),
        (12, {}, ("half",)),
        (13, {"seed": 3}, ("half", "no")),
        (22, {}, ()),
    ):
        made = [node("Dropout", "f", *inputs, **attributes)]
        constants = {"half": np.float32(0.5), "no": np.array(False)}
        cases.append(Case(f"Dropout {attributes} {inputs}", version, made, {name: constants[name] for name in inputs}))
    made = [node("Dropout", "f", outputs=("d", "mask")), node("Cast", "mask", to=1)]
    return [*cases, Case("Dropout mask", 13, made, refused="it reads `mask`, an output of node")]


def activations() -> list[Case]:
    cases = []
    for operator, versions, choices in (
        ("Relu", (7, 13, 14), ({},)),
        ("Sigmoid", (7, 13), ({},)),
        ("Tanh", (7, 13), ({},)),
        ("HardSigmoid", (7, 22), ({}, {"alpha": 0.5}, {"alpha": 0.1, "beta": 0.3}, {"beta": 1.5})),
        ("LeakyRelu", (7, 16), ({}, {"alpha": 0.3}, {"alpha": 2.0})),
        ("Elu", (7, 22), ({}, {"alpha": 0.5})),
        ("HardSwish", (14, 22), ({},)),
        ("Gelu", (20,), ({}, {"approximate": "none"}, {"approximate": "tanh"})),
        ("Softplus", (7, 22), ({},)),
        ("Mish", (18, 22), ({},)),
        ("Swish", (24,), ({}, {"alpha": 1.0})),
        ("Clip", (7,), ({}, {"min": -0.5}, {"max": 0.25}, {"min": 0.0, "max": 6.0})),
    ):
        for version in versions:
            cases += [Case(f"{operator} {choice}", version, [node(operator, "f", **choice)]) for choice in choices]
    cases.append(Case("Swish alpha", 24, [node("Swish", "f", alpha=2.0)], refused="attribute `alpha` = 2, not 1"))
    bounds = {"low": np.float32(-0.5), "high": np.float32(0.25)}
    cases.append(Case("Clip crossed", 13, [node("Clip", "f", "high", "low")], bounds, "low must be below high"))
    for operator, alpha, refused in (
        ("HardSigmoid", -0.2, "alpha must be positive"),
        ("LeakyRelu", 0.0, "the slope must be positive"),
        ("Elu", -1.0, "alpha must be positive"),
    ):
        cases.append(Case(f"{operator} by {alpha}", 16, [node(operator, "f", alpha=alpha)], refused=refused))
    for inputs in ((), ("low",), ("", "high"), ("low", "high")):
        given = {name: bounds[name] for name in inputs if name}
        cases += [Case(f"Clip {inputs}", version, [node("Clip", "f", *inputs)], given) for version in (11, 12, 13)]
    for operator, version, attributes in (
        ("Selu", 7, {"alpha": 2.0}),
        ("Celu", 12, {"alpha": 2.0}),
        ("ThresholdedRelu", 10, {"alpha": 0.5}),
        ("Softsign", 7, {}),
        ("Abs", 13, {}),
        ("Exp", 13, {}),
        ("Erf", 13, {}),
        ("Softmax", 13, {"axis": 1}),
        ("LogSoftmax", 11, {}),
        ("Hardmax", 13, {}),
    ):
        cases.append(Case(f"{operator} {attributes}", version, [node(operator, "f", **attributes)], refused=operator))
    cases.append(Case("PRelu", 16, [node("PRelu", "f", "s")], {"s": numbers("s", 4, 1, 1)}, "PRelu"))
    # Spelled out, as exporters write them.
    spelled = {
        "Silu": [node("Sigmoid", "f", outputs=("a",)), node("Mul", "f", "a")],
        "HardSwish": [node("HardSigmoid", "f", outputs=("a",), alpha=1 / 6), node("Mul", "f", "a")],
        "not HardSwish": [node("HardSigmoid", "f", outputs=("a",), alpha=0.25), node("Mul", "f", "a")],
        "Mish": [node("Softplus", "f", outputs=("a",)), node("Tanh", "a", outputs=("t",)), node("Mul", "f", "t")],
    }
    for name, made in spelled.items():
        refused = "HardSwish" if name.startswith("not") else ""
        cases += [Case(f"{name} spelled out", version, made, refused=refused) for version in (7, 13)]
    gelu = [
        node("Div", "f", "root", outputs=("d",)),
        node("Erf", "d", outputs=("e",)),
        node("Add", "e", "one", outputs=("a",)),
        node("Mul", "f", "a", outputs=("m",)),
        node("Mul", "m", "half"),
    ]
    known = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
    cases += [Case("Gelu spelled out", version, gelu, known) for version in (9, 13)]
    means = [
        node("ReduceMean", "f", outputs=("mean",), axes=[-1]),
        node("Sub", "f", "mean", outputs=("c",)),
        node("Pow", "c", "two", outputs=("q",)),
        node("ReduceMean", "q", outputs=("var",), axes=[-1]),
        node("Add", "var", "eps", outputs=("more",)),
        node("Sqrt", "more", outputs=("d",)),
        node("Div", "c", "d", outputs=("n",)),
        node("Mul", "n", "s", outputs=("scaled",)),
        node("Add", "scaled", "b"),
    ]
    known = {"two": np.float32(2), "eps": np.float32(1e-5), "s": numbers("s", 8), "b": numbers("b", 8)}
    cases += [Case("LayerNormalization spelled out", version, means, known) for version in (7, 13)]
    return cases


def views() -> list[Case]:
    cases = []

    def one(name: str, version: int, *made: onnx.NodeProto, refused: str = "", **constants: np.ndarray) -> None:
        cases.append(Case(name, version, list(made), constants, refused))

    for version, shape, attributes in (
        (7, (0, -1), {}),
        (13, (0, 0, 64), {}),
        (14, (-1, 4, 64), {"allowzero": 1}),
        (21, (0, 2, 128), {}),
    ):
        one(f"Reshape {shape}", version, node("Reshape", "f", "s", **attributes), s=integers(*shape))
    for version in (7, 13, 24):
        one("Flatten", version, node("Flatten", "f", axis=1))
        one("Identity", version, node("Identity", "f"))
    one("Squeeze and Unsqueeze", 11, node("Unsqueeze", "f", outputs=("u",), axes=[1]), node("Squeeze", "u", axes=[1]))
    one("Squeeze and Unsqueeze", 13, node("Unsqueeze", "f", "a", outputs=("u",)), node("Squeeze", "u", "a"), a=integers(2))
    one("Flatten from the back", 11, node("Flatten", "f", axis=-3))
    one("Flatten of all", 13, node("Flatten", "f", axis=0, outputs=("v",)), node("Reshape", "v", "s"), s=integers(-1, 256))
    one("Transpose of all", 13, node("Transpose", "f", outputs=("t",)), node("Transpose", "t"), refused="Transpose")
    one("Mul of itself", 13, node("Mul", "f", "f"))
    one("Sum of one", 13, node("Sum", "f"), refused="Sum")
    one("Add of channels", 13, node("GlobalAveragePool", "f", outputs=("g",)), node("Add", "f", "g"), refused="Add")
    one("Sum of channels", 13, node("GlobalAveragePool", "f", outputs=("g",)), node("Sum", "f", "g"), refused="Sum")
    one("Mul by rows", 13, node("ReduceMean", "f", outputs=("g",), axes=[1]), node("Mul", "f", "g"), refused="Mul")
    one("Mul by ones", 13, node("Mul", "f", "s"), s=np.ones((1, 1, 1, 1), np.float32))
    one(
        "Mul by a rank more",
        13,
        node("Mul", "f", "s", outputs=("m",)),
        node("Reshape", "m", "t"),
        s=np.ones((1, 1, 1, 1, 1), np.float32),
        t=integers(-1, 256),
        refused="Mul",
    )
    one("Div by a map", 13, node("Div", "one", "f"), one=np.float32(1), refused="Div")
    one("Squeeze of all", 13, node("GlobalAveragePool", "f", outputs=("p",)), node("Squeeze", "p"))
    for version in (9, 13, 19, 24):
        one("Cast to doubles", version, node("Cast", "f", outputs=("d",), to=11), node("Cast", "d", to=1))
        one(
            "Cast to integers",
            version,
            node("Cast", "f", outputs=("d",), to=7),
            node("Cast", "d", to=1),
            refused="attribute `to` = 7",
        )
    one("Cast to truths", 13, node("Cast", "f", outputs=("d",), to=9), node("Cast", "d", to=1), refused="attribute `to` = 9")
    one("CastLike", 15, node("CastLike", "f", "like"), like=np.ones(2, np.float32))
    one(
        "CastLike integers",
        15,
        node("CastLike", "f", "like", outputs=("d",)),
        node("Cast", "d", to=1),
        like=np.array(1),
        refused="CastLike",
    )
    for perm in ([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2], [0, 1, 2, 3]):
        for version in (7, 21):
            one(f"Transpose {perm}", version, node("Transpose", "f", perm=perm))
    one("Transpose of ones", 13, node("GlobalMaxPool", "f", outputs=("p",)), node("Transpose", "p", perm=[0, 3, 2, 1]))
    one("Concat", 7, node("Concat", "f", "f", axis=1))
    one("Concat", 13, node("Relu", "f", outputs=("g",)), node("Concat", "f", "g", "f", axis=-3))
    one("Concat along rows", 13, node("Concat", "f", "f", axis=2), refused="joins along axis 2")
    for version in (7, 13, 14):
        one("Add", version, node("Relu", "f", outputs=("g",)), node("Add", "f", "g"))
        one("Sum", version, node("Relu", "f", outputs=("g",)), node("Sum", "f", "g", "g"))
        one("Mul", version, node("Sigmoid", "f", outputs=("g",)), node("Tanh", "f", outputs=("h",)), node("Mul", "g", "h"))
        one("Mul by channels", version, node("Mul", "f", "s"), s=numbers("s", 4, 1, 1))
        one("Mul by 1", version, node("Mul", "f", "one"), one=np.float32(1))
        one("Div by 1", version, node("Div", "f", "one"), one=np.float32(1))
        one("Mul by squeezed", version, node("GlobalAveragePool", "f", outputs=("g",)), node("Mul", "f", "g"))
        one("Mul by columns", version, node("Mul", "f", "s"), s=numbers("s", 8), refused="Mul")
        one("Add of numbers", version, node("Add", "f", "s"), s=numbers("s", 4, 1, 1), refused="Add")
        one("Sub", version, node("Relu", "f", outputs=("g",)), node("Sub", "f", "g"), refused="Sub")
    for operator, version, inputs, attributes, constants in (
        ("Slice", 9, (), {"axes": [2], "starts": [1], "ends": [4]}, {}),
        ("Slice", 13, ("s", "e", "a", "t"), {}, {"s": integers(6), "e": integers(0), "a": integers(3), "t": integers(-2)}),
        ("Pad", 7, (), {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "reflect"}, {}),
        ("Pad", 18, ("p", "", "a"), {"mode": "edge"}, {"p": integers(1, 1), "a": integers(2)}),
        ("Split", 7, (), {"axis": 1, "split": [4]}, {}),
        ("Split", 18, (), {"axis": 2, "num_outputs": 1}, {}),
        ("Gather", 11, ("i",), {"axis": 3}, {"i": integers(1, 2)}),
        ("Tile", 13, ("t",), {}, {"t": integers(1, 2, 1, 1)}),
        ("Expand", 13, ("e",), {}, {"e": integers(1, 4, 8, 8)}),
        ("DepthToSpace", 11, (), {"blocksize": 2, "mode": "CRD"}, {}),
        ("SpaceToDepth", 7, (), {"blocksize": 2}, {}),
        ("ReduceSum", 13, ("a",), {"keepdims": 0}, {"a": integers(1)}),
        ("ReduceMax", 18, ("a",), {}, {"a": integers(-1)}),
        ("ReduceL2", 18, (), {"noop_with_empty_axes": 1}, {}),
        ("CumSum", 14, ("a",), {"reverse": 1}, {"a": np.array(2)}),
        ("Upsample", 9, ("s",), {"mode": "nearest"}, {"s": np.array([1, 1, 2, 2], np.float32)}),
    ):
        one(f"{operator} {attributes}", version, node(operator, "f", *inputs, **attributes), refused=operator, **constants)
    return cases


def resizes() -> list[Case]:
    cases = []
    twice = np.array([1, 1, 2, 2], np.float32)
    for version, inputs, attributes, refused in (
        (11, ("roi", "s"), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, ""),
        (13, ("", "s"), {"mode": "linear"}, ""),
        (13, ("", "s"), {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}, ""),
        (13, ("", "", "z"), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, ""),
        (18, ("", "s"), {"mode": "linear", "antialias": 0}, ""),
        (19, ("", "", "z"), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, ""),
        (19, ("", "", "z"), {"mode": "linear"}, ""),
        (10, ("s",), {"mode": "linear"}, "in version 10"),
        (10, ("s",), {}, "in version 10"),
        (13, ("", "s"), {}, "attribute `mode` = `nearest` at `half_pixel`"),
        (13, ("", "s"), {"mode": "cubic"}, "attribute `mode` = `cubic`"),
        (13, ("", "s"), {"mode": "cubic", "cubic_coeff_a": -0.5}, "attribute `cubic_coeff_a` = -0.5, not -0.75"),
        (13, ("", "s"), {"mode": "linear", "exclude_outside": 1}, "attribute `exclude_outside` = 1, not 0"),
        (13, ("", "s"), {"mode": "linear", "extrapolation_value": 1.0}, "attribute `extrapolation_value` = 1.0, not 0.0"),
        (13, ("", "s"), {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, "`linear` at `asymmetric`"),
        (18, ("", "h"), {"mode": "linear", "antialias": 1}, "attribute `antialias` = 1"),
        (18, ("", "", "a"), {"mode": "linear", "axes": [2, 3]}, "attribute `axes` = [2, 3]"),
        (18, ("", "", "z"), {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}, "`keep_aspect_ratio_policy`"),
        (13, ("", "o"), {"mode": "linear"}, "do not give whole extents"),
    ):
        known = {"s": twice, "z": integers(11, 5), "h": np.array([1, 1, 0.5, 0.5], np.float32), "a": integers(12, 5)}
        known |= {"o": np.array([1, 1, 1.3, 1.3], np.float32), "roi": np.zeros(0, np.float32)}
        given = {name: known[name] for name in inputs if name}
        made = [node("Resize", "f", *inputs, **attributes)]
        if "z" in inputs:
            # As PyTorch exports extents: the samples and channels come from the input.
            ends = [
                node("Slice", "shape", "first", "second", outputs=("same",)),
                node("Concat", "same", "z", outputs=("sizes",), axis=0),
            ]
            made = [node("Shape", "f", outputs=("shape",)), *ends, *made]
            made[-1].input[3] = "sizes"
            given |= {"first": integers(0), "second": integers(2)}
        cases.append(Case(f"Resize {attributes} {inputs}", version, made, given, refused))
    return cases


def losses() -> list[Case]:
    cases = []
    logits = [node("Flatten", "f", outputs=("v",)), node("MatMul", "v", "w", outputs=("g",))]
    known = {"w": numbers("g", 256, CLASSES) / 16}
    for version, attributes, refused in (
        (7, {}, ""),
        (11, {"axis": 1}, ""),
        (13, {}, ""),
        (13, {"axis": -1}, ""),
        (13, {"axis": 0}, "Softmax"),
        (7, {"axis": 0}, "Softmax"),
    ):
        cases.append(
            Case(
                f"last Softmax {attributes}",
                version,
                [*logits, node("Softmax", "g", outputs=("y",), **attributes)],
                known,
                refused,
                loss=True,
            )
        )
    for axis in (1, -1):
        made = [*logits, node("LogSoftmax", "g", outputs=("y",), axis=axis)]
        cases.append(Case(f"last LogSoftmax {axis}", 11, made, known, loss=True))
    cases.append(Case("last LogSoftmax", 13, [*logits, node("LogSoftmax", "g", outputs=("y",))], known, loss=True))
    return cases


def cases() -> list[Case]:
    """All of them."""
    return [
        *convolutions(),
        *poolings(),
        *products(),
        *normalizations(),
        *activations(),
        *views(),
        *resizes(),
        *losses(),
    ]
