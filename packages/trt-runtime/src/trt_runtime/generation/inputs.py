"""What callers of `generate` give: prompts, masks, pictures and sounds, checked and brought into the step's form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn

from trt_core.errors import InputError
from trt_core.files import typed
from trt_core.wording import kind_of
from trt_runtime.generation.limits import PROMPTS, SOUNDS, SourceLimits
from trt_runtime.token_choice import read_tokens

_MOST_MADE: Final = 1 << 30
"""Bytes of a tensor that is made around a step; how large one is follows from numbers of whoever wrote the file."""


class Streamer(Protocol):
    """Takes tokens as they come; the streamers of transformers are such."""

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, (rows, length), and then the tokens of each step, (rows,), all int64 on the CPU."""

    def end(self) -> None:
        """Is told that no more tokens come."""


def require_streamer(streamer: Any, copies: int) -> None:
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


def count_of_new(length: int, max_length: int | None) -> int | None:
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


CPU: Final = torch.device("cpu")
MASK: Final = "attention_mask"

PICTURE_MASK: Final = "pixel_attention_mask"
PICTURE_COUNTS: Final = "batch_num_images"  # which the places for pictures in prompts say
TOKEN_TYPES: Final = ("token_type_ids", "mm_token_type_ids")
"""What processors say of tokens that tokens say themselves."""


def check_mask(mask: Any, rows: int, length: int) -> None:
    """Holds a mask of prompts to their size.

    Raises:
        InputError: It is of another one, or no tensor.
    """
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (rows, length):
        raise InputError(
            f"the mask does not fit prompts of shape {(rows, length)}",
            where="attention_mask",
            why=f"it is {kind_of(mask)}" + (f" of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else ""),
        )
    require_values(mask, "attention_mask")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(
            "the mask holds something else than 0 and 1",
            where="attention_mask",
            why=f"among it is {mask[(mask != 0) & (mask != 1)][0].item()}",
            hint="give 0 where a prompt is padding, and else 1, as tokenizers do",
        )


def require_tokens(mask: torch.Tensor, of: str = "source") -> None:
    """Refuses masks, (rows, length), of which a row shows nothing."""
    if mask.dim() != 2 or not bool((mask != 0).any(1).all()):
        raise InputError(f"a row of the {of} is all padding", where=MASK, hint="give each row a token at least")


def require_known(ids: torch.Tensor, count: int, passed: Sequence[int], name: str) -> None:
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


def require_values(tensor: torch.Tensor, name: str) -> None:
    """Refuses tensors that hold no values, or hold them in no dense form.

    Raises:
        InputError: It is such a one.
    """
    if tensor.is_meta or tensor.layout is not torch.strided:
        held = "no values, on the meta device" if tensor.is_meta else f"values in the layout {tensor.layout}"
        raise InputError(f"{name} has {held}", where=name, hint="give a dense tensor")


def padding_of(mask: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Returns how many places at the left of each row are padding, (rows,) int64 on the CPU."""
    check_mask(mask, rows, length)
    real = mask.cpu() != 0
    require_tokens(real, "prompts")
    if not bool(real[:, -1].all()) or bool((real[:, 1:] < real[:, :-1]).any()):
        raise InputError(
            "prompts are padded on the left alone",
            where="attention_mask",
            why="a row ends with padding, or has some inside",
            hint='set tokenizer.padding_side = "left"',
        )
    return (~real).sum(1)


def require_room(num_bytes: int, what: str) -> None:
    """Refuses what nobody has memory for.

    Raises:
        InputError: It is larger than anything around a step may be.
    """
    if num_bytes > _MOST_MADE:
        raise InputError(
            f"{what} would take {num_bytes} bytes, more than {_MOST_MADE}",
            hint="ask for fewer rows or tokens; the program was compiled for more than that",
        )


def filled_up(value: torch.Tensor, rows: int, fill: int = 0) -> torch.Tensor:
    """Returns a tensor with so many rows, of which the later ones hold one number."""
    if rows == len(value):
        return value.contiguous()
    require_room(rows * (value.nbytes // max(len(value), 1)), "an input of all rows")
    filled = value.new_full((rows, *value.shape[1:]), fill)
    filled[: len(value)] = value
    return filled


def read_pictures(values: torch.Tensor, masks: Any) -> torch.Tensor:
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
            "a part of a picture is padding", where=PICTURE_MASK, hint="have the processor make pictures of one size"
        )
    return values[real]


def read_sounds(values: torch.Tensor) -> torch.Tensor:
    """Returns features of sounds, (n, bins, frames).

    Raises:
        InputError: They have another form.
    """
    if values.dim() != 3:
        raise InputError(f"sounds have shape {tuple(values.shape)}", where=SOUNDS, hint="give (n, bins, frames)")
    return values


def read_beside(source: SourceLimits, values: Sequence[torch.Tensor], count: int) -> Iterator[torch.Tensor]:
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
        require_room(8 * count * length, f"{name} of all {source.are}")
        yield nn.functional.pad(value.to(torch.int64), (0, length - value.shape[1]))
    if source.counts:
        require_tokens(values[-1])


def sized_pictures(source: SourceLimits, values: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
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


def check_types(source: SourceLimits, prompt: torch.Tensor, types: Any, name: str) -> None:
    """Holds what is said of tokens to what they are.

    Raises:
        InputError: It says something else.
    """
    if types is None:
        return
    is_picture = torch.eq(prompt, source.image_token_id or 0) & (source.ahead != PROMPTS)
    if not isinstance(types, torch.Tensor) or not torch.equal(types.to(prompt), is_picture.to(prompt)):
        told = (
            "0 for each token of a prompt" if source.ahead == PROMPTS else "1 for tokens of pictures, and 0 for others"
        )
        raise InputError(f"{name} are {told}", where=name, hint="leave them out: they follow from input_ids")


def first_tokens_of(tokens: Any, *given: Any) -> torch.Tensor:
    """Returns what texts of as many rows as are given begin with, (rows, 1) int64.

    Raises:
        InputError: They are no tokens, or of another number of rows.
    """
    rows = next((len(value) for value in given if isinstance(value, torch.Tensor) and value.dim()), 1)
    first = required_tokens(tokens, "decoder_start_token_id")
    if len(first) not in (1, rows):
        raise InputError(f"{len(first)} tokens begin the texts of {rows} rows", where="decoder_start_token_id")
    return torch.tensor(first, dtype=torch.int64, device=CPU)[:, None].expand(rows, 1).contiguous()


def device_of(*given: torch.Tensor | None) -> torch.device:
    """The device of the first tensor that was given."""
    return next(value.device for value in given if value is not None)


@dataclass(frozen=True)
class Request:
    """What one call of `generate` is about.

    Attributes:
        prompt: (rows, length), int64.
        padding: How many of the first places of each row of the step are padding, (max_batch,) int64.
        given: What the encoder is given; () for nothing.
    """

    prompt: torch.Tensor
    padding: torch.Tensor
    given: tuple[torch.Tensor, ...] = ()


def copies_of_prompts(beams: int, returned: int, *, do_sample: bool) -> int:
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
