"""Files of dataclasses whose fields say what nobody would write: every field of every record, one after the other.

`variants` walks a class of `trt_core.files.records` and what a file has of it, and yields other contents of each field
by its type: bounds of numbers, other members, nothing, everything twice, backwards, what stands elsewhere, another
record in its place. `programs` and `plans` seal them again; `several` makes a few changes at once.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import json
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import fuzzing
import hostile_files
import plan_fuzzer
import torch
from guarded_memory import guarded
from hostile_files import Act
from program_files import ProgramFile

import trt_portable as trt
from trt_core import Input, TrtError
from trt_core.files.records import Row
from trt_core.internals import pytree
from trt_portable.network.serialization import TensorEntry, leaf_entries
from trt_portable.plan.engine_info import EngineInfo
from trt_portable.plan.plan_file import Plan, read_plan, write_plan
from trt_runtime import PlanHeader, refit_module, save
from trt_runtime.bindings import Binding
from trt_runtime.command_line.commands import example_call
from trt_runtime.command_line.inspection import inspect_file, to_text
from trt_runtime.diffusion import _Manifest, _read_manifest
from trt_runtime.engine_cache import EngineCache, EngineKey
from trt_runtime.engine_file import PLAN
from trt_runtime.engine_file import SectionKind as PlanSection
from trt_runtime.engine_file import read_plan as read_engine
from trt_runtime.header import CachePlace
from trt_runtime.program.fields import FACTS
from trt_runtime.program.graph import Program
from trt_runtime.program.interface import TensorSpec
from trt_runtime.program.loading import program_from_memory
from trt_runtime.program.model_facts import ModelFacts

if TYPE_CHECKING:
    from trt_partition import PartitionReport  # trt-runtime's own tests go without it

Change = tuple[str, Any]
"""What is changed, and what stands there then."""

_SEVERAL: Final = 1000
"""Programs of each kind with some changes at once."""
_PART: Final = 8
"""One of how many changes of programs, plans and cached engines is tried: there are 210,000."""

INTEGERS: Final = (
    -(2**63),
    -1,
    0,
    1,
    2,
    3,
    7,
    64,
    65,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**48,
    2**48 + 1,
    2**63 - 1,
    2**64,
)
FLOATS: Final = (0.0, -1.0, 5e-324, -1e308, 1e308)
TEXTS: Final = (
    "",
    "x",
    "__class__",
    "a" * 5000,
    "\x1b[2J\u202e\n",
    "\ud800",
    "..",
    "/etc/passwd",
    "s0",
    "0",
    "-1",
    "aten::relu",
    "nan",
)
OTHERS: Final = (None, True, [], {}, 0, 0.5, "x", [[]], {"value": 0}, {"float": "nan"}, {"dict": [[0, 1]]})


def variants(kind: Any, value: Any, place: str = "", texts: Sequence[str] = TEXTS) -> Iterator[Change]:
    """Other contents of a field.

    Args:
        kind: Its type: what annotates a field of a record, or a record.
        value: What a file has there, as JSON.
        place: What it is called.
        texts: What stands in the place of texts.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        yield from _of_record(kind, value, place, texts)
    elif origin is Annotated or kind is Any:
        yield from of_value(value, place, texts)
    elif origin is tuple:
        yield from _of_list(parts[0], value, place, texts) if parts[-1] is ... else _of_each(parts, value, place, texts)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        yield from _of_mapping(parts, value, place, texts)
    elif type(None) in parts:
        yield from _of_choice(parts, value, place, texts)
    elif parts and all(is_dataclass(part) for part in parts):
        yield from _of_union(parts, value, place, texts)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from ((f"{place} is {member}", member) for member in (*kind.__members__, "nope") if member != value)
    else:
        yield from of_value(value, place, texts)


def of_value(value: Any, place: str, texts: Sequence[str] = TEXTS) -> Iterator[Change]:
    """Other contents of a field of which nothing but what it holds is known."""
    if isinstance(value, bool):
        yield f"{place} is {not value}", not value
    elif isinstance(value, int):
        yield from ((f"{place} is {one}", one) for one in (*INTEGERS, value - 1, value + 1) if one != value)
    elif isinstance(value, float):
        yield from ((f"{place} is {one}", one) for one in FLOATS if one != value)
    elif isinstance(value, str):
        yield from ((f"{place} is {one!r:.30}", one) for one in texts if one != value)
    elif isinstance(value, list):
        yield from _of_list(Any, value, place, texts)
    elif isinstance(value, dict):
        yield from _of_mapping((str, Any), value, place, texts)
    yield from ((f"{place} is {one!r:.30} instead", one) for one in OTHERS if one != value)


