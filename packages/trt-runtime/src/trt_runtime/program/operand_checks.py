"""Operators that read past the end of operands which do not fit each other, and what is looked at before they run.

PyTorch's public operators compare their operands. Some that graphs hold trust whoever calls them, since PyTorch only
calls them with operands that it has compared: kernels then read, or write, where nothing is. A program comes from
anyone, so here they are compared again. Each was found by calling it with operands that do not fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.errors import ExecutionError
from trt_core.internals import FakeTensor, OpOverload
from trt_core.operator_counts import RESAMPLING, elements_in, operands_of
from trt_core.process_groups import group_members
from trt_runtime.program.allowed_operators import COLLECTIVES
from trt_runtime.program.fields import MAX_EXTENT, UNTOLD
from trt_runtime.program.operator_growth import how_to_allow, most_elements

Operands = Mapping[str, Any]
"""Arguments by their names in the schema, defaults filled in."""


def has_numbers(x: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be looked at: it is neither traced nor recorded."""
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor) or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def repetitions(operands: Operands) -> int | None:
    """Returns how long the axis becomes whose elements `aten::repeat_interleave` repeats; None where numbers lack."""
    repeats = operands["repeats"]
    if not isinstance(repeats, torch.Tensor) or repeats.is_floating_point() or not has_numbers(repeats):
        return None
    is_shared = repeats.numel() == 1 and "self" in operands
    most = int(repeats.max()) * repeats.numel() if repeats.numel() else 0
    total = int(repeats.sum()) if most <= MAX_EXTENT else most  # sums of PyTorch begin anew beyond 64 bits
    return total * (_repeated_extent(operands) if is_shared else 1)


def _repeated_extent(operands: Operands) -> int:
    x, axis = operands.get("self", operands["repeats"]), operands.get("dim")
    return int(x.numel() if axis is None or not x.dim() else x.shape[axis])


def _repeated(operands: Operands) -> int:
    count = repetitions(operands)
    elements: int = operands.get("self", operands["repeats"]).numel()
    return 0 if count is None else count * elements // max(_repeated_extent(operands), 1)


def _bins(operands: Operands) -> int:
    """Counting makes a bin for every number up to the largest."""
    x, least = operands["self"], operands.get("minlength", 0)
    can_look = x.numel() and not x.is_floating_point() and has_numbers(x)
    return max(int(x.max()) + 1 if can_look else 1, int(least))


def _classes(operands: Operands) -> int:
    """Numbers that name a class each, of as many as the largest says where nobody does."""
    x: torch.Tensor = operands["self"]
    if operands.get("num_classes", -1) >= 0 or not x.numel() or x.is_floating_point() or not has_numbers(x):
        return 0
    return (int(x.max()) + 1) * x.numel()


DATA_COUNTS: Final[dict[str, Callable[[Operands], int]]] = {
    "aten::bincount": _bins,
    "aten::repeat_interleave": _repeated,
    "aten::one_hot": _classes,
}
"""Elements that a call makes, by the operator's name; 0 where that cannot be told."""


_TRUE_QUOTIENTS: Final = frozenset({"aten::div", "aten::divide"})
"""Operators that make floats of integers, but where an overload says how to round."""

Check = Callable[[Operands], str]
"""Says what does not fit, or nothing."""


def checked(operator: OpOverload, untold: int = UNTOLD) -> Callable[..., Any]:
    """Returns an operator, or what compares its operands first where it does not do so itself.

    What is returned raises `ExecutionError` where they do not fit, or say that more is to be made than may be.

    Args:
        operator: The operator.
        untold: Elements that it may make where numbers in its operands say how many.
    """
    name = operator._schema.name
    check, count = _CHECKS.get(name), DATA_COUNTS.get(name)
    if check is _quotient and name in _TRUE_QUOTIENTS and "mode" not in operator._schema.overload_name:
        check = None
    laid_out, lies_well = _LAID_OUT.get(name, ((), None))
    if check is None and count is None and lies_well is None:
        return operator
    arguments = operator._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}

    def compare_and_run(*args: Any, **kwargs: Any) -> Any:
        operands = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        why = "" if check is None else check(operands)
        if why:
            raise ExecutionError(f"operands of {operator} do not fit each other", why=why)
        if count is not None:
            _require_few(operator, count(operands), args, kwargs, untold)
        for name in laid_out:
            value = operands.get(name)
            if isinstance(value, torch.Tensor) and lies_well is not None and not lies_well(value):
                args = tuple(value.contiguous() if item is value else item for item in args)
                kwargs = {key: value.contiguous() if item is value else item for key, item in kwargs.items()}
        return operator(*args, **kwargs)

    return compare_and_run


