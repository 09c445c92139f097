"""Every operator of ONNX that the reader takes: its table against ONNX's definition, and its results against another implementation. Needs onnx.
ONNX Runtime is compared with too, where it is installed."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tightfit

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402
import onnx_cases  # noqa: E402
import onnx_graphs as graphs  # noqa: E402
from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "crates/onnx/src/operators.tsv"

# Largest difference of a probability: both compute in 32 bits, in other orders.
NEAR = 2e-5

# Graphs that another implementation is known not to compute, or to compute wrong.
FAULTS = {
    **{
        (
            "runtime",
            f"Conv {{'auto_pad': 'SAME_LOWER', 'dilations': [2, 1]}}@{version}",
        ): "it has no automatic padding of dilated windows"
        for version in (7, 11, 22)
    },
    **{
        (
            "reference",
            f"MaxPool {{'kernel_shape': [3, 2], 'strides': [3, 2], 'auto_pad': 'SAME_LOWER'}}@{version}",
        ): "its output is smaller"
        for version in (7, 8, 10, 12, 22)
    },
    **{
        ("reference", f"GlobalMaxPool of {dimensions}@13"): "it takes the largest of two dimensions alone"
        for dimensions in (1, 3)
    },
    **{
        (
            "reference",
            f"AveragePool {{'kernel_shape': [3, 3], 'strides': [2, 2], 'auto_pad': 'SAME_UPPER', 'ceil_mode': 1}}@{version}",
        ): "it has no automatic padding with ceil_mode"
        for version in (10, 22)
    },
    ("reference", "BatchNormalization {}@7"): "it returns no array",
    ("reference", "BatchNormalization {'spatial': 1, 'momentum': 0.5}@7"): "it returns no array",
    ("reference", "BatchNormalization {'epsilon': 0.25}@9"): "it normalizes by the mini-batch",
    **{
        ("reference", f"LRN {attributes}@{version}"): "its sum leaves channels out"
        for attributes in ({"size": 3, "alpha": 0.5}, {"size": 5, "alpha": 2.0})
        for version in (7, 13)
    },
}


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def versions(row: dict[str, str]) -> range:
    return range(int(row["from"]), int(row["to"]) + 1)


def schema(operator: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(operator, version, "")
    except onnx.defs.SchemaError:
        return None


NEWEST = min(28, onnx.defs.onnx_opset_version())


def usual(attribute: onnx.defs.OpSchema.Attribute) -> str:
    """The value that is meant where the attribute is left out, as the table writes it."""
    if attribute.required:
        return "!"
    if attribute.default_value.type == onnx.AttributeProto.UNDEFINED:
        return "-"
    value = helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(np.float32(value)) if isinstance(value, float) else str(value)


def test_the_table_has_every_attribute_input_and_output_of_every_version():
    known: dict[tuple[str, str, str, int], dict[str, str]] = {}
    exists = set()
    for row in rows():
        for version in versions(row):
            if row["kind"] == "operator":
                exists.add((row["operator"], version))
            else:
                known[row["operator"], row["kind"], row["name"], version] = row
    wanted = {}
    for operator in {name for name, _ in exists}:
        for version in range(7, NEWEST + 1):
            of = schema(operator, version)
            if of is None or of.deprecated and (operator, version) not in exists:
                assert (operator, version) not in exists, (operator, version)
                continue
            assert (operator, version) in exists, (operator, version)
            for attribute in of.attributes.values():
                kind = str(attribute.type).rsplit(".", 1)[-1].lower()
                wanted[operator, "attribute", attribute.name, version] = (kind, usual(attribute))
            for kind, places in (("input", of.inputs), ("output", of.outputs)):
                for place in places:
                    option = str(place.option).rsplit(".", 1)[-1].lower()
                    wanted[operator, kind, place.name, version] = {"single": "one", "variadic": "many"}.get(option, option)
    assert {key for key in known if key[3] <= NEWEST} == set(wanted)
    for (operator, kind, name, version), what in wanted.items():
        row = known[operator, kind, name, version]
        where = f"{operator} {name} {version}"
        if kind == "attribute":
            # Without dilations, windows have none, which the definition says in words.
            expected = (what[0], "1 ..") if row["usual"] == "1 .." else what
            assert (row["type"], row["usual"]) == expected, where
        elif operator != "Resize":
            # Resize takes extents in place of the scales that its first versions ask for.
            assert row["type"] == what, where


def one_node(operator: str, version: int, **attributes: object) -> onnx.ModelProto:
    """A graph of one node, with as many inputs as it must have."""
    row = [row for row in rows() if row["operator"] == operator and row["kind"] == "input" and version in versions(row)]
    inputs = ["x" if at == 0 else f"c{at}" for at, row in enumerate(row) if row["type"] != "optional"] or ["x"]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"], name="n", **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4, 8, 8])],
        [onnx.numpy_helper.from_array(np.ones(4, np.float32), name) for name in inputs[1:]],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def refusal(model: onnx.ModelProto, path: Path) -> str:
    path.write_bytes(model.SerializeToString())
    with pytest.raises(tightfit.Error) as raised:
        tightfit.network(str(path))
    return str(raised.value)


def test_an_attribute_that_an_operator_does_not_have_is_refused_by_name(tmp_path):
    path = tmp_path / "net.onnx"
    operators = [
        row
        for row in rows()
        if row["kind"] == "operator" and row["operator"] not in ("Constant", "RandomUniform", "RandomNormal")
    ]
    for row in operators:
        for version in {versions(row)[0], versions(row)[-1]}:
            said = refusal(one_node(row["operator"], version, later=1), path)
            assert "attribute `later` = 1 is not known" in said and "node `n`" in said, said
    for row in rows():
        if row["kind"] == "attribute" and row["operator"] in {of["operator"] for of in operators}:
            of = next(of for of in operators if of["operator"] == row["operator"])
            if int(of["from"]) < int(row["from"]) and not any(
                other["operator"] == row["operator"] and other["name"] == row["name"] and int(row["from"]) - 1 in versions(other)
                for other in rows()
            ):
                said = refusal(one_node(row["operator"], int(row["from"]) - 1, **{row["name"]: 1}), path)
                assert f"attribute `{row['name']}` = 1 is not known" in said, said


def test_operators_of_versions_that_have_them_not_are_refused(tmp_path):
    path = tmp_path / "net.onnx"
    for version in (6, 29):
        assert f"its operators are of version {version}" in refusal(one_node("Relu", version), path)
    for operator, version in (("Gelu", 19), ("Mish", 17), ("Upsample", 10), ("Swish", 23), ("LayerNormalization", 16)):
        assert f"{operator} is an operator of versions" in refusal(one_node(operator, version), path)


def test_every_attribute_that_runs_is_in_a_compared_graph():
    cases = onnx_cases.cases()
    given = {(node.op_type, attribute.name) for case in cases for node in case.nodes for attribute in node.attribute}
    running = {row["operator"] for row in rows() if row["kind"] == "operator" and row["read"] == "runs"}
    assert running == running & {node.op_type for case in cases for node in case.nodes}
    for row in rows():
        if row["operator"] not in running or row["kind"] != "attribute" or row["read"] not in ("honored", "planned"):
            continue
        assert (row["operator"], row["name"]) in given, f"no graph gives {row['operator']} {row['name']}"
        if row["read"] == "planned":
            name = f"`{row['name']}`"
            named = [case for case in cases if name in case.refused and row["operator"] in {node.op_type for node in case.nodes}]
            assert named, f"no graph is refused for {row['operator']} {row['name']}"


def predicted(binary: str, folder: Path, case: graphs.Case) -> np.ndarray | str:
    """Probabilities of the classes of every picture, or what is said instead."""
    path = folder / f"{abs(hash(str(case)))}.onnx"
    path.write_bytes(graphs.model(case, head=True).SerializeToString())
    arguments = [
        binary,
        "predict",
        str(path),
        str(folder / "images"),
        "--batch",
        "3",
        "--backend",
        "cpu",
        "--policy",
        "baseline",
        "--top",
        "10",
        "--format",
        "json",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIGHTFIT_")}
    environment["TIGHTFIT_CACHE"] = "none"
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr
    samples = json.loads(done.stdout)["predictions"]
    return np.array([[top["probability"] for top in sorted(sample["top"], key=lambda top: top["class"])] for sample in samples])


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def binary() -> str:
    found = os.environ.get("TIGHTFIT_COMMAND", str(ROOT / "target/debug/tightfit"))
    if not Path(found).exists():
        pytest.skip(f"{found} is not built")
    return found


def references(made: onnx.ModelProto, samples: np.ndarray) -> dict[str, np.ndarray | Exception]:
    """The results of other implementations, or the reasons why there are none."""

    def runtime() -> np.ndarray:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(None, {"x": samples})[0]

    compute = {"reference": lambda: ReferenceEvaluator(made).run(None, {"x": samples})[0]}
    try:
        import onnxruntime

        compute["runtime"] = runtime
    except ImportError:
        pass
    found: dict[str, np.ndarray | Exception] = {}
    for name, of in compute.items():
        try:
            found[name] = np.asarray(of())
        except Exception as error:
            found[name] = error
    return found


def test_graphs_are_computed_as_by_another_implementation_or_refused_by_name(binary, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    (tmp_path / "images").mkdir()
    for at, picture in enumerate(pixels):
        image.fromarray(picture).save(tmp_path / "images" / f"{at}.png")
    samples = (pixels.astype(np.float32) / 255 * 2 - 1).transpose(0, 3, 1, 2)
    cases = onnx_cases.cases()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda case: predicted(binary, tmp_path, case), cases))
    wrong: list[str] = []
    compared, largest = set(), 0.0
    for case, answer in zip(cases, answers):
        if case.refused:
            if not isinstance(answer, str) or case.refused not in answer:
                wrong.append(f"{case}: not refused with {case.refused!r}: {answer}")
            continue
        if isinstance(answer, str):
            wrong.append(f"{case}: {answer}")
            continue
        by = references(graphs.model(case, head=True), samples)
        for name, logits in by.items():
            fault = FAULTS.get((name, str(case)))
            if isinstance(logits, Exception):
                wrong += [] if fault else [f"{case}: {name} does not compute it: {logits}"]
                continue
            expected = softmax(np.log(logits) if case.loss and "Log" not in case.name else logits)
            difference = float(np.abs(answer - expected).max()) if expected.shape == answer.shape else np.inf
            if fault:
                wrong += [] if difference > NEAR else [f"{case}: {name} computes it now, without the fault {fault!r}"]
            elif not difference <= NEAR:
                wrong.append(f"{case}: {difference:.2g} from {name}")
            else:
                compared.add(str(case))
                largest = max(largest, difference)
    assert not wrong, "\n".join(wrong)
    assert len(compared) >= 150, len(compared)
    print(
        f"{len(compared)} graphs compared, largest difference {largest:.2g}; {sum(bool(case.refused) for case in cases)} refused"
    )
