"""Generates text with a compiled step: prefill in chunks, one token a step, on the step's device.

A step computes the logits that follow a piece of every row's text, and keeps keys and values of all earlier pieces in
caches of its own. The generator calls it in a loop; it knows tokens, and nothing of what the step is made of.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import torch
from torch import fx, nn

from trt_core.attributes import is_state
from trt_core.cached_property import cached_property
from trt_core.errors import InputError, PlanError
from trt_core.forked_lock import ForkedLock
from trt_core.held_arguments import held_to_signature
from trt_core.wording import kind_of
from trt_runtime.generation.assistants import Assistant, Lookup
from trt_runtime.generation.choosing import Choosing, LogitsProcessor, StoppingCriterion, drawing, likeliest_places
from trt_runtime.generation.decoding import Decoding
from trt_runtime.generation.inputs import (
    CPU,
    MASK,
    PICTURE_COUNTS,
    PICTURE_MASK,
    TOKEN_TYPES,
    Request,
    Streamer,
    check_mask,
    check_types,
    copies_of_prompts,
    count_of_new,
    device_of,
    filled_up,
    first_tokens_of,
    padding_of,
    read_beside,
    read_pictures,
    read_sounds,
    require_known,
    require_room,
    require_streamer,
    require_tokens,
    require_values,
    required_tokens,
    sized_pictures,
)
from trt_runtime.generation.limits import METADATA, SOUNDS, SOURCE_STEP, GenerationLimits, SourceLimits
from trt_runtime.generation.options import TOKEN_OPTIONS, options_of, unknown_argument
from trt_runtime.generation.reading import Reader
from trt_runtime.isolation.isolated_program import IsolatedProgram
from trt_runtime.program.interface import DynamicSize, TensorSpec, notebook_html
from trt_runtime.program.loaded_program import LoadedProgram, captured_from
from trt_runtime.program.loading import LoadKeywords, load_with
from trt_runtime.program.saving import save_with
from trt_runtime.token_choice import RULE_OPTIONS, BeamOptions, Beams, TokenChoice

if TYPE_CHECKING:
    from typing_extensions import Unpack


_MOST_CONTINUED: Final = 256
"""Continuations of each text that a beam search looks at."""

_CODES: Final = (torch.int8, torch.uint8)
"""Types of what caches hold that numbers with a fraction are made of."""

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Types of so many bytes, of which any is as good as another where rows change places."""

_P = ParamSpec("_P")


