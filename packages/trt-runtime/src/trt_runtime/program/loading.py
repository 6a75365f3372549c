"""Loads saved programs: checks every byte and every claim before anything runs, and maps weights where they lie.

The parts of a program have to agree: what steps take with what the steps before them make, headers with the graph.
That is computed at the sizes that the program was tuned for, where every symbol is a number: no tensor is made. What
depends on data, or on a library's operator, is unknown here, and compared when it runs.
"""

from __future__ import annotations

import copyreg
import io
import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, overload

import torch
from torch import nn

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError, PlanError, TrtError
from trt_core.files.container import Section, kinds_in
from trt_core.files.foreign import EXPORTED_PROGRAM, foreign_file
from trt_core.files.opening import FileOfFolder, map_file
from trt_core.files.replacing import Path, file_name
from trt_core.held_arguments import also_named, held_to_signature
from trt_core.internals import OpOverload
from trt_core.limits import UNLIMITED, CallLimits
from trt_core.log import logger
from trt_core.sizes.expressions import Extent, evaluate_extent
from trt_core.sizes.functions import bounded
from trt_core.wording import kind_of
from trt_runtime.compatibility import check_compatible
from trt_runtime.engine import ENGINES
from trt_runtime.engine_file import PLAN
from trt_runtime.module import TRTModule
from trt_runtime.plan_notes import Bounds, is_own, note_bounds, note_own, vouch
from trt_runtime.plan_notes import allow_host_code as permit
from trt_runtime.program.allowed_operators import (
    COLLECTIVE_LIBRARY,
    COLLECTIVES,
    ENDLESS,
    find_operator,
    integers_of,
    needs_trust,
    why_not_an_argument,
)
from trt_runtime.program.document import program_from_bytes
from trt_runtime.program.fields import FACTS, MAX_EXTENT, OWNER, UNTOLD, malformed
from trt_runtime.program.graph import (
    CONTROL_FLOW,
    Body,
    ControlFlowCall,
    EngineCall,
    FixedInput,
    ItemCall,
    Leaf,
    NumberCall,
    NumberType,
    OperatorCall,
    Program,
    SequenceType,
    SizeCall,
    Step,
    StoredTensor,
    TensorInput,
    TensorType,
    ValueType,
    WriteCall,
    engine_result,
    operator_calls,
)
from trt_runtime.program.input_reader import homes_of
from trt_runtime.program.literals import Value, leaves, replace_values, values_in
from trt_runtime.program.load_options import LoadOptions, Trust
from trt_runtime.program.loaded_program import LoadedProgram
from trt_runtime.program.stored_tensors import unpack
from trt_runtime.program_file import PROGRAM, SectionKind, graph_in, programs_inside, read_sections

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_runtime.isolation import IsolatedProgram, Isolation


Known = ValueType | int | float | bool | None
"""What is known of a value: its type, with numbers or None for extents, or a number itself; None for no value."""

_SIZES: Final = frozenset({"size", "sizes", "repeats", "output_size", "dims_to_repeat"})
"""Arguments of operators whose product is the number of elements that the operator makes."""

_MOST_BYTES: Final = 1 << 40
"""No step makes as much: a terabyte."""

_COMMON_SIZE: Final = 1 << 16


def check_agreement(program: Program, operators: list[OpOverload], untold: int = UNTOLD) -> None:
    """Checks a whole program.

    Args:
        program: What was read from a file.
        operators: The operator of each `OperatorCall`, in order.
        untold: Elements that an operator may make whose result has sizes that depend on data.

    Raises:
        PlanError: Two parts of it contradict each other; the message names the step.
    """
    _Agreement(program, operators, untold).check()


