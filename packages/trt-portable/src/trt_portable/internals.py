"""What trt-portable alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | what is below autograd; how many tensors are in one memory; handles of streams | |
| `torch._functorch` | settings of the way that graphs with writes are compiled | |
| `torch._inductor` | settings of the compiler | |
| `torch._inductor.async_compile` | processes that compile kernels | |
| `torch._inductor.codegen` | kernels that the compiler writes | |
| `torch._inductor.compile_fx` | compiles a graph | |
| `torch._inductor.decomposition` | what operators consist of for the compiler | |
| `torch._inductor.dependencies` | what a kernel reads or writes | |
| `torch._inductor.fx_passes.joint_graph` | passes over a whole graph | |
| `torch._inductor.lowering` | operators that the compiler calls as they are | |
| `torch._inductor.runtime.cache_dir_utils` | where compiled Triton kernels lie | |
| `torch._inductor.runtime.hints` | along which axis a kernel mostly reads | |
| `torch._inductor.sizevars` | what the compiler knows of sizes | |
| `torch._inductor.utils` | whether the compiler fuses what reads a product | |
| `torch._inductor.virtualized` | the fake mode that the compiler works in | |
| `torch._prims_common` | the layout of a result | |
| `torch.fx.experimental.sym_node` | what computes with symbolic sizes | |
| `torch.utils._python_dispatch` | keeps what sees operators from them | |
| `torch.utils._sympy.functions` | divisions of sizes | |
| `torch.utils._sympy.symbol` | names of sizes that only data tell | |
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._C import _ExcludeDispatchKeyGuard as without_dispatch_keys
from torch._C import _storage_Use_Count as storage_use_count
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes as without_modes

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config
    from torch._inductor.async_compile import AsyncCompile, maybe_warm_pool
    from torch._inductor.codegen import triton as triton_codegen
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.lowering import constrain_to_fx_strides, lowerings, make_fallback
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.utils import is_pointwise_use
    from torch._inductor.virtualized import V
    from torch.fx.experimental.sym_node import SymNode
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing
    from torch.utils._sympy.symbol import SymT, make_symbol


def _nothing() -> None:
    """There are no workspaces without CUDA."""


def _no_stream(_: int) -> int:
    return 0


current_stream_handle = getattr(torch._C, "_cuda_getCurrentRawStream", _no_stream)
"""Handle of the current stream of a CUDA device, by its index: a tenth of the time of asking for the stream itself."""

clear_product_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)
"""Makes matrix products take their workspace anew."""

flatten_recurrent_weights = torch._cudnn_rnn_flatten_weight
"""Moves the weights of a recurrent layer into one piece of memory, as cuDNN reads them."""

_AUTOGRAD: Final = (
    DispatchKeySet(DispatchKey.AutogradCPU)
    | DispatchKeySet(DispatchKey.AutogradOther)
    | DispatchKeySet(DispatchKey.ADInplaceOrView)
)


def below_autograd() -> AbstractContextManager[None]:
    """Lets operators of the CPU record nothing, as inference mode does; what they make are usual tensors."""
    return without_dispatch_keys(_AUTOGRAD)


ATTRIBUTES: Final = {
    "_is_profiler_enabled": "of torch.autograd.profiler",
    "_simplify_with_ranges": "of SizeVarAllocator, what the compiler makes of an index within loops",
}
"""Private attributes of PyTorch's objects that this package reads, and what has them."""

LATE: Final = {
    "torch._functorch": "config as functorch_config",
    "torch._inductor": "config as inductor_config",
    "torch._inductor.async_compile": "AsyncCompile, maybe_warm_pool",
    "torch._inductor.codegen": "triton as triton_codegen",
    "torch._inductor.compile_fx": "compile_fx, compile_fx_inner",
    "torch._inductor.decomposition": "select_decomp_table",
    "torch._inductor.dependencies": "MemoryDep",
    "torch._inductor.fx_passes.joint_graph": "joint_graph_passes",
    "torch._inductor.lowering": "constrain_to_fx_strides, lowerings, make_fallback",
    "torch._inductor.runtime.cache_dir_utils": "triton_cache_dir",
    "torch._inductor.runtime.hints": "ReductionHint",
    "torch._inductor.sizevars": "SizeVarAllocator",
    "torch._inductor.utils": "is_pointwise_use",
    "torch._inductor.virtualized": "V",
    "torch.fx.experimental.sym_node": "SymNode",
    "torch.utils._sympy.functions": "FloorDiv, ModularIndexing",
    "torch.utils._sympy.symbol": "SymT, make_symbol",
}
"""Names by the module that has them, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, LATE)
