"""What a compiled or loaded model takes and returns, as data: names, types, sizes and their ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from trt_core.dtypes import dtype_name
from trt_core.files.records import Form, Row
from trt_core.sizes.conditions import Home
from trt_core.sizes.expressions import Extent, evaluate_extent, format_extent, symbols_in
from trt_core.wording import printable
from trt_runtime.program import fields, literals
from trt_runtime.program.fields import Dtype, malformed
from trt_runtime.program.graph import (
    ControlFlowCall,
    EngineCall,
    FixedInput,
    ItemCall,
    NumberInput,
    NumberType,
    OperatorCall,
    Program,
    SequenceType,
    Signature,
    TensorInput,
    TensorType,
    ValueType,
    engine_result,
)
from trt_runtime.program.input_reader import Symbols, homes_of, places_of
from trt_runtime.program.literals import Value
from trt_runtime.program.model_facts import ModelFacts, ResultTitle


@dataclass(frozen=True)
class DynamicSize(Row):
    """A dimension that varies from call to call.

    Attributes:
        name: As whoever compiled the model has called it, `batch` or `8*length`, else by the input that shows it,
            `x.shape[0]`; empty where it depends on data.
        min, opt, max: Least and greatest size, and the one that engines are tuned for; None where it depends on data.
    """

    name: str
    min: int | None
    opt: int | None
    max: int | None

    def __str__(self) -> str:
        return self.name or "?"


_Kind = Annotated[str, Form(lambda value, place: fields.number_kind(value, place).__name__)]
_Fixed = Annotated[Any, Form(partial(literals.from_json, known=0), literals.to_json)]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a model takes or returns.

    Attributes:
        name: `x`, `state['a']`; `output`, `output[0]`, `output['logits']`, or what an ONNX model calls it.
        dtype: Its type.
        shape: Its dimensions; those that vary are `DynamicSize`s.
        device: Kind of device that it lies on, `"cpu"` or `"cuda"`.
    """

    TAG: ClassVar = ("kind", "tensor")

    name: str
    dtype: Dtype
    shape: tuple[int | DynamicSize, ...]
    device: str

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name, as JSON has them."""
        shape = [asdict(extent) if isinstance(extent, DynamicSize) else extent for extent in self.shape]
        return {"name": self.name, "dtype": dtype_name(self.dtype), "shape": shape, "device": self.device}

    def __str__(self) -> str:
        return f"{self.name}: {dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}] on {self.device}"


@dataclass(frozen=True)
class NumberSpec:
    """A number that a model takes or returns.

    Attributes:
        name: See `TensorSpec`.
        kind: `"int"`, `"float"` or `"bool"`.
    """

    TAG: ClassVar = ("kind", "number")

    name: str
    kind: _Kind = field(metadata={"key": "type"})

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name, as JSON has them."""
        return {"name": self.name, "number": self.kind}

    def __str__(self) -> str:
        return f"{self.name}: any {self.kind}"