class _Agreement:
    def __init__(self, program: Program, operators: list[OpOverload], untold: int) -> None:
        self._program = program
        self._untold = untold
        self._operators = iter(operators)
        homeless = program.symbols.keys() - homes_of(program.signature).keys()
        if homeless:
            raise malformed("symbols", f"no input shows {', '.join(sorted(homeless))[:200]}")
        self._symbols = {name: best for name, (_, best, _) in program.symbols.items()}
        self._known: list[Known] = [self._leaf(leaf, index) for index, leaf in enumerate(program.signature.leaves)]
        self._known += [TensorType(tensor.dtype, tuple(tensor.shape)) for tensor in program.tensors]

    def check(self) -> None:
        self._check_steps(self._program.steps, "")

    def _check_steps(self, steps: Sequence[Step], inside: str) -> None:
        for index, step in enumerate(steps):
            place = f"{inside}step {index}"
            try:
                self._known.append(self._step(step, place))
            except (ArithmeticError, ValueError, KeyError, TypeError, IndexError) as error:
                if isinstance(error, TrtError):
                    raise
                raise malformed(place, f"{type(error).__name__}: {error}") from error

    def _leaf(self, leaf: Leaf, index: int) -> Known:
        if isinstance(leaf, FixedInput):
            return leaf.value if isinstance(leaf.value, (int, float)) else None
        if not isinstance(leaf, TensorInput):
            return NumberType(leaf.kind)
        shape = []
        for dimension in leaf.shape:
            extent = self._evaluate(dimension.extent, f"input {index}")
            if extent is not None and not dimension.low <= extent <= dimension.high:
                raise malformed(f"input {index}", f"{extent} is not between {dimension.low} and {dimension.high}")
            shape.append(extent)
        return TensorType(leaf.dtype, tuple(shape))

    def _evaluate(self, extent: Extent, place: str) -> int | None:
        if extent is None:
            return None
        try:
            value = evaluate_extent(extent, self._symbols)
        except (ArithmeticError, ValueError) as error:
            raise malformed(place, str(error)) from error
        if not isinstance(value, int) or not 0 <= value <= MAX_EXTENT:
            raise malformed(place, f"{value} is no extent")
        return value

    def _step(self, step: Step, place: str) -> Known:
        if isinstance(step, EngineCall):
            return self._engine_call(step, place)
        if isinstance(step, OperatorCall):
            return self._operator_call(step, next(self._operators), place)
        if isinstance(step, NumberCall):
            return self._number_call(step, place)
        if isinstance(step, SizeCall):
            extent = self._tensor(step.tensor, place).shape[step.axis]
            return extent if isinstance(extent, int) else NumberType(int)
        if isinstance(step, ItemCall):
            sequence = self._known[step.sequence]
            if not isinstance(sequence, SequenceType) or step.index >= len(sequence.items):
                raise malformed(place, f"value {step.sequence} has no item {step.index}")
            return sequence.items[step.index]
        if isinstance(step, ControlFlowCall):
            return self._control_flow(step, place)
        self._check_write(step, place)
        return None

    def _control_flow(self, step: ControlFlowCall, place: str) -> Known:
        given: list[Known] = []
        for kind, operands in zip(CONTROL_FLOW[step.operator], step.operands, strict=True):
            known = [self._known[operand.index] if type(operand) is Value else operand for operand in operands]
            if any(item is None or isinstance(item, SequenceType) for item in known):
                raise malformed(place, "branches and loops take tensors and numbers")
            if kind == "sequence":
                if any(not isinstance(item, TensorType) or not item.shape for item in known):
                    raise malformed(place, "it takes the items of what has none")
                given += [TensorType(item.dtype, item.shape[1:]) for item in known if isinstance(item, TensorType)]
            elif kind != "predicate":
                given += known
        for number, body in enumerate(step.bodies):
            self._check_body(body, given, f"{place}, body {number}, ")
        return self._at_best(step.result, place)

    def _check_body(self, body: Body, given: Sequence[Known], place: str) -> None:
        outer = self._known
        self._known = [self._at_best(kind, place) for kind in body.inputs]
        for number, (declared, found) in enumerate(zip(self._known, given, strict=True)):
            if _contradict(declared, found):
                raise malformed(f"{place}input {number}", f"{found} is given where {declared} is declared")
        self._check_steps(body.steps, place)
        for number in values_in(list(body.output)):
            if isinstance(self._known[number], SequenceType | None):
                raise malformed(f"{place}value {number}", "bodies return tensors and numbers")
        self._known = outer

    def _number_call(self, step: NumberCall, place: str) -> Known:
        operands = [self._known[arg.index] if type(arg) is Value else arg for arg in step.args]
        if any(isinstance(operand, (TensorType, SequenceType, type(None))) for operand in operands):
            raise malformed(place, "a function of numbers takes what is no number")
        if any(isinstance(operand, NumberType) for operand in operands):
            return NumberType(float)  # of which kind is not known either
        result: Known = bounded(step.function)(*operands)
        return result

    def _tensor(self, index: int, place: str) -> TensorType:
        known = self._known[index]
        if not isinstance(known, TensorType):
            raise malformed(place, f"value {index} is no tensor")
        return known

    def _engine_call(self, step: EngineCall, place: str) -> Known:
        if step.engine >= len(self._program.engines):
            raise malformed(place, f"there is no engine {step.engine}")
        header = self._program.engines[step.engine].header
        if len(step.inputs) != len(header.inputs):
            raise malformed(place, f"{header.title} takes {len(header.inputs)} inputs, {len(step.inputs)} are given")
        shapes = []
        for number, (index, binding) in enumerate(zip(step.inputs, header.inputs, strict=True)):
            tensor = self._tensor(index, place)
            what = f"input {number} of {header.title}"
            if tensor.dtype is not binding.dtype or len(tensor.shape) != binding.rank:
                given = f"{dtype_name(tensor.dtype)} of rank {len(tensor.shape)}"
                raise malformed(place, f"{what} is {given}, not {dtype_name(binding.dtype)} of rank {binding.rank}")
            for extent, (low, _, high) in zip(tensor.shape, header.ranges[number], strict=True):
                if isinstance(extent, int) and not low <= extent <= high:
                    raise malformed(place, f"{what} has an extent of {extent}, not of {low} to {high}")
            shapes.append(tensor.shape)
        for number, _ in header.updates:
            self._require_written(step.inputs[number], place)
        return engine_result(header, shapes)

    def _operator_call(self, step: OperatorCall, operator: OpOverload, place: str) -> Known:
        place = f"{place}, {step.name}"
        _check_arguments(step, operator, place)
        wrong = why_not_an_argument(operator, step.args, step.kwargs, self._known)
        if wrong:
            raise malformed(place, wrong)
        for index in values_in([list(step.args), list(step.kwargs.values())]):
            if isinstance(self._known[index], SequenceType):
                raise malformed(place, f"value {index} is a sequence, whose items are taken one by one")
        result = self._at_best(step.result, place)
        self._check_sizes(step, operator, result, place)
        return result

    def _at_best(self, kind: ValueType | None, place: str) -> ValueType | None:
        if isinstance(kind, TensorType):
            shape = tuple(self._evaluate(extent, place) for extent in kind.shape)
            size = _count(shape, place) * kind.dtype.itemsize
            if size > _MOST_BYTES:
                raise malformed(place, f"a result of {size} bytes is too large")
            return TensorType(kind.dtype, shape)
        if isinstance(kind, SequenceType):
            return SequenceType(tuple(self._at_best(item, place) for item in kind.items))
        return kind

    def _check_sizes(self, step: OperatorCall, operator: OpOverload, result: ValueType | None, place: str) -> None:
        """An operator is not asked for more than the program says that it makes."""
        types = _tensor_types(result)
        made = [kind for kind in types if None not in kind.shape]
        is_told = len(made) == len(types) and bool(made)
        self._check_made(step, operator, max(_count(kind.shape, place) for kind in made) if is_told else None, place)
        if not is_told or step.name in ENDLESS:
            return
        read = [self._known[index] for index in values_in([list(step.args), list(step.kwargs.values())])]
        involved = [*made, *(known for known in read if isinstance(known, TensorType) and None not in known.shape)]
        limit = max(_COMMON_SIZE, *(_count(kind.shape, place) for kind in involved))
        arguments = operator._schema.arguments
        given = [*zip((argument.name for argument in arguments), step.args, strict=False), *step.kwargs.items()]
        integers = integers_of(operator)
        for name, value in given:
            if name not in integers:
                continue
            numbers = [self._known[leaf.index] if type(leaf) is Value else leaf for leaf in leaves(value)]
            sizes = [abs(number) for number in numbers if type(number) is int]
            if any(size > limit for size in sizes) or (name in _SIZES and math.prod(sizes) > limit):
                raise malformed(place, f"{name} is more than what the program says is made")

    def _check_made(self, step: OperatorCall, operator: OpOverload, told: int | None, place: str) -> None:
        """An operator that can grow makes no more elements than the program says, or a few times what is there."""
        from trt_core.operator_counts import elements_made
        from trt_runtime.program.operator_growth import how_to_allow, most_elements

        names = [argument.name for argument in operator._schema.arguments]
        given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
        try:
            operands = {name: replace_values(value, self._number_or_shape) for name, value in given.items()}
        except KeyError:  # a value that is known when it runs, and looked at then
            return
        operands = {name: value for name, value in operands.items() if value is not None}
        made = elements_made(operator, operands)
        if made is None or made <= most_elements(told, operands, self._untold):
            return
        if told is None:
            raise PlanError(
                f"{place} would make {made:.0f} elements, which the program does not say", hint=how_to_allow(made)
            )
        raise malformed(place, f"it makes {made:.0f} elements, more than the program says")

    def _number_or_shape(self, index: int) -> Any:
        from trt_core.operator_counts import MASKS, MaskShape

        known = self._known[index]
        if isinstance(known, TensorType) and None not in known.shape:
            extents = (extent for extent in known.shape if isinstance(extent, int))
            return MaskShape(extents) if known.dtype in MASKS else tuple(extents)
        if isinstance(known, (int, float)):
            return known
        raise KeyError(index)  # known when it runs

    def _require_written(self, value: int, place: str) -> None:
        """Results may be views, by which more would be written to than the program says (`Program.written`)."""
        if value >= self._program.first_result:
            raise malformed(place, "only inputs and held tensors are written to")

    def _check_write(self, step: WriteCall, place: str) -> None:
        self._require_written(step.target, place)
        target, source = self._tensor(step.target, place), self._tensor(step.source, place)
        pairs = zip(target.shape, source.shape, strict=False)
        if len(target.shape) != len(source.shape) or any(
            left != right for left, right in pairs if left is not None and right is not None
        ):
            raise malformed(place, f"a tensor of shape {source.shape} is written into one of {target.shape}")


