"""Converters in the form that scripts of this field write them: `convert(ctx, target, args, kwargs, name)`."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, converter
from trt_converters.byte_tensor import ByteTensor
from trt_converters.call import Call
from trt_converters.context import ConversionContext
from trt_core import CompilationSettings, Reason, Verdict

Validator = Callable[[fx.Node, CompilationSettings], bool]
"""Whether a node can be converted."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class ConverterPriority(enum.Enum):
    """Whether a converter is asked before those that are there, or after them."""

    STANDARD = -1
    HIGH = 1


class SourceIR(enum.Enum):
    """What scripts give as the origin of an operator to the functions of `impl`, which have no use for it."""

    NN = enum.auto()
    ACC = enum.auto()
    ATEN = enum.auto()
    PRIM = enum.auto()
    TORCHTRT_LOWERED = enum.auto()
    UNKNOWN = enum.auto()


class ScriptContext:
    """The conversion context, with the names that such converters use; all else is that of `ConversionContext`.

    Args:
        ctx: The context.

    Attributes:
        net: The `trt.INetworkDefinition`.
        compilation_settings: What the model is compiled with.
    """

    def __init__(self, ctx: ConversionContext) -> None:
        self._ctx = ctx
        self.net = ctx.network
        self.compilation_settings = ctx.settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def dynamo_tensorrt_converter(
    key: Any,
    *,
    enabled: bool = True,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = False,
    requires_output_allocator: bool = False,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> Callable[[_Function], _Function]:
    """Registers `convert(ctx, target, args, kwargs, name)` as converter of an operator.

    It gets arguments as the node has them, with a `trt.ITensor` or, where it is known while building, a `torch.Tensor`
    in the place of a tensor; and returns `trt.ITensor`s. `trt_converters.converter` takes a function whose parameters
    are the operator's, and says more in its errors.

    Args:
        key: The operator, an overload.
        enabled: Whether to register it.
        capability_validator: Takes the node and the settings, and says whether it can be converted.
        priority: Whether it comes before other converters of the operator.
        supports_dynamic_shapes: Whether it takes sizes that vary.
        requires_output_allocator: Whether sizes of the result may depend on data.
        registry: Where to register it.

    Raises:
        TypeError: The operator is no overload.
    """
    checks = validator_check(capability_validator)

    def register(function: _Function) -> _Function:
        @functools.wraps(function)  # caches of engines look at what is wrapped
        def convert(ctx: ConversionContext, **arguments: Any) -> Any:
            assert ctx.node is not None  # it is being converted
            args, kwargs = _as_in_the_node(ctx, arguments)
            return function(ScriptContext(ctx), ctx.node.target, args, kwargs, ctx.node.name)

        if enabled:
            converter(
                key,
                checks=checks,
                priority=priority.value,
                dynamic=supports_dynamic_shapes,
                data_dependent=requires_output_allocator,
                registry=registry,
            )(convert)
        return function

    return register


def validator_check(validator: Validator | None) -> tuple[Callable[[Call], Verdict | None], ...]:
    """Returns a validator as support checks."""
    if validator is None:
        return ()

    def check(call: Call) -> Verdict | None:
        if validator(call.node, call.settings):
            return None
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "the capability_validator of the converter refuses the call")

    return (check,)


def _as_in_the_node(ctx: ConversionContext, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    assert ctx.node is not None
    given = {name: _plain(ctx, value) for name, value in arguments.items()}
    names = list(given)[: len(ctx.node.args)]
    return tuple(given[name] for name in names), {name: given[name] for name in ctx.node.kwargs if name in given}


def _plain(ctx: ConversionContext, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(ctx, item) for item in value]
    if isinstance(value, ByteTensor):
        raise ctx.fail("such converters take no uint8 tensors; write it with trt_converters.converter")
    return value
