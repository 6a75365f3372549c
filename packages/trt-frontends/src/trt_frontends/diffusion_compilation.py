"""Compiles pipelines part by part: what denoises, autoencoders, text encoders of diffusers; models of transformers."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core import ExportError, Input, InputError, logger
from trt_core.dtypes import dtype_of_weights
from trt_core.internals import pytree
from trt_core.wording import did_you_mean, kind_of
from trt_frontends.compiler import compile
from trt_runtime.diffusion import (
    CompiledMethod,
    CompiledPart,
    components_of,
    kept_buffers,
    required_names,
    with_parts,
    with_programs,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords

_MOST_WAYS: Final = 4
"""In how many ways one run may call a method that is compiled."""
_MOST_METHODS: Final = 16
"""Of how many modules in it a part may be compiled."""


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
        pipeline: A `diffusers.DiffusionPipeline`, on the device that it is to run on. Or one of transformers, whose
            part is its `model`: where it calls several methods of that, as `mask-generation` does, each is compiled.
        call: What it is called with. Few steps are enough: `{"prompt": "a cat", "num_inference_steps": 2}`.
        sizes: For arguments of the call that decide sizes, the value of the smallest call, of the one to tune for, and
            of the largest: `{"height": (256, 512, 1024), "num_images_per_prompt": (1, 1, 4)}`. The pipeline is called
            with each of the three.
        parts: Names of the components to compile; by default all that the call uses.
        settings: Compilation settings, for each part.

    Returns:
        A pipeline of the same class with compiled parts; the given one is left as it is. `trt_runtime.diffusion` saves
        one of diffusers as a folder, and loads that.

    Raises:
        InputError: A part is named that the pipeline does not have, or that the call does not use; or a size is not
            given as three values.
        TrtError: A part cannot be compiled; see `compile`.
    """
    modules = {name: part for name, part in _components(pipeline).items() if isinstance(part, nn.Module)}
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
        why = _why_not(methods, others)
        try:
            if not why:
                compiled[name] = _compile_part(part, methods, others, settings)
                continue
        except ExportError as error:
            if parts is not None:
                raise
            why = str(error)
        if parts is not None:
            raise InputError(f"the part {name!r} cannot be compiled", why=why)
        logger.warning("%s stays in PyTorch: %s", name, why)
    return with_parts(pipeline, compiled)


def _components(pipeline: Any) -> Mapping[str, Any]:
    """The parts of a pipeline by name; one of transformers has a model.

    Raises:
        InputError: It is no pipeline.
    """
    library = sys.modules.get("transformers.pipelines.base")
    if library is not None and isinstance(pipeline, library.Pipeline):
        return {"model": pipeline.model}
    return components_of(pipeline)


def _compile_part(part: nn.Module, methods: _Calls, elsewhere: Sequence[_Calls], settings: Mapping[str, Any]) -> Any:
    programs = {}
    for path, calls in methods.items():
        owner, _, method = path.rpartition(".")
        module = part.get_submodule(owner)
        ranged = [_ranged(found, [each[path][at] for each in elsewhere]) for at, found in enumerate(calls)]
        programs[path] = CompiledMethod(tuple(_compile(module, method, found, settings) for found in ranged))
    on_no_device: dict[int, Any] = {}  # by identity, as copies are looked up
    for parameter in part.parameters():
        on_no_device[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    kept = {id(buffer) for buffer in kept_buffers(part).values()}
    computed = (value for module in part.modules() for value in vars(module).values())  # weights of `weight_norm`
    others = (value for value in computed if isinstance(value, torch.Tensor) and not value.is_leaf)
    for tensor in (*part.buffers(), *others):
        if id(tensor) not in kept:
            on_no_device[id(tensor)] = torch.empty_like(tensor, device="meta", requires_grad=False)
    return with_programs(copy.deepcopy(part, on_no_device), programs)


@dataclass(frozen=True)
class _Call:
    """One call of a method.

    Attributes:
        arguments: By name, without those that are None and need not be given.
        dtype: The type of the weights at that time; None without weights.
        why_not: Why the call cannot be compiled; empty where it can.
    """

    arguments: dict[str, Any]
    dtype: torch.dtype | None = None
    why_not: str = ""


_Calls = dict[str, list[_Call]]
"""The calls of a part that differ, by the path of the method: `forward`, `quant_conv.forward`."""


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


def _recorded(pipeline: Any, modules: Mapping[str, nn.Module], call: Mapping[str, Any]) -> dict[str, _Calls]:
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


@dataclass
class _Frame:
    """A call that goes on: what it was called with, and what is to be compiled if it cannot be as a whole."""

    path: str
    module: nn.Module
    call: _Call | None
    inner: list[tuple[str, _Call]] = field(default_factory=list)


class _Recorder:
    """Sees what of the parts of a pipeline has to be compiled for a call of the pipeline.

    That are the outermost calls of the parts' methods and modules which take and return tensors, plain values, and
    nests of these. Of a call with anything else, such as one that returns a distribution, it is the calls inside.

    Attributes:
        calls: By part.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self.calls: dict[str, _Calls] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[_Recorder]:
        """Sees what is called inside the block."""
        with contextlib.ExitStack() as stack:
            for name, part in self._modules.items():
                self._watch(name, part, stack)
            yield self

    def _watch(self, name: str, part: nn.Module, stack: contextlib.ExitStack) -> None:
        open_calls: list[_Frame] = []
        signatures = {path: inspect.signature(module.forward) for path, module in part.named_modules()}

        def enter(path: str, module: nn.Module, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
            open_calls.append(_Frame(path, module, _call_of(module, signature, args, kwargs)))

        def leave(result: Any) -> None:
            frame = open_calls.pop()
            found = _to_compile(frame, result)
            if open_calls:
                open_calls[-1].inner += found
                return
            calls = self.calls.setdefault(name, {})
            for path, call in found:
                same = calls.setdefault(path, [])
                if not any(_is_same(call, other) for other in same):
                    same.append(call)

        for path, module in part.named_modules():
            place = f"{path}.forward" if path else "forward"

            def before(module: nn.Module, args: Any, kwargs: Any, *, path: str = path, place: str = place) -> None:
                enter(place, module, signatures[path], args, kwargs)

            def after(module: nn.Module, args: Any, result: Any) -> None:
                leave(result)

            for handle in (
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after, always_call=True),
            ):
                stack.callback(handle.remove)
        for method in _methods(part):
            function = getattr(part, method)
            part.__dict__[method] = _watched(part, method, function, enter, leave)
            stack.callback(part.__dict__.pop, method)


def _watched(
    part: nn.Module, method: str, function: Callable[..., Any], enter: Callable[..., None], leave: Callable[[Any], None]
) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        enter(method, part, signature, args, kwargs)
        result = None
        try:
            result = function(*args, **kwargs)
        finally:
            leave(result)
        return result

    return watched


def _methods(part: nn.Module) -> Iterator[str]:
    """The methods of a part's own classes, without `forward`; what libraries give to all their models is left out."""
    seen = {"forward"}
    for kind in type(part).__mro__:
        if kind is nn.Module:
            return
        if kind.__name__.endswith("Mixin") or kind.__name__ == "PreTrainedModel":
            continue
        names = [name for name, value in vars(kind).items() if inspect.isfunction(value) and name not in seen]
        seen.update(names)
        yield from (name for name in names if not name.startswith("__") and not hasattr(nn.Module, name))


def _call_of(module: nn.Module, signature: inspect.Signature, args: Any, kwargs: Any) -> _Call | None:
    """A call of tensors; None where there are none."""
    if not _tensors((args, kwargs)):
        return None
    dtype = dtype_of_weights(module)
    given: dict[str, Any] = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if name in given and parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name)
        elif name in given and parameter.kind is parameter.VAR_POSITIONAL:
            return _Call({}, dtype, f"{name} are arguments without names")
    if "generator" in signature.parameters:  # what draws numbers stays in PyTorch, whether or not this call brings one
        return _Call({}, dtype, "it takes a generator")
    required = required_names(signature)
    arguments = {name: value for name, value in given.items() if value is not None or name in required}
    for name, value in arguments.items():
        if strange := _strange(value):
            return _Call({}, dtype, f"{name} is {kind_of(strange)}")
    return _Call(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, arguments), dtype)