def _contradict(declared: Known, found: Known) -> bool:
    """Whether a tensor stands where a number is declared, or a tensor of another type or shape."""
    if not isinstance(declared, TensorType) or not isinstance(found, TensorType):
        return isinstance(declared, TensorType) or isinstance(found, TensorType)
    return (
        declared.dtype is not found.dtype
        or len(declared.shape) != len(found.shape)
        or any(
            None not in (ours, theirs) and ours != theirs
            for ours, theirs in zip(declared.shape, found.shape, strict=True)
        )
    )


def check_stored(tensors: tuple[StoredTensor, ...], device: str) -> None:
    """Checks that every tensor lies where the program can run.

    Raises:
        PlanError: One lies elsewhere.
    """
    for index, tensor in enumerate(tensors):
        if tensor.device not in ("cpu", device):
            raise malformed(f"tensor {index}", f"it lies on {tensor.device}, and the program runs on {device}")


def _tensor_types(kind: ValueType | None) -> list[TensorType]:
    if isinstance(kind, TensorType):
        return [kind]
    return [found for item in kind.items for found in _tensor_types(item)] if isinstance(kind, SequenceType) else []


def _count(shape: tuple[Extent, ...], place: str) -> int:
    """Elements of a shape, as far as it is known."""
    elements = math.prod(extent for extent in shape if isinstance(extent, int))
    if elements > MAX_EXTENT:
        raise malformed(place, f"{elements} elements are too many")
    return elements


