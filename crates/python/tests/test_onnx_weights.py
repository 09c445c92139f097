"""Weights that an ONNX file holds or computes in any way: ``predict`` against onnx's own reference evaluator."""

import json
import os
import subprocess
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")
onnx = pytest.importorskip("onnx")
PIL = pytest.importorskip("PIL.Image")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
COMMAND = os.environ.get("TIGHTFIT_COMMAND", str(ROOT / "target/debug/tightfit"))
pytestmark = pytest.mark.skipif(not Path(COMMAND).exists(), reason=f"{COMMAND} is not built")

random = numpy.random.default_rng(1)
node = helper.make_node


def w(name, *shape):
    return numpy_helper.from_array((random.standard_normal(shape) * 0.4).astype(numpy.float32), name)


def whole(name, *numbers, kind=numpy.int64):
    return numpy_helper.from_array(numpy.array(numbers, dtype=kind), name)


def floats(name, *numbers):
    return numpy_helper.from_array(numpy.array(numbers, dtype=numpy.float32), name)


def one(name, number):
    return numpy_helper.from_array(numpy.float32(number), name)


def small(name, *shape, kind=numpy.int8):
    limits = numpy.iinfo(kind)
    return numpy_helper.from_array(random.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True), name)


def packed(name, kind, numbers, *shape):
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    tensor.int32_data.extend(int(number) for number in numbers)
    return tensor


def standardized(name):
    shape = [w(name, 8, 3, 3, 3)]
    return (
        [
            node("ReduceMean", [name], ["mean"], axes=[1, 2, 3], keepdims=1),
            node("Sub", [name, "mean"], ["centered"]),
            node("Mul", ["centered", "centered"], ["square"]),
            node("ReduceMean", ["square"], ["variance"], axes=[1, 2, 3], keepdims=1),
            node("Add", ["variance", "tiny"], ["more"]),
            node("Sqrt", ["more"], ["deviation"]),
            node("Div", ["centered", "deviation"], ["w"]),
        ],
        shape + [one("tiny", 1e-5)],
    )


