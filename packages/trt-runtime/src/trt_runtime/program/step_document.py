"""What a program computes, as the JSON of its graph section, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from trt_core.files import typed
from trt_core.sizes.functions import FUNCTIONS
from trt_runtime.program import fields, literals, tables
from trt_runtime.program.fields import malformed
from trt_runtime.program.graph import (
    EngineCall,
    ItemCall,
    NumberCall,
    NumberType,
    OperatorCall,
    SequenceType,
    SizeCall,
    Step,
    TensorType,
    Value,
    ValueType,
    WriteCall,
)


def step_to_json(step: Step) -> dict[str, Any]:
    """A step as JSON."""
    if isinstance(step, EngineCall):
        return {"do": "engine", "engine": step.engine, "inputs": list(step.inputs)}
    if isinstance(step, OperatorCall):
        return {
            "do": "operator",
            "name": step.name,
            "overload": step.overload,
            "args": [literals.to_json(value) for value in step.args],
            "kwargs": {name: literals.to_json(value) for name, value in step.kwargs.items()},
            "result": _type_to_json(step.result),
        }
    if isinstance(step, NumberCall):
        return {"do": "number", "function": step.function, "args": [literals.to_json(value) for value in step.args]}
    if isinstance(step, SizeCall):
        return {"do": "size", "tensor": step.tensor, "axis": step.axis}
    if isinstance(step, ItemCall):
        return {"do": "item", "sequence": step.sequence, "index": step.index}
    return {"do": "write", "target": step.target, "source": step.source}


def read_step(value: Any, place: str, known: int, symbols: Collection[str]) -> Step:
    """Reads a step.

    Args:
        value: Parsed JSON.
        place: Where it stands, for messages.
        known: How many values there are before it; only these may be named.
        symbols: The symbols that extents may name.

    Raises:
        PlanError: It is no step.
    """
    kind = value.get("do") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _STEPS:
        raise malformed(place, f"{kind!r:.60} is no kind of step")
    step: Step = _STEPS[kind](typed.fields(value, place, tables.STEPS[kind]), place, known, symbols)
    return step


def _read_engine_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> EngineCall:
    inputs = typed.items(values["inputs"], place)
    return EngineCall(
        typed.integer(values["engine"], place, 0, 1 << 16),
        tuple(typed.integer(index, place, 0, known - 1) for index in inputs),
    )


def _read_operator_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> OperatorCall:
    kwargs = typed.mapping(values["kwargs"], place)
    return OperatorCall(
        name=typed.text(values["name"], place, 300),
        overload=typed.text(values["overload"], place, 300),
        args=tuple(literals.from_json(item, place, known) for item in typed.items(values["args"], place)),
        kwargs={name: literals.from_json(item, place, known) for name, item in kwargs.items()},
        result=_read_type(values["result"], place, symbols),
    )


def _read_number_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> NumberCall:
    function = values["function"]
    args = [literals.from_json(item, place, known) for item in typed.items(values["args"], place)]
    if not isinstance(function, str) or function not in FUNCTIONS or not FUNCTIONS[function].takes(len(args)):
        raise malformed(place, f"there is no function {function!r:.60} of {len(args)} numbers")
    if not all(isinstance(item, (int, float)) or type(item) is Value for item in args):
        raise malformed(place, "functions of numbers take numbers")
    return NumberCall(function, tuple(args))


def _read_size_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> SizeCall:
    return SizeCall(
        typed.integer(values["tensor"], place, 0, known - 1), typed.integer(values["axis"], place, 0, fields.MAX_RANK)
    )


def _read_item_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> ItemCall:
    return ItemCall(
        typed.integer(values["sequence"], place, 0, known - 1), typed.integer(values["index"], place, 0, 1 << 31)
    )


def _read_write_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> WriteCall:
    return WriteCall(
        typed.integer(values["target"], place, 0, known - 1), typed.integer(values["source"], place, 0, known - 1)
    )


_STEPS: Final[dict[str, Any]] = {
    "engine": _read_engine_call,
    "operator": _read_operator_call,
    "number": _read_number_call,
    "size": _read_size_call,
    "item": _read_item_call,
    "write": _read_write_call,
}


def _type_to_json(kind: ValueType | None) -> Any:
    if isinstance(kind, TensorType):
        return {"tensor": fields.dtype_text(kind.dtype), "shape": list(kind.shape)}
    if isinstance(kind, NumberType):
        return kind.kind.__name__
    if isinstance(kind, SequenceType):
        return [_type_to_json(item) for item in kind.items]
    return None


def _read_type(value: Any, place: str, symbols: Collection[str]) -> ValueType | None:
    if value is None:
        return None
    if isinstance(value, str):
        return NumberType(fields.number_kind(value, place))
    if isinstance(value, list):
        return SequenceType(tuple(_read_type(item, place, symbols) for item in value))
    values = typed.fields(value, place, tables.TENSOR_TYPE)
    extents = typed.items(values["shape"], place)
    if len(extents) > fields.MAX_RANK:
        raise malformed(place, f"{len(extents)} dimensions are too many")
    shape = tuple(fields.extent(item, place, symbols) for item in extents)
    return TensorType(fields.dtype(values["tensor"], place), shape)
