"""A model of transformers as a step that holds its caches: tokens and their places to logits."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core import InputError
from trt_frontends.generation.caches import (
    CHUNKED,
    CODES_ERROR,
    FORM_ERROR,
    FULL,
    NOISE,
    SLIDING,
    cache_classes,
    checked_layers,
    chunk_of,
    cross_cache,
    has_keys,
    layer_with_states,
    require_known_layers,
    states_of,
    window_of,
)
from trt_frontends.generation.messages import LOOP, cannot
from trt_frontends.generation.sources import SOURCES
from trt_runtime.generation import GenerationLimits, SourceLimits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def writer_of(model: Any) -> Any:
    """Returns the part of a model whose `generate` makes the tokens: a language model inside of it (BLIP-2), or all."""
    if not isinstance(getattr(model, "language_model", None), nn.Module):
        return model
    taken = inspect.signature(model.forward).parameters
    return model if name_of_caches(taken) or _STATES in taken else model.language_model


class CachedStep(nn.Module):
    """A causal language model of transformers with static caches, as a step of `TextGenerator`.

    Args:
        model: The model.
        limits: Rows and lengths of the caches.
        cache_dtype: Type of codes of keys and values; None for the model's type.

    Raises:
        InputError: The model is called in another way, or keeps something else than keys and values.
    """

    _ahead = ""
    """What tokens look ahead in, as `SourceLimits` says it."""

    def __init__(
        self, model: PreTrainedModel, limits: GenerationLimits, cache_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.limits = limits
        self._codes = cache_dtype
        self._length = limits.max_length
        parameters = inspect.signature(model.forward).parameters
        self._require(parameters)
        require_known_layers(model)
        self._caches_as = name_of_caches(parameters) or _STATES
        self._takes_places = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._masks_places = self._knows_length = False
        self._require_positions()
        layers = self._probe()
        kept = [layer for layer in layers if has_keys(layer)]
        self._window = window_of(model, kept)
        self._chunk = chunk_of(model)
        self._slides_all = all(layer.is_sliding for layer in kept)
        self._lengths = [self._kept_length(layer) if has_keys(layer) else None for layer in layers]
        self._states = [states_of(layer) for layer in layers]
        if any(self._states):
            self._read_alone()
        for index, (layer, length) in enumerate(zip(layers, self._lengths, strict=True)):
            for name, tensor in (("keys", layer.keys), ("values", layer.values)) if length is not None else ():
                shape = (limits.max_batch, tensor.shape[1], length, tensor.shape[3])
                self.register_buffer(f"{name}_{index}", tensor.new_zeros(shape, dtype=cache_dtype))
                if cache_dtype is not None:
                    self.register_buffer(f"{name}_scales_{index}", tensor.new_zeros(*shape[:3], 1))
            indexed = getattr(layer, "indexer_keys", None)  # (rows, places, width)
            if indexed is not None:
                shape = (limits.max_batch, 1, self._length, indexed.shape[2])
                self.register_buffer(f"indexer_{index}", indexed.new_zeros(shape))
            for (kind, at), tensor in self._states[index].items():
                self.register_buffer(f"{kind}_{at}_{index}", tensor.new_zeros(limits.max_batch, tensor[0].numel()))
        self._find_form()

    def _read_alone(self) -> None:
        """Has every call take one token: what layers with states do of several they do where a text begins alone.

        Raises:
            InputError: Guesses are to be scored, of which a state forgets none.
        """
        if self.limits.assisted_tokens > 1:
            raise cannot(
                self.model,
                "states of its convolutions and recurrences hold every token that was read, wrong guesses too",
                "leave assisted_tokens out",
            )
        self.limits = replace(self.limits, prefill_chunk=1, has_states=True)

    def _require(self, parameters: Mapping[str, Any]) -> None:
        """Holds the model to what a step calls it with.

        Raises:
            InputError: It takes something else.
        """
        lacking = [name for name in ("input_ids",) if name not in parameters]
        if name_of_caches(parameters) is None and _STATES not in parameters:
            lacking.append(CACHES[0])
        if lacking:
            instead = [name for name in _OTHER_STATE if name in parameters]
            hint = SOURCES if writer_of(self.model) is not self.model else _MODELS
            raise cannot(
                self.model,
                f"its forward takes no {', '.join(lacking)}"
                + (f": it keeps state in {', '.join(instead)}, not keys and values" if instead else ""),
                hint,
            )
        name = name_of_caches(parameters) or _STATES
        if own := _class_of_its_own(parameters[name].annotation):
            raise cannot(self.model, f"it keeps what it has read in a class of its own, {own}, as {name}", _MODELS)

    def _require_positions(self) -> None:
        """Holds caches to a table of positions, which rotary models have none of, and engines do not look beyond.

        Raises:
            InputError: They are longer.
        """
        config: Any = self.model.config.get_text_config(decoder=True)
        said = {getattr(config, name, None) for name in ("max_position_embeddings", "max_target_positions")}
        decoder: Any = decoder_of(self.model)
        words = decoder.get_input_embeddings()
        tables = [each for each in decoder.modules() if isinstance(each, nn.Embedding) and each is not words]
        rows = [table.num_embeddings - int(getattr(table, "offset", 0)) for table in tables]
        rows += [len(table) for table in decoder.buffers() if table.dim() == 2]  # of sines and cosines
        most = min((count for count in rows if count in said), default=self._length)
        if self._length > most:
            raise InputError(
                f"{type(self.model).__name__} knows {most} positions, and the caches would hold {self._length}",
                where="max_length",
                hint=f"give max_length={most} or less",
            )

    def _find_form(self) -> None:
        """Finds out how a model is told places that takes no positions, or whose attention falls with distance (ALiBi).

        Some read them from the mask of tokens, some from the length of the cache. What has the scores that the model
        has without caches, of a padded row and of others, is right; so are those of other models held to them.

        Raises:
            InputError: Neither is.
        """
        rows, count = self.limits.max_batch, min(4, self._length)
        device = self.model.device
        padding = torch.zeros(rows, dtype=torch.int64, device=device)
        padding[0] = count // 2
        ids = torch.arange(1, rows * count + 1, device=device).view(rows, count)
        table: Any = self.model.get_input_embeddings()
        ids %= table.num_embeddings
        real = torch.arange(count, device=device) >= padding[:, None]
        failure: Exception | None = None
        with torch.no_grad():
            model: Any = self.model
            told = {"position_ids": (real.long().cumsum(1) - 1).clamp(min=0)} if self._takes_positions else {}
            expected = model(input_ids=ids, attention_mask=real.long(), use_cache=False, **told).logits[:, -1].float()
            forms, apart = self._forms(), []
            for self._masks_places, self._knows_length in forms:
                try:
                    found = self._in_pieces(ids, padding).float()
                except Exception as error:
                    failure = error
                    continue
                apart.append(float((found - expected).norm()) / float(expected.norm()))
                if apart[-1] <= self._error():
                    return
        raise cannot(
            self.model,
            f"its scores with {self._kind_of_cache()} are not those that it has without"
            + (f": they are {min(apart):.2g} of their norm apart" if apart else "")
            + ("" if self._takes_positions else ", and it takes no position_ids"),
            self._hint(),
            cause=failure,
        )

    def _error(self) -> float:
        """Share of scores up to which those with and without a cache differ by rounding."""
        return FORM_ERROR if self._codes is None else CODES_ERROR

    def _kind_of_cache(self) -> str:
        return "a static cache" if self._codes is None else f"a static cache in {self._codes}"

    def _hint(self) -> str:
        return "" if self._codes is None else "leave cache_dtype out, which says whether the codes are why"

    def _forms(self) -> tuple[tuple[bool, bool], ...]:
        """Ways to tell places: whether masks are of places, and whether caches know their length alone."""
        if self._takes_positions and not getattr(self.model.config, "alibi", False):
            return ((False, False),)
        return ((False, True), (True, False)) if self._window is None else ((False, True),)  # windows need masks

    def _in_pieces(
        self, ids: torch.Tensor, padding: torch.Tensor, context: tuple[torch.Tensor, ...] = ()
    ) -> torch.Tensor:
        """Returns the last scores of tokens of which some are read at once, where the step may, and others alone.

        Caches hold noise before, which no score may show: some layers look at all places where they read one token.
        They are empty after it.
        """
        noise = torch.Generator(ids.device).manual_seed(0)
        caches = list(self.buffers(recurse=False))
        try:
            for cache in caches:
                if cache.dtype is self._codes:  # signs of what scales say
                    cache.copy_(torch.randint(-1, 2, cache.shape, device=cache.device, generator=noise))
                else:
                    cache.normal_(std=NOISE, generator=noise)
            return self._read_in_pieces(ids, padding, context)
        finally:
            for cache in caches:
                cache.zero_()

    def _read_in_pieces(
        self, ids: torch.Tensor, padding: torch.Tensor, context: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        count = ids.shape[1]
        most, begin = min(2, self.limits.prefill_chunk, count), 0
        while True:
            places = torch.arange(begin, min(begin + most, count), device=ids.device)
            caches = self._caches(places[:1], places, padding)
            found = self._scores(ids[:, begin : begin + most], places, padding, caches, 1, context)[:, -1]
            begin, most = begin + most, 1
            if begin >= count:
                return found

    def _probe(self) -> list[Any]:
        """Returns the layers of a static cache that the model has filled once, which say what it keeps."""
        from transformers import StaticCache

        token = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        others = torch.tensor([[0, 0], [0, 1]], device=token.device)
        try:
            with torch.no_grad():
                first, same = self.model(input_ids=others, use_cache=False).logits[:, 0].float()
        except Exception as error:
            raise cannot(self.model, "it gives no logits for tokens alone", _MODELS, error) from error
        try:
            cache = StaticCache(self.model.config, max_cache_len=self._length)
            with torch.no_grad():
                scores = self.model(input_ids=token, **{self._caches_as: cache}, use_cache=True).logits
            apart = float((first - same).abs().max())
            if self._ahead != "prompts" and apart > torch.finfo(scores.dtype).eps ** 0.5 * float(first.abs().max()):
                raise cannot(
                    self.model,
                    "its scores of a token follow from later tokens, too: it fills gaps in a text, and continues none",
                    "give a model that looks back alone; some of transformers do with `is_decoder=True` in config.json",
                )
            return checked_layers(self.model, scores, cache)
        except InputError:
            raise
        except Exception as error:
            raise cannot(self.model, "it does not run with a static cache", LOOP, error) from error

    def _kept_length(self, layer: Any) -> int:
        """How many places a layer keeps: all, or a window and a piece more, in whole pieces."""
        if self._window is None or self._ahead or not layer.is_sliding:  # pieces that look ahead begin anywhere
            return self._length
        chunk = self.limits.prefill_chunk
        return min(self._length, -(-(self._window + chunk - 1) // chunk) * chunk)

    def forward(
        self, input_ids: torch.Tensor, start: torch.Tensor, padding: torch.Tensor, *others: torch.Tensor
    ) -> torch.Tensor:
        """Returns the logits after the last token of each row.

        Args:
            input_ids: (rows, n), int64.
            start: (1,), int64: place of the first of them in the caches.
            padding: (rows,), int64: how many of the first places of each row are padding.
            others: Where several tokens are scored at once, (k,), int64: which of the n; and what the encoder gave.

        Returns:
            (rows, vocabulary), of the model's type; (rows, k, vocabulary) where several are scored.
        """
        is_told = self.limits.assisted_tokens > 1
        kept, context = (others[0], others[1:]) if is_told else (None, others)
        places = start + torch.arange(input_ids.shape[1], device=input_ids.device)
        caches = self._caches(start, places, padding)
        logits = self._scores(input_ids, places, padding, caches, 1 if kept is None else kept, context)
        return logits[:, -1] if kept is None else logits

    def _scores(
        self,
        input_ids: torch.Tensor,
        places: torch.Tensor,
        padding: torch.Tensor,
        caches: Any,
        kept: torch.Tensor | int,
        context: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        """Returns the logits of the tokens that are asked for, or of more of the last ones: (rows, k, vocabulary)."""
        last, positions, ends = self._layout(places, padding, context)
        masks = self._mask(places, padding, last, ends)
        with _head_of(self.model, kept), _told_masks(self.model, masks), _sines_at(self.model, places):
            result = self.model(
                **self._embedded(input_ids, context),
                attention_mask=next(iter(masks.values())) if isinstance(masks, dict) else masks,
                **{self._caches_as: caches},
                use_cache=True,
                **({"position_ids": positions} if self._takes_positions else {}),
                **({"logits_to_keep": kept} if self._takes_places and isinstance(kept, int) else {}),
            )
        for index, layer in enumerate(caches.layers):
            for (kind, at), state in (states_of(layer) if self._states[index] else {}).items():
                self.get_buffer(f"{kind}_{at}_{index}").copy_(state.flatten(1))
        logits: torch.Tensor = result.logits
        return logits

    def _embedded(self, input_ids: torch.Tensor, context: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        return {"input_ids": input_ids}

    def _layout(
        self, places: torch.Tensor, padding: torch.Tensor, context: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns the last place that each token looks at, (n,) or (rows, n), and its position, (..., rows, n).

        Where tokens look ahead, the last place that each cached one looks at, (rows, length), follows.
        """
        return places, (places - padding[:, None]).clamp(min=0), None

    def _mask(
        self, places: torch.Tensor, padding: torch.Tensor, last: torch.Tensor, ends: torch.Tensor | None = None
    ) -> Any:
        """Returns which cached places each token looks at, (rows, 1, n, length), for each kind of layer if they differ.

        For models that read places from it, (rows, length) int64: which of them hold tokens.
        Padding looks at itself, so that no row of a softmax is empty. Tokens that look ahead to the same `ends` see
        each other in layers with windows, too. None for models of states alone.
        """
        masks: dict[str, Any] = {}
        if not any(self._lengths):
            return None
        if self._masks_places:
            cached = torch.arange(self._length, device=places.device)
            return ((cached <= places[-1:]) & (cached >= padding[:, None])).long()
        for kind, window, length in self._kinds():
            cached = torch.arange(length, device=places.device)
            if length < self._length:  # a ring: each row holds the last place that falls on it
                cached = places[-1:] - (places[-1:] - cached) % length
            itself = cached == places[:, None]
            seen = (cached <= last[..., None]) & (cached >= padding[:, None, None])
            if kind == CHUNKED and window is not None:
                begun, held = ((at - padding[:, None]) // window for at in (places, cached))
                seen = seen & (begun[..., None] == held[:, None])
            elif window is not None:
                near = cached > places[:, None] - window
                seen = seen & (near if ends is None else near | (ends[:, None] == last[..., None]))
            masks[kind] = self._as_attention_takes_it((seen | itself)[:, None])
        if len(masks) == 1:
            return next(iter(masks.values()))
        config: Any = self.model.config.get_text_config(decoder=True)
        return {**dict.fromkeys(config.layer_types), **masks}  # layers with states alone have no mask

    def _kinds(self) -> list[tuple[str, int | None, int]]:
        """What kinds of layers there are, how far they look back, and how many places they keep."""
        shortest = min((length for length in self._lengths if length is not None), default=self._length)
        if self._chunk is not None:
            return [(FULL, None, self._length), (CHUNKED, self._chunk, self._length)]
        if self._window is None:
            return [(FULL, None, self._length)]
        sliding = (SLIDING, self._window, shortest)
        return [sliding] if self._slides_all else [(FULL, None, self._length), sliding]

    def _as_attention_takes_it(self, mask: torch.Tensor) -> torch.Tensor:
        config: Any = self.model.config  # a decoder may compute attention in another way than its encoder
        if getattr(config.get_text_config(decoder=True), "_attn_implementation", None) == "sdpa":
            return mask
        dtype = self.model.dtype  # attention that is written out adds masks to its scores
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)

    def _caches(self, start: torch.Tensor, places: torch.Tensor, padding: torch.Tensor) -> Any:
        """Returns the buffers as a cache of transformers, in which a call writes to the given places.

        States are copies, of rows whose text has begun; of others they are zero, as where nothing was read.
        """
        cache, layer = cache_classes()
        has_begun = (start > padding)[:, None]
        layers = []
        for index, length in enumerate(self._lengths):
            states = {
                (kind, at): self.get_buffer(f"{kind}_{at}_{index}").where(has_begun, 0).view(-1, *example.shape[1:])
                for (kind, at), example in self._states[index].items()
            }
            written, keys, values, scales = places, None, None, None
            if length is not None:
                if length < self._length:
                    written = start % length + torch.arange(places.shape[0], device=places.device)
                keys, values = self.get_buffer(f"keys_{index}"), self.get_buffer(f"values_{index}")
                if self._codes is not None:
                    scales = tuple(self.get_buffer(f"{name}_scales_{index}") for name in ("keys", "values"))
            told = None if self._knows_length else places
            layers.append(
                layer_with_states(states, keys, values, told, written, scales)
                if keys is None or states
                else layer(keys, values, told, written, scales, getattr(self, f"indexer_{index}", None))
            )
        return cache(layers=layers)


