"""What has another value inside a block, and its own again afterwards."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")

_under_way: dict[object, tuple[int, Callable[[], None]]] = {}
"""Blocks of `undone_in_forks`, outer ones first: thread, and what undoes what is changed inside."""


@contextlib.contextmanager
def undone_in_forks(undo: Callable[[], None]) -> Iterator[None]:
    """Has a process that another thread forks meanwhile undo what the block changes: nobody ends the block there.

    Args:
        undo: Undoes it, also where it is changed in part, or not at all.
    """
    key = object()
    _under_way[key] = threading.get_ident(), undo
    try:
        yield
    finally:
        _under_way.pop(key, None)


@contextlib.contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Undoes at its end what the block changes; a process that another thread forks meanwhile does so at once.

    Args:
        undo: See `undone_in_forks`.
    """
    with undone_in_forks(undo):
        try:
            yield
        finally:
            undo()


def _undo_in_fork() -> None:
    own = threading.get_ident()
    for key, (thread, undo) in reversed(list(_under_way.items())):
        if thread != own:
            del _under_way[key]
            undo()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_undo_in_fork)


@contextlib.contextmanager
def with_value(variable: ContextVar[Any], value: _T) -> Iterator[_T]:
    """Gives a context variable a value inside the block, which is the block's target."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextlib.contextmanager
def with_attributes(owner: Any, **attributes: Any) -> Iterator[None]:
    """Gives an object, class or module other attributes inside the block.

    What it has of its own is there again afterwards; what it has not, as a method of its class, is left to the class.

    Args:
        owner: It keeps its attributes in a dict.
        attributes: Names and values.
    """
    own = vars(owner)
    before = {name: own[name] for name in attributes if name in own}

    def undo() -> None:
        for name in attributes:
            if name in before:
                setattr(owner, name, before[name])
            elif name in vars(owner):
                delattr(owner, name)

    with undone(undo):
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield


@contextlib.contextmanager
def seeded(seed: int, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Draws random numbers from a seed inside the block; every generator is afterwards as it was.

    Args:
        seed: Of the CPU's and of all GPUs' generators, of GPUs only where this process uses some.
        devices: Where numbers are drawn; a GPU among them is in use by that.
    """
    if any(device.type == "cuda" for device in devices):
        torch.cuda.init()
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield
