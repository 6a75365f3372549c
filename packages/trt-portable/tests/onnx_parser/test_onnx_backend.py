"""ONNX's own tests of backends against the parser: each passes, or is on a list with the reason why it cannot."""

from __future__ import annotations

import collections
import json
import os
import re
from pathlib import Path
from typing import Any, Final

import onnx_backend_cases as backend
import onnx_running as running
import pytest

from trt_portable.onnx_parser.registry import supported_operators

REPORT: Final = "TRT_ONNX_REPORT"
"""Where the outcomes of all cases are written, if it is set."""

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
    if found == "refused" and backend.lacks_a_type(case.model):
        return "lacks a type", reason
    constants = backend.with_constants(case) if found in ("refused", "not built") else None
    if constants is not None:
        again = _run(constants[0], case, constants[1])
        if again[0] == "passed":
            return "passed with constants", ""
        found, reason = again if again[0] not in ("refused",) else (found, f"{reason}; with constants: {again[1]}")
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
                problem = backend.compared(found, wanted, case.rtol)
                if problem is not None:
                    return "wrong", problem
    except running.Refused as refusal:
        return "not built", str(refusal)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def outcomes(pattern: str, kind: str) -> dict[str, tuple[str, str]]:
    """What became of the cases whose names match a pattern."""
    cases = backend.all_cases()
    found = {}
    for name in backend.names_of(kind):
        if re.match(pattern, name):
            found[name] = outcome_of(name, cases[name])
    return found


def problems(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    """What is not as the list of exclusions says."""
    wrong = {}
    for name, (outcome, reason) in found.items():
        passed = outcome.startswith("passed")
        excluded = backend.why_excluded(name)
        if passed and excluded is not None:
            wrong[name] = f"passes, although it is excluded: {excluded}"
        elif not passed and excluded is None and outcome not in ("lacks a type", "newer", "not in TensorRT"):
            wrong[name] = f"{outcome}: {reason}"
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("letters", ["a", "b-c", "d-g", "h-l", "m-o", "p-q", "r", "s", "t-z"])
def test_cases_pass_or_are_excluded(letters: str) -> None:
    found = problems(outcomes(f"[{letters}]", "first"))
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())


@pytest.mark.slow
def test_cases_that_spell_operators_out_as_functions_pass_too() -> None:
    sample = {name: backend.all_cases()[name] for name in list(backend.names_of("spelled"))[::6]}
    found = problems({name: outcome_of(name, case) for name, case in sample.items()})
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())


def test_operators_of_tensorrt_have_converters() -> None:
    assert not TENSORRT - set(supported_operators())


@pytest.mark.skipif(REPORT not in os.environ, reason=f"writes to the file that {REPORT} names")
def test_report_of_all_cases() -> None:
    found = {**outcomes(".", "first"), **outcomes(".", "spelled")}
    for name, (outcome, _) in found.items():
        if backend.why_excluded(name) is not None and not outcome.startswith("passed"):
            found[name] = ("excluded", backend.why_excluded(name) or "")
    counts = collections.Counter(outcome for outcome, _ in found.values())
    rows = {name: [outcome, reason] for name, (outcome, reason) in sorted(found.items()) if outcome[:6] != "passed"}
    report = {"onnx": backend.onnx.__version__, "cases": len(found), "counts": dict(counts), "others": rows}
    Path(os.environ[REPORT]).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
