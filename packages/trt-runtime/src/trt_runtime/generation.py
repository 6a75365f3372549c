"""Generates text with a compiled step: prefill in chunks, one token a step, greedy or sampled, on the step's device.

A step computes the logits that follow a piece of every row's text, and keeps keys and values of all earlier pieces in
caches of its own. What is here calls it in a loop; it knows tokens, and nothing of what the step is made of.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn

from trt_core.errors import InputError, PlanError
from trt_core.wording import kind_of
from trt_runtime.program import load
from trt_runtime.program.saving import save

_METADATA: Final = "generation"
"""Name of the entry of a saved program's metadata that says what its step takes."""

_CHECK_EVERY: Final = 8
"""Steps between two looks at whether all rows have ended, on devices where looking means waiting."""

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Changes scores before a token is chosen: tokens so far, (rows, length), and scores, (rows, vocabulary) float32."""


class Streamer(Protocol):
    """Takes tokens as they come; the streamers of transformers are such."""

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, (rows, length), and then the tokens of each step, (rows,), all int64 on the CPU."""

    def end(self) -> None:
        """Is told that no more tokens come."""


@dataclass(frozen=True)
class GenerationLimits:
    """What a step was compiled for.

    Attributes:
        max_batch: Rows of every call of the step; a prompt of fewer rows is filled up.
        max_length: Tokens that the caches hold for a row, those of the prompt included.
        prefill_chunk: Most tokens of a row that one call of the step takes.
        eos_token_ids: Tokens that end a row, unless a call says otherwise.
        pad_token_id: What rows that have ended are filled up with.
    """

    max_batch: int
    max_length: int
    prefill_chunk: int
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0

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
            fields = json.loads(text)
            numbers = [fields[name] for name in ("max_batch", "max_length", "prefill_chunk", "pad_token_id")]
            tokens = tuple(fields["eos_token_ids"])
            if any(type(value) is not int for value in (*numbers, *tokens)) or min(numbers[:3]) < 1:
                raise ValueError(text)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"the program says in no readable way what it generates: {text!r:.200}") from error
        return cls(numbers[0], numbers[1], numbers[2], tokens, numbers[3])


