"""Compiles a language model for generating text: one step, with its caches, for prefill and decoding."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import Input, InputError, logger
from trt_core.device import on_host
from trt_core.settings_reader import warn_caller
from trt_core.wording import kind_of
from trt_frontends.accuracy.subject import without_wrapper
from trt_frontends.compiler import compile
from trt_frontends.entry_point import entry_point
from trt_frontends.generation.caches import CODES_ERROR, FORM_ERROR, MOST_CODE
from trt_frontends.generation.encoders import CrossEncoder, PictureEncoder, SoundEncoder, ignores_mask
from trt_frontends.generation.messages import (
    COMPILED,
    LOOKING_ASIDE,
    LOOP_OF_A_PART,
    WRITING_SOUNDS,
    cannot,
    note_own_loop,
)
from trt_frontends.generation.sources import (
    IMAGE_TOKENS,
    LOOKING_AHEAD,
    SIZED,
    SOUND_MODELS,
    SOURCES,
    as_input,
    crossed_input,
    in_rows,
    lengths_beside,
    of_rows,
    one_size,
    picture_inputs,
    read_source_inputs,
    shape_of_pictures,
    shape_of_sounds,
    sound_inputs,
    varying_input,
)
from trt_frontends.generation.steps import CachedStep, CrossCachedStep, PictureStep, decoder_of, writer_of
from trt_frontends.pipeline import Progress, no_progress, settings_in
from trt_frontends.stored_layers import open_stored_layers
from trt_runtime.generation import GenerationLimits, SourceLimits, TextGenerator
from trt_runtime.generation.inputs import MASK, TOKEN_TYPES, required_tokens
from trt_runtime.generation.options import not_done
from trt_runtime.token_choice import RULE_OPTIONS, TokenChoice, TokenRules

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords


_PREFILL_CHUNK: Final = 512
"""Most tokens of a row that one call of a step takes, unless told otherwise."""

_FIRST_TOKENS: Final = 8
"""The same of encoder-decoders, whose texts begin with few."""


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
    of weights; with `refit=True` it has one profile for both, and `refit_module_weights` gives it other weights. Keys
    and values of all tokens so far are kept in static caches, `(max_batch, heads, max_length, width)` each, which are
    buffers of the result; layers that look back a window keep little more than the window. An encoder, of text, sounds
    or pictures, is a program beside it that runs once for each call of `generate`.

    Args:
        model: A causal language model, an encoder-decoder, or a model of text and pictures or sounds of transformers;
            or a module of your own that is a step as `TextGenerator` describes it, with caches among its buffers. It is
            compiled in evaluation mode.
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
        InputError: The model keeps no keys and values that can be kept in static caches, or has no numbers for its
            weights, or a number does not fit, or no memory holds such caches, or the model's scores with caches of
            codes are far from those that it has without.
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
    if cache_dtype is not None and cache_dtype not in MOST_CODE:
        raise InputError(
            f"caches hold codes in {' or '.join(map(str, MOST_CODE))}, not {cache_dtype!r:.80}",
            where="cache_dtype",
            hint="leave it out for caches in the model's type",
        )
    refit = settings_in(settings).refit
    if isinstance(unwrapped := without_wrapper(model), nn.Module):
        model = unwrapped
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InputError(
            f"weights of {type(model).__name__} are on the meta device, which holds no numbers",
            where="model",
            hint="load them first, with from_pretrained, say",
        )
    _require_usual_loop(model)
    is_seq2seq = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    chunk = min(prefill_chunk or (_FIRST_TOKENS if is_seq2seq else _PREFILL_CHUNK), max_length)
    if assisted_tokens > chunk:
        raise InputError(
            f"assisted_tokens={assisted_tokens} are more than the {chunk} that are read at once",
            hint="give a larger prefill_chunk, or fewer assisted_tokens",
        )
    told = writer_of(model)
    ends, pad = _special_tokens(told, eos_token_id, pad_token_id)
    limits = GenerationLimits(
        *(max_batch, max_length, chunk, ends, pad, assisted_tokens, _rules(told)),
        choice=_choice(told),
        vocabulary=_vocabulary(decoder_of(model) if is_seq2seq else model),
    )
    # open layers run where kernels of libraries do not
    with _in_evaluation(model), open_stored_layers(model) as opened, on_host():
        with _enough_memory(limits):
            parts = _parts(opened, limits, max_source_length or max_length, source_inputs, cache_dtype)
        run = functools.partial(compile, progress=progress, registry=registry, **settings)
        encoder = None if parts.encoder is None else run(parts.encoder, arg_inputs=parts.encoder_inputs)
        inputs = parts.step_inputs(in_one_profile=refit)  # TensorRT refits engines of one profile only
        return TextGenerator(run(parts.step, arg_inputs=inputs), parts.limits, encoder)


@contextlib.contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Has a model in evaluation mode, and each part back in its own mode afterwards."""
    trained = [module for module in model.modules() if module.training]
    if trained:
        warn_caller("the model is in training mode, and is compiled without dropout; call model.eval() first")
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


