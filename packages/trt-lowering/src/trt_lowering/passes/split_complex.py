"""Splits complex tensors into real and imaginary parts, and turns short Fourier transforms into products."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.attributes import add_constant
from trt_core.internals import FakeTensorMode, OpOverload, enable_python_dispatcher
from trt_core.nesting import leaves_of, tensors_in, with_leaves
from trt_core.sizes.ranges import largest_extent
from trt_core.verdicts import LEFT_COMPLEX
from trt_core.weight_recipes import RECIPE, Literal
from trt_lowering.contract import OperatorPass
from trt_lowering.expansion import no_new_guards
from trt_lowering.node_metadata import fake_mode_of, insert_call, same_shape
from trt_lowering.results import base_of, views_of_results

aten = torch.ops.aten


class SplitComplex(OperatorPass):
    """Rewrites computations in complex64 as ones on pairs of float32 tensors, which engines can run.

    A region is what hangs together by complex tensors, from the operators that make them of real ones to those that
    make real ones of them. It is rewritten as a whole, or stays as it is, with a note on its nodes that says why: half
    of it would only move numbers to and fro. Complex inputs and results of the graph are taken apart and put together
    in PyTorch, at the ends of a region.

    Requires: values on nodes.
    Ensures: values on nodes; a region that is left has notes.

    Args:
        settings: Operators in `torch_executed_ops` stay, and their regions with them.
    """

    name = "split_complex"

    def call(self, gm: fx.GraphModule) -> int:
        """Finds regions, and rewrites each."""
        if not any(_is_complex(node) for node in gm.graph.nodes):
            return 0
        mode = fake_mode_of(gm.graph)
        if mode is None:
            return 0
        changes = 0
        emit = Emitter(gm, mode)
        for region in _find_regions(gm.graph):
            emit.begin()
            try:
                self._require_rewritable(gm.graph, region)
                parts = self._write(gm.graph, region, emit)
            except NotExpressible as error:
                emit.take_back()
                for node in region:
                    node.meta[LEFT_COMPLEX] = str(error)
                continue
            self._replace(gm.graph, region, parts, emit)
            changes += len(region)
        return changes

    def _require_rewritable(self, graph: fx.Graph, region: list[fx.Node]) -> None:
        members = set(region)
        for node in region:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_complex() and value.dtype is not torch.complex64:
                raise NotExpressible(f"{node.name} of {value.dtype}")
            if node.op == "call_function" and rule_of(node.target) is None:
                raise NotExpressible(f"{node.target} of complex tensors, which has no form in real ones")
            if node.op == "call_function" and self.stays(node.target):
                raise NotExpressible(f"{node.target}, which torch_executed_ops keeps in PyTorch")
        bases: set[fx.Node] = set()
        for result, chain in views_of_results(graph).items():
            base = base_of(result)
            if not members.intersection((result, base, *chain)):
                continue
            if base not in members or base.op != "call_function" or base in bases:
                raise NotExpressible(f"{result.name}, a result in the memory of another tensor")
            bases.add(base)

    def _write(self, graph: fx.Graph, region: list[fx.Node], emit: Emitter) -> dict[fx.Node, Any]:
        """Writes a region in real numbers, and returns what stands for each of its nodes."""
        parts: dict[fx.Node, Any] = {}
        for node in region:
            if node.op != "call_function":
                emit.stand_at(node, before=first_call(graph) if node.op == "placeholder" else node.next)
                pair = emit(aten.view_as_real.default, node)
                last = pair.meta["val"].dim() - 1
                parts[node] = Parts(*(emit(aten.select.int, pair, last, index) for index in (0, 1)))
                continue
            emit.stand_at(node)
            seen = _half_of_view(node)
            if seen is not None and isinstance(parts.get(seen[0]), Parts):
                found = parts[seen[0]]
                parts[node] = emit.imaginary(found) if seen[1] else found.real
                continue
            rule = rule_of(node.target)
            assert rule is not None
            args: Any = fx.map_arg(node.args, lambda operand: parts.get(operand, operand))
            kwargs: Any = fx.map_arg(node.kwargs, lambda operand: parts.get(operand, operand))
            parts[node] = rule(emit, node, tuple(args), dict(kwargs))
            if not _is_of_type(parts[node], node.meta["val"]):
                raise NotExpressible(f"{node.target}, which has another type in real numbers")
        return parts

    def _replace(self, graph: fx.Graph, region: list[fx.Node], parts: dict[fx.Node, Any], emit: Emitter) -> None:
        output = graph.output_node()
        returned = set(output.all_input_nodes)
        for node in reversed(region):
            if node.op != "call_function":
                continue
            found = parts[node]
            if isinstance(found, fx.Node):
                node.replace_all_uses_with(found)
            elif node in returned:
                emit.stand_at(node, before=output)
                whole = emit(aten.complex.default, found.real, emit.imaginary(found))
                output.replace_input_with(node, whole)
            graph.erase_node(node)


def _is_of_type(found: Any, value: Any) -> bool:
    """Whether what stands for a value is as complex as the value is, and of its type where it is real."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_of_type, found, value))
    if isinstance(found, Parts):
        halves = [half for half in (found.real, found.imaginary) if half is not None]
        return bool(value.is_complex()) and all(half.meta["val"].dtype is torch.float32 for half in halves)
    return not isinstance(value, torch.Tensor) or found.meta["val"].dtype is value.dtype


