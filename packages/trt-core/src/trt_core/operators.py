"""Names of operators, as users write them in settings and read them in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from trt_core.errors import SettingsError
from trt_core.suggest import did_you_mean

Target = Callable[..., Any] | str
"""What `fx.Node.target` holds for a call."""


def operator_name(target: Any) -> str:
    """Returns the name of an operator: `torch.ops.aten.relu.default`, `_operator.add`, `torch.sym_max`."""
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{target}"
    if isinstance(target, torch._ops.HigherOrderOperator):
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
        SettingsError: No such operator exists; the message suggests the nearest name.
    """
    if not isinstance(spec, str):
        return operator_name(spec)
    text = spec.strip().replace("::", ".")
    if text.startswith("_operator.") or (text.startswith("torch.") and not text.startswith("torch.ops.")):
        return text
    parts = text.removeprefix("torch.ops.").split(".")
    if len(parts) == 1:
        parts = ["aten", *parts]
    if len(parts) in (2, 3) and _exists(parts):
        return "torch.ops." + ".".join(parts)
    raise SettingsError(
        f"unknown operator {spec!r}",
        where=where,
        hint=did_you_mean(".".join(parts), _known_operators(parts[0]))
        or "write it as torch.ops.<namespace>.<name>[.<overload>]",
    )


def canonical_operators(specs: Iterable[Any], where: str = "torch_executed_ops") -> frozenset[str]:
    """Reads a collection of operators; see `canonical_operator`."""
    return frozenset(canonical_operator(spec, where) for spec in specs)


def _exists(parts: list[str]) -> bool:
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    if packet is None:
        return False
    return len(parts) == 2 or parts[2] in packet.overloads()


def _known_operators(namespace: str) -> list[str]:
    names = torch._C._dispatch_get_all_op_names()
    prefix = f"{namespace}::"
    return [name.replace("::", ".") for name in names if name.startswith(prefix)]
