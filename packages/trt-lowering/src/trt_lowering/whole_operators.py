"""Keeps composite operators whole while AOTAutograd traces, so that converters see what the model called.

Below autograd PyTorch's dispatcher runs a composite operator (`linear`, `scaled_dot_product_attention`) as the
operators that it is made of. `torch.export` keeps such operators by swapping their composite kernel for one that
declines, for the time of a trace; AOTAutograd obeys the same swap.

Recurrent layers are kept where the length of the sequence varies, too. PyTorch knows the shapes of an LSTM's results by
unrolling it, which fixes the length; before 2.12 its states had an axis too many on the CPU. Here they are said in one
line, for the time of a capture; so are those of `pixel_unshuffle`, whose channels PyTorch makes a quotient of rows, and
of operators whose kernels read sizes as numbers. Pooling with `ceil_mode` leaves out a last window that begins in the
padding: PyTorch asks whether there is one, which here is the smaller one of two numbers of windows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import torch

from trt_core.internals import FakeTensorMode, OpOverload, has_kernel
from trt_core.nesting import leaves_of
from trt_core.process_groups import is_distributed
from trt_core.temporary import undone, with_value
from trt_lowering.decomposition_table import is_composite
from trt_lowering.internals import (
    DispatchKey,
    decomposition_table,
    fake_implementations,
    strides_of_view,
    suggest_memory_format,
)
from trt_lowering.open_sizes import OPEN_SIZES
from trt_lowering.operator_traits import SILENT_ALIASES, mutated_arguments

aten = torch.ops.aten

_SOFTMAX: Final = {aten.softmax.int: aten._softmax.default, aten.log_softmax.int: aten._log_softmax.default}


@contextlib.contextmanager
def keep_whole(operators: Iterable[OpOverload]) -> Iterator[None]:
    """Lets a trace below autograd record composite operators as they are called.

    Operators that are not composite are recorded anyway, and ignored here; so are those that write to an argument or
    return a view by their schema, which PyTorch must take apart to make a graph functional.

    The swap is seen by every thread that traces. Dynamo traces under its own lock, so backends need no other.

    Args:
        operators: What to keep.
    """
    before = {operator: tuple(operator.py_kernels.items()) for operator in operators if _is_keepable(operator)}
    swaps = {operator: _swap(operator, kernels) for operator, kernels in before.items()}
    rules = {operator: rule for operator, (_, rule) in swaps.items() if rule and operator not in fake_implementations}
    with (
        _replaced(fake_implementations, rules),
        _with_kernels({operator: kernels for operator, (kernels, _) in swaps.items()}, before),
        with_value(_kept, before),
    ):
        yield


def keep_nothing() -> contextlib.AbstractContextManager[None]:
    """Has composite operators run as PyTorch defines them, in the midst of a trace of this thread that keeps them."""
    before = _kept.get()
    return _with_kernels(before, {operator: tuple(operator.py_kernels.items()) for operator in before})


_Kernels = tuple[tuple[Any, Any], ...]

_kept: Final[ContextVar[dict[OpOverload, _Kernels]]] = ContextVar("kept", default={})  # noqa: B039 - nobody writes to it


@contextlib.contextmanager
def _with_kernels(inside: Mapping[OpOverload, _Kernels], after: Mapping[OpOverload, _Kernels]) -> Iterator[None]:
    def undo() -> None:
        for operator, kernels in after.items():
            _set_kernels(operator, kernels)

    with undone(undo):
        for operator, kernels in inside.items():
            _set_kernels(operator, kernels)
        yield


@functools.cache
def _swap(operator: OpOverload, before: _Kernels) -> tuple[_Kernels, Any]:
    """What PyTorch puts in the place of an operator's kernels, and how fake tensors run it, None for the usual way.

    It takes PyTorch 0.2 ms for each operator, which is most of what a small graph's trace takes otherwise.
    """
    from trt_lowering.internals import composites_replaced  # costly to import

    with composites_replaced({operator: _answer(operator)}):
        return tuple(operator.py_kernels.items()), fake_implementations.get(operator)


def _set_kernels(operator: OpOverload, kernels: _Kernels) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


@functools.cache
def _is_keepable(operator: Any) -> bool:
    if not isinstance(operator, OpOverload) or not is_composite(operator) or mutated_arguments(operator):
        return False
    return not any(argument.alias_info is not None for argument in operator._schema.arguments)


def _answer(operator: OpOverload) -> Callable[..., Any]:
    """Returns the composite kernel for the time of the trace: it declines unless this call must be taken apart."""
    name = operator._schema.name
    if name in SILENT_ALIASES:
        return _composite_unless(operator, lambda *args: name == "aten::einsum" and len(args[1]) > 1)
    if name in ("aten::batch_norm", "aten::native_batch_norm"):  # training writes to statistics without declaring it
        return _composite_unless(operator, lambda *args: not args[5])
    if name == "aten::instance_norm":
        return _composite_unless(operator, lambda *args: args[3] is None)
    return _composite_unless(operator, lambda *args: True)


def _composite_unless(operator: OpOverload, is_kept: Callable[..., bool]) -> Callable[..., Any]:
    from trt_lowering.internals import composite_kernel

    composite: Callable[..., Any] = composite_kernel(operator)  # looked up now, before the swap
    of_shards = _composite_of_shards(operator) or composite

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_distributed, leaves_of((args, kwargs)))):
            return of_shards(*args, **kwargs)
        return NotImplemented if is_kept(*args) else composite(*args, **kwargs)

    return kernel


def _composite_of_shards(operator: OpOverload) -> Callable[..., Any] | None:
    """What an operator on `DTensor`s is made of, as outside of a trace; None where PyTorch's usual kernel says that.

    Kernels in Python that PyTorch has for traces make indices and masks, which are no `DTensor`s.
    """
    if operator in _SOFTMAX:
        return functools.partial(_softmax_in_type, _SOFTMAX[operator])
    key = DispatchKey.CompositeImplicitAutograd
    if operator in _OPEN or not has_kernel(operator.name(), key):
        return _OPEN.get(operator)
    return functools.partial(operator._op_dk, key)


def _softmax_in_type(softmax: OpOverload, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """PyTorch's own kernel converts by `to.dtype_layout`, which `DTensor` takes for one that writes to `out`."""
    converted = x if dtype in (None, x.dtype) else aten._to_copy(x, dtype=dtype)
    return softmax(converted, dim, False)  # type: ignore[no-any-return]