def _find_regions(graph: fx.Graph) -> list[list[fx.Node]]:
    """Returns what hangs together by complex tensors, each in the order of the graph.

    At least one node is a call that has both real and complex tensors around it.
    """
    leader: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in graph.nodes:
        operands = [operand for operand in node.all_input_nodes if _is_complex(operand)]
        if node.op == "output" or not (operands or _is_complex(node)):
            continue
        leader[node] = node
        for operand in operands:
            leader[find(operand)] = find(node)
        seen = _half_of_view(node)
        if seen is not None and seen[0] in leader:
            leader[find(seen[0])] = find(node)
    regions: dict[fx.Node, list[fx.Node]] = {}
    for node in leader:
        regions.setdefault(find(node), []).append(node)
    return [region for region in regions.values() if any(map(_crosses, region))]


def _crosses(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    tensors = [operand for operand in node.all_input_nodes if isinstance(operand.meta.get("val"), torch.Tensor)]
    return not _is_complex(node) or not any(map(_is_complex, tensors))


def _half_of_view(node: fx.Node) -> tuple[fx.Node, int] | None:
    """Returns the complex tensor, and 0 or 1, where a node takes the real or imaginary part of `view_as_real`."""
    if node.target is not aten.select.int or not isinstance(node.args[0], fx.Node):
        return None
    view, dim, index = node.args
    assert isinstance(view, fx.Node)
    if view.target is not aten.view_as_real.default or not isinstance(view.args[0], fx.Node):
        return None
    last = view.meta["val"].dim() - 1
    return (view.args[0], int(index) % 2) if dim in (last, -1) else None  # type: ignore[arg-type]


def _is_complex(node: fx.Node) -> bool:
    return any(value.is_complex() for value in tensors_in(node.meta.get("val")))


# Rules: what operators are on pairs of real tensors -----------------------------------------------------------------
# An `Emitter` writes the nodes. A rule takes it, the node, and its arguments with pairs in the place of complex
# tensors; it returns a pair, a node, or a list of them. It raises `NotExpressible` where it cannot say the same in real
# numbers. Fourier transforms are products with matrices of sines and cosines.


class NotExpressible(Exception):
    """A complex operator has no form in real numbers here; the message says why."""


@dataclass(frozen=True)
class Parts:
    """A complex tensor in two real ones of one shape.

    Attributes:
        real: The real part.
        imaginary: The imaginary part; None where it is zero everywhere.
    """

    real: fx.Node
    imaginary: fx.Node | None


class Emitter:
    """Writes the nodes that take the place of others, and remembers them, so that they can be taken back.

    Args:
        gm: The module; constants become its buffers.
        mode: The mode that the fake tensors of its graph belong to.

    Attributes:
        written: What was written since the last `begin`.
    """

    def __init__(self, gm: fx.GraphModule, mode: FakeTensorMode) -> None:
        self.written: list[fx.Node] = []
        self._gm = gm
        self._mode = mode
        self._origin: fx.Node | None = None
        self._before: fx.Node | None = None
        self._constants: dict[Any, fx.Node] = {}
        self._new_constants: list[Any] = []

    def begin(self) -> None:
        """Takes what was written so far for good."""
        self.written.clear()
        self._new_constants.clear()

    def take_back(self) -> None:
        """Erases what was written since the last `begin`."""
        for node in reversed(self.written):
            self._gm.graph.erase_node(node)
        for key in self._new_constants:
            delattr(self._gm, str(self._constants.pop(key).target))
        self.begin()

    def stand_at(self, node: fx.Node, before: fx.Node | None = None) -> None:
        """Says which node the next ones take the place of: they stand before it, and come from where it comes from.

        Args:
            node: The node.
            before: Where they stand instead.
        """
        self._origin, self._before = node, before or node

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Writes a call.

        Raises:
            NotExpressible: It would assume something about a size that varies.
        """
        assert self._origin is not None and self._before is not None
        values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        given, named = values
        try:
            with torch.no_grad(), self._mode, enable_python_dispatcher(), no_new_guards(self._mode):
                value = target(*given, **named)
        except Exception as error:  # whatever shape inference raises
            raise NotExpressible(f"{target} cannot be computed in real numbers: {error}") from error
        with self._gm.graph.inserting_before(self._before):
            node = insert_call(self._gm.graph, target, args, kwargs, value=value, origin=self._origin)
        self.written.append(node)
        return node

    def constant(self, key: Any, make: Callable[[], torch.Tensor], like: fx.Node) -> fx.Node:
        """Returns the node of a constant, on the device of another one; equal keys mean equal constants."""
        device = like.meta["val"].device
        place = (key, device)
        if place not in self._constants:
            tensor = make().to(device)
            with self._gm.graph.inserting_before(first_call(self._gm.graph)):
                node = self._gm.graph.get_attr(add_constant(self._gm, tensor))
            node.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
            node.meta[RECIPE] = Literal(tensor)
            self._constants[place] = node
            self._new_constants.append(place)
            self.written.append(node)
        return self._constants[place]

    def zeros_like(self, node: fx.Node) -> fx.Node:
        """Writes zeros of the shape of a tensor."""
        return self(aten.zeros_like.default, node)

    def imaginary(self, parts: Parts) -> fx.Node:
        """Returns the imaginary part as a tensor, also where it is zero."""
        return self.zeros_like(parts.real) if parts.imaginary is None else parts.imaginary


def first_call(graph: fx.Graph) -> fx.Node:
    """Returns the first node after the placeholders."""
    first: fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return first


Rule = Callable[[Emitter, fx.Node, tuple[Any, ...], dict[str, Any]], Any]

_PART_BY_PART: Final = frozenset(
    {
        *("_unsafe_view", "alias", "broadcast_to", "cat", "chunk", "clone", "contiguous", "copy", "cumsum", "detach"),
        *("diagonal", "expand", "expand_as", "flatten", "flip", "gather", "index", "index_select", "lift_fresh_copy"),
        *("mean", "movedim", "narrow", "neg", "permute", "repeat", "reshape", "roll", "select", "select_scatter"),
        *("slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum", "swapaxes", "t"),
        *("transpose", "tril", "triu", "unbind", "unflatten", "unfold", "unsqueeze", "view", "where"),
    }
)
"""Operators that move, name, add up or negate elements, whose parts are their operands' parts."""


_DATA: Final = {"where": (1, 2), "copy": (0, 1), "select_scatter": (0, 1), "slice_scatter": (0, 1)}
"""Which operands of these hold elements; of the others it is the first. The rest are places, conditions and sizes."""


def rule_of(target: Any) -> Rule | None:
    """Returns the rule of an operator, None where there is none."""
    if target is operator.getitem:
        return lambda emit, node, args, kwargs: args[0][args[1]]
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    name = target._schema.name.removeprefix("aten::")
    return _part_by_part if name in _PART_BY_PART else _RULES.get(name)


def _part_by_part(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("dtype") is not None:
        raise NotExpressible(f"{node.target} with a type of its own")
    schema = node.target._schema  # type: ignore[union-attr]  # rules are of operators
    at = _DATA.get(schema.name.removeprefix("aten::"), (0,))
    real = emit(node.target, *with_leaves(args, _real_operand), **kwargs)
    imaginary = None
    if any(_has_imaginary(leaf) for place in at for leaf in leaves_of(args[place])):
        take = functools.partial(_imaginary_operand, emit)
        others = [with_leaves(item, take if place in at else _real_operand) for place, item in enumerate(args)]
        imaginary = emit(node.target, *others, **kwargs)
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return Parts(real, imaginary)
    items = range(len(value))
    reals = [emit(operator.getitem, real, index) for index in items]
    rest = [None if imaginary is None else emit(operator.getitem, imaginary, index) for index in items]
    return [Parts(*pair) for pair in zip(reals, rest, strict=True)]


def _has_imaginary(leaf: Any) -> bool:
    return leaf.imaginary is not None if isinstance(leaf, Parts) else isinstance(leaf, complex)


def _real_operand(leaf: Any) -> Any:
    return leaf.real if isinstance(leaf, (Parts, complex)) else leaf


def _imaginary_operand(emit: Emitter, leaf: Any) -> Any:
    """The imaginary part of an operand that holds elements: zeros where it is real beside complex ones."""
    if isinstance(leaf, Parts):
        return emit.imaginary(leaf)
    if isinstance(leaf, fx.Node):
        return emit.zeros_like(leaf)
    return leaf.imag if isinstance(leaf, complex) else 0.0


def _pad(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    x, widths, *rest = args
    if isinstance(rest[0] if rest else kwargs.get("value", 0), complex):
        raise NotExpressible("padding with a complex number")
    imaginary = None if x.imaginary is None else emit(node.target, x.imaginary, widths)
    return Parts(emit(node.target, x.real, widths, *rest, **kwargs), imaginary)


def _conjugate(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    (x,) = args
    return Parts(x.real, None if x.imaginary is None else emit(aten.neg.default, x.imaginary))


def _same(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    return args[0]  # type: ignore[no-any-return]  # a pair, by the rule's contract


def _plus(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    if kwargs.get("alpha", 1) != 1:
        raise NotExpressible("a sum with a factor")
    (left, left_i), (right, right_i) = map(_split, args)
    target = node.target
    if not isinstance(left, fx.Node):
        raise NotExpressible("a sum that begins with a number")
    real = emit(target, left, right)
    if left_i is not None and right_i is not None:
        imaginary = emit(target, left_i, right_i)
    elif left_i is not None:
        imaginary = _as_large(emit, left_i, real)
    elif right_i is not None:
        if not isinstance(right_i, fx.Node):
            imaginary = emit(target, emit.zeros_like(left), right_i)
        else:
            negated = target._schema.name == "aten::sub"  # type: ignore[union-attr]  # rules are of operators
            imaginary = _as_large(emit, emit(aten.neg.default, right_i) if negated else right_i, real)
    else:
        imaginary = None
    return Parts(real, imaginary)


def _as_large(emit: Emitter, part: fx.Node, other: fx.Node) -> fx.Node:
    """A part as large as the other, which was broadcast."""
    if same_shape(part.meta["val"], other.meta["val"]):
        return part
    return emit(aten.add.Tensor, part, emit.zeros_like(other))


def _times(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    return _bilinear(emit, args[0], args[1], lambda left, right: _multiply(emit, left, right))


def _multiply(emit: Emitter, left: Any, right: Any) -> fx.Node:
    return emit(aten.mul.Tensor, *((left, right) if isinstance(left, fx.Node) else (right, left)))


def _matrix_product(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    return _bilinear(emit, args[0], args[1], lambda left, right: emit(node.target, left, right))


def _einsum(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    equation, operands, *_ = args
    if len(operands) == 1:
        (x,) = operands
        rest = None if x.imaginary is None else emit(node.target, equation, [x.imaginary])
        return Parts(emit(node.target, equation, [x.real]), rest)
    if len(operands) != 2:
        raise NotExpressible("einsum of more than two operands")
    return _bilinear(emit, operands[0], operands[1], lambda left, right: emit(node.target, equation, [left, right]))


def _bilinear(emit: Emitter, left: Any, right: Any, product: Callable[[Any, Any], fx.Node]) -> Parts:
    """(a + ib)(c + id) = (ac - bd) + i(ad + bc)."""
    (a, b), (c, d) = _split(left), _split(right)
    real = product(a, c)
    if b is not None and d is not None:
        real = emit(aten.sub.Tensor, real, product(b, d))
        return Parts(real, emit(aten.add.Tensor, product(a, d), product(b, c)))
    if b is None and d is None:
        return Parts(real, None)
    return Parts(real, product(a, d) if b is None else product(b, c))


def _divided(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    if kwargs.get("rounding_mode") is not None:
        raise NotExpressible("a division that rounds")
    (a, b), (c, d) = map(_split, args)
    if d is None:
        imaginary = None if b is None else emit(aten.div.Tensor, b, c)
        return Parts(emit(aten.div.Tensor, a, c), imaginary)
    size: Any
    conjugate: Any
    if isinstance(d, fx.Node):  # by numbers near 1, since squares leave the range of float32
        larger, _ = _by_size(emit, c, d)
        c, d = (emit(aten.div.Tensor, part, larger) for part in (c, d))
        size = emit(aten.add.Tensor, emit(aten.mul.Tensor, c, c), emit(aten.mul.Tensor, d, d))
        size, conjugate = emit(aten.mul.Tensor, size, larger), Parts(c, emit(aten.neg.default, d))
    else:
        size = abs(complex(c, d))
        if not size:
            raise NotExpressible("a division by zero")
        conjugate = complex(c, -d) / size
    found = _bilinear(emit, args[0], conjugate, lambda left, right: _multiply(emit, left, right))
    imaginary = None if found.imaginary is None else emit(aten.div.Tensor, found.imaginary, size)
    return Parts(emit(aten.div.Tensor, found.real, size), imaginary)


def _by_size(emit: Emitter, *halves: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The larger and the smaller one of two parts, without their signs."""
    sizes = [emit(aten.abs.default, half) for half in halves]
    return emit(aten.maximum.default, *sizes), emit(aten.minimum.default, *sizes)


def _power(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    if args[1] != 2:
        raise NotExpressible(f"a power of {args[1]}")
    return _bilinear(emit, args[0], args[0], lambda left, right: _multiply(emit, left, right))


def _exponential(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    (x,) = args
    length = emit(aten.exp.default, x.real)
    return Parts(length, None) if x.imaginary is None else _on_circle(emit, length, x.imaginary)


def _on_circle(emit: Emitter, length: fx.Node, angle: fx.Node) -> Parts:
    parts = (emit(function, angle) for function in (aten.cos.default, aten.sin.default))
    return Parts(*(emit(aten.mul.Tensor, length, part) for part in parts))


def _absolute(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    (x,) = args
    if x.imaginary is None:
        return emit(aten.abs.default, x.real)
    # times a number near 1, since squares leave the range of float32
    larger, smaller = _by_size(emit, x.real, x.imaginary)
    least = torch.finfo(torch.float32).tiny
    ratio = emit(aten.div.Tensor, smaller, emit(aten.clamp_min.default, larger, least))
    root = emit(aten.sqrt.default, emit(aten.add.Tensor, emit(aten.mul.Tensor, ratio, ratio), 1.0))
    is_infinite = emit(aten.eq.Scalar, larger, math.inf)
    return emit(aten.where.self, is_infinite, larger, emit(aten.mul.Tensor, larger, root))


def _angle(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    raise NotExpressible("an angle, which jumps at negative numbers: rounding would decide between pi and -pi")


def _compose(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    real, imaginary = args
    return Parts(_as_large(emit, real, imaginary), _as_large(emit, imaginary, real))


def _from_last_dimension(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    (x,) = args
    last = x.meta["val"].dim() - 1
    return Parts(emit(aten.select.int, x, last, 0), emit(aten.select.int, x, last, 1))


def _to_last_dimension(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    (x,) = args
    return emit(aten.stack.default, [x.real, emit.imaginary(x)], node.meta["val"].dim() - 1)


def _convert(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, wanted = args[0], node.meta["val"].dtype
    if wanted is torch.bool and isinstance(x, Parts) and x.imaginary is not None:
        return emit(aten.logical_or.default, x.real, x.imaginary)
    real = x.real if isinstance(x, Parts) else x
    part = torch.float32 if wanted is torch.complex64 else wanted
    if real.meta["val"].dtype is not part:
        real = emit(aten._to_copy.default, real, dtype=part)
    elif wanted is part and isinstance(x, Parts):
        real = emit(aten.clone.default, real)  # what is returned must not lie in the memory of an input
    if wanted is not torch.complex64:
        return real
    return Parts(real, x.imaginary if isinstance(x, Parts) else None)


def _filled(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wanted = node.meta["val"].dtype
    given = {**kwargs, "dtype": torch.float32 if wanted.is_complex else wanted}
    real = emit(node.target, *with_leaves(args, _real_operand), **given)
    if not wanted.is_complex:  # like a complex tensor in all but its type
        return real
    if not any(isinstance(leaf, complex) and leaf.imag for leaf in leaves_of(args)):
        return Parts(real, None)
    others = with_leaves(args, lambda leaf: leaf.imag if isinstance(leaf, complex) else _real_operand(leaf))
    return Parts(real, emit(node.target, *others, **given))


def _fft_c2c(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    return complex_to_complex(emit, *args)


def _fft_r2c(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parts:
    return real_to_complex(emit, *args)


def _fft_c2r(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    return complex_to_real(emit, *args)


def _extent_of_parts(emit: Emitter, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    x, *axis = args
    return emit(node.target, x.real, *axis)


_RULES: Final[Mapping[str, Rule]] = {
    "sym_size": _extent_of_parts,
    "sym_numel": _extent_of_parts,
    "_conj": _conjugate,
    "conj_physical": _conjugate,
    "resolve_conj": _same,
    "constant_pad_nd": _pad,
    "add": _plus,
    "sub": _plus,
    "mul": _times,
    "div": _divided,
    "matmul": _matrix_product,
    "mm": _matrix_product,
    "bmm": _matrix_product,
    "einsum": _einsum,
    "pow": _power,
    "square": lambda emit, node, args, kwargs: _power(emit, node, (*args, 2), kwargs),
    "exp": _exponential,
    "polar": lambda emit, node, args, kwargs: _on_circle(emit, *args),
    "abs": _absolute,
    "angle": _angle,
    "complex": _compose,
    "view_as_complex": _from_last_dimension,
    "view_as_real": _to_last_dimension,
    "to": _convert,
    "_to_copy": _convert,
    "zeros": _filled,
    "ones": _filled,
    "full": _filled,
    "zeros_like": _filled,
    "ones_like": _filled,
    "full_like": _filled,
    "new_zeros": _filled,
    "new_ones": _filled,
    "new_full": _filled,
    "_fft_c2c": _fft_c2c,
    "_fft_r2c": _fft_r2c,
    "_fft_c2r": _fft_c2r,
}


def _split(value: Any) -> tuple[Any, Any]:
    """The two parts of an operand: of a pair, of a complex number, or of what is real."""
    if isinstance(value, Parts):
        return value.real, value.imaginary
    if isinstance(value, complex):
        return value.real, value.imag
    return value, None


MOST_POINTS: Final = 1024
"""Longest transform that becomes products."""

Points = int | fx.Node
"""A number of points; a node computes one that varies."""


def complex_to_complex(emit: Emitter, x: Parts, dims: Sequence[int], normalization: int, forward: bool) -> Parts:
    """`aten::_fft_c2c`: transforms along each dimension."""
    sizes = [_points(emit, x.real, dim) for dim in dims]
    for dim, size in zip(dims, sizes, strict=True):
        x = _transform(emit, x, dim, size, forward)
    return _scaled(emit, x, sizes, normalization)


def real_to_complex(emit: Emitter, x: fx.Node, dims: Sequence[int], normalization: int, onesided: bool) -> Parts:
    """`aten::_fft_r2c`: the last dimension gives half of a spectrum, or all of it; then the others are transformed."""
    sizes = [_points(emit, x, dim) for dim in dims]
    *others, last = dims
    kept = _half(emit, sizes[-1]) if onesided else sizes[-1]
    found = Parts(_product(emit, x, last, ("cos", sizes[-1], kept)), _product(emit, x, last, ("-sin", sizes[-1], kept)))
    for dim, size in zip(others, sizes, strict=False):
        found = _transform(emit, found, dim, size, True)
    return _scaled(emit, found, sizes, normalization)


def complex_to_real(emit: Emitter, x: Parts, dims: Sequence[int], normalization: int, size: Points) -> fx.Node:
    """`aten::_fft_c2r`: transforms all dimensions but the last back, then half of a spectrum gives real values."""
    from trt_core.internals import statically_known_true

    *others, last = dims
    sizes = [_points(emit, x.real, dim) for dim in others]
    points = size.meta["val"] if isinstance(size, fx.Node) else size
    _require_short(points)
    if not statically_known_true(x.real.meta["val"].shape[last] == points // 2 + 1):
        raise NotExpressible("half of a spectrum of an unexpected size")
    for dim, count in zip(others, sizes, strict=True):
        x = _transform(emit, x, dim, count, False)
    found = _product(emit, x.real, last, ("half cos", size, size))
    if x.imaginary is not None:
        found = emit(aten.add.Tensor, found, _product(emit, x.imaginary, last, ("half -sin", size, size)))
    scaled = _scaled(emit, Parts(found, None), [*sizes, size], normalization)
    return scaled.real


def _half(emit: Emitter, size: Points) -> Points:
    """How many frequencies the spectrum of real values has."""
    if isinstance(size, int):
        return size // 2 + 1
    return emit(operator.add, emit(operator.floordiv, size, 2), 1)


def _transform(emit: Emitter, x: Parts, dim: int, size: Points, forward: bool) -> Parts:
    """(re + i im) (cos -+ i sin)."""
    towards, back = ("-sin", "sin") if forward else ("sin", "-sin")
    real = _product(emit, x.real, dim, ("cos", size, size))
    imaginary = _product(emit, x.real, dim, (towards, size, size))
    if x.imaginary is not None:
        real = emit(aten.add.Tensor, real, _product(emit, x.imaginary, dim, (back, size, size)))
        imaginary = emit(aten.add.Tensor, imaginary, _product(emit, x.imaginary, dim, ("cos", size, size)))
    return Parts(real, imaginary)


def _product(emit: Emitter, x: fx.Node, dim: int, matrix: tuple[str, Points, Points]) -> fx.Node:
    """Multiplies a matrix into one dimension."""
    value = x.meta["val"]
    rank, dim = value.dim(), dim % value.dim()
    if value.dtype is not torch.float32:
        raise NotExpressible(f"a Fourier transform of {value.dtype}")
    kind, points, kept = matrix
    if not (isinstance(points, int) and isinstance(kept, int)):
        factor = _varying_matrix(emit, kind, points, kept, x)
        if dim == rank - 2:
            return emit(aten.matmul.default, emit(aten.transpose.int, factor, 0, 1), x)
    elif dim == rank - 2:  # from the left: nothing is transposed
        flipped = emit.constant((*matrix, "transposed"), lambda: fourier_matrix(kind, points, kept).t().contiguous(), x)
        return emit(aten.matmul.default, flipped, x)
    else:
        factor = emit.constant(matrix, lambda: fourier_matrix(kind, points, kept), x)
    if dim == rank - 1:
        return emit(aten.matmul.default, x, factor)
    moved = emit(aten.transpose.int, x, dim, rank - 1)
    return emit(aten.transpose.int, emit(aten.matmul.default, moved, factor), dim, rank - 1)


def _varying_matrix(emit: Emitter, kind: str, points: Points, kept: Points, like: fx.Node) -> fx.Node:
    """Writes what computes a `fourier_matrix` for a number of points that varies, in float32."""
    half, _, function = kind.rpartition(" ")
    where = {"dtype": torch.int64, "device": like.meta["val"].device}
    rows = emit(aten.unsqueeze.default, emit(aten.arange.default, _half(emit, points) if half else points, **where), 1)
    turns = emit(aten.mul.Tensor, rows, emit(aten.arange.default, kept, **where))
    part = emit(aten._to_copy.default, emit(aten.remainder.Scalar, turns, points), dtype=torch.float32)
    angles = emit(aten.div.Tensor, emit(aten.mul.Tensor, part, 2 * math.pi), points)
    matrix = emit(aten.cos.default if function == "cos" else aten.sin.default, angles)
    if function == "-sin":
        matrix = emit(aten.neg.default, matrix)
    if half:
        inside = emit(aten.ne.Scalar, emit(aten.mul.Tensor, rows, 2), points)
        twice = emit(aten.logical_and.default, emit(aten.gt.Scalar, rows, 0), inside)
        counts = emit(aten.add.Tensor, emit(aten._to_copy.default, twice, dtype=torch.float32), 1)
        matrix = emit(aten.mul.Tensor, matrix, counts)
    return matrix


@functools.lru_cache(maxsize=64)
def fourier_matrix(kind: str, points: int, kept: int) -> torch.Tensor:
    """Returns the matrix of one part of a transform, computed in float64.

    Args:
        kind: `cos`, `sin` or `-sin`; with `half` before it, for half of a spectrum whose other half mirrors it.
        points: Points of the transform.
        kept: Columns.

    Returns:
        (points, kept), float32; (points // 2 + 1, kept) for half of a spectrum.
    """
    half, _, function = kind.rpartition(" ")
    rows = torch.arange(points // 2 + 1 if half else points)
    # whole numbers modulo the number of points: the angle is as exact as float64 is
    angles = (rows[:, None] * torch.arange(kept) % points).double() * (2 * math.pi / points)
    matrix = {"cos": angles.cos(), "sin": angles.sin(), "-sin": -angles.sin()}[function]
    if half:
        counts_twice = (rows > 0) & (2 * rows != points)
        matrix = matrix * (1 + counts_twice.double())[:, None]
    return matrix.float()


def _points(emit: Emitter, x: fx.Node, dim: int) -> Points:
    size = x.meta["val"].shape[dim]
    _require_short(size)
    return size if isinstance(size, int) else emit(aten.sym_size.int, x, dim % x.meta["val"].dim())


def _require_short(size: int | torch.SymInt) -> None:
    most = largest_extent(size)
    if most is None or most > MOST_POINTS:
        varies = "" if isinstance(size, int) else "up to "
        what = f"a Fourier transform of {'any number of' if most is None else f'{varies}{most}'} points"
        raise NotExpressible(f"{what} (those of up to {MOST_POINTS} become products)")


def _scaled(emit: Emitter, x: Parts, sizes: Sequence[Points], normalization: int) -> Parts:
    """0: as it is; 1: by the root of the number of points; 2: by the number of points."""
    if normalization == 0:
        return x
    points: Any = math.prod(size for size in sizes if isinstance(size, int))
    for size in sizes:
        points = points if isinstance(size, int) else emit(operator.mul, size, points)
    if isinstance(points, int):
        factor: Any = 1 / math.sqrt(points) if normalization == 1 else 1 / points
    else:
        factor = emit(operator.truediv, 1.0, emit(torch.sym_sqrt, points) if normalization == 1 else points)
    real = emit(aten.mul.Tensor, x.real, factor)
    return Parts(real, None if x.imaginary is None else emit(aten.mul.Tensor, x.imaginary, factor))
