"""PyTorch operators inside engines: a plugin in Python that calls the operator, and the converter that adds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.converter import Check, Converter
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import Reason, Verdict
from trt_core.dtypes import dtype_name
from trt_core.held_arguments import held_to_signature
from trt_core.internals import OpOverload
from trt_core.operator_plugin import PluginCall, plugin_of, register_operator
from trt_core.sizes.expressions import extent_of, symbols_in


@held_to_signature
def plugin_from_operator(
    op: OpOverload,
    *,
    checks: tuple[Check, ...] | Check = (),
    priority: int = 0,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> Any:
    """Lets engines run an operator as a plugin that calls its PyTorch implementation.

    The operator must be functional, take tensors and plain constants, and have a fake implementation, from which the
    extents of its results are known. Operators that draw random numbers stay in PyTorch.

    Plans hold the plugin by name. A process that loads a saved program needs the operator, by which `load` finds the
    plugin; one that runs a plan alone calls this function where the operator is defined.

    Args:
        op: The operator, an overload such as `torch.ops.my_library.smooth.default`.
        checks: Further support checks.
        priority: See `Converter`.
        registry: Where the converter is registered.

    Returns:
        The plugin creator, registered with the provider of TensorRT's API that is in use.

    Raises:
        TypeError: The argument is not an operator overload, or the operator writes to its arguments.
    """
    if not isinstance(op, OpOverload):
        raise TypeError(f"{op!r} is not an operator overload; write torch.ops.<namespace>.<name>.<overload>")
    if op._schema.is_mutable:
        raise TypeError(f"{op} writes to its arguments, and engines do not; give an operator that returns its result")
    creator = register_operator(op)

    def convert(ctx: Any, **arguments: Any) -> Any:
        call = describe_call(ctx.call)
        inputs = [ctx.tensor(arguments[name]) for name in call.tensors]
        plugin = plugin_of(op, call)
        layer = ctx.own(ctx.network.add_plugin_v3(inputs, [], plugin))
        outputs = [layer.get_output(index) for index in range(len(call.output_types))]
        return outputs if isinstance(ctx.result, (tuple, list)) else outputs[0]

    convert.__name__ = op.name().replace("::", "_").replace(".", "_")
    all_checks = (refuse_call, *(checks if isinstance(checks, tuple) else (checks,)))
    registry.register(Converter(op, convert, all_checks, priority, origin=op.namespace, plugin=op.name()))
    return creator


NO_PLUGIN_OUTPUT = frozenset({torch.bool, torch.uint8})
"""Types that plugins cannot return."""


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
