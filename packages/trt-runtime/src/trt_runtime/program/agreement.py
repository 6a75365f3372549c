"""Whether the parts of a program agree: what steps take with what the steps before them make, headers with the graph.

Everything is computed at the sizes that the program was tuned for, where every symbol is a number: no tensor is made.
What depends on data, or on a library's operator, is unknown here, and compared when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import PlanError, TrtError
from trt_core.internals import OpOverload
from trt_core.sizes.expressions import Extent, evaluate_extent
from trt_core.sizes.functions import bounded
from trt_runtime.header import PlanHeader
from trt_runtime.program.allowed_operators import why_not_an_argument
from trt_runtime.program.fields import MAX_EXTENT, UNTOLD, malformed
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
    Value,
    ValueType,
    WriteCall,
)
from trt_runtime.program.input_reader import homes_of
from trt_runtime.program.literals import leaves, replace_values, values_in

Known = ValueType | int | float | bool | None
"""What is known of a value: its type, with numbers or None for extents, or a number itself; None for no value."""

_SIZES: Final = frozenset({"size", "sizes", "repeats", "output_size", "dims_to_repeat"})
"""Arguments of operators whose product is the number of elements that the operator makes."""

_ENDLESS: Final = frozenset({"aten::slice", "aten::slice_scatter", "aten::slice_copy", "aten::randint"})
"""Operators of which an integer may be far larger than any tensor."""

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
        outputs = _engine_outputs(header, shapes)
        return SequenceType(tuple(outputs)) if header.returns_tuple else outputs[0]

    def _operator_call(self, step: OperatorCall, operator: OpOverload, place: str) -> Known:
        place = f"{place}, {step.name}"
        _check_arguments(step, operator, place)
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
        if not is_told or step.name in _ENDLESS:
            return
        read = [self._known[index] for index in values_in([list(step.args), list(step.kwargs.values())])]
        involved = [*made, *(known for known in read if isinstance(known, TensorType) and None not in known.shape)]
        limit = max(_COMMON_SIZE, *(_count(kind.shape, place) for kind in involved))
        arguments = operator._schema.arguments
        given = [*zip((argument.name for argument in arguments), step.args, strict=False), *step.kwargs.items()]
        integers = {argument.name for argument in arguments if "int" in str(argument.type).lower()}
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
                f"{place} would make {made:.0f} elements, which the program does not say",
                hint=how_to_allow(made),
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

    def _check_write(self, step: WriteCall, place: str) -> None:
        if step.target >= self._program.first_result:
            raise malformed(place, "only inputs and held tensors are written to")
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


def _engine_outputs(header: PlanHeader, shapes: list[Any]) -> list[TensorType]:
    """Types of an engine's outputs for the shapes of its inputs."""
    known: Mapping[str, int] = {
        name: shapes[index][axis] for name, (index, axis) in header.symbols.items() if shapes[index][axis] is not None
    }
    outputs = []
    for binding in header.outputs:
        shape: list[int | None] = []
        for extent in binding.shape:
            try:
                value = None if extent is None else evaluate_extent(extent, known)
            except KeyError:
                value = None
            shape.append(value if isinstance(value, int) else None)
        outputs.append(TensorType(binding.dtype, tuple(shape)))
    return outputs


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
    wrong = why_not_an_argument(operator, step.args, step.kwargs)
    if wrong:
        raise malformed(place, wrong)
    if any(isinstance(leaf, torch.device) and leaf.type == "meta" for leaf in leaves(list(step.args))):
        raise malformed(place, "programs do not run on the meta device")
