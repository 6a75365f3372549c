"""How much operators make that can make far more than they are given: by broadcasting, or by numbers among arguments.

Others make at most as many elements as their operands have together, or a few times as many. `operator_counts` has what
each makes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload, schema_name
from trt_core.nesting import reach_of

_SENSELESS: Final = (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, StopIteration)
"""What counts meet in arguments that make no sense: no axes, no numbers, other ranks."""


def can_grow(operator: OpOverload) -> bool:
    """Whether `elements_made` knows an operator."""
    return _count_of(operator) is not None


def elements_made(operator: OpOverload, operands: Operands) -> float | None:
    """Returns how many elements a call makes, at least.

    Returns:
        None for operators that do not grow, and where arguments make no sense: the operator will say so.
    """
    count = _count_of(operator)
    try:
        return None if count is None else float(count(operands))
    except OverflowError:
        return math.inf
    except _SENSELESS:
        return None


def pieces_made(operator: OpOverload, operands: Operands) -> float:
    """Returns how many tensors a call makes that makes a list of them."""
    count = _PIECES.get(operator._schema.name)
    try:
        return 1.0 if count is None else max(float(count(operands)), 1.0)
    except _SENSELESS:
        return 1.0


_ON_GPUS: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types whose convolutions read windows where they lie, on a GPU."""

_FEW: Final = 20480
"""Elements of an operand that PyTorch does not leave to oneDNN on a CPU: `use_mkldnn` in ATen's `Convolution.cpp`."""

_LANES: Final = 16
"""Channels that oneDNN lays out at least, of operand and result."""


def scratch_of(operator: OpOverload, operands: Operands, made: float, x: torch.Tensor) -> float:
    """Returns how many elements a convolution lays out on the way.

    Args:
        operator, operands: The call.
        made: Elements that it makes.
        x: Its first operand.
    """
    if operator._schema.name not in _CONVOLUTIONS:
        return 0.0
    try:
        weight, groups = operands["weight"], operands.get("groups", 1)
        if not operands.get("transposed", False):
            return convolution_scratch(x, weight, groups, made)
        if _lays_windows_out(x) or _leaves_rows(operands):
            inner = math.prod(weight[1:])
            return float(max(made / max(weight[0], 1) * inner * groups, x.numel() * inner))
        return _lanes(x.numel(), weight[0]) + _lanes(made, weight[1] * groups)
    except _SENSELESS:
        return 0.0


def convolution_scratch(x: torch.Tensor, weight: Sequence[int], groups: int, made: float) -> float:
    """Returns how many elements a convolution that is not transposed lays out on the way.

    They are its windows, side by side, or, where it reads them where they lie, channels up to a multiple of `_LANES`.

    Args:
        x: What is convolved.
        weight: The shape of the weight, (out, in / groups, *kernel).
        groups: Groups of channels.
        made: Elements that it makes.
    """
    if _lays_windows_out(x):
        return made / max(weight[0], 1) * math.prod(weight[1:]) * groups
    return _lanes(x.numel(), weight[1] * groups) + _lanes(made, weight[0])


def _lays_windows_out(x: torch.Tensor) -> bool:
    """Whether windows may be laid side by side first; not all processors have products of numbers of 16 bits."""
    if x.device.type != "cpu":
        return x.dtype not in _ON_GPUS
    return x.dtype is not torch.float32 or x.numel() <= _FEW or not torch.backends.mkldnn.enabled


def _leaves_rows(operands: Operands) -> bool:
    """Whether a transposed convolution has rows at an end that no window reaches, which oneDNN does not make."""
    more, steps = operands.get("output_padding", 0), operands.get("stride", 1)
    return bool(max(more if isinstance(more, list) else [more]) >= min(steps if isinstance(steps, list) else [steps]))


def _lanes(elements: float, channels: int) -> float:
    return elements / max(channels, 1) * (-channels % _LANES)