@contextlib.contextmanager
def keep_recurrent_layers() -> Iterator[None]:
    """Lets a capture record LSTM, GRU and plain recurrent layers as they are called, without unrolling them.

    It knows the results of other operators, too, where sizes vary: of `pixel_unshuffle`, `affine_grid_generator`,
    pooling with `ceil_mode`, and those in `OPEN_SIZES`; and how views of one picture lie in memory.
    """
    shapes: dict[OpOverload, Callable[..., Any]] = {
        **_SHAPES,
        aten.pixel_unshuffle.default: _unshuffled,
        aten.affine_grid_generator.default: _grid,
        **_OPEN,
    }
    rules: dict[OpOverload, Callable[..., Any]] = {
        operator: functools.partial(_in_mode, shape) for operator, shape in shapes.items()
    }
    rules |= {view: functools.partial(_viewed, fake_implementations[view]) for view in _VIEWS}
    rules |= {pooling: functools.partial(_in_mode, functools.partial(_pooled_open, pooling)) for pooling in _POOLINGS}
    _forget_views()
    try:
        # fake tensors take shapes from the first where sizes vary, from the second where they do not
        with (
            _replaced(decomposition_table, shapes),
            _replaced(fake_implementations, rules),
            keep_whole((*_SHAPES, *_OPEN)),
        ):
            yield
    finally:
        _forget_views()


def _forget_views() -> None:
    """Empties PyTorch's memory of fake results of views, which are others in here than outside.

    It is looked through from its end, where what is new lies, to the last one that was there the last time.
    """
    global _looked_through
    newest_first = reversed(tuple(FakeTensorMode.cache))
    new = list(itertools.takewhile(lambda known: known is not _looked_through, newest_first))
    for known in new:
        if known.key[0] in _VIEWS:
            FakeTensorMode.cache.pop(known, None)
    _looked_through = next((known for known in new if known.key[0] not in _VIEWS), _looked_through)


_looked_through: object = None
"""What PyTorch remembered last when views were forgotten; where it has forgotten that, all of it is new."""
_VIEWS: Final = (aten.view.default, aten._unsafe_view.default)


def _viewed(rule: Callable[..., Any], mode: Any, operator: OpOverload, tensor: Any, *shape: Any) -> Any:
    """A view with the strides that the kernel gives to axes of extent 1, of which fake tensors know others.

    Kernels choose the order in memory of their results by them: a convolution of one picture does.
    """
    made = rule(mode, operator, tensor, *shape)
    if not any(isinstance(extent, int) and extent == 1 for extent in tensor.shape):
        return made
    strides = strides_of_view(tensor.shape, tensor.stride(), made.shape, size_oblivious=True)
    if strides is None:
        return made
    with mode:
        return aten.as_strided.default(tensor, made.shape, strides, tensor.storage_offset())


