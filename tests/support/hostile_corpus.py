"""Hostile programs, plans and data by class, as an attacker who knows the format writes them, and what comes of each.

A `Case` is one call of an operator, or some. It comes through one of three doors: as a stranger's file, which may call
reviewed operators only; as a file that is trusted and has limits, so that checks of operands and counts have to hold
for operators that no stranger calls; and as a recipe in a table by which weights are made again. A `PlanCase` is a
known network that says something else, sealed again, a `DataCase` an honest network and values of a caller.
Operands lie between pages that nobody may touch. `outcomes` runs cases in a child of this process, one after the other;
one that dies is told by its case, and another child goes on.

``python hostile_corpus.py [CLASS ...]`` runs all cases of classes and prints how many ended how.
"""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import itertools
import json
import os
import random
import resource
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hostile_files
import hostile_operands
import hostile_records
import hostile_structures
import numpy as np
import plan_fuzzer
import torch
from guarded_memory import GUARDS_VARIABLE, guarded
from program_files import ProgramFile

import trt_portable as trt
from trt_core import PlanError, RefitError, TrtError
from trt_core.dtypes import dtype_name
from trt_core.limits import CallLimits
from trt_core.refit_table import RefitTable
from trt_portable.builder.autotune.timing_cache import environment
from trt_portable.execution.bounded_runs import TURNS_VARIABLE
from trt_portable.kernels.low_precision_convolutions import CONVOLUTION_KERNELS
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS
from trt_portable.network.serialization import leaf_entries
from trt_portable.plan.artifact import machine_of
from trt_portable.plan.plan_file import Plan, read_plan, write_plan
from trt_runtime.generation import GenerationLimits, TextGenerator
from trt_runtime.plan_notes import Bounds, note_bounds
from trt_runtime.program.load_options import LoadOptions
from trt_runtime.program.loading import program_from_memory
from trt_runtime.refit import _admitting, check_replaceable

MEMORY: Final = 6 << 30
"""Bytes of address space that cases may add; what is refused for lack of them should have been refused before."""
GROWTH: Final = 1 << 30
"""Resident bytes that a case may take: limits let 512 MiB live, and a kernel has room to work in."""
SECONDS: Final = 20


@dataclass(frozen=True)
class Case:
    """A program that calls one operator, or one after the other.

    Attributes:
        name: Of the case.
        steps: Operators with their overloads, and arguments: `At(n)` is input n, `At(-1)` what the step before made.
        inputs: Makes the inputs.
        is_trusted: Which door it comes through.
        is_exact: Whether results are equal to the bit; algorithms of LAPACK round by where their operands lie.
    """

    name: str
    steps: tuple[tuple[str, tuple[Any, ...]], ...]
    inputs: Callable[[], list[torch.Tensor]]
    is_trusted: bool = False
    is_exact: bool = True

    def run(self) -> str:
        """Loads and calls it twice; says how that ended, `refused`, `failed` or `ran`, or what is wrong.

        Raises:
            Exception: Whatever else left the interface.
        """
        given = self.inputs()
        limits = CallLimits() if self.is_trusted else None
        content = bytearray(_file(self.steps, given).to_bytes())
        try:
            module = program_from_memory(content, LoadOptions(trust=self.is_trusted, limits=limits))
        except TrtError:
            return "refused"
        operands = [guarded(tensor) for tensor in given]
        found = []
        for filler in (0x5A, 0xA5):
            hostile_files.soil(filler)
            try:
                found.append(hostile_files.bytes_of(module(*operands)))
            except TrtError as error:
                return "out of memory" if "allocate" in str(error) else "failed"
        return "ran" if found[0] == found[1] or not self.is_exact else "another result for the same operands"


@dataclass(frozen=True)
class RecipeCase:
    """A case whose inputs are weights of a model, and whose call makes a weight again.

    Attributes:
        case: The call, which is the only one.
    """

    case: Case

    @property
    def name(self) -> str:
        """Of the case."""
        return f"{self.case.name}, by a recipe"

    def run(self) -> str:
        """Reads the table, and makes the weight again; see `Case.run`."""
        ((name, args),) = self.case.steps
        base, _, overload = name.partition(".")
        operator = f"{base.replace('::', '.') if '::' in base else f'aten.{base}'}.{overload or 'default'}"
        weights = {f"x{at}": guarded(tensor) for at, tensor in enumerate(self.case.inputs())}
        table = {
            "sources": [[key, dtype_name(x.dtype), list(x.shape), []] for key, x in weights.items()],
            "literals": [],
            "steps": [[operator, [_recipe(arg) for arg in args], {}]],
            "weights": {},
            "reads": [[{"step": 0}, ""]],
            "fixed": {},
            "constants": {},
            "content": "",
        }
        plan = torch.zeros(1 << 10, dtype=torch.uint8)
        if not self.case.is_trusted:
            note_bounds(plan, Bounds(CallLimits(), lambda: False))
        try:
            check_replaceable(RefitTable.from_json(table), weights, "an engine", _admitting((plan,)))
        except PlanError:
            return "refused"
        except RefitError as error:
            return "out of memory" if "allocate" in str(error) else "failed"
        return "ran"


@dataclass(frozen=True)
class PlanCase:
    """A known network of which one thing was changed, and that was sealed again.

    Attributes:
        network: Its name among `plan_fuzzer.FORGED`.
        name: Of the case.
        change: Changes the structure.
        agrees: Whether bindings and profiles are to say what tensors say then.
    """

    network: str
    name: str
    change: Callable[[dict[str, Any]], Any]
    agrees: bool = True

    def run(self) -> str:
        """Loads and runs it on bound memory; see `Case.run`."""
        if self.network == "ranks":
            _join_others()
        plan = _plan(self.network)
        structure = json.loads(json.dumps(plan.structure))
        structure["engine"]["prepacked"] = True
        self.change(structure)
        if self.agrees:
            plan_fuzzer._agree(structure)
        parts = {part: structure[part] for part in ("network", "engine")}
        try:
            content = bytes(write_plan(parts, plan.weights, structure["features"]))
        except (ValueError, OverflowError):
            return "refused"  # what JSON cannot say
        return _PLAN_ENDS.get(plan_fuzzer.run(content, random.Random(0)), "failed")


_PLAN_ENDS: Final = {"ran": "ran", "refused": "refused"}


@functools.cache
def _join_others() -> None:
    """Lets this process be one of two ranks, of which the other one answers at once and says nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)


@functools.cache
def _plan(network: str) -> Plan:
    os.environ[GUARDS_VARIABLE] = "end"
    return read_plan(plan_fuzzer.FORGED[network]())


@dataclass(frozen=True)
class DataCase:
    """An honest network, and values for its inputs.

    Attributes:
        name: Of the case.
        make: Adds the network, and returns its outputs.
        inputs: Makes its inputs, in order.
        ranges: Least, best and greatest of what is told to the builder: shapes of inputs whose extents vary, and, of
            inputs that say how much there is, values.
    """

    name: str
    make: Callable[[plan_fuzzer.Net], list[Any]]
    inputs: Callable[[], list[torch.Tensor]]
    ranges: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> str:
        """Builds and runs it; see `Case.run`."""
        os.environ[GUARDS_VARIABLE] = "end"
        if self.make not in _built:
            net = plan_fuzzer.Net()
            _built[self.make] = net.plan(*self.make(net), **self.ranges)
        engine = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(_built[self.make])
        context = engine.create_execution_context()
        given = iter(self.inputs())
        memory: list[Any] = []
        at: dict[str, Any] = {}
        for name in engine:
            if engine.get_tensor_mode(name) is trt.TensorIOMode.INPUT:
                value = next(given)
                memory.append(guarded(value if value.numel() else torch.zeros(1)))  # an address has even nothing
                at[name] = memory[-1]
                if not context.set_input_shape(name, tuple(value.shape)):
                    return "refused"
            elif engine.get_aliased_input_tensor(name):
                memory.append(at[engine.get_aliased_input_tensor(name)])
            else:
                size = context.get_max_output_size(name)
                if size > GROWTH:
                    return "failed"  # no caller has so much memory
                if size < 0 and context.set_output_allocator(name, _Pages()):
                    continue
                memory.append(guarded(torch.zeros(max(size, 1), dtype=torch.uint8)))
            assert context.set_tensor_address(name, memory[-1].data_ptr())
        return "ran" if context.execute_async_v3(0) else "failed"


_built: dict[Callable[..., Any], bytes] = {}
"""Plans of networks that cases share."""


class _Pages(trt.IOutputAllocator):
    """Gives an output whose size depends on data memory between pages that nobody may touch."""

    def __init__(self) -> None:
        trt.IOutputAllocator.__init__(self)
        self.held: list[torch.Tensor] = []

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        """Returns the address of so many bytes; nothing of more than a caller would give."""
        if size > GROWTH:
            return 0
        self.held.append(guarded(torch.zeros(max(size, 1), dtype=torch.uint8)))
        return self.held[-1].data_ptr()

    def notify_shape(self, tensor_name: str, shape: Any) -> None:
        """Takes note of nothing."""


@dataclass(frozen=True)
class ActCase:
    """Something that anybody may do, with a file or a number that nobody would write in good faith.

    Attributes:
        name: Of the case.
        act: Does it; an error of the project's own is a refusal.
    """

    name: str
    act: Callable[[], object]

    def run(self) -> str:
        """Does it; see `Case.run`."""
        try:
            self.act()
        except TrtError:
            return "refused"
        return "ran"


class At(int):
    """An input, or, counted from the end, what a step made."""


def _file(steps: Sequence[tuple[str, tuple[Any, ...]]], given: Sequence[torch.Tensor]) -> ProgramFile:
    """A program that says of its results what its operators say of them, as far as PyTorch can tell."""
    shown = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in given]
    calls: list[dict[str, Any]] = []
    for name, args in steps:
        at = len(shown)
        base, _, overload = name.partition(".")
        meta = _told(name, [_with(arg, shown, at) for arg in args])
        shown.append(meta if isinstance(meta, torch.Tensor) else None)  # type: ignore[arg-type]  # nobody reads it
        calls.append(
            {
                "do": "operator",
                "name": base if "::" in base else f"aten::{base}",
                "overload": overload,
                "args": [_literal(arg, at) for arg in args],
                "kwargs": {},
                "result": _declared(meta),
            }
        )
    graph = {
        "torch_version": torch.__version__,
        "writer_version": "0.1.0",
        "libraries": [],
        "symbols": {},
        "profiles": [],
        "signature": {
            "names": [f"x{at}" for at in range(len(given))],
            "positional": len(given),
            "structure": [{"value": at} for at in range(len(given))],
            "leaves": [
                {
                    "tensor": dtype_name(x.dtype),
                    "shape": [[extent] * 3 for extent in x.shape],
                    "device": "cpu",
                }
                for x in given
            ],
            "conditions": [],
        },
        "storages": [],
        "tensors": [],
        "engines": [],
        "steps": calls,
        "output": {"value": len(given) + len(steps) - 1} if isinstance(shown[-1], torch.Tensor) else {"tuple": []},
        "refit": None,
        "metadata": {},
    }
    return ProgramFile(graph, b"", [], [])


_DEADLY: Final = ("lstm", "gru", "rnn_tanh", "matrix_power", "linalg_matrix_power")
"""Operators whose operands may end the process, or take years, without data as well."""


def _told(name: str, args: list[Any]) -> Any:
    """What the operator makes without data; a vector of unknown length where that cannot be told."""
    base, _, overload = name.partition(".")
    namespace, _, base = base.rpartition("::")
    if base in _DEADLY:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(getattr(getattr(torch.ops, namespace or "aten"), base), overload or "default")(*args)
    except Exception:
        return None


def _declared(meta: Any) -> Any:
    if isinstance(meta, torch.Tensor):
        return {"tensor": dtype_name(meta.dtype), "shape": list(meta.shape)}
    if isinstance(meta, (list, tuple)):
        return [_declared(item) for item in meta[:64]]
    return {"tensor": "float32", "shape": [None]}


def _with(arg: Any, shown: Sequence[Any], at: int) -> Any:
    if isinstance(arg, At):
        return shown[at + arg if arg < 0 else arg]
    return [_with(item, shown, at) for item in arg] if isinstance(arg, list) else arg


def _literal(arg: Any, at: int) -> Any:
    if isinstance(arg, At):
        return {"value": at + arg if arg < 0 else int(arg)}
    if isinstance(arg, list):
        return [_literal(item, at) for item in arg]
    if isinstance(arg, torch.dtype):
        return {"dtype": dtype_name(arg)}
    if (isinstance(arg, float) and arg != arg) or arg in (float("inf"), -float("inf")):
        return {"float": str(arg)}
    return arg


def _recipe(arg: Any) -> Any:
    if isinstance(arg, At):
        return {"source": int(arg)}
    if isinstance(arg, list):
        return [_recipe(item) for item in arg]
    if isinstance(arg, torch.dtype):
        return {"dtype": dtype_name(arg)}
    return {"float": arg.hex()} if isinstance(arg, float) else arg


# Cases -------------------------------------------------------------------------------------------------------------

BIG: Final = (1 << 31, 1 << 40, (1 << 63) - 1)
WRONG: Final = (-1, 0, 1 << 31, (1 << 63) - 1, -(1 << 63))
N: Final = 1 << 30

Steps = tuple[tuple[str, tuple[Any, ...]], ...]


def ones(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.ones(shape, dtype=dtype) for shape in shapes]


def held(*tensors: Any) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.as_tensor(tensor).clone() for tensor in tensors]


def both(name: str, steps: Steps, inputs: Callable[[], list[torch.Tensor]]) -> Iterator[Case]:
    """The same through both doors."""
    for is_trusted in (False, True):
        yield Case(f"{name}{', trusted' if is_trusted else ''}", steps, inputs, is_trusted)


def foreign_memory() -> Iterator[Case]:
    """What would read, or hand out, memory that is somebody else's."""
    x = ones((4, 6))
    for name in ("as_strided", "as_strided_copy"):
        for size, stride, offset in itertools.product(([4, 6], [100], [1 << 20]), ([1], [6, 1], [1 << 40]), (0, 5, -1)):
            if len(size) == len(stride):
                yield Case(f"{name} {size} {stride} {offset}", ((name, (At(0), size, stride, offset)),), x)
    for size in ([4], [400], [1 << 20]):
        steps = (("as_strided_scatter", (At(0), At(1), size, [1], 20)),)
        yield Case(f"as_strided_scatter {size}", steps, ones((4, 6), (4,)))
    for size in ([0], [7], [4, 6], [N, N]):
        yield Case(f"empty {size}", (("empty.memory_format", (size,)),), x)
        yield Case(f"new_empty {size}", (("new_empty", (At(0), size)),), x)
        yield Case(f"empty_permuted {size}", (("empty_permuted", (size, list(range(len(size))))),), x)
        strides = [1] * len(size)
        yield Case(f"empty_strided {size}", (("empty_strided", (size, strides)),), x)
        yield Case(f"new_empty_strided {size}", (("new_empty_strided", (At(0), size, strides)),), x)
        yield Case(f"prims empty {size}", (("prims::empty_strided", (size, strides)),), x)
    yield Case("empty_like", (("empty_like", (At(0),)),), x)
    yield from _attention()
    yield from _windows()
    yield from _places()
    yield from _parameters()


