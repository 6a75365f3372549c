"""The device that engines are built for and run on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from trt_core.errors import InputError
from trt_core.held_arguments import held_to_signature
from trt_core.internals import end_pool_allocation
from trt_core.lazy_names import hints_of_attributes


@hints_of_attributes(
    device_type='is_cpu and is_dla say what it is, kind is "cuda", "cpu" or "dla"',
    to="torch_device is the same device as PyTorch names it",
)
@dataclass(frozen=True)
class Device:
    """A device for engines: a CUDA GPU, a deep learning accelerator (DLA) beside one, or the CPU.

    Which of them an engine can be built for is the provider's matter: portable engines run on CPU and GPU.

    Args:
        spec: `"cuda"`, `"cuda:1"` (or `"gpu:1"`), `"cpu"`, `"dla:0"`, a `torch.device`, or another `Device`. Without
            it, `gpu_id` decides.
        gpu_id: Index of the GPU; with a DLA, of the GPU that it belongs to.
        dla_core: Index of the DLA core, in place of `"dla:0"`.
        allow_gpu_fallback: Whether layers that a DLA cannot run may run on its GPU.

    Raises:
        InputError: The device is of a kind that engines cannot use, or two arguments contradict each other.

    Example:
        >>> Device("cuda:1").torch_device
        device(type='cuda', index=1)
        >>> Device("cpu").is_cpu
        True
        >>> Device("dla:1").dla_core
        1
    """

    kind: str
    index: int
    dla_core: int | None
    allow_gpu_fallback: bool

    @held_to_signature
    def __init__(
        self,
        spec: Any = None,
        *,
        gpu_id: int | None = None,
        dla_core: int | None = None,
        allow_gpu_fallback: bool | None = None,
    ) -> None:
        if isinstance(spec, Device):
            fallback = spec.allow_gpu_fallback if allow_gpu_fallback is None else allow_gpu_fallback
            kind, index, core = spec.kind, spec.index, spec.dla_core
            if gpu_id not in (None, spec.gpu_id) or dla_core not in (None, core):
                raise InputError(f"a Device of {spec} is given with another index", hint="write the one that is meant")
        else:
            fallback = bool(allow_gpu_fallback)
            kind, index, core = _parse(spec, gpu_id, dla_core)
        if fallback and core is None:
            raise InputError("allow_gpu_fallback is about a DLA", hint='give "dla:0" or dla_core as well')
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "dla_core", core)
        object.__setattr__(self, "allow_gpu_fallback", fallback)

    @classmethod
    def current(cls) -> Device:
        """Returns the current CUDA device where there is one, else the CPU."""
        if torch.cuda.is_available():
            return cls(gpu_id=torch.cuda.current_device())
        return cls("cpu")

    @property
    def gpu_id(self) -> int:
        """Index of the GPU, -1 for the CPU."""
        return -1 if self.is_cpu else self.index

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU."""
        return self.kind == "cpu"

    @property
    def is_dla(self) -> bool:
        """Whether this is a deep learning accelerator."""
        return self.kind == "dla"

    @property
    def torch_device(self) -> torch.device:
        """The same device as PyTorch names it; of a DLA, its GPU, where inputs and outputs lie."""
        return torch.device("cpu") if self.is_cpu else torch.device("cuda", self.index)

    def __str__(self) -> str:
        if not self.is_dla:
            return str(self.torch_device)
        return f"dla:{self.dla_core}" + (f" of cuda:{self.index}" if self.index else "")


def _parse(spec: Any, gpu_id: int | None, dla_core: int | None) -> tuple[str, int, int | None]:
    spec = spec.strip().lower() if isinstance(spec, str) else spec
    named = _DLA.fullmatch(spec) if isinstance(spec, str) else None
    numbered = _NUMBERED.fullmatch(spec) if isinstance(spec, str) else None
    for index in (gpu_id, int(numbered.group(1)) if numbered is not None else spec):
        if isinstance(index, int) and not 0 <= index < _MOST_GPUS:
            raise InputError(f"there is no GPU {index}", hint=f"GPUs count from 0 to {_MOST_GPUS - 1}")
    if named is not None or (spec is None and dla_core is not None):
        core = int(named.group(1) or 0) if named is not None else None
        if core is not None and dla_core not in (None, core):
            raise InputError(f"Device({spec!r}, dla_core={dla_core}) names two cores", hint=f"write {spec!r} alone")
        found = core if core is not None else dla_core
        if found is None or found < 0:
            raise InputError(f"dla_core={found} is no core", hint="cores count from 0")
        return "dla", gpu_id or 0, found
    if dla_core is not None:
        raise InputError(f"Device({spec!r}, dla_core={dla_core}) names two devices", hint='write "dla:0" alone')
    if spec is None:
        return "cuda", 0 if gpu_id is None else gpu_id, None
    try:
        device = torch.device(_GPU.sub("cuda", spec) if isinstance(spec, str) else spec)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise InputError(
            f"{spec!r} is not a device",
            why=str(error).splitlines()[0],
            hint='give "cuda:0", "cpu", "dla:0", a torch.device or a Device',
        ) from error
    if device.type == "cpu":
        return "cpu", 0, None
    if device.type != "cuda":
        raise InputError(f"engines cannot run on {device}", hint="use a CUDA device, a DLA, or the CPU")
    if gpu_id is not None and device.index not in (None, gpu_id):
        raise InputError(f"Device({spec!r}, gpu_id={gpu_id}) names two GPUs", hint=f"write {spec!r} alone")
    return "cuda", gpu_id if gpu_id is not None else device.index or 0, None


