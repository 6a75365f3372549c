"""Named tensors in files, none of which can run code: `.npz`, `.npy`, `.pt` and `.safetensors`."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch

from trt_core.errors import InputError
from trt_core.wording import kind_of

ENDINGS: Final = ".npz, .npy (one tensor), .pt or .safetensors"


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads tensors by name; a file with one tensor without a name answers with the name "".

    Raises:
        InputError: The file holds something else, or has an unknown ending.
        OSError: The file cannot be read.
    """
    try:
        found = _read(path)
    except (ValueError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read", why=str(error).partition("\n")[0]) from error
    named = found if isinstance(found, Mapping) else {"": found}
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(
                f"{path} holds {kind_of(value)} under {name!r}", hint="write a dict of tensors by input name"
            )
    return dict(named)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors by name.

    Raises:
        InputError: The format has no such type, or holds one tensor only.
        OSError: The file cannot be written.
    """
    dense = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    if path.suffix == ".pt":
        torch.save(dense, path)
    elif path.suffix == ".safetensors":
        _safetensors().save_file({name: value.clone() for name, value in dense.items()}, path)
    elif path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **{name: _to_numpy(name, value) for name, value in dense.items()})
    else:
        if len(dense) != 1:
            raise InputError(f"{path} holds one tensor, there are {len(dense)} outputs", hint="give a .npz file")
        (name, value), *_ = dense.items()
        np.save(path, _to_numpy(name, value), allow_pickle=False)


def require_writable(path: Path) -> None:
    """Finds before anything runs that results could not be written.

    Raises:
        InputError: The ending is unknown, the file exists, or there is no such folder.
    """
    _check_ending(path)
    if path.exists():
        raise InputError(f"{path} exists already", hint="remove it, or give another path")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent}")


def _read(path: Path) -> Any:
    _check_ending(path)
    if path.suffix == ".pt":
        return torch.load(path, map_location="cpu", weights_only=True)
    if path.suffix == ".safetensors":
        return _safetensors().load_file(path)
    loaded = np.load(path, allow_pickle=False)
    if path.suffix == ".npy":
        return torch.from_numpy(loaded)
    with loaded:
        return {name: torch.from_numpy(loaded[name]) for name in loaded.files}


def _check_ending(path: Path) -> None:
    if path.suffix not in (".npz", ".npy", ".pt", ".safetensors"):
        raise InputError(f"{path} has an unknown ending", hint=f"give {ENDINGS}")


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
