"""Branches and loops: operators whose arguments are graphs, `torch.cond`, `while_loop`, `scan` and `map`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import fx

from trt_core.attributes import is_state, read_attribute
from trt_core.internals import HigherOrderOperator, TorchDispatchMode

PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "cond": ("pred", "true_fn", "false_fn", "operands"),
    "map_impl": ("f", "xs", "pos_args"),
    "scan": ("combine_fn", "init", "xs", "additional_inputs"),
    "while_loop": ("cond_fn", "body_fn", "carried_inputs", "additional_inputs"),
}
"""Names of their arguments, for they have no schema. Graphs take all lists one after the other.

What the last list holds is the same in every run of a graph, such as weights.
"""


class ControlFlowMode(TorchDispatchMode):
    """A mode that sees what runs inside of branches and loops, too, however deep they are nested.

    PyTorch compiles branches and loops where they are called, and refuses them under other modes. What it meets under
    such a mode it leaves alone for as long as the process lives, and `torch.cond` fails in every later call.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """PyTorch may compile under this mode."""
        return True

    def run_bodies(self, function: HigherOrderOperator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs an operator whose arguments are functions so that the mode sees what these run."""

        def seen(body: Callable[..., Any]) -> Callable[..., Any]:
            def run(*operands: Any) -> Any:
                with self:
                    return body(*operands)

            return run

        bodies = (seen(item) if callable(item) and not isinstance(item, torch.Tensor) else item for item in args)
        return function(*bodies, **kwargs)


def is_control_flow(target: Any) -> bool:
    """Whether this is the operator of a branch or a loop."""
    return isinstance(target, HigherOrderOperator) and target.name() in PARAMETERS


def bodies_of(node: fx.Node) -> Iterator[tuple[fx.Node, fx.GraphModule]]:
    """Yields the graphs that a branch or loop runs, each with the attribute that holds it; nothing for other nodes."""
    module = node.graph.owning_module
    if not is_control_flow(node.target) or module is None:
        return
    for holder in node.args:
        if isinstance(holder, fx.Node) and holder.op == "get_attr":
            body = read_attribute(module, str(holder.target))
            if isinstance(body, fx.GraphModule):
                yield holder, body


def closed_bodies(node: fx.Node) -> Iterator[fx.GraphModule]:
    """Yields the graphs that a branch or loop runs, with the weights that they are given as attributes of their own."""
    lists = [argument for argument in node.args if isinstance(argument, (list, tuple))]
    varying = sum(map(len, lists[:-1]))
    constants = {}
    for position, operand in enumerate(lists[-1], varying):
        if isinstance(operand, fx.Node) and operand.op == "get_attr" and not is_state(operand):
            assert node.graph.owning_module is not None
            value = read_attribute(node.graph.owning_module, str(operand.target))
            if isinstance(value, torch.Tensor):
                constants[position] = value
    for _, body in bodies_of(node):
        yield close_over(body, constants)


def close_over(body: fx.GraphModule, constants: Mapping[int, torch.Tensor]) -> fx.GraphModule:
    """Returns a copy of a graph in which some inputs, by their position, are attributes `constant_<position>`."""
    graph = fx.Graph()
    held: dict[str, Any] = {}
    copies: dict[fx.Node, fx.Node] = {}
    positions = {item: place for place, item in enumerate(body.graph.find_nodes(op="placeholder"))}
    for node in body.graph.nodes:
        place = positions.get(node, -1)
        if place in constants:
            name = f"constant_{place}"
            held[name] = constants[place]
            copies[node] = graph.get_attr(name)
            copies[node].meta = dict(node.meta)
            continue
        if node.op == "get_attr":
            held[str(node.target)] = read_attribute(body, str(node.target))
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(held, graph, class_name=type(body).__name__)
