"""Checks of indices and values: what eager calls refuse, and engines, which look at nothing twice, would take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.attributes import is_written, read_attribute
from trt_core.internals import OpOverload, schema_name
from trt_core.operators import argument
from trt_lowering.contract import GraphPass
from trt_lowering.expansion import copy_module, trace_call
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import is_pure, tensor_value

aten = torch.ops.aten

_INDEX_TYPES: Final = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
_OUTSIDE: Final = "index {index} is out of bounds for dimension {axis} with size {size}"
_OUT_OF_RANGE: Final = "index out of range in self"
_NOT_AN_ELEMENT: Final = "out of range: tried to access index {index} on a tensor of {size} elements."
_NO_CLASS: Final = "Target {index} is out of bounds."

_library = torch.library.Library("trt", "FRAGMENT")
_library.define(
    "check_indices(Tensor indices, SymInt size, int axis, bool from_end, int? ignored, str message, bool is_lookup) "
    "-> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def check_indices(
    indices: torch.Tensor, size: int, axis: int, from_end: bool, ignored: int | None, message: str, is_lookup: bool
) -> None:
    """Refuses indices that are outside of an axis, as the operator that takes them does in PyTorch.

    Args:
        indices: Integers, of any shape.
        size: The extent of the axis.
        axis: Which axis it is.
        from_end: Whether negative indices count from its end.
        ignored: What may be among the indices, wherever it points; None for nothing.
        message: What the error says; `{index}`, `{axis}` and `{size}` stand for numbers.
        is_lookup: Whether it is an IndexError.

    Raises:
        IndexError, RuntimeError: An index is outside.
    """
    if not indices.numel():
        return
    least = -size if from_end else 0
    low, high = torch.aminmax(indices)
    if low.item() >= least and high.item() < size:
        return
    outside = (indices < least) | (indices >= size)
    if ignored is not None:
        outside &= indices != ignored
    found = indices[outside]
    if found.numel():
        error = IndexError if is_lookup else RuntimeError
        raise error(message.format(index=int(found[0]), axis=axis, size=size))


def _check_fake(*_: Any) -> None:
    """Shapes are asked for, and there is no result."""


_library.impl("check_indices", check_indices, "CompositeExplicitAutograd")
_library.impl("check_indices", _check_fake, "Meta")

CHECK: Final = torch.ops.trt.check_indices.default
"""Takes what `check_indices` takes, and runs in PyTorch wherever the graph around it runs."""


@dataclass(frozen=True)
class _Lookup:
    """Indices that an operator takes, and what they point into.

    Attributes:
        indices: The indices.
        table: What they point into.
        axis: Along which axis; None for its elements in row-major order.
        message: What PyTorch says of an index that is outside.
        is_lookup: Whether that is an IndexError.
        from_end: Whether negative indices count from the end.
        ignored: An index that may be outside.
        size: The end of the indices, where no axis is that.
    """

    indices: Any
    table: Any
    axis: int | None
    message: str = _OUTSIDE
    is_lookup: bool = True
    from_end: bool = False
    ignored: int | None = None
    size: int | None = None


class CheckIndices(GraphPass):
    """Adds a check of the indices that operators take on the CPU, where an engine would not look at them.

    An index that is outside is the error that the operator raises in PyTorch. On a GPU there is no check: PyTorch's
    kernels end the process' use of the device there, which an engine does not, and a check would wait for it. Bodies
    of branches and loops are left as they are: with a check inside they would run in PyTorch.

    What writes by a layer for scattering (`index_put`, `index_copy`, `scatter`) is refused by that layer.

    Requires: no in-place operator but write backs.
    Ensures: checks of the same indices are one; indices that an input holds are checked before anything else.

    Args:
        constants: Placeholders (by target) whose value is fixed. Where it shows that no index is outside, there is no
            check.
    """

    name = "check_indices"

    def __init__(self, constants: Mapping[str, Any] | None = None) -> None:
        self._constants = dict(constants or {})

    def requires(self, gm: fx.GraphModule) -> None:
        """Accepts every graph: what carries no value is not looked at."""

    def call(self, gm: fx.GraphModule) -> int:
        """Adds each check behind what makes the indices; returns how many there are."""
        made: set[Any] = set()
        placeholders = gm.graph.find_nodes(op="placeholder")
        for node in list(gm.graph.nodes):
            for lookup in _lookups(node):
                size, indices = _size(lookup), _source(lookup.indices)
                key = (indices, lookup.from_end, str(size), lookup.message, lookup.ignored)
                if key in made or not self._needs_check(gm, indices, lookup, size):
                    continue
                made.add(key)
                behind = indices if type(size) is int else max(indices, lookup.table)
                with gm.graph.inserting_after(placeholders[-1] if behind.op == "placeholder" else behind):
                    _insert(gm.graph, node, indices, lookup, size)
        return len(made)

    def ensures(self, gm: fx.GraphModule) -> None:
        """Promises nothing that a graph without values could show."""

    def _needs_check(self, gm: fx.GraphModule, indices: fx.Node, lookup: _Lookup, size: Any) -> bool:
        """Whether an index may be outside, as far as constants tell."""
        least, most = self._range(gm, indices)
        if type(size) is int and least >= (-size if lookup.from_end else 0) and most < size:
            return False
        is_known = most < math.inf or counted(indices)[1] is not None
        return is_known or not _follows_from_sizes(indices)

    def _range(self, gm: fx.GraphModule, node: fx.Node) -> tuple[float, float]:
        """The least and the largest number of a tensor of integers, as far as that is known."""
        while node.op == "call_function" and node.target in _PARTS:
            node = node.args[0]  # type: ignore[assignment]
        value = read_attribute(gm, str(node.target)) if node.op == "get_attr" else None
        if node.op == "placeholder":
            value = self._constants.get(str(node.target))
        if isinstance(value, torch.Tensor) and value.dtype in _INDEX_TYPES and value.numel() and not is_written(node):
            low, high = torch.aminmax(value)
            return low.item(), high.item()
        least, end = counted(node)
        return (least, end - 1) if type(end) is int else (-math.inf, math.inf)


class CheckValues(GraphPass):
    """Adds assertions of the values that operators take on the CPU, of which PyTorch refuses some.

    What the graph computes decides, and PyTorch raises (`aten::_assert_async`), as for what a model asserts itself. On
    a GPU, and in bodies of branches and loops, there is none, for the reasons that `CheckIndices` has.

    Requires: fake values.
    Ensures: an assertion comes before the operator.
    """

    name = "check_values"

    def requires(self, gm: fx.GraphModule) -> None:
        """Accepts every graph: what carries no value is not looked at."""

    def call(self, gm: fx.GraphModule) -> int:
        """Adds each assertion; returns how many there are."""
        made = 0
        for node in list(gm.graph.nodes):
            for message, holds in _refused_values(node):
                body = trace_call(node, holds)
                if body is None:
                    continue
                condition = copy_module(gm, node, body, node.all_input_nodes)
                with gm.graph.inserting_before(node):
                    insert_call(gm.graph, aten._assert_async.msg, (condition, message), value=None, origin=node)
                made += 1
        return made

    def ensures(self, gm: fx.GraphModule) -> None:
        """Promises nothing that a graph without values could show."""


def counted(node: fx.Node) -> tuple[int, Any]:
    """The first number and the end of a tensor that counts up by one from a number that is not negative.

    Returns:
        The first number, and the end, which may be a symbolic integer; None as the end for any other tensor.
    """
    if node.op != "call_function":
        return 0, None
    if node.target in _PARTS:
        return counted(node.args[0])  # type: ignore[arg-type]
    if node.target is aten.add.Tensor and not node.kwargs and isinstance(node.args[0], fx.Node):
        (start, end), more = counted(node.args[0]), node.args[1]
        return (start + more, end + more) if end is not None and type(more) is int and more >= 0 else (0, None)
    if node.target not in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        return 0, None
    names = [declared.name for declared in node.target._schema.arguments]
    start, step = (argument(node, name) if name in names else number for name, number in (("start", 0), ("step", 1)))
    end = argument(node, "end")
    end = end.meta.get("val") if isinstance(end, fx.Node) else end
    is_plain = type(start) is int and start >= 0 and step == 1 and isinstance(end, (int, torch.SymInt))
    return (start, end) if is_plain else (0, None)


def _follows_from_sizes(node: fx.Node) -> bool:
    """Whether indices are made of sizes and constants alone, as where a model counts over tensors of its own."""
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        made = pending.pop()
        if made in seen or tensor_value(made) is None:
            continue
        seen.add(made)
        if made.op == "placeholder" or not is_pure(made):
            return False
        pending += made.all_input_nodes
    return True


def _insert(graph: fx.Graph, node: fx.Node, indices: fx.Node, lookup: _Lookup, size: Any) -> None:
    axis, end = lookup.axis or 0, size
    if type(size) is not int:
        target, read = (aten.sym_size.int, (axis,)) if lookup.axis is not None else (aten.sym_numel.default, ())
        end = insert_call(graph, target, (lookup.table, *read), value=size, origin=node)
        graph.inserting_after(end)
    args = (indices, end, axis, lookup.from_end, lookup.ignored, lookup.message, lookup.is_lookup)
    insert_call(graph, CHECK, args, value=None, origin=node)


def _lookups(node: fx.Node) -> Iterator[_Lookup]:
    """What a node looks up or writes to at indices."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return
    read = _READERS.get(schema_name(node.target).removeprefix("aten::"))
    if read is None or _is_scattered(node):
        return
    for lookup in read(node):
        value = tensor_value(lookup.indices) if isinstance(lookup.indices, fx.Node) else None
        is_checked = value is not None and value.device.type == "cpu" and value.dtype in _INDEX_TYPES
        if is_checked and isinstance(lookup.table, fx.Node) and tensor_value(lookup.table) is not None:
            yield lookup


