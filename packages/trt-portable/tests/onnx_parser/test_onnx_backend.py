"""ONNX's own tests of backends against the parser: each passes, or is on a list with the reason why it cannot."""

from __future__ import annotations

import collections
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import onnx_backend_cases as backend
import onnx_running as running
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trt_portable.onnx_parser.registry import supported_operators

REPORT: Final = "TRT_ONNX_REPORT"
"""Where the outcomes of all cases are written, if it is set."""

FLOAT: Final = TensorProto.FLOAT
INTS: Final = AttributeProto.INTS
STRESSED: Final = "TRT_STRESS" in os.environ
"""Whether all cases run; else of an operator's the first ones, and each third of the others."""

FIRST: Final = 8
OUTSIDE: Final = ("lacks a type", "newer", "not in TensorRT")
"""Outcomes of what TensorRT's parser does not promise either."""

TENSORRT: Final = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "AveragePool",
        "BatchNormalization",
        "BlackmanWindow",
        "Cast",
        "CastLike",
        "Ceil",
        "Celu",
        "Clip",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Conv",
        "ConvTranspose",
        "Cos",
        "Cosh",
        "CumSum",
        "DepthToSpace",
        "DequantizeLinear",
        "Div",
        "Dropout",
        "Einsum",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "EyeLike",
        "Flatten",
        "Floor",
        "GRU",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GlobalMaxPool",
        "Greater",
        "GreaterOrEqual",
        "GridSample",
        "GroupNormalization",
        "HammingWindow",
        "HannWindow",
        "HardSigmoid",
        "HardSwish",
        "Hardmax",
        "Identity",
        "If",
        "ImageScaler",
        "InstanceNormalization",
        "IsInf",
        "IsNaN",
        "LRN",
        "LSTM",
        "LayerNormalization",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "LogSoftmax",
        "Loop",
        "LpNormalization",
        "LpPool",
        "MatMul",
        "Max",
        "MaxPool",
        "Mean",
        "MeanVarianceNormalization",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "NonMaxSuppression",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "PRelu",
        "Pad",
        "ParametricSoftplus",
        "Pow",
        "QuantizeLinear",
        "RNN",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Range",
        "Reciprocal",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Relu",
        "Reshape",
        "Resize",
        "ReverseSequence",
        "RoiAlign",
        "Round",
        "STFT",
        "ScaledTanh",
        "Scan",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "Selu",
        "Shape",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Size",
        "Slice",
        "Softmax",
        "Softplus",
        "Softsign",
        "SpaceToDepth",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Upsample",
        "Where",
        "Xor",
    ]
)
"""The operators that TensorRT's own parser lists as supported."""


def outcome_of(name: str, case: Any) -> tuple[str, str]:
    """What became of a case, and why it did not pass."""
    found, reason = _run(case.model, case, list(range(len(case.model.graph.input))))
    if found == "refused" and backend.lacks_a_type(case.model, at_inputs=False):
        return "lacks a type", reason
    constants = backend.with_constants(case) if found in ("refused", "not built") else None
    again = ("", "") if constants is None else _run(constants[0], case, constants[1])
    if again[0] == "passed":
        return "passed with constants", ""
    if found == "refused" and backend.lacks_a_type(case.model):
        return "lacks a type", reason
    if constants is not None:
        found, reason = again if again[0] != "refused" else (found, f"{reason}; with constants: {again[1]}")
    if found == "refused" and backend.newer_than_the_parser(case.model):
        return "newer", reason
    if found == "refused" and not {node.op_type for node in case.model.graph.node} <= TENSORRT:
        return "not in TensorRT", reason
    return found, reason


