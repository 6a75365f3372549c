"""Operators: their names, as users write them in settings and read them in reports, and what calls of them say."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import fx

from trt_core.errors import SettingsError
from trt_core.internals import HigherOrderOperator, OpOverload, OpOverloadPacket, all_operator_names, schema_name
from trt_core.wording import did_you_mean

_PYTHON_MODULES: Final = {"_operator": operator, "math": math, "builtins": builtins}
"""Modules whose functions compute with symbolic sizes in a graph; `torch.sym_*` are the others."""

_FORM: Final = "write it as torch.ops.<namespace>.<name>[.<overload>]"


def operator_name(target: Any) -> str:
    """Returns the name of an operator: `torch.ops.aten.relu.default`, `_operator.add`, `torch.sym_max`."""
    if isinstance(target, OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, OpOverloadPacket):
        return f"torch.ops.{target}"
    if isinstance(target, HigherOrderOperator):
        return f"torch.ops.higher_order.{target.name()}"
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", repr(target))
    return f"{module}.{name}" if module else str(name)


def packet_name(name: str) -> str:
    """Returns the name without its overload: `torch.ops.aten.add` for `torch.ops.aten.add.Tensor`."""
    parts = name.split(".")
    if name.startswith("torch.ops.") and len(parts) == 5:
        return ".".join(parts[:4])
    return name


def canonical_operator(spec: Any, where: str = "torch_executed_ops") -> str:
    """Reads an operator from an overload, a packet, a function, or a string, and returns its name.

    Strings may be written `torch.ops.aten.add.Tensor`, `aten.add.Tensor`, `aten::add.Tensor`, without the overload
    (then every overload is meant), or as the name of a Python function such as `_operator.add`.

    Raises:
        SettingsError: No such operator exists, or no captured graph has it; the message suggests the nearest name.
    """
    if not isinstance(spec, str):
        return _operator_of(spec, where)
    text = spec.strip().replace("::", ".")
    if _is_of_sizes(text):
        return text
    parts = text.removeprefix("torch.ops.").split(".")
    if len(parts) == 1:
        parts = ["aten", *parts]
    if len(parts) in (2, 3) and _exists(parts):
        return "torch.ops." + ".".join(parts)
    raise SettingsError(
        f"unknown operator {spec!r}",
        where=where,
        hint=did_you_mean(".".join(parts), _known_operators(parts[0])) or _namesake(text) or _FORM,
    )


def canonical_operators(specs: Iterable[Any], where: str = "torch_executed_ops") -> frozenset[str]:
    """Reads a collection of operators; see `canonical_operator`."""
    return frozenset(canonical_operator(spec, where) for spec in specs)


def _operator_of(spec: Any, where: str) -> str:
    name = operator_name(spec)
    kinds = (OpOverload, OpOverloadPacket, HigherOrderOperator)
    if isinstance(spec, kinds) or (callable(spec) and _is_of_sizes(name)):
        return name
    raise SettingsError(
        f"{name if callable(spec) else repr(spec)} is no operator",
        where=where,
        why="captured graphs hold operators of torch.ops, whatever function the model calls",
        hint=_namesake(name) or _FORM,
    )


def _namesake(function: str) -> str:
    """Suggests the operator that has the name of a Python function; empty where there is none."""
    name = function.rpartition(".")[2]
    found = [f"torch.ops.{space}.{name}" for space in ("aten", "higher_order") if name and _exists([space, name])]
    return f"did you mean {found[0]}?" if found else ""


def _is_of_sizes(name: str) -> bool:
    """Whether this is a Python function that computes with symbolic sizes, by the name that reports give it."""
    module, _, function = name.rpartition(".")
    if module == "torch":
        return function.startswith(("sym_", "_sym_")) and hasattr(torch, function)
    return module in _PYTHON_MODULES and hasattr(_PYTHON_MODULES[module], function)


def _exists(parts: list[str]) -> bool:
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    if packet is None:
        return False
    return len(parts) == 2 or parts[2] in packet.overloads()


def _known_operators(namespace: str) -> list[str]:
    names = all_operator_names()
    prefix = f"{namespace}::"
    return [name.replace("::", ".") for name in names if name.startswith(prefix)]


COPYING: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("_pad_circular", "_pad_enum", "constant_pad_nd", "pad"),
        *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
        *("_unsafe_view", "clone", "lift_fresh_copy", "repeat", "repeat_interleave", "tile"),
        *("block_diag", "cat", "column_stack", "concat", "concatenate", "dstack", "hstack", "row_stack"),
        *("stack", "vstack"),
        *("channel_shuffle", "flip", "fliplr", "flipud", "pixel_shuffle", "pixel_unshuffle", "roll", "rot90"),
        *("diag", "diag_embed", "narrow_copy", "tril", "triu"),
    )
)
"""Operators, by the names of their schemas, that copy elements to places which follow from shapes and arguments."""


def argument(node: fx.Node, name: str) -> Any:
    """Returns an argument of an operator call by its schema name, its default when it was left out.

    Raises:
        KeyError: The schema has no such argument.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    for index, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            if index < len(node.args):
                return node.args[index]
            return node.kwargs.get(name, declared.default_value if declared.has_default_value() else None)
    raise KeyError(name)


def is_size_query(target: Any) -> bool:
    """Whether the operator reads a symbolic integer off a tensor's metadata (`aten.sym_size.int` and its kin)."""
    return schema_name(target).startswith("aten::sym_")


@functools.cache
def is_random(target: OpOverload) -> bool:
    """Whether the result can depend on PyTorch's random generator."""
    return torch.Tag.nondeterministic_seeded in target.tags


_SWITCHES: Final = ("train", "training")
_RATES: Final = ("dropout_p", "dropout", "p")
_DROPOUTS: Final = frozenset({"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether a call draws from a generator; dropout that is switched off does not.

    PyTorch tags an operator as seeded when it can draw. Dropout, attention and recurrent layers draw only while they
    train or with a rate above zero, which their arguments say.
    """
    target = node.target
    if not isinstance(target, OpOverload) or not is_random(target):
        return False
    names = {declared.name for declared in target._schema.arguments}
    if any(name in names and argument(node, name) is False for name in _SWITCHES):
        return False
    rates = _RATES if target._schema.name.split("::")[-1] in _DROPOUTS else _RATES[:2]
    return not any(name in names and _is_zero(argument(node, name)) for name in rates)


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
