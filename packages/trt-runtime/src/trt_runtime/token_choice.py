"""Chooses tokens by their scores: which may come and which are less likely, what is drawn from, and beams."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import torch
from torch import nn

from trt_core.errors import InputError
from trt_core.files.records import Form, Grown

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
        bad_words: Sequences of tokens that never come; one that ends a row is none of them.
        biases: Sequences of tokens, and what is added to the score of the last one where the others stand before it.
        length_decay: Number of new tokens, and a factor: beyond so many, what ends a row becomes likelier by the factor
            with each one; () for nothing.
        removes_invalid: Whether scores that are no finite numbers become 0, or the largest or smallest ones.
    """

    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()
    forced_first: int | None = None
    forced_last: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    biases: tuple[tuple[tuple[int, ...], float], ...] = ()
    length_decay: tuple[float, ...] = ()
    removes_invalid: bool = False

    def __post_init__(self) -> None:
        is_decay = len(self.length_decay) == 2 and all(map(math.isfinite, self.length_decay))
        if self.length_decay and not (is_decay and self.length_decay[1] >= 0):
            raise InputError(
                f"a number of tokens and a factor from 0, not {self.length_decay!r:.80}",
                where="exponential_decay_length_penalty",
            )
        if not all(self.bad_words) or not all(words for words, _ in self.biases):
            raise InputError("a sequence has a token at least", where="bad_words_ids or sequence_bias")

    def told(self, options: Mapping[str, Any]) -> TokenRules:
        """Returns the rules with what options of transformers say, by the names of its `GenerationConfig`.

        Args:
            options: Some of `RULE_OPTIONS`; None says nothing.

        Raises:
            InputError: One says something else than its name asks for.
        """
        said = {}
        for name, value in options.items():
            if value is None:
                continue
            field, read = RULE_OPTIONS[name]
            try:
                said[field] = read(value)
            except (TypeError, ValueError) as error:
                raise InputError(f"{name} is not {value!r:.80}", where=name, hint="see GenerationConfig") from error
        return replace(self, **said)

    def biased(self, scores: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """Returns the scores, (rows, vocabulary) float32, with what sequences add to them; text is (rows, length)."""
        return scores + _added(scores, text, self.biases) if self.biases else scores

    def applied(
        self, scores: torch.Tensor, text: torch.Tensor, begin: int, end: int, ends: Sequence[int] = ()
    ) -> torch.Tensor:
        """Returns the scores of a token by these rules, in the order of transformers.

        Args:
            scores: (rows, vocabulary), float32.
            text: Tokens that there are, (rows, length) int64.
            begin: Of which this many are the prompt.
            end: Most tokens that there will be.
            ends: What ends a row.
        """
        made = text.shape[1]
        if self.bad_words:
            bad = tuple((words, -math.inf) for words in self.bad_words if len(words) > 1 or words[0] not in ends)
            scores = scores + _added(scores, text, bad)
        if self.forced_first is not None and made == 1:
            scores = _only(scores, (self.forced_first,))
        if self.forced_last and made == end - 1:
            scores = _only(scores, self.forced_last)
        if self.removes_invalid:
            scores = scores.nan_to_num(0.0)
        if self.length_decay and ends and made - begin > self.length_decay[0]:
            likelier = _power(self.length_decay[1], made - begin - self.length_decay[0]) - 1
            at = _indices(tuple(ends), scores)
            scores = scores.index_add(1, at, scores.index_select(1, at).abs() * likelier)
        if self.suppressed:
            scores = scores.index_fill(1, _indices(self.suppressed, scores), -torch.inf)
        first = begin + 1 if begin == 1 and self.forced_first is not None else begin
        if self.first_suppressed and made == first:
            scores = scores.index_fill(1, _indices(self.first_suppressed, scores), -torch.inf)
        return scores


def _power(factor: float, count: float) -> float:
    """Returns a factor to the power of a count above 0, or the largest number that scores may be multiplied by."""
    try:
        power: float = factor**count
    except OverflowError:
        return _FINITE
    return min(power, _FINITE)


_Words = tuple[tuple[tuple[int, ...], float], ...]


def _added(scores: torch.Tensor, text: torch.Tensor, words: _Words) -> torch.Tensor:
    """Returns what sequences of tokens add to scores, of the last token of those whose others end the text."""
    added = torch.zeros_like(scores)
    for size, before, last, values in _words_on_device(words, scores.shape[1], scores.device):
        if size == 1 or size <= text.shape[1]:
            follows = (text[:, None, text.shape[1] - size + 1 :] == before).all(-1)
            added = added.index_add(1, last, torch.where(follows, values, 0.0))
    return added


@functools.lru_cache(maxsize=64)  # as indices are
def _words_on_device(
    words: _Words, vocabulary: int, device: torch.device
) -> list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Returns sequences by their length: all tokens but the last, (n, length - 1), the last ones, and values, (n,)."""
    kept = {one: value for one, value in words if 0 <= one[-1] < vocabulary}
    made = []
    for size in sorted({len(one) for one in kept}):
        some = [one for one in kept if len(one) == size]
        ids = torch.tensor(some, dtype=torch.int64, device=device)
        values = torch.tensor([kept[one] for one in some], dtype=torch.float32, device=device)
        made.append((size, ids[:, :-1], ids[:, -1], values))
    return made


def read_tokens(value: Any) -> tuple[int, ...]:
    """Returns a token or a list of them as integers; None is none.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    tokens = () if value is None else (value,) if type(value) is int else tuple(value)
    if any(type(token) is not int for token in tokens):
        raise TypeError("a token is an integer")
    return tokens


def _read_known(value: Any) -> tuple[int, ...]:
    return tuple(token for token in read_tokens(value) if token >= 0)  # others have no score


def _read_words(value: Any) -> tuple[int, ...]:
    words = read_tokens(list(value))
    if min(words) < 0:
        raise ValueError("a token is an integer from 0")
    return words


def _read_token(value: Any) -> int:
    (token,) = _read_words([value])
    return token


def _read_biases(value: Any) -> _Words:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple((_read_words(words), _finite(bias)) for words, bias in pairs)


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("a finite number is needed")
    return float(value)


def _read_decay(value: Any) -> tuple[float, float]:
    begin, factor = value
    return _finite(begin), _finite(factor)


def _read_flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("True or False is needed")
    return value


RULE_OPTIONS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "suppress_tokens": ("suppressed", _read_known),
    "begin_suppress_tokens": ("first_suppressed", _read_known),
    "forced_bos_token_id": ("forced_first", _read_token),
    "forced_eos_token_id": ("forced_last", _read_known),
    "bad_words_ids": ("bad_words", lambda value: tuple(_read_words(words) for words in value)),
    "sequence_bias": ("biases", _read_biases),
    "exponential_decay_length_penalty": ("length_decay", _read_decay),
    "remove_invalid_values": ("removes_invalid", _read_flag),
}
"""Options of transformers that are rules, which field of `TokenRules` each is, and how it is read."""


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
        min_length: Nor before it has this many, those of the prompt included, where `min_new_tokens` is 0.
        top_h: Draw from the likeliest tokens whose entropy is at most this part of that of all; 0 for all.
        typical_p: Draw from the tokens whose information is nearest to the entropy, up to this sum of probabilities.
        epsilon_cutoff: Draw from tokens that are at least so likely; 0 for all.
        eta_cutoff: The same, of less where the entropy is high.
        encoder_repetition_penalty: Tokens of the source, or of the prompt, are likelier by this factor.
        encoder_no_repeat_ngram_size: No sequence of this many tokens of the source, or of the prompt, comes; 0 for any.
        renormalize_logits: Whether probabilities of a beam's tokens add up to 1 after all this.
        length_penalty, early_stopping: See `BeamOptions`.

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
    min_length: int = 0
    top_h: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    encoder_repetition_penalty: float = 1.0
    encoder_no_repeat_ngram_size: int = 0
    renormalize_logits: bool = False
    length_penalty: Annotated[float, Form()] = 1.0
    early_stopping: Annotated[bool | str, Form()] = False

    def __post_init__(self) -> None:
        BeamOptions(1, self.length_penalty, self.early_stopping)
        if type(self.renormalize_logits) is not bool:
            raise InputError(
                f"renormalize_logits is True or False, not {self.renormalize_logits!r:.80}", where="renormalize_logits"
            )
        for name in _COUNTS:
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

    def penalized(
        self,
        scores: torch.Tensor,
        text: torch.Tensor,
        begin: int,
        ends: Sequence[int],
        source: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns scores by what the texts hold already.

        Args:
            scores: (rows, vocabulary), float32.
            text: (rows, length), int64.
            begin: How many tokens of each are the prompt.
            ends: What ends a row.
            source: What the texts follow from, (rows, n) int64; None for something else than tokens.
        """
        vocabulary, made = scores.shape[1], text.shape[1]
        numbers = (self.repetition_penalty, self.encoder_repetition_penalty)
        if numbers != (1, 1) or self.no_repeat_ngram_size or self.encoder_no_repeat_ngram_size:
            scores = nn.functional.pad(scores, (0, 1))  # the last one is of tokens that have no score
            if source is not None and self.encoder_repetition_penalty != 1:
                scores = _repeated(scores, source, 1 / self.encoder_repetition_penalty)
            if self.repetition_penalty != 1:
                scores = _repeated(scores, text, self.repetition_penalty)
            scores = _without_again(scores, text, text, self.no_repeat_ngram_size)
            if source is not None:
                scores = _without_again(scores, source, text, self.encoder_no_repeat_ngram_size)
            scores = scores[:, :vocabulary]
        least = begin + self.min_new_tokens if self.min_new_tokens else self.min_length
        return scores.index_fill(1, _indices(tuple(ends), scores), -torch.inf) if ends and made < least else scores

    def warped(self, scores: torch.Tensor, least: int = 1) -> torch.Tensor:
        """Returns scores that samples are drawn by, (rows, vocabulary); at least `least` of a row stay possible."""
        if self.temperature != 1:
            scores = scores / self.temperature
        if self.top_h:
            ordered, places = scores.topk(min(_MOST_OF_ENTROPY, scores.shape[-1]))
            entropies = torch.special.entr(ordered.softmax(-1))
            kept = entropies.cumsum(-1) <= entropies.sum(-1, keepdim=True) * self.top_h
            kept[:, 0] = True
            scores = scores.masked_fill(
                ~torch.zeros_like(scores, dtype=torch.bool).scatter(1, places, kept), -torch.inf
            )
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
        if self.typical_p < 1:
            chances = scores.log_softmax(-1)
            entropy = -(chances * chances.exp()).nansum(-1, keepdim=True)
            strange, places = (-chances - entropy).abs().sort(descending=False)
            last = (scores.gather(1, places).softmax(-1).cumsum(-1) < self.typical_p).sum(1, keepdim=True)
            unlikely = strange > strange.gather(1, last.clamp(max=scores.shape[-1] - 1))
            unlikely[:, :least] = False
            scores = scores.masked_fill(unlikely.scatter(1, places, unlikely), -torch.inf)
        if 0 < self.epsilon_cutoff < 1:
            scores = _likely(scores, scores.softmax(-1) < self.epsilon_cutoff, least)
        if 0 < self.eta_cutoff < 1:
            chances = scores.softmax(-1)
            entropy = torch.special.entr(chances).sum(-1, keepdim=True)
            lowest = (math.sqrt(self.eta_cutoff) * (-entropy).exp()).clamp(max=self.eta_cutoff)
            scores = _likely(scores, chances < lowest, least)
        return scores


def _likely(scores: torch.Tensor, unlikely: torch.Tensor, least: int) -> torch.Tensor:
    """Returns scores without those that are unlikely and not among the highest of a row."""
    lowest = scores.topk(min(least, scores.shape[-1])).values[:, -1:]
    return scores.masked_fill(unlikely & (scores < lowest), -torch.inf)


def _places(text: torch.Tensor, last: int) -> torch.Tensor:
    """Returns tokens as places of scores; those that have none, as of pictures, are at the last one."""
    return torch.where((text < 0) | (text >= last), last, text)


def _repeated(scores: torch.Tensor, text: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns scores, (rows, vocabulary + 1), of which those of a text's tokens are lower by a factor."""
    at = _places(text, scores.shape[1] - 1)
    own = scores.gather(1, at)
    return scores.scatter(1, at, torch.where(own < 0, own * factor, own / factor))


def _without_again(scores: torch.Tensor, held: torch.Tensor, text: torch.Tensor, size: int) -> torch.Tensor:
    """Returns scores, (rows, vocabulary + 1), without those that repeat a sequence of what is held after the text."""
    length = text.shape[1]
    if not 0 < size <= min(held.shape[1], length + 1):
        return scores
    again = (held.unfold(1, size, 1)[..., :-1] == text[:, None, length - size + 1 :]).all(-1)
    at = _places(held[:, size - 1 :], scores.shape[1] - 1)
    told = torch.zeros_like(scores).scatter_reduce(1, at, again.to(scores.dtype), "amax")
    return scores.masked_fill(told > 0, -torch.inf)


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


_COUNTS: Final = ("top_k", "no_repeat_ngram_size", "min_new_tokens", "min_length", "encoder_no_repeat_ngram_size")
_MOST_OF_ENTROPY: Final = 100
"""Of how many of the likeliest tokens `top_h` computes the entropy."""

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
    "top_h": (1, True),
    "typical_p": (1, False),
    "epsilon_cutoff": (1, True),
    "eta_cutoff": (1, True),
    "repetition_penalty": (_FINITE, False),
    "encoder_repetition_penalty": (_FINITE, False),
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