def _head_of(model: Any, kept: torch.Tensor | int) -> contextlib.AbstractContextManager[Any]:
    """Has a model's head compute the logits of some places alone, whether or not its forward can be asked to."""
    if isinstance(kept, int):
        return contextlib.nullcontext()
    head: nn.Module = model.get_output_embeddings()
    return head.register_forward_pre_hook(lambda _, given: (given[0].index_select(1, kept),))


def _told_masks(model: Any, masks: Any) -> contextlib.AbstractContextManager[Any]:
    """Gives the layers of text the masks of each kind of them, which not every model around them passes on."""
    return _told(decoder_of(model), "attention_mask", masks) if isinstance(masks, dict) else contextlib.nullcontext()


def _told(
    module: nn.Module,
    name: str,
    value: Any,
    unless: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda given, named: False,
) -> contextlib.AbstractContextManager[Any]:
    """Gives a module a named argument, unless what its caller gives says it."""

    def tell(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, named if unless(given, named) else {**named, name: value}

    return module.register_forward_pre_hook(tell, with_kwargs=True)


def decoder_of(model: Any) -> nn.Module:
    """Returns the layers of a model's text, with the table of words; some call another part of them a decoder."""
    decoder: nn.Module = model.get_decoder() or model
    return decoder if hasattr(decoder, "get_input_embeddings") else model.base_model


@contextlib.contextmanager
def _added(layers: Sequence[nn.Module], terms: Sequence[torch.Tensor]) -> Iterator[None]:
    """Adds a term to what each of the first layers gives."""
    with contextlib.ExitStack() as hooks:
        for layer, term in zip(layers, terms):  # noqa: B905 - those that there are terms for
            hooks.enter_context(layer.register_forward_hook(lambda _, __, made, term=term: made + term))
        yield


@contextlib.contextmanager
def _told_positions(model: Any, places: torch.Tensor) -> Iterator[None]:
    """Gives tables of positions the places of tokens, which some would count from a length that is a tensor here."""

    def is_named(given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        return named.get("position_ids") is not None

    def is_told(given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        return len(given) > _AT_POSITIONS or is_named(given, named)

    decoder = model.get_decoder()
    tables = [module for module in decoder.modules() if isinstance(module, nn.Embedding)]
    with contextlib.ExitStack() as hooks:
        if "position_ids" in inspect.signature(decoder.forward).parameters:
            hooks.enter_context(_told(decoder, "position_ids", places[None], is_named))
        for table in tables:
            if tuple(inspect.signature(table.forward).parameters)[1 : _AT_POSITIONS + 1] in _POSITIONED:
                hooks.enter_context(_told(table, "position_ids", places, is_told))
        yield


@contextlib.contextmanager
def _sines_at(model: Any, places: torch.Tensor) -> Iterator[None]:
    """Has tables of sines look up places without asking whether they are long enough, which no graph can know.

    They count positions from a length, which is a tensor here, and would grow by it (NLLB, SeamlessM4T, XGLM).
    """

    def begin(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        shorter = tuple(0 if isinstance(value, torch.Tensor) and not value.dim() else value for value in given)
        return shorter, {**named, _COUNTED: 0} if _COUNTED in named else named

    def look_up(table: Any, given: tuple[Any, ...], named: dict[str, Any], made: torch.Tensor) -> torch.Tensor:
        said = {**dict(zip(inspect.signature(table.forward).parameters, given, strict=False)), **named}
        ids = said.get("input_ids")
        if said.get("position_ids") is not None:
            return made
        if ids is None:
            at = (places + table.padding_idx + 1).expand(made.shape[:2])
        else:
            at = table.create_position_ids_from_input_ids(ids, table.padding_idx, places[0])
        rows: torch.Tensor = table.weights.index_select(0, at.reshape(-1))
        return rows.view(made.shape)

    with contextlib.ExitStack() as hooks:
        for table in decoder_of(model).modules():
            if hasattr(table, "weights") and _COUNTED in inspect.signature(table.forward).parameters:
                hooks.enter_context(table.register_forward_pre_hook(begin, with_kwargs=True))
                hooks.enter_context(table.register_forward_hook(look_up, with_kwargs=True))
        yield


_COUNTED: Final = "past_key_values_length"

CACHES: Final = ("past_key_values", "cache")
"""What models are given caches as; newer releases of transformers have the second name."""

_STATES: Final = "cache_params"
"""What models of older releases are given states alone as (Mamba)."""

_OTHER_STATE: Final = ("state", "mems", "cache")
"""What models of recurrent state are given it as that is no cache: RWKV, XLNet, XLM."""


def name_of_caches(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Under which of its parameters a model is given caches; None where it takes none, or a dict of its own (XLM)."""
    found = [name for name in CACHES if name in parameters and "dict" not in str(parameters[name].annotation)]
    return found[0] if found else None


def _class_of_its_own(annotation: Any) -> str:
    """Returns the name of what a model keeps state in that is no cache of transformers; "" where it is one."""
    named = [one for one in typing.get_args(annotation) or (annotation,) if isinstance(one, type)]
    kept = [one for one in named if one.__name__.endswith("Cache")]
    own = [one.__name__ for one in kept if one.__module__ != "transformers.cache_utils"]
    return ", ".join(own) if len(own) == len(kept) else ""


_MODELS: Final = (
    f"give a language model, an encoder-decoder, or a step of your own, see trt_runtime.TextGenerator; of others {LOOP}"
)

_AT_POSITIONS: Final = 2
_POSITIONED: Final = tuple((f"{name}_length", "position_ids") for name in CACHES)
"""What tables of positions of the kind of BART's take beside tokens."""


class CrossCachedStep(CachedStep):
    """The decoder of an encoder-decoder with static caches, as a step of `TextGenerator`.

    It is given keys and values of each layer's cross attention, and before them the mask of what they are of, if there
    is one: of a text, or what the encoder made of that of features.

    Args:
        model: The model.
        limits: Rows and lengths of the caches.
        example: What its encoder takes, of one row, by name.
        cache_dtype: Type of codes of keys and values of tokens; None for the model's type.

    Attributes:
        crossed: Shapes of keys and values of each layer's cross attention, of the example.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        limits: GenerationLimits,
        example: Mapping[str, torch.Tensor],
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self._example = dict(example)
        self.crossed: list[tuple[int, ...]] = []
        self._repeats_mask = False
        self._width = 1
        super().__init__(model, limits, cache_dtype)

    def _require(self, parameters: Mapping[str, Any]) -> None:
        names = ("decoder_input_ids", "decoder_attention_mask", "encoder_outputs")
        lacking = [name for name in names if name not in parameters]
        lacking += [] if name_of_caches(parameters) else CACHES[:1]
        if lacking:
            raise cannot(self.model, f"its forward takes no {', '.join(lacking)}")

    @property
    def _reads_text(self) -> bool:
        return "input_ids" in self._example

    def _text_mask(self, mask: torch.Tensor, count: int) -> torch.Tensor:
        """Returns which tokens of a text, (rows, length), are looked at: (rows, 1, 1, length), or a row for each."""
        taken = self._as_attention_takes_it(mask[:, None, None])
        return taken.expand(-1, -1, count, -1) if self._repeats_mask else taken

    def _find_form(self) -> None:
        """Decoders count the places of their caches."""

    def require_own_scores(self, encoder: nn.Module) -> None:
        """Holds scores of tokens after the example to those of the model with caches that grow.

        Some models want a row of the text's mask for each token that is read at once (LED), others take one for all.

        Args:
            encoder: What gives the step keys and values of the example.

        Raises:
            InputError: They differ, or cannot be computed.
        """
        rows, count = self.limits.max_batch, min(4, self._length)
        model: Any = self.model
        head: Any = model.get_output_embeddings()
        ids = torch.arange(rows * count, device=model.device).view(rows, count) % len(getattr(head, "weight", (0, 0)))
        given = {name: value.expand(rows, *value.shape[1:]) for name, value in self._example.items()}
        mask = given.get("attention_mask")
        found, failure = None, None
        with torch.no_grad():
            own = cross_cache()  # as its own `generate` calls it
            for token in ids.split(1, 1):
                result = model(**given, decoder_input_ids=token, use_cache=True, **{self._caches_as: own})
            expected = result.logits[:, -1].float()
            made = encoder(*given.values())
            context = (mask.bool(), *made) if mask is not None and self._reads_text else made
            for self._repeats_mask in (False, True):
                try:
                    found = self._in_pieces(ids, torch.zeros_like(ids[:, 0]), context).float()
                    break
                except Exception as error:
                    failure = error
        if found is None:
            raise cannot(model, "its decoder does not run with a static cache", LOOP, failure)
        apart, scale = float((found - expected).norm()), float(expected.norm())
        if not apart <= self._error() * scale:
            raise cannot(
                model,
                f"the scores of its decoder with {self._kind_of_cache()} are not those with one that grows: they are "
                f"{apart / scale:.2g} of their norm apart",
                self._hint(),
            )

    def _probe(self) -> list[Any]:
        cache = cross_cache()
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        try:
            with torch.no_grad():
                model: Any = self.model
                given = {**self._example, "decoder_input_ids": token, self._caches_as: cache}
                result = model(**given, use_cache=True)
                scores = result.logits
                self._width = result.encoder_last_hidden_state.shape[-1]
        except Exception as error:
            raise cannot(self.model, "it does not run with a cache", _MODELS, error) from error
        for layer in checked_layers(self.model, scores, cache.cross_attention_cache):
            self.crossed += [tuple(layer.keys.shape), tuple(layer.values.shape)]
        return checked_layers(self.model, scores, cache.self_attention_cache)

    def _scores(
        self,
        input_ids: torch.Tensor,
        places: torch.Tensor,
        padding: torch.Tensor,
        caches: Any,
        kept: torch.Tensor | int,
        context: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        from transformers import EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        texts, crossed = context[: -len(self.crossed)], context[-len(self.crossed) :]
        cache, layer = cache_classes()
        pairs = zip(crossed[::2], crossed[1::2], strict=True)
        both = EncoderDecoderCache(caches, cache(layers=[layer(keys, values) for keys, values in pairs]))
        held: Any = crossed[0].new_zeros(len(input_ids), crossed[0].shape[2], self._width)
        unread: Any = BaseModelOutput(held)  # only its extents are asked for
        unread.attention_mask = None  # which encoders of some models return, too
        mask = self._text_mask(texts[0], input_ids.shape[1]) if texts else None
        named = {"attention_mask": mask} if mask is not None and self._reads_text else {}
        told = mask if not self._reads_text else None
        positions = _told_positions(self.model, places), _sines_at(self.model, places)
        with _head_of(self.model, kept), positions[0], positions[1], _told_source_mask(self.model, told):
            result = self.model(
                decoder_input_ids=input_ids,
                decoder_attention_mask=self._mask(places, padding, places),
                encoder_outputs=unread,
                use_cache=True,
                **{self._caches_as: both},
                **named,
            )
        logits: torch.Tensor = result.logits
        return logits


_SOURCE_MASK: Final = "encoder_attention_mask"
"""What decoders are given the mask of their source as."""


def _told_source_mask(model: Any, mask: torch.Tensor | None) -> contextlib.AbstractContextManager[Any]:
    """Gives a decoder the mask of its source, which its model makes of one of features."""
    return contextlib.nullcontext() if mask is None else _told(_reader_of_sources(model), _SOURCE_MASK, mask)


def source_mask_to(model: Any, masks: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Keeps the mask that a decoder is given of its source, (rows, length)."""

    def keep(_: nn.Module, __: tuple[Any, ...], named: dict[str, Any]) -> None:
        if named.get(_SOURCE_MASK) is not None:
            masks.append(named[_SOURCE_MASK])

    return _reader_of_sources(model).register_forward_pre_hook(keep, with_kwargs=True)


def _reader_of_sources(model: Any) -> nn.Module:
    """Returns the part of an encoder-decoder that is called with the mask of its source."""
    decoder: nn.Module = model.get_decoder()
    return next((part for name, part in model.named_modules() if name.rpartition(".")[2] == "decoder"), decoder)


class PictureStep(CachedStep):
    """A model of text and pictures or sounds as a step of `TextGenerator`, which is given the table of features."""

    def __init__(
        self,
        model: PreTrainedModel,
        limits: GenerationLimits,
        source: SourceLimits,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self._ahead, self._vocabulary = source.ahead, source.vocabulary
        super().__init__(model, limits, cache_dtype)

    def _layout(
        self, places: torch.Tensor, padding: torch.Tensor, context: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        last, positions, _ = super()._layout(places, padding, context)
        if len(context) == 1:
            return last, positions, None
        planes = context[1].index_select(2, places)
        return (planes[0], positions, context[1][0]) if self._ahead else (last, planes, None)

    def _find_form(self) -> None:
        """Models of text and pictures or sounds take positions."""

    def _scores(
        self,
        input_ids: torch.Tensor,
        places: torch.Tensor,
        padding: torch.Tensor,
        caches: Any,
        kept: torch.Tensor | int,
        context: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        width = self.model.get_input_embeddings().embedding_dim
        if context[0].shape[1] == width:
            return super()._scores(input_ids, places, padding, caches, kept, context)
        is_picture = (input_ids >= self._vocabulary)[..., None]
        deeper = self._rows(input_ids, context[0]).masked_fill(~is_picture, 0)[..., width:].split(width, -1)
        with _added(self.model.get_decoder().layers, deeper):
            return super()._scores(input_ids, places, padding, caches, kept, context)

    def _rows(self, input_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table[(input_ids - self._vocabulary).clamp(min=0)]

    def _embedded(self, input_ids: torch.Tensor, context: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        is_picture = input_ids >= self._vocabulary
        words = self.model.get_input_embeddings()(input_ids.masked_fill(is_picture, 0))
        rows = self._rows(input_ids, context[0])[..., : words.shape[-1]]
        return {"inputs_embeds": torch.where(is_picture[..., None], rows, words)}
