"""uint8 inside networks: TensorRT knows the type at a network's edges only, so float32 carries it in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trt_core import trt


@dataclass(frozen=True, eq=False)
class ByteTensor:
    """A uint8 value of the graph, as converters see it.

    Attributes:
        carrier: The `trt.ITensor` that holds its numbers: whole ones in [0, 255], float32.
    """

    carrier: Any

    @property
    def shape(self) -> Any:
        """Extents, -1 for those that are not known while building."""
        return self.carrier.shape

    @property
    def dtype(self) -> Any:
        """`trt.DataType.UINT8`, the type that the value has in the graph."""
        return trt.DataType.UINT8


def carrier_of(value: Any) -> Any:
    """Returns the network's tensor behind a value; other values are their own."""
    return value.carrier if isinstance(value, ByteTensor) else value


def as_bytes(carried: Any) -> Any:
    """Returns the uint8 value of whole numbers in [0, 255] that float32 carries."""
    return carried.to(torch.uint8) if isinstance(carried, torch.Tensor) else ByteTensor(carried)