F = (8, 3, 3, 3)
CONV = {
    "constant": ([node("Constant", [], ["w"], value=w("k", *F))], []),
    "floats": (
        [
            node("Constant", [], ["flat"], value_floats=[float(x) for x in random.standard_normal(216)]),
            node("Reshape", ["flat", "shape"], ["w"]),
        ],
        [whole("shape", *F)],
    ),
    "scaled": ([node("Mul", ["v", "number"], ["w"])], [w("v", *F), one("number", 0.25)]),
    "weight-norm": (
        [
            node("ReduceL2", ["v"], ["n"], axes=[1, 2, 3], keepdims=1),
            node("Div", ["v", "n"], ["u"]),
            node("Mul", ["u", "g"], ["w"]),
        ],
        [w("v", *F), w("g", 8, 1, 1, 1)],
    ),
    "standardized": standardized("v"),
    "by-batch-norm": (
        [
            node("Reshape", ["v", "flat"], ["rows"]),
            node("BatchNormalization", ["rows", "ones", "zeros", "zeros", "ones"], ["normed", "m", "s"], training_mode=1),
            node("Reshape", ["normed", "shape"], ["w"]),
        ],
        [w("v", *F), whole("flat", 1, 8, 27), whole("shape", *F), floats("ones", *[1] * 8), floats("zeros", *[0] * 8)],
    ),
    "masked": (
        [node("Greater", ["v", "number"], ["big"]), node("Where", ["big", "v", "number"], ["w"])],
        [w("v", *F), one("number", 0.1)],
    ),
    "triangle": ([node("Trilu", ["v"], ["w"], upper=0)], [w("v", *F)]),
    "concat": ([node("Concat", ["a", "b"], ["w"], axis=1)], [w("a", 8, 1, 3, 3), w("b", 8, 2, 3, 3)]),
    "slice": (
        [node("Slice", ["v", "from", "to", "axes", "steps"], ["w"])],
        [w("v", 12, 3, 5, 3), whole("from", -2, 4), whole("to", 2, -6), whole("axes", 0, 2), whole("steps", -1, -2)],
    ),
    "slice-backward": (
        [node("Slice", ["v", "from", "to", "axes", "steps"], ["w"])],
        [w("v", *F), whole("from", -1), whole("to", -99), whole("axes", 3), whole("steps", -1)],
    ),
    "split": ([node("Split", ["v"], ["other", "w"], axis=0)], [w("v", 16, 3, 3, 3)]),
    "gather": ([node("Gather", ["v", "at"], ["w"], axis=1)], [w("v", 8, 2, 3, 3), whole("at", 1, 0, -1)]),
    "pad": ([node("Pad", ["v", "pads"], ["w"])], [w("v", 8, 3, 1, 1), whole("pads", 0, 0, 1, 1, 0, 0, 1, 1)]),
    "pad-reflect": (
        [node("Pad", ["v", "pads"], ["w"], mode="reflect")],
        [w("v", 8, 3, 3, 2), whole("pads", 0, 0, 0, 0, 0, 0, 0, 1)],
    ),
    "pad-edge": (
        [node("Pad", ["v", "pads"], ["w"], mode="edge")],
        [w("v", 8, 3, 2, 1), whole("pads", 0, 0, 1, 1, 0, 0, 0, 1)],
    ),
    "expand": ([node("Expand", ["v", "shape"], ["w"])], [w("v", 8, 1, 3, 1), whole("shape", *F)]),
    "tile": ([node("Tile", ["v", "times"], ["w"])], [w("v", 4, 3, 1, 3), whole("times", 2, 1, 3, 1)]),
    "transpose": ([node("Transpose", ["v"], ["w"], perm=[3, 2, 0, 1])], [w("v", 3, 3, 3, 8)]),
    "reshape-of-transpose": (
        [node("Transpose", ["v"], ["t"]), node("Reshape", ["t", "shape"], ["w"])],
        [w("v", 27, 8), whole("shape", *F)],
    ),
    "cast": ([node("Cast", ["v"], ["w"], to=TensorProto.FLOAT)], [numpy_helper.from_array(random.standard_normal(F), "v")]),
    "through-int": (
        [
            node("Mul", ["v", "number"], ["m"]),
            node("Cast", ["m"], ["i"], to=TensorProto.INT32),
            node("Cast", ["i"], ["w"], to=TensorProto.FLOAT),
        ],
        [w("v", *F), one("number", 3)],
    ),
    "negated": ([node("Neg", ["v"], ["w"])], [w("v", *F)]),
    "squared": ([node("Pow", ["v", "two"], ["w"])], [w("v", *F), one("two", 2)]),
    "squashed": ([node("Tanh", ["v"], ["t"]), node("Exp", ["t"], ["e"]), node("Reciprocal", ["e"], ["w"])], [w("v", *F)]),
    "clipped": ([node("Clip", ["v", "low", "high"], ["w"])], [w("v", *F), one("low", -0.2), one("high", 0.3)]),
    "least-and-most": (
        [node("Min", ["v", "u"], ["m"]), node("Max", ["m", "number"], ["w"])],
        [w("v", *F), w("u", *F), one("number", -0.3)],
    ),
    "sum-of-products": (
        [node("Gemm", ["a", "b", "more"], ["m"], alpha=0.5, beta=2.0, transA=1), node("Reshape", ["m", "shape"], ["w"])],
        [w("a", 3, 8), w("b", 3, 27), w("more", 27), whole("shape", *F)],
    ),
    "low-rank": (
        [node("MatMul", ["a", "b"], ["m"]), node("Reshape", ["m", "shape"], ["d"]), node("Add", ["d", "v"], ["w"])],
        [w("a", 8, 2), w("b", 2, 27), whole("shape", *F), w("v", *F)],
    ),
    "squeezed": (
        [node("Squeeze", ["v", "axes"], ["s"]), node("Unsqueeze", ["s", "new"], ["u"]), node("Squeeze", ["u", "new"], ["w"])],
        [w("v", 1, 8, 3, 3, 3, 1), whole("axes", 0, 5), whole("new", 0)],
    ),
    "int8": ([node("DequantizeLinear", ["q", "s"], ["w"])], [small("q", *F), one("s", 0.01)]),
    "uint8-per-axis": (
        [node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0)],
        [
            small("q", *F, kind=numpy.uint8),
            numpy_helper.from_array(random.random(8).astype(numpy.float32) * 0.01, "s"),
            small("z", 8, kind=numpy.uint8),
        ],
    ),
    "int4": (
        [node("DequantizeLinear", ["q", "s"], ["w"])],
        [helper.make_tensor("q", TensorProto.INT4, F, random.integers(-8, 8, 216)), one("s", 0.05)],
    ),
    "blocks": (
        [node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=4)],
        [small("q", *F), w("s", 2, 3, 3, 3), small("z", 2, 3, 3, 3)],
    ),
    "quantized": (
        [node("QuantizeLinear", ["v", "s", "z"], ["q"], axis=0), node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0)],
        [w("v", *F), floats("s", *(0.002 * (1 + k) for k in range(8))), small("z", 8)],
    ),
    "cumulated": ([node("CumSum", ["v", "axis"], ["w"])], [w("v", *F), numpy_helper.from_array(numpy.int64(2), "axis")]),
    "remainders": (
        [node("Abs", ["v"], ["a"]), node("Mod", ["a", "number"], ["m"], fmod=1), node("Sign", ["v"], ["s"]), node("Mul", ["m", "s"], ["w"])],
        [w("v", *F), one("number", 0.3)],
    ),
    "int32-per-axis-1": (
        [node("DequantizeLinear", ["q", "s"], ["w"])],
        [whole("q", *range(-100, 116), kind=numpy.int32), floats("s", 0.01, 0.02, 0.005)],
    ),
    "float16-as-int32": (
        [node("Cast", ["h"], ["w"], to=TensorProto.FLOAT)],
        [packed("h", TensorProto.FLOAT16, random.standard_normal(216).astype(numpy.float16).view(numpy.uint16), *F)],
    ),
    "int8-as-int32": (
        [node("DequantizeLinear", ["q", "s"], ["w"])],
        [packed("q", TensorProto.INT8, random.integers(-99, 99, 216), *F), one("s", 0.01)],
    ),
}
CONV["int32-per-axis-1"][1][0].dims[:] = F


