"""Content of plans: their bytes without a copy, and their digest without hashing twice."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Final

import torch

from trt_core.errors import PlanError
from trt_runtime.plan_notes import PlanNotes

_digests: Final = PlanNotes[str]()
_vouched: Final = PlanNotes[bool]()


def plan_bytes(plan: torch.Tensor) -> memoryview:
    """Returns a read-only view of a plan's bytes, without a copy.

    The view keeps the tensor's memory alive.

    Args:
        plan: (bytes,), uint8, contiguous, on the CPU.

    Raises:
        PlanError: The tensor is something else.
    """
    check_plan(plan)
    array = (ctypes.c_ubyte * plan.numel()).from_address(plan.data_ptr())
    # Another tensor object over the same memory: holding `plan` itself would keep alive what watches it.
    array.owner = plan.detach()  # type: ignore[attr-defined]
    return memoryview(array).cast("B").toreadonly()


def check_plan(plan: torch.Tensor) -> None:
    """Checks that a tensor can hold a plan.

    Raises:
        PlanError: It is not a non-empty, contiguous, one-dimensional uint8 tensor on the CPU.
    """
    if plan.dtype is not torch.uint8 or plan.dim() != 1 or not plan.is_contiguous():
        raise PlanError(
            f"a plan is a contiguous uint8 tensor of shape (bytes,), not {plan.dtype} of shape {tuple(plan.shape)}"
        )
    if plan.device.type != "cpu":
        raise PlanError(f"a plan lies on the CPU, not on {plan.device}", hint="call .cpu() on it")
    if not plan.numel():
        raise PlanError("the plan is empty")


def plan_digest(plan: torch.Tensor) -> str:
    """Returns the SHA-256 of a plan in hexadecimal; computed once per tensor and version of its content.

    Args:
        plan: (bytes,), uint8, contiguous, on the CPU.

    Raises:
        PlanError: The tensor cannot hold a plan.
    """
    digest = _digests.get(plan)
    if digest is None:
        digest = hashlib.sha256(plan_bytes(plan)).hexdigest()
        _digests.put(plan, digest)
    return digest


def vouch(plan: torch.Tensor) -> None:
    """Notes that a plan was found undamaged by the checksum of the file that it lies in, so that it is not hashed.

    What a header says of such a plan's digest is then nobody's word but the file's: nothing may be shared by it.

    Args:
        plan: (bytes,), uint8, contiguous, on the CPU.
    """
    _vouched.put(plan, True)


def is_vouched(plan: torch.Tensor) -> bool:
    """Whether a plan was vouched for, and has not been written to since."""
    return _vouched.get(plan) is True
