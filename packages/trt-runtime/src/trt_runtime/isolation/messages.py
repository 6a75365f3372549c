"""What passes between a caller and the process of its program: JSON over a socket, and tensors in shared memory.

Neither side believes the other: texts are parsed within bounds, nothing is unpickled, and where tensors lie is checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import socket
import struct
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError
from trt_core.files import records, typed
from trt_core.files.records import Form, Row
from trt_core.files.strict_json import MAX_DEPTH, has_more_values, parse_json
from trt_core.nesting import reach_of
from trt_core.wording import kind_of
from trt_runtime.program import fields
from trt_runtime.program.fields import DTYPES, DeviceKind, Dtype
from trt_runtime.program.interface import Spec
from trt_runtime.program.model_facts import FACTORIES, ModelFacts, Record, Result, factory_name, tuple_class

MOST_BYTES: Final = 64 << 20
"""Longest message."""

MOST_VALUES: Final = 1 << 20
"""Most values of a message beside tensors, which bounds what reading it takes."""

MOST_TENSORS: Final = 1 << 16
"""Most tensors of a call, and of its results."""

MOST_RECORDS: Final = 64
"""Most lines of the log, and warnings, that come with an answer."""

MOST_TEXT: Final = 8192
"""Most characters of each, and of a part of an error."""

_HEADER: Final = struct.Struct("<QB")
_ALIGNMENT: Final = 64
_MAPPINGS: Final[dict[str, type]] = {"dict": dict, "ordered": OrderedDict, "record": Record, "result": Result}
_SEQUENCES: Final[dict[str, type]] = {"list": list, "tuple": tuple, "size": torch.Size}
_NAMES: Final = {kind: name for name, kind in (_MAPPINGS | _SEQUENCES).items()}
_CONSTANTS: Final = {"none": None, "true": True, "false": False}
_KEYS: Final = frozenset({str, int, float, bool, type(None)})
"""Types of keys."""

_MOST_NESTED: Final = MAX_DEPTH // 2 - 4

_SEAL_FUTURE_WRITE: Final = 0x10
"""`F_SEAL_FUTURE_WRITE`: maps that are there go on to write, and nobody gets another."""


def send(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends a message.

    Raises:
        InputError: It is too long.
        OSError: The other side is gone.
    """
    content = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(content) > MOST_BYTES or has_more_values(content, MOST_VALUES):
        raise InputError(
            f"values of {len(content)} bytes beside tensors are too much for an isolated program",
            hint="give and return large lists of numbers as tensors",
        )
    header = _HEADER.pack(len(content), len(descriptors))
    if descriptors:
        socket.send_fds(channel, [header], list(descriptors))
        channel.sendall(content)
    else:
        channel.sendall(header + content)


def receive(
    channel: socket.socket, *, with_descriptors: bool = False, deadline: float | None = None
) -> tuple[dict[str, Any], list[int]]:
    """Receives a message, and what is open with it.

    Args:
        channel: From the other side.
        with_descriptors: Whether it may send descriptors; else they are closed.
        deadline: When the whole of it must be here, by the monotonic clock; None for any time.

    Raises:
        EOFError: The other side is gone.
        ValueError: The message is malformed.
        TimeoutError: It is late.
        OSError: It cannot be received.
    """
    descriptors: list[int] = []
    if with_descriptors:
        start, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, 1)
    else:
        _wait_until(deadline, channel)
        start = channel.recv(_HEADER.size)
    if not start:
        raise EOFError
    start += _exactly(channel, _HEADER.size - len(start), deadline)
    size, count = _HEADER.unpack(start)
    if size > MOST_BYTES or count != len(descriptors):
        raise ValueError(f"a message of {size} bytes with {count} descriptors")
    content = _exactly(channel, size, deadline)
    return dict(
        typed.mapping(parse_json(content, max_bytes=MOST_BYTES, max_values=MOST_VALUES), "the message")
    ), descriptors


def _wait_until(deadline: float | None, channel: socket.socket) -> None:
    """Lets a channel wait no longer; whoever sends byte by byte gains nothing."""
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    channel.settimeout(left)


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        _wait_until(deadline, channel)
        count = channel.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count
    return bytes(content)


_Extents = Annotated[tuple[int, ...], Form(partial(typed.integers, most=64), list)]


@dataclass(frozen=True)
class Place(Row):
    """Where a tensor lies in an arena.

    Attributes:
        dtype, shape, strides: What it is.
        offset: Of its first byte.
        device: Kind of device that it belongs on.
    """

    dtype: Dtype
    shape: _Extents
    strides: _Extents
    offset: int
    device: DeviceKind


def _read_device(value: Any, place: str) -> torch.device:
    device = torch.device(typed.text(value, place, 20))
    fields.device(device.type, place)
    return device