_DLA: Final = re.compile(r"dla(?::([0-9]{1,9}))?")
_GPU: Final = re.compile(r"^gpu\b")
_NUMBERED: Final = re.compile(r"(?:cuda|gpu):([0-9]{1,9})")
_MOST_GPUS: Final = 128
"""Indices of more have no room in PyTorch's devices, where `cuda:300` is `cuda:44`."""


def present_device(kind: str) -> torch.device:
    """Returns the device of a kind, `"cuda"` or `"cpu"`, that PyTorch uses now, with its index."""
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


@functools.cache
def driver() -> ctypes.CDLL:
    """The CUDA driver's library.

    Raises:
        OSError: There is none.
    """
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def autocast_types() -> list[torch.dtype]:
    """Returns the types that the caller's `torch.autocast` computes in, none where there is no autocast."""
    return [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]


def is_autocast_on() -> bool:
    """Whether the caller's `torch.autocast` would change the types of operators."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


@contextlib.contextmanager
def without_autocast(*kinds: str) -> Iterator[None]:
    """Lets operators compute in their own types, whoever compiles, builds or calls them.

    Args:
        kinds: Types of the devices that they run on: `"cpu"`, `"cuda"`.
    """
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Has tensors that are made without naming a device lie on the CPU, whatever the caller's default device."""
    if torch.get_default_device().type == "cpu":
        yield  # a context of a device is asked at every call of PyTorch's
        return
    with torch.device("cpu"):
        yield


def copy_together(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies tensors to others without waiting: on a GPU, small ones of a type that lie alike in one launch.

    Args:
        targets: What is written to.
        sources: As many tensors of the same shapes.
    """
    together: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.dtype in _ALONE or target.nbytes > _SMALL:
            target.copy_(source, non_blocking=True)
        else:
            into, taken = together.setdefault(target.dtype, ([], []))
            into.append(target)
            taken.append(source)
    for into, taken in together.values():
        if len(into) > 1:
            torch._foreach_copy_(into, taken, non_blocking=True)
        else:
            into[0].copy_(taken[0], non_blocking=True)


_SMALL: Final = 1 << 20
"""Bytes of a tensor above which a copy by itself is faster than one in a list (by a fifth at 256 MB)."""

_ALONE: Final = frozenset({torch.uint16, torch.uint32, torch.uint64, torch.float8_e8m0fnu})
"""Types that PyTorch copies in no list on a GPU."""


CAPTURING: Final = threading.Lock()
"""Held while a CUDA graph is recorded: PyTorch's random generator knows of one recording at a time."""

_T = TypeVar("_T")


def capture(
    run: Callable[[], _T], stream: torch.cuda.Stream, pool: Any, generator: torch.Generator | None = None
) -> tuple[torch.cuda.CUDAGraph, _T]:
    """Records what a function starts on the device as a CUDA graph, without waiting for the device.

    Args:
        run: Starts it; nothing of it runs.
        stream: Where it is recorded, behind what the current stream does.
        pool: Its memory pool, a handle of `torch.cuda.graph_pool_handle`.
        generator: Draws its random numbers, anew at every replay; the device's own one by default.

    Returns:
        The graph, and what the function returned.

    Raises:
        RuntimeError: It waits for the device, there is no memory, or somebody else's capture is in the way.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = run()
            graph.capture_end()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            abandon_capture(stream, pool)
            raise
    return graph, result


def abandon_capture(stream: torch.cuda.Stream, pool: tuple[int, int]) -> None:
    """Sets right what the capture of a CUDA graph leaves that failed: PyTorch goes on waiting for its end.

    Until 2.12 its allocators, of the device and of pinned memory, hold on to the pool, and fail where memory is given
    back; its random generator refuses to draw numbers outside of captures, until an empty capture succeeds.

    Args:
        stream: Where it was recorded.
        pool: Its memory pool, a handle of `torch.cuda.graph_pool_handle`.
    """
    with contextlib.suppress(RuntimeError):  # it has ended
        end_pool_allocation(stream.device.index, pool)
    with torch.cuda.stream(stream), warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")  # the graph is empty
        empty = torch.cuda.CUDAGraph()
        empty.capture_begin(capture_error_mode="thread_local")
        empty.capture_end()
