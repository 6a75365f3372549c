"""ONNX's own tests of backends: one model of a node each, with inputs and outputs; which of them cannot pass; and the
same models as older opsets write them."""

from __future__ import annotations

import collections
import functools
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import defs, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from trt_portable.onnx_parser.initializers import TYPES

EXCLUDED: Final = {
    r"bernoulli.*(seed|double)|^bernoulli_expanded$": "generators of random numbers differ",
    r"training_dropout_(default|mask|default_mask)$|^training_dropout$": "dropout while training draws random numbers",
    r"^(cast|castlike)_.*_to_(INT4|FLOAT4E2M1)": "TensorRT has no 4-bit types at engines' ends",
    r"^cast_e8m0_.*_to_FLOAT8E8M0": "TensorRT has E8M0 for scales only",
    r"maxpool_with_argmax": "TensorRT's pooling has no indices",
    r"^quantizelinear_(int4|float4e2m1)": "TensorRT has no 4-bit types at engines' ends",
    r"^scan_sum$": "Scan of opset 8 has an axis for batches; the parser reads opset 9 and later",
    r"^top_k_same_values": "the order of equal elements is not defined in TensorRT",
}
"""Patterns of names without `test_`, and why these tests fail; one that passes is an error."""

ONE_DEFINITION: Final = {
    r"^attention_.*qk_matmul_bias|^resize_downsample_scales_(linear|cubic)_align_corners": "ONNX Runtime computes "
    "otherwise than ONNX's own test wants",
    r"^cast_.*FLOAT8": "ONNX Runtime returns codes",
    r"^mod_float_edge_cases_fmod_0": "not defined before opset 28",
}
"""Patterns of names without `test_`, and why ONNX Runtime cannot say what these cases are in another opset."""
_OPSETS: Final = range(9, 25)
_RENAMED: Final = {("Pad", "constant_value"): "value", ("TopK", "K"): "k"}
"""Inputs that were attributes of another name."""

_COMPUTED: Final = TYPES.keys()