def _attention() -> Iterator[Case]:
    base = (1, 2, 5, 8)
    others = [(1, 2, rows, 8) for rows in (0, 1, 4, 6, 700)]
    others += [(1, 1, 5, 8), (1, 3, 5, 8), (2, 2, 5, 8), (1, 2, 5, 16), (1, 2, 5, 0), (2, 5, 8), (5, 8), (8,)]
    masks = [(5, 5), (1, 1, 5, 4), (1, 1, 1, 700), (3, 5, 5), (1, 2, 5, 5, 1)]
    public, private = "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"
    for name in (public, private):
        for place, shape in itertools.product(range(3), others):
            shapes = [shape if at == place else base for at in range(3)]
            call = (name, (At(0), At(1), At(2)))
            yield from both(f"{name} {place} {shape}", (call,), ones(*shapes))
        for shape in masks:
            last: tuple[Any, ...] = (At(3),) if name == public else (0.0, False)
            yield from both(f"{name} mask {shape}", ((name, (At(0), At(1), At(2), *last)),), ones(*[base] * 3, shape))
        for count in (0, 3):
            shapes = [(1, 2, count, 8)] * 3 if count else [(1, 2, 0, 8), base, base]
            causal: tuple[Any, ...] = (None, 0.0, True) if name == public else (0.0, True)
            yield from both(f"{name} causal {count}", ((name, (At(0), At(1), At(2), *causal)),), ones(*shapes))


def _windows() -> Iterator[Case]:
    image = ones((1, 4, 6, 6), (4, 4, 3, 3))
    columns = ones((1, 36, 16))
    pairs = [[value, value] for value in WRONG] + [[1 << 20, 1 << 20], [1, -5], [7, 7]]
    for place in range(4):
        for pair in pairs:
            numbers = [[3, 3], [1, 1], [0, 0], [1, 1]]
            numbers[place] = pair
            yield Case(f"im2col {place} {pair}", (("im2col", (At(0), *numbers)),), image)
            yield Case(f"col2im {place} {pair}", (("col2im", (At(0), [6, 6], *numbers)),), columns)
    for pair in pairs:
        yield Case(f"col2im size {pair}", (("col2im", (At(0), pair, [3, 3], [1, 1], [0, 0], [1, 1])),), columns)
        for place, word in enumerate(("stride", "padding", "dilation", "output_padding")):
            for transposed in (False, True):
                numbers = [[1, 1], [0, 0], [1, 1], [0, 0]]
                numbers[place] = pair
                args = (At(0), At(1), None, *numbers[:3], transposed, numbers[3], 1)
                yield from both(f"convolution {word} {pair} {transposed}", (("convolution", args),), image)
        for name in ("avg_pool2d", "max_pool2d", "max_pool2d_with_indices"):
            for place in range(3):
                numbers = [[2, 2], [1, 1], [0, 0]]
                numbers[place] = pair
                yield from both(f"{name} {place} {pair}", ((name, (At(0), *numbers)),), image)
        yield Case(f"adaptive_avg_pool2d {pair}", (("adaptive_avg_pool2d", (At(0), pair)),), image)
        for name in ("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"):
            flags = (False,) if "bi" in name else ()
            yield from both(f"{name} {pair}", ((name, (At(0), pair, *flags)),), image)
        yield Case(f"max_unpool2d {pair}", (("max_unpool2d", (At(0), At(1), pair)),), _unpooled, True)
        for name in ("reflection_pad2d", "replication_pad2d"):
            yield Case(f"{name} {pair}", ((name, (At(0), [*pair, 0, 0])),), image)
    for groups in (-1, 0, 3, 1 << 31):
        args = (At(0), At(1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups)
        yield from both(f"convolution groups {groups}", (("convolution", args),), image)
        yield from both(f"group_norm {groups}", (("group_norm", (At(0), groups)),), image)
    for factor in (0.0, -1.0, 1e-30, 1e30, 0.5):
        steps = (("upsample_bilinear2d", (At(0), [12, 12], False, factor, factor)),)
        yield from both(f"upsample_bilinear2d factor {factor}", steps, image)


def _unpooled() -> list[torch.Tensor]:
    return [torch.ones(1, 2, 3, 3), torch.tensor([-1, 0, 1 << 40] * 6).reshape(1, 2, 3, 3)]


def _places() -> Iterator[Case]:
    """Numbers that name a place that is not there."""
    for number in (-1, -5, 4, 1 << 31, (1 << 63) - 1, -(1 << 63)):
        at = held(torch.ones(4, 6), torch.full((4, 6), number), torch.full((3,), number))
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("gather", (At(0), 0, At(1))),
            ("take_along_dim", (At(0), At(1), 0)),
            ("scatter.src", (At(0), 0, At(1), At(0))),
            ("scatter_add", (At(0), 0, At(1), At(0))),
            ("scatter_reduce.two", (At(0), 0, At(1), At(0), "sum")),
            ("index_select", (At(0), 0, At(2))),
            ("index.Tensor", (At(0), [At(2)])),
            ("embedding", (At(0), At(2))),
            ("index_put", (At(0), [At(2)], At(0))),
            ("index_fill.int_Scalar", (At(0), 0, At(2), 1.0)),
            ("index_add", (At(0), 0, At(2), At(0))),
            ("index_copy", (At(0), 0, At(2), At(0))),
            ("take", (At(0), At(2))),
            ("put", (At(0), At(2), At(0))),
            ("one_hot", (At(2), 4)),
            ("one_hot", (At(2),)),
            ("bincount", (At(2),)),
            ("nll_loss", (At(0), At(2))),
            ("multi_margin_loss", (At(0), At(2))),
            ("searchsorted.Tensor", (At(0), At(0), False, False, None, At(1))),
            ("repeat_interleave.Tensor", (At(2),)),
            ("repeat_interleave.self_Tensor", (At(0), At(2), 0)),
            ("select.int", (At(0), 0, number)),
            ("narrow", (At(0), 0, number, 1)),
            ("slice.Tensor", (At(0), 0, number, number)),
            ("unfold", (At(0), 0, number, 1)),
            ("diagonal", (At(0), number)),
            ("roll", (At(0), [number], [0])),
            ("nonzero_static", (At(0), number)),
            ("index_reduce", (At(0), 0, At(2), At(0), "mean")),
        ]
        for name, args in calls:
            yield from both(f"{name} {len(args)} at {number}", ((name, args),), at)
    for bag in ([], [0, 9], [9], [-1], [3, 1], [0, 0, 0]):
        for mode in (0, 1, 2):
            for name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"):
                inputs = held(torch.ones(4, 6), torch.tensor([0, 1, 2]), torch.tensor(bag, dtype=torch.int64))
                steps = ((name, (At(0), At(1), At(2), False, mode)),)
                yield Case(f"{name} {bag} mode {mode}", steps, inputs, True)


def _parameters() -> Iterator[Case]:
    """Weights, statistics and states of other extents than their operand has."""
    x = (2, 4, 3)
    for shape in ((1,), (3,), (5,), (0,), (4, 4)):
        norm = (At(0), At(1), At(1), At(1), At(1))
        inputs = ones(x, shape)
        yield from both(f"native_batch_norm {shape}", (("native_batch_norm", (*norm, False, 0.1, 1e-5)),), inputs)
        legit = ("_native_batch_norm_legit_no_training", (*norm, 0.1, 1e-5))
        yield from both(f"_native_batch_norm_legit_no_training {shape}", (legit,), inputs)
        group = ("native_group_norm", (At(0), At(1), At(1), 2, 4, 3, 2, 1e-5))
        yield from both(f"native_group_norm {shape}", (group,), inputs)
        yield from both(f"layer_norm {shape}", (("layer_norm", (At(0), [3], At(1), At(1))),), inputs)
        yield Case(f"prelu {shape}", (("prelu", (At(0), At(1))),), inputs)
        yield Case(f"_weight_norm {shape}", (("_weight_norm", (At(0), At(1), 0)),), inputs, True)
        yield Case(f"linear {shape}", (("linear", (At(0), At(1))),), inputs)
        yield Case(f"rms_norm {shape}", (("rms_norm", (At(0), [3], At(1))),), inputs)
    for counts in itertools.product((0, 2, 1 << 31, -1), (4, 7, 0), (3, 1 << 31, 0)):
        group = ("native_group_norm", (At(0), None, None, *counts, 2, 1e-5))
        yield from both(f"native_group_norm counts {counts}", (group,), ones(x))
    yield from _recurrent()
    for one, two in itertools.product(
        ((3, 4), (2, 3, 4), (3, 5), (4,), (0, 4)), ((6, 4), (2, 6, 4), (6, 4, 1), (0, 4))
    ):
        yield Case(
            f"_cdist_forward {one} {two}", (("_cdist_forward", (At(0), At(1), 2.0, None)),), ones(one, two), True
        )
        yield Case(f"mm {one} {two}", (("mm", (At(0), At(1))),), ones(one, two))
        yield Case(f"matmul {one} {two}", (("matmul", (At(0), At(1))),), ones(one, two))


