"""Caches of transformers that a step holds as buffers, with their layers and what these keep."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_frontends.generation.messages import LOOP, cannot

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_CHOOSING: Final = ("deepseek_sparse_attention", "indexed_attention")
"""Layers that look at the places whose keys of an indexer score highest; those keys are cached beside the others.

Newer releases of transformers have the second name.
"""

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_KINDS_WITH_STATES: Final = ("conv", "linear_attention", "hybrid", "moe", "mlp")
"""Kinds of layers that keep states of convolutions and recurrences, beside keys and values or alone, or nothing."""

FORM_ERROR: Final = 0.1
"""Share of scores up to which those with and without a cache differ by rounding, in bfloat16 and other experts too."""

CODES_ERROR: Final = 0.25
"""The same where caches hold codes."""

MOST_CODE: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Types of codes of keys and values, and the largest code of each."""

NOISE: Final = 100.0
"""Magnitude of noise in caches, to be seen beside scores of a model whose weights are small."""


def checked_layers(model: Any, scores: torch.Tensor, cache: Any) -> list[Any]:
    """Returns the layers of a cache.

    Raises:
        InputError: They hold something else than keys and values.
    """
    layers: list[Any] = list(cache.layers)
    if not layers or scores.dim() != 3:
        raise cannot(model, "it keeps no keys and values, which static caches are made of")
    for index, layer in enumerate(layers):
        if not has_keys(layer) and not hasattr(layer, "recurrent_states"):
            held = type(layer).__name__
            is_empty = getattr(layer, "keys", None) is None and hasattr(layer, "keys")
            why = "is of something else than tokens" if is_empty else f"keeps the state of {held}"
            raise cannot(model, f"layer {index} {why}, not keys and values of tokens", LOOP)
    return layers


def has_keys(layer: Any) -> bool:
    """Whether a layer of a cache has been given keys and values of four axes."""
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    return all(isinstance(tensor, torch.Tensor) and tensor.dim() == 4 for tensor in found)


_KINDS_OF_STATES: Final = ("conv_states", "recurrent_states")


def states_of(layer: Any) -> dict[tuple[str, int], torch.Tensor]:
    """Returns the states of convolutions and recurrences that a layer of a cache holds, by kind and number."""
    held = {kind: getattr(layer, kind, None) or {} for kind in _KINDS_OF_STATES}
    return {(kind, at): state for kind, of in held.items() for at, state in of.items() if state is not None}


def require_known_layers(model: PreTrainedModel) -> None:
    """Holds a model to layers whose keys, values and states are known.

    Raises:
        InputError: There is a kind of layer that looks back in another way.
    """
    config: Any = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {FULL, SLIDING, CHUNKED, *_CHOOSING, *_KINDS_WITH_STATES}:
        raise cannot(
            model,
            f"it has layers of kind {', '.join(sorted(unknown))}, which no static cache of keys and values serves",
        )


def window_of(model: PreTrainedModel, layers: Sequence[Any]) -> int | None:
    """Returns how far layers look back that do not look back all the way; None where there are none."""
    config: Any = model.config.get_text_config(decoder=True)
    window: int | None = getattr(config, "sliding_window", None)
    is_cut = chunk_of(model) is not None
    return window if any(layer.is_sliding for layer in layers) and not is_cut else None


def chunk_of(model: PreTrainedModel) -> int | None:
    """How many tokens see each other in layers that cut a text into chunks (Llama 4); None where there are none."""
    config: Any = model.config.get_text_config(decoder=True)
    is_cut = CHUNKED in (getattr(config, "layer_types", None) or ())
    return int(config.attention_chunk_size) if is_cut else None


def cross_cache() -> Any:
    """An empty cache of transformers for a text and for its source."""
    from transformers import DynamicCache, EncoderDecoderCache

    return EncoderDecoderCache(DynamicCache(), DynamicCache())


