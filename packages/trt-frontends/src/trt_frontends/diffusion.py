"""Compiles pipelines of diffusers part by part: what denoises, autoencoders, text encoders."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core import Input, InputError, logger
from trt_core.internals import pytree
from trt_core.wording import did_you_mean
from trt_frontends.compiler import compile
from trt_runtime.diffusion import CompiledMethod, CompiledPart, PartAttributes, components_of, with_parts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords

_NUMBERS: Final = ("add_embedding.linear_1.in_features",)
"""What pipelines read inside of parts."""


def compile_pipeline(
    pipeline: Any,
    call: Mapping[str, Any],
    *,
    sizes: Mapping[str, Sequence[Any]] | None = None,
    parts: Collection[str] | None = None,
    **settings: Unpack[SettingKeywords],
) -> Any:
    """Compiles the parts of a pipeline for calls of the sizes of one call, or of ranges of sizes.

    The pipeline is called to see what its parts take. Schedulers, tokenizers and whatever else is no module go on as
    they are, and so does the loop of the pipeline: it is called like before, with any prompt, seed, scheduler and
    number of steps. Whether guidance doubles the batch is as in the call, and so are image size and batch where `sizes`
    gives no range of them.

    Args:
        pipeline: A `diffusers.DiffusionPipeline`, on the device that it is to run on.
        call: What it is called with. Few steps are enough: `{"prompt": "a cat", "num_inference_steps": 2}`.
        sizes: For arguments of the call that decide sizes, the value of the smallest call, of the one to tune for, and
            of the largest: `{"height": (256, 512, 1024), "num_images_per_prompt": (1, 1, 4)}`. The pipeline is called
            with each of the three.
        parts: Names of the components to compile; by default all that the call uses.
        settings: Compilation settings, for each part.

    Returns:
        A pipeline of the same class with compiled parts; the given one is left as it is. `trt_runtime.diffusion` saves
        it as a folder, and loads that.

    Raises:
        InputError: A part is named that the pipeline does not have, or that the call does not use; or a size is not
            given as three values.
        TrtError: A part cannot be compiled; see `compile`.
    """
    modules = {name: part for name, part in components_of(pipeline).items() if isinstance(part, nn.Module)}
    for name in parts or ():
        if name not in modules:
            hint = did_you_mean(name, modules) or f"its parts are {', '.join(modules)}"
            raise InputError(f"the pipeline has no part {name!r}", hint=hint)
    recorded = [_recorded(pipeline, modules, each) for each in _calls(call, sizes or {})]
    compiled: dict[str, CompiledPart] = {}
    for name, part in modules.items():
        methods = recorded[0].get(name, {})
        if parts is not None and name not in parts:
            continue
        if not methods:
            if parts is not None:
                raise InputError(f"the call does not use the part {name!r}", hint="give a call that does")
            continue
        others = [calls.get(name, {}) for calls in recorded[1:]]
        if why := _why_not(part, methods, others):
            if parts is not None:
                raise InputError(f"the part {name!r} cannot be compiled", why=why)
            logger.warning("%s stays in PyTorch: %s", name, why)
            continue
        compiled[name] = CompiledPart(
            {
                method: _compile(part, method, _ranged(found, [calls[method] for calls in others]), settings)
                for method, found in methods.items()
            },
            PartAttributes({path: number for path in _NUMBERS if (number := _number(part, path)) is not None}),
        )
    return with_parts(pipeline, compiled)


@dataclass(frozen=True)
class _Call:
    """One call of a method: its arguments by name, without those that are None; and the names of its parameters."""

    arguments: dict[str, Any]
    parameters: tuple[str, ...]


def _calls(call: Mapping[str, Any], sizes: Mapping[str, Sequence[Any]]) -> list[Mapping[str, Any]]:
    """The call to tune for, and the smallest and the largest one where sizes have ranges.

    Raises:
        InputError: A size is not given as three values.
    """
    for name, values in sizes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != 3:
            raise InputError(
                f"sizes[{name!r}] is {values!r:.80}",
                hint="give three values: of the smallest call, of the one to tune for, and of the largest",
            )
    if not sizes:
        return [call]
    return [{**call, **{name: values[at] for name, values in sizes.items()}} for at in (1, 0, 2)]


def _recorded(pipeline: Any, modules: Mapping[str, nn.Module], call: Mapping[str, Any]) -> dict[str, dict[str, _Call]]:
    with _Recorder(modules).recording() as recorder, torch.no_grad():
        pipeline(**call)
    return recorder.calls


def _ranged(found: _Call, others: Sequence[_Call]) -> _Call:
    """A call with the range of each tensor whose shape varies in the place of the tensor."""
    if not others:
        return found
    return replace(found, arguments=pytree.tree_map(_range, found.arguments, *(other.arguments for other in others)))


def _range(value: Any, *others: Any) -> Any:
    if not isinstance(value, torch.Tensor) or all(other.shape == value.shape for other in others):
        return value
    shapes = [tuple(value.shape), *(tuple(other.shape) for other in others)]
    domain = (0.0, 2.0)
    if not value.is_floating_point() and value.dtype is not torch.bool:  # they may be indices
        domain = (float(value.min()), float(value.max()) + 1)
    return Input(
        min_shape=tuple(map(min, *shapes)),
        opt_shape=shapes[0],
        max_shape=tuple(map(max, *shapes)),
        dtype=value.dtype,
        tensor_domain=domain,
    )


def _differs(found: _Call, other: _Call) -> str:
    """What but the extents of tensors differs between two calls of a method; nothing where that is all."""
    if found.arguments.keys() != other.arguments.keys():
        names = sorted(found.arguments.keys() ^ other.arguments.keys())
        return f"calls of some sizes alone give it {', '.join(names)}"
    for name, value in found.arguments.items():
        leaves, structure = pytree.tree_flatten(value)
        theirs, other_structure = pytree.tree_flatten(other.arguments[name])
        if structure != other_structure or not all(map(_alike, leaves, theirs)):
            return f"{name} differs between calls in more than the extents of tensors"
    return ""


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and (one.dtype, one.dim()) == (other.dtype, other.dim())
    return type(one) is type(other) and bool(one == other)


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
        rest = next((key for key, one in signature.parameters.items() if one.kind is one.VAR_KEYWORD), "")

        def watched(*args: Any, **kwargs: Any) -> Any:
            if method not in self.calls.setdefault(name, {}):
                given = dict(signature.bind(*args, **kwargs).arguments)
                given |= given.pop(rest, {})
                arguments = {key: _kept(value) for key, value in given.items() if value is not None}
                self.calls[name][method] = _Call(arguments, tuple(signature.parameters))
            return function(*args, **kwargs)

        watched.__signature__ = signature  # type: ignore[attr-defined]  # pipelines look for names of parameters
        return watched


def _kept(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _is_autoencoder(part: nn.Module) -> bool:
    return callable(getattr(part, "decode", None)) and callable(getattr(part, "encode", None))


def _why_not(part: nn.Module, methods: Mapping[str, _Call], others: Sequence[Mapping[str, _Call]]) -> str:
    """Why a part cannot be compiled; nothing where it can.

    Args:
        part: The part.
        methods: How the call to tune for calls it.
        others: How calls of other sizes do.
    """
    for calls in others:
        if calls.keys() != methods.keys():
            return "calls of some sizes alone use it"
        for method, found in methods.items():
            if why := _differs(found, calls[method]):
                return why
    if type(part).__name__.endswith("ControlNetModel"):
        return "pipelines ask it for its class, which a compiled part has not"
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
    value = next(value for value in found.arguments.values() if isinstance(value, (torch.Tensor, Input)))
    return CompiledMethod(compile(wrapper, kwarg_inputs={parameter: value}, **settings), (parameter,))


def _number(part: Any, path: str) -> int | None:
    for name in path.split("."):
        part = getattr(part, name, None)
    return part if isinstance(part, int) else None
