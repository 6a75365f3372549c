"""Calibration data: what callers give, checked, as inputs of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.export.graph_signature import InputKind

from trt_core import InputError
from trt_core.dtypes import dtype_name
from trt_core.wording import kind_of
from trt_frontends.capture import keyword_inputs
from trt_frontends.example_inputs import ExampleInputs

MOST_OF_UNKNOWN_LENGTH: Final = 1024
"""How many inputs are read of data that does not say how many it has: it may never end."""

_HINT = "give tuples of positional inputs, dicts of keyword inputs, pairs (tuple, dict), or single tensors"


def read_samples(calibration: Iterable[Any] | None) -> list[ExampleInputs]:
    """Reads calibration data.

    Args:
        calibration: Any iterable of tensors, tuples of positional inputs, dicts of keyword inputs, or pairs of both.

    Raises:
        InputError: It is no iterable, it is empty, reading it fails, or an item is none of these; or it has no length,
            and goes on after `MOST_OF_UNKNOWN_LENGTH` items.
    """
    if calibration is None:
        raise InputError("there is no calibration data", hint=f"quantizing activations needs some: {_HINT}")
    if isinstance(calibration, (torch.Tensor, str, bytes, Mapping)) or not isinstance(calibration, Iterable):
        raise InputError(
            f"calibration data is {kind_of(calibration)}, not a collection of inputs",
            hint=f"give a list, a data loader, or a generator; {_HINT}",
        )
    samples = [_read(item, index) for index, item in enumerate(_items(calibration))]
    if not samples:
        raise InputError("the calibration data is empty", hint="some ten to a hundred representative inputs will do")
    return samples


def _items(calibration: Iterable[Any]) -> Iterator[Any]:
    """Yields what callers' data yields; what it raises is about the data."""
    index = 0
    try:
        known = hasattr(calibration, "__len__")
        for item in calibration:
            if index == MOST_OF_UNKNOWN_LENGTH and not known:
                raise InputError(
                    "the calibration data does not end",
                    why=f"{index} inputs were read, all are kept in memory, and it does not say how many there are",
                    hint="give some ten to a hundred of them: itertools.islice(data, 100)",
                )
            yield item
            index += 1
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "the calibration data cannot be read",
            where=f"calibration input {index}",
            why=f"{type(error).__name__}: {error}",
            hint="iterate over it alone to see the same error",
        ) from error


def _read(item: Any, index: int) -> ExampleInputs:
    if isinstance(item, torch.Tensor):
        return ExampleInputs((item,), {})
    if isinstance(item, Mapping):
        return ExampleInputs((), dict(item))
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
        pair = len(item) == 2 and isinstance(item[0], (tuple, list)) and isinstance(item[1], Mapping)
        return ExampleInputs(tuple(item[0]), dict(item[1])) if pair else ExampleInputs(tuple(item), {})
    raise InputError(f"calibration input {index} is {kind_of(item)}", hint=_HINT)


def flat_inputs(program: torch.export.ExportedProgram, samples: Sequence[ExampleInputs]) -> Iterator[list[Any]]:
    """Yields each sample as the flat list of inputs that a program's graph takes, on the program's device.

    Raises:
        InputError: A sample does not fit the program, or holds NaN or infinities.
    """
    places = _places(program)
    keywords = keyword_inputs(program)
    for index, sample in enumerate(samples):
        where = f"calibration input {index}"
        try:
            leaves = sample.in_order_of(keywords)
        except InputError as error:
            raise InputError(error.what, where=where, why=error.why, hint=error.hint) from None
        if len(leaves) != len(places):
            raise InputError(
                f"it holds {len(leaves)} inputs, the program takes {len(places)}",
                where=where,
                hint="leave out what is no input of the model, such as the labels of a data loader",
            )
        yield [_fitting(leaf, *place, where) for leaf, place in zip(leaves, places, strict=True)]


def _places(program: torch.export.ExportedProgram) -> list[tuple[str, Any]]:
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    return [(name, values.get(name)) for name in names]


def _fitting(leaf: Any, name: str, meta: Any, where: str) -> Any:
    if not isinstance(meta, torch.Tensor):
        return leaf
    if not isinstance(leaf, torch.Tensor):
        raise InputError(
            f"input {name} is {kind_of(leaf)}, not a tensor",
            where=where,
            hint="convert it with torch.as_tensor",
        )
    if leaf.dtype != meta.dtype:
        raise InputError(
            f"input {name} is {dtype_name(leaf.dtype)}, the program takes {dtype_name(meta.dtype)}",
            where=where,
            hint=f"convert it with .to(torch.{dtype_name(meta.dtype)})",
        )
    fits = leaf.dim() == meta.dim() and all(
        not isinstance(wanted, int) or found == wanted for found, wanted in zip(leaf.shape, meta.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"input {name} has shape {tuple(leaf.shape)}, the program takes {tuple(meta.shape)}",
            where=where,
            hint="calibrate with inputs of the program's shape, or export it with dynamic dimensions",
        )
    if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
        raise InputError(
            f"input {name} holds NaN or infinities",
            where=where,
            why="ranges that are measured on it would be meaningless",
            hint="leave the sample out, or mend it",
        )
    return leaf.detach().to(meta.device, copy=True)