@dataclass(frozen=True)
class FixedSpec:
    """A value that capturing the model has fixed.

    Attributes:
        name: See `TensorSpec`.
        value: What it always is.
    """

    TAG: ClassVar = ("kind", "fixed")

    name: str
    value: _Fixed

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name, as JSON has them; what JSON has not is written as Python writes it."""
        is_json = self.value is None or isinstance(self.value, (bool, int, float, str))
        return {"name": self.name, "always": self.value if is_json else repr(self.value)}

    def __str__(self) -> str:
        return f"{self.name}: always {self.value!r}"


Spec = TensorSpec | NumberSpec | FixedSpec


def notebook_html(headline: str, inputs: Iterable[Spec], outputs: Iterable[Spec]) -> str:
    """Returns what a program takes and returns as notebooks show it: preformatted text, in which nothing is markup."""
    import html  # its table of entities would be loaded with every program

    lines = [headline]
    for title, specs in (("takes", inputs), ("returns", outputs)):
        lines += [title, *(f"  {spec}" for spec in specs)]
    text = "\n".join(lines)
    return f"<pre>{html.escape(printable(text))}</pre>"


class SizeNames:
    """What sizes are called, and what they may be.

    Args:
        signature: How the program is called.
        symbols: (min, opt, max) of every symbol.
        facts: What the user calls them, and what the model calls its results.
    """

    def __init__(self, signature: Signature, symbols: Symbols, facts: ModelFacts) -> None:
        self._homes: Mapping[str, Home] = homes_of(signature)
        self._symbols, self._names, self.titles = symbols, facts.dimensions, facts.titles

    def size(self, extent: Extent, bounds: tuple[int, int] | None = None) -> int | DynamicSize:
        """Returns a dimension.

        Args:
            extent: As the program has it.
            bounds: Its least and greatest size, where the program says.
        """
        if isinstance(extent, int):
            return extent
        if extent is None or not symbols_in(extent) <= self._symbols.keys():
            return DynamicSize("", *((None, None, None) if bounds is None else (bounds[0], None, bounds[1])))
        best = self._at(extent, 1)
        low, high = bounds or (self._at(extent, 0), self._at(extent, 2))
        if low is not None and high is not None and low > high:  # it shrinks where its symbol grows
            low, high = high, low
        return DynamicSize(format_extent(extent, self._name), low, best, high)

    def called(self, name: str) -> DynamicSize:
        """Returns a dimension of which the model says its name alone; its range is that of the size of that name."""
        symbol = next((symbol for symbol in self._symbols if name and self._name(symbol) == name), None)
        return DynamicSize(name, *((None, None, None) if symbol is None else self._symbols[symbol]))

    def _name(self, symbol: str) -> str:
        home = self._homes.get(symbol)
        return self._names.get(symbol) or (symbol if home is None else home.expression)

    def _at(self, extent: Extent, which: int) -> int | None:
        try:
            return int(evaluate_extent(extent, {name: self._symbols[name][which] for name in symbols_in(extent)}))
        except (ArithmeticError, ValueError):
            return None


def inputs_of(signature: Signature, sizes: SizeNames) -> tuple[Spec, ...]:
    """Returns what a program takes, in the flat order of its inputs."""
    found: list[Spec] = []
    for place, leaf in zip(places_of(signature), signature.leaves, strict=True):
        if isinstance(leaf, TensorInput):
            shape = tuple(sizes.size(item.extent, (item.low, item.high)) for item in leaf.shape)
            found.append(TensorSpec(place, leaf.dtype, shape, leaf.device))
        elif isinstance(leaf, NumberInput):
            found.append(NumberSpec(place, leaf.kind.__name__))
        else:
            found.append(FixedSpec(place, leaf.value))
    return tuple(found)


def outputs_of(program: Program, sizes: SizeNames, device: str) -> tuple[Spec, ...]:
    """Returns what a program returns, in order; what is known of it before it runs.

    Raises:
        PlanError: Steps of a program that was not checked contradict each other.
    """
    try:
        types = _types(program)
    except (AttributeError, ArithmeticError, IndexError, TypeError, ValueError) as error:
        raise malformed("its steps", f"{type(error).__name__}: {error}") from error

    def spec(place: str, leaf: Any) -> Spec:
        return output_spec(place, types[leaf.index] if type(leaf) is Value else leaf, sizes, device)

    return titled([spec(place, leaf) for place, leaf in walk(program.output, "output")], sizes)


def titled(specs: Sequence[Spec], sizes: SizeNames) -> tuple[Spec, ...]:
    """Returns outputs under the names that the model gives them, where it gives one to each."""
    if len(sizes.titles) != len(specs):
        return tuple(specs)
    return tuple(map(partial(_titled, sizes), specs, sizes.titles))


def _titled(sizes: SizeNames, spec: Spec, title: ResultTitle) -> Spec:
    if not isinstance(spec, TensorSpec) or len(title.sizes) != len(spec.shape):
        return replace(spec, name=title.name)
    shape = tuple(
        sizes.called(name) if isinstance(extent, DynamicSize) and not extent.name else extent
        for extent, name in zip(spec.shape, title.sizes, strict=True)
    )
    return replace(spec, name=title.name, shape=shape)


def output_spec(place: str, known: Any, sizes: SizeNames, device: str) -> Spec:
    """Returns one output: a `TensorType`, a `NumberType`, or the value that it always has."""
    if isinstance(known, TensorType):
        return TensorSpec(place, known.dtype, tuple(map(sizes.size, known.shape)), device)
    if isinstance(known, NumberType):
        return NumberSpec(place, known.kind.__name__)
    return FixedSpec(place, known)


def walk(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, leaf) of nested dicts, lists and tuples."""
    if isinstance(tree, Mapping):
        for name, child in tree.items():
            yield from walk(child, f"{place}[{name!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, child in enumerate(tree):
            yield from walk(child, f"{place}[{index}]")
    else:
        yield place, tree


# What each value of a program is, in the symbols of the program ------------------------------------------------------


def _types(program: Program) -> list[Any]:
    """What is known of every value: a type, the value that it always has, or None."""
    known: list[Any] = []
    for leaf in program.signature.leaves:
        if isinstance(leaf, TensorInput):
            known.append(TensorType(leaf.dtype, tuple(item.extent for item in leaf.shape)))
        else:
            known.append(leaf.value if isinstance(leaf, FixedInput) else NumberType(leaf.kind))
    known += [TensorType(tensor.dtype, tuple(tensor.shape)) for tensor in program.tensors]
    for step in program.steps:
        if isinstance(step, EngineCall):
            header = program.engines[step.engine].header
            known.append(engine_result(header, [known[index].shape for index in step.inputs]))
        elif isinstance(step, OperatorCall | ControlFlowCall):
            known.append(step.result)
        elif isinstance(step, ItemCall):
            sequence = known[step.sequence]
            items: Sequence[ValueType | None] = sequence.items if isinstance(sequence, SequenceType) else ()
            known.append(items[step.index] if step.index < len(items) else None)
        else:
            known.append(NumberType(int))
    return known
