"""Computes in another floating-point type, and keeps the types of inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from trt_core import CompilationSettings
from trt_core.dtypes import FLOATS, dtype_name
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import cast_value, insert_call
from trt_lowering.operator_traits import is_data_dependent, tensor_value

aten = torch.ops.aten


class ConvertFloatType(GraphPass):
    """Makes all computation of one floating-point type happen in another.

    Serves `precision` (float32 to float16 or bfloat16) and `truncate_long_and_double` (float64 to float32). Inputs and
    attributes of the type are cast where they enter, outputs are cast back; types that the model names, such as the
    type of a softmax, follow. Numbers change within the accuracy of the narrower type: that is the purpose.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: no computation but the casts at the rim has the former type; outputs keep their types.

    Args:
        source: Type that is replaced.
        target: Type that replaces it.
    """

    def __init__(self, source: torch.dtype, target: torch.dtype) -> None:
        self.name = f"convert_{dtype_name(source)}_to_{dtype_name(target)}"
        self._source = source
        self._target = target
        self._rim: set[fx.Node] = set()

    @classmethod
    def for_settings(cls, settings: CompilationSettings) -> list[ConvertFloatType]:
        """Returns the conversions that settings ask for, in order."""
        passes = []
        if settings.truncate_long_and_double:
            passes.append(cls(torch.float64, torch.float32))
        if settings.precision in FLOATS - {torch.float32}:
            passes.append(cls(torch.float32, settings.precision))
        return passes

    def call(self, gm: fx.GraphModule) -> int:
        """Casts at the rim, then walks the graph once and brings every value up to date."""
        nodes = list(gm.graph.nodes)
        if not any(self._has_source(node.meta.get("val")) for node in nodes):
            return 0
        self._rim = set()
        result_types = [_dtype(item) for item in nodes[-1].args[0]]
        first_call = next(node for node in nodes if node.op not in ("placeholder", "get_attr"))
        changes = 0
        for node in nodes:
            if node.op == "placeholder":
                with gm.graph.inserting_before(first_call):
                    changes += self._cast_entry(gm.graph, node)
            elif node.op == "get_attr":
                with gm.graph.inserting_after(node):
                    changes += self._cast_entry(gm.graph, node)
            elif node.target is aten.copy_.default:
                state, value = node.args
                changes += self._cast_back(gm.graph, node, value, _dtype(state))
            elif node.op == "call_function":
                changes += self._convert(gm.graph, node)
            else:
                for item, wanted in zip(list(node.args[0]), result_types, strict=True):
                    changes += self._cast_back(gm.graph, node, item, wanted)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that the former type is left at the rim only."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if node.op != "call_function" or node in self._rim or node.target is aten.copy_.default:
                continue
            if self._has_source(node.meta["val"]):
                self.fail(node, f"the result still has type {self._source}")

    def _has_source(self, value: Any) -> bool:
        items = value if isinstance(value, (tuple, list)) else (value,)
        return any(isinstance(item, torch.Tensor) and item.dtype == self._source for item in items)

    def _cast_entry(self, graph: fx.Graph, node: fx.Node) -> int:
        value = tensor_value(node)
        if value is None or value.dtype != self._source:
            return 0
        users = [user for user in node.users if user.op != "output" and not _is_write_to(user, node)]
        if not users:
            return 0
        kwargs = {"dtype": self._target}
        cast = insert_call(
            graph,
            aten._to_copy.default,
            (node,),
            kwargs,
            value=cast_value(value, self._target),
            origin=node,
        )
        for user in users:
            user.replace_input_with(node, cast)
        return 1

    def _convert(self, graph: fx.Graph, node: fx.Node) -> int:
        touched = self._has_source(node.meta["val"])
        args = _map_dtype(node.args, self._source, self._target)
        kwargs = _map_dtype(node.kwargs, self._source, self._target)
        if args != node.args or kwargs != node.kwargs:
            node.args, node.kwargs, touched = args, kwargs, True
        if not touched:
            return 0
        node.meta["val"] = _swap(node.meta["val"], self._source, self._target)
        actual = _recompute(node)
        if actual is not None and actual.dtype != node.meta["val"].dtype:
            wanted = node.meta["val"]
            node.meta["val"] = actual
            with graph.inserting_after(node):
                cast = graph.call_function(aten._to_copy.default, (node,), {"dtype": wanted.dtype})
            cast.meta.update({**node.meta, "val": wanted})
            node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
            if actual.dtype == self._source:
                self._rim.add(node)  # the operator has a type of its own, such as a factory without `dtype`
        return 1

    def _cast_back(self, graph: fx.Graph, user: fx.Node, value: Any, wanted: torch.dtype | None) -> int:
        if wanted != self._source or not isinstance(value, fx.Node) or _dtype(value) == wanted:
            return 0
        with graph.inserting_before(user):
            cast = insert_call(
                graph,
                aten._to_copy.default,
                (value,),
                {"dtype": wanted},
                value=cast_value(value.meta["val"], self._source),
                origin=value,
            )
        self._rim.add(cast)
        user.replace_input_with(value, cast)
        return 1


def _dtype(item: Any) -> torch.dtype | None:
    value = tensor_value(item) if isinstance(item, fx.Node) else None
    return None if value is None else value.dtype


def _is_write_to(user: fx.Node, node: fx.Node) -> bool:
    return user.target is aten.copy_.default and user.args[0] is node


def _map_dtype(item: Any, source: torch.dtype, target: torch.dtype) -> Any:
    if isinstance(item, (tuple, list)):
        return type(item)(_map_dtype(part, source, target) for part in item)
    if isinstance(item, dict):
        return {name: _map_dtype(part, source, target) for name, part in item.items()}
    return target if item is source else item


def _swap(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_swap(item, source, target) for item in value)
    if isinstance(value, torch.Tensor) and value.dtype == source:
        return cast_value(value, target)
    return value


def _recompute(node: fx.Node) -> torch.Tensor | None:
    """Runs the operator on its new fake inputs; None when that cannot tell the type of a single result."""
    value = node.meta["val"]
    if not isinstance(node.target, OpOverload) or not isinstance(value, FakeTensor) or is_data_dependent(node.target):
        return None
    args = fx.map_arg(node.args, lambda operand: operand.meta["val"])
    kwargs = fx.map_arg(node.kwargs, lambda operand: operand.meta["val"])
    # composite operators ask for sizes, which only the Python dispatcher can answer with symbols
    with value.fake_mode, enable_python_dispatcher(), torch.no_grad():
        result = node.target(*args, **kwargs)
    return result if isinstance(result, torch.Tensor) else None
