"""Attributes that an input tensor overrides."""

from __future__ import annotations

from typing import Any

from trt_portable.attributes import Attribute, optional_dims
from trt_portable.dims import Dims
from trt_portable.network.layer import ILayer


class OverriddenDims(Attribute[Dims | None]):
    """Static extents that an input tensor overrides; assigning them takes the tensor away again."""

    def __init__(self, index: int, doc: str) -> None:
        plain = optional_dims()
        super().__init__(plain.convert, None, plain.encode, plain.decode, doc)
        self.index = index

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is not None and layer._input(self.index) is not None:
            return None
        return super().__get__(layer, owner)

    def __set__(self, layer: ILayer, value: Any) -> None:
        if layer._input(self.index) is not None:
            layer._connect(self.index, None)
        super().__set__(layer, value)
