"""Content of plans: their bytes without a copy, and their digest without hashing twice."""

from __future__ import annotations

import ctypes
import hashlib
import weakref

import torch

from trt_core.errors import PlanError

_known: dict[int, tuple[weakref.ref[torch.Tensor], int, str]] = {}
_vouched: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}


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
    key = id(plan)
    version = content_version(plan)
    known = _known.get(key)
    if known is not None and known[0]() is plan and known[1] == version:
        return known[2]
    digest = hashlib.sha256(plan_bytes(plan)).hexdigest()
    _known[key] = (weakref.ref(plan, lambda reference: _forget(key, reference)), version, digest)
    return digest


def vouch(plan: torch.Tensor) -> None:
    """Notes that a plan was found undamaged by the checksum of the file that it lies in, so that it is not hashed.

    What a header says of such a plan's digest is then nobody's word but the file's: nothing may be shared by it.

    Args:
        plan: (bytes,), uint8, contiguous, on the CPU.
    """
    key = id(plan)

    def forget(reference: weakref.ref[torch.Tensor]) -> None:
        known = _vouched.get(key)
        if known is not None and known[0] is reference:
            _vouched.pop(key, None)

    _vouched[key] = (weakref.ref(plan, forget), content_version(plan))


def is_vouched(plan: torch.Tensor) -> bool:
    """Whether a plan was vouched for, and has not been written to since."""
    known = _vouched.get(id(plan))
    return known is not None and known[0]() is plan and known[1] == content_version(plan)


def content_version(tensor: torch.Tensor) -> int:
    """Returns a number that changes when PyTorch writes to the tensor in place.

    Tensors made in inference mode do not count; they answer 0.
    """
    return 0 if tensor.is_inference() else tensor._version


def _forget(key: int, reference: weakref.ref[torch.Tensor]) -> None:
    known = _known.get(key)
    if known is not None and known[0] is reference:
        _known.pop(key, None)