@functools.cache
def cache_classes() -> tuple[Any, Any]:
    """Returns transformers' class of caches, and a class of layers; made once, since compilers tell classes apart."""
    from transformers.cache_utils import Cache, CacheLayerMixin

    base: Any = CacheLayerMixin  # it says that lengths are ints, which they are not while a graph is captured

    class Layer(base):  # type: ignore[misc]
        is_compileable = True

        def __init__(
            self,
            keys: torch.Tensor,
            values: torch.Tensor,
            places: torch.Tensor | None = None,  # those of what is read; None where all is there, or nobody asks
            written: Any = None,  # and where it goes
            scales: tuple[torch.Tensor, torch.Tensor] | None = None,  # of keys and values that are codes
            indexed: torch.Tensor | None = None,  # keys by which places are chosen, (batch, 1, length, width)
        ) -> None:
            super().__init__()
            self._scales, self._indexed = scales, indexed
            self.keys, self.values, self._places, self._written = keys, values, places, written
            self.is_initialized = True

        def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
            pass

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
            if self._scales is not None:
                pairs = zip((self.keys, self.values), self._scales, (key_states, value_states), strict=True)
                keys, values = (_kept_as_codes(*pair, self._written) for pair in pairs)
                return keys, values
            self.keys.index_copy_(2, self._written, key_states)
            self.values.index_copy_(2, self._written, value_states)
            return self.keys, self.values

        def update_indexer(self, rows: torch.Tensor) -> torch.Tensor:
            assert self._indexed is not None
            self._indexed.index_copy_(2, self._written, rows.unsqueeze(1))
            return self._indexed.squeeze(1)

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.get_max_length(), 0

        def get_seq_length(self) -> torch.Tensor | int:
            return self.get_max_length() if self._places is None else self._places[0]

        def get_max_length(self) -> int:
            return self.keys.shape[2]

        get_max_cache_shape = get_max_length  # as older releases of transformers ask for it

    return Cache, Layer


def _kept_as_codes(codes: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Writes rows to a cache of codes, and returns what all of it stands for.

    Args:
        codes: (batch, heads, length, width).
        scales: (batch, heads, length, 1), of the type of the rows.
        rows: (batch, heads, n, width).
        places: Where each of them goes, (n,) int64.
    """
    most = MOST_CODE[codes.dtype]
    scale = (rows.abs().amax(-1, keepdim=True) / most).clamp(min=torch.finfo(rows.dtype).tiny)
    shares = (rows.float() / scale.float()).clamp(-most, most)
    # PyTorch has no `index_copy_` of float8 on CPUs
    codes[:, :, places] = (shares if codes.dtype.is_floating_point else shares.round()).to(codes.dtype)
    scales.index_copy_(2, places, scale)
    return codes.to(rows.dtype) * scales


def layer_with_states(states: Mapping[tuple[str, int], torch.Tensor], *held: Any) -> Any:
    """Returns a layer of a cache that holds states; each is written to where it is.

    Args:
        states: The states, as `states_of` has them.
        held: Keys and values, where they are written, and scales of codes; or None and None.
    """
    made = _layers_with_states()[0 if held[0] is None else 1](*(() if held[0] is None else held))
    for kind in _KINDS_OF_STATES:
        of = {at: state for (own, at), state in states.items() if own == kind}
        setattr(made, kind, of)
        setattr(made, f"is_{kind}_initialized", dict.fromkeys(of, True))
    made.conv_kernel_size = {at: state.shape[-1] for at, state in made.conv_states.items()}
    made.has_previous_state = dict.fromkeys(made.conv_states or made.recurrent_states, True)
    return made


@functools.cache
def _layers_with_states() -> tuple[Any, Any]:
    """Returns the class of a cache's layers with states alone, and that of those with keys and values beside."""
    from transformers.cache_utils import LinearAttentionLayer

    base: Any = LinearAttentionLayer
    with_keys: Any = cache_classes()[1]

    class Both(base, with_keys):  # type: ignore[misc]
        def __init__(self, *held: Any) -> None:
            base.__init__(self)
            with_keys.__init__(self, *held)

        def lazy_initialization(self, *_: Any, **__: Any) -> None:
            pass

    return base, Both
