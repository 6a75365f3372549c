"""Reading elements at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trt_portable.attributes import integer, member
from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import DataType, GatherMode, LayerType
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.inference import gathered
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import (
    require,
    require_axis,
    require_documented,
    require_equal_ranks,
    require_minimum_rank,
    require_type,
)
from trt_portable.shape_tensors import HOST_LIMIT, HostValues, Value, as_tensor, is_unknown

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_NUMBERS: Final = FLOATS | INDICES | {DataType.INT8}
_GATHERABLE: Final = _NUMBERS | {DataType.BOOL, DataType.INT4, DataType.FP4}


def _in_bounds(indices: torch.Tensor, extent: Any, wraps: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Indices safe to read, and the mask of those inside; None where all are, for certain.

    Negative indices count from the end where the extent is a constant of the network.
    """
    if wraps:
        indices = torch.where(indices < 0, indices + extent, indices)
    inside = (indices >= 0) & (indices < extent)
    if inside.device.type == "cpu" and type(inside) is torch.Tensor and bool(inside.all()):
        return indices, None
    return torch.where(inside, indices, torch.zeros_like(indices)), inside


def _selected(x: torch.Tensor, axis: int, indices: torch.Tensor) -> torch.Tensor | None:
    """What stands at indices; None where one of them is out of bounds, or no kernel looks: on CUDA, and in a trace."""
    if indices.device.type != "cpu" or type(indices) is not torch.Tensor or type(x) is not torch.Tensor:
        return None
    try:
        return x.index_select(axis, indices.reshape(-1))
    except (IndexError, RuntimeError):  # which of them depends on the axis
        return None


def _outside_is_zero(values: torch.Tensor, inside: torch.Tensor | None) -> torch.Tensor:
    if inside is None:
        return values
    return torch.where(inside, values, torch.zeros((), dtype=values.dtype, device=values.device))


