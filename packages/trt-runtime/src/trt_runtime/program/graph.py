"""The typed graph of a saved program: what it takes, holds, computes and returns, as plain data.

Values are numbered: first the inputs, then the tensors that the program holds, then the result of each step. A step
names only values before its own, so a program has neither cycles nor values that are used before they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias

import torch

from trt_core.errors import PlanError
from trt_core.files import records, typed
from trt_core.files.records import Form, Grown, Row
from trt_core.sizes.conditions import Condition
from trt_core.sizes.expressions import Expression, Extent, evaluate_extent
from trt_runtime.bindings import MAX_RANK
from trt_runtime.header import PlanHeader
from trt_runtime.program import fields, literals
from trt_runtime.program.fields import DeviceKind, Dtype, Text
from trt_runtime.program.literals import Value

if TYPE_CHECKING:
    from trt_core.sizes.ranges import Bounds
    from trt_runtime.program.held_weights import HeldWeights
else:  # their modules are imported where there are some
    Bounds, HeldWeights = tuple[int, int, int], Any

# How a file has it: `trt_core.files.records` reads and writes the classes below --------------------------------------

Tree: TypeAlias = Annotated[Any, Form(literals.from_json, literals.to_json)]
"""Tuples, lists and dicts of literals and `Value`s."""

_OperatorName = Annotated[str, Form(partial(typed.text, most=300))]
_ShortName = Annotated[str, Form(partial(typed.text, most=128))]
_Size = Annotated[int, Form(partial(typed.integer, high=fields.MAX_EXTENT))]
_Axis = Annotated[int, Form(partial(typed.integer, high=MAX_RANK))]
_Sizes = Annotated[tuple[int, ...], Form(fields.extent_list, list)]
_Extent = Annotated[Extent, Form()]
_NumberKind = Annotated[type, Form(fields.number_kind, lambda kind: kind.__name__)]


@dataclass(frozen=True)
class ForeignTree:
    """Inputs nested in a class of the model's library. It lives in the process that captured the model: no file has it.

    Attributes:
        spec: How PyTorch takes such objects apart, a `TreeSpec`.
        values: What it holds, in order.
    """

    spec: Any
    values: tuple[Value, ...]


# What goes in ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dimension(Row):
    """What a dimension of an input may be.

    Attributes:
        extent: An int, a symbol, or an expression of symbols; None where nothing ties it to other dimensions.
        low, high: Smallest and largest size.
    """

    extent: _Extent
    low: _Size
    high: _Size


@dataclass(frozen=True)
class TensorInput(Grown):
    """A tensor that the program takes.

    Attributes:
        dtype: Its type.
        shape: Its dimensions.
        device: Kind of device that it lies on, `"cpu"` or `"cuda"`.
        strides: Those that it must have, but for axes of one element; None where it may lie in memory anyhow.
    """

    dtype: Dtype = field(metadata={"key": "tensor"})
    shape: tuple[Dimension, ...]
    device: DeviceKind
    strides: tuple[_Extent, ...] | None = None


@dataclass(frozen=True)
class FixedInput:
    """A plain value that capturing the model has fixed: a number, a string, None, a type."""

    value: Tree = field(metadata={"key": "fixed"})


@dataclass(frozen=True)
class NumberInput:
    """A number that may differ from call to call.

    Attributes:
        kind: `int`, `float` or `bool`.
        symbol: Name of the symbol that the number is the value of, if any.
    """

    kind: _NumberKind = field(metadata={"key": "number"})
    symbol: Text | None = None


Leaf = TensorInput | FixedInput | NumberInput


@dataclass(frozen=True)
class Signature:
    """How a program is called.

    Attributes:
        names: Names of the parameters; the first `positional` are positional, the others keywords.
        positional: How many are positional.
        structure: Tuple with one tree per parameter: tuples, lists and dicts whose leaves are `Value`s, each input
            once and in order. Before it is saved, a `ForeignTree` may stand in it.
        leaves: What each input must be.
        conditions: What the sizes of the inputs must be beyond that, so that the program computes what the model does.
    """

    names: tuple[Text, ...]
    positional: int
    structure: tuple[Tree, ...]
    leaves: tuple[Leaf, ...]
    conditions: tuple[Condition, ...] = ()


# What it holds -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage(Row):
    """Bytes that one or more tensors look into.

    Attributes:
        offset: First byte in the section of weights.
        size: Number of bytes.
    """

    offset: _Size
    size: Annotated[int, Form(partial(typed.integer, low=1, high=fields.MAX_EXTENT))]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that the program holds.

    Attributes:
        names: Its names in the state dict, more than one where weights are tied; none for a constant.
        is_parameter: Parameter or buffer.
        dtype: Its type.
        storage: Number of its storage; None when it has no elements.
        offset: Its first element, counted in elements from the start of the storage.
        shape, strides: In elements.
        device: Kind of device that it lies on.
    """

    names: tuple[Text, ...]
    is_parameter: bool = field(metadata={"key": "parameter"})
    dtype: Dtype
    storage: int | None
    offset: _Size
    shape: _Sizes
    strides: _Sizes
    device: DeviceKind