def _refused_values(node: fx.Node) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """What PyTorch says of the values that a node takes, and what computes that they are others."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return
    name = schema_name(node.target).removeprefix("aten::")
    if name not in _VALUES:
        return
    given = [tensor_value(operand) for operand in node.all_input_nodes]
    if any(value is None or value.device.type != "cpu" for value in given):
        return
    if name == "masked_scatter" and _has_enough(node):
        return
    if name in _BAGS and _follows_from_sizes(argument(node, "offsets")):
        return  # bags of one length
    if name == "histc" and argument(node, "min") != argument(node, "max"):
        return  # the range is given
    yield from _VALUES[name]


def _has_enough(masked: fx.Node) -> bool:
    """Whether a source holds a value for each element of what is written to, wherever the mask is true."""
    from trt_core.internals import statically_known_true  # costly to import

    source, result = tensor_value(argument(masked, "source")), tensor_value(masked)
    assert source is not None and result is not None
    return bool(statically_known_true(source.numel() >= result.numel()))


def _is_scattered(node: fx.Node) -> bool:
    """Whether a node writes by a layer that refuses indices outside itself, before anything is written."""
    name = schema_name(node.target)
    if name == "aten::scatter":
        return "reduce" not in node.target._schema.overload_name  # type: ignore[union-attr]
    return name == "aten::index_put" and not argument(node, "accumulate")


def _size(lookup: _Lookup) -> Any:
    """The end of the indices, an integer or a symbolic one."""
    if lookup.size is not None:
        return lookup.size
    table = tensor_value(lookup.table)
    assert table is not None
    if lookup.axis is None:
        return math.prod(table.shape)
    return table.shape[lookup.axis] if table.dim() else 1


def _source(node: fx.Node) -> fx.Node:
    """What holds the same numbers as a tensor, neither more nor fewer, before anything was computed with them."""
    while node.op == "call_function" and node.target in _SAME_NUMBERS:
        source: Any = node.args[0]
        value, other = tensor_value(node), tensor_value(source)
        if value is None or other is None or other.dtype not in _INDEX_TYPES or other.device != value.device:
            break
        if value.dtype.itemsize < other.dtype.itemsize:
            break
        node = source
    return node


_SAME_NUMBERS: Final = frozenset(
    (
        *(aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default),
        *(aten.permute.default, aten.transpose.int, aten.t.default, aten.clone.default, aten.lift_fresh_copy.default),
        *(aten.alias.default, aten.detach.default, aten._to_copy.default, aten._unsafe_view.default),
    )
)
_PARTS: Final = _SAME_NUMBERS | {aten.slice.Tensor, aten.select.int, aten.squeeze.dims}


# What PyTorch's operators say of indices that are outside ------------------------------------------------------------


def _along(
    node: fx.Node, table: str = "self", indices: str = "index", message: str = _OUTSIDE, **more: Any
) -> Iterator[_Lookup]:
    """Indices of the axis `dim` of a table."""
    pointed_at = argument(node, table)
    rank = _rank(pointed_at)
    yield _Lookup(argument(node, indices), pointed_at, int(argument(node, "dim")) % max(rank, 1), message, **more)


def _selected(node: fx.Node) -> Iterator[_Lookup]:
    for lookup in _along(node):
        if lookup.axis == 1:
            message = "INDICES element is out of DATA bounds, id={index} axis_dim={size}"
            yield _Lookup(lookup.indices, lookup.table, 1, message, is_lookup=False)
        else:
            yield _Lookup(lookup.indices, lookup.table, lookup.axis, _OUT_OF_RANGE)


def _added(node: fx.Node) -> Iterator[_Lookup]:
    if _rank(argument(node, "self")) > 1:
        return _along(node, is_lookup=False)
    return _along(node, message=_OUT_OF_RANGE)


def _indexed(node: fx.Node) -> Iterator[_Lookup]:
    """Indices of several axes, None and masks among them; PyTorch counts the axes that are indexed."""
    axis = number = 0
    for index in argument(node, "indices"):
        value = tensor_value(index) if isinstance(index, fx.Node) else None
        is_mask = value is not None and value.dtype in (torch.bool, torch.uint8)
        if value is not None and not is_mask:
            message = _OUTSIDE.replace("{axis}", str(number))
            yield _Lookup(index, argument(node, "self"), axis, message, from_end=True)
        axis += value.dim() if value is not None and is_mask else 1
        number += value.dim() if value is not None and is_mask else value is not None


def _elements(node: fx.Node) -> Iterator[_Lookup]:
    yield _Lookup(argument(node, "index"), argument(node, "self"), None, _NOT_AN_ELEMENT, from_end=True)


def _rows(node: fx.Node) -> Iterator[_Lookup]:
    yield _Lookup(argument(node, "indices"), argument(node, "weight"), 0, _OUT_OF_RANGE)


def _rows_of_bags(node: fx.Node) -> Iterator[_Lookup]:
    message = "embedding_bag: an index takes value {index} which is not in the valid range [0, {size})"
    yield _Lookup(argument(node, "indices"), argument(node, "weight"), 0, message, is_lookup=False)


def _classes(node: fx.Node) -> Iterator[_Lookup]:
    scores = argument(node, "self")
    axis = 0 if _rank(scores) == 1 else 1
    yield _Lookup(argument(node, "target"), scores, axis, _NO_CLASS, ignored=argument(node, "ignore_index"))


def _encoded(node: fx.Node) -> Iterator[_Lookup]:
    count, given = argument(node, "num_classes"), argument(node, "self")
    if type(count) is int and count > 0:
        message = "one_hot: Class values must be non-negative and smaller than num_classes, {index} is not"
        yield _Lookup(given, given, None, message, is_lookup=False, size=count)


def _margins(node: fx.Node) -> Iterator[_Lookup]:
    scores = argument(node, "self")
    yield _Lookup(argument(node, "target"), scores, _rank(scores) - 1, "target out of range", is_lookup=False)


def _sorted(node: fx.Node) -> Iterator[_Lookup]:
    table = argument(node, "sorted_sequence")
    message = "torch.searchsorted(): sorter index {index} is out of range"
    yield _Lookup(argument(node, "sorter"), table, _rank(table) - 1, message, is_lookup=False)


def _unpooled(node: fx.Node) -> Iterator[_Lookup]:
    extents = argument(node, "output_size")
    if all(type(extent) is int for extent in extents):
        message = "Found an invalid max index: {index} (output volumes have {size} elements)"
        size = math.prod(extents)
        yield _Lookup(argument(node, "indices"), argument(node, "self"), None, message, is_lookup=False, size=size)


def _between(values: torch.Tensor) -> torch.Tensor:
    """Whether all values are probabilities, which NaN is not."""
    return ((values >= 0) & (values <= 1)).all()


def _fills(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    whole, _ = torch.broadcast_tensors(mask, self)
    fits: torch.Tensor = whole.sum() <= source.numel()
    return fits


def _begins(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return (offsets[:1] == 0).all()


def _ends(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return (offsets[-1:] <= indices.numel()).all()


def _rank(node: Any) -> int:
    value = tensor_value(node) if isinstance(node, fx.Node) else None
    return 0 if value is None else value.dim()


_BAGS: Final = ("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
_READERS: Final[dict[str, Callable[[fx.Node], Iterator[_Lookup]]]] = {
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), lambda node: _along(node, is_lookup=False)),
    **dict.fromkeys(("index", "index_put"), _indexed),
    **dict.fromkeys(("take", "put"), _elements),
    **dict.fromkeys(_BAGS, _rows_of_bags),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _classes),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _unpooled),
    "multi_margin_loss": _margins,
    "searchsorted": _sorted,
    "index_select": _selected,
    "index_add": _added,
    "index_reduce": lambda node: _along(node, message=_OUT_OF_RANGE),
    "index_fill": lambda node: _along(node, from_end=True),
    "embedding": _rows,
    "one_hot": _encoded,
}

_VALUES: Final[dict[str, Sequence[tuple[str, Callable[..., torch.Tensor]]]]] = {
    "binary_cross_entropy": (
        ("all elements of input should be between 0 and 1", lambda self, target, *_, **__: _between(self)),
        ("all elements of target should be between 0 and 1", lambda self, target, *_, **__: _between(target)),
    ),
    "masked_scatter": (("Number of elements of source < number of ones in mask", _fills),),
    "histc": (("torch.histc: range of the elements is not finite", lambda self, *_, **__: torch.isfinite(self).all()),),
    **dict.fromkeys(
        _BAGS,
        (
            ("offsets[0] has to be 0, i.e., the first sequence has to start from position 0", _begins),
            ("offsets[-1] can not be greater than input's length", _ends),
        ),
    ),
}
