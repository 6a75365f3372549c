"""What trt-runtime alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | who watches or rewrites operators; device and stream of a call | |
| `torch._C._functorch` | function transforms | |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch._C import _get_tracing_state as tracing_state
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._C import _len_torch_function_stack as function_modes
from torch._C._functorch import is_batchedtensor, peek_interpreter_stack


def _no_cuda(*_: int) -> int:
    raise RuntimeError("this PyTorch was built without CUDA")


current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _no_cuda)
"""Index of the CUDA device of this thread."""

current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _no_cuda)
"""Handle of the current stream of a CUDA device."""


ATTRIBUTES: Final = {
    "_current_level": "of torch.autograd.forward_ad: depth of forward differentiation",
    "_is_profiler_enabled": "of torch.autograd.profiler",
}
"""Private attributes of PyTorch's objects that this package reads or sets, and what has them."""
