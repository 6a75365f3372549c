"""Lets what a model returns lie in memory as it does for eager calls.

Engines write dense tensors of their own, in the order of their axes. An output that lies otherwise, channels last for
instance, leaves its engine with the axes in the order of its memory, and the graph around the engine names them back: a
view. What lies with gaps in the captured program has none when an engine wrote it, so blocks in PyTorch reshape where
the program takes views that depend on gaps. Where the model returns a view of an input, or several views of one tensor,
the graph around the blocks makes the views itself, from what it was given. Where eager chooses the order by which sizes
are 1, the result is laid out once they are known.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.nesting import dense_strides
from trt_core.sizes.expressions import depends_on_data
from trt_frontends.operator_forms import number_at
from trt_frontends.smallest_sizes import ResultForms
from trt_lowering.memory_order import memory_order
from trt_lowering.node_metadata import graph_results, insert_call
from trt_lowering.results import base_of, views_of_results
from trt_runtime.result_layout import lay_out

aten = torch.ops.aten

_LAYOUT_BOUND: Final = frozenset({aten.view.default, aten._unsafe_view.default})
"""Reshapes that fail on tensors that lie otherwise than they did when the program was captured."""


# Layouts -----------------------------------------------------------------------------------------------------------


def keep_layouts(split: fx.GraphModule, engines: Collection[str]) -> None:
    """Rewrites engines' blocks, before they are built, and the calls of them.

    An output whose elements do not fill their memory, or overlap in it, such as a part of a larger tensor, stays dense.

    Args:
        split: A graph that calls blocks.
        engines: Names of the blocks that engines will run.
    """
    changed = False
    for name in engines:
        block = split.get_submodule(name)
        assert isinstance(block, fx.GraphModule)
        calls = [node for node in split.graph.nodes if node.op == "call_module" and node.target == name]
        output = block.graph.output_node()
        (result,) = output.args
        if isinstance(result, fx.Node):
            changed |= _relay(block, output, result, calls, engines)
            continue
        assert isinstance(result, (tuple, list))
        for position, item in enumerate(result):
            if isinstance(item, fx.Node):
                users = [user for call in calls for user in call.users if user.args[1:] == (position,)]
                changed |= _relay(block, output, item, users, engines)
    if changed:
        split.recompile()


def reshape_in_pytorch(split: fx.GraphModule, engines: Collection[str]) -> None:
    """Lets blocks in PyTorch copy where a tensor that an engine wrote cannot be viewed as it was in the program.

    Args:
        split: A graph that calls blocks.
        engines: Names of the blocks that engines will run; without any, every tensor lies as it was captured.
    """
    for name, block in split.named_children() if engines else ():
        if name in engines or not isinstance(block, fx.GraphModule):
            continue
        views = [node for target in _LAYOUT_BOUND for node in block.graph.find_nodes(op="call_function", target=target)]
        for node in views:
            node.target = aten.reshape.default
        if views:
            block.recompile()


def _relay(
    block: fx.GraphModule, output: fx.Node, node: fx.Node, received: Sequence[fx.Node], engines: Collection[str]
) -> bool:
    """Relays one output of a block through a permutation; whether it needs one.

    An output whose size depends on data leaves dense, as no converter would take a permutation of it, and is copied.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    order = memory_order(value)
    if order is None or order == sorted(order):
        return False
    with torch.no_grad():
        moved = value.permute(order)
    if any(map(depends_on_data, value.shape)):
        return _copy_received(node, received, moved, order, engines)
    inverse = [order.index(axis) for axis in range(len(order))]
    with block.graph.inserting_before(output):
        leaving = insert_call(block.graph, aten.permute.default, (node, order), value=moved, origin=node)
    output.replace_input_with(node, leaving)
    block.recompile()
    for arriving in received:
        arriving.meta["val"] = moved
        graph = arriving.graph
        with graph.inserting_after(arriving):
            view = insert_call(graph, aten.permute.default, (arriving, inverse), value=value, origin=node)
        for user in list(arriving.users):
            if user is not view:
                user.replace_input_with(arriving, view)
    return True