_Texts = Annotated[
    tuple[str, ...],
    Form(
        lambda value, place: typed.texts(typed.items(value, place)[:MOST_RECORDS], place, MOST_TEXT),
        lambda texts: [text[:MOST_TEXT] for text in texts[:MOST_RECORDS]],
    ),
]


@dataclass(frozen=True)
class Ready:
    """What a process says of the program that it has loaded; see `IsolatedProgram`, `LoadedProgram`."""

    confined: _Texts
    device: Annotated[torch.device, Form(_read_device, str)]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    meta: Mapping[str, str]
    facts: ModelFacts
    shown: str
    warnings: _Texts


class Arena:
    """Memory that both sides see. Its size is fixed for good, so that nobody can take it away under the other.

    Args:
        descriptor: Of the memory; `close` closes it.
        size: Its bytes.
        is_private: What is written here is seen here alone, until `forget`.
    """

    def __init__(self, descriptor: int, size: int, *, is_private: bool = False) -> None:
        self.descriptor, self.size = descriptor, size
        self._memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY if is_private else mmap.ACCESS_DEFAULT)
        self.bytes = torch.frombuffer(memoryview(self._memory), dtype=torch.uint8)

    @classmethod
    def make(cls, size: int, *, is_read: bool = False) -> Arena:
        """Makes one of so many bytes, at least one.

        Args:
            size: Its bytes.
            is_read: Whoever else is given its descriptor reads it, and can never write to it.

        Raises:
            OSError: There is no room.
        """
        import fcntl  # on systems that can isolate

        descriptor = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            arena = cls(descriptor, size)
            if is_read:
                with contextlib.suppress(OSError):  # before Linux 5.1, where seccomp keeps others from opening it again
                    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)
                arena.descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(descriptor)
            raise
        if is_read:
            os.close(descriptor)
        return arena

    def forget(self) -> None:
        """Lets go of what was written here, so that memory which is private shows again what the other side has."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Gives it back, once no tensor in it is alive."""
        del self.bytes
        with contextlib.suppress(BufferError):
            self._memory.close()
        os.close(self.descriptor)

    def at(self, place: Place) -> torch.Tensor:
        """The tensor at a place that the other side names, where it lies.

        Raises:
            ValueError: There can be none.
        """
        dtype, sizes, steps = place.dtype, place.shape, place.strides
        begin = typed.integer(place.offset, "an offset", 0, self.size)
        if len(sizes) != len(steps):
            raise ValueError("strides do not fit the shape")
        count = math.prod(sizes)
        end = reach_of(sizes, steps) if count else 0
        if end * dtype.itemsize > self.size - begin:
            raise ValueError("a tensor ends behind the memory")
        if count > end:
            raise ValueError("elements of a tensor lie one upon the other")
        if not count or begin % dtype.itemsize:
            if count:
                raise ValueError("a tensor begins between elements")
            return torch.empty(sizes, dtype=dtype, device="cpu")
        # no view of `bytes`: then all of them would count as written where one is
        memory, length = memoryview(self._memory), end * dtype.itemsize
        flat = torch.frombuffer(memory, dtype=torch.uint8, count=length, offset=begin)
        return flat.view(dtype).as_strided(sizes, steps)


def place_tensors(tensors: Sequence[torch.Tensor]) -> tuple[list[Place], int]:
    """Says where tensors will lie in an arena, dense, and how many bytes that takes."""
    if len(tensors) > MOST_TENSORS:
        raise InputError(f"{len(tensors)} tensors are more than the {MOST_TENSORS} that an isolated program takes")
    places: list[Place] = []
    end = 0
    for tensor in tensors:
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        strides = torch.empty_like(tensor, device="meta").stride()  # dense, in the order that it has
        places.append(Place(tensor.dtype, tuple(tensor.shape), strides, begin, tensor.device.type))
        end = begin + tensor.numel() * tensor.element_size()
    return places, end


def read_places(value: Any) -> list[Place]:
    """Reads where the other side says that tensors lie.

    Raises:
        ValueError: It says no such thing, or there are too many.
    """
    found = typed.items(value, "tensors")
    if len(found) > MOST_TENSORS:
        raise ValueError(f"{len(found)} tensors are more than {MOST_TENSORS}")
    return [records.read(Place, place, "a tensor") for place in found]


