"""What trt-partition alone takes from PyTorch's private modules; `trt_core.internals` has the rest, and says more.

| from | what for | releases |
|---|---|---|
| `torch._C` | what an operator's schema says | |
"""

from __future__ import annotations

from torch._C import Argument, FunctionSchema