def _has_own_places(x: torch.Tensor) -> bool:
    """Whether no element stands for several."""
    return all(stride or extent == 1 for stride, extent in zip(x.stride(), x.shape, strict=True))


def _has_rows(x: torch.Tensor) -> bool:
    """Whether matrices consist of rows of which none begins in the one before."""
    if x.dim() < 2:
        return True
    (across, along), (rows, columns) = x.stride()[-2:], x.shape[-2:]
    return (along == 1 or columns == 1) and (across >= columns or rows == 1)


_LAID_OUT: Final[dict[str, tuple[tuple[str, ...], Callable[[torch.Tensor], bool]]]] = {
    **dict.fromkeys(("aten::median", "aten::nanmedian"), (("self",), _has_own_places)),
    "aten::native_group_norm": (("weight", "bias"), torch.Tensor.is_contiguous),
    **dict.fromkeys(
        ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        (("query", "key", "value"), _has_rows),
    ),
}
"""Operands that kernels read as if they lay otherwise than their strides say, beyond them or not at all, and how they
have to lie; others are copied first. Public norms and attention see to it themselves, in part."""


def _require_few(operator: OpOverload, made: int, args: Sequence[Any], kwargs: Mapping[str, Any], untold: int) -> None:
    shapes = operands_of(operator, args, kwargs)
    if made > most_elements(None, shapes, untold):
        raise ExecutionError(
            f"{operator} would make {made} elements",
            why=f"its operands have {elements_in(shapes)}, and numbers among them say so",
            hint=how_to_allow(made),
        )


def _batch_norm(operands: Operands) -> str:
    """Weights and statistics have one number per channel."""
    x = operands["input"]
    if x.dim() < 2:
        return f"an input of rank {x.dim()} has no channels"
    if not operands.get("training", False) and operands.get("running_mean") is None:
        return "there are no statistics, and none are computed"
    return _other_channels(operands, "weight", "bias", "running_mean", "running_var")


def _other_channels(operands: Operands, *names: str) -> str:
    channels = operands["input"].shape[1]
    for name in names:
        value = operands.get(name)
        if value is not None and tuple(value.shape) != (channels,):
            return f"{name} has shape {tuple(value.shape)}, the input {channels} channels"
    return ""


def _group_norm(operands: Operands) -> str:
    """Numbers say what the operand's shape says; statistics are made as large as the numbers say."""
    x, groups = operands["input"], operands["group"]
    counts = (operands["N"], operands["C"], operands["HxW"])
    if x.dim() < 2 or counts != (x.shape[0], x.shape[1], math.prod(x.shape[2:])):
        return f"sequences, channels and elements of each {counts} for an input of shape {tuple(x.shape)}"
    if groups < 1 or x.shape[1] % groups:
        return f"{groups} groups of {x.shape[1]} channels"
    return _other_channels(operands, "weight", "bias")


def _weight_norm(operands: Operands) -> str:
    """Magnitudes have one number per index of an axis at either end."""
    v, g, axis = operands["v"], operands["g"], operands["dim"]
    if not v.dim() or axis not in (0, v.dim() - 1, -1):
        return f"axis {axis} of a tensor of rank {v.dim()} is not its first or last"
    wanted = [1] * v.dim()
    wanted[axis] = v.shape[axis]
    return "" if list(g.shape) == wanted else f"g has shape {tuple(g.shape)}, not {tuple(wanted)}"


