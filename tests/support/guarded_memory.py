"""Operands between pages that nobody may touch: a kernel that reads or writes beyond one ends the process.

Where the environment variable is set, all steps of programs that are loaded from then on have such operands.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_core.nesting import reach_of
from trt_portable.execution.program import LayerCall, Program
from trt_portable.shape_tensors import HostValues, Value

GUARDS_VARIABLE: Final = "TRT_PORTABLE_GUARD_PAGES"
"""``end``: operands end where the page behind them begins; ``begin``: they begin where the page before them ends."""

_PAGE: Final = mmap.PAGESIZE
_NO_ACCESS: Final = 0


def guarded(tensor: torch.Tensor, at: str = "end") -> torch.Tensor:
    """A copy of a tensor, with its strides, in memory of its own between two pages that nobody may touch.

    The memory lives as long as the copy or a view of it does.

    Args:
        tensor: Dense or strided; anything but CPU memory is returned as it is.
        at: ``end`` or ``begin``: which of the pages touches it.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
        return tensor
    if not tensor.numel():
        return tensor
    span = reach_of(tensor.shape, tensor.stride())
    size = span * tensor.itemsize
    room = -(-size // _PAGE) * _PAGE
    memory = mmap.mmap(-1, room + 2 * _PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (base, base + _PAGE + room):
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "cannot protect a page")
    begin = _PAGE + (room - size if at == "end" else 0)
    flat = torch.frombuffer(memoryview(memory), dtype=torch.uint8, offset=begin, count=size).view(tensor.dtype)
    flat.copy_(tensor.as_strided((span,), (1,), tensor.storage_offset()))
    return flat.as_strided(tensor.shape, tensor.stride())


class GuardedCompute:
    """A step whose operands lie between guards.

    Args:
        compute: The step.
        at: See `guarded`.
    """

    def __init__(self, compute: Any, at: str) -> None:
        self._compute = compute
        self._at = at
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """What the step computes from copies of its operands."""
        results: Sequence[Value] = self._compute([self._guard(at, value) for at, value in enumerate(inputs)])
        return results

    def _guard(self, at: int, value: Value | None) -> Value | None:
        """The copy of an operand, where it was in the last run if it is the same tensor: packed weights stay so."""
        if value is None or isinstance(value, HostValues):
            return value
        held = self._held.get(at)
        if held is None or held[0] is not value:
            self._held[at] = held = (value, guarded(value, self._at))
        elif held[1] is not value:
            held[1].copy_(value)  # it may have been written to
        return held[1]


_bring_into_shape: Final = Program._bring_into_shape


@functools.wraps(_bring_into_shape)
def _between_guards(program: Program, step: int, call: LayerCall, constants: set[int]) -> Any:
    compute, side = _bring_into_shape(program, step, call, constants), os.environ.get(GUARDS_VARIABLE, "")
    return GuardedCompute(compute, side) if side else compute


Program._bring_into_shape = _between_guards  # type: ignore[method-assign]
