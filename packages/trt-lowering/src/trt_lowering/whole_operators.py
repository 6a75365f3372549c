"""Keeps composite operators whole while AOTAutograd traces, so that converters see what the model called.

Below autograd PyTorch's dispatcher runs a composite operator (`linear`, `scaled_dot_product_attention`) as the
operators that it is made of. `torch.export` keeps such operators by swapping their composite kernel for one that
declines, for the time of a trace; AOTAutograd obeys the same swap.

Recurrent layers are kept where the length of the sequence varies, too. PyTorch knows the shapes of an LSTM's results by
unrolling it, which fixes the length; before 2.12 its states had an axis too many on the CPU. Here they are said in one
line, for the time of a capture; so are those of `pixel_unshuffle`, whose channels PyTorch makes a quotient of rows.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.internals import OpOverload
from trt_lowering.decomposition_table import is_composite
from trt_lowering.internals import decomposition_table, fake_implementations, suggest_memory_format
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
    try:
        with _replaced(fake_implementations, rules):
            for operator, (kernels, _) in swaps.items():
                _set_kernels(operator, kernels)
            yield
    finally:
        for operator, kernels in before.items():
            _set_kernels(operator, kernels)


_Kernels = tuple[tuple[Any, Any], ...]


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
    if operator in _SOFTMAX:
        composite = functools.partial(_softmax_in_type, _SOFTMAX[operator])

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if is_kept(*args) and not any(map(is_distributed, (*args, *kwargs.values()))):
            return NotImplemented
        return composite(*args, **kwargs)

    return kernel


def _softmax_in_type(softmax: OpOverload, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """PyTorch's own kernel converts by `to.dtype_layout`, which `DTensor` takes for one that writes to `out`."""
    converted = x if dtype in (None, x.dtype) else aten._to_copy(x, dtype=dtype)
    return softmax(converted, dim, False)  # type: ignore[no-any-return]


def is_distributed(value: Any) -> bool:
    """Whether a value is a `DTensor`, which knows how to shard the parts of a composite operator, and not the whole."""
    return isinstance(value, torch.Tensor) and type(value).__module__.startswith("torch.distributed")


@contextlib.contextmanager
def keep_recurrent_layers() -> Iterator[None]:
    """Lets a capture record LSTM, GRU and plain recurrent layers as they are called, without unrolling them.

    It knows the channels of `pixel_unshuffle`, too, where height and width vary.
    """
    shapes = {**_SHAPES, aten.pixel_unshuffle.default: _unshuffled}
    rules = {operator: functools.partial(_in_mode, shape) for operator, shape in shapes.items()}
    # fake tensors take shapes from the first where sizes vary, from the second where they do not
    with _replaced(decomposition_table, shapes), _replaced(fake_implementations, rules), keep_whole(_SHAPES):
        yield


@contextlib.contextmanager
def _replaced(table: dict[Any, Any], entries: Mapping[Any, Any]) -> Iterator[None]:
    known = {operator: table[operator] for operator in entries if operator in table}
    table.update(entries)
    try:
        yield
    finally:
        for operator in entries:
            table.pop(operator, None)
        table.update(known)


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


_SHAPES: Final[dict[OpOverload, Callable[..., Any]]] = dict.fromkeys(
    (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input), _recurrent
)
