"""Inputs to compare on: what was given, seeded random ones like it, the edges of its domain, and dynamic sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx, nn

from trt_core import Input, InputError
from trt_core.attributes import is_written, read_attribute
from trt_core.internals import pytree
from trt_core.temporary import seeded
from trt_core.wording import kind_of
from trt_frontends.example_inputs import ExampleInputs
from trt_runtime import TRTModule


@dataclass(frozen=True)
class SampleInputs:
    """One set of inputs of a model.

    Attributes:
        name: What is special about it, such as `seed 3` or `max sizes`.
        args, kwargs: Positional inputs, and those by keyword.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self, function: Callable[..., Any], through: Callable[..., Any] | None = None) -> Any:
        """Calls a model with copies of the inputs, so that it may write to them; see `call_alike`.

        Args:
            function: The model.
            through: What is called with the model and the inputs in place of the model.
        """
        args, kwargs = pytree.tree_map_only(torch.Tensor, _copy, (self.args, self.kwargs))
        given = (args, kwargs)
        if through is None:
            return call_alike(function, lambda: function(*args, **kwargs), given)
        return call_alike(function, lambda: through(function, *args, **kwargs), given)


def sample_inputs(
    examples: ExampleInputs, device: torch.device, count: int, seed: int, *, edges: bool = True
) -> Iterator[SampleInputs]:
    """Yields inputs within the domain of the examples.

    Args:
        examples: Tensors, `Input`s and plain values. The domain of an `Input` is its `tensor_domain`; that of a tensor
            lies between its smallest and its largest finite element.
        device: Where tensors of `Input`s are made.
        count: How many random sets are made; the examples themselves, edges and dynamic sizes come on top.
        seed: Seed of the first random set.
        edges: Whether to yield inputs that are as low, or as high, as the domain goes in every element.
    """
    leaves = examples.leaves()
    specs = [leaf for leaf in leaves if isinstance(leaf, Input)]
    if len(specs) < len(leaves) and any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        yield _make("as given", examples, lambda leaf: leaf, device, "opt", seed)
    for offset in range(count):
        yield _make(f"seed {seed + offset}", examples, _redraw, device, "opt", seed + offset)
    if edges:
        yield _make("all lowest", examples, lambda leaf: _filled(leaf, lowest=True), device, "opt", seed)
        yield _make("all highest", examples, lambda leaf: _filled(leaf, lowest=False), device, "opt", seed)
    profiles = max((len(spec.profiles) for spec in specs), default=1)
    for profile in range(profiles):
        of_profile = f" of profile {profile}" if profiles > 1 else ""
        for which in ("min", "max") if any(spec.is_dynamic for spec in specs) else ():
            yield _make(f"{which} sizes{of_profile}", examples, _redraw, device, which, seed, profile)


FORMS_OF_INPUTS: Final = "tensors, tuples of positional inputs, dicts of keyword inputs, or pairs (tuple, dict)"

MOST_OF_UNKNOWN_LENGTH: Final = 1024
"""How many inputs are read of data that does not say how many it has: it may never end."""


def read_calibration(data: Iterable[Any], what: str, called: str = "input") -> Iterator[SampleInputs]:
    """Yields inputs that a caller gives to measure on; see `read_inputs`.

    Args:
        data: Any iterable of them.
        what: What messages call it.
        called: What messages call one of them.

    Raises:
        InputError: There are none, reading them fails, or one is none of these; the data is one input itself, or has no
            length and goes on after `MOST_OF_UNKNOWN_LENGTH` inputs.
    """
    if isinstance(data, Mapping):
        raise InputError(
            f"{what} is {kind_of(data)}, not a collection of inputs",
            hint=f"give a list, a data loader, or a generator of {FORMS_OF_INPUTS}",
        )
    yield from read_inputs(_items(data, what, called), f"{what} is empty: it has no inputs", called)


def _items(data: Iterable[Any], what: str, called: str) -> Iterator[Any]:
    """Yields what callers' data yields; what it raises is about the data."""
    index = 0
    try:
        known = hasattr(data, "__len__")
        for item in data:
            if index == MOST_OF_UNKNOWN_LENGTH and not known:
                raise InputError(
                    f"{what} does not end",
                    why=f"{index} inputs were read, and it does not say how many there are",
                    hint="give some ten to a hundred of them: itertools.islice(data, 100)",
                )
            yield item
            index += 1
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be read",
            where=f"{called} {index}",
            why=f"{type(error).__name__}: {error}",
            hint="iterate over it alone to see the same error",
        ) from error


def read_inputs(
    inputs: Iterable[Any], when_empty: str = "there are no inputs to compare on", called: str = "input"
) -> Iterator[SampleInputs]:
    """Yields inputs that a caller gives: tuples of positional inputs, dicts of keyword inputs, pairs of both, tensors.

    Args:
        inputs: What the caller gives.
        when_empty: What to say where there are none.
        called: What messages call one of them.

    Raises:
        InputError: There are none, or one is none of these.
    """
    index = -1
    for index, item in enumerate(inputs):
        name = f"{called} {index}"
        if isinstance(item, torch.Tensor):
            yield SampleInputs(name, (item,), {})
        elif isinstance(item, Mapping):
            yield SampleInputs(name, (), dict(item))
        elif isinstance(item, Sequence) and _is_pair(item):
            yield SampleInputs(name, tuple(item[0]), dict(item[1]))
        elif isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
            yield SampleInputs(name, tuple(item), {})
        else:
            raise InputError(
                f"{name} is {kind_of(item)}",
                hint=f"give {FORMS_OF_INPUTS}",
            )
    if index < 0:
        raise InputError(when_empty, hint="give at least one, or leave it out")


