"""A program as the JSON of its graph section, and back; reading checks everything that can be checked without running.

`docs/reference/program_format.md` describes the fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from trt_core.errors import PlanError
from trt_core.files import typed
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.sizes.conditions import Condition, Relation
from trt_core.sizes.functions import FUNCTIONS, RELATIONS
from trt_runtime.header import PlanHeader
from trt_runtime.program import fields, literals, tables
from trt_runtime.program.fields import MAX_EXTENT, OWN_METADATA, malformed
from trt_runtime.program.graph import (
    CONTROL_FLOW,
    Body,
    ControlFlowCall,
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

if TYPE_CHECKING:
    from trt_core.sizes.ranges import Bounds
    from trt_runtime.program.held_weights import HeldWeights


MAX_BYTES: Final = 256 << 20
"""Longest graph section that is read."""

MAX_METADATA: Final = 64
"""Most entries of metadata."""

MAX_METADATA_TEXT: Final = 1 << 20
"""Longest value of an entry of metadata."""

MAX_MODULES: Final = 128
"""Most modules inside one another, of which PyTorch visits each by a call inside of a call."""


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
        "signature": signature_to_json(program.signature),
        "storages": [[storage.offset, storage.size] for storage in program.storages],
        "tensors": [_tensor_to_json(tensor) for tensor in program.tensors],
        "engines": [
            {"name": engine.name, "section": engine.section, "header": engine.header.to_json()}
            for engine in program.engines
        ],
        "steps": [step_to_json(step) for step in program.steps],
        "output": literals.to_json(program.output),
        "refit": None if program.refit is None else program.refit.to_json(),
        "metadata": dict(program.metadata),
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def program_from_bytes(data: bytes) -> Program:
    """Reads a program.

    Raises:
        PlanError: The bytes are no program; the message says where it breaks the format.
    """
    try:
        return _program_from_json(parse_json(data, max_bytes=MAX_BYTES))
    except BadJson as error:
        raise malformed("the graph", str(error)) from error
    except typed.BadField as error:
        raise malformed(error.place, error.why) from error


def _program_from_json(document: Any) -> Program:
    values = typed.fields(document, "the graph", tables.PROGRAM)
    symbols = _read_symbols(values["symbols"])
    profiles = _read_profiles(values["profiles"], symbols)
    signature = read_signature(values["signature"], symbols)
    storages = _read_storages(values["storages"])
    tensors = tuple(
        _read_tensor(item, f"tensor {index}", storages)
        for index, item in enumerate(typed.items(values["tensors"], "tensors"))
    )
    engines = tuple(
        _read_engine(item, f"engine {index}") for index, item in enumerate(typed.items(values["engines"], "engines"))
    )
    _check_names(tensors, engines)
    known = len(signature.leaves) + len(tensors)
    steps = tuple(
        read_step(item, f"step {index}", known + index, symbols)
        for index, item in enumerate(typed.items(values["steps"], "steps"))
    )
    return Program(
        signature=signature,
        symbols=symbols,
        storages=storages,
        tensors=tensors,
        engines=engines,
        steps=steps,
        output=literals.from_json(values["output"], "the output", known + len(steps)),
        libraries=typed.texts(values["libraries"], "libraries", 128),
        profiles=profiles,
        torch_version=typed.text(values["torch_version"], "torch_version", 128),
        writer_version=typed.text(values["writer_version"], "writer_version", 128),
        refit=_read_refit(values["refit"], tensors),
        metadata=_read_metadata(values["metadata"]),
    )


def _symbols_to_json(symbols: Mapping[str, Bounds]) -> dict[str, list[int]]:
    return {name: list(bounds) for name, bounds in symbols.items()}


def _read_profiles(value: Any, symbols: Mapping[str, Bounds]) -> tuple[dict[str, Bounds], ...]:
    profiles = tuple(map(_read_symbols, typed.items(value, "profiles")))
    if len(profiles) == 1 or any(profile.keys() != symbols.keys() for profile in profiles):
        raise malformed("profiles", "there are none, or several that each give a range to every symbol")
    return profiles


def _read_symbols(value: Any) -> dict[str, Bounds]:
    symbols = {}
    for name, bounds in typed.mapping(value, "symbols").items():
        place = f"symbol {name!r:.60}"
        low, best, high = (typed.integer(bound, place, 0, MAX_EXTENT) for bound in typed.items(bounds, place, 3))
        if not low <= best <= high:
            raise malformed(place, f"{[low, best, high]} is no range")
        symbols[name] = (low, best, high)
    return symbols


def _tensor_to_json(tensor: StoredTensor) -> dict[str, Any]:
    return {
        "names": list(tensor.names),
        "parameter": tensor.is_parameter,
        "dtype": fields.dtype_text(tensor.dtype),
        "storage": tensor.storage,
        "offset": tensor.offset,
        "shape": list(tensor.shape),
        "strides": list(tensor.strides),
        "device": tensor.device,
    }


def _read_storages(value: Any) -> tuple[Storage, ...]:
    storages = []
    end = 0
    for index, pair in enumerate(typed.items(value, "storages")):
        place = f"storage {index}"
        offset, size = typed.items(pair, place, 2)
        offset = typed.integer(offset, place, end, MAX_EXTENT)
        if offset % 64:
            raise malformed(place, "it does not begin at a multiple of 64 bytes")
        storages.append(Storage(offset, typed.integer(size, place, 1, MAX_EXTENT)))
        end = offset + storages[-1].size
    return tuple(storages)


def _read_tensor(value: Any, place: str, storages: tuple[Storage, ...]) -> StoredTensor:
    values = typed.fields(value, place, tables.TENSOR)
    dtype = fields.dtype(values["dtype"], place)
    shape = fields.extent_list(values["shape"], place)
    strides = fields.extent_list(values["strides"], place)
    offset = typed.integer(values["offset"], place, 0, MAX_EXTENT)
    if len(shape) != len(strides):
        raise malformed(place, "shape and strides have different lengths")
    counted = math.prod(max(extent, 1) for extent in shape)  # PyTorch multiplies in order, zeros or not
    if counted > MAX_EXTENT:
        raise malformed(place, f"{counted} elements are too many")
    elements = 0 if 0 in shape else counted
    storage = values["storage"]
    if (storage is None) != (elements == 0):
        raise malformed(place, "exactly tensors without elements have no storage")
    if storage is not None:
        storage = typed.integer(storage, place, 0, len(storages) - 1)
        last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        if (last + 1) * dtype.itemsize > storages[storage].size:
            raise malformed(place, "it reaches beyond its storage")
    return StoredTensor(
        names=typed.texts(values["names"], place, fields.MAX_TEXT),
        is_parameter=typed.flag(values["parameter"], place),
        dtype=dtype,
        storage=storage,
        offset=offset,
        shape=shape,
        strides=strides,
        device=fields.device(values["device"], place),
    )


def _read_engine(value: Any, place: str) -> StoredEngine:
    values = typed.fields(value, place, tables.ENGINE)
    try:
        header = PlanHeader.from_json(values["header"])
    except PlanError as error:  # of another version, perhaps, of which the error knows what to do
        raise PlanError(error.what, where=place, why=error.why, hint=error.hint) from error
    return StoredEngine(
        typed.text(values["name"], place, fields.MAX_TEXT), typed.integer(values["section"], place, 0, 1 << 16), header
    )


def _read_refit(value: Any, tensors: tuple[StoredTensor, ...]) -> HeldWeights | None:
    if value is None:
        return None
    from trt_runtime.program.held_weights import read_held_weights  # only programs that can be refitted need it

    return read_held_weights(value, tensors)


def _read_metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value.keys() - OWN_METADATA) > MAX_METADATA:
        raise malformed("metadata", f"an object of at most {MAX_METADATA} entries is needed")
    return {
        typed.text(name, "metadata", 128): typed.text(text, "metadata", MAX_METADATA_TEXT)
        for name, text in value.items()
    }


def _check_names(tensors: tuple[StoredTensor, ...], engines: tuple[StoredEngine, ...]) -> None:
    """Names of tensors and engines make one tree of modules: no two are equal, and none lies inside of another."""
    names = [name for tensor in tensors for name in tensor.names] + [engine.name for engine in engines]
    taken = set(names)
    if len(taken) != len(names):
        raise malformed("names", "two tensors or engines have one name")
    for name in names:
        parts = name.split(".")
        if not all(map(fields.is_path_part, parts)):
            raise malformed("names", f"{name!r:.80} is no name of a tensor or engine")
        if len(parts) > MAX_MODULES:
            raise malformed("names", f"{name!r:.80} lies in more than {MAX_MODULES} modules")
        if any(".".join(parts[:length]) in taken for length in range(1, len(parts))):
            raise malformed("names", f"{name!r:.80} lies inside of what is no module")


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """How a program is called, as JSON."""
    return {
        "names": list(signature.names),
        "positional": signature.positional,
        "structure": [literals.to_json(tree) for tree in signature.structure],
        "leaves": [_leaf_to_json(leaf) for leaf in signature.leaves],
        "conditions": [
            [[relation.left, relation.name, relation.right] for relation in condition]
            for condition in signature.conditions
        ],
    }


def _leaf_to_json(leaf: Leaf) -> dict[str, Any]:
    if isinstance(leaf, TensorInput):
        shape = [[dimension.extent, dimension.low, dimension.high] for dimension in leaf.shape]
        return {"tensor": fields.dtype_text(leaf.dtype), "shape": shape, "device": leaf.device}
    if isinstance(leaf, NumberInput):
        return {"number": leaf.kind.__name__, "symbol": leaf.symbol}
    return {"fixed": literals.to_json(leaf.value)}


def read_signature(value: Any, symbols: Collection[str]) -> Signature:
    """Reads how a program is called; it may name only these symbols.

    Raises:
        PlanError: It is no signature.
    """
    values = typed.fields(value, "the signature", tables.SIGNATURE)
    names = typed.texts(values["names"], "the names of inputs", fields.MAX_TEXT)
    if len(set(names)) != len(names):
        raise malformed("the signature", "two inputs have one name")
    for name in names:
        if not fields.is_input_name(name):
            raise malformed("the signature", f"{name!r:.80} is no name of an input")
    leaves = tuple(
        _read_leaf(leaf, f"input {index}", symbols)
        for index, leaf in enumerate(typed.items(values["leaves"], "the inputs"))
    )
    structure = tuple(
        literals.from_json(tree, "the structure of the inputs", len(leaves))
        for tree in typed.items(values["structure"], "the structure of the inputs", len(names))
    )
    found = literals.leaves(structure)
    if literals.values_in(structure) != list(range(len(leaves))) or len(found) != len(leaves):
        raise malformed("the structure of the inputs", "it must hold every input once and in order, and nothing else")
    positional = typed.integer(values["positional"], "the signature", 0, len(names))
    conditions = tuple(
        _read_condition(item, f"condition {index}", symbols)
        for index, item in enumerate(typed.items(values["conditions"], "the conditions"))
    )
    return Signature(names, positional, structure, leaves, conditions)


def _read_condition(value: Any, place: str, symbols: Collection[str]) -> Condition:
    relations = typed.items(value, place)
    if not relations:
        raise malformed(place, "it has no relation, so nothing would fit it")
    return tuple(_read_relation(item, place, symbols) for item in relations)


def _read_relation(value: Any, place: str, symbols: Collection[str]) -> Relation:
    left, name, right = typed.items(value, place, 3)
    for side in (left, right):
        if fields.extent(side, place, symbols, is_whole=False) is None:
            raise malformed(place, "it compares a size that depends on data")
    if typed.text(name, place, 8) not in RELATIONS:
        raise malformed(place, f"{name!r:.60} is no relation")
    return Relation(left, name, right)


def _read_leaf(value: Any, place: str, symbols: Collection[str]) -> Leaf:
    kind = next(iter(value), None) if isinstance(value, dict) else None
    if kind == "fixed":
        content = typed.fields(value, place, tables.FIXED_INPUT)["fixed"]
        return FixedInput(literals.from_json(content, place, 0))
    if kind == "number":
        values = typed.fields(value, place, tables.NUMBER_INPUT)
        if values["symbol"] is not None:
            fields.extent(typed.text(values["symbol"], place, fields.MAX_TEXT), place, symbols)
        return NumberInput(fields.number_kind(values["number"], place), values["symbol"])
    values = typed.fields(value, place, tables.TENSOR_INPUT)
    dimensions = typed.items(values["shape"], place)
    if len(dimensions) > fields.MAX_RANK:
        raise malformed(place, f"{len(dimensions)} dimensions are too many")
    shape = tuple(_read_dimension(item, place, symbols) for item in dimensions)
    return TensorInput(fields.dtype(values["tensor"], place), shape, fields.device(values["device"], place))


def _read_dimension(value: Any, place: str, symbols: Collection[str]) -> Dimension:
    extent, low, high = typed.items(value, place, 3)
    fields.extent(extent, place, symbols)
    low = typed.integer(low, place, 0, MAX_EXTENT)
    high = typed.integer(high, place, low, MAX_EXTENT)
    if isinstance(extent, int) and not low == extent == high:
        raise malformed(place, f"the extent {extent} has the range {low} to {high}")
    return Dimension(extent, low, high)


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
    if isinstance(step, ControlFlowCall):
        return {
            "do": "control_flow",
            "operator": step.operator,
            "bodies": [_body_to_json(body) for body in step.bodies],
            "operands": [[literals.to_json(value) for value in values] for values in step.operands],
            "result": _type_to_json(step.result),
        }
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


def _body_to_json(body: Body) -> dict[str, Any]:
    return {
        "inputs": [_type_to_json(kind) for kind in body.inputs],
        "steps": [step_to_json(step) for step in body.steps],
        "output": [literals.to_json(value) for value in body.output],
    }


def _read_control_flow(values: Mapping[str, Any], place: str, known: int, symbols: Collection[str]) -> ControlFlowCall:
    name = values["operator"]
    lists = typed.choice(CONTROL_FLOW, name, place, "branch or loop")
    operands = tuple(
        _read_operands(items, place, known) for items in typed.items(values["operands"], place, len(lists))
    )
    count = 2 if name in ("cond", "while_loop") else 1
    bodies = tuple(
        _read_body(item, f"{place}, body {number}", symbols)
        for number, item in enumerate(typed.items(values["bodies"], place, count))
    )
    result = _read_type(values["result"], place, symbols)
    given = sum(len(items) for kind, items in zip(lists, operands, strict=True) if kind != "predicate")
    carried = sum(len(items) for kind, items in zip(lists, operands, strict=True) if kind == "carried")
    if any(len(body.inputs) != given for body in bodies):
        raise malformed(place, f"its bodies do not take the {given} operands that it has")
    if name == "cond" and len(operands[0]) != 1:
        raise malformed(place, "it needs one predicate")
    if "sequence" in lists and not operands[lists.index("sequence")]:
        raise malformed(place, "it has no sequence")
    if name == "while_loop" and (len(bodies[0].output) != 1 or len(bodies[1].output) != carried):
        raise malformed(place, "its bodies do not return a condition and what is carried")
    makes = bodies[1:] if name == "while_loop" else bodies
    if not isinstance(result, SequenceType) or any(len(body.output) != len(result.items) for body in makes):
        raise malformed(place, "its bodies do not return what it makes")
    if carried > len(result.items) or None in result.items:
        raise malformed(place, "it does not make what is carried")
    return ControlFlowCall(name, bodies, operands, result)


def _read_operands(value: Any, place: str, known: int) -> tuple[Any, ...]:
    operands = tuple(literals.from_json(item, place, known) for item in typed.items(value, place))
    if not all(isinstance(item, (int, float)) or type(item) is Value for item in operands):
        raise malformed(place, "branches and loops take and return values and numbers")
    return operands


def _read_body(value: Any, place: str, symbols: Collection[str]) -> Body:
    values = typed.fields(value, place, tables.BODY)
    inputs = []
    for item in typed.items(values["inputs"], place):
        kind = _read_type(item, place, symbols)
        if kind is None or isinstance(kind, SequenceType):
            raise malformed(place, "it takes tensors and numbers")
        inputs.append(kind)
    steps: list[Step] = []
    for index, item in enumerate(typed.items(values["steps"], place)):
        step = read_step(item, f"{place}, step {index}", len(inputs) + len(steps), symbols)
        if isinstance(step, EngineCall | WriteCall):
            raise malformed(place, "bodies call no engines, and write nothing")
        steps.append(step)
    return Body(tuple(inputs), tuple(steps), _read_operands(values["output"], place, len(inputs) + len(steps)))


_STEPS: Final[dict[str, Any]] = {
    "engine": _read_engine_call,
    "operator": _read_operator_call,
    "number": _read_number_call,
    "size": _read_size_call,
    "item": _read_item_call,
    "write": _read_write_call,
    "control_flow": _read_control_flow,
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
