"""Chooses tokens by their scores: which may come and which are less likely, what is drawn from, and beams."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from trt_core.errors import InputError
from trt_core.files.records import Grown

_NEVER: Final = -1.0e9
"""The score of a text that is not to be; finite, so that sums of them are comparable."""


@dataclass(frozen=True)
class TokenRules(Grown):
    """What a model's configuration says of tokens that may or must come.

    Attributes:
        suppressed: Tokens that never come.
        first_suppressed: Tokens that are not the first new one.
        forced_first: What follows a prompt of a single token; None for anything.
        forced_last: What a text ends with that is as long as it may be; () for anything.
    """

    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()
    forced_first: int | None = None
    forced_last: tuple[int, ...] = ()

    def applied(self, scores: torch.Tensor, made: int, begin: int, end: int) -> torch.Tensor:
        """Returns the scores of a token by these rules.

        Args:
            scores: (rows, vocabulary), float32.
            made: Tokens that there are.
            begin: Of which this many are the prompt.
            end: Most tokens that there will be.
        """
        if self.suppressed:
            scores = scores.index_fill(1, _indices(self.suppressed, scores), -torch.inf)
        first = begin + 1 if begin == 1 and self.forced_first is not None else begin
        if self.first_suppressed and made == first:
            scores = scores.index_fill(1, _indices(self.first_suppressed, scores), -torch.inf)
        if self.forced_first is not None and made == 1:
            scores = _only(scores, (self.forced_first,))
        if self.forced_last and made == end - 1:
            scores = _only(scores, self.forced_last)
        return scores


def _only(scores: torch.Tensor, tokens: tuple[int, ...]) -> torch.Tensor:
    return torch.full_like(scores, -torch.inf).index_fill(1, _indices(tokens, scores), 0)


def _indices(tokens: tuple[int, ...], scores: torch.Tensor) -> torch.Tensor:
    return _on_device(tokens, scores.shape[1], scores.device)


@functools.lru_cache(maxsize=64)  # else each step would copy them to the device
def _on_device(tokens: tuple[int, ...], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Returns tokens as indices; configurations name some that a model does not have."""
    return torch.tensor([token for token in tokens if 0 <= token < vocabulary], dtype=torch.int64, device=device)


