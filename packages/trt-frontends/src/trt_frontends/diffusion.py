"""Compiles pipelines of diffusers part by part: what denoises, autoencoders, text encoders."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from trt_core import InputError, logger
from trt_core.internals import pytree
from trt_core.wording import did_you_mean
from trt_frontends.compiler import compile
from trt_runtime.diffusion import CompiledMethod, CompiledPart, PartAttributes, with_parts

_NUMBERS: Final = ("add_embedding.linear_1.in_features",)
"""What pipelines read inside of parts."""


def compile_pipeline(
    pipeline: Any,
    call: Mapping[str, Any],
    *,
    parts: Collection[str] | None = None,
    **settings: Any,
) -> Any:
    """Compiles the parts of a pipeline for calls of the sizes of one call, which is made once to see them.

    Schedulers, tokenizers and whatever else is no module go on as they are, and so does the loop of the pipeline: it is
    called like before, with any prompt, seed, scheduler and number of steps. Image size, batch, and whether guidance
    doubles it, are those of the call.

    Args:
        pipeline: A `diffusers.DiffusionPipeline`, on the device that it is to run on.
        call: What it is called with. Few steps are enough: `{"prompt": "a cat", "num_inference_steps": 2}`.
        parts: Names of the components to compile; by default all that the call uses.
        settings: Compilation settings, for each part.

    Returns:
        A pipeline of the same class with compiled parts; the given one is left as it is. `trt_runtime.diffusion` saves
        it as a folder, and loads that.

    Raises:
        InputError: A part is named that the pipeline does not have, or that the call does not use.
        TrtError: A part cannot be compiled; see `compile`.
    """
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    for name in parts or ():
        if name not in modules:
            hint = did_you_mean(name, modules) or f"its parts are {', '.join(modules)}"
            raise InputError(f"the pipeline has no part {name!r}", hint=hint)
    with _Recorder(modules).recording() as recorder, torch.no_grad():
        pipeline(**call)
    compiled: dict[str, CompiledPart] = {}
    for name, part in modules.items():
        methods = recorder.calls.get(name, {})
        if parts is not None and name not in parts:
            continue
        if not methods:
            if parts is not None:
                raise InputError(f"the call does not use the part {name!r}", hint="give a call that does")
            continue
        if why := _why_not(part, methods):
            if parts is not None:
                raise InputError(f"the part {name!r} cannot be compiled", why=why)
            logger.warning("%s stays in PyTorch: %s", name, why)
            continue
        compiled[name] = CompiledPart(
            {method: _compile(part, method, found, settings) for method, found in methods.items()},
            PartAttributes({path: number for path in _NUMBERS if (number := _number(part, path)) is not None}),
        )
    return with_parts(pipeline, compiled)


@dataclass(frozen=True)
class _Call:
    """One call of a method: its arguments by name, without those that are None; and the names of its parameters."""

    arguments: dict[str, Any]
    parameters: tuple[str, ...]


class _Recorder:
    """Sees the first call of each method of the parts of a pipeline.

    Attributes:
        calls: By part and method.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self.calls: dict[str, dict[str, _Call]] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[_Recorder]:
        """Sees what is called inside the block."""
        methods = [
            (name, part, method)
            for name, part in self._modules.items()
            for method in (("decode", "encode") if _is_autoencoder(part) else ("forward",))
        ]
        for name, part, method in methods:
            part.__dict__[method] = self._watched(name, method, getattr(part, method))
        try:
            yield self
        finally:
            for _, part, method in methods:
                del part.__dict__[method]

    def _watched(self, name: str, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if method not in self.calls.setdefault(name, {}):
                given = signature.bind(*args, **kwargs).arguments
                arguments = {key: _kept(value) for key, value in given.items() if value is not None}
                self.calls[name][method] = _Call(arguments, tuple(signature.parameters))
            return function(*args, **kwargs)

        watched.__signature__ = signature  # type: ignore[attr-defined]  # pipelines look for names of parameters
        return watched


def _kept(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _is_autoencoder(part: nn.Module) -> bool:
    return callable(getattr(part, "decode", None)) and callable(getattr(part, "encode", None))


def _why_not(part: nn.Module, methods: Mapping[str, _Call]) -> str:
    """Why a part cannot be compiled; nothing where it can."""
    if "encode" in methods and not hasattr(part, "quant_conv"):
        return "only encoders of AutoencoderKL are known, which return a distribution"
    return ""


class _Decoder(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part, self.config = part, part.config

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        decoded: torch.Tensor = self.part.decode(z, return_dict=False)[0]
        return decoded


class _Encoder(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part, self.config = part, part.config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moments: torch.Tensor = self.part.encode(x, return_dict=False)[0].parameters
        return moments


def _compile(part: nn.Module, method: str, found: _Call, settings: Mapping[str, Any]) -> CompiledMethod:
    if method == "forward":
        return CompiledMethod(compile(part.eval(), kwarg_inputs=found.arguments, **settings), found.parameters)
    wrapper = (_Decoder if method == "decode" else _Encoder)(part).eval()
    (parameter,) = inspect.signature(wrapper.forward).parameters
    value = next(value for value in found.arguments.values() if isinstance(value, torch.Tensor))
    return CompiledMethod(compile(wrapper, kwarg_inputs={parameter: value}, **settings), (parameter,))


def _number(part: Any, path: str) -> int | None:
    for name in path.split("."):
        part = getattr(part, name, None)
    return part if isinstance(part, int) else None
