"""Which plans may run the compiled code that they carry: those that somebody who is trusted wrote.

An engine that was built in this process needs no word; the provider knows it. A plan from a file runs its compiled
code only where the caller of `load` said so, or where the file lies in the user's private engine cache. All other
plans run without it.
"""

from __future__ import annotations

import weakref

import torch

from trt_runtime.digest import content_version

_allowed: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}


def allow_host_code(plan: torch.Tensor) -> None:
    """Lets engines of a plan run its compiled code, as long as nothing writes to the plan.

    Args:
        plan: (bytes,), uint8; from a source that may run code here anyway.
    """
    key = id(plan)

    def forget(reference: weakref.ref[torch.Tensor]) -> None:
        known = _allowed.get(key)
        if known is not None and known[0] is reference:
            _allowed.pop(key, None)

    _allowed[key] = (weakref.ref(plan, forget), content_version(plan))


def is_host_code_allowed(plan: torch.Tensor) -> bool:
    """Whether engines of a plan may run its compiled code."""
    known = _allowed.get(id(plan))
    return known is not None and known[0]() is plan and known[1] == content_version(plan)