def tail(w="fw"):
    return [
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", w], ["y"], transB=1),
    ]


def plain(weights="w", bias=None):
    return node("Conv", ["x", weights] + ([bias] if bias else []), ["c"], name="conv", pads=[1, 1, 1, 1])


SCALE = [w("bs", 8), w("bb", 8), w("bm", 8), numpy_helper.from_array(random.random(8).astype(numpy.float32) + 0.5, "bv")]
WHOLE = {
    "bias": ([node("Mul", ["b0", "number"], ["b"]), plain("w", "b")] + tail(), [w("w", *F), w("b0", 8), one("number", 0.5)]),
    "bias-constant": ([node("Constant", [], ["b"], value=w("k", 8)), plain("w", "b")] + tail(), [w("w", *F)]),
    "factors": (
        [
            node("Conv", ["x", "w"], ["d"], pads=[1, 1, 1, 1]),
            node("Neg", ["bs"], ["s"]),
            node("Constant", [], ["o"], value=w("k", 8)),
            node("Add", ["bm", "bm"], ["m"]),
            node("Sqrt", ["bv"], ["v"]),
            node("BatchNormalization", ["d", "s", "o", "m", "v"], ["c"]),
        ]
        + tail(),
        [w("w", *F)] + SCALE,
    ),
    "matrix": (
        [plain(), node("Transpose", ["m"], ["t"]), node("Mul", ["t", "number"], ["fw"])] + tail(),
        [w("w", *F), w("m", 8, 10), one("number", 2)],
    ),
    "matmul": (
        [plain()]
        + tail()[:3]
        + [
            node("Concat", ["m1", "m2"], ["m"], axis=0),
            node("MatMul", ["f", "m"], ["product"]),
            node("Constant", [], ["b"], value=w("k", 10)),
            node("Add", ["product", "b"], ["y"]),
        ],
        [w("w", *F), w("m1", 3, 10), w("m2", 5, 10)],
    ),
    "channel-factor": (
        [
            node("Conv", ["x", "w"], ["d"], pads=[1, 1, 1, 1]),
            node("Exp", ["l"], ["s"]),
            node("Mul", ["d", "s"], ["c"]),
        ]
        + tail(),
        [w("w", *F), w("l", 8, 1, 1)],
    ),
    "from-a-shape": (
        [
            node("Shape", ["x"], ["dims"]),
            node("Slice", ["dims", "one", "two"], ["channels"]),
            node("Concat", ["eight", "channels", "three"], ["shape"], axis=0),
            node("Expand", ["v", "shape"], ["w"]),
            plain(),
        ]
        + tail(),
        [w("v", 8, 1, 3, 3), whole("one", 1), whole("two", 2), whole("eight", 8), whole("three", 3, 3)],
    ),
    "if-constant": (
        [
            node("Conv", ["x", "w"], ["d"], pads=[1, 1, 1, 1]),
            node(
                "If",
                ["yes"],
                ["c"],
                then_branch=helper.make_graph(
                    [node("Sigmoid", ["d"], ["c"]), node("Conv", ["c", "inner"], ["out"])],
                    "then",
                    [],
                    [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
                    [w("inner", 8, 8, 1, 1)],
                ),
                else_branch=helper.make_graph(
                    [node("Relu", ["d"], ["out"])], "else", [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
                ),
            ),
        ]
        + tail(),
        [w("w", *F), numpy_helper.from_array(numpy.array(True), "yes")],
    ),
}
WHOLE |= {name: ([*nodes, plain(), *tail()], weights) for name, (nodes, weights) in CONV.items()}


def written(folder, nodes, weights, batch="N", version=13):
    given = list(weights)
    if not any("fw" in node.output for node in nodes):
        given.append(numpy_helper.from_array(numpy.linspace(-1, 1, 80, dtype=numpy.float32).reshape(10, 8) ** 3, "fw"))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        given,
    )
    # Where the reference computes them as the standard says: its older batch normalization mixes in other statistics.
    least = {"Trilu": 14, "BatchNormalization": 15, "DequantizeLinear": 19}
    version = max([version, *(least.get(node.op_type, 0) for node in nodes)])
    newest = any(tensor.data_type == TensorProto.INT4 for tensor in given) or "block_size" in str(nodes)
    version = 21 if newest else version
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)
    onnx.save(model, folder / "net.onnx")
    pixels = random.integers(0, 256, (8, 8, 3)).astype(numpy.uint8)
    PIL.fromarray(pixels).save(folder / "x.png")
    return model, (pixels.astype(numpy.float32) / 255 * 2 - 1).transpose(2, 0, 1)[None]