def _is_pair(item: Sequence[Any]) -> bool:
    return len(item) == 2 and isinstance(item[0], (tuple, list)) and isinstance(item[1], Mapping)


def _make(
    name: str,
    examples: ExampleInputs,
    change: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device,
    which: str,
    seed: int,
    profile: int = 0,
) -> SampleInputs:
    def materialize(leaf: Any) -> Any:
        if isinstance(leaf, Input):
            tensor = leaf.example(which, device, profile=profile if len(leaf.profiles) > 1 else 0)
            return tensor if change is _redraw else change(_with_domain(tensor, leaf))
        return change(leaf) if isinstance(leaf, torch.Tensor) else leaf

    with seeded(seed, [device]):
        args, kwargs = pytree.tree_map(materialize, (examples.args, examples.kwargs))
    return SampleInputs(name, args, kwargs)


def _with_domain(tensor: torch.Tensor, spec: Input) -> torch.Tensor:
    """Puts the edges of the domain among the elements, where there is room for them."""
    if tensor.numel() > 1 and tensor.dtype is not torch.bool:
        low, high = spec.tensor_domain
        top = high if tensor.is_floating_point() else max(int(high) - 1, int(low))
        tensor.view(-1)[0], tensor.view(-1)[-1] = low, top
    return tensor


def _redraw(tensor: torch.Tensor) -> torch.Tensor:
    """New elements of the domain; those of integers and booleans are the old ones in another order."""
    if tensor.is_complex() or not tensor.numel():
        return tensor
    if not tensor.is_floating_point():
        return tensor.flatten()[torch.randperm(tensor.numel(), device="cpu")].view(tensor.shape)
    low, high = _domain(tensor)
    drawn = torch.rand(tensor.shape, dtype=torch.float32, device="cpu") * (high - low) + low
    return drawn.to(tensor.dtype).to(tensor.device)


def _filled(tensor: torch.Tensor, *, lowest: bool) -> torch.Tensor:
    if tensor.is_complex() or not tensor.numel():
        return tensor
    low, high = _domain(tensor)
    return torch.full_like(tensor, low if lowest else high)


def _domain(tensor: torch.Tensor) -> tuple[float, float]:
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor
    if not finite.numel():
        return 0, 1
    low, high = finite.min().item(), finite.max().item()
    return (low, high) if low < high or not tensor.is_floating_point() else (low - 1, high + 1)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format)


_SEED = 0


def call_alike(function: Callable[..., Any], run: Callable[[], Any], inputs: Any) -> Any:
    """Calls a model, with the random numbers of every other call, and puts back what it writes to its state.

    Args:
        function: The model; its state are the buffers that it writes to, counters and caches.
        run: Calls it.
        inputs: Its inputs.

    Returns:
        The result, of which nothing is part of the state.
    """
    devices = (leaf.device for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
    with seeded(_SEED, devices), _kept(function) as state:
        memory = {_memory(tensor) for tensor in state}
        return pytree.tree_map_only(
            torch.Tensor,
            lambda item: item.clone() if item.layout is torch.strided and _memory(item) in memory else item,
            run(),
        )


def _memory(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


@contextlib.contextmanager
def _kept(function: Callable[..., Any]) -> Iterator[list[torch.Tensor]]:
    """Puts back the state of a model in the end."""
    state = _state_of(function)
    before = [tensor.detach().clone() for tensor in state]
    try:
        yield state
    finally:
        with torch.no_grad():
            for tensor, value in zip(state, before, strict=True):
                tensor.detach().copy_(value)


def _state_of(function: Callable[..., Any]) -> list[torch.Tensor]:
    """Returns what a model may write to: of a graph what it names, of other modules every buffer."""
    found: dict[int, torch.Tensor] = {}
    for module in nn.Module.modules(function) if isinstance(function, nn.Module) else ():
        if isinstance(module, fx.GraphModule):
            nodes = module.graph.find_nodes(op="get_attr")
            names = [str(node.target) for node in nodes if _is_changed(module, node)]
            held = [read_attribute(module, name) for name in names]
        else:
            held = [] if isinstance(module, TRTModule) else list(module.buffers(recurse=False))
        found.update({id(tensor): tensor for tensor in held if _can_be_kept(tensor)})
    return list(found.values())


def _is_changed(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a graph, or a part of it that is called with the value of a node, writes to that."""
    if is_written(node):
        return True
    for user in node.users:
        part = module.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(part, fx.GraphModule):
            taken = part.graph.find_nodes(op="placeholder")
            given = zip(user.args, taken, strict=False)
            if any(value is node and _is_changed(part, parameter) for value, parameter in given):
                return True
    return False


def _can_be_kept(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, nn.Parameter, nn.Buffer) and value.layout is torch.strided and not value.is_meta
    )
