"""Reads a guard of an exported program from its text: `(L['x'].size()[0] % 4) == 0`."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import torch
from torch import fx

from trt_core.nesting import children_of

_NUMBERED: Final = re.compile(r"(.+)_(\d+)")

_FUNCTIONS: Final = {
    "abs": "Abs",
    "max": "Max",
    "min": "Min",
    "round": "RoundToInt",
    "math.ceil": "CeilToInt",
    "math.floor": "FloorToInt",
    "math.log2": "OpaqueUnaryFn_log2",
    "math.trunc": "TruncToInt",
    "torch._sym_sqrt": "OpaqueUnaryFn_sqrt",
    "torch.sym_float": "ToFloat",
}
"""Functions in guards, by what sympy and PyTorch's classes for it call them."""

_BITWISE: Final[dict[type, str]] = {
    ast.BitAnd: "BitwiseFn_bitwise_and",
    ast.BitOr: "BitwiseFn_bitwise_or",
    ast.BitXor: "BitwiseFn_bitwise_xor",
}


class NotRead(ValueError):
    """A guard is about something else than sizes, or is written in a way that is not known."""


def read_guard(text: str, graph: fx.Graph, placeholders: list[fx.Node]) -> Any:
    """Returns a guard as an expression of sympy in the symbols of a graph.

    Args:
        text: A Python expression, as PyTorch writes guards; it is parsed, never evaluated.
        graph: A graph that is called like the model.
        placeholders: Its placeholders, which carry `meta["val"]`.

    Raises:
        NotRead: It cannot be read.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NotRead(text) from error
    return _Reader(_by_source(graph, placeholders)).read(tree)


class _Reader:
    """Turns syntax into expressions.

    Args:
        values: What placeholders stand for, by their text in guards.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def read(self, node: ast.AST) -> Any:
        import sympy  # PyTorch has imported it where there are guards

        if isinstance(node, ast.BoolOp):
            join = sympy.And if isinstance(node.op, ast.And) else sympy.Or
            return join(*map(self.read, node.values))
        if isinstance(node, ast.UnaryOp):
            operand = self.read(node.operand)
            if isinstance(node.op, ast.Not):
                return sympy.Not(operand)
            if isinstance(node.op, ast.USub):
                return -operand
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return sympy.Integer(node.value) if type(node.value) is int else sympy.Float(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FUNCTIONS:
            return self._apply(_FUNCTIONS[ast.unparse(node.func)], [self.read(item) for item in node.args], node)
        return self._size(node)

    def _apply(self, name: str, operands: list[Any], node: ast.AST) -> Any:
        import sympy

        from trt_runtime.internals import size_functions as functions

        function: Any = getattr(functions, name, None) or getattr(sympy, name, None)
        try:
            return function(*operands)
        except TypeError as error:  # no such function in this release, or one of another number of arguments
            raise NotRead(ast.unparse(node)) from error

    def _compare(self, node: ast.Compare) -> Any:
        import sympy

        kinds: dict[type, Any] = {
            ast.Eq: sympy.Eq,
            ast.NotEq: sympy.Ne,
            ast.Lt: sympy.Lt,
            ast.LtE: sympy.Le,
            ast.Gt: sympy.Gt,
            ast.GtE: sympy.Ge,
        }
        sides = [self.read(side) for side in (node.left, *node.comparators)]
        if any(type(operator) not in kinds for operator in node.ops):
            raise NotRead(ast.unparse(node))
        links = zip(node.ops, sides, sides[1:], strict=False)
        return sympy.And(*(kinds[type(operator)](left, right) for operator, left, right in links))

    def _arithmetic(self, node: ast.BinOp) -> Any:
        from trt_runtime.internals import FloatPow, FloatTrueDiv, FloorDiv, IntTrueDiv, Mod

        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div) and right != 0:
            return (IntTrueDiv if left.is_integer and right.is_integer else FloatTrueDiv)(left, right)
        if isinstance(node.op, ast.FloorDiv) and right != 0:
            return FloorDiv(left, right)
        if isinstance(node.op, ast.Mod) and right != 0:
            return Mod(left, right)
        if isinstance(node.op, ast.Pow) and right.is_Integer and 0 <= right <= 64:
            return left**right
        if isinstance(node.op, ast.Pow) and right.is_Float:
            return FloatPow(left, right)
        if type(node.op) in _BITWISE:
            return self._apply(_BITWISE[type(node.op)], [left, right], node)
        raise NotRead(ast.unparse(node))

    def _size(self, node: ast.AST) -> Any:
        """`L['x'].size()[0]`, or a number that is an input."""
        axis: Any = None
        source = node
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            call = node.value.func
            if isinstance(call, ast.Attribute) and call.attr == "size" and isinstance(node.slice, ast.Constant):
                source, axis = call.value, node.slice.value
        value = self._values.get(ast.unparse(source))
        if type(axis) is int and isinstance(value, torch.Tensor) and 0 <= axis < value.dim():
            value = value.shape[axis]
        if isinstance(value, torch.SymInt):
            return value.node.expr
        if type(value) is int:
            import sympy

            return sympy.Integer(value)
        raise NotRead(ast.unparse(node))


def _by_source(graph: fx.Graph, placeholders: list[fx.Node]) -> dict[str, Any]:
    """What placeholders stand for, by all the texts that guards may have for them."""
    values = [node.meta.get("val") for node in placeholders]
    found = {f"L['flat_args'][{index}]": value for index, value in enumerate(values)}
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None:
        return found | {f"L[{node.target!r}]": value for node, value in zip(placeholders, values, strict=True)}
    args, kwargs = map(children_of, children_of(info.in_spec))
    remaining = iter(values)
    for name, spec in zip(info.orig_args, (*args, *kwargs), strict=True):
        numbered = _NUMBERED.fullmatch(name)
        for path in _paths(spec):
            value = next(remaining)
            found[f"L[{name!r}]{path}"] = value
            if numbered:  # the second of *args is called args_1 by the graph, and L['args'][1] by the guard
                found.setdefault(f"L[{numbered[1]!r}][{numbered[2]}]{path}", value)
    return found


def _paths(spec: Any) -> list[str]:
    """Python's text for the way to each leaf of a structure."""
    if spec.is_leaf():
        return [""]
    children = children_of(spec)
    keys = list(spec.context) if spec.type is dict else range(len(children))
    return [f"[{key!r}]{path}" for key, child in zip(keys, children, strict=True) for path in _paths(child)]
