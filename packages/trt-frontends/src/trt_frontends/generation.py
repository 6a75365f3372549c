"""Compiles a language model for generating text: one step, with its caches, for prefill and decoding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import Input, InputError
from trt_core.wording import kind_of
from trt_frontends.compiler import compile
from trt_frontends.entry_point import entry_point
from trt_frontends.pipeline import Progress, no_progress
from trt_runtime.generation import GenerationLimits, TextGenerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords

_PREFILL_CHUNK: Final = 512
"""Most tokens of a row that one call of a step takes, unless told otherwise."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


@entry_point
def compile_generation(
    model: nn.Module,
    *,
    max_length: int,
    max_batch: int = 1,
    prefill_chunk: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> TextGenerator:
    """Compiles a language model for generating text.

    One engine has two optimization profiles, one token for decoding and up to `prefill_chunk` for prompts, and one set
    of weights. Keys and values of all tokens so far are kept in static caches, `(max_batch, heads, max_length, width)`
    each, which are buffers of the result.

    Args:
        model: A causal language model of transformers in evaluation mode; or a module of your own that is a step as
            `TextGenerator` describes it, with caches among its buffers.
        max_length: Most tokens of a row, those of the prompt included.
        max_batch: Rows that are generated at once; fewer are filled up.
        prefill_chunk: Most tokens of a prompt that are read at once, 512 by default; longer prompts are read in pieces.
        eos_token_id, pad_token_id: What ends a row, and what fills it up; by default those of the model's generation
            configuration.
        progress, registry, settings: As for `compile`.

    Returns:
        What generates; `save` writes it to one file, which `trt_runtime.TextGenerator.load` reads without
        transformers.

    Raises:
        InputError: The model keeps no keys and values that can be kept in static caches, or a number does not fit.
        ExportError, SettingsError, BuildError, IncompleteCompilationError: See `compile`.

    Example:
        >>> generator = compile_generation(model, max_length=1024)  # doctest: +SKIP
        >>> generator.generate(tokenizer(text, return_tensors="pt").input_ids, max_new_tokens=64)  # doctest: +SKIP
    """
    for name, value in (("max_length", max_length), ("max_batch", max_batch), ("prefill_chunk", prefill_chunk)):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{name} is a whole number from 1, not {value!r}")
    chunk = min(prefill_chunk or _PREFILL_CHUNK, max_length)
    limits = GenerationLimits(max_batch, max_length, chunk, *_special_tokens(model, eos_token_id, pad_token_id))
    step = _step(model, limits)
    single = ((max_batch, 1),) * 3
    pieces = ((max_batch, 1), (max_batch, chunk), (max_batch, chunk))
    inputs = [
        Input(profiles=[single, pieces], dtype=torch.int64, name="input_ids") if chunk > 1 else _fixed(max_batch, 1),
        _fixed(1),
        _fixed(max_batch),
    ]
    compiled = compile(step, arg_inputs=inputs, progress=progress, registry=registry, **settings)
    return TextGenerator(compiled, limits)


def _fixed(*shape: int) -> Input:
    return Input(shape, dtype=torch.int64)


def _special_tokens(
    model: nn.Module, eos_token_id: int | Sequence[int] | None, pad_token_id: int | None
) -> tuple[tuple[int, ...], int]:
    """Returns the tokens that end a row, and the one that fills it up."""
    configured = getattr(model, "generation_config", None)
    if eos_token_id is None:
        eos_token_id = getattr(configured, "eos_token_id", None)
    ends = () if eos_token_id is None else (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
    if pad_token_id is None:
        pad_token_id = getattr(configured, "pad_token_id", None)
    return ends, pad_token_id if pad_token_id is not None else ends[0] if ends else 0


def _step(model: nn.Module, limits: GenerationLimits) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a module, not {kind_of(model)}")
    if not hasattr(model, "config"):
        return model  # a step already
    return CachedStep(model, limits).eval()  # type: ignore[arg-type]


class CachedStep(nn.Module):
    """A causal language model of transformers with static caches, as a step of `TextGenerator`.

    Args:
        model: The model.
        limits: Rows and lengths of the caches.

    Raises:
        InputError: The model is called in another way, or keeps something else than keys and values.
    """

    def __init__(self, model: PreTrainedModel, limits: GenerationLimits) -> None:
        super().__init__()
        self.model = model
        self._length = limits.max_length
        parameters = inspect.signature(model.forward).parameters
        lacking = [name for name in ("input_ids", "position_ids", "past_key_values") if name not in parameters]
        if lacking:
            raise InputError(
                f"{type(model).__name__} cannot be compiled for generating text",
                why=f"its forward takes no {', '.join(lacking)}",
                hint="give a decoder-only language model, or a step of your own; see trt_runtime.TextGenerator",
            )
        self._keeps_one = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        layers = self._probe(limits.max_batch)
        self._layers = len(layers)
        for index, layer in enumerate(layers):
            for name, tensor in (("keys", layer.keys), ("values", layer.values)):
                rows, heads, _, width = (
                    tensor.shape
                )  # layers with a window keep only that, unless they are asked otherwise
                self.register_buffer(f"{name}_{index}", tensor.new_zeros(rows, heads, limits.max_length, width))
        self._windows = _windows(model, layers)

    def _probe(self, rows: int) -> list[Any]:
        """Returns the layers of a static cache that the model has filled once, which say what it keeps."""
        from transformers import StaticCache

        name = type(self.model).__name__
        token = torch.zeros(rows, 1, dtype=torch.int64, device=self.model.device)
        try:
            cache = StaticCache(self.model.config, max_cache_len=self._length)
            with torch.no_grad():
                scores = self.model(input_ids=token, past_key_values=cache, use_cache=True).logits
            layers: list[Any] = list(cache.layers)
            kept = scores.dim() == 3 and all(layer.keys.dim() == layer.values.dim() == 4 for layer in layers)
        except Exception as error:
            raise InputError(
                f"{name} cannot be compiled for generating text",
                why=f"it does not run with a static cache: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="give a decoder-only language model of transformers that supports static caches",
            ) from error
        if not layers or not kept:
            raise InputError(f"{name} keeps no keys and values, which static caches are made of")
        return layers

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Returns the logits after the last token of each row.

        Args:
            input_ids: (rows, n), int64.
            start: (1,), int64: place of the first of them in the caches.
            padding: (rows,), int64: how many of the first places of each row are padding.

        Returns:
            (rows, vocabulary), of the model's type.
        """
        places = start + torch.arange(input_ids.shape[1], device=input_ids.device)
        result = self.model(
            input_ids=input_ids,
            attention_mask=self._mask(places, padding),
            position_ids=(places - padding[:, None]).clamp(min=0),
            past_key_values=_caches(self, places),
            use_cache=True,
            **self._keeps_one,
        )
        logits: torch.Tensor = result.logits
        return logits[:, -1]

    def _mask(self, places: torch.Tensor, padding: torch.Tensor) -> Any:
        """Returns which cached places each token looks at, (rows, 1, n, length), for each kind of layer if they differ.

        Padding looks at itself, so that no row of a softmax is empty.
        """
        cached = torch.arange(self._length, device=places.device)
        itself = cached == places[:, None]
        seen = (cached <= places[:, None]) & (cached >= padding[:, None, None])
        masks = {}
        for kind, window in self._windows.items():
            near = seen if window is None else seen & (cached > places[:, None] - window)
            masks[kind] = self._as_attention_takes_it((near | itself)[:, None])
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _as_attention_takes_it(self, mask: torch.Tensor) -> torch.Tensor:
        if getattr(self.model.config, "_attn_implementation", None) == "sdpa":
            return mask
        dtype = self.model.dtype  # attention that is written out adds masks to its scores
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _windows(model: PreTrainedModel, layers: Sequence[Any]) -> dict[str, int | None]:
    """Returns how far the layers of each kind look back; None for all the way.

    Raises:
        InputError: There is a kind of layer that looks back in another way.
    """
    config: Any = model.config.get_text_config(decoder=True)
    sliding = [bool(layer.is_sliding) for layer in layers]
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {_FULL, _SLIDING}:
        raise InputError(
            f"{type(model).__name__} cannot be compiled for generating text",
            why=f"it has layers of kind {', '.join(sorted(unknown))}, which no static cache of keys and values serves",
        )
    window = getattr(config, "sliding_window", None)
    if not any(sliding) or window is None:
        return {_FULL: None}
    return {_SLIDING: window} if all(sliding) else {_FULL: None, _SLIDING: window}


def _caches(step: CachedStep, places: torch.Tensor) -> Any:
    """Returns the buffers of a step as a cache of transformers, in which a call writes to the given places."""
    cache, layer = _cache_classes()
    buffers = ((getattr(step, f"keys_{index}"), getattr(step, f"values_{index}")) for index in range(step._layers))
    return cache(layers=[layer(keys, values, places) for keys, values in buffers])


@functools.cache
def _cache_classes() -> tuple[Any, Any]:
    """Returns transformers' class of caches, and a class of layers; made once, since compilers tell classes apart."""
    from transformers.cache_utils import Cache, CacheLayerMixin

    base: Any = CacheLayerMixin  # it says that lengths are ints, which they are not while a graph is captured

    class Layer(base):  # type: ignore[misc]
        is_compileable = True

        def __init__(self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
            super().__init__()
            self.keys, self.values, self._places = keys, values, places
            self.is_initialized = True

        def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
            pass

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
            self.keys.index_copy_(2, self._places, key_states)
            self.values.index_copy_(2, self._places, value_states)
            return self.keys, self.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.get_max_length(), 0

        def get_seq_length(self) -> torch.Tensor:
            return self._places[0]

        def get_max_length(self) -> int:
            return int(self.keys.shape[2])

    return Cache, Layer