def _run(model: Any, case: Any, kept: list[int]) -> tuple[str, str]:
    try:
        network, _ = running.parse(model.SerializeToString())
    except running.Refused as refusal:
        return ("failed" if "INTERNAL_ERROR" in str(refusal) else "refused"), str(refusal)
    try:
        names = [value.name for value in model.graph.input]
        for inputs, outputs in case.data_sets:
            data = {name: backend.as_tensor(inputs[place]) for name, place in zip(names, kept, strict=True)}
            arrays = {name: value.numpy() for name, value in data.items() if value.dtype in running.HAS_NUMPY}
            engine = running.build(network, {name: tuple(value.shape) for name, value in data.items()}, arrays)
            for found, wanted in zip(running.run(engine, data), outputs, strict=True):
                problem = backend.compared(found, wanted, case.rtol, getattr(case, "near_zero", 1e-5))
                if problem is not None:
                    return "wrong", problem
    except running.Refused as refusal:
        return "not built", str(refusal)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def outcomes(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """What became of some cases."""
    return {name: outcome_of(name, backend.all_cases()[name]) for name in names}


def _sample(names: Iterable[str]) -> Iterator[str]:
    counts: collections.Counter[str] = collections.Counter()
    for name in names:
        operator = backend.all_cases()[name].model.graph.node[0].op_type
        counts[operator] += 1
        if STRESSED or counts[operator] <= FIRST or not counts[operator] % 3:
            yield name


def problems(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    """What is not as the list of exclusions says."""
    wrong = {}
    for name, (outcome, reason) in found.items():
        passed = outcome.startswith("passed")
        excluded = backend.why_excluded(name)
        if passed and excluded is not None:
            wrong[name] = f"passes, although it is excluded: {excluded}"
        elif not passed and excluded is None and outcome not in OUTSIDE:
            wrong[name] = f"{outcome}: {reason}"
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("letters", ["a", "b-c", "d-g", "h-l", "m-o", "p-q", "r", "s", "t-z"])
def test_cases_pass_or_are_excluded(letters: str) -> None:
    names = (name for name in backend.names_of("first") if re.match(f"[{letters}]", name))
    found = problems(outcomes(_sample(names)))
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())


@pytest.mark.slow
def test_cases_that_spell_operators_out_as_functions_pass_too() -> None:
    found = problems(outcomes(list(backend.names_of("spelled"))[:: 1 if STRESSED else 8]))
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("letters", ["a-f", "g-p", "q-s", "t-z"])
def test_operators_are_what_older_opsets_made_of_them(letters: str) -> None:
    names = (name for name in backend.names_of("first") if re.match(f"[{letters}]", name))
    found = {}
    for name, model, inputs, outputs in backend.older_forms(names, 2 if STRESSED else 1):
        near_zero = 1e-3 if name.startswith(("dft", "stft")) else 1e-5  # sums of hundreds of numbers that end near zero
        case = SimpleNamespace(model=model, data_sets=[(inputs, outputs)], rtol=1e-3, near_zero=near_zero)
        found[name] = outcome_of(name, case)
    assert len(found) > 20
    wrong = {name: one for name, one in found.items() if one[0] not in ("passed", "passed with constants", *OUTSIDE)}
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def _branch(operator: str) -> Any:
    info = [helper.make_tensor_value_info("r", FLOAT, None)]
    return helper.make_graph([helper.make_node(operator, ["x"], ["r"])], operator, [], info)


def _trips() -> Any:
    infos = [("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("sum", FLOAT, [2, 3, 4, 4])]
    nodes = [
        helper.make_node("Add", ["sum", "x"], ["next"]),
        helper.make_node("Identity", ["c"], ["go"]),
        helper.make_node("Identity", ["next"], ["kept"]),
    ]
    ends = [("go", TensorProto.BOOL, []), ("next", FLOAT, [2, 3, 4, 4]), ("kept", FLOAT, [2, 3, 4, 4])]
    return helper.make_graph(
        nodes, "trips", *([helper.make_tensor_value_info(*one) for one in i] for i in (infos, ends))
    )


def _steps() -> Any:
    infos = [("sum", FLOAT, [3, 4, 4]), ("row", FLOAT, [3, 4, 4])]
    nodes = [helper.make_node("Add", ["sum", "row"], ["next"]), helper.make_node("Identity", ["next"], ["kept"])]
    ends = [("next", FLOAT, [3, 4, 4]), ("kept", FLOAT, [3, 4, 4])]
    return helper.make_graph(
        nodes, "steps", *([helper.make_tensor_value_info(*one) for one in i] for i in (infos, ends))
    )


_CONSTANTS: Final = {
    "scales": np.array([1, 1, 2, 1.5], np.float32),
    "none": np.zeros(0, np.float32),
    "sizes": np.array([2, 3, 7, 3]),
    "scale": np.float32(0.05),
    "scale3": np.array([0.05, 0.1, 0.02], np.float32),
    "zero": np.int8(3),
    "zero3": np.array([3, 0, -2], np.int8),
    "yes": np.array(True),
    "three": np.array(3),
    "row": np.ones((3, 4, 4), np.float32),
}
_FORMS: Final[dict[str, tuple[range, list[tuple[Any, ...]], dict[str, Any]]]] = {
    "resize scales": (range(10, 11), [("Resize", ["x", "scales"], ["y"])], {"mode": "nearest"}),
    "resize scales, linear": (range(10, 11), [("Resize", ["x", "scales"], ["y"])], {"mode": "linear"}),
    "resize region": (range(11, 25), [("Resize", ["x", "none", "scales"], ["y"])], {"mode": "linear"}),
    "resize sizes": (
        range(11, 25),
        [("Resize", ["x", "none", "none", "sizes"], ["y"])],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "resize sizes, cubic": (range(13, 25), [("Resize", ["x", "", "", "sizes"], ["y"])], {"mode": "cubic"}),
    "upsample": (range(9, 10), [("Upsample", ["x", "scales"], ["y"])], {"mode": "linear"}),
    "quantize": (
        range(10, 25),
        [("QuantizeLinear", ["x", "scale", "zero"], ["q"]), ("DequantizeLinear", ["q", "scale", "zero"], ["y"])],
        {},
    ),
    "quantize channels": (
        range(13, 25),
        [("QuantizeLinear", ["x", "scale3", "zero3"], ["q"]), ("DequantizeLinear", ["q", "scale3", "zero3"], ["y"])],
        {"axis": 1},
    ),
    "global lp pool": (range(9, 22), [("GlobalLpPool", ["x"], ["y"])], {"p": 2}),
    "reduce over no axes": (range(9, 13), [("ReduceSum", ["x"], ["y"])], {"axes": []}),
    "reduce over some axes": (range(7, 18), [("ReduceL2", ["x"], ["y"])], {"axes": [1, 3], "keepdims": 0}),
    "clip crossed": (range(7, 11), [("Clip", ["x"], ["y"])], {"min": 2.0, "max": 1.0}),
    "clip below": (range(7, 11), [("Clip", ["x"], ["y"])], {"min": 0.5}),
    "clip nothing": (range(7, 11), [("Clip", ["x"], ["y"])], {}),
    "dropout": (range(7, 12), [("Dropout", ["x"], ["y"])], {"ratio": 0.3}),
    "pad": (range(7, 11), [("Pad", ["x"], ["y"])], {"pads": [0, 0, 1, 2, 0, 1, -1, 3], "value": 1.5}),
    "pad by zero": (range(7, 11), [("Pad", ["x"], ["y"])], {"pads": [0, 0, 1, 2, 0, 1, 1, 3]}),
    "pad edges": (range(7, 11), [("Pad", ["x"], ["y"])], {"pads": [0, 0, 1, 2, 0, 1, 1, 3], "mode": "edge"}),
    "slice": (range(7, 10), [("Slice", ["x"], ["y"])], {"starts": [0, 1], "ends": [9, -1], "axes": [2, 3]}),
    "slice first axes": (range(7, 10), [("Slice", ["x"], ["y"])], {"starts": [1, -2], "ends": [2, 3]}),
    "split": (range(7, 13), [("Split", ["x"], ["y", "rest"])], {"axis": 1, "split": [1, 2]}),
    "split in halves": (range(7, 13), [("Split", ["x"], ["y", "rest"])], {"axis": 2}),
    "squeeze": (range(7, 13), [("Unsqueeze", ["x"], ["z"]), ("Squeeze", ["z"], ["y"])], {"axes": [0, 3]}),
    "top": (range(7, 10), [("TopK", ["x"], ["y", "places"])], {"axis": 2, "k": 2}),
    "upsample by attribute": (range(7, 9), [("Upsample", ["x"], ["y"])], {"scales": [1.0, 1.0, 2.0, 3.0]}),
    "if": (range(9, 25), [("If", ["yes"], ["y"])], {"then_branch": _branch("Relu"), "else_branch": _branch("Neg")}),
    "loop": (range(9, 25), [("Loop", ["three", "yes", "x"], ["last", "y"])], {"body": _trips()}),
    "scan": (range(9, 25), [("Scan", ["row", "x"], ["last", "y"])], {"body": _steps(), "num_scan_inputs": 1}),
    "scan backwards": (
        range(9, 25),
        [("Scan", ["row", "x"], ["last", "y"])],
        {"body": _steps(), "num_scan_inputs": 1, "scan_input_directions": [1], "scan_output_axes": [-1]},
    ),
}
"""Forms that ONNX's tests do not have: opsets, nodes from `x`, (2, 3, 4, 4), to `y`, and the attributes of each."""


@pytest.mark.parametrize(("form", "opset"), [(form, opset) for form in _FORMS for opset in _FORMS[form][0]])
def test_forms_of_all_opsets(form: str, opset: int) -> None:
    _, nodes, attributes = _FORMS[form]
    made = [helper.make_node(*node) for node in nodes]
    for node, (name, given) in itertools.product(made, attributes.items()):
        node.attribute.append(helper.make_attribute(name, given, attr_type=INTS if given == [] else None))
    used = {name for node in made for name in node.input}
    graph = helper.make_graph(
        made,
        "form",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3, 4, 4])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in _CONSTANTS.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    wanted = backend.by_onnx_runtime(model, {"x": x}) or ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = running.infer(model.SerializeToString(), {"x": x})
    assert backend.compared(found, wanted[0], 1e-3) is None


def test_operators_of_tensorrt_have_converters() -> None:
    assert not TENSORRT - set(supported_operators())


@pytest.mark.skipif(REPORT not in os.environ, reason=f"writes to the file that {REPORT} names")
def test_report_of_all_cases() -> None:
    found = outcomes(backend.all_cases())
    for name, (outcome, _) in found.items():
        if backend.why_excluded(name) is not None and not outcome.startswith("passed"):
            found[name] = ("excluded", backend.why_excluded(name) or "")
    counts = collections.Counter(outcome for outcome, _ in found.values())
    rows = {name: [outcome, reason] for name, (outcome, reason) in sorted(found.items()) if outcome[:6] != "passed"}
    report = {"onnx": backend.onnx.__version__, "cases": len(found), "counts": dict(counts), "others": rows}
    Path(os.environ[REPORT]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
