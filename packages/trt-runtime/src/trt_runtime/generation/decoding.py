"""Makes the tokens of a call one after the other, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from trt_core.device import CAPTURING, capture
from trt_runtime.generation.assistants import Assistant
from trt_runtime.generation.choosing import Choosing
from trt_runtime.generation.inputs import Streamer
from trt_runtime.generation.reading import Reader

_STEPS: Final = 8
"""Steps between two looks at whether all rows have ended, on a GPU."""

_TOKENS_BEFORE_RECORDING: Final = 8
_WORTH_RECORDING: Final = 32
"""Tokens that are to come after a CUDA graph that chooses them: it takes a millisecond to make."""


class Decoding:
    """Tokens of one call as they are made: the text, the last token, its place, and which rows have ended.

    All of that stays on the device, where each token is chosen and fed to the next step; on a GPU nothing waits for it.

    Args:
        reader: Reads the text with the step.
        how: How tokens are chosen.
        end: Most tokens of a row.
    """

    def __init__(self, reader: Reader, how: Choosing, end: int) -> None:
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

    def tokens(self, assistant: Assistant | None, streamer: Streamer | None) -> torch.Tensor:
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

    def _turns(self, assistant: Assistant | None) -> Iterator[None]:
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