class IGatherLayer(ILayer):
    """Elements of a tensor at computed indices; what is out of bounds reads 0.

    Inputs: 0 data, 1 indices (int32 or int64). In mode ELEMENT, indices may be shorter than the data on
    other axes than the one they refer to, unless strict mode is on.
    """

    _KIND = LayerType.GATHER
    _SHAPE_ALGEBRA = True
    _DEFERRED = True

    axis = integer(0, "The axis that indices refer to (modes DEFAULT and ELEMENT).")
    num_elementwise_dims = integer(0, "Leading axes that data and indices share.")
    mode = member(GatherMode, GatherMode.DEFAULT, "How indices are read.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        data, indices = inputs
        assert data is not None and indices is not None
        require_type(data, _GATHERABLE, "the data")
        require_type(indices, INDICES, "the indices")
        require_minimum_rank(data, 1, "the data")
        if self.mode is GatherMode.ELEMENT:
            require_equal_ranks((data, indices), "data and indices")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        data, indices = inputs
        assert data is not None and indices is not None
        shared = self.num_elementwise_dims
        if self.mode is GatherMode.ND:
            require_minimum_rank(indices, 1, "the indices")
            require(0 <= shared < max(data._rank, 1), f"{shared} shared dims of rank {data._rank}")
            require(shared < indices._rank, f"{shared} shared dims of indices of rank {indices._rank}")
            length = (indices._extents or (0,))[-1]
            require(type(length) is int, "the last extent of the indices must be constant")
            require(
                length <= data._rank - shared,
                f"indices of length {length} into rank {data._rank} with {shared} shared dims",
            )
            return
        require_axis(self.axis, data._rank)
        if self.mode is GatherMode.ELEMENT:
            require(shared == 0, "mode ELEMENT has no shared dims")
            for axis, (have, want) in enumerate(zip(data._extents or (), indices._extents or (), strict=True)):
                if axis == self.axis or type(have) is not int or type(want) is not int:
                    continue
                require(want <= have, f"the indices have {want} elements on axis {axis}, where the data have {have}")
                require_documented(want == have, f"data and indices have extents {have} and {want} on axis {axis}")
            return
        require(shared in (0, 1), f"mode DEFAULT shares 0 or 1 dims, not {shared}")
        if shared:
            require_minimum_rank(indices, 1, "the indices")
            require(self.axis >= 1, "axis 0 is shared and cannot be gathered from")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        if self.mode is not GatherMode.DEFAULT or self.num_elementwise_dims:
            return None
        data, indices = self._inputs
        assert data is not None and indices is not None
        return gathered(data, indices, self.axis)

    def _contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        data, indices = inputs
        assert data is not None and indices is not None
        if self.mode is not GatherMode.DEFAULT or self.num_elementwise_dims:
            return None
        return contracts.selected(data.shape, self.axis, indices.shape)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        data, indices = inputs
        assert data is not None and indices is not None
        if self.mode is GatherMode.DEFAULT and not self.num_elementwise_dims:
            if isinstance(data, HostValues) and isinstance(indices, HostValues):
                taken = _take_host(data, indices, self.axis)
                if taken is not None:
                    return (taken,)
            return (self._take(as_tensor(data), as_tensor(indices)),)
        x, at = as_tensor(data), as_tensor(indices).to(torch.int64)
        if self.mode is GatherMode.ELEMENT:
            at, inside = _in_bounds(at, x.shape[self.axis], self._wraps(self.axis))
            return (_outside_is_zero(torch.gather(x, self.axis, at), inside),)
        if self.mode is GatherMode.ND:
            return (self._take_nd(x, at),)
        return (self._take_batched(x, at),)

    def _wraps(self, axis: int) -> bool:
        source = self._inputs[0]
        extents = () if source is None else source._extents or ()
        return axis < len(extents) and type(extents[axis]) is int and extents[axis] >= 0

    def _take(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        axis = self.axis
        taken, inside = _selected(x, axis, at), None
        if taken is None:
            at, inside = _in_bounds(at, x.shape[axis], self._wraps(axis))
            taken = x.index_select(axis, at.reshape(-1))
        shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
        if at.ndim != 1:
            taken = taken.reshape(shape)
        if inside is None:
            return taken
        return _outside_is_zero(taken, inside.reshape([*at.shape] + [1] * (x.ndim - 1 - axis)))

    def _take_batched(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        axis = self.axis
        at, inside = _in_bounds(at, x.shape[axis], self._wraps(axis))
        if is_unknown(x.shape[0]) or is_unknown(at.shape[0]) or x.shape[0] == at.shape[0]:
            batch = at.shape[0]
        else:
            batch = x.shape[0] if at.shape[0] == 1 else at.shape[0]
        moved = x.movedim(axis, 1)
        moved = moved.expand([batch, *moved.shape[1:]])
        at = at.expand([batch, *at.shape[1:]])
        rows = torch.arange(batch, device=x.device).reshape([-1] + [1] * (at.ndim - 1))
        taken = moved[rows, at]
        if inside is not None:
            mask = inside.expand(at.shape).reshape([*at.shape] + [1] * (x.ndim - 2))
            taken = _outside_is_zero(taken, mask)
        before = list(range(at.ndim, at.ndim + axis - 1))
        after = list(range(at.ndim + axis - 1, taken.ndim))
        return taken.permute([0, *before, *range(1, at.ndim), *after])

    def _take_nd(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        shared, length = self.num_elementwise_dims, at.shape[-1]
        index: list[Any] = []
        for axis in range(shared):
            extents = [1] * (at.ndim - 1)
            extents[axis] = -1
            index.append(torch.arange(x.shape[axis], device=x.device).reshape(extents))
        every: torch.Tensor | None = None
        for offset in range(length):
            axis = shared + offset
            part, inside = _in_bounds(at[..., offset], x.shape[axis], self._wraps(axis))
            index.append(part)
            if inside is not None:
                every = inside if every is None else every & inside
        if not index:
            return x.expand([*at.shape[:-1], *x.shape])
        taken = x[tuple(index)]
        if every is not None:
            every = every.reshape([*every.shape] + [1] * (taken.ndim - every.ndim))
        return _outside_is_zero(taken, every)


def _take_host(data: HostValues, indices: HostValues, axis: int) -> HostValues | None:
    """A gather of known numbers at known places; None where a place is unknown or out of bounds, or for too many."""
    extent = data.shape[axis]
    if indices.numel() * (data.numel() // max(extent, 1)) > HOST_LIMIT:
        return None
    places = []
    for index in indices.numbers():
        if isinstance(index, torch.SymInt) or not -extent <= index < extent:
            return None
        places.append(index + extent if index < 0 else index)
    at = np.array(places, dtype=np.int64).reshape(indices.shape)
    return data._with(np.take(data.array, at, axis=axis))


class GatherLayers(LayerFactory):
    """The methods that add gathers."""

    def add_gather(self, input: ITensor, indices: ITensor, axis: int) -> IGatherLayer | None:
        """Adds a gather along one axis.

        Args:
            input: Rank 1 or more.
            indices: Any rank, int32 or int64.
            axis: Not negative.
        """
        layer = IGatherLayer._create(axis=axis)
        data = expect_tensor(input, "input")
        data._refresh()
        if not 0 <= layer.axis < max(len(data._extents or ()), 1):
            rule = f"axis {layer.axis} is outside [0, {len(data._extents or ())})"
            self._reporter.error("add_gather", rule)
            return None
        return self._add(layer, data, expect_tensor(indices, "indices"))

    def add_gather_v2(self, input: ITensor, indices: ITensor, mode: GatherMode) -> IGatherLayer | None:
        """Adds a gather; set ``axis`` and ``num_elementwise_dims`` on the layer.

        Args:
            input: Rank 1 or more.
            indices: int32 or int64; in mode ELEMENT of the rank of `input`.
            mode: How indices are read.
        """
        return self._add(
            IGatherLayer._create(mode=mode),
            expect_tensor(input, "input"),
            expect_tensor(indices, "indices"),
        )
