"""What trt-runtime alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | who watches or rewrites operators; device and stream of a call | |
| `torch._C._dynamo.eval_frame` | code whose frames Dynamo leaves alone | |
| `torch._C._functorch` | function transforms | |
| `torch.distributed.distributed_c10d._get_default_store` | what processes tell each other outside of collectives | |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch
from torch._C import _get_tracing_state as tracing_state
from torch._C import _len_torch_function_stack as function_modes
from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._C._functorch import is_batchedtensor, peek_interpreter_stack

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import _get_default_store as default_store


def _no_cuda(*_: int) -> int:
    raise RuntimeError("this PyTorch was built without CUDA")


current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _no_cuda)
"""Index of the CUDA device of this thread."""

current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _no_cuda)
"""Handle of the current stream of a CUDA device."""


ATTRIBUTES: Final = {
    "_current_level": "of torch.autograd.forward_ad: depth of forward differentiation",
    "_forward_hooks": "of nn.Module",
    "_forward_pre_hooks": "of nn.Module",
    "_is_profiler_enabled": "of torch.autograd.profiler",
}
"""Private attributes of PyTorch's objects that this package reads or sets, and what has them."""

LATE: Final = {"torch.distributed.distributed_c10d": "_get_default_store as default_store"}
"""Names by the module that has them, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, LATE)