def _of_record(kind: type, value: Any, place: str, texts: Sequence[str]) -> Iterator[Change]:
    hints = get_type_hints(kind, include_extras=True)
    for at, field in enumerate(fields(kind)):
        key = at if issubclass(kind, Row) else field.metadata.get("key", field.name)
        if isinstance(value, dict) and key not in value:
            continue
        for name, other in variants(
            hints[field.name], value[key], f"{place}, {field.name}" if place else field.name, texts
        ):
            changed = copy.copy(value)
            changed[key] = other
            yield name, changed


def _of_list(item: Any, value: list[Any], place: str, texts: Sequence[str]) -> Iterator[Change]:
    if value:
        yield f"{place} without the last", value[:-1]
        yield f"{place} without the first", value[1:]
        yield f"{place} twice", value + copy.deepcopy(value)
        yield f"{place} backwards", value[::-1]
        yield f"{place} is empty", []
    for at, one in enumerate(value):
        for name, other in variants(item, one, f"{place} {at}", texts):
            yield name, [*value[:at], other, *value[at + 1 :]]
        if at and one != value[0]:
            yield f"{place} {at} is the first", [*value[:at], value[0], *value[at + 1 :]]
        if at + 1 < len(value) and one != value[-1]:
            yield f"{place} {at} is the last", [*value[:at], value[-1], *value[at + 1 :]]


def _of_each(kinds: tuple[Any, ...], value: list[Any], place: str, texts: Sequence[str]) -> Iterator[Change]:
    for at, kind in enumerate(kinds):
        for name, other in variants(kind, value[at], f"{place} {at}", texts):
            yield name, [*value[:at], other, *value[at + 1 :]]


def _of_mapping(kinds: tuple[Any, ...], value: Any, place: str, texts: Sequence[str]) -> Iterator[Change]:
    if isinstance(value, list):  # of pairs
        yield from _of_list(tuple[kinds], value, place, texts)  # type: ignore[valid-type]
        return
    yield f"{place} is empty", {}
    for key in value:
        rest = {name: one for name, one in value.items() if name != key}
        yield f"{place} without {key!r:.30}", rest
        yield from ((f"{place}, {key!r:.30} is called {name!r:.30}", {**rest, name: value[key]}) for name in texts)
        for name, other in variants(kinds[1], value[key], f"{place} {key!r:.30}", texts):
            yield name, {**value, key: other}
        for name in value:
            if value[name] != value[key]:
                yield f"{place} {key!r:.30} is {name!r:.30}", {**value, key: value[name]}


def _of_choice(parts: tuple[Any, ...], value: Any, place: str, texts: Sequence[str]) -> Iterator[Change]:
    rest = tuple(part for part in parts if part is not type(None))
    if value is None:
        others = [*OTHERS[1:], *(texts if str in rest else INTEGERS if int in rest else ())]
        yield from ((f"{place} is {one!r:.30}", one) for one in others)
        return
    yield f"{place} is nothing", None
    yield from variants(rest[0] if len(rest) == 1 else Union[rest], value, place, texts)  # noqa: UP007 (it is made here)


def _of_union(kinds: tuple[Any, ...], value: Any, place: str, texts: Sequence[str]) -> Iterator[Change]:
    for kind in kinds:
        key, content = getattr(kind, "TAG", (None, None))
        names = {field.metadata.get("key", field.name) for field in fields(kind)}
        if (key is None or value.get(key) == content) and names <= value.keys():
            yield from _of_record(kind, value, place, texts)
            return


def several(changes: Callable[[Any], Iterable[Change]], tree: Any, chance: random.Random) -> Change:
    """Two or three changes, one after the other."""
    names = []
    for _ in range(chance.choice((2, 2, 3))):
        try:
            name, tree = _one_of(changes(tree), chance)
            tree = tree() if callable(tree) else tree
        except (TypeError, KeyError, IndexError, AttributeError):  # what was changed is no record any more
            break
        names.append(name)
    return "; ".join(names), tree


