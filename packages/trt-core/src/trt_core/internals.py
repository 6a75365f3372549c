"""What our packages take from PyTorch's private modules: the seam that a new release of PyTorch is fitted at.

Names that several packages use are here, and what one package alone uses is in its own `internals.py`. No other module
names a private module of PyTorch. All of it is the same in PyTorch 2.11 to 2.15, unless the table says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | which operators and kernels there are; who sees operators; pools of memory | |
| `torch._dispatch.python` | fake tensors take the shapes of composite operators from their parts | |
| `torch._dynamo.convert_frame` | the lock that Dynamo holds while it compiles | |
| `torch._dynamo.source` | where a size of ours comes from, as PyTorch's guards say it | |
| `torch._ops` | what a node of a graph calls | |
| `torch._subclasses.fake_tensor` | tensors without data, which a graph keeps in `val` | |
| `torch.distributed.distributed_c10d._resolve_process_group` | the process group that a name in a graph means | |
| `torch.distributed.distributed_c10d._world` | all process groups of this process | |
| `torch.fx._lazy_graph_module` | graphs whose code is generated when it is first wanted | |
| `torch.fx._symbolic_trace` | what a tracer has put into `nn.Module` for a while | |
| `torch.fx.experimental.proxy_tensor` | traces functions into ATen operators | |
| `torch.fx.experimental.symbolic_shapes` | sizes that vary, and what is known of them | |
| `torch.utils._python_dispatch` | sees each operator that is called; tensors that consist of tensors | |
| `torch.utils._pytree` | nested inputs and results | `TreeSpec.children()`: 2.12 |
| `torch.utils._sympy` | functions of sizes | |
| `torch.utils._sympy.numbers` | a bound that is none | |
| `torch.utils._sympy.value_ranges` | intervals of sizes | |
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from torch._C import _dispatch_get_all_op_names as all_operator_names
from torch._C import _dispatch_has_kernel as has_operator
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx import _symbolic_trace as symbolic_trace
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.source import ConstantSource
    from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]
        _resolve_process_group as resolve_process_group,
    )
    from torch.distributed.distributed_c10d import _world as process_groups
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, statically_known_true
    from torch.utils._sympy import functions as size_functions
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


NEWEST_TORCH: Final = (2, 15)
"""Newest release of PyTorch that the suite runs with."""

OWN_NAMESPACES: Final = ("aten", "prims")
"""Namespaces of PyTorch's own operators."""


def schema_name(target: Any) -> str:
    """Returns the name without its overload as schemas have it, `aten::add`; nothing for what is no operator."""
    return str(target._schema.name) if isinstance(target, OpOverload) else ""


def warn_of_untested_torch(version: str) -> None:
    """Says that a release of PyTorch is newer than those that were tested.

    Args:
        version: `torch.__version__`.

    Warns:
        UserWarning: It is.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and tuple(map(int, found.groups())) > NEWEST_TORCH:
        newest = ".".join(map(str, NEWEST_TORCH))
        warnings.warn(
            f"PyTorch {version} is newer than {newest}, the newest that was tested: models may not be captured, "
            f"or compute something else. Install torch<{NEWEST_TORCH[0]}.{NEWEST_TORCH[1] + 1}, or a newer trt-core",
            UserWarning,
            stacklevel=2,
        )


def _no_pool(_: int, __: tuple[int, int]) -> None:
    """There are no pools without CUDA."""


end_pool_allocation = getattr(torch._C, "_cuda_endAllocateToPool", _no_pool)
"""Has allocations on a device, by its index, go to a pool no longer."""


def guard_writer() -> Callable[[fx.GraphModule], Any] | None:
    """Returns what writes the guards of an exported program as code; None in releases whose programs keep no code."""
    return getattr(torch.export.exported_program, "_convert_guards_to_code", None)


@contextlib.contextmanager
def compile_session() -> Iterator[None]:
    """Says to all threads that a model is compiled while this one runs `make_fx`, as Dynamo does around a compilation.

    Otherwise Dynamo takes a trace in one thread for one of the optimized model that another thread calls, and refuses
    the call. Dynamo's lock is held meanwhile; a thread may take it again.
    """
    from torch._dynamo.convert_frame import compile_lock  # costly to import

    with compile_lock:
        if torch.compiler._is_compiling_flag:  # whoever said so takes it back
            yield
            return
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = False


def _renew_compile_lock() -> None:
    """Makes Dynamo's lock anew in a forked process, where nobody gives it back that another thread had.

    That thread may have been tracing: calls of modules are their own again.
    """
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    lock = getattr(frames, "compile_lock", None)
    if lock is None:  # nobody has imported it, or somebody is about to
        return
    if lock.acquire(blocking=False):  # free, or this thread's
        lock.release()
        return
    frames.compile_lock = threading.RLock()
    globals().pop("compile_lock", None)
    torch.compiler._is_compiling_flag = False
    if (patcher := symbolic_trace.CURRENT_PATCHER) is not None:
        patcher.revert_all_patches()
        symbolic_trace.CURRENT_PATCHER = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_compile_lock)


LATE: Final = {
    "torch._dynamo.convert_frame": "compile_lock",
    "torch._dynamo.source": "ConstantSource",
    "torch.distributed.distributed_c10d": "_resolve_process_group as resolve_process_group, _world as process_groups",
    "torch.fx.experimental.symbolic_shapes": "DimDynamic, ShapeEnv, statically_known_true",
    "torch.utils._sympy": "functions as size_functions",
    "torch.utils._sympy.numbers": "int_oo",
    "torch.utils._sympy.value_ranges": "ValueRanges, bound_sympy",
}
"""Names by the module that has them, of what is costly to import: these are imported when they are first used."""

ATTRIBUTES: Final = {
    "_buffers": "of nn.Module",
    "_cdata": "of a storage: tells one memory from another",
    "_codegen": "of fx.Graph: how flat values become the results of a model",
    "_comm_ptr": "of torch.distributed.ProcessGroupNCCL: address of the communicator on the current GPU",
    "_erased": "of fx.Node: it is gone from its graph",
    "_get_backend": "of torch.distributed.ProcessGroup: what runs its collectives on a device",
    "_get_name": "of nn.Module",
    "_guards_code": "of an ExportedProgram: what it is saved with",
    "_is_compiling_flag": "of torch.compiler: a model is compiled by some thread",
    "_modules": "of nn.Module",
    "_parameters": "of nn.Module",
    "_schema": "of OpOverload: arguments, results, what is written to and what is a view",
    "_timeout": "of the options of a torch.distributed.ProcessGroup's backend: how long a collective may take",
}
"""Private attributes of PyTorch's objects that our packages read, and what has them."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, LATE)