def _recurrent() -> Iterator[Case]:
    """States, weights and steps that do not fit."""
    width, hidden = 6, 4
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1)):
        weights = [(gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)]
        for state in ((1, 3, 4), (1, 1, 4), (1, 2, 4), (0, 3, 4), (2, 3, 4), (1, 3, 1), (1, 3, 700), (3, 4), (1, 0, 4)):
            for steps in (5, 0):
                states = [At(1), At(1)] if name == "lstm" else At(1)
                args = (At(0), states, [At(2), At(3), At(4), At(5)], True, 1, 0.0, False, False, False)
                call = (f"{name}.input", args)
                yield Case(f"{name} {state} {steps}", (call,), ones((steps, 3, width), state, *weights), True)
        for sizes in ([], [0], [3, 2], [2, 3], [3, -1, 3], [5], [1 << 40], [3, 2, 0]):
            states = [At(2), At(2)] if name == "lstm" else At(2)
            args = (At(0), At(1), states, [At(3), At(4), At(5), At(6)], True, 1, 0.0, False, False)
            shapes = [torch.ones(5, width), torch.tensor(sizes, dtype=torch.int64), torch.ones(1, 3, hidden)]
            inputs = held(*shapes, *map(torch.ones, weights))
            yield Case(f"{name}.data {sizes}", ((f"{name}.data", args),), inputs, True)
        for place, extent in itertools.product(range(4), (0, 1, 3, 700)):
            changed = list(weights)
            changed[place] = (extent, *weights[place][1:])
            states = [At(1), At(1)] if name == "lstm" else At(1)
            args = (At(0), states, [At(2), At(3), At(4), At(5)], True, 1, 0.0, False, False, False)
            inputs = ones((5, 3, width), (1, 3, hidden), *changed)
            yield Case(f"{name} weight {place} {extent}", ((f"{name}.input", args),), inputs, True)


INTEGERS: Final = (torch.int8, torch.int16, torch.int32, torch.int64)


def deadly_values() -> Iterator[Case]:
    """Values that end a process where nobody looks: the least integer, what is no number, and nothing at all."""
    for dtype in INTEGERS:
        least = torch.iinfo(dtype).min
        for first, second in ((least, -1), (least, 0), (-1, least), (1, 0), (0, 0)):
            inputs = held(torch.full((70,), first, dtype=dtype), torch.full((70,), second, dtype=dtype))
            pairs: list[tuple[str, tuple[Any, ...]]] = [
                *((f"{name}.Tensor", (At(0), At(1))) for name in ("remainder", "fmod", "div", "bitwise_left_shift")),
                *((f"{name}.Scalar", (At(0), second)) for name in ("remainder", "fmod", "floor_divide")),
                *((f"{name}.Tensor_Tensor", (At(0), At(1))) for name in ("pow",)),
                ("floor_divide", (At(0), At(1))),
                ("bitwise_right_shift.Tensor", (At(0), At(1))),
                ("gcd", (At(0), At(1))),
                ("lcm", (At(0), At(1))),
                ("prims::div", (At(0), At(1))),
                ("prims::remainder", (At(0), At(1))),
                ("prims::fmod", (At(0), At(1))),
                *(
                    (f"div.{kind}_mode", (At(0), value, mode))
                    for kind, value in (("Tensor", At(1)), ("Scalar", second))
                    for mode in ("trunc", "floor")
                ),
            ]
            for at, (name, args) in enumerate(pairs):
                yield from both(f"{name} {at} {dtype_name(dtype)} {first} {second}", ((name, args),), inputs)
    yield from _linear_algebra()
    values = [float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 2.0, 1e30]
    for value in values:
        inputs = held(torch.full((4, 4), value), torch.full((4, 4), abs(value)))
        drawn: list[tuple[str, tuple[Any, ...]]] = [
            ("binomial", (At(0), At(1))),
            ("binomial", (At(1), At(0))),
            ("poisson", (At(0),)),
            ("bernoulli", (At(0),)),
            ("multinomial", (At(0), 2)),
            ("multinomial", (At(0), 2, True)),
            ("normal.Tensor_Tensor", (At(0), At(0))),
            ("grid_sampler_2d", (At(2), At(3), 0, 0, False)),
            ("histc", (At(0), 10, value, value)),
            ("_sample_dirichlet", (At(0),)),
            ("_standard_gamma", (At(0),)),
            ("quantile", (At(0), At(1))),
            ("special_zeta", (At(0), At(1))),
            ("igamma", (At(0), At(1))),
            ("digamma", (At(0),)),
            ("lgamma", (At(0),)),
            ("to.dtype", (At(0), torch.int8)),
            ("to.dtype", (At(0), torch.int64)),
            ("to.dtype", (At(0), torch.bool)),
            ("bucketize.Tensor", (At(0), At(4))),
            ("sort", (At(0),)),
            ("topk", (At(0), 2)),
            ("median", (At(0),)),
            ("mode", (At(0),)),
            ("nanquantile", (At(0), At(1))),
            ("cumsum", (At(0), 0)),
        ]
        more = [torch.ones(1, 1, 3, 3), torch.full((1, 2, 2, 2), value), torch.full((3,), value)]

        def given(inputs: Any = inputs, more: Any = more) -> list[torch.Tensor]:
            return [*inputs(), *(tensor.clone() for tensor in more)]

        for at, (name, args) in enumerate(drawn):
            is_random = at < 7 or name.startswith(("_sample", "_standard"))
            steps: Steps = ((name, args), ("zeros_like", (At(-1),))) if is_random else ((name, args),)
            yield from both(f"{name} {at} of {value}", steps, given)


def _linear_algebra() -> Iterator[Case]:
    matrices = {
        "nan": torch.full((5, 5), float("nan")),
        "infinite": torch.full((5, 5), float("inf")),
        "greatest": torch.full((5, 5), torch.finfo(torch.float32).max),
        "zero": torch.zeros(5, 5),
        "empty": torch.zeros(0, 0),
        "no rows": torch.zeros(0, 5),
        "wide": torch.ones(2, 5),
        "a vector": torch.ones(5),
        "one nan": torch.eye(5).index_fill(0, torch.tensor([2]), float("nan")),
        "no batch": torch.zeros(0, 3, 3),
    }
    names = [
        *("linalg_eigvals", "linalg_eig", "linalg_eigh", "linalg_eigvalsh", "linalg_svd", "linalg_svdvals"),
        *("linalg_qr", "linalg_cholesky", "linalg_inv", "linalg_det", "linalg_slogdet", "linalg_pinv"),
        *("linalg_matrix_exp", "matrix_exp", "linalg_lu_factor", "linalg_cond", "linalg_matrix_norm", "trace"),
        *("linalg_ldl_factor", "logdet", "cholesky", "cholesky_inverse", "svd", "qr", "inverse", "geqrf"),
    ]
    for name, (what, matrix) in itertools.product(names, matrices.items()):
        yield Case(f"{name} {what}", ((name, (At(0),)),), held(matrix), True, is_exact=False)
    for name in ("linalg_solve", "linalg_lstsq", "cholesky_solve", "triangular_solve", "linalg_householder_product"):
        for what, matrix in matrices.items():
            yield Case(f"{name} {what}", ((name, (At(0), At(0))),), held(matrix), True, is_exact=False)
    for power in (0, 1, -1, 1 << 20, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63)):
        for name in ("matrix_power", "linalg_matrix_power"):
            yield Case(f"{name} {power}", ((name, (At(0), power)),), held(torch.eye(4) * 0.5), True)