def _check_arguments(step: OperatorCall, operator: OpOverload, place: str) -> None:
    """The arguments fit the schema in number and by name."""
    schema = operator._schema
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(step.args) > len(positional):
        raise malformed(place, f"it takes {len(positional)} positional arguments, {len(step.args)} are given")
    missing = {argument.name for argument in schema.arguments if not argument.has_default_value()}
    missing -= {argument.name for argument in positional[: len(step.args)]}
    allowed = {argument.name for argument in schema.arguments} - {
        argument.name for argument in positional[: len(step.args)]
    }
    if not set(step.kwargs) <= allowed or missing - set(step.kwargs):
        raise malformed(place, "arguments are missing, unknown or given twice")
    if any(isinstance(leaf, torch.device) and leaf.type == "meta" for leaf in leaves(list(step.args))):
        raise malformed(place, "programs do not run on the meta device")


_ZIP: Final = b"PK\x03\x04"
_PORTABLE: Final = b"TRTPORT\n"
_TO_TRUST: Final = (
    "list their key (python -m trt_runtime trust), sign the file (python -m trt_runtime sign), or load it with "
    "trust=True"
)
_COMPILED: Final = 3
"""Kind of the section of a plan of portable's that holds compiled code."""


class TrustKeywords(TypedDict, total=False):
    """Keywords of whatever reads a file, for type checkers: what may be in it."""

    operators: Collection[str]
    allow_host_code: bool
    trusted_keys: Collection[Path]
    data_dependent_elements: int
    limits: CallLimits | None


class RunKeywords(TrustKeywords, total=False):
    """Keywords of `load`, for type checkers, but for those that decide what it returns; a test holds them to it."""

    device: torch.device | str | None
    result_types: Collection[Any]
    copy: bool | None
    mesh: Any
    group: Any


class LoadKeywords(RunKeywords, total=False):
    """Keywords of `load`, for type checkers: what other doors hand on to it."""

    trust: bool
    isolated: bool | Isolation


