"""What trt-portable takes from PyTorch's private modules: the seam that a new release of PyTorch is fitted at.

No other module here names one. All of it is the same in PyTorch 2.11, 2.12 and 2.13, unless the table says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | which kernels there are | |
| `torch._dispatch.python` | fake tensors take the shapes of composite operators from their parts | |
| `torch._dynamo.convert_frame` | the lock that Dynamo holds while it compiles | |
| `torch._dynamo.source` | where a size of ours comes from, as PyTorch's guards say it | |
| `torch._functorch` | settings of the way that graphs with writes are compiled | |
| `torch._inductor` | settings of the compiler | |
| `torch._inductor.async_compile` | processes that compile kernels | |
| `torch._inductor.compile_fx` | compiles a graph | |
| `torch._inductor.decomposition` | what operators consist of for the compiler | |
| `torch._inductor.fx_passes.joint_graph` | passes over a whole graph | |
| `torch._inductor.lowering` | operators that the compiler calls as they are | |
| `torch._inductor.runtime.cache_dir_utils` | where compiled Triton kernels lie | |
| `torch._inductor.virtualized` | the fake mode that the compiler works in | |
| `torch._ops` | what a node of a graph calls | |
| `torch._prims_common` | the layout of a result | |
| `torch._subclasses.fake_tensor` | tensors without data | |
| `torch.distributed.distributed_c10d._resolve_process_group` | the process group of a name | |
| `torch.distributed.distributed_c10d._world` | all process groups of this process | |
| `torch.fx.experimental.proxy_tensor` | traces functions into ATen operators | |
| `torch.fx.experimental.symbolic_shapes` | sizes that vary | |
| `torch.utils._python_dispatch` | sees each operator that is called, or keeps others from it | |
| `torch.utils._pytree` | nested values | |
| `torch.utils._sympy.value_ranges` | intervals of sizes | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

if TYPE_CHECKING:
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.source import ConstantSource
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config
    from torch._inductor.async_compile import maybe_warm_pool
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.lowering import constrain_to_fx_strides, lowerings, make_fallback
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    from torch._inductor.virtualized import V
    from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]
        _resolve_process_group as resolve_process_group,
    )
    from torch.distributed.distributed_c10d import _world as process_groups
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
    from torch.utils._sympy.value_ranges import ValueRanges


def _nothing() -> None:
    """There are no workspaces without CUDA."""


clear_product_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)
"""Makes matrix products take their workspace anew."""

ATTRIBUTES: Final = {
    "_cdata": "of a storage: tells one memory from another",
    "_erased": "of fx.Node: it is gone from its graph",
    "_is_compiling_flag": "of torch.compiler: a model is compiled by some thread",
    "_schema": "of OpOverload: arguments, results, what is written to and what is a view",
}
"""Private attributes of PyTorch's objects that this package reads or sets, and what has them."""

LATE: Final = {
    "compile_lock": "torch._dynamo.convert_frame",
    "ConstantSource": "torch._dynamo.source",
    "functorch_config": "torch._functorch:config",
    "inductor_config": "torch._inductor:config",
    "maybe_warm_pool": "torch._inductor.async_compile",
    "compile_fx": "torch._inductor.compile_fx",
    "compile_fx_inner": "torch._inductor.compile_fx",
    "select_decomp_table": "torch._inductor.decomposition",
    "joint_graph_passes": "torch._inductor.fx_passes.joint_graph",
    "constrain_to_fx_strides": "torch._inductor.lowering",
    "lowerings": "torch._inductor.lowering",
    "make_fallback": "torch._inductor.lowering",
    "triton_cache_dir": "torch._inductor.runtime.cache_dir_utils",
    "V": "torch._inductor.virtualized",
    "resolve_process_group": "torch.distributed.distributed_c10d:_resolve_process_group",
    "process_groups": "torch.distributed.distributed_c10d:_world",
    "DimDynamic": "torch.fx.experimental.symbolic_shapes",
    "ShapeEnv": "torch.fx.experimental.symbolic_shapes",
    "ValueRanges": "torch.utils._sympy.value_ranges",
}
"""Name to the module that has it, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home, _, there = LATE[name].partition(":")
        return getattr(__import__(home, fromlist=(there or name,)), there or name)  # as `from home import there` does
