"""Inputs that a model takes through `**keywords`, as parameters of their own while it is exported.

Where sizes vary, `torch.export` counts such an input twice, under its own name and in the dict of its parameter, and
fails on the difference. A signature that names each of them has it counted once, and means the same call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch


@contextlib.contextmanager
def keywords_named(module: torch.nn.Module, kwargs: Mapping[str, Any], dynamic_shapes: Any) -> Iterator[Any]:
    """Gives a module's `forward` a parameter for each keyword input; where nothing varies it stays as it is.

    Args:
        module: The model; left as it was.
        kwargs: Keyword inputs.
        dynamic_shapes: As `torch.export.export` takes it.

    Yields:
        The dynamic shapes for the changed signature.
    """
    signature = inspect.signature(module.forward)
    variadic = [item for item in signature.parameters.values() if item.kind is inspect.Parameter.VAR_KEYWORD]
    extra = [name for name in kwargs if name not in signature.parameters]
    if not variadic or not extra or not isinstance(dynamic_shapes, Mapping):
        yield dynamic_shapes
        return
    parameters = [item for item in signature.parameters.values() if item not in variadic]
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in extra]
    original, own = module.forward, vars(module).get("forward")

    @functools.wraps(original)
    def forward(*args: Any, **keywords: Any) -> Any:
        return original(*args, **keywords)

    vars(forward)["__signature__"] = signature.replace(parameters=parameters)
    vars(module)["forward"] = forward
    try:
        name = variadic[0].name
        yield {**{key: value for key, value in dynamic_shapes.items() if key != name}, **dynamic_shapes.get(name, {})}
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own