def pictures(folder):
    """A picture of each class, in ``data``."""
    all = random.integers(0, 256, (10, 8, 8, 3)).astype(numpy.uint8)
    for label, pixels in enumerate(all):
        (folder / f"data/c{label}").mkdir(parents=True)
        PIL.fromarray(pixels).save(folder / f"data/c{label}/0.png")
    return all


def tightfit(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}
    environment["TIGHTFIT_CACHE"] = "none"
    return subprocess.run([COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


PREDICT = ("predict", "net.onnx", "x.png", "--batch", "1", "--backend", "cpu", "--format", "json", "--top", "10")


@pytest.mark.parametrize("name", WHOLE)
def test_predict_equals_the_reference(tmp_path, name):
    model, x = written(tmp_path, *WHOLE[name])
    run = tightfit(tmp_path, *PREDICT)
    assert run.returncode == 0, run.stderr
    (sample,) = json.loads(run.stdout)["predictions"]
    y = ReferenceEvaluator(model).run(None, {"x": x})[0][0].astype(float)
    wanted = numpy.exp(y - y.max())
    wanted /= wanted.sum()
    for guess in sample["top"]:
        assert abs(guess["probability"] - wanted[int(guess["class"])]) < 1e-4, (guess, wanted)


REFUSED = {
    "RandomNormal": ([node("RandomNormal", [], ["w"], shape=F, name="draw")], []),
    "Einsum": ([node("Einsum", ["v"], ["w"], equation="ijkl->ijkl", name="sum")], [w("v", *F)]),
    "CumSum": (
        [node("Constant", [], ["first"], value_int=0), node("CumSum", ["v", "first"], ["w"], reverse=1, name="sums")],
        [w("v", *F)],
    ),
}


@pytest.mark.parametrize("operator", REFUSED)
@pytest.mark.parametrize("command", ["predict", "test", "train"])
def test_a_layer_whose_weights_cannot_be_had_is_refused(tmp_path, operator, command):
    nodes, weights = REFUSED[operator]
    model, _ = written(tmp_path, [*nodes, plain(), *tail()], weights)
    graph = model.graph
    graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, F))
    onnx.save(model, tmp_path / "net.onnx")
    pictures(tmp_path)
    options = ("net.onnx", "--batch", "2", "--data", "data", "--backend", "cpu")
    arguments = {"predict": PREDICT, "test": ("test", *options), "train": ("train", *options, "--steps", "1")}[command]
    run = tightfit(tmp_path, *arguments)
    assert run.returncode == 1, run.stderr
    for part in ["layer conv: the weights `w` are computed by node", f"`{operator}`", "add --random-weights"]:
        assert part in run.stderr, run.stderr
    if operator == "CumSum":
        assert "go backward" in run.stderr
    assert tightfit(tmp_path, "plan", "net.onnx", "--batch", "2", "--assume").returncode == 0


