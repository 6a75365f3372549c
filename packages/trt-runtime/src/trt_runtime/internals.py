"""What trt-runtime alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | who watches or rewrites operators; device and stream of a call | |
| `torch._C._functorch` | function transforms | |
| `torch.utils._sympy` | sizes of exported programs, read back | |
| `torch.utils._sympy.functions` | integer arithmetic on sizes | |
| `torch.utils._sympy.numbers` | a bound that is none | |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from torch._C import _get_tracing_state as tracing_state
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._C import _len_torch_function_stack as function_modes
from torch._C._functorch import is_batchedtensor, peek_interpreter_stack

from trt_core.late_names import late_names

if TYPE_CHECKING:
    from torch.utils._sympy import functions as size_functions
    from torch.utils._sympy.functions import FloatPow, FloatTrueDiv, FloorDiv, IntTrueDiv, Mod
    from torch.utils._sympy.numbers import int_oo


def _no_cuda(*_: int) -> int:
    raise RuntimeError("this PyTorch was built without CUDA")


current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _no_cuda)
"""Index of the CUDA device of this thread."""

current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _no_cuda)
"""Handle of the current stream of a CUDA device."""


def guard_writer() -> Callable[[fx.GraphModule], Any] | None:
    """Returns what writes the guards of an exported program as code; None in releases whose programs keep no code."""
    return getattr(torch.export.exported_program, "_convert_guards_to_code", None)


ATTRIBUTES: Final = {
    "_current_level": "of torch.autograd.forward_ad: depth of forward differentiation",
    "_guards_code": "of an ExportedProgram: what it is saved with",
    "_is_profiler_enabled": "of torch.autograd.profiler",
}
"""Private attributes of PyTorch's objects that this package reads or sets, and what has them."""

LATE: Final = {
    "size_functions": "torch.utils._sympy:functions",
    "FloatPow": "torch.utils._sympy.functions",
    "FloatTrueDiv": "torch.utils._sympy.functions",
    "FloorDiv": "torch.utils._sympy.functions",
    "IntTrueDiv": "torch.utils._sympy.functions",
    "Mod": "torch.utils._sympy.functions",
    "int_oo": "torch.utils._sympy.numbers",
}
"""Name to the module that has it, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, LATE)