def _one_of(changes: Iterable[Change], chance: random.Random) -> Change:
    """Any of some ten thousand changes, none of which is kept beside it: each is a tree.

    Raises:
        IndexError: There are none.
    """
    chosen = None
    for at, change in enumerate(changes):
        if chance.random() * (at + 1) < 1:
            chosen = change
    if chosen is None:
        raise IndexError("there is nothing to change")
    return chosen


# Programs -----------------------------------------------------------------------------------------------------------

_ROW: Final = hostile_files.tensor_type(torch.float32, 4)
_MOST_ELEMENTS: Final = 1 << 22


@functools.cache
def _compiled() -> tuple[ProgramFile, tuple[Any, ...]]:
    """An engine, operators, conditions, numbers, weights that can be replaced and a buffer that is written to."""
    return fuzzing.sample_program(hostile_files.folder())


def _branches() -> tuple[ProgramFile, tuple[Any, ...]]:
    """A branch, a loop, items of a split, a number of a size, a view and an input that is written to."""
    value, operator, item = hostile_files.value, hostile_files.operator, {"do": "item", "sequence": 2, "index": 0}
    rows = hostile_files.tensor_type(torch.float32, "s0_0", 4)
    body = {"inputs": [_ROW], "steps": [operator("relu", [value(0)], _ROW)], "output": [value(1)]}
    turn = {"inputs": ["int", _ROW], "steps": [{"do": "number", "function": "add", "args": [value(0), 1]}]}
    until = {"inputs": ["int", _ROW], "steps": [{"do": "number", "function": "lt", "args": [value(0), 3]}]}
    steps = [
        {
            "do": "control_flow",
            "operator": "cond",
            "bodies": [body, copy.deepcopy(body)],
            "operands": [[True], [value(1)]],
            "result": [_ROW],
        },
        item,
        {
            "do": "control_flow",
            "operator": "while_loop",
            "bodies": [{**until, "output": [value(2)]}, {**turn, "output": [value(2), value(1)]}],
            "operands": [[0, value(3)], []],
            "result": ["int", _ROW],
        },
        {"do": "item", "sequence": 4, "index": 1},
        operator("add.Tensor", [value(0), value(5)], rows),
        operator("split.Tensor", [value(6), 2, 1], [hostile_files.tensor_type(torch.float32, "s0_0", 2)] * 2),
        {"do": "item", "sequence": 7, "index": 1},
        {"do": "size", "tensor": 0, "axis": 0},
        operator("expand", [value(1), [value(9), 4]], rows),
        {"do": "write", "target": 0, "source": 6},
    ]
    output = {"dict": [["pieces", {"tuple": [value(8), value(9), None]}], ["rows", [value(10), value(0)]]]}
    parts = hostile_files.program([(torch.float32, (-6, 4))], steps, output, {"held.w": torch.ones(4)})
    return parts, (torch.ones(2, 4),)


@functools.cache
def _engines() -> tuple[ProgramFile, tuple[Any, ...]]:
    """An engine that writes to a cache at a place that is given, and one whose rows vary."""
    from trt_core.provider import set_provider

    set_provider("portable")
    plans = [torch.frombuffer(bytearray(plan_fuzzer.FORGED[name]()), dtype=torch.uint8) for name in ("cache", "linear")]
    f32 = torch.float32
    cache, fresh = Binding("c", f32, (2, 3, 8, 4)), Binding("f", f32, (2, 3, 2, 4))
    start = Binding("s", torch.int32, (2,))
    names = [_outputs(plan) for plan in plans]
    headers = [
        PlanHeader.describe(
            plans[0],
            inputs=[cache, fresh, start],
            outputs=[],
            device="cpu",
            updates=[(0, names[0][0])],
            places=[CachePlace(0, 2, 0, 2, False)],
            returns_tuple=True,
        ),
        PlanHeader.describe(
            plans[1],
            inputs=[Binding("x", f32, ("rows", 16))],
            outputs=[Binding(names[1][0], f32, ("rows", 8))],
            device="cpu",
            ranges=[((1, 4, 6), (16, 16, 16))],
            symbols={"rows": (0, 0)},
        ),
    ]
    tensor = hostile_files.tensor_type
    given = [(f32, (2, 3, 8, 4)), (f32, (2, 3, 2, 4)), (torch.int32, (2,)), (f32, (-6, 16))]
    steps = [
        {"do": "engine", "engine": 0, "inputs": [0, 1, 2]},
        {"do": "engine", "engine": 1, "inputs": [3]},
        hostile_files.operator("mul.Scalar", [hostile_files.value(0), 2.0], tensor(f32, 2, 3, 8, 4)),
    ]
    output = {"tuple": [hostile_files.value(5), hostile_files.value(6), hostile_files.value(0)]}
    parts = hostile_files.program(given, steps, output)
    parts.graph["engines"] = [
        {"name": f"engine_{at}", "section": at + 1, "header": header.to_json()} for at, header in enumerate(headers)
    ]
    parts.plans = [bytes(plan.numpy()) for plan in plans]
    made = (torch.zeros(2, 3, 8, 4), torch.ones(2, 3, 2, 4), torch.zeros(2, dtype=torch.int32), torch.ones(3, 16))
    return parts, made