def _embedding_bag(operands: Operands) -> str:
    """Bags follow each other inside of the indices."""
    indices, offsets = operands["indices"], operands["offsets"]
    if indices.dim() != 1 or offsets.dim() != 1 or offsets.is_floating_point():
        return "indices and offsets are lists of integers"
    if not offsets.numel():
        return f"there are no bags for {indices.numel()} indices" if indices.numel() else ""
    if not has_numbers(offsets):
        return ""
    low, high = (int(end) for end in offsets.aminmax())
    if low < 0 or high > indices.numel():
        return f"offsets reach from {low} to {high}, and there are {indices.numel()} indices"
    if offsets.numel() > 1 and bool((offsets[1:] < offsets[:-1]).any()):
        return "offsets decrease"
    return ""


def _resampling(operands: Operands) -> str:
    """Factors lead from the input's extents to those of the result: kernels find source elements by them."""
    x = operands.get("self", operands.get("input"))
    assert isinstance(x, torch.Tensor)
    sizes, factors = operands.get("output_size"), operands.get("scale_factors")
    if factors is None:
        factors = [operands[name] for name in ("scales", "scales_d", "scales_h", "scales_w") if name in operands]
    extents = tuple(x.shape[2:])
    if sizes is not None and len(sizes) != len(extents):
        return f"{len(sizes)} extents for an input of rank {x.dim()}"
    if factors and len(factors) != len(extents):
        return f"{len(factors)} factors for an input of rank {x.dim()}"
    for axis, factor in enumerate(factors):
        if factor is None:
            continue
        made = extents[axis] * factor
        if not math.isfinite(made) or factor <= 0 or made >= 2**31:
            return f"a factor of {factor}"
        if sizes is not None and abs(made - sizes[axis]) > 1:
            return f"a factor of {factor} does not lead from {extents[axis]} to {sizes[axis]}"
    return ""


def _attention(operands: Operands) -> str:
    """Batches, keys and widths agree, heads are a multiple, a mask can be expanded."""
    query, key, value = operands["query"], operands["key"], operands["value"]
    if not query.dim() == key.dim() == value.dim() == 4:
        return "query, key and value have rank 4"
    if 0 in query.shape or 0 in key.shape:
        return f"there is nothing to attend with: shapes {tuple(query.shape)} and {tuple(key.shape)}"
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return f"shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if not key.shape[1] or query.shape[1] % key.shape[1]:
        return f"{query.shape[1]} heads of queries, {key.shape[1]} of keys"
    mask = operands.get("attn_mask", operands.get("attn_bias"))
    if mask is not None:
        whole = (*query.shape[:3], key.shape[2])
        pairs = zip(reversed(mask.shape), reversed(whole), strict=False)
        if mask.dim() > 4 or any(extent not in (1, wanted) for extent, wanted in pairs):
            return f"a mask of shape {tuple(mask.shape)} for {whole}"
    return ""


def _public_attention(operands: Operands) -> str:
    """As many values as keys, in the same batches; PyTorch compares the rest."""
    query, key, value = operands["query"], operands["key"], operands["value"]
    if min(query.dim(), key.dim(), value.dim()) < 2:
        return "query, key and value are matrices, or batches of them"
    if key.shape[-2] != value.shape[-2] or query.shape[-1] != key.shape[-1] or key.shape[:-2] != value.shape[:-2]:
        return f"shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if 0 in query.shape or 0 in key.shape:
        return f"there is nothing to attend with: shapes {tuple(query.shape)} and {tuple(key.shape)}"
    return ""


def _quotient(operands: Operands) -> str:
    """The least integer divided by -1 has no result, and processors end the process."""
    x, other = operands["self"], operands["other"]
    if isinstance(other, (int, float)) and other != -1:
        return ""
    if any(_is_inexact(value) for value in (x, other)) or operands.get("rounding_mode", "trunc") is None:
        return ""
    tensors = [value for value in (x, other) if isinstance(value, torch.Tensor)]
    if not all(value.device.type == "cpu" and has_numbers(value) and value.numel() for value in tensors):
        return ""
    divides = (other == -1).any() if isinstance(other, torch.Tensor) else True
    dtype = torch.result_type(x, other)
    if dtype in (torch.bool, torch.uint8) or not divides:
        return ""
    least = torch.iinfo(dtype).min
    has_least = (x == least).any() if isinstance(x, torch.Tensor) else x == least
    return f"{least} divided by -1 is no {str(dtype).removeprefix('torch.')}" if has_least else ""


