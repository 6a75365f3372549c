"""Other weights for compiled models: from a program, a model or a state dict; and models that follow their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import Input, InputError, PlanError, RefitError, logger, read_settings
from trt_core.exported_programs import module_of
from trt_core.files.replacing import Path, file_name
from trt_core.forked_lock import ForkedLock
from trt_core.held_arguments import also_named, held_to_signature
from trt_core.internals import pytree
from trt_core.settings_reader import has_no_effect, present_settings
from trt_core.weight_recipes import opened_weights
from trt_core.wording import kind_of
from trt_frontends.compiler import compile
from trt_frontends.pipeline import CALIBRATION
from trt_frontends.stored_layers import open_stored_layers
from trt_lowering.sharded_modules import rest_in_parts
from trt_runtime import LoadedProgram
from trt_runtime.program.document import check_tree
from trt_runtime.program.loaded_program import takes
from trt_runtime.program.loading import TrustKeywords, load_with
from trt_runtime.program.saving import save_with
from trt_runtime.refit import refit_module

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords

    class _LoadKeywords(SettingKeywords, TrustKeywords, total=False):
        trust: bool


_Module = TypeVar("_Module", bound=nn.Module)


@held_to_signature
def refit_module_weights(
    compiled_module: _Module,
    new_weight_module: torch.export.ExportedProgram | nn.Module | Mapping[str, torch.Tensor],
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    *,
    inputs: Sequence[Any] | None = None,
    verify_output: bool = False,
    use_weight_map_cache: bool = True,
    in_place: bool = False,
) -> _Module:
    """Gives a compiled module other weights, in a fraction of the time that compiling it again takes.

    What compiling did to the weights (folding, casting, transposing, merging) is done again to the new ones.

    Args:
        compiled_module: A module that was compiled with `refit=True`, here or loaded.
        new_weight_module: Where the weights come from: the exported program or the model, of the same architecture, or
            its state dict.
        arg_inputs, kwarg_inputs: Inputs to verify with.
        inputs: The same as `arg_inputs`.
        verify_output: Also run the new model and the refitted module on the inputs, and compare.
        use_weight_map_cache: No effect: which weight is where is known since the module was built.
        in_place: Change the given module in place of a copy. Either way modules that share its engines keep theirs.

    Returns:
        The module with the new weights.

    Raises:
        RefitError: The module was built without `refit=True`, a weight is missing or has another type or shape, or one
            has changed that the engine cannot be given; the message names it, and the module is as it was.
        InputError: Outputs are to be verified, and no inputs or no model are given; or inputs are given twice.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> compiled = compile(model, arg_inputs=(torch.ones(2, 4),), min_block_size=1, refit=True)
        >>> other = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> refitted = refit_module_weights(compiled, other.state_dict())
        >>> torch.allclose(refitted(torch.ones(2, 4)), other(torch.ones(2, 4)), atol=1e-5)
        True
    """
    if inputs is not None and arg_inputs is not None:
        raise InputError("inputs and arg_inputs are the same thing", hint="give arg_inputs alone")
    refitted = refit_module(compiled_module, weights_in(new_weight_module), in_place=in_place and not verify_output)
    if not verify_output:
        return refitted
    _verify(refitted, new_weight_module, inputs if arg_inputs is None else arg_inputs, kwarg_inputs)
    return refit_module(compiled_module, weights_in(new_weight_module), in_place=True) if in_place else refitted


def weights_in(
    source: torch.export.ExportedProgram | nn.Module | Mapping[str, torch.Tensor], *, constants: bool = True
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a model by name: parameters, buffers, and constants as far as the source holds them.

    Args:
        source: What holds them.
        constants: Return tensors that are plain attributes of a module, too.

    Raises:
        InputError: The source is something else.
    """
    if isinstance(source, torch.export.ExportedProgram):
        named: dict[str, Any] = {**source.constants, **source.state_dict}
    elif isinstance(source, nn.Module):
        rest_in_parts(source)  # of weights in parts, an engine was built from the part of this process
        with open_stored_layers(source) as opened:  # compiled models have codes in that form
            named = _held_by(opened)
        named |= _held_by(source)
        for path, owner in source.named_modules() if constants else ():
            plain = {name: value for name, value in vars(owner).items() if isinstance(value, torch.Tensor)}
            named = {f"{path}.{name}".lstrip("."): value for name, value in plain.items()} | named
    else:
        named = dict(source)
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _held_by(module: nn.Module) -> dict[str, Any]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _verify(refitted: nn.Module, source: Any, arg_inputs: Any, kwarg_inputs: Any) -> None:
    if isinstance(source, Mapping) or (arg_inputs is None and kwarg_inputs is None):
        raise InputError(
            "outputs cannot be verified",
            hint="give the model or its exported program, and arg_inputs or kwarg_inputs to run it on",
        )
    model = module_of(source) if isinstance(source, torch.export.ExportedProgram) else source
    args, kwargs = tuple(arg_inputs or ()), dict(kwarg_inputs or {})
    with torch.no_grad():
        expected, found = pytree.tree_leaves(model(*args, **kwargs)), pytree.tree_leaves(refitted(*args, **kwargs))
    for index, (wanted, value) in enumerate(zip(expected, found, strict=True)):
        if isinstance(wanted, torch.Tensor) and not _close(value, wanted):
            error = (value.double() - wanted.double()).abs().max().item()
            raise RefitError(
                f"output {index} of the refitted module differs from the model's",
                why=f"the largest difference is {error:.3g}, the outputs' own scale {wanted.abs().max().item():.3g}",
                hint="compile the model again, and report both models",
            )


