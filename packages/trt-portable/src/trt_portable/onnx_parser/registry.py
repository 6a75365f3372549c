"""The operators that have a converter, by domain, name and the opset from which it is right."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar

import numpy as np

from trt_portable.enums import ErrorCode
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import from_array

FAMILIES: Final = (
    *("control_flow", "convolution", "indexing", "microsoft", "movement", "pointwise", "products", "quantization"),
    *("reductions", "resampling", "sources"),
)
"""The modules of converters."""


class UseDefinition(Exception):  # it tells what to do, not what went wrong
    """A converter does not express this node; the function by which ONNX defines the operator may."""


Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
_NUMBERS: Final = {"int": "INT", "float": "FLOAT"}
"""ONNX's types of attributes by what parameters are annotated with."""
_CONVERTERS: Final[dict[tuple[str, str], list[Converter]]] = {}


@dataclass(frozen=True)
class Converter:
    """How one operator becomes layers.

    Its function has the operator's inputs as positional parameters and the attributes as keywords, with the defaults
    of the operator's schema. An input annotated ``Operand`` may arrive as an `Initializer`; others are tensors.

    Attributes:
        since: The first opset whose definition it follows.
        function: The function.
        inputs: The positional parameters, but for the writer; whether each takes an initializer as it is.
        required: How many of them have no default.
        optional: Whether each may be None.
        variadic: Whether a last parameter takes any number of inputs, and whether it takes initializers; else None.
        attributes: The keywords.
        mandatory: The keywords without a default.
        types: ONNX's names of the types of those that are one number, which other domains than its own declare nowhere.
    """

    since: int
    function: Function
    inputs: tuple[bool, ...]
    required: int
    optional: tuple[bool, ...]
    variadic: bool | None
    attributes: frozenset[str]
    mandatory: frozenset[str]
    types: Mapping[str, str]

    def check(self, operator: str, count: int, attributes: Mapping[str, Any]) -> None:
        """Refuses a node with other inputs and attributes than the operator has.

        Raises:
            Unsupported: The number of inputs is wrong, or an attribute is unknown or missing.
        """
        if count < self.required or (self.variadic is None and count > len(self.inputs)):
            raise Unsupported(f"{operator} has {count} inputs, not {len(self.inputs)}", ErrorCode.INVALID_NODE)
        unknown = set(attributes) - self.attributes
        if unknown:
            raise Unsupported(
                f"{operator} has an attribute {min(unknown)!r}, which is not known here",
                ErrorCode.UNSUPPORTED_NODE_ATTR,
            )
        missing = self.mandatory - set(attributes)
        if missing:
            raise Unsupported(f"{operator} lacks its attribute {min(missing)!r}", ErrorCode.INVALID_NODE)

    def may_be_missing(self, index: int) -> bool:
        """Whether an input of a node may be left out although others follow."""
        return self.optional[index] if index < len(self.optional) else False

    def takes_initializer(self, index: int) -> bool:
        """Whether an input may arrive as an `Initializer`."""
        return self.inputs[index] if index < len(self.inputs) else bool(self.variadic)


def operator(
    *names: str, since: int = 1, domain: str = "", attributes: Iterable[str] = (), from_attributes: Collection[str] = ()
) -> Callable[[F], F]:
    """Registers the converter of operators.

    Args:
        names: The operators; a function that serves several asks ``net.node.operator`` which it is.
        since: The first opset whose definition the function follows.
        domain: The operators' domain.
        attributes: Attributes of theirs that are optional and that the function takes as ``**keywords``.
        from_attributes: Operands of the function that are attributes of the operator until its next version. Those that
            follow the first of them are no inputs of it.
    """

    def register(function: F) -> F:
        converter = _described(function, since, attributes, from_attributes)
        for name in names:
            versions = _CONVERTERS.setdefault((domain, name), [])
            versions.append(converter)
            versions.sort(key=lambda known: -known.since)
        return function

    return register


def _described(function: Function, since: int, further: Iterable[str], from_attributes: Collection[str]) -> Converter:
    inputs, optional, attributes, mandatory = [], [], [*further], []
    required, variadic = 0, None
    parameters = list(inspect.signature(function).parameters.values())[1:]
    first = next((at for at, parameter in enumerate(parameters) if parameter.name in from_attributes), len(parameters))
    for at, parameter in enumerate(parameters):
        raw = str(parameter.annotation).startswith("Operand")
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.name in from_attributes:
            attributes.append(parameter.name)
            if parameter.default is parameter.empty:
                mandatory.append(parameter.name)
        elif at > first:
            continue
        elif parameter.kind is parameter.VAR_POSITIONAL:
            variadic = raw
        elif parameter.kind is not parameter.VAR_KEYWORD:
            inputs.append(raw)
            optional.append("None" in str(parameter.annotation))
            required += parameter.default is parameter.empty
    return Converter(
        since=since,
        function=_from_attributes(function, from_attributes) if from_attributes else function,
        inputs=tuple(inputs),
        required=required,
        optional=tuple(optional),
        variadic=variadic,
        attributes=frozenset(attributes),
        mandatory=frozenset(mandatory),
        types={each.name: _NUMBERS[each.annotation] for each in parameters if each.annotation in _NUMBERS},
    )


def _from_attributes(function: Function, names: Collection[str]) -> Function:
    """A function that takes constants for some operands, as attributes have them."""
    tensors = [name for name in names if not inspect.signature(function).parameters[name].annotation.startswith("Oper")]

    def convert(net: Any, *inputs: Any, **attributes: Any) -> Any:
        for name in attributes.keys() & set(names):
            value = np.asarray(attributes[name])
            constant = from_array(value.astype(np.float32 if value.dtype.kind == "f" else np.int64))
            attributes[name] = net.tensor(constant) if name in tensors else constant
        return function(net, *inputs, **attributes)

    return convert


@functools.cache
def _load() -> None:
    for family in FAMILIES:
        import_module(f"trt_portable.onnx_parser.operators.{family}")


def find_converter(domain: str, name: str, opset: int) -> Converter | None:
    """The converter of an operator as an opset defines it; None if there is none."""
    _load()
    versions = _CONVERTERS.get((domain, name), ())
    return next((converter for converter in versions if converter.since <= opset), None)


def supported_operators() -> Sequence[str]:
    """The operators of ONNX that have a converter, in alphabetical order."""
    _load()
    return sorted(name for domain, name in _CONVERTERS if domain == "")
