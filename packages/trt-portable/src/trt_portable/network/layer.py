"""Tensors and layers of a network, and their seam to inference, plans and engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from trt_core.files import typed
from trt_portable.dims import Dims, as_dims
from trt_portable.dtypes import CARRIERS, FROM_TORCH, PACKED, storage_bytes, storage_dtype
from trt_portable.enums import DataType, LayerType, TensorFormat, TensorLocation
from trt_portable.errors import Refusal
from trt_portable.layer_properties import Attribute
from trt_portable.pybind import Sealed, instance_of, to_boolean, to_integer, to_text
from trt_portable.reporting import Reporter
from trt_portable.shape_tensors import Value
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from typing_extensions import Self

    from trt_portable.layers.contracts import Bound
    from trt_portable.network.symbols import Symbols

Extent: TypeAlias = Any
"""An int, or a symbolic expression for an extent that is known only at run time."""


class _OpenExtent(int):
    """An extent of a plan's tensor that only running can tell: -1, and to rules of layers no number."""


OPEN: Final = _OpenExtent(-1)
_NUMBERS: Final = frozenset({int})


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


class LayerOwner(Protocol):
    """A network, as its tensors and layers see it."""

    _reporter: Reporter
    _revision: int
    _input_names: set[str] | None

    def _refresh(self, wanted: ILayer) -> None:
        """Infers a stale layer again, stale layers upstream first."""

    def _set_input_shape(self, tensor: ITensor, dims: Dims) -> None:
        """Takes another shape of an input."""

    def _is_output(self, tensor: ITensor) -> bool:
        """Whether a tensor is marked as an output."""

    def _is_shape_tensor(self, tensor: ITensor) -> bool:
        """Whether the host needs the values of a tensor."""

    def _is_execution_tensor(self, tensor: ITensor) -> bool:
        """Whether the device needs the values of a tensor."""

    def is_debug_tensor(self, tensor: ITensor) -> bool:
        """Whether a tensor is visible to a debug listener."""


_ALL_FORMATS = (1 << len(TensorFormat)) - 1
NAME_LIMIT = 4096


