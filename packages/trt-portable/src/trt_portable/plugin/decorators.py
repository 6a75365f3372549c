"""The decorators that make plugins of functions: what these say, uses of them by name, and how layers see them."""

from __future__ import annotations

import builtins
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import torch

from trt_portable.enums import (
    DataType,
    DimensionOperation,
    PluginArgDataType,
    PluginCapabilityType,
    PluginFieldType,
    TensorFormat,
)
from trt_portable.formats import LAYOUTS
from trt_portable.network.definition import expect_tensor
from trt_portable.network.layer import ITensor
from trt_portable.plugin.interfaces import (
    ELEMENTS,
    DimsExprs,
    DynamicPluginTensorDesc,
    IDimensionExpr,
    IExprBuilder,
    IPluginCreatorV3Quick,
    IPluginResourceContext,
    IPluginV3,
    IPluginV3OneBuildV2,
    IPluginV3OneRuntime,
    IPluginV3QuickBuild,
    IPluginV3QuickCore,
    IPluginV3QuickRuntime,
    ISymExpr,
    ISymExprs,
    PluginField,
    PluginFieldCollection,
    PluginFieldCollection_,
    PluginTensorDesc,
    get_plugin_registry,
)

if TYPE_CHECKING:
    from typing_extensions import Self


_BUILDER: Final = IExprBuilder()


class SymExpr(ISymExpr):
    """An expression of extents that may become an argument of a kernel."""


def _combining(operation: DimensionOperation, *, swapped: bool = False) -> Any:
    """A method that computes an expression from the object and another operand, which comes first where they swap."""
    return lambda self, other: self._combined(operation, *((other, self) if swapped else (self, other)))


class SymIntExpr(SymExpr):
    """An expression of extents with an integer value.

    Args:
        value: A number, an expression, or None for one that stands for anything.
    """

    def __init__(self, value: int | IDimensionExpr | SymIntExpr | None = None) -> None:
        super().__init__()
        self.expr: IDimensionExpr | None
        if isinstance(value, SymIntExpr):
            self.expr = value.expr
        elif value is None or isinstance(value, IDimensionExpr):
            self.expr = value
        elif isinstance(value, torch.SymInt):
            self.expr = IDimensionExpr(value)
        else:
            self.expr = _BUILDER.constant(value)

    @property
    def is_fake(self) -> bool:
        """Whether it stands for anything, where extents are not known."""
        return self.expr is None

    @property
    def is_constant(self) -> bool:
        """Whether the value is known now.

        Raises:
            RuntimeError: The expression is fake.
        """
        return self._known().is_constant()

    @property
    def is_size_tensor(self) -> bool:
        """Whether an output of the plugin holds the value."""
        return self.expr is not None and self.expr.is_size_tensor()

    def constant_value(self) -> int:
        """The value, if it is known now.

        Raises:
            RuntimeError: It is not.
        """
        return self._known().get_constant_value()

    def _known(self) -> IDimensionExpr:
        if self.expr is None:
            raise RuntimeError("the extents are not known here, only types are")
        return self.expr

    def _combined(self, operation: DimensionOperation, left: Any, right: Any) -> Self:
        parts = [each if isinstance(each, SymIntExpr) else SymIntExpr(each) for each in (left, right)]
        known = [part.expr for part in parts if part.expr is not None]
        return type(self)(_BUILDER.operation(operation, *known) if len(known) == 2 else None)

    __add__ = __radd__ = _combining(DimensionOperation.SUM)
    __mul__ = __rmul__ = _combining(DimensionOperation.PROD)
    __sub__ = _combining(DimensionOperation.SUB)
    __rsub__ = _combining(DimensionOperation.SUB, swapped=True)
    __floordiv__ = _combining(DimensionOperation.FLOOR_DIV)
    __rfloordiv__ = _combining(DimensionOperation.FLOOR_DIV, swapped=True)
    __eq__ = _combining(DimensionOperation.EQUAL)  # an expression, as in TensorRT
    __lt__ = _combining(DimensionOperation.LESS)
    __gt__ = _combining(DimensionOperation.LESS, swapped=True)
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        value = "?" if self.expr is None else self.expr._value
        return f"{type(self).__name__}({value})"


