"""What trt-frontends alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | CPU libraries that are off during a capture; what switches gradients in graphs | |
| `torch._C._distributed_c10d` | collectives of one rank alone: what they hand out to be waited for | |
| `torch._dynamo` | capture of `torch.compile`: settings, and registration | |
| `torch._dynamo.backends.common` | makes functional graphs of what Dynamo captures | |
| `torch._dynamo.backends.registry` | other backends by name | |
| `torch._dynamo.cache_size` | whether code was captured too often | |
| `torch._dynamo.callback` | tells when a capture begins | |
| `torch._dynamo.exc` | what Dynamo means to raise | |
| `torch._dynamo.resume_execution` | of which function code is the rest | |
| `torch._dynamo.utils` | asks before code is captured | |
| `torch._functorch.partitioners` | cuts graphs with gradients in two, as `aot_eager` does | |
| `torch._guards` | what is assumed of sizes and inputs during a capture, and whether it is the first of its code | |
| `torch.nn.modules.module._global_buffer_registration_hooks` | hooks of the process | |
| `torch.nn.modules.module._global_module_registration_hooks` | hooks of the process | |
| `torch.nn.modules.module._global_parameter_registration_hooks` | hooks of the process | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch._C import _get_mkldnn_enabled as uses_mkldnn
from torch._C import _get_nnpack_enabled as uses_nnpack
from torch._C import _set_grad_enabled as set_grad_enabled
from torch._C import _set_mkldnn_enabled as use_mkldnn
from torch._C import _set_nnpack_enabled as use_nnpack
from torch._guards import ShapeGuard, SLoc, TracingContext
from torch.nn.modules.module import _global_buffer_registration_hooks as buffer_hooks
from torch.nn.modules.module import _global_module_registration_hooks as module_hooks
from torch.nn.modules.module import _global_parameter_registration_hooks as parameter_hooks

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch._C._distributed_c10d import FakeWork, Work
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import optimize as dynamo_optimize
    from torch._dynamo import register_backend
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.cache_size import exceeds_recompile_limit
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback
    from torch._dynamo.resume_execution import ContinueExecutionCache
    from torch._dynamo.utils import register_hook_for_recompile_user_context
    from torch._functorch.partitioners import min_cut_rematerialization_partition as min_cut_partition

ATTRIBUTES: Final = {"_expr": "of SymNode: a size before others were found equal to it"}
"""Private attributes of PyTorch's objects that this package reads or sets, and what has them."""

LATE: Final = {
    "torch._C._distributed_c10d": "FakeWork, Work",
    "torch._dynamo": "config as dynamo_config, optimize as dynamo_optimize, register_backend",
    "torch._dynamo.backends.common": "aot_autograd",
    "torch._dynamo.backends.registry": "lookup_backend",
    "torch._dynamo.cache_size": "exceeds_recompile_limit",
    "torch._dynamo.callback": "callback_handler",
    "torch._dynamo.exc": "TorchDynamoException, exceptions_allowed_to_be_fallback",
    "torch._dynamo.resume_execution": "ContinueExecutionCache",
    "torch._dynamo.utils": "register_hook_for_recompile_user_context",
    "torch._functorch.partitioners": "min_cut_rematerialization_partition as min_cut_partition",
}
"""Names by the module that has them, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, LATE)