@functools.cache
def all_cases() -> dict[str, Any]:
    """Every case by its name, without `test_`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts out of range are what some cases are about
        return {case.name.removeprefix("test_"): case for case in load_model_tests(kind="node")}


def why_excluded(name: str) -> str | None:
    """Why a case cannot pass; None if it has to."""
    return next((reason for pattern, reason in EXCLUDED.items() if re.search(pattern, name)), None)


def lacks_a_type(model: onnx.ModelProto, *, at_inputs: bool = True) -> bool:
    """Whether an end of a model is no tensor of a type that TensorRT has; inputs may be constants in its place."""
    for value in (*(model.graph.input if at_inputs else ()), *model.graph.output):
        kind = value.type
        if kind.WhichOneof("value") != "tensor_type" or kind.tensor_type.elem_type not in _COMPUTED:
            return True
    return False


def newer_than_the_parser(model: onnx.ModelProto) -> bool:
    """Whether a model uses an opset newer than those that the parser promises, or a domain of other operators."""
    return any(entry.domain not in ("", "ai.onnx") or entry.version > 24 for entry in model.opset_import)


def with_constants(case: Any) -> tuple[onnx.ModelProto, list[int]] | None:
    """A case's model with all inputs but the first one that is computed with as constants, and the inputs left.

    Shapes, axes, codes of few bits and the like are inputs in these tests; networks know them while they are built.
    """
    inputs = case.data_sets[0][0]
    if not inputs or any(value.type.WhichOneof("value") != "tensor_type" for value in case.model.graph.input):
        return None
    kept = [0] if as_array(inputs[0]).dtype in (np.float16, np.float32, np.float64) else []
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
    if kind is None:  # 4-bit integers are carried by int8, other types that PyTorch lacks are never computed with
        known = array.astype(np.int8) if array.dtype.name in ("int4", "uint4") else array
        return torch.from_numpy(known if known.dtype.isbuiltin == 1 else known.view(np.uint8))
    return torch.from_numpy(array.view(np.uint8 if array.itemsize == 1 else np.int16)).view(kind).reshape(array.shape)


def compared(found: torch.Tensor, wanted: Any, rtol: float, atol: float = 1e-5) -> str | None:
    """What is wrong with an output; None if it is as it should be."""
    expected = as_array(wanted)
    if tuple(found.shape) != expected.shape:
        return f"shape {tuple(found.shape)}, not {expected.shape}"
    tolerance = max(rtol, {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(found.dtype, 1e-3))
    numbers = found.to(torch.float64).numpy() if found.dtype.is_floating_point else found.numpy()
    try:
        np.testing.assert_allclose(numbers.astype(np.float64), expected.astype(np.float64), tolerance, atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


def names_of(kind: str) -> Iterator[str]:
    """Names of cases: `first` are those whose operators are not spelled out as functions, `spelled` the others."""
    for name in all_cases():
        if bool(re.search(r"_expanded(_ver\d+)?$", name)) is (kind == "spelled"):
            yield name


def older_forms(names: Iterator[str], most: int = 2) -> Iterator[tuple[str, onnx.ModelProto, list[Any], list[Any]]]:
    """Cases as older opsets write them, in which an operator of theirs was defined otherwise, with inputs and outputs.

    Args:
        names: The cases to choose from.
        most: How many cases there are of one definition.
    """
    seen: collections.Counter[tuple[str, int]] = collections.Counter()
    for name in names:
        model = all_cases()[name].model
        if why_excluded(name) or lacks_a_type(model) or any(re.search(one, name) for one in ONE_DEFINITION):
            continue
        for operator in {node.op_type for node in model.graph.node}:
            for opset in _OPSETS:
                schema = _schema(operator, opset)
                if schema is None or (opset != schema.since_version and opset != _OPSETS[0]):
                    continue
                key = operator, schema.since_version
                if schema.since_version < _own_version(model, operator) and seen[key] < most:
                    form = as_of(name, opset)
                    if form is not None:
                        seen[key] += 1
                        yield f"{name} of opset {opset}", *form


def _schema(operator: str, opset: int) -> Any:
    try:
        found = defs.get_schema(operator, opset, "")
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _own_version(model: onnx.ModelProto, operator: str) -> int:
    schema = _schema(operator, _opset(model))
    return schema.since_version if schema else 0


def as_of(name: str, opset: int) -> tuple[onnx.ModelProto, list[Any], list[Any]] | None:
    """A case as an older opset writes and computes it: inputs that were attributes then are attributes.

    Returns:
        The model, its inputs, and the outputs that ONNX Runtime computes; None where that opset has no such form.
    """
    case = all_cases()[name]
    model, inputs = onnx.ModelProto(), case.data_sets[0][0]
    model.CopyFrom(case.model)
    values = {value.name: as_array(data) for value, data in zip(model.graph.input, inputs, strict=False)}
    taken: set[str] = set()
    for node in model.graph.node:
        was, now = _schema(node.op_type, _opset(case.model)), _schema(node.op_type, opset)
        if node.domain or was is None or now is None or not _rewrite(node, was, now, values, taken):
            return None
    used = {name for node in model.graph.node for name in node.input}
    kept = [value for value in model.graph.input if value.name in used or value.name not in taken]
    arrays = {value.name: values[value.name] for value in kept}
    del model.graph.input[:], model.opset_import[:]
    model.graph.input.extend(kept)
    model.opset_import.append(helper.make_opsetid("", opset))
    model.ir_version = 8 if opset < 19 else 10
    wanted = by_onnx_runtime(model, arrays)
    return None if wanted is None else (model, list(arrays.values()), wanted)


def _rewrite(node: onnx.NodeProto, was: Any, now: Any, values: dict[str, Any], taken: set[str]) -> bool:
    for attribute in list(node.attribute):
        if attribute.name not in now.attributes:
            default = was.attributes[attribute.name].default_value
            if default.type == 0 or default.SerializeToString() != attribute.SerializeToString():
                return False
            node.attribute.remove(attribute)
    for place in reversed(range(len(node.input))):
        entry = was.inputs[min(place, len(was.inputs) - 1)].name
        attribute = _RENAMED.get((node.op_type, entry), entry)
        if place < now.max_input and attribute not in now.attributes:
            continue
        given = node.input[place]
        if given:
            number = values.get(given)
            if number is None or not (attribute in now.attributes or (entry == "training_mode" and not number)):
                return False
            if attribute in now.attributes:
                kind = now.attributes[attribute].type.value
                content = number.reshape(-1).tolist()
                several = kind in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS)
                node.attribute.append(
                    helper.make_attribute(attribute, content if several else content[0], attr_type=kind)
                )
            taken.add(given)
        node.input[place] = ""
    while node.input and not node.input[-1]:
        node.input.pop()
    return len(node.input) >= now.min_input and len(node.output) <= now.max_output


def by_onnx_runtime(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any] | None:
    """What ONNX Runtime makes of a model, unchanged by its optimizers; None where it refuses it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, inputs)
    except Exception:  # each of its errors has a class of its own
        return None
    return found
