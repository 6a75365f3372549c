"""Models by name: `hf:DIR`, `timm:NAME`, `torchvision:NAME`; inputs follow from what they say of themselves."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from trt_core import Input, InputError
from trt_core.dtypes import parse_dtype
from trt_core.wording import did_you_mean

Shapes = Mapping[str, Sequence[tuple[int, ...]]]
"""One shape of an input, or three: least, usual, greatest."""

_TOKENS: Final = 128
_PIXELS: Final = 224


def load_named_model(
    source: str, shapes: Shapes, dtype: str | None = None, *, random_weights: bool = False
) -> tuple[nn.Module, dict[str, Input]] | None:
    """Loads a model by its name in a library.

    Args:
        source: `hf:DIR`, a folder that `save_pretrained` of transformers wrote; `timm:NAME`; `torchvision:NAME`.
        shapes: Shapes of inputs by name. Inputs that are not named have the usual ones of the model, batch 1.
        dtype: Type of weights and floating inputs; None for that of the weights.
        random_weights: Do not fetch weights.

    Returns:
        The model in eval mode, and its inputs by name; None where the source names none of these libraries.

    Raises:
        InputError: The library is not installed, or has no such model or input; or the weights cannot be had.
    """
    library, separator, name = source.partition(":")
    if not separator or library not in _LIBRARIES:
        return None
    model, usual = _LIBRARIES[library](name, random_weights)
    if dtype is not None:
        model = model.to(parse_dtype(dtype))
    own = next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), torch.float32)
    unknown = shapes.keys() - usual.keys()
    if unknown and library != "hf":  # models of transformers take more than what is usual
        raise InputError(
            f"{source} has no input {min(unknown)!r}",
            hint=did_you_mean(min(unknown), usual) or f"it takes {min(usual)}",
        )
    names = list(dict.fromkeys([*usual, *shapes]))
    if library == "hf" and shapes:
        names = list(shapes)  # what is given is all that there is
    return model.eval(), {name: _input(name, shapes.get(name), usual.get(name), own) for name in names}


def _input(name: str, given: Sequence[tuple[int, ...]] | None, usual: Input | None, dtype: torch.dtype) -> Input:
    shapes = [usual.opt_shape] if given is None and usual is not None else list(given or ())
    is_integer = usual is not None and not usual.dtype.is_floating_point
    is_integer = is_integer or name.endswith(("_ids", "_mask", "_types"))
    kind = torch.int64 if is_integer else dtype
    if len(shapes) == 1:
        return Input(shapes[0], dtype=kind)
    low, best, high = shapes
    return Input(min_shape=low, opt_shape=best, max_shape=high, dtype=kind, dimensions=_dimension_names(low, high))


def _dimension_names(low: Sequence[int], high: Sequence[int]) -> dict[int, str]:
    """The first dimension of all inputs is the batch."""
    return {0: "batch"} if low and low[0] != high[0] else {}


def _import(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise InputError(f"{name} needs {library}", why=str(error), hint=f"pip install {library}") from error


Loaded = tuple[nn.Module, dict[str, Input]]


def _from_transformers(name: str, random_weights: bool) -> Loaded:
    transformers = _import("transformers", f"hf:{name}")
    if not Path(name).is_dir():
        raise InputError(
            f"there is no folder {name}",
            hint="give hf: the folder that save_pretrained wrote, or that `hf download MODEL --local-dir DIR` made",
        )
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        if random_weights:
            model = kind(config) if kind is not transformers.AutoModel else kind.from_config(config)
        else:
            model = kind.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"transformers cannot load {name}", why=str(error).partition("\n")[0]) from error
    return model, _usual_inputs(model)


def _usual_inputs(model: Any) -> dict[str, Input]:
    """What a model of transformers is called with for one example."""
    main = model.main_input_name
    config = model.config
    if main == "pixel_values":
        size = getattr(config, "image_size", _PIXELS)
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return {main: Input((1, getattr(config, "num_channels", 3), height, width))}
    if main == "input_ids":
        length = min(_TOKENS, getattr(config, "max_position_embeddings", _TOKENS))
        tokens = Input((1, length), dtype=torch.int64)
        return {main: tokens, "attention_mask": tokens}
    if main == "input_values":
        return {main: Input((1, 16000))}
    raise InputError(
        f"inputs of {type(model).__name__} cannot be made up", hint=f"give their shapes: --shape {main}=1x80x3000"
    )


def _from_timm(name: str, random_weights: bool) -> Loaded:
    timm = _import("timm", f"timm:{name}")
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}", hint=did_you_mean(name, timm.list_models()))
    model = _with_weights(f"timm:{name}", lambda: timm.create_model(name, pretrained=not random_weights))
    described: Any = model
    size = described.default_cfg.get("input_size", (3, _PIXELS, _PIXELS))
    return model, {_first_parameter(model): Input((1, *size))}


def _from_torchvision(name: str, random_weights: bool) -> Loaded:
    models = _import("torchvision", f"torchvision:{name}").models
    if name not in models.list_models():
        raise InputError(f"torchvision has no model {name!r}", hint=did_you_mean(name, models.list_models()))
    weights = None if random_weights else "DEFAULT"
    made = {"weights_backbone": None} if random_weights and "weights_backbone" in _parameters(models, name) else {}
    model = _with_weights(f"torchvision:{name}", lambda: models.get_model(name, weights=weights, **made))
    return model, {_first_parameter(model): Input((1, 3, _PIXELS, _PIXELS))}


def _first_parameter(model: nn.Module) -> str:
    return next(iter(inspect.signature(model.forward).parameters))


def _parameters(models: Any, name: str) -> Any:
    return inspect.signature(models.get_model_builder(name)).parameters


def _with_weights(source: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the weights of {source} cannot be had",
            why=f"{type(error).__name__}: {error}".partition("\n")[0],
            hint="connect to the network once, so that they are kept; or give --random-weights",
        ) from error


_LIBRARIES: Final[dict[str, Callable[[str, bool], Loaded]]] = {
    "hf": _from_transformers,
    "timm": _from_timm,
    "torchvision": _from_torchvision,
}