@overload
def load(
    path: Path, *, trust: Literal[False] = ..., isolated: Literal[False] = ..., **options: Unpack[RunKeywords]
) -> LoadedProgram: ...
@overload
def load(
    path: Path, *, isolated: Literal[True] | Isolation, trust: bool = ..., **options: Unpack[RunKeywords]
) -> IsolatedProgram: ...
@overload
def load(path: Path, **options: Unpack[LoadKeywords]) -> nn.Module: ...
@also_named(file_path="path")
@held_to_signature
def load(
    path: Path,
    *,
    operators: Collection[str] = (),
    trust: bool = False,
    allow_host_code: bool = False,
    trusted_keys: Collection[Path] = (),
    data_dependent_elements: int = UNTOLD,
    device: torch.device | str | None = None,
    result_types: Collection[Any] = (),
    copy: bool | None = None,
    limits: CallLimits | None = None,
    isolated: bool | Isolation = False,
    mesh: Any = None,
    group: Any = None,
) -> nn.Module:
    """Loads a saved program; needs nothing of what compiled it.

    Nothing in the file is run or imported, and every claim in it is checked, so a program may come from anyone. A
    large file that only this user and root can write to is mapped, not read: processes share the memory of its weights
    and plans, and it must not be changed in place while the module lives. `save` replaces files, which is safe.

    Args:
        path: A file that `save` wrote, or a folder that `save_sharded` wrote, of which it takes
            the program of this rank. Before its first call the ranks make sure that all of them have loaded the same.
        operators: Libraries whose operators the program may call, and whose plugins its engines may hold, by namespace:
            `["torchvision"]`. They are imported when those are not registered yet, by their entry point in the group
            `trt_runtime.plugins` where they have one; name only libraries that you trust. `["_c10d_functional"]` lets a
            single file talk to other ranks; a folder of `save_sharded` talks to those that load it.
        trust: Trust whoever wrote the file, as if it were signed with a trusted key: all operators that compute may be
            called, and compiled code runs. Also read programs in PyTorch's own format (`torch.export.save`, or
            `save(..., format="exported_program")`). PyTorch evaluates and unpickles what is in them: whoever wrote
            the file can run any code here.
        allow_host_code: Also read programs that carry compiled code for this host, and let engines run kernels that
            were compiled elsewhere; like `trust`, for such code.
        trusted_keys: Public keys, or files of them, whose files are trusted beside those of this user, of
            `python -m trt_runtime trust` and of `TRT_TRUSTED_KEYS`; see `trt_runtime.signatures`.
        data_dependent_elements: Elements that a PyTorch operator may make where how many depends on data, so that the
            program cannot say: all pairs of the points that a mask selects. An operator may always make 64 times as
            many as its operands have. Raise it for programs that you trust and that make more.
        device: Where it is to run, of the kind that it was compiled for: `"cuda:1"`; by default the present GPU.
        result_types: Classes of the model's library to give the results again, as classes, or as `"module:Class"` of
            modules that are imported; nothing is imported. Other results of classes are dicts with attributes.
        copy: True to read the file rather than map it, so that nothing matters that becomes of it; False to map it
            although others can write to it, or it is small.
        limits: What each call may use: memory, elements, operators, turns of loops, time. By default generous
            multiples of what is given to a call (`CallLimits`), and nothing is counted of trusted files.
        isolated: True, or limits: run the program in a process of its own that can do nothing but compute, so that a
            crash is an error; see `trt_runtime.isolation`. On Linux.
        mesh: The device mesh that a sharded model is to run on, held to the one that it was saved with.
        group: The process group of all ranks of a sharded model; all processes by default.

    Returns:
        A module that is called like the model that was compiled.

    Raises:
        InputError: `path` names no file, `data_dependent_elements` is no number of elements, one of `trusted_keys`
            no key, one of `result_types` no class of a result, or the program cannot run on `device`.
        PlanError: The file is truncated, corrupt, foreign or hostile, calls an operator that it may not, or its engines
            cannot run here; the message says what does not match.
        OSError: The file cannot be read.
    """
    options = LoadOptions(
        operators=operators,
        trust=trust,
        allow_host_code=allow_host_code,
        trusted_keys=trusted_keys,
        data_dependent_elements=data_dependent_elements,
        device=device,
        result_types=result_types,
        limits=limits,
    )
    name = file_name(path)
    if mesh is not None and not os.path.isdir(name):
        raise InputError("a mesh is for a folder that save_sharded wrote, and this is a file", where=name)
    if isolated is not False:
        return _load_isolated(path, isolated, options, copy)
    if os.path.isdir(name) and not isinstance(path, FileOfFolder):
        from trt_runtime.sharded import RankPart, holds_manifest  # which few programs need

        if holds_manifest(name):
            part = RankPart.find(name, mesh, group)
            return part.finish(_load_file(part.file, copy, replace(options, ranks=part.ranks), part.check))
    module = _load_file(path, copy, options)
    _require_own(getattr(module, "meta", {}).get(OWNER), name)
    return module


def _require_own(owner: Any, name: str) -> None:
    """Refuses the program of another rank, in a process that has one itself: it holds the shards of that one.

    Args:
        owner: The rank that saved it, as text; None for programs that talk to no others.
        name: The file.

    Raises:
        PlanError: It is another's.
    """
    has_rank = torch.distributed.is_available() and torch.distributed.is_initialized()
    if owner is None or not has_rank or owner == str(torch.distributed.get_rank()):
        return
    raise PlanError(
        "a program of another rank holds other parts of the model",
        where=name,
        why=f"rank {owner:.20} has saved it, and this is rank {torch.distributed.get_rank()}",
        hint="let all ranks save one folder by save_sharded, which load reads by rank, or each a file of its own",
    )


def _load_file(
    path: Path, copy: bool | None, options: LoadOptions, check: Callable[[Any], None] = lambda content: None
) -> nn.Module:
    """Loads the program of one file.

    Args:
        path: The file.
        copy, options: See `load`.
        check: Refuses bytes that are not the wanted ones.

    Raises:
        PlanError, OSError: See `load`.
    """
    try:
        content = _content(path, copy=copy, check=check)
        return _load_exported(path, options.trust) if content is None else program_from_memory(content, options)
    except PlanError as error:
        raise _told_of(file_name(path), error) from error