class ITensor:
    """A tensor of a network: an input, or an output of a layer."""

    __slots__ = (
        *("__weakref__", "_broadcast", "_consumers", "_declared", "_dimension_names", "_dtype", "_extents"),
        *("_formats", "_host", "_index", "_name", "_network", "_producer"),
    )

    def __init__(
        self,
        network: LayerOwner | None,
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
        if self._producer is None and self._network is not None:
            self._network._input_names = None

    @property
    def shape(self) -> Dims:
        """The extents, -1 for those known only at run time; invalid dims if inference failed.

        Only the shape of a network input can be assigned.
        """
        self._refresh()
        if self._extents is None:
            return Dims._invalid()
        if {*map(type, self._extents)} <= _NUMBERS:
            return Dims._of(tuple(self._extents))
        return Dims._of(tuple([extent if type(extent) is int else -1 for extent in self._extents]))

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
        instance_of(TensorLocation, location, "location")
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


META = torch.device("meta")
EngineCompute: TypeAlias = "Callable[[Sequence[Any]], Sequence[Value]]"
"""Computes the outputs of a layer from its inputs."""
L = TypeVar("L", bound="ILayer")

LAYER_CLASSES: dict[str, type[ILayer]] = {}
"""Every layer class that is imported, by the name of its kind; plans name layers by it."""


class ILayer(Sealed):
    """A layer of a network.

    A subclass defines the meaning of its kind in two methods: `_check` refuses what TensorRT refuses,
    `_compute` is the meaning itself, as PyTorch expressions. The same expressions infer shapes (on
    tensors without data), run (on tensors with data) and are traced.
    """

    _KIND: ClassVar[LayerType]
    _PLAN_TYPE: ClassVar[str]
    """The name of the layer's type in a plan: that of its kind, unless the class has one of its own."""
    _ROLES: ClassVar[tuple[str, ...]] = ()
    _MAX_INPUTS: ClassVar[int] = 0
    """Inputs below this index may be added by `set_input`, and missing before; of a layer of 0 none ever is."""
    _HOST_INPUTS: ClassVar[frozenset[int]] = frozenset()
    """Inputs whose values the host must know."""
    _SHAPE_ALGEBRA: ClassVar[bool] = False
    """Whether values known to the host stay known through this layer."""
    _MOVES_ALONE: ClassVar[bool] = False
    """Whether inference asks no more of tensors than `Outline` has, where extents are known only at run time."""
    _DATA_DEPENDENT: ClassVar[bool] = False
    """Whether an output extent depends on data."""
    _CACHEABLE: ClassVar[bool] = True
    """Whether attributes and input shapes alone decide the output shapes."""
    _DEFERRED: ClassVar[bool] = False
    """Whether attributes set after the layer was added may cure what `_check` and `_compute` refuse."""
    _NUM_OUTPUTS: ClassVar[int] = 1
    _LIKE_FIRST_INPUT: ClassVar[bool] = False
    """Whether the output has the extents of input 0, whatever the other inputs are."""
    _ALIASES: ClassVar[Mapping[int, int]] = {}
    """Outputs that share the memory of an input in an engine, by index."""
    _ATTRIBUTES: ClassVar[tuple[Attribute[Any], ...]] = ()
    _NESTED: ClassVar[tuple[str, ...]] = ()
    """Fields of the layer's entry in a plan that other layers have not."""
    _IS_PREPARATION: ClassVar[bool] = False
    """Whether the layer, which reads constants alone, is computed when these are loaded, and not in every run."""
    _implementation: str = ""
    """Name of the kernel that the builder chose; empty where there was nothing to choose."""
    _IS_FROZEN: ClassVar[bool] = False
    """Whether attributes can no longer change."""

    def _contract(self, inputs: Sequence[Any]) -> Bound | None:
        """How much `_compute` takes at most (see `layers.contracts`); None where nothing is said."""
        return None

    def __init__(self) -> None:
        raise TypeError(f"trt_portable.{type(self).__name__}: No constructor defined!")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found: dict[str, Attribute[Any]] = {}
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                if isinstance(value, Attribute):
                    found[name] = value
        cls._ATTRIBUTES = tuple(found.values())
        if "_KIND" in vars(cls):
            if "_PLAN_TYPE" not in vars(cls):
                cls._PLAN_TYPE = cls._KIND.name
            LAYER_CLASSES[cls._PLAN_TYPE] = cls

    @classmethod
    def _create(cls, **attributes: Any) -> Self:
        """A layer that belongs to no network yet.

        Raises:
            TypeError: An attribute of the wrong Python type.
        """
        layer = cls.__new__(cls)
        layer.__dict__.update(
            _network=None,
            _name="",
            _metadata="",
            _ranks=1,
            _inputs=[],
            _outputs=[],
            _stale=False,
            _roles={},
            _weight_specs={},
            _weight_keys={},
            _bound={},
            _device=META,
        )
        for name, value in attributes.items():
            setattr(layer, name, value)
        return layer

    _network: LayerOwner | None
    _name: str
    _metadata: str
    _ranks: int
    _inputs: list[ITensor | None]
    _outputs: list[ITensor]
    _stale: bool
    _roles: dict[str, Weights]
    _weight_specs: dict[str, tuple[DataType, int]]
    _weight_keys: dict[str, str]
    _bound: dict[str, torch.Tensor]
    _device: torch.device

    @property
    def name(self) -> str:
        """The name, at most 4095 bytes; unique names make reports readable but are not required."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        if len(to_text(name).encode()) >= NAME_LIMIT:
            self._report(Refusal(f"a name has at most {NAME_LIMIT - 1} bytes"))
            return
        self._name = name

    @property
    def metadata(self) -> str:
        """Free text that the inspector shows with the layer."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: str) -> None:
        self._metadata = to_text(metadata)

    @property
    def type(self) -> Any:
        """The kind of the layer."""
        return self._KIND

    @property
    def num_inputs(self) -> int:
        """Number of inputs, gaps included."""
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._outputs)

    @property
    def num_ranks(self) -> int:
        """Number of devices that run the layer together; 1 unless it is a collective."""
        return self._ranks

    @num_ranks.setter
    def num_ranks(self, ranks: int) -> None:
        wanted = to_integer(ranks)
        if wanted < 1 or (self._ranks > 1 and wanted != self._ranks):
            raise RuntimeError(f"num_ranks cannot change from {self._ranks} to {wanted}")
        self._ranks = wanted
        self._changed()

    def get_input(self, index: int) -> ITensor | None:
        """The input at an index; None if there is none."""
        position = to_integer(index)
        return self._inputs[position] if 0 <= position < len(self._inputs) else None

    def get_output(self, index: int) -> ITensor | None:
        """The output at an index; None if there is none."""
        position = to_integer(index)
        return self._outputs[position] if 0 <= position < len(self._outputs) else None

    def get_output_type(self, index: int) -> DataType:
        """The element type of an output."""
        output = self.get_output(index)
        return DataType.FLOAT if output is None else output.dtype

    def set_input(self, index: int, tensor: ITensor) -> None:
        """Replaces an input, or adds one of the optional inputs of this kind of layer.

        Raises:
            TypeError: The tensor is no `ITensor`.
        """
        position = to_integer(index)
        if not isinstance(tensor, ITensor):
            raise TypeError(f"set_input takes an ITensor, not {tensor.__class__.__name__}")
        limit = max(len(self._inputs), self._MAX_INPUTS)
        if not 0 <= position < limit:
            self._report(Refusal(f"input index {position} is outside [0, {limit})"))
            return
        if tensor._network is not self._network:
            self._report(Refusal(f"input {position} ({tensor.name!r}) is of another network"))
            return
        self._connect(position, tensor)
        self._changed()

    def _connect(self, index: int, tensor: ITensor | None) -> None:
        while len(self._inputs) <= index:
            self._inputs.append(None)
        previous = self._inputs[index]
        self._inputs[index] = tensor
        if previous is not None and not any(previous is other for other in self._inputs):
            previous._consumers = [user for user in previous._consumers if user is not self]
        if tensor is not None and not any(user is self for user in tensor._consumers):
            tensor._consumers.append(self)
        while self._inputs and self._inputs[-1] is None:
            self._inputs.pop()

    def _input(self, index: int) -> ITensor | None:
        return self._inputs[index] if index < len(self._inputs) else None

    def _sources(self, *, host: bool) -> list[ITensor]:
        """The tensors that are read on the host, or those that are read on the device."""
        on_host = self._HOST_INPUTS
        return [each for at, each in enumerate(self._inputs) if each is not None and (at in on_host) is host]

    def _report(self, refusal: Refusal) -> None:
        if self._network is None:
            raise refusal
        self._network._reporter.refuse(self._subject(), refusal)

    def _subject(self) -> str:
        """Name, kind and operands of the layer, for messages."""
        operands = ", ".join("none" if t is None else t._describe() for t in self._inputs)
        return f"{self._name} [{self._KIND.name}]({operands})"

    # --- inference -------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Forgets what was inferred, here and downstream; it is inferred again when it is read."""
        if self._network is None or self._stale:
            return
        pending: list[ILayer] = [self]
        while pending:
            layer = pending.pop()
            if layer._stale:
                continue
            layer._stale = True
            for output in layer._outputs:
                pending.extend(output._consumers)
        self._network._revision += 1

    def _refresh(self) -> None:
        """Infers this layer again, after those upstream that are stale."""
        network = self._network
        if network is not None:
            network._refresh(self)

    def _learn(self, facts: Sequence[Facts]) -> None:
        """Takes what inference found out about the outputs."""
        for output, fact in zip(self._outputs, facts, strict=True):
            output._extents, output._dtype, output._host = fact

    def _facts_source(self) -> Sequence[ITensor | None]:
        """The tensors whose shapes decide the outputs' shapes."""
        return self._inputs

    def _check_operands(self, inputs: Sequence[Any]) -> None:
        """Refuses operands that no attribute could make right.

        Raises:
            Refusal: A rule is broken.
        """

    def _check(self, inputs: Sequence[Any]) -> None:
        """Refuses types, ranks, extents and attributes that TensorRT refuses.

        Raises:
            Refusal: A rule is broken.
        """

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        """The outputs' extents and types, for layers that know them without computing.

        Args:
            symbols: Makes symbols for extents that only running can tell.
        """
        return None

    def _known_values(self) -> tuple[Value, ...]:
        """What a layer without inputs gives, where its definition alone says that; else nothing."""
        return ()

    def _check_complete(self) -> None:
        """Refuses what only a complete network can show; called before a build.

        Raises:
            Refusal: Something is missing.
        """

    def _compute(self, inputs: Sequence[Any]) -> tuple[Value, ...]:
        """The meaning of the layer.

        Args:
            inputs: One value per input, None for gaps.

        Returns:
            One value per output.
        """
        raise NotImplementedError(type(self).__name__)

    def _engine_compute(self) -> EngineCompute:
        """What computes the layer in an engine: `_compute`, or the same with less to ask in each run."""
        return self._compute

    def _compute_in_place(self, inputs: Sequence[Any]) -> tuple[Value, ...]:
        """As `_compute`, with what `_ALIASES` names in the memory of its input, which nothing else reads."""
        raise NotImplementedError(type(self).__name__)

    @staticmethod
    def _carrier(dtype: DataType) -> torch.dtype:
        return CARRIERS[dtype]

    @property
    def _is_random(self) -> bool:
        """Whether two runs may give different values."""
        return False

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        """The element type of an output, given the PyTorch type that `_compute` gave."""
        for tensor in self._facts_source():
            if tensor is not None and tensor._dtype in PACKED and CARRIERS[tensor._dtype] is carrier:
                return tensor._dtype
        return FROM_TORCH[carrier]

    def _signature(self) -> tuple[Any, ...]:
        """Everything about the layer, apart from its inputs, that inference depends on."""
        return (
            type(self),
            self._ranks,
            *(attribute.__get__(self, type(self)) for attribute in self._ATTRIBUTES),
            *((role, weights._dtype, weights._count) for role, weights in self._roles.items()),
        )

    # --- plans and engines -----------------------------------------------------------------------

    def _attributes(self) -> dict[str, Any]:
        """The attributes in JSON form."""
        return {attribute.name: attribute.encode(attribute.__get__(self, type(self))) for attribute in self._ATTRIBUTES}

    def _restore(self, attributes: Mapping[str, Any], weights: Mapping[str, tuple[DataType, int]]) -> None:
        """Takes attributes and the types and counts of weights from a plan.

        Raises:
            TypeError, ValueError: An attribute is missing, unknown, or makes no sense.
        """
        what = f"layer {self._name!r} of type {self._PLAN_TYPE}"
        found = typed.fields(attributes, what, [attribute.name for attribute in self._ATTRIBUTES])
        for attribute in self._ATTRIBUTES:
            try:
                self.__dict__[attribute.slot] = attribute.decode(found[attribute.name])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{attribute.name} of {what} is {found[attribute.name]!r:.60}") from error
        self._weight_specs = dict(weights)

    def _nested(self, write: Callable[[ILayer], dict[str, Any]], id_of: Callable[[ITensor], int]) -> dict[str, Any]:
        """More entries for a plan: those of layers inside this one."""
        return {}

    def _restore_nested(
        self, entry: Mapping[str, Any], read: Callable[[Mapping[str, Any]], ILayer], tensors: Mapping[int, ITensor]
    ) -> None:
        """Takes the layers inside this one from a plan."""

    def _greatest(self, inputs: Sequence[Any]) -> Sequence[Value] | None:
        """The largest outputs that there can be where extents depend on data; None where the layer sets no bound."""
        return None

    def _children(self) -> tuple[ILayer, ...]:
        """The layers inside this one."""
        return ()

    def _weights(self) -> dict[str, Weights]:
        """The host weights in use, by role."""
        return {role: weights for role, weights in self._roles.items() if weights._count}

    def _has_weights(self, role: str) -> bool:
        """Whether the role has elements, in a network or in a plan."""
        weights = self._roles.get(role)
        if weights is not None:
            return weights._count > 0
        return role in self._weight_specs

    def _weight_spec(self, role: str) -> tuple[DataType, int]:
        """Type and number of elements of a role."""
        weights = self._roles.get(role)
        if weights is not None:
            return weights._dtype, weights._count
        return self._weight_specs.get(role, (DataType.FLOAT, 0))

    def _parameter(self, role: str) -> torch.Tensor:
        """The weights of a role, flat: bound ones in an engine, ones without data while inferring.

        Returns:
            (count,) of the carrier type; (bytes,), uint8, for packed 4-bit types.
        """
        bound = self._bound.get(role)
        if bound is not None:
            return bound
        dtype, count = self._weight_spec(role)
        size = storage_bytes(dtype, count) if dtype in PACKED else count
        return torch.empty(size, dtype=storage_dtype(dtype), device=META)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"
