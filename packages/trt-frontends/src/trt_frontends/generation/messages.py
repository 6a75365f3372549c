"""What is said of models that no generator is made of."""

from __future__ import annotations

import inspect
import traceback
from typing import Any, Final

from torch import nn

from trt_core import InputError, logger

LOOKING_ASIDE: Final = ("mllama", "idefics")
WRITING_SOUNDS: Final = {
    "model.semantic.forward": ("bark",),
    "model.decoder.forward": ("musicgen", "musicgen_melody"),
    "model.forward": ("semantic", "coarse_acoustics", "fine_acoustics", "musicgen_decoder", "musicgen_melody_decoder"),
}
"""Kinds of models that write sounds, by what of them is compiled."""

COMPILED: Final = 'torch.compile({}, backend="torch_tensorrt") runs in the model\'s own generate'


def note_own_loop(model: Any) -> None:
    """Warns of a model that generates in a loop of its own, of which its scores alone are compiled."""
    from transformers import GenerationMixin

    own = getattr(type(model), "generate", GenerationMixin.generate)
    if own is GenerationMixin.generate:
        return
    usual = {*inspect.signature(GenerationMixin.generate).parameters, "input_ids", "attention_mask"}
    more = [name for name in inspect.signature(own).parameters if name not in usual]
    logger.warning(
        "%s generates in a loop of its own%s: what is compiled continues tokens by its scores alone, and makes no "
        "prompts of anything else",
        type(model).__name__,
        f", which takes {', '.join(more)}" if more else "",
    )


def cannot(model: Any, why: str, hint: str = "", cause: BaseException | None = None) -> InputError:
    """Returns the refusal of a model, which names the part of it that raised a `cause`, and has that as its cause."""
    if cause is not None:
        why += _raised_by(model, cause)
    refused = InputError(f"{type(model).__name__} cannot be compiled for generating text", why=why, hint=hint)
    refused.__cause__ = cause
    return refused


def _raised_by(model: nn.Module, error: BaseException) -> str:
    """Says which part of a model an exception came out of; its own words are of somebody's line, not of the model."""
    known = {id(module): name for name, module in model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [owner for owner in owners if known.get(id(owner)) and not type(owner).__module__.startswith("torch.")]
    return f": its {type(inside[-1]).__name__} ({known[id(inside[-1])]}) fails" if inside else ""


LOOP: Final = (
    'torch.compile(model.forward, backend="torch_tensorrt") runs in the loop of transformers, whose caches grow'
)

LOOP_OF_A_PART: Final = (
    f"{LOOP}; where the model calls generate of a part of it, as BLIP-2 of its language_model, "
    "give the forward of that part"
)
