"""Example inputs: what users give for a model's inputs, as tensors to export with and ranges to compile for."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core import Device, Input, InputError
from trt_core.held_arguments import held_to_signature
from trt_core.internals import pytree
from trt_core.nesting import LEAST_DYNAMIC
from trt_core.settings_reader import warn_caller
from trt_core.sizes.expressions import extent_of, linear_form
from trt_core.wording import did_you_mean, kind_of
from trt_runtime.program.graph import Signature
from trt_runtime.program.input_reader import places_of


@dataclass(frozen=True)
class ExampleInputs:
    """Inputs of a model, positional and by keyword, each a tensor, an `Input`, or a plain value.

    Attributes:
        args: Positional inputs.
        kwargs: Inputs by keyword.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def read(
        cls,
        inputs: Sequence[Any] | None = None,
        arg_inputs: Sequence[Any] | None = None,
        kwarg_inputs: Mapping[str, Any] | None = None,
    ) -> ExampleInputs | None:
        """Reads what an entry point was called with; None when no inputs were given at all.

        Raises:
            InputError: Inputs were given twice, are not a sequence, or by keyword no mapping of names; or they hold
                NumPy arrays, or may be empty in a dimension.
        """
        if inputs is not None and arg_inputs is not None:
            raise InputError("inputs and arg_inputs are the same thing", hint="give arg_inputs alone")
        positional = inputs if inputs is not None else arg_inputs
        if positional is None and kwarg_inputs is None:
            return None
        if isinstance(positional, (torch.Tensor, Input)):
            positional = (positional,)
        if positional is not None and not isinstance(positional, Sequence):
            raise InputError(
                f"inputs must be a tuple or list of the model's inputs, not {type(positional).__name__}",
                hint="write arg_inputs=(x, y), also for a single input: arg_inputs=(x,)",
            )
        _require_names(kwarg_inputs if kwarg_inputs is not None else {})
        examples = cls(tuple(positional or ()), dict(kwarg_inputs or {}))
        for leaf in examples.leaves():
            if type(leaf).__module__.partition(".")[0] == "numpy":
                raise InputError("an input is a NumPy array", hint="convert it with torch.from_numpy")
        _require_extents(examples)
        return examples

    def require_parameter_names(self) -> None:
        """Checks that parameters can be called as the keyword inputs are; inputs of ONNX models need not.

        Raises:
            InputError: One cannot.
        """
        for name in self.kwargs:
            if keyword.iskeyword(name) or not name.isidentifier():
                raise InputError(
                    f"an input is called {name!r}, and no parameter can be",
                    why="PyTorch writes what it captures as a function of Python, whose parameters are the inputs",
                    hint="give it another name, or pass it in a dictionary that has one",
                )

    def tensors(self, device: torch.device, *, doubled: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) to export with: `Input`s become example tensors, the rest stays as it is.

        The generators of random numbers are left as they were.

        Args:
            device: Where the tensors lie.
            doubled: Whether extents that vary are twice those of the opt shape, as far as they may be.
        """

        def materialize(leaf: Any) -> Any:
            return _export_example(leaf, device, doubled) if isinstance(leaf, Input) else leaf

        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return pytree.tree_map(materialize, self.args), pytree.tree_map(materialize, self.kwargs)

    def dynamic_shapes(self, signature: inspect.Signature) -> dict[str, Any] | None:
        """Returns `dynamic_shapes` for `torch.export.export`, None when every input is static.

        Args:
            signature: What the inputs bind to, without `self`.

        Raises:
            InputError: Inputs that share a named dimension give it different ranges.
        """
        if not any(isinstance(leaf, Input) and leaf.is_dynamic for leaf in self.leaves()):
            return None
        dims = _named_dims(self.leaves())
        args = [_dynamic_dims(value, dims) for value in self.args]
        kwargs = {name: _dynamic_dims(value, dims) for name, value in self.kwargs.items()}
        return dict(signature.bind(*args, **kwargs).arguments)  # nested as export nests inputs: by parameter

    def in_order(self, signature: inspect.Signature) -> ExampleInputs:
        """Returns the same inputs, keyword inputs in the order of the parameters.

        A captured program takes its inputs in the order that it was given them, and is called by position as well.
        """
        order = {name: index for index, name in enumerate(signature.parameters)}
        names = sorted(self.kwargs, key=lambda name: order.get(name, len(order)))
        return ExampleInputs(self.args, {name: self.kwargs[name] for name in names})

    def places(self, signature: inspect.Signature) -> list[tuple[str, str]]:
        """Returns, for every leaf, the parameter that it belongs to, and its place in words: `x`, `state[0]`."""
        bound = signature.bind_partial(*(_Position(index) for index in range(len(self.args))))
        names: dict[int, tuple[str, str]] = {}
        for name, value in bound.arguments.items():
            for offset, item in enumerate(value if isinstance(value, tuple) else (value,)):
                place = f"{name}[{offset}]" if isinstance(value, tuple) else name
                names[item.index] = name, place
        roots = [(*names[index], value) for index, value in enumerate(self.args)]
        roots += [(name, name, value) for name, value in self.kwargs.items()]
        return [
            (name, place + pytree.keystr(path))
            for name, place, value in roots
            for path, _ in pytree.tree_leaves_with_path(value)
        ]

    def leaves(self) -> list[Any]:
        """Returns every input, nested ones flattened, positional before keyword."""
        return list(pytree.tree_leaves((self.args, self.kwargs)))

    def in_order_of(self, keywords: Sequence[str]) -> list[Any]:
        """Returns every input flattened, with keyword inputs in the order that a program wants them.

        Raises:
            InputError: A keyword is missing, or the program does not know it.
        """
        missing = [name for name in keywords if name not in self.kwargs]
        unknown = [name for name in self.kwargs if name not in keywords]
        if missing or unknown:
            raise InputError(
                "keyword inputs do not fit the program",
                why=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}",
                hint=f"the program takes {', '.join(keywords) or 'no keyword inputs'}",
            )
        return list(pytree.tree_leaves((self.args, {name: self.kwargs[name] for name in keywords})))

    def device(self) -> Device | None:
        """Returns the device of the first tensor among the inputs."""
        for leaf in self.leaves():
            if isinstance(leaf, torch.Tensor) and leaf.device.type in ("cpu", "cuda"):
                return Device(leaf.device)
        return None


@dataclass(frozen=True)
class _Position:
    """Stands for a positional input while parameters are matched."""

    index: int


@held_to_signature
def get_dynamic_shapes_args(parameters: Sequence[str], inputs: Sequence[Any]) -> dict[str, Any]:
    """Returns the dynamic dimensions of positional inputs, by parameter name.

    Args:
        parameters: Names of the parameters, in order. A `*args` parameter takes what is left, as a tuple.
        inputs: Tensors, `Input`s, or nested structures of them.
    """
    if len(inputs) > len(parameters):  # what is left belongs to the *args parameter, the last one
        head = list(inputs[: len(parameters) - 1])
        return get_dynamic_shapes_args(parameters, [*head, tuple(inputs[len(parameters) - 1 :])])
    dims = _named_dims(pytree.tree_leaves(list(inputs)))
    return {name: _dynamic_dims(value, dims) for name, value in zip(parameters, inputs, strict=False)}


@held_to_signature
def get_dynamic_shapes_kwargs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dynamic dimensions of keyword inputs, by name."""
    dims = _named_dims(pytree.tree_leaves(dict(inputs)))
    return {name: _dynamic_dims(value, dims) for name, value in inputs.items()}