class TextGenerator(nn.Module):
    """Generates tokens with a compiled step.

    Calls are made one after the other: they share the step's caches.

    Args:
        step: Called with `input_ids`, (max_batch, n) int64, n from 1 to `prefill_chunk`; `start`, (1,) int64, the place
            of the first of them in the caches; and `padding`, (max_batch,) int64, how many of the first places of each
            row are padding. Returns the logits after the last token of each row, (max_batch, vocabulary). Keys and
            values of the tokens are kept in its buffers.
        limits: What the step was compiled for.

    Example:
        >>> generator = TextGenerator.load("model.trtp")  # doctest: +SKIP
        >>> generator.generate(torch.tensor([[1, 42, 7]]), max_new_tokens=16)  # doctest: +SKIP
    """

    def __init__(self, step: nn.Module, limits: GenerationLimits) -> None:
        super().__init__()
        self.step = step
        self.limits = limits

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> TextGenerator:
        """Loads what `save` wrote; transformers is not needed.

        Args:
            path: The file.
            options: As for `trt_runtime.load`.

        Raises:
            PlanError: The file is damaged, or holds a program that generates no text.
        """
        step = load(path, **options)
        text = getattr(step, "meta", {}).get(_METADATA)
        if text is None:
            raise PlanError(
                "the program generates no text",
                where=str(path),
                hint="load it with trt_runtime.load; compile_generation makes one that generates",
            )
        return cls(step, GenerationLimits.from_text(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves step and limits as one program; the file appears complete or not at all.

        Raises:
            ExportError: The step holds something that has no place in a program.
            OSError: The file cannot be written.
        """
        save(self.step, path, metadata={_METADATA: self.limits.to_text()})

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        return next((buffer.device for buffer in self.step.buffers() if buffer.dtype.is_floating_point), _CPU)

    @torch.no_grad()
    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        logits_processor: Sequence[LogitsProcessor] = (),
        streamer: Streamer | None = None,
    ) -> torch.Tensor:
        """Continues prompts, until each has ended or there are `max_new_tokens` more.

        Args:
            input_ids: Prompts, (rows, length), int64 or int32; shorter ones are padded on the left.
            attention_mask: (rows, length): 0 where `input_ids` is padding, else 1. None for no padding.
            max_new_tokens: Most tokens to add; None for as many as the caches hold.
            eos_token_id: Tokens that end a row; None for those of the limits, `()` for none.
            pad_token_id: What rows that have ended are filled up with; None for that of the limits.
            do_sample: Draw tokens by their probabilities, else take the likeliest.
            temperature: Scores are divided by it before drawing.
            top_k: Draw from the k likeliest tokens alone.
            top_p: Draw from the fewest likeliest tokens whose probabilities reach this sum.
            generator: What draws; None for PyTorch's own on the step's device.
            logits_processor: Change the scores before a token is chosen, one after the other.
            streamer: Takes tokens as they come.

        Returns:
            Prompts and what follows them, (rows, length + new), int64, on the device of `input_ids`.

        Raises:
            InputError: Something does not fit; nothing was written to the caches then.
        """
        prompt, padding = self._read_prompt(input_ids, attention_mask)
        new = self._read_count(prompt.shape[1], max_new_tokens)
        ends = _read_tokens(self.limits.eos_token_ids if eos_token_id is None else eos_token_id, "eos_token_id")
        pad = self.limits.pad_token_id if pad_token_id is None else pad_token_id
        if type(pad) is not int:
            raise InputError(f"pad_token_id is a token, not {pad!r:.80}")
        choose = _chooser(do_sample, temperature, top_k, top_p, generator)
        rows, begin = prompt.shape
        if streamer is not None:
            streamer.put(prompt.cpu())
        text = torch.full((rows, begin + new), pad, dtype=torch.int64, device=self.device)
        text[:, :begin] = prompt
        ended = _Ends(ends, rows, self.device)
        made = begin
        for logits in self._logits(text, padding, begin):
            scores = logits[:rows].to(torch.float32)
            for process in logits_processor:
                scores = process(text[:, :made], scores)
            text[:, made] = token = ended.take(choose(scores), pad)
            made += 1
            if streamer is not None:
                streamer.put(token.cpu())
            if made == begin + new or ended.all_have(waiting=streamer is not None):
                break
        if streamer is not None:
            streamer.end()
        return text[:, : ended.length(text, begin, made)].to(input_ids.device)

    def reset(self) -> None:
        """Forgets what the caches hold. A call of `generate` begins anew by itself."""
        for buffer in self.step.buffers():
            if buffer.dtype.is_floating_point:
                buffer.zero_()

    def extra_repr(self) -> str:
        """Says what the step was compiled for."""
        return f"max_batch={self.limits.max_batch}, max_length={self.limits.max_length}"

    def _logits(self, text: torch.Tensor, padding: torch.Tensor, begin: int) -> Iterator[torch.Tensor]:
        """Yields the logits after the prompt, and after each token that was written to `text` since."""
        rows = text.shape[0]
        start = torch.zeros(1, dtype=torch.int64, device=self.device)
        logits = None
        for first in range(0, begin, self.limits.prefill_chunk):
            piece = text[:, first : min(first + self.limits.prefill_chunk, begin)]
            start.fill_(first)
            logits = self.step(self._filled_up(piece), start, padding)
        assert logits is not None  # a prompt has a token
        yield logits
        start.fill_(begin)
        token = torch.zeros(self.limits.max_batch, 1, dtype=torch.int64, device=self.device)
        for place in range(begin, text.shape[1] - 1):
            token[:rows, 0] = text[:, place]
            yield self.step(token, start, padding)
            start += 1

    def _filled_up(self, piece: torch.Tensor) -> torch.Tensor:
        missing = self.limits.max_batch - piece.shape[0]
        return torch.cat([piece, piece.new_zeros(missing, piece.shape[1])]) if missing else piece.contiguous()

    def _read_prompt(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the prompts, (rows, length), and the padding of each row of the step, on its device.

        Raises:
            InputError: They do not fit.
        """
        if not isinstance(input_ids, torch.Tensor) or input_ids.dtype not in (torch.int64, torch.int32):
            raise InputError(
                f"prompts are a tensor of int64 or int32 tokens, not {kind_of(input_ids)}", where="input_ids"
            )
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise InputError(
                f"prompts have shape {tuple(input_ids.shape)}",
                where="input_ids",
                hint="give (rows, length), each with a token at least",
            )
        rows, length = input_ids.shape
        if rows > self.limits.max_batch:
            raise InputError(
                f"{rows} prompts are more than the {self.limits.max_batch} rows of the caches",
                where="input_ids",
                hint="give fewer at once, or compile with a larger max_batch",
            )
        padding = torch.zeros(self.limits.max_batch, dtype=torch.int64)
        if attention_mask is not None:
            padding[:rows] = _padding_of(attention_mask, rows, length)
        return input_ids.to(self.device, torch.int64), padding.to(self.device)

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


_CPU: Final = torch.device("cpu")


class _Ends:
    """Which rows have ended.

    Args:
        tokens: What ends a row.
        rows: How many there are.
        device: Where tokens are chosen.
    """

    def __init__(self, tokens: Sequence[int], rows: int, device: torch.device) -> None:
        self._tokens = torch.tensor(tokens, dtype=torch.int64, device=device) if tokens else None
        self._ended = torch.zeros(rows, dtype=torch.bool, device=device)
        self._steps = 0

    def take(self, token: torch.Tensor, pad: int) -> torch.Tensor:
        """Returns the tokens of a step, (rows,): of rows that have ended before, `pad`."""
        if self._tokens is None:
            return token
        token = torch.where(self._ended, pad, token)
        self._ended |= torch.isin(token, self._tokens)
        return token

    def all_have(self, *, waiting: bool) -> bool:
        """Whether all rows are known to have ended; on a GPU it is looked up now and then, since that waits for it."""
        if self._tokens is None:
            return False
        self._steps += 1
        look = waiting or self._ended.device.type == "cpu" or self._steps % _CHECK_EVERY == 0
        return look and bool(self._ended.all())

    def length(self, text: torch.Tensor, begin: int, made: int) -> int:
        """How many columns of a text are its own: those up to the last row's end."""
        if self._tokens is None:
            return made
        is_end = torch.isin(text[:, begin:made], self._tokens)
        first = torch.where(is_end.any(1), is_end.to(torch.uint8).argmax(1), made - begin - 1)
        return begin + int(first.max()) + 1


def _padding_of(mask: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Returns how many places at the left of each row are padding, (rows,) int64 on the CPU."""
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (rows, length):
        raise InputError(
            f"the mask does not fit prompts of shape {(rows, length)}",
            where="attention_mask",
            why=f"it is {kind_of(mask)}" + (f" of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else ""),
        )
    real = mask.cpu() != 0
    if not bool(real[:, -1].all()) or bool((real[:, 1:] < real[:, :-1]).any()):
        raise InputError(
            "prompts are padded on the left alone",
            where="attention_mask",
            why="a row ends with padding, or has some inside",
            hint='set tokenizer.padding_side = "left"',
        )
    return (~real).sum(1)


def _read_tokens(value: Any, name: str) -> tuple[int, ...]:
    tokens = (value,) if type(value) is int else tuple(value) if isinstance(value, (list, tuple)) else None
    if tokens is None or any(type(token) is not int for token in tokens):
        raise InputError(f"{name} is a token or a list of them, not {value!r:.80}")
    return tokens


def _chooser(
    do_sample: bool, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns what chooses a token for each row of scores, (rows, vocabulary) float32.

    Raises:
        InputError: A number is out of range.
    """
    if not do_sample:
        return lambda scores: scores.argmax(-1)
    if not temperature > 0:
        raise InputError(
            f"temperature is above 0, not {temperature!r}", hint="do_sample=False takes the likeliest token"
        )
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise InputError(f"top_k is a whole number from 1, not {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"top_p lies above 0 and at most at 1, not at {top_p!r}")

    def draw(scores: torch.Tensor) -> torch.Tensor:
        scores = scores / temperature
        if top_k is not None:
            least = scores.topk(min(top_k, scores.shape[-1])).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if top_p is not None and top_p < 1:
            ordered, places = scores.sort(descending=False)
            unlikely = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
            unlikely[:, -1:] = False
            scores = scores.masked_fill(unlikely.scatter(1, places, unlikely), -torch.inf)
        return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(1)

    return draw