def memory() -> Iterator[Case]:
    """Far more than what is given: by repetition, by numbers, and by pairs."""
    views: dict[str, tuple[Steps, Callable[[], list[torch.Tensor]]]] = {
        "expand": ((("expand", (At(0), [N])),), ones((1,))),
        "expand rows": ((("expand", (At(0), [1 << 20, 1 << 10])),), ones((1, 1 << 10))),
        "broadcast_to": ((("broadcast_to", (At(0), [1 << 15, 1 << 15])),), ones((1,))),
        "expand twice": ((("expand", (At(0), [1 << 15, 1])), ("expand", (At(-1), [1 << 15, 1 << 15]))), ones((1,))),
        "expand, turned": ((("expand", (At(0), [1 << 15, 1 << 15])), ("t", (At(-1),))), ones((1,))),
        "expand, a part": ((("expand", (At(0), [2, N])), ("select.int", (At(-1), 0, 0))), ones((1,))),
    }
    readers: list[tuple[str, tuple[Any, ...]]] = [
        *((name, (At(-1),)) for name in ("clone", "relu", "sigmoid", "neg", "isnan", "nonzero", "sort", "argsort")),
        *((name, (At(-1),)) for name in ("median", "logical_not", "trunc", "zeros_like")),
        *((f"{name}.Tensor", (At(-1), At(-1))) for name in ("add", "mul", "div", "eq", "sub")),
        *((name, (At(-1), 0)) for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")),
        ("cat", ([At(-1), At(-1)],)),
        ("stack", ([At(-1), At(-1)],)),
        ("softmax.int", (At(-1), 0)),
        ("log_softmax.int", (At(-1), 0)),
        ("topk", (At(-1), 1, 0)),
        ("flip", (At(-1), [0])),
        ("roll", (At(-1), [1], [0])),
        ("reshape", (At(-1), [1 << 10, 1 << 20])),
        ("flatten.using_ints", (At(-1),)),
        ("to.dtype", (At(-1), torch.float64)),
        ("where.self", (At(-1), At(-1), At(-1))),
        ("pow.Tensor_Scalar", (At(-1), 2)),
        ("repeat", (At(-1), [2, 2])),
        ("contiguous", (At(-1),)),
        ("unique_dim", (At(-1), 0)),
        ("fft_fft", (At(-1),)),
        ("constant_pad_nd", (At(-1), [1, 1])),
        ("masked_fill.Scalar", (At(-1), At(-1), 1.0)),
        ("var", (At(-1),)),
        ("std", (At(-1),)),
        ("bernoulli", (At(-1),)),
        ("quantile.scalar", (At(-1), 0.5)),
        ("kthvalue", (At(-1), 1, 0)),
    ]
    for (kind, (first, inputs)), (at, reader) in itertools.product(views.items(), enumerate(readers)):
        yield from both(f"{kind}, then {reader[0]} {at}", (*first, reader), inputs)
    yield from _growth()


def _growth() -> Iterator[Case]:
    doubled: Steps = (("cat", ([At(0), At(0)],)), *(("cat", ([At(-1), At(-1)],)) for _ in range(34)))
    yield from both("cat of itself", doubled, ones((1,)))
    row = ones((1 << 16,))
    for number in BIG:
        sized: list[tuple[str, tuple[Any, ...]]] = [
            ("full", ([number], 1.0)),
            ("ones", ([number],)),
            ("zeros", ([number, number],)),
            ("rand", ([number],)),
            ("randn", ([number],)),
            ("randint", (9, [number])),
            ("arange", (number,)),
            ("arange.start_step", (0.0, 1.0, 1.0 / number)),
            ("linspace", (0.0, 1.0, number)),
            ("logspace", (0.0, 1.0, number)),
            ("eye", (number,)),
            ("eye.m", (number, number)),
            ("randperm", (number,)),
            ("tril_indices", (number, number)),
            ("triu_indices", (number, number)),
            ("hann_window", (number,)),
            ("kaiser_window", (number,)),
            ("new_full", (At(0), [number], 1.0)),
            ("new_zeros", (At(0), [number])),
            ("repeat", (At(0), [number])),
            ("tile", (At(0), [number])),
            ("expand_copy", (At(1), [number])),
            ("constant_pad_nd", (At(0), [0, number])),
            ("diag_embed", (At(0), number)),
            ("diagflat", (At(0), number)),
            ("nonzero_static", (At(0), number)),
            ("repeat_interleave.self_int", (At(0), number)),
            ("one_hot", (At(2), number)),
            ("bincount", (At(2), None, number)),
            ("histc", (At(0), number)),
            ("histogram.bin_ct", (At(0), number)),
            ("histogramdd.int_bins", (At(3), number)),
            ("_histogramdd_bin_edges", (At(3), [number, number])),
            ("affine_grid_generator", (At(4), [1, 1, number, number], False)),
            ("vander", (At(0), number)),
            ("linalg_vander", (At(0),)),
            ("fft_fft", (At(0), number)),
            ("fft_irfft", (At(0), number)),
            ("fft_fftfreq", (number,)),
            ("upsample_nearest1d", (At(5), [number])),
            ("upsample_linear1d", (At(5), [number], False)),
            ("adaptive_avg_pool1d", (At(5), [number])),
            ("multinomial", (At(0), number, True)),
            ("unfold", (At(0), 0, 1 << 15, 1)),
            ("unfold_copy", (At(0), 0, 1 << 15, 1)),
            ("mvlgamma", (At(0), number)),
            ("range", (0.0, float(number))),
            ("cartesian_prod", ([At(0), At(0)],)),
            ("combinations", (At(0), 3)),
            ("meshgrid", ([At(0), At(0)],)),
            ("outer", (At(0), At(0))),
            ("kron", (At(0), At(0))),
            ("block_diag", ([At(1)] * 4,)),
            ("pad_sequence", ([At(0), At(1)] * 40000, True)),
            ("tensor_split.sections", (At(0), number)),
            ("split.Tensor", (At(1), 0)),
            ("chunk", (At(0), number)),
            ("unsafe_split.Tensor", (At(0), 1)),
            ("unsafe_chunk", (At(0), number)),
            ("unbind.int", (At(0),)),
            ("hsplit.int", (At(0), number)),
            ("tensordot", (At(0), At(0), [], [])),
            ("einsum", ("i,j,k->ijk", [At(0), At(0), At(0)])),
            ("cdist", (At(3), At(3))),
            ("pdist", (At(3),)),
            ("istft", (At(0), number)),
            ("stft", (At(0), 4, 1)),
            ("trapezoid", (At(0),)),
            ("col2im", (At(6), [number, number], [1, 1], [1, 1], [0, 0], [1, 1])),
            ("split_with_sizes", (At(0), [number, -number])),
            ("pixel_shuffle", (At(7), number)),
            ("native_channel_shuffle", (At(7), number)),
            ("logspace", (0.0, 1e30, number)),
        ]

        def given() -> list[torch.Tensor]:
            return [
                *(torch.ones(1 << 16), torch.ones(1), torch.ones(4, dtype=torch.int64), torch.ones(1 << 16, 2)),
                *(torch.ones(1, 2, 3), torch.ones(1, 1, 8), torch.ones(1, 1, 1), torch.ones(1, 4, 2, 2)),
            ]

        for at, (name, args) in enumerate(sized):
            if name == "pad_sequence" and number != BIG[0]:
                continue
            yield from both(f"{name} {at} {number}", ((name, args),), given)
    yield from both("unfold, then clone", (("unfold", (At(0), 0, 1 << 15, 1)), ("clone", (At(-1),))), row)
    folded = (("reshape", (At(0), [1 << 16, 1])), ("reshape", (At(0), [1, 1 << 16])), ("matmul", (At(-2), At(-1))))
    yield from both("an outer product of rows", folded, row)


def time() -> Iterator[Case]:
    """Work without end, of little memory."""
    wide = (("expand", (At(0), [1 << 40])),)
    for name in ("sum", "mean", "any", "all", "max", "min", "argmax", "amax", "prod", "logsumexp", "norm"):
        args: tuple[Any, ...] = (At(-1), [0]) if name in ("logsumexp", "amax") else (At(-1),)
        yield from both(f"{name} over 2^40", (*wide, (name, args)), ones((1,)))
    many = (("expand", (At(0), [1 << 14, 1 << 24])), ("expand", (At(0), [1 << 24, 1 << 14])))
    yield from both("a product 2^24 deep", (*many, ("mm", (At(-2), At(-1)))), ones((1, 1)))
    for degree in (1 << 20, 1 << 40, (1 << 63) - 1):
        for kind in (
            "chebyshev_polynomial_t",
            "hermite_polynomial_h",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
        ):
            steps = ((f"special_{kind}.n_scalar", (At(0), degree)),)
            yield Case(f"{kind} {degree}", steps, ones((64,)), True)
    for count in (1 << 20, 1 << 31, 1 << 40):
        for name in ("split.Tensor", "tensor_split.sections", "chunk", "unsafe_chunk", "unbind.int"):
            steps = (("expand", (At(0), [count])), (name, (At(-1),) if "unbind" in name else (At(-1), 1)))
            if "chunk" in name or "sections" in name:
                steps = (("expand", (At(0), [count])), (name, (At(-1), count)))
            yield from both(f"{name} into {count}", steps, ones((1,)))
    windows = (("expand", (At(0), [1, 1, 1 << 15, 1 << 15])),)
    for name in ("avg_pool2d", "max_pool2d_with_indices"):
        yield from both(f"{name} of 2^15", (*windows, (name, (At(-1), [1 << 14, 1 << 14], [1, 1]))), ones((1, 1, 1, 1)))
    turns: Steps = tuple(("mm", (At(0), At(0))) if not turn else ("mm", (At(0), At(-1))) for turn in range(400))
    yield Case("400 small products", turns, ones((64, 64)))


def recipes() -> Iterator[RecipeCase]:
    """What makes weights again, of all classes: a call that no stranger's program may make, or that does not fit."""
    for case in itertools.chain(foreign_memory(), deadly_values()):
        if len(case.steps) == 1:
            yield RecipeCase(case)
    for case in itertools.chain(_growth(), time()):
        if len(case.steps) == 1 and not case.is_trusted:
            yield RecipeCase(case)
    for number in (999, -1, 1 << 40, "float32", [0], None):
        words = (number, None, None, None, False, None)
        yield RecipeCase(Case(f"_to_copy {number}", (("_to_copy", (At(0), *words)),), ones((4,))))
        yield RecipeCase(Case(f"to.dtype {number}", (("to.dtype", (At(0), number)),), ones((4,))))
        yield RecipeCase(Case(f"sum {number}", (("sum.dim_IntList", (At(0), number, False)),), ones((4,))))


VECTORS: Final = (
    *("CHW2", "HWC8", "CHW4", "CHW16", "CHW32", "DHWC8", "CDHW32", "HWC", "DLA_LINEAR", "DLA_HWC4", "HWC16", "DHWC"),
)


def written_heap() -> Iterator[PlanCase]:
    """Memory that is larger than whoever binds it is told."""
    for network in plan_fuzzer.FORGED:
        structure = _plan(network).structure
        for at, binding in enumerate(structure["engine"]["io"]):
            for layout in VECTORS:

                def vectorize(structure: dict[str, Any], at: int = at, layout: str = layout) -> None:
                    structure["engine"]["io"][at]["format"] = layout

                yield PlanCase(network, f"{network}: {binding['name']} as {layout}", vectorize, agrees=False)
            for extents in ([0], [1], [4, 4], [1 << 20], [-1], [1 << 40], []):

                def resize(structure: dict[str, Any], at: int = at, extents: list[int] = extents) -> None:
                    structure["engine"]["io"][at].update(shape=extents, extents=[])

                yield PlanCase(network, f"{network}: {binding['name']} of {extents}", resize, agrees=False)


def forged_extents() -> Iterator[PlanCase]:
    """Tensors of a plan whose extents are others than its kernels and weights were made for."""
    for network in plan_fuzzer.FORGED:
        for at, tensor in enumerate(_plan(network).structure["network"]["tensors"]):
            for axis, extent in enumerate(tensor["shape"]):
                for other in {0, 1, extent - 1, extent + 1, 2 * extent, 700, 1 << 31} - {extent}:

                    def resize(structure: dict[str, Any], at: int = at, axis: int = axis, other: int = other) -> None:
                        structure["network"]["tensors"][at]["shape"][axis] = other

                    yield PlanCase(network, f"{network}: tensor {at} is {other} along {axis}", resize)


def forged_numbers() -> Iterator[PlanCase]:
    """Attributes of layers that make no sense: strides of 0, endless loops, roots of nothing."""
    for network in plan_fuzzer.FORGED:
        entries = list(leaf_entries(_plan(network).structure["network"]["layers"]))
        for at, entry in enumerate(entries):
            for key, value in entry["attributes"].items():
                for turn, other in enumerate(_others(value)):

                    def change(structure: dict[str, Any], at: int = at, key: str = key, other: Any = other) -> None:
                        list(leaf_entries(structure["network"]["layers"]))[at]["attributes"][key] = other

                    yield PlanCase(network, f"{network}: {key} of layer {at} is {turn} {other!r:.60}", change)


_KERNELS: Final = sorted({*PRODUCT_KERNELS, *CONVOLUTION_KERNELS})
_TYPES: Final = ("FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8", "FP8", "INT4", "FP4", "E8M0")


def forged_codes() -> Iterator[PlanCase]:
    """Codes, scales and places of other types and counts than their kernels read, by kernels of other forms."""
    for network in ("codes", "few bits", "packed", "experts", "cache", "ranks"):
        structure = _plan(network).structure
        slots, layers = structure["engine"]["weight_slots"], structure["network"]["layers"]
        for at, kernel in itertools.product(range(len(layers)), _KERNELS):

            def choose(structure: dict[str, Any], at: int = at, kernel: str = kernel) -> None:
                structure["network"]["layers"][at]["implementation"] = kernel

            yield PlanCase(network, f"{network}: layer {at} by {kernel}", choose)
        for at, kind in itertools.product(range(len(structure["network"]["tensors"])), _TYPES):

            def retype(structure: dict[str, Any], at: int = at, kind: str = kind) -> None:
                structure["network"]["tensors"][at]["dtype"] = kind

            yield PlanCase(network, f"{network}: tensor {at} is {kind}", retype)
        for at, kind in itertools.product(range(len(slots)), _TYPES):

            def reslot(structure: dict[str, Any], at: int = at, kind: str = kind) -> None:
                _hold(structure, at, kind, structure["engine"]["weight_slots"][at]["count"])

            yield PlanCase(network, f"{network}: weights {at} are {kind}", reslot)
        for at, count in itertools.product(range(len(slots)), (0, 1, 2, 3, 7, 16, 1 << 31, 1 << 40)):

            def recount(structure: dict[str, Any], at: int = at, count: int = count) -> None:
                _hold(structure, at, structure["engine"]["weight_slots"][at]["dtype"], count)

            yield PlanCase(network, f"{network}: weights {at} are {count}", recount)
        for at, other in itertools.permutations(range(len(slots)), 2):

            def exchange(structure: dict[str, Any], at: int = at, other: int = other) -> None:
                found = structure["engine"]["weight_slots"]
                found[at]["weights"] = found[other]["weights"]

            yield PlanCase(network, f"{network}: weights {at} are those of {other}", exchange)


def _hold(structure: dict[str, Any], at: int, kind: str, count: int) -> None:
    """Lets a constant, its slot and its tensor say the same of what it holds."""
    slot = structure["engine"]["weight_slots"][at]
    slot["dtype"], slot["count"] = kind, count
    layer = list(leaf_entries(structure["network"]["layers"]))[slot["layer"]]
    layer["weight_specs"][slot["role"]] = [kind, count]
    if layer["type"] == "CONSTANT":
        layer["attributes"]["shape"] = [count]
        tensor = next(one for one in structure["network"]["tensors"] if one["id"] == layer["outputs"][0])
        tensor["dtype"], tensor["shape"] = kind, [count]


def _others(value: Any) -> list[Any]:
    """Values of the same type that nobody would write."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [number for number in (-1, 0, 7, 1 << 31, (1 << 63) - 1, -(1 << 63)) if number != value]
    if isinstance(value, float):
        return [number for number in (0.0, -1.0, 1e30) if number != value]
    if isinstance(value, list) and all(type(item) is int for item in value):
        lists = [[number] * len(value) for number in (-1, 0, 1 << 31, (1 << 63) - 1)]
        return [*lists, [*value, 1], value[:-1], []]
    return [None]


E = trt.ElementWiseOperation
_SILU: Final = trt.MoEActType.SILU

_UNKNOWN: Final = {
    *itertools.product((trt.int8,), (E.EQUAL, E.GREATER, E.LESS)),
    *itertools.product((trt.int32, trt.int64), (E.POW,)),
}
"""What no network has."""


def honest_networks() -> Iterator[DataCase]:
    """What a caller might give to an engine that somebody built in good faith."""
    types = {trt.int8: torch.int8, trt.int32: torch.int32, trt.int64: torch.int64}
    for (kind, dtype), operation in itertools.product(types.items(), E.__members__.values()):
        if operation in (E.AND, E.OR, E.XOR) or (kind, operation) in _UNKNOWN:
            continue
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        pairs = list(itertools.product((least, most, -1, 0, 1, 7), repeat=2)) * 4

        def make(net: plan_fuzzer.Net, kind: Any = kind, operation: Any = operation, count: int = len(pairs)) -> Any:
            x, y = (net.input(name, (count,), kind) for name in "xy")
            return [net.network.add_elementwise(x, y, operation).get_output(0)]

        def values(pairs: Any = pairs, dtype: torch.dtype = dtype) -> list[torch.Tensor]:
            return [torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True)]

        yield DataCase(f"{operation.name} of {dtype_name(dtype)}", make, values)
    strange = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -1.0, 3.4e38, -3.4e38, 1e-45]
    for operation in trt.UnaryOperation.__members__.values():

        def unary(net: plan_fuzzer.Net, operation: Any = operation) -> Any:
            return [net.network.add_unary(net.input("x", (len(strange),)), operation).get_output(0)]

        if operation is not trt.UnaryOperation.NOT:
            yield DataCase(f"{operation.name} of what is no number", unary, held(torch.tensor(strange)))
    for activation in trt.ActivationType.__members__.values():

        def bent(net: plan_fuzzer.Net, activation: Any = activation) -> Any:
            return [net.network.add_activation(net.input("x", (len(strange),)), activation).get_output(0)]

        yield DataCase(f"{activation.name} of what is no number", bent, held(torch.tensor(strange)))
    yield from _honest_places()


def _honest_places() -> Iterator[DataCase]:
    for number in (-(1 << 31), -5, -1, 4, 700, (1 << 31) - 1):
        at = torch.full((4, 3), number, dtype=torch.int32)

        def gather(net: plan_fuzzer.Net, mode: Any = None) -> Any:
            x, places = net.input("x", (4, 6)), net.input("at", (4, 3), trt.int32)
            layer = net.network.add_gather_v2(x, places, mode)
            layer.axis = 1
            return [layer.get_output(0)]

        def scatter(net: plan_fuzzer.Net) -> Any:
            x, places, rows = net.input("x", (4, 6)), net.input("at", (4, 3), trt.int32), net.input("y", (4, 3))
            layer = net.network.add_scatter(x, places, rows, trt.ScatterMode.ELEMENT)
            layer.axis = 1
            return [layer.get_output(0)]

        def one_hot(net: plan_fuzzer.Net) -> Any:
            values, depth = net.numbers([0.0, 1.0], "float32"), net.numbers(6)
            return [net.network.add_one_hot(net.input("at", (4, 3), trt.int32), values, depth, -1).get_output(0)]

        def experts(net: plan_fuzzer.Net) -> Any:
            hidden, chosen = net.input("h", (1, 4, 4)), net.input("at", (1, 4, 3), trt.int32)
            layer = net.network.add_moe(hidden, chosen, net.input("s", (1, 4, 3)))
            layer.set_gated_weights(*(net.constant(3, *shape) for shape in ((4, 5), (4, 5), (5, 4))), _SILU)
            return [layer.get_output(0)]

        def turned(net: plan_fuzzer.Net) -> Any:
            layer = net.network.add_reverse_sequence(net.input("x", (3, 6)), net.input("at", (3,), trt.int32))
            layer.batch_axis, layer.sequence_axis = 0, 1
            return [layer.get_output(0)]

        def kept(net: plan_fuzzer.Net) -> Any:
            given = net.input("c", (2, 3, 8, 4)), net.input("f", (2, 3, 2, 4)), net.input("at", (2,), trt.int32)
            return [net.network.add_kv_cache_update(*given, trt.KVCacheMode.LINEAR).get_output(0)]

        def rotary(net: plan_fuzzer.Net) -> Any:
            tables = net.input("cos", (8, 2)), net.input("sin", (8, 2))
            layer = net.network.add_rotary_embedding(net.input("x", (2, 3, 4, 4)), *tables, False, 0)
            layer.set_input(3, net.input("at", (2, 4), trt.int64))
            return [layer.get_output(0)]

        def ragged(net: plan_fuzzer.Net) -> Any:
            bounds = net.input("at", (4, 3, 1), trt.int32)
            return [net.network.add_ragged_softmax(net.input("x", (4, 3, 6)), bounds).get_output(0)]

        cache, fresh, table = torch.ones(2, 3, 8, 4), torch.ones(2, 3, 2, 4), torch.ones(8, 2)
        heads, positions = torch.ones(2, 3, 4, 4), torch.full((2, 4), number, dtype=torch.int64)
        yield DataCase(f"a cache written at {number}", kept, held(cache, fresh, at[:2, 0]))
        yield DataCase(f"rotation at {number}", rotary, held(table, table, heads, positions))
        yield DataCase(f"softmax of {number}", ragged, held(at[..., None], torch.ones(4, 3, 6)))
        rows = torch.ones(4, 6)
        for mode in (trt.GatherMode.DEFAULT, trt.GatherMode.ELEMENT):
            yield DataCase(f"gather {mode.name} at {number}", functools.partial(gather, mode=mode), held(rows, at))
        yield DataCase(f"scatter at {number}", scatter, held(rows, at, torch.ones(4, 3)))
        yield DataCase(f"one-hot of {number}", one_hot, held(at))
        yield DataCase(f"expert {number}", experts, held(torch.ones(1, 4, 4), at[None], torch.ones(1, 4, 3)))
        yield DataCase(f"{number} steps to turn", turned, held(torch.ones(3, 6), at[0]))
    for number in (float("nan"), float("inf"), 1.0, 0.0):

        def turns(net: plan_fuzzer.Net) -> Any:
            x = net.input("x", (2, 4))
            loop = net.network.add_loop()
            most = net.network.add_reduce(x, trt.ReduceOperation.MAX, 0b11, False).get_output(0)
            goes_on = net.network.add_elementwise(most, net.numbers(0.5, "float32"), E.GREATER).get_output(0)
            state = loop.add_recurrence(x)
            inner = net.network.add_elementwise(state.get_output(0), x, E.PROD).get_output(0)
            state.set_input(1, inner)
            loop.add_trip_limit(goes_on, trt.TripLimit.WHILE)
            return [loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)]

        yield DataCase(f"a loop while {number} is large", turns, held(torch.full((2, 4), number)))


_NUMBERS: Final = (-(1 << 63), -(1 << 31) - 1, -(1 << 31), -5, -1, 0, 1, 4, 700, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)


def values_at_call() -> Iterator[DataCase]:
    """Honest networks whose extents, counts and places are told with each call."""
    yield from _told_rotations()
    yield from _told_caches()
    yield from _told_attention()
    yield from _told_counts()
    yield from _told_places()


def _open(rank: int) -> tuple[tuple[int, ...], ...]:
    """The range of an input of which every extent varies."""
    return (0,) * rank, (2,) * rank, (1 << 20,) * rank


def _varying(net: plan_fuzzer.Net, name: str, rank: int, dtype: Any = trt.float32) -> Any:
    return net.input(name, (-1,) * rank, dtype)


def _told_rotations() -> Iterator[DataCase]:
    for is_paired, part, is_placed in itertools.product((False, True), (0, 2, 4), (False, True)):

        def rotate(
            net: plan_fuzzer.Net, is_paired: bool = is_paired, part: int = part, is_placed: bool = is_placed
        ) -> Any:
            x = _varying(net, "x", 4)
            tables = [_varying(net, name, 2 if is_placed else 3) for name in ("cos", "sin")]
            layer = net.network.add_rotary_embedding(x, *tables, is_paired, part)
            if is_placed:
                layer.set_input(3, _varying(net, "at", 2, trt.int64))
            return [layer.get_output(0)]

        ranges = {"x": _open(4), **{name: _open(2 if is_placed else 3) for name in ("cos", "sin")}}
        what = f"rotation of {part}, {'pairs' if is_paired else 'halves'}"
        heads = [(2, 3, 5, 4), (2, 3, 5, 5), (2, 3, 0, 4), (0, 3, 5, 4), (2, 3, 5, 0), (2, 3, 5, 1)]
        if not is_placed:
            rows = [(2, 5, 2), (2, 4, 2), (2, 0, 2), (1, 5, 2), (2, 1, 2), (3, 5, 2), (2, 5, 1), (2, 5, 0), (2, 5, 700)]
            for x, cosines, sines in itertools.product(heads, rows, rows[:4]):
                yield DataCase(f"{what}: {x} by {cosines}, {sines}", rotate, ones(x, cosines, sines), ranges)
            continue
        ranges["at"] = _open(2)
        tables = [(8, 2), (4, 2), (1, 2), (0, 2), (8, 1), (8, 0)]
        for x, table, number in itertools.product(heads, tables, _NUMBERS):
            places = torch.full((2, 5), number)
            shown = held(torch.ones(x), torch.ones(table), torch.ones(table), places)
            yield DataCase(f"{what}: {x} by a table of {table} at {number}", rotate, shown, ranges)
        for ids in ((2, 4), (2, 0), (1, 5), (5, 2), (2, 700)):
            shown = held(
                torch.ones(2, 3, 5, 4), torch.ones(8, 2), torch.ones(8, 2), torch.zeros(ids, dtype=torch.int64)
            )
            yield DataCase(f"{what}: places of {ids}", rotate, shown, ranges)


def _told_caches() -> Iterator[DataCase]:
    def padded(net: plan_fuzzer.Net, has_lengths: bool) -> Any:
        given = _varying(net, "c", 4), _varying(net, "f", 4), _varying(net, "s", 1, trt.int64)
        layer = net.network.add_kv_cache_update(*given, trt.KVCacheMode.LINEAR)
        if has_lengths:
            layer.update_lengths = _varying(net, "l", 1, trt.int32)
        return [layer.get_output(0)]

    def packed(net: plan_fuzzer.Net) -> Any:
        given = _varying(net, "c", 4), _varying(net, "f", 3), _varying(net, "s", 1, trt.int64)
        layer = net.network.add_kv_cache_update(*given, trt.KVCacheMode.LINEAR)
        layer.update_form = trt.AttentionIOForm.PACKED_NHD
        layer.update_lengths = _varying(net, "l", 1, trt.int32)
        return [layer.get_output(0)]

    plain, counted = (functools.partial(padded, has_lengths=has_lengths) for has_lengths in (False, True))
    cache = (2, 3, 8, 4)
    ranges = {"c": _open(4), "f": _open(4), "s": _open(1)}
    for number, fresh in itertools.product(
        _NUMBERS, ((2, 3, 2, 4), (2, 3, 9, 4), (2, 3, 0, 4), (1, 3, 2, 4), (2, 1, 2, 4), (2, 3, 2, 5), (3, 3, 2, 4))
    ):
        shown = held(torch.ones(cache), torch.ones(fresh), torch.full((2,), number))
        yield DataCase(f"a cache of {cache}, {fresh} at {number}", plain, shown, ranges)
    for number, fresh, length in itertools.product(_NUMBERS, ((2, 3, 2, 4), (2, 3, 9, 4), (2, 1, 2, 4)), _LENGTHS):
        shown = held(
            torch.ones(cache), torch.ones(fresh), torch.full((2,), number), torch.full((2,), length, dtype=torch.int32)
        )
        what = f"a cache of {cache}, {length} of {fresh} at {number}"
        yield DataCase(what, counted, shown, {**ranges, "l": _open(1)})
    for other in ((2, 3, 0, 4), (0, 3, 8, 4), (2, 0, 8, 4), (1, 3, 8, 4), (2, 3, 8, 0)):
        for starts in (0, 1, 2, 3):
            shown = held(torch.ones(other), torch.ones(2, 3, 2, 4), torch.zeros(starts, dtype=torch.int64))
            yield DataCase(f"a cache of {other}, {starts} places", plain, shown, ranges)
    for number, ends in itertools.product(_NUMBERS, _ENDS):
        shown = held(
            torch.ones(2, 3, 8, 4), torch.ones(6, 3, 4), torch.full((2,), number), torch.tensor(ends, dtype=torch.int32)
        )
        yield DataCase(
            f"a cache at {number}, packed rows to {ends}", packed, shown, {**ranges, "f": _open(3), "l": _open(1)}
        )


_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
_LENGTHS: Final = (_LEAST, -1, 0, 1, 9, _MOST)
_ENDS: Final = (
    *([0, 3, 6], [0, 6, 3], [6, 3, 0], [0, 7, 700], [-1, 3, 6], [0, -3, 6], [0, 3, _MOST], [_LEAST, _MOST, _LEAST]),
    *([_MOST, _LEAST, 0], [3, 3, 3], [0, 0, 0], [0], [], [0, 6], [0, 1, 2, 3], [0, 6] * 40, [2, 4, 6], [-6, -3, -1]),
)
"""Where groups end that do not follow each other, or lie elsewhere."""


def _told_attention() -> Iterator[DataCase]:
    softmax = trt.AttentionNormalizationOp.SOFTMAX

    def padded(net: plan_fuzzer.Net, heads: int = 4, groups: int = 2) -> Any:
        query = net.input("q", (-1, heads, -1, -1))
        key, value = (net.input(name, (-1, groups, -1, -1)) for name in "kv")
        layer = net.network.add_attention(query, key, value, softmax, False)
        layer.mask = _varying(net, "m", 4, trt.bool)
        layer.key_value_lengths = _varying(net, "l", 1, trt.int32)
        return [layer.get_output(0)]

    def packed(net: plan_fuzzer.Net, is_masked: bool) -> Any:
        query, key, value = (net.input(name, (-1, 2, -1)) for name in "qkv")
        layer = net.network.add_attention(query, key, value, softmax, False)
        layer.query_form = layer.key_value_form = trt.AttentionIOForm.PACKED_NHD
        layer.query_lengths, layer.key_value_lengths = (_varying(net, name, 1, trt.int32) for name in ("ql", "kl"))
        if is_masked:
            layer.mask = _varying(net, "m", 4)
        return [layer.get_output(0)]

    def mixed(net: plan_fuzzer.Net) -> Any:
        query, key, value = net.input("q", (-1, 2, -1, -1)), net.input("k", (-1, 2, -1)), net.input("v", (-1, 2, -1))
        layer = net.network.add_attention(query, key, value, softmax, False)
        layer.key_value_form = trt.AttentionIOForm.PACKED_NHD
        layer.key_value_lengths = _varying(net, "kl", 1, trt.int32)
        return [layer.get_output(0)]

    def range_of(heads: int, rank: int) -> Any:
        return tuple(tuple(heads if axis == 1 else extent for axis in range(rank)) for extent in (0, 2, 1 << 12))

    ranges = {"q": range_of(4, 4), "k": range_of(2, 4), "v": range_of(2, 4), "m": _open(4), "l": _open(1)}
    base, keys = (2, 4, 5, 8), (2, 2, 7, 8)
    others = ((2, 2, 0, 8), (2, 2, 6, 8), (2, 2, 700, 8), (1, 2, 7, 8), (3, 2, 7, 8), (2, 2, 7, 0), (2, 2, 7, 16))
    masks = ((2, 1, 5, 7), (1, 1, 1, 1), (2, 4, 5, 6), (2, 4, 700, 7), (3, 4, 5, 7), (0, 1, 5, 7))
    lengths = ([7, 7], [0, 0], [-1, _LEAST], [_MOST, _MOST], [7], [7, 7, 7], [])
    for key, value, mask, count in itertools.product((keys, *others), (keys, *others), masks[:2], lengths[:2]):
        shown = held(
            torch.ones(base),
            torch.ones(key),
            torch.ones(value),
            torch.ones(mask) > 0,
            torch.tensor(count, dtype=torch.int32),
        )
        yield DataCase(f"attention over {key}, {value}, mask {mask}, {count}", padded, shown, ranges)
    for query, mask, count in itertools.product((base, (2, 4, 0, 8), (0, 4, 5, 8)), masks, lengths):
        shown = held(
            torch.ones(query),
            torch.ones(keys),
            torch.ones(keys),
            torch.ones(mask) > 0,
            torch.tensor(count, dtype=torch.int32),
        )
        yield DataCase(f"attention of {query}, a mask of {mask}, lengths {count}", padded, shown, ranges)
    flat = {name: range_of(2, 3) for name in "qkv"}
    bare, masked = (functools.partial(packed, is_masked=is_masked) for is_masked in (False, True))
    for queries, found in itertools.product(_ENDS, _ENDS):
        ends = [torch.tensor(row, dtype=torch.int32) for row in (queries, found)]
        rows = [torch.ones(6, 2, 8), torch.ones(9, 2, 8), torch.ones(9, 2, 8)]
        yield DataCase(
            f"attention of rows to {str(queries)[:60]} over rows to {str(found)[:60]}",
            bare,
            held(*rows, *ends),
            {**flat, "ql": _open(1), "kl": _open(1)},
        )
    for found, mask in itertools.product(_ENDS, ((2, 2, 6, 9), (1, 1, 1, 1), (0, 2, 6, 9), (2, 1, 2, 2))):
        ends = [torch.tensor(row, dtype=torch.int32) for row in ([0, 3, 6], found)]
        rows = [torch.ones(6, 2, 8), torch.ones(9, 2, 8), torch.ones(9, 2, 8)]
        yield DataCase(
            f"attention under {mask} over rows to {str(found)[:60]}",
            masked,
            held(*rows, *ends, torch.ones(mask)),
            {**flat, "ql": _open(1), "kl": _open(1), "m": _open(4)},
        )
        yield DataCase(
            f"attention of {mask[0]} times {mask[2]} over rows to {str(found)[:60]}",
            mixed,
            held(torch.ones(mask[0], 2, mask[2], 8), *rows[1:], ends[1]),
            {**flat, "q": range_of(2, 4), "kl": _open(1)},
        )


def _told_counts() -> Iterator[DataCase]:
    """How much there is to be, as an input that lies on the host."""
    kinds: dict[str, tuple[int, Callable[[plan_fuzzer.Net, Any, Any], Any]]] = {}

    def kind(count: int) -> Callable[[Any], Any]:
        def listed(add: Any) -> Any:
            kinds[add.__name__.strip("_")] = count, add
            return add

        return listed

    @kind(2)
    def starts(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_slice(x, (0, 0), (2, 2), (1, 1))
        layer.set_input(1, n)
        return layer

    @kind(2)
    def sizes(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_slice(x, (0, 0), (2, 2), (1, 1))
        layer.set_input(2, n)
        return layer

    @kind(2)
    def strides(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_slice(x, (0, 0), (2, 2), (1, 1))
        layer.set_input(3, n)
        return layer

    @kind(2)
    def wrapped(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_slice(x, (0, 0), (2, 2), (1, 1))
        layer.mode = trt.SampleMode.REFLECT
        layer.set_input(2, n)
        return layer

    @kind(0)
    def best(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_topk(x, trt.TopKOperation.MAX, 2, 0b10)
        layer.set_input(1, n)
        return layer

    @kind(2)
    def filled(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_fill((), trt.FillOperation.RANDOM_UNIFORM, trt.float32)
        layer.set_input(0, n)
        return layer

    @kind(2)
    def shuffled(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_shuffle(x)
        layer.set_input(1, n)
        return layer

    @kind(2)
    def resized(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        layer = net.network.add_resize(x)
        layer.set_input(1, n)
        return layer

    @kind(0)
    def boxes(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        return net.network.add_nms(net.constant(1, 9, 4), net.constant(1, 9, 2), n)

    @kind(0)
    def turns(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        loop = net.network.add_loop()
        loop.add_trip_limit(n, trt.TripLimit.COUNT)
        state = loop.add_recurrence(x)
        state.set_input(1, net.network.add_unary(state.get_output(0), trt.UnaryOperation.ABS).get_output(0))
        return loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE)

    @kind(0)
    def rows(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        loop = net.network.add_loop()
        loop.add_trip_limit(net.numbers(3), trt.TripLimit.COUNT)
        state = loop.add_recurrence(x)
        state.set_input(1, net.network.add_unary(state.get_output(0), trt.UnaryOperation.ABS).get_output(0))
        layer = loop.add_loop_output(state.get_output(0), trt.LoopOutput.REVERSE, 1)
        layer.set_input(1, n)
        return layer

    @kind(0)
    def walked(net: plan_fuzzer.Net, x: Any, n: Any) -> Any:
        loop = net.network.add_loop()
        loop.add_trip_limit(n, trt.TripLimit.COUNT)
        row = loop.add_iterator(x, 1, True).get_output(0)
        state = loop.add_recurrence(net.constant(4))
        state.set_input(1, net.network.add_elementwise(state.get_output(0), row, E.SUM).get_output(0))
        return loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE)

    for (name, (count, add)), dtype in itertools.product(kinds.items(), (trt.int32, trt.int64)):
        if dtype is trt.int64 and name in ("best", "boxes"):
            continue  # no network has that

        def make(net: plan_fuzzer.Net, add: Any = add, count: int = count, dtype: Any = dtype) -> Any:
            n = net.input("n", (count,) if count else (), dtype)
            layer = add(net, net.input("x", (4, 6)), n)
            return [layer.get_output(0)]

        most = (1 << 31) - 1 if dtype is trt.int32 else (1 << 62)
        ranges = {} if name == "boxes" else {"n": tuple([number] * max(count, 1) for number in (-most - 1, 1, most))}
        for first, second in itertools.product(_NUMBERS, _NUMBERS if count else (0,)):
            if dtype is trt.int32 and not all(-(1 << 31) <= number < 1 << 31 for number in (first, second)):
                continue
            carrier = torch.int32 if dtype is trt.int32 else torch.int64
            told = torch.tensor([first, second][:count] if count else first, dtype=carrier)
            what = f"{name} by {dtype.name} {first}{f', {second}' if count else ''}"
            yield DataCase(what, make, held(told, torch.ones(4, 6)), ranges)


def _told_places() -> Iterator[DataCase]:
    """Places, scores and coordinates that come with the call."""
    strange = (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.5)

    def detect(net: plan_fuzzer.Net, is_shared: bool) -> Any:
        given = net.input("b", (1, 9, 4) if is_shared else (1, 9, 2, 4)), net.input("s", (1, 9, 2))
        layer = net.network.add_nms(*given, net.numbers(3))
        layer.set_input(3, net.numbers(0.5, np.float32))
        layer.set_input(4, net.numbers(0.1, np.float32))
        return [layer.get_output(0), layer.get_output(1)]

    def best(net: plan_fuzzer.Net) -> Any:
        layer = net.network.add_topk(net.input("x", (3, 9)), trt.TopKOperation.MAX, 4, 0b10)
        at = net.network.add_gather_v2(net.input("y", (3, 9)), layer.get_output(1), trt.GatherMode.ELEMENT)
        at.axis = 1
        return [layer.get_output(0), at.get_output(0)]

    def sample(net: plan_fuzzer.Net, mode: Any, edge: Any) -> Any:
        layer = net.network.add_grid_sample(net.input("x", (1, 3, 6, 6)), net.input("g", (1, 4, 4, 2)))
        layer.interpolation_mode, layer.sample_mode = mode, edge
        return [layer.get_output(0)]

    def nonzero(net: plan_fuzzer.Net) -> Any:
        return [net.network.add_non_zero(net.input("x", (3, 9))).get_output(0)]

    def cast(net: plan_fuzzer.Net, dtype: Any) -> Any:
        places = net.network.add_cast(net.input("x", (3, 2)), dtype).get_output(0)
        return [net.network.add_gather(net.input("y", (3, 9)), places, 1).get_output(0)]

    def spread(net: plan_fuzzer.Net, width: int) -> Any:
        at, rows = net.input("at", (-1, width), trt.int64), net.input("u", (-1, 6)[: 3 - width])
        return [net.network.add_scatter(net.input("x", (4, 6)), at, rows, trt.ScatterMode.ND).get_output(0)]

    def taken(net: plan_fuzzer.Net, width: int) -> Any:
        at = net.input("at", (-1, width), trt.int64)
        layer = net.network.add_gather_v2(net.input("x", (4, 6)), at, trt.GatherMode.ND)
        return [layer.get_output(0)]

    apart, shared = (functools.partial(detect, is_shared=is_shared) for is_shared in (False, True))
    whole = {dtype: functools.partial(cast, dtype=dtype) for dtype in (trt.int32, trt.int64)}
    pairs = list(itertools.product(strange, strange))
    for one, other in pairs:
        boxes, scores = torch.full((1, 9, 2, 4), one), torch.full((1, 9, 2), other)
        yield DataCase(f"boxes of {one}, scores of {other}", apart, held(boxes, scores))
        yield DataCase(f"shared boxes of {one}, scores of {other}", shared, held(boxes[:, :, 0], scores))
        rows = torch.tensor([[one, other, 0.0] * 3] * 3)
        yield DataCase(f"the best of {one}, {other}", best, held(rows, torch.ones(3, 9)))
        yield DataCase(f"what is not 0 of {one}, {other}", nonzero, held(rows))
        for dtype, make in whole.items():
            shown = held(torch.tensor([[one, other]] * 3), torch.ones(3, 9))
            yield DataCase(f"places {one}, {other} as {dtype.name}", make, shown)
    for mode, edge in itertools.product(
        (trt.InterpolationMode.NEAREST, trt.InterpolationMode.LINEAR, trt.InterpolationMode.CUBIC),
        (trt.SampleMode.FILL, trt.SampleMode.CLAMP, trt.SampleMode.REFLECT),
    ):
        make = functools.partial(sample, mode=mode, edge=edge)
        for one, other in pairs:
            shown = held(torch.ones(1, 3, 6, 6), torch.tensor([one, other] * 16).reshape(1, 4, 4, 2))
            yield DataCase(f"a picture at {one}, {other}, {mode.name}, {edge.name}", make, shown)
    for width in (1, 2):
        ranges = {
            "at": ((0, width), (3, width), (64, width)),
            "u": tuple((rows, 6)[: 3 - width] for rows in (0, 3, 64)),
        }
        writes, reads = functools.partial(spread, width=width), functools.partial(taken, width=width)
        for number, (count, rows) in itertools.product(_NUMBERS, ((3, 3), (0, 0), (3, 1), (3, 64), (64, 64))):
            at = torch.full((count, width), number)
            shape = (rows, 6)[: 3 - width]
            what = f"{count} places of {width} numbers {number}"
            yield DataCase(f"{shape} at {what}", writes, held(at, torch.ones(shape), torch.ones(4, 6)), ranges)
            if count == rows:
                yield DataCase(what, reads, held(at, torch.ones(4, 6)), {"at": ranges["at"]})


_ODD: Final = (2**31, 2**53, 2**63 - 1, 2**63, 2**70, -1, -(2**63), -(2**70))
_NO_NUMBERS: Final = (
    *(float(text) for text in ("nan", "inf", "-inf")),
    1e308,
    1e-308,
    5e-324,
    1e-30,
    0.0,
    -1.0,
    10**400,
)
_NO_FIELDS: Final = ([], {}, "x", 1, None, True, [[1]], [None], {"a": 1}, "a" * 100_000)
_VOCABULARY: Final = 16


class _Words(torch.nn.Module):
    """A step that likes other tokens at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 1, 16, 4))

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return torch.randn(2, _VOCABULARY, generator=torch.Generator().manual_seed(int(start)))