def _outputs(plan: torch.Tensor) -> list[str]:
    structure = read_plan(bytes(plan.numpy())).structure
    return [one["name"] for one in structure["engine"]["io"] if not one["is_input"]]


PROGRAMS: Final = {"compiled": _compiled, "branches": _branches, "engines": _engines}


def _graph_changes(graph: dict[str, Any]) -> Iterator[Change]:
    yield from variants(Program, graph)
    yield from _header_changes(graph)
    yield from _reference_changes(graph)


def _header_changes(graph: dict[str, Any]) -> Iterator[Change]:
    for at, engine in enumerate(graph["engines"]):
        for name, other in variants(PlanHeader, engine["header"], f"header {at}"):
            changed = [*graph["engines"]]
            changed[at] = {**engine, "header": other}
            yield name, {**graph, "engines": changed}


def _reference_changes(graph: dict[str, Any]) -> Iterator[Change]:
    """Steps that name any other value, in each place that names one; and steps in another order."""
    steps = graph["steps"]
    count = len(graph["signature"]["leaves"]) + len(graph["tensors"]) + len(steps)
    for at, step in enumerate(steps):
        for owner, key in fuzzing.places_in(step):
            is_value = key == "value" or (isinstance(owner, list) and owner is step.get("inputs"))
            if is_value or (key in ("tensor", "sequence", "target", "source") and type(owner[key]) is int):
                for other in range(count):
                    if other != owner[key]:
                        changed = [*steps]
                        changed[at] = _replaced(step, owner, key, other)
                        yield f"step {at}, {key} {owner[key]} is {other}", {**graph, "steps": changed}
        if at:
            changed = [*steps]
            changed[at - 1 : at + 1] = [steps[at], steps[at - 1]]
            yield f"steps {at - 1} and {at} in another order", {**graph, "steps": changed}
        yield f"step {at} twice", {**graph, "steps": [*steps[:at], step, *steps[at:]]}


def _replaced(tree: Any, owner: Any, key: Any, other: Any) -> Any:
    """A tree with another item in one of its containers, which has all else in common with it; None without that."""
    if tree is owner:
        twin = copy.copy(tree)
        twin[key] = other
        return twin
    for name, item in enumerate(tree) if isinstance(tree, list) else tree.items():
        found = _replaced(item, owner, key, other) if isinstance(item, (list, dict)) else None
        if found is not None:
            twin = copy.copy(tree)
            twin[name] = found
            return twin
    return None


def programs() -> Iterator[tuple[str, Act]]:
    """Every field of programs of three kinds, and some of each at once."""
    for kind, make in PROGRAMS.items():
        parts, given = make()
        for name, graph in itertools.islice(_graph_changes(parts.graph), 0, None, _PART):
            yield f"{kind}: {name}", functools.partial(_use, parts, graph, given)
        for seed in range(_SEVERAL):
            yield f"{kind}: changes of seed {seed}", functools.partial(_use_several, kind, seed)


def _use_several(kind: str, seed: int) -> None:
    parts, given = PROGRAMS[kind]()
    _, graph = several(_graph_changes, parts.graph, random.Random(seed))
    _use(parts, graph, given)


