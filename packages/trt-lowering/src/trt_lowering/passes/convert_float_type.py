"""Changes the types that are computed in: `precision`, `truncate_long_and_double`, and `enable_autocast`."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings, SettingsError
from trt_core.attributes import has_hidden_state, is_state, read_attribute
from trt_core.dtypes import FLOATS, dtype_name
from trt_core.graph_search import reachable
from trt_core.internals import FakeTensor, HigherOrderOperator, OpOverload, enable_python_dispatcher, schema_name
from trt_core.nesting import tensors_in, with_leaves
from trt_core.operators import argument
from trt_core.precision import KEPT, KeptInFloat32, exclusion_of
from trt_core.provenance import node_location
from trt_core.quantization import is_scale
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import cast_value, insert_call
from trt_lowering.operator_traits import is_data_dependent, is_kept_in_torch, moves, tensor_value
from trt_lowering.results import base_of, views_of_results

aten = torch.ops.aten

_NUMBERS: Final = frozenset({"number", "float", "Optional[number]", "Optional[float]", "Tensor", "Optional[Tensor]"})
"""Types of arguments that may be numbers: a traced graph gives one where the schema says tensor, too."""
_SIZED_BY_NUMBERS: Final = frozenset({"aten::arange", "aten::range"})
"""Operators whose numbers say how many elements there are."""


class Narrowing:
    """From one floating-point type to a narrower one.

    Reducing precision is asked for to compute in fewer bits, so every constant beyond the narrower type stops at its
    largest number. Truncation is asked for to compute the same, so there only the extremes of the wider type, which
    stand for "as far as numbers go", do; any other number is an error.

    Args:
        source: The wider type.
        target: The narrower type.
    """

    def __init__(self, source: torch.dtype, target: torch.dtype) -> None:
        self._source = source
        self._target = target
        self._most = torch.finfo(target).max
        self._extreme = torch.finfo(source).max
        self._stops_at_limit = source != torch.float64

    def fit_arguments(self, node: fx.Node) -> None:
        """Brings the numbers among the arguments of an operator into the range of the narrower type.

        Raises:
            SettingsError: A number would not be the same afterwards, and truncation was asked for.
        """
        if not isinstance(node.target, OpOverload) or node.target._schema.name in _SIZED_BY_NUMBERS:
            return
        names = _number_arguments(node.target)
        for position, name in enumerate(names):
            if name and position < len(node.args) and self._is_beyond(node.args[position]):
                node.update_arg(position, self._fit(node.args[position], node))
            elif name and name in node.kwargs and self._is_beyond(node.kwargs[name]):
                node.update_kwarg(name, self._fit(node.kwargs[name], node))

    def limit_of(self, value: Any, node: fx.Node) -> float | None:
        """Returns where the values of a constant or an input have to stop; None when all of them fit.

        An input whose values are not known stops where it may be a mask, and where precision was asked to be reduced.

        Args:
            value: The tensor, None for an input. Of a tensor without data, all is taken to fit.
            node: The node that reads it, for the message.

        Raises:
            SettingsError: See `fit_arguments`.
        """
        if value is None:
            return self._most if self._stops_at_limit and may_mask(node) else None
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.is_meta or not value.numel():
            return None
        size = value.detach().abs()
        beyond = size[torch.isfinite(size) & (size > self._most)]
        if not beyond.numel():
            return None
        for number in (beyond.min(), beyond.max()):
            self._fit(float(number), node)
        return self._most

    def _is_beyond(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return math.isfinite(value) and self._most < abs(value) <= self._extreme

    def _fit(self, value: Any, node: fx.Node) -> float:
        if not self._stops_at_limit and abs(value) != self._extreme:
            raise SettingsError(
                f"truncate_long_and_double would change the constant {value}",
                where=node_location(node),
                why=f"{dtype_name(self._target)} holds numbers up to {self._most}",
                hint=f"compile without it: what computes in {dtype_name(self._source)} then runs in PyTorch",
            )
        return math.copysign(self._most, value)


def saturate(graph: fx.Graph, node: fx.Node, limit: float) -> fx.Node:
    """Adds, at the graph's insertion point, what brings finite values to at most `limit` in size; others stay."""
    value = node.meta["val"]
    clamped = insert_call(graph, aten.clamp.default, (node, -limit, limit), value=value, origin=node)
    infinite = insert_call(graph, aten.isinf.default, (node,), value=cast_value(value, torch.bool), origin=node)
    return insert_call(graph, aten.where.self, (infinite, node, clamped), value=value, origin=node)


