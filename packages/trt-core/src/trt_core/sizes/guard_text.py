"""Reads a guard of an exported program from its text: `(L['x'].size()[0] % 4) == 0`."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import torch
from torch import fx

from trt_core.nesting import children_of
from trt_core.sizes.functions import BY_CALL, FUNCTIONS

_NUMBERED: Final = re.compile(r"(.+)_(\d+)")

_SIGNS: Final[dict[type, str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "bitxor",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
"""Python's operators, by the names that the table of functions has for them."""


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
            sides = [self.read(side) for side in (node.left, *node.comparators)]
            links = zip(node.ops, sides, sides[1:], strict=False)
            return sympy.And(*(self._apply(node, _SIGNS.get(type(sign)), pair) for sign, *pair in links))
        if isinstance(node, ast.BinOp):
            return self._apply(node, _SIGNS.get(type(node.op)), [self.read(node.left), self.read(node.right)])
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return sympy.Integer(node.value) if type(node.value) is int else sympy.Float(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BY_CALL:
            return self._apply(node, BY_CALL[ast.unparse(node.func)].name, [self.read(item) for item in node.args])
        return self._size(node)

    def _apply(self, node: ast.AST, name: str | None, operands: list[Any]) -> Any:
        import sympy

        from trt_core.internals import size_functions

        classes = FUNCTIONS[name].classes if name is not None else ()
        kind = classes[0] if classes else ""
        if name == "sub":
            return operands[0] - operands[1]
        if name in ("truediv", "floordiv", "mod") and operands[1] == 0:
            raise NotRead(ast.unparse(node))
        if name == "truediv":
            kind = "IntTrueDiv" if all(operand.is_integer for operand in operands) else "FloatTrueDiv"
        elif name == "pow":
            if operands[1].is_Integer and 0 <= operands[1] <= 64:
                return operands[0] ** operands[1]
            kind = "FloatPow" if operands[1].is_Float else ""
        elif name in ("and", "or", "round"):  # of bits, and to so many digits
            kind = classes[-1] if len(operands) == 2 else classes[0]
        made: Any = getattr(size_functions, kind, None) or getattr(sympy, kind, None)
        try:
            return made(*operands)
        except TypeError as error:  # no such function in this release, or one of another number of operands
            raise NotRead(ast.unparse(node)) from error

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