def _dynamic_dims(value: Any, dims: Mapping[str, Any]) -> Any:
    def dims_of(leaf: Any) -> Any:
        return {axis: _dim(leaf, axis, dims) for axis in leaf.dynamic_axes} if isinstance(leaf, Input) else None

    return map_as_export_nests(dims_of, value)


def map_as_export_nests(function: Callable[[Any], Any], value: Any) -> Any:
    """Maps leaves to what is said of them in `dynamic_shapes`, where for a class of the user's stands what it holds."""

    def said_of(leaf: Any) -> Any:
        if not is_users(leaf):
            return function(leaf)
        return map_as_export_nests(function, pytree.SUPPORTED_NODES[type(leaf)].flatten_fn(leaf)[0])

    def is_users(node: Any) -> bool:
        kind = type(node)
        return kind in pytree.SUPPORTED_NODES and kind not in pytree.BUILTIN_TYPES and not hasattr(kind, "_fields")

    return pytree.tree_map(said_of, value, is_leaf=is_users)


def _dim(spec: Input, axis: int, dims: Mapping[str, Any]) -> Any:
    """A dimension that has a name is that one; another may turn out to be equal to others without being named.

    A dimension that the model fixes is an error either way.
    """
    named = spec.dimensions.get(axis)
    if named is None:
        # a range of two sizes, of which tracing assumes the larger, would count as fixed
        highest = max(spec.max_shape[axis], _LEAST_MAXIMUM)
        return torch.export.Dim.DYNAMIC(min=spec.min_shape[axis], max=highest)
    dim = dims[named.name]
    product = named.factor * dim if named.factor != 1 else dim
    return product + named.offset if named.offset else product