def settings_of_generators() -> Iterator[ActCase]:
    """What a file says of how tokens are chosen, and what a caller asks for."""
    plain = json.loads(GenerationLimits(2, 16, 4, (3,)).to_text())
    told = ("suppressed", "first_suppressed", "forced_last", "forced_first")
    counts = ("top_k", "no_repeat_ngram_size", "min_new_tokens")
    factors = ("temperature", "top_p", "min_p", "repetition_penalty")
    called = ("eos_token_id", "pad_token_id", "max_new_tokens", "num_beams", "num_return_sequences", *counts)
    said: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number in _ODD:
        said += [({"eos_token_ids": [number]}, {}), ({"pad_token_id": number}, {}), ({"vocabulary": number}, {})]
        said += [({"rules": {name: number if name == "forced_first" else [number]}}, {}) for name in told]
        said += [({"choice": {name: number}}, {}) for name in counts]
        said += [({}, {name: number}) for name in called]
    for value in _NO_NUMBERS:
        said += [({"choice": {name: value}}, {}) for name in factors]
        said += [({}, {name: value}) for name in (*factors, "length_penalty")]
    for value in _NO_FIELDS:
        said += [({name: value}, {}) for name in (*plain, "more")]
        said += [({}, {name: value}) for name in (*called, *factors)]
    everything = list(range(_VOCABULARY))
    said += [({"rules": {"suppressed": everything}}, {}), ({"eos_token_ids": list(range(100_000))}, {})]
    said += [({"eos_token_ids": everything, "choice": {"min_new_tokens": 4}}, {})]
    ways: list[dict[str, Any]] = [{}, {"do_sample": True}, {"num_beams": 2}, {"num_beams": 2, "do_sample": True}]
    for at, ((file, call), way) in enumerate(itertools.product(said, ways)):
        text = json.dumps({**plain, **file})
        yield ActCase(f"{at}: {file!r:.60} {call!r:.60} {way}", functools.partial(_generate, text, {**way, **call}))