def load_with(path: Path, **options: Unpack[LoadKeywords]) -> tuple[nn.Module, ...]:
    """Loads a saved program and the programs inside of its file, which are trusted as it is.

    Args:
        path: A file that `save_with` wrote; or anything else that `load` takes, which is loaded alone.
        options: As for `load`; a program that is isolated is loaded alone.

    Raises:
        InputError, PlanError, OSError: As for `load`.
    """
    name = file_name(path)
    alone = options.get("isolated") or os.path.isdir(name) or options.get("mesh") is not None
    try:
        content = None if alone else _content(path, copy=options.get("copy"))
        if content is None:
            return (load(path, **options),)
        of_files = ("copy", "isolated", "mesh", "group")
        of_bytes: dict[str, Any] = {name: value for name, value in options.items() if name not in of_files}
        programs = programs_from_memory(content, LoadOptions(**of_bytes))
        for program in programs:
            _require_own(program.meta.get(OWNER), name)
        return programs
    except PlanError as error:
        raise _told_of(name, error) from error


def require_whole(path: Path) -> None:
    """Refuses a file that is no saved program, or a damaged one, without loading it.

    Raises:
        PlanError, OSError: As for `load`.
    """
    try:
        content = _content(path, copy=False)
        if content is not None:  # PyTorch reads its own format, as a whole
            read_sections(memoryview(content))
    except PlanError as error:
        raise _told_of(file_name(path), error) from error


def _content(path: Path, *, copy: bool | None, check: Callable[[Any], None] = lambda content: None) -> Any:
    """The bytes of a file of our format; None for one of PyTorch's.

    Raises:
        PlanError: It is the plan of an engine, or a file of another tool.
    """
    content = map_file(path, "a saved program", "trt_runtime.save", copy=copy)
    check(content)
    start = bytes(content[: len(PROGRAM.magic)])
    if start == PLAN.magic:
        raise PlanError("this is the plan of one engine, not a saved program", hint="read it with read_plan")
    if start == PROGRAM.magic:
        return content
    found = foreign_file(path)
    if found is not None and found is not EXPORTED_PROGRAM:
        raise PlanError("this is not a saved program", why=f"it is {found.what}", hint=found.hint)
    return None if start.startswith(_ZIP) else content


def _told_of(name: str, error: PlanError) -> PlanError:
    where = error.where if error.where.startswith(name) else ", ".join(filter(None, (name, error.where)))
    return PlanError(error.what, where=where, why=error.why, hint=error.hint)


def _load_isolated(path: Path, isolated: bool | Isolation, options: LoadOptions, copy: bool | None) -> nn.Module:
    from trt_runtime.isolation import IsolatedProgram, Isolation  # which few programs need

    name = file_name(path)
    if options.result_types:
        raise InputError("results of isolated programs are dicts with attributes", hint="give no result_types")
    if os.path.isdir(name):
        raise InputError("a model of several processes cannot be isolated", where=name)
    if not isinstance(isolated, (bool, Isolation)):
        raise InputError(f"isolated is True, False or an Isolation, not {kind_of(isolated)}")
    try:
        return IsolatedProgram(path, isolated if isinstance(isolated, Isolation) else Isolation(), options, copy)
    except PlanError as error:
        raise _told_of(name, error) from error


def program_from_memory(
    content: Any, options: LoadOptions | None = None, trusted_by: Trust | None = None
) -> LoadedProgram:
    """Loads a program from the bytes of its file, which it then uses where they are.

    Args:
        content: Memory that nobody else writes to: a private map of the file, or a bytearray.
        options: How it is read.
        trusted_by: What says whether the file is trusted that the program is inside of; None where it is none.

    Raises:
        PlanError: See `load`.
    """
    options = options or LoadOptions()
    data = memoryview(content)
    sections = read_sections(data)
    trusted = trusted_by or Trust(data, sections, options)
    carries_code = any(_carries_code(data, section) for section in sections)
    allow_host_code = options.allow_host_code or (carries_code and trusted.is_given)
    if any(section.kind is SectionKind.HOST_CODE for section in sections) and not allow_host_code:
        raise PlanError(
            "the saved program carries compiled code for this host, which runs unchecked",
            hint="if you trust where it comes from, load it with allow_host_code=True",
        )
    for section in sections:
        PROGRAM.verify(data, section)
    program = program_from_bytes(graph_in(data, sections))
    targets = [find_operator(call.name, call.overload, options.operators) for call in operator_calls(program.steps)]
    if not options.any_operator:
        # whoever names the library of collectives trusts it, as any other
        asked = [
            call for call in targets if call._schema.name not in COLLECTIVES or call.namespace not in options.operators
        ]
        _require_reviewed(asked, trusted)
    check_agreement(program, targets, options.data_dependent_elements)
    place = _device(program, options.device)
    check_stored(program.tensors, place.type)
    storages = _storages(content, sections, program)
    plans = _plans(content, sections, program)
    for number, engine in enumerate(program.engines):
        check_compatible(engine.header, warns=number == 0)
    if carries_code and not allow_host_code:
        logger.warning(
            "compiled kernels of the program are not used, and calls may take up to twice the time: %s. If you trust "
            "whoever wrote it, %s",
            trusted.why,
            _TO_TRUST,
        )
    is_known = options.trust or allow_host_code or trusted.is_found
    is_said = carries_code and not allow_host_code
    is_free = is_known or options.any_operator or COLLECTIVE_LIBRARY in options.operators
    given = frozenset(options.ranks)
    bounds = _bounds(
        options.limits,
        trusted,
        is_known=is_known,
        is_said=is_said,
        may_reach=lambda named: is_free or named <= given or trusted.is_given,
    )
    engines = [TRTModule(engine.header, plans[engine.section]) for engine in program.engines]
    plugins: Collection[str] = ()
    if FACTS in program.metadata:
        from trt_runtime.program.model_facts import ModelFacts  # which no other program needs

        plugins = ModelFacts.of(program.metadata).plugins
    if engines:
        _require_plugins(plugins, options.operators)
    for module in engines:
        if allow_host_code:
            permit(module.plan)
        else:
            note_own(module.plan, lambda: trusted.is_given)
        if bounds is not None:
            note_bounds(module.plan, bounds)
        ENGINES.engine_for(module.plan, module.header.text, place)
    tensors = unpack(program.tensors, storages, place)
    untold = options.data_dependent_elements
    return LoadedProgram(program, tensors, engines, targets, place, untold, options.result_types, bounds)


