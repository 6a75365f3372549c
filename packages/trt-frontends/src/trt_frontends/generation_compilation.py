"""Compiles a language model for generating text: one step, with its caches, for prefill and decoding."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import Input, InputError, logger
from trt_core.device import on_host
from trt_core.wording import kind_of
from trt_frontends.compiler import compile
from trt_frontends.entry_point import entry_point
from trt_frontends.pipeline import Progress, no_progress
from trt_frontends.stored_layers import open_stored_layers
from trt_runtime.generation import (
    MASK,
    SOUNDS,
    SOURCE_STEP,
    TOKEN_TYPES,
    GenerationLimits,
    SourceLimits,
    TextGenerator,
    not_done,
    required_tokens,
)
from trt_runtime.token_choice import RULE_OPTIONS, TokenChoice, TokenRules

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords

_PREFILL_CHUNK: Final = 512
"""Most tokens of a row that one call of a step takes, unless told otherwise."""

_FIRST_TOKENS: Final = 8
"""The same of encoder-decoders, whose texts begin with few."""

_CHOOSING: Final = ("deepseek_sparse_attention", "indexed_attention")
"""Layers that look at the places whose keys of an indexer score highest; those keys are cached beside the others.

Newer releases of transformers have the second name.
"""

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_KINDS_WITH_STATES: Final = ("conv", "linear_attention", "hybrid", "moe", "mlp")
"""Kinds of layers that keep states of convolutions and recurrences, beside keys and values or alone, or nothing."""

_FORM_ERROR: Final = 0.1
"""Share of scores up to which those with and without a cache differ by rounding, in bfloat16 and other experts too."""


_CODES_ERROR: Final = 0.25
"""The same where caches hold codes."""

_MOST_CODE: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Types of codes of keys and values, and the largest code of each."""

_NOISE: Final = 100.0
"""Magnitude of noise in caches, to be seen beside scores of a model whose weights are small."""