def _generate(limits: str, call: dict[str, Any]) -> None:
    generator = TextGenerator(_Words(), GenerationLimits.from_text(limits))
    tokens = generator.generate(torch.tensor([[5]]), **{"max_new_tokens": 6, **call})
    pad = call.get("pad_token_id")
    is_pad = tokens == (generator.limits.pad_token_id if pad is None else pad)
    assert bool(((tokens >= 0) & (tokens < _VOCABULARY) | is_pad).all()), "tokens that there are not"


def timing_caches() -> Iterator[ActCase]:
    """Files of timings that are sealed, and say something else than timings."""
    key = "0x" + 32 * "0"
    entries: list[Any] = [*_NO_FIELDS, *({key: value} for value in _NO_FIELDS), {"0x": [1, 1.0]}, {"x" * 34: [1, 1.0]}]
    entries += [{key: [number, 1.0]} for number in _ODD] + [{key: [1, number]} for number in _NO_NUMBERS]
    entries += [{key: [1]}, {key: [1, 2, 3]}, {key: [True, 1.0]}, {key: [1.5, 1.0]}, {key: [1, "1"]}]
    for at, value in enumerate(entries):
        yield _timings(f"{at}: entries are {value!r:.60}", json.dumps({"made_in": environment(), "entries": value}))
    for at, value in enumerate(_NO_FIELDS):
        yield _timings(f"{at}: made in {value!r:.60}", json.dumps({"made_in": value, "entries": {}}))
        yield _timings(f"{at}: the whole is {value!r:.60}", json.dumps(value))
    deep, many = 100_000, ",".join(f'"0x{number:032x}":[{number},1.0]' for number in range(200_000))
    for name, text in {
        "depth": "[" * deep + "]" * deep,
        "depth of objects": '{"a":' * deep + "1" + "}" * deep,
        "depth of entries": '{"made_in":{},"entries":{"' + key + '":' + "[" * deep + "]" * deep + "}}",
        "a key twice": '{"made_in":{},"made_in":{},"entries":{}}',
        "an entry twice": '{"made_in":{},"entries":{"' + key + '":[1,1.0],"' + key + '":[1,1.0]}}',
        "a long number": '{"made_in":{},"entries":{"' + key + '":[' + "9" * deep + ",1.0]}}",
        "a large exponent": '{"made_in":{},"entries":{"' + key + '":[1,1e999999999]}}',
        "half of a character": '{"made_in":{"torch":"\\ud800"},"entries":{}}',
        "many entries": '{"made_in":{},"entries":{' + many + "}}",
        "nothing": "",
        "no text": "\udcff",
    }.items():
        yield _timings(name, text)