def _copy_received(
    node: fx.Node, received: Sequence[fx.Node], moved: torch.Tensor, order: Sequence[int], engines: Collection[str]
) -> bool:
    """Copies what an engine gave in the order of its memory for those that are no engines; whether there are such."""
    inverse, changed = [order.index(axis) for axis in range(len(order))], False
    for arriving in received:
        readers = [user for user in arriving.users if user.op != "call_module" or user.target not in engines]
        if not readers:
            continue
        graph = arriving.graph
        with graph.inserting_after(arriving):
            dense = insert_call(graph, aten.permute.default, (arriving, order), value=moved, origin=node)
        with graph.inserting_after(dense):
            keywords = {"memory_format": torch.contiguous_format}
            dense = insert_call(graph, aten.clone.default, (dense,), keywords, value=moved, origin=node)
        with graph.inserting_after(dense):
            made = insert_call(graph, aten.permute.default, (dense, inverse), value=node.meta["val"], origin=node)
        for user in readers:
            user.replace_input_with(arriving, made)
        changed = True
    return changed


# Views of results --------------------------------------------------------------------------------------------------

Owners = Sequence[fx.Node | None]
"""For each result the node whose memory it lies in, None for memory of the caller's and for what is no tensor."""


def owners_of_results(graph: fx.Graph) -> Owners:
    """Returns in which memory the results of a captured graph lie, for `ResultViews.of` after it was lowered."""
    return [
        None if _tensor(item) is None or _is_given(base_of(item)) else base_of(item) for item in graph_results(graph)
    ]