class ShapeExpr(SymIntExpr):
    """The extent of one axis."""


Extent: TypeAlias = "int | SymIntExpr"


class SizeTensorShapeExpr(ShapeExpr):
    """An extent that an output of the plugin holds.

    Args:
        size_tensor_desc: The output.
    """

    def __init__(self, size_tensor_desc: SizeTensorDesc) -> None:
        super().__init__(None)
        self.size_tensor = size_tensor_desc

    @property
    def is_size_tensor(self) -> bool:
        """True."""
        return True

    def _combined(self, operation: DimensionOperation, left: Any, right: Any) -> Self:
        raise ValueError("an extent that a size tensor holds cannot be computed with")


class SymInt32(SymIntExpr):
    """An int32 argument of a kernel."""

    def __init__(self, value: int | IDimensionExpr | SymIntExpr | None = None) -> None:
        super().__init__(value)
        self.dtype = PluginArgDataType.INT32


class ShapeExprs:
    """The extents of a tensor.

    Args:
        length: The number of axes; the extents are fake until they are assigned.
    """

    def __init__(self, length: int, _is_dummy: bool = False) -> None:
        self._extents = [ShapeExpr() for _ in range(length)]

    @classmethod
    def from_tuple(cls, shape_exprs: Iterable[Extent]) -> ShapeExprs:
        """The extents given as expressions and numbers."""
        given = list(shape_exprs)
        made = cls(len(given))
        for axis, extent in enumerate(given):
            made[axis] = extent
        return made

    def numel(self) -> ShapeExpr:
        """The number of elements."""
        count = ShapeExpr(1)
        for extent in self._extents:
            count = count * extent
        return count

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[ShapeExpr]:
        return iter(self._extents)

    def __getitem__(self, axis: int) -> ShapeExpr:
        return self._extents[axis]

    def __setitem__(self, axis: int, extent: Extent) -> None:
        self._extents[axis] = extent if isinstance(extent, ShapeExpr) else ShapeExpr(extent)


class SymExprs(ISymExprs):
    """Arguments of a kernel, in order."""

    @classmethod
    def from_tuple(cls, shape_exprs: Iterable[ISymExpr | int]) -> Self:
        """The arguments given."""
        made = cls()
        given = [SymInt32(each) if isinstance(each, int) else each for each in shape_exprs]
        made.nbSymExprs = len(given)
        for at, expression in enumerate(given):
            made[at] = expression
        return made


class SymIntExprs(SymExprs):
    """Integer arguments of a kernel, in order."""


def _of_two(operation: DimensionOperation, first: Extent, second: Extent, of_numbers: Callable[[int, int], int]) -> Any:
    for each in (first, second):
        if isinstance(each, SymIntExpr):
            return each._combined(operation, first, second)
    assert isinstance(first, int) and isinstance(second, int)
    return ShapeExpr(of_numbers(first, second))


