"""Lets what a model returns lie in the memory that it lies in for eager calls.

A block returns tensors of its own. Where the model returns a view of an input, or several views of one tensor, the
graph around the blocks makes the views itself, from what it was given.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.node_metadata import graph_results
from trt_lowering.operator_traits import is_size_query, is_symbolic_function
from trt_lowering.results import base_of, views_of_results


@contextmanager
def shared_bases_returned(graph: fx.Graph) -> Iterator[int]:
    """Adds tensors that several results are views of to the results, while the graph is being split.

    Args:
        graph: A lowered graph.

    Yields:
        How many results the model has; the added ones follow them.
    """
    output = graph.output_node()
    before, results = output.args, graph_results(graph)
    chains = views_of_results(graph)
    uses = Counter(base_of(chain[0]) for chain in chains.values() if chain)
    shared = [base for base, count in uses.items() if count > 1 and base.op == "call_function" and base not in chains]
    if shared:
        output.args = ((*results, *shared),)
    try:
        yield len(results)
    finally:
        output.args = before


def restore_result_views(split: fx.GraphModule, lowered: fx.GraphModule, count: int, engines: Iterable[str]) -> None:
    """Replaces results that blocks return by the views that they are for eager calls.

    Args:
        split: A graph that calls blocks, rewritten in place.
        lowered: The graph that it was split from, with the same results.
        count: How many of the results are those of the model.
        engines: Names of the blocks that engines will run; they no longer make what nobody takes.
    """
    output = split.graph.output_node()
    results = list(graph_results(split.graph))
    originals = list(graph_results(lowered.graph))
    known = dict(zip(_inputs(lowered.graph), _inputs(split.graph), strict=True))
    for original, result in zip(originals, results, strict=True):
        if isinstance(original, fx.Node) and isinstance(result, fx.Node):
            known.setdefault(original, result)
    chains = views_of_results(lowered.graph)
    changed = len(results) > count
    made: dict[fx.Node, Any] = {}
    for position, original in enumerate(originals[:count]):
        chain = chains.get(original, []) if isinstance(original, fx.Node) else []
        if not chain or base_of(chain[0]) not in known:
            continue
        if original in made:
            results[position] = made[original]
            continue
        copies = {base_of(chain[0]): known[base_of(chain[0])]}
        copies.update({node: known[node] for node in _inputs(lowered.graph)})
        with split.graph.inserting_before(output):
            if all(_copy(split.graph, view, copies) for view in chain):
                results[position] = made[original] = copies[chain[-1]]
                changed = True
    if changed:
        output.args = (tuple(results[:count]),)
        split.graph.eliminate_dead_code()
        for name in engines:
            _drop_unused_outputs(split, name)
        split.recompile()


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


def _inputs(graph: fx.Graph) -> list[fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _copy(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> bool:
    """Copies a node behind the sizes that it reads; False where one of them follows from more than inputs."""
    if node in copies:
        return True
    if node.op != "call_function":
        return False
    for operand in node.all_input_nodes:
        if operand in copies:
            continue
        if not _is_size(operand) or not _copy(graph, operand, copies):
            return False
    copied: Any = graph.node_copy(node, copies.__getitem__)
    copies[node] = copied
    return True


def _is_size(node: fx.Node) -> bool:
    if not isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return False
    return is_size_query(node.target) if isinstance(node.target, OpOverload) else is_symbolic_function(node.target)
