"""Which plans may run the compiled code that they carry: those that somebody who is trusted wrote.

An engine that was built in this process needs no word; the provider knows it. A plan from a file runs its compiled
code only where the caller of `load` said so, or where the file lies in the user's private engine cache. All other
plans run without it.
"""

from __future__ import annotations

from typing import Final

import torch

from trt_runtime.plan_notes import PlanNotes

_allowed: Final = PlanNotes[bool]()


def allow_host_code(plan: torch.Tensor) -> None:
    """Lets engines of a plan run its compiled code, as long as nothing writes to the plan.

    Args:
        plan: (bytes,), uint8; from a source that may run code here anyway.
    """
    _allowed.put(plan, True)


def is_host_code_allowed(plan: torch.Tensor) -> bool:
    """Whether engines of a plan may run its compiled code."""
    return _allowed.get(plan) is True