@pytest.mark.parametrize("batch", [-1, 0, "N", 4])
def test_any_mini_batch_is_replaced(tmp_path, batch):
    model, _ = written(tmp_path, [plain(), *tail()], [w("w", *F)], batch)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, tmp_path / "net.onnx")
    run = tightfit(tmp_path, "plan", "net.onnx", "--batch", "6", "--assume", "--training")
    assert run.returncode == 0 and "mini-batch 6" in run.stdout, run.stderr


def shared(folder):
    """A convolution that is used twice, followed by a batch normalization that is used twice."""
    nodes = [
        node("Conv", ["x", "a.weight"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "c.weight", "c.bias"], ["b"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["b", "n.weight", "n.bias", "n.running_mean", "n.running_var"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Conv", ["e", "c.weight", "c.bias"], ["g"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["g", "n.weight", "n.bias", "n.running_mean", "n.running_var"], ["c"]),
    ]
    weights = [
        w("a.weight", *F),
        w("c.weight", 8, 8, 3, 3),
        w("c.bias", 8),
        floats("n.weight", *[1] * 8),
        floats("n.bias", *[0] * 8),
        floats("n.running_mean", *[0] * 8),
        floats("n.running_var", *[1] * 8),
    ]
    return written(folder, nodes + tail(), weights)


def test_one_initializer_is_trained_and_saved_as_one_tensor(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.numpy")
    model, _ = shared(tmp_path)
    pixels = pictures(tmp_path)
    train = "train net.onnx --batch 10 --data data --backend cpu --learning-rate 0.2 --momentum 0.9 --weight-decay 0.01".split()
    run = tightfit(tmp_path, *train, "--steps", "3", "--save", "w.safetensors")
    assert run.returncode == 0, run.stderr
    assert "c.weight is one tensor for layers" in run.stderr
    got = safetensors.load_file(tmp_path / "w.safetensors")
    own = {name: array for name, array in got.items() if not name.startswith("solver.")}
    state = {tensor.name: torch.tensor(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    assert sorted(own) == sorted(state)

    learned = {name: tensor.requires_grad_() for name, tensor in state.items() if "running" not in name}
    solver = torch.optim.SGD(learned.values(), lr=0.2, momentum=0.9, weight_decay=0.01)
    x = torch.tensor(pixels).permute(0, 3, 1, 2).float() / 255 * 2 - 1
    for _ in range(3):
        y = torch.nn.functional.conv2d(x, state["a.weight"], padding=1)
        for use in range(2):
            y = torch.nn.functional.conv2d(y, state["c.weight"], state["c.bias"], padding=1)
            y = torch.nn.functional.batch_norm(
                y, state["n.running_mean"], state["n.running_var"], state["n.weight"], state["n.bias"], training=True
            ).relu()
        loss = torch.nn.functional.cross_entropy(y.mean((2, 3)) @ state["fw"].T, torch.arange(10))
        solver.zero_grad()
        loss.backward()
        solver.step()
    for name, tensor in state.items():
        assert numpy.abs(own[name] - tensor.detach().numpy()).max() < 2e-4, name

    # A run that goes on from the file takes the same steps as one that was never interrupted, if with other algorithms.
    assert tightfit(tmp_path, *train, "--steps", "2", "--save", "half.safetensors").returncode == 0
    rest = tightfit(tmp_path, *train, "--steps", "3", "--resume", "half.safetensors", "--save", "again.safetensors")
    assert rest.returncode == 0, rest.stderr
    again = safetensors.load_file(tmp_path / "again.safetensors")
    for name, array in got.items():
        assert numpy.abs(again[name] - array).max() < 1e-4, name


def test_numbers_that_cannot_be_one_tensor_are_refused_by_train_alone(tmp_path):
    nodes = [
        node("Mul", ["v", "number"], ["w"]),
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], name="one"),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "thin"], ["d"], name="between"),
        node("Conv", ["d", "v"], ["c"], pads=[1, 1, 1, 1], name="two"),
    ]
    weights = [w("v", *F), one("number", 0.5), w("thin", 3, 8, 1, 1)]
    written(tmp_path, nodes + tail(), weights)
    run = tightfit(tmp_path, "train", "net.onnx", "--batch", "2", "--data", "synthetic", "--steps", "1", "--backend", "cpu")
    assert run.returncode == 1, run.stderr
    for part in ["layers", "one", "two", "`v` through different computations", "cannot be trained as one"]:
        assert part in run.stderr, run.stderr
    assert tightfit(tmp_path, *PREDICT).returncode == 0
