"""Forms of tensors, and what operators make of them at some sizes, without running a model."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.internals import FakeTensorMode, OpOverload, pytree, schema_name
from trt_core.log import unlogged
from trt_core.nesting import dense_strides
from trt_lowering.passes.lay_out_results import LAID_OTHERWISE


class UnknownSizeError(ValueError):
    """A size follows from data."""


@dataclass(frozen=True)
class Form:
    """What an operator may know of a tensor beside its numbers.

    Attributes:
        shape: Its extents.
        strides: How many elements lie between neighbours of each axis.
        dtype: The type of its elements.
        device: Where it lies.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class OperatorForms:
    """Asks operators what they make of forms and numbers; layers of one kind ask the same again."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known: dict[Any, Any] = {}

    def made(self, target: Any, given: Any) -> Any:
        """Returns what an operator makes, with forms for tensors; an exception where it raises one.

        Args:
            target: The operator.
            given: Its arguments, positional ones and keywords.
        """
        leaves, spec = pytree.tree_flatten(given)
        key = (target, repr(leaves), spec)
        if key not in self._known:
            is_real = _is_for_kernels(target, leaves)
            try:
                with contextlib.nullcontext() if is_real else self._mode, unlogged("torch._subclasses.fake_tensor"):
                    filled = [_filled(leaf) if is_real else _tensor(leaf) for leaf in leaves]
                    args, kwargs = pytree.tree_unflatten(filled, spec)
                    self._known[key] = value_at(target(*args, **kwargs), {})
            except Exception as error:  # what an operator raises is its own
                self._known[key] = error
        return self._known[key]


def value_at(value: Any, sizes: Mapping[Any, int]) -> Any:
    """Returns a value of a graph with sizes in the place of symbols, and forms in the place of tensors.

    Args:
        value: Tensors, numbers, and lists of them.
        sizes: Values by symbol, as sympy knows them.

    Raises:
        UnknownSizeError: A size follows from data.
    """

    def settle(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            shape, strides = (tuple(number_at(size, sizes) for size in item) for item in (leaf.shape, leaf.stride()))
            return Form(shape, strides, leaf.dtype, leaf.device)
        return number_at(leaf, sizes) if isinstance(leaf, torch.SymInt) else leaf

    return pytree.tree_map(settle, value)


def number_at(size: int | torch.SymInt, sizes: Mapping[Any, int]) -> int:
    """Returns a size of a graph where its symbols have some values.

    Args:
        size: The size.
        sizes: Values by symbol, as sympy knows them.

    Raises:
        UnknownSizeError: It follows from data.
    """
    if isinstance(size, int):
        return size
    found = _replaced(size.node.expr, frozenset(sizes.items()))
    if not found.is_Integer:
        raise UnknownSizeError
    return int(found)


@functools.lru_cache(maxsize=1 << 12)
def _replaced(expression: Any, sizes: frozenset[tuple[Any, Any]]) -> Any:
    """An expression of sympy with numbers for symbols: the values of a graph have the same few extents."""
    return expression.xreplace(dict(sizes))


def shapes_in(value: Any) -> tuple[Any, ...]:
    """Returns the shapes of tensors and forms, in order; other values stay."""
    leaves = pytree.tree_leaves(value)
    return tuple(tuple(leaf.shape) if isinstance(leaf, (torch.Tensor, Form)) else leaf for leaf in leaves)


def _tensor(leaf: Any) -> Any:
    if not isinstance(leaf, Form):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype, device=leaf.device)


def _filled(leaf: Any) -> Any:
    return _tensor(leaf).fill_(1) if isinstance(leaf, Form) else leaf


def _is_for_kernels(target: Any, leaves: Sequence[Any]) -> bool:
    """Whether a kernel is asked: of operands that lie otherwise than usual, fake tensors know too little."""
    forms = [leaf for leaf in leaves if isinstance(leaf, Form)]
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    if torch.Tag.pointwise not in target.tags and schema_name(target) not in _KERNELS:
        return False
    if any(form.device.type != "cpu" or math.prod(form.shape) > _MOST_ELEMENTS for form in forms):
        return False
    return any(form.strides != dense_strides(form.shape) for form in forms)


_KERNELS: Final = LAID_OTHERWISE | {"aten::layer_norm", "aten::native_layer_norm"}
_MOST_ELEMENTS: Final = 1 << 20
"""Of an operand that a kernel is given to see how it lays its result."""
