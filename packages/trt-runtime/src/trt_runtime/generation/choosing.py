"""Chooses the tokens of a call: by rules, processors and criteria, the likeliest or drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.errors import InputError
from trt_core.wording import kind_of
from trt_runtime.token_choice import TokenChoice, TokenRules, likeliest

_LOWEST: Final = torch.finfo(torch.float32).min

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Changes scores before a token is chosen: tokens so far, (rows, length), and scores, (rows, vocabulary) float32."""

StoppingCriterion = Callable[[torch.Tensor, Any], Any]
"""Says which rows end: tokens so far, (rows, length), and nothing; returns (rows,) bool, or one bool for all."""


@dataclass(frozen=True)
class Choosing:
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
        """Whether tokens are chosen by scores and chance alone, once there are some and scores stay as they are."""
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
            f"a processor returned {described(made)} for scores of shape {tuple(scores.shape)}",
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
            f"a criterion returned {described(made)} for {len(told)} rows",
            where=f"stopping_criteria[{index}]",
            hint=f"return True or False, or a bool tensor of shape {tuple(told.shape)}: which rows end",
        )
    return flags


def described(made: Any) -> str:
    """What a function returned, in words."""
    return kind_of(made) + (f" of {made.dtype}, {tuple(made.shape)}" if isinstance(made, torch.Tensor) else "")


def likeliest_places(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest scores of each row and their places, (rows, count) each."""
    values, places = scores.topk(count)
    return values, places


def drawing(
    do_sample: bool, generator: torch.Generator | None
) -> Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]] | None:
    """Returns what draws places by scores, as `likeliest_places` finds them; None where none are drawn."""

    def draw(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        # as torch.multinomial draws, which refuses rows where no token may come, and many beams of many tokens
        chances = scores.nan_to_num(nan=_LOWEST).softmax(-1)
        places = chances.div_(torch.empty_like(chances).exponential_(generator=generator)).topk(count).indices
        drawn, order = scores.gather(1, places).sort(-1, descending=True)  # texts that end are among the first ones
        return drawn, places.gather(1, order)

    return draw if do_sample else None