def _named_dims(leaves: Sequence[Any]) -> dict[str, Any]:
    """Returns the dimensions that inputs name, each once.

    Raises:
        InputError: Two inputs give a shared dimension different ranges.
    """
    ranges: dict[str, tuple[Any, ...]] = {}
    for spec in (leaf for leaf in leaves if isinstance(leaf, Input)):
        for axis, named in spec.dimensions.items():
            wanted = tuple(named.solve(shape[axis]) for profile in spec.profiles for shape in profile)
            known = ranges.setdefault(named.name, wanted)
            if known != wanted:
                raise InputError(
                    f"the dimension {named.name!r} is {wanted} in {spec}, and {known} in an input before it",
                    why="dimensions of one name are equal, so their min, opt and max are",
                    hint="give them the same range, or different names",
                )
    dims = {}
    taken = set(ranges)
    for name, own in ranges.items():
        plain = _dim_name(name, taken)
        taken.add(plain)
        dims[name] = torch.export.Dim(plain, min=min(own), max=max(own))
    return dims


def _dim_name(name: str, taken: Collection[str]) -> str:
    """A dimension's name for PyTorch, which has SymPy read `2*N`: names that mean something else there get a sign."""
    import sympy  # PyTorch imports it where sizes vary

    try:
        if isinstance(sympy.sympify(name), sympy.Symbol):
            return name
    except sympy.SympifyError:  # a keyword of Python's
        pass
    while name in taken:
        name += "_"
    return name


def dimension_names(graph: fx.Graph, flat: Sequence[Any]) -> dict[str, str]:
    """Returns what users call the symbols of a graph.

    Args:
        graph: A graph whose placeholders carry `meta["val"]`.
        flat: The input of each placeholder.
    """
    found: dict[str, str] = {}
    for node, spec in zip(graph.find_nodes(op="placeholder"), flat, strict=True):
        value = node.meta.get("val")
        if not isinstance(spec, Input) or not isinstance(value, torch.Tensor):
            continue
        for axis, named in spec.dimensions.items():
            form = linear_form(extent_of(value.shape[axis]))
            if form is not None:
                symbol, factor, offset = form
                is_same = (factor, offset) == (named.factor, named.offset)
                found.setdefault(symbol, named.name if is_same else str(named))
    return found


def _require_names(kwarg_inputs: Any) -> None:
    found = "" if isinstance(kwarg_inputs, Mapping) else kind_of(kwarg_inputs)
    if not found:
        found = next((f"keys such as {name!r}" for name in kwarg_inputs if not isinstance(name, str)), "")
    if found:
        raise InputError(
            f"kwarg_inputs must map names to inputs, not {found}", hint='write kwarg_inputs={"mask": mask}'
        )


