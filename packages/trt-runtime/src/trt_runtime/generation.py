"""Generates text with a compiled step: prefill in chunks, one token a step, greedy or sampled, on the step's device.

A step computes the logits that follow a piece of every row's text, and keeps keys and values of all earlier pieces in
caches of its own. What is here calls it in a loop; it knows tokens, and nothing of what the step is made of.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, Protocol

import torch
from torch import fx, nn

from trt_core.attributes import is_state
from trt_core.cached_property import cached_property
from trt_core.device import CAPTURING, capture
from trt_core.errors import ExecutionError, InputError, PlanError
from trt_core.files import records, typed
from trt_core.files.records import Form, Grown
from trt_core.files.strict_json import parse_json
from trt_core.forked_lock import ForkedLock
from trt_core.held_arguments import held_to_signature
from trt_core.wording import kind_of
from trt_runtime.isolation.isolated_program import IsolatedProgram
from trt_runtime.program.interface import DynamicSize, TensorSpec, notebook_html
from trt_runtime.program.loaded_program import LoadedProgram, captured_from
from trt_runtime.program.loading import LoadKeywords, load_with
from trt_runtime.program.saving import save_with
from trt_runtime.token_choice import RULE_OPTIONS, BeamOptions, Beams, TokenChoice, TokenRules, likeliest, read_tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

METADATA: Final = "generation"
"""Name of the entry of a saved program's metadata that says what its step takes."""

_STEPS: Final = 8
"""Steps between two looks at whether all rows have ended, on a GPU."""

_TOKENS_BEFORE_RECORDING: Final = 8
_WORTH_RECORDING: Final = 32
"""Tokens that are to come after a CUDA graph that chooses them: it takes a millisecond to make."""

_MOST_BYTES: Final = 1 << 20
"""Longest text of limits, as of every entry of metadata."""

_MOST_ROWS: Final = 1 << 16
_MOST_LENGTH: Final = 1 << 24
_MOST_CONTINUED: Final = 256
"""Continuations of each text that a beam search looks at."""

_MOST_MADE: Final = 1 << 30
"""Bytes of a tensor that is made around a step; how large one is follows from numbers of whoever wrote the file."""

_CODES: Final = (torch.int8, torch.uint8)
"""Types of what caches hold that numbers with a fraction are made of."""

_LOWEST: Final = torch.finfo(torch.float32).min

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Types of so many bytes, of which any is as good as another where rows change places."""

SOURCE_STEP: Final = 64
"""Texts of encoders are filled up to multiples of this, so that few lengths are met."""

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Changes scores before a token is chosen: tokens so far, (rows, length), and scores, (rows, vocabulary) float32."""

StoppingCriterion = Callable[[torch.Tensor, Any], Any]
"""Says which rows end: tokens so far, (rows, length), and nothing; returns (rows,) bool, or one bool for all."""