def _use(parts: ProgramFile, graph: Any, given: tuple[Any, ...]) -> None:
    """Loads, describes, calls by what it took and by what it says that it takes, saves, and gives other weights."""
    try:
        content = ProgramFile(graph, parts.weights, parts.plans, parts.others).to_bytes()
    except (TypeError, ValueError, RecursionError):
        return  # what JSON cannot say
    path = hostile_files.folder() / "record.trtp"
    path.write_bytes(content)
    with contextlib.suppress(TrtError):
        to_text(inspect_file(path))
    module = program_from_memory(bytearray(content))
    for described in (module, module.inputs, module.outputs, module._repr_html_(), module.state_dict(), module.meta):
        repr(described)
    results = []
    for filler in (0x5A, 0xA5):
        hostile_files.soil(filler)
        with contextlib.suppress(TrtError):
            results.append(hostile_files.bytes_of(copy.deepcopy(module)(*pytree.tree_map(_guarded, given))))
    assert len(results) < 2 or results[0] == results[1], "another result for the same operands"
    sizes = [
        math.prod(_tuned(extent) for extent in spec.shape) for spec in module.inputs if isinstance(spec, TensorSpec)
    ]
    if sum(sizes) < _MOST_ELEMENTS:
        args, kwargs = example_call(module, None, 0)
        for _ in range(2):
            module(*args, **kwargs)
    save(copy.deepcopy(module), path)
    with contextlib.suppress(TrtError):
        refit_module(module, fuzzing.OTHER_WEIGHTS)


def _tuned(extent: Any) -> int:
    return extent if isinstance(extent, int) else int(extent.opt or 1)


def _guarded(leaf: Any) -> Any:
    return guarded(leaf.clone()) if isinstance(leaf, torch.Tensor) else leaf


# Plans --------------------------------------------------------------------------------------------------------------


@functools.cache
def _plan(network: str) -> Plan:
    return read_plan(plan_fuzzer.FORGED[network]())