def _to_compile(frame: _Frame, result: Any) -> list[tuple[str, _Call]]:
    call = frame.call
    if call is None or result is None:
        return frame.inner
    strange = _strange(result)
    if strange is None and not _tensors(result):
        return frame.inner
    if next(frame.module.parameters(), None) is None:
        return frame.inner  # Python without weights
    if strange is None and not call.why_not:
        return [(frame.path, call)]
    if not frame.path.endswith("forward") or (frame.inner and not frame.module._parameters):
        return frame.inner
    return [(frame.path, replace(call, why_not=call.why_not or f"it returns {kind_of(strange)}"))]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _strange(values: Any) -> Any:
    """What in a nest is neither a tensor nor a plain value; None where there is nothing.

    Caches of transformers are no such things: compiled models are asked for none.
    """
    plain = (torch.Tensor, bool, int, float, str, torch.dtype, torch.device, type(None))
    for leaf in pytree.tree_leaves(values):
        if not isinstance(leaf, plain) and not type(leaf).__name__.endswith("Cache"):
            return leaf
    return None


def _is_same(one: _Call, other: _Call) -> bool:
    if one.why_not or other.why_not:
        return one.why_not == other.why_not
    return not _differs(one, other) and [each.shape for each in _tensors(one.arguments)] == [
        each.shape for each in _tensors(other.arguments)
    ]


def _why_not(methods: _Calls, others: Sequence[_Calls]) -> str:
    """Why a part cannot be compiled; nothing where it can.

    Args:
        methods: How the call to tune for calls it.
        others: How calls of other sizes do.
    """
    if len(methods) > _MOST_METHODS:
        return f"{len(methods)} modules in it are called one by one"
    for method, calls in methods.items():
        if why := next((call.why_not for call in calls if call.why_not), ""):
            return f"{method}: {why}"
        if len(calls) > _MOST_WAYS:
            return f"one run calls {method} in {len(calls)} ways, and the most is {_MOST_WAYS}"
    for theirs in others:
        if theirs.keys() != methods.keys() or any(len(theirs[name]) != len(methods[name]) for name in methods):
            return "calls of some sizes alone use it"
        for method, calls in methods.items():
            for found, other in zip(calls, theirs[method], strict=True):
                if why := _differs(found, other):
                    return why
    return ""


class _Method(nn.Module):
    """A method of a module as a model."""

    def __init__(self, owner: nn.Module, method: str) -> None:
        super().__init__()
        self.owner, self.method = owner, method

    def forward(self, **given: Any) -> Any:
        return getattr(self.owner, self.method)(**given)


def _compile(module: nn.Module, method: str, found: _Call, settings: Mapping[str, Any]) -> nn.Module:
    if found.dtype is not None and dtype_of_weights(module) is not found.dtype:  # pipelines cast parts for some calls
        module = copy.deepcopy(module).to(found.dtype)
    module.eval()
    model = module if method == "forward" else _Method(module, method).eval()
    return compile(model, kwarg_inputs=found.arguments, **settings)
