"""What input shapes mean for outputs and memory: a program run on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from trt_portable.dtypes import CARRIERS
from trt_portable.enums import LayerType
from trt_portable.errors import UnknownExtents, optional
from trt_portable.execution.loaded_network import load_network
from trt_portable.execution.program import ABSENT, LayerCall, LayerFailure, Program
from trt_portable.network.layer import META, ILayer
from trt_portable.plan.engine_info import EngineInfo, Shape, is_host_constant
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import HostValues, Value, operand


@dataclass(frozen=True)
class ShapeReport:
    """What is known of a run before it happens.

    Attributes:
        outputs: Meta tensors or host values per output; None where the extents depend on data.
        bounds: Greatest extents per output; None where there is no bound.
        peak_bytes: Most bytes of values alive at once, inputs and constants left out.
    """

    outputs: tuple[Value | None, ...]
    bounds: tuple[Shape | None, ...]
    peak_bytes: int


Made: TypeAlias = dict[Any, Sequence[Value]]
"""What layers made of operands, by what decides about it."""


def report_shapes(program: Program, values: Sequence[Value], made: Made | None = None) -> ShapeReport:
    """Runs a program whose weights are bound to no data.

    Extents that depend on data are unknown, and so is what follows from them. Beside each unknown value
    runs a stand-in of the greatest extents that it can have.

    Args:
        program: Its layers live on the ``meta`` device.
        values: Meta tensors, or host values for shape inputs.
        made: What layers made in other runs of the program, to which this one adds: layers of one kind ask the same.

    Raises:
        LayerFailure: A layer refused the shapes.
    """
    exact = program.start(values)
    bounds = list(exact)
    live = peak = 0
    sizes: dict[int, int] = {}
    made = {} if made is None else made
    for inputs, (_, _, outputs, dying, call) in zip(program.reads, program.steps, strict=True):
        results = _results(call, inputs, exact, len(outputs), made)
        limits: Sequence[Value | None] = results
        if None in results:
            limits = _limits(call, inputs, bounds, len(outputs))
        if not len(results) == len(limits) == len(outputs):
            cause = ValueError(f"it makes {len(limits)} results, and has {len(outputs)}")
            raise LayerFailure(call.name, cause)
        for at, result, limit in zip(outputs, results, limits, strict=True):
            exact[at], bounds[at] = result, limit
            if isinstance(limit, torch.Tensor):
                sizes[at] = limit.nbytes
                live += limit.nbytes
        peak = max(peak, live)
        for at in dying:
            exact[at] = bounds[at] = None
            live -= sizes.pop(at, 0)
    return ShapeReport(
        outputs=tuple(exact[at] for at in program.output_slots),
        bounds=tuple(_extents(bounds[at]) for at in program.output_slots),
        peak_bytes=peak,
    )


def _results(
    call: LayerCall, inputs: Sequence[int], slots: Sequence[Value | None], count: int, made: Made
) -> Sequence[Value | None]:
    unknown = (None,) * count
    operands = [slots[at] for at in inputs]
    if _lacks_operand(inputs, operands):
        first = operands[0] if operands else None
        if not call.layer._LIKE_FIRST_INPUT or first is None:
            return unknown
        return (_empty(tuple(first.shape), CARRIERS[call.layer._outputs[0].dtype]),)
    try:
        key = _decisive(call.layer, operands)
        if key is None:
            return call.compute(operands)
        if key not in made:
            made[key] = call.compute(operands)
        return made[key]
    except Exception as error:
        if call.layer._DATA_DEPENDENT or _needs_data(error):
            return unknown
        raise LayerFailure(call.name, error) from error


def _decisive(layer: ILayer, operands: Sequence[Value | None]) -> Any:
    """What decides about the results of a layer; None where there is more to it."""
    if not layer._CACHEABLE or layer._DATA_DEPENDENT:
        return None
    given = tuple(
        (value.dtype, tuple(value.shape), tuple(value.numbers()))
        if isinstance(value, HostValues)
        else None
        if value is None
        else (value.dtype, tuple(value.shape), value.stride())
        for value in operands
    )
    tensors = (*layer._inputs, *layer._outputs)
    described = tuple(None if tensor is None else (tensor._dtype, tensor._extents) for tensor in tensors)
    return layer._signature(), tuple(layer._weight_specs.items()), described, given


def _limits(
    call: LayerCall, inputs: Sequence[int], slots: Sequence[Value | None], count: int
) -> Sequence[Value | None]:
    operands = [slots[at] for at in inputs]
    unknown = (None,) * count
    if _lacks_operand(inputs, operands):
        return unknown
    try:
        limit = _greatest(call.layer, operands)
        return call.compute(operands) if limit is None else limit
    except Exception:  # greatest extents need not fit each other
        return unknown


def _greatest(layer: ILayer, operands: Sequence[Value | None]) -> Sequence[Value] | None:
    """The greatest outputs of a layer whose output extents depend on data, where they are bounded."""
    shape = tuple(operands[0].shape) if operands and operands[0] is not None else ()
    if layer.type is LayerType.NON_ZERO:
        count = 1
        for extent in shape:
            count *= extent
        return (_empty((len(shape), count), CARRIERS[layer.get_output_type(0)]),)
    if layer.type is LayerType.NMS:
        scores = operand(operands[1])
        batch, boxes, classes = (int(extent) for extent in scores.shape)
        most = optional(operands, 2)
        per_class = boxes
        if isinstance(most, HostValues):
            per_class = min(boxes, int(most.numbers()[0]))
        indices = _empty((batch * classes * per_class, 3), CARRIERS[layer.get_output_type(0)])
        return (indices, _empty((), torch.int32))
    return layer._greatest(operands)


def _empty(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _lacks_operand(inputs: Sequence[int], operands: Sequence[Value | None]) -> bool:
    connected = zip(inputs, operands, strict=True)
    return any(value is None and at != ABSENT for at, value in connected)


def _needs_data(error: BaseException) -> bool:
    """Whether a computation failed only because its operands have no data."""
    return isinstance(error, (NotImplementedError, UnknownExtents)) or "meta tensor" in str(error)


def _extents(value: Value | None) -> Shape | None:
    return None if value is None else tuple(int(extent) for extent in value.shape)


def load_shape_program(
    structure: Mapping[str, Any], info: EngineInfo, tensors: Sequence[torch.Tensor | None]
) -> Program:
    """Rebuilds layers that know the numbers of shapes, and no other weights.

    Args:
        structure: The network part of a plan.
        info: The engine part of the same plan.
        tensors: A flat tensor per use of weights.
    """
    loaded, layers = load_network(structure, info, META, in_place=False)
    slots = info.weight_slots
    numbers = [tensor if is_host_constant(slot) else None for slot, tensor in zip(slots, tensors, strict=True)]
    WeightStore(slots, layers, numbers)
    program = Program(loaded.calls, loaded.inputs, loaded.outputs)
    program.load_constants()
    return program