def has_depth(operator: OpOverload) -> bool:
    """Whether each element that an operator makes is a sum."""
    return operator._schema.name in _DEPTHS


def work_of(operator: OpOverload, operands: Operands, made: float) -> float:
    """Returns how many elements a call adds up: those of products and windows.

    Args:
        operator, operands: The call.
        made: Elements that it makes.
    """
    name = operator._schema.name
    depth, work = _DEPTHS.get(name), _WORK.get(name)
    try:
        if work is not None and (found := work(operands)) is not None:
            return float(found)
        return 0.0 if depth is None else made * float(depth(operands))
    except _SENSELESS:
        return 0.0


def is_product(target: Any) -> bool:
    """Whether a target multiplies matrices, convolves or attends."""
    return schema_name(target) in _PRODUCTS


def depth_of(operator: OpOverload, operands: Operands) -> float:
    """Returns how many elements are added up for each one that an operator makes; 0 where none are."""
    depth = _DEPTHS.get(operator._schema.name)
    return 0.0 if depth is None else float(depth(operands))


def _count_of(operator: OpOverload) -> Count | None:
    found = COUNTS.get(operator._schema.name)
    return broadcast if found is None and torch.Tag.pointwise in operator.tags else found


MASKS: Final = (torch.bool, torch.uint8)
"""Types of tensors that choose elements rather than name them."""


