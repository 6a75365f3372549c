"""Reads texts with a step, in pieces: prompts, tokens that were chosen, and those that were guessed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trt_core.errors import ExecutionError, InputError
from trt_core.wording import kind_of
from trt_runtime.generation.assistants import Assistant
from trt_runtime.generation.choosing import described
from trt_runtime.generation.inputs import Request, filled_up, require_room
from trt_runtime.generation.limits import PROMPTS, SourceLimits

if TYPE_CHECKING:
    from trt_runtime.generation.generator import TextGenerator


class Reader:
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

    def __init__(self, owner: TextGenerator, request: Request, copies: int = 1) -> None:
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

    def guessed(self, text: torch.Tensor, assistant: Assistant) -> Iterator[torch.Tensor]:
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
            piece = filled_up(tokens[:, first:last], self._limits.max_batch)
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
                f"the step returned {described(made)}",
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
        self, source: SourceLimits, encoder: nn.Module, request: Request, dtype: torch.dtype
    ) -> tuple[torch.Tensor, ...]:
        """Returns the table of features, (rows, width), and puts the numbers of its rows into the prompts.

        Where pictures have a layout, (planes, max_batch, max_length) int64 follows; see `_layout`.
        """
        require_room(source.rows * source.width * dtype.itemsize, "the table of features")
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
            told = (filled_up(each[first : first + step], step, 1) for each in beside)
            features = self._features(source, encoder(filled_up(some, step), *told), len(some))
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
        require_room(3 * 8 * batch * most, "the layout of pictures")
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
            if source.ahead == PROMPTS:
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
