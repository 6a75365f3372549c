"""Tensors with data, as implementations of decorated plugins receive them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trt_portable.enums import DataType, TensorFormat
from trt_portable.formats import LAYOUTS
from trt_portable.plugin_interfaces.expressions import PluginTensorDesc


class Shape:
    """Extents as numbers, some of which an output of the plugin may still have to tell.

    Args:
        extents: The numbers, or a description of a tensor.
    """

    def __init__(self, extents: Sequence[int] | PluginTensorDesc | None = None) -> None:
        given = extents.dims if isinstance(extents, PluginTensorDesc) else extents or ()
        self._extents = [int(extent) for extent in given]

    def numel(self) -> int:
        """The number of elements.

        Raises:
            ValueError: An extent is not known yet.
        """
        if -1 in self._extents:
            raise ValueError("an extent depends on data")
        return math.prod(self._extents)

    def __len__(self) -> int:
        return len(self._extents)

    def __getitem__(self, axis: int) -> int:
        return self._extents[axis]

    def __setitem__(self, axis: int, extent: int) -> None:
        self._extents[axis] = int(extent)

    def __iter__(self) -> Any:
        return iter(self._extents)

    def __eq__(self, other: object) -> bool:
        return list(other) == self._extents if isinstance(other, (Shape, tuple, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shape({tuple(self._extents)})"


class Tensor:
    """Memory of a tensor, as described.

    PyTorch, numpy and CUDA libraries adopt it without a copy: through DLPack everywhere, through
    ``__array_interface__`` on the host and ``__cuda_array_interface__`` on a GPU.

    Args:
        desc: Extents, type and format.
        memory: The memory, in the layout of the format.
        aliased_to: The input whose memory this output shares.
    """

    def __init__(self, desc: PluginTensorDesc, memory: torch.Tensor, aliased_to: Tensor | None = None) -> None:
        self._desc = desc
        self._memory = memory
        self._aliased_to = aliased_to

    @property
    def data_ptr(self) -> int:
        """The address of the memory."""
        return self._memory.data_ptr()

    @property
    def dtype(self) -> DataType:
        """The element type."""
        return self._desc.type

    @property
    def format(self) -> TensorFormat:
        """The memory layout."""
        return self._desc.format

    @property
    def scale(self) -> float:
        """Kept for compatibility."""
        return self._desc.scale

    @property
    def shape(self) -> Shape:
        """The extents, -1 for those that depend on data."""
        return Shape(tuple(self._desc.dims))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._desc.dims)

    @property
    def strides(self) -> tuple[int, ...]:
        """The distances between neighbours along each axis, in elements, or in vectors where the format has them."""
        layout = LAYOUTS.get(self.format)
        return tuple(self._memory.stride()) if layout is None else layout.strides(tuple(self._desc.dims))

    @property
    def is_data_dependent(self) -> bool:
        """Whether an extent depends on data."""
        return -1 in tuple(self._desc.dims)

    @property
    def is_aliased(self) -> bool:
        """Whether this output shares the memory of an input."""
        return self._aliased_to is not None

    def get_aliased(self) -> Tensor | None:
        """The input whose memory this output shares, or None."""
        return self._aliased_to

    def numel(self) -> int:
        """The number of elements.

        Raises:
            ValueError: An extent depends on data.
        """
        return self.shape.numel()

    def aliased(self, shape: Shape | Sequence[int] | PluginTensorDesc | None = None) -> Tensor:
        """The same memory with other extents.

        Args:
            shape: As many elements, or at most as many where an extent depends on data; the same by default.

        Raises:
            ValueError: Another number of elements.
        """
        wanted = tuple(self.shape if shape is None else shape if isinstance(shape, Shape) else Shape(shape))
        count, have = math.prod(wanted), self._memory.numel()
        if count > have or (not self.is_data_dependent and count != have):
            raise ValueError(f"{count} elements of shape {wanted} in memory of {have} elements")
        desc = PluginTensorDesc._of(wanted, self.dtype, self.format)
        return Tensor(desc, self._memory.reshape(-1)[:count].reshape(wanted), self)

    def __dlpack__(self, **options: Any) -> Any:
        return self._memory.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._memory.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self._memory.numpy()
        if dtype is not None and array.dtype != dtype:
            array = array.astype(dtype)
        return np.array(array) if copy else array

    @property
    def __array_interface__(self) -> Any:
        if self._memory.is_cuda:
            raise AttributeError("the memory is on a GPU")
        return self._memory.numpy().__array_interface__

    @property
    def __cuda_array_interface__(self) -> Any:
        if not self._memory.is_cuda:
            raise AttributeError("the memory is on the host")
        return self._memory.__cuda_array_interface__
