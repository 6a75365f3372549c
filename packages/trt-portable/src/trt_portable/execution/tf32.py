"""Runs of engines that were built without `BuilderFlag.TF32`: products of float32 keep all their digits.

PyTorch decides about TF32 for the whole process, so it is switched off while such an engine runs. What other threads
compute at the same time is more exact for it, never less.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from trt_portable.execution.launcher import Executable
from trt_portable.shape_tensors import Value

_lock: Final = threading.Lock()
_runs = 0
_restore: Callable[[], None] | None = None


class WithoutTF32:
    """An executable whose runs use no TF32.

    Args:
        executable: What runs.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    @property
    def constants(self) -> object:
        """See `Executable`."""
        return self._executable.constants

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> Sequence[Value]:
        """See `Executable`."""
        with tf32_switched_off():
            return self._executable.run(values, targets)


@contextlib.contextmanager
def tf32_switched_off() -> Iterator[None]:
    """Switches TF32 off; the last of several users at a time puts it back as the first found it."""
    global _runs, _restore
    with _lock:
        if not _runs:
            _restore = _switch_off()
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs and _restore is not None:
                _restore()


def _switch_off() -> Callable[[], None]:
    """Switches TF32 off, and returns what puts it back.

    PyTorch has two interfaces for it, and refuses to answer through one when the other was used.
    """
    backends: Any = torch.backends
    try:
        products, convolutions = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
        _ = backends.cuda.matmul.allow_tf32
    except RuntimeError:
        owners = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
        before = [owner.fp32_precision for owner in owners]
        _set_precisions(owners, ["ieee"] * len(owners))
        return lambda: _set_precisions(owners, before)
    torch.set_float32_matmul_precision("highest")
    _set_convolutions(False)

    def restore() -> None:
        torch.set_float32_matmul_precision(products)
        _set_convolutions(convolutions)

    return restore


def _set_convolutions(tf32: bool) -> None:
    """Sets what `torch.backends.cudnn.allow_tf32` sets, where PyTorch was told to take no such assignments too."""
    torch.backends.cudnn.set_flags(_allow_tf32=tf32, _fp32_precision=None)


def _set_precisions(owners: Sequence[Any], precisions: Sequence[str]) -> None:
    for owner, precision in zip(owners, precisions, strict=True):
        owner.fp32_precision = precision
