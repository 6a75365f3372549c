"""What a step and its encoder were compiled for, as a saved program says it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Final

from trt_core.errors import InputError, PlanError
from trt_core.files import records, typed
from trt_core.files.records import Form, Grown
from trt_core.files.strict_json import parse_json
from trt_runtime.token_choice import TokenChoice, TokenRules

METADATA: Final = "generation"
"""Name of the entry of a saved program's metadata that says what its step takes."""

_MOST_BYTES: Final = 1 << 20
"""Longest text of limits, as of every entry of metadata."""

_MOST_ROWS: Final = 1 << 16
_MOST_LENGTH: Final = 1 << 24

SOURCE_STEP: Final = 64
"""Texts of encoders are filled up to multiples of this, so that few lengths are met."""

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
_PICTURES, PROMPTS = "pictures", "prompts"


def _check_source(source: SourceLimits) -> None:
    """Holds what a file says of an encoder to what an encoder may be.

    Raises:
        BadField: It says nothing, or two things.
    """
    is_one_kind = (source.start_token_id is None) != (source.image_token_id is None)
    is_whole = source.start_token_id is not None or (_is_sized(source) and all(getattr(source, one) for one in _TABLE))
    if not source.inputs or not is_one_kind or not is_whole or source.ahead not in ("", _PICTURES, PROMPTS):
        raise typed.BadField("source", "it says nothing of an encoder, or two things")


def _is_sized(source: SourceLimits) -> bool:
    is_grid = not source.grid or (len(source.grid) == 2 and math.prod(source.grid) == source.picture_rows)
    is_whole = len(source.inputs) == 1 + bool(source.size) + len(source.beside) and bool(source.beside) >= source.counts
    return is_grid and is_whole and all(extent > 0 for extent in (*source.size, *source.beside))


SOUNDS: Final = "input_features"
