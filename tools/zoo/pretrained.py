"""Entries for models of transformers and diffusers: a class name, inputs, and what its small configuration needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from tools.zoo.entry import Entry
from tools.zoo.small_configuration import small_configuration
from trt_core import Input


def hugging_face(
    name: str,
    kwargs: Mapping[str, Input],
    *,
    excluded: str = "",
    fixed_shapes: str = "",
    **configuration: Any,
) -> Entry:
    """Returns the entry of a model of transformers.

    Args:
        name: Name of the model's class.
        kwargs: Its inputs.
        excluded, fixed_shapes: See `Entry`.
        configuration: Fields of its configuration that the small sizes do not fit.
    """

    def make() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        module: nn.Module = kind(small_configuration(kind.config_class, **configuration))
        return module

    return Entry(f"transformers/{name}", make, kwargs=kwargs, excluded=excluded, fixed_shapes=fixed_shapes)


def diffusion(name: str, kwargs: Mapping[str, Input], *, fixed_shapes: str = "", **configuration: Any) -> Entry:
    """Returns the entry of a model of diffusers; see `hugging_face`."""

    def make() -> nn.Module:
        import diffusers

        module: nn.Module = getattr(diffusers, name)(**configuration)
        return module

    return Entry(f"diffusers/{name}", make, kwargs=kwargs, fixed_shapes=fixed_shapes)


def hugging_faces(names: tuple[str, ...], inputs: Callable[[], Mapping[str, Input]]) -> tuple[Entry, ...]:
    """Returns entries for models whose small configuration needs nothing else."""
    return tuple(hugging_face(name, inputs()) for name in names)