def _configurable(generate: Callable[_P, torch.Tensor]) -> Callable[_P, torch.Tensor]:
    """Has `generate` take from a `generation_config` of transformers what it is not given."""

    @functools.wraps(generate)
    def configured(*args: _P.args, **kwargs: _P.kwargs) -> torch.Tensor:
        given: dict[str, Any] = dict(kwargs)
        config = given.pop("generation_config", None)
        if config is not None:
            given = {**options_of(config), **given}
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
        return next((cache.device for cache in self._caches()), CPU)

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
        source = {name: value for name, value in others.items() if name not in TOKEN_OPTIONS}
        options = {name: value for name, value in others.items() if name in TOKEN_OPTIONS}
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
        copies = copies_of_prompts(beams.count, num_return_sequences, do_sample=do_sample)
        if decoder_input_ids is None and decoder_start_token_id is not None and self.limits.is_encoder_decoder:
            decoder_input_ids = first_tokens_of(decoder_start_token_id, input_ids, *source.values())
        asked = self._read(input_ids, attention_mask, decoder_input_ids, source, copies)
        if keep_cache and asked.given:
            raise InputError(
                "caches are kept for texts alone: what they hold follows from the source, too",
                where="keep_cache",
                hint="leave it out, or give no pictures",
            )
        rows, begin = asked.prompt.shape
        new = self._read_count(begin, count_of_new(begin, max_length) if max_new_tokens is None else max_new_tokens)
        ends = required_tokens(self.limits.eos_token_ids if eos_token_id is None else eos_token_id, "eos_token_id")
        (pad,) = required_tokens([self.limits.pad_token_id if pad_token_id is None else pad_token_id], "pad_token_id")
        assistant = self._assistant(prompt_lookup_num_tokens, assistant_model, num_assistant_tokens)
        if assistant is not None:
            if do_sample or rows * copies > 1:
                raise InputError("guesses are for one row, without sampling", hint="leave assistant and lookup out")
            assistant.expect(input_ids, attention_mask, decoder_input_ids, source)
        require_streamer(streamer, copies)
        if generator is not None and generator.device.type != self.device.type:
            raise InputError(
                f"the generator draws on {generator.device}, and the step runs on {self.device}",
                where="generator",
                hint=f"give torch.Generator({self.device.type!r})",
            )
        reader = Reader(self, asked, copies)
        require_room(8 * rows * copies * (begin + new), "the text")
        if keep_cache:
            reader.known = self._known(reader)
        self._cached = None
        self._passed = (self.limits.pad_token_id, pad)
        request = Choosing(
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
        back = device_of(input_ids, *source.values())
        if beams.count > 1:
            return self._search(reader, request, beams, begin + new, num_return_sequences).to(back)
        if streamer is not None:
            streamer.put(asked.prompt.cpu())
        decoding = Decoding(reader, request, begin + new)
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

    def _known(self, reader: Reader) -> int:
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

    def _search(self, reader: Reader, request: Choosing, options: BeamOptions, end: int, count: int) -> torch.Tensor:
        """Returns the best texts of a beam search, (rows * count, length) int64; see `Choosing` and `Beams`."""
        ends, made, pad = request.ends, request.begin, request.pad
        text = reader.text.new_full((len(reader.text), end), pad)
        text[:, :made] = reader.text
        draw = drawing(request.do_sample, request.generator)
        beams = Beams(text, made, options, pad or (ends[0] if ends else pad))  # fills up as transformers does
        least = max(2, len(ends) + 1)
        if least > _MOST_CONTINUED:
            raise InputError(
                f"{len(ends)} tokens end a row, and each text of a search is continued by as many and one more",
                where="num_beams",
                hint=f"give an eos_token_id of {_MOST_CONTINUED - 1} at most, or leave the beams out",
            )
        require_room(8 * len(text) * least * end, "the texts of a search")
        for logits in reader.one_by_one(text):
            chances = request.scores(logits[: len(text)].to(torch.float32).log_softmax(-1), text, made)
            if draw is not None:
                chances = request.choice.warped(chances, least)
            if request.choice.renormalize_logits:
                chances = chances.log_softmax(-1)
            kept = min(least * options.count, options.count * chances.shape[1])
            order = beams.take(chances, made, lambda texts: request.ended(texts, end), draw or likeliest_places, kept)
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
            require_known(tokens, known, self._passed, "input_ids")
        self._require_next(int(start), tokens.shape[1])
        if bool(((padding < 0) | (padding > limits.max_length)).any()):
            raise InputError(
                f"padding is 0 to {limits.max_length} places of each row, not {padding.tolist()!r:.80}", where="padding"
            )
        if limits.assisted_tokens > 1 and len(given) > 3 and _is_read(given[3], 1):
            kept, count = given[3], tokens.shape[1]
            if bool(((kept < 0) | (kept >= count)).any()):
                raise InputError(
                    f"logits are asked for of the tokens 0 to {count - 1} of a call, not of {kept.tolist()!r:.80}",
                    where="kept",
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

    def _assistant(self, looked_up: int | None, model: TextGenerator | None, count: int | None) -> Assistant | None:
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
            return Lookup(number)
        if model is self:
            raise InputError("a model cannot assist itself: its caches would hold both texts", where="assistant_model")
        if model.limits.is_encoder_decoder != self.limits.is_encoder_decoder:
            raise InputError("the assistant is a model of another kind", where="assistant_model")
        return _Draft(model, number)

    def _read(
        self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, others: Mapping[str, Any], copies: int = 1
    ) -> Request:
        """Returns what is asked for, on the step's device, of which each row is to take some rows of the step.

        Raises:
            InputError: Something does not fit.
        """
        source = self.limits.source
        names = () if source is None or source.is_text else source.inputs
        said: dict[str, Any] = {}
        if source is not None and source.image_token_id is not None:
            said = {
                name: value for name, value in others.items() if name in (PICTURE_MASK, PICTURE_COUNTS, *TOKEN_TYPES)
            }
            others = {name: value for name, value in others.items() if name not in said}
        for name in others:
            if name not in names:
                raise unknown_argument(name, names)
        if source is None or source.start_token_id is None:
            if decoder_input_ids is not None:
                raise unknown_argument("decoder_input_ids", names)
            prompt, padding = self._read_prompt(input_ids, attention_mask, copies)
            if source is None:
                return Request(prompt, padding)
            for name in TOKEN_TYPES:
                check_types(source, prompt, said.get(name), name)
            if not others:
                return Request(prompt, padding)
            if lacking := [name for name in names if name not in others]:
                raise InputError(f"{source.are} are given as {', '.join(names)}", where=lacking[0])
            values, *told = (self._read_input(others[name], name) for name in names)
            masks = said.get(PICTURE_MASK)
            if names[0] == SOUNDS:
                pictures = read_sounds(values)
            else:
                pictures = sized_pictures(source, values, told.pop(0)) if source.size else read_pictures(values, masks)
            return Request(prompt, padding, (pictures, *read_beside(source, told, len(pictures))))
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
        return Request(decoder_input_ids.to(self.device, torch.int64), padding, given)

    def _read_features(
        self, source: SourceLimits, input_ids: Any, mask: Any, others: Mapping[str, Any], copies: int
    ) -> tuple[int, tuple[torch.Tensor, ...]]:
        """Returns how many rows an encoder-decoder is asked for, and what its encoder is given, which is no text."""
        if mask is not None and MASK in source.inputs:
            others = {**others, MASK: mask}
        elif mask is not None and not source.ignores_mask:
            require_values(mask, MASK)
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
            name: filled_up(value, self.limits.max_batch) for name, value in zip(source.inputs, given, strict=True)
        }
        if MASK in filled:
            require_tokens(filled[MASK][:rows])
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
        check_mask(mask, rows, length)
        require_tokens(mask)
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
            padding[:rows] = padding_of(attention_mask, rows, length)
        return input_ids.to(self.device, torch.int64), padding.to(self.device)

    def _check_tokens(self, ids: Any, name: str, copies: int = 1) -> None:
        """Holds prompts to what the step takes.

        Raises:
            InputError: They do not fit.
        """
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            given = f"a tensor of {ids.dtype}" if isinstance(ids, torch.Tensor) else kind_of(ids)
            raise InputError(
                f"prompts are a tensor of int64 or int32 tokens, not {given}",
                where=name,
                hint='give what a tokenizer returns for return_tensors="pt"',
            )
        require_values(ids, name)
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
            require_known(ids, known, (limits.pad_token_id, *(() if image is None else (image,))), name)

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


def _is_call(given: Sequence[Any]) -> bool:
    """Whether a step is given tokens, a place and padding that may be looked at without waiting for a device."""
    if len(given) < 3 or torch.compiler.is_compiling():
        return False
    return _is_read(given[0], 2) and _is_read(given[1], 1) and _is_read(given[2], 1) and given[1].numel() == 1


def _is_read(value: Any, rank: int) -> bool:
    is_dense = type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided
    return is_dense and value.dim() == rank and not value.is_floating_point()


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


_OF_SOURCES: Final = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")


class _Draft:
    """Guesses what another model takes for the likeliest."""

    def __init__(self, model: TextGenerator, most: int) -> None:
        self._model = model
        self._most = most
        self._read: list[int] = []
        self._asked: Request | None = None
        self._reader: Reader | None = None

    def expect(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, source: Mapping[str, Any]) -> None:
        own = self._model.limits.source
        self._asked = self._model._read(input_ids, attention_mask, decoder_input_ids, {} if own is None else source)
        self._model._read_count(self._asked.prompt.shape[1], None)
        self._model._cached = None

    def guess(self, text: torch.Tensor) -> list[int]:
        assert self._asked is not None
        if self._reader is None:
            self._reader = Reader(self._model, self._asked)
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