def operands_of(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call as counts take them, without those that are not given."""
    names = (argument.name for argument in operator._schema.arguments)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: _shaped(value) for name, value in given.items() if value is not None}


def operands_at(node: fx.Node, extent: Callable[[Any], int]) -> dict[str, Any]:
    """Returns the arguments of a call in a graph as counts take them.

    Args:
        node: The call of an operator, whose operands have `meta["val"]`.
        extent: What a symbolic size counts as.
    """
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta.get("val"))
    assert isinstance(node.target, OpOverload)
    return {name: _sized(value, extent) for name, value in operands_of(node.target, args, kwargs).items()}


def _sized(value: Any, extent: Callable[[Any], int]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)([_sized(item, extent) for item in value])
    return extent(value) if isinstance(value, torch.SymInt) else value


def elements_in(operands: Operands) -> int:
    """Elements of all tensors among arguments."""
    return sum(math.prod(shape) for shape in shapes_in(operands))


def _shaped(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return MaskShape(value.shape) if value.dtype in MASKS else tuple(value.shape)
    return [_shaped(item) for item in value] if isinstance(value, (list, tuple)) else value


Shape = tuple[int, ...]


class MaskShape(tuple[int, ...]):
    """The shape of a tensor of truth values, which index differently."""


Operands = Mapping[str, Any]
"""Arguments by their names in the schema: numbers, lists of them, and shapes as tuples in the place of tensors."""

Count = Callable[[Operands], float]
"""Elements that a call makes, at least; whatever Python raises where arguments make no sense."""


def shapes_in(operands: Operands) -> list[Shape]:
    """Shapes of all tensors among arguments."""
    found = []
    for value in operands.values():
        if isinstance(value, tuple):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, tuple)]
    return found


def joined(shapes: Sequence[Shape]) -> list[int]:
    """The shape that all of them broadcast to, the last extent first."""
    rank = max(map(len, shapes), default=0)
    return [max(shape[-axis] if axis <= len(shape) else 1 for shape in shapes) for axis in range(1, rank + 1)]


def broadcast(operands: Operands) -> float:
    """Elements of what all operands broadcast to."""
    shapes = shapes_in(operands)
    if any(0 in shape for shape in shapes):
        return 0.0
    return float(math.prod(joined(shapes)))


def matrix_product(one: str, other: str) -> Count:
    """Products of matrices, batches of them broadcast."""

    def count(operands: Operands) -> float:
        first, second = operands[one], operands[other]
        rows = first[-2] if len(first) > 1 else 1
        columns = second[-1] if len(second) > 1 else 1
        return float(math.prod(joined([first[:-2], second[:-2]])) * rows * columns)

    return count


def all_pairs(one: str, other: str) -> Count:
    """A product for each pair of elements."""
    return lambda operands: float(math.prod(operands[one]) * math.prod(operands[other]))


def contracted(operands: Operands) -> float:
    """Products along the axes that are named."""
    kept = [
        math.prod(extent for axis, extent in enumerate(shape) if axis not in {item % len(shape) for item in axes})
        for shape, axes in (
            (operands["self"], operands["dims_self"]),
            (operands["other"], operands["dims_other"]),
        )
    ]
    return float(math.prod(kept))


def labelled(operands: Operands) -> float:
    """`einsum`: extents of the labels of the result, and of what three dots stand for."""
    extents, kept, dotted = labels_of(operands["equation"], operands["tensors"])
    return float(math.prod(extents[label] for label in kept) * math.prod(joined(dotted)))


def labels_of(equation: str, shapes: Sequence[Shape]) -> tuple[dict[str, int], set[str], list[Shape]]:
    """Returns extents by label of an `einsum`, the labels that its result has, and the shapes that dots stand for."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    extents: dict[str, int] = {}
    dotted: list[Shape] = []
    for labels, shape in zip(inputs.split(","), shapes, strict=True):
        before, dots, after = labels.partition("...")
        end = len(shape) - len(after)
        for label, extent in [*zip(before, shape, strict=False), *zip(after, shape[end:], strict=True)]:
            extents[label] = max(extent, extents.get(label, 0))
        dotted += [shape[len(before) : end]] * bool(dots)
    kept = set(result) - {"."} if arrow else {label for label in extents if inputs.count(label) == 1}
    return extents, kept, dotted


def distances(operands: Operands) -> float:
    """One for each pair of rows."""
    first, second = operands["x1"], operands["x2"]
    return float(math.prod(joined([first[:-2], second[:-2]])) * first[-2] * second[-2])


def correlations(operands: Operands) -> float:
    """One for each pair of variables."""
    shape = operands["self" if "self" in operands else "input"]
    return float(shape[0] ** 2) if len(shape) > 1 else 1.0


def factors(is_whole: Callable[[Operands], bool]) -> Count:
    """Factors of matrices: square ones where all of them are asked for."""

    def count(operands: Operands) -> float:
        *outer, rows, columns = next(iter(shapes_in(operands)))
        return float(math.prod(outer) * (max(rows, columns) ** 2 if is_whole(operands) else rows * columns))

    return count


def tuples(operands: Operands) -> float:
    """One element of each operand in every combination."""
    shapes = shapes_in(operands)
    return float(len(shapes) * math.prod(math.prod(shape) for shape in shapes))


def choices(operands: Operands) -> float:
    """Combinations of the elements of one operand."""
    count, taken = math.prod(operands["self"]), operands.get("r", 2)
    count += taken * bool(operands.get("with_replacement"))
    if min(taken, count - taken) > 64:
        return math.inf  # not worth a long product
    return float(taken * math.comb(count, taken))


def blocks(operands: Operands) -> float:
    """Operands along a diagonal."""
    shapes = [(1, 1, *shape)[-2:] for shape in shapes_in(operands)]
    return float(sum(rows for rows, _ in shapes) * sum(columns for _, columns in shapes))


# Indexing ----------------------------------------------------------------------------------------------------------


def _indexed(operands: Operands) -> float:
    left = list(operands["self"])
    kept, indices = 1, []
    for index in operands["indices"]:
        if index is None:
            kept *= left.pop(0)
        elif isinstance(index, MaskShape):
            del left[: len(index)]
            indices.append((math.prod(index),))
        else:
            del left[0]
            indices.append(index)
    return float(kept * math.prod(left) * math.prod(joined(indices)))


def _selected(operands: Operands) -> float:
    shape = operands["self"]
    return float(_without(shape, operands["dim"]) * math.prod(operands["index"]))


def _places(operands: Operands) -> float:
    """The place of every element, at most: an index for each axis."""
    shape = operands["self"]
    return float(math.prod(shape) * max(len(shape), 1))


def _sampled(operands: Operands) -> float:
    x, grid = operands["input"], operands["grid"]
    return float(math.prod(x[:2]) * math.prod(grid[1:-1]))


def _of(name: str) -> Count:
    return lambda operands: float(math.prod(operands[name]))


def _without(shape: Shape, axis: int) -> int:
    """Elements of all axes but one."""
    return math.prod(shape) // max(shape[axis], 1) if shape else 1


def _quantiles(operands: Operands) -> float:
    asked = operands["q"]
    count = math.prod(asked) if isinstance(asked, tuple) else 1
    axis = operands.get("dim")
    return float(count * (1 if axis is None else _without(operands["self"], axis)))


# Numbers -----------------------------------------------------------------------------------------------------------


def _range(operands: Operands) -> float:
    length = abs(operands["end"] - operands.get("start", 0))
    return float(math.ceil(length / abs(operands.get("step", 1)))) if math.isfinite(length) else math.inf


def _filled(operands: Operands) -> float:
    return float(math.prod(abs(extent) for extent in operands.get("size", operands.get("shape"))))


def _expanded(operands: Operands) -> float:
    own = operands["self"]
    pairs = zip(reversed(operands["size"]), itertools.chain(reversed(own), itertools.repeat(1)), strict=False)
    return float(math.prod(extent if asked < 0 else asked for asked, extent in pairs))


def _grid(operands: Operands) -> float:
    count, _, *extents = operands["size"]
    return float(count * math.prod(extents) * (len(extents) + 1))


def _sequences(operands: Operands) -> float:
    shapes = operands["sequences"]
    return float(len(shapes) * max((shape[0] for shape in shapes), default=0) * math.prod(shapes[0][1:]))


def _histogram(operands: Operands) -> float:
    bins = operands["bins"]
    sizes = bins if isinstance(bins, list) else [bins] * operands["self"][-1]
    return float(math.prod(math.prod(size) if isinstance(size, tuple) else size for size in sizes))


def _bins(operands: Operands) -> float:
    bins = operands["bins"]
    return float(math.prod(bins) if isinstance(bins, tuple) else bins + 1)


def _strided(operands: Operands) -> float:
    shape, strides = operands.get("size", operands.get("shape")), operands.get("stride", operands.get("strides"))
    return float(reach_of(shape, strides))


def _number(name: str) -> Count:
    return lambda operands: float(abs(operands[name]))


def _powers(operands: Operands) -> float:
    shape = operands["x"]
    return float(math.prod(shape) * operands.get("N", shape[-1]))


def _repeated(operands: Operands) -> float:
    repeats = operands["repeats"]
    return 0.0 if isinstance(repeats, tuple) else float(math.prod(operands["self"]) * repeats)


def _padded(operands: Operands) -> float:
    shape = list(operands["self"])
    pads = operands.get("pad", operands.get("padding", ()))
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=False), start=1):
        shape[-axis] = max(shape[-axis] + before + after, 0)
    return float(math.prod(shape))