@dataclass(frozen=True)
class TokenChoice(Grown):
    """Numbers by which tokens are chosen; the defaults change nothing.

    Attributes:
        temperature: Scores are divided by it before drawing.
        top_k: Draw from the k likeliest tokens alone; 0 for all.
        top_p: Draw from the fewest likeliest tokens whose probabilities reach this sum.
        min_p: Draw from tokens that are at least this part as likely as the likeliest.
        repetition_penalty: Tokens of the text so far are less likely by this factor.
        no_repeat_ngram_size: No sequence of this many tokens comes twice; 0 for any.
        min_new_tokens: No row ends before it has this many new tokens.

    Raises:
        InputError: A number is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("top_k", "no_repeat_ngram_size", "min_new_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise InputError(f"{name} is a whole number from 0, not {value!r:.80}", where=name)
        for name, (most, allows_zero) in _RANGES.items():
            value = getattr(self, name)
            if type(value) not in (int, float) or not (0 if allows_zero else _LEAST) <= value <= most:
                bounds = f"{'at least 0' if allows_zero else f'above 0, {_LEAST} at least'}" + (
                    "" if most == _FINITE else f" and at most {most}"
                )
                hint = "do_sample=False takes the likeliest token" if name == "temperature" else ""
                raise InputError(f"{name} is {bounds}, not {value!r:.80}", where=name, hint=hint)

    def penalized(self, scores: torch.Tensor, text: torch.Tensor, begin: int, ends: Sequence[int]) -> torch.Tensor:
        """Returns scores by what the texts hold already.

        Args:
            scores: (rows, vocabulary), float32.
            text: (rows, length), int64.
            begin: How many tokens of each are the prompt.
            ends: What ends a row.
        """
        size, (rows, vocabulary), length = self.no_repeat_ngram_size, scores.shape, text.shape[1]
        if self.repetition_penalty == 1 and not 0 < size <= length:
            return self._without_ends(scores, length - begin, ends)
        at = torch.where((text < 0) | (text >= vocabulary), vocabulary, text)  # places of pictures have no score
        scores = torch.cat([scores, scores.new_zeros(rows, 1)], 1)
        if self.repetition_penalty != 1:
            own = scores.gather(1, at)
            own = torch.where(own < 0, own * self.repetition_penalty, own / self.repetition_penalty)
            scores = scores.scatter(1, at, own)
        if 0 < size <= length:
            pieces = text.unfold(1, size, 1)
            again = (pieces[..., :-1] == text[:, None, length - size + 1 :]).all(-1)
            told = torch.zeros_like(scores).scatter_reduce(1, at[:, size - 1 :], again.to(scores.dtype), "amax")
            scores = scores.masked_fill(told > 0, -torch.inf)
        return self._without_ends(scores[:, :vocabulary], length - begin, ends)

    def _without_ends(self, scores: torch.Tensor, made: int, ends: Sequence[int]) -> torch.Tensor:
        """Returns scores by which rows of so many new tokens do not end yet."""
        if ends and made < self.min_new_tokens:
            scores = scores.index_fill(1, _indices(tuple(ends), scores), -torch.inf)
        return scores

    def warped(self, scores: torch.Tensor, least: int = 1) -> torch.Tensor:
        """Returns scores that samples are drawn by, (rows, vocabulary); at least `least` of a row stay possible."""
        if self.temperature != 1:
            scores = scores / self.temperature
        if self.top_k:
            lowest = scores.topk(min(max(self.top_k, least), scores.shape[-1])).values[:, -1:]
            scores = scores.masked_fill(scores < lowest, -torch.inf)
        if self.top_p < 1:
            ordered, places = scores.sort(descending=False)
            unlikely = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
            unlikely[:, -least:] = False
            scores = scores.masked_fill(unlikely.scatter(1, places, unlikely), -torch.inf)
        if self.min_p > 0:
            likely = scores.softmax(-1)
            unlikely = likely < self.min_p * likely.amax(-1, keepdim=True)
            kept = scores.topk(min(least, scores.shape[-1])).indices
            scores = scores.masked_fill(unlikely.scatter(1, kept, False), -torch.inf)
        return scores


def likeliest(scores: torch.Tensor) -> torch.Tensor:
    """Returns where each of (rows, vocabulary) scores is the highest first, (rows,) int64.

    A GPU goes through a whole row with one block, so there it is cut into pieces.
    """
    pieces = math.gcd(scores.shape[1], _MOST_PIECES) if scores.is_cuda else 1
    return scores.argmax(-1) if pieces == 1 else likeliest_by_pieces(scores, pieces)


def likeliest_by_pieces(scores: torch.Tensor, pieces: int) -> torch.Tensor:
    """The same by the highest of each of so many pieces, which divide the vocabulary."""
    rows, vocabulary = scores.shape
    best, places = scores.reshape(rows, pieces, -1).max(-1)
    piece = best.argmax(-1, keepdim=True)
    return (piece * (vocabulary // pieces) + places.gather(1, piece)).squeeze(1)


_MOST_PIECES: Final = 256
_FINITE: Final = 3.0e38
_LEAST: Final = 1.0e-30
"""Scores that are divided by it stay finite."""
_MOST_PENALTY: Final = 40
"""The longest text to the power of it is a number."""
_RANGES: Final = {
    "temperature": (_FINITE, False),
    "top_p": (1, False),
    "min_p": (1, True),
    "repetition_penalty": (_FINITE, False),
}
"""The most that a number may be, and whether it may be 0."""


@dataclass(frozen=True)
class BeamOptions:
    """How several texts a row are searched, in the words of transformers.

    Attributes:
        count: Texts of a row that are continued at once.
        length_penalty: A text's score is divided by its new tokens to this power; above 0 prefers long ones.
        early_stopping: True ends a row once `count` texts have ended; False, when the best one that goes on is worse
            than those; `"never"`, when none that goes on can become better.

    Raises:
        InputError: One is no such thing.
    """

    count: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise InputError(f"num_beams is a whole number from 1, not {self.count!r:.80}", where="num_beams")
        if type(self.length_penalty) not in (int, float) or not abs(self.length_penalty) <= _MOST_PENALTY:
            most = f"from -{_MOST_PENALTY} to {_MOST_PENALTY}"
            raise InputError(
                f"length_penalty is a number {most}, not {self.length_penalty!r:.80}", where="length_penalty"
            )
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InputError(
                f'early_stopping is True, False or "never", not {self.early_stopping!r:.80}', where="early_stopping"
            )


_Stops = Callable[[torch.Tensor], torch.Tensor]
_Draw = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


class Beams:
    """The texts of a beam search: those that go on, and the best that have ended.

    Scores and ends are those of transformers, so that it finds the same texts.

    Args:
        text: What goes on, (rows * beams, end) int64, beams of a row one after the other; changed in place.
        begin: Tokens of the prompts, which are there.
        options: How to search.
        fill: What ended texts are filled up with.
    """

    def __init__(self, text: torch.Tensor, begin: int, options: BeamOptions, fill: int) -> None:
        beams, rows = options.count, len(text) // options.count
        self._text, self._begin, self._options, self._fill = text, begin, options, fill
        self._scores = text.new_full((rows, beams), _NEVER, dtype=torch.float32)
        self._scores[:, 0] = 0  # beams of a prompt are equal at first
        self._ended = text.view(rows, beams, -1).clone()
        self._ended[:, :, begin:] = fill
        self._ended_scores = torch.full_like(self._scores, _NEVER)
        self._ended_lengths = text.new_zeros(rows, beams)
        self._has_ended = torch.zeros_like(self._scores, dtype=torch.bool)
        self._improves = text.new_ones((rows, 1), dtype=torch.bool)
        self.is_done = False

    def take(self, chances: torch.Tensor, made: int, stops: _Stops, draw: _Draw, kept: int) -> torch.Tensor:
        """Takes a token for each text.

        Args:
            chances: Logarithms of the probabilities of the next token, (rows * beams, vocabulary).
            made: Tokens that there are.
            stops: Says which of some texts, (n, made + 1), end with their last token: (n,) bool.
            draw: Chooses some of (rows, n) scores: (rows, kept) scores and places.
            kept: How many continuations of a row are looked at, more than its beams, since some end.

        Returns:
            Which text each one continues, (rows * beams,) int64: the order in which caches are now needed.
        """
        rows, beams = self._scores.shape
        vocabulary = chances.shape[1]
        sums = (chances.view(rows, beams, vocabulary) + self._scores[:, :, None]).view(rows, -1)
        best, places = draw(sums, kept)
        origin = places // vocabulary
        texts = self._text.view(rows, beams, -1)[:, :, : made + 1].take_along_dim(origin[:, :, None], 1)
        texts[:, :, made] = places % vocabulary
        stop = stops(texts.flatten(0, 1)).view(rows, kept)
        going = best + stop.to(torch.float32) * _NEVER
        chosen = going.topk(beams).indices
        self._end(texts, best, stop)
        self._scores = going.gather(1, chosen)
        self._text.view(rows, beams, -1)[:, :, : made + 1] = texts.take_along_dim(chosen[:, :, None], 1)
        self._improves &= self._can_improve(made + 1)
        is_full = self._options.early_stopping is True and bool(self._has_ended.all())
        self.is_done = is_full or bool(stop.all()) or not bool(self._improves.any())
        first = torch.arange(rows, device=origin.device)[:, None] * beams
        return (first + origin.gather(1, chosen)).flatten()

    def _end(self, texts: torch.Tensor, scores: torch.Tensor, stop: torch.Tensor) -> None:
        """Keeps the best of the texts that have ended, of (rows, kept, made + 1)."""
        beams, length = self._scores.shape[1], texts.shape[2]
        ends = stop.clone()
        ends[:, beams:] = False  # those are there for lack of others that go on
        scores = scores / float(length - self._begin) ** self._options.length_penalty
        if self._options.early_stopping is True:
            scores = scores + self._has_ended.all(-1, keepdim=True).to(torch.float32) * _NEVER
        scores = scores + (~self._improves).to(torch.float32) * _NEVER + (~ends).to(torch.float32) * _NEVER
        self._ended_scores, best = torch.cat([self._ended_scores, scores], 1).topk(beams)
        new = nn.functional.pad(texts, (0, self._ended.shape[2] - length), value=self._fill)
        self._ended = torch.cat([self._ended, new], 1).take_along_dim(best[:, :, None], 1)
        lengths = torch.cat([self._ended_lengths, torch.full_like(stop, length, dtype=torch.int64)], 1)
        self._ended_lengths = lengths.gather(1, best)
        self._has_ended = torch.cat([self._has_ended, ends], 1).gather(1, best)

    def _can_improve(self, made: int) -> torch.Tensor:
        """Whether a text that goes on may become better than the worst that has ended, (rows, 1)."""
        is_long = self._options.early_stopping == "never" and self._options.length_penalty > 0
        length = float((self._text.shape[1] if is_long else made) - self._begin)
        hoped = self._scores[:, :1] / length**self._options.length_penalty
        worst = torch.where(self._has_ended, self._ended_scores.amin(1, keepdim=True), _NEVER)
        may: torch.Tensor = (hoped > worst).any(-1, keepdim=True)
        return may

    def best(self, count: int) -> torch.Tensor:
        """Returns the best texts of each row, (rows * count, length) int64, as long as the longest of them."""
        longest = int(self._ended_lengths[:, :count].max())
        return self._ended[:, :count, :longest].flatten(0, 1)
