"""A call of an operator as data: what a plugin must know to make it again, and to tell the extents of its results."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trt_converters.call import Call
from trt_core import Reason, Verdict, trt
from trt_core.dtypes import dtype_name
from trt_core.sizes.expressions import Extent, extent_of, symbols_in

NO_PLUGIN_OUTPUT = frozenset({torch.bool, torch.uint8})
"""Types that plugins cannot return."""


@dataclass(frozen=True)
class PluginCall:
    """One call of an operator.

    Attributes:
        constants: Arguments that are no tensors, by parameter name.
        tensors: Parameters that are tensors, in the order of the plugin's inputs.
        input_types: Types of those tensors, by name.
        output_types: Types of the results, by name.
        output_shapes: Extents of the results; see `trt_core.sizes.expressions`.
        symbols: Where the symbols of those extents are read: input and axis.
    """

    constants: Mapping[str, Any]
    tensors: Sequence[str]
    input_types: Sequence[str]
    output_types: Sequence[str]
    output_shapes: Sequence[Sequence[Extent]]
    symbols: Mapping[str, Sequence[int]]

    def to_bytes(self) -> bytes:
        """Returns the call as JSON, which plans carry."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PluginCall:
        """Reads what `to_bytes` wrote."""
        return cls(**json.loads(data))


def describe_call(call: Call) -> PluginCall:
    """Returns a call that `refuse_call` has nothing against as data."""
    names = [name for name, value in call.arguments.items() if isinstance(value, torch.Tensor)]
    inputs = [call.tensor(name) for name in names]
    results = _results(call)
    return PluginCall(
        constants={name: value for name, value in call.arguments.items() if name not in names},
        tensors=names,
        input_types=[dtype_name(tensor.dtype) for tensor in inputs],
        output_types=[dtype_name(tensor.dtype) for tensor in results],
        output_shapes=[[extent_of(extent) for extent in tensor.shape] for tensor in results],
        symbols=_symbols_of(inputs),
    )


def refuse_call(call: Call) -> Verdict | None:
    """Refuses calls that a plugin cannot make: a support check."""
    known = _symbols_of([value for value in call.arguments.values() if isinstance(value, torch.Tensor)])
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor) and not _is_plain(value):
            return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"{name} is neither a tensor nor a plain constant")
    for tensor in _results(call):
        if tensor.dtype in NO_PLUGIN_OUTPUT:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"plugins return no {dtype_name(tensor.dtype)}")
        for extent in tensor.shape:
            data = extent_of(extent)
            if data is None or not symbols_in(data) <= known.keys():
                return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"no input of the plugin tells the extent {extent}")
    return None


def plugin_extents(call: PluginCall, inputs: Sequence[Any], builder: Any) -> list[list[Any]]:
    """Returns the extents of the results as expressions of TensorRT.

    Args:
        call: The call.
        inputs: `trt.DimsExprs` of the inputs.
        builder: The `trt.IExprBuilder`.
    """
    read = {name: inputs[index][axis] for name, (index, axis) in call.symbols.items()}
    return [[_expression(extent, read, builder) for extent in shape] for shape in call.output_shapes]


def _results(call: Call) -> list[torch.Tensor]:
    return list(call.result) if isinstance(call.result, (tuple, list)) else [call.result]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _symbols_of(tensors: Sequence[torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Which input and axis tells each symbol."""
    found: dict[str, tuple[int, int]] = {}
    for index, tensor in enumerate(tensors):
        for axis, size in enumerate(tensor.shape):
            extent = extent_of(size)
            if isinstance(extent, str):
                found.setdefault(extent, (index, axis))
    return found


def _expression(extent: Extent, read: Mapping[str, Any], builder: Any) -> Any:
    if isinstance(extent, int):
        return builder.constant(extent)
    if isinstance(extent, str):
        return read[extent]
    assert isinstance(extent, list)  # extents that depend on data are refused
    name, *operands = extent
    if name == "pow":
        base, exponent = operands
        return _expression(["mul", *[base] * exponent] if exponent else 1, read, builder)
    values = [_expression(operand, read, builder) for operand in operands]
    if name == "mod":
        return _remainder(values[0], values[1], builder)
    operations = trt.DimensionOperation
    operation = {
        "add": operations.SUM,
        "mul": operations.PROD,
        "floordiv": operations.FLOOR_DIV,
        "ceildiv": operations.CEIL_DIV,
        "max": operations.MAX,
        "min": operations.MIN,
    }[name]
    return functools.reduce(lambda left, right: builder.operation(operation, left, right), values)


def _remainder(value: Any, divisor: Any, builder: Any) -> Any:
    operations = trt.DimensionOperation
    quotient = builder.operation(operations.FLOOR_DIV, value, divisor)
    return builder.operation(operations.SUB, value, builder.operation(operations.PROD, quotient, divisor))