def programs_from_memory(content: Any, options: LoadOptions) -> tuple[LoadedProgram, ...]:
    """Loads a program and those inside of its file; see `program_from_memory`.

    Raises:
        PlanError: See `load`; or a program inside has a signature, or others inside.
    """
    data = memoryview(content)
    sections = read_sections(data)
    trusted = Trust(data, sections, options)
    return tuple(program_from_memory(part, options, trusted) for part in (content, *programs_inside(data, sections)))


def _bounds(
    limits: CallLimits | None,
    trusted: Trust,
    *,
    is_known: bool,
    is_said: bool,
    may_reach: Callable[[frozenset[int]], bool],
) -> Bounds | None:
    """What calls may use.

    Args:
        limits: What the caller says, which holds whoever wrote the file.
        trusted: Finds out whether the file is trusted, once a limit is reached.
        is_known: Whether it is known to be.
        is_said: Whether the user was told that compiled code of the file is not used.
        may_reach: Asked of the ranks of each collective.
    """
    if limits is not None:
        return Bounds(limits, lambda: False, is_said, may_reach) if is_said or limits != UNLIMITED else None
    return None if is_known else Bounds(CallLimits(), lambda: trusted.is_given, is_said, may_reach)


def _require_plugins(names: Collection[str], libraries: Collection[str]) -> None:
    """Registers the plugins of libraries that the caller has named, and those that engines need besides.

    A library offers plugins by an entry point of its name in the group `trt_runtime.plugins`, a function that registers
    them, once in a process. Those that call an operator of PyTorch need none.

    Raises:
        PlanError: A plugin is not registered, and its library was not named, does not have it, or fails.
    """
    if not names and not libraries:
        return
    from trt_core.entry_points import register_runtime_plugins  # few programs have plugins
    from trt_core.operator_plugin import has_plugin, register_operator, split_name

    for library in libraries:
        for item in register_runtime_plugins(library):
            if item.cause is not None:
                raise PlanError(
                    f"the plugins of the library {library!r} cannot be registered", where=item.value, why=item.error
                ) from item.cause
    for name in names:
        library, own = split_name(name)
        if has_plugin(name):
            continue
        if not library:
            raise PlanError(
                f"an engine of the program needs the plugin {name}, which belongs to no library",
                hint="register it before, or load the program with operators=[LIBRARY] of the library that offers it",
            )
        if library not in libraries:
            raise PlanError(
                f"an engine of the program needs the plugin {name} of the library {library!r}",
                hint=f"if you trust that library, load the program with operators=[{library!r}]",
            )
        base, _, overload = own.partition(".")
        register_operator(find_operator(f"{library}::{base}", overload, libraries))


def _require_reviewed(operators: Sequence[OpOverload], trusted: Trust) -> None:
    """A program that is not trusted calls only operators with a contract.

    Raises:
        PlanError: It calls another one; the message names it.
    """
    name = next((str(operator) for operator in operators if needs_trust(operator)), "")
    if name and not trusted.is_given:
        raise PlanError(
            f"the program calls {name}, which only programs may call that are trusted",
            why=trusted.why,
            hint=f"if you trust whoever wrote it: {_TO_TRUST}",
        )


def _carries_code(data: memoryview, section: Section) -> bool:
    """Whether a section holds compiled code; a plan of portable's has a section of its own for it."""
    if section.kind is SectionKind.HOST_CODE:
        return True
    content = section.of(data)
    is_portable = section.kind is SectionKind.PLAN and bytes(content[: len(_PORTABLE)]) == _PORTABLE
    return is_portable and _COMPILED in kinds_in(content)


