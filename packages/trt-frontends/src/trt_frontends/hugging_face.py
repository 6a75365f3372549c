"""What models of transformers need to be captured: steps without caches, attention that can be traced, known caches."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

from trt_core import logger
from trt_core.internals import pytree
from trt_frontends.example_inputs import ExampleInputs

_ATTENTION: Final = "_attn_implementation"
_TRACED: Final = frozenset({"eager", "sdpa"})
"""Implementations of attention that are made of PyTorch's operators."""


@contextlib.contextmanager
def ready_for_export(model: Any, examples: ExampleInputs) -> Iterator[None]:
    """Inside the block a model of transformers is such that it can be captured; other models are left alone.

    What is changed is its configuration, for the time of the block, and a note says so. An input `use_cache` or a cache
    among the inputs asks for caches among the results: then PyTorch is told how to take them apart.

    Args:
        model: What is captured.
        examples: What with.
    """
    if not _is_of_transformers(model):
        yield
        return
    given = {name for name in ("use_cache", "past_key_values") if examples.kwargs.get(name) is not None}
    if given or any(_is_cache(leaf) for leaf in pytree.tree_leaves((examples.args, examples.kwargs))):
        _register_caches()
        given.add("use_cache")
    with _without_caches(model, wanted="use_cache" in given), _traceable_attention(model):
        yield


def _is_of_transformers(model: Any) -> bool:
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def _is_cache(value: Any) -> bool:
    library = sys.modules.get("transformers.cache_utils")
    return library is not None and isinstance(value, library.Cache)


def _register_caches() -> None:
    """Teaches PyTorch to take caches of transformers apart; releases differ in where that is."""
    from transformers.integrations import executorch

    with contextlib.suppress(ValueError):  # they are known already
        getattr(executorch, "register_dynamic_cache_export_support", lambda: None)()


@contextlib.contextmanager
def _without_caches(model: Any, *, wanted: bool) -> Iterator[None]:
    configs = {id(config): config for config in (model.config, _text_config(model)) if config is not None}
    changed = [] if wanted else [config for config in configs.values() if getattr(config, "use_cache", False)]
    if changed and model.can_generate():
        logger.warning(
            "%s is captured with use_cache=False, as one step without caches; give use_cache=True among kwarg_inputs "
            "to have caches among its results, or make a TextGenerator of it with compile_generation",
            type(model).__name__,
        )
    for config in changed:
        config.use_cache = False
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


def _text_config(model: Any) -> Any:
    find = getattr(model.config, "get_text_config", None)
    return find() if callable(find) else None


@contextlib.contextmanager
def _traceable_attention(model: Any) -> Iterator[None]:
    before = getattr(model.config, _ATTENTION, None)
    if before is None or before in _TRACED:
        yield
        return
    chosen = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    logger.warning(
        "%s is captured with attn_implementation=%r: %r is no part of PyTorch", type(model).__name__, chosen, before
    )
    _set_attention(model, chosen)
    try:
        yield
    finally:
        _set_attention(model, before)


def _set_attention(model: Any, name: str) -> None:
    """Sets it in the configurations alone: whether kernels of that name are installed is for calls to find out."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    for config in configs.values():
        setattr(config, _ATTENTION, name)
