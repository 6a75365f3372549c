"""What trt-converters alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch.fx.experimental.symbolic_shapes` | tests of converters say which sizes vary, and how far | |
| `torch.testing._internal.common_methods_invocations` | samples of operators | |
| `torch.testing._internal.common_utils` | samples are drawn from one seed | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import StatelessSymbolicContext, StrictMinMaxConstraint
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import set_rng_seed

LATE: Final = {
    "torch.fx.experimental.symbolic_shapes": "StatelessSymbolicContext, StrictMinMaxConstraint",
    "torch.testing._internal.common_methods_invocations": "op_db",
    "torch.testing._internal.common_utils": "set_rng_seed",
}
"""Names by the module that has them, of what is costly to import: these are imported when they are first used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, LATE)
