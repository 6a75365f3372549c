"""Support checks that converters are composed of.

A check takes a `Call` and returns None, or the `Verdict` that refuses it. Checks look at metadata alone. Those of a
tensor refuse nothing where the model left an optional one out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from trt_converters.call import Call, is_static
from trt_converters.context import fraction_of, is_size_number
from trt_converters.converter import Check, Converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS, INTEGERS, TRT_NAMES, dtype_name
from trt_core.internals import OpOverload
from trt_core.nesting import tensors_in
from trt_core.quantization import dequantize
from trt_core.sizes.expressions import depends_on_data
from trt_core.wording import kind_of

MAX_RANK = 8


def refuses(what: str) -> Callable[[Check], Check]:
    """Gives a check that was made for some arguments its docstring, which the list of operators shows.

    Args:
        what: What it refuses, as the end of a sentence.
    """

    def describe(check: Check) -> Check:
        check.__doc__ = f"Refuses {what}."
        return check

    return describe


def dtypes(parameter: str, allowed: Iterable[torch.dtype]) -> Check:
    """Refuses a tensor argument of any other type."""
    known = frozenset(allowed)

    @refuses(f"`{parameter}` that is not {_listed(map(dtype_name, known))}")
    def check(call: Call) -> Verdict | None:
        tensor = _given(call, parameter)
        if tensor is None or tensor.dtype in known:
            return None
        names, dtype = ", ".join(sorted(map(dtype_name, known))), dtype_name(tensor.dtype)
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"{parameter} is {dtype}; the layer takes {names}")

    return check


def constant(*parameters: str) -> Check:
    """Refuses arguments that are computed by the graph."""

    @refuses(f"{_listed(_quoted(parameters), 'and')} that the graph computes")
    def check(call: Call) -> Verdict | None:
        for parameter in parameters:
            if not call.is_constant(parameter):
                return Verdict.refuse(Reason.NOT_CONSTANT, f"{parameter} is computed by the graph")
        return None

    return check


def static_shape(*parameters: str) -> Check:
    """Refuses tensor arguments with symbolic extents."""

    @refuses(f"{_listed(_quoted(parameters), 'and')} of symbolic shape")
    def check(call: Call) -> Verdict | None:
        for parameter in parameters:
            tensor = _given(call, parameter)
            if tensor is not None and not is_static(tensor):
                return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{parameter} has shape {tuple(tensor.shape)}")
        return None

    return check


def static_axis(parameter: str, axis: str | int) -> Check:
    """Refuses a tensor argument whose extent along an axis (a number, or the parameter that names it) is symbolic."""

    @refuses(f"`{parameter}` whose dimension {axis} is symbolic")
    def check(call: Call) -> Verdict | None:
        tensor = _given(call, parameter)
        index = call[axis] if isinstance(axis, str) else axis
        if tensor is not None and tensor.dim() and not isinstance(tensor.shape[index], int):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"dimension {index} of {parameter} is symbolic")
        return None

    return check


def rank(parameter: str, low: int, high: int = MAX_RANK) -> Check:
    """Refuses a tensor argument whose rank lies outside [low, high]."""

    @refuses(f"`{parameter}` of rank other than {low} to {high}")
    def check(call: Call) -> Verdict | None:
        tensor = _given(call, parameter)
        if tensor is None or low <= tensor.dim() <= high:
            return None
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"{parameter} has rank {tensor.dim()}, not {low} to {high}")

    return check


def argument(parameter: str, accepted: Callable[[Any], bool], why: str) -> Check:
    """Refuses an argument whose value is not accepted.

    Args:
        parameter: The schema's parameter.
        accepted: Predicate of the value (nodes stand as their metadata).
        why: What cannot be expressed, for the message.
    """

    @refuses(f"some values of `{parameter}`: {why}")
    def check(call: Call) -> Verdict | None:
        value = call[parameter]
        if accepted(value):
            return None
        shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"{parameter}={shown}: {why}")

    return check


def fixed_number(*parameters: str) -> Check:
    """Refuses numbers that vary with the sizes of tensors, for attributes of layers that no operand stands for."""

    @refuses(f"{_listed(_quoted(parameters), 'and')} that varies with a size")
    def check(call: Call) -> Verdict | None:
        for parameter in parameters:
            if is_size_number(call[parameter]):
                return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"{parameter} varies with a size")
        return None

    return check


def absent(*parameters: str) -> Check:
    """Refuses a call that gives an optional argument at all."""

    @refuses(f"{_listed(_quoted(parameters), 'and')}")
    def check(call: Call) -> Verdict | None:
        for parameter in parameters:
            if call[parameter] is not None:
                return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"{parameter} is given")
        return None

    return check


def never(reason: Reason, message: str) -> Check:
    """Refuses every call: for operators that TensorRT is known not to express, so that the report says why."""

    @refuses(f"every call: {message}")
    def check(call: Call) -> Verdict | None:
        return Verdict.refuse(reason, message)

    return check


def only_results(*indices: int) -> Check:
    """Refuses a call of which another item of the result is used."""

    @refuses(f"calls that use other results than {_listed(map(str, indices), 'and')}")
    def check(call: Call) -> Verdict | None:
        for index in range(len(call.result)):
            if index not in indices and call.uses(index):
                return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"item {index} of the result is used")
        return None

    return check


def _quoted(names: Iterable[str]) -> Iterator[str]:
    return (f"`{name}`" for name in names)


def _listed(names: Iterable[str], last: str = "or") -> str:
    """Names as a sentence lists them, in order."""
    *others, end = sorted(names)
    return f"{', '.join(others)} {last} {end}" if others else end


def _given(call: Call, parameter: str) -> torch.Tensor | None:
    return None if call[parameter] is None else call.tensor(parameter)


def general_checks(call: Call, converter: Converter) -> Verdict | None:
    """What every converter needs: types that exist, ranks, extents, functional schema, no randomness."""
    if isinstance(converter.target, OpOverload):  # branches and loops have no schema
        refusal = _check_schema(call, converter)
        if refusal is not None:
            return refusal
    if not _is_tensors(call.result):
        return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"it returns {_describe(call.result)}")
    for value in call.arguments.values():
        if isinstance(value, (torch.SymBool, complex)):
            return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"{converter.target} takes {kind_of(value)}")
        if isinstance(value, torch.SymFloat):
            refusal = _check_fraction(value, call, converter)
            if refusal is not None:
                return refusal
    for tensor in call.tensors():
        refusal = _check_tensor(tensor, converter)
        if refusal is not None:
            return refusal
    return None


def _check_schema(call: Call, converter: Converter) -> Verdict | None:
    if converter.target._schema.is_mutable:
        return Verdict.refuse(Reason.MUTATION, f"{converter.target} writes to its argument")
    if not converter.random and torch.Tag.nondeterministic_seeded in converter.target.tags:
        return Verdict.refuse(Reason.SIDE_EFFECT, f"{converter.target} draws random numbers")
    for parameter in _tensor_parameters(converter.target):
        if not isinstance(call[parameter], (torch.Tensor, int, float, bool, torch.SymInt, torch.SymFloat)):
            return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"{parameter} is {_describe(call[parameter])}")
    return None


def _check_fraction(value: torch.SymFloat, call: Call, converter: Converter) -> Verdict | None:
    """Engines compute fractions of sizes in float32, of which the last digit would decide between two integers."""
    if fraction_of(value) is None:
        return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"{converter.target} takes {value}, which no layers compute")
    if any(tensor.dtype in INTEGERS for tensor in tensors_in([call.result])):
        return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"{converter.target} makes integers of {value}")
    return None


@functools.cache
def _tensor_parameters(target: Any) -> tuple[str, ...]:
    """Parameters that must be given a tensor, or a number in place of a 0-d one."""
    return tuple(item.name for item in target._schema.arguments if isinstance(item.type, torch.TensorType))


def _is_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(item is None or isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def _describe(value: Any) -> str:
    return "nothing that is known" if value is None else kind_of(value)


def _check_tensor(tensor: torch.Tensor, converter: Converter) -> Verdict | None:
    is_scale = tensor.dtype is torch.float8_e8m0fnu and converter.target is dequantize
    if tensor.dtype not in TRT_NAMES and not is_scale:
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"TensorRT has no {dtype_name(tensor.dtype)}")
    if tensor.layout is not torch.strided:
        return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"a tensor has layout {tensor.layout}")
    if tensor.dim() > MAX_RANK:
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"a tensor has rank {tensor.dim()}, at most {MAX_RANK} exist")
    for extent in tensor.shape:
        if isinstance(extent, int):
            if extent == 0:
                return Verdict.refuse(Reason.EMPTY_TENSOR, f"a tensor has shape {tuple(tensor.shape)}")
        elif not converter.dynamic:
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"a tensor has shape {tuple(tensor.shape)}")
        elif not converter.data_dependent and depends_on_data(extent):
            return Verdict.refuse(Reason.DATA_DEPENDENT_SHAPE, f"a tensor has shape {tuple(tensor.shape)}")
    return None


COMPUTABLE = FLOATS | INTEGERS | {torch.bool}


def computable(call: Call) -> Verdict | None:
    """Refuses tensors of types that networks move and cast but do not compute with: int8, uint8 and float8."""
    for tensor in call.tensors():
        if tensor.dtype not in COMPUTABLE:
            name = dtype_name(tensor.dtype)
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"TensorRT does not compute with {name}")
    return None


def promotable(call: Call) -> Verdict | None:
    """Refuses what `computable` does, but for operands of int8 and uint8 that become the type of the result."""
    result = call.result
    if isinstance(result, torch.Tensor) and result.dtype in FLOATS | INTEGERS:
        wide = (tensor for tensor in call.tensors() if tensor.dtype not in (torch.int8, torch.uint8))
        if all(tensor.dtype in COMPUTABLE for tensor in wide):
            return None
    return computable(call)
