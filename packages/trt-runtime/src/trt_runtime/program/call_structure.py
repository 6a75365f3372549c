"""How the inputs and results of a captured model are nested, taken over from the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import fx
from torch.utils import _pytree as pytree

from trt_core.errors import ExportError
from trt_core.nesting import children_of
from trt_runtime.plain_structure import plain
from trt_runtime.program.graph import Leaf, Signature, Value

INTERCHANGE: Final = 'save it with format="exported_program", which PyTorch reads, or compile it without that'
"""What to do with what has no place in a saved program."""


def signature_of(placeholders: Sequence[fx.Node], info: Any, leaves: tuple[Leaf, ...]) -> Signature:
    """How a graph module is called.

    Args:
        placeholders: Its flat inputs.
        info: What its code generation knows of nesting; None for a flat call.
        leaves: What each flat input must be.

    Raises:
        ExportError: Inputs nest in a class of their own.
    """
    if info is None:
        names = tuple(str(node.target) for node in placeholders)
        return Signature(names, len(names), tuple(Value(index) for index in range(len(names))), leaves)
    counter = iter(range(len(leaves)))
    args, kwargs = children_of(info.in_spec)
    names = tuple(info.orig_args)
    trees = [
        _tree(spec, counter, name) for spec, name in zip((*children_of(args), *children_of(kwargs)), names, strict=True)
    ]
    return Signature(names, len(children_of(args)), tuple(trees), leaves)


def _tree(spec: Any, counter: Any, name: str) -> Any:
    if spec.is_leaf():
        return Value(next(counter))
    children = children_of(spec)
    if spec.type in (tuple, list):
        return spec.type(_tree(child, counter, name) for child in children)
    if spec.type is dict:
        return {key: _tree(child, counter, name) for key, child in zip(spec.context, children, strict=True)}
    raise ExportError(
        f"input {name!r} is a {spec.type.__name__}, and programs take tuples, lists and dicts",
        hint=INTERCHANGE,
    )


def nest(results: Sequence[Any], spec: Any) -> Any:
    """The results in the nesting of the model's result, with dicts and tuples in the place of foreign classes."""

    def fill(tree: Any) -> Any:
        if isinstance(tree, (list, tuple)):
            return type(tree)(fill(item) for item in tree)
        if isinstance(tree, dict):
            return {key: fill(item) for key, item in tree.items()}
        return results[tree] if type(tree) is int else tree

    return fill(plain(pytree.tree_unflatten(list(range(len(results))), spec)))
