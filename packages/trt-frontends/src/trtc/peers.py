"""What `trtc bench` times beside a program: the model that it was compiled from, as PyTorch runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from trt_core.exported_programs import module_of
from trt_core.internals import pytree
from trt_runtime.command_line import Peers
from trtc.model_source import load_model
from trtc.named_models import load_named_model

_MODES: Final = {
    "inductor": None,
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune",
}
"""Modes of `torch.compile` by the name of the peer."""


def _make(
    source: str, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Callable[..., Any]]:
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    model = _load(source, tensors)
    if tensors:
        model = model.to(tensors[0].device)
    return {name: model if name == "eager" else torch.compile(model, mode=_MODES[name]) for name in names}


def _load(source: str, tensors: Sequence[torch.Tensor]) -> nn.Module:
    floating = next((value.dtype for value in tensors if value.is_floating_point()), None)
    named = load_named_model(source, {}, None if floating is None else str(floating).removeprefix("torch."))
    if named is not None:
        return named[0]
    model = load_model(source)[0]
    return module_of(model) if isinstance(model, torch.export.ExportedProgram) else model.eval()


PEERS: Final = Peers(("eager", *_MODES), _make)
"""Eager PyTorch, and `torch.compile` in its modes."""
