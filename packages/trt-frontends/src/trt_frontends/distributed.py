"""Process groups of engines, by the names that scripts of this field write.

Engines communicate in the process groups that the model was captured with, by PyTorch's own means, so that there is
nothing to prepare and nothing to choose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import nn

from trt_core import InputError
from trt_core.held_arguments import held_to_signature
from trt_core.settings_reader import has_no_effect
from trt_frontends.torch_tensorrt import names_of
from trt_partition import PartitionReport

__all__ = [
    "distributed_group",
    "get_active_group",
    "get_active_group_name",
    "initialize_nccl_comm",
    "set_distributed_group",
    "setup_nccl_for_torch_tensorrt",
]

__getattr__, __dir__ = names_of(__name__)

_Module = TypeVar("_Module", bound=nn.Module)


def setup_nccl_for_torch_tensorrt() -> None:
    """Does nothing: engines communicate by PyTorch's process groups, which find NCCL."""


def initialize_nccl_comm() -> None:
    """Does nothing: a process group connects where it first communicates."""


def get_active_group() -> torch.distributed.ProcessGroup | None:
    """Returns the process group of all ranks; None where `torch.distributed` is not initialized."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.group.WORLD if there else None


def get_active_group_name() -> str:
    """Returns PyTorch's name of the process group of all ranks; empty where there is none."""
    group = get_active_group()
    return "" if group is None else str(group.group_name)


@held_to_signature
def set_distributed_group(module: nn.Module, group: object) -> None:
    """Sees that the engines of a model communicate in a process group.

    Args:
        module: A compiled model or a loaded program.
        group: The process group.

    Raises:
        InputError: They communicate in another one, which they were compiled for.
    """
    name = str(getattr(group, "group_name", ""))
    report = getattr(module, "meta", {}).get("partition_report")
    if not isinstance(report, PartitionReport):
        has_no_effect("set_distributed_group", "engines communicate in the groups that the model was captured with")
        return
    others = {node.communication.group for node in report.collectives if node.communication is not None} - {name}
    if others:
        raise InputError(
            f"the model communicates in the process group {min(others)!r}, not in {name!r}",
            where="set_distributed_group",
            why="it was captured with that group",
            hint="compile the model with collectives of the group that it is to run in",
        )


@contextlib.contextmanager
def distributed_group(group: object, module: _Module | None = None) -> Iterator[_Module | None]:
    """Yields the module, or None; the group is that of the model's own collectives.

    Args:
        group: The process group.
        module: A compiled model or a loaded program; see `set_distributed_group`.

    Raises:
        InputError: See `set_distributed_group`.
    """
    if module is not None:
        set_distributed_group(module, group)
    yield module
