"""Digests of content: of bytes, of tensors, and of the sources of packages."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from trt_core.errors import Uncacheable
from trt_core.wording import kind_of

_THREADS_FROM_BYTES = 1 << 20


def digest_of(data: Any) -> str:
    """Returns the BLAKE3 digest of bytes in hexadecimal.

    Args:
        data: Anything with the buffer protocol, contiguous.
    """
    from blake3 import blake3  # needed where engines are cached only

    size = memoryview(data).nbytes
    return blake3(data, max_threads=blake3.AUTO if size > _THREADS_FROM_BYTES else 1).hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """Returns a digest of all numbers of a tensor; type and shape are not part of it.

    Nothing is remembered between calls: writes through `tensor.data` or numpy change no version counter, and an engine
    with the weights of yesterday is worse than hashing them again, at several gigabytes a second.

    Args:
        tensor: Any shape and type, on any device.

    Raises:
        Uncacheable: The tensor has no data of its own: it is fake, on the meta device, sparse or of a subclass.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        raise Uncacheable(f"a constant is {kind_of(tensor)} on {tensor.device} with layout {tensor.layout}")
    content = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return digest_of(content.view(torch.uint8).numpy())


@functools.cache
def source_digest(folder: str) -> str:
    """Returns a digest of all Python sources below a folder, once per process.

    Args:
        folder: Folder of a package.
    """
    root = Path(folder)
    lines = []
    for path in sorted(root.rglob("*.py")):
        lines.append(f"{path.relative_to(root).as_posix()} {digest_of(path.read_bytes())}")
    return digest_of("\n".join(lines).encode())[:32]


@functools.cache
def file_digest(path: str) -> str:
    """Returns a digest of a file's content, once per process."""
    return digest_of(Path(path).read_bytes())[:32]