@functools.cache
def _number_arguments(target: OpOverload) -> tuple[str, ...]:
    """Names of the arguments that may be numbers, empty for the others, by position."""
    return tuple(item.name if str(item.type) in _NUMBERS else "" for item in target._schema.arguments)


_ADDING: Final = frozenset({"aten::add", "aten::where"})


def may_mask(node: fx.Node) -> bool:
    """Whether a tensor is added to another one, taken for elements of one, or given to attention as a mask."""
    moved = reachable([node], lambda each: [user for user in each.users if _moves_tensor(user)])
    readers = ((each, user) for each in moved for user in each.users)
    return any(schema_name(user.target) in _ADDING or is_attention_mask(each, user) for each, user in readers)


def _moves_tensor(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and moves(node)


def is_attention_mask(operand: fx.Node, node: fx.Node) -> bool:
    """Whether an operand is what attention adds to its scores."""
    if schema_name(node.target) != "aten::scaled_dot_product_attention":
        return False
    return argument(node, "attn_mask") is operand


_BATCH_NORMALIZATIONS: Final = frozenset(
    {
        "aten::batch_norm",
        "aten::native_batch_norm",
        "aten::_native_batch_norm_legit_no_training",
        "aten::_batch_norm_no_update",
    }
)
"""Operators that take parameters in float32 beside narrower inputs."""

_REINTERPRETING: Final = frozenset({aten.view.dtype, aten.view_copy.dtype})
"""Operators that read bits: those of another type mean something else, and are another number of elements."""


class ConvertFloatType(GraphPass):
    """Makes all computation of one floating-point type happen in another.

    Serves `precision` (float32 to float16 or bfloat16) and `truncate_long_and_double` (float64 to float32). Inputs and
    attributes of the type are cast where they enter, outputs are cast back; types that the model names, such as the
    type of a softmax, follow. Numbers change within the accuracy of the narrower type: that is the purpose. Constants
    beyond its range stop at its largest number, see `Narrowing`.

    Operators that run in PyTorch anyway keep their type, with casts around them: its kernels may know no narrower one,
    sub-graphs of control flow are not rewritten, and running statistics must be updated where they are. Nodes that are
    excluded from reduced precision keep it too, in engines, and so do those that read the bits of numbers.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: no computation but the casts at the rim has the former type; outputs keep their types.

    Args:
        source: Type that is replaced.
        target: Type that replaces it.
        runs_in_torch: Whether an operator runs in PyTorch for sure. By default none does.
        exclusion: Why a node keeps its type all the same; by default none does.
    """

    def __init__(
        self,
        source: torch.dtype,
        target: torch.dtype,
        runs_in_torch: Callable[[OpOverload], bool] = lambda target: False,
        exclusion: Callable[[fx.Node], KeptInFloat32 | None] = lambda node: None,
    ) -> None:
        self.name = f"convert_{dtype_name(source)}_to_{dtype_name(target)}"
        self._source = source
        self._target = target
        self._narrowing = Narrowing(source, target)
        self._runs_in_torch = runs_in_torch
        self._exclusion = exclusion
        self._rim: set[fx.Node] = set()
        self._kept: set[fx.Node] = set()
        self._converted: set[fx.Node] = set()

    @classmethod
    def for_settings(
        cls, settings: CompilationSettings, runs_in_torch: Callable[[OpOverload], bool] = lambda target: False
    ) -> list[ConvertFloatType]:
        """Returns the conversions that settings ask for, in order."""
        passes = []
        if settings.truncate_long_and_double:
            passes.append(cls(torch.float64, torch.float32, runs_in_torch))
        if settings.precision in FLOATS - {torch.float32}:
            passes.append(cls(torch.float32, settings.precision, runs_in_torch, exclusion_of))
        return passes

    def call(self, gm: fx.GraphModule) -> int:
        """Casts at the rim, then walks the graph once and brings every value up to date."""
        nodes = list(gm.graph.nodes)
        if not any(self._has_source(node.meta.get("val")) for node in nodes):
            return 0
        self._rim, self._converted = set(), set()
        self._kept = {node for node in nodes if self._keeps_type(node)} | _views_of_inputs(gm.graph)
        result_types = [_dtype(item) for item in nodes[-1].args[0]]
        first_call = next(node for node in nodes if node.op not in ("placeholder", "get_attr"))
        # write backs stay at the end, so what they and the output read is cast before the first of them
        rim = next(node for node in nodes if node.target is aten.copy_.default or node.op == "output")
        changes = 0
        for node in nodes:
            if node.op == "placeholder":
                changes += self._cast_entry(gm.graph, node, first_call)
            elif node.op == "get_attr":
                changes += self._cast_entry(gm.graph, node, node.next, read_attribute(gm, str(node.target)))
            elif node.target is aten.copy_.default:
                state, value = node.args
                changes += self._cast_back(gm.graph, node, value, _dtype(state), rim)
            elif node in self._kept:
                changes += self._keep(gm.graph, node)
            elif node.op == "call_function":
                changes += self._convert(gm.graph, node)
            else:
                changes += self._widen_shared(gm.graph, node, result_types, rim)
                for item, wanted in zip(list(node.args[0]), result_types, strict=True):
                    changes += self._cast_back(gm.graph, node, item, wanted, rim)
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
        return any(tensor.dtype == self._source for tensor in tensors_in(value))

    def _cast_entry(self, graph: fx.Graph, node: fx.Node, before: fx.Node, constant: Any = None) -> int:
        value = tensor_value(node)
        if value is None or value.dtype != self._source:
            return 0
        users = [user for user in node.users if self._reads_narrow(user, node)]
        if not users:
            return 0
        is_written = any(_is_write_to(user, node) for user in node.users)
        limit = None if is_written else self._narrowing.limit_of(constant, node)
        with graph.inserting_before(before):
            source = node if limit is None else saturate(graph, node, limit)
            self._rim.update((source, *source.all_input_nodes))
            kwargs = {"dtype": self._target}
            narrow = cast_value(value, self._target)
            cast = insert_call(graph, aten._to_copy.default, (source,), kwargs, value=narrow, origin=node)
        self._converted.add(cast)
        for user in users:
            user.replace_input_with(node, cast)
        return 1

    def _reads_narrow(self, user: fx.Node, node: fx.Node) -> bool:
        if is_scale(user, node):  # scales have more digits than what they scale
            return False
        if self._source is torch.float32 and _is_statistic(user, node):
            return False
        return user.op != "output" and not _is_write_to(user, node) and user not in self._kept

    def _keeps_type(self, node: fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            source = node.args[0]
            return isinstance(source, fx.Node) and self._keeps_type(source)
        if isinstance(node.target, HigherOrderOperator) or node.target in _REINTERPRETING or has_hidden_state(node):
            return True
        if self._exclusion(node) is not None:
            return True
        return isinstance(node.target, OpOverload) and self._runs_in_torch(node.target)

    def _keep(self, graph: fx.Graph, node: fx.Node) -> int:
        """Gives an operator what it took before, and the others a narrow result."""
        changes = 0
        exclusion = self._exclusion(node)
        if exclusion is not None and node.target is not operator.getitem:
            node.meta[KEPT] = exclusion
        for operand in node.all_input_nodes:
            if operand in self._converted:
                changes += self._cast_back(graph, node, operand, self._source, node)
        self._rim.add(node)
        if _dtype(node) != self._source:
            return changes
        with graph.inserting_after(node):
            narrow = cast_value(node.meta["val"], self._target)
            cast = insert_call(
                graph, aten._to_copy.default, (node,), {"dtype": self._target}, value=narrow, origin=node
            )
        self._converted.add(cast)
        for user in list(node.users):
            if user is not cast and self._reads_narrow(user, node):
                user.replace_input_with(node, cast)
        if not cast.users:
            graph.erase_node(cast)
        return changes + 1

    def _other(self, leaf: Any) -> Any:
        """The target type in place of the source, and values of the one in place of those of the other."""
        if isinstance(leaf, torch.Tensor) and leaf.dtype == self._source:
            return cast_value(leaf, self._target)
        return self._target if leaf is self._source else leaf

    def _convert(self, graph: fx.Graph, node: fx.Node) -> int:
        touched = self._has_source(node.meta["val"])
        args, kwargs = with_leaves((node.args, node.kwargs), self._other)
        if args != node.args or kwargs != node.kwargs:
            node.args, node.kwargs, touched = args, kwargs, True
        if touched or any(_dtype(operand) == self._target for operand in node.all_input_nodes):
            self._narrowing.fit_arguments(node)
        if not touched:
            return 0
        self._converted.add(node)
        node.meta["val"] = with_leaves(node.meta["val"], self._other)
        actual = _recompute(node)
        if actual is not None and actual.dtype != node.meta["val"].dtype:
            wanted = node.meta["val"]
            node.meta["val"] = actual
            with graph.inserting_after(node):
                cast = graph.call_function(aten._to_copy.default, (node,), {"dtype": wanted.dtype})
            cast.meta.update({**node.meta, "val": wanted})
            self._converted.add(cast)
            node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
            if actual.dtype == self._source:
                self._rim.add(node)  # the operator has a type of its own, such as a factory without `dtype`
        return 1

    def _cast_back(
        self, graph: fx.Graph, user: fx.Node, value: Any, wanted: torch.dtype | None, before: fx.Node
    ) -> int:
        if wanted != self._source or not isinstance(value, fx.Node) or _dtype(value) == wanted:
            return 0
        with graph.inserting_before(before):
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

    def _widen_shared(
        self, graph: fx.Graph, output: fx.Node, wanted: Sequence[torch.dtype | None], before: fx.Node
    ) -> int:
        """Casts memory that several results lie in once, and takes the views anew: casts of each would part them."""
        chains = views_of_results(graph)
        cast = {
            item: chains[item]
            for item, kind in zip(list(output.args[0]), wanted, strict=True)  # type: ignore[arg-type]
            if isinstance(item, fx.Node) and kind == self._source and _dtype(item) == self._target
        }
        uses = Counter(map(base_of, cast))
        wide: dict[fx.Node, fx.Node] = {}
        for item, chain in cast.items():
            base = base_of(item)
            if uses[base] < 2 or _dtype(base) != self._target:
                continue
            if base not in wide:
                value = cast_value(base.meta["val"], self._source)
                with graph.inserting_before(before):
                    kind = {"dtype": self._source}
                    wide[base] = insert_call(graph, aten._to_copy.default, (base,), kind, value=value, origin=base)
            for view in chain:
                if view not in wide:
                    with graph.inserting_before(before), torch.no_grad():
                        wide[view] = graph.node_copy(view, lambda node: wide.get(node, node))
                        args, kwargs = fx.map_arg((wide[view].args, wide[view].kwargs), lambda node: node.meta["val"])
                        wide[view].meta["val"] = view.target(*args, **kwargs)  # type: ignore[operator]
            output.replace_input_with(item, wide[item])
        self._rim.update(wide.values())
        return len(wide)


def _views_of_inputs(graph: fx.Graph) -> set[fx.Node]:
    """What a model returns of its inputs and parameters as it is: views, which must not become copies."""
    chains = views_of_results(graph).values()
    return {view for chain in chains if chain and base_of(chain[0]).op != "call_function" for view in chain}


def _dtype(item: Any) -> torch.dtype | None:
    value = tensor_value(item) if isinstance(item, fx.Node) else None
    return None if value is None else value.dtype


def _is_statistic(user: fx.Node, node: fx.Node) -> bool:
    """Whether a node is a parameter of a batch normalization, and no more: a variance may be beyond float16."""
    if schema_name(user.target) not in _BATCH_NORMALIZATIONS:
        return False
    return node.op == "get_attr" and user.args[0] is not node


def _is_write_to(user: fx.Node, node: fx.Node) -> bool:
    return user.target is aten.copy_.default and user.args[0] is node


def _recompute(node: fx.Node) -> torch.Tensor | None:
    """Runs the operator on its new fake inputs; None when that cannot tell the type of a single result."""
    value = node.meta["val"]
    if not isinstance(node.target, OpOverload) or not isinstance(value, FakeTensor) or is_data_dependent(node.target):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    # composite operators ask for sizes, which only the Python dispatcher can answer with symbols
    with value.fake_mode, enable_python_dispatcher(), torch.no_grad():
        result = node.target(*args, **kwargs)
    return result if isinstance(result, torch.Tensor) else None


MATRIX_OPERATORS: Final = frozenset(
    {
        *("aten::addbmm", "aten::addmm", "aten::addmv", "aten::baddbmm", "aten::bilinear", "aten::bmm"),
        *("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d", "aten::conv_transpose2d"),
        *("aten::conv_transpose3d", "aten::convolution", "aten::einsum", "aten::linear", "aten::matmul", "aten::mm"),
        *("aten::mv", "aten::scaled_dot_product_attention"),
    }
)
"""Operators whose cost is products, and which accumulate in float32 whatever their inputs are."""


class Autocast(GraphPass):
    """Casts the float32 inputs of matrix and convolution operators, and casts their results back.

    Neighbours of that kind hand the reduced type on to each other without a cast in between. Numbers change within the
    accuracy of the reduced type.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: every matrix operator that worked in float32 works in the reduced type, unless it is marked as excluded,
    and what others read is float32.

    Args:
        settings: `enable_autocast` and `autocast_dtype`; operators in `torch_executed_ops` stay as they are.
    """

    name = "autocast"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings
        self._dtype = settings.autocast_dtype

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites matrix operators in the order of the graph."""
        if not self._settings.enable_autocast or self._dtype == torch.float32:
            return 0
        reduced: dict[fx.Node, fx.Node] = {}  # float32 node -> the same in the reduced type
        changes = 0
        for node in list(gm.graph.nodes):
            if not self._applies(node):
                continue
            exclusion = exclusion_of(node)
            if exclusion is None:
                self._rewrite(gm, node, reduced)
                changes += 1
            else:
                node.meta[KEPT] = exclusion
        for wide in reduced:
            if not wide.users and wide.target is aten._to_copy.default:
                gm.graph.erase_node(wide)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that no matrix operator is left in float32."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if self._applies(node) and exclusion_of(node) is None:
                self.fail(node, f"{node.target} still works in float32")

    def _applies(self, node: fx.Node) -> bool:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            return False
        if node.target._schema.name not in MATRIX_OPERATORS or is_kept_in_torch(node.target, self._settings):
            return False
        value = tensor_value(node)
        return value is not None and value.dtype == torch.float32

    def _rewrite(self, gm: fx.GraphModule, node: fx.Node, reduced: dict[fx.Node, fx.Node]) -> None:
        graph = gm.graph
        for operand in node.all_input_nodes:
            value = tensor_value(operand)
            if value is None or value.dtype != torch.float32:
                continue
            if operand not in reduced:
                with graph.inserting_before(node):
                    source = self._saturated(gm, operand, node)
                    reduced[operand] = self._cast(graph, source, value, self._dtype, node)
            node.replace_input_with(operand, reduced[operand])
        value = node.meta["val"]
        node.meta["val"] = cast_value(value, self._dtype)
        with graph.inserting_after(node):
            wide = self._cast(graph, node, node.meta["val"], torch.float32, node)
        node.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not wide)
        reduced[wide] = node

    def _saturated(self, gm: fx.GraphModule, operand: fx.Node, node: fx.Node) -> fx.Node:
        """Keeps what says "masked out" finite: in constants, and in the masks that attention adds.

        What was infinite before stays so.
        """
        limit: float | None = torch.finfo(self._dtype).max
        if operand.op == "get_attr":
            constant = None if is_state(operand) else read_attribute(gm, str(operand.target))
            limit = Narrowing(torch.float32, self._dtype).limit_of(constant, operand)
        elif not is_attention_mask(operand, node):
            return operand
        return operand if limit is None else saturate(gm.graph, operand, limit)

    def _cast(self, graph: fx.Graph, node: fx.Node, value: torch.Tensor, dtype: Any, origin: fx.Node) -> fx.Node:
        return insert_call(
            graph, aten._to_copy.default, (node,), {"dtype": dtype}, value=cast_value(value, dtype), origin=origin
        )