def cdiv(first: Extent, second: Extent) -> Any:
    """The quotient of two extents, rounded up."""
    return _of_two(DimensionOperation.CEIL_DIV, first, second, lambda a, b: -(-a // b))


def max(first: Extent, second: Extent) -> Any:
    """The greater of two extents."""
    return _of_two(DimensionOperation.MAX, first, second, builtins.max)


def min(first: Extent, second: Extent) -> Any:
    """The smaller of two extents."""
    return _of_two(DimensionOperation.MIN, first, second, builtins.min)


class TensorDesc:
    """Extents, type and format of a tensor.

    Args:
        shape_expr: The extents, as expressions or numbers.
        dtype: The element type.
        format: The memory layout.
        scale: Kept for compatibility.
    """

    def __init__(
        self,
        shape_expr: ShapeExprs | Iterable[Extent] | None = None,
        dtype: DataType | None = None,
        format: TensorFormat | None = None,
        scale: float | None = None,
    ) -> None:
        self._shape_expr = None if shape_expr is None else ShapeExprs.from_tuple(shape_expr)
        self.dtype = dtype
        self.format = format
        self.scale = scale
        self._aliased_to: TensorDesc | None = None
        self._is_fixed = False

    if not TYPE_CHECKING:  # or type checkers would allow any name

        def __setattr__(self, name: str, value: Any) -> None:
            if name[0] != "_" and self.__dict__.get("_is_fixed"):
                raise ValueError("an output that shares the memory of an input cannot be changed")
            object.__setattr__(self, name, value)

    @property
    def shape_expr(self) -> ShapeExprs:
        """The extents; assigning to one changes it."""
        assert self._shape_expr is not None
        return self._shape_expr

    @shape_expr.setter
    def shape_expr(self, extents: ShapeExprs | Iterable[Extent]) -> None:
        self._shape_expr = ShapeExprs.from_tuple(extents)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape_expr)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as numbers.

        Raises:
            RuntimeError: One is not known.
        """
        return tuple(extent.constant_value() for extent in self.shape_expr)

    @property
    def has_shape(self) -> bool:
        """Whether all extents are known numbers."""
        return all(not extent.is_fake and extent.is_constant for extent in self.shape_expr)

    @property
    def is_shape_tensor(self) -> bool:
        """False: decorated plugins read data alone."""
        return False

    @property
    def is_aliased(self) -> bool:
        """Whether this output shares the memory of an input."""
        return self._aliased_to is not None

    def get_aliased(self) -> TensorDesc | None:
        """The input whose memory this output shares, or None."""
        return self._aliased_to

    def numel(self) -> int:
        """The number of elements, where all extents are known."""
        return self.shape_expr.numel().constant_value()

    def like(self) -> TensorDesc:
        """Another tensor of the same extents, type and format."""
        return TensorDesc(list(self.shape_expr), self.dtype, self.format, self.scale)

    def aliased(self) -> TensorDesc:
        """An output of the same extents, type and format that shares this tensor's memory."""
        made = self.like()
        made._aliased_to, made._is_fixed = self, True
        return made


class SizeTensorDesc(TensorDesc):
    """A 0-D int32 output that holds an extent of another output.

    Args:
        opt: The extent that is expected.
        upper_bound: The greatest extent possible.
    """

    def __init__(self, opt: Extent, upper_bound: Extent) -> None:
        super().__init__((), DataType.INT32)
        self._opt, self._upper_bound = ShapeExpr(opt), ShapeExpr(upper_bound)
        self._expression = SizeTensorShapeExpr(self)

    @property
    def opt(self) -> ShapeExpr:
        """The extent that is expected."""
        return self._opt

    @property
    def upper_bound(self) -> ShapeExpr:
        """The greatest extent possible."""
        return self._upper_bound

    def expr(self) -> SizeTensorShapeExpr:
        """The extent that this output holds."""
        return self._expression


def from_shape_expr(shape_expr: ShapeExprs | Iterable[Extent], dtype: DataType) -> TensorDesc:
    """A tensor of given extents and type."""
    return TensorDesc(shape_expr, dtype)


def size_tensor(opt: Extent, upper_bound: Extent) -> SizeTensorDesc:
    """An output that holds an extent.

    Args:
        opt: The extent that is expected.
        upper_bound: The greatest extent possible.
    """
    return SizeTensorDesc(opt, upper_bound)


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


Function = TypeVar("Function", bound=Callable[..., Any])


def register(plugin_id: str, lazy_register: bool = False) -> Callable[[Function], Function]:
    """Describes a plugin: ``(inp0: TensorDesc, ..., attr0: int, ...) -> TensorDesc | tuple[TensorDesc, ...]``.

    Args:
        plugin_id: ``"namespace::name"``.
        lazy_register: Whether the plugin registry learns of it only when it is used.

    Raises:
        ValueError: The identity is taken or malformed, or the signature has no such form.
    """
    namespace, name = split_identity(plugin_id)

    def decorate(function: Function) -> Function:
        if plugin_id in DEFINITIONS:
            raise ValueError(f"plugin {plugin_id!r} is registered already")
        inputs, attributes = read_signature(plugin_id, function)
        definition = Definition(namespace, name, function, inputs, attributes)
        DEFINITIONS[plugin_id] = definition
        if not lazy_register:
            list_plugin(definition)
        return function

    return decorate


def impl(plugin_id: str) -> Callable[[Function], Function]:
    """Computes a plugin: ``(inp0: Tensor, ..., attr0, ..., outputs: tuple[Tensor], stream: int[, tactic])``.

    Raises:
        ValueError: The plugin is not registered, or the parameters are others than it was registered with.
    """

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        expect_parameters(definition, function, ("outputs", "stream"), optional=("tactic",))
        definition.implementation = function
        return function

    return decorate


def autotune(plugin_id: str) -> Callable[[Function], Function]:
    """Says what a plugin supports: ``(inp0: TensorDesc, ..., attr0, ..., outputs) -> list[AutoTuneCombination]``.

    The first combination that fits a network is taken, with the first of its tactics: nothing is timed.

    Raises:
        ValueError: The plugin is not registered, or the parameters are others than it was registered with.
    """

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        expect_parameters(definition, function, ("outputs",))
        definition.combinations = function
        return function

    return decorate


def aot_impl(plugin_id: str) -> Callable[[Function], Function]:
    """Checks what would compile a kernel for NVIDIA's GPUs; networks that ask for it are refused.

    Raises:
        ValueError: The plugin is not registered, or the parameters are others than it was registered with.
    """

    def decorate(function: Function) -> Function:
        expect_parameters(_registered(plugin_id), function, ("outputs",), optional=("tactic",))
        return function

    return decorate


def list_plugin(definition: Definition) -> None:
    """Makes the plugin registry know a plugin."""
    if not definition.is_listed:
        get_plugin_registry().register_creator(QuickCreator(definition), definition.namespace)
        definition.is_listed = True


def _registered(plugin_id: str) -> Definition:
    split_identity(plugin_id)
    found = DEFINITIONS.get(plugin_id)
    if found is None:
        raise ValueError(f"plugin {plugin_id!r} is not registered: decorate its description with register first")
    return found


class Operator:
    """Makes the argument of ``INetworkDefinition.add_plugin``.

    Args:
        definition: The plugin.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[list[ITensor], list[ITensor], QuickPlugin]:
        """Takes tensors and attributes, by position or by name, as the description does.

        Returns:
            Inputs, no shape inputs, and the plugin.

        Raises:
            TypeError: A parameter is missing, unknown, or of the wrong type.
        """
        definition = self._definition
        names = (*definition.inputs, *definition.attributes)
        if len(args) > len(names):
            raise TypeError(f"{definition.identity} takes {len(names)} parameters, not {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                known = "given twice" if name in given else f"not one of {', '.join(names)}"
                raise TypeError(f"{definition.identity}: parameter {name!r} is {known}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(f"{definition.identity} lacks {', '.join(missing)}")
        tensors = [expect_tensor(given[name], name) for name in definition.inputs]
        attributes = {name: given[name] for name in definition.attributes}
        for name, kind in definition.attributes.items():
            write_attribute(name, kind, attributes[name])  # a wrong type is found now
        list_plugin(definition)
        types, ranks = [tensor.dtype for tensor in tensors], [tensor._rank for tensor in tensors]
        return tensors, [], QuickPlugin(definition, attributes, types, ranks)


class _Namespace:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Operator:
        definition = DEFINITIONS.get(f"{self._namespace}::{name}")
        if definition is None:
            raise AttributeError(f"no plugin is registered as '{self._namespace}::{name}'")
        return Operator(definition)


class _Operators:
    def __getattr__(self, namespace: str) -> _Namespace:
        if not any(definition.namespace == namespace for definition in DEFINITIONS.values()):
            raise AttributeError(f"no plugin is registered in namespace {namespace!r}")
        return _Namespace(namespace)


op = _Operators()
"""The registered plugins by namespace and name."""


_TYPES: Final[dict[str, DataType]] = {
    **DataType.__members__,
    "FP32": DataType.FLOAT,
    "FP16": DataType.HALF,
}


class AutoTuneCombination:
    """Which types and formats go together, and with which tactics.

    Args:
        io_types: Types by position, separated by commas; alternatives by ``|``, which are taken together:
            ``"FP32|FP16, FP32|FP16"`` is either all FP32 or all FP16.
        layouts: Formats for all positions, alternatives separated by ``|`` or ``*``.
        tactics: Numbers of tactics; none stands for the default one.
    """

    def __init__(self, io_types: str | None = None, layouts: str | None = None, tactics: Iterable[int] = ()) -> None:
        self.io_types: list[list[DataType]] = [] if io_types is None else [_types(each) for each in io_types.split(",")]
        self.layouts = [TensorFormat.LINEAR] if layouts is None else _formats(layouts)
        self._by_position: dict[int, tuple[list[DataType], list[TensorFormat]]] = {}
        self._tactics = list(tactics)

    def pos(self, pos: int | Sequence[int], io_types: str, layouts: str = "LINEAR") -> None:
        """Names the types and formats of one position, or of several."""
        for each in [pos] if isinstance(pos, int) else pos:
            self._by_position[each] = (_types(io_types), _formats(layouts))

    def tactics(self, tactics: Iterable[int]) -> None:
        """Names the tactics."""
        self._tactics = list(tactics)

    @property
    def tactic_numbers(self) -> list[int]:
        """The tactics."""
        return self._tactics

    def supports(self, types: Sequence[DataType], formats: Sequence[TensorFormat]) -> bool:
        """Whether the first positions may have these types and formats.

        Args:
            types: One by position, as far as they are known.
            formats: Likewise.
        """
        alternatives: set[int] | None = None
        for position, (dtype, kind) in enumerate(zip(types, formats, strict=True)):
            wanted, layouts = self._position(position)
            if dtype not in wanted or kind not in layouts:
                return False
            if len(wanted) > 1:
                fitting = {at for at, each in enumerate(wanted) if each is dtype}
                alternatives = fitting if alternatives is None else alternatives & fitting
                if not alternatives:
                    return False
        return True

    def _position(self, position: int) -> tuple[list[DataType], list[TensorFormat]]:
        found = self._by_position.get(position)
        if found is not None:
            return found
        if position < len(self.io_types):
            return self.io_types[position], self.layouts
        raise ValueError(f"the combination says nothing of position {position}")


def _types(names: str) -> list[DataType]:
    try:
        return [_TYPES[name.strip()] for name in names.split("|")]
    except KeyError as error:
        raise ValueError(f"no element type is called {error}; types are {', '.join(sorted(_TYPES))}") from None


def _formats(names: str) -> list[TensorFormat]:
    try:
        return [TensorFormat[name.strip()] for name in names.replace("*", "|").split("|")]
    except KeyError as error:
        raise ValueError(f"no format is called {error}") from None


SCALARS: Final = (int, float, str, bool, bytes)
"""Types of attributes besides one-dimensional arrays."""


@dataclass
class Definition:
    """A plugin that decorated functions define.

    Attributes:
        namespace: Before the ``::`` of its identity.
        name: Behind it.
        describe: Gives the descriptions of the outputs.
        inputs: Names of the tensors, in order.
        attributes: Types of the attributes, by name: one of `SCALARS`, or a numpy type for arrays.
        implementation: Computes the outputs.
        combinations: Gives what the plugin supports, or None for LINEAR and the types of the network.
        is_listed: Whether the plugin registry has it.
    """

    namespace: str
    name: str
    describe: Callable[..., Any]
    inputs: tuple[str, ...]
    attributes: dict[str, Any]
    implementation: Callable[..., Any] | None = None
    combinations: Callable[..., Any] | None = None
    is_listed: bool = field(default=False, compare=False)

    @property
    def identity(self) -> str:
        """``namespace::name``."""
        return f"{self.namespace}::{self.name}"


DEFINITIONS: Final[dict[str, Definition]] = {}
"""Plugins by identity."""


def split_identity(plugin_id: str) -> tuple[str, str]:
    """Namespace and name of an identity.

    Raises:
        ValueError: Not of the form ``namespace::name``.
    """
    namespace, separator, name = plugin_id.partition("::")
    if not separator or not namespace.isidentifier() or not name.isidentifier():
        raise ValueError(f"{plugin_id!r} is not of the form 'namespace::name'")
    return namespace, name


def read_signature(plugin_id: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the inputs, and types of the attributes by name, of a description.

    Raises:
        ValueError: The signature is not that of a description.
    """
    hints = typing.get_type_hints(function)
    inputs: list[str] = []
    attributes: dict[str, Any] = {}
    for name in inspect.signature(function).parameters:
        kind = hints.get(name)
        if kind is TensorDesc:
            if attributes:
                raise ValueError(f"plugin {plugin_id!r}: input {name!r} comes after attributes; inputs come first")
            inputs.append(name)
        else:
            attributes[name] = _attribute_type(plugin_id, name, kind)
    returned = hints.get("return")
    if returned is not TensorDesc and typing.get_origin(returned) is not tuple:
        raise ValueError(f"plugin {plugin_id!r}: the description returns TensorDesc or Tuple[TensorDesc, ...]")
    return tuple(inputs), attributes


def _attribute_type(plugin_id: str, name: str, kind: Any) -> Any:
    if kind in SCALARS:
        return kind
    # the type that an alias stands for, with the alias's arguments in it; NDArray is such an alias in newer NumPy
    alias = typing.get_origin(kind) or kind
    meaning = getattr(alias, "__value__", None)
    array = kind if meaning is None else meaning[typing.get_args(kind)]
    if typing.get_origin(array) is np.ndarray:
        element = typing.get_args(typing.get_args(array)[1])[0]
        return np.dtype(element)
    raise ValueError(
        f"plugin {plugin_id!r}: parameter {name!r} is annotated with {kind}; inputs are TensorDesc, attributes are "
        "int, float, str, bool, bytes or numpy.typing.NDArray[...]"
    )


def expect_parameters(
    definition: Definition, function: Callable[..., Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    """Refuses a function with other parameters than a plugin's inputs, attributes, and those that are named.

    Raises:
        ValueError: A parameter is missing, or unknown.
    """
    names = list(inspect.signature(function).parameters)
    allowed = {*definition.inputs, *definition.attributes, *required, *optional}
    missing = [name for name in (*definition.inputs, *required) if name not in names]
    unknown = [name for name in names if name not in allowed]
    if missing or unknown:
        said = f"lacks {missing}" if missing else f"has unknown {unknown}"
        raise ValueError(f"plugin {definition.identity!r}: {getattr(function, '__name__', function)} {said}")


VERSION = "1"
_FIELD_TYPES: Final = {dtype: kind for kind, dtype in ELEMENTS.items() if kind is not PluginFieldType.CHAR}
_TACTIC = "tactic:"
"""Name of the field that holds the tactic; no attribute can be called so."""


class QuickPlugin(
    IPluginV3, IPluginV3QuickCore, IPluginV3QuickBuild, IPluginV3QuickRuntime, IPluginV3OneBuildV2, IPluginV3OneRuntime
):
    """A use of a decorated plugin, with values for its attributes.

    Args:
        definition: The plugin.
        attributes: Values by name.
        types: Element types of the inputs, where they are known.
        ranks: Numbers of axes of the inputs, where they are known.
        tactic: The tactic of an engine, where one was chosen.
    """

    def __init__(
        self,
        definition: Definition,
        attributes: Mapping[str, Any],
        types: Sequence[DataType] = (),
        ranks: Sequence[int] = (),
        tactic: int | None = None,
    ) -> None:
        self._definition = definition
        self._attributes = dict(attributes)
        self._types = tuple(types)
        self._ranks = tuple(ranks)
        self._tactic = tactic
        self._aliases: list[int] = []
        self._sized: list[set[int]] = []
        self.plugin_name, self.plugin_version, self.plugin_namespace = definition.name, VERSION, definition.namespace

    def get_capability_interface(self, type: PluginCapabilityType) -> Any:
        """Itself, for all three."""
        return self

    def clone(self) -> QuickPlugin:
        """The same use once more."""
        return QuickPlugin(self._definition, self._attributes, self._types, self._ranks, self._tactic)

    def attach_to_context(self, resource_context: IPluginResourceContext) -> IPluginV3:
        """A plugin for one execution context."""
        return self

    # Outputs ---------------------------------------------------------------------------------------

    def _describe(self, extents: Sequence[Sequence[Any]]) -> list[TensorDesc]:
        """The descriptions of the outputs, from the extents of the inputs."""
        types = self._types or (DataType.FLOAT,) * len(extents)
        inputs = [
            TensorDesc([ShapeExpr(extent) for extent in shape], dtype, TensorFormat.LINEAR)
            for shape, dtype in zip(extents, types, strict=True)
        ]
        found = self._definition.describe(*inputs, **self._attributes)
        outputs = list(found) if isinstance(found, tuple) else [found]
        places = {id(tensor): at for at, tensor in enumerate(inputs)}
        self._aliases = [places.get(id(tensor.get_aliased()), -1) for tensor in outputs]
        self.num_outputs = len(outputs)
        return outputs

    def get_output_data_types(self, input_types: Sequence[DataType]) -> list[DataType]:
        """The types that the description gives.

        Raises:
            ValueError: The description gives an output no type.
        """
        self._types = tuple(input_types)
        found = []
        for tensor in self._describe([[None] * rank for rank in self._ranks]):
            if tensor.dtype is None:
                raise ValueError(f"plugin {self._definition.identity!r}: an output has no dtype")
            found.append(tensor.dtype)
        return found

    def get_output_shapes(
        self, inputs: Sequence[DimsExprs], shape_inputs: Sequence[DimsExprs], expr_builder: IExprBuilder
    ) -> list[DimsExprs]:
        """The extents that the description gives."""
        self._ranks = tuple(len(shape) for shape in inputs)
        outputs = self._describe([[shape[axis] for axis in range(len(shape))] for shape in inputs])
        places = {id(tensor): at for at, tensor in enumerate(outputs)}

        def extent(expression: ShapeExpr) -> IDimensionExpr:
            if not isinstance(expression, SizeTensorShapeExpr):
                return expression._known()
            size = expression.size_tensor
            return expr_builder.declare_size_tensor(places[id(size)], size.opt._known(), size.upper_bound._known())

        self._sized = [
            {axis for axis, each in enumerate(tensor.shape_expr) if each.is_size_tensor} for tensor in outputs
        ]
        return [DimsExprs([extent(each) for each in tensor.shape_expr]) for tensor in outputs]

    def get_aliased_input(self, output_index: int) -> int:
        """The input that an output was said to share its memory with, -1 for none."""
        return self._aliases[output_index]

    # Formats and tactics ---------------------------------------------------------------------------

    def supports_format_combination(self, pos: int, in_out: Sequence[DynamicPluginTensorDesc], num_inputs: int) -> bool:
        """Whether a combination fits; without any, LINEAR does."""
        kinds = [tensor.desc.format for tensor in in_out[: pos + 1]]
        if self._definition.combinations is None:
            return kinds[-1] is TensorFormat.LINEAR
        types = [tensor.desc.type for tensor in in_out[: pos + 1]]
        described = [
            TensorDesc(ShapeExprs(len(tensor.desc.dims)), tensor.desc.type, tensor.desc.format) for tensor in in_out
        ]
        options = self._taken(self._definition.combinations)
        options["outputs"] = tuple(described[num_inputs:])
        for combination in self._definition.combinations(*described[:num_inputs], **options):
            if combination.supports(types, kinds):
                self._tactic = next(iter(combination.tactic_numbers), None)
                return True
        return False

    def _taken(self, function: Any) -> dict[str, Any]:
        names = inspect.signature(function).parameters
        return {name: value for name, value in self._attributes.items() if name in names}

    # Running ---------------------------------------------------------------------------------------

    def enqueue(
        self,
        input_desc: Sequence[PluginTensorDesc],
        output_desc: Sequence[PluginTensorDesc],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Calls the implementation.

        Raises:
            RuntimeError: There is none.
        """
        implementation = self._definition.implementation
        if implementation is None:
            raise RuntimeError(f"plugin {self._definition.identity!r} has no implementation: decorate one with impl")
        given = [Tensor(desc, address.tensor) for desc, address in zip(input_desc, inputs, strict=True)]  # type: ignore[attr-defined]
        taken = [
            Tensor(self._output_desc(at, desc), address.tensor, given[alias] if alias >= 0 else None)  # type: ignore[attr-defined]
            for at, (desc, address, alias) in enumerate(zip(output_desc, outputs, self._aliases, strict=True))
        ]
        options = self._taken(implementation)
        if "tactic" in inspect.signature(implementation).parameters:
            options["tactic"] = self._tactic or 0
        implementation(*given, **options, outputs=tuple(taken), stream=stream)

    def _output_desc(self, index: int, desc: PluginTensorDesc) -> PluginTensorDesc:
        """An output's description, -1 for extents that another output will hold."""
        dims = [-1 if axis in self._sized[index] else extent for axis, extent in enumerate(desc.dims)]
        return PluginTensorDesc._of(dims, desc.type, desc.format)

    # Serialization ---------------------------------------------------------------------------------

    def get_fields_to_serialize(self) -> PluginFieldCollection:
        """The attributes: the description needs all of them again to tell extents."""
        fields = PluginFieldCollection(
            write_attribute(name, kind, self._attributes[name]) for name, kind in self._definition.attributes.items()
        )
        if self._tactic is not None:
            fields.append(PluginField(_TACTIC, np.array([self._tactic]), PluginFieldType.INT64))
        return fields


class QuickCreator(IPluginCreatorV3Quick):
    """Makes uses of one decorated plugin from the fields that engines keep.

    Args:
        definition: The plugin.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self.name, self.plugin_version, self.plugin_namespace = definition.name, VERSION, definition.namespace
        self.field_names = PluginFieldCollection(PluginField(name) for name in definition.attributes)

    def create_plugin(
        self, name: str, namespace: str, field_collection: PluginFieldCollection_, phase: Any, quickPluginType: Any
    ) -> IPluginV3:
        """Makes a use from its attributes."""
        fields = {field.name: field for field in field_collection}
        tactic = fields.pop(_TACTIC, None)
        attributes = {
            label: read_attribute(self._definition.attributes[label], field) for label, field in fields.items()
        }
        number = None if tactic is None or tactic.data is None else int(tactic.data[0])
        return QuickPlugin(self._definition, attributes, tactic=number)


def write_attribute(name: str, kind: Any, value: Any) -> PluginField:
    """An attribute as a field.

    Raises:
        TypeError: The value is of another type than the attribute.
    """
    if isinstance(kind, np.dtype):
        array = np.asarray(value)
        if array.dtype != kind or array.ndim != 1:
            raise TypeError(
                f"attribute {name!r} is a one-dimensional array of {kind}, not {array.ndim}-D {array.dtype}"
            )
        raw = array.view(np.int8) if kind == np.bool_ else array
        return PluginField(name, raw, _FIELD_TYPES.get(kind, PluginFieldType.INT8))
    if kind is float and isinstance(value, (int, np.integer, np.floating)):
        value = float(value)
    if kind is int and isinstance(value, np.integer):
        value = int(value)
    if type(value) is not kind:
        raise TypeError(f"attribute {name!r} is {kind.__name__}, not {type(value).__name__}")
    if kind is str:
        return PluginField(name, value.encode(), PluginFieldType.CHAR)
    if kind is bytes:
        return PluginField(name, value, PluginFieldType.CHAR)
    if kind is float:
        return PluginField(name, np.array([value]), PluginFieldType.FLOAT64)
    return PluginField(name, np.array([int(value)]), PluginFieldType.INT64)


def read_attribute(kind: Any, field: PluginField) -> Any:
    """Inverse of `write_attribute`."""
    data = np.empty(0, np.int8) if field.data is None else field.data
    if isinstance(kind, np.dtype):
        return data.view(kind)
    if kind is str:
        return data.tobytes().decode()
    return data.tobytes() if kind is bytes else kind(data[0])