@dataclass(frozen=True)
class ResultViews:
    """The views that lead to results of a lowered graph.

    Attributes:
        results: The results of the graph.
        chains: For results that are made anew, the views from the tensor that owns the memory, in order.
        needed: What the views start from, and the sizes that they are taken with, in no order.
        owners: What `owners_of_results` said of the graph before it was lowered, where results have to lie exactly as
            they do for eager calls, with all their gaps; None where that is not worth memory.
        forms: How they lie where sizes are 1; None where that is not known.
    """

    results: tuple[Any, ...]
    chains: dict[fx.Node, list[fx.Node]]
    needed: tuple[fx.Node, ...]
    owners: Owners | None
    forms: ResultForms | None = None

    @classmethod
    def of(cls, graph: fx.Graph, owners: Owners | None = None, forms: ResultForms | None = None) -> ResultViews:
        """Finds the views in a lowered graph."""
        results = graph_results(graph)
        found = views_of_results(graph)
        uses = Counter(base_of(item) for item in found)
        chains = {}
        for result, chain in found.items():
            base = base_of(result)
            as_eager = owners is not None and _tensor(result) is not None and not _is_plain(result.meta["val"])
            if (_is_given(base) or uses[base] > 1 or as_eager) and (chain or as_eager) and _can_be_made(chain):
                chains[result] = chain
        operands = (item for chain in chains.values() for view in chain for item in view.all_input_nodes)
        views = {view for chain in chains.values() for view in chain}
        needed = dict.fromkeys([*map(base_of, chains), *(item for item in operands if item not in views)])
        return cls(results, chains, tuple(node for node in needed if node.op != "placeholder"), owners, forms)

    @contextlib.contextmanager
    def returned(self, graph: fx.Graph) -> Iterator[None]:
        """Has the lowered graph return what the views are made of as well, while it is being split."""
        output = graph.output_node()
        before = output.args
        if self.needed:
            output.args = ((*self.results, *self.needed),)
        try:
            yield
        finally:
            output.args = before

    def restore(self, split: fx.GraphModule, lowered: fx.GraphModule, engines: Collection[str]) -> None:
        """Replaces results that blocks return by the views that they are for eager calls.

        Args:
            split: A graph that calls blocks, rewritten in place.
            lowered: The graph that it was split from.
            engines: Names of the blocks that engines will run; they no longer make what nobody takes.
        """
        output = split.graph.output_node()
        returned = graph_results(split.graph)
        made: dict[fx.Node, Any] = dict(zip(_inputs(lowered.graph), _inputs(split.graph), strict=True))
        for original, result in zip((*self.results, *self.needed), returned, strict=True):
            if isinstance(original, fx.Node) and not self.chains.get(original):
                made[original] = result
        with split.graph.inserting_before(output):
            for base in dict.fromkeys(map(base_of, self.chains)) if self.owners is not None else ():
                made[base] = _laid_out(split.graph, base, made[base])
            if engines:
                self._lay_out_by_size(split.graph, made)
            for chain in self.chains.values():
                for view in chain:
                    if view not in made:
                        made[view] = split.graph.node_copy(view, made.__getitem__)
            results: list[Any] = [made[item] if isinstance(item, fx.Node) else item for item in self.results]
            self._part(split.graph, results)
        is_flat = isinstance(lowered.graph.output_node().args[0], (tuple, list))
        output.args = (tuple(results) if is_flat else results[0],)
        split.graph.eliminate_dead_code()
        for name in engines:
            _drop_unused_outputs(split, name)
        split.recompile()

    def _lay_out_by_size(self, graph: fx.Graph, made: dict[fx.Node, Any]) -> None:
        """Lets results lie as for eager calls where sizes are 1.

        Args:
            graph: The graph of the split model, at the place where it returns.
            made: Nodes of this graph by those of the lowered one, changed in place.
        """
        if self.forms is None or len(self.results) != len(self.forms.layouts[0]):
            return
        for at, item in enumerate(self.results):
            if isinstance(item, fx.Node) and not self.chains.get(item) and not _is_given(base_of(item)):
                chains = [chain for chain in self.chains.values() if chain and base_of(chain[0]) is item]
                if self.results.index(item) == at:
                    made[item] = _laid_out_by_size(graph, item, made[item], at, self.forms, chains)

    def _part(self, graph: fx.Graph, results: list[Any]) -> None:
        """Gives results memory of their own where they had it before lowering, which left a constant, or an input.

        Args:
            graph: The graph of the split model, at the place where it returns.
            results: Its results, changed in place.
        """
        taken: dict[fx.Node, fx.Node | None] = {}
        for position, owner in enumerate(self.owners or ()):
            item = self.results[position]
            if _tensor(item) is None:
                continue
            base = base_of(item)
            if owner is not None and (_is_given(base) or taken.setdefault(base, owner) is not owner):
                value = results[position].meta.get("val", item.meta["val"])
                results[position] = insert_call(
                    graph, aten.clone.default, (results[position],), value=value, origin=item
                )


def _drop_unused_outputs(split: fx.GraphModule, name: str) -> None:
    """Takes outputs that nothing reads from a block that makes several."""
    block = split.get_submodule(name)
    call = next(iter(split.graph.find_nodes(op="call_module", target=name)), None)
    assert isinstance(block, fx.GraphModule)
    made = block.graph.output_node().args[0]
    if call is None or not isinstance(made, tuple) or any(user.target is not operator.getitem for user in call.users):
        return
    used = sorted({user.args[1] for user in call.users})
    if not used or len(used) == len(made):
        return
    values = tuple(call.meta["val"][at] for at in used)
    single = len(used) == 1
    block.graph.output_node().args = (made[used[0]] if single else tuple(made[at] for at in used),)
    block.graph.eliminate_dead_code()
    block.recompile()
    call.meta["val"] = values[0] if single else values
    for user in list(call.users):
        if single:
            user.replace_all_uses_with(call)
            split.graph.erase_node(user)
        else:
            user.args = (call, used.index(user.args[1]))


def _laid_out(graph: fx.Graph, base: fx.Node, made: Any) -> Any:
    """Adds a call that lets a tensor of a block lie as it does for eager calls, where it may lie otherwise."""
    value = base.meta["val"]
    order = None if _is_given(base) or _is_plain(value) else memory_order(value, exact=True)
    return made if order is None else insert_call(graph, lay_out, (made, order), value=value, origin=base)


