"""ONNX's own tests of backends: one model of a node each, with inputs and outputs; and which of them cannot pass."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from trt_portable.onnx_parser.initializers import TYPES

EXCLUDED: Final = {
    r"bernoulli.*(seed|double)|^bernoulli_expanded$": "generators of random numbers differ",
    r"training_dropout_(default|mask|default_mask)$|^training_dropout$": "dropout while training draws random numbers",
    r"(cast|castlike)_(?!INT4_to_(?:FLOAT|FLOAT16|INT8)$).*(FLOAT4E2M1|INT4)": "TensorRT has no casts to 4-bit types, "
    "and none at the ends of an engine",
    r"cast_e8m0_": "TensorRT has E8M0 for scales only",
    r"maxpool_with_argmax": "TensorRT's pooling has no indices",
    r"^quantizelinear_(int4|float4e2m1)|dequantizelinear_float4e2m1": "TensorRT has no 4-bit types at engines' ends",
    r"^scan_sum$": "Scan of opset 8 has an axis for batches; the parser reads opset 9 and later",
    r"^top_k_same_values": "the order of equal elements is not defined in TensorRT",
}
"""Patterns of names without `test_`, and why these tests fail; one that passes is an error."""

_COMPUTED: Final = TYPES.keys() - {onnx.TensorProto.UINT8}


@functools.cache
def all_cases() -> dict[str, Any]:
    """Every case by its name, without `test_`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts out of range are what some cases are about
        return {case.name.removeprefix("test_"): case for case in load_model_tests(kind="node")}


def why_excluded(name: str) -> str | None:
    """Why a case cannot pass; None if it has to."""
    return next((reason for pattern, reason in EXCLUDED.items() if re.search(pattern, name)), None)


def lacks_a_type(model: onnx.ModelProto) -> bool:
    """Whether an end of a model is no tensor of a type that TensorRT computes with: it only converts uint8."""
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type
        if kind.WhichOneof("value") != "tensor_type" or kind.tensor_type.elem_type not in _COMPUTED:
            return True
    return False


def newer_than_the_parser(model: onnx.ModelProto) -> bool:
    """Whether a model uses an opset newer than those that the parser promises, or a domain of other operators."""
    return any(entry.domain not in ("", "ai.onnx") or entry.version > 24 for entry in model.opset_import)


def with_constants(case: Any) -> tuple[onnx.ModelProto, list[int]] | None:
    """A case's model with all inputs but the first one that is computed with as constants, and the inputs left.

    Shapes, axes and the like are inputs in these tests; networks want to know them while they are built.
    """
    inputs = case.data_sets[0][0]
    if not inputs:
        return None
    kept = [0] if as_array(inputs[0]).dtype.kind == "f" else []
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.input[:]
    for place, (value, data) in enumerate(zip(case.model.graph.input, inputs, strict=False)):
        if place in kept:
            model.graph.input.append(value)
        else:
            model.graph.initializer.append(numpy_helper.from_array(as_array(data), value.name))
    return model, kept


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Data of a case, which some have as ``TensorProto``."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def as_tensor(value: Any) -> torch.Tensor:
    """Data of a case, of types that numpy lacks too."""
    array = np.array(as_array(value), order="C")
    kinds = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}
    kind = kinds.get(array.dtype.name)
    if kind is None:  # 4-bit integers are carried by int8
        return torch.from_numpy(array.astype(np.int8) if array.dtype.name in ("int4", "uint4") else array)
    return torch.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16)).view(kind).reshape(array.shape)


def compared(found: torch.Tensor, wanted: Any, rtol: float) -> str | None:
    """What is wrong with an output; None if it is as it should be."""
    expected = as_array(wanted)
    if tuple(found.shape) != expected.shape:
        return f"shape {tuple(found.shape)}, not {expected.shape}"
    tolerance = max(rtol, {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(found.dtype, 1e-3))
    numbers = found.to(torch.float64).numpy() if found.dtype.is_floating_point else found.numpy()
    try:
        np.testing.assert_allclose(numbers.astype(np.float64), expected.astype(np.float64), tolerance, 1e-5)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


def names_of(kind: str) -> Iterator[str]:
    """Names of cases: `first` are those whose operators are not spelled out as functions, `spelled` the others."""
    for name in all_cases():
        if name.endswith("_expanded") is (kind == "spelled"):
            yield name