def _read_header(value: Any, place: str) -> PlanHeader:
    try:
        return PlanHeader.from_json(value)
    except PlanError as error:  # of another version, perhaps, of which the error knows what to do
        raise PlanError(error.what, where=place, why=error.why, hint=error.hint) from error


@dataclass(frozen=True)
class StoredEngine:
    """An engine that the program holds.

    Attributes:
        name: Its name among the modules.
        section: Number of the section that holds its plan; engines with one plan share it.
        header: Its header.
    """

    name: Text
    section: Annotated[int, Form(partial(typed.integer, high=1 << 16))]
    header: Annotated[PlanHeader, Form(_read_header, PlanHeader.to_json)]


# What it computes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor that a step makes.

    Attributes:
        dtype: Its type.
        shape: Extents; None for those that depend on data.
    """

    dtype: Dtype = field(metadata={"key": "tensor"})
    shape: tuple[_Extent, ...]


@dataclass(frozen=True)
class NumberType:
    """A step makes a number.

    Attributes:
        kind: `int`, `float` or `bool`.
    """

    kind: type


@dataclass(frozen=True)
class SequenceType:
    """A step makes a tuple or a list.

    Attributes:
        items: What it holds; None where an operator returns no tensor in that place.
    """

    items: tuple[ValueType | None, ...]


ValueType = TensorType | NumberType | SequenceType


def _read_type(value: Any, place: str) -> ValueType | None:
    if value is None:
        return None
    if isinstance(value, str):
        return NumberType(fields.number_kind(value, place))
    if isinstance(value, list):
        return SequenceType(tuple([_read_type(item, place) for item in value]))
    return records.read(TensorType, value, place)


def _type_to_json(kind: ValueType | None) -> Any:
    if isinstance(kind, NumberType):
        return kind.kind.__name__
    if isinstance(kind, SequenceType):
        return [_type_to_json(item) for item in kind.items]
    return kind and records.write(kind)


_TYPE = Form(_read_type, _type_to_json)


@dataclass(frozen=True)
class EngineCall:
    """Runs an engine; makes its output, or a tuple of them if the header says so.

    Attributes:
        engine: Number of the engine.
        inputs: Numbers of values, tensors.
    """

    TAG: ClassVar = ("do", "engine")

    engine: Annotated[int, Form(partial(typed.integer, high=1 << 16))]
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class OperatorCall:
    """Calls an operator of PyTorch, or of a library that whoever loads the program names.

    Attributes:
        name: Namespace and name, `aten::relu`.
        overload: Name of the overload, "" for the default.
        args, kwargs: Arguments: literals, `Value`s, and lists of them.
        result: What it makes; None for nothing.
    """

    TAG: ClassVar = ("do", "operator")

    name: _OperatorName
    overload: _OperatorName
    args: tuple[Tree, ...]
    kwargs: Mapping[str, Tree]
    result: Annotated[ValueType | None, _TYPE]


@dataclass(frozen=True)
class NumberCall:
    """Computes a number from numbers, by a function of `trt_core.sizes.functions`.

    Attributes:
        function: Its name.
        args: Numbers and `Value`s.
    """

    TAG: ClassVar = ("do", "number")

    function: str
    args: tuple[Tree, ...]


@dataclass(frozen=True)
class SizeCall:
    """Reads a dimension of a tensor.

    Attributes:
        tensor: Number of the value.
        axis: Counted from the front.
    """

    TAG: ClassVar = ("do", "size")

    tensor: int
    axis: _Axis


@dataclass(frozen=True)
class ItemCall:
    """Takes one value out of a tuple or list.

    Attributes:
        sequence: Number of the value.
        index: Counted from the front.
    """

    TAG: ClassVar = ("do", "item")

    sequence: int
    index: Annotated[int, Form(partial(typed.integer, high=1 << 31))]


@dataclass(frozen=True)
class WriteCall:
    """Writes a tensor into an input, or into a tensor that the program holds; makes nothing.

    Attributes:
        target: Number of an input or held tensor.
        source: Number of the value that is copied there.
    """

    TAG: ClassVar = ("do", "write")

    target: int
    source: int


@dataclass(frozen=True)
class Body:
    """A graph that a branch or loop runs. Its values are numbered for themselves: what it is given, then its steps.

    Attributes:
        inputs: What it is given; tensors and numbers.
        steps: What it computes. Steps of bodies call no engines and write nothing.
        output: `Value`s and numbers that it returns.
    """

    inputs: tuple[Annotated[ValueType, _TYPE], ...]
    steps: tuple[Step, ...]
    output: tuple[Tree, ...]


@dataclass(frozen=True)
class ControlFlowCall:
    """Runs a branch or a loop: an operator of `CONTROL_FLOW`. Makes a tuple.

    Attributes:
        operator: Its name.
        bodies: The graphs that it runs.
        operands: `Value`s and numbers that it is given, by its lists. `cond` has its predicate for a list of its own;
            a body takes all others, one list after the other, and of sequences one item.
        result: What it makes.
    """

    TAG: ClassVar = ("do", "control_flow")

    operator: str
    bodies: tuple[Body, ...]
    operands: tuple[tuple[Tree, ...], ...]
    result: Annotated[SequenceType, _TYPE]


CONTROL_FLOW: Final[dict[str, tuple[str, ...]]] = {
    "cond": ("predicate", "same"),
    "map": ("sequence", "same"),
    "scan": ("carried", "sequence", "same"),
    "while_loop": ("carried", "same"),
}
"""What the lists of operands of each branch or loop are."""

Step = EngineCall | OperatorCall | NumberCall | SizeCall | ItemCall | WriteCall | ControlFlowCall


def values_read(step: Step) -> list[int]:
    """Numbers of the values that a step reads."""
    if isinstance(step, EngineCall):
        return list(step.inputs)
    if isinstance(step, OperatorCall):
        return literals.values_in([list(step.args), list(step.kwargs.values())])
    if isinstance(step, NumberCall):
        return literals.values_in(list(step.args))
    if isinstance(step, SizeCall):
        return [step.tensor]
    if isinstance(step, ItemCall):
        return [step.sequence]
    if isinstance(step, ControlFlowCall):
        return literals.values_in(list(step.operands))
    return [step.target, step.source]


def operator_calls(steps: Iterable[Step]) -> Iterator[OperatorCall]:
    """Yields the steps that call operators, those of bodies included, in the order in which a file has them."""
    for step in steps:
        if isinstance(step, OperatorCall):
            yield step
        elif isinstance(step, ControlFlowCall):
            for body in step.bodies:
                yield from operator_calls(body.steps)


def _read_refit(value: Any, place: str) -> HeldWeights | None:
    if value is None:
        return None
    from trt_runtime.program.held_weights import HeldWeights  # only programs that can be refitted need it

    return records.read(HeldWeights, value, place)


def _refit_to_json(held: HeldWeights | None) -> Any:
    return held and records.write(held)


@dataclass(frozen=True)
class Program:
    """A program, apart from the bytes of its weights and plans.

    Attributes:
        signature: How it is called.
        symbols: (min, opt, max) of every symbol.
        profiles: The same in each optimization profile, where there are several.
        storages, tensors, engines: What it holds.
        steps: What it computes, in order.
        output: Tree of tuples, lists, dicts, literals and `Value`s that it returns.
        libraries: Namespaces of operators that are not PyTorch's own.
        torch_version: PyTorch that the program was saved with.
        writer_version: trt-runtime that the program was saved with.
        refit: How the tensors follow from weights of the model, where engines can be refitted and it is known of all.
        metadata: What whoever saved the program says of it; nothing that runs it reads this.
    """

    signature: Signature
    symbols: Mapping[str, Bounds]
    storages: tuple[Storage, ...]
    tensors: tuple[StoredTensor, ...]
    engines: tuple[StoredEngine, ...]
    steps: tuple[Step, ...]
    output: Tree
    libraries: tuple[_ShortName, ...] = ()
    profiles: tuple[Mapping[str, Bounds], ...] = ()
    torch_version: _ShortName = field(default_factory=lambda: str(torch.__version__))
    writer_version: _ShortName = ""
    refit: Annotated[HeldWeights | None, Form(_read_refit, _refit_to_json)] = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def first_tensor(self) -> int:
        """Number of the value that is the first held tensor."""
        return len(self.signature.leaves)

    @property
    def first_result(self) -> int:
        """Number of the value that the first step makes."""
        return self.first_tensor + len(self.tensors)

    @property
    def written(self) -> frozenset[int]:
        """Numbers of the inputs and held tensors that a call writes to, by a step or by an engine that updates them."""
        found = {step.target for step in self.steps if isinstance(step, WriteCall)}
        for step in self.steps:
            if isinstance(step, EngineCall):
                found.update(step.inputs[index] for index, _ in self.engines[step.engine].header.updates)
        return frozenset(number for number in found if number < self.first_result)

    @property
    def is_static(self) -> bool:
        """Whether every size and number is the same in each call."""
        if self.symbols or any(isinstance(leaf, NumberInput) for leaf in self.signature.leaves):
            return False
        outputs = (binding for engine in self.engines for binding in engine.header.outputs)
        if any(isinstance(step, ControlFlowCall) for step in self.steps):
            return False
        results = (step.result for step in operator_calls(self.steps))
        return not any(None in binding.shape for binding in outputs) and not any(map(depends_on_data, results))


def depends_on_data(kind: ValueType | None) -> bool:
    """Whether a result is a number, or has sizes, that no size of an input tells."""
    if isinstance(kind, SequenceType):
        return any(map(depends_on_data, kind.items))
    return isinstance(kind, NumberType) or (isinstance(kind, TensorType) and None in kind.shape)


def engine_result(header: PlanHeader, shapes: Sequence[tuple[Extent, ...]]) -> ValueType:
    """What an engine makes of inputs of these shapes; its symbols are its own, and its inputs show them.

    Raises:
        ArithmeticError, ValueError: An extent makes no sense for such inputs.
    """
    values = {symbol: shapes[index][axis] for symbol, (index, axis) in header.symbols.items()}
    outputs = []
    for binding in header.outputs:
        found = [_substituted(extent, values) for extent in binding.shape]
        shape = tuple(None if isinstance(extent, float) else extent for extent in found)
        outputs.append(TensorType(binding.dtype, shape))
    return SequenceType(tuple(outputs)) if header.returns_tuple else outputs[0]


def _substituted(extent: Expression, values: Mapping[str, Extent]) -> Any:
    if isinstance(extent, str):
        return values.get(extent)
    if not isinstance(extent, list):
        return extent
    name, *operands = extent
    found = [_substituted(operand, values) for operand in operands]
    if any(operand is None for operand in found):
        return None
    if all(isinstance(operand, (int, float)) for operand in found):
        value = evaluate_extent([name, *found], {})
        return value if isinstance(value, (int, float)) else None
    return [name, *found] if _is_short(found) else None


_MOST_NAMES: Final = 1 << 10
"""Most numbers, symbols and functions in a size: each engine of a chain may say the one before twice."""


def _is_short(operands: Sequence[Extent]) -> bool:
    waiting, count = list(operands), 0
    while waiting and count < _MOST_NAMES:
        extent = waiting.pop()
        count += 1
        if isinstance(extent, list):
            waiting += extent[1:]
    return not waiting


@dataclass(frozen=True)
class CapturedProgram:
    """A program together with what fills its sections.

    Attributes:
        program: The graph; layout of tensors and numbers of sections are not filled in.
        tensors: The tensors of the graph, in its order.
        plans: The plan of each engine, (bytes,), uint8.
    """

    program: Program
    tensors: tuple[torch.Tensor, ...]
    plans: tuple[torch.Tensor, ...]