class Streamer(Protocol):
    """Takes tokens as they come; the streamers of transformers are such."""

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, (rows, length), and then the tokens of each step, (rows,), all int64 on the CPU."""

    def end(self) -> None:
        """Is told that no more tokens come."""


_Length = Annotated[int, Form(partial(typed.integer, high=_MOST_LENGTH))]
_Some = Annotated[int, Form(partial(typed.integer, low=1, high=_MOST_LENGTH))]


@dataclass(frozen=True)
class SourceLimits(Grown):
    """What an encoder was compiled for.

    Attributes:
        inputs: Names of what it is given: `("input_ids", "attention_mask")` of a text; `("pixel_values",)`, and what
            says their size; or `("input_features",)`, and a mask of them.
        max_length: Most tokens of a row of a text; 0 where what it is given is no text.
        start_token_id: What the text of an encoder-decoder begins with; None for models that continue prompts.
        image_token_id: Stands in prompts for a row of features, of a picture or a sound; None for encoder-decoders.
        vocabulary: Tokens from this on are rows of the table of features; of a text, tokens that the encoder knows, 0
            where the file does not say.
        rows, width: Size of that table.
        pictures: How many pictures or sounds the encoder is given at once; fewer are filled up, and more come in turns.
        picture_rows: Rows of the table that each fills, or may fill.
        size: What is said of the size of every picture, where something is; () for nothing.
        grid: Height and width of a picture's features, where positions have three axes; () where they have one.
        ahead: What tokens look ahead in: those of `"pictures"`, to their end, or of `"prompts"`; "" for nothing.
        ignores_mask: Whether a mask of features, which is not among the inputs, says nothing.
        beside: Lengths of the last inputs, (pictures, length) int64 each: what is said of each picture or sound.
        counts: Whether the last of them is a mask by which each fills some of its rows alone.
    """

    inputs: tuple[str, ...]
    max_length: _Length = 0
    start_token_id: int | None = None
    image_token_id: int | None = None
    vocabulary: _Length = 0
    rows: _Length = 0
    width: _Length = 0
    pictures: _Length = 0
    picture_rows: _Length = 0
    size: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    ahead: str = ""
    ignores_mask: bool = False
    beside: tuple[int, ...] = ()
    counts: bool = False

    @property
    def are(self) -> str:
        """What stands among text, as messages call it."""
        return "sounds" if self.inputs[0] == SOUNDS else "pictures"

    @property
    def is_text(self) -> bool:
        """Whether the encoder reads tokens."""
        return self.max_length > 0


@dataclass(frozen=True)
class GenerationLimits(Grown):
    """What a step was compiled for.

    Attributes:
        max_batch: Rows of every call of the step; a prompt of fewer rows is filled up.
        max_length: Tokens that the caches hold for a row, those of the prompt included.
        prefill_chunk: Most tokens of a row that one call of the step takes.
        eos_token_ids: Tokens that end a row, unless a call says otherwise.
        pad_token_id: What rows that have ended are filled up with.
        assisted_tokens: Most tokens that one call of the step gives logits for; 1 for steps that are not told which.
        rules: Tokens that may or must come.
        choice: How tokens are chosen, unless a call says otherwise.
        source: What the encoder takes; None where there is none.
        vocabulary: Tokens that the step knows, from 0 on; 0 where the file does not say.
        has_states: Whether caches hold states of all tokens that were read, of which none is taken back.
    """

    max_batch: Annotated[int, Form(partial(typed.integer, low=1, high=_MOST_ROWS))]
    max_length: _Some
    prefill_chunk: _Some
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: Annotated[int, Form(partial(typed.integer, low=-typed.LARGEST))] = 0
    assisted_tokens: _Some = 1
    rules: TokenRules = field(default_factory=TokenRules)
    source: SourceLimits | None = None
    choice: TokenChoice = field(default_factory=TokenChoice)
    vocabulary: int = 0
    has_states: bool = False

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether text follows from what an encoder is given, not from a prompt."""
        return self.source is not None and self.source.start_token_id is not None

    def to_text(self) -> str:
        """Returns the limits as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> GenerationLimits:
        """Reads what `to_text` wrote.

        Raises:
            PlanError: The text says nothing of the kind.
        """
        try:
            limits = records.read(cls, parse_json(text.encode(), max_bytes=_MOST_BYTES), "limits")
            if limits.source is not None:
                _check_source(limits.source)
            return limits
        except (ValueError, AttributeError, InputError) as error:
            raise PlanError(f"the program says in no readable way what it generates: {text!r:.200}") from error


_TABLE: Final = ("vocabulary", "rows", "width", "pictures", "picture_rows")
_PICTURES, _PROMPTS = "pictures", "prompts"


def _check_source(source: SourceLimits) -> None:
    """Holds what a file says of an encoder to what an encoder may be.

    Raises:
        BadField: It says nothing, or two things.
    """
    is_one_kind = (source.start_token_id is None) != (source.image_token_id is None)
    is_whole = source.start_token_id is not None or (_is_sized(source) and all(getattr(source, one) for one in _TABLE))
    if not source.inputs or not is_one_kind or not is_whole or source.ahead not in ("", _PICTURES, _PROMPTS):
        raise typed.BadField("source", "it says nothing of an encoder, or two things")


def _is_sized(source: SourceLimits) -> bool:
    is_grid = not source.grid or (len(source.grid) == 2 and math.prod(source.grid) == source.picture_rows)
    is_whole = len(source.inputs) == 1 + bool(source.size) + len(source.beside) and bool(source.beside) >= source.counts
    return is_grid and is_whole and all(extent > 0 for extent in (*source.size, *source.beside))


_P = ParamSpec("_P")


def _configurable(generate: Callable[_P, torch.Tensor]) -> Callable[_P, torch.Tensor]:
    """Has `generate` take from a `generation_config` of transformers what it is not given."""

    @functools.wraps(generate)
    def configured(*args: _P.args, **kwargs: _P.kwargs) -> torch.Tensor:
        given: dict[str, Any] = dict(kwargs)
        config = given.pop("generation_config", None)
        if config is not None:
            given = {**_configured(config), **given}
        return generate(*args, **given)

    return configured


def _in_turn(generate: Callable[_P, torch.Tensor]) -> Callable[_P, torch.Tensor]:
    """Has calls of `generate` wait for those whose caches they share: of the generator, and of its assistant."""

    @functools.wraps(generate)
    def waited(*args: _P.args, **kwargs: _P.kwargs) -> torch.Tensor:
        shared = {id(one): one for one in (*args[:1], kwargs.get("assistant_model")) if isinstance(one, TextGenerator)}
        with contextlib.ExitStack() as stack:
            for _, one in sorted(shared.items()):  # the same order everywhere, so that no two wait for each other
                stack.enter_context(one._turn)
            return generate(*args, **kwargs)

    return waited


class _Turn:
    """The right to use caches, which one thread has at a time, and a call inside of another one never gets.

    Raises:
        InputError: The thread has it already.
    """

    def __init__(self) -> None:
        self._lock = ForkedLock()

    def __reduce__(self) -> tuple[type[_Turn], tuple[()]]:
        return _Turn, ()  # copies of a generator have caches of their own

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._lock.depth > 1:
            self._lock.release()
            raise InputError(
                "generate was called from inside of a call of the same generator, whose caches hold that text",
                hint="call it after the other one has returned, or from a copy of the generator",
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _configured(config: Any) -> dict[str, Any]:
    """Returns what a configuration of transformers says, as arguments of `generate`.

    Raises:
        InputError: It is none, or says something that is not done.
    """
    if not hasattr(config, "to_dict"):
        raise InputError(
            f"a GenerationConfig of transformers is needed, not {kind_of(config)}", where="generation_config"
        )
    said = {name: value for name, value in config.to_dict().items() if value is not None}
    if said.get("cache_implementation") == "quantized":
        raise _unknown_argument("cache_implementation", ())  # of which tokens follow
    for name, value in said.items():
        if name not in (*_CONFIGURED, *_LEFT) and not _says_nothing(name, value):
            raise _unknown_argument(name, ())
    return {name: said[name] for name in _CONFIGURED if name in said}


def _says_nothing(name: str, value: Any) -> bool:
    """Whether a value of an option of transformers that is not done here asks for nothing."""
    return value is None or value is False or (name in NOT_DONE and value is not True and value in NOT_DONE[name][0])


def not_done(config: Any) -> dict[str, Any]:
    """Returns what a configuration of transformers says that `TextGenerator` does not do, by name."""
    said = vars(config).items()
    known = (*_CONFIGURED, *_LEFT)
    return {
        name: value
        for name, value in said
        if name not in known and not name.startswith("_") and not _says_nothing(name, value)
    }


_TOKEN_OPTIONS: Final = (
    *RULE_OPTIONS,
    *("min_length", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "encoder_repetition_penalty"),
    *("encoder_no_repeat_ngram_size", "renormalize_logits"),
)
"""Options of a `GenerationConfig` that `generate` takes beside those of its signature."""

_CONFIGURED: Final = (
    *("max_new_tokens", "max_length", "eos_token_id", "pad_token_id"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", "num_beams", "length_penalty"),
    *("early_stopping", "num_return_sequences", "prompt_lookup_num_tokens", "decoder_start_token_id"),
    *_TOKEN_OPTIONS,
)
_LEFT: Final = (
    *("transformers_version", "_from_model_config", "_commit_hash", "bos_token_id"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    *("max_matching_ngram_size", "target_lookbehind", "prefill_chunk_size", "continuous_batching_config"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("assistant_lookbehind", "low_memory"),
)
"""What a configuration of transformers says that changes no token here."""

_PROCESSOR: Final = "give logits_processor the processor of transformers that does it"
_GUESSES: Final = "give prompt_lookup_num_tokens or an assistant_model for guesses"
_DEPRECATED: Final = "transformers itself does it with code from its hub alone"
_RESULTS: Final = "tokens are returned alone; logits_processor sees all scores"
_CRITERIA: Final = "give stopping_criteria=[transformers.{}]"

NOT_DONE: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "max_time": ((), _CRITERIA.format("MaxTimeCriteria(seconds)")),
    "stop_strings": (([], ()), _CRITERIA.format("StopStringCriteria(tokenizer, stop_strings)")),
    "guidance_scale": ((1,), "it takes scores of a second prompt: generate with transformers"),
    "watermarking_config": ((), _PROCESSOR),
    "token_healing": ((), "it changes prompts: heal them before, with the model of transformers"),
    **dict.fromkeys(("use_mtp", "speculation_type", "is_assistant", "assistant_early_exit"), ((), _GUESSES)),
    "assistant_ensemble_weight": ((1,), "guesses are taken where the model itself would have chosen them"),
    **dict.fromkeys(("num_beam_groups", "dola_layers", "constraints", "force_words_ids"), ((1, [], ()), _DEPRECATED)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), ((0,), _DEPRECATED)),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_logits"), ((), _RESULTS)),
    **dict.fromkeys(("return_dict_in_generate", "return_legacy_cache"), ((), _RESULTS)),
    **dict.fromkeys(("generation_kwargs", "encoder_kwargs"), (({},), _PROCESSOR)),
    **dict.fromkeys(
        ("language", "task", "forced_decoder_ids", "prompt_ids", "lang_to_id", "task_to_id"),
        (([], {}), "decoder_input_ids say what a text begins with: start token, language and task of Whisper"),
    ),
    "return_timestamps": (
        (),
        "decoder_input_ids without the token for no timestamps, and logits_processor "
        "with transformers' WhisperTimeStampLogitsProcessor",
    ),
}
"""Options of transformers that are refused: values that ask for nothing, and what to do instead."""


class TextGenerator(nn.Module):
    """Generates tokens with a compiled step.

    Calls from several threads wait for each other: they share the step's caches.

    On the CPU, calls of the step itself are held to what it was compiled for: an unknown token, padding that is none,
    and places that do not follow those that were read are an `InputError` before anything is written. On a GPU nothing
    waits to look at them.

    Args:
        step: Called with `input_ids`, (max_batch, n) int64, n from 1 to `prefill_chunk`; `start`, (1,) int64, the place
            of the first of them in the caches; and `padding`, (max_batch,) int64, how many of the first places of each
            row are padding. Returns the logits after the last token of each row, (max_batch, vocabulary). Keys and
            values of the tokens are kept in its buffers. Where `assisted_tokens` of the limits is above 1, it is also
            given `kept`, (k,) int64, which of the n tokens logits are asked for, and returns
            (max_batch, k, vocabulary). What the encoder gave follows.
        limits: What the step was compiled for.
        encoder: Called once for each `generate`, with what `limits.source` names; returns a tuple of tensors that each
            call of the step is given. A text's mask, (max_batch, length) bool, goes before them.

    Example:
        >>> generator = TextGenerator.load("model.trtp")  # doctest: +SKIP
        >>> generator.generate(torch.tensor([[1, 42, 7]]), max_new_tokens=16)  # doctest: +SKIP
    """

    @held_to_signature
    def __init__(self, step: nn.Module, limits: GenerationLimits, encoder: nn.Module | None = None) -> None:
        super().__init__()
        if (encoder is None) != (limits.source is None):
            raise InputError("a generator has an encoder exactly where its limits say what that is given")
        self.step = step
        self.limits = limits
        self.encoder = encoder
        self._cached: tuple[torch.Tensor, torch.Tensor, int] | None = None
        self._filled = 0  # places of the caches that were written to
        self._passed: tuple[int, ...] = (limits.pad_token_id,)  # tokens that fill up rows, known or not
        self._turn = _Turn()
        if self.device.type == "cpu":
            step.register_forward_pre_hook(self._hold)
            step.register_forward_hook(self._note)

    @classmethod
    @held_to_signature
    def load(cls, path: str | os.PathLike[str], **options: Unpack[LoadKeywords]) -> TextGenerator:
        """Loads what `save` wrote; transformers is not needed.

        Args:
            path: The file.
            options: As for `trt_runtime.load`.

        Raises:
            InputError: A generator with an encoder is to be isolated.
            PlanError: The file is damaged, or holds a program that generates no text.
        """
        step, *others = load_with(path, **options)
        text = getattr(step, "meta", {}).get(METADATA)
        if text is None:
            raise PlanError(
                "the program generates no text",
                where=str(path),
                hint="load it with trt_runtime.load; compile_generation makes one that generates",
            )
        limits = GenerationLimits.from_text(text)
        if options.get("isolated") and limits.source is not None:
            raise InputError("a generator with an encoder cannot be isolated", where=str(path))
        if len(others) != (limits.source is not None):
            raise PlanError("the file holds another number of encoders than its limits say", where=str(path))
        _require_extents(step, limits, others, str(path))
        return cls(step, limits, *others)

    @held_to_signature
    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves step, encoder and limits as one file, which appears complete or not at all.

        Raises:
            ExportError: The step holds something that has no place in a program.
            OSError: The file cannot be written.
        """
        inside = [] if self.encoder is None else [self.encoder]
        save_with(self.step, inside, path, {METADATA: self.limits.to_text()})

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        if isinstance(self.step, IsolatedProgram):
            return self.step.device
        return next((cache.device for cache in self._caches()), _CPU)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the step's keys and values, or what their codes stand for."""
        types = (cache.dtype for cache in self._caches())
        return next((kind for kind in types if kind.is_floating_point and kind.itemsize > 1), torch.float32)

    @property
    def cache_bytes(self) -> int:
        """Bytes of what the step keeps of the tokens so far: keys and values, and states of recurrences."""
        return sum(cache.numel() * cache.element_size() for cache in self._caches())

    @property
    def config(self) -> Any:
        """What pipelines of transformers ask models for, which needs transformers; it says nothing of the model."""
        from transformers import PretrainedConfig

        return PretrainedConfig(is_encoder_decoder=self.limits.is_encoder_decoder)

    @property
    def generation_config(self) -> Any:
        """What the limits say, as a `GenerationConfig` of transformers, which it needs."""
        from transformers import GenerationConfig

        ends, pad, plain = self.limits.eos_token_ids, self.limits.pad_token_id, asdict(TokenChoice())
        told = {name: value for name, value in asdict(self.limits.choice).items() if value != plain[name]}
        if pad != (ends[0] if ends else 0):  # else the model said none, and a pipeline takes its tokenizer's
            told["pad_token_id"] = pad
        return GenerationConfig(eos_token_id=list(ends) or None, **told)

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """What pipelines of transformers print of a model."""
        return ("text",)

    output_modalities = input_modalities

    def can_generate(self) -> bool:
        """Returns True: pipelines of transformers ask."""
        return True

    def _prepare_generation_config(self, generation_config: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Returns what pipelines of transformers hand to `generate`, and which options are none of it."""
        return generation_config, generation_config.update(**options)

    @torch.no_grad()
    @_configurable
    @held_to_signature
    @_in_turn
    def generate(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        do_sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        no_repeat_ngram_size: int | None = None,
        min_new_tokens: int | None = None,
        num_beams: int = 1,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        num_return_sequences: int = 1,
        decoder_start_token_id: int | Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        stopping_criteria: Sequence[StoppingCriterion] | None = None,
        streamer: Streamer | None = None,
        prompt_lookup_num_tokens: int | None = None,
        assistant_model: TextGenerator | None = None,
        num_assistant_tokens: int | None = None,
        keep_cache: bool = False,
        **others: Any,
    ) -> torch.Tensor:
        """Continues prompts, or writes what follows from a source, until each row has ended or is long enough.

        Args:
            input_ids: Prompts, (rows, length), int64 or int32; shorter ones are padded on the left. Of an
                encoder-decoder, the text that the encoder reads, padded on any side.
            attention_mask: (rows, length): 0 where `input_ids` is padding, else 1. None for no padding.
            max_new_tokens: Most tokens to add; None for as many as the caches hold.
            max_length: Most tokens of a row, those of the prompt included; not asked where `max_new_tokens` is given.
            eos_token_id: Tokens that end a row; None for those of the limits, `()` for none.
            pad_token_id: What rows that have ended are filled up with; None for that of the limits.
            decoder_input_ids: What the text of an encoder-decoder begins with, (rows, length), the start token
                included, without padding; None for the start token alone.
            do_sample: Draw tokens by their probabilities, else take the likeliest.
            temperature, top_k, top_p, min_p, repetition_penalty, no_repeat_ngram_size, min_new_tokens: See
                `TokenChoice`; None for what the limits say, which is what the model's generation configuration says.
            num_beams: Texts of a row that are continued at once, of which the likeliest is returned. Rows of all of
                them fit into `max_batch`.
            length_penalty, early_stopping: See `BeamOptions`; None for what the limits say.
            decoder_start_token_id: What the text of an encoder-decoder begins with, of each row or of all; None for
                what the limits say. It changes nothing for models that continue prompts.
            num_return_sequences: Texts to return for each row: samples, or the best of its beams.
            generator: What draws; None for PyTorch's own on the step's device.
            logits_processor: Change the scores before a token is chosen, one after the other.
            stopping_criteria: End rows, beside the tokens that do; criteria of transformers are such.
            streamer: Takes tokens as they come.
            prompt_lookup_num_tokens: Guess this many tokens at once, those that followed the last ones where they
                stand earlier in the text, and take those that are right. For one row, without sampling.
            assistant_model: A smaller model with the same vocabulary that guesses tokens, likewise.
            num_assistant_tokens: How many it guesses at once; None for as many as this model was compiled for.
            keep_cache: Read only what is new where prompts begin with tokens that the caches hold of the last call,
                which kept them too; what differs from some token on is read from there. Not for encoder-decoders and
                pictures.
            others: What else the encoder takes, by name: `input_features`, or `pixel_values` and what the processor
                says of them; and other options of `GenerationConfig` of transformers that choose tokens: `min_length`,
                `typical_p`, `top_h`, `epsilon_cutoff`, `eta_cutoff`, `encoder_repetition_penalty`,
                `encoder_no_repeat_ngram_size`, `renormalize_logits`, `forced_bos_token_id`, `forced_eos_token_id`,
                `suppress_tokens`, `begin_suppress_tokens`, `bad_words_ids`, `sequence_bias`,
                `exponential_decay_length_penalty` and `remove_invalid_values`. A `generation_config` of transformers
                says what is not given. An option that is not done is an error.

        Returns:
            Prompts and what follows them, (rows, length + new), int64, on the device of what was given.

        Raises:
            InputError: Something does not fit; nothing was written to the caches then.
        """
        source = {name: value for name, value in others.items() if name not in _TOKEN_OPTIONS}
        options = {name: value for name, value in others.items() if name in _TOKEN_OPTIONS}
        rules = self.limits.rules.told({name: options.pop(name) for name in RULE_OPTIONS if name in options})
        if min_new_tokens is not None:
            options["min_length"] = 0  # of which it says more
        numbers: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "min_new_tokens": min_new_tokens,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
            **options,
        }
        choice = replace(self.limits.choice, **{name: value for name, value in numbers.items() if value is not None})
        beams = BeamOptions(num_beams, choice.length_penalty, choice.early_stopping)
        if beams.count > 1 and isinstance(self.step, IsolatedProgram):
            raise InputError(
                "beams change places in the caches, which an isolated process holds",
                where="num_beams",
                hint="leave it out, or load the generator with isolated=False",
            )
        copies = _copies(beams.count, num_return_sequences, do_sample=do_sample)
        if decoder_input_ids is None and decoder_start_token_id is not None and self.limits.is_encoder_decoder:
            decoder_input_ids = _first_tokens(decoder_start_token_id, input_ids, *source.values())
        asked = self._read(input_ids, attention_mask, decoder_input_ids, source, copies)
        if keep_cache and asked.given:
            raise InputError(
                "caches are kept for texts alone: what they hold follows from the source, too",
                where="keep_cache",
                hint="leave it out, or give no pictures",
            )
        rows, begin = asked.prompt.shape
        new = self._read_count(begin, _new_tokens(begin, max_length) if max_new_tokens is None else max_new_tokens)
        ends = required_tokens(self.limits.eos_token_ids if eos_token_id is None else eos_token_id, "eos_token_id")
        (pad,) = required_tokens([self.limits.pad_token_id if pad_token_id is None else pad_token_id], "pad_token_id")
        assistant = self._assistant(prompt_lookup_num_tokens, assistant_model, num_assistant_tokens)
        if assistant is not None:
            if do_sample or rows * copies > 1:
                raise InputError("guesses are for one row, without sampling", hint="leave assistant and lookup out")
            assistant.expect(input_ids, attention_mask, decoder_input_ids, source)
        _require_streamer(streamer, copies)
        if generator is not None and generator.device.type != self.device.type:
            raise InputError(
                f"the generator draws on {generator.device}, and the step runs on {self.device}",
                where="generator",
                hint=f"give torch.Generator({self.device.type!r})",
            )
        reader = _Reader(self, asked, copies)
        _require_room(8 * rows * copies * (begin + new), "the text")
        if keep_cache:
            reader.known = self._known(reader)
        self._cached = None
        self._passed = (self.limits.pad_token_id, pad)
        request = _Choosing(
            rules,
            choice,
            ends,
            begin,
            tuple(logits_processor or ()),
            tuple(stopping_criteria or ()),
            pad,
            do_sample,
            generator,
            self._read_before(input_ids, choice, options, copies),
        )
        back = _device_of(input_ids, *source.values())
        if beams.count > 1:
            return self._search(reader, request, beams, begin + new, num_return_sequences).to(back)
        if streamer is not None:
            streamer.put(asked.prompt.cpu())
        decoding = _Decoding(reader, request, begin + new)
        made = decoding.tokens(assistant, streamer)
        if keep_cache:
            self._cached = decoding.read_tokens(), asked.padding, reader.filled
        if streamer is not None:
            streamer.end()
        return made.to(back)

    def _read_before(
        self, input_ids: Any, choice: TokenChoice, asked: Mapping[str, Any], copies: int
    ) -> torch.Tensor | None:
        """Returns the tokens that numbers of the encoder are about, (rows, length) int64; None where there are none.

        Raises:
            InputError: The call asks for such numbers, and the source is no text.
        """
        plain = TokenChoice()
        names = [name for name in _OF_SOURCES if getattr(choice, name) != getattr(plain, name)]
        if not names:
            return None
        if input_ids is None:
            if said := [name for name in names if name in asked]:
                raise InputError(f"{said[0]} is about tokens, and the source has none", where=said[0])
            return None  # of which transformers says the same
        rows: torch.Tensor = input_ids.to(self.device, torch.int64).repeat_interleave(copies, 0)
        return rows

    def _known(self, reader: _Reader) -> int:
        """How many of the first places of the prompts the caches hold already: not all, since the last is asked for."""
        if self._cached is None:
            return 0
        (tokens, padding, filled), prompt = self._cached, reader.text
        if len(tokens) != len(prompt) or not torch.equal(padding, reader.given[0]):
            return 0
        most = min(tokens.shape[1], prompt.shape[1] - 1)
        is_padding = torch.arange(most, device=prompt.device) < padding[: len(prompt), None]
        same = ((tokens[:, :most] == prompt[:, :most]) | is_padding).all(0)
        known = int(same.to(torch.int64).cumprod(0).sum())
        return known if self._goes_on(known, max(filled, tokens.shape[1])) else 0  # wrong guesses were read, too

    def _goes_on(self, place: int, filled: int) -> bool:
        """Whether what so many places of the caches hold may be gone on with from one of them."""
        if self.limits.has_states:
            return place == filled
        return filled - place < self.limits.prefill_chunk or not self._forgets

    @cached_property
    def _forgets(self) -> bool:
        """Whether rings of keys hold a window and a piece more: what is further back was written over."""
        if isinstance(self.step, IsolatedProgram):
            return True  # another process holds them
        return any(cache.dim() == 4 and cache.shape[2] < self.limits.max_length for cache in self._caches())

    def _search(self, reader: _Reader, request: _Choosing, options: BeamOptions, end: int, count: int) -> torch.Tensor:
        """Returns the best texts of a beam search, (rows * count, length) int64; see `_Choosing` and `Beams`."""
        ends, made, pad = request.ends, request.begin, request.pad
        text = reader.text.new_full((len(reader.text), end), pad)
        text[:, :made] = reader.text
        draw = _drawn(request.do_sample, request.generator)
        beams = Beams(text, made, options, pad or (ends[0] if ends else pad))  # fills up as transformers does
        least = max(2, len(ends) + 1)
        if least > _MOST_CONTINUED:
            raise InputError(
                f"{len(ends)} tokens end a row, and each text of a search is continued by as many and one more",
                where="num_beams",
                hint=f"give an eos_token_id of {_MOST_CONTINUED - 1} at most, or leave the beams out",
            )
        _require_room(8 * len(text) * least * end, "the texts of a search")
        for logits in reader.one_by_one(text):
            chances = request.scores(logits[: len(text)].to(torch.float32).log_softmax(-1), text, made)
            if draw is not None:
                chances = request.choice.warped(chances, least)
            if request.choice.renormalize_logits:
                chances = chances.log_softmax(-1)
            kept = min(least * options.count, options.count * chances.shape[1])
            order = beams.take(chances, made, lambda texts: request.ended(texts, end), draw or _likeliest, kept)
            made += 1
            if beams.is_done:
                break
            self._reorder(order, made)
        return beams.best(count)

    def _reorder(self, order: torch.Tensor, made: int) -> None:
        """Has each row of the caches continue what was another one, where it is another one.

        Args:
            order: Which row each continues, (rows,) int64.
            made: Tokens that there are, of which the caches hold fewer.
        """
        own = torch.arange(len(order), device=order.device)
        moved = (order != own).nonzero().flatten()
        if not len(moved):
            return
        for cache in self._caches():
            bits = cache.view(_BITS[cache.itemsize])  # PyTorch moves rows of some types alone
            held = bits[:, :, :made] if bits.dim() == 4 else bits
            held[moved] = held.index_select(0, order[moved])

    def reset(self) -> None:
        """Forgets what the caches hold. A call of `generate` begins anew by itself."""
        with self._turn:
            self._cached = None
            self._filled = 0
            for cache in self._caches():
                cache.zero_()

    def _hold(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        """Holds a call of the step on the CPU to what was read before it.

        Raises:
            InputError: It does not follow.
        """
        if not _is_call(given):
            return  # which the step refuses itself, or a trace
        tokens, start, padding = given[:3]
        limits, source = self.limits, self.limits.source
        known = limits.vocabulary
        if known and source is not None and source.image_token_id is not None:
            known = source.vocabulary + source.rows
        if known:
            _require_known(tokens, known, self._passed, "input_ids")
        self._require_next(int(start), tokens.shape[1])
        if bool(((padding < 0) | (padding > limits.max_length)).any()):
            raise InputError(
                f"padding is 0 to {limits.max_length} places of each row, not {padding.tolist()!r:.80}", where="padding"
            )

    def _note(self, _: nn.Module, given: tuple[Any, ...], __: Any) -> None:
        """Notes up to which place a call of the step wrote to its caches."""
        if _is_call(given):
            self._filled = int(given[1]) + given[0].shape[1]

    def _require_next(self, first: int, count: int) -> None:
        """Holds places of tokens to those that follow, or were read before.

        Raises:
            InputError: Some between them were not, or states cannot go back.
        """
        filled, limits = self._filled, self.limits
        if not 0 <= first <= limits.max_length - count:
            raise InputError(
                f"the caches hold {limits.max_length} tokens of a row, and a call reads places {first} to "
                f"{first + count - 1}",
                where="start",
                hint="begin anew, or compile the model with a larger max_length",
            )
        if first > filled:
            raise InputError(
                f"{filled} tokens of each row were read, and a call begins at place {first}",
                where="start",
                hint="read what is between them first; generate does",
            )
        if first and not self._goes_on(first, filled):
            raise InputError(
                f"{filled} tokens of each row were read, of which the step forgets some, and a call begins at place "
                f"{first}",
                where="start",
                hint="go on, or begin at place 0",
            )
        chunk = limits.prefill_chunk
        if count > 1 and first % chunk + count > chunk and self._forgets:
            raise InputError(
                f"places {first} to {first + count - 1} are in two pieces of {chunk}, and layers that look back a "
                "window are read in whole pieces",
                where="start",
                hint=f"give {chunk - first % chunk} tokens, and then others",
            )

    def extra_repr(self) -> str:
        """Says what the step was compiled for."""
        return f"max_batch={self.limits.max_batch}, max_length={self.limits.max_length}"

    def _repr_html_(self) -> str:
        said = (getattr(self.step, name, ()) for name in ("inputs", "outputs"))
        return notebook_html(f"{type(self).__name__}({self.extra_repr()})", *said)

    def _caches(self) -> Iterator[torch.Tensor]:
        """What a step keeps of the tokens so far, of which each row is one of the step's; not its tables.

        A compiled step says what it writes to. Of others it is numbers of one byte or with a fraction.
        """
        for name, buffer in self.step.named_buffers():
            if not buffer.dim() or len(buffer) != self.limits.max_batch:
                continue
            if self._written is not None:
                is_cache = name in self._written
            else:
                is_cache = buffer.dim() > 1 and (buffer.dtype.is_floating_point or buffer.dtype in _CODES)
            if is_cache:
                yield buffer

    @cached_property
    def _written(self) -> frozenset[str] | None:
        """Names of the buffers that a compiled step writes to; None for one that is not compiled."""
        if isinstance(self.step, LoadedProgram):
            program = captured_from(self.step).program
            numbered = enumerate(program.tensors, program.first_tensor)
            return frozenset(name for number, held in numbered if number in program.written for name in held.names)
        if isinstance(self.step, fx.GraphModule):
            return frozenset(str(node.target) for node in self.step.graph.find_nodes(op="get_attr") if is_state(node))
        return None

    def _assistant(self, looked_up: int | None, model: TextGenerator | None, count: int | None) -> _Assistant | None:
        """Returns what guesses tokens; None for nothing.

        Raises:
            InputError: It cannot be used here.
        """
        if looked_up is None and model is None:
            return None
        if looked_up is not None and model is not None:
            raise InputError("tokens are guessed by a model or looked up in the text", hint="give one of the two")
        most = self.limits.assisted_tokens - 1
        if most < 1:
            raise InputError(
                "the model was compiled for one token at a time, without guesses",
                hint="compile it with assisted_tokens=8, say",
            )
        number = looked_up if model is None else most if count is None else count
        if type(number) is not int or not 1 <= number <= most:
            raise InputError(
                f"{number!r} tokens cannot be guessed at once",
                hint=f"give 1 to {most}, or compile with more assisted_tokens",
            )
        if model is None:
            return _Lookup(number)
        if model is self:
            raise InputError("a model cannot assist itself: its caches would hold both texts", where="assistant_model")
        if model.limits.is_encoder_decoder != self.limits.is_encoder_decoder:
            raise InputError("the assistant is a model of another kind", where="assistant_model")
        return _Draft(model, number)

    def _read(
        self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, others: Mapping[str, Any], copies: int = 1
    ) -> _Request:
        """Returns what is asked for, on the step's device, of which each row is to take some rows of the step.

        Raises:
            InputError: Something does not fit.
        """
        source = self.limits.source
        names = () if source is None or source.is_text else source.inputs
        said: dict[str, Any] = {}
        if source is not None and source.image_token_id is not None:
            said = {
                name: value for name, value in others.items() if name in (_PICTURE_MASK, _PICTURE_COUNTS, *TOKEN_TYPES)
            }
            others = {name: value for name, value in others.items() if name not in said}
        for name in others:
            if name not in names:
                raise _unknown_argument(name, names)
        if source is None or source.start_token_id is None:
            if decoder_input_ids is not None:
                raise _unknown_argument("decoder_input_ids", names)
            prompt, padding = self._read_prompt(input_ids, attention_mask, copies)
            if source is None:
                return _Request(prompt, padding)
            for name in TOKEN_TYPES:
                _check_types(source, prompt, said.get(name), name)
            if not others:
                return _Request(prompt, padding)
            if lacking := [name for name in names if name not in others]:
                raise InputError(f"{source.are} are given as {', '.join(names)}", where=lacking[0])
            values, *told = (self._read_input(others[name], name) for name in names)
            masks = said.get(_PICTURE_MASK)
            if names[0] == SOUNDS:
                pictures = _sounds(values)
            else:
                pictures = _sized_pictures(source, values, told.pop(0)) if source.size else _pictures(values, masks)
            return _Request(prompt, padding, (pictures, *_read_beside(source, told, len(pictures))))
        if source.is_text:
            rows, given = self._read_source_text(source, input_ids, attention_mask, copies)
        else:
            rows, given = self._read_features(source, input_ids, attention_mask, others, copies)
        if decoder_input_ids is None:
            decoder_input_ids = torch.full((rows, 1), source.start_token_id, dtype=torch.int64, device="cpu")
        self._check_tokens(decoder_input_ids, "decoder_input_ids")
        if len(decoder_input_ids) != rows:
            raise InputError(
                f"{len(decoder_input_ids)} rows begin the text of {rows} sources", where="decoder_input_ids"
            )
        padding = torch.zeros(self.limits.max_batch, dtype=torch.int64, device=self.device)
        return _Request(decoder_input_ids.to(self.device, torch.int64), padding, given)

    def _read_features(
        self, source: SourceLimits, input_ids: Any, mask: Any, others: Mapping[str, Any], copies: int
    ) -> tuple[int, tuple[torch.Tensor, ...]]:
        """Returns how many rows an encoder-decoder is asked for, and what its encoder is given, which is no text."""
        if mask is not None and MASK in source.inputs:
            others = {**others, MASK: mask}
        elif mask is not None and not source.ignores_mask:
            _require_values(mask, MASK)
            if not bool((mask != 0).all()):
                raise InputError(
                    f"the model was compiled for {', '.join(source.inputs)} without padding",
                    where=MASK,
                    hint=f"compile it with {MASK} in source_inputs, too",
                )
        if input_ids is not None or len(others) != len(source.inputs):
            names = ", ".join(source.inputs)
            raise InputError(
                f"the encoder takes {names} by name, and no input_ids",
                hint="decoder_input_ids say what the text begins with",
            )
        given = tuple(self._read_input(others[name], name) for name in source.inputs)
        rows = len(given[0])
        self._require_rows(rows, source.inputs[0], copies)
        filled = {
            name: _filled_up(value, self.limits.max_batch) for name, value in zip(source.inputs, given, strict=True)
        }
        if MASK in filled:
            _require_tokens(filled[MASK][:rows])
            filled[MASK][rows:] = True  # no row of a softmax is empty
        return rows, tuple(filled.values())

    def _read_input(self, value: Any, name: str) -> torch.Tensor:
        if not isinstance(value, torch.Tensor) or value.dim() < 1 or 0 in value.shape:
            raise InputError(f"{name} is a tensor with a row at least, not {kind_of(value)}", where=name)
        if name == MASK:
            return (value != 0).to(self.device)
        return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)

    def _read_source_text(
        self, source: SourceLimits, input_ids: Any, attention_mask: Any, copies: int
    ) -> tuple[int, tuple[torch.Tensor, ...]]:
        """Returns how many rows a text has, and the text and its mask, filled up to one of few lengths."""
        self._check_tokens(input_ids, "input_ids", copies)
        rows, length = input_ids.shape
        if length > source.max_length:
            raise InputError(
                f"a text of {length} tokens is longer than the {source.max_length} that the encoder reads",
                where="input_ids",
                hint="shorten it, or compile with a larger max_source_length",
            )
        mask = torch.ones(rows, length, device="cpu") if attention_mask is None else attention_mask
        _check_mask(mask, rows, length)
        _require_tokens(mask)
        whole = min(-(-length // SOURCE_STEP) * SOURCE_STEP, source.max_length)
        ids = torch.full((self.limits.max_batch, whole), self.limits.pad_token_id, dtype=torch.int64, device="cpu")
        real = torch.zeros(self.limits.max_batch, whole, dtype=torch.bool, device="cpu")
        ids[:rows, :length], real[:rows, :length] = input_ids, mask != 0
        real[rows:] = True  # no row of a softmax is empty
        return rows, (ids.to(self.device), real.to(self.device))

    def _read_prompt(self, input_ids: Any, attention_mask: Any, copies: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the prompts, (rows, length), and the padding of each row of the step, on its device."""
        self._check_tokens(input_ids, "input_ids", copies)
        rows, length = input_ids.shape
        padding = torch.zeros(self.limits.max_batch, dtype=torch.int64, device="cpu")
        if attention_mask is not None:
            padding[:rows] = _padding_of(attention_mask, rows, length)
        return input_ids.to(self.device, torch.int64), padding.to(self.device)

    def _check_tokens(self, ids: Any, name: str, copies: int = 1) -> None:
        """Holds prompts to what the step takes.

        Raises:
            InputError: They do not fit.
        """
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"prompts are a tensor of int64 or int32 tokens, not {kind_of(ids)}", where=name)
        _require_values(ids, name)
        if ids.dim() != 2 or 0 in ids.shape:
            raise InputError(
                f"prompts have shape {tuple(ids.shape)}",
                where=name,
                hint="give (rows, length), each with a token at least",
            )
        self._require_rows(len(ids), name, copies)
        limits, source = self.limits, self.limits.source
        reads = source is not None and source.is_text and name == "input_ids"  # else the decoder does
        if known := source.vocabulary if source is not None and reads else limits.vocabulary:
            image = source.image_token_id if source is not None else None
            _require_known(ids, known, (limits.pad_token_id, *(() if image is None else (image,))), name)

    def _require_rows(self, rows: int, name: str, copies: int) -> None:
        if rows * copies > self.limits.max_batch:
            texts = f"{rows} prompts" + (f" of {copies} texts each" if copies > 1 else "")
            raise InputError(
                f"{texts} are more than the {self.limits.max_batch} rows of the caches",
                where=name,
                hint="give fewer at once, or compile with a larger max_batch",
            )

    def _read_count(self, length: int, max_new_tokens: int | None) -> int:
        room = self.limits.max_length - length + 1  # the last token is never read
        if room < 1:
            raise InputError(
                f"a prompt of {length} tokens is longer than the caches, which hold {self.limits.max_length}",
                where="input_ids",
                hint="shorten it, or compile with a larger max_length",
            )
        if max_new_tokens is None:
            return room
        if type(max_new_tokens) is not int or max_new_tokens < 1:
            raise InputError(f"max_new_tokens is a whole number from 1, not {max_new_tokens!r}")
        if max_new_tokens > room:
            raise InputError(
                f"the caches hold {self.limits.max_length} tokens, too few for a prompt of {length} and "
                f"{max_new_tokens} more",
                hint=f"ask for {room} at most, or compile with a larger max_length",
            )
        return max_new_tokens