def _plan_changes(structure: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    network, texts = structure["network"], _names(structure)
    for name, other in variants(EngineInfo, structure["engine"], texts=texts):
        yield name, functools.partial(_with, structure, "engine", other)
    for key in sorted(network.keys() - {"layers"}):
        kind = tuple[TensorEntry, ...] if key == "tensors" else Any
        for name, other in variants(kind, network[key], key, texts):
            yield name, functools.partial(_with, structure, "network", {**network, key: other})
    ids = [tensor["id"] for tensor in network["tensors"]]
    for at, layer in enumerate(leaf_entries(network["layers"])):
        for name, key, other in _layer_changes(layer, ids, texts):
            yield f"layer {at}: {name}", functools.partial(_with_layer, structure, at, key, other)


def _names(structure: dict[str, Any]) -> list[str]:
    """What stands for a name in a plan: names of its bindings, of its weights, and of nothing."""
    found = [binding["name"] for binding in structure["engine"]["io"]]
    return [
        *dict.fromkeys([*found, *(slot["weights"] for slot in structure["engine"]["weight_slots"][:3])]),
        "",
        "\x1b[2J",
    ]


def _with(tree: dict[str, Any], key: str, other: Any) -> dict[str, Any]:
    return {**tree, key: other}


def _with_layer(structure: dict[str, Any], at: int, key: str, other: Any) -> dict[str, Any]:
    changed = copy.deepcopy(structure)
    list(leaf_entries(changed["network"]["layers"]))[at][key] = other
    return changed


def _layer_changes(layer: dict[str, Any], ids: list[int], texts: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    for key, value in layer.items():
        if key in ("inputs", "outputs"):
            for at, other in itertools.product(range(len(value)), [*ids, None]):
                yield f"{key} {at} is {other}", key, [*value[:at], other, *value[at + 1 :]]
            for name, changed in {
                "twice": value * 2,
                "without the last": value[:-1],
                "and none": [*value, None],
            }.items():
                yield f"{key} {name}", key, changed
        elif key != "attributes":  # of which another class is made
            for name, other in of_value(value, key, texts):
                yield name, key, other


def plans() -> Iterator[tuple[str, Act]]:
    """Every field of plans of all networks but the attributes of their layers, and some of each at once."""
    for network in plan_fuzzer.NETWORKS:
        for name, change in itertools.islice(_plan_changes(_structure(network)), 0, None, _PART):
            yield f"{network}: {name}", functools.partial(_tour_changed, network, change)
        for seed in range(_SEVERAL // 10):
            yield f"{network}: changes of seed {seed}", functools.partial(_tour_several, network, seed)


def _structure(network: str) -> dict[str, Any]:
    return {part: _plan(network).structure[part] for part in ("network", "engine")}


def _tour_changed(network: str, change: Callable[[], Any]) -> None:
    _tour(network, change())


def _tour_several(network: str, seed: int) -> None:
    _, structure = several(_plan_changes, _structure(network), random.Random(seed))
    _tour(network, structure)


def _tour(network: str, structure: dict[str, Any]) -> None:
    """Runs a plan, and asks everything that the API answers about it."""
    try:
        content = bytes(write_plan(structure, _plan(network).weights, _plan(network).structure["features"]))
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError):
        return  # what JSON cannot say
    plan_fuzzer.run(content, random.Random(0))
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    engine = trt.Runtime(logger).deserialize_cuda_engine(content)
    if engine is None:
        return
    for name in engine:
        for question in _QUESTIONS:
            getattr(engine, question)(name)
        for profile in range(min(engine.num_optimization_profiles, 2)):
            for question in ("get_tensor_profile_shape", "get_tensor_profile_values"):
                with contextlib.suppress(RuntimeError, ValueError):  # not for this kind of tensor
                    getattr(engine, question)(
                        name if question.endswith("shape") else profile, profile if question.endswith("shape") else name
                    )
    inspector = engine.create_engine_inspector()
    for form in trt.LayerInformationFormat.__members__.values():
        inspector.get_engine_information(form)
    with contextlib.suppress(RuntimeError):
        refitter = trt.Refitter(engine, logger)
        for name in refitter.get_all_weights():
            refitter.get_weights_prototype(name)
            refitter.get_weights_location(name)
        refitter.get_missing_weights()
    again = engine.serialize()
    if again is not None:
        trt.Runtime(logger).deserialize_cuda_engine(bytes(again))
    for strategy in trt.ExecutionContextAllocationStrategy.__members__.values():
        context = engine.create_execution_context(strategy)
        if context is not None:
            context.infer_shapes()
            context.update_device_memory_size_for_shapes()
            inspector.execution_context = context
            inspector.get_engine_information(trt.LayerInformationFormat.JSON)


_QUESTIONS: Final = (
    *("get_tensor_shape", "get_tensor_dtype", "get_tensor_location", "get_tensor_mode", "get_tensor_format"),
    *("get_tensor_format_desc", "get_tensor_bytes_per_component", "get_tensor_components_per_element"),
    *("get_tensor_vectorized_dim", "is_shape_inference_io", "get_aliased_input_tensor", "is_debug_tensor"),
)


# Entries of the engine cache ----------------------------------------------------------------------------------------


class _Cached(torch.nn.Module):
    """A model that is one engine whose rows vary."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


@functools.cache
def _cached() -> tuple[torch.nn.Module, Path, str, dict[str, Any], bytes, dict[str, Any]]:
    """The model, the folder of its cache, the digest of its entry, the header, the plan and the record of the key."""
    model, where = _Cached().eval(), hostile_files.folder() / "engines"
    _compile_cached(model, where)
    (path,) = where.glob("*.plan")
    header, plan = read_engine(path)
    record = json.loads(path.with_suffix(".key").read_bytes())
    return model, where, path.stem, json.loads(header.text), bytes(plan.numpy()), record


def _compile_cached(model: torch.nn.Module, where: Path) -> torch.nn.Module:
    import trt_frontends

    compiled: torch.nn.Module = trt_frontends.compile(
        model,
        arg_inputs=(Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4)),),
        min_block_size=1,
        optimization_level=0,
        refit=True,
        cache_built_engines=True,
        reuse_cached_engines=True,
        engine_cache_dir=str(where),
    )
    return compiled


def cached_engines() -> Iterator[tuple[str, Act]]:
    """Every field of the header, and of the key, of an engine in the cache of this user."""
    _, _, _, header, _, record = _cached()
    for name, other in [*variants(PlanHeader, header)][::_PART]:
        yield f"header: {name}", functools.partial(_compile_by, other, record)
    for name, other in [*of_value(record, "key")][::_PART]:
        yield name, functools.partial(_compile_by, header, other)


def _compile_by(header: Any, record: Any) -> None:
    model, where, digest, _, plan, _ = _cached()
    try:
        texts = [json.dumps(header, sort_keys=True).encode(), json.dumps(record, sort_keys=True).encode()]
    except ValueError:
        return  # what JSON cannot say
    file = io.BytesIO()
    PLAN.write(file, [(PlanSection.HEADER, [texts[0]]), (PlanSection.PLAN, [plan])])
    (where / f"{digest}.plan").write_bytes(file.getvalue())
    (where / f"{digest}.key").write_bytes(texts[1])
    cache = EngineCache(where)
    for entry in cache.entries():
        repr(entry)
    cache.why_miss(EngineKey({"graph": "x"}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = _compile_cached(model, where)
    for rows in (1, 3):
        x = torch.randn(rows, 4)
        compiled(x)


# What is read alone -------------------------------------------------------------------------------------------------


@functools.cache
def _report() -> PartitionReport:
    import trt_frontends

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Softmax(-1)).eval()
    rows = Input(min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3))
    report: PartitionReport = trt_frontends.explain(
        model, arg_inputs=(rows,), min_block_size=1, torch_executed_ops={"aten.relu"}
    )
    return report


def _show_report(value: Any) -> None:
    from trt_partition import PartitionReport, diff_reports

    report = PartitionReport.from_json(json.dumps(value))
    for shown in (report.to_text(), report.to_html(), report._repr_html_(), repr(report)):
        assert not any(one for one in shown if not one.isprintable() and one not in "\n\t")
    diff_reports(_report(), report).to_text()
    repr(diff_reports(report, _report()))


_FACTS: Final = {
    "dimensions": {"s0": "rows"},
    "results": {
        "output": ["transformers:Output", ["rest", "order", "filled", "name"], None],
        "output['rest']": ["m:C", None, None],
    },
    "attributes": {
        "config": {"dict": [["model_type", "bert"], ["sizes", {"tuple": [1, 2.5, None]}]]},
        "dtype": {"dtype": "float32"},
    },
    "plugins": ["library::name"],
}


def _say(facts: Any) -> None:
    parts, given = _compiled()
    graph = {**parts.graph, "metadata": {**parts.graph["metadata"], FACTS: json.dumps(facts)}}
    _use(parts, graph, given)
    module = program_from_memory(bytearray(ProgramFile(graph, parts.weights, parts.plans, parts.others).to_bytes()))
    for name in (*facts["attributes"], "can_generate"):
        repr(getattr(module, name, None))
    repr(module(*given).rest)


PIPELINE: Final = {
    "pipeline": "StableDiffusionPipeline",
    "parts": {
        "unet": {"methods": {"forward": ["unet.forward.trtp"]}, "dtype": "float32", "buffers": {}},
        "vae": {
            "methods": {
                "decode": ["vae.decode.0.trtp", "vae.decode.1.trtp"],
                "quant_conv.forward": ["vae.quant_conv.forward.trtp"],
            },
            "dtype": "float16",
            "buffers": {"mean": [0.5, 1.0]},
        },
    },
}


def _list_pipeline(value: Any) -> None:
    path = hostile_files.folder() / "pipeline.json"
    path.write_text(json.dumps(value))
    _read_manifest(path)


def lone() -> Iterator[tuple[str, Act]]:
    """Every field of reports, of what a program says of its model, and of lists of pipelines."""
    for what, kind, value, act in (
        ("report", Any, json.loads(_report().to_json()), _show_report),
        ("facts", ModelFacts, _FACTS, _say),
        ("facts", Any, _FACTS, _say),
        ("pipeline", _Manifest, PIPELINE, _list_pipeline),
    ):
        yield f"{what}: as it is", functools.partial(act, value)
        for name, other in variants(kind, value):
            yield f"{what}: {name}", functools.partial(_writable, act, other)


def _writable(act: Callable[[Any], None], value: Any) -> None:
    with contextlib.suppress(UnicodeEncodeError):  # what no file holds
        act(value)
