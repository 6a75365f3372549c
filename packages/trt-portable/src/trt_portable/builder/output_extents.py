"""What a plan says of output extents: the expressions of shape inference, where they hold at the ends of profiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.errors import PortableError
from trt_portable.execution.program import Program
from trt_portable.execution.shapes import META, load_shape_program, report_shapes
from trt_portable.plan.engine_info import EngineInfo, IOTensor, Shape
from trt_portable.plan.engine_plan import is_host_constant
from trt_portable.plan.extents import Expression, evaluate, expression_of

if TYPE_CHECKING:
    from trt_portable.network.network import INetworkDefinition

_WHOLE_ENDS: Final = 3
"""How many of `_ends` are whole shapes of the profile."""
_MOST_ELEMENTS: Final = 1 << 40
"""No memory holds a tensor of more; PyTorch cannot describe tensors of many more, not even without data."""


def add_output_extents(
    network: INetworkDefinition, structure: Mapping[str, Any], info: EngineInfo, tensors: Mapping[str, torch.Tensor]
) -> EngineInfo:
    """Adds expressions of extents to the outputs of an engine with dynamic inputs.

    Shape inference may assume what holds for all but the smallest extents, so each expression is compared with what
    the layers make at the ends of every profile; one that differs anywhere is left out.

    Args:
        network: The network, whose extents are known as expressions of symbols.
        structure: The network part of the plan.
        info: The engine part of the plan.
        tensors: Weights by id.
    """
    if any(slot.refittable and is_host_constant(slot) for slot in info.weight_slots):
        return info  # a refit may change the numbers of shapes
    inputs = [tensor for tensor in info.io if tensor.is_input]
    outputs = [tensor for tensor in info.io if not tensor.is_input]
    if not any(tensor.is_dynamic for tensor in inputs) or any(tensor.is_host for tensor in info.io):
        return info
    sizes: dict[Any, tuple[int, int]] = {}
    for index, source in enumerate(network._inputs):
        for axis, extent in enumerate(source._extents or ()):
            if type(extent) is not int:
                sizes.setdefault(extent, (index, axis))
    marked = (*network._marked, *network._marked_for_shapes)
    found: list[tuple[Expression, ...]] = [
        tuple(expression_of(extent, sizes) for extent in tensor._extents or ()) for tensor in marked
    ]
    numbers = [tensors[slot.weights] if is_host_constant(slot) else None for slot in info.weight_slots]
    program = load_shape_program(structure, info, numbers)
    for profile in range(len(info.profiles)):
        for number, shapes in enumerate(_ends(info, inputs, profile)):
            made = _made(program, inputs, shapes)
            if made is None and number < _WHOLE_ENDS:
                return info  # layers refuse shapes that the profile allows: only inferring can say which
            if made is not None:
                found = [_confirmed(known, actual, shapes) for known, actual in zip(found, made, strict=True)]
    by_id = {tensor.id: extents for tensor, extents in zip(outputs, found, strict=True)}
    return replace(
        info,
        io=tuple(replace(tensor, extents=by_id[tensor.id]) if tensor.id in by_id else tensor for tensor in info.io),
    )


def _ends(info: EngineInfo, inputs: Sequence[IOTensor], profile: int) -> Iterator[tuple[Shape, ...]]:
    """The typical shapes of a profile, the least and the greatest possible, and those with one extent at an end.

    Extents of one name change together. Other extents may have to agree all the same: layers refuse those ends.
    """
    allowed = [info.allowed_shape(tensor, profile) for tensor in inputs]
    typical = tuple(shapes.opt for shapes in allowed)
    yield typical
    yield tuple(shapes.min for shapes in allowed)
    yield _greatest(typical, [shapes.max for shapes in allowed])
    places: dict[Any, list[tuple[int, int]]] = {}
    for index, tensor in enumerate(inputs):
        for axis in range(len(tensor.shape)):
            name = tensor.dimension_names[axis] if tensor.dimension_names else ""
            places.setdefault(name or (index, axis), []).append((index, axis))
    for group in places.values():
        for end in ("min", "max"):
            shapes = [list(shape) for shape in typical]
            for index, axis in group:
                shapes[index][axis] = getattr(allowed[index], end)[axis]
            changed = tuple(map(tuple, shapes))
            if changed != typical:
                yield changed


def _greatest(typical: Sequence[Shape], most: Sequence[Shape]) -> tuple[Shape, ...]:
    """The greatest shapes, or as great as they can be: profiles of unbounded extents allow what no memory holds."""
    limit = max((extent for shape in most for extent in shape), default=0)
    while True:
        shapes = tuple(
            tuple(min(high, max(usual, limit)) for usual, high in zip(*pair, strict=True))
            for pair in zip(typical, most, strict=True)
        )
        if limit <= 1 or all(math.prod(shape) <= _MOST_ELEMENTS for shape in shapes):
            return shapes
        limit //= 2


def _made(program: Program, inputs: Sequence[IOTensor], shapes: Sequence[Shape]) -> list[Shape | None] | None:
    """What the layers make of shapes; None where they refuse them."""
    values = [
        torch.empty(shape, dtype=tensor.torch_dtype, device=META) for tensor, shape in zip(inputs, shapes, strict=True)
    ]
    try:
        report = report_shapes(program, values)
    except PortableError:
        return None
    return [None if value is None else tuple(int(extent) for extent in value.shape) for value in report.outputs]


def _confirmed(
    expressions: tuple[Expression, ...], actual: Shape | None, shapes: Sequence[Shape]
) -> tuple[Expression, ...]:
    """The expressions that give the actual extents; None in the place of others."""
    if actual is None:
        return (None,) * len(expressions)
    return tuple(
        expression if _value(expression, shapes) == extent else None
        for expression, extent in zip(expressions, actual, strict=True)
    )


def _value(expression: Expression, shapes: Sequence[Shape]) -> int | None:
    try:
        return None if expression is None else evaluate(expression, shapes)
    except PortableError:
        return None
