"""What a model's encoder is given, as the caller of `compile_generation` says it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trt_core import Input, InputError
from trt_frontends.generation.messages import LOOP_OF_A_PART, cannot
from trt_runtime.generation.inputs import MASK, TOKEN_TYPES
from trt_runtime.generation.limits import SOUNDS, SOURCE_STEP


def crossed_input(rows: int, shape: tuple[int, ...], longest: int, dtype: torch.dtype) -> Input:
    """What a step is given of keys or values of a source; `longest` is 0 where sources have one length."""
    _, heads, length, width = shape
    return varying_input((rows, heads, -1 if longest else length, width), longest, dtype)


def varying_input(shape: tuple[int, ...], longest: int, dtype: torch.dtype, name: str = "") -> Input:
    """An input with an axis, -1, that is as long as a text may be."""
    shortest = min(SOURCE_STEP, longest)
    least, most = (tuple(extent if axis < 0 else axis for axis in shape) for extent in (shortest, longest))
    if least == most:
        return Input(least, dtype=dtype, name=name)
    named = {shape.index(-1): "source"}
    return Input(min_shape=least, opt_shape=most, max_shape=most, dtype=dtype, name=name, dimensions=named)


def read_source_inputs(model: Any, given: Mapping[str, Any] | None) -> dict[str, Input]:
    """Returns what an encoder takes that reads no text.

    Raises:
        InputError: It was not said, and does not follow from the configuration.
    """
    if given:
        read = {name: as_input(item) for name, item in given.items()}
        unknown = [name for name in read if name not in inspect.signature(model.forward).parameters]
        if unknown:
            raise InputError(f"{type(model).__name__} takes no {', '.join(unknown)}", where="source_inputs")
        return read
    config = model.config
    bins, places = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if model.main_input_name != "input_features" or bins is None or places is None:
        raise InputError(
            f"{type(model).__name__} reads {model.main_input_name}, whose size its configuration does not say",
            where="source_inputs",
            hint=f'give an example: source_inputs={{"{model.main_input_name}": tensor}}',
        )
    return {"input_features": Input((1, bins, 2 * places), dtype=model.dtype, name="input_features")}


def of_rows(rows: int, item: Input, name: str) -> Input:
    """What an encoder is given of as many rows as a step has.

    Raises:
        InputError: Its size varies.
    """
    if item.is_dynamic:
        raise InputError(f"what the encoder takes has one size, not a range of them: {item}", where="source_inputs")
    dtype = torch.bool if name == MASK else item.dtype  # processors make masks of any type
    return Input((rows, *item.opt_shape[1:]), dtype=dtype, name=item.name)


def as_input(given: Any) -> Input:
    """What was given as an `Input`: one, or a tensor of its size."""
    return given if isinstance(given, Input) else Input.from_tensor(given)


def in_rows(model: Any) -> bool:
    """Whether a model is given pictures in a row for each prompt, as Idefics are."""
    inner = getattr(model, "model", model)
    return hasattr(inner, "connector") and hasattr(inner, "vision_model")


def shape_of_pictures(item: Input, sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the shape of pictures one after the other.

    Raises:
        InputError: They are something else, or as many as their sizes are not.
    """
    count, shape = len(sizes), item.opt_shape
    if item.is_dynamic or len(shape) not in ((2, 4, 5) if sizes else (4, 5)) or (count and shape[0] % count):
        raise InputError(
            f"pictures have one size, (n, channels, height, width), not {item}"
            + (f", for {count} sizes" if sizes else ""),
            where="source_inputs['pixel_values']",
        )
    if not sizes:
        return (math.prod(shape[:-3]), *shape[-3:])
    return shape if len(shape) > 2 else (count, shape[0] // count, shape[1])


def shape_of_sounds(item: Input) -> tuple[int, ...]:
    """Returns the shape of features of sounds.

    Raises:
        InputError: They are something else.
    """
    if item.is_dynamic or len(item.opt_shape) != 3:
        raise InputError(f"sounds have one size, (n, bins, frames), not {item}", where=f"source_inputs['{SOUNDS}']")
    return item.opt_shape


def lengths_beside(items: Mapping[str, Input], count: int) -> tuple[int, ...]:
    """Returns the lengths of what is said of so many pictures or sounds.

    Raises:
        InputError: It is something else than a row for each.
    """
    for name, item in items.items():
        if item.is_dynamic or len(item.opt_shape) != 2 or item.opt_shape[0] != count:
            raise InputError(f"{name} has one size, ({count}, length), not {item}", where=f"source_inputs['{name}']")
    return tuple(item.opt_shape[1] for item in items.values())


def one_size(sizes: Any, name: str) -> list[tuple[int, ...]]:
    """Returns what is said of the size of each picture.

    Raises:
        InputError: They differ.
    """
    read = [tuple(size) for size in sizes.tolist()] if isinstance(sizes, torch.Tensor) and sizes.dim() == 2 else []
    if len(set(read)) != 1 or (name == "image_grid_thw" and read[0][0] != 1):
        raise InputError(
            f"pictures have one size, not {read}" if read else f"{name} is a tensor of the sizes of pictures",
            where=f"source_inputs['{name}']",
            hint="give what the processor makes of pictures of one size",
        )
    return read


IMAGE_TOKENS: Final = ("image_token_id", "image_token_index", "audio_token_id")
LOOKING_AHEAD: Final = {"gemma3": "pictures", "paligemma": "prompts"}
SIZED: Final = {
    "image_sizes": ("llava_next", "llava_next_video", "llava_onevision", "mistral3", "lighton_ocr"),
    "image_grid_thw": ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
}
"""What says how large pictures are, and models that features and positions of such are computed for."""

BESIDE: Final = {"instructblip": ("qformer_input_ids", "qformer_attention_mask")}
"""What models are told beside each picture."""

SOUND_MODELS: Final = {
    "voxtral": (),
    "qwen2_audio": ("feature_attention_mask",),
    "audioflamingo3": ("input_features_mask",),
    "glmasr": ("input_features_mask",),
}
"""Models of text and sounds, and what they are given the mask of features as."""


def sound_inputs(model: Any, source_inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of what sounds are given as.

    Raises:
        InputError: It takes something else; the message names it.
    """
    names = (SOUNDS, *SOUND_MODELS[model.config.model_type])
    if set(source_inputs) != set(names):
        raise InputError(
            f"sounds are given as {' and '.join(names)}, not as {', '.join(source_inputs)}", where="source_inputs"
        )
    return names


def picture_inputs(model: Any, source_inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of what pictures are given as, of models that can be compiled.

    Raises:
        InputError: It takes something else; the message names it.
    """
    kind = model.config.model_type
    taken = inspect.signature(model.get_image_features).parameters
    names = ("pixel_values", *(name for name, kinds in SIZED.items() if name in taken and kind in kinds))
    names += BESIDE.get(kind, ())
    needed = [name for name, item in taken.items() if item.default is item.empty and item.kind is not item.VAR_KEYWORD]
    if more := [name for name in dict.fromkeys((*needed, *SIZED)) if name in taken and name not in names]:
        raise cannot(model, f"its features of pictures follow from {', '.join(more)}, too", SOURCES)
    if set(source_inputs) != set(names):
        raise InputError(
            f"pictures are given as {' and '.join(names)}, not as {', '.join(source_inputs)}", where="source_inputs"
        )
    told = set(TOKEN_TYPES) & set(inspect.signature(model.forward).parameters)
    if told and kind not in (*LOOKING_AHEAD, *SIZED["image_grid_thw"]):
        raise cannot(model, "its tokens look ahead in a way that is not known", SOURCES)
    if not any(getattr(model.config, name, None) is not None for name in IMAGE_TOKENS):
        raise cannot(model, f"its configuration has no {IMAGE_TOKENS[0]}", SOURCES)
    return names


SOURCES: Final = (
    "LLaVA, LLaVA-NeXT, LLaVA-OneVision, InternVL, Idefics 2 and 3, SmolVLM, Gemma 3, PaliGemma, Mistral 3, "
    "LightOnOCR, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, BLIP-2 and InstructBLIP are compiled with "
    "pictures, Qwen2-Audio, Voxtral, Audio Flamingo 3 and GLM-ASR with sounds; without source_inputs a model continues "
    f"text; of others {LOOP_OF_A_PART}"
)
