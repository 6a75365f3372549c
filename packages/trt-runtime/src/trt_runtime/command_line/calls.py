"""Calls of a loaded program: inputs from a file or made up, outputs by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from trt_core.errors import InputError
from trt_core.sizes.expressions import evaluate_extent
from trt_runtime.program.graph import FixedInput, Leaf, NumberInput, Program, TensorInput, Value
from trt_runtime.program.module import LoadedProgram, captured_from

_NUMBERS = {int: 1, float: 1.0, bool: True}


def example_call(
    module: nn.Module, given: Mapping[str, torch.Tensor] | None, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what to call a program with.

    Args:
        module: A loaded program.
        given: Tensors by input name, `state['a']` where inputs are nested; None makes them up at the shapes that the
            program was tuned for. Inputs that are no tensors have the value that the program was compiled for.
        seed: Seed of what is made up.

    Raises:
        InputError: Names are missing or unknown.
    """
    if not isinstance(module, LoadedProgram):
        raise InputError("only programs in our own format say what they take", hint="save the program again")
    program = captured_from(module).program
    signature = program.signature
    places = [
        place for name, tree in zip(signature.names, signature.structure, strict=True) for place, _ in _walk(tree, name)
    ]
    tensors = [place for place, leaf in zip(places, signature.leaves, strict=True) if isinstance(leaf, TensorInput)]
    if given is not None:
        given = _by_name(given, tensors)
    generator = torch.Generator().manual_seed(seed)
    flat = [
        given[place] if given is not None and place in given else _made_up(leaf, program, generator)
        for place, leaf in zip(places, signature.leaves, strict=True)
    ]
    device = next((value.device for value in module.parameters()), None)
    values = [_on_device(value, leaf, device) for value, leaf in zip(flat, signature.leaves, strict=True)]
    built = [_build(tree, values) for tree in signature.structure]
    split = signature.positional
    return tuple(built[:split]), dict(zip(signature.names[split:], built[split:], strict=True))


def named_tensors(result: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a result by place: `output`, `output[0]`, `output['logits']`."""
    return {place: value for place, value in _walk(result, "output") if isinstance(value, torch.Tensor)}


def _by_name(given: Mapping[str, torch.Tensor], wanted: list[str]) -> dict[str, torch.Tensor]:
    if set(given) == {""} and len(wanted) == 1:
        return {wanted[0]: given[""]}
    unknown, missing = sorted(set(given) - set(wanted)), [name for name in wanted if name not in given]
    if unknown or missing:
        parts = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise InputError(
            "the tensors given are not those that the program takes",
            why="; ".join(parts),
            hint=f"it takes {', '.join(wanted) or 'none'}",
        )
    return dict(given)


def _made_up(leaf: Leaf, program: Program, generator: torch.Generator) -> Any:
    if isinstance(leaf, FixedInput):
        return leaf.value
    if isinstance(leaf, NumberInput):
        tuned = program.symbols.get(leaf.symbol or "")
        return tuned[1] if tuned is not None else _NUMBERS[leaf.kind]
    tuned_symbols = {name: best for name, (_, best, _) in program.symbols.items()}
    shape = [
        dimension.low if dimension.extent is None else int(evaluate_extent(dimension.extent, tuned_symbols))
        for dimension in leaf.shape
    ]
    if leaf.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(leaf.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(leaf.dtype)  # valid as an index almost everywhere


def _on_device(value: Any, leaf: Leaf, device: torch.device | None) -> Any:
    if not isinstance(leaf, TensorInput) or leaf.device == "cpu":
        return value
    return value.to(device if device is not None and device.type == leaf.device else leaf.device)


def _build(tree: Any, values: list[Any]) -> Any:
    if type(tree) is Value:
        return values[tree.index]
    if isinstance(tree, Mapping):
        return {name: _build(child, values) for name, child in tree.items()}
    return type(tree)(_build(child, values) for child in tree)


def _walk(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, leaf)."""
    if isinstance(tree, Mapping):
        for name, child in tree.items():
            yield from _walk(child, f"{place}[{name!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, child in enumerate(tree):
            yield from _walk(child, f"{place}[{index}]")
    else:
        yield place, tree