def _is_inexact(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return type(value) is not int


def _finite(operands: Operands) -> str:
    """LAPACK's search for eigenvalues does not end well where a number is none."""
    x = operands["self"] if "self" in operands else operands["A"]
    can_look = isinstance(x, torch.Tensor) and x.device.type == "cpu" and has_numbers(x)
    return "not all numbers are finite" if can_look and not bool(torch.isfinite(x).all()) else ""


def _states(operands: Operands) -> str:
    """Each state has one vector for each layer, direction and sequence; kernels of one library write all of them."""
    x, states = operands["input"], operands["hx"]
    if "data" in operands:
        return ""
    states = states if isinstance(states, (list, tuple)) else [states]
    if x.dim() != 3:
        return f"an input of rank {x.dim()} has no steps and sequences"
    layers = operands["num_layers"] * (2 if operands["bidirectional"] else 1)
    wanted = (layers, x.shape[0 if operands["batch_first"] else 1])
    for state in states:
        if state.dim() != 3 or tuple(state.shape[:2]) != wanted:
            return f"a state of shape {tuple(state.shape)}, not of {wanted} and a width"
    return "" if x.numel() else f"an input of shape {tuple(x.shape)} has nothing in it"


def _recurrence(gates: int) -> Check:
    """Steps, states and weights of a recurrent operator fit each other.

    Args:
        gates: Vectors that weights make of each hidden one.
    """

    def check(operands: Operands) -> str:
        return _packed_steps(operands) or _recurrent_weights(operands, gates)

    return check


def _recurrent_weights(operands: Operands, gates: int) -> str:
    """Kernels of one library copy weights as the first of them says, and take the rest for granted."""
    x, states = operands.get("data", operands.get("input")), operands["hx"]
    assert isinstance(x, torch.Tensor)
    states = states if isinstance(states, (list, tuple)) else [states]
    shown, hidden = states[0].shape[-1], states[-1].shape[-1]
    is_projected = gates == 4 and shown != hidden
    ways = 2 if operands["bidirectional"] else 1
    weights, biases = operands["params"], 2 if operands["has_biases"] else 0
    each = 2 + biases + is_projected
    if len(weights) != each * ways * operands["num_layers"] or not hidden or len(states) != (2 if gates == 4 else 1):
        return f"{len(weights)} weights for {operands['num_layers']} layers, and states of width {hidden}"
    rows = gates * hidden
    for at in range(0, len(weights), each):
        width = x.shape[-1] if at < each * ways else ways * shown
        wanted = [(rows, width), (rows, shown), *[(rows,)] * biases, *[(shown, hidden)] * is_projected]
        for weight, shape in zip(weights[at : at + each], wanted, strict=True):
            if tuple(weight.shape) != shape or weight.dtype is not x.dtype:
                return f"a weight of shape {tuple(weight.shape)} and {weight.dtype}, not {shape} and {x.dtype}"
    return ""


def _packed_steps(operands: Operands) -> str:
    """There is a first step, and each has as many sequences as the one before, or fewer."""
    if "data" not in operands:
        return _states(operands)
    sizes, data = operands["batch_sizes"], operands["data"]
    if sizes.dim() != 1 or not sizes.numel() or sizes.is_floating_point() or not data.dim():
        return "there are no steps"
    if not has_numbers(sizes):
        return ""
    falls = bool((sizes[1:] <= sizes[:-1]).all()) and int(sizes[-1]) > 0
    if not falls or int(sizes.sum()) != data.shape[0]:
        return f"steps of {data.shape[0]} sequences do not follow from {sizes.numel()} sizes"
    states = operands["hx"] if isinstance(operands["hx"], (list, tuple)) else [operands["hx"]]
    wanted = (operands["num_layers"] * (2 if operands["bidirectional"] else 1), int(sizes[0]))
    wrong = [state for state in states if state.dim() != 3 or tuple(state.shape[:2]) != wanted]
    return f"a state of shape {tuple(wrong[0].shape)}, not of {wanted} and a width" if wrong else ""


def _distances(operands: Operands) -> str:
    """Two lists of points of one width, in the same batch."""
    first, second = operands["x1"], operands["x2"]
    if (
        min(first.dim(), second.dim()) < 2
        or first.shape[:-2] != second.shape[:-2]
        or first.shape[-1] != second.shape[-1]
    ):
        return f"shapes {tuple(first.shape)} and {tuple(second.shape)}"
    return ""


def _own_distances(operands: Operands) -> str:
    """One list of points."""
    rank = operands["self"].dim()
    return "" if rank == 2 else f"a tensor of rank {rank} is no list of points"


def _transform(operands: Operands) -> str:
    """Axes exist, each once, and the way to scale is one of three."""
    x, axes, scaling = operands["self"], operands["dim"], operands.get("normalization", 0)
    if len(set(axes)) < len(axes) or any(not 0 <= axis < x.dim() for axis in axes) or not 0 <= scaling <= 2:
        return f"axes {axes} and scaling {scaling} for a tensor of rank {x.dim()}"
    last = operands.get("last_dim_size")
    if last is not None and (not axes or last < 1 or x.shape[axes[-1]] != last // 2 + 1):
        return f"{last} elements cannot follow from {tuple(x.shape)}"
    return ""


def _order(operands: Operands) -> str:
    """Polynomials take a step per degree and element, and cannot be interrupted."""
    degree = operands["n"]
    if isinstance(degree, torch.Tensor):
        degree = float(degree.max()) if degree.numel() and has_numbers(degree) else 0
    return f"a polynomial of degree {degree}" if degree > 1 << 16 else ""


def _stacked(operands: Operands) -> str:
    """There is a first tensor, whose shape the others have."""
    return "" if operands["tensors"] else "there is nothing to stack"


def _repetitions(operands: Operands) -> str:
    """Kernels on a GPU believe the total that is given."""
    total = operands.get("output_size")
    made = None if total is None else repetitions(operands)
    return "" if made is None or made == total else f"{made} repetitions cannot make {total}"


def _borders(operands: Operands) -> str:
    """What lies around an operand that goes on from its other end is taken from what is left of it, which suffices."""
    x, pads = operands["self"], operands["pad"]
    if operands.get("mode", "circular") != "circular":
        return ""
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=False), 1):
        left = x.shape[-axis] + min(before, 0) + min(after, 0) if axis <= x.dim() else 0
        if max(before, after) > left:
            return f"borders of {before} and {after} around the {left} elements that are left along axis {-axis}"
    return ""