def _require_streamer(streamer: Any, copies: int) -> None:
    """Holds a streamer to what it is given.

    Raises:
        InputError: It takes no tokens, or those of several texts a row.
    """
    if streamer is None:
        return
    if not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise InputError(
            f"a streamer has put and end, unlike {kind_of(streamer)}",
            where="streamer",
            hint="transformers.TextStreamer(tokenizer) is one",
        )
    if copies > 1:
        raise InputError("a streamer takes one text a row", where="streamer", hint="leave it or the beams out")


def _new_tokens(length: int, max_length: int | None) -> int | None:
    """How many tokens a prompt of some length leaves for the text; None where nobody says.

    Raises:
        InputError: It leaves none.
    """
    if max_length is None:
        return None
    if type(max_length) is not int or max_length <= length:
        raise InputError(
            f"max_length is a whole number above the {length} tokens of the prompt, which it includes, "
            f"not {max_length!r:.60}",
            where="max_length",
            hint="give max_new_tokens to count new ones alone",
        )
    return max_length - length


_CPU: Final = torch.device("cpu")
MASK: Final = "attention_mask"
SOUNDS: Final = "input_features"
_PICTURE_MASK: Final = "pixel_attention_mask"
_PICTURE_COUNTS: Final = "batch_num_images"  # which the places for pictures in prompts say
TOKEN_TYPES: Final = ("token_type_ids", "mm_token_type_ids")
"""What processors say of tokens that tokens say themselves."""

