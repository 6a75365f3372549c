"""Tensors of a network: what is known of them before a build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trt_portable.arguments import to_boolean, to_integer, to_text
from trt_portable.dims import Dims, as_dims
from trt_portable.enums import DataType, TensorFormat, TensorLocation
from trt_portable.errors import Refusal

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer
    from trt_portable.network.network import INetworkDefinition

Extent: TypeAlias = Any
"""An int, or a symbolic expression for an extent that is known only at run time."""


class Facts(NamedTuple):
    """What inference found out about one tensor.

    Attributes:
        extents: Integers and symbolic expressions.
        dtype: The element type.
        host: The values in row-major order if they are known to the host.
    """

    extents: tuple[Extent, ...]
    dtype: DataType
    host: tuple[Any, ...] | None


_ALL_FORMATS = (1 << len(TensorFormat)) - 1
NAME_LIMIT = 4096


class ITensor:
    """A tensor of a network: an input, or an output of a layer."""

    __slots__ = (
        "__weakref__",
        "_broadcast",
        "_consumers",
        "_declared",
        "_dimension_names",
        "_dtype",
        "_extents",
        "_formats",
        "_host",
        "_index",
        "_name",
        "_network",
        "_producer",
    )

    def __init__(
        self,
        network: INetworkDefinition | None,
        producer: ILayer | None,
        index: int,
        name: str | None = None,
        dtype: DataType = DataType.FLOAT,
        shape: tuple[Extent, ...] | None = None,
    ) -> None:
        self._network = network
        self._producer = producer
        self._index = index
        self._name = name
        self._dtype = dtype
        self._extents = shape
        self._host: tuple[Any, ...] | None = None
        self._declared = shape
        self._consumers: list[ILayer] = []
        self._dimension_names: dict[int, str] = {}
        self._formats = _ALL_FORMATS
        self._broadcast = False

    def _refresh(self) -> None:
        producer = self._producer
        if producer is not None and producer._stale:
            producer._refresh()

    @property
    def name(self) -> str:
        """The name; by default that of the producing layer with the number of the output."""
        if self._name is not None:
            return self._name
        owner = self._producer.name if self._producer is not None else "(Unnamed Tensor*)"
        return f"{owner}_output" if self._index == 0 else f"{owner}_output_{self._index}"

    @name.setter
    def name(self, name: str) -> None:
        if len(to_text(name).encode()) >= NAME_LIMIT:
            self._report(Refusal(f"a name has at most {NAME_LIMIT - 1} bytes"))
            return
        self._name = name

    @property
    def shape(self) -> Dims:
        """The extents, -1 for those known only at run time; invalid dims if inference failed.

        Only the shape of a network input can be assigned.
        """
        self._refresh()
        if self._extents is None:
            return Dims._invalid()
        return Dims(tuple(e if type(e) is int else -1 for e in self._extents))

    @shape.setter
    def shape(self, shape: Dims) -> None:
        dims = as_dims(shape)
        if self._network is None or not self.is_network_input:
            self._report(Refusal("only the shape of a network input can be set"))
            return
        self._network._set_input_shape(self, dims)

    @property
    def dtype(self) -> DataType:
        """The element type."""
        self._refresh()
        return self._dtype

    @property
    def is_network_input(self) -> bool:
        """Whether the network was given this tensor as an input."""
        return self._producer is None

    @property
    def is_network_output(self) -> bool:
        """Whether the tensor is marked as an output."""
        return self._network is not None and self._network._is_output(self)

    @property
    def is_shape_tensor(self) -> bool:
        """Whether the host needs the values; reliable once the network is complete."""
        return self._network is not None and self._network._is_shape_tensor(self)

    @property
    def is_execution_tensor(self) -> bool:
        """Whether the device needs the values; reliable once the network is complete."""
        return self._network is not None and self._network._is_execution_tensor(self)

    @property
    def allowed_formats(self) -> int:
        """Bit mask ``1 << int(TensorFormat)`` of the formats that a build may choose from."""
        return self._formats

    @allowed_formats.setter
    def allowed_formats(self, formats: int) -> None:
        self._formats = to_integer(formats)

    @property
    def location(self) -> TensorLocation:
        """Where the values live; always the device."""
        return TensorLocation.DEVICE

    @location.setter
    def location(self, location: TensorLocation) -> None:
        if not isinstance(location, TensorLocation):
            raise TypeError(f"location must be TensorLocation, not {type(location).__name__}")
        if location is not TensorLocation.DEVICE:
            self._report(Refusal("the location of a tensor is DEVICE"))

    @property
    def broadcast_across_batch(self) -> bool:
        """Kept for compatibility; has no effect."""
        return self._broadcast

    @broadcast_across_batch.setter
    def broadcast_across_batch(self, broadcast: bool) -> None:
        self._broadcast = to_boolean(broadcast)

    def set_dimension_name(self, index: int, name: str) -> None:
        """Names an extent of an input; equal names promise equal extents at run time."""
        position = to_integer(index)
        rank = len(self._extents or ())
        if not 0 <= position < rank:
            self._report(Refusal(f"axis {position} is outside a tensor of rank {rank}"))
            return
        self._dimension_names[position] = to_text(name)

    def get_dimension_name(self, index: int) -> str | None:
        """The name of an extent, None if it has none."""
        return self._dimension_names.get(to_integer(index))

    def _report(self, refusal: Refusal) -> None:
        if self._network is None:
            raise refusal
        self._network._reporter.refuse(f"tensor {self.name!r}", refusal)

    @property
    def _is_static(self) -> bool:
        """Whether its extents, and what the host knows of its values, are numbers."""
        if not all(type(extent) is int for extent in self._extents or ()):
            return False
        return self._host is None or all(isinstance(number, (int, float)) for number in self._host)

    @property
    def _rank(self) -> int:
        """The number of axes.

        Raises:
            Refusal: Shape inference of the producer failed.
        """
        if self._extents is None:
            raise Refusal(f"the shape of {self.name!r} is invalid")
        return len(self._extents)

    def _describe(self) -> str:
        shape = "invalid" if self._extents is None else tuple(self.shape)
        return f"{self.name!r} {self._dtype.name} {shape}"

    def __repr__(self) -> str:
        return f"<ITensor {self._describe()}>"