def _close(value: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Compares with a tolerance of the outputs' scale: engines compute in other orders, or in fewer bits."""
    if not wanted.is_floating_point():
        return torch.equal(value, wanted)
    tolerance = 1e-2 if wanted.dtype in (torch.float16, torch.bfloat16) else 1e-3
    scale = max(wanted.abs().max().item(), 1.0) if wanted.numel() else 1.0
    return torch.allclose(value.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)


# Models that stay compiled while their weights change ----------------------------------------------------------------


class MutableModule:
    """Compiles a model when it is called, once for each combination of input shapes, and refits when weights change.

    Everything else is the model's own: `load_state_dict`, `state_dict`, `parameters`, its attributes and submodules.
    Before a call, parameters and buffers are compared with those of the call before, by identity and version; writes
    through `tensor.data` change no version, so call `refit` after them. What refitting cannot follow, such as a weight
    of another shape, compiles again; call `recompile` after changing what the model computes.

    Args:
        module: The model, in evaluation mode; shared, not copied.
        registry: Where converters are looked up.
        settings: Compilation settings; `refit=True` is always set, whatever is given.

    Raises:
        SettingsError: A setting is unknown, or cannot be had; or its value cannot be read.

    Warns:
        UserWarning: `refit=False` was given.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> mutable = MutableModule(model, min_block_size=1)
        >>> before = mutable(torch.ones(2, 4))
        >>> other = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> _ = mutable.load_state_dict(other.state_dict())
        >>> torch.allclose(mutable(torch.ones(2, 4)), other(torch.ones(2, 4)), atol=1e-5)
        True
    """

    @also_named(pytorch_model="module")
    @held_to_signature
    def __init__(
        self, module: nn.Module, *, registry: ConverterRegistry = DYNAMO_CONVERTERS, **settings: Unpack[SettingKeywords]
    ) -> None:
        given: dict[str, Any] = {**settings}
        others = {name: given.pop(name) for name in (CALIBRATION, "settings") if given.get(name) is not None}
        present = present_settings(given)
        if not read_settings({"refit": True, **present}, settings=others.get("settings")).refit:
            has_no_effect("refit=False", "engines of a MutableModule follow its weights")
        self._own = _State(module, registry, {**present, "refit": True, **others})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model in engines; see `compile` for what can go wrong the first time."""
        return self._own.compiled_for(args, kwargs)(*args, **kwargs)

    def refit(self) -> None:
        """Gives the engines the model's present weights now, whether or not a change was noticed."""
        self._own.refresh(force=True)

    def recompile(self) -> None:
        """Forgets all engines; the next call compiles again."""
        self._own.forget()

    def set_expected_dynamic_shape_range(self, args_dynamic_shape: Any, kwargs_dynamic_shape: Any = None) -> None:
        """Has one engine serve a range of sizes, where each combination of sizes would have its own.

        Calls outside of the range are compiled for their sizes. What is compiled already is forgotten.

        Args:
            args_dynamic_shape: For each positional input None, or its dynamic axes, `{axis: Dim(name, min=, max=)}`;
                nested as the inputs are. Axes with the same `Dim` have the same size.
            kwargs_dynamic_shape: The same by name; inputs that are left out have fixed sizes.

        Raises:
            InputError: A range cannot be read.
        """
        self._own.expect(_ExpectedSizes(args_dynamic_shape, kwargs_dynamic_shape))

    @held_to_signature
    def save(self: MutableModule, path: Path) -> None:
        """Saves the weights and all that is compiled; no code of the model, and nothing that is run when it is loaded.

        Call the module before with inputs of all sizes that it is to have engines for.

        Args:
            path: The file.

        Raises:
            InputError: Nothing is compiled yet.
            ExportError: The model holds something that has no place in a saved program.
            OSError: The file cannot be written.
        """
        own = self._own
        compiled = own.all_compiled()
        if not compiled:
            raise InputError(
                "there is nothing to save: no call has compiled the module", hint="call it first, then save it"
            )
        write_file(path, opened_weights(weights_in(own.module, constants=False), keep=False), compiled)

    @staticmethod
    @held_to_signature
    def load(path: Path, module: nn.Module | None = None, **settings: Unpack[_LoadKeywords]) -> MutableModule:
        """Loads what `save` wrote; it may come from anyone.

        Args:
            path: The file.
            module: The model, which takes the saved weights. Without it, only what was compiled can be called, with
                other weights too (`load_state_dict`); calls that would compile are an error.
            settings: For what is compiled later; or `trust`, `operators`, `allow_host_code` and `trusted_keys`, see
                `trt_runtime.load`.

        Raises:
            InputError: The model has other weights than those that were saved.
            PlanError: The file is none of ours, damaged, or its engines cannot run here.
            OSError: The file cannot be read.
        """
        given: dict[str, Any] = {**settings}
        trust = {name: given.pop(name) for name in _TRUST if name in given}
        weights, programs = read_file(path, **trust)
        if module is None:
            module = _SavedWeights(weights)
        else:
            _give(module, weights)
        loaded = MutableModule(module, **given)
        loaded._own.adopt(programs)
        return loaded

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # while unpickling
            raise AttributeError(name)
        return getattr(self._own.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_own":
            object.__setattr__(self, name, value)
        else:
            setattr(self._own.module, name, value)

    def __repr__(self) -> str:
        return f"MutableModule({self._own.module!r})"


class _State:
    """What a mutable module keeps: the model, its compiled forms, and the weights that they have."""

    def __init__(self, module: nn.Module, registry: ConverterRegistry, settings: dict[str, Any]) -> None:
        self.module = module
        self._registry = registry
        self._settings = settings
        self._compiled: dict[Any, nn.Module] = {}
        self._loaded: list[LoadedProgram] = []
        self._expected: _ExpectedSizes | None = None
        self._seen: Any = None
        self._lock = ForkedLock()

    def compiled_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        """Returns the compiled module for inputs, with the present weights."""
        with self._lock:
            self.refresh()
            inputs = None if self._expected is None else self._expected.inputs(args, kwargs)
            key = self._key(inputs or (args, kwargs))
            found = self._compiled.get(key) or self._loaded_for(args, kwargs)
            if found is None:
                given_args, given_kwargs = inputs or (args, kwargs)
                found = self._compile(given_args, given_kwargs)
            self._compiled[key] = found
            return found

    def _compile(self, args: Any, kwargs: Any) -> nn.Module:
        if isinstance(self.module, _SavedWeights):
            raise InputError(
                "no program of this file takes such inputs, and the file has no model to compile for them",
                hint="save it after a call with inputs like these, or give the model: "
                "MutableModule.load(path, module=model)",
            )
        return compile(self.module, arg_inputs=args, kwarg_inputs=kwargs, registry=self._registry, **self._settings)

    def _loaded_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoadedProgram | None:
        """Returns the loaded program that takes inputs: a program says of itself what it takes."""
        programs = () if self.module.training else self._loaded
        return next((program for program in programs if takes(program, args, kwargs)), None)

    def refresh(self, *, force: bool = False) -> None:
        """Refits what is compiled when weights have changed; what cannot be refitted is compiled at its next call."""
        with self._lock:
            present = _versions(self.module)
            if present == self._seen and not force:
                return
            self._seen = present
            weights = weights_in(self.module) if self._compiled or self._loaded else {}
            loaded = {id(program): self._refitted(program, weights) for program in self._loaded}
            self._loaded = [program for program in loaded.values() if program is not None]
            for key, compiled in list(self._compiled.items()):
                found = loaded[id(compiled)] if id(compiled) in loaded else self._refitted(compiled, weights)
                if found is None:
                    del self._compiled[key]
                else:
                    self._compiled[key] = found

    def _refitted(self, program: _Module, weights: dict[str, torch.Tensor]) -> _Module | None:
        try:
            return refit_module(program, weights)
        except RefitError as error:
            if isinstance(self.module, _SavedWeights):
                raise
            logger.info("the model is compiled again: %s", error)
            return None

    def all_compiled(self) -> list[nn.Module]:
        """Returns what is compiled, each once, with the present weights."""
        with self._lock:
            self.refresh()
            return list({id(program): program for program in (*self._compiled.values(), *self._loaded)}.values())

    def adopt(self, programs: Sequence[LoadedProgram]) -> None:
        """Takes programs that have the weights of the model."""
        with self._lock:
            self._seen = _versions(self.module)
            self._loaded = list(programs)

    def expect(self, expected: _ExpectedSizes) -> None:
        """Sets the ranges of sizes, and forgets what was compiled for others."""
        with self._lock:
            self._expected = expected
            self._compiled.clear()

    def forget(self) -> None:
        """Drops everything that is compiled."""
        with self._lock:
            self._compiled.clear()
            self._loaded.clear()

    def _key(self, inputs: tuple[Any, Any]) -> Any:
        leaves, structure = pytree.tree_flatten(inputs)
        return structure, tuple(map(_described, leaves)), self.module.training


def _described(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    return (Input, str(leaf)) if isinstance(leaf, Input) else (type(leaf), leaf)


class _ExpectedSizes:
    """Ranges of sizes that a mutable module compiles for."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        for given, kind, hint in (
            (args, (list, tuple), "({axis: torch.export.Dim(name)},), one for each positional input"),
            (kwargs, Mapping, "{input: {axis: torch.export.Dim(name)}}"),
        ):
            if given is not None and not isinstance(given, kind):
                raise InputError(f"the ranges of inputs cannot be read: {kind_of(given)}", hint=f"write {hint}")
            _require_ranges(given)
        self._args = tuple(args or ())
        self._kwargs = dict(kwargs or {})

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Returns inputs to compile for in place of those of a call; None where a size is outside of its range."""
        ranges = (*self._args, *[None] * (len(args) - len(self._args)))[: len(args)]  # optional inputs may be left out
        try:
            found = tuple(_with_range(value, axes) for value, axes in zip(args, ranges, strict=True))
            named = {name: _with_range(value, self._kwargs.get(name)) for name, value in kwargs.items()}
        except _OutsideError:
            return None
        return found, named


def _require_ranges(ranges: Any) -> None:
    """Refuses what is no range of an input, in tuples, lists and mappings as inputs are nested."""
    if isinstance(ranges, (list, tuple)) or (
        isinstance(ranges, Mapping) and any(isinstance(key, str) for key in ranges)
    ):
        for item in ranges.values() if isinstance(ranges, Mapping) else ranges:
            _require_ranges(item)
    elif isinstance(ranges, Mapping):
        for axis, dim in ranges.items():
            _bounds_of(axis, dim)
    elif ranges is not None:
        raise InputError(
            f"the range of an input cannot be read: {kind_of(ranges)}", hint="write {axis: torch.export.Dim(name)}"
        )


def _bounds_of(axis: Any, dim: Any) -> tuple[int, int] | None:
    """The least and the largest size of an axis; None where it does not vary."""
    if dim is None:
        return None
    least, most = getattr(dim, "min", None), getattr(dim, "max", None)
    if not (isinstance(least, int) and isinstance(most, int) and isinstance(axis, int)):
        raise InputError(
            f"the range of axis {axis} cannot be read",
            why=f"{dim!r} has no least and largest size",
            hint='write torch.export.Dim("batch", min=1, max=8)',
        )
    return least, most


class _OutsideError(Exception):
    """A size is outside of its range."""


def _with_range(value: Any, axes: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _ranged_input(value, axes) if axes else value
    if isinstance(value, Mapping) and isinstance(axes, Mapping):
        return {name: _with_range(item, axes.get(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and isinstance(axes, (list, tuple)):
        padded = (*axes, *[None] * (len(value) - len(axes)))
        return type(value)(_with_range(item, range_) for item, range_ in zip(value, padded, strict=True))
    return value


def _ranged_input(value: torch.Tensor, axes: Any) -> Input:
    if not isinstance(axes, Mapping):
        raise InputError(
            f"the range of an input cannot be read: {kind_of(axes)}", hint="write {axis: torch.export.Dim(name)}"
        )
    low, high, names = list(value.shape), list(value.shape), {}
    for axis, dim in axes.items():
        bounds = _bounds_of(axis, dim)
        if bounds is None:
            continue
        if not 0 <= axis < value.dim():
            raise InputError(f"there is no axis {axis}", why=f"the input has {value.dim()}")
        least, most = bounds
        if not least <= value.shape[axis] <= most:
            raise _OutsideError
        low[axis], high[axis], names[axis] = least, most, dim.__name__
    return Input(min_shape=low, opt_shape=high, max_shape=high, dtype=value.dtype, dimensions=names)


_TRUST: Final = ("trust", *TrustKeywords.__annotations__)


class _SavedWeights(nn.Module):
    """In place of a model whose code is not there: its weights, by their names, whatever methods modules have."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            owner: nn.Module = self
            *parts, last = name.split(".")
            for part in parts:
                owner = cast("nn.Module", owner._modules.setdefault(part, nn.Module()))
            owner._buffers[last] = value
        self.eval()


def _give(module: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    own = opened_weights(weights_in(module, constants=False), keep=False)
    differing = sorted(own.keys() ^ weights.keys()) or sorted(
        name for name, value in own.items() if (value.shape, value.dtype) != (weights[name].shape, weights[name].dtype)
    )
    if differing:
        raise InputError(
            "the model has other weights than those that were saved",
            where=", ".join(differing[:4]) + (f" and {len(differing) - 4} more" if len(differing) > 4 else ""),
            hint="give a model of the same architecture and types",
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(weights[name])


def _versions(module: nn.Module) -> list[tuple[int, int, int]]:
    tensors = [*module.parameters(), *module.buffers()]
    return [(id(value), value.data_ptr(), 0 if value.is_inference() else value._version) for value in tensors]


# Files of mutable modules -------------------------------------------------------------------------------------------
# A file is that of a saved program, which takes nothing and returns the weights by name, with the compiled ones inside.


_METADATA: Final = "mutable_module"
_PLAIN: Final = nn.Module()


def write_file(path: Path, weights: Mapping[str, torch.Tensor], programs: Sequence[nn.Module]) -> None:
    """Writes weights and programs into one file, which appears complete or not at all.

    Args:
        path: The file.
        weights: Tensors by their names in the model.
        programs: What `compile` or `load` returned.

    Raises:
        ExportError: A weight or a program has no place in the format.
        OSError: The file cannot be written.
    """
    held = {f"weight_{number}": value.cpu().contiguous() for number, value in enumerate(weights.values())}
    graph = fx.Graph()
    graph.output(dict(zip(weights, map(graph.get_attr, held), strict=True)))
    save_with(fx.GraphModule(held, graph), programs, path, {_METADATA: "1"})


def read_file(path: Path, **options: Any) -> tuple[dict[str, torch.Tensor], list[LoadedProgram]]:
    """Reads what `write_file` wrote; it may come from anyone.

    Args:
        path: The file.
        options: See `trt_runtime.load`.

    Returns:
        The weights, on the CPU, and the programs.

    Raises:
        PlanError: It is no such file, or damaged, or a program cannot be loaded; see `trt_runtime.load`.
        OSError: The file cannot be read.
    """
    held, *programs = load_with(path, **options)
    weights = held() if _METADATA in getattr(held, "meta", {}) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) and _is_dense(weights[name]) for name in weights):
        raise PlanError(
            "this is no saved mutable module", where=file_name(path), hint="save it with MutableModule.save"
        )
    check_tree(list(weights))
    if any(vars(_PLAIN).keys() & name.split(".") for name in weights):
        raise PlanError("a weight is called like what makes a module one", where=file_name(path))
    return weights, cast("list[LoadedProgram]", programs)


def _is_dense(value: Any) -> bool:
    """Whether a weight is a tensor whose elements all lie in the file: strides of strangers may repeat one."""
    return isinstance(value, torch.Tensor) and value.is_contiguous()
