"""A program as the JSON of its graph section, and back; reading checks everything that can be checked without running.

`docs/reference/program_format.md` describes the fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from typing import Any, Final

from trt_core.files import records, typed
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.nesting import reach_of
from trt_core.sizes.conditions import check_condition
from trt_core.sizes.expressions import read_extent
from trt_core.sizes.functions import FUNCTIONS
from trt_runtime.bindings import MAX_RANK
from trt_runtime.program import fields, literals
from trt_runtime.program.fields import MAX_EXTENT, OWN_METADATA, malformed
from trt_runtime.program.graph import (
    CONTROL_FLOW,
    Body,
    ControlFlowCall,
    EngineCall,
    FixedInput,
    Leaf,
    NumberCall,
    NumberInput,
    OperatorCall,
    Program,
    SequenceType,
    Signature,
    Step,
    Storage,
    StoredEngine,
    StoredTensor,
    TensorType,
    ValueType,
    WriteCall,
    values_read,
)
from trt_runtime.program.literals import Value

MAX_BYTES: Final = 256 << 20
"""Longest graph section that is read."""

MAX_METADATA: Final = 64
"""Most entries of metadata."""

MAX_METADATA_TEXT: Final = 1 << 20
"""Longest value of an entry of metadata."""

MAX_PLACES: Final = 1 << 24
"""Most characters of the places of all inputs, or of all results, as messages and tools write them."""

MAX_MODULES: Final = 128
"""Most modules inside one another, of which PyTorch visits each by a call inside of a call."""

MAX_TREE: Final = 1 << 17
"""Most modules that names lie inside of, each of which takes more than two kilobytes."""


def program_to_bytes(program: Program) -> bytes:
    """Writes a program.

    Raises:
        ValueError: The program holds something that has no form in the format.
    """
    return json.dumps(records.write(program), separators=(",", ":"), allow_nan=False).encode()


def program_from_bytes(data: bytes) -> Program:
    """Reads a program.

    Raises:
        PlanError: It is no program.
    """
    try:
        program = records.read(Program, parse_json(data, max_bytes=MAX_BYTES), "the graph")
        _check(program)
        return program
    except BadJson as error:
        raise malformed("the graph", str(error)) from error
    except typed.BadField as error:
        raise malformed(error.place, error.why) from error


def _check(program: Program) -> None:
    """Sees whether the parts of a program make sense together."""
    symbols = program.symbols
    for ranges in (symbols, *program.profiles):
        for name, (low, best, high) in ranges.items():
            if not low <= best <= high <= MAX_EXTENT:
                raise malformed(f"symbol {name!r:.60}", f"{[low, best, high]} is no range")
    if len(program.profiles) == 1 or any(profile.keys() != symbols.keys() for profile in program.profiles):
        raise malformed("profiles", "there are none, or several that each give a range to every symbol")
    check_signature(program.signature, symbols)
    _check_storages(program.storages)
    for index, tensor in enumerate(program.tensors):
        _check_tensor(tensor, f"tensor {index}", program.storages)
    _check_names(program.tensors, program.engines)
    known = program.first_result
    for index, step in enumerate(program.steps):
        check_step(step, f"step {index}", known + index, symbols)
    _check_known(literals.values_in(program.output), "the output", known + len(program.steps))
    _require_short_places([program.output], "the output")
    if program.refit is not None:
        program.refit.check(program.tensors)
    if len(program.metadata.keys() - OWN_METADATA) > MAX_METADATA:
        raise malformed("metadata", f"an object of at most {MAX_METADATA} entries is needed")


def _check_known(values: Sequence[int], place: str, known: int) -> None:
    if values and max(values) >= known:
        raise malformed(place, f"it names a value {max(values)}, of {known}")


def _check_storages(storages: Sequence[Storage]) -> None:
    end = 0
    for index, storage in enumerate(storages):
        if storage.offset < end or storage.offset % 64:
            raise malformed(f"storage {index}", f"it does not begin at a multiple of 64 bytes from {end} on")
        end = storage.offset + storage.size


def _check_tensor(tensor: StoredTensor, place: str, storages: Sequence[Storage]) -> None:
    shape, strides, storage = tensor.shape, tensor.strides, tensor.storage
    if len(shape) != len(strides):
        raise malformed(place, "shape and strides have different lengths")
    counted = math.prod(max(extent, 1) for extent in shape)  # PyTorch multiplies in order, zeros or not
    if counted > MAX_EXTENT:
        raise malformed(place, f"{counted} elements are too many")
    if (storage is None) != (0 in shape):
        raise malformed(place, "exactly tensors without elements have no storage")
    if storage is not None:
        typed.integer(storage, place, 0, len(storages) - 1)
        if (tensor.offset + reach_of(shape, strides)) * tensor.dtype.itemsize > storages[storage].size:
            raise malformed(place, "it reaches beyond its storage")


def _check_names(tensors: Sequence[StoredTensor], engines: Sequence[StoredEngine]) -> None:
    names = [name for tensor in tensors for name in tensor.names] + [engine.name for engine in engines]
    for name in names:
        if not all(map(fields.is_path_part, name.split("."))):
            raise malformed("names", f"{name!r:.80} is no name of a tensor or engine")
    check_tree(names)


def check_tree(names: Sequence[str]) -> None:
    """Sees whether dotted names make one tree of modules: no two are equal, and none lies inside of another.

    Raises:
        PlanError: They do not, or of more modules than can be made.
    """
    taken = set(names)
    if len(taken) != len(names):
        raise malformed("names", "two tensors or engines have one name")
    modules: set[str] = set()
    for name in names:
        parts = name.split(".")
        if len(parts) > MAX_MODULES:
            raise malformed("names", f"{name!r:.80} lies in more than {MAX_MODULES} modules")
        around = [".".join(parts[:length]) for length in range(1, len(parts))]
        if not all(parts) or not taken.isdisjoint(around):
            raise malformed("names", f"{name!r:.80} lies inside of what is no module")
        modules.update(around)
        if len(modules) > MAX_TREE:
            raise malformed("names", f"they lie inside of more than {MAX_TREE} modules")


def check_signature(signature: Signature, symbols: Collection[str]) -> None:
    """Sees whether what a program takes makes sense, and names only these symbols.

    Raises:
        BadField, PlanError: It does not.
    """
    names, leaves = signature.names, signature.leaves
    if len(set(names)) != len(names):
        raise malformed("the signature", "two inputs have one name")
    for name in names:
        if not fields.is_input_name(name):
            raise malformed("the signature", f"{name!r:.80} is no name of an input")
    for index, leaf in enumerate(leaves):
        _check_leaf(leaf, f"input {index}", symbols)
    _require_short_places(dict(zip(names, signature.structure, strict=False)), "the structure of the inputs")
    found = literals.leaves(signature.structure)
    numbers = literals.values_in(signature.structure)
    if len(signature.structure) != len(names) or numbers != list(range(len(leaves))) or len(found) != len(leaves):
        raise malformed("the structure of the inputs", "it must hold every input once and in order, and nothing else")
    typed.integer(signature.positional, "the signature", 0, len(names))
    for index, condition in enumerate(signature.conditions):
        check_condition(condition, f"condition {index}", symbols)


def _require_short_places(tree: Any, place: str) -> None:
    """Long keys around many leaves take far more memory to write than the file has."""
    count = literals.characters_of_places(tree)
    if count > MAX_PLACES:
        raise malformed(place, f"it takes {count} characters to say where its parts lie")


def _check_leaf(leaf: Leaf, place: str, symbols: Collection[str]) -> None:
    if isinstance(leaf, FixedInput):
        _check_known(literals.values_in(leaf.value), place, 0)
    elif isinstance(leaf, NumberInput):
        read_extent(leaf.symbol, place, symbols)
    else:
        _check_rank(leaf.shape, place)
        if leaf.strides is not None and len(leaf.strides) != len(leaf.shape):
            raise malformed(place, "shape and strides have different lengths")
        for stride in leaf.strides or ():
            read_extent(stride, place, symbols)
        for item in leaf.shape:
            read_extent(item.extent, place, symbols)
            if item.low > item.high or (isinstance(item.extent, int) and not item.low == item.extent == item.high):
                raise malformed(place, f"the extent {item.extent} has the range {item.low} to {item.high}")


def _check_rank(shape: Sequence[Any], place: str) -> None:
    if len(shape) > MAX_RANK:
        raise malformed(place, f"{len(shape)} dimensions are too many")


def check_step(step: Step, place: str, known: int, symbols: Collection[str]) -> None:
    """Sees whether a step makes sense.

    Args:
        step: What was read.
        place: Where it stands, for messages.
        known: How many values there are before it; only these may be named.
        symbols: The symbols that extents may name.

    Raises:
        BadField, PlanError: It does not.
    """
    _check_known(values_read(step), place, known)
    if isinstance(step, OperatorCall):
        _check_type(step.result, place, symbols)
    elif isinstance(step, NumberCall):
        if step.function not in FUNCTIONS or not FUNCTIONS[step.function].takes(len(step.args)):
            raise malformed(place, f"there is no function {step.function!r:.60} of {len(step.args)} numbers")
        _check_operands(step.args, place)
    elif isinstance(step, ControlFlowCall):
        _check_control_flow(step, place, symbols)


def _check_operands(operands: Sequence[Any], place: str) -> None:
    if not all(isinstance(item, (int, float)) or type(item) is Value for item in operands):
        raise malformed(place, "functions of numbers, branches and loops take and return values and numbers")


def _check_control_flow(step: ControlFlowCall, place: str, symbols: Collection[str]) -> None:
    name, bodies, operands, result = step.operator, step.bodies, step.operands, step.result
    lists = typed.choice(CONTROL_FLOW, name, place, "branch or loop")
    count = 2 if name in ("cond", "while_loop") else 1
    for what, wanted in ((operands, len(lists)), (bodies, count)):
        if len(what) != wanted:
            raise malformed(place, f"a list of {wanted} is needed, not of {len(what)}")
    for items in operands:
        _check_operands(items, place)
    for number, body in enumerate(bodies):
        _check_body(body, f"{place}, body {number}", symbols)
    _check_type(result, place, symbols)
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


def _check_body(body: Body, place: str, symbols: Collection[str]) -> None:
    for kind in body.inputs:
        if kind is None or isinstance(kind, SequenceType):
            raise malformed(place, "it takes tensors and numbers")
        _check_type(kind, place, symbols)
    for index, step in enumerate(body.steps):
        if isinstance(step, EngineCall | WriteCall):
            raise malformed(place, "bodies call no engines, and write nothing")
        check_step(step, f"{place}, step {index}", len(body.inputs) + index, symbols)
    _check_operands(body.output, place)
    _check_known(literals.values_in(body.output), place, len(body.inputs) + len(body.steps))


def _check_type(kind: ValueType | None, place: str, symbols: Collection[str]) -> None:
    if isinstance(kind, SequenceType):
        for item in kind.items:
            _check_type(item, place, symbols)
    elif isinstance(kind, TensorType):
        _check_rank(kind.shape, place)
        for extent in kind.shape:
            read_extent(extent, place, symbols)