def _diagonals(operands: Operands) -> float:
    shape = operands["self"]
    last = shape[-1] if shape else 1
    return float(_without(shape, -1) * (last + abs(operands.get("offset", 0))) ** 2)


def _diagonal(operands: Operands) -> float:
    shape = operands["self"]
    return float((shape[0] + abs(operands.get("diagonal", 0))) ** 2) if len(shape) == 1 else 0.0


def _windows(operands: Operands) -> float:
    (*outer, height, width), (rows, columns) = operands["self"], operands["kernel_size"]
    (above, beside), (down, along) = operands["padding"], operands["stride"]
    steps = ((height + 2 * above - rows) // down + 1) * ((width + 2 * beside - columns) // along + 1)
    return float(math.prod(outer) * rows * columns * steps)


def _unfolded(operands: Operands) -> float:
    shape, axis, size, step = operands["self"], operands["dimension"], operands["size"], operands["step"]
    return float(_without(shape, axis) * size * ((shape[axis] - size) // step + 1))


def _resized(operands: Operands) -> float:
    """Pools, and their inverses: all but the last axes, times the extents that are asked for."""
    shape, sizes = operands["self"], operands["output_size"]
    return float(math.prod(shape[: len(shape) - len(sizes)]) * math.prod(sizes))


def _resampled(operands: Operands) -> float:
    shape: Shape = operands["self" if "self" in operands else "input"]
    sizes = operands.get("output_size")
    if sizes is None:
        sizes = [extent * factor for extent, factor in zip(shape[2:], operands["scale_factors"], strict=True)]
    return float(math.prod(shape[:2]) * math.prod(sizes))


def _pooled(operands: Operands) -> float:
    shape, size = operands["self"], operands["kernel_size"]
    axes = next(rank for rank in (len(size), len(shape) - 2, len(shape) - 1) if rank > 0)
    made = math.prod(shape[:-axes])
    told = (size or 1, operands.get("stride") or size, operands.get("padding") or 0, operands.get("dilation") or 1)
    for extent, kernel, step, pad, gap in zip(shape[-axes:], *(_each(value, axes) for value in told), strict=True):
        made *= max(-(-(extent + 2 * pad - gap * (kernel - 1) - 1) // step) + 1, 0)
    return float(made)


def _each(value: int | list[int], axes: int) -> list[int]:
    """A number of each axis, of one for all of them or of as many."""
    numbers = value if isinstance(value, list) else [value]
    return numbers * axes if len(numbers) == 1 else numbers


def _convolved(transposed: bool | None = None) -> Count:
    def count(operands: Operands) -> float:
        x, weight = operands["input"], operands["weight"]
        axes = len(weight) - 2
        outer = x[:-axes][:-1]
        if isinstance(operands.get("padding"), str):
            return float(math.prod(outer) * weight[0] * math.prod(x[-axes:]))  # "same", and more than "valid" makes
        told = [operands.get(name, 0) for name in ("padding", "output_padding")]
        told += [operands.get(name, 1) for name in ("stride", "dilation")]
        is_transposed = operands.get("transposed", False) if transposed is None else transposed
        made = operands.get("groups", 1) * weight[1] if is_transposed else weight[0]
        for extent, kernel, pad, more, step, gap in zip(
            x[-axes:], weight[2:], *(_each(value, axes) for value in told), strict=True
        ):
            span = gap * (kernel - 1)
            if is_transposed:
                made *= max((extent - 1) * step - 2 * pad + span + more + 1, 0)
            else:
                made *= max((extent + 2 * pad - span - 1) // step + 1, 0)
        return float(math.prod(outer) * made)

    return count


def _linear_kernel(x: str, weight: str) -> Count:
    """Products with weights that may lie packed, in whatever shape."""

    def count(operands: Operands) -> float:
        *rows, width = operands[x]
        return float(math.prod(rows) * (math.prod(operands[weight]) // max(width, 1)))

    return count


def _convolution_kernel(x: str, weight: str) -> Count:
    convolved = _convolved(transposed=False)
    return lambda operands: convolved({**operands, "input": operands[x], "weight": operands[weight]})


def _spectrum(operands: Operands) -> float:
    """Transforms of a length that is asked for, in place of the operand's own."""
    shape = operands["self"]
    asked = operands.get("s", operands.get("n"))
    if asked is None:
        return float(math.prod(shape))
    sizes = asked if isinstance(asked, list) else [asked]
    axes = operands.get("dim", list(range(-len(sizes), 0)))
    left = list(shape)
    for axis, size in zip(axes if isinstance(axes, list) else [axes], sizes, strict=True):
        left[axis] = size
    return float(math.prod(left))


def _frames(operands: Operands) -> float:
    *outer, length = operands["self"]
    size = operands["n_fft"]
    step = operands.get("hop_length", size // 4)
    covered = length if operands.get("center") else length - size
    return float(math.prod(outer) * size * (covered // step + 1) / 2)  # half of a spectrum may do


RESAMPLING: Final = (
    *(f"{kind}{rank}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)

_POOLS: Final = tuple(
    f"{kind}_pool{rank}d{more}" for kind in ("avg", "max") for rank in (1, 2, 3) for more in ("", "_with_indices")
)

_BY_NAME: Final[dict[Sequence[str], Count]] = {
    (
        *("where", "cosine_similarity", "pairwise_distance", "cross", "linalg_cross", "linalg_vecdot"),
        *("linalg_solve", "cholesky_solve", "smooth_l1_loss", "mse_loss", "l1_loss", "huber_loss", "kl_div"),
        *("cosine_embedding_loss", "margin_ranking_loss", "triplet_margin_loss", "poisson_nll_loss"),
        *("floor_divide", "rsub", "complex", "polar", "masked_select", "hinge_embedding_loss"),
        *("binary_cross_entropy_with_logits", "soft_margin_loss", "float_power", "_trilinear", "masked_fill"),
    ): broadcast,
    ("matmul",): matrix_product("self", "other"),
    ("linalg_matmul",): matrix_product("input", "other"),
    ("mm", "bmm", "_int_mm", "_scaled_mm"): matrix_product("self", "mat2"),
    ("addmm", "_addmm_activation"): matrix_product("mat1", "mat2"),
    ("baddbmm",): matrix_product("batch1", "batch2"),
    ("addbmm",): lambda o: o["batch1"][-2] * o["batch2"][-1],
    ("outer", "ger"): all_pairs("self", "vec2"),
    ("addr",): all_pairs("vec1", "vec2"),
    ("kron",): all_pairs("self", "other"),
    ("linear",): lambda o: math.prod(o["input"][:-1]) * math.prod(o["weight"][:-1]),
    ("inner",): lambda o: math.prod(o["self"][:-1]) * math.prod(o["other"][:-1]),
    ("tensordot",): contracted,
    ("einsum",): labelled,
    ("cdist", "_cdist_forward", "_euclidean_dist"): distances,
    ("pdist", "_pdist_forward"): lambda o: o["self"][0] ** 2 / 2,
    ("corrcoef", "cov"): correlations,
    ("linalg_svd",): factors(lambda operands: operands.get("full_matrices", True)),
    ("_linalg_svd",): factors(lambda operands: operands.get("full_matrices", False)),
    ("svd", "qr"): factors(lambda operands: not operands.get("some", True)),
    ("linalg_qr",): factors(lambda operands: operands.get("mode") == "complete"),
    ("cartesian_prod",): tuples,
    ("combinations",): choices,
    ("block_diag",): blocks,
    ("bilinear",): lambda o: math.prod(o["input1"][:-1]) * o["weight"][0],
    ("index", "_unsafe_index", "_unsafe_masked_index"): _indexed,
    ("index_select",): _selected,
    ("embedding",): lambda o: math.prod(o["indices"]) * o["weight"][-1],
    ("gather", "take"): _of("index"),
    ("quantile", "nanquantile"): _quantiles,
    ("arange", "range"): _range,
    (
        *("full", "ones", "zeros", "empty", "rand", "randn", "randint", "empty_permuted", "as_strided_copy"),
        *("new_empty", "new_full", "new_ones", "new_zeros", "normal"),
    ): _filled,
    ("expand_copy",): _expanded,
    ("affine_grid_generator",): _grid,
    ("pad_sequence",): _sequences,
    ("histogramdd", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"): _histogram,
    ("histogram",): _bins,
    ("nonzero",): _places,
    ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"): _sampled,
    _POOLS: _pooled,
    ("empty_strided", "new_empty_strided"): _strided,
    tuple(f"{name}_window" for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")): _number("window_length"),
    ("linspace", "logspace"): _number("steps"),
    ("randperm", "fft_fftfreq", "fft_rfftfreq"): _number("n"),
    ("histc",): _number("bins"),
    ("istft",): _number("length"),
    ("mvlgamma", "special_multigammaln"): lambda o: math.prod(o["self"]) * (o["p"] if o["p"] > 64 else 1),
    ("nonzero_static",): lambda o: o["size"] * max(len(o["self"]), 1),
    ("one_hot",): lambda o: math.prod(o["self"]) * max(o.get("num_classes", 1), 1),
    ("multinomial",): lambda o: _without(o["self"], -1) * o["num_samples"],
    ("vander", "linalg_vander"): _powers,
    ("repeat_interleave",): _repeated,
    ("eye",): lambda o: o["n"] * o.get("m", o["n"]),
    ("tril_indices", "triu_indices"): lambda o: 2 * o["row"] * o["col"],
    ("tile", "repeat"): lambda o: math.prod(o["self"]) * math.prod(o.get("repeats", o.get("dims", ()))),
    (
        "constant_pad_nd",
        "pad",
        "_pad_enum",
        *(f"{kind}_pad{rank}d" for kind in ("replication", "reflection") for rank in (1, 2, 3)),
    ): _padded,
    ("diag_embed",): _diagonals,
    ("diag",): _diagonal,
    ("diagflat",): lambda o: (math.prod(o["self"]) + abs(o.get("offset", 0))) ** 2,
    ("im2col",): _windows,
    ("unfold_copy",): _unfolded,
    (
        *(f"adaptive_{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "max_unpool2d", "max_unpool3d"),
        *("fractional_max_pool2d", "fractional_max_pool3d", "col2im"),
    ): _resized,
    RESAMPLING: _resampled,
    ("conv1d", "conv2d", "conv3d", "convolution", "_convolution"): _convolved(),
    ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"): _convolved(transposed=True),
    tuple(f"fft_{way}fft{axes}" for way in ("", "i", "r", "ir", "h", "ih") for axes in ("", "2", "n")): _spectrum,
    ("stft",): _frames,
}


def _split(operands: Operands) -> float:
    extent, size = operands["self"][operands.get("dim", 0)], operands.get("split_size", operands.get("sizes"))
    return float(-(-extent // max(size, 1))) if isinstance(size, int) else float(len(size))


def _sections(operands: Operands) -> float:
    asked = operands.get("sections", operands.get("indices", ()))
    return float(asked if isinstance(asked, int) else len(asked) + 1)


_PIECES_BY_NAME: Final[dict[Sequence[str], Count]] = {
    ("split", "split_copy", "unsafe_split"): _split,
    ("chunk", "unsafe_chunk"): lambda o: o["chunks"],
    ("tensor_split", "hsplit", "vsplit", "dsplit"): _sections,
    ("unbind", "unbind_copy"): lambda o: o["self"][o.get("dim", 0)],
    ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes"): lambda o: len(o["split_sizes"]),
}
_PIECES: Final = {f"aten::{name}": count for names, count in _PIECES_BY_NAME.items() for name in names}
"""Tensors that are made by what makes a list."""


def window(axes: int) -> Count:
    """Elements of a window on so many axes: `kernel_size` has one number for each, or one for all."""

    def count(operands: Operands) -> float:
        size = operands["kernel_size"]
        sizes = [size] if isinstance(size, int) else size
        return float(math.prod(sizes) ** (axes if len(sizes) == 1 else 1))

    return count


def _taps(operands: Operands) -> float:
    """Weights of convolutions are (out, in / groups, *kernel)."""
    return float(math.prod(operands["weight"][1:]))


def _transposed_taps(operands: Operands) -> float:
    """Transposed ones have (in, out / groups, *kernel)."""
    channels, _, *kernel = operands["weight"]
    return float(channels // operands.get("groups", 1) * math.prod(kernel))


def _transposed_work(operands: Operands) -> float:
    """Each element that is read goes into one sum for each weight of its channel."""
    return float(math.prod(operands["input"]) * _taps(operands))


def _attention_work(operands: Operands) -> float:
    """Scores `query @ key^T`, then `scores @ value`."""
    *rows, width = operands["query"]
    return float(math.prod(rows) * operands["key"][-2] * (width + operands["value"][-1]))


_TRANSPOSED: Final = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_EITHER: Final = ("convolution", "_convolution")
"""Convolutions whose arguments say whether they are transposed."""
_ATTENTION: Final = (
    *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    "_scaled_dot_product_cudnn_attention",
)

_PRODUCTS_BY_NAME: Final[dict[Sequence[str], Count]] = {
    ("mm", "bmm", "matmul", "dot", "mv", "_int_mm", "_scaled_mm"): lambda o: o["self"][-1],
    ("addmm", "_addmm_activation"): lambda o: o["mat1"][-1],
    ("addmv",): lambda o: o["mat"][-1],
    ("baddbmm",): lambda o: o["batch1"][-1],
    ("addbmm",): lambda o: o["batch1"][0] * o["batch1"][-1],
    ("linear",): lambda o: o["input"][-1],
    ("conv1d", "conv2d", "conv3d", "mkldnn_convolution"): _taps,
    _TRANSPOSED: _transposed_taps,
    _EITHER: lambda o: _transposed_taps(o) if o.get("transposed") else _taps(o),
    _ATTENTION: lambda o: o["key"][-2] + o["query"][-1],
}
_PRODUCTS: Final = {f"aten::{name}": depth for names, depth in _PRODUCTS_BY_NAME.items() for name in names}

_WORK: Final[dict[str, Callable[[Operands], float | None]]] = {
    **{f"aten::{name}": _transposed_work for name in _TRANSPOSED},
    **{f"aten::{name}": lambda o: _transposed_work(o) if o.get("transposed") else None for name in _EITHER},
    **{f"aten::{name}": _attention_work for name in _ATTENTION},
}
"""Elements that calls add up which add up other numbers of them for each that they make."""

_DEPTHS: Final[dict[str, Count]] = {
    **_PRODUCTS,
    "aten::_cdist_forward": lambda o: o["x1"][-1],
    **{f"aten::{name}": window(rank) for rank in (1, 2, 3) for name in _POOLS if f"{rank}d" in name},
    "mkldnn::_linear_pointwise": lambda o: o["X"][-1],
    "mkl::_mkl_linear": lambda o: o["X"][-1],
    "onednn::qlinear_pointwise": lambda o: o["qx"][-1],
    "mkldnn::_convolution_pointwise": lambda o: math.prod(o["W"][1:]),
    "onednn::qconv_pointwise": lambda o: math.prod(o["qw"][1:]),
}
"""Elements that each element of a result is a sum of."""

_CONVOLUTIONS: Final = frozenset(
    f"aten::{name}"
    for name in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "convolution_overrideable")
)
"""Convolutions as they come to a kernel, and those that are watched whole under `torch.inference_mode`."""

COUNTS: Final[dict[str, Count]] = {
    **{f"aten::{name}": count for names, count in _BY_NAME.items() for name in names},
    **dict.fromkeys([f"prims::{name}" for name in ("full", "empty", "empty_permuted", "normal", "uniform")], _filled),
    "prims::empty_strided": _strided,
    "prims::iota": _number("length"),
    "mkldnn::_linear_pointwise": _linear_kernel("X", "W"),
    "mkl::_mkl_linear": _linear_kernel("X", "ORI_W"),
    "onednn::qlinear_pointwise": _linear_kernel("qx", "qw"),
    "mkldnn::_convolution_pointwise": _convolution_kernel("X", "W"),
    "onednn::qconv_pointwise": _convolution_kernel("qx", "qw"),
}
"""By namespace and name; every operator that PyTorch calls pointwise broadcasts as well."""
