"""What models of transformers are called with, found by calling them with tensors that have no data."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core import Input, InputError
from trt_core.dtypes import dtype_of_weights
from trt_core.internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from trt_core.log import unlogged
from trt_frontends.capture import fake_copy

_TOKENS: Final = 128
_PIXELS: Final = 224
_SAMPLES: Final = 16000
_FRAMES: Final = 1000


def usual_inputs(model: Any) -> dict[str, Input]:
    """The fewest inputs for one example that a model of transformers goes through with.

    Args:
        model: The model; it is left as it is, and nothing is computed.

    Returns:
        Inputs by name: the model's main one, what its `forward` requires, and what it fails without.

    Raises:
        InputError: They cannot be made up.
    """
    trial = _Trial(model)
    found = trial.first_that_goes_through(_first_names(model, trial.known))
    if found is not None:
        return found
    hint = f"give the shape of each that it needs, --shapes {model.main_input_name}=1x...; it takes "
    raise InputError(
        f"inputs of {type(model).__name__} cannot be made up",
        why=trial.error,
        hint=hint
        + ", ".join(_tensor_names(model))
        + ("; to generate text there is trtc generate" if model.can_generate() else ""),
    )


def require_inputs(model: Any, inputs: Mapping[str, Input]) -> None:
    """Checks that inputs are all that a model of transformers needs.

    Raises:
        InputError: It fails with them, and does not with further ones.
    """
    trial = _Trial(model, inputs)
    found = trial.first_that_goes_through(list(inputs))
    if found is None or found.keys() == inputs.keys():
        return
    missing = [name for name in found if name not in inputs]
    raise InputError(
        f"{type(model).__name__} needs {' and '.join(missing)} beside {', '.join(inputs)}",
        hint=" ".join(f"--shapes {name}={'x'.join(map(str, found[name].shape))}" for name in missing),
    )


def known_inputs(config: Any) -> dict[str, list[Input]]:
    """Inputs of one example by name, each in the forms that models of transformers take it in, the likeliest first.

    Args:
        config: The model's configuration, which has the sizes.
    """
    lengths = _all_of(config, "max_position_embeddings", "max_target_positions", "max_text_positions")
    length = min([_TOKENS, *(value for value in lengths if isinstance(value, int) and value > 0)])
    tokens = Input((1, length), dtype=torch.int64)
    return {
        "input_ids": [tokens],
        "attention_mask": [tokens],
        "bbox": [Input((1, length, 4), dtype=torch.int64)],
        "pixel_values": [Input(shape) for shape in _pixels(config)],
        "input_features": [Input(shape) for shape in _features(config)],
        "input_values": [Input(shape) for shape in _waves(config)],
        "decoder_input_ids": [tokens],
    }


def _pixels(config: Any) -> Iterator[tuple[int, ...]]:
    size = _one_of(config, "image_size") or _PIXELS
    sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = _one_of(config, "num_channels") or 3
    frames = _one_of(config, "num_frames")
    if frames is not None:
        yield (1, frames, channels, *sides)
    yield (1, channels, *sides)


def _features(config: Any) -> Iterator[tuple[int, ...]]:
    bands = _one_of(config, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim") or 80
    places, picture = _one_of(config, "max_source_positions"), _one_of(config, "spec_size")
    if places is not None:  # of Whisper, whose convolutions halve the frames
        yield (1, bands, 2 * places)
    if picture is not None:  # of CLAP, which folds frames into a square
        yield (1, 1, picture * (picture // bands), bands)
    yield (1, _FRAMES, bands)


def _waves(config: Any) -> Iterator[tuple[int, ...]]:
    bands, frames, channels = (_one_of(config, name) for name in ("num_mel_bins", "max_length", "audio_channels"))
    if bands is not None and frames is not None:  # of spectrogram transformers, which take no waves
        yield (1, frames, bands)
    if channels is not None:
        yield (1, channels, _SAMPLES)
    yield (1, _SAMPLES)


def _one_of(config: Any, *names: str) -> Any:
    return next(_all_of(config, *names), None)


def _all_of(config: Any, *names: str) -> Iterator[Any]:
    """Values of a configuration and of those inside of it, by any of some names."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            yield value
    for part in vars(config).values():
        if hasattr(part, "model_type"):
            yield from _all_of(part, *names)


def _first_names(model: Any, known: Mapping[str, Any]) -> list[str]:
    parameters = inspect.signature(model.forward).parameters
    required = {name for name, item in parameters.items() if item.default is item.empty and item.kind not in _VARIADIC}
    first = {model.main_input_name, *required}
    if "input_ids" in first:  # what a tokenizer makes; without boxes LayoutLM takes all words to be at one place
        first |= {"attention_mask", "bbox"} & parameters.keys()
    return [name for name in dict.fromkeys([*known, *parameters]) if name in first]


_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _tensor_names(model: Any) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.items()
    return [name for name, item in parameters if item.kind not in _VARIADIC and "Tensor" in str(item.annotation)]


_BEYOND_TRIAL: Final = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What says that a call without data cannot go on, and nothing about the inputs."""


class _Trial:
    """Calls of a copy of a model whose weights have no data.

    Attributes:
        known: Forms of inputs by name.
        error: How the first call ended.
    """

    def __init__(self, model: Any, given: Mapping[str, Input] | None = None) -> None:
        self.known = {**known_inputs(model.config), **{name: [item] for name, item in (given or {}).items()}}
        self.error = ""
        self._parameters = inspect.signature(model.forward).parameters
        self._dtype = dtype_of_weights(model) or torch.float32
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._model = fake_copy(model, self._mode)

    def first_that_goes_through(self, first: Sequence[str]) -> dict[str, Input] | None:
        """The first inputs, and as few more of those known as are needed; None where no more help."""
        unknown = [name for name in first if name not in self.known]
        if unknown:
            self.error = f"nothing is known of {', '.join(unknown)}"
            return None
        more = [name for name in self.known if name in self._parameters and name not in first]
        for count in range(len(more) + 1):
            for names in itertools.combinations(more, count):
                chosen = [*first, *names]
                for forms in itertools.product(*(self.known[name] for name in chosen)):
                    inputs = dict(zip(chosen, forms, strict=True))
                    if self._goes_through(inputs):
                        return inputs
        return None

    def _goes_through(self, inputs: Mapping[str, Input]) -> bool:
        try:
            with self._mode, torch.no_grad(), unlogged("torch._subclasses.fake_tensor"):
                self._model(**{name: self._without_data(given) for name, given in inputs.items()})
        except _BEYOND_TRIAL:
            return True
        except Exception as error:  # whatever a model says of inputs that it does not take
            self.error = self.error or f"{type(error).__name__}: {error}".partition("\n")[0]
            return False
        return True

    def _without_data(self, given: Input) -> torch.Tensor:
        kind = self._dtype if given.dtype.is_floating_point else given.dtype
        return torch.zeros(given.opt_shape, dtype=kind, device="cpu")