def encode(value: Any, tensors: list[torch.Tensor], depth: int = 0) -> list[Any]:
    """A value as JSON has it; its tensors are collected.

    Args:
        value: Tensors, numbers, texts, lists, tuples and mappings, nested.
        tensors: Gets the tensors.
        depth: How deep it lies.

    Raises:
        InputError: It is something else.
    """
    if depth > _MOST_NESTED:
        raise InputError(f"values are nested deeper than {_MOST_NESTED}")
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise InputError(f"an isolated program takes plain dense tensors, not {kind_of(value)}")
        if value.dtype not in DTYPES.values() or value.is_meta or value.device.type not in ("cpu", "cuda"):
            raise InputError(f"an isolated program takes no {value.dtype} tensor on {value.device}")
        tensors.append(value.detach())
        return ["tensor", len(tensors) - 1]
    for name, constant in _CONSTANTS.items():
        if value is constant:
            return [name]
    if type(value) is int and -(2**63) <= value < 2**63:
        return ["int", value]
    if type(value) is float:
        return ["float", value.hex()]
    if type(value) is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if type(value) is str:
        return ["text", value]
    if isinstance(value, torch.dtype) and value in DTYPES.values():
        return ["dtype", dtype_name(value)]
    if isinstance(value, Mapping):
        head: list[Any] = [_NAMES.get(type(value), "dict")]
        if type(value) is defaultdict:
            head = ["default", factory_name(value.default_factory)]
        for key in value:
            if type(key) not in _KEYS:
                raise InputError(
                    f"a key of a dict that an isolated program takes or returns is no {kind_of(key).partition(' ')[2]}",
                    hint="keys are texts and numbers",
                )
        return [
            *head,
            *([encode(key, tensors, depth + 1), encode(item, tensors, depth + 1)] for key, item in value.items()),
        ]
    names = getattr(value, "_fields", None) if type(value).__module__ == tuple_class.__module__ else None
    if names is not None:
        return ["named", [type(value).__name__, *names], *(encode(item, tensors, depth + 1) for item in value)]
    if isinstance(value, (list, tuple, deque)):
        head = [_NAMES.get(type(value), "list" if isinstance(value, list) else "tuple")]
        if isinstance(value, deque):
            head = ["deque", value.maxlen]
        return [*head, *(encode(item, tensors, depth + 1) for item in value)]
    raise InputError(
        f"an isolated program takes and returns no {kind_of(value).partition(' ')[2] or 'such value'}",
        hint="give tensors, numbers, texts, lists, tuples and dicts",
    )


def decode(value: Any, tensors: Sequence[Any]) -> Any:
    """What `encode` was given.

    Args:
        value: What it returned.
        tensors: What stands in the places of its tensors.

    Raises:
        ValueError: It is malformed.
    """
    kind, *parts = typed.items(value, "a value")
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind == "deque":
        longest, *parts = parts
        most = None if longest is None else typed.integer(longest, "a length", 0)
        return deque((decode(part, tensors) for part in parts), most)
    if kind == "default":
        factory, *parts = parts
        made_of = None if factory is None else typed.choice(FACTORIES, factory, "a value", "factory")
        return defaultdict(made_of, decode(["dict", *parts], tensors))
    if kind in _SEQUENCES:
        items = [decode(part, tensors) for part in parts]
        if kind == "size" and not all(type(item) is int for item in items):
            raise ValueError("a size is no number")
        return _SEQUENCES[kind](items)
    if kind == "named":
        head, *rest = parts
        name, *names = typed.texts(typed.items(head, "a name"), "a name", MOST_TEXT)
        made = tuple_class(name, tuple(names)) if len(names) == len(rest) else None
        if made is None:
            raise ValueError(f"{typed.show(name)} is no tuple of {len(rest)} names")
        return made(*[decode(part, tensors) for part in rest])
    if kind in _MAPPINGS:
        pairs = [typed.items(part, "an entry", 2) for part in parts]
        entries = [(decode(key, ()), decode(item, tensors)) for key, item in pairs]
        for key, _ in entries:
            if type(key) not in _KEYS:  # of others, somebody can make any number that fall into one place
                raise ValueError(f"a key is no {kind_of(key).partition(' ')[2]}")
        return _MAPPINGS[kind](entries)
    if len(parts) != 1 + (kind == "complex"):
        raise ValueError(f"{typed.show(kind)} has {len(parts)} parts")
    if kind == "tensor":
        return tensors[typed.integer(parts[0], "a tensor", 0, len(tensors) - 1)]
    if kind == "int":
        return typed.integer(parts[0], "a number", -(2**63))
    if kind in ("float", "complex"):
        numbers = [float.fromhex(typed.text(part, "a number", 40)) for part in parts]
        return numbers[0] if kind == "float" else complex(*numbers)
    if kind == "text":
        return typed.text(parts[0], "a text")
    if kind == "dtype":
        return typed.choice(DTYPES, parts[0], "a value", "data type")
    raise ValueError(f"{typed.show(kind)} is no kind of value")
