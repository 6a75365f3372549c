"""How an execution context starts the work of a run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import torch

from trt_portable.runtime.binding import Binding
from trt_portable.shape_tensors import Value


class Executable(Protocol):
    """What a tactic makes of a program. Any number of threads may run it at once."""

    @property
    def constants(self) -> object:
        """What a run that starts now reads besides its inputs; whoever records a run keeps it alive."""

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> Sequence[Value]:
        """Computes the outputs, on the current stream.

        Args:
            values: One per input, in order.
            targets: None, or memory for each output that no input shares. A result may be left there: then it is the
                target itself.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """


class Launcher(Protocol):
    """Runs an executable for one context: one thread, one run at a time."""

    def launch(self, values: Sequence[Value], outputs: Sequence[Binding]) -> bool:
        """Computes the outputs into the memory bound to them.

        Args:
            values: One per input, in order.
            outputs: In order; each has an address.

        Returns:
            False, and nothing was done, when this launcher cannot run what it was given.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """


class DirectLauncher:
    """Starts every kernel from Python, each time.

    Args:
        executable: What runs.
        offers_memory: Whether it makes use of the memory that is bound to outputs.
    """

    def __init__(self, executable: Executable, *, offers_memory: bool = False) -> None:
        self._executable = executable
        self._offers_memory = offers_memory

    def launch(self, values: Sequence[Value], outputs: Sequence[Binding]) -> bool:
        """Runs the executable; always possible."""
        targets = targets_of(values, outputs) if self._offers_memory else ()
        for binding, value in zip(outputs, self._executable.run(values, targets), strict=True):
            binding.write(value)
        return True


def targets_of(values: Sequence[Value], outputs: Sequence[Binding]) -> list[torch.Tensor | None]:
    """The bound memory of each output; None where writing to it early could change what is read or written later."""
    targets = [binding.target() for binding in outputs]
    spans = [_span(value) for value in (*values, *targets) if isinstance(value, torch.Tensor)]
    is_shared = [target is not None and sum(_overlap(_span(target), span) for span in spans) > 1 for target in targets]
    return [None if found else target for target, found in zip(targets, is_shared, strict=True)]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def is_capturing(device: torch.device) -> bool:
    """Whether somebody records the current stream of a device into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


_lock = threading.Lock()
_runs: Final[list[int]] = []
"""The thread of each run that needs TF32 switched off."""
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
    global _restore
    own = threading.get_ident()
    with _lock:
        if not _runs:
            _restore = _switch_off()
        _runs.append(own)
    try:
        yield
    finally:
        with _lock:
            _runs.remove(own)
            _restore_where_unused()


def _restore_where_unused() -> None:
    global _restore
    if not _runs and _restore is not None:
        _restore()
        _restore = None


def _forget_others() -> None:
    """Ends the runs of other threads, which are not in a forked process; as `undone`, which takes time in each run."""
    global _lock
    _lock = threading.Lock()
    _runs[:] = [thread for thread in _runs if thread == threading.get_ident()]
    _restore_where_unused()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_others)


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
