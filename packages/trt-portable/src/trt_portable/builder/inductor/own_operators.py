"""Operators of our own: how PyTorch and Inductor get to know them, and what recordings must know of them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

from trt_core.internals import has_kernel
from trt_portable.internals import suggest_memory_format
from trt_portable.kernels.device_kernels import POINTER
from trt_portable.layers.windows import convolved_extents


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel; what it reads and writes needs no data before it starts.

    Attributes:
        kernel: Triton's function.
        grid: Three extents, in blocks.
        arguments: A tensor or a number for each parameter that the kernel's source names.
        settings: What the kernel is compiled with, by name.
    """

    kernel: Any
    grid: tuple[Any, int, int]
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, kernel: Any, grid: tuple[Any, int, int], arguments: tuple[Any, ...], **settings: Any) -> KernelCall:
        """A call with settings by name."""
        return cls(kernel, grid, arguments, settings)

    def start(self) -> Any:
        """Starts the kernel on the current stream; returns it as Triton compiled it."""
        return self.kernel[self.grid](*self.arguments, **self.settings)

    def compile(self) -> Any:
        """Returns the kernel, compiled for tensors that begin at multiples of 16 bytes; starts nothing."""
        kinds = [
            each.dtype if isinstance(each, torch.Tensor) else 1 if isinstance(each, torch.SymInt) else each
            for each in self.arguments
        ]
        return self.kernel.warmup(*kinds, grid=(1, 1, 1), **self.settings)

    def types(self, compiled: Any) -> str:
        """A letter per parameter of the machine code, which may have more than the source: scratch memory."""
        named = "".join(POINTER if isinstance(argument, torch.Tensor) else "i" for argument in self.arguments)
        found = re.search(r"\.entry\s+\w+\s*\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
        if found is None:
            raise RuntimeError("a kernel without an entry")
        return named + POINTER * (found[1].count(".param") - len(named))


Launch: TypeAlias = Callable[..., KernelCall]
"""Says which call of a kernel computes an operator, in memory that it gets for the result."""


@dataclass(frozen=True)
class OwnOperators:
    """Operators that a list of launches cannot call, and what it does in their place.

    Attributes:
        launched: Which call of a kernel an operator is that is written down as that kernel.
        composed: What computes an operator that is written down as all that this runs.
        unplanned: What says which kernel computes what an operator of ATen does where sizes vary, and plans nothing:
            from the operator, its arguments, those by name, and its result; None where none does.
        of_any_size: Those of both kinds whose kernels are compiled once for all sizes, and take them as arguments.
    """

    launched: Mapping[Any, Launch] = field(default_factory=dict)
    composed: Mapping[Any, Callable[..., torch.Tensor]] = field(default_factory=dict)
    unplanned: Callable[[Any, Sequence[Any], Mapping[str, Any], Any], KernelCall | None] = lambda *_: None
    of_any_size: frozenset[Any] = frozenset()


def largest_size(size: int | torch.SymInt) -> int | float:
    """Returns what a size is at most, as far as is known."""
    if not isinstance(size, torch.SymInt):
        return size
    highest = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(highest) if highest.is_Integer else float("inf")


def has_channels_last(tensor: torch.Tensor) -> bool:
    """Whether images of four axes lie densely, channels varying fastest; nothing is assumed of sizes that vary."""
    _, channels, height, width = tensor.shape
    dense = (height * width * channels, 1, width * channels, channels)
    told = [axis for axis, extent in enumerate(tensor.shape) if not (isinstance(extent, int) and extent == 1)]
    return are_equal([tensor.stride(axis) for axis in told], [dense[axis] for axis in told])


def are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes are the same as expressions: nothing is asked, and so assumed, of those that vary."""
    import sympy  # PyTorch has imported it where sizes vary

    sides = [[size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes] for sizes in (one, other)]
    return all(sympy.expand(here - there) == 0 for here, there in zip(*sides, strict=True))


def define_operator(
    name: str, run: Callable[..., Any], *, writes_to: tuple[str, ...] = (), schema: str | None = None
) -> Any:
    """Makes an operator known to PyTorch.

    Args:
        name: With its namespace.
        run: What computes it, on any device.
        writes_to: The parameters that it writes to.
        schema: Parameters and results, where they are not those that `run` is annotated with.

    Returns:
        The operator; no argument of it can be left out.
    """
    define: Any = torch.library.custom_op
    define(name, run, mutates_args=writes_to, schema=schema or _schema_of(run, writes_to, torch.Tensor))
    namespace, _, rest = name.partition("::")
    return getattr(getattr(torch.ops, namespace), rest).default


def define_kernel(name: str, launch: Launch, writes_to: tuple[str, ...] = ("result",)) -> Any:
    """Makes an operator known to PyTorch that starts a kernel, so that a recording sees it start.

    Args:
        name: With its namespace.
        launch: Which call of the kernel; the operator has its parameters.
        writes_to: The parameters that it writes to.

    Returns:
        The operator.
    """

    def run(*given: Any) -> None:
        launch(*given).start()

    return define_operator(name, run, writes_to=writes_to, schema=_schema_of(launch, writes_to, None))


def _schema_of(run: Callable[..., Any], writes_to: tuple[str, ...], result: Any) -> str:
    """The parameters that a function is annotated with, without defaults, and a result."""

    def prototype() -> None:
        pass

    signature = inspect.signature(run, eval_str=True)
    parameters = [each.replace(default=inspect.Parameter.empty) for each in signature.parameters.values()]
    vars(prototype)["__signature__"] = signature.replace(parameters=parameters, return_annotation=result)
    return torch.library.infer_schema(prototype, mutates_args=writes_to)


def teach_compilers(operator: Any, like_result: Callable[..., torch.Tensor]) -> None:
    """Makes an operator known to traces without data, and to Inductor, which calls it as it is.

    Args:
        operator: What `define_operator` made.
        like_result: Memory for the result, from the arguments.
    """
    from trt_portable.internals import constrain_to_fx_strides, make_fallback

    torch.library.register_fake(operator.name(), like_result)
    make_fallback(operator, constrain_to_fx_strides, warn=False)


_RELU: Final = "cudnn_convolution_relu"
_ADD_RELU: Final = "cudnn_convolution_add_relu"


@functools.cache
def teach_cudnn_operators() -> Any:
    """Makes both operators known to traces without data, and to Inductor; once per process.

    Returns:
        What holds the registration.
    """
    from trt_portable.internals import constrain_to_fx_strides, lowerings, make_fallback

    library = torch.library.Library("aten", "IMPL", "Meta")
    for name, shape in ((_RELU, _relu), (_ADD_RELU, _add_relu)):
        operator = getattr(torch.ops.aten, name).default
        if not has_kernel(operator.name(), "Meta"):
            library.impl(name, shape)
        if operator not in lowerings:
            make_fallback(operator, constrain_to_fx_strides, warn=False)
    return library


def _relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    extents = convolved_extents(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    result = torch.empty((x.shape[0], weight.shape[0], *extents), dtype=x.dtype, device=x.device)
    formats = [suggest_memory_format(tensor) for tensor in (x, weight)]
    is_last = x.dim() == 4 and torch.channels_last in formats  # as cuDNN is called
    return result.contiguous(memory_format=torch.channels_last) if is_last else result


def _add_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    other: torch.Tensor,
    alpha: float | None,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    return _relu(x, weight, bias, stride, padding, dilation, groups)
