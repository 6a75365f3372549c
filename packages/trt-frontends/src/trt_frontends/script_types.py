"""Types and formats by the names that scripts of this field write: `torch_tensorrt.dtype.half`."""

from __future__ import annotations

from typing import Final

import torch


class dtype:
    """Types of PyTorch, which all settings take."""

    float: Final = torch.float32
    float32: Final = torch.float32
    f32: Final = torch.float32
    single: Final = torch.float32
    half: Final = torch.float16
    float16: Final = torch.float16
    f16: Final = torch.float16
    fp16: Final = torch.float16
    bf16: Final = torch.bfloat16
    bfloat16: Final = torch.bfloat16
    double: Final = torch.float64
    float64: Final = torch.float64
    f64: Final = torch.float64
    f8: Final = torch.float8_e4m3fn
    float8: Final = torch.float8_e4m3fn
    int8: Final = torch.int8
    i8: Final = torch.int8
    uint8: Final = torch.uint8
    u8: Final = torch.uint8
    int32: Final = torch.int32
    i32: Final = torch.int32
    int: Final = torch.int32
    int64: Final = torch.int64
    i64: Final = torch.int64
    long: Final = torch.int64
    bool: Final = torch.bool
    b: Final = torch.bool


class memory_format:
    """Memory formats of PyTorch."""

    contiguous: Final = torch.contiguous_format
    linear: Final = torch.contiguous_format
    channels_last: Final = torch.channels_last
    cdhw4: Final = torch.channels_last_3d