def _laid_out_by_size(
    graph: fx.Graph, item: fx.Node, made: fx.Node, at: int, forms: ResultForms, chains: Sequence[Sequence[fx.Node]]
) -> fx.Node:
    """Adds a call that lets a result of an engine lie as it does for eager calls where sizes are 1, if that differs.

    Args:
        graph: The graph of the split model, at the place where it returns.
        item: The result in the lowered graph.
        made: The same in this graph.
        at: Which result it is.
        forms: How results lie.
        chains: Views that are taken of it.
    """
    value = _tensor(item)
    layouts: list[Any] = [results[at] for results in forms.layouts]
    orders = None if value is None else _orders(value, layouts)
    if value is None or orders is None:
        return made
    bases = [
        torch.empty_strided(shape, dense_strides(shape, order), dtype=value.dtype, device="meta")
        for (shape, _), order in zip(layouts, orders, strict=True)
    ]
    points = zip(bases, forms.points, strict=True)
    if not all(_can_be_viewed(base, chain, sizes) for base, sizes in points for chain in chains):
        return made
    sizes = [_size_in(graph, made, symbol) for symbol in forms.symbols]
    if None in sizes:
        return made
    args = (made, [axis for order in orders for axis in order], sizes)
    return insert_call(graph, torch.ops.trt.lay_out.default, args, value=value, origin=item)


def _orders(value: torch.Tensor, layouts: Sequence[Any]) -> list[list[int]] | None:
    """Returns the order in memory of a result at each place of `ResultForms`; None if one is that of all, or unknown.

    Args:
        value: The result as the graph knows it.
        layouts: Shape and strides at each place.
    """
    usual = memory_order(value)
    if usual is None or None in layouts:
        return None
    exact = memory_order(value, exact=True) or usual
    shape, strides = layouts[0]
    if dense_strides(shape, exact) != strides:
        return None  # the graph knows better than the operators that were asked
    orders = [exact]
    for shape, strides in layouts[1:]:
        orders.append(memory_order(torch.empty_strided(shape, strides, device="meta"), exact=True) or exact)
    pairs = zip(layouts, orders, strict=True)
    if all(dense_strides(shape, order) == dense_strides(shape, usual) for (shape, _), order in pairs):
        return None
    return orders


def _can_be_viewed(value: Any, chain: Sequence[fx.Node], sizes: Mapping[Any, int]) -> bool:
    """Whether views can be taken of a tensor at some sizes."""
    try:
        for view in chain:
            args, kwargs = fx.node.map_arg(
                (view.args[1:], view.kwargs), lambda item: number_at(item.meta["val"], sizes)
            )
            target: Any = view.target
            value = target(value, *args, **kwargs)
    except (RuntimeError, ValueError):
        return False
    return True


def _size_in(graph: fx.Graph, made: fx.Node, symbol: Any) -> fx.Node | None:
    """Adds a call that reads a size, of the result where that has it, else of an input."""
    for source in (made, *_inputs(graph)):
        value = _tensor(source)
        for axis, extent in enumerate(() if value is None else value.shape):
            if isinstance(extent, torch.SymInt) and extent.node.expr == symbol:
                return insert_call(graph, aten.sym_size.int, (source, axis), value=extent, origin=made)
    return None


def _can_be_made(chain: Sequence[fx.Node]) -> bool:
    """Whether views take nothing but a tensor and numbers."""
    return all(
        isinstance(item.meta.get("val"), (int, torch.SymInt)) for view in chain for item in view.all_input_nodes[1:]
    )


def _inputs(graph: fx.Graph) -> list[fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _is_given(base: fx.Node) -> bool:
    """Whether memory was there before the call."""
    return base.op in ("placeholder", "get_attr")


def _tensor(item: Any) -> torch.Tensor | None:
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is dense and starts where its memory starts."""
    from trt_core.internals import statically_known_true  # sympy is costly to import

    if value.layout is not torch.strided:
        return True
    if not statically_known_true(value.storage_offset() == 0):
        return False
    expected: Any = 1
    for extent, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * extent
    return True
