"""The operators of PyTorch that a program may call, by name: what computes values from its arguments, or views them.

`allowed_operators.txt` lists them. An operator that a later PyTorch adds is not allowed until somebody has looked at it
and listed it there. On the list are public operators of which some overload is functional, and of the private ones
those that capturing and decomposing real models leaves in graphs. Not on it, though functional:

- what answers about memory, devices or autograd rather than values: `is_pinned`, `storage_offset`, `get_device`;
- operators on sparse, nested and quantized tensors, which programs do not hold;
- operators whose kernels trust numbers without looking: pivots of LAPACK's factorizations, lengths of `ctc_loss`,
  `segment_reduce` with its flag `unsafe`; and those with operands that are packed for one library;
- kernels of one backend and parts of training, which graphs reach through other operators: `cudnn_convolution`,
  `batch_norm_elemt`, backward passes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def allowed_operators() -> Mapping[str, frozenset[str]]:
    """Names of operators by namespace, without overloads."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            names = found.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            names += line.split()
    return {namespace: frozenset(listed) for namespace, listed in found.items()}