_LOOKED_UP: Final = 3
"""Most tokens that are looked for earlier in a text."""


def _check_mask(mask: Any, rows: int, length: int) -> None:
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (rows, length):
        raise InputError(
            f"the mask does not fit prompts of shape {(rows, length)}",
            where="attention_mask",
            why=f"it is {kind_of(mask)}" + (f" of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else ""),
        )
    _require_values(mask, "attention_mask")


def _require_tokens(mask: torch.Tensor, of: str = "source") -> None:
    """Refuses masks, (rows, length), of which a row shows nothing."""
    if mask.dim() != 2 or not bool((mask != 0).any(1).all()):
        raise InputError(f"a row of the {of} is all padding", where=MASK, hint="give each row a token at least")


def _is_call(given: Sequence[Any]) -> bool:
    """Whether a step is given tokens, a place and padding that may be looked at without waiting for a device."""
    if len(given) < 3 or torch.compiler.is_compiling():
        return False
    return _is_read(given[0], 2) and _is_read(given[1], 1) and _is_read(given[2], 1) and given[1].numel() == 1


def _is_read(value: Any, rank: int) -> bool:
    is_dense = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided
    return is_dense and value.dim() == rank and not value.is_floating_point()


def _require_known(ids: torch.Tensor, count: int, passed: Sequence[int], name: str) -> None:
    """Holds tokens to those of a table, beside some that need not be in it.

    Raises:
        InputError: There is another one.
    """
    outside = (ids < 0) | (ids >= count)
    if not bool(outside.any()):
        return
    unknown = [token for token in ids[outside].unique().tolist() if token not in passed]
    if unknown:
        raise InputError(
            f"the model knows tokens 0 to {count - 1}, and the prompt has {unknown[0]}",
            where=name,
            hint="give tokens of the tokenizer that belongs to the model",
        )


def _require_values(tensor: torch.Tensor, name: str) -> None:
    if tensor.is_meta or tensor.layout is not torch.strided:
        held = "no values, on the meta device" if tensor.is_meta else f"values in the layout {tensor.layout}"
        raise InputError(f"{name} has {held}", where=name, hint="give a dense tensor")


def _padding_of(mask: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Returns how many places at the left of each row are padding, (rows,) int64 on the CPU."""
    _check_mask(mask, rows, length)
    real = mask.cpu() != 0
    _require_tokens(real, "prompts")
    if not bool(real[:, -1].all()) or bool((real[:, 1:] < real[:, :-1]).any()):
        raise InputError(
            "prompts are padded on the left alone",
            where="attention_mask",
            why="a row ends with padding, or has some inside",
            hint='set tokenizer.padding_side = "left"',
        )
    return (~real).sum(1)


def _require_room(num_bytes: int, what: str) -> None:
    """Refuses what nobody has memory for.

    Raises:
        InputError: It is larger than anything around a step may be.
    """
    if num_bytes > _MOST_MADE:
        raise InputError(
            f"{what} would take {num_bytes} bytes, more than {_MOST_MADE}",
            hint="ask for fewer rows or tokens; the program was compiled for more than that",
        )


def _require_extents(step: Any, limits: GenerationLimits, encoders: Sequence[Any], path: str) -> None:
    """Refuses limits of other extents than programs take, before inputs that are as large are made.

    Raises:
        PlanError: They have others.
    """
    source, rows = limits.source, limits.max_batch
    wanted: list[tuple[Any, int, tuple[int, ...]]] = [(step, 0, (rows,))]
    if source is not None:
        wanted += [(encoder, 0, (source.pictures or rows,)) for encoder in encoders]
        if source.image_token_id is not None:  # the table of features follows tokens, place, padding and what is asked
            wanted.append((step, 3 + (limits.assisted_tokens > 1), (source.rows, source.width)))
    for program, at, extents in wanted:
        spec = next(iter(program.inputs[at:]), None)
        shape = spec.shape if isinstance(spec, TensorSpec) else ()
        if len(shape) < len(extents) or not all(map(_may_be, shape, extents)):
            raise PlanError(
                f"input {at} of a program does not have the {' x '.join(map(str, extents))} that its limits say",
                where=path,
            )


def _may_be(extent: int | DynamicSize, size: int) -> bool:
    if isinstance(extent, int):
        return extent == size
    return (extent.min or 0) <= size and (extent.max is None or size <= extent.max)


def _filled_up(value: torch.Tensor, rows: int, fill: int = 0) -> torch.Tensor:
    if rows == len(value):
        return value.contiguous()
    _require_room(rows * (value.nbytes // max(len(value), 1)), "an input of all rows")
    filled = value.new_full((rows, *value.shape[1:]), fill)
    filled[: len(value)] = value
    return filled


def _pictures(values: torch.Tensor, masks: Any) -> torch.Tensor:
    """Returns pictures one after the other, (n, channels, height, width), without those that fill up a row of them.

    Raises:
        InputError: They have another form, or a picture is padded by itself.
    """
    if values.dim() not in (4, 5):
        raise InputError(
            f"pictures have shape {tuple(values.shape)}",
            where="pixel_values",
            hint="give (n, channels, height, width), or (rows, n, channels, height, width)",
        )
    if values.dim() == 4:
        return values
    values = values.flatten(0, 1)
    real = values.flatten(1).any(1)
    if isinstance(masks, torch.Tensor) and not bool(masks.to(real.device).flatten(0, 1)[real].all()):
        raise InputError(
            "a part of a picture is padding", where=_PICTURE_MASK, hint="have the processor make pictures of one size"
        )
    return values[real]


def _sounds(values: torch.Tensor) -> torch.Tensor:
    """Returns features of sounds, (n, bins, frames).

    Raises:
        InputError: They have another form.
    """
    if values.dim() != 3:
        raise InputError(f"sounds have shape {tuple(values.shape)}", where=SOUNDS, hint="give (n, bins, frames)")
    return values


def _read_beside(source: SourceLimits, values: Sequence[torch.Tensor], count: int) -> Iterator[torch.Tensor]:
    """Yields what is said of each picture or sound, (n, length) int64, filled up on the right with nothing.

    Raises:
        InputError: It is longer than what the model was compiled for, or of another number of them.
    """
    names = source.inputs[len(source.inputs) - len(values) :]
    for name, value, length in zip(names, values, source.beside, strict=True):
        is_read = value.dim() == 2 and len(value) == count and value.shape[1] <= length
        if value.is_floating_point() or not is_read or (source.counts and value.shape[1] < length):
            raise InputError(
                f"{name} is {value.dtype} of shape {tuple(value.shape)}, and whole numbers of shape {(count, length)} "
                "are expected",
                where=name,
                hint="give what the processor makes, or compile with a longer one in source_inputs",
            )
        _require_room(8 * count * length, f"{name} of all {source.are}")
        yield nn.functional.pad(value.to(torch.int64), (0, length - value.shape[1]))
    if source.counts:
        _require_tokens(values[-1])


def _sized_pictures(source: SourceLimits, values: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Returns pictures one after the other, whose sizes are said beside them.

    Raises:
        InputError: They have other sizes than the model was compiled for.
    """
    name, size = source.inputs[1], source.size
    if sizes.dim() != 2 or any(tuple(found) != size for found in sizes.tolist()):
        raise InputError(
            f"the model was compiled for pictures whose {name} are {list(size)}, not {sizes.tolist()!r:.80}",
            where=name,
            hint="give the processor pictures of that size, or compile for another one",
        )
    patches = math.prod(size) if source.grid else 0
    if values.dim() not in ((2,) if patches else (4, 5)) or len(values) != len(sizes) * (patches or 1):
        raise InputError(f"pixel_values of shape {tuple(values.shape)} are not {len(sizes)} pictures", where=name)
    return values.unflatten(0, (len(sizes), patches)) if patches else values


def _check_types(source: SourceLimits, prompt: torch.Tensor, types: Any, name: str) -> None:
    """Holds what is said of tokens to what they are.

    Raises:
        InputError: It says something else.
    """
    if types is None:
        return
    is_picture = torch.eq(prompt, source.image_token_id or 0) & (source.ahead != _PROMPTS)
    if not isinstance(types, torch.Tensor) or not torch.equal(types.to(prompt), is_picture.to(prompt)):
        told = (
            "0 for each token of a prompt" if source.ahead == _PROMPTS else "1 for tokens of pictures, and 0 for others"
        )
        raise InputError(f"{name} are {told}", where=name, hint="leave them out: they follow from input_ids")


def _unknown_argument(name: str, names: Sequence[str]) -> InputError:
    hint = _INSTEAD.get(name, f"beside tokens it takes {', '.join(names)}" if names else "see TextGenerator.generate")
    return InputError(f"generate takes no {name} here", where=name, hint=hint)


_INSTEAD: Final = {
    **dict.fromkeys(("decoder_input_ids", "inputs"), "the model continues prompts: give input_ids"),
    "decoder_attention_mask": "texts of encoder-decoders begin without padding",
    **dict.fromkeys(("past_key_values", "cache"), "the generator keeps keys and values itself"),
    "prefix_allowed_tokens_fn": "give logits_processor=[transformers.PrefixConstrainedLogitsProcessor(it, beams)]",
    **dict.fromkeys(("negative_prompt_ids", "negative_prompt_attention_mask"), NOT_DONE["guidance_scale"][1]),
    "inputs_embeds": "a step reads tokens: torch.compile(model.forward) runs in transformers' loop",
    **dict.fromkeys(
        ("custom_generate", "trust_remote_code"), "the loop is this one: torch.compile(model.forward) runs in any other"
    ),
    **dict.fromkeys(("position_ids", "cache_position"), "places follow from attention_mask: leave it out"),
    **dict.fromkeys(("tokenizer", "assistant_tokenizer"), "what needs one takes it itself: leave it out"),
    **dict.fromkeys((*_LEFT, "synced_gpus", "logits_to_keep"), "no token follows from it: leave it out"),
    "cache_implementation": "the caches are static; compile_generation(..., cache_dtype=torch.int8) keeps codes",
    **{name: hint for name, (_, hint) in NOT_DONE.items()},
}
_OF_SOURCES: Final = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")


def _first_tokens(tokens: Any, *given: Any) -> torch.Tensor:
    """Returns what texts of as many rows as are given begin with, (rows, 1) int64.

    Raises:
        InputError: They are no tokens, or of another number of rows.
    """
    rows = next((len(value) for value in given if isinstance(value, torch.Tensor) and value.dim()), 1)
    first = required_tokens(tokens, "decoder_start_token_id")
    if len(first) not in (1, rows):
        raise InputError(f"{len(first)} tokens begin the texts of {rows} rows", where="decoder_start_token_id")
    return torch.tensor(first, dtype=torch.int64, device=_CPU)[:, None].expand(rows, 1).contiguous()


def _device_of(*given: torch.Tensor | None) -> torch.device:
    return next(value.device for value in given if value is not None)


@dataclass(frozen=True)
class _Request:
    """What one call of `generate` is about.

    Attributes:
        prompt: (rows, length), int64.
        padding: How many of the first places of each row of the step are padding, (max_batch,) int64.
        given: What the encoder is given; () for nothing.
    """

    prompt: torch.Tensor
    padding: torch.Tensor
    given: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
class _Choosing:
    """How the tokens of one call of `generate` are chosen.

    Attributes:
        rules, choice: What the model, and the call, say of tokens.
        ends: What ends a row.
        begin: Tokens of the prompts.
        processors, criteria: Those of the caller.
        pad: What rows that have ended are filled up with.
        do_sample, generator: Whether tokens are drawn, and what draws.
        source: Tokens of the source, (rows, length) int64, where a number asks for them.
    """

    rules: TokenRules
    choice: TokenChoice
    ends: tuple[int, ...]
    begin: int
    processors: tuple[LogitsProcessor, ...]
    criteria: tuple[StoppingCriterion, ...]
    pad: int = 0
    do_sample: bool = False
    generator: torch.Generator | None = None
    source: torch.Tensor | None = None

    @property
    def is_alike(self) -> bool:
        """Whether every token is chosen by its scores and chance alone, once there are some and scores stay as they are."""
        return not (self.processors or self.criteria) and self.rules == TokenRules()

    def token(self, scores: torch.Tensor) -> torch.Tensor:
        """Chooses a token of each row, (rows,) int64, by scores, (rows, vocabulary) float32."""
        if not self.do_sample:
            return likeliest(scores)
        warped = self.choice.warped(scores)  # what follows is torch.multinomial, which waits for the device
        chances = (warped - warped.amax(-1, keepdim=True)).exp_()  # up to their sum, which decides nothing
        return likeliest(chances.div_(torch.empty_like(chances).exponential_(generator=self.generator)))

    def scores(self, scores: torch.Tensor, text: torch.Tensor, made: int) -> torch.Tensor:
        """Returns scores, (rows, vocabulary) float32, by all that is said; `text` is as long as it may be."""
        end, text = text.shape[1], text[:, :made]
        scores = self.rules.biased(scores, text)
        scores = self.choice.penalized(scores, text, self.begin, self.ends, self.source)
        scores = self.rules.applied(scores, text, self.begin, end, self.ends)
        for index, process in enumerate(self.processors):
            scores = _as_scores(process(text, scores), scores, index)
        return scores

    def stopped(self, text: torch.Tensor) -> torch.Tensor:
        """Which rows the criteria end, (rows,) bool."""
        told = torch.zeros(len(text), dtype=torch.bool, device=text.device)
        for index, criterion in enumerate(self.criteria):
            told = told | _as_flags(criterion(text, None), told, index)
        return told

    def ended(self, text: torch.Tensor, end: int) -> torch.Tensor:
        """Which rows end with their last token, (rows,) bool: by it, by criteria, or since no more are asked for."""
        told = self.stopped(text) | (text.shape[1] == end)
        return told | torch.isin(text[:, -1], text.new_tensor(self.ends)) if self.ends else told


def _as_scores(made: Any, scores: torch.Tensor, index: int) -> torch.Tensor:
    """Returns what a caller's processor made of scores, as they are.

    Raises:
        InputError: It is something else than scores.
    """
    if not isinstance(made, torch.Tensor) or made.shape != scores.shape:
        raise InputError(
            f"a processor returned {_described(made)} for scores of shape {tuple(scores.shape)}",
            where=f"logits_processor[{index}]",
            hint="return the scores, of the same shape",
        )
    return made.to(scores)


def _as_flags(made: Any, told: torch.Tensor, index: int) -> torch.Tensor:
    """Returns what a caller's criterion says of rows, (rows,) or () bool.

    Raises:
        InputError: It says something else.
    """
    is_flag = isinstance(made, (bool, torch.Tensor))
    flags = torch.as_tensor(made, device=told.device) if is_flag else told.new_empty(0)
    if flags.dtype is not torch.bool or flags.shape not in ((), told.shape):
        raise InputError(
            f"a criterion returned {_described(made)} for {len(told)} rows",
            where=f"stopping_criteria[{index}]",
            hint=f"return True or False, or a bool tensor of shape {tuple(told.shape)}: which rows end",
        )
    return flags


def _described(made: Any) -> str:
    """What a function returned, in words."""
    return kind_of(made) + (f" of {made.dtype}, {tuple(made.shape)}" if isinstance(made, torch.Tensor) else "")


def _likeliest(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = scores.topk(count)
    return values, places


def _drawn(
    do_sample: bool, generator: torch.Generator | None
) -> Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]] | None:
    def draw(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        # as torch.multinomial draws, which refuses rows where no token may come, and many beams of many tokens
        chances = scores.nan_to_num(nan=_LOWEST).softmax(-1)
        places = chances.div_(torch.empty_like(chances).exponential_(generator=generator)).topk(count).indices
        drawn, order = scores.gather(1, places).sort(-1, descending=True)  # texts that end are among the first ones
        return drawn, places.gather(1, order)

    return draw if do_sample else None


def _copies(beams: int, returned: int, *, do_sample: bool) -> int:
    """Returns how many rows of the step each prompt takes.

    Raises:
        InputError: As many texts cannot be returned.
    """
    if type(returned) is not int or returned < 1:
        raise InputError(f"num_return_sequences is a whole number from 1, not {returned!r:.80}")
    if beams == 1 and returned > 1 and not do_sample:
        raise InputError(
            f"{returned} texts for each prompt would be equal", hint="give do_sample=True or num_beams for others"
        )
    if 1 < beams < returned:
        raise InputError(f"{beams} beams do not give {returned} texts", hint="give more num_beams")
    return beams if beams > 1 else returned


class _Reader:
    """Reads the texts of one request with a step: what comes first, and what follows.

    Args:
        owner: The generator.
        request: What is asked for; its source is encoded.
        copies: How many rows of the step each prompt takes.

    Attributes:
        text: The prompts, (rows, length) int64.
        given: What each call of the step is given beside tokens and their place: padding, and what the encoder made.
        known: How many tokens of the prompts the caches hold already.
        filled: Places up to the last token of a piece that was read.

    Raises:
        InputError: Prompts have another number of places for pictures than the pictures fill.
    """

    def __init__(self, owner: TextGenerator, request: _Request, copies: int = 1) -> None:
        self._step = owner.step
        self._limits = owner.limits
        self.text = self._prompt = request.prompt
        padding = request.padding
        context: tuple[torch.Tensor, ...] = ()
        self._furthest: list[int] = []  # the last place that those up to each look at, where some look ahead
        source = owner.limits.source
        if source is not None and owner.encoder is not None:
            if source.image_token_id is not None:
                context = self._with_pictures(source, owner.encoder, request, owner.dtype)
            else:
                made = _tensors_of(owner.encoder(*request.given))
                context = (request.given[1], *made) if source.is_text else made
        if copies > 1:  # rows of the step are copies of each prompt, one after the other
            rows = torch.arange(len(padding), device=padding.device) // copies
            self.text, self._prompt = (one.repeat_interleave(copies, 0) for one in (self.text, self._prompt))
            padding = padding[rows]
            if source is not None and source.image_token_id is None:
                context = tuple(_rows_of(value, rows) for value in context)
            else:  # the table of pictures is that of all rows
                context = (*context[:1], *(planes[:, rows] for planes in context[1:]))
        self.given = (padding, *context)
        self.known = self.filled = 0
        self._vocabulary = 0  # which the first call tells
        self._is_told = owner.limits.assisted_tokens > 1
        self._last = (torch.zeros(1, dtype=torch.int64, device=request.prompt.device),) if self._is_told else ()

    def one_by_one(self, text: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields the logits after the prompt, and after each token that was written to `text` since."""
        rows, begin = self._prompt.shape
        yield self.first()
        start = torch.full((1,), begin, dtype=torch.int64, device=text.device)
        token = torch.zeros(self._limits.max_batch, 1, dtype=torch.int64, device=text.device)
        for place in range(begin, text.shape[1] - 1):
            token[:rows, 0] = text[:, place]
            yield self.after(token, start)
            start += 1

    def first(self) -> torch.Tensor:
        """Returns the logits after the prompt, (max_batch, vocabulary)."""
        return self.read(self._prompt[:, self.known :], self.known)[:, -1]

    def after(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Returns the logits after a token of each row, (max_batch, 1), at a place, (1,): (max_batch, vocabulary)."""
        return self._logits(token, place, self._last)[:, 0]

    def guessed(self, text: torch.Tensor, assistant: _Assistant) -> Iterator[torch.Tensor]:
        """Yields what `one_by_one` does, of which several come from one call of the step where guesses were right."""
        place = self._prompt.shape[1]  # of the last token, which was not read yet
        yield self.first()
        while place < text.shape[1] - 1:
            guesses = assistant.guess(text[:, : place + 1])[: text.shape[1] - 2 - place]
            tokens = torch.tensor([guesses], dtype=torch.int64, device=text.device)
            logits = self.read(torch.cat([text[:, place : place + 1], tokens], 1), place, 1 + len(guesses))
            for index, guess in enumerate([*guesses, None]):
                yield logits[:, index]
                place += 1
                if guess is None or int(text[0, place]) != guess:
                    break

    def read(self, tokens: torch.Tensor, start: int, asked: int = 1) -> torch.Tensor:
        """Reads tokens in pieces that cross no multiple of `prefill_chunk`, or cut nothing that looks ahead.

        Args:
            tokens: (rows, n), int64.
            start: Place of the first of them in the caches.
            asked: How many of the last of them logits are asked for.

        Returns:
            (max_batch, asked, vocabulary).
        """
        count = tokens.shape[1]
        place = torch.empty(1, dtype=torch.int64, device=tokens.device)
        found, first = [], 0
        while first < count:
            last = min(count, self._end_of_piece(start + first) - start)
            kept = last - max(first, count - asked)
            piece = _filled_up(tokens[:, first:last], self._limits.max_batch)
            told = (
                (torch.arange(min(last - kept, last - 1), last, device=tokens.device) - first,) if self._is_told else ()
            )
            logits = self._logits(piece, place.fill_(start + first), told)
            if kept > 0:
                found.append(logits)
            first = last
        self.filled = start + count
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def _end_of_piece(self, begin: int) -> int:
        """Where a piece ends that begins at a place.

        Raises:
            InputError: What looks ahead is longer than a piece.
        """
        chunk = self._limits.prefill_chunk
        if not self._furthest:
            return begin + chunk - begin % chunk
        ends = [end for end in range(begin + 1, len(self._furthest) + 1) if self._furthest[end - 1] < end]
        if ends[0] <= begin + chunk:
            return max(end for end in ends if end <= begin + chunk)
        raise InputError(
            f"{ends[0] - begin} tokens from place {begin} on look at each other, and {chunk} are read at once",
            where="input_ids",
            hint="compile with a larger prefill_chunk, or give fewer prompts at once",
        )

    def _logits(self, tokens: torch.Tensor, start: torch.Tensor, told: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Calls the step, and returns (max_batch, k, vocabulary).

        Raises:
            ExecutionError: It returns something else.
        """
        padding, *context = self.given
        made = self._step(tokens, start, padding, *told, *context)
        logits = made if self._is_told or not isinstance(made, torch.Tensor) else made.unsqueeze(1)
        if not self._are_logits(logits, len(tokens)):
            raise ExecutionError(
                f"the step returned {_described(made)}",
                why=f"logits of {len(tokens)} rows are expected, of one vocabulary in all calls",
                hint="compile the model again",
            )
        return logits

    def _are_logits(self, found: Any, rows: int) -> bool:
        """Whether a step's result is (rows, k, vocabulary), as those before."""
        if not isinstance(found, torch.Tensor) or found.dim() != 3 or len(found) != rows or 0 in found.shape:
            return False
        self._vocabulary = self._vocabulary or found.shape[2]
        return found.is_floating_point() and found.shape[2] == self._vocabulary

    def _with_pictures(
        self, source: SourceLimits, encoder: nn.Module, request: _Request, dtype: torch.dtype
    ) -> tuple[torch.Tensor, ...]:
        """Returns the table of features, (rows, width), and puts the numbers of its rows into the prompts.

        Where pictures have a layout, (planes, max_batch, max_length) int64 follows; see `_layout`.
        """
        _require_room(source.rows * source.width * dtype.itemsize, "the table of features")
        table = torch.zeros(source.rows, source.width, dtype=dtype, device=self._prompt.device)
        pictures, *beside = request.given or (table[:0],)
        is_picture = torch.eq(self._prompt, source.image_token_id or 0)
        places, step = int(is_picture.sum()), source.pictures
        if not source.counts:
            self._require_places(source, places, len(pictures), len(pictures) * source.picture_rows)
            _require_rows(source, len(pictures), places)
        made = 0
        for first in range(0, len(pictures), step):
            some = pictures[first : first + step]
            told = (_filled_up(each[first : first + step], step, 1) for each in beside)
            features = self._features(source, encoder(_filled_up(some, step), *told), len(some))
            _require_rows(source, len(pictures), made + len(features))
            table[made : made + len(features)] = features
            made += len(features)
        self._require_places(source, places, len(pictures), made)
        numbers = torch.arange(made, device=table.device) + source.vocabulary
        self._prompt = self._prompt.masked_scatter(is_picture, numbers)
        layout = (self._layout(source, is_picture, request.padding),) if source.ahead or source.grid else ()
        return table, *layout

    def _require_places(self, source: SourceLimits, places: int, count: int, filled: int) -> None:
        """Holds places of prompts to the rows that so many pictures or sounds fill.

        Raises:
            InputError: They differ.
        """
        if places != filled:
            raise InputError(
                f"the prompts have {places} places for {source.are}, and {count} {source.are} fill {filled}",
                where="input_ids",
                hint=f"make prompts and {source.are} by one call of the model's processor",
            )

    def _features(self, source: SourceLimits, made: Any, count: int) -> torch.Tensor:
        """Returns the rows that the first of the encoder's pictures or sounds fill, (n, width).

        Raises:
            ExecutionError: The encoder returned something else.
        """
        features, *others = _tensors_of(made)
        extents = (source.pictures, source.picture_rows, source.width)
        if (
            len(others) != source.counts
            or tuple(features.shape) != extents
            or any((each.dtype, tuple(each.shape)) != (torch.bool, extents[:2]) for each in others)
        ):
            raise ExecutionError(
                f"the encoder returned {1 + len(others)} tensors, the first of shape {tuple(features.shape)}",
                why=f"one of shape {extents} is expected" + (", and which rows are filled" if source.counts else ""),
                hint="compile the model again",
            )
        return features[:count][others[0][:count]] if others else features[:count].flatten(0, 1)

    def _layout(self, source: SourceLimits, is_picture: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Returns what pictures say of places, (planes, max_batch, max_length) int64.

        Where tokens look ahead, the last place that each looks at; else its position on three axes: those of a picture
        go on with its row and column, and the text after it from the larger of its extents on (`get_rope_index` of
        Qwen2-VL).

        Raises:
            InputError: A picture is cut by text, or does not fit into a piece.
        """
        rows, length = is_picture.shape
        batch, most, filled = self._limits.max_batch, self._limits.max_length, source.picture_rows
        _require_room(3 * 8 * batch * most, "the layout of pictures")
        whole = is_picture.flatten().nonzero().view(-1, filled)
        if bool((whole[:, -1] - whole[:, 0] >= filled).any() | (whole[:, -1] // length != whole[:, 0] // length).any()):
            raise InputError(f"the {filled} places of a picture do not follow each other", where="input_ids")
        places = torch.arange(most, device=padding.device)
        inside = places.new_zeros(batch, most)
        inside[:rows, :length] = (self._prompt - source.vocabulary).masked_fill(~is_picture, 0) % filled
        pictured = torch.zeros_like(inside, dtype=torch.bool)
        pictured[:rows, :length] = is_picture
        if source.ahead:
            last = torch.where(pictured, places + filled - 1 - inside, places)
            if source.ahead == _PROMPTS:
                last = last.clamp(min=length - 1)
            self._furthest = last.amax(0).cummax(0).values.tolist()
            begin = 0
            while begin < length:
                begin = self._end_of_piece(begin)
            return last[None]
        height, width = source.grid
        passed = (pictured & (inside == 0)).cumsum(1) - pictured.long()
        first = (places - padding[:, None]).clamp(min=0) - passed * (filled - max(height, width)) - inside
        return torch.stack([first, first + inside // width, first + inside % width])


def _require_rows(source: SourceLimits, count: int, filled: int) -> None:
    """Holds rows that pictures or sounds fill to those of the table.

    Raises:
        InputError: There are fewer.
    """
    if filled > source.rows:
        raise InputError(
            f"{count} {source.are} fill too many rows: the model was compiled for {source.rows}",
            where=source.inputs[0],
            hint="give fewer, or compile with a larger max_batch or max_length",
        )


def _tensors_of(made: Any) -> tuple[torch.Tensor, ...]:
    """What an encoder returned.

    Raises:
        ExecutionError: That is something else than tensors.
    """
    if not isinstance(made, (tuple, list)) or not made or any(not isinstance(one, torch.Tensor) for one in made):
        raise ExecutionError(
            f"the encoder returned {kind_of(made)}", why="tensors are expected", hint="compile the model again"
        )
    return tuple(made)


def _rows_of(value: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of what an encoder made, as many as there are for the step.

    Raises:
        ExecutionError: It has another number of rows.
    """
    if not value.dim() or len(value) != len(rows):
        raise ExecutionError(
            f"the encoder returned a tensor of shape {tuple(value.shape)}",
            why=f"tensors of {len(rows)} rows are expected",
            hint="compile the model again",
        )
    return value[rows]


class _Decoding:
    """Tokens of one call as they are made: the text, the last token, its place, and which rows have ended.

    All of that stays on the device, where each token is chosen and fed to the next step; on a GPU nothing waits for it.

    Args:
        reader: Reads the text with the step.
        how: How tokens are chosen.
        end: Most tokens of a row.
    """

    def __init__(self, reader: _Reader, how: _Choosing, end: int) -> None:
        rows, device = len(reader.text), reader.text.device
        self._how, self._reader = how, reader
        self._text = reader.text.new_full((rows, end), how.pad)
        self._text[:, : how.begin] = reader.text
        self._token = self._text.new_zeros(len(reader.given[0]), 1)
        self._place = self._text.new_full((1,), how.begin - 1)
        self._ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self._count = self._text.new_zeros(1)
        self._ends = torch.tensor(how.ends, dtype=torch.int64, device=device) if how.ends else None
        self._may_end = bool(how.ends or how.criteria)
        self._made, self._end = how.begin, end
        self._looked: tuple[int, torch.Tensor, torch.cuda.Event] | None = None
        self._are_unchanged = False  # the scores of the last token, by what is said of tokens
        self._recorded: tuple[torch.Tensor, torch.cuda.CUDAGraph] | None = None

    def tokens(self, assistant: _Assistant | None, streamer: Streamer | None) -> torch.Tensor:
        """Makes the tokens, and returns prompts and tokens up to the end of the last row, (rows, length) int64."""
        waits = streamer is not None or bool(self._how.criteria) or self._text.device.type != "cuda"
        for _ in self._turns(assistant):
            if streamer is not None:
                streamer.put(self._token[: len(self._text), 0].to("cpu", copy=True))
            if self._made == self._end or (self._may_end and self._have_ended(waits=waits)):
                break
        return self._text[:, : self._how.begin + int(self._count) if self._may_end else self._made].clone()

    def read_tokens(self) -> torch.Tensor:
        """Returns the tokens that the caches hold, (rows, length) int64: all but the last."""
        return self._text[:, : self._made - 1].clone()

    def _turns(self, assistant: _Assistant | None) -> Iterator[None]:
        if assistant is not None:
            for logits in self._reader.guessed(self._text, assistant):
                self._take(logits)
                yield
            return
        self._take(self._reader.first())
        yield
        while True:
            self._take(self._reader.after(self._token, self._place))
            yield

    def _take(self, logits: torch.Tensor) -> None:
        """Chooses the token that follows, by logits of (max_batch, vocabulary)."""
        logits = logits[: len(self._text)]
        if self._recorded is not None:
            read, graph = self._recorded
            read.copy_(logits)
            graph.replay()
        else:
            self._choose(logits)
        self._made += 1
        if self._made == self._how.begin + _TOKENS_BEFORE_RECORDING and self._end - self._made >= _WORTH_RECORDING:
            self._recorded = self._record(logits)

    def _choose(self, logits: torch.Tensor) -> None:
        """Chooses a token of each row by logits of (rows, vocabulary), and notes what follows from it."""
        how, rows = self._how, len(self._text)
        wide = logits.to(torch.float32)
        scores = how.scores(wide, self._text, self._made)
        self._are_unchanged = scores is wide
        token = how.token(scores)
        self._place += 1
        if self._may_end:
            self._count += ~self._ended.all()
            token = token.masked_fill(self._ended, how.pad)
        self._text.index_copy_(1, self._place, token[:, None])
        self._token[:rows, 0] = token
        if self._ends is not None:
            self._ended |= torch.isin(token, self._ends)
        if how.criteria:
            self._ended |= how.stopped(self._text[:, : self._made + 1])

    def _record(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.CUDAGraph] | None:
        """Where logits are copied to, and what chooses a token by them; None where that is no CUDA graph.

        It is ten kernels, forty where tokens are drawn, which take the host longer to start than the device to run.
        """
        device = logits.device
        if device.type != "cuda" or not (self._are_unchanged and self._how.is_alike):
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        if not CAPTURING.acquire(blocking=False):
            return None
        try:
            read = logits.clone()
            stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
            graph, _ = capture(lambda: self._choose(read), stream, pool, self._how.generator)
        except RuntimeError:  # there is no memory, or an operator waits for the device
            return None
        finally:
            CAPTURING.release()
        return read, graph

    def _have_ended(self, *, waits: bool) -> bool:
        """Whether all rows are known to have ended; on a GPU by what was so some steps ago, of which nothing waits."""
        if waits:
            return bool(self._ended.all())
        if self._looked is None or self._made >= self._looked[0] + _STEPS:
            before = self._looked
            flag = torch.empty((), dtype=torch.bool, pin_memory=True, device="cpu").copy_(
                self._ended.all(), non_blocking=True
            )
            self._looked = (self._made, flag, torch.cuda.Event())
            self._looked[2].record(torch.cuda.current_stream(self._text.device))
            if before is not None:
                before[2].synchronize()
                return bool(before[1])
        return False


class _Assistant(Protocol):
    """Guesses tokens."""

    def expect(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, source: Mapping[str, Any]) -> None:
        """Is told what `generate` was asked.

        Raises:
            InputError: It cannot be of help with that.
        """

    def guess(self, text: torch.Tensor) -> list[int]:
        """Returns what may follow a text, (1, length) int64; nothing where it has no idea."""


class _Lookup:
    """Guesses what followed the last tokens where they stand earlier in the text."""

    def __init__(self, most: int) -> None:
        self._most = most

    def expect(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, source: Mapping[str, Any]) -> None:
        pass

    def guess(self, text: torch.Tensor) -> list[int]:
        tokens: list[int] = text[0].tolist()
        for size in range(min(_LOOKED_UP, len(tokens) - 1), 0, -1):
            pattern = tokens[-size:]
            for at in range(len(tokens) - size - 1, -1, -1):
                if tokens[at : at + size] == pattern:
                    return tokens[at + size : at + size + self._most]
        return []


class _Draft:
    """Guesses what another model takes for the likeliest."""

    def __init__(self, model: TextGenerator, most: int) -> None:
        self._model = model
        self._most = most
        self._read: list[int] = []
        self._asked: _Request | None = None
        self._reader: _Reader | None = None

    def expect(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, source: Mapping[str, Any]) -> None:
        own = self._model.limits.source
        self._asked = self._model._read(input_ids, attention_mask, decoder_input_ids, {} if own is None else source)
        self._model._read_count(self._asked.prompt.shape[1], None)
        self._model._cached = None

    def guess(self, text: torch.Tensor) -> list[int]:
        assert self._asked is not None
        if self._reader is None:
            self._reader = _Reader(self._model, self._asked)
        tokens: list[int] = text[0].tolist()
        known = self._known(tokens)
        room = min(self._most, self._model.limits.max_length - len(tokens) + 1)
        guesses: list[int] = []
        while len(guesses) < room:
            more = [*tokens, *guesses][known:]
            logits = self._reader.read(text.new_tensor([more]), known)
            known += len(more)
            guesses.append(int(logits[0, -1].argmax()))
        self._read = [*tokens, *guesses[:-1]]
        return guesses

    def _known(self, tokens: Sequence[int]) -> int:
        """How many tokens of a text were read before; at most all but the last."""
        assert self._reader is not None
        begin = len(self._reader._prompt[0])
        if not self._read:
            self._reader.read(self._reader._prompt, 0)
            return begin
        pairs = zip(self._read, tokens[:-1])  # noqa: B905 - as far as both go
        known = next(
            (index for index, (one, other) in enumerate(pairs) if one != other), min(len(self._read), len(tokens) - 1)
        )
        if self._model._goes_on(known, len(self._read)):
            return known
        self._reader.read(self._reader._prompt, 0)
        return begin


def required_tokens(value: Any, name: str) -> tuple[int, ...]:
    """Returns what was given as a token or a list of them.

    Raises:
        InputError: It is something else, which is called by its name.
    """
    try:
        tokens = read_tokens(value) if isinstance(value, (int, list, tuple)) else None
    except TypeError:
        tokens = None
    if tokens is None or any(abs(token) > typed.LARGEST for token in tokens):
        raise InputError(f"{name} is a token or a list of them, not {value!r:.80}")
    return tokens
