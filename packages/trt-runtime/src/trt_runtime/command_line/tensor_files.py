"""Files of tensors by name, which commands read inputs from and write outputs to; anybody may have written them."""

from __future__ import annotations

import errno
import io
import os
import pickletools
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final

import numpy as np
import torch

from trt_core.errors import FileError, InputError
from trt_core.files.opening import opened
from trt_core.files.replacing import replacing
from trt_core.nesting import reach_of
from trt_core.wording import kind_of
from trt_runtime.bindings import MAX_RANK
from trt_runtime.command_line.table import ENDINGS
from trt_runtime.program.fields import DTYPES

_MOST_INFLATED: Final = 1 << 30
"""Bytes that the entries of an archive may have, where the archive itself has fewer."""

_PIECE: Final = 1 << 20
_MOST_STEPS: Final = 4 << 20
"""Bytes of what an archive says of its tensors: each takes a few hundred, and one may be a step to follow."""
_MOST_RESULTS: Final = 1 << 17
"""Tensors, and places of memory, that the steps make: each takes a byte of them, and less where they are compressed."""
_MOST_NAME: Final = 64
"""Characters of the number of an entry, or of an order of bytes."""
_MOST_HEADER: Final = 1 << 16
"""Bytes of what an array of NumPy says of itself; NumPy reads it whole before it looks at its length."""


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads tensors by name; a file with one tensor without a name answers with the name "".

    Nothing in the file is unpickled but dicts, lists, tuples, texts and numbers, and tensors take no memory beyond that
    of the file and 1 GiB.

    Raises:
        InputError: The file holds something else, or has an unknown ending.
        OSError: The file cannot be read.
    """
    check_ending(path)
    try:
        with opened(path) as file:
            found = _read(path, file)
    except FileError as error:
        raise InputError(f"{path} is not a regular file", hint=f"give a file of tensors: {ENDINGS}") from error
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # each format has errors of its own, and panics of Rust are no Exception
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of a place that no file has
            raise
        raise InputError(f"{path} cannot be read", why=str(error).partition("\n")[0][:400]) from error
    named = found if isinstance(found, Mapping) else {"": found}
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(
                f"{path} holds {kind_of(value)} under {name!r:.60}", hint="write a dict of tensors by input name"
            )
        if value.dim() > MAX_RANK:
            raise InputError(f"{path} holds a tensor of {value.dim()} axes under {name!r:.60}, more than {MAX_RANK}")
    return dict(named)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors by name.

    Raises:
        InputError: The format has no such type, or holds one tensor only.
        OSError: The file cannot be written.
    """
    dense = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    if path.suffix not in (".pt", ".safetensors", ".npz") and len(dense) != 1:
        raise InputError(f"{path} holds one tensor, there are {len(dense)} outputs", hint="give a .npz file")
    whole = io.BytesIO()  # what these libraries say of a full disk, they say each in its own way
    if path.suffix == ".pt":
        torch.save(dense, whole)
    elif path.suffix == ".safetensors":
        whole.write(_safetensors().save({name: value.clone() for name, value in dense.items()}))
    elif path.suffix == ".npz":
        np.savez(whole, allow_pickle=False, **{name: _to_numpy(name, value) for name, value in dense.items()})
    else:
        (name, value), *_ = dense.items()
        np.save(whole, _to_numpy(name, value), allow_pickle=False)
    with replacing(path, is_new=True) as file:
        file.write(whole.getbuffer())


def check_ending(path: Path) -> None:
    """Refuses a file of another kind than are read and written.

    Raises:
        InputError: Its name has another ending.
    """
    if path.suffix not in (".npz", ".npy", ".pt", ".safetensors"):
        raise InputError(f"{path} has an unknown ending", hint=f"give {ENDINGS}")


def _read(path: Path, file: BinaryIO) -> Any:
    size = os.fstat(file.fileno()).st_size
    if path.suffix == ".safetensors":
        return _safetensors().load(file.read(size))
    if path.suffix == ".npy":
        return _array(file)
    if path.suffix == ".pt" and file.read(2) != b"PK":
        raise InputError(f"{path} is no file as torch.save writes them since PyTorch 1.6", hint="save the tensors anew")
    with zipfile.ZipFile(file) as archive:
        _refuse_bomb(path, archive, size)
        if path.suffix == ".pt":
            return _Archive(archive).read()
        named = {}
        for entry in archive.namelist():
            with archive.open(entry) as content:
                named[entry.removesuffix(".npy")] = _array(content)
        return named


