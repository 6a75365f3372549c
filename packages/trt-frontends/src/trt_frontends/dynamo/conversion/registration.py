"""Converters, `convert(ctx, target, args, kwargs, name)`, plugins and helpers in the form that scripts have them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, converter, layers, plugin_from_operator
from trt_converters.byte_tensor import ByteTensor
from trt_converters.call import Call
from trt_converters.context import ConversionContext
from trt_core import CompilationSettings, InputError, Reason, Verdict, from_trt, trt
from trt_core.held_arguments import held_to_signature
from trt_core.nesting import leaves_of
from trt_core.operator_plugin import register_operator

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


@held_to_signature
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
    if any(isinstance(value, ByteTensor) for value in leaves_of(arguments)):
        raise ctx.fail("such converters take no uint8 tensors; write it with trt_converters.converter")
    names = list(arguments)[: len(ctx.node.args)]
    keywords = {name: arguments[name] for name in ctx.node.kwargs if name in arguments}
    return tuple(arguments[name] for name in names), keywords


@held_to_signature
def generate_plugin(plugin_id: str) -> None:
    """Registers a plugin that calls an operator, for whoever converts it; see `custom_op` for both at once.

    Args:
        plugin_id: The operator's name, `"library::name"`.

    Raises:
        InputError: There is no such operator.
    """
    register_operator(_operator(plugin_id))


@held_to_signature
def generate_plugin_converter(
    plugin_id: str,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = True,
    requires_output_allocator: bool = False,
) -> None:
    """Lets engines run an operator as a plugin that calls it; see `custom_op`."""
    custom_op(plugin_id, capability_validator, priority, supports_dynamic_shapes, requires_output_allocator)


@held_to_signature
def custom_op(
    op_name: str,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = True,
    requires_output_allocator: bool = False,
) -> None:
    """Lets engines run an operator as a plugin that calls it; see `trt_converters.plugin_from_operator`.

    Args:
        op_name: Its name, `"library::name"`.
        capability_validator, priority: See `dynamo_tensorrt_converter`.
        supports_dynamic_shapes: No effect: sizes may vary where the operator's fake implementation says how.
        requires_output_allocator: Only False: plugins say the sizes of their results.

    Raises:
        InputError: There is no such operator, or sizes of its results depend on data.
        TypeError: The operator writes to its arguments.
    """
    if requires_output_allocator:
        raise InputError(
            f"{op_name} cannot be a plugin",
            why="sizes of its results depend on data (requires_output_allocator=True)",
            hint="leave it to PyTorch, which runs it between engines",
        )
    operator = _operator(op_name)
    plugin_from_operator(operator, checks=validator_check(capability_validator), priority=priority.value)


def _operator(op_name: str) -> Any:
    library, _, name = op_name.partition("::")
    base, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, library), base), overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise InputError(
            f"there is no operator {op_name!r}", hint='define it first; its name is written "library::name"'
        ) from error


def get_trt_tensor(ctx: Any, input_val: Any, name: str = "", dtype: Any = None, min_rank: int = 0) -> Any:
    """Returns a value as a `trt.ITensor`; what is known while building becomes a constant.

    Args:
        ctx: The context.
        input_val: A `trt.ITensor`, a tensor or array of any shape, a number, or numbers in a list.
        name: Not used: layers are named after nodes.
        dtype: Type of the constant, PyTorch's, NumPy's or TensorRT's; that of the value where it is None.
        min_rank: Least number of axes; those that are missing come first, with one element.

    Raises:
        ConversionError: No constant can have the type.
    """
    value = input_val
    if not hasattr(value, "is_shape_tensor"):
        value = torch.as_tensor(value, device="cpu")
        value = value if dtype is None else value.to(_torch_type(dtype))
    value = value if len(value.shape) >= min_rank else layers.with_rank(ctx, value, min_rank)
    return ctx.tensor(value)


def cast_trt_tensor(
    ctx: Any, input_val: Any, dtype: Any, name: str = "", target: Any = None, source_ir: SourceIR | None = None
) -> Any:
    """Returns a value as a `trt.ITensor` of a type, PyTorch's, NumPy's or TensorRT's; see `get_trt_tensor`."""
    return ctx.tensor(layers.cast(ctx, get_trt_tensor(ctx, input_val), _torch_type(dtype)))


def _torch_type(dtype: Any) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if type(dtype).__name__ == "DataType":
        return from_trt(dtype)
    return torch.empty(0, dtype=getattr(torch, str(getattr(dtype, "__name__", dtype))), device="cpu").dtype


def set_layer_name(layer: Any, target: Any, name: str, source_ir: SourceIR | None = None) -> None:
    """Names a layer after its operator and the node that it comes from."""
    layer.name = f"[{getattr(target, '__name__', target)}]-[{name}]"


def get_positive_dim(dim: int | Sequence[int], dim_size: int) -> int | tuple[int, ...]:
    """Returns axes counted from the front, of a tensor of `dim_size` axes."""
    return dim % dim_size if isinstance(dim, int) else tuple(axis % dim_size for axis in dim)


def get_axes_for_reduce_op(dim: int | Sequence[int]) -> int:
    """Returns axes as the bits that TensorRT's layers take them as."""
    return sum(1 << axis for axis in {*((dim,) if isinstance(dim, int) else dim)})


def has_dynamic_shape(shape: Sequence[int]) -> bool:
    """Whether an extent of a shape is not known while building."""
    return -1 in tuple(shape)


def extend_attr_to_tuple(val: Any, num_elem: int) -> tuple[Any, ...]:
    """Returns a value for each axis: sequences of one value, and values, are repeated."""
    values = tuple(val) if isinstance(val, (list, tuple)) else (val,)
    return values * num_elem if len(values) == 1 else values


def broadcastable(a: Any, b: Any) -> bool:
    """Whether the shapes of two tensors can be combined element by element, with one element repeated."""
    return all(left == right or 1 in (left, right) for left, right in zip(a.shape[::-1], b.shape[::-1], strict=False))


def __getattr__(name: str) -> Any:
    if name == "TRTTensor":  # asks for the provider, which importing this must not
        return trt.ITensor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
