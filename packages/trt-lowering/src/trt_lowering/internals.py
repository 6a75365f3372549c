"""What trt-lowering alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | composite kernels, run as they are, and operators below the dispatch that export records | |
| `torch._decomp` | PyTorch's tables of decompositions, and the shapes of recurrent layers | |
| `torch._dynamo` | a setting: whether fake tensors remember what operators make | |
| `torch._export.utils` | the composite kernel of an operator | |
| `torch._functorch` | where transforms such as `torch.func.grad` begin and end | |
| `torch._prims_common` | the order in memory that an operator's result follows | |
| `torch._subclasses.fake_impls` | shapes of recurrent layers of fixed sizes, strides of views | |
| `torch.distributed.tensor._ops.utils` | rules of how tensors lie, for all axes of a mesh | |
| `torch.distributed.tensor._utils` | where the shard of a process begins | |
| `torch.export._trace` | prints the graph up to a failure | |
| `torch.export.exported_program._override_composite_implicit_decomp` | keeps composite operators whole | |
| `torch.fx._lazy_graph_module` | graphs whose code is generated when it is first wanted | |
| `torch.fx.experimental` | guards that are not a model's; how traces take sizes apart; what is asked of sizes | |
| `torch.fx.experimental.proxy_tensor` | what is asked in the midst of a trace, and not recorded | |
| `torch.fx.experimental.symbolic_shapes` | which frames are PyTorch's | |
| `torch.utils._python_dispatch` | computes with numbers in the midst of a trace | |
| `torch.utils._sympy.functions` | the larger of two sizes | |
| `torch.utils._traceback` | how the frames become lines of text that each node of a trace keeps | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch._C import DisableTorchFunction, DispatchKey, DispatchKeySet
from torch._C import _dispatch_tls_local_exclude_set as excluded_keys
from torch._C import _dispatch_tls_local_include_set as included_keys
from torch._C import _ForceDispatchKeyGuard as DispatchKeysForced
from torch._decomp import _core_aten_decompositions_post_autograd as core_decompositions
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import _compute_stride as strides_of_view
from torch._subclasses.fake_impls import op_implementations_dict as fake_implementations
from torch.fx._lazy_graph_module import _use_lazy_graph_module as graphs_lazy

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch._dynamo import config as dynamo_config
    from torch._export.utils import _get_decomp_for_cia as composite_kernel
    from torch._functorch import eager_transforms
    from torch._functorch import vmap as mapping
    from torch.distributed.tensor import _utils as parts_of_tensors
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy as over_all_axes_of_mesh
    from torch.export import _trace as export_trace
    from torch.export.exported_program import _override_composite_implicit_decomp as composites_replaced
    from torch.fx.experimental import _config as symbolic_settings
    from torch.fx.experimental import proxy_tensor, symbolic_shapes
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing as proxies_off
    from torch.fx.experimental.symbolic_shapes import uninteresting_files
    from torch.utils import _traceback as tracebacks
    from torch.utils._python_dispatch import _disable_current_modes as without_modes
    from torch.utils._sympy.functions import Max

ATTRIBUTES: Final = {
    "_allow_fake_constant": "of ProxyTorchDispatchMode: a setting of the trace",
    "_autograd_grad": "of eager_transforms: computes what `torch.func.vjp` returns a function for",
    "_build_proxy_for_sym_expr": "of proxy_tensor: finds what a trace knows of a size",
    "_check_frozen": "of ShapeEnv: asked before a guard is recorded",
    "_compute_local_shape_and_global_offset": "of torch.distributed.tensor._utils",
    "_error_on_data_dependent_ops": "of ProxyTorchDispatchMode: a setting of the trace",
    "_extract_symbolized_tb": "of torch.utils._traceback: reads the line of each frame",
    "_dispatch_cache": "of OpOverload: the kernels that it has found, by key of the dispatcher",
    "_detect_is_causal_mask": "of torch.nn.modules.transformer: whether a mask is the causal one, by its values",
    "_forward_hooks": "of nn.Module",
    "_forward_pre_hooks": "of nn.Module",
    "_fsdp_param_group": "of FSDPState: its parameters, where they are one group",
    "_get_fsdp_state": "of FSDPModule",
    "_mp_policy": "of FSDPState: which types it casts to",
    "_op_dispatcher": "of DTensor: finds out how the results of operators lie",
    "_op_dk": "of OpOverload: its kernel for a key of the dispatcher",
    "_orig_mod": "of what is traced: the module whose children the trace names",
    "_overloadname": "of OpOverload",
    "_sym_register": "of proxy_tensor: notes how a trace computes a size",
    "_temp_remove_pre_dispatch_torch_function_mode": "of proxy_tensor: calls of functions are not recorded",
}
"""Private attributes of PyTorch's objects that this package reads or sets, and what has them."""

LATE: Final = {
    "torch._dynamo": "config as dynamo_config",
    "torch._export.utils": "_get_decomp_for_cia as composite_kernel",
    "torch._functorch": "eager_transforms, vmap as mapping",
    "torch.distributed.tensor": "_utils as parts_of_tensors",
    "torch.distributed.tensor._ops.utils": "expand_to_full_mesh_op_strategy as over_all_axes_of_mesh",
    "torch.export": "_trace as export_trace",
    "torch.export.exported_program": "_override_composite_implicit_decomp as composites_replaced",
    "torch.fx.experimental": "_config as symbolic_settings, proxy_tensor, symbolic_shapes",
    "torch.fx.experimental.proxy_tensor": "disable_proxy_modes_tracing as proxies_off",
    "torch.fx.experimental.symbolic_shapes": "uninteresting_files",
    "torch.utils": "_traceback as tracebacks",
    "torch.utils._python_dispatch": "_disable_current_modes as without_modes",
    "torch.utils._sympy.functions": "Max",
}
"""Names by the module that has them, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, LATE)