@contextlib.contextmanager
def _enough_memory(limits: GenerationLimits) -> Iterator[None]:
    """Says which numbers make caches that no memory holds.

    Raises:
        InputError: Memory could not be allocated.
    """
    try:
        yield
    except (RuntimeError, MemoryError, InputError) as error:
        causes = (error, error.__cause__)
        if not any(
            isinstance(cause, (torch.OutOfMemoryError, MemoryError)) or _OUT_OF_MEMORY in str(cause) for cause in causes
        ):
            raise
        raise InputError(
            f"there is no memory for caches of {limits.max_length} tokens of {limits.max_batch} rows",
            where="max_length" if limits.max_batch == 1 else "max_length and max_batch",
            hint="give smaller numbers, or cache_dtype=torch.int8",
        ) from error


_OUT_OF_MEMORY: Final = "DefaultCPUAllocator"
"""What PyTorch says where there is none on the CPU, in a RuntimeError."""


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

    def step_inputs(self, *, in_one_profile: bool = False) -> list[Input]:
        """Returns what the step takes.

        Args:
            in_one_profile: One range holds all numbers of tokens; else one token is the first profile, and more the
                second one.
        """
        limits = self.limits
        batch, chunk = limits.max_batch, limits.prefill_chunk
        varying = functools.partial(_varying, in_one_profile=in_one_profile, dtype=torch.int64)
        inputs = [
            varying((batch, 1), (batch, chunk), name="input_ids") if chunk > 1 else _fixed(batch, 1),
            _fixed(1),
            _fixed(batch),
        ]
        if (most := limits.assisted_tokens) > 1:
            # examples are places of any piece, a single token included
            inputs.append(varying((1,), (most,), name="kept", tensor_domain=(0, 1)))
        return [*inputs, *self.context]


def _varying(least: tuple[int, ...], most: tuple[int, ...], *, in_one_profile: bool, **others: Any) -> Input:
    if in_one_profile:
        return Input(min_shape=least, opt_shape=least, max_shape=most, **others)
    return Input(profiles=[(least,) * 3, (least, most, most)], **others)


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
    if source_inputs and (hasattr(model, "get_image_features") or config.model_type in SOUND_MODELS):
        return _with_pictures(model, limits, source_inputs, cache_dtype)
    if source_inputs:
        raise cannot(model, f"it is not known how it reads {', '.join(source_inputs)} beside text", SOURCES)
    note_own_loop(model)
    step = CachedStep(model, limits, cache_dtype).eval()
    return GenerationParts(step, step.limits)