@contextlib.contextmanager
def _replaced(table: dict[Any, Any], entries: Mapping[Any, Any]) -> Iterator[None]:
    known = {operator: table[operator] for operator in entries if operator in table}

    def undo() -> None:
        for operator in entries:
            table.pop(operator, None)
        table.update(known)

    with undone(undo):
        table.update(entries)
        yield


def _in_mode(shapes: Callable[..., Any], mode: Any, operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return shapes(*args, **kwargs)


def _recurrent(
    input: torch.Tensor,
    hx: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Shapes of a layer's results; an LSTM has two states, the others one."""
    states = (hx,) if isinstance(hx, torch.Tensor) else hx
    return (
        _sequence(input, states[0], bidirectional, batch_first),
        *(state.new_empty(state.shape) for state in states),
    )


def _sequence(sequence: torch.Tensor, state: torch.Tensor, bidirectional: bool, batch_first: bool) -> torch.Tensor:
    """Steps lie one after the other in memory, whichever dimension counts them."""
    first, second = (1, 0) if batch_first else (0, 1)
    width = state.shape[-1] * (2 if bidirectional else 1)
    made = sequence.new_empty((sequence.shape[first], sequence.shape[second], width))
    return made.transpose(0, 1) if batch_first else made


def _unshuffled(picture: torch.Tensor, downscale_factor: int) -> torch.Tensor:
    """The result of `pixel_unshuffle`: PyTorch divides rows by rows to know how many lie in a block."""
    *batch, channels, rows, columns = picture.shape
    for extent in (rows, columns):
        torch._check(extent % downscale_factor == 0)
    made = (*batch, channels * downscale_factor**2, rows // downscale_factor, columns // downscale_factor)
    return picture.new_empty(made).contiguous(memory_format=suggest_memory_format(picture))


def _grid(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    """The result of `affine_grid_generator`: PyTorch counts its columns by `linspace`, which takes a number."""
    torch._check(theta.shape[0] == size[0])
    return theta.new_empty((size[0], *size[2:], len(size) - 2))


def _pooled_open(operator: OpOverload, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Results of pooling with `ceil_mode` where the last window may begin in the padding, else those of PyTorch."""
    names = [argument.name for argument in operator._schema.arguments[1:]]
    given: dict[str, Any] = {argument.name: argument.default_value for argument in operator._schema.arguments[1:]}
    given |= dict(zip(names, args, strict=False)) | kwargs
    spatial = int(next(digit for digit in str(operator) if digit in "123"))
    given |= {"stride": given["stride"] or given["kernel_size"], "dilation": given.get("dilation", [1])}
    # a single number counts for every axis
    kernel, stride, padding, dilation = (
        (list(given[name]) * spatial)[:spatial] for name in ("kernel_size", "stride", "padding", "dilation")
    )
    reach = [gap * (size - 1) + 1 for gap, size in zip(dilation, kernel, strict=True)]
    extents = input.shape[-spatial:]
    varies = [
        isinstance(extent, torch.SymInt) and low + step > covered
        for extent, low, step, covered in zip(extents, padding, stride, reach, strict=True)
    ]
    is_refused = any(2 * low > size for low, size in zip(padding, kernel, strict=True))
    if is_refused or not given["ceil_mode"] or not any(varies):
        return NotImplemented
    counts = [
        torch.sym_min((extent + 2 * low - covered + step - 1) // step + 1, (extent + low - 1) // step + 1)
        for extent, low, step, covered in zip(extents, padding, stride, reach, strict=True)
    ]
    layout = suggest_memory_format(input) if input.dim() == spatial + 2 and spatial > 1 else torch.contiguous_format
    made = input.new_empty((*input.shape[:-spatial], *counts)).contiguous(memory_format=layout)
    return made if len(operator._schema.returns) == 1 else (made, torch.empty_like(made, dtype=torch.int64))


_POOLINGS: Final = (
    *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
    *(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default),
)


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found: OpOverload = getattr(getattr(aten, packet), overload or "default")
    return found


_OPEN: Final[dict[OpOverload, Callable[..., Any]]] = {
    _overload(name): decomposition for name, decomposition in OPEN_SIZES.items()
}

_SHAPES: Final[dict[OpOverload, Callable[..., Any]]] = dict.fromkeys(
    (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input), _recurrent
)