def _device(program: Program, wanted: torch.device | str | None) -> torch.device:
    """Where the program runs: where all of its engines do, on the device that was asked for.

    Raises:
        InputError: That is another kind of device, or none.
        PlanError: There is no device of its kind.
    """
    kinds = {engine.header.device for engine in program.engines}
    kinds |= {tensor.device for tensor in program.tensors if tensor.device != "cpu"}
    kinds |= {getattr(leaf, "device", "cpu") for leaf in program.signature.leaves} - {"cpu"}
    if kinds - {"cpu"} and kinds != {"cuda"}:
        raise malformed("devices", "engines run on the CPU, and other parts of the program on a GPU")
    kind = "cuda" if kinds == {"cuda"} else "cpu"
    given = _read_device(wanted, kind)
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise PlanError(
            "the program was compiled for a CUDA device, and none is available",
            hint="run it on a machine with a GPU, or compile the model for the CPU (portable provider)",
        )
    index = torch.cuda.current_device() if given is None or given.index is None else given.index
    if index >= torch.cuda.device_count():
        raise InputError(f"there is no device cuda:{index}", why=f"PyTorch sees {torch.cuda.device_count()}")
    return torch.device("cuda", index)


def _read_device(wanted: torch.device | str | None, kind: str) -> torch.device | None:
    try:
        given = None if wanted is None else torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{wanted!r} is no device", hint='write "cuda:1" or "cpu"') from error
    if given is not None and given.type != kind:
        raise InputError(
            f"the program was compiled for {kind}, and cannot run on {given}",
            hint=f"compile the model with device={str(given)!r}, or load it without device",
        )
    return given


def _storages(content: Any, sections: Sequence[Section], program: Program) -> list[torch.Tensor]:
    """The bytes of each storage: (bytes,), uint8, where they lie."""
    found = [section for section in sections if section.kind is SectionKind.WEIGHTS]
    end = program.storages[-1].offset + program.storages[-1].size if program.storages else 0
    if end != sum(section.size for section in found):
        raise malformed("storages", "they do not fill the section of weights")
    view = memoryview(content)
    return [
        torch.frombuffer(view, dtype=torch.uint8, offset=found[0].offset + storage.offset, count=storage.size)
        for storage in program.storages
    ]


def _plans(content: Any, sections: Sequence[Section], program: Program) -> dict[int, torch.Tensor]:
    """The plan of each section that holds one: (bytes,), uint8, where it lies."""
    plans = {}
    for index, section in enumerate(sections):
        if section.kind is SectionKind.PLAN:
            plan = torch.frombuffer(memoryview(content), dtype=torch.uint8, offset=section.offset, count=section.size)
            vouch(plan)  # its bytes were just verified
            plans[index] = plan
    named = {engine.section for engine in program.engines}
    if named != set(plans):
        raise malformed("engines", "they do not name every plan of the file, and nothing else")
    return plans


def _load_exported(path: Path, trust: bool) -> nn.Module:
    if not trust:
        raise PlanError(
            "this is a program in PyTorch's own format, which can run code when it is read",
            hint="save it in our format, save(program, path), where it comes from; or, if you trust whoever wrote it, "
            "load it with trust=True",
        )
    from trt_runtime.exchange import read_exported_program

    return read_exported_program(path)


def reduce_to_program(compiled: nn.Module) -> tuple[Any, ...]:
    """Returns what pickle keeps of a compiled model; what comes back is a `LoadedProgram`.

    Raises:
        ExportError: The module holds something that has no place in a program.
    """
    from trt_runtime.program.saving import program_of, write_program  # processes that only run programs never need it

    captured = program_of(compiled)
    file = io.BytesIO()
    write_program(file, captured)
    # what was compiled here has no limit, nor has its copy
    untold = compiled._most_untold if isinstance(compiled, LoadedProgram) else MAX_EXTENT
    bounds = compiled._bounds if isinstance(compiled, LoadedProgram) else None
    limits = UNLIMITED if bounds is None or bounds.is_exempt() else bounds.limits
    own = all(map(is_own, captured.plans))
    return _restore, (file.getvalue(), captured.program.libraries, untold, own, limits)


def _restore(
    data: bytes, libraries: tuple[str, ...], untold: int, is_own: bool = False, limits: CallLimits = UNLIMITED
) -> LoadedProgram:
    options = LoadOptions(
        operators=libraries,
        allow_host_code=is_own,
        data_dependent_elements=untold,
        limits=limits,
        any_operator=True,  # what was pickled was loaded or captured before, with all of its operators
    )
    return program_from_memory(bytearray(data), options)


def register() -> None:
    """Tells pickle how."""
    copyreg.pickle(LoadedProgram, reduce_to_program)