def _refuse_bomb(path: Path, archive: zipfile.ZipFile, size: int) -> None:
    """Bounds what entries of an archive take once they are read; entries may be compressed, or be each other.

    Raises:
        InputError: It is too much, or two have one name.
    """
    total = sum(entry.file_size for entry in archive.infolist())
    if total > max(size, _MOST_INFLATED):
        raise InputError(
            f"{path} has {size} bytes and holds {total}",
            hint=f"write more than {_MOST_INFLATED} bytes without compression, as np.savez and torch.save do",
        )
    names = [entry.removesuffix(".npy") for entry in archive.namelist()]
    if len(set(names)) != len(names):
        raise InputError(f"{path} holds two tensors under one name", hint="write a dict of tensors by input name")


def _array(file: Any) -> torch.Tensor:
    version = np.lib.format.read_magic(file)
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    if length > _MOST_HEADER:
        raise ValueError(f"its header has {length} bytes, more than {_MOST_HEADER}")
    file.seek(0)
    return torch.from_numpy(np.lib.format.read_array(file, allow_pickle=False))


# What torch.save writes -------------------------------------------------------------------------------------------

_STORAGES: Final[dict[str, torch.dtype]] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}


_LITERALS: Final = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINFLOAT"})
_CONSTANTS: Final[dict[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Stored:
    """Memory that tensors lie in.

    Attributes:
        content: (bytes,), uint8.
        dtype: Of the tensors.
    """

    content: torch.Tensor
    dtype: torch.dtype


class _Archive:
    """Reads the tensors of an archive: its pickle is a list of steps, of which those are taken that tensors need.

    Args:
        archive: Open for reading.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        (pickled,) = (entry for entry in archive.namelist() if entry.endswith("/data.pkl"))
        self._archive, self._root = archive, pickled.removesuffix("data.pkl")
        length = archive.getinfo(pickled).file_size
        if length > _MOST_STEPS:
            raise ValueError(f"it says {length} bytes of its tensors, more than {_MOST_STEPS}")
        self._steps = archive.read(pickled)
        self._held: dict[str, torch.Tensor] = {}

    def read(self) -> Any:
        """What was saved.

        Raises:
            Exception: It is something else than tensors by name, or does not lie in the archive.
        """
        order = f"{self._root}byteorder"
        if order in self._archive.namelist() and self._archive.open(order).read(_MOST_NAME) != sys.byteorder.encode():
            raise ValueError(f"its bytes are in another order than this machine's, {sys.byteorder}")
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[int, Any] = {}

        def taken() -> list[Any]:
            place = marks.pop()
            values = stack[place:]
            del stack[place:]
            return values

        argument: Any
        left = _MOST_RESULTS
        for operation, argument, _ in pickletools.genops(self._steps):
            name = operation.name
            left -= name in ("BINPERSID", "REDUCE")
            if left < 0:
                raise ValueError(f"it says more than {_MOST_RESULTS} tensors")
            if name in _LITERALS:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "MARK":
                marks.append(len(stack))
            elif name in _TUPLES:
                stack[len(stack) - _TUPLES[name] :] = [tuple(stack[len(stack) - _TUPLES[name] :])]
            elif name == "TUPLE":
                stack.append(tuple(taken()))
            elif name == "EMPTY_DICT":
                stack.append({})
            elif name in ("SETITEM", "SETITEMS"):
                values = taken() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                _add(stack[-1], values[::2], values[1::2])
            elif name == "GLOBAL":
                stack.append(_meaning(*argument.split(" ")))
            elif name == "BINPERSID":
                stack.append(self._stored(*stack.pop()))
            elif name == "REDUCE":
                values = stack.pop()
                stack.append(_made(stack.pop(), values))
            elif name == "BUILD":  # attributes of a dict, of which none is a tensor by name
                stack.pop()
            elif name not in ("PROTO", "STOP"):
                raise ValueError(f"{name} is no part of tensors by name")
        (found,) = stack
        return found

    def _stored(self, kind: str, dtype: torch.dtype, key: str, location: str, count: int) -> _Stored:
        """The memory that an entry of the archive holds."""
        if (type(kind), type(dtype), type(key), type(location), type(count)) != (str, torch.dtype, str, str, int):
            raise ValueError("a tensor lies in no memory")  # a tuple of tuples can take for ever to write out
        if len(key) > _MOST_NAME:
            raise ValueError(f"the number of an entry has {len(key)} characters")
        name = f"{self._root}data/{key}"
        if name not in self._held:
            content = bytearray(self._archive.getinfo(name).file_size)
            done = 0
            with self._archive.open(name) as entry:
                while part := entry.read(_PIECE):  # all at once, it would lie in memory three times
                    content[done : done + len(part)] = part
                    done += len(part)
            if done != len(content):
                raise ValueError(f"{name:.60} is shorter than it says")
            self._held[name] = torch.frombuffer(content or bytearray(1), dtype=torch.uint8)[: len(content)]
        if self._held[name].numel() != count * dtype.itemsize:
            raise ValueError(f"{name:.60} has another size than its tensors say")
        return _Stored(self._held[name], dtype)


def _add(named: Any, names: Sequence[Any], values: Sequence[Any]) -> None:
    if type(named) is not dict or any(type(name) is not str for name in names):
        raise ValueError("it is no dict by name")
    named.update(zip(names, values, strict=True))


def _meaning(module: str, name: str) -> Any:
    found = _CALLED.get((module, name))
    if found is None and module == "torch":
        found = _STORAGES.get(name) or DTYPES.get(name)
    if found is None:
        raise ValueError(f"it holds {module}.{name}, which is no part of a tensor")
    return found


def _made(make: Any, values: Any) -> Any:
    if make not in (_mapping, _tensor, _tensor_of_type, _parameter, _with_attributes) or type(values) is not tuple:
        raise ValueError("it calls what makes no tensor")
    return make(*values)


def _mapping() -> dict[str, Any]:
    return {}


def _tensor(
    stored: _Stored,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    hooks: Any,
    metadata: Any = None,
) -> torch.Tensor:
    """A view of memory, inside of which it lies."""
    if type(stored) is not _Stored or type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride):
        raise ValueError("a tensor lies in no memory, or has no shape")
    if len(size) > MAX_RANK:
        raise ValueError(f"a tensor has {len(size)} axes, more than {MAX_RANK}")
    if any(type(number) is not int or number < 0 for number in (offset, *size, *stride)):
        raise ValueError("a tensor has a size, a stride or an offset that is none")
    flat = stored.content.view(stored.dtype)
    if 0 not in size and offset + reach_of(size, stride) > flat.numel():
        raise ValueError("a tensor does not lie in its memory")
    tensor = flat.as_strided(size, stride, 0 if 0 in size else offset)
    told = metadata or {}
    if type(told) is not dict or told.keys() - {"conj"}:
        raise ValueError("a tensor says of itself what is unknown here")
    tensor = tensor.conj() if told.get("conj") else tensor
    return tensor.requires_grad_() if requires_grad is True and tensor.dtype.is_floating_point else tensor


def _tensor_of_type(stored: _Stored, *laid: Any) -> torch.Tensor:
    """The same, of a type that is said before the metadata."""
    *where, dtype = laid[:6]
    return _tensor(replace(stored, dtype=dtype), *where, *laid[6:])


def _parameter(data: Any, requires_grad: bool, hooks: Any, state: Any = None) -> Any:
    return data


def _with_attributes(make: Any, kind: Any, values: Any, state: Any) -> Any:
    return _made(make, values)


_CALLED: Final[dict[tuple[str, str], Any]] = {
    ("collections", "OrderedDict"): _mapping,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_type,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _with_attributes,
    ("torch", "Tensor"): "a tensor",
    ("torch.nn.parameter", "Parameter"): "a parameter",
    ("torch.storage", "UntypedStorage"): torch.uint8,
}
"""What names in a pickle of tensors stand for here; none is looked up in Python."""


def _to_numpy(name: str, value: torch.Tensor) -> Any:
    try:
        return value.numpy()
    except TypeError as error:
        raise InputError(
            f"NumPy has no type for {name!r}, {value.dtype}", hint="give a .pt or .safetensors file"
        ) from error


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise InputError("safetensors is not installed", hint="pip install safetensors, or give a .npz file") from error
    return safetensors.torch
