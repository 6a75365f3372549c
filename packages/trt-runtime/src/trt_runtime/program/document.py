"""A program as the JSON of its graph section, and back; reading checks everything that can be checked without running.

`docs/reference/program_format.md` describes the fields.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from trt_core.errors import PlanError
from trt_core.ranges import Bounds
from trt_runtime.header import PlanHeader
from trt_runtime.program import fields, literals
from trt_runtime.program.fields import MAX_EXTENT, malformed
from trt_runtime.program.graph import (
    Dimension,
    EngineCall,
    FixedInput,
    ItemCall,
    Leaf,
    NumberCall,
    NumberInput,
    NumberType,
    OperatorCall,
    Program,
    SequenceType,
    Signature,
    SizeCall,
    Step,
    Storage,
    StoredEngine,
    StoredTensor,
    TensorInput,
    TensorType,
    Value,
    ValueType,
    WriteCall,
)
from trt_runtime.program.numbers import FUNCTIONS, fits
from trt_runtime.strict_json import BadJson, parse_json

MAX_BYTES: Final = 256 << 20
"""Longest graph section that is read."""

_KINDS: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool}
_PROGRAM: Final = (
    "torch_version",
    "writer_version",
    "libraries",
    "symbols",
    "profiles",
    "signature",
    "storages",
    "tensors",
    "engines",
    "steps",
    "output",
)


def program_to_bytes(program: Program) -> bytes:
    """Writes a program.

    Raises:
        NoLiteral: A literal in it has no form in the format.
    """
    document = {
        "torch_version": program.torch_version,
        "writer_version": program.writer_version,
        "libraries": list(program.libraries),
        "symbols": _symbols_to_json(program.symbols),
        "profiles": [_symbols_to_json(profile) for profile in program.profiles],
        "signature": _signature_to_json(program.signature),
        "storages": [[storage.offset, storage.size] for storage in program.storages],
        "tensors": [_tensor_to_json(tensor) for tensor in program.tensors],
        "engines": [
            {"name": engine.name, "section": engine.section, "header": engine.header.to_json()}
            for engine in program.engines
        ],
        "steps": [_step_to_json(step) for step in program.steps],
        "output": literals.to_json(program.output),
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def program_from_bytes(data: bytes) -> Program:
    """Reads a program.

    Raises:
        PlanError: The bytes are no program; the message says where it breaks the format.
    """
    try:
        document = parse_json(data, max_bytes=MAX_BYTES)
    except BadJson as error:
        raise malformed("the graph", str(error)) from error
    return _program_from_json(document)


def _program_from_json(document: Any) -> Program:
    values = fields.fields_of(document, "the graph", _PROGRAM)
    symbols = _read_symbols(values["symbols"])
    profiles = _read_profiles(values["profiles"], symbols)
    signature = _read_signature(values["signature"], symbols)
    storages = _read_storages(values["storages"])
    tensors = tuple(
        _read_tensor(item, f"tensor {index}", storages)
        for index, item in enumerate(fields.list_of(values["tensors"], "tensors"))
    )
    engines = tuple(
        _read_engine(item, f"engine {index}") for index, item in enumerate(fields.list_of(values["engines"], "engines"))
    )
    _check_names(tensors, engines)
    known = len(signature.leaves) + len(tensors)
    steps = []
    for index, item in enumerate(fields.list_of(values["steps"], "steps")):
        steps.append(_read_step(item, f"step {index}", known + index, symbols))
    libraries = tuple(fields.text(name, "libraries", 128) for name in fields.list_of(values["libraries"], "libraries"))
    return Program(
        signature=signature,
        symbols=symbols,
        storages=storages,
        tensors=tensors,
        engines=engines,
        steps=tuple(steps),
        output=literals.from_json(values["output"], "the output", known + len(steps)),
        libraries=libraries,
        profiles=profiles,
        torch_version=fields.text(values["torch_version"], "torch_version", 128),
        writer_version=fields.text(values["writer_version"], "writer_version", 128),
    )


# Signature ---------------------------------------------------------------------------------------------------------


def _signature_to_json(signature: Signature) -> dict[str, Any]:
    return {
        "names": list(signature.names),
        "positional": signature.positional,
        "structure": [literals.to_json(tree) for tree in signature.structure],
        "leaves": [_leaf_to_json(leaf) for leaf in signature.leaves],
    }


def _leaf_to_json(leaf: Leaf) -> dict[str, Any]:
    if isinstance(leaf, TensorInput):
        shape = [[dimension.extent, dimension.low, dimension.high] for dimension in leaf.shape]
        return {"tensor": _dtype_name(leaf.dtype), "shape": shape, "device": leaf.device}
    if isinstance(leaf, NumberInput):
        return {"number": leaf.kind.__name__, "symbol": leaf.symbol}
    return {"fixed": literals.to_json(leaf.value)}


def _symbols_to_json(symbols: Mapping[str, Bounds]) -> dict[str, list[int]]:
    return {name: list(bounds) for name, bounds in symbols.items()}


def _read_profiles(value: Any, symbols: Mapping[str, Bounds]) -> tuple[dict[str, Bounds], ...]:
    profiles = tuple(map(_read_symbols, fields.list_of(value, "profiles")))
    if len(profiles) == 1 or any(profile.keys() != symbols.keys() for profile in profiles):
        raise malformed("profiles", "there are none, or several that each give a range to every symbol")
    return profiles


def _read_symbols(value: Any) -> dict[str, Bounds]:
    if not isinstance(value, dict):
        raise malformed("symbols", "an object is needed")
    symbols = {}
    for name, bounds in value.items():
        place = f"symbol {name!r:.60}"
        low, best, high = (fields.integer(bound, place, 0, MAX_EXTENT) for bound in fields.list_of(bounds, place, 3))
        if not low <= best <= high:
            raise malformed(place, f"{[low, best, high]} is no range")
        symbols[name] = (low, best, high)
    return symbols


def _read_signature(value: Any, symbols: Collection[str]) -> Signature:
    values = fields.fields_of(value, "the signature", ("names", "positional", "structure", "leaves"))
    names = tuple(fields.text(name, "the names of inputs") for name in fields.list_of(values["names"], "names"))
    if len(set(names)) != len(names):
        raise malformed("the signature", "two inputs have one name")
    leaves = tuple(
        _read_leaf(leaf, f"input {index}", symbols)
        for index, leaf in enumerate(fields.list_of(values["leaves"], "the inputs"))
    )
    structure = tuple(
        literals.from_json(tree, "the structure of the inputs", len(leaves))
        for tree in fields.list_of(values["structure"], "the structure of the inputs", len(names))
    )
    found = literals.leaves(structure)
    if literals.values_in(structure) != list(range(len(leaves))) or len(found) != len(leaves):
        raise malformed("the structure of the inputs", "it must hold every input once and in order, and nothing else")
    positional = fields.integer(values["positional"], "the signature", 0, len(names))
    return Signature(names, positional, structure, leaves)


def _read_leaf(value: Any, place: str, symbols: Collection[str]) -> Leaf:
    kind = next(iter(value), None) if isinstance(value, dict) else None
    if kind == "fixed":
        content = fields.fields_of(value, place, ("fixed",))["fixed"]
        return FixedInput(literals.from_json(content, place, 0))
    if kind == "number":
        values = fields.fields_of(value, place, ("number", "symbol"))
        if values["symbol"] is not None:
            fields.extent(fields.text(values["symbol"], place), place, symbols)
        return NumberInput(_read_kind(values["number"], place), values["symbol"])
    values = fields.fields_of(value, place, ("tensor", "shape", "device"))
    dimensions = fields.list_of(values["shape"], place)
    if len(dimensions) > fields.MAX_RANK:
        raise malformed(place, f"{len(dimensions)} dimensions are too many")
    shape = tuple(_read_dimension(item, place, symbols) for item in dimensions)
    return TensorInput(fields.dtype(values["tensor"], place), shape, fields.device(values["device"], place))


def _read_dimension(value: Any, place: str, symbols: Collection[str]) -> Dimension:
    extent, low, high = fields.list_of(value, place, 3)
    fields.extent(extent, place, symbols)
    low = fields.integer(low, place, 0, MAX_EXTENT)
    high = fields.integer(high, place, low, MAX_EXTENT)
    if isinstance(extent, int) and not low == extent == high:
        raise malformed(place, f"the extent {extent} has the range {low} to {high}")
    return Dimension(extent, low, high)


def _read_kind(value: Any, place: str) -> type:
    if not isinstance(value, str) or value not in _KINDS:
        raise malformed(place, f"{value!r:.60} is no kind of number")
    return _KINDS[value]


# What it holds -----------------------------------------------------------------------------------------------------


def _tensor_to_json(tensor: StoredTensor) -> dict[str, Any]:
    return {
        "names": list(tensor.names),
        "parameter": tensor.is_parameter,
        "dtype": _dtype_name(tensor.dtype),
        "storage": tensor.storage,
        "offset": tensor.offset,
        "shape": list(tensor.shape),
        "strides": list(tensor.strides),
        "device": tensor.device,
    }


def _read_storages(value: Any) -> tuple[Storage, ...]:
    storages = []
    end = 0
    for index, pair in enumerate(fields.list_of(value, "storages")):
        place = f"storage {index}"
        offset, size = fields.list_of(pair, place, 2)
        offset = fields.integer(offset, place, end, MAX_EXTENT)
        if offset % 64:
            raise malformed(place, "it does not begin at a multiple of 64 bytes")
        storages.append(Storage(offset, fields.integer(size, place, 1, MAX_EXTENT)))
        end = offset + storages[-1].size
    return tuple(storages)


def _read_tensor(value: Any, place: str, storages: tuple[Storage, ...]) -> StoredTensor:
    names = ("names", "parameter", "dtype", "storage", "offset", "shape", "strides", "device")
    values = fields.fields_of(value, place, names)
    dtype = fields.dtype(values["dtype"], place)
    shape = fields.extent_list(values["shape"], place)
    strides = fields.extent_list(values["strides"], place)
    offset = fields.integer(values["offset"], place, 0, MAX_EXTENT)
    if len(shape) != len(strides):
        raise malformed(place, "shape and strides have different lengths")
    elements = 1
    for extent in shape:
        elements *= extent
    if elements > MAX_EXTENT:
        raise malformed(place, f"{elements} elements are too many")
    storage = values["storage"]
    if (storage is None) != (elements == 0):
        raise malformed(place, "exactly tensors without elements have no storage")
    if storage is not None:
        storage = fields.integer(storage, place, 0, len(storages) - 1)
        last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        if (last + 1) * dtype.itemsize > storages[storage].size:
            raise malformed(place, "it reaches beyond its storage")
    return StoredTensor(
        names=tuple(fields.text(name, place) for name in fields.list_of(values["names"], place)),
        is_parameter=fields.flag(values["parameter"], place),
        dtype=dtype,
        storage=storage,
        offset=offset,
        shape=shape,
        strides=strides,
        device=fields.device(values["device"], place),
    )


def _read_engine(value: Any, place: str) -> StoredEngine:
    values = fields.fields_of(value, place, ("name", "section", "header"))
    try:
        header = PlanHeader.from_json(values["header"])
    except PlanError as error:
        raise malformed(place, "; ".join(filter(None, (error.what, error.why)))) from error
    return StoredEngine(
        fields.text(values["name"], place), fields.integer(values["section"], place, 0, 1 << 16), header
    )


def _check_names(tensors: tuple[StoredTensor, ...], engines: tuple[StoredEngine, ...]) -> None:
    """Names of tensors and engines make one tree of modules: no two are equal, and none lies inside of another."""
    names = [name for tensor in tensors for name in tensor.names] + [engine.name for engine in engines]
    taken = set(names)
    if len(taken) != len(names):
        raise malformed("names", "two tensors or engines have one name")
    for name in names:
        parts = name.split(".")
        if not all(part and not part.startswith("__") for part in parts):
            raise malformed("names", f"{name!r:.80} is no name of a tensor or engine")
        if any(".".join(parts[:length]) in taken for length in range(1, len(parts))):
            raise malformed("names", f"{name!r:.80} lies inside of what is no module")


# Steps -------------------------------------------------------------------------------------------------------------


def _step_to_json(step: Step) -> dict[str, Any]:
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


def _read_step(value: Any, place: str, known: int, symbols: Collection[str]) -> Step:
    kind = value.get("do") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _STEPS:
        raise malformed(place, f"{kind!r:.60} is no kind of step")
    names, read = _STEPS[kind]
    step: Step = read(fields.fields_of(value, place, ("do", *names)), place, known, symbols)
    return step


def _read_engine_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> EngineCall:
    inputs = fields.list_of(values["inputs"], place)
    return EngineCall(
        fields.integer(values["engine"], place, 0, 1 << 16),
        tuple(fields.integer(index, place, 0, known - 1) for index in inputs),
    )


def _read_operator_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> OperatorCall:
    kwargs = values["kwargs"]
    if not isinstance(kwargs, dict):
        raise malformed(place, "keyword arguments are an object")
    return OperatorCall(
        name=fields.text(values["name"], place, 300),
        overload=fields.text(values["overload"], place, 300),
        args=tuple(literals.from_json(item, place, known) for item in fields.list_of(values["args"], place)),
        kwargs={name: literals.from_json(item, place, known) for name, item in kwargs.items()},
        result=_read_type(values["result"], place, symbols),
    )


def _read_number_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> NumberCall:
    function = values["function"]
    args = [literals.from_json(item, place, known) for item in fields.list_of(values["args"], place)]
    if not isinstance(function, str) or function not in FUNCTIONS or not fits(function, len(args)):
        raise malformed(place, f"there is no function {function!r:.60} of {len(args)} numbers")
    if not all(isinstance(item, (int, float)) or type(item) is Value for item in args):
        raise malformed(place, "functions of numbers take numbers")
    return NumberCall(function, tuple(args))


def _read_size_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> SizeCall:
    return SizeCall(
        fields.integer(values["tensor"], place, 0, known - 1), fields.integer(values["axis"], place, 0, fields.MAX_RANK)
    )


def _read_item_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> ItemCall:
    return ItemCall(
        fields.integer(values["sequence"], place, 0, known - 1), fields.integer(values["index"], place, 0, 1 << 31)
    )


def _read_write_call(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> WriteCall:
    return WriteCall(
        fields.integer(values["target"], place, 0, known - 1), fields.integer(values["source"], place, 0, known - 1)
    )


_STEPS: Final[dict[str, tuple[tuple[str, ...], Any]]] = {
    "engine": (("engine", "inputs"), _read_engine_call),
    "operator": (("name", "overload", "args", "kwargs", "result"), _read_operator_call),
    "number": (("function", "args"), _read_number_call),
    "size": (("tensor", "axis"), _read_size_call),
    "item": (("sequence", "index"), _read_item_call),
    "write": (("target", "source"), _read_write_call),
}


def _type_to_json(kind: ValueType | None) -> Any:
    if isinstance(kind, TensorType):
        return {"tensor": _dtype_name(kind.dtype), "shape": list(kind.shape)}
    if isinstance(kind, NumberType):
        return kind.kind.__name__
    if isinstance(kind, SequenceType):
        return [_type_to_json(item) for item in kind.items]
    return None


def _read_type(value: Any, place: str, symbols: Collection[str]) -> ValueType | None:
    if value is None:
        return None
    if isinstance(value, str):
        return NumberType(_read_kind(value, place))
    if isinstance(value, list):
        return SequenceType(tuple(_read_type(item, place, symbols) for item in value))
    values = fields.fields_of(value, place, ("tensor", "shape"))
    extents = fields.list_of(values["shape"], place)
    if len(extents) > fields.MAX_RANK:
        raise malformed(place, f"{len(extents)} dimensions are too many")
    shape = tuple(fields.extent(item, place, symbols) for item in extents)
    return TensorType(fields.dtype(values["tensor"], place), shape)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