def _require_usual_loop(model: nn.Module) -> None:
    """Holds a model to texts that follow from tokens before them, one of a row at a time.

    Raises:
        InputError: It is of a kind that writes something else, or reads something else in between; the message says
            what to compile.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind in LOOKING_ASIDE:
        raise cannot(
            model,
            "some of its layers look at pictures instead of the text, with keys and values that no cache of tokens has",
            COMPILED.format("model.forward"),
        )
    for parts, kinds in WRITING_SOUNDS.items():
        if kind in kinds:
            raise cannot(
                model,
                "it writes codes of sounds, in a loop of its own, and no text",
                COMPILED.format(parts)
                + (", and those of model.coarse_acoustics and model.fine_acoustics" if kind == "bark" else ""),
            )


def _encoder_decoder(
    model: Any,
    limits: GenerationLimits,
    max_source_length: int,
    source_inputs: Mapping[str, Any] | None,
    cache_dtype: torch.dtype | None,
) -> GenerationParts:
    if hasattr(model, "get_image_features"):
        raise cannot(model, "its encoder reads pictures among text, and encoders here read one of them", LOOP_OF_A_PART)
    start, rows = _first_token(model), limits.max_batch
    if model.main_input_name == "input_ids":
        if source_inputs:
            raise InputError(f"the encoder of {type(model).__name__} reads text", hint="give no source_inputs")
        longest = max_source_length
        kinds = {"input_ids": torch.int64, "attention_mask": torch.bool}
        inputs = tuple(varying_input((rows, -1), longest, dtype, name) for name, dtype in kinds.items())
        names, example = (
            tuple(kinds),
            {name: torch.ones(1, 2, dtype=torch.int64, device=model.device) for name in kinds},
        )
    else:
        longest, given = 0, read_source_inputs(model, source_inputs)
        inputs = tuple(of_rows(rows, item, name) for name, item in given.items())
        names, example = tuple(given), {name: item.example(device=model.device)[:1] for name, item in given.items()}
        example |= {name: torch.ones_like(value) for name, value in example.items() if name == MASK}
    step = CrossCachedStep(model, limits, example, cache_dtype).eval()
    crossed = [crossed_input(rows, shape, longest, model.dtype) for shape in step.crossed]
    encoder = CrossEncoder(model, names).eval()
    masks = [] if longest else _masks_of(encoder, rows, example)
    context = (*(inputs[1:] if longest else masks), *crossed)
    known = _vocabulary(model.get_encoder()) if longest else 0  # a text and its source may have two
    ignores = not longest and MASK not in names and ignores_mask(model, example)
    limits = replace(limits, source=SourceLimits(names, longest, start, vocabulary=known, ignores_mask=ignores))
    step.require_own_scores(encoder)
    return GenerationParts(step, limits, context, encoder, inputs)


def _masks_of(encoder: CrossEncoder, rows: int, example: Mapping[str, torch.Tensor]) -> list[Input]:
    """Returns what the step is given beside keys and values of features: a mask, or nothing."""
    with torch.no_grad():
        first = encoder(*example.values())[0]
    return [Input((rows, first.shape[1]), dtype=torch.bool)] if first.dtype is torch.bool else []


def _first_token(model: Any) -> int:
    for configured in (getattr(model, "generation_config", None), model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if (token := getattr(configured, name, None)) is not None:
                return int(token)
    raise cannot(model, "its configuration names no decoder_start_token_id")


def _with_pictures(
    model: Any, limits: GenerationLimits, source_inputs: Mapping[str, Any], cache_dtype: torch.dtype | None
) -> GenerationParts:
    source_inputs, told = dict(source_inputs), {}
    if (counts := source_inputs.pop("batch_num_images", None)) is not None and bool(
        (torch.as_tensor(counts, device="cpu") > 1).any()
    ):
        told = {"batch_num_images": [2] * len(source_inputs.get("image_sizes", ()))}  # several in a prompt: no tiles
    kind = model.config.model_type
    names = (sound_inputs if kind in SOUND_MODELS else picture_inputs)(model, source_inputs)
    items = {name: as_input(source_inputs[name]) for name in names if name not in SIZED}
    sizes = [size for name in names if name in SIZED for size in one_size(source_inputs[name], name)]
    ahead = LOOKING_AHEAD.get(kind, "")
    item = items.pop(names[0])
    shape = shape_of_sounds(item) if kind in SOUND_MODELS else shape_of_pictures(item, sizes)
    beside = lengths_beside(items, shape[0])
    try:
        encoder = (SoundEncoder(model) if kind in SOUND_MODELS else PictureEncoder(model, sizes, told)).eval()
        with torch.no_grad():
            whole = [torch.ones(shape[0], length, dtype=torch.int64, device=model.device) for length in beside]
            features, *filling = encoder(torch.zeros(shape, dtype=model.dtype, device=model.device), *whole)
    except Exception as error:
        raise cannot(model, "its features of pictures or sounds cannot be computed", cause=error) from error
    if features.dim() != 3 or len(features) != shape[0]:
        raise cannot(model, f"its features of {shape[0]} pictures or sounds have shape {tuple(features.shape)}")
    config = model.config
    token = next(getattr(config, name) for name in IMAGE_TOKENS if getattr(config, name, None) is not None)
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
    step = PictureStep(writer_of(model), replace(limits, source=source), source, cache_dtype).eval()
    limits = step.limits
    _require_own_scores(model, TextGenerator(step, replace(limits, rules=TokenRules()), encoder), shape, told)
    taken = [Input(shape, dtype=model.dtype, name=names[0])]
    pairs = zip(items, beside, strict=True)
    taken += [Input((shape[0], length), dtype=torch.int64, name=name, tensor_domain=(0, 1)) for name, length in pairs]
    return GenerationParts(step, limits, tuple(context), encoder, tuple(taken))


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
            row = given.unflatten(0, (rows, each)) if in_rows(model) else given
            asked: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, source.inputs[0]: row, **named, **more}
            how = {"num_beams": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
            own.append(model.generate(**asked, **how, max_new_tokens=1).logits[0].float())
        ours: dict[str, Any] = {source.inputs[0]: pictures[0], **named}
        generator.generate(ids, mask, max_new_tokens=1, logits_processor=[keep], **ours)
    except Exception as error:
        raise cannot(model, "scores after a picture cannot be compared with its own", SOURCES, error) from error
    for cache in step.buffers(recurse=False):  # a table of the model may have as many rows
        cache.zero_()
    expected, other = own
    rounding = min(torch.finfo(model.dtype).eps ** 0.5, FORM_ERROR) if step._codes is None else CODES_ERROR
    apart, meant = float((found[0] - expected).norm()), float((other - expected).norm())
    scale = float(expected.norm())
    if not apart <= max(FORM_ERROR * meant, rounding * scale):
        raise cannot(
            model,
            f"its scores after a picture are not those of its own generate: they are {apart / scale:.2g} of their norm "
            f"apart, and other pictures change them by {meant / scale:.2g}",
            SOURCES,
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
