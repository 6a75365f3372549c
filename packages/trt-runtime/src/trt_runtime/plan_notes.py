"""What this process knows of plans, as long as they live and nobody writes to them."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import torch

from trt_core.errors import PlanError
from trt_core.forked_lock import ForkedLock

if TYPE_CHECKING:
    from trt_core.limits import CallLimits

T = TypeVar("T")


class PlanNotes(Generic[T]):
    """One fact for each of some plans; a plan that was written to since has none any more.

    Plans are (bytes,), uint8, and known by identity: a copy has notes of its own.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[torch.Tensor], int, T]] = {}

    def put(self, plan: torch.Tensor, fact: T) -> None:
        """Notes a fact of a plan, in place of the one before."""
        key = id(plan)

        def forget(reference: weakref.ref[torch.Tensor]) -> None:
            held = self._held.get(key)
            if held is not None and held[0] is reference:
                self._held.pop(key, None)

        self._held[key] = (weakref.ref(plan, forget), content_version(plan), fact)

    def get(self, plan: torch.Tensor) -> T | None:
        """Returns what is known of a plan as it is now; None for nothing."""
        held = self._held.get(id(plan))
        return held[2] if held is not None and held[0]() is plan and held[1] == content_version(plan) else None

    def __len__(self) -> int:
        return len(self._held)


def content_version(tensor: torch.Tensor) -> int:
    """Returns a number that changes when PyTorch writes to the tensor in place.

    Tensors made in inference mode do not count; they answer 0.
    """
    return 0 if tensor.is_inference() else tensor._version


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


_LARGE_BYTES: Final = 64 << 20
OF_NONE: Final = "0" * 64
"""What stands for the digest of a plan that was written to before anybody asked: no plan has it."""


class LaterDigest:
    """The digest of a large plan that was built here, computed when somebody asks: a gigabyte takes most of a second.

    Nothing that runs engines asks, since nobody else has had the plan; files do, and comparisons. Copies are the same
    object, and pickled it is the digest.

    Args:
        plan: (bytes,), uint8, contiguous, on the CPU.
    """

    def __init__(self, plan: torch.Tensor) -> None:
        self._plan = weakref.ref(plan)
        self._version = content_version(plan)
        self._content: memoryview | None = plan_bytes(plan)
        self._digest = ""
        self._lock = ForkedLock()

    def __str__(self) -> str:
        with self._lock:
            if self._content is not None:
                plan = self._plan()
                is_written = plan is not None and content_version(plan) != self._version
                self._digest = OF_NONE if is_written else hashlib.sha256(self._content).hexdigest()
                self._content = None
            return self._digest

    def begin(self) -> bool:
        """Has a thread compute it, beside what else is done; returns whether it is not there yet."""
        if self._content is None:
            return False
        threading.Thread(target=self.__str__, name="digest of a plan", daemon=True).start()
        return True

    def __copy__(self) -> LaterDigest:
        return self

    def __deepcopy__(self, memo: object) -> LaterDigest:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def is_of(self, plan: torch.Tensor) -> bool:
        """Whether it is the digest of this very plan, which nobody has written to since."""
        return self._plan() is plan and content_version(plan) == self._version


class DigestField:
    """A field of a class that holds a digest; a `LaterDigest` is computed when the field is read.

    Args:
        name: The field's.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else str(instance.__dict__[self._name])

    def __set__(self, instance: Any, value: str | LaterDigest) -> None:
        instance.__dict__[self._name] = value


def digest_of(plan: torch.Tensor) -> str | LaterDigest:
    """Returns the SHA-256 of a plan in hexadecimal, or what computes it later where that takes long.

    Raises:
        PlanError: The tensor cannot hold a plan.
    """
    check_plan(plan)
    return plan_digest(plan) if plan.numel() < _LARGE_BYTES else LaterDigest(plan)


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


@dataclass(frozen=True, eq=False)
class Bounds:
    """What calls of an engine may use, whose plan nobody trusts. Each is equal to itself alone.

    Attributes:
        limits: Of each call.
        is_exempt: Asked once a limit is reached: whether the plan turns out to be trusted.
        is_said: Whether the user knows that compiled kernels of the plan are not used.
        may_reach: Asked of the ranks of each collective: whether the plan may talk to them.
    """

    limits: CallLimits
    is_exempt: Callable[[], bool]
    is_said: bool = False
    may_reach: Callable[[frozenset[int]], bool] = lambda ranks: False


_allowed: Final = PlanNotes[bool]()
_own: Final = PlanNotes[Callable[[], bool]]()
_bounds: Final = PlanNotes[Bounds]()


def allow_host_code(plan: torch.Tensor) -> None:
    """Lets engines of a plan run its compiled code, as long as nothing writes to the plan.

    Args:
        plan: (bytes,), uint8; from a source that may run code here anyway.
    """
    _allowed.put(plan, True)


def is_host_code_allowed(plan: torch.Tensor) -> bool:
    """Whether engines of a plan may run its compiled code."""
    return _allowed.get(plan) is True


def note_own(plan: torch.Tensor, is_trusted: Callable[[], bool] = lambda: True) -> None:
    """Notes that a plan was built in this process, or made of one that this user trusts; see `is_own`.

    Args:
        plan: (bytes,), uint8.
        is_trusted: Finds out whether the file is trusted that it comes from, when somebody asks.
    """
    _own.put(plan, is_trusted)


def is_own(plan: torch.Tensor) -> bool:
    """Whether this user may sign for a plan: it was built here, or its compiled code may run here anyway."""
    is_trusted = _own.get(plan)
    return is_host_code_allowed(plan) or (is_trusted is not None and is_trusted())


def note_bounds(plan: torch.Tensor, bounds: Bounds) -> None:
    """Bounds what calls of a plan's engines may use: it came from a file.

    Args:
        plan: (bytes,), uint8.
        bounds: Of each call.
    """
    _bounds.put(plan, bounds)


def bounds_of(plan: torch.Tensor) -> Bounds | None:
    """What calls of a plan's engines may use; None for plans that were built here, or are trusted."""
    return None if is_host_code_allowed(plan) else _bounds.get(plan)