def _timings(name: str, text: str) -> ActCase:
    content = text.encode(errors="surrogateescape")
    return ActCase(name, functools.partial(_build_by, b"TRTPTIME" + hashlib.sha256(content).digest() + content))


def _build_by(timings: bytes) -> None:
    """Builds with timings, merges them with what was timed, and writes them."""
    net = plan_fuzzer.Net()
    config = net.builder.create_builder_config()
    cache = config.create_timing_cache(timings)
    if cache is None:
        raise PlanError("no timings")
    own = config.create_timing_cache(b"")
    for one, other in ((own, cache), (cache, own)):
        one.combine(other, True)
    assert config.create_timing_cache(bytes(memoryview(own.serialize()))).queryKeys() == own.queryKeys()
    config.set_timing_cache(cache, True)
    net.network.mark_output(net.network.add_activation(net.input("x", (2, 3)), trt.ActivationType.RELU).get_output(0))
    assert net.builder.build_serialized_network(net.network, config) is not None


def kernel_archives() -> Iterator[ActCase]:
    """Compiled kernels of a plan that is trusted, whose table says something else."""
    honest = {
        "tactic": "recorded",
        "machine": machine_of(torch.device("cpu")),
        "shapes": [[4, 6]],
        "varying": [],
        "conditions": [],
        "document": {"operands": [], "kernels": [], "steps": [], "slots": 0, "outputs": []},
        "blobs": {},
    }
    tables: list[Any] = [*_NO_FIELDS, [{}], [honest, honest]]
    tables += [[{**honest, name: value}] for name in honest for value in _NO_FIELDS]
    tables += [[{**honest, "shapes": [[number, 6]]}] for number in _ODD]
    tables += [
        [{**honest, "varying": [[0, 0, low, high]]}] for low, high in itertools.product((0, 1, *_ODD), (1, *_ODD))
    ]
    tables += [
        [{**honest, "varying": [[source, axis, 1, 8]]}] for source, axis in ((0, 2), (1, 0), (2**40, 0), (0, -1))
    ]
    tables += [[{**honest, "blobs": {"k": place}}] for place in ([0, 1], [5, 1], [-1, 1], [0, 2**63], [0], [0, 0, 0])]
    document = honest["document"]
    tables += [
        [{**honest, "document": {**document, name: value}}] for name in document for value in (*_NO_FIELDS, *_ODD)
    ]
    tables += [[{**honest, "document": {**document, "steps": [step]}}] for step in ([0], [0, [0]], ["x"], [[0, 1, 2]])]
    for at, table in enumerate(tables):
        yield _kernels(f"{at}: {table!r:.120}", json.dumps(table).encode())
    text = json.dumps([honest]).encode()
    for name, section in {
        "no length": b"\0",
        "a length beyond the end": struct.pack("<Q", 2**63) + text,
        "a length of nothing": struct.pack("<Q", 0) + text,
        "cut off": struct.pack("<Q", len(text)) + text[:-7],
        "depth": struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
        "an archive": b"PK\3\4" + bytes(60),
    }.items():
        yield ActCase(name, functools.partial(_run_with, section))


def _kernels(name: str, table: bytes) -> ActCase:
    return ActCase(name, functools.partial(_run_with, struct.pack("<Q", len(table)) + table))


def _run_with(compiled: bytes) -> None:
    """Runs a plan with kernels as one that nobody trusts, and as one that is trusted."""
    plan = _plan("linear")
    parts = {part: plan.structure[part] for part in ("network", "engine")}
    content = bytes(write_plan(parts, plan.weights, plan.structure["features"], compiled))
    for is_trusted in (False, True):
        runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
        runtime.engine_host_code_allowed = is_trusted
        engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            assert is_trusted, "kernels that nobody trusts are looked at"
            raise PlanError("refused")
        context = engine.create_execution_context()
        assert context is not None
        held = []
        for name in engine:
            shape = tuple(max(extent, 1) for extent in engine.get_tensor_shape(name))
            held.append(guarded(torch.ones(shape)))
            context.set_tensor_address(name, held[-1].data_ptr())
        context.execute_async_v3(0)


def odd_groups() -> Iterator[ActCase]:
    """Weights of few bits in groups that no row has, and budgets that no weights have."""
    for kind, rows, groups in itertools.product((trt.int4, trt.fp4), (1, 16), (0, 1, 2, 3, 5, 7, 32, 63, 64, 65, 128)):
        for shape in ((), (1, 2), (0, 0), (-1, -1), (1, -1), (1, 2**31), (2**40, 2**40), (1, 3), (1,), (1, 2, 3)):
            yield ActCase(
                f"{kind.name}: {rows} by {groups} scales, blocks of {shape}",
                functools.partial(_multiply_by_codes, kind, rows, groups, shape),
            )
    for size in (*_ODD, 0, 3, 7, 65, 128, float("nan"), 2.0, True, None, "64", [64]):
        yield ActCase(f"groups of {size!r}", functools.partial(_quantize_in, size))
    for budget in (*_ODD, 0, 10**30, *_NO_NUMBERS, True, None, "1", [1]):
        for is_streamed in (False, True):
            yield ActCase(
                f"a budget of {budget!r:.60}, streamed {is_streamed}",
                functools.partial(_stream, budget, is_streamed=is_streamed),
            )


