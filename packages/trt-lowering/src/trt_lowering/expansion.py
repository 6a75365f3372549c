"""Traces single operators into the graphs that take their place, once per signature."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core import logger
from trt_core.attributes import add_constant, has_hidden_state, read_attribute
from trt_core.internals import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    compile_session,
    enable_python_dispatcher,
    make_fx,
)
from trt_core.log import unlogged
from trt_core.nesting import with_leaves
from trt_core.operators import draws_random_numbers
from trt_core.paused_collection import paused_collection
from trt_core.sizes.guards import Asker
from trt_core.temporary import with_attributes
from trt_core.weight_recipes import RECIPE, Literal
from trt_lowering.decomposition_table import Decomposition, DecompositionRules, Source, find_decomposition
from trt_lowering.node_metadata import provenance_of
from trt_lowering.operator_traits import is_data_dependent, is_symbolic_function, mutated_arguments
from trt_lowering.passes.functionalize import Functionalize
from trt_lowering.tracing import asked_by, strides_unguarded


def inline_module(gm: fx.GraphModule, call: fx.Node, body: fx.GraphModule) -> None:
    """Replaces a call by the nodes of a traced module, and erases it.

    Args:
        gm: Module that holds the call; constants of the body become its buffers.
        call: The call.
        body: The trace. Its placeholders stand for `call.all_input_nodes`.
    """
    replace_result(call, copy_module(gm, call, body, call.all_input_nodes))
    gm.graph.erase_node(call)


def copy_module(gm: fx.GraphModule, call: fx.Node, body: fx.GraphModule, operands: Sequence[fx.Node]) -> Any:
    """Copies the nodes of a traced module before a call, and returns what stands for the trace's result.

    Args:
        gm: Module that holds the call; constants of the body become its buffers.
        call: The call; the copies tell where they come from as it does.
        body: The trace.
        operands: What its placeholders stand for.
    """
    origin = provenance_of(call)
    inside: dict[fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
    with gm.graph.inserting_before(call):
        result = gm.graph.graph_copy(body.graph, inside)
    for node, copied in inside.items():
        if node.op == "placeholder":
            continue
        copied.meta = {**origin, "val": node.meta["val"]}
        if node.op == "get_attr":
            value = read_attribute(body, str(node.target))
            copied.target = add_constant(gm, value)
            copied.meta[RECIPE] = Literal(value)
    return result


def replace_result(call: fx.Node, result: Any) -> None:
    """Redirects the uses of a call to `result`: a node, a number, or a sequence of them."""
    if isinstance(result, fx.Node):
        call.replace_all_uses_with(result)
        return
    for user in list(call.users):
        if user.target is operator.getitem and isinstance(result, (tuple, list)):
            replace_result(user, result[_index(user)])
            user.graph.erase_node(user)
        else:
            user.args = fx.map_arg(user.args, lambda node: result if node is call else node)
            user.kwargs = fx.map_arg(user.kwargs, lambda node: result if node is call else node)


def _index(getitem: fx.Node) -> int:
    index = getitem.args[1]
    assert isinstance(index, int)
    return index


_GUARD_LOG: Final = "torch.fx.experimental.symbolic_shapes"


@dataclass(frozen=True)
class Expansion:
    """What takes the place of an operator call.

    Attributes:
        module: Traced module. Its placeholders stand for the call's distinct input nodes in order of appearance, its
            output is the call's result; nodes carry `meta["val"]`.
        reaches_converters: Whether every operator in it has a converter, once expanded in turn.
    """

    module: fx.GraphModule
    reaches_converters: bool


class Expander:
    """Finds expansions, and remembers them by operator and argument signature.

    Shapes count as they are, symbols included: two calls have one signature only if their shapes are the same
    expressions, so one trace serves every repeated block of a model.

    Args:
        rules: Which operators stay whole.
    """

    def __init__(self, rules: DecompositionRules) -> None:
        self.rules = rules
        self._known: dict[Any, Expansion | None] = {}
        self._active: set[OpOverload] = set()
        self.traces = 0

    def expand(self, node: fx.Node) -> Expansion | None:
        """Returns what takes the place of a call, None when it stays whole."""
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload) or self.rules.keeps_call(node):
            return None
        if mutated_arguments(target) or draws_random_numbers(node) or has_hidden_state(node):
            return None
        if target in self._active:
            return None
        found = find_decomposition(target)
        if found is None:
            return None
        signature = call_signature(node)
        if signature is None:
            return None
        if signature not in self._known:
            self._active.add(target)
            try:
                self._known[signature] = self._trace(node, found)
            finally:
                self._active.discard(target)
        return self._known[signature]

    def _trace(self, node: fx.Node, found: Decomposition) -> Expansion | None:
        self.traces += 1
        module = trace_call(node, found.function)
        if module is None or not _is_usable(module):
            return None
        reaches = True
        for inner in list(module.graph.nodes):
            if inner.op != "call_function" or not isinstance(inner.target, OpOverload):
                continue
            if inner.target is node.target:
                return None  # the decomposition leads back to the operator
            nested = self.expand(inner)
            if nested is not None:
                inline_module(module, inner, nested.module)
                reaches = reaches and nested.reaches_converters
            else:
                reaches = reaches and self.rules.has_converter(inner.target)
        if found.source is Source.REFERENCE and not reaches:
            return None
        module.graph.eliminate_dead_code()
        return Expansion(module, reaches)


def trace_call(node: fx.Node, function: Callable[..., Any]) -> fx.GraphModule | None:
    """Traces a decomposition on the fake inputs of a call, in the program's own shape environment.

    Returns:
        The functional trace, or None when the decomposition refuses its arguments, needs the value of a tensor, or
        would have to assume something about a symbolic shape that the program does not guarantee.
    """
    operands = node.all_input_nodes
    values = [_detached(operand.meta["val"]) for operand in operands]
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    if mode is None:
        return None

    def call(*inputs: Any) -> Any:
        bound = dict(zip(operands, inputs, strict=True))
        args, kwargs = with_leaves(
            (node.args, node.kwargs), lambda leaf: bound[leaf] if isinstance(leaf, fx.Node) else leaf
        )
        result = function(*args, **kwargs)
        # decompositions of PyTorch name their results, and a trace would hold the class of the names
        return tuple(result) if isinstance(result, tuple) else result

    try:
        with (
            compile_session(),
            torch.no_grad(),
            mode,
            enable_python_dispatcher(),
            no_new_guards(mode),
            paused_collection(),
        ):
            module = make_fx(call, pre_dispatch=True)(*values)
    except Exception as error:  # a decomposition may fail in any way; the operator then stays whole
        logger.debug("%s stays whole: its decomposition failed with %s", node.target, error)
        return None
    return make_functional(module, mode)


def make_functional(module: fx.GraphModule, mode: FakeTensorMode) -> fx.GraphModule | None:
    """Gives the constants of a trace their values, and takes writes out of it.

    Args:
        module: The trace; changed.
        mode: The fake mode that it was traced in.

    Returns:
        The trace, or None where what it writes to cannot be told apart.
    """
    for constant in module.graph.find_nodes(op="get_attr"):
        tensor = getattr(module, str(constant.target), None)
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor):
            constant.meta["val"] = mode.from_tensor(tensor, static_shapes=True)
    functionalize = Functionalize(write_back=False)
    functionalize.rewrite(module.graph)
    if functionalize.entangled is not None:
        return None
    module.graph.eliminate_dead_code()
    return module


def call_signature(node: fx.Node) -> Any:
    """Returns a hashable key of a call: operator, constants, and layouts of inputs; None when it cannot be traced."""
    index: dict[fx.Node, int] = {}
    return call_key(node, lambda item: (index.setdefault(item, len(index)), _value_key(item.meta.get("val"))))


def call_key(node: fx.Node, of_operand: Callable[[fx.Node], Any] = lambda operand: operand) -> Any:
    """Returns a hashable key of a call: operator and arguments, each with its type; None where one has no key.

    Args:
        node: The call.
        of_operand: What stands for a node among its arguments.
    """

    def key(item: Any) -> Any:
        if isinstance(item, fx.Node):
            return of_operand(item)
        if isinstance(item, (list, tuple)):
            return tuple(map(key, item))
        if isinstance(item, dict):
            return tuple((name, key(part)) for name, part in item.items())
        return type(item), repr(item) if isinstance(item, float) else item  # 0.0 and -0.0 are equal, and differ

    try:
        found = (node.op, node.target, key(node.args), key(node.kwargs))
        hash(found)
    except TypeError:
        return None
    return found


def _value_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple(map(str, value.shape))
        if value.layout is not torch.strided:
            return ("tensor", value.dtype, str(value.device), shape, str(value.layout))
        return ("tensor", value.dtype, str(value.device), shape, tuple(map(str, value.stride())))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return ("symbolic", str(value.node.expr))
    if isinstance(value, (int, float, bool)):
        return ("number", type(value), value)
    raise TypeError("only tensors and numbers can be traced")


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def no_new_guards(mode: FakeTensorMode) -> Iterator[None]:
    """Fails when tracing specializes a symbol, so that the program's shape environment never changes."""
    shape_env = mode.shape_env
    if shape_env is None:
        yield
        return
    # PyTorch asks this method before it records anything; 2.11 has no other switch, and later ones say less
    is_newer = hasattr(shape_env, "error_on_new_guards")
    frozen = shape_env.error_on_new_guards() if is_newer else contextlib.nullcontext()
    with with_attributes(shape_env, _check_frozen=_refuse_guard), frozen, strides_unguarded(), unlogged(_GUARD_LOG):
        yield


@contextlib.contextmanager
def sizes_left_open(gm: fx.GraphModule) -> Iterator[None]:
    """Fails where code asks for the value of a size that varies, which would fix it for the whole program.

    Args:
        gm: A graph of the program.
    """
    values = (node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder"))
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    with contextlib.nullcontext() if mode is None else no_new_guards(mode):
        yield


def _refuse_guard(expression: Any, value: Any) -> None:
    if asked_by()[0] is not Asker.STRIDES:  # these leave none
        raise RuntimeError(f"this takes for granted that {expression} is {value}, and sizes vary")


def _is_usable(module: fx.GraphModule) -> bool:
    for node in module.graph.nodes:
        if node.meta.get("unbacked_bindings"):  # sizes of its own, which two calls that share the trace would share
            return False
        if node.op == "get_attr":
            attribute = getattr(module, str(node.target), None)
            if not isinstance(attribute, torch.Tensor) or isinstance(attribute, FakeTensor):
                return False
        elif node.op == "call_function":
            target = node.target
            if isinstance(target, OpOverload):
                if mutated_arguments(target) or draws_random_numbers(node) or is_data_dependent(target):
                    return False
            elif not is_symbolic_function(target):
                return False
            if "val" not in node.meta:
                return False
    return True