_MOST_WINDOW: Final = 1 << 20
"""Kernels compute places of windows with numbers of 32 bits, in part."""


def _windows(operands: Operands) -> str:
    """Windows lie inside of an image with its borders, as many as there are columns for."""
    x = operands["self"]
    names = ("kernel_size", "dilation", "padding", "stride")
    size, dilation, padding, stride = (list(operands[name]) for name in names)
    image = operands.get("output_size")
    extents = list(x.shape[-2:]) if image is None else list(image)
    if x.dim() not in ((3, 4) if image is None else (2, 3)) or any(
        len(numbers) != 2 for numbers in (size, dilation, padding, stride, extents)
    ):
        return f"windows of {size} for a tensor of shape {tuple(x.shape)}"
    if min(*size, *dilation, *stride, *extents) < 1 or min(padding) < 0:
        return f"windows of {size}, {dilation} apart, every {stride}, around them {padding}"
    if max(*size, *dilation, *padding, *stride, *extents) > _MOST_WINDOW:
        return f"windows of {size} with {padding} around an image of {extents}"
    steps = [
        (extent + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for extent, pad, gap, kernel, step in zip(extents, padding, dilation, size, stride, strict=True)
    ]
    if min(steps) < 1:
        return f"no window of {size} lies in an image of {extents}"
    if image is None:
        return ""
    rows, columns = x.shape[-2:]
    if columns != math.prod(steps) or rows % math.prod(size) or not rows:
        return f"{rows} rows and {columns} columns for {math.prod(steps)} windows of {math.prod(size)} elements"
    return ""


def _exponent(operands: Operands) -> str:
    """Powers of matrices take a step per bit, and the least integer has no opposite."""
    power = operands["n"]
    return f"a matrix to the power of {power}" if abs(power) > 1 << 16 else ""


def _trials(operands: Operands) -> str:
    """Drawing does not end where a number of trials or a probability is none."""
    for name in ("count", "prob"):
        x = operands[name]
        if has_numbers(x) and not bool((torch.isfinite(x) & (x >= 0)).all()):
            return f"{name} has elements that are none"
    prob = operands["prob"]
    return "a probability is greater than 1" if has_numbers(prob) and bool((prob > 1).any()) else ""


def _known_group(operands: Operands) -> str:
    """A name of a process group means nothing in a process that has not made it.

    Raises:
        ExecutionError: There is no such group.
    """
    name = operands["group_name"]
    if group_members(name) is None:
        raise ExecutionError(
            f"this process has no process group {name!r}, in which the program communicates",
            why="the collective runs in PyTorch, which finds groups by the names that it has given to them",
            hint="call torch.distributed.init_process_group, and make the same groups in the same order as where the "
            "program was compiled",
        )
    return ""


_CHECKS: Final[dict[str, Check]] = {
    **dict.fromkeys(("aten::im2col", "aten::col2im"), _windows),
    **dict.fromkeys(("aten::matrix_power", "aten::linalg_matrix_power"), _exponent),
    "aten::binomial": _trials,
    "aten::scaled_dot_product_attention": _public_attention,
    **dict.fromkeys(("aten::div", "aten::divide", "aten::floor_divide", "aten::remainder", "aten::fmod"), _quotient),
    **dict.fromkeys(("aten::lcm", "prims::div", "prims::fmod", "prims::remainder"), _quotient),
    **dict.fromkeys(("aten::linalg_eig", "aten::linalg_eigvals"), _finite),
    "aten::lstm": _recurrence(4),
    "aten::gru": _recurrence(3),
    **dict.fromkeys(("aten::rnn_tanh", "aten::rnn_relu"), _recurrence(1)),
    "aten::native_group_norm": _group_norm,
    "aten::repeat_interleave": _repetitions,
    "aten::_stack": _stacked,
    **dict.fromkeys(("aten::pad", "aten::_pad_circular"), _borders),
    **{
        f"aten::special_{name}": _order
        for name in (
            *(f"{kind}chebyshev_polynomial_{form}" for kind in ("", "shifted_") for form in "tuvw"),
            *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
        )
    },
    **{f"{prefix}fft_{kind}": _transform for prefix in ("aten::_", "prims::") for kind in ("c2c", "c2r", "r2c")},
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::_native_batch_norm_legit",
            "aten::_native_batch_norm_legit_functional",
            "aten::_native_batch_norm_legit_no_training",
        ),
        _batch_norm,
    ),
    **dict.fromkeys(("aten::_weight_norm", "aten::_weight_norm_interface"), _weight_norm),
    **dict.fromkeys(
        ("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"), _embedding_bag
    ),
    **{f"aten::{name}": _resampling for name in RESAMPLING},
    **{
        f"aten::_scaled_dot_product_{name}": _attention
        for name in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
            "fused_attention_overrideable",
        )
    },
    "aten::_cdist_forward": _distances,
    "aten::_pdist_forward": _own_distances,
    **dict.fromkeys(COLLECTIVES - {"_c10d_functional::wait_tensor"}, _known_group),
}
"""What is looked at, by the operator's name."""


@functools.cache
def checked_names() -> frozenset[str]:
    """Names of the operators whose operands are compared."""
    return frozenset(_CHECKS) | frozenset(DATA_COUNTS) | frozenset(_LAID_OUT)