def _multiply_by_codes(kind: Any, rows: int, groups: int, shape: tuple[int, ...]) -> None:
    net = plan_fuzzer.Net()
    scales = np.full((rows, groups), 0.1, np.float32)
    held = net.network.add_constant(scales.shape, scales).get_output(0)
    codes = net.network.add_quantize(net.constant(16, 64), held, kind)
    wide = net.network.add_dequantize(codes.get_output(0), held, trt.float32)
    try:
        if shape:
            codes.block_shape = wide.block_shape = shape
        product = net.network.add_matrix_multiply(
            net.input("x", (4, 64)), trt.MatrixOperation.NONE, wide.get_output(0), trt.MatrixOperation.TRANSPOSE
        )
        net.network.mark_output(product.get_output(0))
    except (TypeError, ValueError, AttributeError) as error:  # as TensorRT's bindings say it, and a layer that is none
        raise PlanError(str(error)) from error
    content = net.builder.build_serialized_network(net.network, net.builder.create_builder_config())
    if content is None:
        raise PlanError("refused")
    assert plan_fuzzer.run(bytes(memoryview(content)), random.Random(0)) == "ran"


def _quantize_in(size: Any) -> None:
    from trt_frontends.quantization import quantize

    model = torch.nn.Linear(64, 16).eval()
    quantize(model, [torch.ones(1, 64)], {"dtype": "int4_weight_only", "group_size": size})


def _stream(budget: Any, *, is_streamed: bool) -> None:
    from trt_runtime.module import weight_streaming

    network = "linear"
    plan = _plan(network)
    structure = json.loads(json.dumps(plan.structure))
    structure["engine"]["weight_streaming"] = is_streamed
    content = bytes(write_plan({part: structure[part] for part in ("network", "engine")}, plan.weights))
    engine = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(content)
    if engine is None:
        raise PlanError("refused")
    try:
        engine.weight_streaming_budget_v2 = budget
    except TypeError as error:  # as TensorRT's bindings say it
        raise PlanError(str(error)) from error
    assert 0 <= engine.weight_streaming_budget_v2 <= engine.streamable_weights_size
    weight_streaming(torch.nn.Identity(), budget)


def plugin_fields() -> Iterator[PlanCase]:
    """Fields of a plugin that say something else than whoever wrote it would."""
    types: tuple[Any, ...] = (
        *("O", "V8", "V2147483647", "f4,f4", "<M8", "<M8[ns]", "S", "U2147483647", "(2147483647,)i4", "x", "", "|O8"),
        *(" i4", "i4;", "float32", "c16", "?", "<f2", "<i8", "i3", "{'names':['a'],'formats':['O']}", None, 4, ["i4"]),
    )
    data: tuple[Any, ...] = ("", "AAA", "!!!!", "AAAAAA==", "A" * 4_000_000, "AAAAAAAAAAA=", "\0", None, 1, [], "é")
    kinds: tuple[Any, ...] = (*(kind.name for kind in trt.PluginFieldType), "NONE", "int32", 1, None, [])
    names: tuple[Any, ...] = ("", "other", "tactic", "x" * 100_000, None, 1, [])
    for key, values in {"dtype": types, "data": data, "type": kinds, "name": names}.items():
        for at, value in enumerate(values):
            yield _field(
                f"{key} {at} is {value!r:.40}", lambda fields, key=key, value=value: fields[0].update({key: value})
            )
    for kind, dtype, at in itertools.product(kinds[:8], types[:4] + types[15:18], (0, 2, 3)):
        change = {"type": kind, "dtype": dtype, "data": data[at]}
        yield _field(f"{kind} of {dtype}, data {at}", lambda fields, change=change: fields[0].update(change))
    yield _field("no field", list.clear)
    yield _field("a field twice", lambda fields: fields.append(fields[0]))
    yield _field("many fields", lambda fields: fields.extend(fields * 100_000))
    yield _field("more than a field", lambda fields: fields[0].update(more=1))
    for value in _NO_FIELDS:
        yield _field(f"a field is {value!r:.40}", lambda fields, value=value: fields.__setitem__(0, value))


def _field(name: str, change: Callable[[list[Any]], Any]) -> PlanCase:
    def changed(structure: dict[str, Any]) -> None:
        (saved,) = (
            entry["plugin"] for entry in leaf_entries(structure["network"]["layers"]) if entry.get("plugin") is not None
        )
        change(saved["fields"])

    return PlanCase("plugin", f"plugin: {name}", changed)


def truths() -> Iterator[Case]:
    """Truths that are neither, as bytes of a file may be."""
    told = torch.tensor([0, 1, 2, 3, 128, 255, 254, 2] * 8, dtype=torch.uint8).view(torch.bool)
    more = [told.reshape(8, 8), torch.arange(64.0).reshape(8, 8), torch.arange(8), torch.ones(1, 1, 8, 8)]
    x, y, rows, image = At(1), At(2), At(3), At(4)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        *(
            (name, (At(0),))
            for name in ("nonzero", "any", "all", "count_nonzero", "logical_not", "bitwise_not", "clone")
        ),
        *(
            (name, (x,))
            for name in ("nonzero", "sum", "max", "min", "amax", "amin", "prod", "sort", "argsort", "t", "isnan")
        ),
        *(
            (name, (x,))
            for name in ("unique_dim", "mode", "median", "flatten.using_ints", "contiguous", "tril", "neg", "sign")
        ),
        *(
            (name, (x, 0))
            for name in ("cumsum", "cumprod", "cummax", "logcumsumexp", "unbind.int", "sum", "argmax", "any.dim")
        ),
        *(
            (f"{name}.Tensor", (x, x))
            for name in ("add", "mul", "sub", "div", "eq", "lt", "bitwise_and", "bitwise_xor", "remainder")
        ),
        *((f"{name}.Tensor", (x, rows)) for name in ("add", "mul", "div", "bitwise_left_shift", "floor_divide")),
        *(
            (name, (x, x))
            for name in ("logical_and", "logical_xor", "maximum", "floor_divide", "mm", "dot", "gcd", "kron")
        ),
        *(("to.dtype", (x, dtype)) for dtype in (torch.int8, torch.uint8, torch.int64, torch.float16, torch.float64)),
        ("masked_select", (y, x)),
        ("masked_fill.Scalar", (y, x, 1.0)),
        ("masked_scatter", (y, x, y)),
        ("where.self", (x, y, y)),
        ("index.Tensor", (y, [x])),
        ("index.Tensor", (y, [At(0)])),
        ("index_put", (y, [x], y)),
        ("index_put", (y, [x], At(0))),
        ("nonzero_static", (x, 8)),
        ("gather", (y, 0, x)),
        ("topk", (x, 3)),
        ("kthvalue", (x, 3)),
        ("bincount", (At(0),)),
        ("one_hot", (At(0), 8)),
        ("repeat_interleave.Tensor", (At(0),)),
        ("searchsorted.Tensor", (x, x)),
        ("bucketize.Tensor", (x, At(0))),
        ("isin.Tensor_Tensor", (x, x)),
        ("cat", ([x, x],)),
        ("stack", ([x, x],)),
        ("flip", (x, [0])),
        ("embedding", (y, At(0))),
        ("scaled_dot_product_attention", (image, image, image, x)),
        ("_scaled_dot_product_flash_attention_for_cpu", (image, image, image, 0.0, False)),
        ("scatter.value", (x, 0, rows, True)),
        ("scatter_add", (x, 0, rows, x)),
        ("max_pool2d", (x, [2, 2])),
        ("constant_pad_nd", (x, [1, 1])),
        ("bernoulli", (x,)),
        ("view.dtype", (x, torch.int8)),
        ("expand", (x, [64, 8])),
        ("select.int", (x, 0, 1)),
    ]
    held_here = [told, more[0], more[1], torch.zeros(8, 8, dtype=torch.int64), more[3]]
    for at, (name, args) in enumerate(calls):
        steps: Steps = ((name, args), ("zeros_like", (At(-1),))) if name == "bernoulli" else ((name, args),)
        yield from both(f"{name} {at} of truths", steps, held(*held_here))


def _acts(make: Callable[[], Iterator[tuple[str, Callable[[], object]]]]) -> Callable[[], Iterator[ActCase]]:
    return lambda: (ActCase(f"{at}: {name}", act) for at, (name, act) in enumerate(make()))


def _operators_of_onnx() -> Iterator[ActCase]:
    import hostile_onnx  # all tests of ONNX's with it

    return _acts(hostile_onnx.operators)()


CLASSES: Final[dict[str, Callable[[], Iterator[Any]]]] = {
    "the heap is written": written_heap,
    "foreign memory": foreign_memory,
    "foreign memory, plans": forged_extents,
    "the process dies": deadly_values,
    "the process dies, plans": forged_numbers,
    "codes and ranks, plans": forged_codes,
    "the process dies, a caller's data": honest_networks,
    "values at the call": values_at_call,
    "memory": memory,
    "time": time,
    "recipes of weights": recipes,
    "settings of generators": settings_of_generators,
    "timing caches": timing_caches,
    "kernel archives": kernel_archives,
    "odd groups and budgets": odd_groups,
    "plugin fields": plugin_fields,
    "truths that are neither": truths,
    "numbers from data": hostile_operands.told_numbers,
    "numbers beyond 64 bits": hostile_operands.wrapped_numbers,
    "tensors for numbers": hostile_operands.tensors_for_numbers,
    "types of operands": hostile_operands.other_types,
    "memory of operands": hostile_operands.other_memory,
    "long to read": _acts(hostile_structures.long_to_read),
    "branches and loops": _acts(hostile_files.loops),
    "sizes from data": _acts(hostile_files.numbers_from_data),
    "signatures": _acts(hostile_files.forged_signatures),
    "folders of ranks": _acts(hostile_files.forged_manifests),
    "generators": _acts(hostile_files.forged_generators),
    "encoders of generators": _acts(hostile_files.forged_encoders),
    "files of inputs": _acts(hostile_files.forged_inputs),
    "records of programs": _acts(hostile_records.programs),
    "records of plans": _acts(hostile_records.plans),
    "lone records": _acts(hostile_records.lone),
    "cached engines": _acts(hostile_records.cached_engines),
    "operators of ONNX": _operators_of_onnx,
}

SLOWLY_MADE: Final = frozenset(
    {"records of programs", "records of plans", "lone records", "cached engines", "operators of ONNX"}
)
"""Classes whose cases take long to be listed: the suite takes some of them by hand."""


# Running -----------------------------------------------------------------------------------------------------------


def outcomes(cases: Sequence[Any]) -> dict[str, str]:
    """Runs cases in children of this process, one after the other, and says what came of each.

    Args:
        cases: Each has a name, and a method `run` that says how it ended.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(cases):
        answers, answer = os.pipe()
        child = os.fork()
        if not child:
            _confine()
            for case in cases[at:]:
                os.write(answer, (json.dumps([_end_of(case)]) + "\n").encode())
            os._exit(0)
        os.close(answer)
        with os.fdopen(answers) as file:
            ends = [json.loads(line)[0] for line in file]
        _, status = os.waitpid(child, 0)
        for end in ends:
            found[cases[at].name] = end
            at += 1
        if os.WIFSIGNALED(status):
            found[cases[at].name] = f"ended the process with signal {os.WTERMSIG(status)}"
            at += 1
    return found


def _confine() -> None:
    torch.set_num_threads(1)
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ[TURNS_VARIABLE] = "1000"
    used = int(_status("VmData")) + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (used, used))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")


def _end_of(case: Any) -> str:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    before = _status("VmHWM")
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        end: str = case.run()
    except BaseException as error:
        end = f"{type(error).__name__}: {error}"[:300]
    signal.setitimer(signal.ITIMER_PROF, 0)
    grown = _status("VmHWM") - before
    return f"took {grown >> 20} MiB" if grown > GROWTH else end


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{field}:"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind, make in CLASSES.items():
        if len(sys.argv) > 1 and kind not in sys.argv[1:]:
            continue
        counts: dict[str, int] = {}
        for name, end in outcomes(list(make())).items():
            counts[end] = counts.get(end, 0) + 1
            if end not in ("refused", "failed", "ran"):
                sys.stdout.write(f"{kind}: {name}: {end}\n")
        sys.stdout.write(f"{kind}: {json.dumps(counts)}\n")
        sys.stdout.flush()