def _require_extents(examples: ExampleInputs) -> None:
    for spec in examples.leaves():
        if not isinstance(spec, Input):
            continue
        for axis in spec.dynamic_axes:
            if spec.min_shape[axis] == 0:
                raise InputError(
                    f"dimension {axis} of {spec} starts at 0",
                    why="an engine has no empty tensors, and capturing takes a size of 0 for a case of its own",
                    hint="let it start at 1, and answer empty inputs before calling the model",
                )


_LEAST_MAXIMUM: Final = 3


def _export_example(spec: Input, device: torch.device, doubled: bool = False) -> torch.Tensor:
    """An example of the opt shape; dynamic extents of 1, which export would take as fixed, are raised to the next."""
    shape = list(spec.opt_shape)
    for axis in spec.dynamic_axes:
        named = spec.dimensions.get(axis)
        size, most = shape[axis], spec.max_shape[axis]
        if named is not None:
            size, most = (named.solve(extent) or extent for extent in (size, most))
        size = min(2 * max(size, LEAST_DYNAMIC), most) if doubled else max(size, LEAST_DYNAMIC)
        shape[axis] = max(size if named is None else named.factor * size + named.offset, LEAST_DYNAMIC)
    return Input(shape, dtype=spec.dtype, format=spec.format, tensor_domain=spec.tensor_domain).example(device=device)


# Names of inputs -----------------------------------------------------------------------------------------------------


_NUMBERED: Final = re.compile(r".+_\d+")


def require_names(examples: ExampleInputs, signature: inspect.Signature, title: str) -> None:
    """Checks the names of the inputs that a module is captured with.

    Args:
        examples: The inputs; they bind to the signature.
        signature: What the module's `forward` takes.
        title: How messages call the module.

    Raises:
        InputError: An `Input` is named after another parameter, or after none of several.

    Warns:
        UserWarning: It is not named after the only one.
    """
    known = signature.parameters
    variadic = {name for name, item in known.items() if item.kind is inspect.Parameter.VAR_POSITIONAL}
    names, called = list(known), f"{title}.forward{signature}"  # there may be thousands of both
    for (parameter, place), leaf in zip(examples.places(signature), examples.leaves(), strict=True):
        if parameter not in variadic:  # what is given for *args has no name of its own
            _require_name(leaf, (parameter, place), names, called)


def require_names_of(signature: Signature, flat: Sequence[Any]) -> None:
    """Checks the names of the inputs that an exported program is compiled for.

    Args:
        signature: How the program is called.
        flat: The inputs in its order.

    Raises:
        InputError: An `Input` is named after another input, or after none of several.

    Warns:
        UserWarning: It is not named after the only one.
    """
    roots = [
        name
        for name, tree in zip(signature.names, signature.structure, strict=True)
        for _ in places_of(Signature((name,), 1, (tree,), ()))
    ]
    called = f"the program of ({', '.join(signature.names)})"
    for root, place, leaf in zip(roots, places_of(signature), flat, strict=True):
        if not _NUMBERED.fullmatch(root):  # so export calls what was given for *args
            _require_name(leaf, (root, place), signature.names, called)


def _require_name(leaf: Any, allowed: tuple[str, str], known: Sequence[str], title: str) -> None:
    if not isinstance(leaf, Input) or leaf.name in ("", *allowed):
        return
    what = f"the Input named {leaf.name!r} is given for {allowed[1]!r} of {title}"
    if leaf.name in known:
        raise InputError(what, hint="give inputs in the order of the parameters, or by name in kwarg_inputs")
    if len(known) == 1:
        warn_caller(f"{what}, which knows no such name")
        return
    near = did_you_mean(leaf.name, known)
    raise InputError(
        what,
        why=f"there is no input of that name, only {', '.join(known)}",
        hint=f"{near + ' ' if near else ''}name it {allowed[0]!r}, or leave the name out",
    )
