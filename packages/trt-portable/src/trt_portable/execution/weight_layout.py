"""How a compiled program wants weights in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_portable.plan.engine_info import Shape

_PLAIN: Final = "plain"
_CHANNELS_LAST: Final = "channels_last"
_TAPS_FIRST: Final = "taps_first"
_ORDERS: Final = (_PLAIN, _CHANNELS_LAST, _TAPS_FIRST)


@dataclass(frozen=True)
class WeightLayout:
    """Extents and memory order of weights.

    Attributes:
        shape: Extents; None for the flat tensor.
        order: ``plain``, ``channels_last``, where the second of four axes varies fastest, or ``taps_first``, where the
            last two axes vary slowest.

    Raises:
        ValueError: There is no such order, or no shape for it.
    """

    shape: Shape | None = None
    order: str = _PLAIN

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ValueError(f"weights cannot lie in order {self.order!r}")
        if self.order != _PLAIN and (self.shape is None or len(self.shape) != 4):
            raise ValueError(f"weights of shape {self.shape} cannot lie in order {self.order!r}")

    @classmethod
    def channels_last(cls, shape: Shape) -> WeightLayout:
        """The layout of convolutions' kernels that tensor cores read."""
        return cls(shape, _CHANNELS_LAST)

    @classmethod
    def taps_first(cls, shape: Shape) -> WeightLayout:
        """The layout of depthwise convolutions' kernels where channels vary fastest."""
        return cls(shape, _TAPS_FIRST)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> WeightLayout:
        """The layout that a plan describes by ``shape`` and ``order``.

        Raises:
            ValueError: It makes no sense.
        """
        shape = fields["shape"]
        return cls(None if shape is None else tuple(shape), fields["order"])

    def to_json(self) -> dict[str, Any]:
        """What `read` takes."""
        return {"shape": None if self.shape is None else list(self.shape), "order": self.order}

    def of(self, weights: torch.Tensor) -> torch.Tensor:
        """Weights in this layout, from the flat tensor or from any tensor of this shape; no copy if they have it."""
        if self.order == _CHANNELS_LAST:
            assert self.shape is not None
            return weights.reshape(self.shape).contiguous(memory_format=torch.channels_last)
        if self.order == _TAPS_FIRST:
            assert self.shape is not None
            return weights.reshape(self.shape).permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
        return weights.contiguous().reshape(-1 if self.shape is None else self.shape)


FLAT: Final = WeightLayout()