@entry_point
def compile_generation(
    model: nn.Module,
    *,
    max_length: int,
    max_batch: int = 1,
    prefill_chunk: int | None = None,
    max_source_length: int | None = None,
    source_inputs: Mapping[str, Any] | None = None,
    assisted_tokens: int = 1,
    cache_dtype: torch.dtype | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> TextGenerator:
    """Compiles a model for generating text.

    One engine has two optimization profiles, one token for decoding and up to `prefill_chunk` for prompts, and one set
    of weights. Keys and values of all tokens so far are kept in static caches, `(max_batch, heads, max_length, width)`
    each, which are buffers of the result; layers that look back a window keep little more than the window. An
    encoder, of text, sounds or pictures, is a program beside it that runs once for each call of `generate`.

    Args:
        model: A causal language model, an encoder-decoder, or a model of text and pictures or sounds of transformers,
            in evaluation mode; or a module of your own that is a step as `TextGenerator` describes it, with caches
            among its buffers.
        max_length: Most tokens of a row, those of the prompt included.
        max_batch: Rows that are generated at once; fewer are filled up.
        prefill_chunk: Most tokens of a prompt that are read at once, 512 by default, and 8 for encoder-decoders; longer
            prompts are read in pieces.
        max_source_length: Most tokens of a row of the text that an encoder reads; `max_length` by default.
        source_inputs: What an encoder takes that reads no text, as tensors or `Input`s by name: the `pixel_values` that
            the model's processor makes, or `input_features` and what it says of them. Encoder-decoders of speech whose
            features have one size need none.
        assisted_tokens: Most tokens that are scored at once, above 1 for `generate` to take guesses.
        cache_dtype: `torch.int8` or `torch.float8_e4m3fn`: keys and values are kept as codes, with a scale of the
            model's type for each token and head; None for the model's type. States of recurrences, and keys and values
            of a source, stay in the model's type.
        eos_token_id, pad_token_id: What ends a row, and what fills it up; by default those of the model's generation
            configuration.
        progress, registry, settings: As for `compile`.

    Returns:
        What generates; `save` writes it to one file, which `trt_runtime.TextGenerator.load` reads without
        transformers.

    Raises:
        InputError: The model keeps no keys and values that can be kept in static caches, or a number does not fit, or
            the model's scores with caches of codes are far from those that it has without.
        ExportError, SettingsError, BuildError, IncompleteCompilationError: See `compile`.

    Example:
        >>> generator = compile_generation(model, max_length=1024)  # doctest: +SKIP
        >>> generator.generate(tokenizer(text, return_tensors="pt").input_ids, max_new_tokens=64)  # doctest: +SKIP
    """
    numbers = {
        "max_length": max_length,
        "max_batch": max_batch,
        "prefill_chunk": prefill_chunk,
        "max_source_length": max_source_length,
        "assisted_tokens": assisted_tokens,
    }
    for name, value in numbers.items():
        if value is not None and (type(value) is not int or not 1 <= value < 2**31):
            raise InputError(f"{name} is a whole number from 1 to 2^31 - 1, not {value!r}")
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a module, not {kind_of(model)}")
    if cache_dtype is not None and cache_dtype not in _MOST_CODE:
        raise InputError(
            f"caches hold codes in {' or '.join(map(str, _MOST_CODE))}, not {cache_dtype!r:.80}",
            where="cache_dtype",
            hint="leave it out for caches in the model's type",
        )
    _require_usual_loop(model)
    is_seq2seq = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    chunk = min(prefill_chunk or (_FIRST_TOKENS if is_seq2seq else _PREFILL_CHUNK), max_length)
    if assisted_tokens > chunk:
        raise InputError(
            f"assisted_tokens={assisted_tokens} are more than the {chunk} that are read at once",
            hint="give a larger prefill_chunk, or fewer assisted_tokens",
        )
    told = _writer_of(model)
    ends, pad = _special_tokens(told, eos_token_id, pad_token_id)
    limits = GenerationLimits(
        *(max_batch, max_length, chunk, ends, pad, assisted_tokens, _rules(told)),
        choice=_choice(told),
        vocabulary=_vocabulary(_decoder_of(model) if is_seq2seq else model),
    )
    with open_stored_layers(model) as opened, on_host():  # which runs where kernels of libraries do not
        parts = _parts(opened, limits, max_source_length or max_length, source_inputs, cache_dtype)
        run = functools.partial(compile, progress=progress, registry=registry, **settings)
        encoder = None if parts.encoder is None else run(parts.encoder, arg_inputs=parts.encoder_inputs)
        return TextGenerator(run(parts.step, arg_inputs=parts.step_inputs()), parts.limits, encoder)


@dataclass(frozen=True)
class GenerationParts:
    """What a generator is made of, before it is compiled.

    Attributes:
        step: What `TextGenerator` calls.
        limits: What it is made for.
        context: What the encoder gives to each call of the step, in its order.
        encoder: What runs once; None for nothing.
        encoder_inputs: What it takes.
    """

    step: nn.Module
    limits: GenerationLimits
    context: tuple[Input, ...] = ()
    encoder: nn.Module | None = None
    encoder_inputs: tuple[Input, ...] = ()

    def step_inputs(self) -> list[Input]:
        """Returns what the step takes: one token in the first profile, and more in the second one."""
        limits = self.limits
        batch, chunk = limits.max_batch, limits.prefill_chunk
        single = ((batch, 1),) * 3
        ids = [single, ((batch, 1), (batch, chunk), (batch, chunk))]
        inputs = [
            Input(profiles=ids, dtype=torch.int64, name="input_ids") if chunk > 1 else _fixed(batch, 1),
            _fixed(1),
            _fixed(batch),
        ]
        if (most := limits.assisted_tokens) > 1:
            kept = [((1,),) * 3, ((1,), (most,), (most,))]
            # examples are places of any piece, a single token included
            inputs.append(Input(profiles=kept, dtype=torch.int64, name="kept", tensor_domain=(0, 1)))
        return [*inputs, *self.context]


def _fixed(*shape: int) -> Input:
    return Input(shape, dtype=torch.int64)


def _vocabulary(model: Any) -> int:
    """How many tokens a model's embedding holds; 0 where it is none that says so."""
    try:
        table = getattr(model.get_input_embeddings(), "num_embeddings", 0)
    except (AttributeError, NotImplementedError):
        return 0
    return table if type(table) is int else 0


def _special_tokens(
    model: nn.Module, eos_token_id: int | Sequence[int] | None, pad_token_id: int | None
) -> tuple[tuple[int, ...], int]:
    """Returns the tokens that end a row, and the one that fills it up."""
    configured = getattr(model, "generation_config", None)
    if eos_token_id is None:
        eos_token_id = getattr(configured, "eos_token_id", None)
    if pad_token_id is None:
        pad_token_id = getattr(configured, "pad_token_id", None)
    ends = () if eos_token_id is None else required_tokens(eos_token_id, "eos_token_id")
    return ends, pad_token_id if pad_token_id is not None else ends[0] if ends else 0


def _rules(model: nn.Module) -> TokenRules:
    """Returns what a model's configuration says of tokens that may or must come; a note names what else it says."""
    configured = getattr(model, "generation_config", None)
    if configured is None:
        return TokenRules()
    left = [name for name in _SAID_IN_CALLS if getattr(configured, name, None) not in (None, False, 1)]
    if left := [*left, *not_done(configured)]:
        logger.warning(
            "%s asks for %s when it generates, which is left to the caller: give num_beams, do_sample, "
            "decoder_input_ids, stopping_criteria or logits_processor to generate",
            type(model).__name__,
            ", ".join(left),
        )
    return TokenRules().told({name: getattr(configured, name, None) for name in RULE_OPTIONS})


def _choice(model: nn.Module) -> TokenChoice:
    """Returns the numbers of a model's configuration by which tokens are chosen, as its own `generate` reads them."""
    configured = getattr(model, "generation_config", None)
    if configured is None:
        return TokenChoice()
    given = {field.name: getattr(configured, field.name, None) for field in fields(TokenChoice)}
    if given["min_new_tokens"] is not None:
        given["min_length"] = None
    return TokenChoice(**{"top_k": _TOP_K, **{name: value for name, value in given.items() if value is not None}})


_TOP_K: Final = 50
"""What transformers draws from where a configuration says nothing."""

_SAID_IN_CALLS: Final = ("num_beams", "do_sample", "num_return_sequences", "prompt_lookup_num_tokens")
"""What a configuration says of the way to generate, which `generate` is told in each call."""


def _parts(
    model: Any,
    limits: GenerationLimits,
    max_source_length: int,
    source_inputs: Mapping[str, Any] | None,
    cache_dtype: torch.dtype | None = None,
) -> GenerationParts:
    """Returns what a model is compiled as.

    Raises:
        InputError: It cannot be.
    """
    config = getattr(model, "config", None)
    if config is None and cache_dtype is not None:
        raise InputError(
            f"{type(model).__name__} is a step of your own, whose caches are its buffers",
            where="cache_dtype",
            hint="leave it out, and keep codes and scales in the step's buffers",
        )
    if config is None:
        return GenerationParts(model, limits)  # a step already
    if getattr(config, "is_encoder_decoder", False):
        return _encoder_decoder(model, limits, max_source_length, source_inputs, cache_dtype)
    if source_inputs and (hasattr(model, "get_image_features") or config.model_type in _SOUNDS):
        return _with_pictures(model, limits, source_inputs, cache_dtype)
    if source_inputs:
        raise _cannot(model, f"it is not known how it reads {', '.join(source_inputs)} beside text", _SOURCES)
    _note_own_loop(model)
    step = CachedStep(model, limits, cache_dtype).eval()
    return GenerationParts(step, step.limits)


def _writer_of(model: Any) -> Any:
    """Returns the part of a model whose `generate` makes the tokens: a language model inside of it (BLIP-2), or all."""
    if not isinstance(getattr(model, "language_model", None), nn.Module):
        return model
    taken = inspect.signature(model.forward).parameters
    return model if _name_of_caches(taken) or _STATES in taken else model.language_model


def _require_usual_loop(model: nn.Module) -> None:
    """Holds a model to texts that follow from tokens before them, one of a row at a time.

    Raises:
        InputError: It is of a kind that writes something else, or reads something else in between; the message says
            what to compile.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind in _LOOKING_ASIDE:
        raise _cannot(
            model,
            "some of its layers look at pictures instead of the text, with keys and values that no cache of tokens has",
            _COMPILED.format("model.forward"),
        )
    for parts, kinds in _WRITING_SOUNDS.items():
        if kind in kinds:
            raise _cannot(
                model,
                "it writes codes of sounds, in a loop of its own, and no text",
                _COMPILED.format(parts)
                + (", and those of model.coarse_acoustics and model.fine_acoustics" if kind == "bark" else ""),
            )


_LOOKING_ASIDE: Final = ("mllama", "idefics")
_WRITING_SOUNDS: Final = {
    "model.semantic.forward": ("bark",),
    "model.decoder.forward": ("musicgen", "musicgen_melody"),
    "model.forward": ("semantic", "coarse_acoustics", "fine_acoustics", "musicgen_decoder", "musicgen_melody_decoder"),
}
"""Kinds of models that write sounds, by what of them is compiled."""

_COMPILED: Final = 'torch.compile({}, backend="torch_tensorrt") runs in the model\'s own generate'


def _note_own_loop(model: Any) -> None:
    """Warns of a model that generates in a loop of its own, of which its scores alone are compiled."""
    from transformers import GenerationMixin

    own = getattr(type(model), "generate", GenerationMixin.generate)
    if own is GenerationMixin.generate:
        return
    usual = {*inspect.signature(GenerationMixin.generate).parameters, "input_ids", "attention_mask"}
    more = [name for name in inspect.signature(own).parameters if name not in usual]
    logger.warning(
        "%s generates in a loop of its own%s: what is compiled continues tokens by its scores alone, and makes no "
        "prompts of anything else",
        type(model).__name__,
        f", which takes {', '.join(more)}" if more else "",
    )


def _cannot(model: Any, why: str, hint: str = "", cause: BaseException | None = None) -> InputError:
    """Returns the refusal of a model, which names the part of it that raised a `cause`, and has that as its cause."""
    if cause is not None:
        why += _raised_by(model, cause)
    refused = InputError(f"{type(model).__name__} cannot be compiled for generating text", why=why, hint=hint)
    refused.__cause__ = cause
    return refused


def _raised_by(model: nn.Module, error: BaseException) -> str:
    """Says which part of a model an exception came out of; its own words are of somebody's line, not of the model."""
    known = {id(module): name for name, module in model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [owner for owner in owners if known.get(id(owner)) and not type(owner).__module__.startswith("torch.")]
    return f": its {type(inside[-1]).__name__} ({known[id(inside[-1])]}) fails" if inside else ""


_LOOP: Final = (
    'torch.compile(model.forward, backend="torch_tensorrt") runs in the loop of transformers, whose caches grow'
)

_LOOP_OF_A_PART: Final = (
    f"{_LOOP}; where the model calls generate of a part of it, as BLIP-2 of its language_model, "
    "give the forward of that part"
)


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
        _require_known_layers(model)
        self._caches_as = _name_of_caches(parameters) or _STATES
        self._takes_places = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._masks_places = self._knows_length = False
        self._require_positions()
        layers = self._probe()
        kept = [layer for layer in layers if _has_keys(layer)]
        self._window = _window(model, kept)
        self._chunk = _chunk(model)
        self._slides_all = all(layer.is_sliding for layer in kept)
        self._lengths = [self._kept_length(layer) if _has_keys(layer) else None for layer in layers]
        self._states = [_states_of(layer) for layer in layers]
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
            raise _cannot(
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
        if _name_of_caches(parameters) is None and _STATES not in parameters:
            lacking.append(_CACHES[0])
        if lacking:
            instead = [name for name in _OTHER_STATE if name in parameters]
            hint = _SOURCES if _writer_of(self.model) is not self.model else _MODELS
            raise _cannot(
                self.model,
                f"its forward takes no {', '.join(lacking)}"
                + (f": it keeps state in {', '.join(instead)}, not keys and values" if instead else ""),
                hint,
            )
        name = _name_of_caches(parameters) or _STATES
        if own := _class_of_its_own(parameters[name].annotation):
            raise _cannot(self.model, f"it keeps what it has read in a class of its own, {own}, as {name}", _MODELS)

    def _require_positions(self) -> None:
        """Holds caches to a table of positions, which rotary models have none of, and engines do not look beyond.

        Raises:
            InputError: They are longer.
        """
        config: Any = self.model.config.get_text_config(decoder=True)
        said = {getattr(config, name, None) for name in ("max_position_embeddings", "max_target_positions")}
        decoder: Any = _decoder_of(self.model)
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
        raise _cannot(
            self.model,
            f"its scores with {self._kind_of_cache()} are not those that it has without"
            + (f": they are {min(apart):.2g} of their norm apart" if apart else "")
            + ("" if self._takes_positions else ", and it takes no position_ids"),
            self._hint(),
            cause=failure,
        )

    def _error(self) -> float:
        """Share of scores up to which those with and without a cache differ by rounding."""
        return _FORM_ERROR if self._codes is None else _CODES_ERROR

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
                    cache.normal_(std=_NOISE, generator=noise)
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
            raise _cannot(self.model, "it gives no logits for tokens alone", _MODELS, error) from error
        try:
            cache = StaticCache(self.model.config, max_cache_len=self._length)
            with torch.no_grad():
                scores = self.model(input_ids=token, **{self._caches_as: cache}, use_cache=True).logits
            apart = float((first - same).abs().max())
            if self._ahead != "prompts" and apart > torch.finfo(scores.dtype).eps ** 0.5 * float(first.abs().max()):
                raise _cannot(
                    self.model,
                    "its scores of a token follow from later tokens, too: it fills gaps in a text, and continues none",
                    "give a model that looks back alone; some of transformers do with `is_decoder=True` in config.json",
                )
            return _checked_layers(self.model, scores, cache)
        except InputError:
            raise
        except Exception as error:
            raise _cannot(self.model, "it does not run with a static cache", _LOOP, error) from error

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
            for (kind, at), state in (_states_of(layer) if self._states[index] else {}).items():
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
            if kind == _CHUNKED and window is not None:
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
            return [(_FULL, None, self._length), (_CHUNKED, self._chunk, self._length)]
        if self._window is None:
            return [(_FULL, None, self._length)]
        sliding = (_SLIDING, self._window, shortest)
        return [sliding] if self._slides_all else [(_FULL, None, self._length), sliding]

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
        cache, layer = _cache_classes()
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
                _layer_with_states(states, keys, values, told, written, scales)
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
    if not isinstance(masks, dict):
        return contextlib.nullcontext()

    def tell(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, {**named, "attention_mask": masks}

    return _decoder_of(model).register_forward_pre_hook(tell, with_kwargs=True)


def _decoder_of(model: Any) -> nn.Module:
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

    def tell(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        is_told = len(given) > _AT_POSITIONS or named.get("position_ids") is not None
        return given, named if is_told else {**named, "position_ids": places}

    decoder = model.get_decoder()
    tables = [module for module in decoder.modules() if isinstance(module, nn.Embedding)]
    with contextlib.ExitStack() as hooks:
        if "position_ids" in inspect.signature(decoder.forward).parameters:
            hooks.enter_context(decoder.register_forward_pre_hook(_with_positions(places[None]), with_kwargs=True))
        for table in tables:
            if tuple(inspect.signature(table.forward).parameters)[1 : _AT_POSITIONS + 1] in _POSITIONED:
                hooks.enter_context(table.register_forward_pre_hook(tell, with_kwargs=True))
        yield


def _with_positions(places: torch.Tensor) -> Callable[..., Any]:
    def tell(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, named if named.get("position_ids") is not None else {**named, "position_ids": places}

    return tell


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
        for table in _decoder_of(model).modules():
            if hasattr(table, "weights") and _COUNTED in inspect.signature(table.forward).parameters:
                hooks.enter_context(table.register_forward_pre_hook(begin, with_kwargs=True))
                hooks.enter_context(table.register_forward_hook(look_up, with_kwargs=True))
        yield


_COUNTED: Final = "past_key_values_length"


_CACHES: Final = ("past_key_values", "cache")
"""What models are given caches as; newer releases of transformers have the second name."""

_STATES: Final = "cache_params"
"""What models of older releases are given states alone as (Mamba)."""

_OTHER_STATE: Final = ("state", "mems", "cache")
"""What models of recurrent state are given it as that is no cache: RWKV, XLNet, XLM."""


def _name_of_caches(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Under which of its parameters a model is given caches; None where it takes none, or a dict of its own (XLM)."""
    found = [name for name in _CACHES if name in parameters and "dict" not in str(parameters[name].annotation)]
    return found[0] if found else None


def _class_of_its_own(annotation: Any) -> str:
    """Returns the name of what a model keeps state in that is no cache of transformers; "" where it is one."""
    named = [one for one in typing.get_args(annotation) or (annotation,) if isinstance(one, type)]
    kept = [one for one in named if one.__name__.endswith("Cache")]
    own = [one.__name__ for one in kept if one.__module__ != "transformers.cache_utils"]
    return ", ".join(own) if len(own) == len(kept) else ""


_MODELS: Final = (
    "give a language model, an encoder-decoder, or a step of your own, see trt_runtime.TextGenerator; of others "
    f"{_LOOP}"
)


_AT_POSITIONS: Final = 2
_POSITIONED: Final = tuple((f"{name}_length", "position_ids") for name in _CACHES)
"""What tables of positions of the kind of BART's take beside tokens."""


def _checked_layers(model: Any, scores: torch.Tensor, cache: Any) -> list[Any]:
    """Returns the layers of a cache.

    Raises:
        InputError: They hold something else than keys and values.
    """
    layers: list[Any] = list(cache.layers)
    if not layers or scores.dim() != 3:
        raise _cannot(model, "it keeps no keys and values, which static caches are made of")
    for index, layer in enumerate(layers):
        if not _has_keys(layer) and not hasattr(layer, "recurrent_states"):
            held = type(layer).__name__
            is_empty = getattr(layer, "keys", None) is None and hasattr(layer, "keys")
            why = "is of something else than tokens" if is_empty else f"keeps the state of {held}"
            raise _cannot(model, f"layer {index} {why}, not keys and values of tokens", _LOOP)
    return layers


def _has_keys(layer: Any) -> bool:
    """Whether a layer of a cache has been given keys and values of four axes."""
    found = [getattr(layer, name, None) for name in ("keys", "values")]
    return all(isinstance(tensor, torch.Tensor) and tensor.dim() == 4 for tensor in found)


_KINDS_OF_STATES: Final = ("conv_states", "recurrent_states")


def _states_of(layer: Any) -> dict[tuple[str, int], torch.Tensor]:
    """Returns the states of convolutions and recurrences that a layer of a cache holds, by kind and number."""
    held = {kind: getattr(layer, kind, None) or {} for kind in _KINDS_OF_STATES}
    return {(kind, at): state for kind, of in held.items() for at, state in of.items() if state is not None}


def _require_known_layers(model: PreTrainedModel) -> None:
    """Holds a model to layers whose keys, values and states are known.

    Raises:
        InputError: There is a kind of layer that looks back in another way.
    """
    config: Any = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {_FULL, _SLIDING, _CHUNKED, *_CHOOSING, *_KINDS_WITH_STATES}:
        raise _cannot(
            model,
            f"it has layers of kind {', '.join(sorted(unknown))}, which no static cache of keys and values serves",
        )


def _window(model: PreTrainedModel, layers: Sequence[Any]) -> int | None:
    """Returns how far layers look back that do not look back all the way; None where there are none."""
    config: Any = model.config.get_text_config(decoder=True)
    window: int | None = getattr(config, "sliding_window", None)
    is_cut = _chunk(model) is not None
    return window if any(layer.is_sliding for layer in layers) and not is_cut else None


def _chunk(model: PreTrainedModel) -> int | None:
    """How many tokens see each other in layers that cut a text into chunks (Llama 4); None where there are none."""
    config: Any = model.config.get_text_config(decoder=True)
    is_cut = _CHUNKED in (getattr(config, "layer_types", None) or ())
    return int(config.attention_chunk_size) if is_cut else None


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
        lacking += [] if _name_of_caches(parameters) else _CACHES[:1]
        if lacking:
            raise _cannot(self.model, f"its forward takes no {', '.join(lacking)}")

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
            own = _cross_cache()  # as its own `generate` calls it
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
            raise _cannot(model, "its decoder does not run with a static cache", _LOOP, failure)
        apart, scale = float((found - expected).norm()), float(expected.norm())
        if not apart <= self._error() * scale:
            raise _cannot(
                model,
                f"the scores of its decoder with {self._kind_of_cache()} are not those with one that grows: they are "
                f"{apart / scale:.2g} of their norm apart",
                self._hint(),
            )

    def _probe(self) -> list[Any]:
        cache = _cross_cache()
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
        try:
            with torch.no_grad():
                model: Any = self.model
                given = {**self._example, "decoder_input_ids": token, self._caches_as: cache}
                result = model(**given, use_cache=True)
                scores = result.logits
                self._width = result.encoder_last_hidden_state.shape[-1]
        except Exception as error:
            raise _cannot(self.model, "it does not run with a cache", _MODELS, error) from error
        for layer in _checked_layers(self.model, scores, cache.cross_attention_cache):
            self.crossed += [tuple(layer.keys.shape), tuple(layer.values.shape)]
        return _checked_layers(self.model, scores, cache.self_attention_cache)

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
        cache, layer = _cache_classes()
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


class CrossEncoder(nn.Module):
    """The encoder of an encoder-decoder, up to the keys and values that the decoder looks at.

    Args:
        model: The model.
        names: What it takes, by name.
    """

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._names = tuple(names)
        self._caches_as = _name_of_caches(inspect.signature(model.forward).parameters) or _CACHES[0]

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns keys and values of each layer's cross attention, (rows, heads, length, width) each.

        Where features are given with a mask that the decoder looks at, too, that goes before: (rows, length) bool.

        Args:
            given: What the encoder takes: (rows, length) int64 tokens and (rows, length) bool mask, or features.
        """
        token = torch.zeros(len(given[0]), 1, dtype=torch.int64, device=given[0].device)
        cache = _cross_cache()
        taken = [value.to(torch.int64) if value.dtype is torch.bool else value for value in given]  # as tokenizers do
        named = zip((*self._names, self._caches_as), (*taken, cache), strict=True)
        masks: list[torch.Tensor] = []
        with _source_mask_to(self.model, masks):
            self.model(**dict(named), decoder_input_ids=token)
        layers = cache.cross_attention_cache.layers
        made = tuple(tensor for layer in layers for tensor in (layer.keys, layer.values))
        return made if "input_ids" in self._names or not masks else (masks[0] != 0, *made)


_SOURCE_MASK: Final = "encoder_attention_mask"
"""What decoders are given the mask of their source as."""


def _told_source_mask(model: Any, mask: torch.Tensor | None) -> contextlib.AbstractContextManager[Any]:
    """Gives a decoder the mask of its source, which its model makes of one of features."""
    if mask is None:
        return contextlib.nullcontext()

    def tell(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, {**named, _SOURCE_MASK: mask}

    return _reader_of_sources(model).register_forward_pre_hook(tell, with_kwargs=True)


def _source_mask_to(model: Any, masks: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Keeps the mask that a decoder is given of its source, (rows, length)."""

    def keep(_: nn.Module, __: tuple[Any, ...], named: dict[str, Any]) -> None:
        if named.get(_SOURCE_MASK) is not None:
            masks.append(named[_SOURCE_MASK])

    return _reader_of_sources(model).register_forward_pre_hook(keep, with_kwargs=True)


def _reader_of_sources(model: Any) -> nn.Module:
    """Returns the part of an encoder-decoder that is called with the mask of its source."""
    decoder: nn.Module = model.get_decoder()
    return next((part for name, part in model.named_modules() if name.rpartition(".")[2] == "decoder"), decoder)


def _cross_cache() -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    return EncoderDecoderCache(DynamicCache(), DynamicCache())


def _encoder_decoder(
    model: Any,
    limits: GenerationLimits,
    max_source_length: int,
    source_inputs: Mapping[str, Any] | None,
    cache_dtype: torch.dtype | None,
) -> GenerationParts:
    if hasattr(model, "get_image_features"):
        raise _cannot(
            model, "its encoder reads pictures among text, and encoders here read one of them", _LOOP_OF_A_PART
        )
    start, rows = _first_token(model), limits.max_batch
    if model.main_input_name == "input_ids":
        if source_inputs:
            raise InputError(f"the encoder of {type(model).__name__} reads text", hint="give no source_inputs")
        longest = max_source_length
        kinds = {"input_ids": torch.int64, "attention_mask": torch.bool}
        inputs = tuple(_varying((rows, -1), longest, dtype, name) for name, dtype in kinds.items())
        names, example = (
            tuple(kinds),
            {name: torch.ones(1, 2, dtype=torch.int64, device=model.device) for name in kinds},
        )
    else:
        longest, given = 0, _source_inputs(model, source_inputs)
        inputs = tuple(_of_rows(rows, item, name) for name, item in given.items())
        names, example = tuple(given), {name: item.example(device=model.device)[:1] for name, item in given.items()}
        example |= {name: torch.ones_like(value) for name, value in example.items() if name == MASK}
    step = CrossCachedStep(model, limits, example, cache_dtype).eval()
    crossed = [_crossed(rows, shape, longest, model.dtype) for shape in step.crossed]
    encoder = CrossEncoder(model, names).eval()
    masks = [] if longest else _masks_of(encoder, rows, example)
    context = (*(inputs[1:] if longest else masks), *crossed)
    known = _vocabulary(model.get_encoder()) if longest else 0  # a text and its source may have two
    ignores = not longest and MASK not in names and _ignores_mask(model, example)
    limits = replace(limits, source=SourceLimits(names, longest, start, vocabulary=known, ignores_mask=ignores))
    step.require_own_scores(encoder)
    return GenerationParts(step, limits, context, encoder, inputs)


def _masks_of(encoder: CrossEncoder, rows: int, example: Mapping[str, torch.Tensor]) -> list[Input]:
    """Returns what the step is given beside keys and values of features: a mask, or nothing."""
    with torch.no_grad():
        first = encoder(*example.values())[0]
    return [Input((rows, first.shape[1]), dtype=torch.bool)] if first.dtype is torch.bool else []


def _ignores_mask(model: Any, example: Mapping[str, torch.Tensor]) -> bool:
    """Whether a mask of features changes no score, as of Whisper, which has an argument for one."""
    (features, *others) = example.values()
    token = torch.zeros(1, 1, dtype=torch.int64, device=features.device)
    mask = torch.ones(1, features.shape[-1], dtype=torch.int64, device=features.device)
    mask[:, features.shape[-1] // 2 :] = 0
    if others or features.dim() != 3:
        return False
    try:
        with torch.no_grad():
            whole = model(**example, decoder_input_ids=token).logits
            return torch.equal(whole, model(**example, decoder_input_ids=token, attention_mask=mask).logits)
    except Exception:  # it takes no mask, or one of other extents, and so reads it
        return False


def _first_token(model: Any) -> int:
    for configured in (getattr(model, "generation_config", None), model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if (token := getattr(configured, name, None)) is not None:
                return int(token)
    raise _cannot(model, "its configuration names no decoder_start_token_id")


def _crossed(rows: int, shape: tuple[int, ...], longest: int, dtype: torch.dtype) -> Input:
    _, heads, length, width = shape
    return _varying((rows, heads, -1 if longest else length, width), longest, dtype)


def _varying(shape: tuple[int, ...], longest: int, dtype: torch.dtype, name: str = "") -> Input:
    """An input with an axis, -1, that is as long as a text may be."""
    shortest = min(SOURCE_STEP, longest)
    least, most = (tuple(extent if axis < 0 else axis for axis in shape) for extent in (shortest, longest))
    if least == most:
        return Input(least, dtype=dtype, name=name)
    named = {shape.index(-1): "source"}
    return Input(min_shape=least, opt_shape=most, max_shape=most, dtype=dtype, name=name, dimensions=named)


def _source_inputs(model: Any, given: Mapping[str, Any] | None) -> dict[str, Input]:
    """Returns what an encoder takes that reads no text.

    Raises:
        InputError: It was not said, and does not follow from the configuration.
    """
    if given:
        read = {name: _as_input(item) for name, item in given.items()}
        unknown = [name for name in read if name not in inspect.signature(model.forward).parameters]
        if unknown:
            raise InputError(f"{type(model).__name__} takes no {', '.join(unknown)}", where="source_inputs")
        return read
    config = model.config
    bins, places = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if model.main_input_name != "input_features" or bins is None or places is None:
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}, whose size its configuration does not say",
            where="source_inputs",
            hint=f'give an example: source_inputs={{"{model.main_input_name}": tensor}}',
        )
    return {"input_features": Input((1, bins, 2 * places), dtype=model.dtype, name="input_features")}


def _of_rows(rows: int, item: Input, name: str) -> Input:
    if item.is_dynamic:
        raise InputError(f"what the encoder takes has one size, not a range of them: {item}", where="source_inputs")
    dtype = torch.bool if name == MASK else item.dtype  # processors make masks of any type
    return Input((rows, *item.opt_shape[1:]), dtype=dtype, name=item.name)


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


class PictureEncoder(nn.Module):
    """What makes rows of features of pictures: (n, channels, height, width) to (n, rows, width).

    What is added after the first layers of text (deep stacks) follows in the same rows.

    Args:
        model: The model.
        sizes: What it is told of each picture's size; nothing for models whose pictures have one.
        told: What else it is told of them.
    """

    def __init__(
        self, model: PreTrainedModel, sizes: Sequence[tuple[int, ...]] = (), told: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self._sizes, self._told = list(sizes), dict(told or {})
        self._lengths: dict[str, Any] = {}
        tower = getattr(getattr(model, "model", model), "visual", None)
        if tower is not None:
            self._lay_out(tower, torch.tensor(self._sizes, device=model.device))

    def _lay_out(self, tower: Any, grid: torch.Tensor) -> None:
        """Computes what follows from sizes alone, so that no graph does."""
        from transformers import vision_utils

        merged = tower.spatial_merge_size
        self.register_buffer("position_ids", vision_utils.get_vision_position_ids(grid, merged), persistent=False)
        # arrays, since attention asks for the numbers in them
        self._lengths = {"cu_seqlens": vision_utils.get_vision_cu_seqlens(grid).numpy(force=True)}
        if hasattr(tower, "num_grid_per_side"):
            table = {"num_grid_per_side": tower.num_grid_per_side, "mode": tower.interpolation_mode}
            table |= {"align_corners": tower.interpolation_align_corners, "spatial_merge_size": merged}
            places, weights = vision_utils.get_vision_interpolation_indices_and_weights(grid, **table)
            self.register_buffer("interp_indices", places, persistent=False)
            self.register_buffer("interp_weights", weights, persistent=False)
        if hasattr(tower, "window_size"):
            sizes = {"window_size": tower.window_size, "patch_size": tower.patch_size}
            order, lengths = vision_utils.get_vision_window_index(grid, merged, **sizes)
            self.register_buffer("window_index", order.to(grid.device), persistent=False)
            self._lengths["cu_window_seqlens"] = lengths.numpy(force=True)

    def forward(self, pixel_values: torch.Tensor, *beside: torch.Tensor) -> tuple[torch.Tensor]:
        """Returns the features.

        Args:
            pixel_values: (n, channels, height, width), or (n, tiles, channels, height, width), or
                (n, patches, values), of the model's type.
            beside: What else is said of each picture, (n, length) int64.
        """
        inner: Any = getattr(self.model, "model", self.model)
        found: Any = self.model
        if hasattr(inner, "visual"):
            known = {**self._lengths, **dict(self.named_buffers(recurse=False))}
            found = inner.visual(pixel_values.flatten(0, 1), grid_thw=None, **known)
            features = torch.cat([found.pooler_output, *(getattr(found, "deepstack_features", None) or ())], -1)
            return (features.unflatten(0, (len(pixel_values), -1)),)
        if _in_rows(self.model):  # its own way also drops empty pictures
            patch = self.model.config.vision_config.patch_size
            count, _, height, width = pixel_values.shape
            whole = torch.ones(count, height // patch, width // patch, dtype=torch.bool, device=pixel_values.device)
            seen = inner.vision_model(pixel_values=pixel_values, patch_attention_mask=whole).last_hidden_state
            takes_mask = "attention_mask" in inspect.signature(inner.connector.forward).parameters
            features = inner.connector(seen, **({"attention_mask": whole.flatten(1)} if takes_mask else {}))
        elif (tower := _pixtral_tower(inner)) is not None:
            features = self._of_pixtral(inner, tower, pixel_values)
        else:
            sizes = {"image_sizes": self._sizes} if self._sizes else {}
            also = dict(zip(_BESIDE.get(self.model.config.model_type, ()), beside, strict=True))
            found = found.get_image_features(pixel_values=pixel_values, **sizes, **self._told, **also)
            features = getattr(found, "pooler_output", found)
        if isinstance(features, (list, tuple)):
            features = torch.stack(tuple(features))
        return (features,)

    def _of_pixtral(self, inner: Any, tower: Any, pictures: torch.Tensor) -> torch.Tensor:
        """Returns features of a batch, whose own way is one row of all pictures under a mask that keeps them apart."""
        rows, columns = (extent // tower.patch_size for extent in (self._sizes or [pictures.shape[2:]])[0])
        patches = tower.patch_conv(pictures)[..., :rows, :columns]
        places = torch.cartesian_prod(*(torch.arange(count, device=pictures.device) for count in (rows, columns)))
        states = [tower.ln_pre(patches.flatten(2).mT)]
        turned = tower.patch_positional_embedding(states[0], places)
        for layer in tower.transformer.layers:
            states.append(layer(states[-1], None, position_embeddings=turned))
        config = self.model.config
        layers = getattr(config, "vision_feature_layer", -1)
        seen = torch.cat([states[layer] for layer in ([layers] if isinstance(layers, int) else layers)], -1)
        if getattr(config, "vision_feature_select_strategy", "") == "default":
            seen = seen[:, 1:]
        project = inner.vision_projection if hasattr(inner, "vision_projection") else inner.multi_modal_projector
        given = (seen.flatten(0, 1), self._sizes) if self._sizes else (seen,)
        features: torch.Tensor = project(*given)
        return features.reshape(len(pictures), -1, features.shape[-1])


def _pixtral_tower(inner: Any) -> Any:
    """Returns a model's tower of Pixtral; None where it has another one."""
    towers = (getattr(inner, name, None) for name in ("vision_tower", "vision_encoder"))
    return next((tower for tower in towers if hasattr(tower, "patch_positional_embedding")), None)


class SoundEncoder(nn.Module):
    """What makes rows of features of sounds: (n, bins, frames) to (n, rows, width).

    Args:
        model: The model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_features: torch.Tensor, *masks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the features, and which of the rows each sound fills, (n, rows) bool, where a mask says so.

        Args:
            input_features: (n, bins, frames), of the model's type.
            masks: Which of the frames are the sound, (n, frames) int64, where the model is told.
        """
        inner: Any = self.model.model
        tower, rows = inner.audio_tower, len(input_features)
        if not masks:
            packed: torch.Tensor = inner.get_audio_features(input_features).pooler_output
            return (packed.unflatten(0, (rows, -1)),)
        heard = (masks[0].sum(-1) - 1) // 2 + 1  # of a convolution of 3 with steps of 2
        kind = self.model.config.model_type
        if kind == "glmasr":
            seen = tower(input_features).last_hidden_state
            seen = seen.reshape(rows, -1, self.model.config.audio_config.intermediate_size)
            filled = (heard - _MERGED) // _MERGED + 1
        else:
            filled = (heard - 2) // 2 + 1  # of a mean of each two
            seen = (
                tower(input_features, attention_mask=self._mask(tower, heard)).last_hidden_state
                if kind == "qwen2_audio"
                else tower(input_features, input_features_mask=masks[0]).last_hidden_state
            )
        features = inner.multi_modal_projector(seen)
        return features, torch.arange(features.shape[1], device=filled.device) < filled[:, None]

    def _mask(self, tower: Any, heard: torch.Tensor) -> Any:
        """Returns which frames a tower attends to, as its attention takes it."""
        from transformers.masking_utils import create_bidirectional_mask

        frames = tower.config.max_source_positions
        real = torch.arange(frames, device=heard.device) < heard[:, None]
        held = torch.zeros(*real.shape, 1, dtype=self.model.dtype, device=heard.device)
        return create_bidirectional_mask(config=tower.config, inputs_embeds=held, attention_mask=real.long())


_MERGED: Final = 4
"""Frames that GLM-ASR makes one row of."""


def _with_pictures(
    model: Any, limits: GenerationLimits, source_inputs: Mapping[str, Any], cache_dtype: torch.dtype | None
) -> GenerationParts:
    source_inputs, told = dict(source_inputs), {}
    if (counts := source_inputs.pop("batch_num_images", None)) is not None and bool(
        (torch.as_tensor(counts, device="cpu") > 1).any()
    ):
        told = {"batch_num_images": [2] * len(source_inputs.get("image_sizes", ()))}  # several in a prompt: no tiles
    kind = model.config.model_type
    names = (_sound_inputs if kind in _SOUNDS else _picture_inputs)(model, source_inputs)
    items = {name: _as_input(source_inputs[name]) for name in names if name not in _SIZED}
    sizes = [size for name in names if name in _SIZED for size in _one_size(source_inputs[name], name)]
    ahead = _LOOKING_AHEAD.get(kind, "")
    item = items.pop(names[0])
    shape = _shape_of_sounds(item) if kind in _SOUNDS else _shape_of_pictures(item, sizes)
    beside = _lengths_beside(items, shape[0])
    try:
        encoder = (SoundEncoder(model) if kind in _SOUNDS else PictureEncoder(model, sizes, told)).eval()
        with torch.no_grad():
            whole = [torch.ones(shape[0], length, dtype=torch.int64, device=model.device) for length in beside]
            features, *filling = encoder(torch.zeros(shape, dtype=model.dtype, device=model.device), *whole)
    except Exception as error:
        raise _cannot(model, "its features of pictures or sounds cannot be computed", cause=error) from error
    if features.dim() != 3 or len(features) != shape[0]:
        raise _cannot(model, f"its features of {shape[0]} pictures or sounds have shape {tuple(features.shape)}")
    config = model.config
    token = next(getattr(config, name) for name in _IMAGE_TOKENS if getattr(config, name, None) is not None)
    vocabulary = max(model.get_input_embeddings().num_embeddings, token + 1)
    rows, (_, filled, width) = limits.max_batch * limits.max_length, features.shape
    if ahead and filled > limits.prefill_chunk:
        raise InputError(
            f"a picture has {filled} places that look at each other, and {limits.prefill_chunk} are read at once",
            where="prefill_chunk",
            hint=f"give prefill_chunk={filled} or more, and a max_length that holds it",
        )
    source = SourceLimits(names, 0, None, token, vocabulary, rows, width, shape[0], filled, ahead=ahead)
    source = replace(source, beside=beside, counts=bool(filling))
    context = [Input((rows, width), dtype=model.dtype)]
    if sizes:
        source = replace(source, size=sizes[0])
    if "image_grid_thw" in names:
        merged = config.vision_config.spatial_merge_size
        source = replace(source, grid=tuple(extent // merged for extent in sizes[0][1:]))
    if source.ahead or source.grid:
        context.append(_fixed(3 if source.grid else 1, limits.max_batch, limits.max_length))
    step = PictureStep(_writer_of(model), replace(limits, source=source), source, cache_dtype).eval()
    limits = step.limits
    _require_own_scores(model, TextGenerator(step, replace(limits, rules=TokenRules()), encoder), shape, told)
    taken = [Input(shape, dtype=model.dtype, name=names[0])]
    pairs = zip(items, beside, strict=True)
    taken += [Input((shape[0], length), dtype=torch.int64, name=name, tensor_domain=(0, 1)) for name, length in pairs]
    return GenerationParts(step, limits, tuple(context), encoder, tuple(taken))


def _as_input(given: Any) -> Input:
    return given if isinstance(given, Input) else Input.from_tensor(given)


def _require_own_scores(model: Any, generator: TextGenerator, shape: Sequence[int], told: Mapping[str, Any]) -> None:
    """Holds scores after prompts with pictures of noise to those of the model's own `generate`.

    Args:
        model: The model.
        generator: What its step and encoder make, before they are compiled.
        shape: Shape of pictures that the encoder takes.
        told: What else the encoder was told; with something, each prompt has two pictures.

    Raises:
        InputError: They differ by more than rounding and a tenth of what other pictures would change.
    """
    source: Any = generator.limits.source
    step: Any = generator.step
    each, rows = 2 if told else 1, min(2, generator.limits.max_batch)
    beside = [torch.ones(rows * each, length, dtype=torch.int64, device=model.device) for length in source.beside]
    for said in beside[-1:]:  # a mask, which is shorter in the second row
        said[1:, said.shape[1] * 2 // 3 :] = 0
    filled = [source.picture_rows * each] * rows
    if source.counts:
        sounds = torch.zeros(tuple(shape), dtype=model.dtype, device=model.device)
        filled = [_filled_rows(generator.encoder, sounds, mask) for mask in beside[-1]]
    ids, mask = _prompts_with_pictures(model, generator.limits, filled)
    draw = torch.Generator().manual_seed(0)
    pictures = torch.randn(2, rows * each, *shape[1:], generator=draw, device="cpu").to(model.device, model.dtype)
    sized = source.inputs[1:2] if source.size else ()
    named = {name: torch.tensor([source.size] * rows * each, device=model.device) for name in sized}
    named |= dict(zip(source.inputs[len(source.inputs) - len(beside) :], beside, strict=True))
    types = (ids == source.image_token_id).long() * (source.ahead != "prompts")
    more = {name: types for name in TOKEN_TYPES if name in inspect.signature(model.forward).parameters}
    more |= {name: torch.tensor([each] * rows, device=model.device) for name in told}
    own: list[torch.Tensor] = []
    found: list[torch.Tensor] = []

    def keep(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        found.append(scores)
        return scores

    if source.grid:
        pictures = pictures.flatten(1, 2)
    try:
        for given in pictures:
            row = given.unflatten(0, (rows, each)) if _in_rows(model) else given
            asked: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, source.inputs[0]: row, **named, **more}
            how = {"num_beams": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
            own.append(model.generate(**asked, **how, max_new_tokens=1).logits[0].float())
        ours: dict[str, Any] = {source.inputs[0]: pictures[0], **named}
        generator.generate(ids, mask, max_new_tokens=1, logits_processor=[keep], **ours)
    except Exception as error:
        raise _cannot(model, "scores after a picture cannot be compared with its own", _SOURCES, error) from error
    for cache in step.buffers(recurse=False):  # a table of the model may have as many rows
        cache.zero_()
    expected, other = own
    rounding = min(torch.finfo(model.dtype).eps ** 0.5, _FORM_ERROR) if step._codes is None else _CODES_ERROR
    apart, meant = float((found[0] - expected).norm()), float((other - expected).norm())
    scale = float(expected.norm())
    if not apart <= max(_FORM_ERROR * meant, rounding * scale):
        raise _cannot(
            model,
            f"its scores after a picture are not those of its own generate: they are {apart / scale:.2g} of their norm "
            f"apart, and other pictures change them by {meant / scale:.2g}",
            _SOURCES,
        )


def _filled_rows(encoder: Any, sounds: torch.Tensor, mask: torch.Tensor) -> int:
    """Returns how many rows of features a sound fills that has a mask, (frames,) int64."""
    with torch.no_grad():
        return int(encoder(sounds, mask.expand(len(sounds), -1))[1][0].sum())


def _prompts_with_pictures(
    model: Any, limits: GenerationLimits, filled: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns prompts with pictures that fill so many places of each row, of which one is padding in the second.

    Their mask follows, (rows, length) int64 as they are.

    Raises:
        InputError: The caches do not hold a picture.
    """
    source: Any = limits.source
    largest, rows = max(filled), len(filled)
    most = min(limits.max_length, limits.prefill_chunk) if source.ahead else limits.max_length
    if largest > most:
        raise InputError(
            f"a picture or sound has {source.picture_rows} places, and the caches hold {limits.max_length} for a row",
            where="max_length",
            hint=f"give max_length={largest + 1} or more, with room for text",
        )
    length = min(largest + 5, most)
    ids = torch.arange(1, rows * length + 1, device=model.device).view(rows, length)
    ids %= model.get_input_embeddings().num_embeddings - 1
    ids += ids == source.image_token_id
    begin = (length - largest + 1) // 2
    for row, count in zip(ids, filled, strict=True):
        row[begin : begin + count] = source.image_token_id
    mask = torch.ones_like(ids)
    mask[1:, : min(begin, 1)] = 0
    return ids, mask


def _in_rows(model: Any) -> bool:
    """Whether a model is given pictures in a row for each prompt, as Idefics are."""
    inner = getattr(model, "model", model)
    return hasattr(inner, "connector") and hasattr(inner, "vision_model")


def _shape_of_pictures(item: Input, sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the shape of pictures one after the other.

    Raises:
        InputError: They are something else, or as many as their sizes are not.
    """
    count, shape = len(sizes), item.opt_shape
    if item.is_dynamic or len(shape) not in ((2, 4, 5) if sizes else (4, 5)) or (count and shape[0] % count):
        raise InputError(
            f"pictures have one size, (n, channels, height, width), not {item}"
            + (f", for {count} sizes" if sizes else ""),
            where="source_inputs['pixel_values']",
        )
    if not sizes:
        return (math.prod(shape[:-3]), *shape[-3:])
    return shape if len(shape) > 2 else (count, shape[0] // count, shape[1])


def _shape_of_sounds(item: Input) -> tuple[int, ...]:
    """Returns the shape of features of sounds.

    Raises:
        InputError: They are something else.
    """
    if item.is_dynamic or len(item.opt_shape) != 3:
        raise InputError(f"sounds have one size, (n, bins, frames), not {item}", where=f"source_inputs['{SOUNDS}']")
    return item.opt_shape


def _lengths_beside(items: Mapping[str, Input], count: int) -> tuple[int, ...]:
    """Returns the lengths of what is said of so many pictures or sounds.

    Raises:
        InputError: It is something else than a row for each.
    """
    for name, item in items.items():
        if item.is_dynamic or len(item.opt_shape) != 2 or item.opt_shape[0] != count:
            raise InputError(f"{name} has one size, ({count}, length), not {item}", where=f"source_inputs['{name}']")
    return tuple(item.opt_shape[1] for item in items.values())


def _one_size(sizes: Any, name: str) -> list[tuple[int, ...]]:
    """Returns what is said of the size of each picture.

    Raises:
        InputError: They differ.
    """
    read = [tuple(size) for size in sizes.tolist()] if isinstance(sizes, torch.Tensor) and sizes.dim() == 2 else []
    if len(set(read)) != 1 or (name == "image_grid_thw" and read[0][0] != 1):
        raise InputError(
            f"pictures have one size, not {read}" if read else f"{name} is a tensor of the sizes of pictures",
            where=f"source_inputs['{name}']",
            hint="give what the processor makes of pictures of one size",
        )
    return read


_IMAGE_TOKENS: Final = ("image_token_id", "image_token_index", "audio_token_id")
_LOOKING_AHEAD: Final = {"gemma3": "pictures", "paligemma": "prompts"}
_SIZED: Final = {
    "image_sizes": ("llava_next", "llava_next_video", "llava_onevision", "mistral3", "lighton_ocr"),
    "image_grid_thw": ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
}
"""What says how large pictures are, and models that features and positions of such are computed for."""

_BESIDE: Final = {"instructblip": ("qformer_input_ids", "qformer_attention_mask")}
"""What models are told beside each picture."""

_SOUNDS: Final = {
    "voxtral": (),
    "qwen2_audio": ("feature_attention_mask",),
    "audioflamingo3": ("input_features_mask",),
    "glmasr": ("input_features_mask",),
}
"""Models of text and sounds, and what they are given the mask of features as."""


def _sound_inputs(model: Any, source_inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of what sounds are given as.

    Raises:
        InputError: It takes something else; the message names it.
    """
    names = (SOUNDS, *_SOUNDS[model.config.model_type])
    if set(source_inputs) != set(names):
        raise InputError(
            f"sounds are given as {' and '.join(names)}, not as {', '.join(source_inputs)}", where="source_inputs"
        )
    return names


def _picture_inputs(model: Any, source_inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of what pictures are given as, of models that can be compiled.

    Raises:
        InputError: It takes something else; the message names it.
    """
    kind = model.config.model_type
    taken = inspect.signature(model.get_image_features).parameters
    names = ("pixel_values", *(name for name, kinds in _SIZED.items() if name in taken and kind in kinds))
    names += _BESIDE.get(kind, ())
    needed = [name for name, item in taken.items() if item.default is item.empty and item.kind is not item.VAR_KEYWORD]
    if more := [name for name in dict.fromkeys((*needed, *_SIZED)) if name in taken and name not in names]:
        raise _cannot(model, f"its features of pictures follow from {', '.join(more)}, too", _SOURCES)
    if set(source_inputs) != set(names):
        raise InputError(
            f"pictures are given as {' and '.join(names)}, not as {', '.join(source_inputs)}", where="source_inputs"
        )
    told = set(TOKEN_TYPES) & set(inspect.signature(model.forward).parameters)
    if told and kind not in (*_LOOKING_AHEAD, *_SIZED["image_grid_thw"]):
        raise _cannot(model, "its tokens look ahead in a way that is not known", _SOURCES)
    if not any(getattr(model.config, name, None) is not None for name in _IMAGE_TOKENS):
        raise _cannot(model, f"its configuration has no {_IMAGE_TOKENS[0]}", _SOURCES)
    return names


_SOURCES: Final = (
    "LLaVA, LLaVA-NeXT, LLaVA-OneVision, InternVL, Idefics 2 and 3, SmolVLM, Gemma 3, PaliGemma, Mistral 3, "
    "LightOnOCR, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, BLIP-2 and InstructBLIP are compiled with "
    "pictures, Qwen2-Audio, Voxtral, Audio Flamingo 3 and GLM-ASR with sounds; without source_inputs a model continues "
    f"text; of others {_LOOP_OF_A_PART}"
)


@functools.cache
def _cache_classes() -> tuple[Any, Any]:
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
    most = _MOST_CODE[codes.dtype]
    scale = (rows.abs().amax(-1, keepdim=True) / most).clamp(min=torch.finfo(rows.dtype).tiny)
    shares = (rows.float() / scale.float()).clamp(-most, most)
    # PyTorch has no `index_copy_` of float8 on CPUs
    codes[:, :, places] = (shares if codes.dtype.is_floating_point else shares.round()).to(codes.dtype)
    scales.index_copy_(2, places, scale)
    return codes.to(rows.dtype) * scales


def _layer_with_states(states: Mapping[tuple[str, int], torch.Tensor], *held: Any) -> Any:
    """Returns a layer of a cache that holds states; each is written to where it is.

    Args:
        states: The states, as `_states_of` has them.
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
    with_keys: Any = _cache_classes()[1]

    class Both(base, with_keys):  # type: ignore[misc]
        def __init__(self, *held: Any) -> None:
            base.__init__(self)
            with_keys.__init__(self, *held)

        def lazy_initialization(self, *_: Any, **__: Any) -> None:
            pass

    return base, Both
